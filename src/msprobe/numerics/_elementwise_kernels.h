/* SPDX-License-Identifier: Apache-2.0
 *
 * What is done with a block, once for each instruction set.
 *
 * Included by _elementwise.c with ISA(name) giving the names a suffix, TARGET naming the set and
 * REGISTER_BYTES its register width. Blocks are padded with zeros to whole groups of LANES
 * numbers. The order of the additions is fixed by LANES, not by the register width, and nothing is
 * contracted, so every instruction set gives the same bits.
 */

#define PER_REGISTER (REGISTER_BYTES / 8)
#define REGISTERS (LANES / PER_REGISTER)

typedef double ISA(vf) __attribute__((vector_size(REGISTER_BYTES), aligned(8), may_alias));
typedef int64_t ISA(vi) __attribute__((vector_size(REGISTER_BYTES), aligned(8), may_alias));
typedef uint64_t ISA(vu) __attribute__((vector_size(REGISTER_BYTES), aligned(8), may_alias));

/* A group of LANES running values, in registers. */
typedef struct {
    ISA(vf) part[REGISTERS];
} ISA(lanes);
typedef struct {
    ISA(vi) part[REGISTERS];
} ISA(counts);

#define ABSOLUTE(x) ((ISA(vf))((ISA(vi))(x) & INT64_MAX))
#define KEEP(x, mask) ((ISA(vf))((ISA(vi))(x) & (mask)))

/* The larger of two numbers that are not NaN. */
TARGET static inline ISA(vf) ISA(larger)(ISA(vf) a, ISA(vf) b)
{
#if REGISTER_BYTES == 64
    return (ISA(vf))_mm512_max_pd((__m512d)a, (__m512d)b);
#elif HAS_AVX2
    return (ISA(vf))_mm256_max_pd((__m256d)a, (__m256d)b);
#else
    ISA(vi) mask = a > b;
    return (ISA(vf))(((ISA(vi))a & mask) | ((ISA(vi))b & ~mask));
#endif
}

TARGET static double ISA(maximum)(ISA(vf) values)
{
    double largest = values[0];
    for (int i = 1; i < PER_REGISTER; i++)
        if (values[i] > largest) largest = values[i];
    return largest;
}

TARGET static uint64_t ISA(count)(ISA(vi) masks)
{
    int64_t total = 0;
    for (int i = 0; i < PER_REGISTER; i++) total -= masks[i];
    return (uint64_t)total;
}

/* ---- widening -------------------------------------------------------------------------------- */

#define WIDEN(TYPE, VALUE)                                                                      \
    {                                                                                           \
        typedef TYPE __attribute__((aligned(1), may_alias)) raw_type;                           \
        const raw_type *p = raw;                                                                \
        for (size_t i = 0; i < n; i++) out[i] = (double)(VALUE);                                \
        break;                                                                                  \
    }

/* Raw elements (parts, of complex numbers) as float64. */
TARGET static void ISA(widen)(int kind, const double *table, const void *raw, double *out, size_t n)
{
    switch (kind) {
    case K_F32:
    case K_C64: WIDEN(float, p[i])
    case K_F64:
    case K_C128: memcpy(out, raw, n * sizeof *out); break;
    case K_F16: WIDEN(uint16_t, f16_to_float(p[i]))
    case K_BF16: WIDEN(uint16_t, float_from_bits((uint32_t)p[i] << 16))
    case K_I8: WIDEN(int8_t, p[i])
    case K_U8: WIDEN(uint8_t, p[i])
    case K_I16: WIDEN(int16_t, p[i])
    case K_U16: WIDEN(uint16_t, p[i])
    case K_I32: WIDEN(int32_t, p[i])
    case K_U32: WIDEN(uint32_t, p[i])
    case K_I64: WIDEN(int64_t, p[i])
    case K_U64: WIDEN(uint64_t, p[i])
    case K_BOOL: WIDEN(uint8_t, p[i] != 0)
    default: WIDEN(uint8_t, table[p[i]])
    }
}

/* The largest magnitude's bits: those of a NaN, if there is one, exceed those of an infinity. */
TARGET static uint64_t ISA(extent)(const double *x, size_t n)
{
    const int64_t *bits = (const int64_t *)x;
    int64_t largest = 0;
    for (size_t i = 0; i < n; i++) {
        int64_t magnitude = bits[i] & INT64_MAX;
        largest = magnitude > largest ? magnitude : largest;
    }
    return (uint64_t)largest;
}

/* ---- errors ---------------------------------------------------------------------------------- */

TARGET static void ISA(differences)(const double *target, const double *reference, double *error,
                                    size_t n)
{
    for (size_t i = 0; i < n; i += PER_REGISTER)
        *(ISA(vf) *)(error + i) =
            ABSOLUTE(*(const ISA(vf) *)(target + i) - *(const ISA(vf) *)(reference + i));
}

/* Sizes of complex numbers, of their differences, and how many point into opposite half-planes; for
 * parts of at most COMPLEX_HIGH. Whether it could be done: some square was too small to be a number. */
TARGET static int ISA(complex_errors)(const double *target, const double *reference, double *error,
                                      double *size, size_t n, uint64_t *opposite)
{
    int64_t turned = 0, small = 0;
    for (size_t i = 0; i < n; i++) {
        double t0 = target[2 * i], t1 = target[2 * i + 1];
        double r0 = reference[2 * i], r1 = reference[2 * i + 1];
        double d0 = t0 - r0, d1 = t1 - r1;
        double t = t0 * t0 + t1 * t1, r = r0 * r0 + r1 * r1, d = d0 * d0 + d1 * d1;
        error[i] = sqrt(d);
        size[i] = sqrt(r);
        turned += t0 * r0 + t1 * r1 < 0;
        small |= (int64_t)(t < COMPLEX_LOW_SQUARE) & ((int64_t)(t0 != 0) | (int64_t)(t1 != 0));
        small |= (int64_t)(r < COMPLEX_LOW_SQUARE) & ((int64_t)(r0 != 0) | (int64_t)(r1 != 0));
        small |= (int64_t)(d < COMPLEX_LOW_SQUARE) & ((int64_t)(d0 != 0) | (int64_t)(d1 != 0));
    }
    *opposite = (uint64_t)turned;
    return !small;
}

/* All that depends on the error and the size of the reference; leaves the relative errors. */
TARGET static void ISA(errors)(const double *error, const double *reference, double *relative,
                               size_t n, const struct limits *limits, struct errors *found)
{
    ISA(lanes) sum = {{{0}}}, squares = {{{0}}};
    ISA(vf) largest = {0}, shifted = {0}, zero = {0};
    ISA(vf) best0 = {0}, best1 = {0}, best2 = {0};
    ISA(vi) unequal = {0}, outside = {0}, within1 = {0}, within5 = {0}, from_zero = {0};
    ISA(vf) floor0 = zero + limits->floor[0], floor1 = zero + limits->floor[1],
            floor2 = zero + limits->floor[2];
    ISA(vf) atol = zero + limits->atol, rtol = zero + limits->rtol;
    ISA(vi) shift = (ISA(vi))(zero + limits->shift);
    for (size_t i = 0; i < n; i += LANES)
        for (int r = 0; r < REGISTERS; r++) {
            size_t at = i + (size_t)r * PER_REGISTER;
            ISA(vf) a = *(const ISA(vf) *)(error + at);
            ISA(vf) size = ABSOLUTE(*(const ISA(vf) *)(reference + at));
            ISA(vi) is_unequal = a != zero, is_zero = size == zero;
            ISA(vf) divisor = (ISA(vf))((ISA(vi))size | (shift & is_zero));
            ISA(vf) ratio = a / divisor;
            *(ISA(vf) *)(relative + at) = ratio;
            sum.part[r] += a;
            squares.part[r] += a * a;
            largest = ISA(larger)(a, largest);
            shifted = ISA(larger)(ratio, shifted);
            unequal += is_unequal;
            from_zero |= is_unequal & is_zero;
            outside += a > atol + rtol * size;
            within1 += ratio < 0.001;
            within5 += ratio < 0.005;
            best0 = ISA(larger)(KEEP(ratio, size >= floor0), best0);
            best1 = ISA(larger)(KEEP(ratio, size >= floor1), best1);
            best2 = ISA(larger)(KEEP(ratio, size >= floor2), best2);
        }
    found->largest = ISA(maximum)(largest);
    found->shifted = ISA(maximum)(shifted);
    found->relative[0] = ISA(maximum)(best0);
    found->relative[1] = ISA(maximum)(best1);
    found->relative[2] = ISA(maximum)(best2);
    found->unequal = ISA(count)(unequal);
    found->outside = ISA(count)(outside);
    found->within_1e3 = ISA(count)(within1);
    found->within_5e3 = ISA(count)(within5);
    found->has_zero_reference = ISA(count)(from_zero) != 0;
    found->sum = sum_of_lanes((const double *)&sum);
    found->squares = sum_of_lanes((const double *)&squares);
}

/* ---- sums of products ------------------------------------------------------------------------ */

TARGET static void ISA(products)(const double *target, const double *reference, size_t n,
                                 struct products *found)
{
    ISA(lanes) tt = {{{0}}}, rr = {{{0}}}, tr = {{{0}}};
    ISA(vi) opposite = {0};
    ISA(vf) zero = {0};
    for (size_t i = 0; i < n; i += LANES)
        for (int r = 0; r < REGISTERS; r++) {
            size_t at = i + (size_t)r * PER_REGISTER;
            ISA(vf) t = *(const ISA(vf) *)(target + at), s = *(const ISA(vf) *)(reference + at);
            tt.part[r] += t * t;
            rr.part[r] += s * s;
            tr.part[r] += t * s;
            opposite += ((t < zero) & (s > zero)) | ((t > zero) & (s < zero));
        }
    found->target = sum_of_lanes((const double *)&tt);
    found->reference = sum_of_lanes((const double *)&rr);
    found->both = sum_of_lanes((const double *)&tr);
    found->opposite = ISA(count)(opposite);
}

TARGET static double ISA(squares)(const double *x, size_t n)
{
    ISA(lanes) sum = {{{0}}};
    for (size_t i = 0; i < n; i += LANES)
        for (int r = 0; r < REGISTERS; r++) {
            ISA(vf) v = *(const ISA(vf) *)(x + i + (size_t)r * PER_REGISTER);
            sum.part[r] += v * v;
        }
    return sum_of_lanes((const double *)&sum);
}

/* ---- units in the last place ----------------------------------------------------------------- */

/* Numbers the magnitudes that the format has, 0 for zero; values are rounded to the nearest of
 * them, ties to even. Below the smallest normal number, adding one whose last bit is the step
 * between subnormals rounds to that step. */
TARGET static inline ISA(vu) ISA(keys)(ISA(vf) x, const struct format *format)
{
    ISA(vf) size = ABSOLUTE(x);
    ISA(vu) bits = (ISA(vu))size;
    if (format->dropped == 0) return bits;
    ISA(vu) odd = (bits >> format->dropped) & 1;
    ISA(vu) normal = ((bits + format->half + odd) >> format->dropped) - format->lowest;
    ISA(vu) subnormal = (ISA(vu))(size + format->magic) - format->magic_bits;
    ISA(vu) mask = (ISA(vu))(size < format->smallest_normal);
    return (subnormal & mask) | (normal & ~mask);
}

TARGET static uint64_t ISA(ulps)(const double *target, const double *reference, size_t n,
                                 const struct format *format)
{
    ISA(vu) largest = {0};
    for (size_t i = 0; i < n; i += PER_REGISTER) {
        ISA(vf) t = *(const ISA(vf) *)(target + i), s = *(const ISA(vf) *)(reference + i);
        ISA(vu) a = ISA(keys)(t, format), b = ISA(keys)(s, format);
        /* Keys are below 2**63. On one side of zero the distance is |a - b|, else a + b. */
        ISA(vu) apart = (ISA(vu))(((ISA(vi))t ^ (ISA(vi))s) >> 63);
        ISA(vu) difference = a - b, negative = (ISA(vu))((ISA(vi))difference >> 63);
        difference = (difference ^ negative) - negative;
        ISA(vu) distance = ((a + b) & apart) | (difference & ~apart);
        ISA(vu) mask = (ISA(vu))(distance > largest);
        largest = (distance & mask) | (largest & ~mask);
    }
    uint64_t most = 0;
    for (int i = 0; i < PER_REGISTER; i++)
        if (largest[i] > most) most = largest[i];
    return most;
}

#undef WIDEN
#undef KEEP
#undef ABSOLUTE
#undef PER_REGISTER
#undef REGISTERS
