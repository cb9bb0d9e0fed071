/* kernel_int8.h - quantised weights times int8 activations, for tiers with byte products.
 *
 * A lane is a column of the output. So each column has its own chain over the blocks of K, and no
 * sum crosses lanes. A block is unpacked once for all rows. Each kernel_<isa>.c includes this file
 * after it has defined:
 *
 *   cf, ci, cb, c_*()       floats, ints and 4 bytes each of C_LANES columns, and their operations;
 *                           a tile is C_PARTS of these vectors
 *   INT8_MAX_ROWS           rows that are multiplied by a block while it is unpacked
 *   INT8_EACH_ROWS(X)       X(1) X(2) ... X(INT8_MAX_ROWS)
 *   INT8_SPREADS(bits)      true: c_spread() spreads the bytes of a block of activations to
 *                           INT8_Q_BYTES, which c_dots() reads. Else it reads the prepared bytes */
#pragma once
#include "kernel/kernel_int8_unpack.h"

/* Rows whose products alternate. A product has to wait for the previous product of its row. */
#define INT8_TOGETHER 4

/* Bits of an unpacked weight. */
INLINE int int8_bits(const struct int8_type t)
{
    return t.book == KERNEL_BOOK_NONE ? t.lo + t.hi : t.book == KERNEL_BOOK_IQ4 ? 8 : 5;
}

/* log2 of an offset. */
INLINE int int8_log2(int n)
{
    return n == 8 ? 3 : n == 16 ? 4 : n == 32 ? 5 : 7;
}

/* The activations of a pass for one group of weights. The rows are interleaved. */
struct int8_x {
    const struct kernel_x *of_32;     // types of 32
    const struct kernel_x256 *of_256; // types of 256
    /* Bytes of block i of row r, if the tier spreads them for c_dots(). */
    uint8_t (*spread)[INT8_MAX_ROWS][INT8_Q_BYTES];
};

/* The bytes of block i as c_dots() reads them; those of the next row follow after
 * int8_q_bytes(). */
INLINE const uint8_t *int8_q(const struct int8_type t, const struct int8_x *x, int i,
                             const int n_rows)
{
    const void *q = x->of_32[i * n_rows].q;
    if (t.group == 8)
        q = x->of_256->q + i * KERNEL_BLOCK;
    if (INT8_SPREADS(int8_bits(t)))
        q = x->spread[i][0];
    __asm__("" : "+r"(q)); // one register: an operand with two takes two steps of the CPU
    return q;
}

INLINE size_t int8_q_bytes(const struct int8_type t)
{
    return INT8_SPREADS(int8_bits(t)) ? INT8_Q_BYTES
           : t.group == 8             ? sizeof(struct kernel_x256)
                                      : sizeof(struct kernel_x);
}

/* Spreads the bytes of a group of all rows, for every tile. */
INLINE void int8_spread(const struct int8_type t, const struct int8_x *x, int n_blocks,
                        const int n_rows)
{
    if (!INT8_SPREADS(int8_bits(t)))
        return;
    for (int i = 0; i < n_blocks; i++)
        for (int r = 0; r < n_rows; r++)
            c_spread(t.group == 8 ? x->of_256[r].q + i * KERNEL_BLOCK : x->of_32[i * n_rows + r].q,
                     x->spread[i][r]);
}

/* The sum of a row begins with it; it cancels the offset of the weights. */
INLINE int32_t int8_start(const struct int8_type t, const struct kernel_x *x)
{
    return t.offset == 128 ? x->minus : t.offset == 16 ? 2 * x->minus8 : x->minus8;
}

/* Nothing if ahead is 0. */
INLINE void int8_prefetch(const uint8_t *p, const int bytes, uint32_t ahead)
{
    if (ahead)
        EACH (line, bytes / 64)
            __builtin_prefetch(p + ahead + 64 * line);
}

/* Unpacks block i of a group of a tile. */
INLINE void int8_open(const struct int8_type t, const uint8_t *group, int i, uint32_t ahead,
                      cb (*w)[8])
{
    const int bytes = KERNEL_BLOCK_BYTES(t.lo, t.hi);
    const uint8_t *block = group + KERNEL_HEAD_BYTES(t.group, t.min, t.halves) + i * bytes;
    int8_prefetch(block, bytes, ahead);
    EACH (p, C_PARTS)
        int8_unpack(t, block + 4 * C_LANES * p, w[p]);
}

/* Two hints for gcc 12.
 *   INT8_STAY         The weights of a block stay in memory if the rows alternate: there are too
 *                     few registers for them.
 *   INT8_READ_AGAIN   The next tile reads its activations from memory again. As memory operands
 *                     they are free. If gcc keeps them, it spills them (8 rows: a third of the
 *                     speed). */
#define INT8_STAY(w)                                                                               \
    do {                                                                                           \
        if (C_PARTS > 1 && n_rows > together)                                                      \
            __asm__ volatile("" : "+m"(w));                                                        \
    } while (0)
#define INT8_READ_AGAIN() __asm__ volatile("" : : : "memory")

/* Adds the products of block i of a group, types of 32, for all rows. */
INLINE void int8_block(const struct int8_type t, const uint8_t *group, int i, uint32_t ahead,
                       const struct int8_x *x, cf (*acc)[C_PARTS], const int n_rows)
{
    const int together = INT8_TOGETHER;
    const size_t q_bytes = int8_q_bytes(t);
    const uint8_t *q = int8_q(t, x, i, n_rows);
    const struct kernel_x *rows = x->of_32 + i * n_rows;
    cb w[C_PARTS][8];
    cf d[C_PARTS], m[C_PARTS];
    int8_open(t, group, i, ahead, w);
    EACH (p, C_PARTS) {
        m[p] = c_set(0);
        int8_scales(t, group, i, C_LANES * p, &d[p], &m[p]);
    }
    EACH (turn, (n_rows + together - 1) / together) {
        const int from = turn * together, n = MIN(together, n_rows - from);
        ci sums[INT8_MAX_ROWS][C_PARTS];
        INT8_STAY(w);
        EACH (r, n)
            EACH (p, C_PARTS)
                sums[r][p] = c_int(t.offset ? int8_start(t, &rows[from + r]) : 0);
        c_dots(sums, w, 0, 8, q + from * q_bytes, q_bytes, int8_bits(t), n);
        EACH (r, n)
            EACH (p, C_PARTS) {
                cf *to = &acc[from + r][p];
                *to = c_fma(c_float(sums[r][p]), c_mul(d[p], c_set(rows[from + r].d)), *to);
                if (t.min)
                    *to = c_fma(m[p], c_set(rows[from + r].sum), *to);
            }
    }
    INT8_READ_AGAIN();
}

/* Adds the products of a group of types of 32, of which the tile has n_blocks blocks. */
INLINE void int8_blocks(const struct int8_type t, const uint8_t *group, int n_blocks,
                        uint32_t ahead, const struct int8_x *x, cf (*acc)[C_PARTS],
                        const int n_rows)
{
    cf sums[INT8_MAX_ROWS][C_PARTS];
    EACH (r, n_rows)
        EACH (p, C_PARTS)
            sums[r][p] = acc[r][p];
    for (int i = 0; i < n_blocks; i++)
        int8_block(t, group, i, ahead, x, sums, n_rows);
    EACH (r, n_rows)
        EACH (p, C_PARTS)
            acc[r][p] = sums[r][p];
}

/* Adds to `sums` the products of block i of a group of types of 256, times its integer scales. */
INLINE void int8_scaled_block(const struct int8_type t, const uint8_t *group, int i, const int odd,
                              uint32_t ahead, const struct int8_x *x, ci (*sums)[C_PARTS],
                              const int n_rows)
{
    const int together = INT8_TOGETHER;
    const size_t q_bytes = int8_q_bytes(t);
    const uint8_t *q = int8_q(t, x, i, n_rows);
    cb w[C_PARTS][8];
    ci by[2][C_PARTS];
    int8_open(t, group, i, ahead, w);
    EACH (p, C_PARTS) {
        const ci pair = int8_pair(group, t.halves ? i : i / 2, C_LANES * p);
        by[0][p] = c_word(pair, t.halves ? 0 : odd);
        by[1][p] = c_word(pair, 1);
    }
    EACH (turn, (n_rows + together - 1) / together) {
        const int from = turn * together, n = MIN(together, n_rows - from);
        INT8_STAY(w);
        c_scaled_dots(sums + from, w, 0, t.halves ? 4 : 8, q + from * q_bytes, q_bytes,
                      int8_bits(t), by[0], n);
        if (t.halves)
            c_scaled_dots(sums + from, w, 4, 4, q + from * q_bytes, q_bytes, int8_bits(t), by[1],
                          n);
    }
    INT8_READ_AGAIN();
}

/* Adds the sums of a group to acc as floats. It first subtracts the part that the offset of the
 * weights added, and then adds the minima. */
INLINE void int8_finish(const struct int8_type t, const uint8_t *group, const struct int8_x *x,
                        ci (*sums)[C_PARTS], cf (*acc)[C_PARTS], const int n_rows)
{
    EACH (p, C_PARTS) {
        const cf d = c_halfs(group + 2 * C_LANES * p);
        const cf m = c_negative(c_halfs(group + 32 + 2 * C_LANES * p));
        ci pairs[8];
        EACH (i, int8_n_pairs(t))
            pairs[i] =
                t.min ? int8_min_pair(group, i, C_LANES * p) : int8_pair(group, i, C_LANES * p);
        EACH (r, n_rows) {
            const struct kernel_x256 *row = x->of_256 + r;
            const cf dx = c_set(row->d);
            ci more = c_int(0);
            EACH (i, int8_n_pairs(t))
                more = c_dot_words(more, pairs[i],
                                   c_2_words((t.halves ? row->half : row->sum) + 2 * i));
            if (t.offset)
                sums[r][p] = c_less(sums[r][p], more, int8_log2(t.offset));
            acc[r][p] = c_fma(c_float(sums[r][p]), c_mul(d, dx), acc[r][p]);
            if (t.min)
                acc[r][p] = c_fma(c_float(more), c_mul(m, dx), acc[r][p]);
        }
    }
    INT8_READ_AGAIN();
}

/* Adds the products of a group of types of 256 for all rows. The weights still have their offset.
 * Sums stay below 127 * 256 * 63 * 128 (Q6_K; IQ4_XS: 241 * 32) < 2^28, so 32 bits hold them. */
INLINE void int8_group(const struct int8_type t, const uint8_t *group, uint32_t ahead,
                       const struct int8_x *x, cf (*acc)[C_PARTS], const int n_rows)
{
    ci sums[INT8_MAX_ROWS][C_PARTS];
    EACH (r, n_rows)
        EACH (p, C_PARTS)
            sums[r][p] = c_int(0);
    for (int i = 0; i < 8; i += 2)
        EACH (odd, 2)
            int8_scaled_block(t, group, i + odd, odd, ahead, x, sums, n_rows);
    int8_finish(t, group, x, sums, acc, n_rows);
}

/* walk.n_streams tiles, `apart` tiles from one another, for all rows. w and y belong to the first
 * tile; n_cols columns from there on are computed. The tiles alternate after each group: a core
 * waits for few lines of memory at a time, but its prefetchers follow several streams. */
INLINE void int8_tiles(const struct int8_type t, const struct kernel_mat *mat, const uint8_t *w,
                       uint32_t apart, struct kernel_walk walk, const void *first_x, float *y,
                       size_t y_stride, uint32_t n_cols, const int n_rows)
{
    const int head = KERNEL_HEAD_BYTES(t.group, t.min, t.halves);
    const size_t group_bytes = int8_group_bytes(t);
    const size_t apart_bytes = apart * kernel_tile_bytes(kernel_layout(mat->type), mat->n_in);
    uint8_t spread[8][INT8_MAX_ROWS][INT8_Q_BYTES];
    struct int8_x x = {first_x, first_x, spread};
    cf acc[KERNEL_STREAMS][INT8_MAX_ROWS][C_PARTS];
    for (uint32_t s = 0; s < walk.n_streams; s++)
        EACH (r, n_rows)
            EACH (p, C_PARTS)
                acc[s][r][p] = c_set(0);
    for (int left = (int)(mat->n_in / KERNEL_BLOCK); left > 0; left -= t.group) {
        const int n_blocks = MIN(t.group, left);
        int8_spread(t, &x, n_blocks, n_rows);
        for (uint32_t s = 0; s < walk.n_streams; s++) {
            const uint8_t *group = w + s * apart_bytes;
            int8_prefetch(group, head, walk.ahead);
            if (t.group == 8)
                int8_group(t, group, walk.ahead, &x, acc[s], n_rows);
            else
                int8_blocks(t, group, n_blocks, walk.ahead, &x, acc[s], n_rows);
        }
        w += group_bytes;
        x.of_32 += t.group * n_rows;
        x.of_256 += n_rows;
    }
    for (uint32_t s = 0; s < walk.n_streams; s++)
        EACH (p, C_PARTS) {
            uint32_t at = s * apart * KERNEL_TILE + (uint32_t)p * C_LANES;
            EACH (r, n_rows)
                if (at < n_cols)
                    c_store_n(y + r * y_stride + at, n_cols - at, acc[s][r][p]);
        }
}

/* Multiplies n_rows rows by columns [from, to). */
INLINE void int8_columns(const struct int8_type t, const struct kernel_mat *w,
                         struct kernel_walk walk, const void *x, float *y, size_t y_stride,
                         uint32_t from, uint32_t to, const int n_rows)
{
    const size_t tile_bytes = kernel_tile_bytes(kernel_layout(w->type), w->n_in);
    const uint8_t *tile = (const uint8_t *)w->data + from / KERNEL_TILE * tile_bytes;
    const uint32_t n_tiles = (to - from + KERNEL_TILE - 1) / KERNEL_TILE;
    const uint32_t n_each = n_tiles / walk.n_streams, done = n_each * walk.n_streams;
    for (uint32_t i = 0; i < n_each; i++)
        int8_tiles(t, w, tile + i * tile_bytes, n_each, walk, x, y + from + i * KERNEL_TILE,
                   y_stride, to - from - i * KERNEL_TILE, n_rows);
    walk.n_streams = (uint8_t)(n_tiles - done);
    if (walk.n_streams)
        int8_tiles(t, w, tile + done * tile_bytes, 1, walk, x, y + from + done * KERNEL_TILE,
                   y_stride, to - from - done * KERNEL_TILE, n_rows);
}

INLINE void int8_matmul(const struct int8_type t, const struct kernel_mat *w, const uint8_t *x,
                        size_t x_bytes, uint32_t m, float *y, size_t y_stride, uint32_t from,
                        uint32_t to)
{
    const uint32_t n_passes = (m + INT8_MAX_ROWS - 1) / INT8_MAX_ROWS;
    const struct kernel_walk walk = kernel_walk_of(w, m);
    size_t tile_bytes = kernel_tile_bytes(kernel_layout(w->type), w->n_in);
    uint32_t step = kernel_pass_columns(tile_bytes, n_passes, to - from);
    for (uint32_t c = from; c < to; c += step) {
        uint32_t end = MIN(to - c, step) + c;
        for (uint32_t r = 0, left = n_passes, n; left; left--, r += n) {
            const uint8_t *xr = x + r * x_bytes;
            switch (n = kernel_pass_rows(m, r, left)) {
#define ROWS(n)                                                                                    \
    case n:                                                                                        \
        int8_columns(t, w, walk, xr, y + r * y_stride, y_stride, c, end, n);                       \
        break;
                INT8_EACH_ROWS(ROWS)
#undef ROWS
            }
        }
    }
}

#define MATMUL(name, bytes, lo, hi, offset, group, min, halves, book)                              \
    static void matmul_##name(const struct kernel_mat *w, const void *x, size_t x_bytes,           \
                              uint32_t m, float *y, size_t y_stride, uint32_t from, uint32_t to)   \
    {                                                                                              \
        const struct int8_type t = {lo, hi, offset, group, min, halves, book};                     \
        int8_matmul(t, w, x, x_bytes, m, y, y_stride, from, to);                                   \
    }
KERNEL_INT8_TYPES(MATMUL)
#undef MATMUL

static void matmul_int8(const struct kernel_mat *w, const void *x, size_t x_bytes, uint32_t m,
                        float *y, size_t y_stride, uint32_t from, uint32_t to)
{
    switch (w->type) {
#define CASE(name, ...)                                                                            \
    case KERNEL_##name:                                                                            \
        matmul_##name(w, x, x_bytes, m, y, y_stride, from, to);                                    \
        break;
        KERNEL_INT8_TYPES(CASE)
#undef CASE
    default:
        break;
    }
}
