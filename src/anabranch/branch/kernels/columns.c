/* Records as columns: where each key and value lies, and the numbers that belong to it.

   All columns are in one block of memory, each with room for `room` records:

       offsets int64         key starts int32      header starts int32    batches int32
       timestamps int64      key sizes int32       header sizes int32     slots uint16
                             value starts int32
                             value sizes int32

   Starts are positions in the run of batches itself or, where a batch is compressed, in a buffer
   with the plain records of all of them. The batches are listed apart. */

#include <stdlib.h>

#include "batch.h"
#include "kernels.h"
#include "slots.h"

#define RECORD_BYTES (2 * 8 + 7 * 4 + 2) /* of all columns */
#define ABORT_OR_COMMIT_POS 2            /* in the key of a control record, behind its version */

enum State { READ, WRONG_CRC, NOT_DECOMPRESSED, MALFORMED };

/* One batch, as Python reads it. */
typedef struct {
    int64_t base_offset, next_offset, producer_id;
    int32_t leader_epoch, base_sequence, first_record, records_count;
    int16_t producer_epoch, attributes;
    int16_t control_type; /* -1 when it is no control batch, or has no record */
    uint16_t state;
} Entry;

typedef struct {
    Run run;
    SlotRule rule;
    int64_t from_offset;
    Bytes origin;    /* what starts are counted from */
    uint8_t *copies; /* where the next payload goes, or NULL when starts are in the run */
    int64_t *offsets, *timestamps;
    int32_t *key_starts, *key_sizes, *value_starts, *value_sizes, *header_starts, *header_sizes;
    int32_t *batches;
    uint16_t *slots;
    size_t count;    /* of records */
    size_t with_headers;
    size_t damaged;  /* batches */
    Entry *entries;  /* [batch] */
} Columns;

static inline int16_t load_be16(Bytes p) { return (int16_t)__builtin_bswap16(load_u16(p)); }

/* Add a record; its batch may turn out to be malformed later. */
static inline void put_record(Columns *c, const Record *record, int64_t offset, int64_t timestamp,
                              uint32_t slot, size_t batch) {
    size_t i = c->count++;
    c->offsets[i] = offset;
    c->timestamps[i] = timestamp;
    c->key_starts[i] = (int32_t)(record->key - c->origin);
    c->key_sizes[i] = record->key_size;
    c->value_starts[i] = (int32_t)(record->value - c->origin);
    c->value_sizes[i] = record->value_size;
    c->header_starts[i] = (int32_t)(record->headers - c->origin);
    c->header_sizes[i] = (int32_t)(record->end - record->headers);
    c->batches[i] = (int32_t)batch;
    c->slots[i] = (uint16_t)slot;
    c->with_headers += record->headers != record->end;
}

/* 0 when the records are malformed. */
static int walk_records(Columns *c, size_t k, Bytes p) {
    const Batch *batch = &c->run.batches[k];
    Bytes end = p + batch->payload_size;
    int64_t last_delta = last_delta_of(batch), previous = -1;
    int64_t base_timestamp = load_be64(batch->start + BASE_TIMESTAMP_POS);
    int64_t append_timestamp = load_be64(batch->start + MAX_TIMESTAMP_POS);
    int is_append_time = batch->start[ATTRIBUTES_POS + 1] & LOG_APPEND_TIME_FLAG;
    for (int32_t n = batch->records_count; n; n--) {
        Record record;
        if (!(p = read_record(p, end, &c->rule, &record))) return 0;
        if (record.offset_delta <= previous || record.offset_delta > last_delta) return 0;
        previous = record.offset_delta;
        int64_t offset = batch->base_offset + previous;
        if (offset < c->from_offset) continue;
        int64_t timestamp = append_timestamp;
        if (!is_append_time)
            timestamp = (int64_t)((uint64_t)base_timestamp + (uint64_t)record.timestamp_delta);
        uint32_t slot = slot_of(&c->rule, record.order_key, record.order_key_size, offset);
        put_record(c, &record, offset, timestamp, slot, k);
    }
    return p == end;
}

/* What is wrong with the batch, if anything. Its records are added or, when one is malformed, none
   of them. */
static enum State read_batch(Columns *c, size_t k) {
    const Batch *batch = &c->run.batches[k];
    if (batch->next_offset <= c->from_offset) return READ; /* nobody asked */
    if (!crc_matches(batch)) return WRONG_CRC;
    if (batch->records_count == 0) return READ;
    if (!batch->payload) return NOT_DECOMPRESSED;
    if (!possible_records(batch)) return MALFORMED;
    Bytes payload = batch->payload;
    if (c->copies) payload = memcpy(c->copies, batch->payload, batch->payload_size);
    size_t count = c->count, with_headers = c->with_headers;
    if (!walk_records(c, k, payload)) {
        c->count = count;
        c->with_headers = with_headers;
        return MALFORMED;
    }
    if (c->copies) c->copies += batch->payload_size;
    return READ;
}

/* The type of a control batch's record; -1 when it has none. */
static enum State read_marker(const Batch *batch, int16_t *type) {
    Record record;
    Bytes end = batch->payload + batch->payload_size;
    if (!crc_matches(batch)) return WRONG_CRC;
    if (batch->records_count == 0) return READ;
    if (!possible_records(batch) || !read_record(batch->payload, end, NULL, &record) ||
        record.key_size < ABORT_OR_COMMIT_POS + 2)
        return MALFORMED;
    *type = load_be16(record.key + ABORT_OR_COMMIT_POS);
    return READ;
}

static void read_all(Columns *c) {
    for (size_t k = 0; k < c->run.count; k++) {
        const Batch *batch = &c->run.batches[k];
        Bytes header = batch->start;
        Entry *entry = &c->entries[k];
        *entry = (Entry){
            .base_offset = batch->base_offset,
            .next_offset = batch->next_offset,
            .producer_id = load_be64(header + PRODUCER_ID_POS),
            .leader_epoch = (int32_t)load_be32(header + LEADER_EPOCH_POS),
            .base_sequence = (int32_t)load_be32(header + BASE_SEQUENCE_POS),
            .first_record = (int32_t)c->count,
            .producer_epoch = load_be16(header + PRODUCER_EPOCH_POS),
            .attributes = load_be16(header + ATTRIBUTES_POS),
            .control_type = -1,
        };
        enum State state = is_control(header) ? read_marker(batch, &entry->control_type)
                                              : read_batch(c, k);
        entry->records_count = (int32_t)c->count - entry->first_record;
        entry->state = (uint16_t)state;
        c->damaged += state != READ;
    }
}

/* ---- What Python sees -------------------------------------------------------------------- */

/* Divide a block with room for so many records among the columns. */
static void lay_out(Columns *c, uint8_t *block, size_t room) {
    c->offsets = (int64_t *)block;
    c->timestamps = c->offsets + room;
    int32_t **columns[] = {&c->key_starts,   &c->key_sizes,    &c->value_starts, &c->value_sizes,
                           &c->header_starts, &c->header_sizes, &c->batches};
    int32_t *next = (int32_t *)(c->timestamps + room);
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++, next += room) *columns[i] = next;
    c->slots = (uint16_t *)next;
}

static PyObject *run_columns(Columns *c) {
    PyObject *block = NULL, *entries = NULL, *buffer = NULL, *result = NULL;
    size_t room = 0, plain_bytes = 0;
    int is_copied = 0;
    for (size_t k = 0; k < c->run.count; k++) {
        const Batch *batch = &c->run.batches[k];
        is_copied |= batch->needs_payload;
        if (!possible_records(batch)) continue;
        room += possible_records(batch);
        plain_bytes += batch->payload_size;
    }
    if ((is_copied ? plain_bytes : (size_t)c->run.view.len) > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "the plain records have more than 2 GiB");
        return NULL;
    }
    block = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(room * RECORD_BYTES));
    entries = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(c->run.count * sizeof *c->entries));
    if (is_copied) buffer = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)plain_bytes);
    if (!block || !entries || (is_copied && !buffer)) goto done;
    lay_out(c, (uint8_t *)PyBytes_AsString(block), room);
    c->entries = (Entry *)PyBytes_AsString(entries);
    c->origin = c->run.view.buf;
    if (is_copied) c->origin = c->copies = (uint8_t *)PyBytes_AsString(buffer);
    Py_BEGIN_ALLOW_THREADS
    read_all(c);
    Py_END_ALLOW_THREADS
    result = Py_BuildValue("OnnOOnn", block, (Py_ssize_t)room, (Py_ssize_t)c->count, entries,
                           is_copied ? buffer : Py_None, (Py_ssize_t)c->with_headers,
                           (Py_ssize_t)c->damaged);
done:
    Py_XDECREF(block);
    Py_XDECREF(entries);
    Py_XDECREF(buffer);
    return result;
}

PyObject *py_read_records(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *payloads, *header, *result = NULL;
    long long from_offset;
    Columns c = {.rule = {.memo_block = -1}};
    if (!PyArg_ParseTuple(args, "y*OpOL:read_records", &c.run.view, &payloads,
                          &c.rule.is_null_key_ordered, &header, &from_offset))
        return NULL;
    c.from_offset = from_offset;
    if (name_header(&c.rule, header) && read_run(&c.run) && take_payloads(&c.run, payloads))
        result = run_columns(&c);
    close_run(&c.run);
    return result;
}

/* A list of bytes and None for the fields of a column. */
static PyObject *slice_fields(const Py_buffer *buffer, const Py_buffer *starts,
                              const Py_buffer *sizes) {
    Py_ssize_t count = starts->len / 4;
    if (starts->len % 4 || starts->len != sizes->len) {
        PyErr_SetString(PyExc_ValueError, "starts and sizes are int32 arrays of the same length");
        return NULL;
    }
    PyObject *list = PyList_New(count);
    for (Py_ssize_t i = 0; list && i < count; i++) {
        Py_ssize_t start = (int32_t)load_u32((Bytes)starts->buf + 4 * i);
        Py_ssize_t size = (int32_t)load_u32((Bytes)sizes->buf + 4 * i);
        PyObject *field = NULL;
        if (size == -1) {
            field = Py_None;
            Py_INCREF(field);
        } else if (start < 0 || size < 0 || start + size > buffer->len) {
            PyErr_Format(PyExc_ValueError, "no field of %zd bytes at %zd", size, start);
        } else {
            field = PyBytes_FromStringAndSize((const char *)buffer->buf + start, size);
        }
        if (!field || PyList_SetItem(list, i, field) < 0) Py_CLEAR(list);
    }
    return list;
}

PyObject *py_fields(PyObject *Py_UNUSED(module), PyObject *args) {
    Py_buffer buffer, starts, sizes;
    if (!PyArg_ParseTuple(args, "y*y*y*:fields", &buffer, &starts, &sizes)) return NULL;
    PyObject *list = slice_fields(&buffer, &starts, &sizes);
    PyBuffer_Release(&buffer);
    PyBuffer_Release(&starts);
    PyBuffer_Release(&sizes);
    return list;
}
