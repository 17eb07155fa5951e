/* The module `_kernels`: loops over records. Its interface is in _kernels.pyi, the loops are in
   kernels/, one file each.

   The broker stores batches as clients sent them and checks no more than their header and CRC, so
   every length and every delta may be a lie: each read is held against the end of what it is read
   from. What is decided about a record (where it goes, its length) is decided once and remembered;
   a copying pass never reads a length from the batch again. So bytes that change underneath (a
   mapped file) can spoil the result but never memory.

   All loops run without the interpreter's lock. Only the limited API is used, so one build serves
   every CPython from 3.11 on. */

#include "kernels/batch.h"
#include "kernels/crc32c.h"
#include "kernels/kernels.h"
#include "kernels/murmur2.h"
#include "kernels/offset_ranges.h"
#include "kernels/xxh64.h"

static PyObject *py_xxh64(PyObject *Py_UNUSED(module), PyObject *data) {
    Py_buffer view;
    if (PyObject_GetBuffer(data, &view, PyBUF_SIMPLE) < 0) return NULL;
    uint64_t hash = xxh64(view.buf, (size_t)view.len);
    PyBuffer_Release(&view);
    return PyLong_FromUnsignedLongLong(hash);
}

static PyObject *py_crc32c(PyObject *Py_UNUSED(module), PyObject *data) {
    Py_buffer view;
    if (PyObject_GetBuffer(data, &view, PyBUF_SIMPLE) < 0) return NULL;
    uint32_t crc;
    Py_BEGIN_ALLOW_THREADS
    crc = crc32c(view.buf, (size_t)view.len);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&view);
    return PyLong_FromUnsignedLong(crc);
}

static PyObject *py_murmur2(PyObject *Py_UNUSED(module), PyObject *data) {
    Py_buffer view;
    if (PyObject_GetBuffer(data, &view, PyBUF_SIMPLE) < 0) return NULL;
    uint32_t hash = murmur2(view.buf, (size_t)view.len);
    PyBuffer_Release(&view);
    return PyLong_FromUnsignedLong(hash);
}

static PyObject *py_whole_batches(PyObject *Py_UNUSED(module), PyObject *args) {
    Py_buffer view;
    long long end_offset = INT64_MAX;
    if (!PyArg_ParseTuple(args, "y*|L:whole_batches", &view, &end_offset)) return NULL;
    Py_ssize_t size;
    Py_BEGIN_ALLOW_THREADS
    size = whole_batches(view.buf, (Bytes)view.buf + view.len, end_offset);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&view);
    return PyLong_FromSsize_t(size);
}

/* Whether its payload is wanted: always, or where a set has some of the batch's offsets. */
static int is_wanted(Bytes batch, const OffsetRanges *set) {
    if (!has_codec(batch)) return 0;
    int64_t base_offset = load_be64(batch);
    return !set->pairs ||
           overlap_of(set, base_offset, stated_last_offset(batch, base_offset)) == SOME_OF_IT;
}

static PyObject *py_compressed_batches(PyObject *Py_UNUSED(module), PyObject *args) {
    Py_buffer view;
    PyObject *ranges = Py_None;
    OffsetRanges set = {.count = 0};
    if (!PyArg_ParseTuple(args, "y*|O:compressed_batches", &view, &ranges)) return NULL;
    if (ranges != Py_None && !take_ranges(&set, ranges)) {
        PyBuffer_Release(&view);
        return NULL;
    }
    Bytes start = view.buf, p = start, end = start + view.len;
    Py_ssize_t count;
    /* This walk reads the file if it is a mapped one, so it comes first and without the lock. */
    Py_BEGIN_ALLOW_THREADS
    count = count_batches(start, end);
    Py_END_ALLOW_THREADS
    PyObject *list = count < 0 ? NULL : PyList_New(0);
    if (count < 0) PyErr_SetString(PyExc_ValueError, not_batches);
    while (list && p < end) {
        size_t size = size_of_batch(p, end);
        if (!size) break;
        if (is_wanted(p, &set)) {
            PyObject *entry = Py_BuildValue("nni", (Py_ssize_t)(p + HEADER_SIZE - start),
                                            (Py_ssize_t)(size - HEADER_SIZE), codec_of(p));
            if (!entry || PyList_Append(list, entry) < 0) Py_CLEAR(list);
            Py_XDECREF(entry);
        }
        p += size;
    }
    PyBuffer_Release(&view);
    return list;
}

static PyMethodDef methods[] = {
    {"xxh64", py_xxh64, METH_O, "XXH64 with seed 0."},
    {"murmur2", py_murmur2, METH_O, "Kafka's murmur2."},
    {"crc32c", py_crc32c, METH_O, "CRC-32C."},
    {"whole_batches", py_whole_batches, METH_VARARGS, "How many bytes of whole batches there are."},
    {"compressed_batches", py_compressed_batches, METH_VARARGS,
     "(position, size, codec) of the payload of each compressed batch with records."},
    {"split", py_split, METH_VARARGS, "Sort the records of batches by their slots."},
    {"progress", py_progress, METH_VARARGS, "Count records by branch over slot index blocks."},
    {"withhold", py_withhold, METH_VARARGS, "Take out the records whose offsets are in a set."},
    {"read_records", py_read_records, METH_VARARGS, "Records as columns."},
    {"arrow_rows", py_arrow_rows, METH_VARARGS, "Records as the buffers of Arrow's columns."},
    {"record_targets", py_record_targets, METH_VARARGS, "The partition of each row."},
    {"encode_records", py_encode_records, METH_VARARGS, "Arrow's columns as records of batches."},
    {"fields", py_fields, METH_VARARGS, "The keys or values of a column, as bytes."},
    {NULL, NULL, 0, NULL},
};

static int module_exec(PyObject *Py_UNUSED(module)) {
    prepare_crc();
    return 0;
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, (void *)module_exec},
    {0, NULL},
};

static struct PyModuleDef module_definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "anabranch.branch._kernels",
    .m_doc = "Compiled loops over records.",
    .m_methods = methods,
    .m_slots = module_slots,
};

PyMODINIT_FUNC PyInit__kernels(void) { return PyModuleDef_Init(&module_definition); }
