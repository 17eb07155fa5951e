/* Records as Arrow buffers: the rows that a split of a partition has to deliver.

   A row is a record at an offset of an interval, in a slot of a range, that no aborted transaction
   wrote. One pass over the run finds them and copies keys and values to where Arrow wants them: a
   column of bytes is an array of int32 offsets, the bytes themselves, and a bitmap of what is not
   null. Only the columns that somebody asked for are made.

   There is room for all plain bytes of the batches in each column of bytes, which costs nothing
   but addresses where it is not used. Headers would need several times that, so they are counted
   first, and the count is a limit afterwards: memory of the caller may change underneath. */

#include <stdlib.h>

#include "batch.h"
#include "kernels.h"
#include "slots.h"
#include "utf8.h"

#define TRANSACTIONAL_FLAG 0x10
#define CONTROL_TYPE_POS 2 /* in the key of a control record, behind its version */
#define CONTROL_ABORT 0
#define MICROS_PER_MILLI 1000

enum Wanted { KEY = 1, VALUE = 2, OFFSET = 4, TIMESTAMP = 8, TIMESTAMP_TYPE = 16, HEADERS = 32 };
enum State { READ, WRONG_CRC, NOT_DECOMPRESSED, MALFORMED };

/* A column of bytes, or of lists when it has no data. */
typedef struct {
    PyObject *validity_object, *offsets_object, *data_object;
    uint8_t *validity;
    int32_t *offsets;
    uint8_t *data;
    size_t size; /* of the data so far; of the items for lists */
    size_t nulls;
} Column;

typedef struct {
    int64_t producer_id, first_offset;
} Transaction;

typedef struct {
    Run run;
    SlotRule rule;
    int64_t from_offset, end_offset;
    uint32_t first_slot, end_slot;
    int wanted;
    const Transaction *aborted; /* by first offset */
    size_t aborted_count, aborted_next;
    int64_t *begun; /* producers of aborted transactions that the walk is inside of */
    size_t begun_count;
    Column key, value, headers, header_names, header_values;
    PyObject *offset_object, *timestamp_object, *type_object;
    int64_t *offsets, *timestamps;
    int32_t *types;
    size_t count; /* of rows */
    size_t headers_room, names_room, values_room;
    enum State state;
    int64_t damaged_offset; /* of the first batch that cannot be read */
} Decode;

static inline int16_t load_be16(Bytes p) { return (int16_t)__builtin_bswap16(load_u16(p)); }

/* ---- Which batches count ----------------------------------------------------------------- */

static int is_in_interval(const Decode *d, const Batch *batch) {
    return batch->next_offset > d->from_offset && batch->base_offset < d->end_offset;
}

static int is_transactional(Bytes batch) { return batch[ATTRIBUTES_POS + 1] & TRANSACTIONAL_FLAG; }

static size_t begun_index(const Decode *d, int64_t producer_id) {
    size_t i = 0;
    while (i < d->begun_count && d->begun[i] != producer_id) i++;
    return i;
}

/* Take note of the aborted transactions that begin before the end of the batch. */
static void begin_transactions(Decode *d, const Batch *batch) {
    while (d->aborted_next < d->aborted_count &&
           d->aborted[d->aborted_next].first_offset < batch->next_offset) {
        int64_t producer_id = d->aborted[d->aborted_next++].producer_id;
        if (begun_index(d, producer_id) == d->begun_count) d->begun[d->begun_count++] = producer_id;
    }
}

static int is_aborted(const Decode *d, const Batch *batch) {
    if (!d->begun_count) return 0;
    int64_t producer_id = load_be64(batch->start + PRODUCER_ID_POS);
    return is_transactional(batch->start) && begun_index(d, producer_id) < d->begun_count;
}

/* A marker ends the aborted transaction of its producer. */
static enum State read_marker(Decode *d, const Batch *batch) {
    Record record;
    Bytes end = batch->payload + batch->payload_size;
    if (batch->records_count == 0) return READ;
    if (!possible_records(batch) || !read_record(batch->payload, end, NULL, &record) ||
        record.key_size < CONTROL_TYPE_POS + 2)
        return MALFORMED;
    if (load_be16(record.key + CONTROL_TYPE_POS) == CONTROL_ABORT) {
        size_t i = begun_index(d, load_be64(batch->start + PRODUCER_ID_POS));
        if (i < d->begun_count) d->begun[i] = d->begun[--d->begun_count];
    }
    return READ;
}

/* ---- Rows -------------------------------------------------------------------------------- */

static inline void put_bytes(Column *column, size_t i, Bytes bytes, int32_t size) {
    if (size >= 0) {
        memcpy(column->data + column->size, bytes, (size_t)size);
        column->size += (size_t)size;
        column->validity[i >> 3] |= (uint8_t)(1u << (i & 7));
    } else {
        column->nulls++;
    }
    column->offsets[i + 1] = (int32_t)column->size;
}

static inline int64_t micros_of(int64_t millis) {
    int64_t micros;
    if (!__builtin_mul_overflow(millis, (int64_t)MICROS_PER_MILLI, &micros)) return micros;
    return millis < 0 ? INT64_MIN : INT64_MAX;
}

/* The row has no list when the record has no headers. 0 when there is no room, which can only be
   when the bytes changed since they were counted. */
static int put_headers(Decode *d, size_t i, const Record *record) {
    Column *lists = &d->headers, *names = &d->header_names, *values = &d->header_values;
    for (Bytes p = record->headers; p < record->end;) {
        Bytes name, value;
        int32_t name_size, value_size;
        if (!(p = read_field(p, record->end, &name, &name_size)) || name_size < 0) return 0;
        if (!(p = read_field(p, record->end, &value, &value_size))) return 0;
        size_t n = lists->size;
        if (n == d->headers_room ||
            names->size + UTF8_GROWTH_MAX * (size_t)name_size > d->names_room ||
            (value_size > 0 && values->size + (size_t)value_size > d->values_room))
            return 0;
        names->size = (size_t)(utf8_copy(names->data + names->size, name, (size_t)name_size) -
                               names->data);
        names->offsets[n + 1] = (int32_t)names->size;
        put_bytes(values, n, value, value_size);
        lists->size++;
    }
    if (record->headers < record->end)
        lists->validity[i >> 3] |= (uint8_t)(1u << (i & 7));
    else
        lists->nulls++;
    lists->offsets[i + 1] = (int32_t)lists->size;
    return 1;
}

static inline int is_in_slots(Decode *d, const Record *record, int64_t offset) {
    if (d->first_slot == 0 && d->end_slot == SLOTS) return 1;
    uint32_t slot = slot_of(&d->rule, record->order_key, record->order_key_size, offset);
    return d->first_slot <= slot && slot < d->end_slot;
}

/* What walking over the records of a batch does with those that are rows. */
typedef int (*Visit)(Decode *d, const Batch *batch, const Record *record, int64_t offset);

static int put_row(Decode *d, const Batch *batch, const Record *record, int64_t offset) {
    size_t i = d->count++;
    if (d->wanted & KEY) put_bytes(&d->key, i, record->key, record->key_size);
    if (d->wanted & VALUE) put_bytes(&d->value, i, record->value, record->value_size);
    if (d->wanted & OFFSET) d->offsets[i] = offset;
    int is_append_time = batch->start[ATTRIBUTES_POS + 1] & LOG_APPEND_TIME_FLAG;
    if (d->wanted & TIMESTAMP) {
        uint64_t base = (uint64_t)load_be64(batch->start + BASE_TIMESTAMP_POS);
        int64_t timestamp = (int64_t)(base + (uint64_t)record->timestamp_delta);
        if (is_append_time) timestamp = load_be64(batch->start + MAX_TIMESTAMP_POS);
        d->timestamps[i] = micros_of(timestamp);
    }
    if (d->wanted & TIMESTAMP_TYPE) d->types[i] = is_append_time != 0;
    return !(d->wanted & HEADERS) || put_headers(d, i, record);
}

static int count_headers(Decode *d, const Batch *Py_UNUSED(batch), const Record *record,
                         int64_t Py_UNUSED(offset)) {
    for (Bytes p = record->headers; p < record->end;) {
        Bytes name, value;
        int32_t name_size, value_size;
        if (!(p = read_field(p, record->end, &name, &name_size)) || name_size < 0) return 0;
        if (!(p = read_field(p, record->end, &value, &value_size))) return 0;
        d->headers_room++;
        d->names_room += UTF8_GROWTH_MAX * (size_t)name_size;
        d->values_room += value_size > 0 ? (size_t)value_size : 0;
    }
    return 1;
}

/* 0 when the records are malformed. */
static inline int walk_records(Decode *d, const Batch *batch, Visit visit) {
    Bytes p = batch->payload, end = p + batch->payload_size;
    int64_t last_delta = last_delta_of(batch), previous = -1;
    for (int32_t n = batch->records_count; n; n--) {
        Record record;
        if (!(p = read_record(p, end, &d->rule, &record))) return 0;
        if (record.offset_delta <= previous || record.offset_delta > last_delta) return 0;
        previous = record.offset_delta;
        int64_t offset = batch->base_offset + previous;
        if (offset < d->from_offset || offset >= d->end_offset) continue;
        if (is_in_slots(d, &record, offset) && !visit(d, batch, &record, offset)) return 0;
    }
    return p == end;
}

static inline enum State read_batch(Decode *d, const Batch *batch, Visit visit) {
    begin_transactions(d, batch);
    if (is_control(batch->start)) return crc_matches(batch) ? read_marker(d, batch) : WRONG_CRC;
    if (is_aborted(d, batch) || !is_in_interval(d, batch)) return READ; /* nobody asked */
    if (!crc_matches(batch)) return WRONG_CRC;
    if (batch->records_count == 0) return READ;
    if (!batch->payload) return NOT_DECOMPRESSED;
    if (!possible_records(batch)) return MALFORMED;
    return walk_records(d, batch, visit) ? READ : MALFORMED;
}

/* Visit all rows, up to the first batch that cannot be read. */
static inline void read_all(Decode *d, Visit visit) {
    d->aborted_next = d->begun_count = 0;
    for (size_t k = 0; k < d->run.count && d->state == READ; k++) {
        const Batch *batch = &d->run.batches[k];
        d->state = read_batch(d, batch, visit);
        if (d->state != READ) d->damaged_offset = batch->base_offset;
    }
}

/* ---- What Python sees -------------------------------------------------------------------- */

/* Memory for Arrow; NULL with an exception. */
static void *make_buffer(PyObject **object, size_t size) {
    *object = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    return *object ? PyBytes_AsString(*object) : NULL;
}

/* 0 with an exception when there is no memory. */
static int make_column(Column *column, size_t room, size_t bytes) {
    size_t bitmap = pad8((room + 7) / 8);
    column->validity = make_buffer(&column->validity_object, bitmap);
    column->offsets = make_buffer(&column->offsets_object, 4 * (room + 1));
    column->data = make_buffer(&column->data_object, bytes);
    if (!column->validity || !column->offsets || !column->data) return 0;
    memset(column->validity, 0, bitmap);
    column->offsets[0] = 0;
    return 1;
}

/* (validity or None, offsets, data), or None when nobody wants it. */
static PyObject *column_tuple(const Column *column) {
    if (!column->offsets_object) Py_RETURN_NONE;
    return Py_BuildValue("OOO", column->nulls ? column->validity_object : Py_None,
                         column->offsets_object, column->data_object);
}

static void close_column(Column *column) {
    Py_XDECREF(column->validity_object);
    Py_XDECREF(column->offsets_object);
    Py_XDECREF(column->data_object);
}

/* Memory for all columns that are wanted; 0 with an exception. */
static int make_room(Decode *d) {
    size_t room = 0, bytes = 0;
    for (size_t k = 0; k < d->run.count; k++) {
        const Batch *batch = &d->run.batches[k];
        if (is_control(batch->start) || !is_in_interval(d, batch)) continue;
        if (!possible_records(batch)) continue;
        room += possible_records(batch);
        bytes += batch->payload_size;
    }
    if (bytes > INT32_MAX || d->names_room > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "the plain records have more than 2 GiB");
        return 0;
    }
    if ((d->wanted & KEY) && !make_column(&d->key, room, bytes)) return 0;
    if ((d->wanted & VALUE) && !make_column(&d->value, room, bytes)) return 0;
    if ((d->wanted & OFFSET) && !(d->offsets = make_buffer(&d->offset_object, 8 * room))) return 0;
    if ((d->wanted & TIMESTAMP) && !(d->timestamps = make_buffer(&d->timestamp_object, 8 * room)))
        return 0;
    if ((d->wanted & TIMESTAMP_TYPE) && !(d->types = make_buffer(&d->type_object, 4 * room)))
        return 0;
    return !(d->wanted & HEADERS) || (make_column(&d->headers, room, 0) &&
                                      make_column(&d->header_names, d->headers_room,
                                                  d->names_room) &&
                                      make_column(&d->header_values, d->headers_room,
                                                  d->values_room));
}

static PyObject *run_decode(Decode *d) {
    if (d->wanted & HEADERS) {
        Py_BEGIN_ALLOW_THREADS
        read_all(d, count_headers);
        Py_END_ALLOW_THREADS
    }
    if (d->state == READ) {
        if (!make_room(d)) return NULL;
        Py_BEGIN_ALLOW_THREADS
        read_all(d, put_row);
        Py_END_ALLOW_THREADS
    }
    if (d->state != READ) return Py_BuildValue("iL", (int)d->state, (long long)d->damaged_offset);
    int64_t next = d->run.count ? d->run.batches[d->run.count - 1].next_offset : -1;
#define OR_NONE(object) ((object) ? (object) : Py_None)
    return Py_BuildValue("nLNNOOONNN", (Py_ssize_t)d->count, (long long)next,
                         column_tuple(&d->key), column_tuple(&d->value),
                         OR_NONE(d->offset_object), OR_NONE(d->timestamp_object),
                         OR_NONE(d->type_object), column_tuple(&d->headers),
                         column_tuple(&d->header_names), column_tuple(&d->header_values));
}

/* 0 with an exception. */
static int take_aborted(Decode *d, const Py_buffer *pairs) {
    if (pairs->len % (Py_ssize_t)sizeof(Transaction)) {
        PyErr_SetString(PyExc_ValueError, "aborted transactions are pairs of int64");
        return 0;
    }
    d->aborted = pairs->buf;
    d->aborted_count = (size_t)pairs->len / sizeof(Transaction);
    d->begun = malloc((d->aborted_count + 1) * sizeof *d->begun);
    if (!d->begun) PyErr_NoMemory();
    return d->begun != NULL;
}

PyObject *py_arrow_rows(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *payloads, *header, *result = NULL;
    Py_buffer aborted;
    long long from_offset, end_offset;
    int first_slot, end_slot;
    Decode d = {.rule = {.memo_block = -1}};
    if (!PyArg_ParseTuple(args, "y*OpOLLiiy*i:arrow_rows", &d.run.view, &payloads,
                          &d.rule.is_null_key_ordered, &header, &from_offset, &end_offset,
                          &first_slot, &end_slot, &aborted, &d.wanted))
        return NULL;
    d.from_offset = from_offset;
    d.end_offset = end_offset;
    d.first_slot = (uint32_t)first_slot;
    d.end_slot = (uint32_t)end_slot;
    if (first_slot < 0 || end_slot > SLOTS || first_slot >= end_slot)
        PyErr_Format(PyExc_ValueError, "no slots from %d up to %d; there are 0 to %d", first_slot,
                     end_slot, SLOTS);
    else if (name_header(&d.rule, header) && take_aborted(&d, &aborted) && read_run(&d.run) &&
             take_payloads(&d.run, payloads))
        result = run_decode(&d);
    free(d.begun);
    close_column(&d.key);
    close_column(&d.value);
    close_column(&d.headers);
    close_column(&d.header_names);
    close_column(&d.header_values);
    Py_XDECREF(d.offset_object);
    Py_XDECREF(d.timestamp_object);
    Py_XDECREF(d.type_object);
    PyBuffer_Release(&aborted);
    close_run(&d.run);
    return result;
}
