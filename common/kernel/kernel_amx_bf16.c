/* kernel_amx_bf16.c - x86-64 with AMX bf16: BF16 products by tiles.
 *
 * TDPBF16PS adds in exactly the order that kernel.h defines for BF16, so a tile of sums stays in
 * its register over K. Weights are read in their packed layout:
 *   up to one tile of rows    four tiles of columns side by side, over all of K
 *   up to two tiles of rows   two tiles of columns side by side, over all of K
 *   more rows                 two tiles of columns, AMX_CHUNK blocks of K at a time; these stay in
 *                             L1 while all rows are multiplied
 *
 * AMX: Intel Architecture Instruction Set Extensions Programming Reference, 319433. */
#if defined(__x86_64__)
#include "kernel/kernel_amx_tiles.h"

#define AMX_ROWS 16
#define AMX_MIN_ROWS 2   // one row is as fast without tiles, and faster if the caches hold W
#define AMX_MAX_ROWS 256 // rows for which the weights are read once
#define AMX_BLOCKS 1024  // blocks of activations packed at a time: 1 MiB, which stays in L2
#define AMX_CHUNK 8      // blocks
#define AMX_AHEAD 2      // distance of the prefetch in blocks, if the weights are read once

/* 32 of K of a tile of rows or of a tile of columns; the sums of a tile of rows and one of
 * columns. */
typedef uint16_t block[AMX_ROWS][32];
typedef float sums[AMX_ROWS][KERNEL_TILE] __attribute__((aligned(64)));

/* The activations and weights of n blocks of K. */
struct part {
    block x[AMX_BLOCKS]; // (tiles of rows, n)
    const block *w;      // of the first tile of columns; tiles are tile_blocks apart
    size_t tile_blocks;
    uint32_t n, n_rows;
    float *y;
    size_t y_stride;
    bool first; // y holds no sums yet
} __attribute__((aligned(64)));

/* n tiles of columns side by side, `apart` tiles from one another. */
struct columns {
    uint32_t tile, apart, n, to; // to: the end of all columns
};

/* A step of a product: blocks [k, k + n) for the rows from row on. */
struct step {
    uint32_t k, n, row, n0, n1; // n0, n1: rows of two tiles, the second may have none
    bool first;                 // these rows have no sums yet
    uint32_t ahead, line, end;  // prefetches lines [line, end) of the blocks `ahead`
};

static void pack_rows(const uint8_t *x, size_t x_bytes, struct part *p)
{
    for (uint32_t r = 0; r < p->n_rows; r++, x += x_bytes)
        for (uint32_t k = 0; k < p->n * 32; k += 16) {
            __m512i bits = _mm512_loadu_si512((const float *)x + k);
            _mm256_store_si256((__m256i *)&p->x[r / AMX_ROWS * p->n + k / 32][r % AMX_ROWS][k % 32],
                               _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16)));
        }
}

/* Multiplies one tile of rows by up to four tiles of columns, or two by up to two. w, x: those of
 * the first tiles. s: (n_rows, n_cols). */
INLINE void multiply(const block *w, size_t apart, const block *x, size_t x_apart,
                     const struct step *t, sums *s, const int n_rows, const int n_cols)
{
#define EACH_SUMS(X)                                                                               \
    X(4, 0);                                                                                       \
    if (n_cols > 1)                                                                                \
        X(5, 1);                                                                                   \
    if (n_rows > 1 || n_cols > 2)                                                                  \
        X(6, n_rows > 1 ? n_cols : 2);                                                             \
    if (n_rows > 1 ? n_cols > 1 : n_cols > 3)                                                      \
    X(7, 3)
#define ZERO(tile, i) _tile_zero(tile)
#define LOAD(tile, i) _tile_loadd(tile, s[i], 64)
#define STORE(tile, i) _tile_stored(tile, s[i], 64)
#define COLUMN(tile, i, x_tile, sum)                                                               \
    if (n_cols > i) {                                                                              \
        _tile_loadd(tile, w + i * apart, 64);                                                      \
        _tile_dpbf16ps(sum, x_tile, tile);                                                         \
    }
    if (t->first) {
        EACH_SUMS(ZERO);
    } else {
        EACH_SUMS(LOAD);
    }
    for (uint32_t k = 0; k < t->n; k++, w++, x++) {
        for (uint32_t line = t->line; line < t->end; line++)
            EACH (i, n_cols)
                __builtin_prefetch(w[t->ahead + (size_t)i * apart][line], 0, 2);
        _tile_loadd(0, x, 64);
        COLUMN(2, 0, 0, 4)
        COLUMN(3, 1, 0, 5)
        if (n_rows > 1) {
            _tile_loadd(1, x + x_apart, 64);
            _tile_dpbf16ps(6, 1, 2);
            if (n_cols > 1)
                _tile_dpbf16ps(7, 1, 3);
        } else {
            COLUMN(2, 2, 0, 6)
            COLUMN(3, 3, 0, 7)
        }
    }
    EACH_SUMS(STORE);
#undef EACH_SUMS
}

/* Multiplies rows [row, row + n0 + n1) by the columns. s: their sums. */
static void run_step(const struct part *p, const struct columns *c, const struct step *t, sums *s)
{
    const block *w = p->w + c->tile * p->tile_blocks + t->k;
    const block *x = p->x + t->row / AMX_ROWS * p->n + t->k;
    const size_t apart = c->apart * p->tile_blocks;
    __asm__ volatile("" : : : "memory"); // gcc 12 does not know that tiles are loaded
    switch ((t->n1 ? 4 : 0) + c->n) {
#define CASE(n_rows, n_cols)                                                                       \
    case ((n_rows)-1) * 4 + (n_cols):                                                              \
        multiply(w, apart, x, p->n, t, s, n_rows, n_cols);                                         \
        break;
        CASE(1, 1)
        CASE(1, 2)
        CASE(1, 3)
        CASE(1, 4)
        CASE(2, 1)
        CASE(2, 2)
#undef CASE
    }
    __asm__ volatile("" : : : "memory");
}

/* Copies the sums from y, or, with `give`, back to y. */
static void move_sums(const struct part *p, const struct columns *c, sums *s, bool give)
{
    for (uint32_t i = 0; i < c->n; i++) {
        uint32_t at = (c->tile + i * c->apart) * KERNEL_TILE, n = MIN(c->to - at, KERNEL_TILE);
        __mmask16 wanted = (__mmask16)((1u << n) - 1);
        for (uint32_t r = 0; r < p->n_rows; r++) {
            float *y = p->y + r * p->y_stride + at;
            float *sum = s[r / AMX_ROWS * c->n + i][r % AMX_ROWS];
            if (give)
                _mm512_mask_storeu_ps(y, wanted, _mm512_load_ps(sum));
            else
                _mm512_store_ps(sum, _mm512_maskz_loadu_ps(wanted, y));
        }
    }
}

/* Multiplies all rows by some columns. If there are several pairs of tiles of rows, each of them
 * prefetches a part of the next chunk. */
static void rows_times_columns(const struct part *p, const struct columns *c)
{
    const uint32_t n_pairs = (p->n_rows + 2 * AMX_ROWS - 1) / (2 * AMX_ROWS);
    const uint32_t chunk = n_pairs > 1 ? AMX_CHUNK : p->n;
    uint32_t configured = 0;
    sums s[AMX_MAX_ROWS / AMX_ROWS * 2];
    if (!p->first)
        move_sums(p, c, s, false);
    for (uint32_t k = 0; k < p->n; k += chunk)
        for (uint32_t i = 0; i < n_pairs; i++) {
            uint32_t row = i * 2 * AMX_ROWS, left = p->n_rows - row, n0 = MIN(left, AMX_ROWS);
            struct step t = {.k = k,
                             .n = MIN(p->n - k, chunk),
                             .row = row,
                             .n0 = n0,
                             .n1 = MIN(left - n0, AMX_ROWS),
                             .first = p->first && k == 0,
                             .ahead = n_pairs == 1       ? AMX_AHEAD
                                      : k + chunk < p->n ? chunk
                                                         : 2 * (uint32_t)p->tile_blocks - k,
                             .line = 16 * i / n_pairs,
                             .end = 16 * (i + 1) / n_pairs};
            if (configured != t.n0 + t.n1)
                amx_configure(t.n0, t.n1, 64);
            configured = t.n0 + t.n1;
            run_step(p, c, &t, &s[row / AMX_ROWS * c->n]);
        }
    move_sums(p, c, s, true);
}

static void columns(const struct part *p, uint32_t to)
{
    const uint32_t n_side = p->n_rows > AMX_ROWS ? 2 : 4;
    const uint32_t n_tiles = (to + KERNEL_TILE - 1) / KERNEL_TILE, n_each = n_tiles / n_side;
    const bool far = p->n_rows <= 2 * AMX_ROWS;
    for (uint32_t i = 0; i < n_each; i++)
        rows_times_columns(p,
                           &(struct columns){far ? i : n_side * i, far ? n_each : 1, n_side, to});
    if (n_tiles % n_side)
        rows_times_columns(p, &(struct columns){n_each * n_side, 1, n_tiles % n_side, to});
}

static void matmul(const struct kernel_mat *w, const uint8_t *x, size_t x_bytes, uint32_t m,
                   float *y, size_t y_stride, uint32_t from, uint32_t to)
{
    const uint32_t n_all = kernel_padded(kernel_layout(KERNEL_BF16), w->n_in) / 32;
    const uint32_t n_max = AMX_BLOCKS / ((m + AMX_ROWS - 1) / AMX_ROWS) / AMX_CHUNK * AMX_CHUNK;
    struct part p; // too large to be zeroed
    p.n_rows = m;
    p.y = y + from;
    p.y_stride = y_stride;
    p.tile_blocks = n_all;
    for (uint32_t k = 0; k < n_all; k += n_max) {
        p.n = MIN(n_all - k, n_max);
        p.w = (const block *)w->data + from / KERNEL_TILE * (size_t)n_all + k;
        p.first = k == 0;
        pack_rows(x + k * 32 * sizeof(float), x_bytes, &p);
        columns(&p, to - from);
    }
    _tile_release();
}

bool kernel_amx_bf16(const struct kernel_mat *w, const void *x, size_t x_bytes, uint32_t m,
                     float *y, size_t y_stride, uint32_t from, uint32_t to)
{
    if (m < AMX_MIN_ROWS)
        return false;
    uint32_t n_passes = (m + AMX_MAX_ROWS - 1) / AMX_MAX_ROWS;
    for (uint32_t p = 0, r = 0, n; p < n_passes; p++, r += n) {
        n = kernel_pass_rows(m, r, n_passes - p);
        matmul(w, (const uint8_t *)x + r * x_bytes, x_bytes, n, y + r * y_stride, y_stride, from,
               to);
    }
    return true;
}
#endif
