/* kernel_attn_int8.h - K and V of int8: writing them and attention over them; part of
 * kernel_attn.h.
 *
 * A block of K holds, for each four of head_dim, the values of its sixteen positions side by side:
 * a lane is a position. A block of V holds, for each four positions, all of head_dim side by side:
 * a lane is one of head_dim. So no sum crosses lanes, and no layout is transposed. Every sum is a
 * sum of integers and therefore exact. Blocks that all rows see are read once for all queries. Each
 * row reads its other blocks itself, with the same bits. Scattered positions are first gathered
 * into separate blocks.
 *
 * A tier has these operations on vectors of integers:
 *
 *   vi         sixteen int32: vi_set, vi_load, vi_store, vi_add, vi_float
 *   vk_load    loads 64 bytes of K, which are the values plus 128
 *   vq_load    loads four values of a query
 *   vk_dot     vi += K . q in each lane
 *   vv_load    loads 64 bytes of V
 *   vt_store   rounds sixteen weights, floats up to 32767, to 64 bytes
 *   vt_load    loads four of these weights
 *   va         sums of V times weights: va_zero, va_dot, va_sum */
#pragma once

#define TOP_WEIGHT 32767.0f
#define PIECE_BLOCKS (KERNEL_PIECE / KERNEL_KV_BLOCK)
#define SPREAD 2 // most shared blocks that only some rows of a chain see

/* The scale of a row: value = scale * integer in [-127, 127]. NaN: a value is a NaN or infinite. */
static float row_scale(const float *x, uint32_t n, float *ret_inverse)
{
    vf most = v_set(0), none = v_set(0);
    for (uint32_t i = 0; i < n; i += 16) {
        vf part = v_load_n(x + i, MIN(n - i, 16u), 0);
        most = v_max(v_abs(part), most);
        none = v_fma(part, v_set(0), none);
    }
    float d = v_hmax(most) / 127;
    *ret_inverse = d > 0 ? 1 / d : 0;
    return v_sum(none) == 0 ? d : NAN;
}

/* Quantises up to sixteen values and fills up with zeros. Returns their sum. */
INLINE int quantise(const float *x, uint32_t n, float inverse, int8_t *to)
{
    return v_quantise(v_mul(v_load_n(x, MIN(n, 16u), 0), v_set(inverse)), to);
}

static void put_int8(const float *k, const float *v, uint32_t head_dim, uint32_t place,
                     uint8_t *block)
{
    uint8_t *block_v = block + kernel_kv8_half(head_dim);
    float inverse_k, inverse_v;
    float scales[] = {row_scale(k, head_dim, &inverse_k), row_scale(v, head_dim, &inverse_v)};
    if (scales[1] != scales[1]) { // a NaN in V: its integer sums would lose it
        scales[0] = scales[1];
        scales[1] = 0;
    }
    memcpy(block + 4 * place, &scales[0], 4);
    memcpy(block_v + 4 * place, &scales[1], 4);
    for (uint32_t d = 0; d < head_dim; d += 16) {
        int8_t qk[16], qv[16];
        quantise(k + d, head_dim - d, inverse_k, qk);
        quantise(v + d, head_dim - d, inverse_v, qv);
        for (uint32_t i = 0; i < 16; i++)
            block[kernel_kv8_k(place, d + i / 4 * 4) + i % 4] = (uint8_t)(qk[i] + 128);
        for (uint32_t i = 0; i < 16; i++)
            block_v[kernel_kv8_v(head_dim, place, d + i)] = (uint8_t)qv[i];
    }
}

static void kv_put(enum kernel_kv type, const float *k, const float *v, uint32_t head_dim,
                   uint32_t place, void *block)
{
    size_t row = kernel_kv_row(type, head_dim);
    char *to_k = (char *)block + place * row, *to_v = to_k + row * KERNEL_KV_BLOCK;
    if (type == KERNEL_KV_INT8) {
        put_int8(k, v, head_dim, place, block);
    } else if (type == KERNEL_KV_F32) {
        memcpy(to_k, k, row);
        memcpy(to_v, v, row);
    } else {
        to_f16(k, head_dim, (uint16_t *)to_k);
        to_f16(v, head_dim, (uint16_t *)to_v);
    }
}

/* ---- attention ---- */
struct queries8 {
    struct queries all;
    uint32_t dim;   // head_dim filled up
    size_t v;       // bytes from a block to its V
    int8_t *q;      // (n, dim)
    int32_t *sums;  // (n, dim): sums of V times weights
    char *gathered; // (PIECE_BLOCKS): blocks gathered for a row
    float by[KERNEL_ATTN_QUERIES];
    int32_t minus[KERNEL_ATTN_QUERIES]; // -128 times the sum of q, as K has 128 added
};

/* The blocks of a piece that a row sees. */
struct sight8 {
    const char *blocks[PIECE_BLOCKS];
};

/* Scores of n_heads queries from h on, at n_tiles blocks. The scores of two queries are
 * KERNEL_PIECE apart. */
INLINE void scores8_tiles(const struct queries8 *s, uint32_t h, const char *const *blocks,
                          float *to, const int n_heads, const int n_tiles)
{
    vi sum[V_HEADS][I_TILES];
    EACH (i, n_heads)
        EACH (t, n_tiles)
            sum[i][t] = vi_set(s->minus[h + (uint32_t)i]);
    for (uint32_t d = 0; d < s->dim; d += 4) {
        vk k[I_TILES];
        EACH (t, n_tiles)
            k[t] = vk_load((const uint8_t *)blocks[t] + KERNEL_KV8_SCALES + 16 * d);
        EACH (i, n_heads) {
            vq q = vq_load(s->q + (h + (uint32_t)i) * s->dim + d);
            EACH (t, n_tiles)
                sum[i][t] = vk_dot(sum[i][t], k[t], q);
        }
    }
    EACH (t, n_tiles) {
        vf scales = v_load((const float *)blocks[t]);
        EACH (i, n_heads)
            v_store(to + i * KERNEL_PIECE + 16 * t,
                    v_mul(vi_float(sum[i][t]), v_mul(scales, v_set(s->by[h + (uint32_t)i]))));
    }
}

INLINE void scores8_heads(const struct queries8 *s, uint32_t h, uint32_t n,
                          const char *const *blocks, float *to, const int n_tiles)
{
    for (uint32_t left; (left = n); n -= MIN(left, V_HEADS), h += V_HEADS) {
        switch (MIN(left, V_HEADS)) {
#define HEADS(n_heads)                                                                             \
    case n_heads:                                                                                  \
        scores8_tiles(s, h, blocks, to, n_heads, n_tiles);                                         \
        break;
            V_EACH_HEADS(HEADS)
#undef HEADS
        }
        to += V_HEADS * KERNEL_PIECE;
    }
}

/* Scores of n queries from h on, at blocks [from, to) of the piece. */
static void scores8(const struct queries8 *s, uint32_t h, uint32_t n, const struct sight8 *see,
                    uint32_t from, uint32_t to)
{
    float *weights = s->all.weights + h * KERNEL_PIECE;
    for (; from + I_TILES <= to; from += I_TILES)
        scores8_heads(s, h, n, see->blocks + from, weights + 16 * from, I_TILES);
    for (; from < to; from++)
        scores8_heads(s, h, n, see->blocks + from, weights + 16 * from, 1);
}

/* Like soften_heads(), but the results are integers: exp(s - max) times the scale of V. Their unit
 * is the largest of these products divided by TOP_WEIGHT. s: n scores in these blocks. */
INLINE void weigh8_heads(float *s, const char *const *blocks, size_t v, uint32_t n, float *ret_max,
                         float *ret_sum, float *ret_unit, const int n_heads)
{
    vf max[V_HEADS], sum[V_HEADS], top[V_HEADS];
    EACH (h, n_heads) {
        max[h] = v_set(-INFINITY);
        sum[h] = top[h] = v_set(0);
    }
    for (uint32_t i = 0; i < n; i += 16)
        EACH (h, n_heads) {
            float *at = s + h * KERNEL_PIECE + i;
            vf x = n - i < 16 ? v_load_n(at, n - i, -INFINITY) : v_load(at); // exp(-inf) is 0
            max[h] = v_max(max[h], x);
            v_store(at, x);
        }
    EACH (h, n_heads)
        max[h] = v_set(ret_max[h] = v_hmax(max[h]));
    for (uint32_t i = 0; i < n; i += 16) {
        vf scales = v_load_n((const float *)(blocks[i / 16] + v), MIN(n - i, 16u), 0);
        EACH (h, n_heads) {
            float *at = s + h * KERNEL_PIECE + i;
            vf e = v_exp(v_sub(v_load(at), max[h]));
            sum[h] = v_add(sum[h], e);
            e = v_mul(e, scales);
            top[h] = v_max(top[h], e);
            v_store(at, e);
        }
    }
    EACH (h, n_heads) {
        ret_sum[h] = v_sum(sum[h]);
        ret_unit[h] = v_hmax(top[h]) / TOP_WEIGHT;
        top[h] = v_set(ret_unit[h] > 0 ? 1 / ret_unit[h] : 0);
    }
    for (uint32_t i = 0; i < n; i += 16)
        EACH (h, n_heads) {
            float *at = s + h * KERNEL_PIECE + i;
            vt_store((uint8_t *)at, v_mul(v_load(at), top[h]));
        }
}

/* The weights of n_heads queries from h on, for the positions that their row reads. */
static void weigh8(const struct queries8 *s, uint32_t h, uint32_t n_heads, const struct sight8 *see,
                   struct range row, float *max, float *sum, float *unit)
{
    const char *const *blocks = see->blocks + row.from / 16;
    const uint32_t n = row.to - row.from;
    for (uint32_t left; (left = n_heads); n_heads -= MIN(left, V_HEADS), h += V_HEADS) {
        float *at = s->all.weights + h * KERNEL_PIECE + row.from;
        switch (MIN(left, V_HEADS)) {
#define HEADS(n_heads)                                                                             \
    case n_heads:                                                                                  \
        weigh8_heads(at, blocks, s->v, n, max + h, sum + h, unit + h, n_heads);                    \
        break;
            V_EACH_HEADS(HEADS)
#undef HEADS
        }
    }
}

/* Adds the blocks [from, to) to the sums of n_heads queries from h on: n_parts vectors of V from d
 * on. */
INLINE void values8_parts(const struct queries8 *s, uint32_t h, const struct sight8 *see,
                          uint32_t from, uint32_t to, uint32_t d, const int n_heads,
                          const int n_parts)
{
    va sum[I_HEADS][I_PARTS];
    const uint8_t *weights = (const uint8_t *)(s->all.weights + h * KERNEL_PIECE);
    int32_t *sums = s->sums + h * s->dim + d;
    EACH (i, n_heads)
        EACH (p, n_parts)
            sum[i][p] = va_zero();
    for (uint32_t b = from; b < to; b++) {
        const uint8_t *block = (const uint8_t *)see->blocks[b] + s->v + KERNEL_KV8_SCALES + 4 * d;
        EACH (g, 4) {
            vv v[I_PARTS];
            EACH (p, n_parts)
                v[p] = vv_load(block + 4 * ((size_t)g * s->dim + 16 * (size_t)p));
            EACH (i, n_heads) {
                vt t = vt_load(weights + sizeof(float) * ((size_t)i * KERNEL_PIECE + 16 * b), g);
                EACH (p, n_parts)
                    sum[i][p] = va_dot(sum[i][p], v[p], t);
            }
        }
    }
    EACH (i, n_heads)
        EACH (p, n_parts) {
            int32_t *at = sums + (size_t)i * s->dim + 16 * p;
            vi_store(at, vi_add(vi_load(at), va_sum(sum[i][p])));
        }
}

INLINE void values8_heads(const struct queries8 *s, uint32_t h, const struct sight8 *see,
                          uint32_t from, uint32_t to, const int n_heads)
{
    uint32_t d = 0;
    for (; d + 16 * I_PARTS <= s->dim; d += 16 * I_PARTS)
        values8_parts(s, h, see, from, to, d, n_heads, I_PARTS);
    for (; d < s->dim; d += 16)
        values8_parts(s, h, see, from, to, d, n_heads, 1);
}

static void values8(const struct queries8 *s, uint32_t h, uint32_t n, const struct sight8 *see,
                    uint32_t from, uint32_t to)
{
    for (; n >= I_HEADS; n -= I_HEADS, h += I_HEADS)
        values8_heads(s, h, see, from, to, I_HEADS);
    for (; n; n--, h++)
        values8_heads(s, h, see, from, to, 1);
}

/* Weights 0 for the blocks [from, to) of n queries from h on. */
static void clear8(const struct queries8 *s, uint32_t h, uint32_t n, uint32_t from, uint32_t to)
{
    for (uint32_t i = h; i < h + n; i++)
        for (uint32_t b = from; b < to; b++)
            vt_store((uint8_t *)(s->all.weights + i * KERNEL_PIECE + 16 * b), v_set(0));
}

/* The blocks that a row reads in place. The positions after them are gathered. */
static struct range whole_blocks(const struct kernel_attn *a, const struct kernel_sight *s)
{
    return (struct range){read_by(a, s).from / 16,
                          s->n_tail ? s->n_base / 16 : (s->n_base + 15) / 16};
}

/* The blocks that all rows share. Up to SPREAD of them at each end may be blocks that some rows do
 * not see. Products with weight 0 cost less than blocks that each row reads alone. */
static struct range shared_blocks(const struct kernel_attn *a)
{
    struct range all = {UINT32_MAX, 0}, each = {0, UINT32_MAX};
    uint32_t n_tails = 0;
    for (uint32_t r = 0; r < a->n_rows; r++) {
        const struct range see = whole_blocks(a, &a->sights[r]);
        all = (struct range){MIN(all.from, see.from), MAX(all.to, see.to)};
        each = (struct range){MAX(each.from, see.from), MIN(each.to, see.to)};
        n_tails += a->sights[r].n_tail;
    }
    if (n_tails == 0 && all.to - each.to <= SPREAD && each.from - all.from <= SPREAD)
        return all;
    return each.from < each.to ? each : (struct range){0, 0};
}

/* Gathers n positions from `first` on, which a row sees in scattered slots, into one block. */
static void gather(const struct kernel_attn *a, const struct kernel_sight *s, uint32_t first,
                   uint32_t n, char *to)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t p = first + i, slot;
        slot = p < s->n_base ? a->blocks[p / 16] * 16 + p % 16 : s->tail[p - s->n_base];
        kernel_kv_move(KERNEL_KV_INT8, a->head_dim, a->kv + slot / 16 * a->block, slot % 16, to, i);
    }
}

/* Finds the blocks [from, to) of the piece for a row, which sees n positions of the piece. */
static void look8(const struct kernel_attn *a, const struct queries8 *s,
                  const struct kernel_sight *row, uint32_t piece, struct range blocks, uint32_t n,
                  struct sight8 *see)
{
    const uint32_t whole = whole_blocks(a, row).to;
    for (uint32_t b = blocks.from; b < blocks.to; b++) {
        char *own = s->gathered + b * 2 * s->v;
        see->blocks[b] = piece / 16 + b < whole ? block_at(a, piece + 16 * b) : own;
        if (see->blocks[b] == own)
            gather(a, row, piece + 16 * b, MIN(n - 16 * b, 16u), own);
    }
}

static void to_floats(const struct queries8 *s, uint32_t i, float unit, float *to, uint32_t n)
{
    for (uint32_t d = 0; d < n; d += 16)
        v_store_n(to + d, MIN(n - d, 16u),
                  v_mul(vi_float(vi_load(s->sums + i * s->dim + d)), v_set(unit)));
}

/* Scores and weights of row r at all blocks, and its sums at those that are not shared. */
static void row_piece8(const struct kernel_attn *a, const struct queries8 *s, uint32_t r,
                       uint32_t piece, struct range shared, struct sight8 *see, float *max,
                       float *sum, float *unit)
{
    const struct range row = in_piece(read_by(a, &a->sights[r]), piece);
    const struct range all = {row.from / 16, (row.to + 15) / 16};
    const struct range before = {all.from, MIN(shared.from, all.to)};
    const struct range behind = {MAX(all.from, shared.to), all.to};
    const uint32_t q = r * a->n_heads, n = a->n_heads;
    look8(a, s, &a->sights[r], piece, before, row.to, see);
    look8(a, s, &a->sights[r], piece, behind, row.to, see);
    scores8(s, q, n, see, before.from, before.to);
    scores8(s, q, n, see, behind.from, behind.to);
    hide(a, &a->sights[r], piece, row, s->all.weights + q * KERNEL_PIECE);
    weigh8(s, q, n, see, row, max, sum, unit);
    clear8(s, q, n, shared.from, MIN(all.from, shared.to));
    clear8(s, q, n, MAX(all.to, shared.from), shared.to);
    values8(s, q, n, see, before.from, before.to);
    values8(s, q, n, see, behind.from, behind.to);
}

/* shared: blocks of the piece that all rows share. */
static void attn_piece_int8(const struct kernel_attn *a, struct queries8 *s, uint32_t piece,
                            struct range shared)
{
    struct sight8 see;
    float max[KERNEL_ATTN_QUERIES] = {0}, sum[KERNEL_ATTN_QUERIES] = {0};
    float unit[KERNEL_ATTN_QUERIES];
    float *to[KERNEL_ATTN_QUERIES];
    aim(a, &s->all, piece, to);
    for (uint32_t b = shared.from; b < shared.to; b++)
        see.blocks[b] = block_at(a, piece + 16 * b);
    memset(s->sums, 0, s->all.n * s->dim * sizeof(*s->sums));
    scores8(s, 0, s->all.n, &see, shared.from, shared.to);
    for (uint32_t r = 0; r < a->n_rows; r++)
        row_piece8(a, s, r, piece, shared, &see, max, sum, unit);
    values8(s, 0, s->all.n, &see, shared.from, shared.to);
    for (uint32_t i = 0; i < s->all.n; i++)
        to_floats(s, i, unit[i], to[i], a->head_dim);
    join(a, &s->all, to, max, sum);
}

static void take_query(const struct kernel_attn *a, struct queries8 *s, const float *q)
{
    int8_t *to = s->q + s->all.n * s->dim;
    float inverse, d = row_scale(q, a->head_dim, &inverse);
    int sum = 0;
    for (uint32_t i = 0; i < a->head_dim; i += 16)
        sum += quantise(q + i, a->head_dim - i, inverse, to + i);
    s->by[s->all.n] = d * a->scale;
    s->minus[s->all.n] = -128 * sum;
}

/* At most KERNEL_ATTN_QUERIES rows times heads. */
static void attn_queries_int8(const struct kernel_attn *a)
{
    struct queries8 s = {.all.weights = a->scratch};
    const uint32_t head_dim = a->head_dim;
    const struct range blocks = shared_blocks(a);
    const struct range shared = {16 * blocks.from, 16 * blocks.to};
    struct range all = {UINT32_MAX, 0};
    s.dim = kernel_kv8_dim(head_dim);
    s.v = kernel_kv8_half(head_dim);
    float *pieces = s.all.weights + KERNEL_ATTN_QUERIES * KERNEL_PIECE;
    s.sums = (int32_t *)(pieces + KERNEL_ATTN_QUERIES * s.dim);
    s.gathered = (char *)(s.sums + KERNEL_ATTN_QUERIES * s.dim);
    s.q = (int8_t *)(s.gathered + PIECE_BLOCKS * 2 * s.v);
    for (uint32_t r = 0; r < a->n_rows; r++) {
        const struct range see = read_by(a, &a->sights[r]);
        all = (struct range){MIN(all.from, see.from), MAX(all.to, see.to)};
        for (uint32_t h = 0; h < a->n_heads; h++, s.all.n++) {
            s.all.out[s.all.n] = a->out + r * a->row_stride + h * head_dim;
            s.all.piece[s.all.n] = pieces + s.all.n * s.dim;
            take_query(a, &s, a->q + r * a->row_stride + h * head_dim);
        }
    }
    for (uint32_t from = all.from / KERNEL_PIECE * KERNEL_PIECE; from < all.to;
         from += KERNEL_PIECE) {
        const struct range here = in_piece(shared, from);
        attn_piece_int8(a, &s, from, (struct range){here.from / 16, here.to / 16});
    }
    divide(a, &s.all);
}
