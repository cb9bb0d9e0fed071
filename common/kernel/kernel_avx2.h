/* kernel_avx2.h - vectors of AVX2: floats for kernel_body.h (v_*) and columns for kernel_int8.h
 * (c_*). The product of bytes is not here: AVX2 and AVX-VNNI differ in it. */
#pragma once
#include <immintrin.h>
#include "kernel/kernel_impl.h"

#define DOT_ROWS 3
#define DOT_COLS(rows) ((rows) == 1 ? 4 : 2)
#define DOT_EACH_ROWS(X) X(1) X(2) X(3)
#define DOT_AHEAD 1024
#define DOT_FEW 5
#define DOT_MAX_ROWS 64
#define DOT_PART 256
#define DOT_TILES 2
#define BF16_ROWS 4
#define BF16_EACH_ROWS(X) X(1) X(2) X(3) X(4)
#define V_SUMS 4
#define V_PARTS 1
#define V_TURNED 1
#define V_TILES 1
#define C_LANES 8
#define C_PARTS 2

typedef struct {
    __m256 lo, hi;
} vf;
typedef struct {
    __m256d l[4];
} vd;

INLINE vf v_set(float x)
{
    return (vf){_mm256_set1_ps(x), _mm256_set1_ps(x)};
}

INLINE vf v_load(const float *p)
{
    return (vf){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}

INLINE void v_store(float *p, vf a)
{
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
}

INLINE vf v_load_n(const float *p, uint32_t n, float fill)
{
    if (n >= 16)
        return v_load(p);
    float all[16];
    v_store(all, v_set(fill));
    memcpy(all, p, n * sizeof(*p));
    return v_load(all);
}

INLINE void v_store_n(float *p, uint32_t n, vf a)
{
    if (n >= 16) {
        v_store(p, a);
        return;
    }
    float all[16];
    v_store(all, a);
    memcpy(p, all, n * sizeof(*p));
}

INLINE vf v_half_load(const uint16_t *p)
{
    return (vf){_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)),
                _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 8)))};
}

INLINE vf v_half_load_n(const uint16_t *p, uint32_t n)
{
    uint16_t all[16] = {0};
    memcpy(all, p, n * sizeof(*p));
    return v_half_load(all);
}

/* Transposes 8 rows of 8 halfs and widens them; the 8 columns are 16 floats apart. */
INLINE void turn_8(const uint16_t *rows, size_t stride, float *to)
{
    __m128i r[8], a[8], b[8];
    EACH (i, 8)
        r[i] = _mm_loadu_si128((const __m128i *)(rows + (size_t)i * stride));
    EACH (i, 4) {
        a[i] = _mm_unpacklo_epi16(r[2 * i], r[2 * i + 1]);
        a[i + 4] = _mm_unpackhi_epi16(r[2 * i], r[2 * i + 1]);
    }
    EACH (i, 4) {
        b[i] = _mm_unpacklo_epi32(a[2 * i], a[2 * i + 1]);
        b[i + 4] = _mm_unpackhi_epi32(a[2 * i], a[2 * i + 1]);
    }
    EACH (i, 4) { // b: rows 0-3, rows 4-7 of columns 0 1, then of 4 5, 2 3 and 6 7
        int c = i == 1 ? 4 : i == 2 ? 2 : 2 * i;
        __m128i low = _mm_unpacklo_epi64(b[2 * i], b[2 * i + 1]);
        __m128i high = _mm_unpackhi_epi64(b[2 * i], b[2 * i + 1]);
        _mm256_storeu_ps(to + 16 * c, _mm256_cvtph_ps(low));
        _mm256_storeu_ps(to + 16 * (c + 1), _mm256_cvtph_ps(high));
    }
}

/* Transposes 16 rows of 16 halfs and widens them: to[16 c + r]. */
INLINE void v_half_turn(const uint16_t *rows, size_t stride, float *to)
{
    turn_8(rows, stride, to);
    turn_8(rows + 8, stride, to + 16 * 8);
    turn_8(rows + 8 * stride, stride, to + 8);
    turn_8(rows + 8 * stride + 8, stride, to + 16 * 8 + 8);
}

INLINE void v_half_store(uint16_t *p, vf a)
{
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128((__m128i *)(p + 8), _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT));
}

INLINE void v_bf16_load(const uint8_t *p, vf *even, vf *odd)
{
    __m256i lo = _mm256_loadu_si256((const __m256i *)p);
    __m256i hi = _mm256_loadu_si256((const __m256i *)(p + 32));
    __m256i upper = _mm256_set1_epi32((int)0xffff0000);
    even->lo = _mm256_castsi256_ps(_mm256_slli_epi32(lo, 16));
    even->hi = _mm256_castsi256_ps(_mm256_slli_epi32(hi, 16));
    odd->lo = _mm256_castsi256_ps(_mm256_and_si256(lo, upper));
    odd->hi = _mm256_castsi256_ps(_mm256_and_si256(hi, upper));
}

INLINE vf v_add(vf a, vf b)
{
    return (vf){_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}

INLINE vf v_sub(vf a, vf b)
{
    return (vf){_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}

INLINE vf v_mul(vf a, vf b)
{
    return (vf){_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}

INLINE vf v_div(vf a, vf b)
{
    return (vf){_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}

INLINE vf v_fma(vf a, vf b, vf c)
{
    return (vf){_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}

INLINE vf v_max(vf a, vf b)
{
    return (vf){_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}

INLINE vf v_min(vf a, vf b)
{
    return (vf){_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}

INLINE vf v_abs(vf a)
{
    __m256 sign = _mm256_set1_ps(-0.0f);
    return (vf){_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
}

INLINE float v_sum(vf a)
{
    __m256 b = _mm256_add_ps(a.lo, a.hi);
    __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_add_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_add_ss(c, _mm_movehdup_ps(c)));
}

/* A step of the tree for two vectors together: the results of a, then those of b. */
#define JOIN(op, a, b, shuffle, low, high) op(shuffle(a, b, low), shuffle(a, b, high))

/* v_sum() or v_hmax() of eight and of sixteen vectors. Each step halves the number of vectors, so
 * that all lanes stay in use. */
#define JOIN_ALL(name, name_8, op)                                                                 \
    INLINE __m256 name_8(const vf a[8])                                                            \
    {                                                                                              \
        __m256 b[8], c[4], d[2];                                                                   \
        EACH (i, 8)                                                                                \
            b[i] = op(a[i].lo, a[i].hi);                                                           \
        EACH (i, 4)                                                                                \
            c[i] = JOIN(op, b[i], b[i + 4], _mm256_permute2f128_ps, 0x20, 0x31);                   \
        EACH (i, 2)                                                                                \
            d[i] = JOIN(op, c[2 * i], c[2 * i + 1], _mm256_shuffle_ps, 0x44, 0xee);                \
        return JOIN(op, d[0], d[1], _mm256_shuffle_ps, 0x88, 0xdd);                                \
    }                                                                                              \
    INLINE vf name(const vf a[16])                                                                 \
    {                                                                                              \
        return (vf){name_8(a), name_8(a + 8)};                                                     \
    }
JOIN_ALL(v_sums, sums_8, _mm256_add_ps)
JOIN_ALL(v_maxs, maxs_8, _mm256_max_ps)

INLINE float v_hmax(vf a)
{
    __m256 b = _mm256_max_ps(a.lo, a.hi);
    __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    c = _mm_max_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_max_ss(c, _mm_movehdup_ps(c)));
}

INLINE uint32_t v_equal(vf a, vf b)
{
    uint32_t lo = (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_EQ_OQ));
    uint32_t hi = (uint32_t)_mm256_movemask_ps(_mm256_cmp_ps(a.hi, b.hi, _CMP_EQ_OQ));
    return lo | hi << 8;
}

INLINE __m256 power(__m256i n)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}

INLINE __m256 pow2_8(__m256 p, __m256 t)
{
    __m256i n = _mm256_sub_epi32(_mm256_castps_si256(t), _mm256_set1_epi32(0x4b400000));
    __m256i half = _mm256_srai_epi32(n, 1);
    return _mm256_mul_ps(_mm256_mul_ps(p, power(half)), power(_mm256_sub_epi32(n, half)));
}

INLINE vf v_pow2(vf p, vf t)
{
    return (vf){pow2_8(p.lo, t.lo), pow2_8(p.hi, t.hi)};
}

/* The bytes are summed plus 128 each; the constant is subtracted at the end. */
INLINE int v_quantise(vf a, int8_t *to)
{
    a = v_max(v_min(a, v_set(127)), v_set(-127));
    __m256i lo = _mm256_cvtps_epi32(a.lo), hi = _mm256_cvtps_epi32(a.hi);
    __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(lo, hi), 0xd8);
    __m128i q = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    _mm_storeu_si128((__m128i *)to, q);
    __m128i sums = _mm_sad_epu8(_mm_xor_si128(q, _mm_set1_epi8(-128)), _mm_setzero_si128());
    return _mm_cvtsi128_si32(sums) + _mm_extract_epi16(sums, 4) - 128 * 16;
}

typedef struct {
    __m256i lo, hi;
} vi;

INLINE vi vi_set(int32_t x)
{
    return (vi){_mm256_set1_epi32(x), _mm256_set1_epi32(x)};
}

INLINE vi vi_load(const int32_t *p)
{
    return (vi){_mm256_loadu_si256((const __m256i *)p), _mm256_loadu_si256((const __m256i *)p + 1)};
}

INLINE void vi_store(int32_t *p, vi a)
{
    _mm256_storeu_si256((__m256i *)p, a.lo);
    _mm256_storeu_si256((__m256i *)p + 1, a.hi);
}

INLINE vi vi_add(vi a, vi b)
{
    return (vi){_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}

INLINE vf vi_float(vi a)
{
    return (vf){_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)};
}

/* Broadcasts four bytes to every lane. */
INLINE __m256i spread(const void *p)
{
    int32_t four;
    memcpy(&four, p, sizeof(four));
    return _mm256_set1_epi32(four);
}

/* Rounds to sixteen words. */
INLINE __m256i weight_words(vf a)
{
    __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi));
    return _mm256_permute4x64_epi64(words, 0xd8);
}

INLINE vd vd_zero(void)
{
    __m256d zero = _mm256_setzero_pd();
    return (vd){{zero, zero, zero, zero}};
}

INLINE vd vd_add(vd a, vf b)
{
    a.l[0] = _mm256_add_pd(a.l[0], _mm256_cvtps_pd(_mm256_castps256_ps128(b.lo)));
    a.l[1] = _mm256_add_pd(a.l[1], _mm256_cvtps_pd(_mm256_extractf128_ps(b.lo, 1)));
    a.l[2] = _mm256_add_pd(a.l[2], _mm256_cvtps_pd(_mm256_castps256_ps128(b.hi)));
    a.l[3] = _mm256_add_pd(a.l[3], _mm256_cvtps_pd(_mm256_extractf128_ps(b.hi, 1)));
    return a;
}

INLINE double vd_sum(vd a)
{
    __m256d b = _mm256_add_pd(_mm256_add_pd(a.l[0], a.l[2]), _mm256_add_pd(a.l[1], a.l[3]));
    __m128d c = _mm_add_pd(_mm256_castpd256_pd128(b), _mm256_extractf128_pd(b, 1));
    return _mm_cvtsd_f64(_mm_add_sd(c, _mm_unpackhi_pd(c, c)));
}

#define VW_LANES 4
typedef __m256i vw;

INLINE vw vw_set(uint64_t x)
{
    return _mm256_set1_epi64x((long long)x);
}

INLINE vw vw_load(const uint32_t *p)
{
    return _mm256_cvtepu32_epi64(_mm_loadu_si128((const __m128i *)p));
}

INLINE void vw_store(uint64_t *p, vw a)
{
    _mm256_storeu_si256((__m256i *)p, a);
}

/* The product of the low halves. */
INLINE vw vw_mul(vw a, vw b)
{
    return _mm256_mul_epu32(a, b);
}

INLINE vw vw_xor(vw a, vw b)
{
    return _mm256_xor_si256(a, b);
}

INLINE vw vw_high(vw a)
{
    return _mm256_srli_epi64(a, 32);
}

/* 64-bit words from two low halves. */
INLINE vw vw_pair(vw low, vw high)
{
    return _mm256_blend_epi32(low, _mm256_slli_epi64(high, 32), 0xaa);
}

typedef __m256 cf;
typedef __m256i ci, cb;

INLINE cf c_set(float x)
{
    return _mm256_set1_ps(x);
}

INLINE cf c_halfs(const uint8_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}

INLINE cf c_bf16s(const uint8_t *p)
{
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}

INLINE cf c_mul(cf a, cf b)
{
    return _mm256_mul_ps(a, b);
}

INLINE cf c_fma(cf a, cf b, cf c)
{
    return _mm256_fmadd_ps(a, b, c);
}

INLINE cf c_negative(cf a)
{
    return _mm256_xor_ps(a, _mm256_set1_ps(-0.0f));
}

INLINE cf c_float(ci a)
{
    return _mm256_cvtepi32_ps(a);
}

INLINE void c_store_n(float *p, uint32_t n, cf a)
{
    if (n >= 8) {
        _mm256_storeu_ps(p, a);
        return;
    }
    float all[8];
    _mm256_storeu_ps(all, a);
    memcpy(p, all, n * sizeof(*p));
}

INLINE ci c_int(int x)
{
    return _mm256_set1_epi32(x);
}

/* Loads two bytes for each column and widens them to words. */
INLINE ci c_words(const uint8_t *p)
{
    return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)p));
}

/* Broadcasts two words to every column. */
INLINE ci c_2_words(const int16_t *p)
{
    return spread(p);
}

/* The first or the second word of each column. */
INLINE ci c_word(ci words, int second)
{
    return _mm256_srai_epi32(second ? words : _mm256_slli_epi32(words, 16), 16);
}

/* sum + a . b, where a and b are words. */
INLINE ci c_dot_words(ci sum, ci a, ci b)
{
    return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
}

/* a - 2^shift * b. */
INLINE ci c_less(ci a, ci b, int shift)
{
    return _mm256_sub_epi32(a, _mm256_slli_epi32(b, shift));
}

INLINE cb c_bytes(const uint8_t *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

/* Broadcasts 4 bytes to every column. */
INLINE cb c_4_bytes(const uint8_t *p)
{
    return spread(p);
}

/* Broadcasts 16 bytes to every four columns. */
INLINE cb c_16_bytes(const uint8_t *p)
{
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)p));
}

/* table[i], i < 16; table is c_16_bytes(). */
INLINE cb c_lookup(cb table, cb i)
{
    return _mm256_shuffle_epi8(table, i);
}

INLINE cb c_and(cb a, int mask)
{
    return _mm256_and_si256(a, _mm256_set1_epi8((char)mask));
}

INLINE cb c_or(cb a, cb b)
{
    return _mm256_or_si256(a, b);
}

INLINE cb c_left(cb a, int n)
{
    return _mm256_slli_epi16(a, n);
}

INLINE cb c_right(cb a, int n)
{
    return _mm256_srli_epi16(a, n);
}
