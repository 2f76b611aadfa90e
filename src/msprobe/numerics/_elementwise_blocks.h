/* SPDX-License-Identifier: Apache-2.0
 *
 * How a block of two tensors is counted, with the kernels that were chosen.
 */

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

/* Errors and sizes of complex numbers; the largest size of the reference. */
static double complex_differences(struct state *s, size_t n, double part_max)
{
    uint64_t opposite = 0;
    if (part_max > COMPLEX_HIGH / 2 ||
        !chosen->complex_errors(s->t, s->r, s->error, s->size, n, &opposite)) {
        opposite = 0;
        for (size_t i = 0; i < n; i++) {
            const double *t = s->t + 2 * i, *r = s->r + 2 * i;
            s->error[i] = complex_size(t[0] - r[0], t[1] - r[1]);
            s->size[i] = complex_size(r[0], r[1]);
            opposite += (uint64_t)are_opposite(t, r);
        }
    }
    s->flips += opposite;
    size_t padding = (whole_lanes(n) - n) * sizeof(double);
    memset(s->error + n, 0, padding);
    memset(s->size + n, 0, padding);
    return double_from_bits(chosen->extent(s->size, n));
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
    if (s->is_complex) {
        memcpy(s->r, s->t, parts * sizeof *s->t);
        largest = complex_differences(s, n, largest);
    }
    raise_class(s, largest);
    s->finite += n - apart;
    s->within_1e3 += n, s->within_5e3 += n;
    s->count += n;
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
    if (s->is_complex)
        largest_size = complex_differences(s, n, fmax(target_max, reference_max));
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
