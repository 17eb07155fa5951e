/* XXH64, seed 0. */

#ifndef ANABRANCH_XXH64_H
#define ANABRANCH_XXH64_H

#include "bytes.h"

#define XXH_P1 0x9E3779B185EBCA87ULL
#define XXH_P2 0xC2B2AE3D27D4EB4FULL
#define XXH_P3 0x165667B19E3779F9ULL
#define XXH_P4 0x85EBCA77C2B2AE63ULL
#define XXH_P5 0x27D4EB2F165667C5ULL

static inline uint64_t xxh_rotl(uint64_t v, int bits) { return (v << bits) | (v >> (64 - bits)); }

static inline uint64_t xxh_lane(uint64_t acc, uint64_t in) {
    return xxh_rotl(acc + in * XXH_P2, 31) * XXH_P1;
}

static inline uint64_t xxh64(Bytes p, size_t size) {
    Bytes end = p + size;
    uint64_t h;
    if (size >= 32) {
        uint64_t a = XXH_P1 + XXH_P2, b = XXH_P2, c = 0, d = 0 - XXH_P1;
        for (; end - p >= 32; p += 32) {
            a = xxh_lane(a, load_u64(p));
            b = xxh_lane(b, load_u64(p + 8));
            c = xxh_lane(c, load_u64(p + 16));
            d = xxh_lane(d, load_u64(p + 24));
        }
        h = xxh_rotl(a, 1) + xxh_rotl(b, 7) + xxh_rotl(c, 12) + xxh_rotl(d, 18);
        h = (h ^ xxh_lane(0, a)) * XXH_P1 + XXH_P4;
        h = (h ^ xxh_lane(0, b)) * XXH_P1 + XXH_P4;
        h = (h ^ xxh_lane(0, c)) * XXH_P1 + XXH_P4;
        h = (h ^ xxh_lane(0, d)) * XXH_P1 + XXH_P4;
    } else {
        h = XXH_P5;
    }
    h += size;
    for (; end - p >= 8; p += 8) h = xxh_rotl(h ^ xxh_lane(0, load_u64(p)), 27) * XXH_P1 + XXH_P4;
    if (end - p >= 4) {
        h = xxh_rotl(h ^ load_u32(p) * XXH_P1, 23) * XXH_P2 + XXH_P3;
        p += 4;
    }
    for (; p < end; p++) h = xxh_rotl(h ^ *p * XXH_P5, 11) * XXH_P1;
    h = (h ^ h >> 33) * XXH_P2;
    h = (h ^ h >> 29) * XXH_P3;
    return h ^ h >> 32;
}

#endif
