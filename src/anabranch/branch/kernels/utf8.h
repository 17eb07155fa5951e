/* Text that is UTF-8 for sure. */

#ifndef ANABRANCH_UTF8_H
#define ANABRANCH_UTF8_H

#include "bytes.h"

#define UTF8_GROWTH_MAX 3 /* each byte may become a replacement character */

/* How many bytes at `p` are one character: 1 to 4. When there is none, minus the number of bytes
   that a decoder replaces by one U+FFFD (the longest beginning of a character, as Unicode
   recommends and Python does). */
static inline int utf8_step(Bytes p, Bytes end) {
    uint8_t first = p[0], low = 0x80, high = 0xBF;
    int size;
    if (first < 0x80) return 1;
    if (first < 0xC2 || first > 0xF4) return -1;
    if (first < 0xE0) {
        size = 2;
    } else if (first < 0xF0) {
        size = 3;
        if (first == 0xE0) low = 0xA0; /* or it would be longer than needed */
        if (first == 0xED) high = 0x9F; /* no surrogates */
    } else {
        size = 4;
        if (first == 0xF0) low = 0x90;
        if (first == 0xF4) high = 0x8F; /* nothing above U+10FFFF */
    }
    for (int i = 1; i < size; i++) {
        if (p + i == end || p[i] < low || p[i] > high) return -i;
        low = 0x80;
        high = 0xBF;
    }
    return size;
}

/* How many bytes the text has when every wrong one is replaced by U+FFFD. */

/* Copy the text and replace what is wrong in it, where there is room for UTF8_GROWTH_MAX
   times as much. Past what was written. */
static inline uint8_t *utf8_copy(uint8_t *to, Bytes p, size_t size) {
    for (Bytes end = p + size; p < end;) {
        int step = utf8_step(p, end);
        if (step > 0) {
            for (; step; step--) *to++ = *p++;
        } else {
            memcpy(to, "\xEF\xBF\xBD", 3);
            to += 3;
            p += -step;
        }
    }
    return to;
}

#endif
