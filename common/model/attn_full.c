/* attn_full.c - attention over every position before a row, or over a window of them: groups of
 * query heads, each group with one key/value head.
 *
 * Queries are split among threads by their cost: rows of a sequence under a key/value head, or the
 * heads of a row that is alone.
 *
 * Kernels have one size for the heads of K and V: kv_bytes_new() refuses a model with two. */
#include <math.h>
#include <string.h>
#include "model/forward_impl.h"
#include "model/rope.h"

struct buffers {
    float *q;      // (max_rows, n_heads, k_dim)
    float *k, *v;  // (max_rows, n_kv_heads, k_dim), (..., v_dim)
    float *values; // (max_rows, n_heads, v_dim): what the heads read
    float *gated;  // (max_rows, n_heads, 2, k_dim): queries and gates; q if there are no gates
};

/* What the steps of one layer need. */
struct attn {
    struct forward *f;
    const struct forward_part *t;
    const struct model_attn *w;
    uint32_t layer, group; // group: query heads of a key/value head
    struct buffers b;
};

static struct buffers place_buffers(const struct model_attn *w, uint32_t max_rows,
                                    struct forward_space *to)
{
    struct buffers b;
    b.q = forward_place_rows(to, max_rows, w->n_heads * w->k_dim);
    b.k = forward_place_rows(to, max_rows, w->n_kv_heads * w->k_dim);
    b.v = forward_place_rows(to, max_rows, w->n_kv_heads * w->v_dim);
    b.values = forward_place_rows(to, max_rows, w->n_heads * w->v_dim);
    b.gated = w->has_gate ? forward_place_rows(to, max_rows, w->n_heads * 2 * w->k_dim) : b.q;
    return b;
}

static size_t attn_bytes(const struct forward *f, const struct model_layer *l)
{
    struct forward_space space = {0};
    place_buffers(&l->attn, f->opt.max_rows, &space);
    return space.bytes;
}

static void attn_plan(struct forward *f, const struct model_layer *l)
{
    forward_need_matrix(f, &l->attn.q);
    forward_need_matrix(f, &l->attn.k);
    forward_need_matrix(f, &l->attn.v);
    forward_need_matrix(f, &l->attn.o);
    forward_need_scratch(f, KERNEL_ATTN_SCRATCH(l->attn.k_dim));
}

/* ---- queries, keys and values ---- */

/* Bias, norm and rotation of one head of Q or K. */
static void finish_head(const struct attn *a, float *x, const float *bias, const float *norm,
                        uint32_t row)
{
    const struct model_params *p = &a->f->m->params;
    const struct kernel *kernel = a->f->m->kernel;
    if (bias)
        kernel->add(x, bias, a->w->k_dim);
    if (norm)
        kernel->rmsnorm(x, norm, a->w->k_dim, p->norm_eps, x);
    rope_rotate(p, a->f->angles + (size_t)row * p->rope_dim, x);
}

/* Of one row and key/value head: the query heads of its group, and K and V into the cache. */
static void finish_group(const struct attn *a, uint32_t row, uint32_t head)
{
    const struct model_attn *w = a->w;
    const struct kernel *kernel = a->f->m->kernel;
    size_t k_dim = w->k_dim, v_dim = w->v_dim, at = (size_t)row * w->n_kv_heads + head;
    float *k = a->b.k + at * k_dim, *v = a->b.v + at * v_dim;
    for (uint32_t h = head * a->group; h < (head + 1) * a->group; h++) {
        const size_t q_head = (size_t)row * w->n_heads + h;
        if (w->has_gate)
            memcpy(a->b.q + q_head * k_dim, a->b.gated + 2 * q_head * k_dim, k_dim * sizeof(float));
        finish_head(a, a->b.q + q_head * k_dim, w->q_bias ? w->q_bias + h * k_dim : NULL, w->q_norm,
                    row);
    }
    finish_head(a, k, w->k_bias ? w->k_bias + head * k_dim : NULL, w->k_norm, row);
    if (w->v_bias)
        kernel->add(v, w->v_bias + head * v_dim, w->v_dim);
    uint32_t slot = pass_plan_slot(a->f->plan, row);
    kernel->kv_put(kv_bytes_shape(a->f->kv)->type, k, v, w->k_dim, slot % KV_BLOCK,
                   kv_bytes_at(a->f->kv, a->layer, slot / KV_BLOCK, head));
}

/* The thread's part of (rows, key/value heads). */
static void finish_heads(const struct attn *a)
{
    uint32_t n_kv_heads = a->w->n_kv_heads, from, to;
    pool_slice(a->t->i, a->t->n, a->f->n_rows * n_kv_heads, 1, &from, &to);
    for (uint32_t item = from; item < to; item++)
        finish_group(a, item / n_kv_heads, item % n_kv_heads);
}

/* ---- attention ---- */

/* Rows of one sequence, query heads of one key/value head. */
struct queries {
    uint32_t row, n_rows, head, n_heads;
};

static void attend(const struct attn *a, const struct queries *q)
{
    const struct model_attn *w = a->w;
    struct forward *f = a->f;
    size_t at = (size_t)q->row * w->n_heads + q->head;
    f->m->kernel->attn(&(struct kernel_attn){
        .q = a->b.q + at * w->k_dim,
        .out = a->b.values + at * w->v_dim,
        .row_stride = (size_t)w->n_heads * w->k_dim, // v_dim is the same: kv_bytes_new()
        .sights = f->sights + q->row,
        .n_rows = q->n_rows,
        .n_heads = q->n_heads,
        .head_dim = w->k_dim,
        .window = w->window,
        .scale = 1 / sqrtf((float)w->k_dim),
        .sinks = w->sinks ? w->sinks + q->head : NULL,
        .blocks = pass_plan_blocks(f->plan, q->row),
        .type = kv_bytes_shape(f->kv)->type,
        .kv = kv_bytes_at(f->kv, a->layer, 0, q->head / a->group),
        .block = kv_bytes_stride(f->kv, a->layer),
        .scratch = a->t->scratch,
    });
}

/* What the queries have read, times the sigmoid of their gates. */
static void apply_gates(const struct attn *a, const struct queries *q)
{
    const struct model_attn *w = a->w;
    for (uint32_t row = q->row; row < q->row + q->n_rows; row++)
        for (uint32_t h = q->head; h < q->head + q->n_heads; h++) {
            const size_t at = (size_t)row * w->n_heads + h;
            a->f->m->kernel->mul_sigmoid(a->b.gated + (2 * at + 1) * w->k_dim, w->v_dim,
                                         a->b.values + at * w->v_dim);
        }
}

/* (n_rows + 1): what the rows before cost in this layer. */
static const uint64_t *costs(const struct attn *a)
{
    return a->w->window ? a->f->window_cost : a->f->cost;
}

/* The thread's part of the queries: rows, or heads if there is one row. A query belongs to the
 * thread in whose range of costs its middle lies. All queries before these cost `before`. */
static struct queries own_queries(const struct attn *a, const struct queries *all, uint64_t before)
{
    bool rows = all->n_rows > 1;
    const uint64_t *cost_to = costs(a);
    uint64_t total = cost_to[a->f->n_rows] * a->w->n_heads;
    uint32_t n_items = rows ? all->n_rows : all->n_heads, first = 0, last = 0;
    for (uint32_t k = 0; k < n_items; k++) {
        uint32_t row = all->row + (rows ? k : 0);
        uint64_t cost = (cost_to[row + 1] - cost_to[row]) * (rows ? all->n_heads : 1);
        uint64_t owner = (before + cost / 2) * a->t->n / total;
        first += owner < a->t->i;
        last += owner <= a->t->i;
        before += cost;
    }
    if (rows)
        return (struct queries){all->row + first, last - first, all->head, all->n_heads};
    return (struct queries){all->row, 1, all->head + first, last - first};
}

static uint32_t end_of_sequence(const struct pass_plan *p, uint32_t row)
{
    uint32_t seq = p->rows[row].seq;
    while (row < p->n_rows && p->rows[row].seq == seq)
        row++;
    return row;
}

/* Runs the thread's queries. Every thread has about the same cost. */
static void attend_part(const struct attn *a)
{
    const struct forward *f = a->f;
    const uint64_t *cost_to = costs(a);
    uint32_t n_heads = a->w->n_heads;
    for (uint32_t row = 0, end; row < f->n_rows; row = end) {
        end = end_of_sequence(f->plan, row);
        uint64_t before = cost_to[row] * n_heads, cost = cost_to[end] - cost_to[row];
        for (uint32_t head = 0; head < n_heads; head += a->group) {
            struct queries q = {row, end - row, head, a->group};
            q = own_queries(a, &q, before + cost * head);
            if (!q.n_rows || !q.n_heads)
                continue;
            attend(a, &q);
            if (a->w->has_gate)
                apply_gates(a, &q);
        }
    }
}

static void attn_run(struct forward *f, const struct forward_part *t, uint32_t layer)
{
    const struct model_attn *w = &f->m->layers[layer].attn;
    const struct kernel_mat *qkv[] = {&w->q, &w->k, &w->v};
    struct forward_space space = {.work = f->attn_work};
    const struct attn a = {
        f, t, w, layer, w->n_heads / w->n_kv_heads, place_buffers(w, f->opt.max_rows, &space)};

    forward_norm_rows(f, t, w->norm, qkv, 3);
    forward_wait_rows(f);
    forward_apply_all(f, t, qkv, (float *[]){a.b.gated, a.b.k, a.b.v}, 3);
    forward_wait(f);
    finish_heads(&a);
    forward_wait(f);
    attend_part(&a);
    forward_wait(f);
    forward_prepare_rows(f, t, &w->o, a.b.values);
    forward_wait_rows(f);
    forward_apply_and_add(f, t, &w->o, w->o_bias);
    forward_wait(f);
}

const struct sublayer_ops attn_full = {attn_plan, attn_bytes, attn_run};
