/* Bytes as they come, and the numbers in them. */

#ifndef ANABRANCH_BYTES_H
#define ANABRANCH_BYTES_H

#include <limits.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the arrays that go in and out are little-endian and are used as they lie in memory"
#endif

typedef const uint8_t *Bytes;

static inline uint64_t load_u64(Bytes p) { uint64_t v; memcpy(&v, p, 8); return v; }
static inline uint32_t load_u32(Bytes p) { uint32_t v; memcpy(&v, p, 4); return v; }
static inline uint16_t load_u16(Bytes p) { uint16_t v; memcpy(&v, p, 2); return v; }
static inline int64_t load_be64(Bytes p) { return (int64_t)__builtin_bswap64(load_u64(p)); }
static inline uint32_t load_be32(Bytes p) { return __builtin_bswap32(load_u32(p)); }
static inline void store_u32(uint8_t *p, uint32_t v) { memcpy(p, &v, 4); }
static inline void store_u64(uint8_t *p, uint64_t v) { memcpy(p, &v, 8); }
static inline void store_be32(uint8_t *p, uint32_t v) { store_u32(p, __builtin_bswap32(v)); }
static inline size_t pad8(size_t size) { return (size + 7) & ~(size_t)7; }

#endif
