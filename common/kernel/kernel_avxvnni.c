/* kernel_avxvnni.c - x86-64 with AVX2 and AVX-VNNI: quantised products by VPDPBUSD on 256 bits.
 * Everything else is the AVX2 tier's. */
#if defined(__x86_64__)
#include "kernel/kernel_avx2.h"

#define INT8_MAX_ROWS 8
#define INT8_EACH_ROWS(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8)
#define INT8_TOGETHER(bits) 4
#define INT8_Q_BYTES 32

INLINE void c_spread(const int8_t *q, int bits, uint8_t *to)
{
    (void)bits;
    memcpy(to, q, KERNEL_BLOCK);
}

/* sums[r] += w . q of row r over 4 n of K from g on */
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

#include "kernel/kernel_int8.h"

void kernel_avxvnni_matmul(const struct kernel_mat *w, const void *x, size_t x_bytes, uint32_t m,
                           float *y, size_t y_stride, uint32_t from, uint32_t to)
{
    if (kernel_form_of(w->type) == KERNEL_FORM_INT8)
        matmul_int8(w, x, x_bytes, m, y, y_stride, from, to);
    else
        kernel_avx2.matmul(w, x, x_bytes, m, y, y_stride, from, to);
}
#endif
