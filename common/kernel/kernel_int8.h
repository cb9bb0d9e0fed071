/* kernel_int8.h - quantised weights times int8 activations, for tiers with byte products.
 *
 * A column of the output lies in a lane, so each has its own chain over the blocks of K and no sum
 * crosses lanes. A block is unpacked once for all rows. Included by kernel_<isa>.c after
 * kernel_body.h and its columns' operations c_*(): cf, ci and cb are floats, ints and 4 bytes each
 * of C_LANES columns, and
 *   INT8_ROWS(type)         rows whose sums are kept in registers together, at most INT8_MAX_ROWS,
 *   INT8_EACH_ROWS(X)       X(1) X(2) ... up to that
 *   INT8_STREAMS(rows)      tiles read side by side */
#pragma once
#include "kernel/kernel_body.h"
#include "kernel/kernel_int8_unpack.h"

/* A sum begins with what the weights' offset will add to it, taken off: -offset * sum of q. */
INLINE ci int8_start(const struct int8_type t, int32_t minus)
{
    if (t.offset == 0 || (t.lo == 8 && C_SIGNED))
        return c_int(0);
    const int shift = t.offset == 8 ? 4 : t.offset == 16 ? 3 : t.offset == 32 ? 2 : 0; // from 128
    return c_int_right(c_int(minus), shift);
}

INLINE ci int8_sum(const struct int8_type t, const cb w[8], const ci sub[2],
                   const struct kernel_x *x)
{
    const int bits = t.lo + t.hi;
    if (!t.halves)
        return c_dot(int8_start(t, x->minus), w, x->q, 8, bits);
    ci first = c_dot(int8_start(t, x->minus0), w, x->q, 4, bits);
    ci second = c_dot(int8_start(t, x->minus - x->minus0), w + 4, x->q + 16, 4, bits);
    return c_int_add(c_int_mul(first, sub[0]), c_int_mul(second, sub[1]));
}

/* Block i of a group, C_LANES of its columns, for all rows; x: the first row's block. */
INLINE void int8_block(const struct int8_type t, const uint8_t *group, int i, int lane,
                       const uint8_t *x, size_t x_bytes, cf *acc, const int ahead, const int n_rows)
{
    const uint8_t *p =
        group + KERNEL_HEAD_BYTES(t.group, t.min) + i * KERNEL_BLOCK_BYTES(t.lo, t.hi);
    if (lane == 0)
        EACH (line, KERNEL_BLOCK_BYTES(t.lo, t.hi) / 64)
            __builtin_prefetch(p + ahead + 64 * line);
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

/* One tile of each of n_streams, for all rows; streams lie apart_bytes, their columns apart, from
 * one another. */
INLINE void int8_tiles(const struct int8_type t, const uint8_t *w, size_t apart_bytes,
                       uint32_t n_in, const uint8_t *x, size_t x_bytes, float *y, size_t y_stride,
                       uint32_t apart, uint32_t n_store, const int n_streams, const int n_rows)
{
    const int per_tile = KERNEL_TILE / C_LANES, n_parts = n_streams * per_tile;
    const size_t group_bytes =
        KERNEL_HEAD_BYTES(t.group, t.min) + (size_t)t.group * KERNEL_BLOCK_BYTES(t.lo, t.hi);
    cf acc[INT8_STREAMS(1) * KERNEL_TILE / C_LANES][INT8_MAX_ROWS];
    EACH (p, n_parts)
        EACH (r, n_rows)
            acc[p][r] = c_set(0);
    int n_blocks = (int)(n_in / KERNEL_BLOCK);
    for (; n_blocks > 0; n_blocks -= t.group, w += group_bytes)
        for (int i = 0; i < MIN(t.group, n_blocks); i++, x += sizeof(struct kernel_x))
            EACH (p, n_parts)
                int8_block(t, w + p / per_tile * apart_bytes, i, p % per_tile * C_LANES, x, x_bytes,
                           acc[p], V_AHEAD / n_streams, n_rows);
    EACH (p, n_parts) {
        uint32_t lane = (uint32_t)(p % per_tile * C_LANES);
        EACH (r, n_rows)
            if (n_store > lane)
                c_store_n(y + r * y_stride + p / per_tile * apart + lane, n_store - lane,
                          acc[p][r]);
    }
}

/* n_rows rows over columns [from, to). A core that waits for few lines at a time draws more from
 * memory when it reads several streams. */
INLINE void int8_columns(const struct int8_type t, const struct kernel_mat *w, const uint8_t *x,
                         size_t x_bytes, float *y, size_t y_stride, uint32_t from, uint32_t to,
                         const int n_rows)
{
    const struct kernel_layout *l = kernel_layout(w->type);
    const size_t tile_bytes = kernel_tile_bytes(l, w->n_in);
    const uint32_t n_each = (to - from) / KERNEL_TILE / INT8_STREAMS(n_rows);
    const uint8_t *tile = (const uint8_t *)w->data + from / KERNEL_TILE * tile_bytes;
    for (uint32_t i = 0; i < n_each; i++)
        int8_tiles(t, tile + i * tile_bytes, n_each * tile_bytes, w->n_in, x, x_bytes,
                   y + from + i * KERNEL_TILE, y_stride, n_each * KERNEL_TILE, KERNEL_TILE,
                   INT8_STREAMS(n_rows), n_rows);
    uint32_t done = n_each * INT8_STREAMS(n_rows);
    for (uint32_t c = from + done * KERNEL_TILE; c < to; c += KERNEL_TILE, done++)
        int8_tiles(t, tile + done * tile_bytes, 0, w->n_in, x, x_bytes, y + c, y_stride, 0,
                   MIN(to - c, KERNEL_TILE), 1, n_rows);
}

INLINE void int8_matmul(const struct int8_type t, const struct kernel_mat *w, const uint8_t *x,
                        size_t x_bytes, uint32_t m, float *y, size_t y_stride, uint32_t from,
                        uint32_t to)
{
    const uint32_t max_rows = INT8_ROWS(t), n_passes = (m + max_rows - 1) / max_rows;
    size_t tile_bytes = kernel_tile_bytes(kernel_layout(w->type), w->n_in);
    uint32_t step = pass_columns(tile_bytes, n_passes, to - from);
    for (uint32_t c = from; c < to; c += step) {
        uint32_t end = MIN(to - c, step) + c;
        for (uint32_t r = 0, left = n_passes, n; left; left--, r += n) {
            const uint8_t *xr = x + r * x_bytes;
            switch (n = pass_rows(m, r, left)) {
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

#define MATMUL(name, bytes, lo, hi, offset, group, min, halves)                                    \
    static void matmul_##name(const struct kernel_mat *w, const void *x, size_t x_bytes,           \
                              uint32_t m, float *y, size_t y_stride, uint32_t from, uint32_t to)   \
    {                                                                                              \
        const struct int8_type t = {lo, hi, offset, group, min, halves};                           \
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
