/* Runs of whole batches of format v2.

   A batch is 61 bytes of header, big-endian, then the records:

       0  base offset int64        21 attributes int16          43 producer id int64
       8  batch length int32       23 last offset delta int32   51 producer epoch int16
       12 leader epoch int32       27 base timestamp int64      53 base sequence int32
       16 magic int8               35 max timestamp int64       57 records count int32
       17 CRC-32C uint32 */

#ifndef ANABRANCH_BATCH_H
#define ANABRANCH_BATCH_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "bytes.h"
#include "record.h"

#define HEADER_SIZE 61
#define LENGTH_PREFIX_SIZE 12 /* base offset and length: what the length does not count */
#define PAYLOAD_MAX (INT32_MAX - (HEADER_SIZE - LENGTH_PREFIX_SIZE))
#define LEADER_EPOCH_POS 12
#define CRC_POS 17
#define ATTRIBUTES_POS 21
#define LAST_DELTA_POS 23
#define BASE_TIMESTAMP_POS 27
#define MAX_TIMESTAMP_POS 35
#define PRODUCER_ID_POS 43
#define PRODUCER_EPOCH_POS 51
#define BASE_SEQUENCE_POS 53
#define COUNT_POS 57
#define CODEC_MASK 7
#define LOG_APPEND_TIME_FLAG 8
#define CONTROL_FLAG 0x20

typedef struct {
    Bytes start;         /* the batch as stored */
    size_t size;
    Bytes payload;       /* its plain records, or NULL when there is no way to have them */
    size_t payload_size;
    int64_t base_offset;
    int64_t next_offset;
    int32_t records_count;
    int needs_payload;   /* it is compressed, so the caller has to give its plain records */
} Batch;

/* The batches of a call's buffer. All zeros is a run that holds nothing. */
typedef struct {
    Py_buffer view;
    PyObject *payloads; /* a tuple of our own: a list may change while the lock is released */
    Batch *batches;
    size_t count;
} Run;

static inline int32_t count_of(Bytes batch) { return (int32_t)load_be32(batch + COUNT_POS); }
static inline int codec_of(Bytes batch) { return batch[ATTRIBUTES_POS + 1] & CODEC_MASK; }
static inline int is_control(Bytes batch) { return batch[ATTRIBUTES_POS + 1] & CONTROL_FLAG; }

/* Whether the caller has to decompress it. */
static inline int has_codec(Bytes batch) {
    return codec_of(batch) && !is_control(batch) && count_of(batch) > 0;
}

/* The last offset of a batch with that base offset, as the header has it; the batch that follows
   may say otherwise. */
static inline int64_t stated_last_offset(Bytes batch, int64_t base_offset) {
    int32_t delta = (int32_t)load_be32(batch + LAST_DELTA_POS);
    return (int64_t)((uint64_t)base_offset + (uint64_t)(delta < 0 ? 0 : delta));
}

/* The largest delta that a record of the batch may have. */
static inline int64_t last_delta_of(const Batch *batch) {
    return batch->next_offset - batch->base_offset - 1;
}

/* How many records there can be, going by the size of the payload: 0 when the count is a lie. */
static inline size_t possible_records(const Batch *batch) {
    int32_t count = batch->records_count;
    if (count <= 0 || !batch->payload || batch->payload_size > PAYLOAD_MAX ||
        (size_t)count > batch->payload_size / RECORD_SIZE_MIN)
        return 0;
    return (size_t)count;
}

/* The size of the batch at `p`, or 0 when no whole batch lies there. */
size_t size_of_batch(Bytes p, Bytes end);

/* How many bytes of whole batches whose offsets rise there are before something else comes, or a
   batch that begins at `end_offset` or later. */
Py_ssize_t whole_batches(Bytes p, Bytes end, int64_t end_offset);

/* How many batches there are; -1 when the bytes are something else. */
Py_ssize_t count_batches(Bytes p, Bytes end);

int crc_matches(const Batch *batch);

/* Write length, count and CRC of a batch of `size` bytes whose records are not compressed and
   whose header is a copy of another's. */
void finish_batch(uint8_t *batch, size_t size, uint32_t records_count);

/* Read the headers of all batches in `run->view`. 0 with an exception when it is not a run of
   whole batches whose offsets rise. */
int read_run(Run *run);

/* Give the batches that need one their plain records. 0 with an exception when the sequence does
   not have as many entries, or other things than bytes and None. */
int take_payloads(Run *run, PyObject *sequence);

void close_run(Run *run);

extern const char not_batches[];

#endif
