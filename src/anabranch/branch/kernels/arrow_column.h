/* Columns of Arrow that come from Python.

   A column is a tuple (validity or None, offsets or numbers, data or None, offset): the buffers of
   an array, and where in them its first row is. What the buffers have to hold is checked once; what
   the offsets point to is checked with each field. */

#ifndef ANABRANCH_ARROW_COLUMN_H
#define ANABRANCH_ARROW_COLUMN_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "bytes.h"

/* All zeros is a column in which everything is null. */
typedef struct {
    Py_buffer validity, numbers, data;
    Py_ssize_t offset, count;
} ArrowColumn;

/* Take the buffers of a column with so many rows, or None; `extra` is 1 for offsets, of which there
   is one more than rows. 0 with an exception. */
int take_column(ArrowColumn *column, PyObject *tuple, Py_ssize_t count, Py_ssize_t extra);

void close_arrow_column(ArrowColumn *column);

static inline int is_null(const ArrowColumn *column, Py_ssize_t row) {
    if (!column->numbers.buf) return 1;
    if (!column->validity.buf) return 0;
    size_t bit = (size_t)(column->offset + row);
    return !(((Bytes)column->validity.buf)[bit >> 3] >> (bit & 7) & 1);
}

static inline int32_t number_at(const ArrowColumn *column, Py_ssize_t row) {
    return (int32_t)load_u32((Bytes)column->numbers.buf + 4 * (column->offset + row));
}

/* Where the items of a list, or the bytes of a field, are. 0 when they lie outside of `limit`. */
static inline int span_at(const ArrowColumn *column, Py_ssize_t row, Py_ssize_t limit,
                          Py_ssize_t *start, Py_ssize_t *end) {
    *start = number_at(column, row);
    *end = number_at(column, row + 1);
    return 0 <= *start && *start <= *end && *end <= limit;
}

/* The bytes of a field; their size is -1 for null. 0 when they lie outside of the data. */
static inline int bytes_at(const ArrowColumn *column, Py_ssize_t row, Bytes *bytes,
                           int32_t *size) {
    Py_ssize_t start, end;
    *size = -1;
    *bytes = NULL;
    if (is_null(column, row)) return 1;
    if (!span_at(column, row, column->data.len, &start, &end)) return 0;
    *size = (int32_t)(end - start);
    *bytes = *size ? (Bytes)column->data.buf + start : (Bytes)"";
    return 1;
}

#endif
