/* kernel_avx512.h - vectors of AVX-512: floats for kernel_body.h (v_*) and columns for
 * kernel_int8.h (c_*). */
#pragma once
#include <immintrin.h>
#include "kernel/kernel_impl.h"

#define C_LANES 16
#define C_PARTS 1

typedef __m512 vf;
typedef struct {
    __m512d lo, hi;
} vd;

INLINE __mmask16 first(uint32_t n)
{
    return (__mmask16)((1u << n) - 1);
}

INLINE vf v_set(float x)
{
    return _mm512_set1_ps(x);
}

INLINE vf v_load(const float *p)
{
    return _mm512_loadu_ps(p);
}

INLINE vf v_load_n(const float *p, uint32_t n, float fill)
{
    return _mm512_mask_loadu_ps(_mm512_set1_ps(fill), first(n), p);
}

INLINE void v_store(float *p, vf a)
{
    _mm512_storeu_ps(p, a);
}

INLINE void v_store_n(float *p, uint32_t n, vf a)
{
    _mm512_mask_storeu_ps(p, first(n), a);
}

INLINE vf v_half_load(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}

INLINE vf v_half_load_n(const uint16_t *p, uint32_t n)
{
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first(n), p));
}

/* Transposes 16 rows of 16 halfs and widens them: to[16 c + r]. A 128-bit lane holds four rows
 * while eight columns are sorted, then a quarter of two columns. The columns are widened as they
 * are loaded from memory, which takes no shuffle. */
INLINE void v_half_turn(const uint16_t *rows, size_t stride, float *to)
{
    const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
    uint16_t columns[16][16];
    EACH (half, 2) {
        __m512i r[4], c[4];
        EACH (i, 4) {
            const uint16_t *p = rows + (size_t)i * stride + 8 * half;
            r[i] = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)p));
            r[i] = _mm512_inserti32x4(r[i], _mm_loadu_si128((const __m128i *)(p + 4 * stride)), 1);
            r[i] = _mm512_inserti32x4(r[i], _mm_loadu_si128((const __m128i *)(p + 8 * stride)), 2);
            r[i] = _mm512_inserti32x4(r[i], _mm_loadu_si128((const __m128i *)(p + 12 * stride)), 3);
        }
        __m512i low = _mm512_unpacklo_epi16(r[0], r[1]), high = _mm512_unpackhi_epi16(r[0], r[1]);
        __m512i low2 = _mm512_unpacklo_epi16(r[2], r[3]), high2 = _mm512_unpackhi_epi16(r[2], r[3]);
        c[0] = _mm512_unpacklo_epi32(low, low2);
        c[1] = _mm512_unpackhi_epi32(low, low2);
        c[2] = _mm512_unpacklo_epi32(high, high2);
        c[3] = _mm512_unpackhi_epi32(high, high2);
        EACH (i, 4)
            _mm512_storeu_si512(columns[8 * half + 2 * i], _mm512_permutexvar_epi64(order, c[i]));
    }
    __asm__ volatile("" : : : "memory"); // else gcc reads the columns from registers
    EACH (c, 16)
        v_store(to + 16 * c, v_half_load(columns[c]));
}

INLINE void v_half_store(uint16_t *p, vf a)
{
    _mm256_storeu_si256((__m256i *)p,
                        _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

INLINE void v_bf16_load(const uint8_t *p, vf *even, vf *odd)
{
    __m512i pairs = _mm512_loadu_si512(p);
    *even = _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
    *odd = _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32((int)0xffff0000)));
}

INLINE vf v_add(vf a, vf b)
{
    return _mm512_add_ps(a, b);
}

INLINE vf v_sub(vf a, vf b)
{
    return _mm512_sub_ps(a, b);
}

INLINE vf v_mul(vf a, vf b)
{
    return _mm512_mul_ps(a, b);
}

INLINE vf v_div(vf a, vf b)
{
    return _mm512_div_ps(a, b);
}

INLINE vf v_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}

INLINE vf v_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}

INLINE vf v_min(vf a, vf b)
{
    return _mm512_min_ps(a, b);
}

INLINE vf v_abs(vf a)
{
    return _mm512_abs_ps(a);
}

INLINE float v_sum(vf a)
{
    __m256 b = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_add_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}

/* A step of the tree for two vectors together: the results of a, then those of b. */
#define JOIN(op, a, b, shuffle, low, high) op(shuffle(a, b, low), shuffle(a, b, high))

/* v_sum() or v_hmax() of sixteen vectors. Each step halves the number of vectors, so that all lanes
 * stay in use. */
#define JOIN_ALL(name, op)                                                                         \
    INLINE vf name(const vf a[16])                                                                 \
    {                                                                                              \
        vf b[8], c[4], d[2];                                                                       \
        EACH (i, 4) {                                                                              \
            b[2 * i] = JOIN(op, a[i], a[i + 4], _mm512_shuffle_f32x4, 0x44, 0xee);                 \
            b[2 * i + 1] = JOIN(op, a[i + 8], a[i + 12], _mm512_shuffle_f32x4, 0x44, 0xee);        \
        }                                                                                          \
        EACH (i, 4)                                                                                \
            c[i] = JOIN(op, b[2 * i], b[2 * i + 1], _mm512_shuffle_f32x4, 0x88, 0xdd);             \
        EACH (i, 2)                                                                                \
            d[i] = JOIN(op, c[2 * i], c[2 * i + 1], _mm512_shuffle_ps, 0x44, 0xee);                \
        return JOIN(op, d[0], d[1], _mm512_shuffle_ps, 0x88, 0xdd);                                \
    }
JOIN_ALL(v_sums, _mm512_add_ps)
JOIN_ALL(v_maxs, _mm512_max_ps)

INLINE float v_hmax(vf a)
{
    __m256 b = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_max_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
}

INLINE uint32_t v_equal(vf a, vf b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ);
}

/* Gives the same bits as the two steps in kernel_c.c, for the arguments that v_exp() computes from
 * any of the 2^32 floats. */
INLINE vf v_pow2(vf p, vf t)
{
    return _mm512_scalef_ps(p, v_sub(t, v_set(0x1.8p+23f)));
}

/* The bytes are summed plus 128 each; the constant is subtracted at the end. */
INLINE int v_quantise(vf a, int8_t *to)
{
    __m128i q = _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(v_max(v_min(a, v_set(127)), v_set(-127))));
    _mm_storeu_si128((__m128i *)to, q);
    __m128i sums = _mm_sad_epu8(_mm_xor_si128(q, _mm_set1_epi8(-128)), _mm_setzero_si128());
    return _mm_cvtsi128_si32(sums) + _mm_extract_epi16(sums, 4) - 128 * 16;
}

typedef __m512i vi, vk, vq, vv;
typedef struct {
    __m512i high, low;
} va, vt; // the high and the low bytes of weights

INLINE vi vi_set(int32_t x)
{
    return _mm512_set1_epi32(x);
}

INLINE vi vi_load(const int32_t *p)
{
    return _mm512_loadu_si512(p);
}

INLINE void vi_store(int32_t *p, vi a)
{
    _mm512_storeu_si512(p, a);
}

INLINE vi vi_add(vi a, vi b)
{
    return _mm512_add_epi32(a, b);
}

INLINE vf vi_float(vi a)
{
    return _mm512_cvtepi32_ps(a);
}

INLINE vk vk_load(const uint8_t *p)
{
    return _mm512_loadu_si512(p);
}

/* Broadcasts four bytes to every lane. */
INLINE __m512i spread(const void *p)
{
    int32_t four;
    memcpy(&four, p, sizeof(four));
    return _mm512_set1_epi32(four);
}

INLINE vq vq_load(const int8_t *p)
{
    return spread(p);
}

INLINE vi vk_dot(vi a, vk k, vq x)
{
    return _mm512_dpbusd_epi32(a, k, x);
}

INLINE vv vv_load(const uint8_t *p)
{
    return _mm512_loadu_si512(p);
}

INLINE void vt_store(uint8_t *to, vf a)
{
    __m512i t = _mm512_cvtps_epi32(a);
    _mm_storeu_si128((__m128i *)to, _mm512_cvtepi32_epi8(_mm512_srli_epi32(t, 8)));
    _mm_storeu_si128((__m128i *)(to + 16), _mm512_cvtepi32_epi8(t));
}

INLINE vt vt_load(const uint8_t *p, int group)
{
    return (vt){spread(p + 4 * group), spread(p + 16 + 4 * group)};
}

INLINE va va_zero(void)
{
    return (va){_mm512_setzero_si512(), _mm512_setzero_si512()};
}

INLINE va va_dot(va a, vv v, vt x)
{
    return (va){_mm512_dpbusd_epi32(a.high, x.high, v), _mm512_dpbusd_epi32(a.low, x.low, v)};
}

INLINE vi va_sum(va a)
{
    return _mm512_add_epi32(_mm512_slli_epi32(a.high, 8), a.low);
}

INLINE vd vd_zero(void)
{
    return (vd){_mm512_setzero_pd(), _mm512_setzero_pd()};
}

INLINE vd vd_add(vd a, vf b)
{
    a.lo = _mm512_add_pd(a.lo, _mm512_cvtps_pd(_mm512_castps512_ps256(b)));
    a.hi = _mm512_add_pd(a.hi, _mm512_cvtps_pd(_mm512_extractf32x8_ps(b, 1)));
    return a;
}

INLINE double vd_sum(vd a)
{
    __m512d b = _mm512_add_pd(a.lo, a.hi);
    __m256d c = _mm256_add_pd(_mm512_castpd512_pd256(b), _mm512_extractf64x4_pd(b, 1));
    __m128d d = _mm_add_pd(_mm256_castpd256_pd128(c), _mm256_extractf128_pd(c, 1));
    return _mm_cvtsd_f64(_mm_add_sd(d, _mm_unpackhi_pd(d, d)));
}

#define VW_LANES 8
typedef __m512i vw;

INLINE vw vw_set(uint64_t x)
{
    return _mm512_set1_epi64((long long)x);
}

INLINE vw vw_load(const uint32_t *p)
{
    return _mm512_cvtepu32_epi64(_mm256_loadu_si256((const __m256i *)p));
}

INLINE void vw_store(uint64_t *p, vw a)
{
    _mm512_storeu_si512(p, a);
}

/* The product of the low halves. */
INLINE vw vw_mul(vw a, vw b)
{
    return _mm512_mul_epu32(a, b);
}

INLINE vw vw_xor(vw a, vw b)
{
    return _mm512_xor_si512(a, b);
}

INLINE vw vw_high(vw a)
{
    return _mm512_srli_epi64(a, 32);
}

/* 64-bit words from two low halves. */
INLINE vw vw_pair(vw low, vw high)
{
    return _mm512_mask_mov_epi32(low, 0xaaaa, _mm512_slli_epi64(high, 32));
}

typedef __m512 cf;
typedef __m512i ci, cb;

INLINE cf c_set(float x)
{
    return _mm512_set1_ps(x);
}

INLINE cf c_halfs(const uint8_t *p)
{
    return v_half_load((const uint16_t *)p);
}

INLINE cf c_bf16s(const uint8_t *p)
{
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

INLINE cf c_mul(cf a, cf b)
{
    return _mm512_mul_ps(a, b);
}

INLINE cf c_fma(cf a, cf b, cf c)
{
    return _mm512_fmadd_ps(a, b, c);
}

INLINE cf c_negative(cf a)
{
    return _mm512_xor_ps(a, _mm512_set1_ps(-0.0f));
}

INLINE cf c_float(ci a)
{
    return _mm512_cvtepi32_ps(a);
}

INLINE void c_store_n(float *p, uint32_t n, cf a)
{
    _mm512_mask_storeu_ps(p, n < 16 ? first(n) : 0xffff, a);
}

INLINE ci c_int(int x)
{
    return _mm512_set1_epi32(x);
}

/* Loads two bytes for each column and widens them to words. */
INLINE ci c_words(const uint8_t *p)
{
    return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)p));
}

/* Broadcasts two words to every column. */
INLINE ci c_2_words(const int16_t *p)
{
    return spread(p);
}

/* The first or the second word of each column. */
INLINE ci c_word(ci words, int second)
{
    return _mm512_srai_epi32(second ? words : _mm512_slli_epi32(words, 16), 16);
}

/* sum + a . b, where a and b are words. */
INLINE ci c_dot_words(ci sum, ci a, ci b)
{
    return _mm512_dpwssd_epi32(sum, a, b);
}

/* a - 2^shift * b. */
INLINE ci c_less(ci a, ci b, int shift)
{
    return _mm512_sub_epi32(a, _mm512_slli_epi32(b, (unsigned)shift));
}

INLINE cb c_bytes(const uint8_t *p)
{
    return _mm512_loadu_si512(p);
}

/* Broadcasts 16 bytes to every four columns. */
INLINE cb c_16_bytes(const uint8_t *p)
{
    return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)p));
}

/* table[i], i < 16; table is c_16_bytes(). */
INLINE cb c_lookup(cb table, cb i)
{
    return _mm512_shuffle_epi8(table, i);
}

INLINE cb c_and(cb a, int mask)
{
    return _mm512_and_si512(a, _mm512_set1_epi8((char)mask));
}

INLINE cb c_or(cb a, cb b)
{
    return _mm512_or_si512(a, b);
}

INLINE cb c_left(cb a, int n)
{
    return _mm512_slli_epi16(a, (unsigned)n);
}

INLINE cb c_right(cb a, int n)
{
    return _mm512_srli_epi16(a, (unsigned)n);
}
