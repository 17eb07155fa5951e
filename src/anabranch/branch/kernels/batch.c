/* Reading the headers of a run of batches; see batch.h. */

#include "batch.h"

#include <stdlib.h>

#include "crc32c.h"

const char not_batches[] = "the bytes are not a run of whole batches of format v2";
static const char not_rising[] = "the offsets of the batches do not rise";

size_t size_of_batch(Bytes p, Bytes end) {
    if (end - p < HEADER_SIZE || p[16] != 2) return 0;
    int32_t length = (int32_t)load_be32(p + 8);
    if (length < HEADER_SIZE - LENGTH_PREFIX_SIZE) return 0;
    size_t size = (size_t)length + LENGTH_PREFIX_SIZE;
    return size <= (size_t)(end - p) ? size : 0;
}

Py_ssize_t count_batches(Bytes p, Bytes end) {
    Py_ssize_t count = 0;
    for (size_t size; p < end; p += size, count++)
        if (!(size = size_of_batch(p, end))) return -1;
    return count;
}

/* Whether a batch may follow one with that base offset. */
static int rises(int64_t base_offset, int64_t previous) {
    return base_offset > previous && base_offset <= INT64_MAX - INT32_MAX - 1;
}

Py_ssize_t whole_batches(Bytes p, Bytes end, int64_t end_offset) {
    Bytes start = p;
    int64_t previous = -1;
    for (size_t size; (size = size_of_batch(p, end)) && rises(load_be64(p), previous); p += size) {
        if (load_be64(p) >= end_offset) break;
        previous = load_be64(p);
    }
    return p - start;
}

int crc_matches(const Batch *batch) {
    Bytes from = batch->start + ATTRIBUTES_POS;
    return crc32c(from, batch->size - ATTRIBUTES_POS) == load_be32(batch->start + CRC_POS);
}

void finish_batch(uint8_t *batch, size_t size, uint32_t records_count) {
    store_be32(batch + 8, (uint32_t)(size - LENGTH_PREFIX_SIZE));
    batch[ATTRIBUTES_POS + 1] &= (uint8_t)~CODEC_MASK;
    store_be32(batch + COUNT_POS, records_count);
    store_be32(batch + CRC_POS, crc32c(batch + ATTRIBUTES_POS, size - ATTRIBUTES_POS));
}

/* Fill in what the headers say, or return what is wrong. Offsets must rise, because readers look
   batches up by them; a last offset delta that reaches into the next batch is cut off there. */
static const char *read_headers(Bytes p, Bytes end, Batch *batches, size_t count) {
    int64_t previous = -1;
    for (size_t k = 0; k < count; k++) {
        Batch *batch = &batches[k];
        batch->start = p;
        batch->size = size_of_batch(p, end);
        if (!batch->size) return not_batches;
        batch->payload = p + HEADER_SIZE;
        batch->payload_size = batch->size - HEADER_SIZE;
        batch->records_count = count_of(p);
        batch->base_offset = load_be64(p);
        batch->needs_payload = has_codec(p);
        if (!rises(batch->base_offset, previous)) return not_rising;
        previous = batch->base_offset;
        batch->next_offset = stated_last_offset(p, batch->base_offset) + 1;
        if (k && batches[k - 1].next_offset > batch->base_offset)
            batches[k - 1].next_offset = batch->base_offset;
        p += batch->size;
    }
    return p == end ? NULL : not_batches;
}

int read_run(Run *run) {
    Bytes start = run->view.buf, end = start + run->view.len;
    Py_ssize_t count;
    const char *wrong = not_batches;
    Py_BEGIN_ALLOW_THREADS
    count = count_batches(start, end);
    if (count >= 0) {
        run->count = (size_t)count;
        run->batches = malloc((run->count + 1) * sizeof *run->batches);
        if (run->batches) wrong = read_headers(start, end, run->batches, run->count);
    }
    Py_END_ALLOW_THREADS
    if (count >= 0 && !run->batches) {
        PyErr_NoMemory();
        return 0;
    }
    if (wrong) PyErr_SetString(PyExc_ValueError, wrong);
    return !wrong;
}

int take_payloads(Run *run, PyObject *sequence) {
    if (!(run->payloads = PySequence_Tuple(sequence))) return 0;
    Py_ssize_t given = PyTuple_Size(run->payloads), needed = 0;
    for (size_t k = 0; k < run->count; k++) needed += run->batches[k].needs_payload;
    if (given != needed) {
        PyErr_Format(PyExc_ValueError, "%zd payloads for %zd compressed batches", given, needed);
        return 0;
    }
    Py_ssize_t next = 0;
    for (size_t k = 0; k < run->count; k++) {
        Batch *batch = &run->batches[k];
        if (!batch->needs_payload) continue;
        PyObject *payload = PyTuple_GetItem(run->payloads, next++);
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
    return 1;
}

void close_run(Run *run) {
    free(run->batches);
    Py_XDECREF(run->payloads);
    PyBuffer_Release(&run->view);
}
