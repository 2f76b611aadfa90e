/* SPDX-License-Identifier: Apache-2.0
 *
 * What one comparison has counted so far, and the arithmetic on it that needs no vectors.
 */

/* Numbers in a block: elements, or parts of half as many complex ones. The five arrays of a block
 * fit into the first-level cache. */
#define BLOCK 512
#define MAX_ITEM 16
#define LANES 16
#define FLOORS 3
/* Blocks whose largest number lies outside are scaled before they are squared. */
#define SAFE_LOW 0x1p-200
#define SAFE_HIGH 0x1p200
/* Up to here float64 holds integers and their differences. */
#define EXACT_INTEGER 0x1p52
/* Parts of complex numbers within can be squared, and their squares added, as they are. */
#define COMPLEX_HIGH 0x1p400
#define COMPLEX_LOW_SQUARE 0x1p-798
#define INFINITY_BITS 0x7ff0000000000000u

enum {
    K_F32, K_F64, K_F16, K_BF16, K_TABLE, K_I8, K_U8, K_I16, K_U16, K_I32, K_U32, K_I64, K_U64,
    K_BOOL, K_C64, K_C128, KIND_COUNT
};

static const struct {
    const char *name;
    size_t itemsize;
} KINDS[KIND_COUNT] = {
    [K_F32] = {"float32", 4}, [K_F64] = {"float64", 8}, [K_F16] = {"float16", 2},
    [K_BF16] = {"bfloat16", 2}, [K_TABLE] = {"table", 1}, [K_I8] = {"int8", 1},
    [K_U8] = {"uint8", 1}, [K_I16] = {"int16", 2}, [K_U16] = {"uint16", 2},
    [K_I32] = {"int32", 4}, [K_U32] = {"uint32", 4}, [K_I64] = {"int64", 8},
    [K_U64] = {"uint64", 8}, [K_BOOL] = {"bool", 1}, [K_C64] = {"complex64", 8},
    [K_C128] = {"complex128", 16},
};

/* A sum, (value + error) * 2**exponent: `error` holds the roundings made so far. */
struct total {
    double value, error;
    int exponent;
};

/* An element that is the worst so far; its error is error + low. */
struct candidate {
    double error, low;
    uint64_t index;
    char target[MAX_ITEM], reference[MAX_ITEM];
};

/* The largest errors; all that are greater than the threshold. */
struct top {
    size_t keep, held, capacity;
    double threshold;
    double *values;
    uint64_t random;
    int out_of_memory;
};

/* What `errors` of a block asks for and gives. */
struct limits {
    double rtol, atol, shift, floor[FLOORS];
};
struct errors {
    double largest, shifted, relative[FLOORS], sum, squares;
    uint64_t unequal, outside, within_1e3, within_5e3;
    int has_zero_reference; /* where the target is not 0 */
};
struct products {
    double target, reference, both;
    uint64_t opposite;
};

/* The type whose units are counted; `dropped` of float64's fraction bits it lacks. */
struct format {
    int fraction_bits, dropped;
    uint64_t half, lowest, magic_bits;
    double magic, smallest_normal;
};

struct side {
    int kind;
    size_t itemsize;
    double table[256]; /* values of the codes of an 8-bit type */
    uint64_t nan, positive, negative;
    struct total squares;
};

struct state {
    struct side target, reference;
    size_t block; /* elements in a block */
    int is_complex, is_long, is_integer, is_alike;
    struct limits limits;
    struct format format;
    uint64_t count, finite, unequal, mismatches, flips, within_1e3, within_5e3;
    int64_t first_nonfinite;
    int positions_differ, has_class, class;
    double shifted;
    uint64_t ulp;
    struct total products, error_squares, errors;
    struct candidate largest, relative[FLOORS];
    struct top top;
    size_t pending;
    _Alignas(64) char pending_target[BLOCK * 8], pending_reference[BLOCK * 8];
    /* The block at work: both sides, their error, and what it lacks to be exact. */
    _Alignas(64) double t[BLOCK], r[BLOCK], error[BLOCK], relative_error[BLOCK], size[BLOCK];
    _Alignas(64) double low[BLOCK];
};

/* ---- formats --------------------------------------------------------------------------------- */

static inline float float_from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Moves the fields into place and corrects the exponent bias (15 to 127). */
static inline float f16_to_float(uint16_t half)
{
    uint32_t bits = (uint32_t)(half & 0x7fff) << 13;
    float magnitude = float_from_bits(bits) * 0x1p112f;
    memcpy(&bits, &magnitude, sizeof bits);
    bits |= (half & 0x7c00) == 0x7c00 ? 0x7f800000u : 0;
    return float_from_bits(bits | (uint32_t)(half & 0x8000) << 16);
}

static double double_from_bits(uint64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static struct format format_of(int fraction_bits, int min_exponent)
{
    struct format f = {.fraction_bits = fraction_bits, .dropped = 52 - fraction_bits};
    if (fraction_bits < 0 || !f.dropped) return f;
    f.half = ((uint64_t)1 << (f.dropped - 1)) - 1;
    f.lowest = (uint64_t)(min_exponent + 1022) << fraction_bits;
    f.magic = ldexp(1.0, min_exponent - fraction_bits + 52);
    memcpy(&f.magic_bits, &f.magic, sizeof f.magic_bits);
    f.smallest_normal = ldexp(1.0, min_exponent);
    return f;
}

/* ---- sums ------------------------------------------------------------------------------------ */

static inline double sum_of_lanes(const double *lanes)
{
    double sum[LANES];
    memcpy(sum, lanes, sizeof sum);
    for (int width = LANES / 2; width; width /= 2)
        for (int i = 0; i < width; i++) sum[i] += sum[i + width];
    return sum[0];
}

/* Knuth's TwoSum: `sum` and what it lacks to be exact. */
static inline double two_sum(double a, double b, double *rest)
{
    double sum = a + b, part = sum - a;
    *rest = (a - (sum - part)) + (b - part);
    return sum;
}

static void add_to(struct total *total, double value, int exponent)
{
    double rest;
    if (value == 0) return;
    if (total->value == 0) {
        total->exponent = exponent;
    } else if (exponent > total->exponent) {
        total->value = ldexp(total->value, total->exponent - exponent);
        total->error = ldexp(total->error, total->exponent - exponent);
        total->exponent = exponent;
    } else if (exponent < total->exponent) {
        value = ldexp(value, exponent - total->exponent);
    }
    total->value = two_sum(total->value, value, &rest);
    total->error += rest;
}

/* ---- the largest errors ---------------------------------------------------------------------- */

static uint64_t next_random(uint64_t *state)
{
    /* xorshift64 (G. Marsaglia, 2003) */
    *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
    return *state;
}

/* Put the `k` largest of `n` numbers first (Hoare's selection with random pivots). */
static void select_largest(double *v, size_t n, size_t k, uint64_t *random)
{
    size_t low = 0, high = n; /* the border lies in [low, high) */
    if (k >= n) return;
    while (high - low > 1) {
        double pivot = v[low + next_random(random) % (high - low)];
        size_t i = low, j = high - 1;
        for (;;) {
            while (v[i] > pivot) i++;
            while (v[j] < pivot) j--;
            if (i >= j) break;
            double x = v[i];
            v[i++] = v[j], v[j--] = x;
        }
        /* v[low..i) >= pivot >= v[i..high) */
        size_t border = i == low ? i + 1 : i;
        if (k < border) high = border;
        else if (k > border) low = border;
        else return;
    }
}

static double smallest(const double *v, size_t n)
{
    double least = v[0];
    for (size_t i = 1; i < n; i++) least = v[i] < least ? v[i] : least;
    return least;
}

static void keep_errors(struct top *top, const double *error, size_t n, double largest)
{
    if (!(largest > top->threshold) || top->out_of_memory) return;
    if (top->held + n > top->capacity) {
        size_t capacity = 2 * top->capacity + 2 * BLOCK;
        double *values = realloc(top->values, capacity * sizeof *values);
        if (!values) {
            top->out_of_memory = 1;
            return;
        }
        top->values = values, top->capacity = capacity;
    }
    double *values = top->values, threshold = top->threshold;
    size_t held = top->held;
    for (size_t i = 0; i < n; i++) {
        values[held] = error[i];
        held += error[i] > threshold;
    }
    if (held > 2 * top->keep + BLOCK) {
        select_largest(values, held, top->keep, &top->random);
        held = top->keep;
        top->threshold = smallest(values, held);
    }
    top->held = held;
}

/* The kept number with `rank` larger ones; zeros were not kept. */
static double ranked(struct top *top, size_t rank)
{
    if (rank >= top->held) return 0;
    select_largest(top->values, top->held, rank + 1, &top->random);
    return smallest(top->values, rank + 1);
}

/* The 99.9 % quantile of `total` errors, as quantile.py has it; NaN when too few were kept. */
static double quantile(struct top *top, uint64_t total)
{
    double position = 0.999 * (double)(total - 1);
    uint64_t lower = (uint64_t)floor(position);
    double fraction = position - (double)lower;
    if (total - lower > top->keep) return NAN;
    size_t rank = (size_t)(total - 1 - lower);
    double low = ranked(top, rank), high = ranked(top, rank ? rank - 1 : 0);
    return fraction == 0 || low == high ? low : low + (high - low) * fraction;
}

/* ---- complex numbers ------------------------------------------------------------------------- */

/* What brings a complex number into the range where products of parts are numbers. */
static inline double part_scale(double real, double imaginary)
{
    real = fabs(real), imaginary = fabs(imaginary);
    double larger = real > imaginary ? real : imaginary;
    return larger > 0x1p400 ? 0x1p-600 : larger < 0x1p-400 ? 0x1p600 : 1;
}

static inline double complex_size(double real, double imaginary)
{
    double scale = part_scale(real, imaginary);
    real *= scale, imaginary *= scale;
    return sqrt(real * real + imaginary * imaginary) / scale;
}

/* Whether they point into opposite half-planes. */
static inline int are_opposite(const double *t, const double *r)
{
    double a = part_scale(t[0], t[1]), b = part_scale(r[0], r[1]);
    return (t[0] * a) * (r[0] * b) + (t[1] * a) * (r[1] * b) < 0;
}
