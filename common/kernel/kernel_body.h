/* kernel_body.h - the kernels that all tiers share, written over a vector of sixteen floats.
 *
 * Each kernel_<tier>.c includes this file once, after it has defined:
 *
 *   vf, v_*()                 the vector and its operations
 *   DOT_ROWS, DOT_COLS(rows)  rows and columns whose sums F16 and F32 products keep in registers
 *   DOT_EACH_ROWS(X)          X(1) X(2) ... X(DOT_ROWS)
 *   DOT_AHEAD                 distance of the prefetch in each column, in bytes
 *   DOT_FEW                   up to this many rows, weights are read without widening them first
 *   DOT_MAX_ROWS, DOT_PART    rows that share a widened part of K, and floats in that part
 *   DOT_TILES                 tiles of columns that share a part of the activations in L2
 *   INT8_MAX_ROWS             rows of a pass over quantised weights, which are interleaved
 *   BF16_ROWS                 rows whose sums BF16 products keep in registers
 *   BF16_EACH_ROWS(X)         X(1) X(2) ... X(BF16_ROWS)
 *   V_SUMS                    sums of q.k kept in registers
 *   V_PARTS                   vectors of a V row that are summed together, for V_HEADS queries
 *   V_TURNED, V_TILES         queries, and transposed tiles of K, that are multiplied together
 *
 *   I_TILES                   blocks of int8 K that up to V_HEADS queries read together
 *   I_HEADS, I_PARTS          queries, and vectors of a row of V, whose sums stay in registers
 *   vi, vk, vv, ...           vectors of integers: see kernel_attn_int8.h
 *   DELTA_BLOCKS              blocks of sixteen values of a delta net's state that are summed
 *                             together: 1 or 2
 *   VW_LANES, vw, vw_*()      lanes of 64 bits; only if the tier has them
 *
 * The operations and their order are the same in every tier, so all tiers give the same bits. */
#pragma once
#include "base/exact_math.h"
#include "base/rng.h"
#include "kernel/kernel_impl.h"
#include <math.h>
#include <string.h>

/* ---- exp: n = round(x / ln 2), r = x - n ln 2 in two parts, polynomial in r, times 2^n.
 * Coefficients: interpolation of (exp(r) - 1 - r) / r^2 in Chebyshev nodes, error 2^-26. */
INLINE vf v_exp(vf x)
{
    x = v_max(v_set(-104), v_min(v_set(89), x)); // a NaN stays a NaN
    vf t = v_fma(x, v_set(0x1.715476p+0f), v_set(0x1.8p+23f));
    vf n = v_sub(t, v_set(0x1.8p+23f));
    vf r = v_fma(n, v_set(-0x1.62p-1f), x);
    r = v_fma(n, v_set(-0x1.c85fep-10f), r);
    vf p = v_fma(v_set(0x1.6d117cp-10f), r, v_set(0x1.120be2p-7f));
    p = v_fma(p, r, v_set(0x1.555518p-5f));
    p = v_fma(p, r, v_set(0x1.5554dcp-3f));
    p = v_fma(p, r, v_set(0.5f));
    p = v_fma(p, r, v_set(1));
    p = v_fma(p, r, v_set(1));
    return v_pow2(p, t);
}

/* ---- rows of activations ---- */
static void rmsnorm(const float *x, const float *w, uint32_t n, float eps, float *y)
{
    vf sum = v_set(0);
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16)
        sum = v_fma(v_load(x + i), v_load(x + i), sum);
    if (i < n) {
        vf rest = v_load_n(x + i, n - i, 0);
        sum = v_fma(rest, rest, sum);
    }
    vf scale = v_set(1 / sqrtf(v_sum(sum) / (float)n + eps));
    for (i = 0; i + 16 <= n; i += 16)
        v_store(y + i, v_mul(v_mul(v_load(x + i), scale), v_load(w + i)));
    if (i < n)
        v_store_n(y + i, n - i,
                  v_mul(v_mul(v_load_n(x + i, n - i, 0), scale), v_load_n(w + i, n - i, 0)));
}

INLINE vf v_silu_mul(vf gate, vf up)
{
    vf e = v_exp(v_sub(v_set(0), gate));
    return v_mul(v_div(gate, v_add(v_set(1), e)), up);
}

static void swiglu(const float *gate, const float *up, uint32_t n, float *y)
{
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16)
        v_store(y + i, v_silu_mul(v_load(gate + i), v_load(up + i)));
    if (i < n)
        v_store_n(y + i, n - i,
                  v_silu_mul(v_load_n(gate + i, n - i, 0), v_load_n(up + i, n - i, 0)));
}

INLINE vf v_swiglu_clamped(vf gate, vf up)
{
    const vf limit = v_set(7), least = v_set(-7), one = v_set(1);
    vf g = v_min(limit, gate), u = v_max(least, v_min(limit, up)); // a NaN stays a NaN
    vf e = v_exp(v_mul(v_set(-1.702f), g));
    return v_mul(v_div(g, v_add(one, e)), v_add(u, one));
}

static void swiglu_clamped(const float *gate, const float *up, uint32_t n, float *y)
{
    for (uint32_t i = 0, part; i < n; i += part) {
        part = MIN(n - i, 16u);
        v_store_n(y + i, part,
                  v_swiglu_clamped(v_load_n(gate + i, part, 0), v_load_n(up + i, part, 0)));
    }
}

static void add(float *y, const float *x, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] += x[i];
}

static void add_scaled(float *y, float factor, const float *x, uint32_t n)
{
    const vf by = v_set(factor);
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16)
        v_store(y + i, v_fma(by, v_load(x + i), v_load(y + i)));
    if (i < n)
        v_store_n(y + i, n - i, v_fma(by, v_load_n(x + i, n - i, 0), v_load_n(y + i, n - i, 0)));
}

static void to_f16(const float *x, uint32_t n, uint16_t *y)
{
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16)
        v_half_store(y + i, v_load(x + i));
    if (i < n) {
        uint16_t rest[16];
        v_half_store(rest, v_load_n(x + i, n - i, 0));
        memcpy(y + i, rest, (n - i) * sizeof(*rest));
    }
}

static void from_f16(const uint16_t *x, uint32_t n, float *y)
{
    uint32_t i = 0;
    for (; i + 16 <= n; i += 16)
        v_store(y + i, v_half_load(x + i));
    if (i < n)
        v_store_n(y + i, n - i, v_half_load_n(x + i, n - i));
}

/* ---- prepared activations ---- */
static void prepare_block(const float *x, float d, float inverse, struct kernel_x *to)
{
    vf by = v_set(d > 0 ? inverse : 0);
    int sum = v_quantise(v_mul(v_load(x), by), to->q);
    sum += v_quantise(v_mul(v_load(x + 16), by), to->q + 16);
    to->d = d;
    to->sum = d * (float)sum;
    to->minus = -128 * sum;
    to->minus8 = -8 * sum;
}

/* Computes the scales of sixteen blocks together. Blocks of *to are `apart` from one another. */
static void prepare_int8(const float *x, uint32_t n, struct kernel_x *to, uint32_t apart)
{
    for (uint32_t left = n / KERNEL_BLOCK, part; left; left -= part) {
        vf most[16];
        float d[16], inverse[16];
        part = MIN(left, 16);
        for (uint32_t b = 0; b < 16; b++) {
            const float *at = x + (b < part ? b : 0) * KERNEL_BLOCK;
            most[b] = v_max(v_abs(v_load(at)), v_abs(v_load(at + 16)));
        }
        vf scales = v_div(v_maxs(most), v_set(127));
        v_store(d, scales);
        v_store(inverse, v_div(v_set(1), scales));
        for (uint32_t b = 0; b < part; b++, x += KERNEL_BLOCK, to += apart)
            prepare_block(x, d[b], inverse[b], to);
    }
}

static void prepare_256(const float *x, struct kernel_x256 *to)
{
    vf most = v_abs(v_load(x));
    for (unsigned i = 1; i < 16; i++)
        most = v_max(v_abs(v_load(x + 16 * i)), most);
    to->d = v_hmax(most) / 127;
    vf by = v_set(to->d > 0 ? 1 / to->d : 0);
    for (unsigned i = 0; i < 16; i++)
        to->half[i] = (int16_t)v_quantise(v_mul(v_load(x + 16 * i), by), to->q + 16 * i);
    for (unsigned i = 0; i < 8; i++)
        to->sum[i] = (int16_t)(to->half[2 * i] + to->half[2 * i + 1]);
}

/* Rounds to bf16, to nearest, ties to even; the result is a float. */
static float bf16_round(float x)
{
    uint32_t bits = kernel_bits(x);
    bits = x == x ? bits + 0x7fff + (bits >> 16 & 1) : bits | 0x400000;
    return kernel_float(bits & 0xffff0000);
}

/* The rows that the pass of row r multiplies together. *ret_first: the first of them. */
static uint32_t rows_of_pass(uint32_t m, uint32_t r, uint32_t *ret_first)
{
    uint32_t first = 0, left = (m + INT8_MAX_ROWS - 1) / INT8_MAX_ROWS, n;
    while (n = kernel_pass_rows(m, first, left--), r >= first + n)
        first += n;
    *ret_first = first;
    return n;
}

static void prepare(enum kernel_form form, const float *x, uint32_t n, uint32_t r, uint32_t m,
                    void *to, size_t to_bytes)
{
    uint32_t first, apart = rows_of_pass(m, r, &first);
    char *rows = (char *)to + first * to_bytes;
    if (form == KERNEL_FORM_INT8) {
        prepare_int8(x, n, (struct kernel_x *)(void *)rows + (r - first), apart);
        return;
    }
    if (form == KERNEL_FORM_INT8_256) {
        struct kernel_x256 *row = (struct kernel_x256 *)(void *)rows + (r - first);
        for (uint32_t i = 0; i < n / KERNEL_GROUP; i++)
            prepare_256(x + i * KERNEL_GROUP, row + i * apart);
        return;
    }
    float *y = (float *)(void *)((char *)to + r * to_bytes);
    memcpy(y, x, n * sizeof(float));
    for (uint32_t i = n; i % 32; i++)
        y[i] = 0;
    for (uint32_t i = 0; i < n && form == KERNEL_FORM_BF16; i++)
        y[i] = bf16_round(x[i]);
}

/* ---- F16, F32: lanes along K ---- */
/* Sixteen weights of `size` bytes each. */
INLINE vf dot_load(const int size, const uint8_t *w)
{
    return size == 2 ? v_half_load((const uint16_t *)w) : v_load((const float *)w);
}

/* Adds n of K to the sums of n_rows x n_cols outputs. These numbers are constants at the caller, so
 * the loops unroll. w: weights of the first column; columns are w_bytes apart. ahead: distance of
 * the prefetch in bytes, 0: none. */
INLINE void dot_part(const int size, const uint8_t *w, size_t w_bytes, uint32_t n, const uint8_t *x,
                     size_t x_bytes, vf (*sums)[KERNEL_TILE], const int ahead, const int n_rows,
                     const int n_cols)
{
    vf acc[DOT_ROWS][KERNEL_TILE];
    EACH (r, n_rows)
        EACH (c, n_cols)
            acc[r][c] = sums[r][c];
    for (uint32_t k = 0; k < n; k += 16) {
        vf wk[KERNEL_TILE];
        EACH (c, n_cols) {
            const uint8_t *at = w + (size_t)c * w_bytes + (size_t)k * size;
            if (ahead)
                __builtin_prefetch(at + ahead);
            wk[c] = dot_load(size, at);
        }
        EACH (r, n_rows) {
            vf xk = v_load((const float *)(x + r * x_bytes) + k);
            EACH (c, n_cols)
                acc[r][c] = v_fma(wk[c], xk, acc[r][c]);
        }
    }
    EACH (r, n_rows)
        EACH (c, n_cols)
            sums[r][c] = acc[r][c];
}

/* For few rows. Reads n_streams columns side by side, `apart` columns from one another; each is a
 * stream of memory. Their sums stay in registers over all of K. If the rows need several passes,
 * the passes alternate, and the sums stay in registers over a part of K. */
INLINE void dot_streams(const int size, const uint8_t *w, uint32_t n_in, const uint8_t *x,
                        size_t x_bytes, uint32_t m, float *y, size_t y_stride, uint32_t apart,
                        uint32_t n_cols, const int n_streams)
{
    const uint32_t n_passes = (m + DOT_ROWS - 1) / DOT_ROWS;
    const uint32_t part = n_passes > 1 ? DOT_PART / 2 : n_in;
    const size_t w_bytes = apart * (size_t)n_in * size;
    vf sums[DOT_FEW][KERNEL_TILE];
    for (uint32_t r = 0; r < m; r++)
        EACH (c, n_streams)
            sums[r][c] = v_set(0);
    for (uint32_t k = 0; k < n_in; k += part)
        for (uint32_t r = 0, left = n_passes, n; left; left--, r += n) {
            const uint8_t *wk = w + (size_t)k * size;
            const uint8_t *xk = x + r * x_bytes + (size_t)k * sizeof(float);
            switch (n = kernel_pass_rows(m, r, left)) {
#define ROWS(n)                                                                                    \
    case n:                                                                                        \
        dot_part(size, wk, w_bytes, MIN(part, n_in - k), xk, x_bytes, sums + r, DOT_AHEAD, n,      \
                 DOT_COLS(n));                                                                     \
        break;
                DOT_EACH_ROWS(ROWS)
#undef ROWS
            }
        }
    for (uint32_t r = 0; r < m; r++)
        EACH (c, n_streams)
            if (c * apart < n_cols)
                y[r * y_stride + c * apart] = v_sum(sums[r][c]);
}

/* The last tile is filled up, so DOT_COLS divides the number of stored columns. If there are
 * several passes, DOT_COLS is the same for all of them. */
INLINE void dot_few(const int size, const uint8_t *w, uint32_t n_in, const uint8_t *x,
                    size_t x_bytes, uint32_t m, float *y, size_t y_stride, uint32_t n_cols)
{
    const int n_streams = DOT_COLS(MIN(m, DOT_ROWS));
    const uint32_t n_tiles = (n_cols + KERNEL_TILE - 1) / KERNEL_TILE;
    const uint32_t apart = n_tiles * KERNEL_TILE / n_streams;
    for (uint32_t i = 0; i < MIN(apart, n_cols); i++)
        dot_streams(size, w + (size_t)i * n_in * size, n_in, x, x_bytes, m, y + i, y_stride, apart,
                    n_cols - i, n_streams);
}

/* Many rows: a part of K of a tile of columns is widened once for all rows and stays in L1. */
struct dot_panel {
    float w[KERNEL_TILE][DOT_PART];
    uint32_t n; // length of the part of K
} __attribute__((aligned(64)));

INLINE void dot_widen(const int size, const uint8_t *w, uint32_t n_in, struct dot_panel *to)
{
    for (uint32_t c = 0; c < KERNEL_TILE; c++)
        for (uint32_t k = 0; k < to->n; k += 16) {
            const uint8_t *at = w + ((size_t)c * n_in + k) * size;
            __builtin_prefetch(at + DOT_PART * size);
            v_store(&to->w[c][k], dot_load(size, at));
        }
}

INLINE void dot_rows(const struct dot_panel *w, const uint8_t *x, size_t x_bytes,
                     vf (*sums)[KERNEL_TILE], const int n_rows)
{
    for (int c = 0; c < KERNEL_TILE; c += DOT_COLS(n_rows))
        dot_part(4, (const uint8_t *)w->w[c], sizeof(w->w[c]), w->n, x, x_bytes,
                 (vf(*)[KERNEL_TILE]) & sums[0][c], 0, n_rows, DOT_COLS(n_rows));
}

/* n_cols columns, at most DOT_TILES tiles, for m <= DOT_MAX_ROWS rows. */
INLINE void dot_many(const int size, const uint8_t *w, uint32_t n_in, const uint8_t *x,
                     size_t x_bytes, uint32_t m, float *y, size_t y_stride, uint32_t n_cols)
{
    struct dot_panel panel;
    vf sums[DOT_TILES][DOT_MAX_ROWS][KERNEL_TILE];
    const uint32_t n_tiles = (n_cols + KERNEL_TILE - 1) / KERNEL_TILE;
    for (uint32_t t = 0; t < n_tiles; t++)
        for (uint32_t r = 0; r < m; r++)
            EACH (c, KERNEL_TILE)
                sums[t][r][c] = v_set(0);
    for (uint32_t k = 0; k < n_in; k += DOT_PART)
        for (uint32_t t = 0; t < n_tiles; t++) {
            panel.n = MIN(DOT_PART, n_in - k);
            dot_widen(size, w + ((size_t)t * KERNEL_TILE * n_in + k) * size, n_in, &panel);
            for (uint32_t r = 0, left = (m + DOT_ROWS - 1) / DOT_ROWS, n; left; left--, r += n) {
                const uint8_t *xk = x + r * x_bytes + (size_t)k * sizeof(float);
                switch (n = kernel_pass_rows(m, r, left)) {
#define ROWS(n)                                                                                    \
    case n:                                                                                        \
        dot_rows(&panel, xk, x_bytes, sums[t] + r, n);                                             \
        break;
                    DOT_EACH_ROWS(ROWS)
#undef ROWS
                }
            }
        }
    for (uint32_t t = 0; t < n_tiles; t++)
        for (uint32_t r = 0; r < m; r++)
            v_store_n(y + r * y_stride + t * KERNEL_TILE,
                      MIN(n_cols - t * KERNEL_TILE, KERNEL_TILE), v_sums(sums[t][r]));
}

INLINE void matmul_dot(enum kernel_type type, const struct kernel_mat *w, const uint8_t *x,
                       size_t x_bytes, uint32_t m, float *y, size_t y_stride, uint32_t from,
                       uint32_t to)
{
    const int size = type == KERNEL_F16 ? 2 : 4;
    const uint32_t n_in = kernel_padded(kernel_layout(type), w->n_in);
    const uint8_t *data = w->data;
    if (m <= DOT_FEW) {
        dot_few(size, data + (size_t)from * n_in * size, n_in, x, x_bytes, m, y + from, y_stride,
                to - from);
        return;
    }
    for (uint32_t r = 0, left = (m + DOT_MAX_ROWS - 1) / DOT_MAX_ROWS, n; left; left--, r += n) {
        n = kernel_pass_rows(m, r, left);
        for (uint32_t c = from; c < to; c += DOT_TILES * KERNEL_TILE)
            dot_many(size, data + (size_t)c * n_in * size, n_in, x + r * x_bytes, x_bytes, n,
                     y + r * y_stride + c, y_stride, MIN(to - c, DOT_TILES * KERNEL_TILE));
    }
}

static void matmul_f16(const struct kernel_mat *w, const void *x, size_t x_bytes, uint32_t m,
                       float *y, size_t y_stride, uint32_t from, uint32_t to)
{
    matmul_dot(KERNEL_F16, w, x, x_bytes, m, y, y_stride, from, to);
}

static void matmul_f32(const struct kernel_mat *w, const void *x, size_t x_bytes, uint32_t m,
                       float *y, size_t y_stride, uint32_t from, uint32_t to)
{
    matmul_dot(KERNEL_F32, w, x, x_bytes, m, y, y_stride, from, to);
}

/* ---- BF16: a column per lane ---- */
#define BF16_MAX_ROWS 16 // rows for which the weights are read once

/* Adds 32 of K of a tile to the sums of n_rows rows. */
INLINE void bf16_block(const uint8_t *w, uint32_t ahead, const uint8_t *x, size_t x_bytes, vf *sums,
                       const int n_rows)
{
    vf even[BF16_ROWS], odd[BF16_ROWS];
    EACH (r, n_rows)
        even[r] = odd[r] = v_set(0);
    for (int i = 0; i < 32; i += 2, w += 4 * KERNEL_TILE) {
        vf w0, w1;
        if (ahead)
            __builtin_prefetch(w + ahead);
        v_bf16_load(w, &w0, &w1);
        EACH (r, n_rows) {
            const float *xr = (const float *)(x + r * x_bytes) + i;
            even[r] = v_fma(w0, v_set(xr[0]), even[r]);
            odd[r] = v_fma(w1, v_set(xr[1]), odd[r]);
        }
    }
    EACH (r, n_rows)
        sums[r] = v_add(sums[r], v_add(even[r], odd[r]));
}

/* walk.n_streams tiles, `apart` tiles from one another, for m <= BF16_MAX_ROWS rows. w and y belong
 * to the first tile; n_cols columns from there on are computed. The tiles alternate after each
 * block, as the quantised tiles do. */
static void bf16_tiles(const uint8_t *w, size_t apart, struct kernel_walk walk, uint32_t n_in,
                       const uint8_t *x, size_t x_bytes, uint32_t m, float *y, size_t y_stride,
                       uint32_t n_cols)
{
    const size_t block_bytes = 32 * KERNEL_TILE * sizeof(uint16_t);
    const uint32_t n_passes = (m + BF16_ROWS - 1) / BF16_ROWS;
    vf sums[KERNEL_STREAMS][BF16_MAX_ROWS];
    for (uint32_t s = 0; s < walk.n_streams; s++)
        for (uint32_t r = 0; r < m; r++)
            sums[s][r] = v_set(0);
    for (uint32_t k = 0; k < n_in; k += 32, w += block_bytes, x += 32 * sizeof(float))
        for (uint32_t s = 0; s < walk.n_streams; s++)
            for (uint32_t r = 0, left = n_passes, n; left; left--, r += n) {
                const uint8_t *ws = w + s * apart * n_in / 32 * block_bytes;
                switch (n = kernel_pass_rows(m, r, left)) {
#define ROWS(n)                                                                                    \
    case n:                                                                                        \
        bf16_block(ws, walk.ahead, x + r * x_bytes, x_bytes, sums[s] + r, n);                      \
        break;
                    BF16_EACH_ROWS(ROWS)
#undef ROWS
                }
            }
    for (uint32_t s = 0; s < walk.n_streams; s++) {
        uint32_t at = s * (uint32_t)apart * KERNEL_TILE;
        for (uint32_t r = 0; r < m && at < n_cols; r++)
            v_store_n(y + r * y_stride + at, MIN(n_cols - at, KERNEL_TILE), sums[s][r]);
    }
}

static void bf16_columns(const uint8_t *w, struct kernel_walk walk, uint32_t n_in, const uint8_t *x,
                         size_t x_bytes, uint32_t m, float *y, size_t y_stride, uint32_t n_cols)
{
    const size_t tile_bytes = (size_t)n_in * KERNEL_TILE * sizeof(uint16_t);
    const uint32_t n_tiles = (n_cols + KERNEL_TILE - 1) / KERNEL_TILE;
    const uint32_t n_each = n_tiles / walk.n_streams, done = n_each * walk.n_streams;
    for (uint32_t i = 0; i < n_each; i++)
        bf16_tiles(w + i * tile_bytes, n_each, walk, n_in, x, x_bytes, m, y + i * KERNEL_TILE,
                   y_stride, n_cols - i * KERNEL_TILE);
    walk.n_streams = (uint8_t)(n_tiles - done);
    if (walk.n_streams)
        bf16_tiles(w + done * tile_bytes, 1, walk, n_in, x, x_bytes, m, y + done * KERNEL_TILE,
                   y_stride, n_cols - done * KERNEL_TILE);
}

static void matmul_bf16(const struct kernel_mat *w, const void *x, size_t x_bytes, uint32_t m,
                        float *y, size_t y_stride, uint32_t from, uint32_t to)
{
    const uint32_t n_in = kernel_padded(kernel_layout(KERNEL_BF16), w->n_in);
    const uint32_t n_passes = (m + BF16_MAX_ROWS - 1) / BF16_MAX_ROWS;
    const size_t tile_bytes = (size_t)n_in * KERNEL_TILE * sizeof(uint16_t);
    uint32_t step = kernel_pass_columns(tile_bytes, n_passes, to - from);
    for (uint32_t c = from; c < to; c += step)
        for (uint32_t r = 0, left = n_passes, n; left; left--, r += n) {
            n = kernel_pass_rows(m, r, left);
            bf16_columns((const uint8_t *)w->data + c / KERNEL_TILE * tile_bytes,
                         kernel_walk_of(w, m), n_in, (const uint8_t *)x + r * x_bytes, x_bytes, n,
                         y + r * y_stride + c, y_stride, MIN(to - c, step));
        }
}

/* Each tier defines this after it includes this file. */
static void matmul_int8(const struct kernel_mat *w, const void *x, size_t x_bytes, uint32_t m,
                        float *y, size_t y_stride, uint32_t from, uint32_t to);

static void matmul(const struct kernel_mat *w, const void *x, size_t x_bytes, uint32_t m, float *y,
                   size_t y_stride, uint32_t from, uint32_t to)
{
    switch (w->type) {
    case KERNEL_F32:
        matmul_f32(w, x, x_bytes, m, y, y_stride, from, to);
        break;
    case KERNEL_F16:
        matmul_f16(w, x, x_bytes, m, y, y_stride, from, to);
        break;
    case KERNEL_BF16:
        matmul_bf16(w, x, x_bytes, m, y, y_stride, from, to);
        break;
    default:
        matmul_int8(w, x, x_bytes, m, y, y_stride, from, to);
        break;
    }
}

#include "kernel/kernel_attn.h"
#include "kernel/kernel_delta.h"

/* ---- logits ---- */
static float largest(const float *x, uint32_t n)
{
    vf top = v_set(-INFINITY);
    for (uint32_t i = 0; i < n; i += 16)
        top = v_max(v_load_n(x + i, MIN(n - i, 16u), -INFINITY), top); // a NaN never wins
    return v_hmax(top);
}

static double logsumexp(const float *x, uint32_t n)
{
    float max = largest(x, n);
    if (!(max > -INFINITY && max < INFINITY))
        return max;
    vd sum = vd_zero();
    for (uint32_t i = 0; i < n; i += 16)
        sum = vd_add(sum, v_exp(v_sub(v_load_n(x + i, MIN(n - i, 16u), -INFINITY), v_set(max))));
    double s = vd_sum(sum);
    return s == s ? exact_math_log(s) + (double)max : s;
}

static uint32_t argmax(const float *x, uint32_t n)
{
    vf max = v_set(largest(x, n));
    for (uint32_t i = 0; i < n; i += 16) {
        uint32_t part = MIN(n - i, 16u);
        uint32_t hits = v_equal(v_load_n(x + i, part, 0), max) & (0xffffu >> (16 - part));
        if (hits)
            return i + (uint32_t)__builtin_ctz(hits);
    }
    return n;
}

/* The compiler may vectorise this loop: exact_math_exp() has the same operations in every lane. */
static void weigh(const float *x, uint32_t n, double divisor, double max, double *y)
{
    for (uint32_t i = 0; i < n; i++)
        y[i] = exact_math_exp((double)x[i] / divisor - max);
}

#ifdef VW_LANES
/* Philox, as in rng_philox(). A counter is the low half of a 64-bit lane; the high half may hold
 * anything and is ignored. */
INLINE vw draw_words(uint64_t key, uint32_t position, vw tokens)
{
    vw c0 = vw_set(RNG_TARGET_DRAW), c1 = vw_set(position), c2 = vw_set(0), c3 = tokens;
    vw m0 = vw_set(RNG_PHILOX_M0), m1 = vw_set(RNG_PHILOX_M1);
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        vw a = vw_mul(c0, m0), b = vw_mul(c2, m1);
        c0 = vw_xor(vw_xor(vw_high(b), c1), vw_set(k0));
        c2 = vw_xor(vw_xor(vw_high(a), c3), vw_set(k1));
        c1 = b;
        c3 = a;
        k0 += RNG_PHILOX_W0;
        k1 += RNG_PHILOX_W1;
    }
    return vw_pair(c0, c1);
}

static void noise(uint64_t key, uint32_t position, const uint32_t *tokens, uint32_t n, uint64_t *w)
{
    uint32_t i = 0, rest[VW_LANES] = {0};
    for (; i + VW_LANES <= n; i += VW_LANES)
        vw_store(w + i, draw_words(key, position, vw_load(tokens + i)));
    if (i < n) {
        uint64_t words[VW_LANES];
        memcpy(rest, tokens + i, (n - i) * sizeof(*rest));
        vw_store(words, draw_words(key, position, vw_load(rest)));
        memcpy(w + i, words, (n - i) * sizeof(*words));
    }
}
#else
static void noise(uint64_t key, uint32_t position, const uint32_t *tokens, uint32_t n, uint64_t *w)
{
    for (uint32_t i = 0; i < n; i++)
        w[i] = rng_u64(key, RNG_TARGET_DRAW, position, 0, tokens[i]);
}
#endif

#define KERNEL_TABLE(tier, product, form_of, preparation)                                          \
    {                                                                                              \
        .name = (tier), .matmul = (product), .form = (form_of), .prepare = (preparation),          \
        .rmsnorm = rmsnorm, .swiglu = swiglu, .swiglu_clamped = swiglu_clamped, .add = add,        \
        .add_scaled = add_scaled, .to_f16 = to_f16, .from_f16 = from_f16, .kv_put = kv_put,        \
        .attn = attn, .logsumexp = logsumexp, .argmax = argmax, .weigh = weigh, .noise = noise,    \
        .delta = delta, .conv_silu = conv_silu, .l2norm = l2norm, .mul_sigmoid = mul_sigmoid,      \
    }
