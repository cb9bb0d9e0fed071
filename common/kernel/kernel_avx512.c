/* kernel_avx512.c - x86-64 with AVX-512 F, BW, VL, DQ and VNNI. */
#if defined(__x86_64__)
#include "kernel/kernel_avx512.h"

#define DOT_ROWS 4
#define DOT_EACH_ROWS(X) X(1) X(2) X(3) X(4)
#define DOT_COLS(rows) ((rows) == 1 ? 16 : 4)
#define DOT_MAX_ROWS 16
#define DOT_PART 256
#define BF16_ROWS 8
#define BF16_EACH_ROWS(X) X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8)
#define V_AHEAD 8192
#define V_SUMS 16
#define V_PARTS 4
#define V_TURNED 4

#include "kernel/kernel_body.h"

#define INT8_MAX_ROWS 16
#define INT8_ROWS(t) ((t).hi || (t).min ? 8 : 16)
#define INT8_EACH_ROWS(X)                                                                          \
    X(1) X(2) X(3) X(4) X(5) X(6) X(7) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15) X(16)

#include "kernel/kernel_int8.h"

const struct kernel kernel_avx512 = KERNEL_TABLE("avx512", matmul);
const struct kernel kernel_amx = KERNEL_TABLE("amx", kernel_amx_matmul);
#endif
