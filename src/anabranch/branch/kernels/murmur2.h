/* The hash by which Kafka's producers find the partition of a key. */

#ifndef ANABRANCH_MURMUR2_H
#define ANABRANCH_MURMUR2_H

#include "bytes.h"

#define MURMUR_SEED 0x9747B28Cu
#define MURMUR_M 0x5BD1E995u

static inline uint32_t murmur2(Bytes p, size_t size) {
    uint32_t h = MURMUR_SEED ^ (uint32_t)size;
    for (; size >= 4; p += 4, size -= 4) {
        uint32_t k = load_u32(p) * MURMUR_M;
        h = h * MURMUR_M ^ (k ^ k >> 24) * MURMUR_M;
    }
    if (size) {
        for (size_t i = size; i--;) h ^= (uint32_t)p[i] << 8 * i;
        h *= MURMUR_M;
    }
    h = (h ^ h >> 13) * MURMUR_M;
    return h ^ h >> 15;
}

static inline uint32_t murmur2_partition(Bytes key, size_t size, uint32_t partitions) {
    return (murmur2(key, size) & 0x7FFFFFFF) % partitions;
}

#endif
