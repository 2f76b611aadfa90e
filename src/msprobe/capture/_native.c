/* SPDX-License-Identifier: Apache-2.0
 *
 * msprobe.capture._native: one pass over a buffer gives maximum, minimum, mean, L2 norm and two
 * projections.
 *
 *   stats(kind, address, count)                  contiguous elements
 *   stats_strided(kind, address, shape, strides, size_bytes)
 *                                                strides in elements, `size_bytes` may be read
 *     -> (max, min, mean, norm, None | (nan, +inf, -inf, finite max, finite min),
 *         None | (projection, projection))
 *   memory(address, size_bytes)  a read-only view of foreign memory
 *   stack_key(frame) a 64-bit key of the Python stack that ends in a frame
 *   deliver_to(target)  what is done with values that a compiled graph hands over: None drops them,
 *                    True keeps their statistics, a function is called with (number, addresses)
 *   take_delivered() -> [(number, seconds, [statistics, ...]), ...], kept so far, in their order
 *   use_threads(number)  how many threads read large buffers
 *   use_isa(name)    choose the instruction set (tests); returns the names of those that work here
 *   KINDS            element type name -> kind
 *
 * The meaning of the numbers (NaN, infinities, empty, exactness): capture/statistics.py.
 * Nothing here checks the address: the caller vouches for it.
 */
#ifdef Py_LIMITED_API
#include <dlfcn.h>
#endif
#include <fenv.h>

#include "_limited_api.h"
#include "_native_api.h"

#if !defined(__GNUC__) || !defined(__SIZEOF_INT128__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "needs GCC or Clang, 128-bit integers and a little-endian machine; msprobe works without"
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* What two tensors differ by, see `difference`. */
struct difference {
    double squares, moved, greatest;
};
#define DIFFERENCE_LANES 32

#include "_native_crc.h"

/* Small enough for the first-level cache, where the second loop over a block finds it again. */
#define BLOCK_BYTES (16 * SIGN_BLOCK)
/* 256-bin counting has a fixed cost per block, so its blocks are larger. */
#define COUNT_BLOCK_BYTES (16 * BLOCK_BYTES)
/* Below this the work takes less time than releasing and taking the GIL is worth. */
#define GIL_RELEASE_BYTES (1 << 20)
#define MAX_DIMS MSPROBE_MAX_DIMS
#define LANES 16

/* ---- signs of the projections --------------------------------------------------------------- */

#define PROJECTIONS 2
/* A block has SIGN_REPEATS times the same SIGN_PERIOD signs. An odd number of groups, so that
 * rows whose length is a power of two never lie whole repeats apart. */
#define SIGN_GROUPS 9
#define SIGN_REPEATS 7
#define SIGN_PERIOD (SIGN_GROUPS * LANES)
#define SIGN_BLOCK (SIGN_REPEATS * SIGN_PERIOD)
#define SIGN_SEED 2035
#define SIGN_WORDS 11

/* +1 and -1, from the bits of the first random numbers. */
static _Alignas(64) double SIGNS[64 * SIGN_WORDS];

/* The signs of one repeat, for each projection. */
struct signs {
    const double *of[PROJECTIONS];
};

/* The n-th output of the generator splitmix64 (public domain, S. Vigna). */
static inline uint64_t random_at(uint64_t seed, uint64_t n)
{
    uint64_t z = seed + (n + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static void fill_signs(void)
{
    for (size_t i = 0; i < 64 * SIGN_WORDS; i++)
        SIGNS[i] = random_at(SIGN_SEED, i / 64) >> (i % 64) & 1 ? 1.0 : -1.0;
}

/* The signs of the block of an element: a place in the table that is drawn for each block. The rule
 * is part of the format: docs/metrics.md. */
static inline struct signs signs_from(size_t index)
{
    uint64_t random = random_at(SIGN_SEED, SIGN_WORDS + index / SIGN_BLOCK);
    return (struct signs){{SIGNS + (random >> 55), SIGNS + (random >> 46 & 511)}};
}

/* ---- sums ----------------------------------------------------------------------------------- */

/* A sum and the rounding errors made so far: value + error has about twice float64's precision. */
struct exact {
    double value, error;
};

struct projections {
    struct exact of[PROJECTIONS];
    size_t index; /* of the next element */
};

struct total {
    int64_t max, min; /* keys for float64, values for integers, flipped for uint64 */
    float float_max, float_min; /* of narrower floats, NaN left out */
    struct exact sum, sumsq;
    __int128 int_sum;
    unsigned __int128 int_sumsq;
    struct projections projections;
    struct crc *crc; /* NULL but for kernels that continue a checksum, too */
};

static const struct total EMPTY_TOTAL = {
    .max = INT64_MIN, .min = INT64_MAX, .float_max = -INFINITY, .float_min = INFINITY};

static inline void exact_add(struct exact *total, double x)
{
    double next = total->value + x;
    double part = next - total->value;
    total->error += (total->value - (next - part)) + (x - part);
    total->value = next;
}

static void add_lanes(struct exact *total, const double *lanes)
{
    for (int i = 0; i < LANES; i++) exact_add(total, lanes[i]);
}

static double sum_of_lanes(const double *lanes)
{
    double half[LANES];
    memcpy(half, lanes, sizeof half);
    for (int left = LANES / 2; left; left /= 2)
        for (int i = 0; i < left; i++) half[i] += half[i + left];
    return half[0];
}

static double exact_value(const struct exact *total)
{
    return total->value + total->error;
}

/* ---- element formats ------------------------------------------------------------------------ */

static float float_from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static float bf16_to_float(uint16_t bits)
{
    return float_from_bits((uint32_t)bits << 16);
}

/* Finite values only: moves the fields into place and corrects the exponent bias (15 to 127). */
static float f16_to_float(uint16_t bits)
{
    float magnitude = float_from_bits((uint32_t)(bits & 0x7fff) << 13) * 0x1p112f;
    return bits & 0x8000 ? -magnitude : magnitude;
}

static double f16_value(uint16_t bits)
{
    if ((bits & 0x7c00) != 0x7c00) return f16_to_float(bits);
    if (bits & 0x03ff) return NAN;
    return bits & 0x8000 ? -INFINITY : INFINITY;
}

/* ---- block kernels, once for each instruction set ------------------------------------------- */

#define ISA(name) name##_generic
#define TARGET
#define HAS_AVX 0
/* Two 16-byte registers at a time: with one, halves of a register hold too few 16-bit numbers. */
#define REGISTER_BYTES 32
#include "_native_kernels.h"
#undef ISA
#undef TARGET
#undef REGISTER_BYTES
#undef HAS_AVX

#if defined(__x86_64__)
#define HAS_AVX 1
#define ISA(name) name##_avx2
#define TARGET __attribute__((target("avx2,f16c,fma")))
#define REGISTER_BYTES 32
#include "_native_kernels.h"
#undef ISA
#undef TARGET
#undef REGISTER_BYTES

#define ISA(name) name##_avx512
#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,f16c,fma")))
#define REGISTER_BYTES 64
#include "_native_kernels.h"
#undef ISA
#undef TARGET
#undef REGISTER_BYTES
#endif

typedef void (*block_fn)(const void *block, size_t n, struct total *t);
typedef void (*fold_fn)(const void *block, size_t n, double *sums);
typedef size_t (*below_fn)(const void *block, size_t n, uint64_t limit);
typedef uint64_t (*greatest_fn)(const void *block, size_t n);
typedef void (*difference_fn)(const void *block, const void *other, size_t n,
                              struct difference *found);

struct kernels {
    const char *name;
    block_fn f16, bf16, f32, f64, i16, u16, i32, u32, i64, u64, boolean;
    block_fn norm_f16, norm_bf16, norm_f32; /* neither extremes nor sum */
    block_fn checked_f32; /* that, and the checksum of the whole sign blocks; NULL for none */
    fold_fn fold_i8, fold_u8, fold_i16, fold_u16, fold_i32, fold_u32, fold_i64, fold_u64, fold_f32,
        fold_f64;
    void (*project)(double *sums, size_t n, struct projections *projections);
    below_fn below_16, below_32, below_64;
    greatest_fn greatest_16, greatest_32, greatest_64;
    difference_fn difference_32, difference_64;
};

#define KERNELS(isa, checked_f32)                                                               \
    {#isa, block_f16_##isa, block_bf16_##isa, block_f32_##isa, block_f64_##isa, block_i16_##isa, \
     block_u16_##isa, block_i32_##isa, block_u32_##isa, block_i64_##isa, block_u64_##isa,       \
     block_bool_##isa, norm_f16_##isa, norm_bf16_##isa, norm_f32_##isa, checked_f32,            \
     fold_i8_##isa, fold_u8_##isa, fold_i16_##isa, fold_u16_##isa, fold_i32_##isa,              \
     fold_u32_##isa, fold_i64_##isa, fold_u64_##isa, fold_f32_##isa, fold_f64_##isa,            \
     project_##isa, below_16_##isa, below_32_##isa, below_64_##isa, greatest_16_##isa,          \
     greatest_32_##isa, greatest_64_##isa, difference_32_##isa, difference_64_##isa}

/* Ascending: the last one that works here is taken. */
static const struct kernels ALL_KERNELS[] = {
    KERNELS(generic, NULL),
#if defined(__x86_64__)
    KERNELS(avx2, NULL),
    KERNELS(avx512, checked_f32_avx512),
#endif
};

static struct kernels chosen;

static int isa_works(size_t index)
{
#if defined(__x86_64__)
    if (index == 1) /* F16C is older than these */
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (index == 2)
        return isa_works(1) && __builtin_cpu_supports("avx512f") &&
               __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vl");
#endif
    return index == 0;
}

/* ---- kinds ---------------------------------------------------------------------------------- */

enum category { FLOAT16, FLOAT32, FLOAT64, INTEGER, UINT64, BOOLEAN, COUNTED, COMPLEX };

struct kind {
    const char *name;
    size_t itemsize;
    enum category category;
    int64_t inf_key; /* key of +Inf; that of -Inf is its complement */
    /* Into struct kernels; `fold` is 0 where the elements become doubles first. */
    size_t kernel_offset, fold_offset;
};

#define AT(member) offsetof(struct kernels, member)
enum {
    K_F16, K_BF16, K_F32, K_F64, K_I16, K_U16, K_I32, K_U32, K_I64, K_U64, K_BOOL, K_I8, K_U8,
    K_E4M3FN, K_E4M3FNUZ, K_E5M2, K_E5M2FNUZ, K_E8M0FNU, K_E2M1X2, K_C32, K_C64, K_C128, KIND_COUNT
};

static const struct kind KINDS[KIND_COUNT] = {
    [K_F16] = {"float16", 2, FLOAT16, 0x7c00, AT(f16), 0},
    [K_BF16] = {"bfloat16", 2, FLOAT16, 0x7f80, AT(bf16), 0},
    [K_F32] = {"float32", 4, FLOAT32, 0x7f800000, AT(f32), AT(fold_f32)},
    [K_F64] = {"float64", 8, FLOAT64, 0x7ff0000000000000, AT(f64), AT(fold_f64)},
    [K_I16] = {"int16", 2, INTEGER, 0, AT(i16), AT(fold_i16)},
    [K_U16] = {"uint16", 2, INTEGER, 0, AT(u16), AT(fold_u16)},
    [K_I32] = {"int32", 4, INTEGER, 0, AT(i32), AT(fold_i32)},
    [K_U32] = {"uint32", 4, INTEGER, 0, AT(u32), AT(fold_u32)},
    [K_I64] = {"int64", 8, INTEGER, 0, AT(i64), AT(fold_i64)},
    [K_U64] = {"uint64", 8, UINT64, 0, AT(u64), AT(fold_u64)},
    [K_BOOL] = {"bool", 1, BOOLEAN, 0, AT(boolean), AT(fold_u8)},
    [K_I8] = {"int8", 1, COUNTED, 0, 0, AT(fold_i8)},
    [K_U8] = {"uint8", 1, COUNTED, 0, 0, AT(fold_u8)},
    [K_E4M3FN] = {"float8_e4m3fn", 1, COUNTED, 0, 0, 0},
    [K_E4M3FNUZ] = {"float8_e4m3fnuz", 1, COUNTED, 0, 0, 0},
    [K_E5M2] = {"float8_e5m2", 1, COUNTED, 0, 0, 0},
    [K_E5M2FNUZ] = {"float8_e5m2fnuz", 1, COUNTED, 0, 0, 0},
    [K_E8M0FNU] = {"float8_e8m0fnu", 1, COUNTED, 0, 0, 0},
    [K_E2M1X2] = {"float4_e2m1fn_x2", 1, COUNTED, 0, 0, 0},
    [K_C32] = {"complex32", 4, COMPLEX, 0x7ff0000000000000, AT(f64), 0},
    [K_C64] = {"complex64", 8, COMPLEX, 0x7ff0000000000000, AT(f64), AT(fold_f32)},
    [K_C128] = {"complex128", 16, COMPLEX, 0x7ff0000000000000, AT(f64), AT(fold_f64)},
};

static block_fn kernel_of(const struct kind *kind)
{
    block_fn fn;
    memcpy(&fn, (const char *)&chosen + kind->kernel_offset, sizeof fn);
    return fn;
}

/* Of a narrow float. */
static block_fn norm_kernel_of(const struct kind *kind)
{
    if (kind->category == FLOAT32) return chosen.norm_f32;
    return kind == &KINDS[K_F16] ? chosen.norm_f16 : chosen.norm_bf16;
}

static fold_fn fold_of(const struct kind *kind)
{
    fold_fn fn;
    memcpy(&fn, (const char *)&chosen + kind->fold_offset, sizeof fn);
    return fn;
}

/* The value of one code of the 8-bit formats (Open Compute OFP8 and MX; "fnuz": no -0, one NaN). */
static double small_float(int kind, unsigned code)
{
    static const float E2M1[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    int bits = 3, bias = 7;
    switch (kind) {
    case K_E5M2: return f16_value((uint16_t)(code << 8));
    case K_E8M0FNU: return code == 255 ? NAN : ldexp(1.0, (int)code - 127);
    case K_E2M1X2: return code & 8 ? -E2M1[code & 7] : E2M1[code & 7];
    case K_E4M3FN:
        if ((code & 0x7f) == 0x7f) return NAN;
        break;
    case K_E4M3FNUZ: bias = 8; break;
    default: bits = 2, bias = 16; /* e5m2fnuz */
    }
    if (kind != K_E4M3FN && code == 0x80) return NAN;
    unsigned mantissa = code & ((1u << bits) - 1), exponent = (code & 0x7f) >> bits;
    double magnitude = exponent ? ldexp(mantissa + (1u << bits), (int)exponent - bias - bits)
                                : ldexp(mantissa, 1 - bias - bits);
    return code & 0x80 ? -magnitude : magnitude;
}

/* The number behind a key; zeros come out as +0. */
static double value_of_key(const struct kind *kind, int64_t key)
{
    double x;
    if (kind->category == FLOAT16) {
        uint16_t bits = (uint16_t)(key ^ ((key >> 63) & 0x7fff));
        x = kind == &KINDS[K_F16] ? f16_value(bits) : bf16_to_float(bits);
    } else if (kind->category == FLOAT32) {
        x = float_from_bits((uint32_t)(key ^ ((key >> 63) & 0x7fffffff)));
    } else {
        int64_t bits = key ^ ((key >> 63) & INT64_MAX);
        memcpy(&x, &bits, sizeof x);
    }
    return x + 0.0;
}

/* ---- walking a buffer block by block -------------------------------------------------------- */

struct layout {
    const char *start;
    size_t itemsize;
    int ndim;
    Py_ssize_t size[MAX_DIMS], stride[MAX_DIMS]; /* largest stride first, in elements, > 0 */
    double repeats; /* how often each element counts: product of the sizes with stride 0 */
    int in_any_order; /* whether long rows may be read where they lie */
    struct magnitudes *magnitudes; /* counted on the way; NULL for nothing */
    struct crc *crc; /* of dense elements, continued on the first walk; NULL for nothing */
    int is_print; /* whether neither extremes nor mean are asked for */
};

/* Of `n` elements one behind the other. */
static void dense_layout(struct layout *layout, int kind, const char *start, Py_ssize_t n)
{
    layout->start = start;
    layout->itemsize = KINDS[kind].itemsize;
    layout->ndim = 1;
    layout->size[0] = n;
    layout->stride[0] = 1;
    layout->repeats = 1.0;
    layout->in_any_order = 0;
    layout->magnitudes = NULL;
    layout->crc = NULL;
    layout->is_print = 0;
}

/* Called with a block of whole elements. */
typedef void (*visit_fn)(const void *block, size_t n, void *state);

/* Visit a block, and continue the checksum while it is near. */
struct checked {
    visit_fn visit;
    void *state;
    struct crc *crc;
    size_t itemsize;
};

static void checked_block(const void *block, size_t n, void *state)
{
    const struct checked *checked = state;
    checked->visit(block, n, checked->state);
    crc_add(checked->crc, block, n * checked->itemsize);
}

static void visit_dense(const char *start, size_t n, size_t itemsize, size_t block_bytes,
                        visit_fn visit, void *state)
{
    size_t step = block_bytes / itemsize;
    for (; n > step; n -= step, start += block_bytes) visit(start, step, state);
    visit(start, n, state);
}

static void gather(char *out, const char *in, size_t n, size_t itemsize, Py_ssize_t stride)
{
#define GATHER(TYPE)                                                                            \
    for (size_t i = 0; i < n; i++) ((TYPE *)out)[i] = *(const TYPE *)(in + (Py_ssize_t)i * stride)
    stride *= (Py_ssize_t)itemsize;
    if (stride == (Py_ssize_t)itemsize) memcpy(out, in, n * itemsize);
    else if (itemsize == 1) GATHER(uint8_t);
    else if (itemsize == 2) GATHER(uint16_t);
    else if (itemsize == 4) GATHER(uint32_t);
    else if (itemsize == 8) GATHER(uint64_t);
    else
        for (size_t i = 0; i < n; i++)
            memcpy(out + i * itemsize, in + (Py_ssize_t)i * stride, itemsize);
#undef GATHER
}

/* Copy a view piece by piece into one small buffer. Where the order matters the blocks are full, as
 * those of a dense tensor are; otherwise long rows are read where they lie. */
static void visit_strided(const struct layout *layout, size_t block_bytes, visit_fn visit,
                          void *state)
{
    _Alignas(64) char buffer[BLOCK_BYTES];
    size_t capacity = BLOCK_BYTES / layout->itemsize, filled = 0;
    Py_ssize_t index[MAX_DIMS] = {0};
    int inner = layout->ndim - 1, dim;
    const char *row = layout->start;
    do {
        size_t left = (size_t)layout->size[inner];
        if (layout->stride[inner] == 1 && left >= capacity / 4 && layout->in_any_order) {
            visit_dense(row, left, layout->itemsize, block_bytes, visit, state);
        } else {
            const char *from = row;
            while (left) {
                size_t n = left < capacity - filled ? left : capacity - filled;
                gather(buffer + filled * layout->itemsize, from, n, layout->itemsize,
                       layout->stride[inner]);
                filled += n, left -= n;
                from += (Py_ssize_t)(n * layout->itemsize) * layout->stride[inner];
                if (filled == capacity) visit(buffer, filled, state), filled = 0;
            }
        }
        for (dim = inner - 1; dim >= 0; dim--) {
            row += layout->stride[dim] * (Py_ssize_t)layout->itemsize;
            if (++index[dim] < layout->size[dim]) break;
            row -= layout->stride[dim] * (Py_ssize_t)layout->itemsize * layout->size[dim];
            index[dim] = 0;
        }
    } while (dim >= 0);
    if (filled) visit(buffer, filled, state);
}

static void walk(const struct layout *layout, size_t block_bytes, visit_fn visit, void *state)
{
    struct checked checked = {visit, state, layout->crc, layout->itemsize};
    if (layout->crc && !layout->crc->is_complete) {
        visit = checked_block, state = &checked;
        layout->crc->is_complete = 1;
    }
    if (layout->ndim == 1 && layout->stride[0] == 1)
        visit_dense(layout->start, (size_t)layout->size[0], layout->itemsize, block_bytes, visit,
                    state);
    else
        visit_strided(layout, block_bytes, visit, state);
}

/* ---- processing of each block --------------------------------------------------------------- */

/* How many elements are below a threshold, and how large they are. */
struct magnitudes {
    double threshold; /* negative to count nothing */
    double *bins;     /* MSPROBE_BINS counts, or NULL */
    below_fn below;   /* NULL where the elements must be widened */
    uint64_t limit;   /* the bits of the threshold in the type */
    double count;
};

struct reduction {
    const struct kind *kind;
    block_fn block;
    struct total total;
    struct magnitudes *magnitudes; /* counted while the block is near; NULL for nothing */
};

static void reduce_block(const void *block, size_t n, void *state)
{
    struct reduction *reduction = state;
    reduction->block(block, n, &reduction->total);
    struct crc *crc = reduction->total.crc;
    size_t rest = n % SIGN_BLOCK;
    if (crc && rest)
        crc_add(crc, (const char *)block + (n - rest) * reduction->kind->itemsize,
                rest * reduction->kind->itemsize);
    struct magnitudes *magnitudes = reduction->magnitudes;
    if (magnitudes) magnitudes->count += (double)magnitudes->below(block, n, magnitudes->limit);
}

#include "_native_parts.h"

/* Turn complex numbers into their absolute values and hand these on as float64. */
struct absolutes {
    const struct kind *kind;
    visit_fn visit;
    void *state;
};

static void absolute_block(const void *block, size_t n, void *state)
{
    const struct absolutes *absolutes = state;
    double values[BLOCK_BYTES / 4]; /* the smallest complex number has 4 bytes */
    if (absolutes->kind == &KINDS[K_C128]) {
        const double *p = block;
        for (size_t i = 0; i < n; i++) values[i] = hypot(p[2 * i], p[2 * i + 1]);
    } else if (absolutes->kind == &KINDS[K_C64]) {
        /* In float64 the squares are exact and cannot overflow. */
        const float *p = block;
        for (size_t i = 0; i < n; i++) {
            double re = p[2 * i], im = p[2 * i + 1];
            values[i] = sqrt(re * re + im * im);
        }
        for (size_t i = 0; i < n; i++) /* an infinite part wins over NaN */
            if (isnan(values[i])) values[i] = hypot((double)p[2 * i], (double)p[2 * i + 1]);
    } else {
        const uint16_t *p = block;
        for (size_t i = 0; i < n; i++)
            values[i] = hypot(f16_value(p[2 * i]), f16_value(p[2 * i + 1]));
    }
    absolutes->visit(values, n, absolutes->state);
}

static void walk_floats(const struct layout *layout, const struct kind *kind, visit_fn visit,
                        void *state)
{
    struct absolutes absolutes = {kind, visit, state};
    if (kind->category == COMPLEX) walk(layout, BLOCK_BYTES, absolute_block, &absolutes);
    else walk(layout, BLOCK_BYTES, visit, state);
}

/* ---- projections, block by block ------------------------------------------------------------ */

/* A number is one or two elements of the projections: the parts of a complex number, and the two
 * halves of a byte of float4. */
static size_t parts_of(const struct kind *kind)
{
    return kind->category == COMPLEX || kind == &KINDS[K_E2M1X2] ? 2 : 1;
}

struct projecting {
    const struct kind *kind;
    int finite_only;
    double codes[256]; /* the numbers behind the codes of 8-bit floats */
    struct projections projections;
};

static void begin_projecting(struct projecting *projecting, const struct kind *kind)
{
    projecting->kind = kind;
    projecting->finite_only = kind->category == COUNTED && !kind->fold_offset;
    projecting->projections = (struct projections){{{0, 0}}, 0};
    if (!projecting->finite_only) return;
    for (unsigned code = 0; code < 256; code++)
        projecting->codes[code] = small_float((int)(kind - KINDS), code);
}

/* Elements of a floating-point type, or parts of a complex one, as doubles. */
static void widen(const struct projecting *projecting, const void *block, size_t n, double *out)
{
    const double *codes = projecting->codes;
    const uint8_t *bytes = block;
    const uint16_t *halves = block;
    switch (projecting->kind - KINDS) {
    case K_F16:
    case K_C32:
        for (size_t i = 0; i < n; i++) out[i] = f16_value(halves[i]);
        return;
    case K_BF16:
        for (size_t i = 0; i < n; i++) out[i] = bf16_to_float(halves[i]);
        return;
    case K_F32:
    case K_C64:
        for (size_t i = 0; i < n; i++) out[i] = ((const float *)block)[i];
        return;
    case K_F64:
    case K_C128: memcpy(out, block, n * sizeof *out); return;
    case K_E2M1X2: /* the low half of a byte comes first */
        for (size_t i = 0; i < n; i++) out[i] = codes[i % 2 ? bytes[i / 2] >> 4 : bytes[i / 2] & 15];
        return;
    default:
        for (size_t i = 0; i < n; i++) out[i] = codes[bytes[i]];
    }
}

/* Project a block of a type that is not projected while it is reduced. */
static void project_block(const void *block, size_t n, void *state)
{
    struct projecting *projecting = state;
    const struct kind *kind = projecting->kind;
    double values[SIGN_BLOCK], sums[SIGN_PERIOD];
    int is_folded = kind->fold_offset && !projecting->finite_only;
    size_t parts = parts_of(kind), step;
    const char *p = block;
    for (n *= parts; n; n -= step, p += step * kind->itemsize / parts) {
        step = n < SIGN_BLOCK ? n : SIGN_BLOCK;
        if (is_folded) {
            fold_of(kind)(p, step, sums);
        } else {
            widen(projecting, p, step, values);
            if (projecting->finite_only)
                for (size_t i = 0; i < step; i++) values[i] = isfinite(values[i]) ? values[i] : 0.0;
            chosen.fold_f64(values, step, sums);
        }
        chosen.project(sums, step, &projecting->projections);
    }
}

/* Reduce a block, and project it while it is near. */
struct pass {
    visit_fn visit;
    void *state;
    struct projecting *projecting;
};

static void pass_block(const void *block, size_t n, void *state)
{
    const struct pass *pass = state;
    pass->visit(block, n, pass->state);
    project_block(block, n, pass->projecting);
}

/* Walk over a buffer whose type is not projected while it is reduced. */
static void walk_projecting(const struct layout *layout, const struct kind *kind,
                            size_t block_bytes, visit_fn visit, void *state,
                            struct projecting *projecting)
{
    struct absolutes absolutes = {kind, visit, state};
    if (kind->category == COMPLEX) visit = absolute_block, state = &absolutes;
    struct pass pass = {visit, state, projecting};
    walk(layout, block_bytes, pass_block, &pass);
}

struct nonfinite {
    const struct kind *kind;
    size_t nan, positive, negative;
    int64_t max, min; /* keys of the finite extremes; max < min when there is none */
};

static int64_t key_at(const struct kind *kind, const void *block, size_t i)
{
    if (kind->category == FLOAT16) {
        int64_t bits = ((const int16_t *)block)[i];
        return bits ^ ((bits >> 63) & 0x7fff);
    }
    if (kind->category == FLOAT32) {
        int64_t bits = ((const int32_t *)block)[i];
        return bits ^ ((bits >> 63) & 0x7fffffff);
    }
    int64_t bits = ((const int64_t *)block)[i];
    return bits ^ ((bits >> 63) & INT64_MAX);
}

static void count_nonfinite_block(const void *block, size_t n, void *state)
{
    struct nonfinite *found = state;
    const int64_t inf = found->kind->inf_key;
    for (size_t i = 0; i < n; i++) {
        int64_t key = key_at(found->kind, block, i);
        if (key > inf || key < ~inf) found->nan++;
        else if (key == inf) found->positive++;
        else if (key == ~inf) found->negative++;
        else {
            if (key > found->max) found->max = key;
            if (key < found->min) found->min = key;
        }
    }
}

/* float64 whose plain sums leave the range: sums scaled by powers of two, which are exact. */
struct scaled {
    double sum_scale, square_scale;
    struct exact sum, sumsq;
};

static void scaled_block(const void *block, size_t n, void *state)
{
    struct scaled *scaled = state;
    const double *p = block;
    for (size_t i = 0; i < n; i++) {
        double x = p[i] * scaled->square_scale;
        exact_add(&scaled->sum, p[i] * scaled->sum_scale);
        exact_add(&scaled->sumsq, x * x);
    }
}

struct counts {
    uint64_t of[256];
};

static void count_block(const void *block, size_t n, void *state)
{
    struct counts *counts = state;
    const uint8_t *p = block;
    /* Four tables, so that runs of equal bytes do not wait for one another. */
    uint32_t part[4][256] = {{0}};
    size_t i = 0;
    for (; i + 4 <= n; i += 4) {
        part[0][p[i]]++;
        part[1][p[i + 1]]++;
        part[2][p[i + 2]]++;
        part[3][p[i + 3]]++;
    }
    for (; i < n; i++) part[0][p[i]]++;
    for (int code = 0; code < 256; code++)
        counts->of[code] += part[0][code] + part[1][code] + part[2][code] + part[3][code];
}

/* ---- from raw sums to the four statistics --------------------------------------------------- */

struct result {
    enum { NUMBERS, INTEGERS, BOOLEANS } form;
    int is_finite, is_unsigned;
    double max, min, mean, norm;
    int64_t int_max, int_min;
    __int128 int_sum;
    double count;
    int is_projected;
    double projections[PROJECTIONS];
    size_t nan, positive, negative; /* the rest only when not finite */
    double finite_max, finite_min;
};

/* Sums of float64 numbers may leave its range: then there are none. */
static void finish_projections(struct result *r, const struct projections *projections)
{
    r->is_projected = 1;
    for (int k = 0; k < PROJECTIONS; k++) {
        r->projections[k] = exact_value(&projections->of[k]) + 0.0;
        r->is_projected = r->is_projected && isfinite(r->projections[k]);
    }
}

static void finish_nonfinite(struct result *r, size_t nan, size_t positive, size_t negative,
                             double finite_max, double finite_min)
{
    r->is_finite = 0;
    r->nan = nan, r->positive = positive, r->negative = negative;
    r->finite_max = finite_max, r->finite_min = finite_min;
    r->max = nan ? NAN : positive ? INFINITY : finite_max;
    r->min = nan ? NAN : negative ? -INFINITY : finite_min;
    if (!nan && !positive && isnan(finite_max)) r->max = -INFINITY;
    if (!nan && !negative && isnan(finite_min)) r->min = INFINITY;
    r->mean = nan || (positive && negative) ? NAN : positive ? INFINITY : -INFINITY;
    r->norm = nan ? NAN : INFINITY;
}

static void count_nonfinite(struct result *r, const struct layout *layout,
                            const struct kind *kind)
{
    const struct kind *element = kind->category == COMPLEX ? &KINDS[K_F64] : kind;
    struct nonfinite found = {element, 0, 0, 0, INT64_MIN, INT64_MAX};
    walk_floats(layout, kind, count_nonfinite_block, &found);
    int any = found.max >= found.min;
    size_t repeats = (size_t)layout->repeats;
    finish_nonfinite(r, found.nan * repeats, found.positive * repeats, found.negative * repeats,
                     any ? value_of_key(element, found.max) : NAN,
                     any ? value_of_key(element, found.min) : NAN);
    struct projecting projecting;
    begin_projecting(&projecting, kind);
    projecting.finite_only = 1;
    walk(layout, BLOCK_BYTES, project_block, &projecting);
    finish_projections(r, &projecting.projections);
}

static void rescale_float64(struct result *r, const struct layout *layout,
                            const struct kind *kind, double elements)
{
    double largest = fabs(r->max) > fabs(r->min) ? fabs(r->max) : fabs(r->min);
    int exponent;
    if (largest == 0) return;
    frexp(largest, &exponent);
    /* Two steps of 2^-64 keep a sum of up to 2^64 elements in range. */
    int shift = exponent > 0 ? -64 : 0;
    int square_shift = exponent < -1000 ? 1000 : -exponent;
    struct scaled scaled = {ldexp(1.0, shift), ldexp(1.0, square_shift), {0, 0}, {0, 0}};
    walk_floats(layout, kind, scaled_block, &scaled);
    r->mean = ldexp(exact_value(&scaled.sum) / elements, -shift);
    r->norm = ldexp(sqrt(exact_value(&scaled.sumsq) * layout->repeats), -square_shift);
}

/* Between these the squares of float64 numbers neither overflow nor lose bits that matter. */
#define SQUARES_LOW 0x1p-900
#define SQUARES_HIGH 0x1p1020

static void finish_floats(struct result *r, const struct layout *layout, const struct kind *kind,
                          double elements)
{
    struct magnitudes *near = layout->magnitudes;
    if (near && !near->below) near = NULL;
    struct reduction reduction = {kind, kernel_of(kind), EMPTY_TOTAL, near};
    const struct total *t = &reduction.total;
    struct projecting projecting;
    int is_narrow = kind->category == FLOAT16 || kind->category == FLOAT32;
    if (!is_narrow) begin_projecting(&projecting, kind);
    if (layout->is_print && is_narrow) reduction.block = norm_kernel_of(kind);
    if (layout->crc && reduction.block == chosen.norm_f32 && chosen.checked_f32) {
        reduction.block = chosen.checked_f32;
        reduction.total.crc = layout->crc;
        layout->crc->is_complete = 1;
    }
    if (is_narrow && is_read_in_parts(layout)) reduce_in_parts(layout, &reduction);
    else if (is_narrow) walk(layout, BLOCK_BYTES, reduce_block, &reduction);
    else walk_projecting(layout, kind, BLOCK_BYTES, reduce_block, &reduction, &projecting);
    r->form = NUMBERS;
    /* Squares of narrow floats are finite in float64, so their sum tells of a NaN or infinity. */
    int is_nonfinite = is_narrow ? !isfinite(t->sumsq.value)
                                 : t->max >= kind->inf_key || t->min <= ~kind->inf_key;
    if (is_nonfinite) {
        count_nonfinite(r, layout, kind);
        return;
    }
    r->is_finite = 1;
    r->max = is_narrow ? t->float_max + 0.0 : value_of_key(kind, t->max);
    r->min = is_narrow ? t->float_min + 0.0 : value_of_key(kind, t->min);
    r->mean = exact_value(&t->sum) / elements;
    r->norm = sqrt(exact_value(&t->sumsq) * layout->repeats);
    int is_float64 = kind->category == FLOAT64 || kind->category == COMPLEX;
    double squares = t->sumsq.value;
    finish_projections(r, is_narrow ? &t->projections : &projecting.projections);
    if (is_float64 && !(isfinite(exact_value(&t->sum)) && squares > SQUARES_LOW &&
                        squares < SQUARES_HIGH))
        rescale_float64(r, layout, kind, elements);
}

static void finish_integers(struct result *r, const struct layout *layout,
                            const struct kind *kind, double elements)
{
    struct reduction reduction = {kind, kernel_of(kind), EMPTY_TOTAL, NULL};
    const struct total *t = &reduction.total;
    struct projecting projecting;
    begin_projecting(&projecting, kind);
    walk_projecting(layout, kind, BLOCK_BYTES, reduce_block, &reduction, &projecting);
    finish_projections(r, &projecting.projections);
    r->form = kind->category == BOOLEAN ? BOOLEANS : INTEGERS;
    r->is_finite = 1;
    r->is_unsigned = kind->category == UINT64;
    r->int_max = t->max;
    r->int_min = t->min;
    r->int_sum = t->int_sum;
    r->count = elements;
    r->norm = sqrt((exact_value(&t->sumsq) + (double)t->int_sumsq) * layout->repeats);
}

static void finish_small_integers(struct result *r, const struct counts *counts, int is_signed,
                                  double elements, double repeats)
{
    uint64_t squares = 0;
    r->form = INTEGERS;
    r->is_finite = 1;
    r->int_max = INT64_MIN, r->int_min = INT64_MAX;
    r->count = elements;
    for (int code = 0; code < 256; code++) {
        int64_t value = is_signed ? (int8_t)code : code, n = (int64_t)counts->of[code];
        if (!n) continue;
        if (value > r->int_max) r->int_max = value;
        if (value < r->int_min) r->int_min = value;
        r->int_sum += n * value;
        squares += (uint64_t)(n * value * value);
    }
    r->norm = sqrt((double)squares * repeats);
}

static void finish_small_floats(struct result *r, const struct counts *counts, int kind,
                                double elements, double repeats)
{
    struct exact sum = {0, 0}, sumsq = {0, 0};
    size_t nan = 0, positive = 0, negative = 0;
    double max = -INFINITY, min = INFINITY;
    for (unsigned byte = 0; byte < 512; byte++) {
        /* Two float4 share a byte: the second round takes the high ones. */
        if (byte == 256 && kind != K_E2M1X2) break;
        uint64_t n = counts->of[byte & 255];
        unsigned code = kind != K_E2M1X2 ? byte : byte & 256 ? (byte & 255) >> 4 : byte & 15;
        double value = small_float(kind, code);
        if (!n) continue;
        if (isnan(value)) nan += n;
        else if (value == INFINITY) positive += n;
        else if (value == -INFINITY) negative += n;
        else {
            if (value > max) max = value;
            if (value < min) min = value;
            exact_add(&sum, (double)n * value);
            exact_add(&sumsq, (double)n * value * value);
        }
    }
    r->form = NUMBERS;
    r->is_finite = 1;
    r->max = max + 0.0, r->min = min + 0.0;
    r->mean = exact_value(&sum) / elements;
    r->norm = sqrt(exact_value(&sumsq) * repeats);
    if (nan || positive || negative)
        finish_nonfinite(r, nan * (size_t)repeats, positive * (size_t)repeats,
                         negative * (size_t)repeats, max < min ? NAN : r->max,
                         max < min ? NAN : r->min);
}

static void compute(struct result *r, const struct layout *layout, int kind_index, size_t n)
{
    const struct kind *kind = &KINDS[kind_index];
    if (kind->category != COUNTED) {
        /* The mean of repeated elements is that of one copy. */
        if (kind->category >= INTEGER && kind->category <= BOOLEAN)
            finish_integers(r, layout, kind, (double)n);
        else
            finish_floats(r, layout, kind, (double)n);
        return;
    }
    struct counts counts = {{0}};
    struct projecting projecting;
    begin_projecting(&projecting, kind);
    walk_projecting(layout, kind, COUNT_BLOCK_BYTES, count_block, &counts, &projecting);
    finish_projections(r, &projecting.projections);
    if (kind_index == K_I8 || kind_index == K_U8)
        finish_small_integers(r, &counts, kind_index == K_I8, (double)n, layout->repeats);
    else
        finish_small_floats(r, &counts, kind_index,
                            (double)n * (kind_index == K_E2M1X2 ? 2 : 1), layout->repeats);
}

/* Run `compute` with the default floating-point environment: torch.set_flush_denormal(True) and
 * some libraries make the thread treat subnormal numbers as zero. */
static void compute_ieee(struct result *r, const struct layout *layout, int kind, size_t n)
{
#if defined(__x86_64__)
    unsigned before = _mm_getcsr();
    _mm_setcsr(0x1f80);
    compute(r, layout, kind, n);
    _mm_setcsr(before);
#else
    fenv_t before;
    fegetenv(&before);
    fesetenv(FE_DFL_ENV);
    compute(r, layout, kind, n);
    fesetenv(&before);
#endif
}

/* ---- Python objects ------------------------------------------------------------------------- */

static PyObject *int_from_int128(__int128 x)
{
    if (x >= INT64_MIN && x <= INT64_MAX) return PyLong_FromLongLong((long long)x);
    PyObject *high = PyLong_FromLongLong((long long)(x >> 62));
    PyObject *low = PyLong_FromLongLong((long long)(x & (((__int128)1 << 62) - 1)));
    PyObject *bits = PyLong_FromLong(62), *shifted = NULL, *sum = NULL;
    if (high && low && bits && (shifted = PyNumber_Lshift(high, bits)))
        sum = PyNumber_Or(shifted, low);
    Py_XDECREF(high);
    Py_XDECREF(low);
    Py_XDECREF(bits);
    Py_XDECREF(shifted);
    return sum;
}

static PyObject *exact_mean(__int128 sum, double count)
{
    const __int128 exact_limit = (__int128)1 << 53;
    if (sum > -exact_limit && sum < exact_limit) return PyFloat_FromDouble((double)sum / count);
    /* Python divides integers with one correct rounding. */
    PyObject *numerator = int_from_int128(sum), *denominator = PyLong_FromDouble(count);
    PyObject *mean = NULL;
    if (numerator && denominator) mean = PyNumber_TrueDivide(numerator, denominator);
    Py_XDECREF(numerator);
    Py_XDECREF(denominator);
    return mean;
}

static PyObject *float_or_none(double x)
{
    if (isnan(x)) Py_RETURN_NONE;
    return PyFloat_FromDouble(x);
}

static PyObject *int_extreme(const struct result *r, int64_t x)
{
    if (r->is_unsigned)
        return PyLong_FromUnsignedLongLong((uint64_t)x ^ ((uint64_t)1 << 63));
    return PyLong_FromLongLong(x);
}

static PyObject *nonfinite_tuple(const struct result *r)
{
    if (r->is_finite) Py_RETURN_NONE;
    return Py_BuildValue("(nnnNN)", (Py_ssize_t)r->nan, (Py_ssize_t)r->positive,
                         (Py_ssize_t)r->negative, float_or_none(r->finite_max),
                         float_or_none(r->finite_min));
}

static PyObject *projections_tuple(const struct result *r)
{
    if (!r->is_projected) Py_RETURN_NONE;
    return Py_BuildValue("(dd)", r->projections[0], r->projections[1]);
}

static PyObject *result_tuple(const struct result *r)
{
    PyObject *item[6];
    item[4] = nonfinite_tuple(r);
    item[5] = projections_tuple(r);
    if (r->form == BOOLEANS) {
        item[0] = PyBool_FromLong(r->int_max != 0);
        item[1] = PyBool_FromLong(r->int_min != 0);
        item[2] = Py_NewRef(Py_None);
        item[3] = Py_NewRef(Py_None);
    } else if (r->form == INTEGERS) {
        item[0] = int_extreme(r, r->int_max);
        item[1] = int_extreme(r, r->int_min);
        item[2] = exact_mean(r->int_sum, r->count);
        item[3] = PyFloat_FromDouble(r->norm);
    } else {
        item[0] = PyFloat_FromDouble(r->max);
        item[1] = PyFloat_FromDouble(r->min);
        item[2] = PyFloat_FromDouble(r->mean);
        item[3] = PyFloat_FromDouble(r->norm);
    }
    PyObject *tuple = PyTuple_New(6);
    int failed = tuple == NULL;
    for (int i = 0; i < 6; i++) {
        failed |= item[i] == NULL;
        if (tuple) PyTuple_SET_ITEM(tuple, i, item[i]);
        else Py_XDECREF(item[i]);
    }
    if (failed) Py_CLEAR(tuple);
    return tuple;
}

/* As `compute_ieee`, without the GIL where there is much to read. */
static void compute_apart(struct result *r, const struct layout *layout, int kind, size_t n)
{
    if (n * layout->itemsize < GIL_RELEASE_BYTES) {
        compute_ieee(r, layout, kind, n);
    } else {
        Py_BEGIN_ALLOW_THREADS
        compute_ieee(r, layout, kind, n);
        Py_END_ALLOW_THREADS
    }
}

/* `n` counts the elements once, without those that a stride of 0 repeats. */
static PyObject *stats_of(const struct layout *layout, int kind, size_t n)
{
    struct result result = {0};
    compute_apart(&result, layout, kind, n);
    return result_tuple(&result);
}

static PyObject *empty_tuple(void)
{
    return Py_BuildValue("(OOOOOO)", Py_None, Py_None, Py_None, Py_None, Py_None, Py_None);
}

static PyObject *null_address(void)
{
    PyErr_SetString(PyExc_ValueError, "the address is null");
    return NULL;
}

static int read_kind(PyObject *object)
{
    long kind = PyLong_AsLong(object);
    if (kind == -1 && PyErr_Occurred()) return -1;
    if (kind >= 0 && kind < KIND_COUNT) return (int)kind;
    PyErr_Format(PyExc_ValueError, "kind %ld is not one of KINDS", kind);
    return -1;
}

static PyObject *stats(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 3) {
        PyErr_SetString(PyExc_TypeError, "stats(kind, address, count)");
        return NULL;
    }
    int kind = read_kind(args[0]);
    if (kind < 0) return NULL;
    const char *start = PyLong_AsVoidPtr(args[1]);
    if (start == NULL && PyErr_Occurred()) return NULL;
    Py_ssize_t n = PyLong_AsSsize_t(args[2]);
    if (n == -1 && PyErr_Occurred()) return NULL;
    if (n <= 0) return empty_tuple();
    if (start == NULL) return null_address();
    struct layout layout; /* 1 KiB: only what is used gets set */
    dense_layout(&layout, kind, start, n);
    return stats_of(&layout, kind, (size_t)n);
}

/* Add one dimension, keeping the strides in descending order. */
static void insert_dim(struct layout *layout, Py_ssize_t size, Py_ssize_t stride)
{
    int at = layout->ndim++;
    for (; at > 0 && layout->stride[at - 1] < stride; at--) {
        layout->size[at] = layout->size[at - 1];
        layout->stride[at] = layout->stride[at - 1];
    }
    layout->size[at] = size;
    layout->stride[at] = stride;
}

/* Join neighbouring dimensions that together are one: a dense tensor becomes a plain run. */
static void join_dims(struct layout *layout)
{
    int last = 0;
    for (int i = 1; i < layout->ndim; i++) {
        if (layout->stride[last] == layout->size[i] * layout->stride[i]) {
            layout->size[last] *= layout->size[i];
            layout->stride[last] = layout->stride[i];
        } else {
            last++;
            layout->size[last] = layout->size[i];
            layout->stride[last] = layout->stride[i];
        }
    }
    layout->ndim = last + 1;
}

/* Fill `layout` from shape and strides; the number of distinct elements, 0 if empty, -1 on error. */
static Py_ssize_t read_layout(struct layout *layout, int ndim, const int64_t *shape,
                              const int64_t *strides)
{
    Py_ssize_t n = 1;
    layout->ndim = 0;
    layout->repeats = 1.0;
    layout->in_any_order = 0;
    for (int i = 0; i < ndim; i++) {
        if (shape[i] <= 0) return 0;
        if (shape[i] == 1) continue;
        if (strides[i] == 0) {
            layout->repeats *= (double)shape[i];
            continue;
        }
        if (strides[i] < 0) {
            PyErr_SetString(PyExc_ValueError, "strides must not be negative");
            return -1;
        }
        insert_dim(layout, shape[i], strides[i]);
        n *= shape[i];
    }
    if (layout->ndim == 0) insert_dim(layout, 1, 1);
    join_dims(layout);
    return n;
}

/* Fill `layout` as `read_layout` does, and check that its elements may be read. */
static Py_ssize_t read_buffer(struct layout *layout, int kind, const char *start, int ndim,
                              const int64_t *shape, const int64_t *strides, Py_ssize_t size_bytes)
{
    layout->start = start;
    layout->itemsize = KINDS[kind].itemsize;
    layout->magnitudes = NULL;
    layout->crc = NULL;
    layout->is_print = 0;
    Py_ssize_t n = read_layout(layout, ndim, shape, strides), extent = 1;
    if (n <= 0) return n;
    if (start == NULL) {
        null_address();
        return -1;
    }
    for (int i = 0; i < layout->ndim; i++) extent += (layout->size[i] - 1) * layout->stride[i];
    if (extent * (Py_ssize_t)layout->itemsize > size_bytes) {
        PyErr_SetString(PyExc_ValueError, "the buffer ends before the last element");
        return -1;
    }
    return n;
}

static PyObject *statistics(int kind, const char *start, int ndim, const int64_t *shape,
                            const int64_t *strides, Py_ssize_t size_bytes)
{
    struct layout layout; /* 1 KiB: only what is used gets set */
    Py_ssize_t n = read_buffer(&layout, kind, start, ndim, shape, strides, size_bytes);
    if (n < 0) return NULL;
    return n ? stats_of(&layout, kind, (size_t)n) : empty_tuple();
}

static void print_block(struct msprobe_block *block)
{
    struct msprobe_print *out = &block->print;
    struct layout layout; /* 1 KiB: only what is used gets set */
    struct result result = {0};
    dense_layout(&layout, block->kind, block->start, block->count);
    struct crc crc = CRC_START;
    if (chosen_fold) layout.crc = &crc;
    layout.is_print = 1;
    compute_ieee(&result, &layout, block->kind, (size_t)block->count);
    out->has_checksum = chosen_fold != NULL; /* else its instructions may be missing */
    out->checksum = chosen_fold ? crc_end(&crc) : 0;
    out->has_norm = result.form != BOOLEANS;
    out->has_projections = (uint8_t)result.is_projected;
    out->norm = result.norm;
    memcpy(out->projections, result.projections, sizeof out->projections);
}

static size_t bytes_of(const struct msprobe_block *block)
{
    return block->is_known ? 0 : (size_t)block->count * KINDS[block->kind].itemsize;
}

static int has_parts(const struct msprobe_block *block)
{
    return bytes_of(block) >= LEAST_BYTES_IN_PARTS;
}

/* Read a block, but for what is known, and its samples while it is near. */
static void read_block(struct msprobe_block *block)
{
    size_t itemsize = KINDS[block->kind].itemsize;
    if (!block->is_known) print_block(block);
    for (int i = 0; i < MSPROBE_SAMPLES && i * block->sample_step < block->count; i++)
        memcpy(block->samples[i], block->start + (size_t)(i * block->sample_step) * itemsize,
               itemsize < MSPROBE_SAMPLE_BYTES ? itemsize : MSPROBE_SAMPLE_BYTES);
}

static void read_small_block(void *blocks, size_t index)
{
    struct msprobe_block *block = (struct msprobe_block *)blocks + index;
    if (!has_parts(block)) read_block(block);
}

/* See `read_blocks` in _native_api.h. */
static void read_blocks(struct msprobe_block *blocks, size_t count)
{
    size_t size_bytes = 0;
    for (size_t i = 0; i < count; i++) size_bytes += bytes_of(blocks + i);
    PyThreadState *state = size_bytes < GIL_RELEASE_BYTES ? NULL : PyEval_SaveThread();
    for (size_t i = 0; i < count; i++) /* by several threads each */
        if (has_parts(blocks + i)) {
            read_block(blocks + i);
            size_bytes -= bytes_of(blocks + i);
        }
    do_jobs(count, size_bytes, read_small_block, blocks);
    if (state) PyEval_RestoreThread(state);
}

/* ---- numbers and magnitudes ----------------------------------------------------------------- */

/* The least bits of a magnitude in a type that are not below a number. */
static uint64_t bits_from(const struct kind *kind, double number)
{
    uint64_t low = 0, high = (uint64_t)kind->inf_key;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (value_of_key(kind, (int64_t)middle) < number) low = middle + 1;
        else high = middle;
    }
    return low;
}

/* Elements of any type but complex ones, as doubles. */
static void widen_any(const struct projecting *projecting, const void *block, size_t n, double *out)
{
#define WIDEN_AS(TYPE)                                                                          \
    for (size_t i = 0; i < n; i++) out[i] = (double)((const TYPE *)block)[i];                   \
    return
    switch (projecting->kind - KINDS) {
    case K_I8: WIDEN_AS(int8_t);
    case K_U8:
    case K_BOOL: WIDEN_AS(uint8_t);
    case K_I16: WIDEN_AS(int16_t);
    case K_U16: WIDEN_AS(uint16_t);
    case K_I32: WIDEN_AS(int32_t);
    case K_U32: WIDEN_AS(uint32_t);
    case K_I64: WIDEN_AS(int64_t);
    case K_U64: WIDEN_AS(uint64_t);
    default: widen(projecting, block, n, out);
    }
#undef WIDEN_AS
}

#define LOWEST_POWER (-40)
#define HIGHEST_POWER 24

static int bin_of(double magnitude)
{
    if (magnitude == 0) return 0;
    int exponent;
    frexp(magnitude, &exponent); /* 2^(exponent - 1) <= magnitude */
    if (--exponent < LOWEST_POWER) return 1;
    if (exponent >= HIGHEST_POWER) return MSPROBE_BINS - 1;
    return 2 + (exponent - LOWEST_POWER) / 2;
}

struct counting {
    struct magnitudes *magnitudes;
    struct projecting widening;
};

static void count_magnitudes(const void *block, size_t n, void *state)
{
    const struct counting *counting = state;
    struct magnitudes *magnitudes = counting->magnitudes;
    const struct kind *kind = counting->widening.kind;
    double values[512];
    const char *p = block;
    for (size_t step, left = n * parts_of(kind); left; left -= step) {
        step = left < 512 ? left : 512;
        widen_any(&counting->widening, p, step, values);
        p += step * kind->itemsize / parts_of(kind);
        if (!magnitudes->below)
            for (size_t i = 0; i < step; i++)
                magnitudes->count += fabs(values[i]) < magnitudes->threshold;
        if (magnitudes->bins)
            for (size_t i = 0; i < step; i++)
                if (isfinite(values[i])) magnitudes->bins[bin_of(fabs(values[i]))] += 1;
    }
}

static below_fn below_of(const struct kind *kind)
{
    switch (kind->category) {
    case FLOAT16: return chosen.below_16;
    case FLOAT32: return chosen.below_32;
    case FLOAT64: return chosen.below_64;
    default: return NULL;
    }
}

static void compute_measures(struct layout *layout, int kind_index, size_t n, double threshold,
                             double *bins, struct msprobe_measures *out)
{
    const struct kind *kind = &KINDS[kind_index];
    struct result result = {0};
    struct magnitudes magnitudes = {threshold, bins, below_of(kind), 0, 0};
    int is_counted = threshold >= 0 && kind->category != COMPLEX;
    if (is_counted && magnitudes.below) {
        magnitudes.limit = bits_from(kind, threshold);
        layout->magnitudes = &magnitudes;
    }
    compute_ieee(&result, layout, kind_index, n);
    if (kind->category != COMPLEX && (bins || (is_counted && !magnitudes.below))) {
        struct counting counting = {&magnitudes, {0}};
        begin_projecting(&counting.widening, kind);
        walk(layout, BLOCK_BYTES, count_magnitudes, &counting);
    }
    double repeats = layout->repeats;
    out->count = (double)n * repeats * (kind_index == K_E2M1X2 ? 2 : 1);
    out->below = is_counted ? magnitudes.count * repeats : NAN;
    if (bins)
        for (int i = 0; i < MSPROBE_BINS; i++) bins[i] *= repeats;
    out->nan = result.is_finite ? 0 : (double)result.nan;
    out->inf = result.is_finite ? 0 : (double)(result.positive + result.negative);
    out->norm = result.form == BOOLEANS ? NAN : result.norm;
    if (result.form == NUMBERS) {
        out->max = result.max, out->min = result.min, out->mean = result.mean;
        return;
    }
    uint64_t flip = result.is_unsigned ? (uint64_t)1 << 63 : 0;
    out->max = flip ? (double)((uint64_t)result.int_max ^ flip) : (double)result.int_max;
    out->min = flip ? (double)((uint64_t)result.int_min ^ flip) : (double)result.int_min;
    out->mean = result.form == BOOLEANS ? NAN : (double)result.int_sum / result.count;
}

static int measure(int kind, const char *start, int ndim, const int64_t *shape,
                   const int64_t *strides, Py_ssize_t size_bytes, double threshold, double *bins,
                   struct msprobe_measures *out)
{
    struct layout layout;
    Py_ssize_t n = read_buffer(&layout, kind, start, ndim, shape, strides, size_bytes);
    if (n < 0) return -1;
    if (n == 0) {
        *out = (struct msprobe_measures){NAN, NAN, NAN, NAN, NAN, 0, 0, 0};
        return 0;
    }
    if ((size_t)n * layout.itemsize < GIL_RELEASE_BYTES) {
        compute_measures(&layout, kind, (size_t)n, threshold, bins, out);
    } else {
        Py_BEGIN_ALLOW_THREADS
        compute_measures(&layout, kind, (size_t)n, threshold, bins, out);
        Py_END_ALLOW_THREADS
    }
    return 0;
}

/* ---- the greatest magnitude ------------------------------------------------------------------ */

struct greatest {
    greatest_fn of;
    uint64_t bits, enough; /* nothing more is read when the bits reach `enough` */
};

static void greatest_block(const void *block, size_t n, void *state)
{
    struct greatest *greatest = state;
    if (greatest->bits >= greatest->enough) return;
    uint64_t bits = greatest->of(block, n);
    if (bits > greatest->bits) greatest->bits = bits;
}

/* The type of the parts of a complex number, or the type itself. */
static int part_kind(int kind)
{
    return kind == K_C32 ? K_F16 : kind == K_C64 ? K_F32 : kind == K_C128 ? K_F64 : kind;
}

static double greatest_in(const struct layout *layout, const struct kind *kind, size_t n)
{
    struct greatest greatest = {NULL, 0, (uint64_t)kind->inf_key};
    greatest.of = kind->category == FLOAT16   ? chosen.greatest_16
                  : kind->category == FLOAT32 ? chosen.greatest_32
                                              : chosen.greatest_64;
    if (n * layout->itemsize < GIL_RELEASE_BYTES) {
        walk(layout, BLOCK_BYTES, greatest_block, &greatest);
    } else {
        Py_BEGIN_ALLOW_THREADS
        walk(layout, BLOCK_BYTES, greatest_block, &greatest);
        Py_END_ALLOW_THREADS
    }
    return value_of_key(kind, (int64_t)greatest.bits);
}

/* See `largest` in _native_api.h. */
static int largest(int kind, const char *start, int ndim, const int64_t *shape,
                   const int64_t *strides, Py_ssize_t size_bytes, double *out)
{
    *out = 0;
    enum category category = KINDS[kind].category;
    if (category == COUNTED && !KINDS[kind].fold_offset) {
        struct msprobe_measures measures;
        if (measure(kind, start, ndim, shape, strides, size_bytes, -1, NULL, &measures) < 0)
            return -1;
        if (measures.nan > 0) *out = NAN;
        else if (measures.inf > 0) *out = INFINITY;
        else if (measures.count > 0) *out = fmax(fabs(measures.max), fabs(measures.min));
        return 0;
    }
    if (category != COMPLEX && category > FLOAT64) return 0;
    int64_t sizes[MAX_DIMS], steps[MAX_DIMS];
    int part = part_kind(kind);
    if (part != kind) { /* a last dimension of the two parts */
        if (ndim == MAX_DIMS) {
            PyErr_SetString(PyExc_ValueError, "too many dimensions");
            return -1;
        }
        for (int i = 0; i < ndim; i++) sizes[i] = shape[i], steps[i] = 2 * strides[i];
        sizes[ndim] = 2, steps[ndim] = 1;
        ndim++, shape = sizes, strides = steps;
    }
    struct layout layout;
    Py_ssize_t n = read_buffer(&layout, part, start, ndim, shape, strides, size_bytes);
    if (n > 0) {
        layout.in_any_order = 1;
        *out = greatest_in(&layout, &KINDS[part], (size_t)n);
    }
    return n < 0 ? -1 : 0;
}

/* Copy a tuple of sizes; -1 with an exception. */
static int read_sizes(PyObject *tuple, int64_t *sizes)
{
    Py_ssize_t ndim = PyTuple_GET_SIZE(tuple);
    for (Py_ssize_t i = 0; i < ndim; i++) {
        sizes[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i));
        if (sizes[i] == -1 && PyErr_Occurred()) return -1;
    }
    return 0;
}

static PyObject *stats_strided(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 5 || !PyTuple_Check(args[2]) || !PyTuple_Check(args[3])) {
        PyErr_SetString(PyExc_TypeError, "stats_strided(kind, address, shape, strides, size_bytes)");
        return NULL;
    }
    int kind = read_kind(args[0]);
    if (kind < 0) return NULL;
    const char *start = PyLong_AsVoidPtr(args[1]);
    if (start == NULL && PyErr_Occurred()) return NULL;
    Py_ssize_t size_bytes = PyLong_AsSsize_t(args[4]), ndim = PyTuple_GET_SIZE(args[2]);
    if (size_bytes == -1 && PyErr_Occurred()) return NULL;
    if (ndim > MAX_DIMS || PyTuple_GET_SIZE(args[3]) != ndim) {
        PyErr_Format(PyExc_ValueError, "shape and strides differ in length or exceed %d", MAX_DIMS);
        return NULL;
    }
    int64_t shape[MAX_DIMS], strides[MAX_DIMS];
    if (read_sizes(args[2], shape) < 0 || read_sizes(args[3], strides) < 0) return NULL;
    return statistics(kind, start, (int)ndim, shape, strides, size_bytes);
}

/* ---- stack key ------------------------------------------------------------------------------ */

static uint64_t mix(uint64_t key, uint64_t x)
{
    /* The multiplier and shift of splitmix64's finaliser (public domain, S. Vigna). */
    key = (key ^ x) * 0xbf58476d1ce4e5b9u;
    return key ^ (key >> 31);
}

#ifdef Py_LIMITED_API
/* Every CPython exports them; the limited API does not promise that, but these attributes. */
static PyFrameObject *(*exported_back)(PyFrameObject *);
static int (*exported_lasti)(PyFrameObject *);

static void find_exported(void)
{
    void *program = dlopen(NULL, RTLD_LAZY);
    if (!program) return;
    *(void **)&exported_back = dlsym(program, "PyFrame_GetBack");
    *(void **)&exported_lasti = dlsym(program, "PyFrame_GetLasti");
}

static int PyFrame_Check(PyObject *object)
{
    PyFrameObject *now = PyEval_GetFrame();
    return now && Py_IS_TYPE(object, Py_TYPE((PyObject *)now));
}

static int PyFrame_GetLasti(PyFrameObject *frame)
{
    if (exported_lasti) return exported_lasti(frame);
    PyObject *found = PyObject_GetAttrString((PyObject *)frame, "f_lasti");
    long at = found ? PyLong_AsLong(found) : -1;
    Py_XDECREF(found);
    return (int)at;
}

static PyFrameObject *PyFrame_GetBack(PyFrameObject *frame)
{
    if (exported_back) return exported_back(frame);
    PyObject *found = PyObject_GetAttrString((PyObject *)frame, "f_back");
    if (found == Py_None) Py_CLEAR(found);
    return (PyFrameObject *)found;
}
#endif

static PyObject *stack_key(PyObject *module, PyObject *arg)
{
    if (!PyFrame_Check(arg)) {
        PyErr_SetString(PyExc_TypeError, "stack_key(frame)");
        return NULL;
    }
    PyFrameObject *frame = (PyFrameObject *)Py_NewRef(arg);
    uint64_t key = 0x9e3779b97f4a7c15u;
    while (frame) {
        PyCodeObject *code = PyFrame_GetCode(frame);
        key = mix(key, (uint64_t)(uintptr_t)code);
        key = mix(key, (uint64_t)PyFrame_GetLasti(frame));
        Py_DECREF(code);
        PyFrameObject *back = PyFrame_GetBack(frame);
        Py_DECREF(frame);
        frame = back;
    }
    return PyLong_FromUnsignedLongLong(key ? key : 1);
}

/* ---- differences ---------------------------------------------------------------------------- */

static int is_float_kind(long kind)
{
    return kind >= 0 && kind < KIND_COUNT &&
           (KINDS[kind].category == FLOAT32 || KINDS[kind].category == FLOAT64);
}

static PyObject *difference(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 4) {
        PyErr_SetString(PyExc_TypeError, "difference(kind, address, other, count)");
        return NULL;
    }
    long kind = PyLong_AsLong(args[0]);
    const char *one = PyLong_AsVoidPtr(args[1]), *other = PyLong_AsVoidPtr(args[2]);
    Py_ssize_t count = PyLong_AsSsize_t(args[3]);
    if (PyErr_Occurred()) return NULL;
    if (!is_float_kind(kind) || count < 0 || (count && !(one && other))) {
        PyErr_SetString(PyExc_ValueError, "difference() needs float32 or float64, and addresses");
        return NULL;
    }
    difference_fn of = KINDS[kind].category == FLOAT32 ? chosen.difference_32 : chosen.difference_64;
    size_t itemsize = KINDS[kind].itemsize;
    struct difference found = {0, 0, 0};
    Py_BEGIN_ALLOW_THREADS
    for (size_t rest = (size_t)count, n; rest; rest -= n, one += n * itemsize, other += n * itemsize) {
        n = rest < BLOCK_BYTES / itemsize ? rest : BLOCK_BYTES / itemsize;
        of(one, other, n, &found);
    }
    Py_END_ALLOW_THREADS
    return Py_BuildValue("(ddd)", found.squares, found.moved, found.greatest);
}

/* ---- products ------------------------------------------------------------------------------- */

#define PRODUCT(NAME, TYPE)                                                                       \
    static void NAME(const void *block, const void *factors, size_t n, void *products)            \
    {                                                                                             \
        const TYPE *restrict p = block, *restrict by = factors;                                   \
        TYPE *restrict into = products;                                                           \
        for (size_t i = 0; i < n; i++) into[i] = p[i] * by[i];                                    \
    }

PRODUCT(product_32, float)
PRODUCT(product_64, double)

static PyObject *products(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 6) {
        PyErr_SetString(PyExc_TypeError, "products(kind, address, count, factors, period, target)");
        return NULL;
    }
    long kind = PyLong_AsLong(args[0]);
    const char *from = PyLong_AsVoidPtr(args[1]), *factors = PyLong_AsVoidPtr(args[3]);
    Py_ssize_t count = PyLong_AsSsize_t(args[2]), period = PyLong_AsSsize_t(args[4]);
    char *into = PyLong_AsVoidPtr(args[5]);
    if (PyErr_Occurred()) return NULL;
    if (!is_float_kind(kind) || count < 0 || period < 1 || (count && !(from && factors && into))) {
        PyErr_SetString(PyExc_ValueError, "products() needs float32 or float64, a period and addresses");
        return NULL;
    }
    size_t itemsize = KINDS[kind].itemsize;
    Py_BEGIN_ALLOW_THREADS
    for (size_t rest = (size_t)count, n; rest; rest -= n, from += n * itemsize, into += n * itemsize) {
        n = rest < (size_t)period ? rest : (size_t)period;
        (KINDS[kind].category == FLOAT32 ? product_32 : product_64)(from, factors, n, into);
    }
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* ---- memory --------------------------------------------------------------------------------- */

static PyObject *memory(PyObject *module, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 2) {
        PyErr_SetString(PyExc_TypeError, "memory(address, size_bytes)");
        return NULL;
    }
    char *start = PyLong_AsVoidPtr(args[0]);
    if (start == NULL && PyErr_Occurred()) return NULL;
    Py_ssize_t size = PyLong_AsSsize_t(args[1]);
    if (size == -1 && PyErr_Occurred()) return NULL;
    if (size < 0 || start == NULL) {
        PyErr_SetString(PyExc_ValueError, "memory() needs an address and a size");
        return NULL;
    }
    return PyMemoryView_FromMemory(start, size, PyBUF_READ);
}

/* ---- values of compiled graphs --------------------------------------------------------------- */

#include "_native_deliveries.h"

/* ---- module --------------------------------------------------------------------------------- */

static PyObject *use_isa(PyObject *module, PyObject *name)
{
    PyObject *names = PyList_New(0);
    if (!names) return NULL;
    int found = name == Py_None;
    for (size_t i = 0; i < sizeof ALL_KERNELS / sizeof *ALL_KERNELS; i++) {
        if (!isa_works(i)) continue;
        PyObject *text = PyUnicode_FromString(ALL_KERNELS[i].name);
        int bad = !text || PyList_Append(names, text) < 0;
        int wanted = bad ? -1 : name == Py_None ? 1 : PyObject_RichCompareBool(text, name, Py_EQ);
        Py_XDECREF(text);
        if (wanted < 0) {
            Py_DECREF(names);
            return NULL;
        }
        if (wanted) {
            chosen = ALL_KERNELS[i], found = 1;
            chosen_fold = fold_that_works(i);
            if (!crc_is_wide()) chosen.checked_f32 = NULL;
        }
    }
    if (found) return names;
    PyErr_Format(PyExc_ValueError, "%R is not one of %R", name, names);
    Py_DECREF(names);
    return NULL;
}

static PyObject *use_threads(PyObject *module, PyObject *number)
{
    long limit = PyLong_AsLong(number);
    if (limit == -1 && PyErr_Occurred()) return NULL;
    thread_limit = limit < 1 ? 1 : limit > MAX_THREADS ? MAX_THREADS : (int)limit;
    Py_RETURN_NONE;
}

static PyMethodDef METHODS[] = {
    {"stats", (PyCFunction)(void (*)(void))stats, METH_FASTCALL,
     "stats(kind, address, count) -> (max, min, mean, norm, nonfinite | None, projections | None)"},
    {"stats_strided", (PyCFunction)(void (*)(void))stats_strided, METH_FASTCALL,
     "stats_strided(kind, address, shape, strides, size_bytes) -> as stats()"},
    {"difference", (PyCFunction)(void (*)(void))difference, METH_FASTCALL,
     "difference(kind, address, other, count) -> (sum of squares, sum of the squares of the differences "
     "of the others, greatest difference) of float32 or float64"},
    {"products", (PyCFunction)(void (*)(void))products, METH_FASTCALL,
     "products(kind, address, count, factors, period, target): elements of float32 or float64, each times "
     "one of `period` factors in turn"},
    {"memory", (PyCFunction)(void (*)(void))memory, METH_FASTCALL,
     "memory(address, size_bytes) -> read-only memoryview; the caller keeps the owner alive"},
    {"stack_key", stack_key, METH_O,
     "stack_key(frame) -> non-zero 64-bit key of the Python stack of which `frame` is the innermost"},
    {"deliver_to", deliver_to, METH_O,
     "deliver_to(None | True | function): what is done with values that graphs hand over"},
    {"take_delivered", take_delivered, METH_NOARGS,
     "take_delivered() -> [(number, seconds, [as stats(), ...]), ...]"},
    {"use_threads", use_threads, METH_O,
     "use_threads(number): how many threads read large buffers; 1 unless told"},
    {"use_isa", use_isa, METH_O,
     "use_isa(name | None) -> names of the usable instruction sets; None takes the best"},
    {NULL, NULL, 0, NULL},
};

static struct msprobe_kind kind_at(int index)
{
    return (struct msprobe_kind){KINDS[index].name, KINDS[index].itemsize};
}

static const struct msprobe_native_api API = {MSPROBE_NATIVE_API_VERSION, KIND_COUNT, kind_at,
                                              statistics, measure, largest, read_blocks};

static struct PyModuleDef MODULE = {
    PyModuleDef_HEAD_INIT, "_native", "One-pass statistics and stack keys.", -1, METHODS,
    NULL, NULL, NULL, NULL,
};

PyMODINIT_FUNC PyInit__native(void)
{
#ifdef Py_LIMITED_API
    find_exported();
#endif
#if defined(__x86_64__)
    __builtin_cpu_init();
#endif
    fill_signs();
    fill_crc();
    PyObject *module = PyModule_Create(&MODULE), *kinds = PyDict_New(), *isas = NULL;
    if (!module || !kinds || !(isas = use_isa(module, Py_None))) goto fail;
    Py_CLEAR(isas);
    for (int i = 0; i < KIND_COUNT; i++) {
        PyObject *code = PyLong_FromLong(i);
        int bad = !code || PyDict_SetItemString(kinds, KINDS[i].name, code) < 0;
        Py_XDECREF(code);
        if (bad) goto fail;
    }
    if (PyModule_AddObjectRef(module, "KINDS", kinds) < 0) goto fail;
    PyObject *api = PyCapsule_New((void *)&API, MSPROBE_NATIVE_API, NULL);
    if (!api || PyModule_AddObject(module, "API", api) < 0) { /* takes the reference */
        Py_XDECREF(api);
        goto fail;
    }
    Py_DECREF(kinds);
    return module;
fail:
    Py_XDECREF(module);
    Py_XDECREF(kinds);
    return NULL;
}
