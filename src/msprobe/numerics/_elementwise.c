/* SPDX-License-Identifier: Apache-2.0
 *
 * msprobe.numerics._elementwise: two tensors compared element by element, in one pass.
 *
 *   Accumulator(target_kind, reference_kind, target_table, reference_table,
 *               rtol, atol, shift, fraction_bits, min_exponent, keep)
 *     .update(target, reference)   the next elements: contiguous buffers of equally many
 *     .finish()                    -> tuple, as raw_metrics.RawMetrics
 *   use_isa(name)    choose the instruction set (tests); returns the names of those that work here
 *   KINDS            element type name -> kind; "table" for 8-bit types given by 256 float64
 *
 * What the numbers mean stands in docs/metrics.md; numpy_elementwise.py gives the same. Elements
 * are taken in blocks counted from the first one, so chunks leave no trace in the sums.
 */
#include <fenv.h>
#include <float.h>

#include "../capture/_limited_api.h"

#if !defined(__GNUC__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "needs GCC or Clang and a little-endian machine; msprobe works without"
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "_elementwise_state.h"

/* Below this the work takes less time than releasing and taking the GIL is worth. */
#define GIL_RELEASE_BYTES (1 << 17)

/* ---- block kernels, once for each instruction set ------------------------------------------- */

#define ISA(name) name##_generic
#define TARGET
#define REGISTER_BYTES 16
#define HAS_AVX2 0
#include "_elementwise_kernels.h"
#undef ISA
#undef TARGET
#undef REGISTER_BYTES
#undef HAS_AVX2

#if defined(__x86_64__)
#define HAS_AVX2 1
#define ISA(name) name##_avx2
#define TARGET __attribute__((target("avx2")))
#define REGISTER_BYTES 32
#include "_elementwise_kernels.h"
#undef ISA
#undef TARGET
#undef REGISTER_BYTES

#define ISA(name) name##_avx512
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#define REGISTER_BYTES 64
#include "_elementwise_kernels.h"
#undef ISA
#undef TARGET
#undef REGISTER_BYTES
#endif

struct kernels {
    const char *name;
    void (*widen)(int, const double *, const void *, double *, size_t);
    uint64_t (*extent)(const double *, size_t);
    void (*differences)(const double *, const double *, double *, size_t);
    int (*complex_errors)(const double *, const double *, double *, double *, size_t, uint64_t *);
    void (*errors)(const double *, const double *, double *, size_t, const struct limits *,
                   struct errors *);
    void (*products)(const double *, const double *, size_t, struct products *);
    double (*squares)(const double *, size_t);
    uint64_t (*ulps)(const double *, const double *, size_t, const struct format *);
};

#define KERNELS(isa)                                                                            \
    {#isa, widen_##isa, extent_##isa, differences_##isa, complex_errors_##isa, errors_##isa,   \
     products_##isa, squares_##isa, ulps_##isa}

/* Ascending: the last one that works here is taken. */
static const struct kernels ALL_KERNELS[] = {
    KERNELS(generic),
#if defined(__x86_64__)
    KERNELS(avx2),
    KERNELS(avx512),
#endif
};

static const struct kernels *chosen = ALL_KERNELS;

static int isa_works(size_t index)
{
#if defined(__x86_64__)
    if (index == 1) return __builtin_cpu_supports("avx2");
    if (index == 2)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
#endif
    return index == 0;
}

#include "_elementwise_blocks.h"

/* ---- Python objects -------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    struct state *state;
    int is_busy; /* in another thread */
} Accumulator;

static int set_side(struct side *side, int kind, const Py_buffer *table)
{
    if (kind < 0 || kind >= KIND_COUNT || (kind == K_TABLE) != (table->buf != NULL) ||
        (table->buf && table->len != sizeof side->table)) {
        PyErr_SetString(PyExc_ValueError, "unknown kind, or a table where none belongs");
        return -1;
    }
    side->kind = kind;
    side->itemsize = KINDS[kind].itemsize;
    if (table->buf) memcpy(side->table, table->buf, sizeof side->table);
    return 0;
}

static int is_any(const struct state *s, int first, int second)
{
    return s->target.kind == first || s->target.kind == second || s->reference.kind == first ||
           s->reference.kind == second;
}

static int is_whole(int kind)
{
    return kind >= K_I8 && kind <= K_BOOL;
}

static PyObject *accumulator_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    int target, reference, fraction_bits, min_exponent;
    Py_buffer target_table = {0}, reference_table = {0};
    Py_ssize_t keep;
    double rtol, atol, shift;
    Accumulator *self = NULL;
    if (!PyArg_ParseTuple(args, "iiz*z*dddiin", &target, &reference, &target_table,
                          &reference_table, &rtol, &atol, &shift, &fraction_bits, &min_exponent,
                          &keep))
        return NULL;
    struct state *s = aligned_alloc(64, (sizeof *s + 63) / 64 * 64);
    if (!s) {
        PyErr_NoMemory();
        goto done;
    }
    memset(s, 0, sizeof *s);
    if (set_side(&s->target, target, &target_table) < 0 ||
        set_side(&s->reference, reference, &reference_table) < 0)
        goto done;
    if (keep < 1 || fraction_bits < -1 || fraction_bits > 52 || min_exponent < -1022) {
        PyErr_SetString(PyExc_ValueError, "a number is out of range");
        goto done;
    }
    s->is_complex = is_any(s, K_C64, K_C128);
    s->is_long = is_any(s, K_I64, K_U64) && !s->is_complex;
    s->is_integer = is_whole(target) && is_whole(reference);
    s->is_alike = target == reference &&
                  !memcmp(s->target.table, s->reference.table, sizeof s->target.table);
    s->block = s->is_complex ? BLOCK / 2 : BLOCK;
    s->limits = (struct limits){rtol, atol, shift, {INFINITY, INFINITY, INFINITY}};
    s->format = format_of(fraction_bits, min_exponent);
    s->first_nonfinite = -1;
    s->top.keep = (size_t)keep;
    s->top.random = 0x9e3779b97f4a7c15u;
    self = (Accumulator *)PyType_GenericAlloc(type, 0);
    if (self) self->state = s, s = NULL;
done:
    free(s);
    PyBuffer_Release(&target_table);
    PyBuffer_Release(&reference_table);
    return (PyObject *)self;
}

static void accumulator_dealloc(Accumulator *self)
{
    free(self->state->top.values);
    free(self->state);
    free_object(self, PyObject_Free);
}

/* Take elements, or (n = 0) those that wait for their block to fill. */
static int advance(Accumulator *self, const char *target, const char *reference, size_t n)
{
    struct state *s = self->state;
    if (self->is_busy) {
        PyErr_SetString(PyExc_RuntimeError, "another thread is using this accumulator");
        return -1;
    }
    if (n * s->target.itemsize < GIL_RELEASE_BYTES) {
        take_ieee(s, target, reference, n);
    } else {
        self->is_busy = 1;
        Py_BEGIN_ALLOW_THREADS
        take_ieee(s, target, reference, n);
        Py_END_ALLOW_THREADS
        self->is_busy = 0;
    }
    if (s->top.out_of_memory) {
        PyErr_NoMemory();
        return -1;
    }
    return 0;
}

static PyObject *update(Accumulator *self, PyObject *args)
{
    Py_buffer target, reference;
    if (!PyArg_ParseTuple(args, "y*y*", &target, &reference)) return NULL;
    size_t n = (size_t)target.len / self->state->target.itemsize;
    int failed = -1;
    if (n * self->state->target.itemsize != (size_t)target.len ||
        n * self->state->reference.itemsize != (size_t)reference.len)
        PyErr_SetString(PyExc_ValueError, "the buffers do not hold equally many elements");
    else
        failed = n ? advance(self, target.buf, reference.buf, n) : 0;
    PyBuffer_Release(&target);
    PyBuffer_Release(&reference);
    if (failed) return NULL;
    Py_RETURN_NONE;
}

static PyObject *from_total(const struct total *total)
{
    return Py_BuildValue("(di)", total->value + total->error, total->exponent);
}

static PyObject *from_candidate(const struct state *s, const struct candidate *best, int is_there)
{
    if (!is_there) Py_RETURN_NONE;
    return Py_BuildValue("(dKy#y#)", best->error, best->index, best->target,
                         (Py_ssize_t)s->target.itemsize, best->reference,
                         (Py_ssize_t)s->reference.itemsize);
}

static PyObject *from_counts(const struct side *side)
{
    return Py_BuildValue("(KKK)", side->nan, side->positive, side->negative);
}

static PyObject *finish(Accumulator *self, PyObject *unused)
{
    struct state *s = self->state;
    if (advance(self, NULL, NULL, 0) < 0) return NULL;
    double p999 = s->finite ? quantile(&s->top, s->finite) : NAN;
    PyObject *number = isnan(p999) ? Py_NewRef(Py_None) : PyFloat_FromDouble(p999);
    PyObject *ulp = s->format.fraction_bits < 0 ? PyLong_FromLong(-1)
                                                : PyLong_FromUnsignedLongLong(s->ulp);
    return Py_BuildValue(
        "(KKKKKKKNLNNNNNNNNNdNN)", s->count, s->finite, s->unequal, s->mismatches, s->flips,
        s->within_1e3, s->within_5e3, PyBool_FromLong(s->positions_differ), s->first_nonfinite,
        from_counts(&s->target), from_counts(&s->reference), from_total(&s->target.squares),
        from_total(&s->reference.squares), from_total(&s->products),
        from_total(&s->error_squares), from_total(&s->errors),
        from_candidate(s, &s->largest, s->finite > 0),
        from_candidate(s, &s->relative[0], s->has_class), s->shifted, ulp, number);
}

static PyObject *use_isa(PyObject *module, PyObject *name)
{
    PyObject *names = PyList_New(0);
    int found = name == Py_None;
    for (size_t i = 0; names && i < sizeof ALL_KERNELS / sizeof *ALL_KERNELS; i++) {
        if (!isa_works(i)) continue;
        PyObject *text = PyUnicode_FromString(ALL_KERNELS[i].name);
        int bad = !text || PyList_Append(names, text) < 0;
        int wanted = bad ? -1 : name == Py_None ? 1 : PyObject_RichCompareBool(text, name, Py_EQ);
        Py_XDECREF(text);
        if (wanted < 0) Py_CLEAR(names);
        else if (wanted) chosen = &ALL_KERNELS[i], found = 1;
    }
    if (names && !found) {
        PyErr_Format(PyExc_ValueError, "%R is not one of %R", name, names);
        Py_CLEAR(names);
    }
    return names;
}

/* ---- module ---------------------------------------------------------------------------------- */

static PyMethodDef ACCUMULATOR_METHODS[] = {
    {"update", (PyCFunction)update, METH_VARARGS,
     "update(target, reference): take the next elements, contiguous buffers"},
    {"finish", (PyCFunction)finish, METH_NOARGS, "finish() -> tuple, as raw_metrics.RawMetrics"},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot ACCUMULATOR_SLOTS[] = {
    {Py_tp_doc, "Element metrics of a stream of chunks."},
    {Py_tp_new, accumulator_new},
    {Py_tp_dealloc, accumulator_dealloc},
    {Py_tp_methods, ACCUMULATOR_METHODS},
    {0, NULL},
};

static PyType_Spec ACCUMULATOR_SPEC = {
    "msprobe.numerics._elementwise.Accumulator", sizeof(Accumulator), 0, Py_TPFLAGS_DEFAULT,
    ACCUMULATOR_SLOTS,
};

static PyMethodDef METHODS[] = {
    {"use_isa", use_isa, METH_O,
     "use_isa(name | None) -> names of the usable instruction sets; None takes the best"},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, "_elementwise", "Element metrics in one pass.", -1, METHODS,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__elementwise(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
#endif
    PyObject *module = PyModule_Create(&MODULE), *kinds = PyDict_New();
    PyObject *type = PyType_FromSpec(&ACCUMULATOR_SPEC), *isas = NULL;
    if (!module || !kinds || !type || !(isas = use_isa(module, Py_None))) goto fail;
    Py_CLEAR(isas);
    for (int i = 0; i < KIND_COUNT; i++) {
        PyObject *code = PyLong_FromLong(i);
        int bad = !code || PyDict_SetItemString(kinds, KINDS[i].name, code) < 0;
        Py_XDECREF(code);
        if (bad) goto fail;
    }
    if (PyModule_AddObjectRef(module, "KINDS", kinds) < 0 ||
        PyModule_AddObjectRef(module, "Accumulator", type) < 0)
        goto fail;
    Py_DECREF(kinds);
    Py_DECREF(type);
    return module;
fail:
    Py_XDECREF(module);
    Py_XDECREF(kinds);
    Py_XDECREF(type);
    return NULL;
}
