/* kernel_amx.c - x86-64 with AMX int8: quantised products of many rows by tiles.
 *
 * A tile instruction multiplies up to 16 rows of activations by 16 columns of weights over a block
 * of 32 of K. The result is exact, as with VPDPBUSD. AVX-512 then applies the scales of the blocks,
 * in the order of all tiers. Weights are unpacked to signed bytes, in chunks of AMX_CHUNK blocks of
 * a pair of tiles of columns. A chunk stays in L1 while all rows are multiplied by it. This file
 * has the types of 32, kernel_amx_256.c those of 256. The AVX-512 tier does everything else.
 *
 * Storing a tile delays the instructions after it, so all products of a chunk are stored before the
 * first is scaled. The next weights and units are prefetched line by line between the
 * multiply-adds: many requests together would fill the few line buffers of the core.
 *
 * AMX: Intel Architecture Instruction Set Extensions Programming Reference, 319433. */
#if defined(__x86_64__)
#include "kernel/kernel_amx.h"

#define AMX_MIN_ROWS 17       // fewer rows are faster without tiles
#define AMX_MIN_ROWS8 33      // for weights of 8 bits: memory limits their speed
#define AMX_MIN_ROWS_HALF 25  // for Q6_K, which takes longer to unpack into planes
#define AMX_MIN_ROWS_BOOK 128 // for IQ4_XS, which takes longer still
#define AMX_CHUNK 8           // blocks of K of a pair of tiles of columns that stay in L1

/* AMX_CHUNK blocks of K of a tile of columns. */
struct chunk {
    int8_t q[AMX_CHUNK][8][64];
    float d[AMX_CHUNK][KERNEL_TILE], m[AMX_CHUNK][KERNEL_TILE];
} __attribute__((aligned(64)));

/* ---- operands ---- */

/* Unpacks n_blocks blocks of a tile, which begin at the start of a group. */
INLINE void chunk_open(const struct int8_type t, const uint8_t *group, int n_blocks,
                       struct chunk *to)
{
    const int head = KERNEL_HEAD_BYTES(t.group, t.min, t.halves);
    const __m512i offset = _mm512_set1_epi8((char)t.offset);
    for (int b = 0; b < n_blocks; b++) {
        int i = b % t.group;
        const uint8_t *g = group + (size_t)(b / t.group) * int8_group_bytes(t);
        const uint8_t *p = g + head + i * KERNEL_BLOCK_BYTES(t.lo, t.hi);
        cb w[8];
        cf d, m = c_set(0);
        int8_unpack(t, p, w);
        int8_scales(t, g, i, 0, &d, &m);
        EACH (k, 8)
            _mm512_store_si512(to->q[b][k], t.offset ? _mm512_sub_epi8(w[k], offset) : w[k]);
        _mm512_store_ps(to->d[b], d);
        _mm512_store_ps(to->m[b], m);
    }
}

/* Quantises a chunk at a time, so that the chunk stays in L1. */
void kernel_amx_prepare(enum kernel_form form, const float *x, uint32_t n, uint32_t r, uint32_t m,
                        void *to, size_t to_bytes)
{
    if (form == KERNEL_FORM_TILES_256) {
        kernel_amx_prepare_256(x, n, r, m, to, to_bytes);
        return;
    }
    if (form != KERNEL_FORM_TILES) {
        kernel_avx512.prepare(form, x, n, r, m, to, to_bytes);
        return;
    }
    struct kernel_unit *unit = (void *)((char *)to + group_of(m, &r) * KERNEL_ROWS * to_bytes);
    struct kernel_x chunk[AMX_CHUNK];
    for (uint32_t left = n / KERNEL_BLOCK, part; left; left -= part) {
        part = MIN(left, AMX_CHUNK);
        kernel_avx512.prepare(KERNEL_FORM_INT8, x, part * KERNEL_BLOCK, 0, 1, chunk, 0);
        for (uint32_t b = 0; b < part; b++, unit++) {
            memcpy(unit->q[r], chunk[b].q, KERNEL_BLOCK);
            unit->d[r] = chunk[b].d;
            unit->sum[r] = chunk[b].sum;
        }
        x += part * KERNEL_BLOCK;
    }
}

/* ---- tiles ---- */

/* Starts product p, of block p / 2 and tile of columns p % 2. x_tile is 0 or 1, w_tile 2 or 3. */
#define BEGIN(p, x_tile, w_tile, to)                                                               \
    do {                                                                                           \
        if ((p) % 2 == 0)                                                                          \
            _tile_loadd(x_tile, x[(p) / 2].q[0], KERNEL_BLOCK);                                    \
        _tile_loadd(w_tile, w[(p) % 2].q[(p) / 2], 64);                                            \
        _tile_zero(to);                                                                            \
        _tile_dpbssd(to, x_tile, w_tile);                                                          \
    } while (0)

/* Multiplies rows by the n blocks of two chunks. While a product is stored, three are in flight. */
INLINE void multiply(const struct chunk *w, const struct kernel_unit *x, unsigned n,
                     tile_products *to)
{
    BEGIN(0, 0, 2, 4);
    BEGIN(1, 0, 3, 5);
    if (n > 1)
        BEGIN(2, 1, 2, 6);
    EACH (k, AMX_CHUNK / 2) {
        const unsigned b = 2 * (unsigned)k;
        if (b >= n)
            break;
        if (b + 1 < n)
            BEGIN(2 * b + 3, 1, 3, 7);
        _tile_stored(4, to[2 * b], 64);
        if (b + 2 < n)
            BEGIN(2 * b + 4, 0, 2, 4);
        _tile_stored(5, to[2 * b + 1], 64);
        if (b + 2 < n)
            BEGIN(2 * b + 5, 0, 3, 5);
        if (b + 1 >= n)
            break;
        _tile_stored(6, to[2 * b + 2], 64);
        if (b + 3 < n)
            BEGIN(2 * b + 6, 1, 2, 6);
        _tile_stored(7, to[2 * b + 3], 64);
    }
}

/* The data to prefetch: weights into L2 and units into L1. Each block prefetches n_lines lines of
 * weights and five lines of units. */
struct ahead {
    const uint8_t *weights, *units;
    unsigned n_lines;
};

/* Scales the products of a chunk and adds them to its sums. */
INLINE void scale(const struct chunk *w, const struct kernel_unit *x, unsigned n,
                  const tile_products *products, const struct place *to, const struct ahead *ahead,
                  const int n_rows, const bool min)
{
    const struct place at = *to; // a copy: gcc assumes that stores may change *to
    const struct ahead next = *ahead;
    vf acc[KERNEL_ROWS];
    EACH (r, n_rows)
        acc[r] = at.from ? v_load_n(at.from + (size_t)r * at.from_stride, at.n_store, 0) : v_set(0);
    for (unsigned b = 0; b < n; b++, products += AMX_TILES) {
        const vf d = v_load(w->d[b]), m = v_load(w->m[b]);
        for (unsigned i = 0; i < next.n_lines; i++)
            _mm_prefetch(next.weights + 64 * (b * next.n_lines + i), _MM_HINT_T1);
        EACH (i, 5)
            _mm_prefetch(next.units + 64 * (5 * b + (unsigned)i), _MM_HINT_T0);
        EACH (r, n_rows) {
            vf sum = c_float(_mm512_load_si512((*products)[r]));
            acc[r] = c_fma(sum, c_mul(d, c_set(x[b].d[r])), acc[r]);
            if (min)
                acc[r] = c_fma(m, c_set(x[b].sum[r]), acc[r]);
        }
    }
    EACH (r, n_rows)
        v_store_n(at.to + (size_t)r * at.to_stride, at.n_store, acc[r]);
}

/* Multiplies rows by the n blocks of two chunks and adds the products to their sums. */
INLINE void rows_times_chunks(const struct chunk *w, const struct kernel_unit *x, unsigned n,
                              const struct place *to, const struct ahead *ahead, const int n_rows,
                              const bool min)
{
    tile_products products[AMX_CHUNK * AMX_TILES];
    if (n >= AMX_CHUNK)
        multiply(w, x, AMX_CHUNK, products);
    else
        multiply(w, x, n, products);
    EACH (i, AMX_TILES)
        scale(&w[i], x, n, products + i, &to[i], &ahead[i], n_rows, min);
}

/* The group sizes into which AMX_MIN_ROWS rows or more are split nearly equally. */
#define EACH_ROWS(X) X(8) X(9) X(10) X(11) X(12) X(13) X(14) X(15) X(16)
#define TIMES(name, min)                                                                           \
    static void name(const struct chunk *w, const struct kernel_unit *x, unsigned n_blocks,        \
                     const struct place *to, const struct ahead *ahead)                            \
    {                                                                                              \
        switch (to->n_rows) {                                                                      \
            EACH_ROWS(TIMES_ROWS_##min)                                                            \
        }                                                                                          \
    }
#define TIMES_ROWS(n, min)                                                                         \
    case n:                                                                                        \
        rows_times_chunks(w, x, n_blocks, to, ahead, n, min);                                      \
        break;
#define TIMES_ROWS_false(n) TIMES_ROWS(n, false)
#define TIMES_ROWS_true(n) TIMES_ROWS(n, true)
TIMES(times_plain, false)
TIMES(times_min, true)

/* ---- the product ---- */

/* Multiplies the rows of every group by the chunks of two tiles of columns, from tile i on. The
 * chunks begin at block b of the part. */
INLINE void groups_times_chunks(const struct int8_type t, const struct chunk *chunks, uint32_t i,
                                const struct part *x, uint32_t b, unsigned n_blocks,
                                tile_sums *sums, const struct columns *c,
                                const uint8_t *const *next, unsigned n_next)
{
    const bool is_first = b == 0, is_last = b + n_blocks == x->n_units;
    const unsigned n_lines = (n_next + x->n_groups * n_blocks - 1) / (x->n_groups * n_blocks);
    const size_t unit = b * sizeof(struct kernel_unit);
    for (uint32_t g = 0, r = 0, n_rows; g < x->n_groups; g++, r += n_rows) {
        const uint8_t *units = x->units + g * x->group_bytes + unit;
        struct place at[AMX_TILES];
        struct ahead ahead[AMX_TILES];
        n_rows = kernel_pass_rows(x->m, r, x->n_groups - g);
        places_of(c, i, g, r, n_rows, is_first, is_last, sums, at);
        for (uint32_t k = 0; k < AMX_TILES; k++) {
            ahead[k].weights = next[k] + 64 * n_lines * n_blocks * g;
            ahead[k].n_lines = n_lines * n_blocks * g < n_next ? n_lines : 0;
            ahead[k].units = units + x->group_bytes + k * n_blocks * sizeof(struct kernel_unit) / 2;
        }
        if (t.min)
            times_min(chunks, (const struct kernel_unit *)units, n_blocks, at, ahead);
        else
            times_plain(chunks, (const struct kernel_unit *)units, n_blocks, at, ahead);
    }
}

/* Multiplies tiles of columns by a part of K. It prefetches the next chunk of the same tile, or, if
 * the part is not all of K, the same chunk of the next tile. */
INLINE void tiles_32(const struct int8_type t, const uint8_t *w, size_t tile_bytes,
                     const struct part *x, const struct columns *c)
{
    struct chunk chunks[AMX_TILES];
    tile_sums sums[AMX_SUMS];
    const size_t apart_bytes = c->apart / KERNEL_TILE * tile_bytes;
    const size_t chunk_bytes = AMX_CHUNK / (unsigned)t.group * int8_group_bytes(t);
    for (uint32_t b = 0; b < x->n_units; b += AMX_CHUNK, w += chunk_bytes)
        for (uint32_t i = 0; i < c->n_tiles; i += AMX_TILES) {
            int n_blocks = MIN(AMX_CHUNK, (int)(x->n_units - b));
            const uint8_t *next[AMX_TILES];
            EACH (k, AMX_TILES) {
                const uint8_t *tile = w + MIN(i + (uint32_t)k, c->n_tiles - 1) * apart_bytes;
                chunk_open(t, tile, n_blocks, &chunks[k]);
                next[k] = tile + (x->whole ? chunk_bytes : tile_bytes);
            }
            __asm__ volatile("" : : : "memory"); // gcc 12 does not know that tiles are loaded
            groups_times_chunks(t, chunks, i, x, b, (unsigned)n_blocks, sums, c, next,
                                (unsigned)(chunk_bytes / 64));
        }
}

static void matmul(const struct kernel_mat *w, const uint8_t *x, size_t group_bytes,
                   uint32_t n_groups, uint32_t m, float *y, size_t y_stride, uint32_t from,
                   uint32_t to)
{
    const uint32_t most = kernel_pass_rows(m, 0, n_groups);
    amx_configure(most, most, KERNEL_BLOCK);
    switch (w->type) {
#define CASE(name, bytes, lo, hi, offset, in_group, min, halves, book)                             \
    case KERNEL_##name:                                                                            \
        if ((in_group) == 2)                                                                       \
            amx_walk((struct int8_type){lo, hi, offset, in_group, min, halves, book}, tiles_32, 1, \
                     sizeof(struct kernel_unit), AMX_CHUNK, w, x, group_bytes, n_groups, m, y,     \
                     y_stride, from, to);                                                          \
        break;
        KERNEL_INT8_TYPES(CASE)
#undef CASE
    default:
        break;
    }
    _tile_release();
}

static uint32_t min_rows(const struct kernel_layout *l)
{
    if (l->form == KERNEL_FORM_INT8)
        return l->lo_bits == 8 ? AMX_MIN_ROWS8 : AMX_MIN_ROWS;
    return l->book ? AMX_MIN_ROWS_BOOK : l->has_halves ? AMX_MIN_ROWS_HALF : AMX_MIN_ROWS;
}

enum kernel_form kernel_amx_form(enum kernel_type type, uint32_t m)
{
    const enum kernel_form form = kernel_form_of(type);
    if (form == KERNEL_FORM_INT8 && m >= min_rows(kernel_layout(type)))
        return KERNEL_FORM_TILES;
    if (form == KERNEL_FORM_INT8_256 && m >= min_rows(kernel_layout(type)))
        return KERNEL_FORM_TILES_256;
    return form;
}

void kernel_amx_matmul(const struct kernel_mat *w, const void *x, size_t x_bytes, uint32_t m,
                       float *y, size_t y_stride, uint32_t from, uint32_t to)
{
    const enum kernel_form form = kernel_amx_form(w->type, m);
    if (form != KERNEL_FORM_TILES && form != KERNEL_FORM_TILES_256) {
        if (w->type != KERNEL_BF16 || !kernel_amx_bf16(w, x, x_bytes, m, y, y_stride, from, to))
            kernel_avx512.matmul(w, x, x_bytes, m, y, y_stride, from, to);
        return;
    }
    const size_t group_bytes = KERNEL_ROWS * x_bytes;
    const uint8_t *units = x;
    uint32_t n_passes = (groups_of(m) + AMX_GROUPS - 1) / AMX_GROUPS;
    for (uint32_t left = groups_of(m), n, rows; left; left -= n, m -= rows) {
        n = kernel_pass_rows(left, 0, n_passes--);
        rows = rows_of(m, left, n);
        (form == KERNEL_FORM_TILES ? matmul : kernel_amx_matmul_256)(w, units, group_bytes, n, rows,
                                                                     y, y_stride, from, to);
        units += n * group_bytes;
        y += rows * y_stride;
    }
}
#endif
