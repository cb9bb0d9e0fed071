/* kernel_amx.c - x86-64 with AMX int8: quantised products of several rows by tiles.
 *
 * A tile instruction multiplies 16 rows of activations with 16 columns of weights over a block of
 * 32 of K, exactly, as VPDPBUSD does; the blocks' scales are then applied by AVX-512 in the order
 * of all tiers. Weights are unpacked to signed bytes, AMX_PART blocks of two tiles of columns at a
 * time, and stay in L1 while all rows pass. Everything else is the AVX-512 tier's.
 *
 * AMX: Intel Architecture Instruction Set Extensions Programming Reference, 319433. */
#if defined(__x86_64__)
#include "kernel/kernel_avx512.h"
#include "kernel/kernel_int8_unpack.h"

#define AMX_ROWS 16      // in a tile of activations
#define AMX_MIN_ROWS 24  // fewer are faster without tiles
#define AMX_MAX_ROWS 512 // packed at a time
#define AMX_PART 16      // blocks of K packed at a time
#define AMX_TILES 2      // of columns
#define AMX_AHEAD 4096   // bytes of weights to prefetch

/* AMX_PART blocks of K of a tile of columns. */
struct panel {
    int8_t q[AMX_PART][8][64];
    float d[AMX_PART][KERNEL_TILE], m[AMX_PART][KERNEL_TILE], sub[AMX_PART][2][KERNEL_TILE];
} __attribute__((aligned(64)));

/* The same blocks of up to 16 rows. */
struct rows {
    int8_t q[AMX_PART][AMX_ROWS][KERNEL_BLOCK];
    float d[AMX_PART][AMX_ROWS], sum[AMX_PART][AMX_ROWS];
    uint32_t n;
} __attribute__((aligned(64)));

/* Where the results of a tile stand. */
struct place {
    float *y;
    size_t y_stride;
    uint32_t n_store; // columns
    bool first;       // nothing stands there yet
};

/* ---- operands ---- */

/* n_blocks of a tile that begin at the start of a group. */
INLINE void unpack_panel(const struct int8_type t, const uint8_t *group, int n_blocks,
                         struct panel *to)
{
    const int block_bytes = KERNEL_BLOCK_BYTES(t.lo, t.hi),
              head = KERNEL_HEAD_BYTES(t.group, t.min, t.halves);
    const __m512i offset = _mm512_set1_epi8((char)t.offset);
    for (int b = 0; b < n_blocks; b++) {
        int i = b % t.group;
        const uint8_t *g = group + (size_t)(b / t.group) * (size_t)(head + t.group * block_bytes);
        const uint8_t *p = g + head + i * block_bytes;
        cb w[8];
        cf d, m = c_set(0);
        ci sub[2];
        for (int line = 0; line < block_bytes / 64; line++)
            __builtin_prefetch(p + AMX_AHEAD + 64 * line);
        int8_unpack(t, p, w);
        int8_scales(t, g, i, 0, &d, &m, sub);
        EACH (k, 8)
            _mm512_store_si512(to->q[b][k], t.offset ? _mm512_sub_epi8(w[k], offset) : w[k]);
        _mm512_store_ps(to->d[b], d);
        if (t.min)
            _mm512_store_ps(to->m[b], m);
        if (t.halves) {
            _mm512_store_ps(to->sub[b][0], c_float(sub[0]));
            _mm512_store_ps(to->sub[b][1], c_float(sub[1]));
        }
    }
}

static void pack_rows(const uint8_t *x, size_t x_bytes, int n_blocks, uint32_t n, struct rows *to)
{
    to->n = n;
    for (uint32_t r = 0; r < n; r++, x += x_bytes) {
        const struct kernel_x *from = (const struct kernel_x *)x;
        for (int b = 0; b < n_blocks; b++) {
            memcpy(to->q[b][r], from[b].q, KERNEL_BLOCK);
            to->d[b][r] = from[b].d;
            to->sum[b][r] = from[b].sum;
        }
    }
}

/* ---- tiles ---- */

/* Tiles 0, 1: activations; 2, 3: weights; 4 .. 7: sums. */
static void configure(int n_rows, int k_bytes)
{
    struct {
        uint8_t palette, start, reserved[14];
        uint16_t column_bytes[16];
        uint8_t rows[16];
    } __attribute__((aligned(64))) c = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        c.rows[i] = (uint8_t)(i < 2 || i >= 4 ? n_rows : k_bytes / 4);
        c.column_bytes[i] = (uint16_t)(i < 2 ? k_bytes : 64);
    }
    __asm__ volatile("" : : "r"(&c) : "memory"); // gcc 12 takes only 8 bytes of it as read
    _tile_loadconfig(&c);
}

/* A unit of K has scales of its own: a block of 32, or half of it for types with halves. The
 * products of unit u go into tile c. */
#define MULTIPLY(a, b, c, u)                                                                       \
    do {                                                                                           \
        _tile_loadd(a, halves ? x->q[(u) / 2][0] + (u) % 2 * 16 : x->q[u][0], KERNEL_BLOCK);       \
        _tile_loadd(b, halves ? w->q[(u) / 2][(u) % 2 * 4] : w->q[u][0], 64);                      \
        _tile_zero(c);                                                                             \
        _tile_dpbssd(c, a, b);                                                                     \
    } while (0)

/* Scales the sums of block b onto acc. */
INLINE void scale(const struct panel *w, const struct rows *x, int b,
                  const int32_t (*sums)[AMX_ROWS][KERNEL_TILE], vf acc[AMX_ROWS], const int n_rows,
                  const bool min, const bool halves)
{
    const vf d = v_load(w->d[b]), m = min ? v_load(w->m[b]) : c_set(0);
    const vf sub0 = halves ? v_load(w->sub[b][0]) : c_set(0);
    const vf sub1 = halves ? v_load(w->sub[b][1]) : c_set(0);
    EACH (r, n_rows) {
        vf sum = c_float(_mm512_load_si512(sums[0][r]));
        if (halves) // integers below 2^24: exact
            sum = c_fma(sum, sub0, c_mul(c_float(_mm512_load_si512(sums[1][r])), sub1));
        acc[r] = c_fma(sum, c_mul(d, c_set(x->d[b][r])), acc[r]);
        if (min)
            acc[r] = c_fma(m, c_set(x->sum[b][r]), acc[r]);
    }
}

/* Rows times the n_blocks of a panel, added to y. While unit u is scaled, the sums of u + 1 go to
 * memory and the products of u + 2 and u + 3 are under way: a store that waits for its tile holds
 * up what comes after it. */
INLINE void rows_times_panel(const struct panel *w, const struct rows *x, int n_blocks,
                             const struct place *at, const int n_rows, const bool min,
                             const bool halves)
{
    int32_t sums[4][AMX_ROWS][KERNEL_TILE] __attribute__((aligned(64)));
    vf acc[AMX_ROWS];
    const int n = halves ? 2 * n_blocks : n_blocks;
    EACH (r, n_rows)
        acc[r] = at->first ? c_set(0) : v_load_n(at->y + (size_t)r * at->y_stride, at->n_store, 0);
#define UNIT(u, a, b, c_next, c_done)                                                              \
    if (u + 3 < n)                                                                                 \
        MULTIPLY(a, b, c_next, u + 3);                                                             \
    if (u + 1 < n)                                                                                 \
        _tile_stored(c_done, sums[(u + 1) % 4], 64);                                               \
    if (u < n && (!halves || u % 2))                                                               \
        scale(w, x, halves ? u / 2 : u, &sums[halves ? u % 4 - 1 : u % 4], acc, n_rows, min,       \
              halves);
    MULTIPLY(0, 2, 4, 0);
    if (n > 1)
        MULTIPLY(1, 3, 5, 1);
    if (n > 2)
        MULTIPLY(0, 2, 6, 2);
    _tile_stored(4, sums[0], 64);
    for (int u = 0; u < n; u += 4) {
        UNIT((u + 0), 1, 3, 7, 5)
        UNIT((u + 1), 0, 2, 4, 6)
        UNIT((u + 2), 1, 3, 5, 7)
        UNIT((u + 3), 0, 2, 6, 4)
    }
#undef UNIT
    EACH (r, n_rows)
        v_store_n(at->y + (size_t)r * at->y_stride, at->n_store, acc[r]);
}

/* What AMX_MIN_ROWS and more split into nearly equally. */
#define EACH_ROWS(X) X(11) X(12) X(13) X(14) X(15) X(16)
#define TIMES(name, min, halves)                                                                   \
    static void name(const struct panel *w, const struct rows *x, int n_blocks,                    \
                     const struct place *at)                                                       \
    {                                                                                              \
        switch (x->n) {                                                                            \
            EACH_ROWS(TIMES_ROWS_##name)                                                           \
        }                                                                                          \
    }
#define TIMES_ROWS(n, min, halves)                                                                 \
    case n:                                                                                        \
        rows_times_panel(w, x, n_blocks, at, n, min, halves);                                      \
        break;
#define TIMES_ROWS_times_plain(n) TIMES_ROWS(n, false, false)
#define TIMES_ROWS_times_min(n) TIMES_ROWS(n, true, false)
#define TIMES_ROWS_times_halves(n) TIMES_ROWS(n, false, true)
TIMES(times_plain, false, false)
TIMES(times_min, true, false)
TIMES(times_halves, false, true)

/* ---- the product ---- */

/* All rows times n_blocks of a panel each of n_tiles tiles of columns. */
INLINE void rows_times_panels(const struct int8_type t, const struct panel *panels, int n_tiles,
                              const struct rows *rows, uint32_t n_passes, int n_blocks,
                              const struct place *at)
{
    struct place row = *at;
    uint32_t configured = 0;
    for (uint32_t r = 0; r < n_passes; row.y += rows[r].n * row.y_stride, r++) {
        if (rows[r].n != configured)
            configure((int)rows[r].n, t.halves ? 16 : 32);
        configured = rows[r].n;
        struct place here = row;
        for (int i = 0; i < n_tiles; i++, here.y += KERNEL_TILE) {
            here.n_store = MIN(at->n_store - (uint32_t)i * KERNEL_TILE, KERNEL_TILE);
            if (t.halves)
                times_halves(&panels[i], &rows[r], n_blocks, &here);
            else if (t.min)
                times_min(&panels[i], &rows[r], n_blocks, &here);
            else
                times_plain(&panels[i], &rows[r], n_blocks, &here);
        }
    }
}

/* Blocks [b, b + n_blocks) of K of all columns [from, to). */
INLINE void amx_part(const struct int8_type t, const struct kernel_mat *w, uint32_t b, int n_blocks,
                     const struct rows *rows, uint32_t n_passes, float *y, size_t y_stride,
                     uint32_t from, uint32_t to)
{
    const struct kernel_layout *l = kernel_layout(w->type);
    const size_t tile_bytes = kernel_tile_bytes(l, w->n_in);
    const uint8_t *part = (const uint8_t *)w->data + kernel_group_bytes(l, b);
    struct panel panels[AMX_TILES];
    for (uint32_t c = from; c < to; c += AMX_TILES * KERNEL_TILE) {
        int n_tiles = MIN(AMX_TILES, (int)((to - c + KERNEL_TILE - 1) / KERNEL_TILE));
        for (int i = 0; i < n_tiles; i++)
            unpack_panel(t, part + (c / KERNEL_TILE + (uint32_t)i) * tile_bytes, n_blocks,
                         &panels[i]);
        __asm__ volatile("" : : : "memory"); // gcc 12 does not know that tiles are loaded
        rows_times_panels(t, panels, n_tiles, rows, n_passes, n_blocks,
                          &(struct place){y + c, y_stride, to - c, b == 0});
    }
}

INLINE void amx_matmul(const struct int8_type t, const struct kernel_mat *w, const uint8_t *x,
                       size_t x_bytes, uint32_t m, float *y, size_t y_stride, uint32_t from,
                       uint32_t to)
{
    struct rows rows[AMX_MAX_ROWS / AMX_ROWS];
    const uint32_t n_all = w->n_in / KERNEL_BLOCK, n_passes = (m + AMX_ROWS - 1) / AMX_ROWS;
    for (uint32_t b = 0; b < n_all; b += AMX_PART) {
        int n_blocks = MIN(AMX_PART, (int)(n_all - b));
        for (uint32_t p = 0, r = 0, n; p < n_passes; p++, r += n) {
            n = (m - r + n_passes - p - 1) / (n_passes - p); // nearly equal
            pack_rows(x + r * x_bytes + b * sizeof(struct kernel_x), x_bytes, n_blocks, n,
                      &rows[p]);
        }
        amx_part(t, w, b, n_blocks, rows, n_passes, y, y_stride, from, to);
    }
    _tile_release();
}

static void matmul(const struct kernel_mat *w, const uint8_t *x, size_t x_bytes, uint32_t m,
                   float *y, size_t y_stride, uint32_t from, uint32_t to)
{
    switch (w->type) {
#define CASE(name, bytes, lo, hi, offset, group, min, halves, book)                                \
    case KERNEL_##name:                                                                            \
        amx_matmul((struct int8_type){lo, hi, offset, group, min, halves, book}, w, x, x_bytes, m, \
                   y, y_stride, from, to);                                                         \
        break;
        KERNEL_INT8_TYPES(CASE)
#undef CASE
    default:
        break;
    }
}

void kernel_amx_matmul(const struct kernel_mat *w, const void *x, size_t x_bytes, uint32_t m,
                       float *y, size_t y_stride, uint32_t from, uint32_t to)
{
    if (w->type == KERNEL_BF16 && kernel_amx_bf16(w, x, x_bytes, m, y, y_stride, from, to))
        return;
    if (kernel_form_of(w->type) != KERNEL_FORM_INT8 || m < AMX_MIN_ROWS)
        return kernel_avx512.matmul(w, x, x_bytes, m, y, y_stride, from, to);
    uint32_t n_passes = (m + AMX_MAX_ROWS - 1) / AMX_MAX_ROWS;
    for (uint32_t p = 0, r = 0, n; p < n_passes; p++, r += n) {
        n = (m - r + n_passes - p - 1) / (n_passes - p);
        matmul(w, (const uint8_t *)x + r * x_bytes, x_bytes, n, y + r * y_stride, y_stride, from,
               to);
    }
}
#endif
