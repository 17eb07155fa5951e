/* Arrow's columns as records of format v2.

   First each row is sent to a target, which is one partition of one topic: the one that it names,
   or that of its key by Kafka's murmur2, or one that rows without a key share for a while, as
   Kafka's producers do, so that batches fill up.

   Then the rows of each target become the records of batches, in the order of the rows. Pass 1
   decides where each one goes and how much room it has, pass 2 writes. In front of the records
   there is room for the header of the batch, which is not written here: sequence and compression
   are not known yet. */

#include <stdlib.h>

#include "arrow_column.h"
#include "batch.h"
#include "kernels.h"
#include "murmur2.h"

static const char wrong_offsets[] = "a column's offsets do not lie in its data";

/* ---- Columns ----------------------------------------------------------------------------- */

static int take_buffer(Py_buffer *view, PyObject *object) {
    return object == Py_None || PyObject_GetBuffer(object, view, PyBUF_SIMPLE) == 0;
}

int take_column(ArrowColumn *column, PyObject *tuple, Py_ssize_t count, Py_ssize_t extra) {
    PyObject *validity, *numbers, *data;
    if (tuple == Py_None) return 1;
    if (!PyArg_ParseTuple(tuple, "OOOn;a column is (validity, offsets, data, offset)", &validity,
                          &numbers, &data, &column->offset))
        return 0;
    if (!take_buffer(&column->validity, validity) || !take_buffer(&column->numbers, numbers) ||
        !take_buffer(&column->data, data))
        return 0;
    column->count = count;
    Py_ssize_t end = column->offset + count;
    if (column->offset >= 0 && count >= 0 && end < PY_SSIZE_T_MAX / 8 &&
        column->numbers.len / 4 >= end + extra &&
        (!column->validity.buf || column->validity.len >= (end + 7) / 8))
        return 1;
    PyErr_Format(PyExc_ValueError, "a column's buffers do not have %zd rows", count);
    return 0;
}

void close_arrow_column(ArrowColumn *column) {
    PyBuffer_Release(&column->validity);
    PyBuffer_Release(&column->numbers);
    PyBuffer_Release(&column->data);
}

/* ---- Targets ----------------------------------------------------------------------------- */

typedef struct {
    Py_ssize_t count;
    ArrowColumn topics, keys, given;
    Py_buffer partitions; /* int32 for each topic: how many it has */
    int32_t *bases;       /* [topic]: the target of its first partition */
    Py_ssize_t sticky_first, sticky_rows;
    Py_ssize_t without_key; /* rows so far */
    Py_ssize_t wrong_row;   /* that names no partition of its topic, or has no topic; -1 if none */
} Targets;

/* The partition of a row; -1 when it has none. */
static inline int32_t partition_of(Targets *t, Py_ssize_t row, int32_t partitions) {
    Bytes key;
    int32_t size;
    if (!is_null(&t->given, row)) {
        int32_t given = number_at(&t->given, row);
        return given < partitions ? given : -1;
    }
    if (!bytes_at(&t->keys, row, &key, &size)) return -1;
    if (size >= 0) return (int32_t)murmur2_partition(key, (size_t)size, (uint32_t)partitions);
    Py_ssize_t turn = t->sticky_first + t->without_key++ / t->sticky_rows;
    return (int32_t)(turn % partitions);
}

static void find_targets(Targets *t, int32_t *targets) {
    Py_ssize_t topics = t->partitions.len / 4;
    int has_topics = t->topics.numbers.buf != NULL;
    for (Py_ssize_t row = 0; row < t->count; row++) {
        int32_t topic = 0;
        if (has_topics) topic = is_null(&t->topics, row) ? -1 : number_at(&t->topics, row);
        int32_t partition = -1;
        if (topic >= 0 && topic < topics) {
            int32_t partitions = (int32_t)load_u32((Bytes)t->partitions.buf + 4 * topic);
            partition = partition_of(t, row, partitions);
        }
        if (partition < 0) {
            t->wrong_row = row;
            return;
        }
        targets[row] = t->bases[topic] + partition;
    }
}

/* Number the partitions of all topics; 0 with an exception. */
static int number_targets(Targets *t) {
    Py_ssize_t topics = t->partitions.len / 4;
    int64_t next = 0;
    t->bases = malloc(((size_t)topics + 1) * sizeof *t->bases);
    if (!t->bases) {
        PyErr_NoMemory();
        return 0;
    }
    for (Py_ssize_t i = 0; i < topics; i++) {
        int32_t partitions = (int32_t)load_u32((Bytes)t->partitions.buf + 4 * i);
        t->bases[i] = (int32_t)next;
        next += partitions;
        if (partitions > 0 && next <= INT32_MAX) continue;
        PyErr_SetString(PyExc_ValueError, "each topic has a partition, and all have fewer than 2^31");
        return 0;
    }
    return 1;
}

PyObject *py_record_targets(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *topics, *keys, *given, *output = NULL, *result = NULL;
    Targets t = {.wrong_row = -1};
    if (!PyArg_ParseTuple(args, "nOOOy*nn:record_targets", &t.count, &topics, &keys, &given,
                          &t.partitions, &t.sticky_first, &t.sticky_rows))
        return NULL;
    if (t.count < 0 || t.count > INT32_MAX || t.sticky_first < 0 || t.sticky_rows < 1) {
        PyErr_SetString(PyExc_ValueError, "counts of rows and places to begin are not negative");
    } else if (take_column(&t.topics, topics, t.count, 0) &&
               take_column(&t.keys, keys, t.count, 1) &&
               take_column(&t.given, given, t.count, 0) && number_targets(&t) &&
               (output = PyBytes_FromStringAndSize(NULL, 4 * t.count))) {
        int32_t *targets = (int32_t *)PyBytes_AsString(output);
        Py_BEGIN_ALLOW_THREADS
        find_targets(&t, targets);
        Py_END_ALLOW_THREADS
        result = Py_BuildValue("Onn", output, t.without_key, t.wrong_row);
    }
    Py_XDECREF(output);
    free(t.bases);
    close_arrow_column(&t.topics);
    close_arrow_column(&t.keys);
    close_arrow_column(&t.given);
    PyBuffer_Release(&t.partitions);
    return result;
}

/* ---- Records ----------------------------------------------------------------------------- */

typedef struct {
    int32_t target;
    int32_t count;      /* of records */
    size_t size;        /* of the records */
    PyObject *object;   /* a bytearray */
    uint8_t *next;      /* where the next record goes */
} NewBatch;

/* One row as it becomes a record. */
typedef struct {
    Bytes key, value;
    int32_t key_size, value_size;
    Py_ssize_t first_header, end_header;
    int64_t headers_size; /* their count included */
} Row;

typedef struct {
    Py_ssize_t count;
    Py_buffer targets;
    Py_ssize_t targets_count;
    size_t batch_size_max; /* of a batch with its header, unless a single record has more */
    ArrowColumn keys, values, lists, names, header_values;
    Py_ssize_t headers_count;
    NewBatch *batches;
    size_t batches_count, batches_room;
    int64_t *open;      /* [target]: the batch that its next record goes to, or -1 */
    uint32_t *row_batch;
    uint32_t *row_delta;
    int64_t *row_size;  /* without the length in front */
    const char *wrong;
} Encode;

static inline size_t varint_size(int64_t value) {
    uint64_t raw = (uint64_t)value << 1 ^ (uint64_t)(value >> 63);
    return raw ? (size_t)(63 - __builtin_clzll(raw)) / 7 + 1 : 1;
}

static inline uint8_t *put_varint(uint8_t *p, int64_t value) {
    uint64_t raw = (uint64_t)value << 1 ^ (uint64_t)(value >> 63);
    for (; raw >= 0x80; raw >>= 7) *p++ = (uint8_t)(raw | 0x80);
    *p++ = (uint8_t)raw;
    return p;
}

static inline size_t field_size(int32_t size) {
    return varint_size(size) + (size > 0 ? (size_t)size : 0);
}

static inline uint8_t *put_field(uint8_t *p, Bytes bytes, int32_t size) {
    p = put_varint(p, size);
    if (size <= 0) return p;
    memcpy(p, bytes, (size_t)size);
    return p + size;
}

/* 0 when the columns are wrong, or a name of a header is missing. */
static inline int read_row(const Encode *e, Py_ssize_t i, Row *row) {
    if (!bytes_at(&e->keys, i, &row->key, &row->key_size) ||
        !bytes_at(&e->values, i, &row->value, &row->value_size))
        return 0;
    row->first_header = row->end_header = 0;
    row->headers_size = 1;
    if (is_null(&e->lists, i)) return 1;
    if (!span_at(&e->lists, i, e->headers_count, &row->first_header, &row->end_header)) return 0;
    row->headers_size = (int64_t)varint_size(row->end_header - row->first_header);
    for (Py_ssize_t h = row->first_header; h < row->end_header; h++) {
        Bytes name, value;
        int32_t name_size, value_size;
        if (!bytes_at(&e->names, h, &name, &name_size) || name_size < 0) return 0;
        if (!bytes_at(&e->header_values, h, &value, &value_size)) return 0;
        row->headers_size += (int64_t)(field_size(name_size) + field_size(value_size));
    }
    return 1;
}

static inline int64_t record_size(const Row *row, uint32_t delta) {
    return 2 + (int64_t)varint_size(delta) + (int64_t)field_size(row->key_size) +
           (int64_t)field_size(row->value_size) + row->headers_size;
}

/* The index of a new batch; -1 when there is no memory. */
static int64_t open_batch(Encode *e, int32_t target) {
    if (e->batches_count == e->batches_room) {
        size_t room = 2 * e->batches_room + 16;
        NewBatch *batches = realloc(e->batches, room * sizeof *batches);
        if (!batches) return -1;
        e->batches = batches;
        e->batches_room = room;
    }
    e->batches[e->batches_count] = (NewBatch){.target = target};
    return e->open[target] = (int64_t)e->batches_count++;
}

/* Pass 1. 0 when there is no memory; `wrong` says what else is wrong. */
static int place_rows(Encode *e) {
    for (Py_ssize_t i = 0; i < e->count; i++) {
        int32_t target = (int32_t)load_u32((Bytes)e->targets.buf + 4 * i);
        Row row;
        if (target < 0 || target >= e->targets_count) {
            e->wrong = "a row has no target";
            return 1;
        }
        if (!read_row(e, i, &row)) {
            e->wrong = wrong_offsets;
            return 1;
        }
        int64_t k = e->open[target];
        int64_t size = k < 0 ? 0 : record_size(&row, (uint32_t)e->batches[k].count);
        if (k < 0 || HEADER_SIZE + e->batches[k].size + varint_size(size) + (size_t)size >
                         e->batch_size_max) {
            if ((k = open_batch(e, target)) < 0) return 0;
            size = record_size(&row, 0);
        }
        NewBatch *batch = &e->batches[k];
        e->row_batch[i] = (uint32_t)k;
        e->row_delta[i] = (uint32_t)batch->count++;
        e->row_size[i] = size;
        batch->size += varint_size(size) + (size_t)size;
        if (batch->size > PAYLOAD_MAX) {
            e->wrong = "a record has more than 2 GiB";
            return 1;
        }
    }
    return 1;
}

/* Pass 2. Nothing is written that was not measured: the columns may change underneath. */
static void write_rows(Encode *e) {
    for (Py_ssize_t i = 0; i < e->count; i++) {
        NewBatch *batch = &e->batches[e->row_batch[i]];
        Row row;
        if (!read_row(e, i, &row) || record_size(&row, e->row_delta[i]) != e->row_size[i]) {
            e->wrong = wrong_offsets;
            return;
        }
        uint8_t *p = put_varint(batch->next, e->row_size[i]);
        *p++ = 0; /* attributes */
        *p++ = 0; /* timestamp delta: they all have the timestamp of the batch */
        p = put_varint(p, e->row_delta[i]);
        p = put_field(p, row.key, row.key_size);
        p = put_field(p, row.value, row.value_size);
        p = put_varint(p, row.end_header - row.first_header);
        for (Py_ssize_t h = row.first_header; h < row.end_header; h++) {
            Bytes name, value;
            int32_t name_size, value_size;
            bytes_at(&e->names, h, &name, &name_size);
            bytes_at(&e->header_values, h, &value, &value_size);
            p = put_field(p, name, name_size);
            p = put_field(p, value, value_size);
        }
        batch->next = p;
    }
}

/* ---- What Python sees -------------------------------------------------------------------- */

/* 0 with an exception. */
static int make_room(Encode *e) {
    size_t rows = (size_t)e->count + 1, targets = (size_t)e->targets_count;
    e->open = malloc((targets + 1) * sizeof *e->open);
    e->row_batch = malloc(rows * sizeof *e->row_batch);
    e->row_delta = malloc(rows * sizeof *e->row_delta);
    e->row_size = malloc(rows * sizeof *e->row_size);
    if (!e->open || !e->row_batch || !e->row_delta || !e->row_size) {
        PyErr_NoMemory();
        return 0;
    }
    for (size_t i = 0; i < targets; i++) e->open[i] = -1;
    return 1;
}

static PyObject *run_encode(Encode *e) {
    int has_memory;
    PyObject *list = NULL;
    Py_BEGIN_ALLOW_THREADS
    has_memory = place_rows(e);
    Py_END_ALLOW_THREADS
    if (!has_memory) return PyErr_NoMemory();
    for (size_t k = 0; k < e->batches_count && !e->wrong; k++) {
        NewBatch *batch = &e->batches[k];
        batch->object =
            PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)(HEADER_SIZE + batch->size));
        if (!batch->object) return NULL;
        batch->next = (uint8_t *)PyByteArray_AsString(batch->object) + HEADER_SIZE;
    }
    if (!e->wrong) {
        Py_BEGIN_ALLOW_THREADS
        write_rows(e);
        Py_END_ALLOW_THREADS
    }
    if (e->wrong) {
        PyErr_SetString(PyExc_ValueError, e->wrong);
        return NULL;
    }
    list = PyList_New(0);
    for (size_t k = 0; list && k < e->batches_count; k++) {
        PyObject *entry =
            Py_BuildValue("iiO", e->batches[k].target, e->batches[k].count, e->batches[k].object);
        if (!entry || PyList_Append(list, entry) < 0) Py_CLEAR(list);
        Py_XDECREF(entry);
    }
    return list;
}

PyObject *py_encode_records(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *keys, *values, *lists, *names, *header_values, *result = NULL;
    Py_ssize_t batch_size_max;
    Encode e = {.count = 0};
    if (!PyArg_ParseTuple(args, "ny*nOOOOOnn:encode_records", &e.count, &e.targets,
                          &e.targets_count, &keys, &values, &lists, &names, &header_values,
                          &e.headers_count, &batch_size_max))
        return NULL;
    e.batch_size_max = batch_size_max < 0 ? 0 : (size_t)batch_size_max;
    if (e.count < 0 || e.count > INT32_MAX || e.targets.len / 4 < e.count ||
        e.targets_count < 0 || e.targets_count > INT32_MAX || e.headers_count < 0)
        PyErr_SetString(PyExc_ValueError, "there is not one target for each row");
    else if (take_column(&e.keys, keys, e.count, 1) && take_column(&e.values, values, e.count, 1) &&
             take_column(&e.lists, lists, e.count, 1) &&
             take_column(&e.names, names, e.headers_count, 1) &&
             take_column(&e.header_values, header_values, e.headers_count, 1) && make_room(&e))
        result = run_encode(&e);
    for (size_t k = 0; k < e.batches_count; k++) Py_XDECREF(e.batches[k].object);
    free(e.batches);
    free(e.open);
    free(e.row_batch);
    free(e.row_delta);
    free(e.row_size);
    close_arrow_column(&e.keys);
    close_arrow_column(&e.values);
    close_arrow_column(&e.lists);
    close_arrow_column(&e.names);
    close_arrow_column(&e.header_values);
    PyBuffer_Release(&e.targets);
    return result;
}
