/* Loops over records: which slot each one has, and the batches of each branch.

   The broker stores batches as clients sent them and checks no more than their header and CRC, so
   every length and every delta in here may be a lie: each read is held against the end of what it
   is read from. What is decided about a record (its branch, its length) is decided once and
   remembered; the copying pass never reads a length from the batch again. So bytes that change
   underneath (a mapped file) can spoil the result but never memory.

   A batch of format v2 is 61 bytes of header, big-endian, then the records:

       0  base offset int64        21 attributes int16          43 producer id int64
       8  batch length int32       23 last offset delta int32   51 producer epoch int16
       12 leader epoch int32       27 base timestamp int64      53 base sequence int32
       16 magic int8               35 max timestamp int64       57 records count int32
       17 CRC-32C uint32

   All loops run without the interpreter's lock. Only the limited API is used, so one build serves
   every CPython from 3.11 on. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <limits.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#endif

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the arrays that go in and out are little-endian and are used as they lie in memory"
#endif

typedef const uint8_t *Bytes;

/* ---- Loads and stores ------------------------------------------------------------------- */

static inline uint64_t load_u64(Bytes p) { uint64_t v; memcpy(&v, p, 8); return v; }
static inline uint32_t load_u32(Bytes p) { uint32_t v; memcpy(&v, p, 4); return v; }
static inline uint16_t load_u16(Bytes p) { uint16_t v; memcpy(&v, p, 2); return v; }
static inline int64_t load_be64(Bytes p) { return (int64_t)__builtin_bswap64(load_u64(p)); }
static inline uint32_t load_be32(Bytes p) { return __builtin_bswap32(load_u32(p)); }
static inline void store_u32(uint8_t *p, uint32_t v) { memcpy(p, &v, 4); }
static inline void store_u64(uint8_t *p, uint64_t v) { memcpy(p, &v, 8); }
static inline void store_be32(uint8_t *p, uint32_t v) { store_u32(p, __builtin_bswap32(v)); }
static inline size_t pad8(size_t size) { return (size + 7) & ~(size_t)7; }

/* ---- XXH64, seed 0 ---------------------------------------------------------------------- */

#define P1 0x9E3779B185EBCA87ULL
#define P2 0xC2B2AE3D27D4EB4FULL
#define P3 0x165667B19E3779F9ULL
#define P4 0x85EBCA77C2B2AE63ULL
#define P5 0x27D4EB2F165667C5ULL

static inline uint64_t rotl(uint64_t v, int bits) { return (v << bits) | (v >> (64 - bits)); }
static inline uint64_t lane(uint64_t acc, uint64_t in) { return rotl(acc + in * P2, 31) * P1; }

static inline uint64_t xxh64(Bytes p, size_t size) {
    Bytes end = p + size;
    uint64_t h;
    if (size >= 32) {
        uint64_t a = P1 + P2, b = P2, c = 0, d = 0 - P1;
        for (; end - p >= 32; p += 32) {
            a = lane(a, load_u64(p));
            b = lane(b, load_u64(p + 8));
            c = lane(c, load_u64(p + 16));
            d = lane(d, load_u64(p + 24));
        }
        h = rotl(a, 1) + rotl(b, 7) + rotl(c, 12) + rotl(d, 18);
        h = (h ^ lane(0, a)) * P1 + P4;
        h = (h ^ lane(0, b)) * P1 + P4;
        h = (h ^ lane(0, c)) * P1 + P4;
        h = (h ^ lane(0, d)) * P1 + P4;
    } else {
        h = P5;
    }
    h += size;
    for (; end - p >= 8; p += 8) h = rotl(h ^ lane(0, load_u64(p)), 27) * P1 + P4;
    if (end - p >= 4) {
        h = rotl(h ^ load_u32(p) * P1, 23) * P2 + P3;
        p += 4;
    }
    for (; p < end; p++) h = rotl(h ^ *p * P5, 11) * P1;
    h = (h ^ h >> 33) * P2;
    h = (h ^ h >> 29) * P3;
    return h ^ h >> 32;
}

/* The upper 16 bits: see slots.py for why these and not the producer's partitioner. */
static inline uint32_t slot_of_key(Bytes key, size_t size) {
    return (uint32_t)(xxh64(key, size) >> 48);
}

static uint32_t slot_of_block(int64_t block) {
    uint64_t big_endian = __builtin_bswap64((uint64_t)block);
    return slot_of_key((Bytes)&big_endian, 8);
}

/* The one of `ranges` equal ranges that has the slot. */
static inline uint32_t range_of_slot(uint32_t slot, uint32_t ranges) {
    return ((slot + 1) * ranges - 1) >> 16;
}

#define SLOTS 65536
#define BRANCHES_MAX 1024
#define NULL_KEY_BLOCK_BITS 6

/* ---- CRC-32C ---------------------------------------------------------------------------- */

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

static uint32_t (*crc32c)(Bytes p, size_t size) = crc_portable;

#if defined(__x86_64__)

/* The instruction takes eight bytes in one cycle but answers after three, so three stretches of
   the data go side by side. Their CRCs are then joined: to append L bytes to data is to multiply
   its CRC by x^(8 L), which is one carry-less multiplication by a number that depends on L only.
   Both operands have their bits reversed, so the product is one bit short, and the instruction
   that reduces it multiplies by x^32: hence x^(8 L - 33). */

#define STRETCH_MAX 1024
static uint32_t crc_power[2 * STRETCH_MAX / 8 + 1]; /* [L / 8] */

__attribute__((target("sse4.2,pclmul"))) static uint32_t crc_sse42(Bytes p, size_t size) {
    uint64_t a = 0xFFFFFFFFu;
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
    return ~(uint32_t)a;
}

#elif defined(__ARM_FEATURE_CRC32)

static uint32_t crc_arm(Bytes p, size_t size) {
    uint32_t crc = 0xFFFFFFFFu;
    for (; size >= 8; p += 8, size -= 8) crc = __crc32cd(crc, load_u64(p));
    for (; size; p++, size--) crc = __crc32cb(crc, *p);
    return ~crc;
}

#endif

static void prepare_crc(void) {
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
    if (__builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul")) crc32c = crc_sse42;
#elif defined(__ARM_FEATURE_CRC32)
    crc32c = crc_arm;
#endif
}

/* ---- Batches ---------------------------------------------------------------------------- */

#define HEADER_SIZE 61
#define LENGTH_PREFIX_SIZE 12 /* base offset and length: what the length does not count */
#define RECORD_SIZE_MIN 7     /* length, attributes, two deltas, two lengths, no headers */
#define PAYLOAD_MAX (INT32_MAX - (HEADER_SIZE - LENGTH_PREFIX_SIZE))
#define CRC_POS 17
#define ATTRIBUTES_POS 21
#define COUNT_POS 57
#define CODEC_MASK 7
#define CONTROL_FLAG 0x20

enum Kind { NOWHERE, EVERYWHERE, WHOLE, REBUILT };

typedef struct {
    Bytes start;         /* the batch as stored */
    size_t size;
    Bytes payload;       /* its plain records, or NULL when there is no way to have them */
    size_t payload_size;
    int64_t base_offset;
    int64_t next_offset;
    int32_t records_count;
    int is_compressed;   /* so that the payload is not where the batch is */
    uint32_t branch;     /* of all records, when WHOLE */
    size_t first_record; /* where its records begin in `Split.record_branch` */
    enum Kind kind;
} Batch;

static inline int32_t count_of(Bytes batch) { return (int32_t)load_be32(batch + COUNT_POS); }
static inline int codec_of(Bytes batch) { return batch[ATTRIBUTES_POS + 1] & CODEC_MASK; }
static inline int is_control(Bytes batch) { return batch[ATTRIBUTES_POS + 1] & CONTROL_FLAG; }

/* Whether the caller has to decompress it. */
static inline int has_codec(Bytes batch) {
    return codec_of(batch) && !is_control(batch) && count_of(batch) > 0;
}

/* The size of the batch at `p`, or 0 when no whole batch of format v2 lies there. */
static size_t size_of_batch(Bytes p, Bytes end) {
    if (end - p < HEADER_SIZE || p[16] != 2) return 0;
    int32_t length = (int32_t)load_be32(p + 8);
    if (length < HEADER_SIZE - LENGTH_PREFIX_SIZE) return 0;
    size_t size = (size_t)length + LENGTH_PREFIX_SIZE;
    return size <= (size_t)(end - p) ? size : 0;
}

static const char not_batches[] = "the bytes are not a run of whole batches of format v2";
static const char not_rising[] = "the offsets of the batches do not rise";

/* How many batches there are; -1 when the bytes are something else. */
static Py_ssize_t count_batches(Bytes p, Bytes end) {
    Py_ssize_t count = 0;
    for (size_t size; p < end; p += size, count++)
        if (!(size = size_of_batch(p, end))) return -1;
    return count;
}

/* Fill in what the headers say, or return what is wrong. Offsets must rise, because readers look
   batches up by them; a last offset delta that reaches into the next batch is cut off there. */
static const char *read_headers(Bytes p, Bytes end, Batch *batches, size_t count,
                                Py_ssize_t *compressed) {
    int64_t previous = -1;
    *compressed = 0;
    for (size_t k = 0; k < count; k++) {
        Batch *batch = &batches[k];
        batch->start = p;
        batch->size = size_of_batch(p, end);
        if (!batch->size) return not_batches;
        batch->payload = p + HEADER_SIZE;
        batch->payload_size = batch->size - HEADER_SIZE;
        batch->records_count = count_of(p);
        batch->base_offset = load_be64(p);
        batch->is_compressed = has_codec(p);
        *compressed += batch->is_compressed;
        if (batch->base_offset <= previous || batch->base_offset > INT64_MAX - INT32_MAX - 1)
            return not_rising;
        previous = batch->base_offset;
        int32_t delta = (int32_t)load_be32(p + 23);
        batch->next_offset = batch->base_offset + (delta < 0 ? 0 : delta) + 1;
        if (k && batches[k - 1].next_offset > batch->base_offset)
            batches[k - 1].next_offset = batch->base_offset;
        p += batch->size;
    }
    return p == end ? NULL : not_batches;
}

/* ---- Varints ---------------------------------------------------------------------------- */

/* The position after the number, or NULL when it does not end before `end` or is too long. */
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

static inline Bytes skip_varlong(Bytes p, Bytes end) {
    Bytes limit = end - p > 10 ? p + 10 : end;
    while (p < limit)
        if (*p++ < 0x80) return p;
    return NULL;
}

/* Bytes behind a length, where -1 means null. */
static inline Bytes read_field(Bytes p, Bytes end, Bytes *field, int32_t *size) {
    p = read_varint(p, end, size);
    if (!p || *size < -1 || *size > end - p) return NULL;
    *field = p;
    return *size > 0 ? p + *size : p;
}

/* ---- Pass 1: the slot and the branch of every record ------------------------------------- */

#define BLOCK_HEADER_SIZE 24
#define FLAG_SPARSE 1
#define FLAG_CONTROL 2
#define FLAG_UNREADABLE 4

typedef struct {
    Batch *batches;
    size_t count;
    uint32_t branches;
    int is_null_key_ordered;
    Bytes header_name; /* the ordering header's, or NULL */
    size_t header_name_size;
    int64_t memo_block; /* records without a key come in blocks: hash each block once */
    uint32_t memo_slot;
    uint16_t *record_branch;
    uint32_t *record_size;
    uint32_t *deltas;     /* of the batch at hand */
    uint32_t *sums;       /* bytes of records by branch, of the batch at hand */
    uint8_t *index;
    size_t index_size;
    uint32_t *ends;       /* [branch * count + batch] */
    uint64_t *starts;     /* [branch], and the end of the last one */
} Split;

/* Put the last header of the rule's name that has a value in place of the key. `p` is behind the
   key. 0 when the fields do not fit the record. */
static int use_header(const Split *s, Bytes p, Bytes end, Bytes *key, int32_t *key_size) {
    Bytes field;
    int32_t size, headers;
    if (!(p = read_field(p, end, &field, &size))) return 0; /* the value */
    if (!(p = read_varint(p, end, &headers)) || headers < 0) return 0;
    while (headers--) {
        Bytes name;
        int32_t name_size;
        if (!(p = read_field(p, end, &name, &name_size)) || name_size < 0) return 0;
        if (!(p = read_field(p, end, &field, &size))) return 0;
        if (size >= 0 && (size_t)name_size == s->header_name_size &&
            !memcmp(name, s->header_name, s->header_name_size)) {
            *key = field;
            *key_size = size;
        }
    }
    return p == end;
}

static inline uint32_t slot_without_key(Split *s, int64_t offset) {
    if (s->is_null_key_ordered) return 0;
    int64_t block = offset >> NULL_KEY_BLOCK_BITS;
    if (block != s->memo_block) {
        s->memo_slot = slot_of_block(block);
        s->memo_block = block;
    }
    return s->memo_slot;
}

/* Slots go to `slots`, branches and sizes to the arrays of `s`. 0 when the records are malformed;
   `is_sparse` says whether an offset is missing before the last record. */
static int walk_records(Split *s, const Batch *batch, uint8_t *slots, int *is_sparse) {
    Bytes p = batch->payload, end = p + batch->payload_size;
    int64_t last_delta = batch->next_offset - batch->base_offset - 1, previous = -1;
    uint32_t count = (uint32_t)batch->records_count, branches = s->branches;
    uint16_t *record_branch = s->record_branch + batch->first_record;
    uint32_t *record_size = s->record_size + batch->first_record;
    for (uint32_t i = 0; i < count; i++) {
        Bytes start = p, key, record_end;
        int32_t size, delta, key_size;
        if (!(p = read_varint(p, end, &size))) return 0;
        if (size < RECORD_SIZE_MIN - 1 || size > end - p) return 0;
        record_end = p + size;
        if (!(p = skip_varlong(p + 1, record_end))) return 0; /* attributes, timestamp delta */
        if (!(p = read_varint(p, record_end, &delta))) return 0;
        if (delta <= previous || delta > last_delta) return 0;
        previous = delta;
        if (!(p = read_field(p, record_end, &key, &key_size))) return 0;
        if (s->header_name && !use_header(s, p, record_end, &key, &key_size)) return 0;
        uint32_t slot = key_size >= 0 ? slot_of_key(key, (size_t)key_size)
                                      : slot_without_key(s, batch->base_offset + delta);
        uint16_t slot16 = (uint16_t)slot;
        memcpy(slots + 2 * (size_t)i, &slot16, 2);
        s->deltas[i] = (uint32_t)delta;
        if (branches) {
            uint32_t branch = range_of_slot(slot, branches);
            uint32_t whole_size = (uint32_t)(record_end - start);
            record_branch[i] = (uint16_t)branch;
            record_size[i] = whole_size;
            s->sums[branch] += whole_size;
        }
        p = record_end;
    }
    *is_sparse = previous != (int64_t)count - 1;
    return p == end;
}

static int crc_matches(const Batch *batch) {
    Bytes from = batch->start + ATTRIBUTES_POS;
    return crc32c(from, batch->size - ATTRIBUTES_POS) == load_be32(batch->start + CRC_POS);
}

/* Append the batch's block to the index and say where the batch goes. */
static void plan_batch(Split *s, Batch *batch) {
    uint8_t *block = s->index + s->index_size, *slots = block + BLOCK_HEADER_SIZE;
    uint32_t count = 0, flags = 0;
    int is_sparse = 0;
    batch->branch = 0;
    if (is_control(batch->start)) {
        /* Its CRC goes along unchanged, so a reader can still tell that it is damaged. */
        batch->kind = EVERYWHERE;
        flags = FLAG_CONTROL;
    } else if (!crc_matches(batch)) {
        /* A rebuilt batch has a new CRC, which would hide the damage. */
        flags = FLAG_UNREADABLE;
    } else if (batch->records_count == 0) {
        batch->kind = NOWHERE;
    } else if (!batch->payload || batch->records_count < 0 || batch->payload_size > PAYLOAD_MAX ||
               (size_t)batch->records_count > batch->payload_size / RECORD_SIZE_MIN ||
               !walk_records(s, batch, slots, &is_sparse)) {
        flags = FLAG_UNREADABLE;
    } else {
        count = (uint32_t)batch->records_count;
        if (is_sparse) flags = FLAG_SPARSE;
        batch->kind = REBUILT;
        if (s->branches) {
            batch->branch = s->record_branch[batch->first_record];
            if (s->sums[batch->branch] == batch->payload_size) batch->kind = WHOLE;
        }
    }
    if (flags & FLAG_UNREADABLE) {
        /* One reader gets to see what a plain consumer sees, the others go on. */
        batch->kind = WHOLE;
        count = 1;
        memset(slots, 0, 2);
    }
    store_u64(block, (uint64_t)batch->base_offset);
    store_u32(block + 8, (uint32_t)(batch->next_offset - batch->base_offset - 1));
    store_u32(block + 12, count);
    store_u32(block + 16, load_be32(batch->start + CRC_POS));
    store_u32(block + 20, flags);
    size_t used = 2 * (size_t)count, padded = pad8(used);
    memset(slots + used, 0, padded - used);
    s->index_size += BLOCK_HEADER_SIZE + padded;
    if (flags & FLAG_SPARSE) {
        uint8_t *deltas = slots + padded;
        used = 4 * (size_t)count;
        padded = pad8(used);
        memcpy(deltas, s->deltas, used);
        memset(deltas + used, 0, padded - used);
        s->index_size += padded;
    }
}

/* Plan all batches and add up the sizes. 0 when a branch gets more than its ends can say. */
static int plan_all(Split *s) {
    size_t count = s->count;
    uint32_t branches = s->branches;
    for (size_t k = 0; k < count; k++) {
        Batch *batch = &s->batches[k];
        memset(s->sums, 0, branches * sizeof *s->sums);
        plan_batch(s, batch);
        for (uint32_t b = 0; b < branches; b++) {
            uint32_t size = 0;
            if (batch->kind == EVERYWHERE || (batch->kind == WHOLE && batch->branch == b))
                size = (uint32_t)batch->size;
            else if (batch->kind == REBUILT && s->sums[b])
                size = HEADER_SIZE + s->sums[b];
            s->ends[b * count + k] = size;
        }
    }
    uint64_t total = 0;
    for (uint32_t b = 0; b < branches; b++) {
        uint64_t end = 0;
        s->starts[b] = total;
        for (size_t k = 0; k < count; k++) {
            end += s->ends[b * count + k];
            if (end > UINT32_MAX) return 0;
            s->ends[b * count + k] = (uint32_t)end;
        }
        total += end;
    }
    s->starts[branches] = total;
    return total <= PY_SSIZE_T_MAX;
}

/* ---- Pass 2: the batches of every branch ------------------------------------------------- */

/* Where batch k of branch b goes, and how many bytes it has. */
static inline size_t place_of(const Split *s, uint32_t b, size_t k, size_t *size) {
    const uint32_t *ends = s->ends + b * s->count;
    uint32_t start = k ? ends[k - 1] : 0;
    *size = ends[k] - start;
    return s->starts[b] + start;
}

static void rebuild_batch(const Split *s, size_t k, uint8_t *out, uint8_t **cursors,
                          uint32_t *counts) {
    const Batch *batch = &s->batches[k];
    size_t size;
    for (uint32_t b = 0; b < s->branches; b++) {
        uint8_t *to = out + place_of(s, b, k, &size);
        cursors[b] = to + HEADER_SIZE;
        counts[b] = 0;
        if (size) memcpy(to, batch->start, HEADER_SIZE);
    }
    const uint16_t *record_branch = s->record_branch + batch->first_record;
    const uint32_t *record_size = s->record_size + batch->first_record;
    uint32_t count = (uint32_t)batch->records_count;
    Bytes from = batch->payload;
    for (uint32_t i = 0; i < count;) {
        uint32_t branch = record_branch[i], first = i;
        size_t run = record_size[i];
        while (++i < count && record_branch[i] == branch) run += record_size[i];
        memcpy(cursors[branch], from, run);
        cursors[branch] += run;
        counts[branch] += i - first;
        from += run;
    }
    for (uint32_t b = 0; b < s->branches; b++) {
        uint8_t *to = out + place_of(s, b, k, &size);
        if (!size) continue;
        store_be32(to + 8, (uint32_t)(size - LENGTH_PREFIX_SIZE));
        to[ATTRIBUTES_POS + 1] &= (uint8_t)~CODEC_MASK;
        store_be32(to + COUNT_POS, counts[b]);
        store_be32(to + CRC_POS, crc32c(to + ATTRIBUTES_POS, size - ATTRIBUTES_POS));
    }
}

static void write_all(const Split *s, uint8_t *out, uint8_t **cursors, uint32_t *counts) {
    size_t size;
    for (size_t k = 0; k < s->count; k++) {
        const Batch *batch = &s->batches[k];
        if (batch->kind == REBUILT) {
            rebuild_batch(s, k, out, cursors, counts);
        } else if (batch->kind == WHOLE) {
            memcpy(out + place_of(s, batch->branch, k, &size), batch->start, batch->size);
        } else if (batch->kind == EVERYWHERE) {
            for (uint32_t b = 0; b < s->branches; b++)
                memcpy(out + place_of(s, b, k, &size), batch->start, batch->size);
        }
    }
}

/* ---- Counting over the index ------------------------------------------------------------- */

typedef struct {
    const int64_t *watermarks, *floors;
    uint32_t watermarks_count, floors_count;
    int64_t end_offset;
    uint64_t *open, *done;
    int64_t *first_open;
} Progress;

static inline void count_record(const Progress *g, int64_t offset, uint32_t slot) {
    uint32_t range = range_of_slot(slot, g->floors_count);
    if (offset >= g->watermarks[range_of_slot(slot, g->watermarks_count)]) {
        if (!g->open[range]++) g->first_open[range] = offset;
    } else if (offset >= g->floors[range]) {
        g->done[range]++;
    }
}

/* 0 when the blocks do not fit together. */
static int count_blocks(const Progress *g, Bytes p, Bytes end) {
    int64_t previous_base = -1;
    while (p < end) {
        if (end - p < BLOCK_HEADER_SIZE) return 0;
        int64_t base = (int64_t)load_u64(p);
        uint32_t last_delta = load_u32(p + 8), count = load_u32(p + 12), flags = load_u32(p + 20);
        size_t slots_size = pad8(2 * (size_t)count);
        size_t deltas_size = flags & FLAG_SPARSE ? pad8(4 * (size_t)count) : 0;
        if (base <= previous_base || base > INT64_MAX - UINT32_MAX ||
            count > (uint64_t)last_delta + 1 ||
            flags > (FLAG_SPARSE | FLAG_CONTROL | FLAG_UNREADABLE) ||
            slots_size + deltas_size > (size_t)(end - p - BLOCK_HEADER_SIZE))
            return 0;
        previous_base = base;
        Bytes slots = p + BLOCK_HEADER_SIZE, deltas = slots + slots_size;
        p = deltas + deltas_size;
        if (base >= g->end_offset) continue;
        int64_t previous_delta = -1;
        for (uint32_t i = 0; i < count; i++) {
            int64_t delta = i;
            if (flags & FLAG_SPARSE) {
                delta = load_u32(deltas + 4 * (size_t)i);
                if (delta <= previous_delta || delta > last_delta) return 0;
                previous_delta = delta;
            }
            if (base + delta >= g->end_offset) break;
            count_record(g, base + delta, load_u16(slots + 2 * (size_t)i));
        }
    }
    return 1;
}

/* ---- What Python sees -------------------------------------------------------------------- */

static PyObject *py_xxh64(PyObject *Py_UNUSED(module), PyObject *data) {
    Py_buffer view;
    if (PyObject_GetBuffer(data, &view, PyBUF_SIMPLE) < 0) return NULL;
    uint64_t hash = xxh64(view.buf, (size_t)view.len);
    PyBuffer_Release(&view);
    return PyLong_FromUnsignedLongLong(hash);
}

static PyObject *py_compressed_batches(PyObject *Py_UNUSED(module), PyObject *data) {
    Py_buffer view;
    if (PyObject_GetBuffer(data, &view, PyBUF_SIMPLE) < 0) return NULL;
    Bytes start = view.buf, p = start, end = start + view.len;
    Py_ssize_t count;
    /* This walk reads the file if it is a mapped one, so it comes first and without the lock. */
    Py_BEGIN_ALLOW_THREADS
    count = count_batches(start, end);
    Py_END_ALLOW_THREADS
    PyObject *list = count < 0 ? NULL : PyList_New(0);
    if (count < 0) PyErr_SetString(PyExc_ValueError, not_batches);
    while (list && p < end) {
        size_t size = size_of_batch(p, end);
        if (!size) break;
        if (has_codec(p)) {
            PyObject *entry = Py_BuildValue("nni", (Py_ssize_t)(p + HEADER_SIZE - start),
                                            (Py_ssize_t)(size - HEADER_SIZE), codec_of(p));
            if (!entry || PyList_Append(list, entry) < 0) Py_CLEAR(list);
            Py_XDECREF(entry);
        }
        p += size;
    }
    PyBuffer_Release(&view);
    return list;
}

/* Take the plain records from `payloads`, and make room for what is remembered of each record. */
static int prepare_split(Split *s, PyObject *payloads) {
    size_t records = 0, index_size = 0, records_max = 1;
    Py_ssize_t next = 0;
    for (size_t k = 0; k < s->count; k++) {
        Batch *batch = &s->batches[k];
        if (batch->is_compressed) {
            PyObject *payload = PyTuple_GetItem(payloads, next++);
            if (!payload) return 0;
            batch->payload = NULL;
            batch->payload_size = 0;
            if (payload != Py_None) {
                char *plain;
                Py_ssize_t size;
                if (PyBytes_AsStringAndSize(payload, &plain, &size) < 0) return 0;
                batch->payload = (Bytes)plain;
                batch->payload_size = (size_t)size;
            }
        }
        size_t count = 1; /* an unreadable batch has one entry */
        if (batch->records_count > 0 &&
            (size_t)batch->records_count <= batch->payload_size / RECORD_SIZE_MIN)
            count = (size_t)batch->records_count;
        batch->first_record = records;
        records += count;
        index_size += BLOCK_HEADER_SIZE + pad8(2 * count) + pad8(4 * count);
        if (count > records_max) records_max = count;
    }
    s->index = malloc(index_size + 1);
    s->deltas = malloc(records_max * sizeof *s->deltas);
    s->sums = malloc((s->branches + 1) * sizeof *s->sums);
    s->record_branch = malloc((records + 1) * sizeof *s->record_branch);
    s->record_size = malloc((records + 1) * sizeof *s->record_size);
    if (s->index && s->deltas && s->sums && s->record_branch && s->record_size) return 1;
    PyErr_NoMemory();
    return 0;
}

/* Both passes; the caller frees what `s` holds. */
static PyObject *run_split(Split *s, PyObject *payloads) {
    PyObject *output = NULL, *starts = NULL, *ends = NULL, *next_offsets = NULL, *result = NULL;
    uint8_t **cursors = malloc((s->branches + 1) * sizeof *cursors);
    uint32_t *counts = malloc((s->branches + 1) * sizeof *counts);
    if (!cursors || !counts) {
        PyErr_NoMemory();
        goto done;
    }
    if (!prepare_split(s, payloads)) goto done;
    if (s->branches && s->count > (size_t)PY_SSIZE_T_MAX / 4 / s->branches) {
        PyErr_NoMemory();
        goto done;
    }
    starts = PyBytes_FromStringAndSize(NULL, 8 * ((Py_ssize_t)s->branches + 1));
    ends = PyBytes_FromStringAndSize(NULL, 4 * (Py_ssize_t)(s->branches * s->count));
    next_offsets = PyBytes_FromStringAndSize(NULL, 8 * (Py_ssize_t)s->count);
    if (!starts || !ends || !next_offsets) goto done;
    s->starts = (uint64_t *)PyBytes_AsString(starts);
    s->ends = (uint32_t *)PyBytes_AsString(ends);
    int64_t *offsets = (int64_t *)PyBytes_AsString(next_offsets);
    int fits;
    Py_BEGIN_ALLOW_THREADS
    for (size_t k = 0; k < s->count; k++) offsets[k] = s->batches[k].next_offset;
    fits = plan_all(s);
    Py_END_ALLOW_THREADS
    if (!fits) {
        PyErr_NoMemory();
        goto done;
    }
    output = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)s->starts[s->branches]);
    if (!output) goto done;
    uint8_t *out = (uint8_t *)PyBytes_AsString(output);
    Py_BEGIN_ALLOW_THREADS
    if (s->branches) write_all(s, out, cursors, counts);
    Py_END_ALLOW_THREADS
    result = Py_BuildValue("OOOOy#", output, starts, ends, next_offsets, (char *)s->index,
                           (Py_ssize_t)s->index_size);
done:
    Py_XDECREF(output);
    Py_XDECREF(starts);
    Py_XDECREF(ends);
    Py_XDECREF(next_offsets);
    free(cursors);
    free(counts);
    return result;
}

static PyObject *py_split(PyObject *Py_UNUSED(module), PyObject *args) {
    Py_buffer view;
    PyObject *sequence, *header, *payloads = NULL, *result = NULL;
    int branches;
    Split s = {.memo_block = -1};
    if (!PyArg_ParseTuple(args, "y*OipO:split", &view, &sequence, &branches,
                          &s.is_null_key_ordered, &header))
        return NULL;
    if (branches < 0 || branches > BRANCHES_MAX) {
        PyErr_Format(PyExc_ValueError, "%d branches; 0 to %d are possible", branches, BRANCHES_MAX);
        goto done;
    }
    s.branches = (uint32_t)branches;
    if (header != Py_None) {
        char *name;
        Py_ssize_t size;
        if (PyBytes_AsStringAndSize(header, &name, &size) < 0) goto done;
        s.header_name = (Bytes)name;
        s.header_name_size = (size_t)size;
    }
    /* A tuple of our own, because a list may change while the lock is released. */
    if (!(payloads = PySequence_Tuple(sequence))) goto done;
    Bytes start = view.buf, end = start + view.len;
    Py_ssize_t count, compressed = 0;
    const char *wrong = not_batches;
    Py_BEGIN_ALLOW_THREADS
    count = count_batches(start, end);
    if (count >= 0) {
        s.count = (size_t)count;
        s.batches = malloc((s.count + 1) * sizeof *s.batches);
        if (s.batches) wrong = read_headers(start, end, s.batches, s.count, &compressed);
    }
    Py_END_ALLOW_THREADS
    if (count >= 0 && !s.batches)
        PyErr_NoMemory();
    else if (wrong)
        PyErr_SetString(PyExc_ValueError, wrong);
    else if (PyTuple_Size(payloads) != compressed)
        PyErr_Format(PyExc_ValueError, "%zd payloads for %zd compressed batches",
                     PyTuple_Size(payloads), compressed);
    else
        result = run_split(&s, payloads);
done:
    free(s.batches);
    free(s.index);
    free(s.deltas);
    free(s.sums);
    free(s.record_branch);
    free(s.record_size);
    Py_XDECREF(payloads);
    PyBuffer_Release(&view);
    return result;
}

/* How many ranges an array of int64 is for, or 0. */
static uint32_t count_ranges(Py_ssize_t size) {
    return size > 0 && size % 8 == 0 && size / 8 <= SLOTS ? (uint32_t)(size / 8) : 0;
}

static PyObject *py_progress(PyObject *Py_UNUSED(module), PyObject *args) {
    Py_buffer index;
    PyObject *watermarks, *floors, *open = NULL, *first = NULL, *done = NULL, *result = NULL;
    long long end_offset;
    char *array;
    Py_ssize_t size;
    Progress g;
    if (!PyArg_ParseTuple(args, "y*OOL:progress", &index, &watermarks, &floors, &end_offset))
        return NULL;
    if (PyBytes_AsStringAndSize(watermarks, &array, &size) < 0) goto done;
    g.watermarks = (const int64_t *)array;
    g.watermarks_count = count_ranges(size);
    if (PyBytes_AsStringAndSize(floors, &array, &size) < 0) goto done;
    g.floors = (const int64_t *)array;
    g.floors_count = count_ranges(size);
    if (!g.watermarks_count || !g.floors_count) {
        PyErr_Format(PyExc_ValueError, "watermarks and floors are arrays of 1 to %d int64", SLOTS);
        goto done;
    }
    open = PyBytes_FromStringAndSize(NULL, size);
    first = PyBytes_FromStringAndSize(NULL, size);
    done = PyBytes_FromStringAndSize(NULL, size);
    if (!open || !first || !done) goto done;
    g.open = memset(PyBytes_AsString(open), 0, (size_t)size);
    g.first_open = memset(PyBytes_AsString(first), 0xFF, (size_t)size); /* -1 */
    g.done = memset(PyBytes_AsString(done), 0, (size_t)size);
    g.end_offset = end_offset;
    int fits;
    Py_BEGIN_ALLOW_THREADS
    fits = count_blocks(&g, index.buf, (Bytes)index.buf + index.len);
    Py_END_ALLOW_THREADS
    if (fits)
        result = PyTuple_Pack(3, open, first, done);
    else
        PyErr_SetString(PyExc_ValueError, "damaged slot index");
done:
    Py_XDECREF(open);
    Py_XDECREF(first);
    Py_XDECREF(done);
    PyBuffer_Release(&index);
    return result;
}

static PyMethodDef methods[] = {
    {"xxh64", py_xxh64, METH_O, "XXH64 with seed 0."},
    {"compressed_batches", py_compressed_batches, METH_O,
     "(position, size, codec) of the payload of each compressed batch with records."},
    {"split", py_split, METH_VARARGS, "Sort the records of batches into equal ranges of slots."},
    {"progress", py_progress, METH_VARARGS, "Count records by branch over slot index blocks."},
    {NULL, NULL, 0, NULL},
};

static int module_exec(PyObject *Py_UNUSED(module)) {
    prepare_crc();
    return 0;
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, (void *)module_exec},
    {0, NULL},
};

static struct PyModuleDef module_definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "anabranch.branch._kernels",
    .m_doc = "Compiled loops over records.",
    .m_methods = methods,
    .m_slots = module_slots,
};

PyMODINIT_FUNC PyInit__kernels(void) { return PyModuleDef_Init(&module_definition); }
