/* CRC-32C: by table, or by the instructions of x86-64 (two ways) and ARM. */

#include "crc32c.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#endif

#define CRC_POLYNOMIAL 0x82F63B78u /* Castagnoli's, lowest power in the highest bit */

static uint32_t crc_table[8][256]; /* [k][v]: the byte v followed by k zero bytes */

static uint32_t crc_portable(Bytes p, size_t size) {
    uint64_t crc = 0xFFFFFFFFu;
    for (; size >= 8; p += 8, size -= 8) {
        uint64_t v = load_u64(p) ^ crc;
        crc = crc_table[7][v & 255] ^ crc_table[6][v >> 8 & 255] ^ crc_table[5][v >> 16 & 255] ^
              crc_table[4][v >> 24 & 255] ^ crc_table[3][v >> 32 & 255] ^
              crc_table[2][v >> 40 & 255] ^ crc_table[1][v >> 48 & 255] ^ crc_table[0][v >> 56];
    }
    for (; size; p++, size--) crc = crc >> 8 ^ crc_table[0][(crc ^ *p) & 255];
    return ~(uint32_t)crc;
}

uint32_t (*crc32c)(Bytes p, size_t size) = crc_portable;

#if defined(__x86_64__)

/* The instruction takes eight bytes in one cycle but answers after three, so three stretches of
   the data go side by side. Their CRCs are then joined: to append L bytes to data is to multiply
   its CRC by x^(8 L), which is one carry-less multiplication by a number that depends on L only.
   Both operands have their bits reversed, so the product is one bit short, and the instruction
   that reduces it multiplies by x^32: hence x^(8 L - 33). */

#define STRETCH_MAX 1024
static uint32_t crc_power[2 * STRETCH_MAX / 8 + 1]; /* [L / 8] */

#define TARGET_SSE42 __attribute__((target("sse4.2,pclmul")))
#define TARGET_AVX512 __attribute__((target("avx512f,vpclmulqdq,sse4.2,pclmul")))

/* The CRC of data that came before, not inverted, and of these bytes after it. */
TARGET_SSE42 static uint32_t go_on_sse42(uint64_t a, Bytes p, size_t size) {
    while (size >= 96) {
        size_t stretch = size / 24 * 8;
        if (stretch > STRETCH_MAX) stretch = STRETCH_MAX;
        uint64_t b = 0, c = 0;
        Bytes end = p + stretch;
        for (; p < end; p += 8) {
            a = _mm_crc32_u64(a, load_u64(p));
            b = _mm_crc32_u64(b, load_u64(p + stretch));
            c = _mm_crc32_u64(c, load_u64(p + 2 * stretch));
        }
        __m128i a_far = _mm_clmulepi64_si128(
            _mm_cvtsi64_si128((int64_t)a), _mm_cvtsi32_si128((int)crc_power[stretch / 4]), 0);
        __m128i b_far = _mm_clmulepi64_si128(
            _mm_cvtsi64_si128((int64_t)b), _mm_cvtsi32_si128((int)crc_power[stretch / 8]), 0);
        uint64_t both = (uint64_t)_mm_cvtsi128_si64(_mm_xor_si128(a_far, b_far));
        a = _mm_crc32_u64(0, both) ^ c;
        p += 2 * stretch;
        size -= 3 * stretch;
    }
    for (; size >= 8; p += 8, size -= 8) a = _mm_crc32_u64(a, load_u64(p));
    for (; size; p++, size--) a = _mm_crc32_u8((uint32_t)a, *p);
    return (uint32_t)a;
}

TARGET_SSE42 static uint32_t crc_sse42(Bytes p, size_t size) {
    return ~go_on_sse42(0xFFFFFFFFu, p, size);
}

/* Wider registers multiply four pairs of eight bytes at once, so all of the data goes that way: what
   was read is moved on to where the next block lies and added to it. What is left in the end is one
   block that has the same remainder as all of the data. */

#define BLOCK_SIZE 64 /* of one register */
#define LANES 4       /* registers side by side, because a product takes a few cycles */
#define AVX512_SIZE_MIN (2 * LANES * BLOCK_SIZE)

/* What moves data on by so many blocks: the first eight bytes of a pair have eight bytes more to go
   than the last eight. */
TARGET_AVX512 static inline __m512i power_of_blocks(size_t count) {
    size_t words = count * BLOCK_SIZE / 8;
    return _mm512_broadcast_i32x4(
        _mm_set_epi64x((int64_t)crc_power[words], (int64_t)crc_power[words + 1]));
}

TARGET_AVX512 static inline __m512i moved_onto(__m512i data, __m512i power, __m512i next) {
    __m512i first = _mm512_clmulepi64_epi128(data, power, 0x00);
    __m512i last = _mm512_clmulepi64_epi128(data, power, 0x11);
    return _mm512_ternarylogic_epi64(first, last, next, 0x96); /* all three added */
}

TARGET_AVX512 static uint32_t crc_avx512(Bytes p, size_t size) {
    if (size < AVX512_SIZE_MIN) return crc_sse42(p, size);
    __m512i lanes[LANES], power = power_of_blocks(LANES), one = power_of_blocks(1);
    for (int i = 0; i < LANES; i++) lanes[i] = _mm512_loadu_si512(p + i * BLOCK_SIZE);
    lanes[0] = _mm512_xor_si512(lanes[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128(-1)));
    p += LANES * BLOCK_SIZE;
    size -= LANES * BLOCK_SIZE;
    for (; size >= LANES * BLOCK_SIZE; p += LANES * BLOCK_SIZE, size -= LANES * BLOCK_SIZE)
        for (int i = 0; i < LANES; i++)
            lanes[i] = moved_onto(lanes[i], power, _mm512_loadu_si512(p + i * BLOCK_SIZE));
    __m512i all = lanes[0];
    for (int i = 1; i < LANES; i++) all = moved_onto(all, one, lanes[i]);
    for (; size >= BLOCK_SIZE; p += BLOCK_SIZE, size -= BLOCK_SIZE)
        all = moved_onto(all, one, _mm512_loadu_si512(p));
    uint8_t block[BLOCK_SIZE];
    _mm512_storeu_si512(block, all);
    return ~go_on_sse42(go_on_sse42(0, block, BLOCK_SIZE), p, size);
}

#elif defined(__ARM_FEATURE_CRC32)

static uint32_t crc_arm(Bytes p, size_t size) {
    uint32_t crc = 0xFFFFFFFFu;
    for (; size >= 8; p += 8, size -= 8) crc = __crc32cd(crc, load_u64(p));
    for (; size; p++, size--) crc = __crc32cb(crc, *p);
    return ~crc;
}

#endif

void prepare_crc(void) {
    for (uint32_t v = 0; v < 256; v++) {
        uint32_t crc = v;
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? CRC_POLYNOMIAL : 0);
        crc_table[0][v] = crc;
    }
    for (int k = 1; k < 8; k++)
        for (int v = 0; v < 256; v++)
            crc_table[k][v] = crc_table[k - 1][v] >> 8 ^ crc_table[0][crc_table[k - 1][v] & 255];
#if defined(__x86_64__)
    uint32_t power = 1; /* x^31, for eight bytes */
    for (size_t i = 1; i < sizeof crc_power / sizeof *crc_power; i++) {
        crc_power[i] = power;
        for (int byte = 0; byte < 8; byte++) power = power >> 8 ^ crc_table[0][power & 255];
    }
    __builtin_cpu_init();
    if (__builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul")) {
        crc32c = crc_sse42;
        if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("vpclmulqdq"))
            crc32c = crc_avx512;
    }
#elif defined(__ARM_FEATURE_CRC32)
    crc32c = crc_arm;
#endif
}
