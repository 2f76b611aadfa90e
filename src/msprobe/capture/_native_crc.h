/* SPDX-License-Identifier: Apache-2.0
 *
 * A part of _native.c: the CRC-32 of zip archives of a block that is in the processor's cache, for
 * processors that multiply 512 bits without carries.
 *
 * Gopal et al., Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction, Intel 2009:
 * 256 bytes are folded onto the next 256 until the rest is short. A pair of constants folds over n bits:
 * x^(n + 32) and x^(n - 32) modulo the polynomial, bits reversed, shifted left by one.
 */

#define CRC_STEP 256
/* While a block is folded, the next one is asked for from where its reading stopped asking. */
#define CRC_AHEAD (BLOCK_BYTES + AHEAD)

#if defined(__x86_64__)
#define CRC_TARGET __attribute__((target("avx512f,avx512vl,vpclmulqdq,pclmul")))

static const uint64_t FOLD_2048[2] = {0x11542778a, 0x1322d1430};
static const uint64_t FOLD_512[2] = {0x154442bd4, 0x1c6e41596};
static const uint64_t FOLD_128[2] = {0x1751997d0, 0x0ccaa009e};
static const uint64_t FOLD_64[2] = {0x163cd6124, 0};
static const uint64_t BARRETT[2] = {0x1db710641, 0x1f7011641};

CRC_TARGET static inline __m512i crc_fold(__m512i x, const uint64_t by[2], __m512i onto)
{
    __m512i constants = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)by));
    __m512i low = _mm512_clmulepi64_epi128(x, constants, 0x00);
    __m512i high = _mm512_clmulepi64_epi128(x, constants, 0x11);
    return _mm512_ternarylogic_epi64(low, high, onto, 0x96); /* exclusive or of all */
}

CRC_TARGET static inline __m128i crc_fold_lane(__m128i x, __m128i onto)
{
    __m128i constants = _mm_loadu_si128((const __m128i *)FOLD_128);
    __m128i low = _mm_clmulepi64_si128(x, constants, 0x00);
    __m128i high = _mm_clmulepi64_si128(x, constants, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), onto);
}

/* 128 bits to 32. */
CRC_TARGET static inline uint32_t crc_reduced(__m128i x)
{
    const __m128i evens = _mm_setr_epi32(-1, 0, -1, 0);
    __m128i barrett = _mm_loadu_si128((const __m128i *)BARRETT);
    __m128i folded = _mm_clmulepi64_si128(x, _mm_loadu_si128((const __m128i *)FOLD_128), 0x10);
    x = _mm_xor_si128(_mm_srli_si128(x, 8), folded);
    folded = _mm_clmulepi64_si128(_mm_and_si128(x, evens),
                                  _mm_loadu_si128((const __m128i *)FOLD_64), 0x00);
    x = _mm_xor_si128(_mm_srli_si128(x, 4), folded);
    folded = _mm_clmulepi64_si128(_mm_and_si128(x, evens), barrett, 0x10);
    folded = _mm_clmulepi64_si128(_mm_and_si128(folded, evens), barrett, 0x00);
    return (uint32_t)_mm_extract_epi32(_mm_xor_si128(x, folded), 1);
}

/* Steps of CRC_STEP bytes, at least one. */
CRC_TARGET static uint32_t crc_steps(uint32_t crc, const char *p, size_t steps)
{
    __m512i part[4];
    for (int i = 0; i < 4; i++) part[i] = _mm512_loadu_si512(p + 64 * i);
    part[0] = _mm512_xor_si512(part[0], _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)crc)));
    while (--steps) {
        p += CRC_STEP;
        for (int i = 0; i < 4; i++) {
            __builtin_prefetch(p + CRC_AHEAD + 64 * i);
            part[i] = crc_fold(part[i], FOLD_2048, _mm512_loadu_si512(p + 64 * i));
        }
    }
    for (int i = 1; i < 4; i++) part[i] = crc_fold(part[i - 1], FOLD_512, part[i]);
    __m128i x = _mm512_extracti32x4_epi32(part[3], 0);
    x = crc_fold_lane(x, _mm512_extracti32x4_epi32(part[3], 1));
    x = crc_fold_lane(x, _mm512_extracti32x4_epi32(part[3], 2));
    return crc_reduced(crc_fold_lane(x, _mm512_extracti32x4_epi32(part[3], 3)));
}

static int has_crc(void)
{
    return __builtin_cpu_supports("vpclmulqdq") && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("pclmul");
}
#else
static uint32_t crc_steps(uint32_t crc, const char *p, size_t steps)
{
    return crc;
}

static int has_crc(void)
{
    return 0;
}
#endif

/* Go on with a checksum, which begins as ~0 and ends inverted. */
static uint32_t crc_of(uint32_t crc, const char *p, size_t size_bytes)
{
    if (size_bytes >= CRC_STEP) crc = crc_steps(crc, p, size_bytes / CRC_STEP);
    for (const char *end = p + size_bytes, *at = end - size_bytes % CRC_STEP; at < end; at++) {
        crc ^= (uint8_t)*at;
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (0xedb88320u & -(crc & 1));
    }
    return crc;
}
