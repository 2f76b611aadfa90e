/* SPDX-License-Identifier: Apache-2.0
 *
 * The reductions of one block (at most BLOCK_BYTES) into a `struct total`.
 *
 * Included by _native.c once for each instruction set, with ISA(name) giving the names a suffix,
 * TARGET naming the set, REGISTER_BYTES its register width and HAS_F16C whether it converts float16.
 * The order of the additions is fixed
 * by LANES, not by the register width, and nothing is contracted, so every instruction set gives
 * the same bits.
 *
 * Extremes are found on integer keys: for IEEE formats, bits ^ (sign ? 0x7f...f : 0) taken as a
 * signed integer orders like the numbers, with NaN outside the infinities. One maximum and one
 * minimum therefore also say whether the block holds a NaN or an infinity, and, unlike
 * floating-point maxima, compilers vectorise them without being told to ignore NaN.
 */

#define PER_REGISTER (REGISTER_BYTES / 8)
#define REGISTERS (LANES / PER_REGISTER)

typedef double ISA(vf64) __attribute__((vector_size(REGISTER_BYTES), aligned(8), may_alias));
typedef int64_t ISA(vi64) __attribute__((vector_size(REGISTER_BYTES), aligned(8), may_alias));
typedef uint64_t ISA(vu64) __attribute__((vector_size(REGISTER_BYTES), aligned(8), may_alias));
typedef float ISA(vf32) __attribute__((vector_size(REGISTER_BYTES / 2), aligned(4), may_alias));
typedef uint32_t ISA(vu32) __attribute__((vector_size(REGISTER_BYTES / 2)));
typedef uint16_t ISA(vu16) __attribute__((vector_size(REGISTER_BYTES / 4), aligned(2), may_alias));

/* A group of LANES running values, in registers. */
typedef struct {
    ISA(vf64) part[REGISTERS];
} ISA(lanes);

TARGET static inline ISA(vf32) ISA(load_f32)(const void *p)
{
    return *(const ISA(vf32) *)p;
}

TARGET static inline ISA(vf32) ISA(load_bf16)(const void *p)
{
    return (ISA(vf32))(__builtin_convertvector(*(const ISA(vu16) *)p, ISA(vu32)) << 16);
}

TARGET static inline ISA(vf32) ISA(load_f16)(const void *p)
{
#if HAS_F16C && REGISTER_BYTES == 64
    return (ISA(vf32))_mm256_cvtph_ps(_mm_loadu_si128(p));
#elif HAS_F16C
    return (ISA(vf32))_mm_cvtph_ps(_mm_loadl_epi64(p));
#else
    ISA(vu32) bits = __builtin_convertvector(*(const ISA(vu16) *)p, ISA(vu32));
    ISA(vf32) magnitude = (ISA(vf32))((bits & 0x7fff) << 13) * 0x1p112f;
    return (ISA(vf32))((ISA(vu32))magnitude | ((bits & 0x8000) << 16));
#endif
}

TARGET static void ISA(keys_i16)(const int16_t *p, size_t n, struct total *t)
{
    int16_t max = INT16_MIN, min = INT16_MAX;
    for (size_t i = 0; i < n; i++) {
        int16_t key = (int16_t)(p[i] ^ ((p[i] >> 15) & 0x7fff));
        max = key > max ? key : max;
        min = key < min ? key : min;
    }
    if (max > t->max) t->max = max;
    if (min < t->min) t->min = min;
}

TARGET static void ISA(keys_i32)(const int32_t *p, size_t n, struct total *t)
{
    int32_t max = INT32_MIN, min = INT32_MAX;
    for (size_t i = 0; i < n; i++) {
        int32_t key = p[i] ^ ((p[i] >> 31) & 0x7fffffff);
        max = key > max ? key : max;
        min = key < min ? key : min;
    }
    if (max > t->max) t->max = max;
    if (min < t->min) t->min = min;
}

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

/* Squares of numbers with at most 26 bits of mantissa are exact in float64, so only the additions
 * round: LANES chains of at most BLOCK_BYTES / 4 / LANES additions, then compensated addition. */
#define SUM_BLOCK(NAME, TYPE, KEYS, LOAD, SCALAR)                                               \
    TARGET static void ISA(NAME)(const void *block, size_t n, struct total *t)                  \
    {                                                                                           \
        const TYPE *p = block;                                                                  \
        ISA(lanes) sum = {{{0}}}, sumsq = {{{0}}};                                              \
        size_t i = 0;                                                                           \
        ISA(KEYS)(block, n, t);                                                                 \
        for (; i + LANES <= n; i += LANES)                                                      \
            for (int r = 0; r < REGISTERS; r++) {                                               \
                ISA(vf64) x =                                                                   \
                    __builtin_convertvector(ISA(LOAD)(p + i + r * PER_REGISTER), ISA(vf64));    \
                sum.part[r] += x;                                                               \
                sumsq.part[r] += x * x;                                                         \
            }                                                                                   \
        for (size_t lane = 0; i < n; i++, lane++) {                                             \
            double x = SCALAR(p[i]);                                                            \
            ((double *)&sum)[lane] += x;                                                        \
            ((double *)&sumsq)[lane] += x * x;                                                  \
        }                                                                                       \
        add_lanes(&t->sum, (const double *)&sum);                                               \
        add_lanes(&t->sumsq, (const double *)&sumsq);                                           \
    }

SUM_BLOCK(block_f32, float, keys_i32, load_f32, (double))
SUM_BLOCK(block_bf16, uint16_t, keys_i16, load_bf16, bf16_to_float)
SUM_BLOCK(block_f16, uint16_t, keys_i16, load_f16, f16_to_float)

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
#undef INT_BLOCK
#undef LONG_BLOCK
#undef PER_REGISTER
#undef REGISTERS
