/* kernel_amx_256.c - x86-64 with AMX int8: products of many rows with types of 256.
 *
 * The weights are multiplied by the integer scales of their blocks and then split into two planes
 * of bytes, w = 2^shift * high + low. So the tiles add up all 256 of K before a store: two tiles
 * for 16 rows and 16 columns. Their sum is converted to float and added once. AVX-512 multiplies
 * the minima by the sums of the activations, as pairs of words.
 *
 * The stored products of a group of rows are scaled while those of the next group are computed: one
 * row after each tile instruction. More rows at a time would fill the instruction window of the
 * core, and then scaling and multiplying would alternate and not overlap.
 *
 * AMX: Intel Architecture Instruction Set Extensions Programming Reference, 319433. */
#if defined(__x86_64__)
#include "kernel/kernel_amx.h"

#define STEPS 16 // tile products of a group of rows with the chunks of two tiles of columns
_Static_assert(STEPS >= KERNEL_ROWS, "each step scales a row");

/* A group (256 of K) of a tile of columns. */
struct chunk {
    uint8_t q[2][4][KERNEL_TILE][64]; // high and low plane; each 64 of K; each 4; (column, 4)
} __attribute__((aligned(64)));

struct scales {
    float d[KERNEL_TILE], m[KERNEL_TILE];
    int32_t mins[4][KERNEL_TILE]; // pairs of words
} __attribute__((aligned(64)));

/* The products of two tiles of columns with two planes each. */
typedef tile_products products[AMX_TILES][2];

/* ---- operands ---- */

/* Copies the low word of each pair to the high word. */
INLINE __m512i twice(__m512i word)
{
    return _mm512_mask_blend_epi16(0xaaaaaaaa, word, _mm512_slli_epi32(word, 16));
}

/* For types with minima: bytes times a scale of up to 63, which is split into two parts of three
 * bits. No product of a byte exceeds 255, so a product of words is two products of bytes. */
INLINE void planes_of_parts(__m512i q, __m512i by, uint8_t *high, uint8_t *low)
{
    _mm512_store_si512(high, _mm512_mullo_epi16(q, _mm512_srli_epi16(by, 3)));
    _mm512_store_si512(low, _mm512_mullo_epi16(q, _mm512_and_si512(by, _mm512_set1_epi16(7))));
}

#define SELECT 0xca // first ? second : third

/* Signed bytes times a scale, as words. The low plane gets the low seven bits. */
INLINE void planes_of_words(__m512i q, __m512i by, uint8_t *high, uint8_t *low)
{
    const __m512i bytes = _mm512_set1_epi16(0xff);
    const __m512i even = _mm512_mullo_epi16(_mm512_srai_epi16(_mm512_slli_epi16(q, 8), 8), by);
    const __m512i odd = _mm512_mullo_epi16(_mm512_srai_epi16(q, 8), by);
    __m512i h = _mm512_ternarylogic_epi32(bytes, _mm512_srai_epi16(even, 7),
                                          _mm512_slli_epi16(odd, 1), SELECT);
    __m512i l = _mm512_ternarylogic_epi32(bytes, even, _mm512_slli_epi16(odd, 8), SELECT);
    _mm512_store_si512(high, h);
    _mm512_store_si512(low, _mm512_and_si512(l, _mm512_set1_epi8(127)));
}

#define SHIFT(t) ((t).min ? 3 : 7)

INLINE void chunk_open(const struct int8_type t, const uint8_t *group, struct chunk *to,
                       struct scales *scales)
{
    const uint8_t *block = group + KERNEL_HEAD_BYTES(t.group, t.min, t.halves);
    for (int i = 0; i < 8; i++, block += KERNEL_BLOCK_BYTES(t.lo, t.hi)) {
        const __m512i pair = int8_pair(group, t.halves ? i : i / 2, 0);
        const __m512i words[2] = {twice(c_word(pair, 0)), twice(c_word(pair, 1))};
        cb w[8];
        int8_unpack(t, block, w);
        EACH (g, 8) {
            const __m512i by = words[t.halves ? g / 4 : i % 2];
            uint8_t *high = to->q[0][i / 2][i % 2 * 8 + g], *low = to->q[1][i / 2][i % 2 * 8 + g];
            if (t.min)
                planes_of_parts(w[g], by, high, low);
            else
                planes_of_words(_mm512_sub_epi8(w[g], _mm512_set1_epi8((char)t.offset)), by, high,
                                low);
        }
    }
    _mm512_store_ps(scales->d, c_halfs(group));
    if (!t.min)
        return;
    _mm512_store_ps(scales->m, c_negative(c_halfs(group + 32)));
    EACH (i, 4)
        _mm512_store_si512(scales->mins[i], int8_min_pair(group, i, 0));
}

void kernel_amx_prepare_256(const float *x, uint32_t n, uint32_t r, uint32_t m, void *to,
                            size_t to_bytes)
{
    struct kernel_unit256 *unit = (void *)((char *)to + group_of(m, &r) * KERNEL_ROWS * to_bytes);
    for (uint32_t i = 0; i < n / KERNEL_GROUP; i++, unit++) {
        struct kernel_x256 row;
        kernel_avx512.prepare(KERNEL_FORM_INT8_256, x + i * KERNEL_GROUP, KERNEL_GROUP, 0, 1, &row,
                              0);
        for (unsigned k = 0; k < 4; k++)
            memcpy(unit->q[k][r], row.q + 64 * k, 64);
        unit->d[r] = row.d;
        memcpy(unit->sum[r], row.sum, sizeof(row.sum));
    }
}

/* ---- tiles ---- */

/* The unfinished work of a group of rows: its products are still to be scaled and added. */
struct rest {
    const struct scales *w;
    const struct kernel_unit256 *x;
    struct place at[AMX_TILES];
};

/* The operands of this work, in registers. */
struct finish {
    vf d[AMX_TILES], m[AMX_TILES];
    ci mins[AMX_TILES][4];
    struct place at[AMX_TILES];
    uint32_t n_load[AMX_TILES];
};

INLINE struct finish finish_of(const struct int8_type t, const struct rest *rest)
{
    struct finish f;
    EACH (k, AMX_TILES) {
        f.d[k] = v_load(rest->w[k].d);
        f.m[k] = t.min ? v_load(rest->w[k].m) : v_set(0);
        EACH (i, 4)
            f.mins[k][i] = t.min ? _mm512_load_si512(rest->w[k].mins[i]) : c_int(0);
        f.at[k] = rest->at[k];
        f.n_load[k] = f.at[k].from ? f.at[k].n_store : 0;
        if (!f.at[k].from)
            f.at[k].from = f.at[k].to; // a valid address; nothing is loaded
    }
    return f;
}

INLINE void finish_row(const struct int8_type t, const struct finish *f,
                       const struct kernel_unit256 *x, const products *from, uint32_t r)
{
    const vf dx = v_set(x->d[r]);
    ci sums[4];
    EACH (i, 4)
        sums[i] = t.min ? c_2_words(x->sum[r] + 2 * i) : c_int(0);
    EACH (k, AMX_TILES) {
        const struct place *at = &f->at[k];
        const ci high = _mm512_load_si512((*from)[k][0][r]);
        const ci low = _mm512_load_si512((*from)[k][1][r]);
        const ci sum = _mm512_add_epi32(_mm512_slli_epi32(high, SHIFT(t)), low);
        vf acc = v_load_n(at->from + r * at->from_stride, f->n_load[k], 0);
        acc = c_fma(c_float(sum), c_mul(f->d[k], dx), acc);
        if (t.min) {
            ci min = c_int(0);
            EACH (i, 4)
                min = c_dot_words(min, f->mins[k][i], sums[i]);
            acc = c_fma(c_float(min), c_mul(f->m[k], dx), acc);
        }
        v_store_n(at->to + r * at->to_stride, at->n_store, acc);
    }
}

INLINE void finish(const struct int8_type t, const struct rest *rest, const products *from)
{
    const struct finish f = finish_of(t, rest);
    for (uint32_t r = 0; r < f.at[0].n_rows; r++)
        finish_row(t, &f, rest->x, from, r);
}

/* The data to prefetch: weights of each tile of columns into L2, and a unit into L1. Each step
 * prefetches n_lines lines of weights and UNIT_SHARE lines of the unit. */
struct ahead {
    const uint8_t *weights[AMX_TILES], *unit;
    unsigned n_lines;
};
#define UNIT_SHARE ((int)(sizeof(struct kernel_unit256) / 64 + STEPS - 1) / STEPS)

INLINE void look_ahead(const struct ahead *ahead, const int step)
{
    EACH (i, UNIT_SHARE)
        _mm_prefetch(ahead->unit + 64 * (UNIT_SHARE * step + i), _MM_HINT_T0);
    for (unsigned i = 0; i < ahead->n_lines; i++)
        EACH (k, AMX_TILES)
            _mm_prefetch(ahead->weights[k] + 64 * (ahead->n_lines * (unsigned)step + i),
                         _MM_HINT_T1);
}

/* Multiplies part k of K (64 each) by plane p of chunk c, in tiles x_tile and w_tile, and adds the
 * products to tile `to`. It also finishes a row of the rest. */
#define STEP(k, c, p, x_tile, w_tile, to)                                                          \
    do {                                                                                           \
        const int step = 4 * (k) + 2 * (c) + (p);                                                  \
        _tile_loadd(w_tile, w[c].q[p][k][0], 64);                                                  \
        if (t.min)                                                                                 \
            _tile_dpbsud(to, x_tile, w_tile);                                                      \
        else                                                                                       \
            _tile_dpbssd(to, x_tile, w_tile);                                                      \
        look_ahead(&next, step);                                                                   \
        if (step < n_rows)                                                                         \
            finish_row(t, &f, rest_x, held, step);                                                 \
    } while (0)
#define STEPS_64(k, x_tile)                                                                        \
    do {                                                                                           \
        _tile_loadd(x_tile, x->q[k][0], 64);                                                       \
        STEP(k, 0, 0, x_tile, 2, 4);                                                               \
        STEP(k, 0, 1, x_tile, 3, 5);                                                               \
        STEP(k, 1, 0, x_tile, 2, 6);                                                               \
        STEP(k, 1, 1, x_tile, 3, 7);                                                               \
    } while (0)

/* Multiplies a unit by two chunks. held: the products of the rest. They are scaled meanwhile, and
 * then the products of this unit replace them. */
INLINE void multiply(const struct int8_type t, const struct chunk *w,
                     const struct kernel_unit256 *x, products *held, const struct rest *rest,
                     const struct ahead *ahead)
{
    const struct finish f = finish_of(t, rest);
    const struct ahead next = *ahead; // copies: gcc assumes that stores may change *rest
    const struct kernel_unit256 *rest_x = rest->x;
    const int n_rows = (int)f.at[0].n_rows;
    _tile_zero(4);
    _tile_zero(5);
    _tile_zero(6);
    _tile_zero(7);
    STEPS_64(0, 0);
    STEPS_64(1, 1);
    STEPS_64(2, 0);
    STEPS_64(3, 1);
    _tile_stored(4, (*held)[0][0], 64);
    _tile_stored(5, (*held)[0][1], 64);
    _tile_stored(6, (*held)[1][0], 64);
    _tile_stored(7, (*held)[1][1], 64);
}

/* ---- the product ---- */

/* A turn multiplies every group of rows by two tiles of columns, for one unit of a part. */
struct turn {
    struct chunk chunks[AMX_TILES];
    struct scales scales[2][AMX_TILES]; // of this turn and the previous one, by n_turns % 2
    products products;                  // of the previous group, until this group's are complete
    tile_sums sums[AMX_SUMS];
    struct rest rest;
    unsigned n_turns; // turns so far
};

/* Tiles of columns from number i on, unit u of part x. next: weights to prefetch. */
INLINE void groups_times_chunks(const struct int8_type t, struct turn *s, uint32_t i,
                                const struct part *x, uint32_t u, const struct columns *c,
                                const uint8_t *const *next)
{
    const unsigned n_next = (unsigned)(int8_group_bytes(t) / 64);
    const unsigned n_lines = (n_next + STEPS * x->n_groups - 1) / (STEPS * x->n_groups);
    const uint8_t *first = x->units + u * sizeof(struct kernel_unit256);
    for (uint32_t g = 0, r = 0, n_rows; g < x->n_groups; g++, r += n_rows) {
        const uint8_t *unit = first + g * x->group_bytes;
        const unsigned begun = STEPS * n_lines * g;
        const struct ahead ahead = {{next[0] + 64 * begun, next[1] + 64 * begun},
                                    g + 1 < x->n_groups ? unit + x->group_bytes : first,
                                    begun < n_next ? n_lines : 0};
        n_rows = kernel_pass_rows(x->m, r, x->n_groups - g);
        multiply(t, s->chunks, (const struct kernel_unit256 *)unit, &s->products, &s->rest, &ahead);
        s->rest.w = s->scales[s->n_turns % 2];
        s->rest.x = (const struct kernel_unit256 *)unit;
        places_of(c, i, g, r, n_rows, u == 0, u + 1 == x->n_units, s->sums, s->rest.at);
    }
}

/* Multiplies tiles of columns by a part of K. It prefetches the next group of the same tile, or, if
 * the part is not all of K, the same group of the next tile. */
INLINE void tiles_256(const struct int8_type t, const uint8_t *w, size_t tile_bytes,
                      const struct part *x, const struct columns *c)
{
    struct turn s;
    const size_t apart_bytes = c->apart / KERNEL_TILE * tile_bytes;
    s.rest = (struct rest){.w = s.scales[0]}; // of no rows
    s.n_turns = 0;
    for (uint32_t u = 0; u < x->n_units; u++, w += int8_group_bytes(t))
        for (uint32_t i = 0; i < c->n_tiles; i += AMX_TILES, s.n_turns++) {
            const uint8_t *next[AMX_TILES];
            EACH (k, AMX_TILES) {
                const uint8_t *tile = w + MIN(i + (uint32_t)k, c->n_tiles - 1) * apart_bytes;
                chunk_open(t, tile, &s.chunks[k], &s.scales[s.n_turns % 2][k]);
                next[k] = tile + (x->whole ? int8_group_bytes(t) : tile_bytes);
            }
            __asm__ volatile("" : : : "memory"); // gcc 12 does not know that tiles are loaded
            groups_times_chunks(t, &s, i, x, u, c, next);
        }
    finish(t, &s.rest, &s.products);
}

void kernel_amx_matmul_256(const struct kernel_mat *w, const uint8_t *x, size_t group_bytes,
                           uint32_t n_groups, uint32_t m, float *y, size_t y_stride, uint32_t from,
                           uint32_t to)
{
    const uint32_t most = kernel_pass_rows(m, 0, n_groups);
    amx_configure(most, most, 64);
    switch (w->type) {
#define CASE(name, bytes, lo, hi, offset, in_group, min, halves, book)                             \
    case KERNEL_##name:                                                                            \
        if ((in_group) == 8)                                                                       \
            amx_walk((struct int8_type){lo, hi, offset, in_group, min, halves, book}, tiles_256,   \
                     8, sizeof(struct kernel_unit256), 1, w, x, group_bytes, n_groups, m, y,       \
                     y_stride, from, to);                                                          \
        break;
        KERNEL_INT8_TYPES(CASE)
#undef CASE
    default:
        break;
    }
    _tile_release();
}
#endif
