/* kernel_avxvnni.c - x86-64 with AVX2 and AVX-VNNI: quantised products by VPDPBUSD on 256 bits.
 * Everything else is the AVX2 tier's. */
#if defined(__x86_64__)
#include "kernel/kernel_avx2.h"

#define C_SIGNED 0 // weights stay unsigned: VPDPBUSD wants them so
#define INT8_MAX_ROWS 8
#define INT8_ROWS(t) ((t).hi || (t).min ? 4 : 8)
#define INT8_EACH_ROWS(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8)

INLINE cb c_signed(cb a)
{
    return a;
}

/* sum + w . q over 4 n of K */
INLINE ci c_dot(ci sum, const cb *w, const int8_t *q, const int n, const int bits)
{
    (void)bits;
    EACH (g, n) {
        int four;
        memcpy(&four, q + 4 * g, 4);
        sum = _mm256_dpbusd_avx_epi32(sum, w[g], _mm256_set1_epi32(four));
    }
    return sum;
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
