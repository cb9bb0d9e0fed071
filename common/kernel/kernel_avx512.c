/* kernel_avx512.c - x86-64 with AVX-512 F, BW, VL, DQ and VNNI. */
#if defined(__x86_64__)
#include "kernel/kernel_avx512.h"

#define DOT_ROWS 6
#define DOT_COLS(rows) ((rows) < 3 ? 8 : 4)
#define DOT_EACH_ROWS(X) X(1) X(2) X(3) X(4) X(5) X(6)
#define DOT_AHEAD 1024
#define DOT_FEW 24
#define DOT_MAX_ROWS 64
#define DOT_PART 512
#define DOT_TILES 4
#define BF16_ROWS 8
#define BF16_EACH_ROWS(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8)
#define V_SUMS 16
#define V_PARTS 4
#define V_TURNED 4
#define V_TILES 2
#define I_TILES 4
#define I_HEADS 2
#define I_PARTS 4
#define DELTA_BLOCKS 2

#define INT8_MAX_ROWS 16
#define INT8_EACH_ROWS(X)                                                                          \
    X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15) X(16)
#define INT8_SPREADS(bits) ((bits) < 0) // never
#define INT8_Q_BYTES KERNEL_BLOCK

#include "kernel/kernel_body.h"

INLINE void c_spread(const int8_t *q, uint8_t *to)
{
    memcpy(to, q, KERNEL_BLOCK);
}

/* sums[r] += w . q of row r, over 4 * n of K, starting at the group of four `from`. The instruction
 * itself broadcasts four bytes of q. gcc 12 would use a second instruction for the broadcast, and
 * with it physical registers that results need until they retire. */
INLINE void c_dots(ci (*sums)[1], const cb (*w)[8], const int from, const int n, const uint8_t *q,
                   size_t q_bytes, const int bits, const int n_rows)
{
    (void)bits;
    EACH (g, n)
        EACH (r, n_rows) {
            const uint8_t(*x)[4] = (const void *)(q + r * q_bytes + 4 * (from + g));
#ifdef __AVX512VNNI__
            __asm__("vpdpbusd %2%{1to16%}, %1, %0"
                    : "+v"(sums[r][0])
                    : "v"(w[0][from + g]), "m"(*x));
#else // lib/emulated of the tests
            sums[r][0] = vk_dot(sums[r][0], w[0][from + g], spread(x));
#endif
        }
}

/* sums[r] += by * (w . q), over the same range as c_dots(). */
INLINE void c_scaled_dots(ci (*sums)[1], const cb (*w)[8], const int from, const int n,
                          const uint8_t *q, size_t q_bytes, const int bits, const ci *by,
                          const int n_rows)
{
    ci dots[INT8_MAX_ROWS][1];
    EACH (r, n_rows)
        dots[r][0] = c_int(0);
    c_dots(dots, w, from, n, q, q_bytes, bits, n_rows);
    EACH (r, n_rows)
        sums[r][0] = _mm512_add_epi32(sums[r][0], _mm512_mullo_epi32(dots[r][0], *by));
}

#include "kernel/kernel_int8.h"

const struct kernel kernel_avx512 = KERNEL_TABLE("avx512", matmul, kernel_rows_form, prepare);
const struct kernel kernel_amx =
    KERNEL_TABLE("amx", kernel_amx_matmul, kernel_amx_form, kernel_amx_prepare);
#endif
