/* kernel_amx.c - x86-64 with AMX int8: quantised products of many rows by tiles.
 *
 * A tile instruction multiplies up to 16 rows of activations with 16 columns of weights over a
 * block of 32 of K, exactly, as VPDPBUSD does; the blocks' scales are then applied by AVX-512 in
 * the order of all tiers. Weights are unpacked to signed bytes, AMX_CHUNK blocks of AMX_TILES tiles
 * of columns at a time, and stay in L1 while all rows pass. Everything else is the AVX-512 tier's,
 * also types with scales for half blocks: they store two tiles for a block, which costs the gain.
 *
 * For some 150 cycles after a tile instruction the core multiplies 512-bit floats on one port only
 * (measured), so the scaling takes longer than the products.
 *
 * AMX: Intel Architecture Instruction Set Extensions Programming Reference, 319433. */
#if defined(__x86_64__)
#include "kernel/kernel_avx512.h"
#include "kernel/kernel_int8_unpack.h"

#define AMX_MIN_ROWS 48 // fewer are faster without tiles
#define AMX_GROUPS 32   // of rows, that meet a part of K
#define AMX_UNITS 2048  // in such a part of all groups: 1.3 MiB, which stay in L2
#define AMX_CHUNK 16    // blocks of K that stay in L1
#define AMX_TILES 2     // of columns
#define AMX_AHEAD 8704  // bytes of weights to prefetch into L2: a chunk of Q8_0

/* AMX_CHUNK blocks of K of a tile of columns. */
struct chunk {
    int8_t q[AMX_CHUNK][8][64];
    float d[AMX_CHUNK][KERNEL_TILE], m[AMX_CHUNK][KERNEL_TILE];
} __attribute__((aligned(64)));

/* Where the sums of a tile so far stand, and where they go to. */
struct place {
    const float *from; // NULL: there are none
    float *to;
    size_t from_stride, to_stride;
    uint32_t n_rows, n_store; // n_store: columns
};

/* ---- operands ---- */

/* n_blocks of a tile that begin at the start of a group; ahead: bytes to what is wanted next. */
INLINE void chunk_open(const struct int8_type t, const uint8_t *group, int n_blocks, size_t ahead,
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
        ci sub[2];
        for (int line = 0; line < KERNEL_BLOCK_BYTES(t.lo, t.hi) / 64; line++)
            _mm_prefetch(p + ahead + 64 * line, _MM_HINT_T1);
        int8_unpack(t, p, w);
        int8_scales(t, g, i, 0, &d, &m, sub);
        EACH (k, 8)
            _mm512_store_si512(to->q[b][k], t.offset ? _mm512_sub_epi8(w[k], offset) : w[k]);
        _mm512_store_ps(to->d[b], d);
        _mm512_store_ps(to->m[b], m);
    }
}

static uint32_t groups_of(uint32_t m)
{
    return (m + KERNEL_ROWS - 1) / KERNEL_ROWS;
}

/* Rows of the first n of n_groups groups of m rows. */
static uint32_t rows_of(uint32_t m, uint32_t n_groups, uint32_t n)
{
    return n * (m / n_groups) + MIN(n, m % n_groups);
}

/* Quantises a chunk at a time, which then stays in L1. */
void kernel_amx_prepare(enum kernel_form form, const float *x, uint32_t n, uint32_t r, uint32_t m,
                        void *to, size_t to_bytes)
{
    if (form != KERNEL_FORM_TILES) {
        kernel_avx512.prepare(form, x, n, r, m, to, to_bytes);
        return;
    }
    const uint32_t n_groups = groups_of(m), n_rows = m / n_groups, n_larger = m % n_groups;
    const uint32_t in_larger = n_larger * (n_rows + 1);
    const uint32_t group = r < in_larger ? r / (n_rows + 1) : n_larger + (r - in_larger) / n_rows;
    r -= rows_of(m, n_groups, group);
    struct kernel_unit *unit = (void *)((char *)to + group * KERNEL_ROWS * to_bytes);
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

/* Tiles 0, 1: activations; 2, 3: weights; 4 .. 7: sums. */
static void configure(int n_rows)
{
    struct {
        uint8_t palette, start, reserved[14];
        uint16_t column_bytes[16];
        uint8_t rows[16];
    } __attribute__((aligned(64))) c = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        c.rows[i] = (uint8_t)(i < 2 || i >= 4 ? n_rows : 8);
        c.column_bytes[i] = (uint16_t)(i < 2 ? KERNEL_BLOCK : 64);
    }
    __asm__ volatile("" : : "r"(&c) : "memory"); // gcc 12 takes only 8 bytes of it as read
    _tile_loadconfig(&c);
}

/* The products of block b go into tile c_to. */
#define MULTIPLY(a, w_tile, c_to, b)                                                               \
    do {                                                                                           \
        _tile_loadd(a, x[b].q[0], KERNEL_BLOCK);                                                   \
        _tile_loadd(w_tile, w->q[b], 64);                                                          \
        _tile_zero(c_to);                                                                          \
        _tile_dpbssd(c_to, a, w_tile);                                                             \
    } while (0)

/* (float)a of |a| < 2^22, exactly: the sum with 1.5 * 2^23, whose last bit is worth 1, less that.
 * Unlike a conversion, additions go to both ports. */
INLINE vf amx_float(__m512i a)
{
    const __m512i bits = _mm512_add_epi32(a, _mm512_set1_epi32(0x4b400000));
    return _mm512_add_ps(_mm512_castsi512_ps(bits), v_set(-0x1.8p23f));
}

/* Scales the products of block b onto acc. */
INLINE void scale(const struct chunk *w, const struct kernel_unit *x, unsigned b,
                  const int32_t (*products)[KERNEL_TILE], vf acc[KERNEL_ROWS], const int n_rows,
                  const bool min)
{
    const vf d = v_load(w->d[b]), m = v_load(w->m[b]);
    EACH (r, n_rows) {
        vf sum = amx_float(_mm512_load_si512(products[r]));
        acc[r] = c_fma(sum, c_mul(d, c_set(x[b].d[r])), acc[r]);
        if (min)
            acc[r] = c_fma(m, c_set(x[b].sum[r]), acc[r]);
    }
}

/* Rows times the n blocks of a chunk, added to y. While block b is scaled, the products of b + 1 go
 * to memory and those of b + 2 and b + 3 are under way: a store that waits for its tile holds up
 * what comes after it. */
INLINE void rows_times_chunk(const struct chunk *w, const struct kernel_unit *x, unsigned n,
                             const struct place *to, const int n_rows, const bool min)
{
    int32_t products[4][KERNEL_ROWS][KERNEL_TILE] __attribute__((aligned(64)));
    vf acc[KERNEL_ROWS];
    const struct place at = *to; // for gcc, what is stored may be part of *to
    EACH (r, n_rows)
        acc[r] = at.from ? v_load_n(at.from + (size_t)r * at.from_stride, at.n_store, 0) : v_set(0);
#define BLOCK(b, a, w_tile, c_next, c_done)                                                        \
    if (b + 3 < n)                                                                                 \
        MULTIPLY(a, w_tile, c_next, b + 3);                                                        \
    if (b + 1 < n)                                                                                 \
        _tile_stored(c_done, products[(b + 1) % 4], 64);                                           \
    if (b < n)                                                                                     \
        scale(w, x, b, products[b % 4], acc, n_rows, min);
    MULTIPLY(0, 2, 4, 0);
    if (n > 1)
        MULTIPLY(1, 3, 5, 1);
    if (n > 2)
        MULTIPLY(0, 2, 6, 2);
    _tile_stored(4, products[0], 64);
    for (unsigned b = 0; b < n; b += 4) {
        BLOCK((b + 0), 1, 3, 7, 5)
        BLOCK((b + 1), 0, 2, 4, 6)
        BLOCK((b + 2), 1, 3, 5, 7)
        BLOCK((b + 3), 0, 2, 6, 4)
    }
#undef BLOCK
    EACH (r, n_rows)
        v_store_n(at.to + (size_t)r * at.to_stride, at.n_store, acc[r]);
}

/* What AMX_MIN_ROWS and more split into nearly equally. */
#define EACH_ROWS(X) X(12) X(13) X(14) X(15) X(16)
#define TIMES(name, min)                                                                           \
    static void name(const struct chunk *w, const struct kernel_unit *x, unsigned n_blocks,        \
                     const struct place *at)                                                       \
    {                                                                                              \
        switch (at->n_rows) {                                                                      \
            EACH_ROWS(TIMES_ROWS_##min)                                                            \
        }                                                                                          \
    }
#define TIMES_ROWS(n, min)                                                                         \
    case n:                                                                                        \
        rows_times_chunk(w, x, n_blocks, at, n, min);                                              \
        break;
#define TIMES_ROWS_false(n) TIMES_ROWS(n, false)
#define TIMES_ROWS_true(n) TIMES_ROWS(n, true)
TIMES(times_plain, false)
TIMES(times_min, true)

/* ---- the product ---- */

/* n columns of all rows of y from there on. */
struct columns {
    float *y;
    size_t y_stride;
    uint32_t n;
    bool begun; // sums of parts before this one stand there
};

/* Rows in groups, and a part of their K. */
struct part {
    const uint8_t *units; // of the first group, the next one's group_bytes on
    size_t group_bytes;
    uint32_t m, n_groups, n_blocks;
    size_t ahead; // bytes to what is read next: the next columns of this part, or AMX_AHEAD
};

/* Chunks of n_tiles tiles of columns for the rows of every group, which come into L1 once for all
 * tiles; from block b of the part on. Between the part's chunks sums stand in `sums`: rows of y are
 * often a power of two apart, and then fall into few sets of the caches. */
INLINE void groups_times_chunks(const struct int8_type t, struct chunk *chunks, int n_tiles,
                                const struct part *x, uint32_t b, unsigned n_blocks,
                                float (*sums)[AMX_TILES][KERNEL_ROWS * KERNEL_TILE],
                                const struct columns *c)
{
    const bool is_first = b == 0, is_last = b + n_blocks == x->n_blocks;
    for (uint32_t g = 0, r = 0, n_rows; g < x->n_groups; g++, r += n_rows) {
        const struct kernel_unit *units =
            (const struct kernel_unit *)(x->units + g * x->group_bytes) + b;
        n_rows = kernel_pass_rows(x->m, r, x->n_groups - g);
        for (int i = 0; i < n_tiles; i++) {
            float *y = c->y + r * c->y_stride + i * KERNEL_TILE;
            struct place at = {sums[g][i],  sums[g][i],
                               KERNEL_TILE, KERNEL_TILE,
                               n_rows,      MIN(c->n - (uint32_t)i * KERNEL_TILE, KERNEL_TILE)};
            if (is_first) {
                at.from = c->begun ? y : NULL;
                at.from_stride = c->y_stride;
            }
            if (is_last) {
                at.to = y;
                at.to_stride = c->y_stride;
            }
            if (t.min)
                times_min(&chunks[i], units, n_blocks, &at);
            else
                times_plain(&chunks[i], units, n_blocks, &at);
        }
    }
}

/* n_tiles tiles of columns for a part of K. */
INLINE void amx_tiles(const struct int8_type t, const uint8_t *w, size_t tile_bytes, int n_tiles,
                      const struct part *x, const struct columns *c)
{
    struct chunk chunks[AMX_TILES];
    float sums[AMX_GROUPS][AMX_TILES][KERNEL_ROWS * KERNEL_TILE] __attribute__((aligned(64)));
    for (uint32_t b = 0; b < x->n_blocks; b += AMX_CHUNK) {
        int n_blocks = MIN(AMX_CHUNK, (int)(x->n_blocks - b));
        for (int i = 0; i < n_tiles; i++)
            chunk_open(t, w + (size_t)i * tile_bytes + b / (uint32_t)t.group * int8_group_bytes(t),
                       n_blocks, x->ahead, &chunks[i]);
        __asm__ volatile("" : : : "memory"); // gcc 12 does not know that tiles are loaded
        groups_times_chunks(t, chunks, n_tiles, x, b, (unsigned)n_blocks, sums, c);
    }
}

/* x: n_groups groups, m rows. */
INLINE void amx_matmul(const struct int8_type t, const struct kernel_mat *w, const uint8_t *x,
                       size_t group_bytes, uint32_t n_groups, uint32_t m, float *y, size_t y_stride,
                       uint32_t from, uint32_t to)
{
    const size_t tile_bytes = kernel_tile_bytes(kernel_layout(w->type), w->n_in);
    const uint32_t n_all = w->n_in / KERNEL_BLOCK,
                   most = AMX_UNITS / n_groups / AMX_CHUNK * AMX_CHUNK;
    configure((int)kernel_pass_rows(m, 0, n_groups));
    for (uint32_t b = 0; b < n_all; b += most) {
        const struct part p = {x + b * sizeof(struct kernel_unit),
                               group_bytes,
                               m,
                               n_groups,
                               MIN(most, n_all - b),
                               most < n_all ? AMX_TILES * tile_bytes : AMX_AHEAD};
        const uint8_t *weights =
            (const uint8_t *)w->data + b / (uint32_t)t.group * int8_group_bytes(t);
        for (uint32_t c = from; c < to; c += AMX_TILES * KERNEL_TILE)
            amx_tiles(t, weights + c / KERNEL_TILE * tile_bytes, tile_bytes,
                      MIN(AMX_TILES, (int)((to - c + KERNEL_TILE - 1) / KERNEL_TILE)), &p,
                      &(struct columns){y + c, y_stride, to - c, b > 0});
    }
    _tile_release();
}

static void matmul(const struct kernel_mat *w, const uint8_t *x, size_t group_bytes,
                   uint32_t n_groups, uint32_t m, float *y, size_t y_stride, uint32_t from,
                   uint32_t to)
{
    switch (w->type) {
#define CASE(name, bytes, lo, hi, offset, group, min, halves, book)                                \
    case KERNEL_##name:                                                                            \
        if (!halves)                                                                               \
            amx_matmul((struct int8_type){lo, hi, offset, group, min, halves, book}, w, x,         \
                       group_bytes, n_groups, m, y, y_stride, from, to);                           \
        break;
        KERNEL_INT8_TYPES(CASE)
#undef CASE
    default:
        break;
    }
}

enum kernel_form kernel_amx_form(enum kernel_type type, uint32_t m)
{
    enum kernel_form form = kernel_form_of(type);
    if (form == KERNEL_FORM_INT8 && !kernel_layout(type)->has_halves && m >= AMX_MIN_ROWS)
        return KERNEL_FORM_TILES;
    return form;
}

void kernel_amx_matmul(const struct kernel_mat *w, const void *x, size_t x_bytes, uint32_t m,
                       float *y, size_t y_stride, uint32_t from, uint32_t to)
{
    if (kernel_amx_form(w->type, m) != KERNEL_FORM_TILES) {
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
        matmul(w, units, group_bytes, n, rows, y, y_stride, from, to);
        units += n * group_bytes;
        y += rows * y_stride;
    }
}
#endif
