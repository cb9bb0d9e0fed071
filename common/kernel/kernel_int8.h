/* kernel_int8.h - quantised weights times int8 activations, for tiers with byte products.
 *
 * A column of the output lies in a lane, so each has its own chain over the blocks of K and no sum
 * crosses lanes. A block is unpacked once for all rows. Included by kernel_<isa>.c after its
 * columns' operations c_*(): cf, ci and cb are floats, ints and 4 bytes each of C_LANES columns, a
 * tile is C_PARTS of them; and
 *   INT8_MAX_ROWS           rows that a block meets while it is unpacked,
 *   INT8_EACH_ROWS(X)       X(1) X(2) ... up to that
 *   INT8_TOGETHER(bits)     rows whose products take turns, for unpacked weights of so many bits:
 *                           a product waits for its row's last one
 *   INT8_Q_BYTES            of a block of activations as c_spread() writes and c_dots() takes it */
#pragma once
#include "kernel/kernel_int8_unpack.h"

#define INT8_STREAMS 8  // tiles read side by side
#define INT8_AHEAD 2048 // bytes of each to prefetch

/* Activations of a block of 32 for weights of one type. */
struct int8_x {
    uint8_t q[INT8_Q_BYTES];
    float d, sum;
    int32_t start[2]; // of the sum, or of its halves: what the weights' offset adds, taken off
};

/* Bits of an unpacked weight. */
INLINE int int8_bits(const struct int8_type t)
{
    return t.book ? 8 : t.lo + t.hi;
}

/* The rows' next n_blocks, one after the other: every tile takes them, and an address is a constant
 * away from the next. */
INLINE void int8_pack(const struct int8_type t, const uint8_t *x, size_t x_bytes, int n_blocks,
                      struct int8_x (*to)[INT8_MAX_ROWS], const int n_rows)
{
    const int shift = t.offset == 8 ? 4 : t.offset == 16 ? 3 : t.offset == 32 ? 2 : 0; // from 128
    for (int r = 0; r < n_rows; r++, x += x_bytes)
        for (int i = 0; i < n_blocks; i++) {
            const struct kernel_x *from = (const struct kernel_x *)x + i;
            c_spread(from->q, int8_bits(t), to[i][r].q);
            to[i][r].d = from->d;
            to[i][r].sum = from->sum;
            to[i][r].start[0] = (t.halves ? from->minus0 : from->minus) >> shift;
            to[i][r].start[1] = (from->minus - from->minus0) >> shift;
        }
}

/* Products of n_rows rows with four times n_g weights from g on, added to what half h of the block
 * starts with. */
INLINE void int8_sums(const struct int8_type t, const cb (*w)[8], const struct int8_x *x, int h,
                      ci (*sums)[C_PARTS], const int n_g, const int n_rows)
{
    EACH (r, n_rows)
        EACH (p, C_PARTS)
            sums[r][p] = c_int(t.offset ? x[r].start[h] : 0);
    c_dots(sums, w, h * n_g, n_g, x->q, sizeof(*x), int8_bits(t), n_rows);
}

/* The same of the whole block, as floats. The halves' sums times their scales are below 2^24, so
 * floats hold them and what they add up to. */
INLINE void int8_products(const struct int8_type t, const cb (*w)[8], const cf (*sub)[C_PARTS],
                          const struct int8_x *x, cf (*to)[C_PARTS], const int n_rows)
{
    ci sums[INT8_MAX_ROWS][C_PARTS];
    int8_sums(t, w, x, 0, sums, t.halves ? 4 : 8, n_rows);
    EACH (r, n_rows)
        EACH (p, C_PARTS)
            to[r][p] = c_float(sums[r][p]);
    if (!t.halves)
        return;
    int8_sums(t, w, x, 1, sums, 4, n_rows);
    EACH (r, n_rows)
        EACH (p, C_PARTS)
            to[r][p] = c_fma(to[r][p], sub[0][p], c_mul(c_float(sums[r][p]), sub[1][p]));
}

INLINE void int8_prefetch(const uint8_t *p, const int bytes)
{
    EACH (line, bytes / 64)
        __builtin_prefetch(p + INT8_AHEAD + 64 * line);
}

/* Block i of a group of a tile for all rows. */
INLINE void int8_block(const struct int8_type t, const uint8_t *group, int i,
                       const struct int8_x *x, cf (*acc)[C_PARTS], const int n_rows)
{
    const int head = KERNEL_HEAD_BYTES(t.group, t.min, t.halves);
    const int bytes = KERNEL_BLOCK_BYTES(t.lo, t.hi);
    const uint8_t *block = group + head + i * bytes;
    const int together = INT8_TOGETHER(int8_bits(t));
    cb w[C_PARTS][8];
    cf d[C_PARTS], m[C_PARTS], sub[2][C_PARTS];
    int8_prefetch(block, bytes);
    EACH (p, C_PARTS) {
        ci subs[2] = {c_int(0), c_int(0)};
        m[p] = c_set(0);
        int8_unpack(t, block + 4 * C_LANES * p, w[p]);
        int8_scales(t, group, i, C_LANES * p, &d[p], &m[p], subs);
        EACH (h, 2)
            sub[h][p] = c_float(subs[h]);
    }
    EACH (n, (n_rows + together - 1) / together) {
        const int from = n * together, n_here = MIN(together, n_rows - from);
        if (C_PARTS > 1 && n_rows > together)
            __asm__ volatile("" : "+m"(w)); // stays in memory: there are not registers enough
        cf sums[INT8_MAX_ROWS][C_PARTS];
        int8_products(t, w, sub, x + from, sums, n_here);
        EACH (r, n_here)
            EACH (p, C_PARTS) {
                acc[from + r][p] =
                    c_fma(sums[r][p], c_mul(d[p], c_set(x[from + r].d)), acc[from + r][p]);
                if (t.min)
                    acc[from + r][p] = c_fma(m[p], c_set(x[from + r].sum), acc[from + r][p]);
            }
    }
    /* The next tile's products take the same activations: as memory operands they are free, kept
     * from here to there they are spilled (8 rows: a third of the speed, gcc 12). */
    __asm__ volatile("" : : : "memory");
}

/* n_streams tiles, `apart` tiles from one another, for all rows. w and y: the first one's; n_cols
 * columns are wanted from there on. A core waits for few lines of memory at a time, but its
 * prefetchers follow several streams: each tile goes on for a group in turn. */
INLINE void int8_tiles(const struct int8_type t, const struct kernel_mat *mat, const uint8_t *w,
                       uint32_t apart, uint32_t n_streams, const uint8_t *x, size_t x_bytes,
                       float *y, size_t y_stride, uint32_t n_cols, const int n_rows)
{
    const int head = KERNEL_HEAD_BYTES(t.group, t.min, t.halves);
    const size_t group_bytes = int8_group_bytes(t);
    const size_t apart_bytes = apart * kernel_tile_bytes(kernel_layout(mat->type), mat->n_in);
    struct int8_x packed[8][INT8_MAX_ROWS];
    cf acc[INT8_STREAMS][INT8_MAX_ROWS][C_PARTS];
    for (uint32_t s = 0; s < n_streams; s++)
        EACH (r, n_rows)
            EACH (p, C_PARTS)
                acc[s][r][p] = c_set(0);
    for (int left = (int)(mat->n_in / KERNEL_BLOCK); left > 0; left -= t.group) {
        const int n_blocks = MIN(t.group, left);
        int8_pack(t, x, x_bytes, n_blocks, packed, n_rows);
        for (uint32_t s = 0; s < n_streams; s++) {
            const uint8_t *group = w + s * apart_bytes;
            cf sums[INT8_MAX_ROWS][C_PARTS];
            int8_prefetch(group, head);
            EACH (r, n_rows)
                EACH (p, C_PARTS)
                    sums[r][p] = acc[s][r][p];
            for (int i = 0; i < n_blocks; i++)
                int8_block(t, group, i, packed[i], sums, n_rows);
            EACH (r, n_rows)
                EACH (p, C_PARTS)
                    acc[s][r][p] = sums[r][p];
        }
        w += group_bytes;
        x += (size_t)t.group * sizeof(struct kernel_x);
    }
    for (uint32_t s = 0; s < n_streams; s++)
        EACH (p, C_PARTS) {
            uint32_t at = s * apart * KERNEL_TILE + (uint32_t)p * C_LANES;
            EACH (r, n_rows)
                if (at < n_cols)
                    c_store_n(y + r * y_stride + at, n_cols - at, acc[s][r][p]);
        }
}

/* n_rows rows over columns [from, to). */
INLINE void int8_columns(const struct int8_type t, const struct kernel_mat *w, const uint8_t *x,
                         size_t x_bytes, float *y, size_t y_stride, uint32_t from, uint32_t to,
                         const int n_rows)
{
    const size_t tile_bytes = kernel_tile_bytes(kernel_layout(w->type), w->n_in);
    const uint8_t *tile = (const uint8_t *)w->data + from / KERNEL_TILE * tile_bytes;
    const uint32_t n_tiles = (to - from + KERNEL_TILE - 1) / KERNEL_TILE;
    const uint32_t n_each = n_tiles / INT8_STREAMS, done = n_each * INT8_STREAMS;
    for (uint32_t i = 0; i < n_each; i++)
        int8_tiles(t, w, tile + i * tile_bytes, n_each, INT8_STREAMS, x, x_bytes,
                   y + from + i * KERNEL_TILE, y_stride, to - from - i * KERNEL_TILE, n_rows);
    if (done < n_tiles)
        int8_tiles(t, w, tile + done * tile_bytes, 1, n_tiles - done, x, x_bytes,
                   y + from + done * KERNEL_TILE, y_stride, to - from - done * KERNEL_TILE, n_rows);
}

INLINE void int8_matmul(const struct int8_type t, const struct kernel_mat *w, const uint8_t *x,
                        size_t x_bytes, uint32_t m, float *y, size_t y_stride, uint32_t from,
                        uint32_t to)
{
    const uint32_t n_passes = (m + INT8_MAX_ROWS - 1) / INT8_MAX_ROWS;
    size_t tile_bytes = kernel_tile_bytes(kernel_layout(w->type), w->n_in);
    uint32_t step = kernel_pass_columns(tile_bytes, n_passes, to - from);
    for (uint32_t c = from; c < to; c += step) {
        uint32_t end = MIN(to - c, step) + c;
        for (uint32_t r = 0, left = n_passes, n; left; left--, r += n) {
            const uint8_t *xr = x + r * x_bytes;
            switch (n = kernel_pass_rows(m, r, left)) {
#define ROWS(n)                                                                                    \
    case n:                                                                                        \
        int8_columns(t, w, xr, x_bytes, y + r * y_stride, y_stride, c, end, n);                    \
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
