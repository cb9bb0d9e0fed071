/* kernel_avx2.c - x86-64 with AVX2, FMA and F16C. */
#if defined(__x86_64__)
#include "kernel/kernel_avx2.h"

#define I_TILES 1
#define I_HEADS 4
#define I_PARTS 1
#define DELTA_BLOCKS 1

/* Bytes as words of 16 bits: the bytes at even places, and those at odd places. */
typedef struct {
    __m256i even[2], odd[2];
} vk, vv;
typedef struct {
    __m256i even, odd;
} vq, vt;
typedef vi va;

INLINE vk vk_load(const uint8_t *p)
{
    vk r;
    EACH (i, 2) {
        __m256i k = _mm256_loadu_si256((const __m256i *)(p + 32 * i));
        r.even[i] = _mm256_and_si256(k, _mm256_set1_epi16(0xff));
        r.odd[i] = _mm256_srli_epi16(k, 8);
    }
    return r;
}

INLINE vv vv_load(const uint8_t *p)
{
    vv r;
    EACH (i, 2) {
        __m256i v = _mm256_loadu_si256((const __m256i *)(p + 32 * i));
        r.even[i] = _mm256_srai_epi16(_mm256_slli_epi16(v, 8), 8);
        r.odd[i] = _mm256_srai_epi16(v, 8);
    }
    return r;
}

INLINE vq vq_load(const int8_t *p)
{
    __m256i q = spread(p);
    return (vq){_mm256_srai_epi16(_mm256_slli_epi16(q, 8), 8), _mm256_srai_epi16(q, 8)};
}

INLINE vi vk_dot(vi a, vk k, vq x)
{
    a.lo = _mm256_add_epi32(a.lo, _mm256_madd_epi16(k.even[0], x.even));
    a.hi = _mm256_add_epi32(a.hi, _mm256_madd_epi16(k.even[1], x.even));
    a.lo = _mm256_add_epi32(a.lo, _mm256_madd_epi16(k.odd[0], x.odd));
    a.hi = _mm256_add_epi32(a.hi, _mm256_madd_epi16(k.odd[1], x.odd));
    return a;
}

/* Stores words in the order of vt_load(): of each four, first the even ones, then the odd ones. */
INLINE void vt_store(uint8_t *to, vf a)
{
    __m256i words = weight_words(a);
    words = _mm256_shufflelo_epi16(words, 0xd8);
    _mm256_storeu_si256((__m256i *)to, _mm256_shufflehi_epi16(words, 0xd8));
}

INLINE vt vt_load(const uint8_t *p, int group)
{
    return (vt){spread(p + 8 * group), spread(p + 8 * group + 4)};
}

INLINE va va_zero(void)
{
    return vi_set(0);
}

INLINE va va_dot(va a, vv v, vt x)
{
    return vk_dot(a, v, (vq){x.even, x.odd});
}

INLINE vi va_sum(va a)
{
    return a;
}

#define INT8_MAX_ROWS 8
#define INT8_EACH_ROWS(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8)
#define INT8_SPREADS(bits) ((bits) == 8)
#define INT8_Q_BYTES 64

#include "kernel/kernel_body.h"

/* Weights of 8 bits are multiplied as words: of each four first the even ones, then the odd ones.
 * As bytes, the 16-bit sums of the product would saturate. */
INLINE void c_spread(const int8_t *q, uint8_t *to)
{
    __m256i bytes = _mm256_loadu_si256((const __m256i *)q), even = _mm256_slli_epi16(bytes, 8);
    _mm256_storeu_si256((__m256i *)to, _mm256_srai_epi16(even, 8));
    _mm256_storeu_si256((__m256i *)(to + 32), _mm256_srai_epi16(bytes, 8));
}

/* Stops gcc from reordering the additions; its order would need more registers than there are. */
#define IN_ORDER(sum) __asm__("" : "+x"(sum))

INLINE void dots_words(ci (*sums)[2], const cb (*w)[8], const int from, const int n,
                       const uint8_t *q, size_t q_bytes, const int n_rows)
{
    EACH (g, n)
        EACH (odd, 2) {
            cb words[2];
            EACH (p, 2)
                words[p] = odd ? c_right(w[p][from + g], 8)
                               : _mm256_and_si256(w[p][from + g], _mm256_set1_epi16(0xff));
            EACH (r, n_rows) {
                cb x = c_4_bytes(q + r * q_bytes + 32 * odd + 4 * (from + g));
                EACH (p, 2) {
                    sums[r][p] = _mm256_add_epi32(sums[r][p], _mm256_madd_epi16(words[p], x));
                    IN_ORDER(sums[r][p]);
                }
            }
        }
}

/* Products of bytes. The instruction adds them in pairs, to 16 bits; `chain` such sums together
 * stay below 32768. The result is multiplied by the words of `by`. */
INLINE void dots_bytes(ci (*sums)[2], const cb (*w)[8], const int from, const int n,
                       const uint8_t *q, size_t q_bytes, const int chain, const cb *by,
                       const int n_rows)
{
    EACH (c, n / chain) {
        cb pairs[INT8_MAX_ROWS][2];
        EACH (i, chain)
            EACH (r, n_rows) {
                const int g = from + c * chain + i;
                cb x = c_4_bytes(q + r * q_bytes + 4 * g);
                EACH (p, 2) {
                    cb two = _mm256_maddubs_epi16(w[p][g], x);
                    pairs[r][p] = i ? _mm256_add_epi16(pairs[r][p], two) : two;
                    IN_ORDER(pairs[r][p]);
                }
            }
        EACH (r, n_rows)
            EACH (p, 2)
                sums[r][p] = _mm256_add_epi32(sums[r][p], _mm256_madd_epi16(pairs[r][p], by[p]));
    }
}

INLINE int chain_of(int bits)
{
    return bits == 6 ? 2 : bits == 5 ? 4 : 8;
}

/* sums[r] += w . q of row r, over 4 * n of K, starting at the group of four `from`. */
INLINE void c_dots(ci (*sums)[2], const cb (*w)[8], const int from, const int n, const uint8_t *q,
                   size_t q_bytes, const int bits, const int n_rows)
{
    if (bits == 8)
        dots_words(sums, w, from, n, q, q_bytes, n_rows);
    else
        dots_bytes(sums, w, from, n, q, q_bytes, chain_of(bits),
                   (const cb[]){_mm256_set1_epi16(1), _mm256_set1_epi16(1)}, n_rows);
}

/* sums[r] += by * (w . q), over the same range as c_dots(). */
INLINE void c_scaled_dots(ci (*sums)[2], const cb (*w)[8], const int from, const int n,
                          const uint8_t *q, size_t q_bytes, const int bits, const ci *by,
                          const int n_rows)
{
    if (bits == 8) {
        ci dots[INT8_MAX_ROWS][2];
        EACH (r, n_rows)
            EACH (p, 2)
                dots[r][p] = c_int(0);
        dots_words(dots, w, from, n, q, q_bytes, n_rows);
        EACH (r, n_rows)
            EACH (p, 2)
                sums[r][p] = _mm256_add_epi32(sums[r][p], _mm256_mullo_epi32(dots[r][p], by[p]));
    } else {
        ci words[2];
        EACH (p, 2)
            words[p] = _mm256_blend_epi16(by[p], _mm256_slli_epi32(by[p], 16), 0xaa);
        dots_bytes(sums, w, from, n, q, q_bytes, chain_of(bits), words, n_rows);
    }
}

#include "kernel/kernel_int8.h"

const struct kernel kernel_avx2 = KERNEL_TABLE("avx2", matmul, kernel_rows_form, prepare);
#endif
