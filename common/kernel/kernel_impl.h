/* kernel_impl.h - shared by the files of this folder: packed layouts and the prepared int8 row.
 *
 * A packed quantised matrix is a row of tiles of KERNEL_TILE output columns. A tile is a row of
 * groups. A group holds the scales of its blocks, then the blocks, each of 32 weights of K:
 *
 *   types of 32   group of 2: d (2, 16) f16 [, m (2, 16) f16]; of MXFP4: bf16
 *   Q4_K, Q5_K    group of 8: d (16) f16, dmin (16) f16, scales (4, 16, 2) s8, mins likewise:
 *                 [i][column][j] is that of block 2 i + j
 *   Q6_K          group of 8: d (16) f16, 32 unused bytes, scales (8, 16, 2) s8:
 *                 [block][column][half]
 *   IQ4_XS        group of 8: d (16) f16, 32 unused bytes, scales (4, 16, 2) s8 as Q4_K
 *
 *   low bits      8: (8, 16, 4) bytes, [g][column][j] is the weight k = 4 g + j
 *                 4: (4, 16, 4) bytes, [v]: low nibble g = v, high one g = v + 4
 *   high bits     1: (16, 4) bytes, bit g of each
 *                 2: (2, 16, 4) bytes, [g / 4]: bits 2 (g % 4) of each
 *
 * Packed weights are unsigned: w = d * sub * (q - offset) + m. For types with a codebook, q is an
 * index: w = d * sub * (kernel_codebooks[book][q] - offset). The last group of a tile ends after
 * its last block. In a tile of floats, K is filled up with zeros to a multiple of 32 (F32: 16):
 *
 *   BF16          (K / 2, 16, 2)
 *   F16, F32      (16, K): the rows of the file */
#pragma once
#include "kernel/kernel.h"
#include <string.h>

#define KERNEL_BLOCK 32  // weights in a block
#define KERNEL_GROUP 256 // weights in a group of types of 256

/* The quantised types. Columns after the name:
 * - bytes of a block in the file;
 * - bits of a weight in the low plane and in the high plane;
 * - offset;
 * - blocks in a group;
 * - two flags: mins, scales for half blocks;
 * - the codebook. */
#define KERNEL_INT8_TYPES(X)                                                                       \
    X(Q8_0, 34, 8, 0, 128, 2, 0, 0, 0)                                                             \
    X(Q4_0, 18, 4, 0, 8, 2, 0, 0, 0)                                                               \
    X(Q4_1, 20, 4, 0, 0, 2, 1, 0, 0)                                                               \
    X(Q5_0, 22, 4, 1, 16, 2, 0, 0, 0)                                                              \
    X(Q5_1, 24, 4, 1, 0, 2, 1, 0, 0)                                                               \
    X(Q4_K, 144, 4, 0, 0, 8, 1, 0, 0)                                                              \
    X(Q5_K, 176, 4, 1, 0, 8, 1, 0, 0)                                                              \
    X(Q6_K, 210, 4, 2, 32, 8, 0, 1, 0)                                                             \
    X(IQ4_NL, 18, 4, 0, 128, 2, 0, 0, KERNEL_BOOK_IQ4)                                             \
    X(IQ4_XS, 136, 4, 0, 128, 8, 0, 0, KERNEL_BOOK_IQ4)                                            \
    X(MXFP4, 17, 4, 0, 16, 2, 0, 0, KERNEL_BOOK_E2M1)
#define KERNEL_HEAD_BYTES(group, min, halves)                                                      \
    ((group) == 8 ? 192 + 128 * ((min) || (halves)) : 64 + 64 * (min))
#define KERNEL_BLOCK_BYTES(lo, hi) (64 * (lo) + 64 * (hi))

/* E2M1: twice the floats of MXFP4. Its scales are powers of two, which bf16 holds exactly. */
enum kernel_book { KERNEL_BOOK_NONE, KERNEL_BOOK_IQ4, KERNEL_BOOK_E2M1 };

struct kernel_layout {
    const char *name;
    uint16_t n_weights, n_bytes; // of a block in the file
    enum kernel_form form;
    uint8_t group; // blocks of 32 in a packed group; 0: not quantised
    uint8_t lo_bits, hi_bits, offset;
    bool has_min, has_halves; // halves: one scale per 16 weights
    enum kernel_book book;
    uint16_t head, block; // bytes of the scales of a group, and of each block
};

/* The values of a codebook plus the type's offset. */
extern const uint8_t kernel_codebooks[][16];

/* NULL: the type has no kernels. */
const struct kernel_layout *kernel_layout(enum kernel_type type);
/* kernel_form_of() for any m; the `form` of tiers without tiles. */
enum kernel_form kernel_rows_form(enum kernel_type type, uint32_t m);
/* Bytes of the first n blocks of a tile; quantised types only. */
size_t kernel_group_bytes(const struct kernel_layout *l, uint32_t n_blocks);
size_t kernel_tile_bytes(const struct kernel_layout *l, uint32_t n_in);
/* Floats, halfs or bf16 of a row, including the zeros that fill it up. */
uint32_t kernel_padded(const struct kernel_layout *l, uint32_t n_in);

/* A block (32 of K) of a tile, unpacked. */
struct kernel_unpacked {
    uint8_t q[8][KERNEL_TILE][4];
    float d[KERNEL_TILE], m[KERNEL_TILE];
    int8_t sub[2][KERNEL_TILE], sub_m[KERNEL_TILE]; // 1 for types of 32
};
/* Unpacks block b of a tile. */
void kernel_unpack(const struct kernel_layout *l, const uint8_t *tile, uint32_t b,
                   struct kernel_unpacked *u);

/* Activations of a block of 32, x = d * q. A prepared int8 row is an array of these. In the tiers
 * of x86-64, the rows of a pass are interleaved: block b of all rows, then block b + 1. They begin
 * where the first of them would begin alone. So a pass reads one stream of memory, and rows are a
 * constant apart. */
struct kernel_x {
    int8_t q[KERNEL_BLOCK];
    float d;
    float sum;             // d * (float)(sum of q)
    int32_t minus, minus8; // -128 and -8 times the sum of q
} __attribute__((aligned(16)));

/* Activations of a group of 256, for types of 256; interleaved in the same way. */
struct kernel_x256 {
    int8_t q[KERNEL_GROUP];
    int16_t half[16], sum[8]; // sums of q over each 16 and over each 32
    float d;
} __attribute__((aligned(64)));

/* The form of tiles. m rows are split nearly equally into groups of up to KERNEL_ROWS rows. A group
 * is an array of these. Group g begins where row g * KERNEL_ROWS would begin. */
struct kernel_unit {
    int8_t q[KERNEL_ROWS][KERNEL_BLOCK];
    float d[KERNEL_ROWS], sum[KERNEL_ROWS];
} __attribute__((aligned(64)));

struct kernel_unit256 {
    int8_t q[4][KERNEL_ROWS][KERNEL_GROUP / 4];
    float d[KERNEL_ROWS];
    int16_t sum[KERNEL_ROWS][8];
} __attribute__((aligned(64)));

/* Blocks of K and V have the layout in kernel_kv.c. Bytes of a row of F16 or F32: */
static inline size_t kernel_kv_row(enum kernel_kv type, uint32_t head_dim)
{
    return (size_t)head_dim * (type == KERNEL_KV_F16 ? 2 : 4);
}

/* INT8:
 *   kernel_kv8_dim    head_dim, filled up to a multiple of 16
 *   kernel_kv8_half   bytes of K with its scales; V with its scales begins there
 *   kernel_kv8_k      offset in K of the values d .. d + 3 of a position; d is a multiple of 4
 *   kernel_kv8_v      offset in V of value d of a position */
#define KERNEL_KV8_SCALES 64 // bytes

static inline uint32_t kernel_kv8_dim(uint32_t head_dim)
{
    return (head_dim + 15) / 16 * 16;
}

static inline size_t kernel_kv8_half(uint32_t head_dim)
{
    return KERNEL_KV8_SCALES + (size_t)KERNEL_KV_BLOCK * kernel_kv8_dim(head_dim);
}

static inline size_t kernel_kv8_k(uint32_t place, uint32_t d)
{
    return KERNEL_KV8_SCALES + (size_t)d * KERNEL_KV_BLOCK + 4 * place;
}

static inline size_t kernel_kv8_v(uint32_t head_dim, uint32_t place, uint32_t d)
{
    return KERNEL_KV8_SCALES + ((size_t)place / 4 * kernel_kv8_dim(head_dim) + d) * 4 + place % 4;
}

static inline uint32_t kernel_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

static inline float kernel_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))
#define KERNEL_STAYS (256 << 10) // bytes of weights that stay in L2 during several passes

/* Rows of the pass that begins at row r. The rest of the m rows is split nearly equally over `left`
 * passes. */
static inline uint32_t kernel_pass_rows(uint32_t m, uint32_t r, uint32_t left)
{
    return (m - r + left - 1) / left;
}

/* Columns whose weights stay in L2 while several passes read them; for one pass, all columns. */
static inline uint32_t kernel_pass_columns(size_t tile_bytes, uint32_t n_passes, uint32_t all)
{
    uint32_t tiles = (uint32_t)(KERNEL_STAYS / tile_bytes);
    return n_passes == 1 ? all : (tiles < 4 ? 4 : tiles & ~3u) * KERNEL_TILE;
}

#define KERNEL_AHEAD 2048 // usual distance of the prefetch, in bytes

/* The walk of m rows over w. */
static inline struct kernel_walk kernel_walk_of(const struct kernel_mat *w, uint32_t m)
{
    struct kernel_walk walk = m == 1 ? w->one : w->more;
    return walk.n_streams ? walk : (struct kernel_walk){KERNEL_STREAMS, KERNEL_AHEAD};
}

/* For code that the constants of a tier unroll. */
#ifndef EACH // the tests define both in lib/emulated, where unrolling is of no use
#define INLINE static inline __attribute__((always_inline))
#define EACH(i, n) _Pragma("GCC unroll 16") for (int i = 0; i < (n); i++)
#endif

extern const struct kernel kernel_c;
#if defined(__x86_64__)
extern const struct kernel kernel_avx2, kernel_avxvnni, kernel_avx512, kernel_amx;

/* The functions in which the tier amx differs from avx512. */
void kernel_amx_matmul(const struct kernel_mat *w, const void *x, size_t x_bytes, uint32_t m,
                       float *y, size_t y_stride, uint32_t from, uint32_t to);
enum kernel_form kernel_amx_form(enum kernel_type type, uint32_t m);
void kernel_amx_prepare(enum kernel_form form, const float *x, uint32_t n, uint32_t r, uint32_t m,
                        void *to, size_t to_bytes);
/* The product of BF16. False: nothing was done, because so few rows are as fast without tiles. */
bool kernel_amx_bf16(const struct kernel_mat *w, const void *x, size_t x_bytes, uint32_t m,
                     float *y, size_t y_stride, uint32_t from, uint32_t to);
#endif
