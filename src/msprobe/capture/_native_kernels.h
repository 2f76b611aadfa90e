/* SPDX-License-Identifier: Apache-2.0
 *
 * The reductions of one block (at most BLOCK_BYTES) into a `struct total`.
 *
 * Included by _native.c once for each instruction set, with ISA(name) giving the names a suffix,
 * TARGET naming the set, REGISTER_BYTES its register width and HAS_AVX whether it is one of x86.
 * The order of the additions is fixed by LANES, not by the register width, and nothing is
 * contracted that would round otherwise, so every instruction set gives the same bits.
 *
 * float32, bfloat16 and float16 are widened to 16 floats at a time (LOAD), whose extremes are found
 * as floats and whose sums are added as doubles. Their squares are exact in float64, so a fused
 * multiply-add rounds once, as the separate operations do. NaN passes the extremes by; the sum of
 * squares tells whether there was a NaN or an infinity.
 *
 * Extremes of float64 are found on integer keys: bits ^ (sign ? 0x7f...f : 0) taken as a signed
 * integer orders like the numbers, with NaN outside the infinities. One maximum and one minimum
 * therefore also say whether the block holds a NaN or an infinity, and, unlike floating-point
 * maxima, compilers vectorise them without being told to ignore NaN.
 */

#define PER_REGISTER (REGISTER_BYTES / 8)
#define REGISTERS (LANES / PER_REGISTER)

typedef double ISA(vf64) __attribute__((vector_size(REGISTER_BYTES), aligned(8), may_alias));
typedef int64_t ISA(vi64) __attribute__((vector_size(REGISTER_BYTES), aligned(8), may_alias));
typedef uint64_t ISA(vu64) __attribute__((vector_size(REGISTER_BYTES), aligned(8), may_alias));

/* A group of LANES running values, in registers. */
typedef struct {
    ISA(vf64) part[REGISTERS];
} ISA(lanes);

/* 16 floats, and the running values of 16 lanes. */
#if HAS_AVX && REGISTER_BYTES == 64
typedef __m512 ISA(floats);

TARGET static inline ISA(floats) ISA(load_f32)(const void *p)
{
    return _mm512_loadu_ps(p);
}

TARGET static inline ISA(floats) ISA(load_bf16)(const void *p)
{
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

TARGET static inline ISA(floats) ISA(load_f16)(const void *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256(p));
}

/* The second operand is the result where the first is NaN. */
#define MAX_FLOATS(x, max) _mm512_max_ps(x, max)
#define MIN_FLOATS(x, min) _mm512_min_ps(x, min)

TARGET static inline void ISA(add_floats)(ISA(floats) x, ISA(lanes) *sum, ISA(lanes) *sumsq)
{
    __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(x));
    __m512d high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1));
    sum->part[0] += low;
    sum->part[1] += high;
    sumsq->part[0] = _mm512_fmadd_pd(low, low, sumsq->part[0]);
    sumsq->part[1] = _mm512_fmadd_pd(high, high, sumsq->part[1]);
}
#elif HAS_AVX
typedef struct {
    __m256 low, high;
} ISA(floats);

TARGET static inline ISA(floats) ISA(load_f32)(const void *p)
{
    return (ISA(floats)){_mm256_loadu_ps(p), _mm256_loadu_ps((const float *)p + 8)};
}

TARGET static inline __m256 ISA(half_bf16)(const void *p)
{
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}

TARGET static inline ISA(floats) ISA(load_bf16)(const void *p)
{
    return (ISA(floats)){ISA(half_bf16)(p), ISA(half_bf16)((const uint16_t *)p + 8)};
}

TARGET static inline ISA(floats) ISA(load_f16)(const void *p)
{
    return (ISA(floats)){_mm256_cvtph_ps(_mm_loadu_si128(p)),
                         _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p + 1))};
}

#define MAX_FLOATS(x, max) \
    ((ISA(floats)){_mm256_max_ps((x).low, (max).low), _mm256_max_ps((x).high, (max).high)})
#define MIN_FLOATS(x, min) \
    ((ISA(floats)){_mm256_min_ps((x).low, (min).low), _mm256_min_ps((x).high, (min).high)})

TARGET static inline void ISA(add_floats)(ISA(floats) x, ISA(lanes) *sum, ISA(lanes) *sumsq)
{
    const __m256d wide[4] = {
        _mm256_cvtps_pd(_mm256_castps256_ps128(x.low)),
        _mm256_cvtps_pd(_mm256_extractf128_ps(x.low, 1)),
        _mm256_cvtps_pd(_mm256_castps256_ps128(x.high)),
        _mm256_cvtps_pd(_mm256_extractf128_ps(x.high, 1)),
    };
    for (int r = 0; r < 4; r++) {
        sum->part[r] += wide[r];
        sumsq->part[r] = _mm256_fmadd_pd(wide[r], wide[r], sumsq->part[r]);
    }
}
#else
typedef struct {
    float of[LANES];
} ISA(floats);

static inline ISA(floats) ISA(load_f32)(const void *p)
{
    ISA(floats) x;
    memcpy(&x, p, sizeof x);
    return x;
}

static inline ISA(floats) ISA(load_bf16)(const void *p)
{
    ISA(floats) x;
    for (int i = 0; i < LANES; i++) x.of[i] = bf16_to_float(((const uint16_t *)p)[i]);
    return x;
}

static inline ISA(floats) ISA(load_f16)(const void *p)
{
    ISA(floats) x;
    for (int i = 0; i < LANES; i++) x.of[i] = f16_to_float(((const uint16_t *)p)[i]);
    return x;
}

static inline ISA(floats) ISA(max_floats)(ISA(floats) x, ISA(floats) max)
{
    for (int i = 0; i < LANES; i++) max.of[i] = x.of[i] > max.of[i] ? x.of[i] : max.of[i];
    return max;
}

static inline ISA(floats) ISA(min_floats)(ISA(floats) x, ISA(floats) min)
{
    for (int i = 0; i < LANES; i++) min.of[i] = x.of[i] < min.of[i] ? x.of[i] : min.of[i];
    return min;
}

#define MAX_FLOATS(x, max) ISA(max_floats)(x, max)
#define MIN_FLOATS(x, min) ISA(min_floats)(x, min)

static inline void ISA(add_floats)(ISA(floats) x, ISA(lanes) *sum, ISA(lanes) *sumsq)
{
    double *sums = (double *)sum, *squares = (double *)sumsq;
    for (int i = 0; i < LANES; i++) {
        double wide = x.of[i];
        sums[i] += wide;
        squares[i] += wide * wide;
    }
}
#endif

TARGET static void ISA(keys_i64)(const int64_t *p, size_t n, struct total *t)
{
    int64_t max = INT64_MIN, min = INT64_MAX;
    for (size_t i = 0; i < n; i++) {
        int64_t key = p[i] ^ ((p[i] >> 63) & INT64_MAX);
        max = key > max ? key : max;
        min = key < min ? key : min;
    }
    if (max > t->max) t->max = max;
    if (min < t->min) t->min = min;
}

/* LANES chains of at most BLOCK_BYTES / 2 / LANES additions, then compensated addition. */
#define SUM_BLOCK(NAME, TYPE, LOAD, SCALAR)                                                     \
    TARGET static void ISA(NAME)(const void *block, size_t n, struct total *t)                  \
    {                                                                                           \
        const TYPE *p = block;                                                                  \
        float ends[2][LANES];                                                                   \
        for (int lane = 0; lane < LANES; lane++)                                                \
            ends[0][lane] = -INFINITY, ends[1][lane] = INFINITY;                                \
        ISA(lanes) sum = {{{0}}}, sumsq = {{{0}}};                                              \
        ISA(floats) max = ISA(load_f32)(ends[0]), min = ISA(load_f32)(ends[1]);                 \
        size_t i = 0;                                                                           \
        for (; i + LANES <= n; i += LANES) {                                                    \
            ISA(floats) x = ISA(LOAD)(p + i);                                                   \
            max = MAX_FLOATS(x, max);                                                           \
            min = MIN_FLOATS(x, min);                                                           \
            ISA(add_floats)(x, &sum, &sumsq);                                                   \
        }                                                                                       \
        memcpy(ends[0], &max, sizeof ends[0]);                                                  \
        memcpy(ends[1], &min, sizeof ends[1]);                                                  \
        for (size_t lane = 0; i < n; i++, lane++) {                                             \
            double x = SCALAR(p[i]);                                                            \
            ((double *)&sum)[lane] += x;                                                        \
            ((double *)&sumsq)[lane] += x * x;                                                  \
            if (x > ends[0][lane]) ends[0][lane] = (float)x;                                    \
            if (x < ends[1][lane]) ends[1][lane] = (float)x;                                    \
        }                                                                                       \
        for (int lane = 0; lane < LANES; lane++) {                                              \
            if (ends[0][lane] > t->float_max) t->float_max = ends[0][lane];                     \
            if (ends[1][lane] < t->float_min) t->float_min = ends[1][lane];                     \
        }                                                                                       \
        add_lanes(&t->sum, (const double *)&sum);                                               \
        add_lanes(&t->sumsq, (const double *)&sumsq);                                           \
    }

SUM_BLOCK(block_f32, float, load_f32, (double))
SUM_BLOCK(block_bf16, uint16_t, load_bf16, bf16_to_float)
SUM_BLOCK(block_f16, uint16_t, load_f16, f16_value)

/* float64 has no wider type to add in: each lane keeps the rounding errors of its additions
 * (Knuth's TwoSum), which doubles the precision of the sum. */
TARGET static void ISA(block_f64)(const void *block, size_t n, struct total *t)
{
    const double *p = block;
    ISA(lanes) sum = {{{0}}}, error = {{{0}}}, sumsq = {{{0}}};
    size_t i = 0;
    ISA(keys_i64)(block, n, t);
    for (; i + LANES <= n; i += LANES)
        for (int r = 0; r < REGISTERS; r++) {
            ISA(vf64) x = *(const ISA(vf64) *)(p + i + r * PER_REGISTER);
            ISA(vf64) next = sum.part[r] + x;
            ISA(vf64) part = next - sum.part[r];
            error.part[r] += (sum.part[r] - (next - part)) + (x - part);
            sum.part[r] = next;
            sumsq.part[r] += x * x;
        }
    for (size_t lane = 0; i < n; i++, lane++) {
        struct exact pair = {((double *)&sum)[lane], ((double *)&error)[lane]};
        exact_add(&pair, p[i]);
        ((double *)&sum)[lane] = pair.value;
        ((double *)&error)[lane] = pair.error;
        ((double *)&sumsq)[lane] += p[i] * p[i];
    }
    add_lanes(&t->sum, (const double *)&sum);
    add_lanes(&t->sum, (const double *)&error);
    add_lanes(&t->sumsq, (const double *)&sumsq);
}

/* Integers up to 32 bits: sums and sums of squares are exact (the squares in two halves). */
#define INT_BLOCK(NAME, TYPE, WIDE)                                                             \
    TARGET static void ISA(NAME)(const void *block, size_t n, struct total *t)                  \
    {                                                                                           \
        const TYPE *p = block;                                                                  \
        TYPE max = p[0], min = p[0];                                                            \
        int64_t sum = 0;                                                                        \
        uint64_t low = 0, high = 0;                                                             \
        for (size_t i = 0; i < n; i++) {                                                        \
            max = p[i] > max ? p[i] : max;                                                      \
            min = p[i] < min ? p[i] : min;                                                      \
            sum += p[i];                                                                        \
        }                                                                                       \
        for (size_t i = 0; i < n; i++) {                                                        \
            uint64_t square = (uint64_t)((WIDE)p[i] * (WIDE)p[i]);                              \
            low += (uint32_t)square;                                                            \
            high += square >> 32;                                                               \
        }                                                                                       \
        if ((int64_t)max > t->max) t->max = max;                                                \
        if ((int64_t)min < t->min) t->min = min;                                                \
        t->int_sum += sum;                                                                      \
        t->int_sumsq += ((unsigned __int128)high << 32) + low;                                  \
    }

INT_BLOCK(block_i16, int16_t, int64_t)
INT_BLOCK(block_u16, uint16_t, uint64_t)
INT_BLOCK(block_i32, int32_t, int64_t)
INT_BLOCK(block_u32, uint32_t, uint64_t)

/* 64-bit integers: the sum is exact, the squares are added in float64. Unsigned numbers are
 * compared as signed ones with the top bit flipped (`FLIP`), and stay so in `t`. */
#define LONG_BLOCK(NAME, TYPE, VECTOR, FLIP)                                                    \
    TARGET static void ISA(NAME)(const void *block, size_t n, struct total *t)                  \
    {                                                                                           \
        const TYPE *p = block;                                                                  \
        int64_t max = INT64_MIN, min = INT64_MAX, high = 0;                                     \
        uint64_t low = 0;                                                                       \
        ISA(lanes) sumsq = {{{0}}};                                                             \
        size_t i = 0;                                                                           \
        for (size_t j = 0; j < n; j++) {                                                        \
            int64_t key = (int64_t)((uint64_t)p[j] ^ (FLIP));                                   \
            max = key > max ? key : max;                                                        \
            min = key < min ? key : min;                                                        \
            low += (uint32_t)p[j];                                                              \
            high += (int64_t)(p[j] >> 32);                                                      \
        }                                                                                       \
        for (; i + LANES <= n; i += LANES)                                                      \
            for (int r = 0; r < REGISTERS; r++) {                                               \
                ISA(vf64) x = __builtin_convertvector(                                          \
                    *(const ISA(VECTOR) *)(p + i + r * PER_REGISTER), ISA(vf64));               \
                sumsq.part[r] += x * x;                                                         \
            }                                                                                   \
        for (size_t lane = 0; i < n; i++, lane++)                                               \
            ((double *)&sumsq)[lane] += (double)p[i] * (double)p[i];                            \
        if (max > t->max) t->max = max;                                                         \
        if (min < t->min) t->min = min;                                                         \
        t->int_sum += (__int128)high * ((__int128)1 << 32) + low;                               \
        add_lanes(&t->sumsq, (const double *)&sumsq);                                           \
    }

LONG_BLOCK(block_i64, int64_t, vi64, 0)
LONG_BLOCK(block_u64, uint64_t, vu64, (uint64_t)1 << 63)

TARGET static void ISA(block_bool)(const void *block, size_t n, struct total *t)
{
    const uint8_t *p = block;
    uint8_t max = 0, min = UINT8_MAX;
    for (size_t i = 0; i < n; i++) {
        max = p[i] > max ? p[i] : max;
        min = p[i] < min ? p[i] : min;
    }
    if (max > t->max) t->max = max;
    if (min < t->min) t->min = min;
}

#undef SUM_BLOCK
#undef MAX_FLOATS
#undef MIN_FLOATS
#undef INT_BLOCK
#undef LONG_BLOCK
#undef PER_REGISTER
#undef REGISTERS
