/* Sorting the records of a run of batches into branches.

   The first pass finds the slot and the branch of every record and adds up sizes, the second
   copies. A batch that survives whole is copied byte for byte. Records whose slot no branch has
   are sorted like the others, into one branch more than there are, and not copied. */

#include <stdlib.h>

#include "batch.h"
#include "index_block.h"
#include "kernels.h"
#include "slots.h"

#define BRANCHES_MAX 1024

enum Kind { NOWHERE, EVERYWHERE, WHOLE, REBUILT };

/* What becomes of a batch. */
typedef struct {
    enum Kind kind;
    uint32_t branch;     /* of all records, when WHOLE */
    size_t first_record; /* where its records begin in `Split.record_branch` */
} Plan;

typedef struct {
    Run run;
    uint32_t branches;
    const uint16_t *table; /* [slot]: its branch, or any larger number; NULL for equal ranges */
    SlotRule rule;
    Plan *plans;          /* [batch] */
    uint16_t *record_branch;
    uint32_t *record_size;
    uint32_t *deltas;     /* of the batch at hand */
    uint32_t *sums;       /* bytes of records by branch, of the batch at hand */
    uint8_t *index;
    size_t index_size;
    uint32_t *ends;       /* [branch * count + batch] */
    uint64_t *starts;     /* [branch], and the end of the last one */
    uint8_t **cursors;    /* [branch], of the batch at hand */
    uint32_t *counts;     /* [branch], of the batch at hand */
} Split;

/* ---- Pass 1: the slot and the branch of every record ------------------------------------- */

/* The branch of the slot; `s->branches` when none has it. */
static inline uint32_t branch_of_slot(const Split *s, uint32_t slot) {
    uint32_t branch = s->table ? s->table[slot] : range_of_slot(slot, s->branches);
    return branch < s->branches ? branch : s->branches;
}

/* Slots go to `slots`, branches and sizes to the arrays of `s`. 0 when the records are malformed;
   `is_sparse` says whether an offset is missing before the last record. */
static int walk_records(Split *s, const Batch *batch, size_t first_record, uint8_t *slots,
                        int *is_sparse) {
    Bytes p = batch->payload, end = p + batch->payload_size;
    int64_t last_delta = last_delta_of(batch), previous = -1;
    uint32_t count = (uint32_t)batch->records_count;
    uint16_t *record_branch = s->record_branch + first_record;
    uint32_t *record_size = s->record_size + first_record;
    for (uint32_t i = 0; i < count; i++) {
        Record record;
        if (!(p = read_record(p, end, &s->rule, &record))) return 0;
        int32_t delta = record.offset_delta;
        if (delta <= previous || delta > last_delta) return 0;
        previous = delta;
        uint32_t slot = slot_of(&s->rule, record.order_key, record.order_key_size,
                                batch->base_offset + delta);
        uint16_t slot16 = (uint16_t)slot;
        memcpy(slots + 2 * (size_t)i, &slot16, 2);
        s->deltas[i] = (uint32_t)delta;
        if (s->branches) {
            uint32_t branch = branch_of_slot(s, slot);
            uint32_t size = (uint32_t)(record.end - record.start);
            record_branch[i] = (uint16_t)branch;
            record_size[i] = size;
            s->sums[branch] += size;
        }
    }
    *is_sparse = previous != (int64_t)count - 1;
    return p == end;
}

/* Append the batch's block to the index and say where the batch goes. */
static void plan_batch(Split *s, const Batch *batch, Plan *plan) {
    uint8_t *block = s->index + s->index_size, *slots = block + BLOCK_HEADER_SIZE;
    uint32_t count = 0, flags = 0;
    int is_sparse = 0;
    if (is_control(batch->start)) {
        /* Its CRC goes along unchanged, so a reader can still tell that it is damaged. */
        plan->kind = EVERYWHERE;
        flags = FLAG_CONTROL;
    } else if (!crc_matches(batch)) {
        /* A rebuilt batch has a new CRC, which would hide the damage. */
        flags = FLAG_UNREADABLE;
    } else if (batch->records_count == 0) {
        plan->kind = NOWHERE;
    } else if (!possible_records(batch) ||
               !walk_records(s, batch, plan->first_record, slots, &is_sparse)) {
        flags = FLAG_UNREADABLE;
    } else {
        count = (uint32_t)batch->records_count;
        if (is_sparse) flags = FLAG_SPARSE;
        plan->kind = REBUILT;
        if (s->branches) {
            plan->branch = s->record_branch[plan->first_record];
            if (s->sums[plan->branch] == batch->payload_size) plan->kind = WHOLE;
        }
    }
    if (flags & FLAG_UNREADABLE) {
        /* One reader gets to see what a plain consumer sees, the others go on. */
        plan->kind = WHOLE;
        plan->branch = branch_of_slot(s, 0);
        count = 1;
        memset(slots, 0, 2);
    }
    if (plan->kind == WHOLE && plan->branch == s->branches) plan->kind = NOWHERE;
    store_u64(block, (uint64_t)batch->base_offset);
    store_u32(block + 8, (uint32_t)last_delta_of(batch));
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
    size_t count = s->run.count;
    uint32_t branches = s->branches;
    for (size_t k = 0; k < count; k++) {
        const Batch *batch = &s->run.batches[k];
        Plan *plan = &s->plans[k];
        memset(s->sums, 0, (branches + 1) * sizeof *s->sums);
        plan_batch(s, batch, plan);
        for (uint32_t b = 0; b < branches; b++) {
            uint32_t size = 0;
            if (plan->kind == EVERYWHERE || (plan->kind == WHOLE && plan->branch == b))
                size = (uint32_t)batch->size;
            else if (plan->kind == REBUILT && s->sums[b])
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
    const uint32_t *ends = s->ends + b * s->run.count;
    uint32_t start = k ? ends[k - 1] : 0;
    *size = ends[k] - start;
    return s->starts[b] + start;
}

static void rebuild_batch(const Split *s, size_t k, uint8_t *out) {
    const Batch *batch = &s->run.batches[k];
    uint8_t **cursors = s->cursors;
    uint32_t *counts = s->counts;
    size_t size;
    for (uint32_t b = 0; b < s->branches; b++) {
        uint8_t *to = out + place_of(s, b, k, &size);
        cursors[b] = to + HEADER_SIZE;
        counts[b] = 0;
        if (size) memcpy(to, batch->start, HEADER_SIZE);
    }
    const uint16_t *record_branch = s->record_branch + s->plans[k].first_record;
    const uint32_t *record_size = s->record_size + s->plans[k].first_record;
    uint32_t count = (uint32_t)batch->records_count;
    Bytes from = batch->payload;
    for (uint32_t i = 0; i < count;) {
        uint32_t branch = record_branch[i], first = i;
        size_t run = record_size[i];
        while (++i < count && record_branch[i] == branch) run += record_size[i];
        if (branch < s->branches) {
            memcpy(cursors[branch], from, run);
            cursors[branch] += run;
            counts[branch] += i - first;
        }
        from += run;
    }
    for (uint32_t b = 0; b < s->branches; b++) {
        uint8_t *to = out + place_of(s, b, k, &size);
        if (size) finish_batch(to, size, counts[b]);
    }
}

static void write_all(const Split *s, uint8_t *out) {
    size_t size;
    for (size_t k = 0; k < s->run.count; k++) {
        const Batch *batch = &s->run.batches[k];
        const Plan *plan = &s->plans[k];
        if (plan->kind == REBUILT) {
            rebuild_batch(s, k, out);
        } else if (plan->kind == WHOLE) {
            memcpy(out + place_of(s, plan->branch, k, &size), batch->start, batch->size);
        } else if (plan->kind == EVERYWHERE) {
            for (uint32_t b = 0; b < s->branches; b++)
                memcpy(out + place_of(s, b, k, &size), batch->start, batch->size);
        }
    }
}

/* ---- What Python sees -------------------------------------------------------------------- */

/* Make room for what is remembered of each batch and record; 0 with an exception. */
static int make_room(Split *s) {
    size_t records = 0, index_size = 0, records_max = 1, branches = s->branches;
    s->plans = malloc((s->run.count + 1) * sizeof *s->plans);
    for (size_t k = 0; s->plans && k < s->run.count; k++) {
        size_t count = possible_records(&s->run.batches[k]);
        if (!count) count = 1; /* an unreadable batch has one entry */
        s->plans[k].first_record = records;
        records += count;
        index_size += BLOCK_HEADER_SIZE + pad8(2 * count) + pad8(4 * count);
        if (count > records_max) records_max = count;
    }
    s->index = malloc(index_size + 1);
    s->deltas = malloc(records_max * sizeof *s->deltas);
    s->sums = malloc((branches + 1) * sizeof *s->sums);
    s->cursors = malloc((branches + 1) * sizeof *s->cursors);
    s->counts = malloc((branches + 1) * sizeof *s->counts);
    s->record_branch = malloc((records + 1) * sizeof *s->record_branch);
    s->record_size = malloc((records + 1) * sizeof *s->record_size);
    if (s->plans && s->index && s->deltas && s->sums && s->cursors && s->counts &&
        s->record_branch && s->record_size &&
        (!branches || s->run.count <= (size_t)PY_SSIZE_T_MAX / 4 / branches))
        return 1;
    PyErr_NoMemory();
    return 0;
}

/* Both passes over a run that has been read. */
static PyObject *run_split(Split *s) {
    PyObject *output = NULL, *starts = NULL, *ends = NULL, *next_offsets = NULL, *result = NULL;
    size_t count = s->run.count;
    starts = PyBytes_FromStringAndSize(NULL, 8 * ((Py_ssize_t)s->branches + 1));
    ends = PyBytes_FromStringAndSize(NULL, 4 * (Py_ssize_t)(s->branches * count));
    next_offsets = PyBytes_FromStringAndSize(NULL, 8 * (Py_ssize_t)count);
    if (!starts || !ends || !next_offsets) goto done;
    s->starts = (uint64_t *)PyBytes_AsString(starts);
    s->ends = (uint32_t *)PyBytes_AsString(ends);
    int64_t *offsets = (int64_t *)PyBytes_AsString(next_offsets);
    int fits;
    Py_BEGIN_ALLOW_THREADS
    for (size_t k = 0; k < count; k++) offsets[k] = s->run.batches[k].next_offset;
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
    if (s->branches) write_all(s, out);
    Py_END_ALLOW_THREADS
    result = Py_BuildValue("OOOOy#", output, starts, ends, next_offsets, (char *)s->index,
                           (Py_ssize_t)s->index_size);
done:
    Py_XDECREF(output);
    Py_XDECREF(starts);
    Py_XDECREF(ends);
    Py_XDECREF(next_offsets);
    return result;
}

/* Have the slots sorted by a table (bytes), or into equal ranges; 0 with an exception otherwise. */
static int take_table(Split *s, PyObject *table) {
    char *bytes;
    Py_ssize_t size;
    if (table == Py_None) return 1;
    if (PyBytes_AsStringAndSize(table, &bytes, &size) < 0) return 0;
    s->table = (const uint16_t *)bytes;
    if ((size_t)size == SLOTS * sizeof *s->table) return 1;
    PyErr_Format(PyExc_ValueError, "a table of %zd bytes; it has a uint16 for each of %d slots",
                 size, SLOTS);
    return 0;
}

PyObject *py_split(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *payloads, *header, *table = Py_None, *result = NULL;
    int branches;
    Split s = {.rule = {.memo_block = -1}};
    if (!PyArg_ParseTuple(args, "y*OipO|O:split", &s.run.view, &payloads, &branches,
                          &s.rule.is_null_key_ordered, &header, &table))
        return NULL;
    s.branches = (uint32_t)branches;
    if (branches < 0 || branches > BRANCHES_MAX)
        PyErr_Format(PyExc_ValueError, "%d branches; 0 to %d are possible", branches, BRANCHES_MAX);
    else if (take_table(&s, table) && name_header(&s.rule, header) && read_run(&s.run) &&
             take_payloads(&s.run, payloads) && make_room(&s))
        result = run_split(&s);
    free(s.plans);
    free(s.index);
    free(s.deltas);
    free(s.sums);
    free(s.cursors);
    free(s.counts);
    free(s.record_branch);
    free(s.record_size);
    close_run(&s.run);
    return result;
}
