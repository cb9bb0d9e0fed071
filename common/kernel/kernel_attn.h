/* kernel_attn.h - attention of rows of one sequence, with the vectors of a tier; part of
 * kernel_body.h. kernel_attn_int8.h has the attention over int8.
 *
 * A query is one head of one row. All queries are computed piece by piece together. The positions
 * of a piece are read in one of two ways:
 *   shared    Blocks of F16 that every row sees. Sixteen positions of K are transposed: a lane is a
 *             position, and no sum crosses lanes. V is widened once for all queries.
 *   of a row  Positions that only some rows see: the end of a chain, the path through a tree. Each
 *             row reads them itself, and a lane is a part of q.k.
 * Few queries, and queries over F32, read all positions in the second way: transposing K would
 * cost more than it saves. Both ways add in the same order, so they give the same bits. */
#pragma once

#define V_HEADS 4
#define V_EACH_HEADS(X) X(1) X(2) X(3) X(4)
#define V_WIDE 32 // positions of V that are widened together
/* The cost of transposing K grows with head_dim. It pays from head_dim / SHARED_DIM queries on
 * (measured). */
#define SHARED_DIM 8

/* Queries that are computed together, piece by piece: the heads of the first row, of the second,
 * ... */
struct queries {
    uint32_t n;
    const float *q[KERNEL_ATTN_QUERIES];
    float *out[KERNEL_ATTN_QUERIES], *piece[KERNEL_ATTN_QUERIES];
    float *weights; // (n, KERNEL_PIECE)
    float *tile;    // (V_WIDE, head_dim): transposed K, widened V
    float max[KERNEL_ATTN_QUERIES], sum[KERNEL_ATTN_QUERIES]; // of the pieces so far
};

/* Positions [from, to); in a piece, they count from its first one. */
struct range {
    uint32_t from, to;
};

/* The block with the 16 positions from p on. V begins v_behind() bytes after K. */
INLINE const char *block_at(const struct kernel_attn *a, uint32_t p)
{
    return a->kv + a->blocks[p / 16] * a->block;
}

INLINE size_t v_behind(const struct kernel_attn *a)
{
    return kernel_kv_row(a->type, a->head_dim) * KERNEL_KV_BLOCK;
}

/* What a row reads: the positions that it sees, and those before them in the same block. */
INLINE struct range read_by(const struct kernel_attn *a, const struct kernel_sight *s)
{
    const uint32_t n = s->n_base + s->n_tail;
    return (struct range){a->window && n > a->window ? (n - a->window) / 16 * 16 : 0, n};
}

/* The part of a range in the piece that begins at `piece`. {0, 0}: none. */
INLINE struct range in_piece(struct range all, uint32_t piece)
{
    const uint32_t from = all.from > piece ? all.from - piece : 0;
    const uint32_t to = all.to > piece ? MIN(all.to - piece, KERNEL_PIECE) : 0;
    return from < to ? (struct range){from, to} : (struct range){0, 0};
}

INLINE void fetch(const char *from, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 64)
        __builtin_prefetch(from + i, 0, 2);
}

/* Loads sixteen values of K or V of `size` bytes each; kv_load_n() loads n. */
INLINE vf kv_load(const int size, const char *p)
{
    return size == 2 ? v_half_load((const uint16_t *)p) : v_load((const float *)p);
}

INLINE vf kv_load_n(const int size, const char *p, uint32_t n)
{
    return size == 2 ? v_half_load_n((const uint16_t *)p, n) : v_load_n((const float *)p, n, 0);
}

/* ---- positions that a row reads itself ---- */
/* Writes the lane sums of q.k of n_heads heads at n_pos positions to acc[h * stride + p]. */
INLINE void scores_lanes(const struct kernel_attn *a, const int size, const float *const *q,
                         const size_t *at, vf *acc, int stride, const int n_heads, const int n_pos)
{
    vf sum[V_SUMS];
    const char *k[V_SUMS], *v[V_SUMS];
    uint32_t d = 0, n = a->head_dim;
    const size_t behind = v_behind(a);
    EACH (p, n_pos) {
        k[p] = a->kv + at[p];
        v[p] = k[p] + behind;
    }
    EACH (i, n_heads * n_pos)
        sum[i] = v_set(0);
    for (; d + 16 <= n; d += 16)
        EACH (p, n_pos) {
            vf kd = kv_load(size, k[p] + (size_t)d * size);
            __builtin_prefetch(v[p] + (size_t)d * size, 0, 2);
            EACH (h, n_heads)
                sum[h * n_pos + p] = v_fma(kd, v_load(q[h] + d), sum[h * n_pos + p]);
        }
    if (d < n)
        EACH (p, n_pos) {
            vf kd = kv_load_n(size, k[p] + (size_t)d * size, n - d);
            EACH (h, n_heads)
                sum[h * n_pos + p] = v_fma(kd, v_load_n(q[h] + d, n - d, 0), sum[h * n_pos + p]);
        }
    EACH (p, n_pos)
        EACH (h, n_heads)
            acc[h * stride + p] = sum[h * n_pos + p];
}

/* Scores at n positions, 16 scores at a time. The scores of two heads are KERNEL_PIECE apart. */
INLINE void scores_heads(const struct kernel_attn *a, const int size, const float *const *q,
                         const size_t *at, uint32_t n, float *to, const int n_heads)
{
    const int n_pos = 16 / n_heads, together = V_SUMS / n_heads;
    const vf scale = v_set(a->scale);
    for (uint32_t p = 0; p < n; p += (uint32_t)n_pos) {
        vf acc[16];
        float s[16];
        int n_here = MIN((int)(n - p), n_pos), i = 0;
        for (; i + together <= n_here; i += together)
            scores_lanes(a, size, q, at + p + i, acc + i, n_pos, n_heads, together);
        for (; i < n_here; i++)
            scores_lanes(a, size, q, at + p + i, acc + i, n_pos, n_heads, 1);
        for (; i < n_pos; i++)
            EACH (h, n_heads)
                acc[h * n_pos + i] = v_set(0);
        for (i = n_heads * n_pos; i < 16; i++)
            acc[i] = v_set(0);
        v_store(s, v_mul(v_sums(acc), scale));
        EACH (h, n_heads)
            memcpy(to + h * KERNEL_PIECE + p, s + h * n_pos, (size_t)n_here * sizeof(float));
    }
}

INLINE void row_scores_of(const struct kernel_attn *a, const int size, const float *const *q,
                          const size_t *at, uint32_t n, float *to)
{
    for (uint32_t h = 0, left; (left = a->n_heads - h); h += MIN(left, V_HEADS))
        switch (MIN(left, V_HEADS)) {
#define HEADS(n_heads)                                                                             \
    case n_heads:                                                                                  \
        scores_heads(a, size, q + h, at, n, to + h * KERNEL_PIECE, n_heads);                       \
        break;
            V_EACH_HEADS(HEADS)
#undef HEADS
        }
}

static void row_scores(const struct kernel_attn *a, const float *const *q, const size_t *at,
                       uint32_t n, float *to)
{
    if (a->type == KERNEL_KV_F32)
        row_scores_of(a, 4, q, at, n, to);
    else
        row_scores_of(a, 2, q, at, n, to);
}

/* Sums V over positions, weighted, in n_parts vectors from d on. more: adds to the values in `to`;
 * else it replaces them. n < 16: one part with n values. at: offsets of the positions; NULL: V is
 * in `wide`, as floats. */
INLINE void values_parts(const struct kernel_attn *a, const int size, const float *wide,
                         const size_t *at, const float *weights, uint32_t n_pos, float *const *to,
                         bool more, uint32_t d, uint32_t n, const int n_heads, const int n_parts)
{
    const size_t behind = v_behind(a);
    vf acc[V_HEADS][V_PARTS];
    EACH (h, n_heads)
        EACH (i, n_parts)
            acc[h][i] = more ? v_load_n(to[h] + d + 16 * i, MIN(n, 16u), 0) : v_set(0);
    for (uint32_t p = 0; p < n_pos; p++) {
        vf row[V_PARTS];
        if (at) {
            const char *next = a->kv + at[KERNEL_PIECE + p] + (size_t)d * size;
            __builtin_prefetch(next, 0, 2);
            __builtin_prefetch(next + (size_t)size * (16 * n_parts - 1), 0, 2);
        }
        EACH (i, n_parts) {
            const char *v = at ? a->kv + behind + at[p] + (size_t)d * size : NULL;
            row[i] = !at      ? v_load(wide + d + 16 * i)
                     : n < 16 ? kv_load_n(size, v, n)
                              : kv_load(size, v + (size_t)size * 16 * i);
        }
        wide += at ? 0 : a->head_dim;
        EACH (h, n_heads) {
            vf w = v_set(weights[h * KERNEL_PIECE + p]);
            EACH (i, n_parts)
                acc[h][i] = v_fma(w, row[i], acc[h][i]);
        }
    }
    EACH (h, n_heads)
        EACH (i, n_parts)
            v_store_n(to[h] + d + 16 * i, MIN(n, 16u), acc[h][i]);
}

INLINE void values_heads(const struct kernel_attn *a, const int size, const float *wide,
                         const size_t *at, const float *weights, uint32_t n_pos, float *const *to,
                         bool more, const int n_heads)
{
    uint32_t d = 0, n = a->head_dim;
    for (; d + 16 * V_PARTS <= n; d += 16 * V_PARTS)
        values_parts(a, size, wide, at, weights, n_pos, to, more, d, 16, n_heads, V_PARTS);
    for (; d + 16 <= n; d += 16)
        values_parts(a, size, wide, at, weights, n_pos, to, more, d, 16, n_heads, 1);
    if (d < n && at)
        values_parts(a, size, NULL, at, weights, n_pos, to, more, d, n - d, n_heads, 1);
}

/* The sums over V of n_heads queries, V_HEADS at a time. */
INLINE void values(const struct kernel_attn *a, const int size, const float *wide, const size_t *at,
                   const float *weights, uint32_t n_pos, float *const *to, bool more,
                   uint32_t n_heads)
{
    for (uint32_t h = 0, left; (left = n_heads - h); h += MIN(left, V_HEADS))
        switch (MIN(left, V_HEADS)) {
#define HEADS(n)                                                                                   \
    case n:                                                                                        \
        values_heads(a, size, wide, at, weights + h * KERNEL_PIECE, n_pos, to + h, more, n);       \
        break;
            V_EACH_HEADS(HEADS)
#undef HEADS
        }
}

static void row_values(const struct kernel_attn *a, const size_t *at, const float *weights,
                       uint32_t n, float *const *to, bool more)
{
    if (a->type == KERNEL_KV_F32)
        values(a, 4, NULL, at, weights, n, to, more, a->n_heads);
    else
        values(a, 2, NULL, at, weights, n, to, more, a->n_heads);
}

/* ---- shared positions ---- */
/* q.k of n queries at the positions of n_tiles transposed tiles. It computes the chains of two
 * lanes at a time, and then the tree of sums. */
INLINE void scores_turned(const struct kernel_attn *a, const float *k, const float *const *q,
                          float *to, const int n, const int n_tiles)
{
    const size_t dim = a->head_dim;
    const vf scale = v_set(a->scale);
    vf sums[8][V_TURNED][V_TILES];
    for (size_t l = 0; l < 8; l++) {
        vf low[V_TURNED][V_TILES], high[V_TURNED][V_TILES];
        EACH (h, n)
            EACH (t, n_tiles)
                low[h][t] = high[h][t] = v_set(0);
        for (size_t d = l; d < dim; d += 16) {
            vf k0[V_TILES], k8[V_TILES];
            EACH (t, n_tiles) {
                k0[t] = v_load(k + 16 * ((size_t)t * dim + d));
                k8[t] = v_load(k + 16 * ((size_t)t * dim + d + 8));
            }
            EACH (h, n) {
                vf q0 = v_set(q[h][d]), q8 = v_set(q[h][d + 8]);
                EACH (t, n_tiles) {
                    low[h][t] = v_fma(k0[t], q0, low[h][t]);
                    high[h][t] = v_fma(k8[t], q8, high[h][t]);
                }
            }
        }
        EACH (h, n)
            EACH (t, n_tiles)
                sums[l][h][t] = v_add(low[h][t], high[h][t]);
    }
    EACH (h, n)
        EACH (t, n_tiles) {
            vf s[4];
            EACH (l, 4)
                s[l] = v_add(sums[l][h][t], sums[l + 4][h][t]);
            vf sum = v_add(v_add(s[0], s[2]), v_add(s[1], s[3]));
            v_store(to + h * KERNEL_PIECE + 16 * t, v_mul(sum, scale));
        }
}

/* Scores of all queries at n_tiles blocks from p on, in the piece that begins at `from`. */
INLINE void shared_tiles(const struct kernel_attn *a, const struct queries *s, uint32_t from,
                         uint32_t p, const int n_tiles)
{
    const uint32_t dim = a->head_dim;
    uint32_t h = 0;
    EACH (t, n_tiles) {
        const char *k = block_at(a, from + p + 16 * t);
        for (uint32_t d = 0; d < dim; d += 16)
            v_half_turn((const uint16_t *)k + d, dim, s->tile + 16 * (t * dim + d));
        fetch(k + v_behind(a), v_behind(a));
    }
    for (; h + V_TURNED <= s->n; h += V_TURNED)
        scores_turned(a, s->tile, s->q + h, s->weights + h * KERNEL_PIECE + p, V_TURNED, n_tiles);
    for (; h < s->n; h++)
        scores_turned(a, s->tile, s->q + h, s->weights + h * KERNEL_PIECE + p, 1, n_tiles);
}

/* Scores of all queries at these positions of a piece; whole blocks. */
static void shared_scores(const struct kernel_attn *a, const struct queries *s, uint32_t piece,
                          struct range see)
{
    uint32_t p = see.from;
    for (; p + 16 * V_TILES <= see.to; p += 16 * V_TILES) {
        for (uint32_t next = p + 16 * V_TILES; next < MIN(see.to, p + 32 * V_TILES); next += 16)
            fetch(block_at(a, piece + next), v_behind(a));
        shared_tiles(a, s, piece, p, V_TILES);
    }
    for (; p < see.to; p += 16)
        shared_tiles(a, s, piece, p, 1);
}

/* more: adds to the values in `to`. */
static void shared_values(const struct kernel_attn *a, const struct queries *s, uint32_t piece,
                          struct range see, float *const *to, bool more)
{
    const uint32_t block = 16 * a->head_dim;
    for (uint32_t p = see.from; p < see.to; p += V_WIDE) {
        uint32_t n_here = MIN(see.to - p, V_WIDE);
        for (uint32_t i = 0; i < n_here; i += 16) {
            const uint16_t *v = (const uint16_t *)(block_at(a, piece + p + i) + v_behind(a));
            float *wide = s->tile + i * a->head_dim;
            for (uint32_t d = 0; d < block; d += 64)
                EACH (part, 4)
                    v_store(wide + d + 16 * part, v_half_load(v + d + 16 * part));
        }
        values(a, 2, s->tile, NULL, s->weights + p, n_here, to, more || p > see.from, s->n);
    }
}

/* ---- pieces ---- */
/* s[i] = exp(s[i] - max) for n_heads queries; lane i % 16 adds it up. s is filled up with zeros to
 * the next multiple of sixteen. */
INLINE void soften_heads(float *s, uint32_t n, float *ret_max, float *ret_sum, const int n_heads)
{
    vf max[V_HEADS], sum[V_HEADS];
    EACH (h, n_heads) {
        max[h] = v_set(-INFINITY);
        sum[h] = v_set(0);
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
    for (uint32_t i = 0; i < n; i += 16)
        EACH (h, n_heads) {
            float *at = s + h * KERNEL_PIECE + i;
            vf e = v_exp(v_sub(v_load(at), max[h]));
            v_store(at, e);
            sum[h] = v_add(sum[h], e);
        }
    EACH (h, n_heads)
        ret_sum[h] = v_sum(sum[h]);
}

static void soften(const struct kernel_attn *a, float *s, uint32_t n, float *ret_max,
                   float *ret_sum)
{
    for (uint32_t h = 0, left; (left = a->n_heads - h); h += MIN(left, V_HEADS))
        switch (MIN(left, V_HEADS)) {
#define HEADS(n_heads)                                                                             \
    case n_heads:                                                                                  \
        soften_heads(s + h * KERNEL_PIECE, n, ret_max + h, ret_sum + h, n_heads);                  \
        break;
            V_EACH_HEADS(HEADS)
#undef HEADS
        }
}

static void scale_add(float *to, float keep, const float *from, float take, uint32_t n)
{
    for (uint32_t i = 0, part; i < n; i += part) {
        part = MIN(n - i, 16u);
        vf kept = v_mul(v_load_n(to + i, part, 0), v_set(keep));
        v_store_n(to + i, part, v_add(kept, v_mul(v_load_n(from + i, part, 0), v_set(take))));
    }
}

static void scale(float *to, float by, uint32_t n)
{
    for (uint32_t i = 0, part; i < n; i += part) {
        part = MIN(n - i, 16u);
        v_store_n(to + i, part, v_mul(v_load_n(to + i, part, 0), v_set(by)));
    }
}

/* Where each query's sums of a piece go: out if it is the first piece that the row reads. */
static void aim(const struct kernel_attn *a, const struct queries *s, uint32_t piece, float **ret)
{
    for (uint32_t r = 0, q = 0; r < a->n_rows; r++) {
        bool is_first = read_by(a, &a->sights[r]).from / KERNEL_PIECE == piece / KERNEL_PIECE;
        for (uint32_t h = 0; h < a->n_heads; h++, q++)
            ret[q] = is_first ? s->out[q] : s->piece[q];
    }
}

/* Joins a piece with the earlier ones. A query that sees no position of the piece has the sum 0. */
static void join(const struct kernel_attn *a, struct queries *s, float *const *to, const float *max,
                 const float *sum)
{
    float keep[KERNEL_ATTN_QUERIES], take[KERNEL_ATTN_QUERIES];
    for (uint32_t i = 0; i < s->n; i += 16) {
        vf old = v_load(s->max + i), new = v_load(max + i), top = v_max(old, new);
        vf k = v_exp(v_sub(old, top)), t = v_exp(v_sub(new, top));
        v_store(keep + i, k);
        v_store(take + i, t);
        v_store(s->max + i, top);
        v_store(s->sum + i, v_add(v_mul(v_load(s->sum + i), k), v_mul(v_load(sum + i), t)));
    }
    for (uint32_t i = 0; i < s->n; i++)
        if (to[i] == s->out[i]) {
            s->max[i] = max[i];
            s->sum[i] = sum[i];
        } else if (sum[i] != 0) {
            scale_add(s->out[i], keep[i], s->piece[i], take[i], a->head_dim);
        }
}

/* Divides by the sums of the weights. That of a sink is exp(sink - max). */
static void divide(const struct kernel_attn *a, const struct queries *s)
{
    float by[KERNEL_ATTN_QUERIES], sinks[KERNEL_ATTN_QUERIES] = {0};
    for (uint32_t i = 0; i < s->n && a->sinks; i++)
        sinks[i] = a->sinks[i % a->n_heads];
    for (uint32_t i = 0; i < s->n; i += 16) {
        vf sum = v_load(s->sum + i), one = v_set(1);
        if (a->sinks) {
            vf max = v_load(s->max + i), sink = v_load(sinks + i), top = v_max(max, sink);
            one = v_exp(v_sub(max, top));
            sum = v_add(v_mul(sum, one), v_exp(v_sub(sink, top)));
        }
        v_store(by + i, v_div(one, sum));
    }
    for (uint32_t i = 0; i < s->n; i++)
        scale(s->out[i], by[i], a->head_dim);
}

/* Sets the scores of positions that a row reads and does not see to -inf: those before its first
 * one in the same block. */
static void hide(const struct kernel_attn *a, const struct kernel_sight *s, uint32_t piece,
                 struct range see, float *scores)
{
    const uint32_t n = s->n_base + s->n_tail;
    if (see.from >= see.to || !a->window || n <= a->window || n - a->window <= piece + see.from)
        return;
    const uint32_t n_hidden = n - a->window - piece - see.from; // below 16
    for (uint32_t h = 0; h < a->n_heads; h++)
        for (uint32_t i = 0; i < n_hidden; i++)
            scores[h * KERNEL_PIECE + see.from + i] = -INFINITY;
}

/* Offsets of positions [i, n) from the piece's first one on. */
static void look_at(const struct kernel_attn *a, const struct kernel_sight *s, uint32_t piece,
                    uint32_t i, uint32_t n, size_t *at)
{
    const size_t row = kernel_kv_row(a->type, a->head_dim);
    for (; i < n && piece + i < s->n_base; i++)
        at[i] = a->blocks[(piece + i) / 16] * a->block + (piece + i) % 16 * row;
    for (; i < n; i++) {
        uint32_t slot = s->tail[piece + i - s->n_base];
        at[i] = slot / 16 * a->block + slot % 16 * row;
    }
}

/* Offsets of the positions of this piece that the row reads itself, and of the next piece. Where a
 * row sees no position, the offset is any valid one: only a prefetch uses it. */
static void look(const struct kernel_attn *a, const struct kernel_sight *s, uint32_t piece,
                 struct range see, struct range shared, size_t *at)
{
    const uint32_t n = MIN(s->n_base + s->n_tail - piece, 2 * KERNEL_PIECE);
    look_at(a, s, piece, see.from, MIN(shared.from, n), at);
    look_at(a, s, piece, MAX(see.from, shared.to), n, at);
    for (uint32_t i = n; i < MIN(n, KERNEL_PIECE) + KERNEL_PIECE; i++)
        at[i] = 0;
}

/* The scores of a row at the positions before the shared ones and after them, then the weights at
 * all positions. If nothing is shared, it adds up V, too. */
static void row_piece(const struct kernel_attn *a, const struct queries *s, uint32_t r,
                      uint32_t piece, struct range shared, float *const *to, float *max, float *sum)
{
    size_t at[2 * KERNEL_PIECE];
    const struct range see = in_piece(read_by(a, &a->sights[r]), piece);
    const uint32_t q = r * a->n_heads, behind = MAX(see.from, shared.to);
    float *weights = s->weights + q * KERNEL_PIECE;
    if (see.from < shared.from || behind < see.to)
        look(a, &a->sights[r], piece, see, shared, at);
    if (see.from < shared.from)
        row_scores(a, s->q + q, at + see.from, shared.from - see.from, weights + see.from);
    if (behind < see.to)
        row_scores(a, s->q + q, at + behind, see.to - behind, weights + behind);
    hide(a, &a->sights[r], piece, see, weights);
    soften(a, weights + see.from, see.to - see.from, max + q, sum + q);
    if (see.from < see.to && shared.to == 0)
        row_values(a, at + see.from, weights + see.from, see.to - see.from, to + q, false);
}

/* Adds up V at the positions before the shared ones, or after them, of each row. */
static void row_sums(const struct kernel_attn *a, const struct queries *s, uint32_t piece,
                     struct range shared, bool before, float *const *to)
{
    size_t at[2 * KERNEL_PIECE];
    for (uint32_t r = 0, q = 0; r < a->n_rows; r++, q += a->n_heads) {
        struct range see = in_piece(read_by(a, &a->sights[r]), piece);
        const struct range part =
            before ? (struct range){see.from, shared.from} : (struct range){shared.to, see.to};
        for (uint32_t h = 0; h < a->n_heads && before; h++)
            memset(to[q + h], 0, a->head_dim * sizeof(float));
        if (part.from >= part.to)
            continue;
        look(a, &a->sights[r], piece, see, shared, at);
        row_values(a, at + part.from, s->weights + q * KERNEL_PIECE + part.from,
                   part.to - part.from, to + q, true);
    }
}

/* all: positions that any row reads; shared: those of the piece that every row does. */
static void attn_piece(const struct kernel_attn *a, struct queries *s, uint32_t piece,
                       struct range all, struct range shared)
{
    const bool has_before = in_piece(all, piece).from < shared.from;
    float max[KERNEL_ATTN_QUERIES] = {0}, sum[KERNEL_ATTN_QUERIES] = {0};
    float *to[KERNEL_ATTN_QUERIES];
    aim(a, s, piece, to);
    shared_scores(a, s, piece, shared);
    for (uint32_t r = 0; r < a->n_rows; r++)
        row_piece(a, s, r, piece, shared, to, max, sum);
    if (shared.to) {
        if (has_before)
            row_sums(a, s, piece, shared, true, to);
        shared_values(a, s, piece, shared, to, has_before);
        row_sums(a, s, piece, shared, false, to);
    }
    join(a, s, to, max, sum);
}

/* At most KERNEL_ATTN_QUERIES rows times heads. */
static void attn_queries(const struct kernel_attn *a)
{
    struct queries s = {.weights = a->scratch};
    float *pieces = s.weights + KERNEL_ATTN_QUERIES * KERNEL_PIECE;
    const uint32_t dim = a->head_dim;
    struct range all = {UINT32_MAX, 0}, shared = {0, UINT32_MAX};
    s.tile = pieces + KERNEL_ATTN_QUERIES * dim;
    for (uint32_t r = 0; r < a->n_rows; r++) {
        const struct range see = read_by(a, &a->sights[r]);
        all = (struct range){MIN(all.from, see.from), MAX(all.to, see.to)};
        shared = (struct range){MAX(shared.from, see.from),
                                MIN(shared.to, a->sights[r].n_base / 16 * 16)};
        for (uint32_t h = 0; h < a->n_heads; h++, s.n++) {
            s.q[s.n] = a->q + r * a->row_stride + h * dim;
            s.out[s.n] = a->out + r * a->row_stride + h * dim;
            s.piece[s.n] = pieces + s.n * dim;
        }
    }
    if (s.n < dim / SHARED_DIM || dim % 16 || a->type == KERNEL_KV_F32)
        shared.to = 0;
    for (uint32_t from = all.from / KERNEL_PIECE * KERNEL_PIECE; from < all.to;
         from += KERNEL_PIECE)
        attn_piece(a, &s, from, all, in_piece(shared, from));
    divide(a, &s);
}

#include "kernel/kernel_attn_int8.h"

static void attn(const struct kernel_attn *a)
{
    uint32_t n_heads = MIN(a->n_heads, KERNEL_ATTN_QUERIES);
    uint32_t n_rows = KERNEL_ATTN_QUERIES / n_heads;
    for (uint32_t r = 0; r < a->n_rows; r += n_rows)
        for (uint32_t h = 0; h < a->n_heads; h += n_heads) {
            struct kernel_attn part = *a;
            part.q += r * a->row_stride + h * a->head_dim;
            part.out += r * a->row_stride + h * a->head_dim;
            part.sights += r;
            part.sinks += a->sinks ? h : 0;
            part.n_rows = MIN(n_rows, a->n_rows - r);
            part.n_heads = MIN(n_heads, a->n_heads - h);
            if (a->type == KERNEL_KV_INT8)
                attn_queries_int8(&part);
            else
                attn_queries(&part);
        }
}
