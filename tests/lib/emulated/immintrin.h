/* immintrin.h - AVX-512, AVX-VNNI and AMX in plain C, for CPUs without them.
 *
 * In programs *_emulated, the kernels of these tiers are compiled with this file in place of the
 * compiler's header. They run on any CPU with AVX2. libsimde defines most functions of AVX-512.
 * Below are the functions that it lacks, and two whose results are not those of a CPU.
 * lib/emulated/tiles.h has the tiles. Names and semantics: Intel Intrinsics Guide. */
#pragma once
#include_next <immintrin.h>
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#include <math.h>
#include <string.h>
#include "lib/emulated/tiles.h"

/* In place of those in kernel_impl.h. Unrolled and inlined, the kernels take minutes to compile. */
#define INLINE static __attribute__((unused))
#define EACH(i, n) for (int i = 0; i < (n); i++)
#define EMULATED static __attribute__((noinline, unused))

/* The elements of a vector, and back. */
typedef union {
    simde__m512 f;
    simde__m512d d;
    simde__m512i i;
    simde__m256 f256[2];
    simde__m256i i256[2];
    float f32[16];
    double f64[8];
    int32_t i32[16];
    uint32_t u32[16];
    uint64_t u64[8];
} emulated_512;

EMULATED simde__m512 emulated_mask_loadu_ps(simde__m512 from, uint32_t mask, const void *p)
{
    emulated_512 v = {.f = from};
    for (unsigned i = 0; i < 16; i++)
        if (mask >> i & 1)
            memcpy(&v.f32[i], (const char *)p + 4 * i, 4);
    return v.f;
}

EMULATED void emulated_mask_storeu_ps(void *p, uint32_t mask, simde__m512 a)
{
    const emulated_512 v = {.f = a};
    for (unsigned i = 0; i < 16; i++)
        if (mask >> i & 1)
            memcpy((char *)p + 4 * i, &v.f32[i], 4);
}

EMULATED simde__m256i emulated_maskz_loadu_epi16(uint32_t mask, const void *p)
{
    uint16_t v[16] = {0};
    for (unsigned i = 0; i < 16; i++)
        if (mask >> i & 1)
            memcpy(&v[i], (const char *)p + 2 * i, 2);
    return simde_mm256_loadu_si256(v);
}

EMULATED simde__m256 emulated_extractf32x8_ps(simde__m512 a, int half)
{
    const emulated_512 v = {.f = a};
    return v.f256[half];
}

/* Two 128-bit lanes of a, then two of b. */
EMULATED simde__m512 emulated_shuffle_f32x4(simde__m512 a, simde__m512 b, int lanes)
{
    const emulated_512 v[2] = {{.f = a}, {.f = b}};
    emulated_512 r;
    for (int i = 0; i < 4; i++)
        memcpy(&r.f32[4 * i], &v[i / 2].f32[4 * (lanes >> 2 * i & 3)], 16);
    return r.f;
}

EMULATED simde__m512i emulated_cvtepu16_epi32(simde__m256i a)
{
    uint16_t v[16];
    emulated_512 r;
    simde_mm256_storeu_si256(v, a);
    for (int i = 0; i < 16; i++)
        r.u32[i] = v[i];
    return r.i;
}

EMULATED simde__m512 emulated_cvtepi32_ps(simde__m512i a)
{
    const emulated_512 v = {.i = a};
    const emulated_512 r = {.f256 = {_mm256_cvtepi32_ps(v.i256[0]), _mm256_cvtepi32_ps(v.i256[1])}};
    return r.f;
}

EMULATED simde__m512i emulated_cvtps_epi32(simde__m512 a)
{
    const emulated_512 v = {.f = a};
    const emulated_512 r = {.i256 = {_mm256_cvtps_epi32(v.f256[0]), _mm256_cvtps_epi32(v.f256[1])}};
    return r.i;
}

EMULATED simde__m512d emulated_cvtps_pd(simde__m256 a)
{
    float f[8];
    emulated_512 r;
    memcpy(f, &a, sizeof(f));
    for (unsigned i = 0; i < 8; i++)
        r.f64[i] = (double)f[i];
    return r.d;
}

EMULATED simde__m512 emulated_cvtph_ps(simde__m256i a)
{
    const emulated_512 r = {.f256 = {_mm256_cvtph_ps(_mm256_castsi256_si128(a)),
                                     _mm256_cvtph_ps(_mm256_extracti128_si256(a, 1))}};
    return r.f;
}

/* Rounds to nearest even, the only mode that the kernels use. */
EMULATED simde__m256i emulated_cvtps_ph(simde__m512 a)
{
    const emulated_512 v = {.f = a};
    return _mm256_set_m128i(_mm256_cvtps_ph(v.f256[1], _MM_FROUND_TO_NEAREST_INT),
                            _mm256_cvtps_ph(v.f256[0], _MM_FROUND_TO_NEAREST_INT));
}

EMULATED simde__m512i emulated_srai_epi32(simde__m512i a, unsigned n)
{
    emulated_512 v = {.i = a};
    for (unsigned i = 0; i < 16; i++)
        v.i32[i] >>= n > 31 ? 31 : n;
    return v.i;
}

EMULATED simde__m512i emulated_cvtepu32_epi64(simde__m256i a)
{
    uint32_t u[8];
    emulated_512 r;
    memcpy(u, &a, sizeof(u));
    for (unsigned i = 0; i < 8; i++)
        r.u64[i] = u[i];
    return r.i;
}

EMULATED simde__m128i emulated_cvtepi32_epi8(simde__m512i a)
{
    const emulated_512 v = {.i = a};
    uint8_t r[16];
    for (unsigned i = 0; i < 16; i++)
        r[i] = (uint8_t)v.u32[i];
    return simde_mm_loadu_si128(r);
}

EMULATED simde__m256i emulated_cvtepi32_epi16(simde__m512i a)
{
    const emulated_512 v = {.i = a};
    uint16_t r[16];
    for (unsigned i = 0; i < 16; i++)
        r[i] = (uint16_t)v.u32[i];
    return simde_mm256_loadu_si256(r);
}

/* VPDPBUSD: bytes of a are unsigned, those of b signed; the sum of four products is exact. */
EMULATED simde__m256i emulated_dpbusd_epi32(simde__m256i sums, simde__m256i a, simde__m256i b)
{
    uint32_t s[8];
    uint8_t u[32];
    int8_t v[32];
    memcpy(s, &sums, 32);
    memcpy(u, &a, 32);
    memcpy(v, &b, 32);
    for (unsigned i = 0; i < 32; i++)
        s[i / 4] += (uint32_t)(u[i] * v[i]);
    return simde_mm256_loadu_si256(s);
}

/* That of libsimde keeps the sign of -0. */
EMULATED simde__m512 emulated_abs_ps(simde__m512 a)
{
    emulated_512 v = {.f = a};
    for (unsigned i = 0; i < 16; i++)
        v.u32[i] &= 0x7fffffff;
    return v.f;
}

/* That of libsimde computes 2^b as a float, which overflows where the result does not. Here only
 * the last step rounds. */
EMULATED simde__m512 emulated_scalef_ps(simde__m512 a, simde__m512 b)
{
    emulated_512 r = {.f = a};
    const emulated_512 by = {.f = b};
    for (unsigned i = 0; i < 16; i++) {
        const float n = floorf(by.f32[i]);
        r.f32[i] = (float)((double)r.f32[i] *
                           (isnan(n) ? (double)n : exp2(fmax(-500, fmin((double)n, 500)))));
    }
    return r.f;
}

#undef _mm512_abs_ps
#undef _mm512_scalef_ps
#define _mm512_abs_ps(a) emulated_abs_ps(a)
#define _mm512_scalef_ps(a, b) emulated_scalef_ps(a, b)
#define _mm512_mask_loadu_ps(from, mask, p) emulated_mask_loadu_ps(from, mask, p)
#define _mm512_maskz_loadu_ps(mask, p) emulated_mask_loadu_ps(_mm512_setzero_ps(), mask, p)
#define _mm512_mask_storeu_ps(p, mask, a) emulated_mask_storeu_ps(p, mask, a)
#define _mm256_maskz_loadu_epi16(mask, p) emulated_maskz_loadu_epi16(mask, p)
#define _mm512_extractf32x8_ps(a, half) emulated_extractf32x8_ps(a, half)
#define _mm512_shuffle_f32x4(a, b, lanes) emulated_shuffle_f32x4(a, b, lanes)
#define _mm512_cvtepu16_epi32(a) emulated_cvtepu16_epi32(a)
#define _mm512_cvtepi32_ps(a) emulated_cvtepi32_ps(a)
#define _mm512_cvtps_epi32(a) emulated_cvtps_epi32(a)
#define _mm512_cvtps_pd(a) emulated_cvtps_pd(a)
#define _mm512_cvtph_ps(a) emulated_cvtph_ps(a)
#define _mm512_cvtps_ph(a, rounding) emulated_cvtps_ph(a)
#define _mm512_srai_epi32(a, n) emulated_srai_epi32(a, n)
#define _mm512_cvtepu32_epi64(a) emulated_cvtepu32_epi64(a)
#define _mm512_cvtepi32_epi8(a) emulated_cvtepi32_epi8(a)
#define _mm512_cvtepi32_epi16(a) emulated_cvtepi32_epi16(a)
#define _mm256_dpbusd_avx_epi32(sums, a, b) emulated_dpbusd_epi32(sums, a, b)
