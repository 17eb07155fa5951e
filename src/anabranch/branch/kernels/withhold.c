/* Taking out the records whose offsets are in a set.

   A batch that loses nothing stays as it is, one that loses all is left out, another is rebuilt
   around the rest, uncompressed. Control batches and batches without records are never touched. A
   batch that cannot be read counts as one record at its base offset, as in the slot index. */

#include <stdlib.h>

#include "batch.h"
#include "kernels.h"
#include "offset_ranges.h"

enum Kind { KEPT, LEFT_OUT, REBUILT };

/* Records of a payload that stay, one after the other. */
typedef struct {
    Bytes start;
    size_t size;
} Stretch;

/* What becomes of a batch. */
typedef struct {
    enum Overlap overlap;
    enum Kind kind;
    uint32_t records;       /* that stay, when REBUILT */
    size_t size;            /* of what stays, its header included */
    size_t first_stretch;
    size_t stretches_count;
} Plan;

typedef struct {
    Run run;
    OffsetRanges gone;
    Plan *plans; /* [batch] */
    Stretch *stretches;
    size_t output_size;
    int is_changed;
    int64_t next_offset; /* after the last batch that stays, or -1 */
} Withhold;

/* ---- Pass 1: what stays ------------------------------------------------------------------ */

/* Find the stretches that stay. 0 when the records are malformed. */
static int walk_records(Withhold *w, const Batch *batch, Plan *plan) {
    Bytes p = batch->payload, end = p + batch->payload_size;
    int64_t last_delta = last_delta_of(batch), previous = -1;
    Stretch *stretches = w->stretches + plan->first_stretch;
    size_t count = 0, i = seek_range(&w->gone, 0, batch->base_offset);
    plan->records = 0;
    plan->size = HEADER_SIZE;
    for (int32_t n = batch->records_count; n; n--) {
        Record record;
        if (!(p = read_record(p, end, NULL, &record))) return 0;
        if (record.offset_delta <= previous || record.offset_delta > last_delta) return 0;
        previous = record.offset_delta;
        if (has_offset(&w->gone, &i, batch->base_offset + previous)) continue;
        size_t size = (size_t)(record.end - record.start);
        if (count && stretches[count - 1].start + stretches[count - 1].size == record.start)
            stretches[count - 1].size += size;
        else
            stretches[count++] = (Stretch){record.start, size};
        plan->size += size;
        plan->records++;
    }
    plan->stretches_count = count;
    return p == end;
}

static void plan_batch(Withhold *w, const Batch *batch, Plan *plan) {
    plan->kind = plan->overlap == ALL_OF_IT ? LEFT_OUT : KEPT;
    if (plan->overlap != SOME_OF_IT) return;
    /* A rebuilt batch has a new CRC, which would hide damage. */
    if (!crc_matches(batch) || !possible_records(batch) || !walk_records(w, batch, plan)) {
        size_t i = seek_range(&w->gone, 0, batch->base_offset);
        plan->kind = has_offset(&w->gone, &i, batch->base_offset) ? LEFT_OUT : KEPT;
    } else if (plan->records < (uint32_t)batch->records_count) {
        plan->kind = plan->records ? REBUILT : LEFT_OUT;
    }
}

static void plan_all(Withhold *w) {
    w->next_offset = -1;
    for (size_t k = 0; k < w->run.count; k++) {
        const Batch *batch = &w->run.batches[k];
        Plan *plan = &w->plans[k];
        plan_batch(w, batch, plan);
        if (plan->kind != REBUILT) plan->size = plan->kind == KEPT ? batch->size : 0;
        if (plan->kind != KEPT) w->is_changed = 1;
        if (plan->kind != LEFT_OUT) w->next_offset = batch->next_offset;
        w->output_size += plan->size;
    }
}

/* ---- Pass 2: copying --------------------------------------------------------------------- */

static void write_all(const Withhold *w, uint8_t *out) {
    for (size_t k = 0; k < w->run.count; k++) {
        const Batch *batch = &w->run.batches[k];
        const Plan *plan = &w->plans[k];
        if (plan->kind == KEPT) {
            memcpy(out, batch->start, batch->size);
        } else if (plan->kind == REBUILT) {
            uint8_t *to = out + HEADER_SIZE;
            const Stretch *stretch = w->stretches + plan->first_stretch;
            memcpy(out, batch->start, HEADER_SIZE);
            for (size_t i = 0; i < plan->stretches_count; to += stretch[i++].size)
                memcpy(to, stretch[i].start, stretch[i].size);
            finish_batch(out, plan->size, plan->records);
        }
        out += plan->size;
    }
}

/* ---- What Python sees -------------------------------------------------------------------- */

/* Find out which batches are concerned: only those of which a part may go have to be opened. 0 with
   an exception when there is no memory. */
static int find_overlaps(Withhold *w) {
    w->plans = malloc((w->run.count + 1) * sizeof *w->plans);
    if (!w->plans) {
        PyErr_NoMemory();
        return 0;
    }
    for (size_t k = 0; k < w->run.count; k++) {
        Batch *batch = &w->run.batches[k];
        enum Overlap overlap = NONE_OF_IT;
        if (!is_control(batch->start) && batch->records_count)
            overlap = overlap_of(&w->gone, batch->base_offset,
                                 stated_last_offset(batch->start, batch->base_offset));
        if (overlap != SOME_OF_IT) batch->needs_payload = 0;
        w->plans[k].overlap = overlap;
    }
    return 1;
}

/* Make room for what is remembered of the records; 0 with an exception. */
static int make_room(Withhold *w) {
    size_t stretches = 0;
    for (size_t k = 0; k < w->run.count; k++) {
        w->plans[k].first_stretch = stretches;
        if (w->plans[k].overlap == SOME_OF_IT)
            stretches += (possible_records(&w->run.batches[k]) + 1) / 2;
    }
    w->stretches = malloc((stretches + 1) * sizeof *w->stretches);
    if (!w->stretches) PyErr_NoMemory();
    return w->stretches != NULL;
}

static PyObject *run_withhold(Withhold *w) {
    PyObject *output = Py_None;
    int64_t covered = w->run.count ? w->run.batches[w->run.count - 1].next_offset : -1;
    Py_BEGIN_ALLOW_THREADS
    plan_all(w);
    Py_END_ALLOW_THREADS
    if (!w->is_changed) return Py_BuildValue("OLL", output, w->next_offset, covered);
    output = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)w->output_size);
    if (!output) return NULL;
    uint8_t *out = (uint8_t *)PyBytes_AsString(output);
    Py_BEGIN_ALLOW_THREADS
    write_all(w, out);
    Py_END_ALLOW_THREADS
    return Py_BuildValue("NLL", output, w->next_offset, covered);
}

PyObject *py_withhold(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *payloads, *ranges, *result = NULL;
    Withhold w = {.output_size = 0};
    if (!PyArg_ParseTuple(args, "y*OO:withhold", &w.run.view, &payloads, &ranges)) return NULL;
    if (take_ranges(&w.gone, ranges) && read_run(&w.run) && find_overlaps(&w) &&
        take_payloads(&w.run, payloads) && make_room(&w))
        result = run_withhold(&w);
    free(w.plans);
    free(w.stretches);
    close_run(&w.run);
    return result;
}
