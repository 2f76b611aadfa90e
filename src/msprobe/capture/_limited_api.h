/* SPDX-License-Identifier: Apache-2.0
 *
 * Include this in place of Python.h. With `Py_LIMITED_API` a build serves every later Python, too:
 * the functions below take the place of the macros that it lacks. Without it nothing is slower.
 */
#pragma once
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef Py_LIMITED_API

#define PyTuple_GET_ITEM PyTuple_GetItem
#define PyTuple_GET_SIZE PyTuple_Size
#define PyTuple_SET_ITEM (void)PyTuple_SetItem
#define PyList_GET_ITEM PyList_GetItem
#define PyList_GET_SIZE PyList_Size
#define PyList_SET_ITEM (void)PyList_SetItem
#define PyDict_GET_SIZE PyDict_Size
#define PySet_GET_SIZE PySet_Size
#define PyFloat_AS_DOUBLE PyFloat_AsDouble
#define PyBytes_AS_STRING PyBytes_AsString
#define PyBytes_GET_SIZE PyBytes_Size
#define PyByteArray_AS_STRING PyByteArray_AsString
#define PyByteArray_GET_SIZE PyByteArray_Size
#define PyUnicode_GET_LENGTH PyUnicode_GetLength

#define Py_XSETREF(place, value)                                                                 \
    do {                                                                                         \
        PyObject **place_ = (PyObject **)&(place), *before_ = *place_;                           \
        *place_ = (PyObject *)(value);                                                           \
        Py_XDECREF(before_);                                                                     \
    } while (0)
#define Py_SETREF Py_XSETREF

static inline PyObject *PyObject_CallOneArg(PyObject *function, PyObject *argument)
{
    PyObject *room[2] = {NULL, argument};
    return PyObject_Vectorcall(function, room + 1, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
}

static inline PyObject *PyObject_CallMethodNoArgs(PyObject *self, PyObject *name)
{
    PyObject *room[2] = {NULL, self};
    return PyObject_VectorcallMethod(name, room + 1, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
}

static inline PyObject *PyObject_CallMethodOneArg(PyObject *self, PyObject *name, PyObject *argument)
{
    PyObject *room[3] = {NULL, self, argument};
    return PyObject_VectorcallMethod(name, room + 1, 2 | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
}

static inline PyObject *PyDict_SetDefault(PyObject *table, PyObject *key, PyObject *fresh)
{
    PyObject *found = PyDict_GetItemWithError(table, key);
    if (!found && !PyErr_Occurred() && PyDict_SetItem(table, key, fresh) == 0) found = fresh;
    return found;
}

/* The UTF-8 of a text that has one byte for each character; NULL, without an exception, for others. */
static inline const char *ascii_of(PyObject *text)
{
    Py_ssize_t size;
    const char *found = PyUnicode_AsUTF8AndSize(text, &size);
    if (!found) PyErr_Clear(); /* a lone surrogate */
    return found && size == PyUnicode_GetLength(text) ? found : NULL;
}

/* The number in a little-endian float16. */
static inline double PyFloat_Unpack2(const char *at, int is_little)
{
    uint16_t bits;
    memcpy(&bits, at, sizeof bits);
    int exponent = (bits >> 10) & 31, fraction = bits & 1023;
    double size = exponent == 31 ? (fraction ? NAN : INFINITY)
                  : exponent     ? ldexp(1024 + fraction, exponent - 25)
                                 : ldexp(fraction, -24);
    (void)is_little;
    return bits >> 15 ? -size : size;
}

#else

static inline const char *ascii_of(PyObject *text)
{
    return PyUnicode_IS_ASCII(text) ? (const char *)PyUnicode_1BYTE_DATA(text) : NULL;
}

#endif

/* Make a type from its specification; 0, or -1 with an exception. */
static inline int make_type(PyTypeObject **type, PyType_Spec *spec)
{
    *type = (PyTypeObject *)PyType_FromSpec(spec);
    return *type ? 0 : -1;
}

/* Free an object without members that the collector walks, and let go of its type. */
static inline void free_object(void *self, freefunc release)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    release(self);
    Py_DECREF(type);
}
