/* kernel_avxvnni.c - x86-64 with AVX2 and AVX-VNNI: products of int8 by VPDPBUSD on 256 bits. */
#if defined(__x86_64__)
#include "kernel/kernel_avx2.h"

#define I_TILES 1
#define I_HEADS 2
#define I_PARTS 1
#define DELTA_BLOCKS 1

typedef struct {
    __m256i l[2];
} vk, vv;
typedef __m256i vq;
typedef struct {
    __m256i high, low;
} vt; // the high and the low bytes of weights
typedef struct {
    vi high, low;
} va;

INLINE vk vk_load(const uint8_t *p)
{
    return (vk){
        {_mm256_loadu_si256((const __m256i *)p), _mm256_loadu_si256((const __m256i *)p + 1)}};
}

INLINE vv vv_load(const uint8_t *p)
{
    return vk_load(p);
}

INLINE vq vq_load(const int8_t *p)
{
    return spread(p);
}

INLINE vi vk_dot(vi a, vk k, vq x)
{
    return (vi){_mm256_dpbusd_avx_epi32(a.lo, k.l[0], x), _mm256_dpbusd_avx_epi32(a.hi, k.l[1], x)};
}

INLINE void vt_store(uint8_t *to, vf a)
{
    __m256i words = weight_words(a), low = _mm256_and_si256(words, _mm256_set1_epi16(0xff));
    __m256i bytes = _mm256_packus_epi16(_mm256_srli_epi16(words, 8), low);
    _mm256_storeu_si256((__m256i *)to, _mm256_permute4x64_epi64(bytes, 0xd8));
}

INLINE vt vt_load(const uint8_t *p, int group)
{
    return (vt){spread(p + 4 * group), spread(p + 16 + 4 * group)};
}

INLINE va va_zero(void)
{
    return (va){vi_set(0), vi_set(0)};
}

INLINE vi weigh_bytes(vi a, vv v, __m256i t)
{
    return (vi){_mm256_dpbusd_avx_epi32(a.lo, t, v.l[0]), _mm256_dpbusd_avx_epi32(a.hi, t, v.l[1])};
}

INLINE va va_dot(va a, vv v, vt x)
{
    return (va){weigh_bytes(a.high, v, x.high), weigh_bytes(a.low, v, x.low)};
}

INLINE vi va_sum(va a)
{
    return (vi){_mm256_add_epi32(_mm256_slli_epi32(a.high.lo, 8), a.low.lo),
                _mm256_add_epi32(_mm256_slli_epi32(a.high.hi, 8), a.low.hi)};
}

#define INT8_MAX_ROWS 8
#define INT8_EACH_ROWS(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8)
#define INT8_SPREADS(bits) ((bits) < 0) // never
#define INT8_Q_BYTES KERNEL_BLOCK

#include "kernel/kernel_body.h"

INLINE void c_spread(const int8_t *q, uint8_t *to)
{
    memcpy(to, q, KERNEL_BLOCK);
}

/* sums[r] += w . q of row r, over 4 * n of K, starting at the group of four `from`. */
INLINE void c_dots(ci (*sums)[2], const cb (*w)[8], const int from, const int n, const uint8_t *q,
                   size_t q_bytes, const int bits, const int n_rows)
{
    (void)bits;
    EACH (g, n)
        EACH (r, n_rows) {
            cb x = c_4_bytes(q + r * q_bytes + 4 * (from + g));
            EACH (p, 2)
                sums[r][p] = _mm256_dpbusd_avx_epi32(sums[r][p], w[p][from + g], x);
        }
}

/* sums[r] += by * (w . q), over the same range as c_dots(). */
INLINE void c_scaled_dots(ci (*sums)[2], const cb (*w)[8], const int from, const int n,
                          const uint8_t *q, size_t q_bytes, const int bits, const ci *by,
                          const int n_rows)
{
    ci dots[INT8_MAX_ROWS][2];
    EACH (r, n_rows)
        EACH (p, 2)
            dots[r][p] = c_int(0);
    c_dots(dots, w, from, n, q, q_bytes, bits, n_rows);
    EACH (r, n_rows)
        EACH (p, 2)
            sums[r][p] = _mm256_add_epi32(sums[r][p], _mm256_mullo_epi32(dots[r][p], by[p]));
}

#include "kernel/kernel_int8.h"

const struct kernel kernel_avxvnni = KERNEL_TABLE("avxvnni", matmul, kernel_rows_form, prepare);
#endif
