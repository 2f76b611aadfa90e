/* SPDX-License-Identifier: Apache-2.0
 *
 * Values that a compiled graph hands over from a thread of the framework, without Python: the
 * graph calls `msprobe_take`, which has the signature of MindSpore's custom operators in C.
 *
 * Part of _native.c, so that both find one list in memory: the framework opens the same library.
 */
#include <time.h>

/* The values of one call. */
struct delivery {
    struct delivery *next; /* the one before */
    int64_t number;        /* which call of the graph's code */
    double spent_s;
    int count;
    struct result results[];
};

enum { DROPPED, KEPT, CALLED };
static int treatment; /* of what is handed over; atomic */
static PyObject *receiver; /* of what is CALLED; guarded by the GIL */
static struct delivery *delivered; /* the latest one; atomic */
static int is_incomplete; /* there was no memory for one; atomic */

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void keep_delivery(const int64_t *key, int count, void **values, const int *ndims,
                          int64_t *const *shapes)
{
    double begin = seconds();
    struct delivery *made = calloc(1, sizeof *made + (size_t)count * sizeof *made->results);
    if (!made) {
        __atomic_store_n(&is_incomplete, 1, __ATOMIC_RELEASE);
        return;
    }
    made->number = key[0];
    made->count = count;
    for (int i = 0; i < count; i++) {
        int64_t n = 1;
        for (int k = 0; k < ndims[i]; k++) n *= shapes[i][k];
        struct layout layout;
        dense_layout(&layout, (int)key[1 + i], values[i], (Py_ssize_t)n);
        compute_ieee(&made->results[i], &layout, (int)key[1 + i], (size_t)n);
    }
    made->spent_s = seconds() - begin;
    made->next = __atomic_load_n(&delivered, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(&delivered, &made->next, made, 0, __ATOMIC_RELEASE,
                                        __ATOMIC_RELAXED)) {}
}

static void call_receiver(int64_t number, int count, void **values)
{
    PyGILState_STATE state = PyGILState_Ensure();
    PyObject *addresses = PyTuple_New(count), *result = NULL;
    for (int i = 0; addresses && i < count; i++) {
        PyObject *address = PyLong_FromVoidPtr(values[i]);
        if (!address) Py_CLEAR(addresses);
        else PyTuple_SET_ITEM(addresses, i, address);
    }
    if (addresses && receiver) {
        PyObject *called = Py_NewRef(receiver);
        result = PyObject_CallFunction(called, "LO", (long long)number, addresses);
        Py_DECREF(called);
    }
    if (PyErr_Occurred()) PyErr_WriteUnraisable(receiver);
    Py_XDECREF(result);
    Py_XDECREF(addresses);
    PyGILState_Release(state);
}

/* The first input is the number of the call and the kind of each value; the values are the other
 * inputs, dense. The output is there because an operator has to have one. */
__attribute__((visibility("default")))
int msprobe_take(int nparam, void **params, int *ndims, int64_t **shapes, const char **dtypes,
                 void *stream, void *extra)
{
    const int64_t *key = params[0];
    int count = nparam - 2;
    *(float *)params[nparam - 1] = 0;
    switch (__atomic_load_n(&treatment, __ATOMIC_ACQUIRE)) {
    case KEPT: keep_delivery(key, count, params + 1, ndims + 1, shapes + 1); break;
    case CALLED: call_receiver(key[0], count, params + 1); break;
    }
    return 0;
}

static PyObject *delivery_tuple(const struct delivery *one)
{
    PyObject *results = PyList_New(one->count);
    for (int i = 0; results && i < one->count; i++) {
        PyObject *result = result_tuple(&one->results[i]);
        if (!result) Py_CLEAR(results);
        else PyList_SET_ITEM(results, i, result);
    }
    if (!results) return NULL;
    return Py_BuildValue("(LdN)", (long long)one->number, one->spent_s, results);
}

static PyObject *take_delivered(PyObject *module, PyObject *unused)
{
    struct delivery *one = __atomic_exchange_n(&delivered, NULL, __ATOMIC_ACQUIRE);
    PyObject *list = PyList_New(0);
    if (__atomic_exchange_n(&is_incomplete, 0, __ATOMIC_ACQUIRE)) {
        Py_CLEAR(list);
        PyErr_NoMemory();
    }
    while (one) {
        struct delivery *before = one->next;
        PyObject *made = list ? delivery_tuple(one) : NULL;
        if (list && (!made || PyList_Append(list, made) < 0)) Py_CLEAR(list);
        Py_XDECREF(made);
        free(one);
        one = before;
    }
    if (list && PyList_Reverse(list) < 0) Py_CLEAR(list);
    return list;
}

static PyObject *deliver_to(PyObject *module, PyObject *target)
{
    int now = target == Py_None ? DROPPED : target == Py_True ? KEPT : CALLED;
    __atomic_store_n(&treatment, DROPPED, __ATOMIC_RELEASE);
    Py_XSETREF(receiver, now == CALLED ? Py_NewRef(target) : NULL);
    __atomic_store_n(&treatment, now, __ATOMIC_RELEASE);
    PyObject *left = take_delivered(module, NULL);
    Py_XDECREF(left);
    if (!left) return NULL;
    Py_RETURN_NONE;
}
