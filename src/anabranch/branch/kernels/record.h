/* One record: a length, then attributes, deltas, key, value and headers.

       length varint, attributes int8, timestamp delta varlong, offset delta varint,
       key and value, each behind a varint length, where -1 means null,
       headers count varint, then for each header its name and its value behind varint lengths

   All kernels read records with `read_record`, whatever they need of them, so that they agree on
   which batches can be read. */

#ifndef ANABRANCH_RECORD_H
#define ANABRANCH_RECORD_H

#include "bytes.h"
#include "slots.h"
#include "varint.h"

#define RECORD_SIZE_MIN 7 /* length, attributes, two deltas, two lengths, no headers */

typedef struct {
    Bytes start, end; /* its length included */
    int64_t timestamp_delta;
    int32_t offset_delta;
    int32_t key_size, value_size; /* -1: null */
    Bytes key, value;
    Bytes headers;    /* the first header; they fill the rest of the record */
    Bytes order_key;  /* the key, or the value of the rule's header */
    int32_t order_key_size;
} Record;

/* Past the record at `p`, or NULL when its fields do not fill it. With a rule that names a header,
   the last header of that name that has a value is the ordering key. */
static inline Bytes read_record(Bytes p, Bytes end, const SlotRule *rule, Record *record) {
    int32_t size, headers;
    record->start = p;
    if (!(p = read_varint(p, end, &size))) return NULL;
    if (size < RECORD_SIZE_MIN - 1 || size > end - p) return NULL;
    end = record->end = p + size;
    if (!(p = read_varlong(p + 1, end, &record->timestamp_delta))) return NULL;
    if (!(p = read_varint(p, end, &record->offset_delta))) return NULL;
    if (!(p = read_field(p, end, &record->key, &record->key_size))) return NULL;
    if (!(p = read_field(p, end, &record->value, &record->value_size))) return NULL;
    record->order_key = record->key;
    record->order_key_size = record->key_size;
    if (end - p == 1 && *p == 0) return record->headers = end; /* most have none */
    if (!(p = read_varint(p, end, &headers)) || headers < 0) return NULL;
    record->headers = p;
    while (headers--) {
        Bytes name, value;
        int32_t name_size, value_size;
        if (!(p = read_field(p, end, &name, &name_size)) || name_size < 0) return NULL;
        if (!(p = read_field(p, end, &value, &value_size))) return NULL;
        if (value_size >= 0 && names_header(rule, name, (size_t)name_size)) {
            record->order_key = value;
            record->order_key_size = value_size;
        }
    }
    return p == end ? p : NULL;
}

#endif
