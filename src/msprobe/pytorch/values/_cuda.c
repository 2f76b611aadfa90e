/* SPDX-License-Identifier: Apache-2.0
 *
 * msprobe.pytorch.values._cuda: launch a kernel that is loaded already, by CUDA's driver.
 *
 * Triton's own launcher looks at each argument in Python, which takes several times as long as the
 * launch. The driver is opened at run time: nothing of CUDA is needed to build this.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <dlfcn.h>
#include <stdint.h>

#define MOST_ARGUMENTS 24
/* Triton adds pointers of its own behind those of a kernel, which are null for kernels like ours; the
 * driver reads as many arguments as the kernel has. */
#define HIDDEN_ARGUMENTS 4

typedef int (*launch_type)(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                           unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                           void *stream, void **arguments, void **extra);

static launch_type launch_kernel;

static PyObject *open_driver(PyObject *module, PyObject *ignored)
{
    void *driver = launch_kernel ? NULL : dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (driver) launch_kernel = (launch_type)dlsym(driver, "cuLaunchKernel");
    return PyBool_FromLong(launch_kernel != NULL);
}

static PyObject *launch(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    enum { FUNCTION, PROGRAMS, THREADS, SHARED, STREAM, POINTERS, FIRST };
    union {
        uint64_t pointer;
        int32_t number;
    } values[MOST_ARGUMENTS + HIDDEN_ARGUMENTS] = {{0}};
    void *arguments[MOST_ARGUMENTS + HIDDEN_ARGUMENTS];
    Py_ssize_t count = nargs - FIRST;
    if (!launch_kernel || count < 0 || count > MOST_ARGUMENTS) {
        PyErr_SetString(PyExc_TypeError, "launch: no driver, or a wrong number of arguments");
        return NULL;
    }
    void *function = PyLong_AsVoidPtr(args[FUNCTION]), *stream = PyLong_AsVoidPtr(args[STREAM]);
    unsigned programs = (unsigned)PyLong_AsUnsignedLong(args[PROGRAMS]);
    unsigned threads = (unsigned)PyLong_AsUnsignedLong(args[THREADS]);
    unsigned shared = (unsigned)PyLong_AsUnsignedLong(args[SHARED]);
    Py_ssize_t pointers = PyLong_AsSsize_t(args[POINTERS]);
    for (Py_ssize_t i = 0; i < count + HIDDEN_ARGUMENTS; i++) arguments[i] = &values[i];
    for (Py_ssize_t i = 0; i < count; i++) {
        if (i < pointers) {
            values[i].pointer = PyLong_AsUnsignedLongLong(args[FIRST + i]);
        } else {
            long long number = PyLong_AsLongLong(args[FIRST + i]);
            if (number != (int32_t)number) PyErr_SetString(PyExc_OverflowError, "launch: 32 bits");
            values[i].number = (int32_t)number;
        }
    }
    if (PyErr_Occurred()) return NULL;
    int failed;
    /* The driver waits here when its queue is full. */
    Py_BEGIN_ALLOW_THREADS
    failed = launch_kernel(function, programs, 1, 1, threads, 1, 1, shared, stream, arguments, NULL);
    Py_END_ALLOW_THREADS
    if (failed) return PyErr_Format(PyExc_RuntimeError, "cuLaunchKernel returned %d", failed);
    Py_RETURN_NONE;
}

static PyMethodDef METHODS[] = {
    {"open_driver", open_driver, METH_NOARGS, "open_driver() -> whether CUDA's driver is there"},
    {"launch", (PyCFunction)(void (*)(void))launch, METH_FASTCALL,
     "launch(function, programs, threads, shared_bytes, stream, pointers, *arguments): launch a kernel on "
     "the current device; the first `pointers` arguments are addresses, the others 32-bit integers"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT,
    .m_name = "msprobe.pytorch.values._cuda",
    .m_doc = "Launch kernels of CUDA.",
    .m_size = -1,
    .m_methods = METHODS,
};

PyMODINIT_FUNC PyInit__cuda(void)
{
    return PyModule_Create(&MODULE);
}
