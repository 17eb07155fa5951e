/* Zigzag numbers of variable length, and fields behind such a length.

   Each function returns the position after what it read, or NULL when that does not end before
   `end` or cannot be. */

#ifndef ANABRANCH_VARINT_H
#define ANABRANCH_VARINT_H

#include "bytes.h"

static inline Bytes read_varint(Bytes p, Bytes end, int32_t *value) {
    if (__builtin_expect(end - p >= 2, 1)) {
        uint32_t raw = p[0];
        if (raw < 0x80) {
            *value = (int32_t)(raw >> 1 ^ (0 - (raw & 1)));
            return p + 1;
        }
        if (p[1] < 0x80) {
            raw = (raw & 0x7F) | (uint32_t)p[1] << 7;
            *value = (int32_t)(raw >> 1 ^ (0 - (raw & 1)));
            return p + 2;
        }
    }
    uint32_t raw = 0;
    for (int shift = 0; shift < 35; shift += 7) {
        if (p == end) return NULL;
        uint8_t byte = *p++;
        if (shift == 28 && byte > 0x0F) return NULL;
        raw |= (uint32_t)(byte & 0x7F) << shift;
        if (byte < 0x80) {
            *value = (int32_t)(raw >> 1 ^ (0 - (raw & 1)));
            return p;
        }
    }
    return NULL;
}

static inline Bytes read_varlong(Bytes p, Bytes end, int64_t *value) {
    if (__builtin_expect(p != end && *p < 0x80, 1)) {
        *value = *p >> 1 ^ -(*p & 1);
        return p + 1;
    }
    uint64_t raw = 0;
    for (int shift = 0; shift < 70; shift += 7) {
        if (p == end) return NULL;
        uint8_t byte = *p++;
        if (shift == 63 && byte > 1) return NULL;
        raw |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80) {
            *value = (int64_t)(raw >> 1 ^ (0 - (raw & 1)));
            return p;
        }
    }
    return NULL;
}

/* Bytes behind a length, where -1 means null. */
static inline Bytes read_field(Bytes p, Bytes end, Bytes *field, int32_t *size) {
    p = read_varint(p, end, size);
    if (!p || *size < -1 || *size > end - p) return NULL;
    *field = p;
    return *size > 0 ? p + *size : p;
}

#endif
