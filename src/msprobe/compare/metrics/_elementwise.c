/* SPDX-License-Identifier: Apache-2.0
 *
 * msprobe.compare.metrics._elementwise: two tensors compared element by element, in one pass.
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
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <fenv.h>
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if !defined(__GNUC__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "needs GCC or Clang and a little-endian machine; msprobe works without"
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "_elementwise_state.h"

/* Below this the work takes less time than releasing and taking the GIL is worth. */
#define GIL_RELEASE_BYTES (1 << 17)
/* Blocks whose largest number lies outside are scaled before they are squared. */
#define SAFE_LOW 0x1p-200
#define SAFE_HIGH 0x1p200
/* Up to here float64 holds integers and their differences. */
#define EXACT_INTEGER 0x1p52
#define INFINITY_BITS 0x7ff0000000000000u

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
    void (*errors)(const double *, const double *, double *, size_t, const struct limits *,
                   struct errors *);
    void (*products)(const double *, const double *, size_t, struct products *);
    double (*squares)(const double *, size_t);
    uint64_t (*ulps)(const double *, const double *, size_t, const struct format *);
};

#define KERNELS(isa)                                                                            \
    {#isa, widen_##isa, extent_##isa, differences_##isa, errors_##isa, products_##isa,         \
     squares_##isa, ulps_##isa}

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

static size_t whole_lanes(size_t n)
{
    return (n + LANES - 1) / LANES * LANES;
}

/* ---- NaN and infinities ---------------------------------------------------------------------- */

enum { FINITE, IS_NAN, POSITIVE, NEGATIVE };

/* An infinite complex number without NaN counts as positive: it has no sign. */
static int class_of(const struct side *side, const double *x)
{
    if (side->kind != K_C64 && side->kind != K_C128)
        return isnan(*x) ? IS_NAN : !isinf(*x) ? FINITE : *x > 0 ? POSITIVE : NEGATIVE;
    if (isnan(x[0]) || isnan(x[1])) return IS_NAN;
    return isinf(x[0]) || isinf(x[1]) ? POSITIVE : FINITE;
}

static void count_class(struct side *side, int class)
{
    side->nan += class == IS_NAN;
    side->positive += class == POSITIVE;
    side->negative += class == NEGATIVE;
}

static int agree(double a, double b)
{
    return a == b || (isnan(a) && isnan(b));
}

/* Count elements that are not finite on both sides, and put zeros there; how many there are. */
static size_t set_apart(struct state *s, size_t n)
{
    size_t parts = s->is_complex ? 2 : 1, found = 0;
    for (size_t i = 0; i < n; i++) {
        double *t = s->t + i * parts, *r = s->r + i * parts;
        int target = class_of(&s->target, t), reference = class_of(&s->reference, r);
        if (target == FINITE && reference == FINITE) continue;
        found++;
        count_class(&s->target, target);
        count_class(&s->reference, reference);
        if ((target == IS_NAN) != (reference == IS_NAN) ||
            (target >= POSITIVE) != (reference >= POSITIVE))
            s->positions_differ = 1;
        if (!agree(t[0], r[0]) || !agree(t[parts - 1], r[parts - 1])) {
            s->unequal++, s->mismatches++;
            if (s->first_nonfinite < 0) s->first_nonfinite = (int64_t)(s->count + i);
        }
        memset(t, 0, parts * sizeof *t);
        memset(r, 0, parts * sizeof *r);
    }
    return found;
}

/* ---- integers beyond float64 ----------------------------------------------------------------- */

/* The exact value as a sum of two float64. */
static double exact_value(const struct side *side, const void *raw, size_t i, double widened,
                          double *low)
{
    *low = 0;
    if (widened == 0) return 0; /* or set apart */
    if (side->kind == K_I64) {
        int64_t x;
        memcpy(&x, (const char *)raw + 8 * i, sizeof x);
        return two_sum((double)(x >> 32) * 0x1p32, (double)(x & 0xffffffff), low);
    }
    if (side->kind == K_U64) {
        uint64_t x;
        memcpy(&x, (const char *)raw + 8 * i, sizeof x);
        return two_sum((double)(x >> 32) * 0x1p32, (double)(x & 0xffffffff), low);
    }
    return widened;
}

static void long_differences(struct state *s, const void *target, const void *reference, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        double target_low, reference_low, rest;
        double t = exact_value(&s->target, target, i, s->t[i], &target_low);
        double r = exact_value(&s->reference, reference, i, s->r[i], &reference_low);
        double high = two_sum(t, -r, &rest);
        high = two_sum(high, rest + (target_low - reference_low), &rest);
        s->error[i] = fabs(high);
        s->low[i] = !s->is_integer ? 0 : high < 0 ? -rest : rest;
    }
    memset(s->error + n, 0, (whole_lanes(n) - n) * sizeof *s->error);
}

/* ---- sums beyond the range of float64's squares ---------------------------------------------- */

static int is_safe(double largest)
{
    return largest == 0 || (largest >= SAFE_LOW && largest <= SAFE_HIGH);
}

static int exponent_of(double largest)
{
    int exponent = 0;
    if (!is_safe(largest)) frexp(largest, &exponent);
    return exponent;
}

static void scaled_products(struct state *s, size_t n, double target_max, double reference_max)
{
    int te = exponent_of(target_max), re = exponent_of(reference_max);
    struct total tt = {0}, rr = {0}, tr = {0};
    for (size_t i = 0; i < n; i++) {
        double t = ldexp(s->t[i], -te), r = ldexp(s->r[i], -re);
        add_to(&tt, t * t, 0), add_to(&rr, r * r, 0), add_to(&tr, t * r, 0);
    }
    add_to(&s->target.squares, tt.value + tt.error, 2 * te);
    add_to(&s->reference.squares, rr.value + rr.error, 2 * re);
    add_to(&s->products, tr.value + tr.error, te + re);
}

/* The difference of two numbers can leave the range that both are in. */
static double smaller_error(const struct state *s, size_t i)
{
    if (!s->is_complex) return fabs(s->t[i] * 0x1p-600 - s->r[i] * 0x1p-600);
    return complex_size(s->t[2 * i] * 0x1p-600 - s->r[2 * i] * 0x1p-600,
                        s->t[2 * i + 1] * 0x1p-600 - s->r[2 * i + 1] * 0x1p-600);
}

static void scaled_errors(struct state *s, size_t n, double largest)
{
    struct total sum = {0}, squares = {0};
    int exponent, overflows = isinf(largest);
    if (overflows) {
        largest = 0;
        for (size_t i = 0; i < n; i++) largest = fmax(largest, smaller_error(s, i));
    }
    exponent = exponent_of(largest);
    for (size_t i = 0; i < n; i++) {
        double x = ldexp(overflows ? smaller_error(s, i) : s->error[i], -exponent);
        add_to(&sum, x, 0), add_to(&squares, x * x, 0);
    }
    exponent += overflows ? 600 : 0;
    add_to(&s->errors, sum.value + sum.error, exponent);
    add_to(&s->error_squares, squares.value + squares.error, 2 * exponent);
}

/* ---- the worst elements ---------------------------------------------------------------------- */

static void remember(struct state *s, struct candidate *best, size_t i, const char *target,
                     const char *reference)
{
    best->index = s->count + i;
    memcpy(best->target, target + i * s->target.itemsize, s->target.itemsize);
    memcpy(best->reference, reference + i * s->reference.itemsize, s->reference.itemsize);
}

static void note_largest(struct state *s, const char *target, const char *reference, size_t n,
                         double largest, int is_long)
{
    struct candidate *best = &s->largest;
    size_t found = n;
    double low = 0;
    if (largest < best->error || largest == 0) return;
    for (size_t i = 0; i < n; i++) {
        if (s->error[i] != largest) continue;
        if (found == n || (is_long && s->low[i] > low)) found = i, low = is_long ? s->low[i] : 0;
        if (!is_long) break;
    }
    if (largest > best->error || low > best->low) {
        best->error = largest, best->low = low;
        remember(s, best, found, target, reference);
    }
}

/* With 16**k <= largest |reference| < 16**(k+1), references below 16**(k-2) are negligible. As k is
 * known at the end only, the worst is kept for each of the three floors that can still become the
 * last one. */
static void raise_class(struct state *s, double reference_max)
{
    int exponent, class;
    if (reference_max == 0) return;
    frexp(reference_max, &exponent);
    class = (exponent - 1) >> 2; /* rounds down */
    if (s->has_class && class <= s->class) return;
    for (int i = 0; i < FLOORS; i++) {
        int from = s->has_class && class - s->class < FLOORS ? i + class - s->class : FLOORS;
        s->relative[i] = from < FLOORS ? s->relative[from] : (struct candidate){0};
        double floor = ldexp(1, 4 * (class - 2 + i));
        s->limits.floor[i] = floor > 0 ? floor : DBL_TRUE_MIN;
    }
    s->has_class = 1, s->class = class;
}

static void note_relative(struct state *s, const char *target, const char *reference,
                          const double *size, const struct errors *found)
{
    for (int number = 0; number < FLOORS; number++) {
        struct candidate *best = &s->relative[number];
        double error = found->relative[number];
        size_t i = 0;
        if (!(error > best->error)) continue;
        while (s->relative_error[i] != error || fabs(size[i]) < s->limits.floor[number]) i++;
        best->error = error;
        remember(s, best, i, target, reference);
    }
}

/* ---- a block --------------------------------------------------------------------------------- */

/* Widen one side; the rest of the last group of lanes is zero. */
static void widen_side(const struct state *s, const struct side *side, const void *raw, double *out,
                       size_t n)
{
    size_t parts = s->is_complex ? 2 * n : n;
    if (s->is_complex && side->kind != K_C64 && side->kind != K_C128) {
        chosen->widen(side->kind, side->table, raw, out, n);
        for (size_t i = n; i--;) out[2 * i] = out[i], out[2 * i + 1] = 0;
    } else {
        chosen->widen(side->kind, side->table, raw, out, parts);
    }
    memset(out + parts, 0, (whole_lanes(parts) - parts) * sizeof *out);
}

/* Both sides are the same bytes: only what is known of each side alone is left to count. */
static void take_equal(struct state *s, const char *raw, size_t n)
{
    size_t parts = whole_lanes(s->is_complex ? 2 * n : n);
    widen_side(s, &s->target, raw, s->t, n);
    uint64_t extent = chosen->extent(s->t, parts);
    size_t apart = 0;
    if (extent >= INFINITY_BITS) {
        memcpy(s->r, s->t, parts * sizeof *s->t);
        apart = set_apart(s, n);
        extent = chosen->extent(s->t, parts);
    }
    double largest = double_from_bits(extent);
    if (is_safe(largest)) {
        double squares = chosen->squares(s->t, parts);
        add_to(&s->target.squares, squares, 0);
        add_to(&s->reference.squares, squares, 0);
        add_to(&s->products, squares, 0);
    } else {
        memcpy(s->r, s->t, parts * sizeof *s->t);
        scaled_products(s, parts, largest, largest);
    }
    if (s->is_complex)
        for (size_t i = 0; i < n; i++) {
            double size = complex_size(s->t[2 * i], s->t[2 * i + 1]);
            largest = i == 0 || size > largest ? size : largest;
        }
    raise_class(s, largest);
    s->finite += n - apart;
    s->within_1e3 += n, s->within_5e3 += n;
    s->count += n;
}

static void complex_differences(struct state *s, size_t n, double *reference_max)
{
    *reference_max = 0;
    for (size_t i = 0; i < n; i++) {
        const double *t = s->t + 2 * i, *r = s->r + 2 * i;
        s->error[i] = complex_size(t[0] - r[0], t[1] - r[1]);
        s->size[i] = complex_size(r[0], r[1]);
        if (s->size[i] > *reference_max) *reference_max = s->size[i];
        s->flips += (uint64_t)are_opposite(t, r);
    }
    size_t padding = (whole_lanes(n) - n) * sizeof(double);
    memset(s->error + n, 0, padding);
    memset(s->size + n, 0, padding);
}

static void take_ulps(struct state *s, size_t parts, const struct errors *errors)
{
    if (s->format.fraction_bits < 0 || errors->largest == 0) return;
    /* Numbers less than half of the reference away lie in its binade or the next: the relative
     * error bounds their distance. Most blocks need not be counted. */
    if (errors->shifted < 0.5 && !errors->has_zero_reference && !s->is_complex &&
        ldexp(errors->shifted, s->format.fraction_bits + 2) + 2 <= (double)s->ulp)
        return;
    uint64_t ulp = chosen->ulps(s->t, s->r, parts, &s->format);
    if (ulp > s->ulp) s->ulp = ulp;
}

static void take_block(struct state *s, const char *target, const char *reference, size_t n)
{
    if (s->is_alike && !memcmp(target, reference, n * s->target.itemsize)) {
        take_equal(s, target, n);
        return;
    }
    size_t lanes = whole_lanes(n), parts = whole_lanes(s->is_complex ? 2 * n : n);
    widen_side(s, &s->target, target, s->t, n);
    widen_side(s, &s->reference, reference, s->r, n);
    uint64_t target_extent = chosen->extent(s->t, parts);
    uint64_t reference_extent = chosen->extent(s->r, parts);
    s->finite += n;
    if (target_extent >= INFINITY_BITS || reference_extent >= INFINITY_BITS) {
        s->finite -= set_apart(s, n);
        target_extent = chosen->extent(s->t, parts);
        reference_extent = chosen->extent(s->r, parts);
    }
    double target_max = double_from_bits(target_extent);
    double reference_max = double_from_bits(reference_extent), largest_size = reference_max;
    int is_long = s->is_long && (target_max > EXACT_INTEGER || reference_max > EXACT_INTEGER);
    if (s->is_complex) complex_differences(s, n, &largest_size);
    else if (is_long) long_differences(s, target, reference, n);
    else chosen->differences(s->t, s->r, s->error, lanes);
    raise_class(s, largest_size);

    const double *size = s->is_complex ? s->size : s->r;
    struct errors errors;
    chosen->errors(s->error, size, s->relative_error, lanes, &s->limits, &errors);
    s->unequal += errors.unequal;
    s->mismatches += errors.outside;
    s->within_1e3 += errors.within_1e3 - (lanes - n); /* without the padding */
    s->within_5e3 += errors.within_5e3 - (lanes - n);
    if (errors.shifted > s->shifted) s->shifted = errors.shifted;
    note_largest(s, target, reference, n, errors.largest, is_long);
    note_relative(s, target, reference, size, &errors);
    keep_errors(&s->top, s->error, n, errors.largest);
    if (is_safe(errors.largest)) {
        add_to(&s->errors, errors.sum, 0);
        add_to(&s->error_squares, errors.squares, 0);
    } else {
        scaled_errors(s, n, errors.largest);
    }

    struct products products;
    chosen->products(s->t, s->r, parts, &products);
    if (!s->is_complex) s->flips += products.opposite;
    if (is_safe(target_max) && is_safe(reference_max)) {
        add_to(&s->target.squares, products.target, 0);
        add_to(&s->reference.squares, products.reference, 0);
        add_to(&s->products, products.both, 0);
    } else {
        scaled_products(s, parts, target_max, reference_max);
    }
    take_ulps(s, parts, &errors);
    s->count += n;
}

static void take_pending(struct state *s)
{
    size_t n = s->pending;
    s->pending = 0;
    if (n) take_block(s, s->pending_target, s->pending_reference, n);
}

static void take(struct state *s, const char *target, const char *reference, size_t n)
{
    while (n) {
        size_t step = s->block - s->pending;
        if (step > n) step = n;
        if (step == s->block) {
            take_block(s, target, reference, step);
        } else {
            memcpy(s->pending_target + s->pending * s->target.itemsize, target,
                   step * s->target.itemsize);
            memcpy(s->pending_reference + s->pending * s->reference.itemsize, reference,
                   step * s->reference.itemsize);
            s->pending += step;
            if (s->pending == s->block) take_pending(s);
        }
        target += step * s->target.itemsize, reference += step * s->reference.itemsize;
        n -= step;
    }
}

/* Run `take` with the default floating-point environment: torch.set_flush_denormal(True) and some
 * libraries make the thread treat subnormal numbers as zero. */
static void take_ieee(struct state *s, const char *target, const char *reference, size_t n)
{
#if defined(__x86_64__)
    unsigned before = _mm_getcsr();
    _mm_setcsr(0x1f80);
#else
    fenv_t before;
    fegetenv(&before);
    fesetenv(FE_DFL_ENV);
#endif
    if (n) take(s, target, reference, n);
    else take_pending(s);
#if defined(__x86_64__)
    _mm_setcsr(before);
#else
    fesetenv(&before);
#endif
}

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
    self = (Accumulator *)type->tp_alloc(type, 0);
    if (self) self->state = s, s = NULL;
done:
    free(s);
    PyBuffer_Release(&target_table);
    PyBuffer_Release(&reference_table);
    return (PyObject *)self;
}

static void accumulator_dealloc(Accumulator *self)
{
    PyTypeObject *type = Py_TYPE(self);
    free(self->state->top.values);
    free(self->state);
    type->tp_free(self);
    Py_DECREF(type);
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
    "msprobe.compare.metrics._elementwise.Accumulator", sizeof(Accumulator), 0, Py_TPFLAGS_DEFAULT,
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
