/* Which slot a record has; the rules and their reasons are in slots.py. */

#ifndef ANABRANCH_SLOTS_H
#define ANABRANCH_SLOTS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "bytes.h"
#include "xxh64.h"

#define SLOTS 65536
#define NULL_KEY_BLOCK_BITS 6

typedef struct {
    int is_null_key_ordered;
    Bytes header_name; /* the ordering header's, or NULL */
    size_t header_name_size;
    int64_t memo_block; /* records without a key come in blocks: hash each block once */
    uint32_t memo_slot;
} SlotRule;

/* Have the rule use the header of that name (bytes), or none; 0 with an exception otherwise. */
static inline int name_header(SlotRule *rule, PyObject *name) {
    char *bytes;
    Py_ssize_t size;
    if (name == Py_None) return 1;
    if (PyBytes_AsStringAndSize(name, &bytes, &size) < 0) return 0;
    rule->header_name = (Bytes)bytes;
    rule->header_name_size = (size_t)size;
    return 1;
}

static inline uint32_t slot_of_key(Bytes key, size_t size) {
    return (uint32_t)(xxh64(key, size) >> 48);
}

/* The one of `ranges` equal ranges that has the slot. */
static inline uint32_t range_of_slot(uint32_t slot, uint32_t ranges) {
    return ((slot + 1) * ranges - 1) >> 16;
}

static inline uint32_t slot_without_key(SlotRule *rule, int64_t offset) {
    if (rule->is_null_key_ordered) return 0;
    int64_t block = offset >> NULL_KEY_BLOCK_BITS;
    if (block != rule->memo_block) {
        uint64_t big_endian = __builtin_bswap64((uint64_t)block);
        rule->memo_slot = slot_of_key((Bytes)&big_endian, 8);
        rule->memo_block = block;
    }
    return rule->memo_slot;
}

/* The slot of a record whose ordering key is this one; without one its size is -1. */
static inline uint32_t slot_of(SlotRule *rule, Bytes key, int32_t key_size, int64_t offset) {
    return key_size >= 0 ? slot_of_key(key, (size_t)key_size) : slot_without_key(rule, offset);
}

/* Whether the rule takes the key from headers of that name. */
static inline int names_header(const SlotRule *rule, Bytes name, size_t size) {
    return rule && rule->header_name && size == rule->header_name_size &&
           !memcmp(name, rule->header_name, size);
}

#endif
