/* Sets of offsets: sorted pairs of int64, both ends included. */

#ifndef ANABRANCH_OFFSET_RANGES_H
#define ANABRANCH_OFFSET_RANGES_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "bytes.h"

typedef struct {
    const int64_t *pairs; /* first, last, first, last, ... */
    size_t count;         /* of pairs */
} OffsetRanges;

static inline int64_t range_first(const OffsetRanges *set, size_t i) { return set->pairs[2 * i]; }
static inline int64_t range_last(const OffsetRanges *set, size_t i) { return set->pairs[2 * i + 1]; }

/* The first range, of those from `i` on, that does not end before `offset`. */
static inline size_t seek_range(const OffsetRanges *set, size_t i, int64_t offset) {
    size_t end = set->count;
    while (i < end) {
        size_t middle = i + (end - i) / 2;
        if (range_last(set, middle) < offset)
            i = middle + 1;
        else
            end = middle;
    }
    return i;
}

/* Whether the offset is in the set; `i` is where to look on for larger ones. */
static inline int has_offset(const OffsetRanges *set, size_t *i, int64_t offset) {
    while (*i < set->count && range_last(set, *i) < offset) ++*i;
    return *i < set->count && range_first(set, *i) <= offset;
}

enum Overlap { NONE_OF_IT, SOME_OF_IT, ALL_OF_IT };

/* How much of the offsets from `first` to `last` is in the set, as far as one range tells. */
static inline enum Overlap overlap_of(const OffsetRanges *set, int64_t first, int64_t last) {
    size_t i = seek_range(set, 0, first);
    if (i == set->count || range_first(set, i) > last) return NONE_OF_IT;
    return range_first(set, i) <= first && range_last(set, i) >= last ? ALL_OF_IT : SOME_OF_IT;
}

/* Take a set from bytes; 0 with an exception when it is none. */
static inline int take_ranges(OffsetRanges *set, PyObject *array) {
    char *bytes;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(array, &bytes, &size) < 0) return 0;
    set->pairs = (const int64_t *)bytes;
    set->count = (size_t)size / 16;
    int is_sorted = size % 16 == 0;
    for (size_t i = 0; is_sorted && i < set->count; i++)
        is_sorted = range_first(set, i) <= range_last(set, i) &&
                    (!i || range_last(set, i - 1) < range_first(set, i));
    if (!is_sorted)
        PyErr_SetString(PyExc_ValueError, "ranges are sorted, disjoint pairs of int64");
    return is_sorted;
}

#endif
