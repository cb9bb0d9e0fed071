/* kernel_avx2.c - x86-64 with AVX2, FMA and F16C. */
#if defined(__x86_64__)
#include "kernel/kernel_avx2.h"

#define DOT_ROWS 2
#define DOT_EACH_ROWS(X) X(1) X(2)
#define DOT_COLS(rows) ((rows) == 1 ? 4 : 2)
#define DOT_MAX_ROWS 16
#define DOT_PART 256
#define BF16_ROWS 4
#define BF16_EACH_ROWS(X) X(1) X(2) X(3) X(4)
#define V_AHEAD 8192
#define V_SUMS 4
#define V_PARTS 1
#define V_TURNED 1

#include "kernel/kernel_body.h"

#define C_SIGNED 1 // 8-bit weights lose their offset: the byte product's 16-bit sums would saturate
#define INT8_MAX_ROWS 4
#define INT8_ROWS(t) 4
#define INT8_EACH_ROWS(X) X(1) X(2) X(3) X(4)

INLINE cb c_signed(cb a)
{
    return _mm256_xor_si256(a, _mm256_set1_epi8((char)0x80));
}

/* Products of bytes, summed in pairs to 16 bits: |w| <= 128 and |q| <= 127 stay below 32768; of
 * smaller weights 2, 4 or 8 such sums may be added before they are widened. */
INLINE ci c_dot(ci sum, const cb *w, const int8_t *q, const int n, const int bits)
{
    const __m256i ones = _mm256_set1_epi16(1);
    const int chain = bits == 8 ? 1 : bits == 6 ? 2 : bits == 5 ? 4 : 8;
    for (int g = 0; g < n; g += chain) {
        __m256i pairs = _mm256_setzero_si256();
        EACH (i, MIN(chain, n)) {
            int four;
            memcpy(&four, q + 4 * (g + i), 4);
            __m256i x = _mm256_set1_epi32(four);
            if (bits == 8)
                pairs =
                    _mm256_maddubs_epi16(_mm256_abs_epi8(w[g + i]), _mm256_sign_epi8(x, w[g + i]));
            else
                pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(w[g + i], x));
        }
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones));
    }
    return sum;
}

#include "kernel/kernel_int8.h"

const struct kernel kernel_avx2 = KERNEL_TABLE("avx2", matmul);
const struct kernel kernel_avxvnni = KERNEL_TABLE("avxvnni", kernel_avxvnni_matmul);
#endif
