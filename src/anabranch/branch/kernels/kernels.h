/* What the module offers to Python, one file each. */

#ifndef ANABRANCH_KERNELS_H
#define ANABRANCH_KERNELS_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

PyObject *py_split(PyObject *module, PyObject *args);
PyObject *py_progress(PyObject *module, PyObject *args);
PyObject *py_withhold(PyObject *module, PyObject *args);
PyObject *py_read_records(PyObject *module, PyObject *args);
PyObject *py_arrow_rows(PyObject *module, PyObject *args);
PyObject *py_record_targets(PyObject *module, PyObject *args);
PyObject *py_encode_records(PyObject *module, PyObject *args);
PyObject *py_fields(PyObject *module, PyObject *args);

#endif
