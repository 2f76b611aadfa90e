/* SPDX-License-Identifier: Apache-2.0
 *
 * A part of _native.c: the CRC-32 of zip archives, of bytes that are read for other numbers anyway.
 *
 * Bytes are a polynomial over GF(2), the first bit its highest power; the CRC is its remainder by P.
 * Multiplying 16 bytes by x^n mod P moves them n bits on without changing the remainder, so that all
 * are added up onto the last 16 ("folded": V. Gopal et al., "Fast CRC Computation for Generic
 * Polynomials Using PCLMULQDQ Instruction", Intel 2009). Numbers are bit-reversed, as in the format;
 * a product of two reversed numbers comes out one power too low.
 */

/* What is folded at a time: three registers of 64 bytes, as the processor multiplies in one while it
 * waits for another. Sign blocks are multiples of it. */
#define CRC_PARTS 3
#define CRC_BYTES (CRC_PARTS * 64)

/* The CRC of the bytes so far: that of the folded ones, and behind them fewer than CRC_BYTES. */
struct crc {
    _Alignas(64) uint8_t folded[CRC_BYTES];
    const uint8_t *rest;
    size_t rest_bytes;
    int is_complete; /* whether somebody adds all bytes */
};

#if defined(__x86_64__)

#define CRC_TARGET __attribute__((target("pclmul,sse4.1")))
#define CRC_WIDE_TARGET                                                                         \
    __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,f16c,fma,vpclmulqdq,pclmul")))
#define CRC_POLYNOMIAL 0x04c11db7u

static uint32_t CRC_OF_BYTE[256];
static struct crc CRC_START; /* of no bytes */
static const struct crc CRC_OF_PART; /* of no bytes, for those that do not come first */

/* What moves the two halves of 16 bytes on: to the next 16, and to the next CRC_BYTES. */
static uint64_t CRC_NEAR[2], CRC_FAR[2];

static uint32_t reversed_bits(uint32_t x)
{
    uint32_t out = 0;
    for (int i = 0; i < 32; i++) out |= (x >> i & 1) << (31 - i);
    return out;
}

static void fill_factors(uint64_t factors[2], int bytes)
{
    for (int half = 0; half < 2; half++) {
        uint32_t rest = 1;
        for (int n = 8 * bytes + (half ? -32 : 32); n; n--)
            rest = rest << 1 ^ (rest >> 31 ? CRC_POLYNOMIAL : 0);
        factors[half] = (uint64_t)reversed_bits(rest) << 1;
    }
}

/* Begin with a remainder: that of four bytes behind zeros. */
static void crc_from(struct crc *crc, uint32_t remainder)
{
    const uint32_t polynomial = reversed_bits(CRC_POLYNOMIAL);
    for (int bit = 0; bit < 32; bit++)
        remainder = remainder >> 31 ? (remainder ^ polynomial) << 1 | 1 : remainder << 1;
    *crc = CRC_OF_PART;
    memcpy(crc->folded + CRC_BYTES - sizeof remainder, &remainder, sizeof remainder);
}

static void fill_crc(void)
{
    const uint32_t polynomial = reversed_bits(CRC_POLYNOMIAL);
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t rest = byte;
        for (int bit = 0; bit < 8; bit++) rest = rest >> 1 ^ (rest & 1 ? polynomial : 0);
        CRC_OF_BYTE[byte] = rest;
    }
    fill_factors(CRC_NEAR, 16);
    fill_factors(CRC_FAR, CRC_BYTES);
    crc_from(&CRC_START, UINT32_MAX); /* a CRC begins with ones */
}

static uint32_t crc_by_table(uint32_t crc, const uint8_t *p, size_t n)
{
    for (; n; n--, p++) crc = crc >> 8 ^ CRC_OF_BYTE[(crc ^ *p) & 255];
    return crc;
}

CRC_TARGET static inline __m128i moved(__m128i x, __m128i by, const void *onto)
{
    __m128i first = _mm_clmulepi64_si128(x, by, 0x00), second = _mm_clmulepi64_si128(x, by, 0x11);
    return _mm_xor_si128(_mm_xor_si128(first, second), _mm_loadu_si128(onto));
}

CRC_WIDE_TARGET static inline __m512i moved_wide(__m512i x, __m512i by, __m512i onto)
{
    __m512i first = _mm512_clmulepi64_epi128(x, by, 0x00);
    return _mm512_ternarylogic_epi64(first, _mm512_clmulepi64_epi128(x, by, 0x11), onto, 0x96);
}

CRC_WIDE_TARGET static inline __m512i wide_factors(void)
{
    return _mm512_broadcast_i64x2(_mm_loadu_si128((const __m128i *)CRC_FAR));
}

CRC_TARGET static void fold(struct crc *crc, const uint8_t *p, size_t n)
{
    __m128i part[CRC_BYTES / 16], by = _mm_loadu_si128((const __m128i *)CRC_FAR);
    memcpy(part, crc->folded, sizeof part);
    for (const uint8_t *end = p + n; p < end; p += CRC_BYTES)
        for (int i = 0; i < CRC_BYTES / 16; i++) part[i] = moved(part[i], by, p + 16 * i);
    memcpy(crc->folded, part, sizeof part);
}

CRC_WIDE_TARGET static void fold_wide(struct crc *crc, const uint8_t *p, size_t n)
{
    __m512i part[CRC_PARTS], by = wide_factors();
    memcpy(part, crc->folded, sizeof part);
    for (const uint8_t *end = p + n; p < end; p += CRC_BYTES)
        for (int i = 0; i < CRC_PARTS; i++)
            part[i] = moved_wide(part[i], by, _mm512_loadu_si512(p + 64 * i));
    memcpy(crc->folded, part, sizeof part);
}

/* Folds a multiple of CRC_BYTES; NULL: whoever asks for a CRC must compute it. */
static void (*chosen_fold)(struct crc *crc, const uint8_t *p, size_t n);

/* That of the kernels with an index. */
static void (*fold_that_works(size_t isa))(struct crc *crc, const uint8_t *p, size_t n)
{
    if (isa == 2 && __builtin_cpu_supports("vpclmulqdq")) return fold_wide;
    return isa && __builtin_cpu_supports("pclmul") ? fold : NULL;
}

static int crc_is_wide(void)
{
    return chosen_fold == fold_wide;
}

/* Continue with bytes: a multiple of CRC_BYTES unless they are the last. */
static void crc_add(struct crc *crc, const void *block, size_t n)
{
    crc->rest_bytes = n % CRC_BYTES;
    n -= crc->rest_bytes;
    crc->rest = (const uint8_t *)block + n;
    chosen_fold(crc, block, n);
}

CRC_TARGET static uint32_t crc_end(const struct crc *crc)
{
    const uint8_t *rest = crc->rest;
    size_t left = crc->rest_bytes;
    __m128i by = _mm_loadu_si128((const __m128i *)CRC_NEAR);
    __m128i x = _mm_loadu_si128((const __m128i *)crc->folded);
    for (int i = 16; i < CRC_BYTES; i += 16) x = moved(x, by, crc->folded + i);
    for (; left >= 16; left -= 16, rest += 16) x = moved(x, by, rest);
    uint8_t bytes[16];
    _mm_storeu_si128((__m128i *)bytes, x);
    return ~crc_by_table(crc_by_table(0, bytes, sizeof bytes), rest, left);
}

/* The product of two remainders. */
static uint32_t crc_product(uint32_t x, uint32_t y)
{
    const uint32_t polynomial = reversed_bits(CRC_POLYNOMIAL);
    uint32_t product = 0;
    for (; x; x <<= 1) { /* the highest bit is the lowest power */
        if (x >> 31) product ^= y;
        y = y >> 1 ^ (y & 1 ? polynomial : 0);
    }
    return product;
}

/* Continue a CRC with that of a part of some bytes that come behind. */
static void crc_join(struct crc *crc, const struct crc *part, size_t size_bytes)
{
    uint32_t remainder = ~crc_end(crc), power = 1u << 23; /* x^8, x^16, x^32 ... */
    for (; size_bytes; size_bytes >>= 1, power = crc_product(power, power))
        if (size_bytes & 1) remainder = crc_product(remainder, power);
    crc_from(crc, remainder ^ ~crc_end(part));
}

#else /* elsewhere whoever asks for a CRC computes it */

static const struct crc CRC_START, CRC_OF_PART;
static void (*chosen_fold)(struct crc *crc, const uint8_t *p, size_t n);

static void fill_crc(void) {}

static void (*fold_that_works(size_t isa))(struct crc *crc, const uint8_t *p, size_t n)
{
    (void)isa;
    return NULL;
}

static int crc_is_wide(void)
{
    return 0;
}

static void crc_add(struct crc *crc, const void *block, size_t n)
{
    (void)crc, (void)block, (void)n;
}

static uint32_t crc_end(const struct crc *crc)
{
    (void)crc;
    return 0;
}

static void crc_join(struct crc *crc, const struct crc *part, size_t size_bytes)
{
    (void)crc, (void)part, (void)size_bytes;
}

#endif
