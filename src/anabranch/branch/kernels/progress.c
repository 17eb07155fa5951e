/* Counting records over the slot index. */

#include "bytes.h"
#include "index_block.h"
#include "kernels.h"
#include "slots.h"

typedef struct {
    const int64_t *watermarks, *floors;
    uint32_t watermarks_count, floors_count;
    int64_t end_offset;
    uint64_t *open, *done;
    int64_t *first_open;
} Progress;

static inline void count_record(const Progress *g, int64_t offset, uint32_t slot) {
    uint32_t range = range_of_slot(slot, g->floors_count);
    if (offset >= g->watermarks[range_of_slot(slot, g->watermarks_count)]) {
        if (!g->open[range]++) g->first_open[range] = offset;
    } else if (offset >= g->floors[range]) {
        g->done[range]++;
    }
}

/* 0 when the blocks do not fit together. */
static int count_blocks(const Progress *g, Bytes p, Bytes end) {
    int64_t previous_base = -1;
    while (p < end) {
        if (end - p < BLOCK_HEADER_SIZE) return 0;
        int64_t base = (int64_t)load_u64(p);
        uint32_t last_delta = load_u32(p + 8), count = load_u32(p + 12), flags = load_u32(p + 20);
        size_t slots_size = pad8(2 * (size_t)count);
        size_t deltas_size = flags & FLAG_SPARSE ? pad8(4 * (size_t)count) : 0;
        if (base <= previous_base || base > INT64_MAX - UINT32_MAX ||
            count > (uint64_t)last_delta + 1 ||
            flags > (FLAG_SPARSE | FLAG_CONTROL | FLAG_UNREADABLE) ||
            slots_size + deltas_size > (size_t)(end - p - BLOCK_HEADER_SIZE))
            return 0;
        previous_base = base;
        Bytes slots = p + BLOCK_HEADER_SIZE, deltas = slots + slots_size;
        p = deltas + deltas_size;
        if (base >= g->end_offset) continue;
        int64_t previous_delta = -1;
        for (uint32_t i = 0; i < count; i++) {
            int64_t delta = i;
            if (flags & FLAG_SPARSE) {
                delta = load_u32(deltas + 4 * (size_t)i);
                if (delta <= previous_delta || delta > last_delta) return 0;
                previous_delta = delta;
            }
            if (base + delta >= g->end_offset) break;
            count_record(g, base + delta, load_u16(slots + 2 * (size_t)i));
        }
    }
    return 1;
}

/* How many ranges an array of int64 is for, or 0. */
static uint32_t count_ranges(Py_ssize_t size) {
    return size > 0 && size % 8 == 0 && size / 8 <= SLOTS ? (uint32_t)(size / 8) : 0;
}

PyObject *py_progress(PyObject *Py_UNUSED(module), PyObject *args) {
    Py_buffer index;
    PyObject *watermarks, *floors, *open = NULL, *first = NULL, *done = NULL, *result = NULL;
    long long end_offset;
    char *array;
    Py_ssize_t size;
    Progress g;
    if (!PyArg_ParseTuple(args, "y*OOL:progress", &index, &watermarks, &floors, &end_offset))
        return NULL;
    if (PyBytes_AsStringAndSize(watermarks, &array, &size) < 0) goto done;
    g.watermarks = (const int64_t *)array;
    g.watermarks_count = count_ranges(size);
    if (PyBytes_AsStringAndSize(floors, &array, &size) < 0) goto done;
    g.floors = (const int64_t *)array;
    g.floors_count = count_ranges(size);
    if (!g.watermarks_count || !g.floors_count) {
        PyErr_Format(PyExc_ValueError, "watermarks and floors are arrays of 1 to %d int64", SLOTS);
        goto done;
    }
    open = PyBytes_FromStringAndSize(NULL, size);
    first = PyBytes_FromStringAndSize(NULL, size);
    done = PyBytes_FromStringAndSize(NULL, size);
    if (!open || !first || !done) goto done;
    g.open = memset(PyBytes_AsString(open), 0, (size_t)size);
    g.first_open = memset(PyBytes_AsString(first), 0xFF, (size_t)size); /* -1 */
    g.done = memset(PyBytes_AsString(done), 0, (size_t)size);
    g.end_offset = end_offset;
    int fits;
    Py_BEGIN_ALLOW_THREADS
    fits = count_blocks(&g, index.buf, (Bytes)index.buf + index.len);
    Py_END_ALLOW_THREADS
    if (fits)
        result = PyTuple_Pack(3, open, first, done);
    else
        PyErr_SetString(PyExc_ValueError, "damaged slot index");
done:
    Py_XDECREF(open);
    Py_XDECREF(first);
    Py_XDECREF(done);
    PyBuffer_Release(&index);
    return result;
}
