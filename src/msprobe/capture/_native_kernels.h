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

/* 16 floats. Halves of 32 bytes widen to doubles without moving anything between registers; where a
 * register holds 16, the extremes are those of `all`, and halves of float32 are read from memory again,
 * which takes no arithmetic. */
#if HAS_AVX
typedef struct {
#if REGISTER_BYTES == 64
    __m512 all;
#endif
    __m256 half[2];
} ISA(floats);

#if REGISTER_BYTES == 64
typedef __m512d ISA(wide);
#define WIDE(x, r) _mm512_cvtps_pd((x).half[r])
#define FMA(x, y, z) _mm512_fmadd_pd(x, y, z)
#define MAX_FLOATS(x, max) ((ISA(floats)){.all = _mm512_max_ps((x).all, (max).all)})
#define MIN_FLOATS(x, min) ((ISA(floats)){.all = _mm512_min_ps((x).all, (min).all)})

TARGET static inline ISA(floats) ISA(load_f32)(const void *p)
{
    return (ISA(floats)){_mm512_loadu_ps(p),
                         {_mm256_loadu_ps(p), _mm256_loadu_ps((const float *)p + 8)}};
}

TARGET static inline ISA(floats) ISA(halved)(__m512 x)
{
    return (ISA(floats)){x, {_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1)}};
}

TARGET static inline ISA(floats) ISA(load_bf16)(const void *p)
{
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p));
    return ISA(halved)(_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16)));
}

TARGET static inline ISA(floats) ISA(load_f16)(const void *p)
{
    return ISA(halved)(_mm512_cvtph_ps(_mm256_loadu_si256(p)));
}
#else
typedef __m256d ISA(wide);
#define WIDE(x, r)                                                                              \
    _mm256_cvtps_pd((r) % 2 ? _mm256_extractf128_ps((x).half[(r) / 2], 1)                       \
                            : _mm256_castps256_ps128((x).half[(r) / 2]))
#define FMA(x, y, z) _mm256_fmadd_pd(x, y, z)
/* The second operand is the result where the first is NaN. */
#define MAX_FLOATS(x, max)                                                                      \
    ((ISA(floats)){{_mm256_max_ps((x).half[0], (max).half[0]),                                  \
                    _mm256_max_ps((x).half[1], (max).half[1])}})
#define MIN_FLOATS(x, min)                                                                      \
    ((ISA(floats)){{_mm256_min_ps((x).half[0], (min).half[0]),                                  \
                    _mm256_min_ps((x).half[1], (min).half[1])}})

TARGET static inline ISA(floats) ISA(load_f32)(const void *p)
{
    return (ISA(floats)){{_mm256_loadu_ps(p), _mm256_loadu_ps((const float *)p + 8)}};
}

TARGET static inline __m256 ISA(half_bf16)(const void *p)
{
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}

TARGET static inline ISA(floats) ISA(load_bf16)(const void *p)
{
    return (ISA(floats)){{ISA(half_bf16)(p), ISA(half_bf16)((const uint16_t *)p + 8)}};
}

TARGET static inline ISA(floats) ISA(load_f16)(const void *p)
{
    return (ISA(floats)){{_mm256_cvtph_ps(_mm_loadu_si128(p)),
                          _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p + 1))}};
}
#endif

TARGET static inline void ISA(add_floats)(ISA(floats) x, ISA(lanes) *sum, ISA(lanes) *sumsq)
{
    for (int r = 0; r < REGISTERS; r++) {
        ISA(wide) wide = WIDE(x, r);
        sum->part[r] += wide;
        sumsq->part[r] = FMA(wide, wide, sumsq->part[r]);
    }
}

#undef WIDE
#else
#define FMA(x, y, z) ((x) * (y) + (z))
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

/* Add the elements of group `g` with their signs to the projections: a product with a sign is exact. */
TARGET static inline void ISA(project_group)(const ISA(lanes) *group, const struct signs *signs,
                                             int g, ISA(lanes) projection[PROJECTIONS])
{
    for (int k = 0; k < PROJECTIONS; k++)
        for (int r = 0; r < REGISTERS; r++) {
            ISA(vf64) sign = *(const ISA(vf64) *)(signs->of[k] + g * LANES + r * PER_REGISTER);
            projection[k].part[r] = FMA(group->part[r], sign, projection[k].part[r]);
        }
}

TARGET static inline void ISA(add_group)(const ISA(lanes) *group, ISA(lanes) *sum)
{
    for (int r = 0; r < REGISTERS; r++) sum->part[r] += group->part[r];
}

/* Large tensors come from memory, and the processor's own prefetching ends at each page of 4096
 * bytes: with each line that is read, one two pages on is asked for. Addresses behind the end of a
 * tensor are never read, only asked for. */
#define PREFETCH(p) __builtin_prefetch((const char *)(p) + 8192)

/* In a sign block every SIGN_GROUPS-th 16 elements have equal signs. So they are added up first,
 * and the projections cost nothing but what is done once for each sign block. What else a
 * kernel finds is named by `AND`, of all elements EXTREMES or NOTHING, and by `WITH`, of those of whole
 * sign blocks CHECKSUM or NOTHING; see below. */
#define SUM_BLOCK(NAME, TYPE, LOAD, SCALAR, AND, WITH)                                                \
    WITH##_TARGET static void ISA(NAME)(const void *block, size_t n, struct total *t)            \
    {                                                                                           \
        const TYPE *p = block;                                                                  \
        ISA(lanes) sumsq = {{{0}}}, projection[PROJECTIONS] = {{{{0}}}};                        \
        AND##_FIRST                                                                             \
        WITH##_BEGIN                                                                            \
        for (; n >= SIGN_BLOCK; n -= SIGN_BLOCK, t->projections.index += SIGN_BLOCK) {          \
            ISA(lanes) group[SIGN_GROUPS] = {{{{0}}}};                                          \
            for (int repeat = 0; repeat < SIGN_REPEATS; repeat++)                               \
                _Pragma("GCC unroll 16") for (int g = 0; g < SIGN_GROUPS; g++, p += LANES) {    \
                    if (g * sizeof(*p) % sizeof(float) == 0) PREFETCH(p);                       \
                    ISA(floats) x = ISA(LOAD)(p);                                               \
                    AND##_EACH(x)                                                               \
                    ISA(add_floats)(x, &group[g], &sumsq);                                      \
                    WITH##_WHOLE(p, g)                                                           \
                }                                                                               \
            struct signs signs = signs_from(t->projections.index);                              \
            _Pragma("GCC unroll 16") for (int g = 0; g < SIGN_GROUPS; g++) {                    \
                AND##_GROUP(&group[g])                                                          \
                ISA(project_group)(&group[g], &signs, g, projection);                           \
            }                                                                                   \
        }                                                                                       \
        WITH##_END                                                                              \
        struct signs signs = signs_from(t->projections.index);                                  \
        ISA(lanes) rest[SIGN_GROUPS];                                                           \
        int used = (int)((n + LANES - 1) / LANES), g = 0;                                       \
        if (used > SIGN_GROUPS) used = SIGN_GROUPS;                                             \
        memset(rest, 0, (size_t)used * sizeof *rest);                                           \
        for (; n >= LANES; n -= LANES, p += LANES, t->projections.index += LANES) {             \
            ISA(floats) x = ISA(LOAD)(p);                                                       \
            AND##_EACH(x)                                                                       \
            ISA(add_floats)(x, &rest[g], &sumsq);                                               \
            g = g + 1 == SIGN_GROUPS ? 0 : g + 1;                                               \
        }                                                                                       \
        AND##_STORE                                                                  \
        for (size_t lane = 0; lane < n; lane++) {                                               \
            double x = SCALAR(p[lane]);                                                         \
            ((double *)&rest[g])[lane] += x;                                                    \
            ((double *)&sumsq)[lane] += x * x;                                                  \
            AND##_LANE(x, lane)                                                                 \
        }                                                                                       \
        for (g = 0; g < used; g++) {                                                            \
            AND##_GROUP(&rest[g])                                                               \
            ISA(project_group)(&rest[g], &signs, g, projection);                                \
        }                                                                                       \
        t->projections.index += n;                                                              \
        AND##_LAST                                                                               \
        add_lanes(&t->sumsq, (const double *)&sumsq);                                           \
        for (int k = 0; k < PROJECTIONS; k++)                                                   \
            exact_add(&t->projections.of[k], sum_of_lanes((const double *)&projection[k]));     \
    }

#define NOTHING_TARGET TARGET
#define NOTHING_BEGIN
#define NOTHING_WHOLE(p, g)
#define NOTHING_END

#define NOTHING_FIRST
#define NOTHING_EACH(x)
#define NOTHING_GROUP(group)
#define NOTHING_STORE
#define NOTHING_LANE(x, lane)
#define NOTHING_LAST

/* Extremes, and the sum. */
#define EXTREMES_FIRST                                                                          \
    float ends[2][LANES];                                                                       \
    for (int lane = 0; lane < LANES; lane++) ends[0][lane] = -INFINITY, ends[1][lane] = INFINITY; \
    ISA(lanes) sum = {{{0}}};                                                                   \
    ISA(floats) max = ISA(load_f32)(ends[0]), min = ISA(load_f32)(ends[1]);
#define EXTREMES_EACH(x)                                                                        \
    max = MAX_FLOATS(x, max);                                                                   \
    min = MIN_FLOATS(x, min);
#define EXTREMES_GROUP(group) ISA(add_group)(group, &sum);
#define EXTREMES_STORE                                                                          \
    memcpy(ends[0], &max, sizeof ends[0]);                                                      \
    memcpy(ends[1], &min, sizeof ends[1]);
#define EXTREMES_LANE(x, lane)                                                                  \
    if (x > ends[0][lane]) ends[0][lane] = (float)x;                                            \
    if (x < ends[1][lane]) ends[1][lane] = (float)x;
#define EXTREMES_LAST                                                                           \
    for (int lane = 0; lane < LANES; lane++) {                                                  \
        if (ends[0][lane] > t->float_max) t->float_max = ends[0][lane];                         \
        if (ends[1][lane] < t->float_min) t->float_min = ends[1][lane];                         \
    }                                                                                           \
    add_lanes(&t->sum, (const double *)&sum);

SUM_BLOCK(block_f32, float, load_f32, (double), EXTREMES, NOTHING)
SUM_BLOCK(block_bf16, uint16_t, load_bf16, bf16_to_float, EXTREMES, NOTHING)
SUM_BLOCK(block_f16, uint16_t, load_f16, f16_value, EXTREMES, NOTHING)

SUM_BLOCK(norm_f32, float, load_f32, (double), NOTHING, NOTHING)
SUM_BLOCK(norm_bf16, uint16_t, load_bf16, bf16_to_float, NOTHING, NOTHING)
SUM_BLOCK(norm_f16, uint16_t, load_f16, f16_value, NOTHING, NOTHING)

#if REGISTER_BYTES == 64
/* It hides behind the wait for memory. */
#define CHECKSUM_TARGET CRC_WIDE_TARGET
#define CHECKSUM_BEGIN                                                                          \
    __m512i part[CRC_PARTS], by = wide_factors();                                               \
    memcpy(part, t->crc->folded, sizeof part);
#define CHECKSUM_WHOLE(p, g)                                                                    \
    part[(g) % CRC_PARTS] = moved_wide(part[(g) % CRC_PARTS], by, _mm512_loadu_si512(p));
#define CHECKSUM_END memcpy(t->crc->folded, part, sizeof part);

SUM_BLOCK(checked_f32, float, load_f32, (double), NOTHING, CHECKSUM)

#undef CHECKSUM_TARGET
#undef CHECKSUM_BEGIN
#undef CHECKSUM_WHOLE
#undef CHECKSUM_END
#endif

#undef NOTHING_TARGET
#undef NOTHING_BEGIN
#undef NOTHING_WHOLE
#undef NOTHING_END
#undef NOTHING_FIRST
#undef NOTHING_EACH
#undef NOTHING_GROUP
#undef NOTHING_STORE
#undef NOTHING_LANE
#undef NOTHING_LAST
#undef EXTREMES_FIRST
#undef EXTREMES_EACH
#undef EXTREMES_GROUP
#undef EXTREMES_STORE
#undef EXTREMES_LANE
#undef EXTREMES_LAST

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

/* Count the elements whose magnitude is below the one with the bits `limit`; NaN is above all. */
#define BELOW_BLOCK(NAME, TYPE, MAGNITUDE)                                                      \
    TARGET static size_t ISA(NAME)(const void *block, size_t n, uint64_t limit)                 \
    {                                                                                           \
        const TYPE *p = block;                                                                  \
        TYPE end = (TYPE)limit;                                                                 \
        size_t count = 0;                                                                       \
        while (n) {                                                                             \
            size_t step = n < 128 ? n : 128; /* sums of 8 bits and more hold as many */         \
            TYPE few = 0;                                                                       \
            for (size_t i = 0; i < step; i++) few += (TYPE)((TYPE)(p[i] & MAGNITUDE) < end);    \
            count += few, p += step, n -= step;                                                 \
        }                                                                                       \
        return count;                                                                           \
    }

BELOW_BLOCK(below_16, uint16_t, 0x7fff)
BELOW_BLOCK(below_32, uint32_t, 0x7fffffff)
BELOW_BLOCK(below_64, uint64_t, (uint64_t)INT64_MAX)

/* The greatest bits of the magnitudes: those of a NaN are above those of an infinity. */
#define GREATEST_BLOCK(NAME, TYPE, MAGNITUDE)                                                   \
    TARGET static uint64_t ISA(NAME)(const void *block, size_t n)                               \
    {                                                                                           \
        const TYPE *p = block;                                                                  \
        TYPE greatest = 0;                                                                      \
        for (size_t i = 0; i < n; i++) {                                                        \
            TYPE bits = (TYPE)(p[i] & MAGNITUDE);                                               \
            greatest = bits > greatest ? bits : greatest;                                       \
        }                                                                                       \
        return greatest;                                                                        \
    }

GREATEST_BLOCK(greatest_16, uint16_t, 0x7fff)
GREATEST_BLOCK(greatest_32, uint32_t, 0x7fffffff)
GREATEST_BLOCK(greatest_64, uint64_t, (uint64_t)INT64_MAX)

/* Add the squares of the elements, and those of the differences of others from them, to `found`, and
 * note the greatest difference. NaN is in the sums alone. */
#define DIFFERENCE_BLOCK(NAME, TYPE)                                                            \
    TARGET static void ISA(NAME)(const void *block, const void *other, size_t n,                \
                                 struct difference *found)                                      \
    {                                                                                           \
        const TYPE *p = block, *q = other;                                                      \
        TYPE squares[DIFFERENCE_LANES] = {0}, moved[DIFFERENCE_LANES] = {0};                    \
        TYPE greatest[DIFFERENCE_LANES] = {0};                                                  \
        for (; n >= DIFFERENCE_LANES; n -= DIFFERENCE_LANES) {                                  \
            for (int k = 0; k < DIFFERENCE_LANES; k++) {                                        \
                TYPE by = q[k] - p[k], size = by < 0 ? -by : by;                                \
                squares[k] += p[k] * p[k];                                                      \
                moved[k] += by * by;                                                            \
                greatest[k] = size > greatest[k] ? size : greatest[k];                          \
            }                                                                                   \
            p += DIFFERENCE_LANES, q += DIFFERENCE_LANES;                                       \
        }                                                                                       \
        for (size_t k = 0; k < n; k++) {                                                        \
            TYPE by = q[k] - p[k], size = by < 0 ? -by : by;                                    \
            squares[k] += p[k] * p[k];                                                          \
            moved[k] += by * by;                                                                \
            greatest[k] = size > greatest[k] ? size : greatest[k];                              \
        }                                                                                       \
        for (int k = 0; k < DIFFERENCE_LANES; k++) {                                            \
            found->squares += squares[k];                                                       \
            found->moved += moved[k];                                                           \
            if (greatest[k] > found->greatest) found->greatest = greatest[k];                   \
        }                                                                                       \
    }

DIFFERENCE_BLOCK(difference_32, float)
DIFFERENCE_BLOCK(difference_64, double)

/* Add up the elements of at most a sign block that have equal signs, for the types whose own
 * reduction does not project. `sums` gets min(n, SIGN_PERIOD) numbers. */
#define FOLD(NAME, TYPE, WIDE)                                                                  \
    TARGET static void ISA(NAME)(const void *block, size_t n, double *sums)                     \
    {                                                                                           \
        const TYPE *p = block;                                                                  \
        if (n == SIGN_BLOCK) {                                                                  \
            for (size_t i = 0; i < SIGN_PERIOD; i++) {                                          \
                WIDE sum = (WIDE)p[i];                                                          \
                _Pragma("GCC unroll 8") for (size_t repeat = 1; repeat < SIGN_REPEATS; repeat++) \
                    sum += (WIDE)p[i + repeat * SIGN_PERIOD];                                   \
                sums[i] = (double)sum;                                                          \
            }                                                                                   \
            return;                                                                             \
        }                                                                                       \
        size_t used = n < SIGN_PERIOD ? n : SIGN_PERIOD;                                        \
        for (size_t i = 0; i < used; i++) sums[i] = (double)p[i];                               \
        for (; n > SIGN_PERIOD; n -= used) {                                                    \
            p += SIGN_PERIOD;                                                                   \
            used = n < 2 * SIGN_PERIOD ? n - SIGN_PERIOD : SIGN_PERIOD;                         \
            for (size_t i = 0; i < used; i++) sums[i] += (double)p[i];                          \
        }                                                                                       \
    }

/* Sums of a few 8-bit and 16-bit integers are exact in an int, which takes half the registers. */
FOLD(fold_i8, int8_t, int)
FOLD(fold_u8, uint8_t, int)
FOLD(fold_i16, int16_t, int)
FOLD(fold_u16, uint16_t, int)
FOLD(fold_i32, int32_t, double)
FOLD(fold_u32, uint32_t, double)
FOLD(fold_i64, int64_t, double)
FOLD(fold_u64, uint64_t, double)
FOLD(fold_f32, float, double)
FOLD(fold_f64, double, double)

/* Project what was folded from the `n` elements of a sign block. */
TARGET static void ISA(project)(double *sums, size_t n, struct projections *projections)
{
    struct signs signs = signs_from(projections->index);
    ISA(lanes) projection[PROJECTIONS] = {{{{0}}}};
    size_t used = n < SIGN_PERIOD ? n : SIGN_PERIOD;
    int groups = (int)((used + LANES - 1) / LANES);
    for (; used % LANES; used++) sums[used] = 0.0;
    for (int g = 0; g < groups; g++)
        ISA(project_group)((const ISA(lanes) *)(sums + g * LANES), &signs, g, projection);
    for (int k = 0; k < PROJECTIONS; k++)
        exact_add(&projections->of[k], sum_of_lanes((const double *)&projection[k]));
    projections->index += n;
}

#undef SUM_BLOCK
#undef FMA
#undef PREFETCH
#undef BELOW_BLOCK
#undef GREATEST_BLOCK
#undef DIFFERENCE_BLOCK
#undef FOLD
#undef MAX_FLOATS
#undef MIN_FLOATS
#undef INT_BLOCK
#undef LONG_BLOCK
#undef PER_REGISTER
#undef REGISTERS
