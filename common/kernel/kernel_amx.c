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

#define AMX_ROWS 16      // in a tile of activations
#define AMX_MIN_ROWS 48  // fewer are faster without tiles
#define AMX_MAX_ROWS 512 // packed at a time
#define AMX_UNITS 2048   // blocks of K of AMX_ROWS rows packed at a time: 1.3 MiB, stays in L2
#define AMX_CHUNK 16     // blocks of K that stay in L1
#define AMX_TILES 2      // of columns
#define AMX_AHEAD 8704   // bytes of weights to prefetch into L2: a chunk of Q8_0

/* AMX_CHUNK blocks of K of a tile of columns. */
struct chunk {
    int8_t q[AMX_CHUNK][8][64];
    float d[AMX_CHUNK][KERNEL_TILE], m[AMX_CHUNK][KERNEL_TILE];
} __attribute__((aligned(64)));

/* A block of K of up to 16 rows. */
struct unit {
    int8_t q[AMX_ROWS][KERNEL_BLOCK];
    float d[AMX_ROWS], sum[AMX_ROWS];
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

/* n_blocks of n rows; to: a unit for each block. */
static void pack_rows(const uint8_t *x, size_t x_bytes, uint32_t n_blocks, uint32_t n,
                      struct unit *to)
{
    for (uint32_t b = 0; b < n_blocks; b++)
        for (uint32_t r = 0; r < n; r++) {
            const struct kernel_x *from = (const struct kernel_x *)(x + r * x_bytes) + b;
            memcpy(to[b].q[r], from->q, KERNEL_BLOCK);
            to[b].d[r] = from->d;
            to[b].sum[r] = from->sum;
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
INLINE void scale(const struct chunk *w, const struct unit *x, unsigned b,
                  const int32_t (*products)[KERNEL_TILE], vf acc[AMX_ROWS], const int n_rows,
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
INLINE void rows_times_chunk(const struct chunk *w, const struct unit *x, unsigned n,
                             const struct place *to, const int n_rows, const bool min)
{
    int32_t products[4][AMX_ROWS][KERNEL_TILE] __attribute__((aligned(64)));
    vf acc[AMX_ROWS];
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
    static void name(const struct chunk *w, const struct unit *x, unsigned n_blocks,               \
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

/* All rows in groups, and the part of K that is packed of them. */
struct packed {
    struct unit *units; // (group, block of the part)
    uint32_t m, n_groups, n_blocks;
    size_t ahead; // bytes to what is read next: the next columns of this part, or AMX_AHEAD
};

/* Chunks of n_tiles tiles of columns for the rows of every group, which come into L1 once for all
 * tiles; from block b of the part on. Between the part's chunks sums stand in `sums`: rows of y are
 * often a power of two apart, and then fall into few sets of the caches. */
INLINE void groups_times_chunks(const struct int8_type t, struct chunk *chunks, int n_tiles,
                                const struct packed *x, uint32_t b, unsigned n_blocks,
                                float (*sums)[AMX_TILES][AMX_ROWS * KERNEL_TILE],
                                const struct columns *c)
{
    const bool is_first = b == 0, is_last = b + n_blocks == x->n_blocks;
    for (uint32_t g = 0, r = 0, n_rows; g < x->n_groups; g++, r += n_rows) {
        const struct unit *units = x->units + (size_t)g * x->n_blocks + b;
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

/* n_tiles tiles of columns for the part of K that is packed. */
INLINE void amx_tiles(const struct int8_type t, const uint8_t *part, size_t tile_bytes, int n_tiles,
                      const struct packed *x, const struct columns *c)
{
    struct chunk chunks[AMX_TILES];
    float sums[AMX_MAX_ROWS / AMX_ROWS][AMX_TILES][AMX_ROWS * KERNEL_TILE]
        __attribute__((aligned(64)));
    for (uint32_t b = 0; b < x->n_blocks; b += AMX_CHUNK) {
        int n_blocks = MIN(AMX_CHUNK, (int)(x->n_blocks - b));
        for (int i = 0; i < n_tiles; i++)
            chunk_open(t,
                       part + (size_t)i * tile_bytes + b / (uint32_t)t.group * int8_group_bytes(t),
                       n_blocks, x->ahead, &chunks[i]);
        __asm__ volatile("" : : : "memory"); // gcc 12 does not know that tiles are loaded
        groups_times_chunks(t, chunks, n_tiles, x, b, (unsigned)n_blocks, sums, c);
    }
}

INLINE void amx_matmul(const struct int8_type t, const struct kernel_mat *w, const uint8_t *x,
                       size_t x_bytes, uint32_t m, float *y, size_t y_stride, uint32_t from,
                       uint32_t to)
{
    struct unit units[AMX_UNITS];
    const size_t tile_bytes = kernel_tile_bytes(kernel_layout(w->type), w->n_in);
    const uint32_t n_all = w->n_in / KERNEL_BLOCK, n_groups = (m + AMX_ROWS - 1) / AMX_ROWS,
                   most = AMX_UNITS / n_groups / AMX_CHUNK * AMX_CHUNK;
    configure((int)kernel_pass_rows(m, 0, n_groups));
    for (uint32_t b = 0; b < n_all; b += most) {
        struct packed p = {units, m, n_groups, MIN(most, n_all - b),
                           most < n_all ? AMX_TILES * tile_bytes : AMX_AHEAD};
        for (uint32_t g = 0, r = 0, n; g < n_groups; g++, r += n) {
            n = kernel_pass_rows(m, r, n_groups - g);
            pack_rows(x + r * x_bytes + b * sizeof(struct kernel_x), x_bytes, p.n_blocks, n,
                      units + (size_t)g * p.n_blocks);
        }
        const uint8_t *part =
            (const uint8_t *)w->data + b / (uint32_t)t.group * int8_group_bytes(t);
        for (uint32_t c = from; c < to; c += AMX_TILES * KERNEL_TILE)
            amx_tiles(t, part + c / KERNEL_TILE * tile_bytes, tile_bytes,
                      MIN(AMX_TILES, (int)((to - c + KERNEL_TILE - 1) / KERNEL_TILE)), &p,
                      &(struct columns){y + c, y_stride, to - c, b > 0});
    }
    _tile_release();
}

static void matmul(const struct kernel_mat *w, const uint8_t *x, size_t x_bytes, uint32_t m,
                   float *y, size_t y_stride, uint32_t from, uint32_t to)
{
    switch (w->type) {
#define CASE(name, bytes, lo, hi, offset, group, min, halves, book)                                \
    case KERNEL_##name:                                                                            \
        if (!halves)                                                                               \
            amx_matmul((struct int8_type){lo, hi, offset, group, min, halves, book}, w, x,         \
                       x_bytes, m, y, y_stride, from, to);                                         \
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
    if (kernel_form_of(w->type) != KERNEL_FORM_INT8 || kernel_layout(w->type)->has_halves ||
        m < AMX_MIN_ROWS)
        return kernel_avx512.matmul(w, x, x_bytes, m, y, y_stride, from, to);
    uint32_t n_passes = (m + AMX_MAX_ROWS - 1) / AMX_MAX_ROWS;
    for (uint32_t p = 0, r = 0, n; p < n_passes; p++, r += n) {
        n = kernel_pass_rows(m, r, n_passes - p);
        matmul(w, (const uint8_t *)x + r * x_bytes, x_bytes, n, y + r * y_stride, y_stride, from,
               to);
    }
}
#endif
