/* kernel_int8.h - quantised weights times int8 activations, for tiers with byte products.
 *
 * A column of the output lies in a lane, so each has its own chain over the blocks of K and no sum
 * crosses lanes. A block is unpacked once for all rows. Included by kernel_<isa>.c after its
 * columns' operations c_*(): cf, ci and cb are floats, ints and 4 bytes each of C_LANES columns;
 * and
 *   INT8_ROWS(type)         rows whose sums are kept in registers together, at most INT8_MAX_ROWS,
 *   INT8_EACH_ROWS(X)       X(1) X(2) ... up to that */
#pragma once
#include "kernel/kernel_int8_unpack.h"

#define INT8_STREAMS 8  // tiles read side by side
#define INT8_AHEAD 2048 // bytes of each to prefetch

/* Bits of an unpacked weight. */
INLINE int int8_bits(const struct int8_type t)
{
    return t.book ? 8 : t.lo + t.hi;
}

/* A sum begins with what the weights' offset will add to it, taken off: -offset * sum of q. */
INLINE ci int8_start(const struct int8_type t, int32_t minus)
{
    if (t.offset == 0 || (int8_bits(t) == 8 && C_SIGNED))
        return c_int(0);
    const int shift = t.offset == 8 ? 4 : t.offset == 16 ? 3 : t.offset == 32 ? 2 : 0; // from 128
    return c_int_right(c_int(minus), shift);
}

INLINE ci int8_sum(const struct int8_type t, const cb w[8], const ci sub[2],
                   const struct kernel_x *x)
{
    const int bits = int8_bits(t);
    if (!t.halves)
        return c_dot(int8_start(t, x->minus), w, x->q, 8, bits);
    ci first = c_dot(int8_start(t, x->minus0), w, x->q, 4, bits);
    ci second = c_dot(int8_start(t, x->minus - x->minus0), w + 4, x->q + 16, 4, bits);
    return c_int_add(c_int_mul(first, sub[0]), c_int_mul(second, sub[1]));
}

/* Block i of a group, C_LANES of its columns, for all rows; x: the first row's block. */
INLINE void int8_block(const struct int8_type t, const uint8_t *group, int i, int lane,
                       const uint8_t *x, size_t x_bytes, cf *acc, const int n_rows)
{
    const uint8_t *p =
        group + KERNEL_HEAD_BYTES(t.group, t.min, t.halves) + i * KERNEL_BLOCK_BYTES(t.lo, t.hi);
    if (lane == 0)
        EACH (line, KERNEL_BLOCK_BYTES(t.lo, t.hi) / 64)
            __builtin_prefetch(p + INT8_AHEAD + 64 * line);
    cb w[8];
    cf d, m = c_set(0);
    ci sub[2] = {c_int(0), c_int(0)};
    int8_unpack(t, p + 4 * lane, w);
    int8_scales(t, group, i, lane, &d, &m, sub);
    EACH (r, n_rows) {
        const struct kernel_x *xr = (const struct kernel_x *)(x + r * x_bytes);
        ci sum = int8_sum(t, w, sub, xr);
        acc[r] = c_fma(c_float(sum), c_mul(d, c_set(xr->d)), acc[r]);
        if (t.min)
            acc[r] = c_fma(m, c_set(xr->sum), acc[r]);
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
    const uint32_t per_tile = KERNEL_TILE / C_LANES, n_parts = n_streams * per_tile;
    const size_t group_bytes = KERNEL_HEAD_BYTES(t.group, t.min, t.halves) +
                               (size_t)t.group * KERNEL_BLOCK_BYTES(t.lo, t.hi);
    const size_t apart_bytes = apart * kernel_tile_bytes(kernel_layout(mat->type), mat->n_in);
    cf acc[INT8_STREAMS * KERNEL_TILE / C_LANES][INT8_MAX_ROWS];
    for (uint32_t p = 0; p < n_parts; p++)
        EACH (r, n_rows)
            acc[p][r] = c_set(0);
    for (int left = (int)(mat->n_in / KERNEL_BLOCK); left > 0; left -= t.group) {
        for (uint32_t p = 0; p < n_parts; p++) {
            cf sums[INT8_MAX_ROWS];
            EACH (r, n_rows)
                sums[r] = acc[p][r];
            for (int i = 0; i < MIN(t.group, left); i++)
                int8_block(t, w + p / per_tile * apart_bytes, i, (int)(p % per_tile) * C_LANES,
                           x + (size_t)i * sizeof(struct kernel_x), x_bytes, sums, n_rows);
            EACH (r, n_rows)
                acc[p][r] = sums[r];
        }
        w += group_bytes;
        x += (size_t)t.group * sizeof(struct kernel_x);
    }
    for (uint32_t p = 0; p < n_parts; p++) {
        uint32_t at = p / per_tile * apart * KERNEL_TILE + p % per_tile * C_LANES;
        EACH (r, n_rows)
            if (at < n_cols)
                c_store_n(y + r * y_stride + at, n_cols - at, acc[p][r]);
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
    const uint32_t max_rows = INT8_ROWS(t), n_passes = (m + max_rows - 1) / max_rows;
    size_t tile_bytes = kernel_tile_bytes(kernel_layout(w->type), w->n_in);
    uint32_t step = kernel_pass_columns(tile_bytes, n_passes, to - from);
    for (uint32_t c = from; c < to; c += step) {
        uint32_t end = MIN(to - c, step) + c;
        for (uint32_t r = 0, left = n_passes, n; left; left--, r += n) {
            const uint8_t *xr = x + r * x_bytes;
            switch (n = kernel_pass_rows(m, r, left)) {
#define ROWS(n)                                                                                    \
    case n:                                                                                        \
        if (n <= INT8_ROWS(t))                                                                     \
            int8_columns(t, w, xr, x_bytes, y + r * y_stride, y_stride, c, end,                    \
                         MIN(n, INT8_ROWS(t)));                                                    \
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
