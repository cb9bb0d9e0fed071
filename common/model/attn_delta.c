/* attn_delta.c - a gated delta net: a recurrent layer in place of attention.
 *
 * Queries, keys and values go through a short convolution. Each value head then updates its state
 * row by row (struct kernel_delta). Rows run one after another, in prompts too, so the bits do not
 * depend on the chunks of a prompt.
 *
 * A pass cannot know which draft rows will be accepted. The state therefore stays at the position
 * before them, and their inputs are logged. Draft rows change a copy of a head, which stays in a
 * cache. The next pass first replays those that were accepted. So a rejected draft costs nothing
 * later, and no whole state is copied.
 *
 * Value heads of all sequences are split among the threads. */
#include <math.h>
#include <string.h>
#include "base/exact_math.h"
#include "base/minmax.h"
#include "model/forward_impl.h"

struct buffers {
    float *qkv;          // (max_rows, channels): inputs of the convolution
    float *z;            // (max_rows, n_v_heads, dim)
    float *beta, *alpha; // (max_rows, n_v_heads); or beta: (max_rows, 2 * n_v_heads), both
    float *mixed;        // (max_rows, channels): after the convolution
    float *gates;        // (max_rows, n_v_heads, 2): decay and beta
    float *values;       // (max_rows, n_v_heads, dim): out
};

/* What the steps of one layer need. */
struct delta {
    struct forward *f;
    const struct forward_part *t;
    const struct model_delta *w;
    uint32_t layer;
    struct buffers b;
};

/* ---- buffers ---- */

/* Beta and alpha come from one matrix. */
static bool has_both(const struct model_delta *w)
{
    return w->beta_alpha.n_out > 0;
}

static struct buffers place_buffers(const struct model_delta *w, uint32_t max_rows,
                                    struct forward_space *to)
{
    const uint32_t channels = model_delta_channels(w), n_values = w->n_v_heads * w->dim;
    struct buffers b;
    b.qkv = forward_place_rows(to, max_rows, channels);
    b.z = forward_place_rows(to, max_rows, n_values);
    b.beta = forward_place_rows(to, max_rows, w->n_v_heads * (has_both(w) ? 2 : 1));
    b.alpha = has_both(w) ? NULL : forward_place_rows(to, max_rows, w->n_v_heads);
    b.mixed = forward_place_rows(to, max_rows, channels);
    b.gates = forward_place_rows(to, max_rows, 2 * w->n_v_heads);
    b.values = forward_place_rows(to, max_rows, n_values);
    return b;
}

static size_t delta_bytes(const struct forward *f, const struct model_layer *l)
{
    struct forward_space space = {0};
    place_buffers(&l->attn.delta, f->opt.max_rows, &space);
    return space.bytes;
}

/* Floats of a head's state. */
static size_t state_floats(const struct model_delta *w)
{
    return (size_t)w->dim * w->dim;
}

static void delta_plan(struct forward *f, const struct model_layer *l)
{
    const struct model_delta *w = &l->attn.delta;
    forward_need_matrix(f, &w->qkv);
    forward_need_matrix(f, &w->gate);
    forward_need_matrix(f, has_both(w) ? &w->beta_alpha : &w->beta);
    if (!has_both(w))
        forward_need_matrix(f, &w->alpha);
    forward_need_matrix(f, &l->attn.o);
    forward_need_scratch(f, max_size(state_floats(w), KV_MAX_AFTER * (2 * (size_t)w->dim + 2)));
}

/* ---- convolution and gates ---- */

/* Inputs of the convolution at a position, which may lie before the pass. */
static const float *input_at(const struct delta *d, const struct pass_seq *s, uint32_t position)
{
    const uint32_t first = d->f->plan->rows[s->first_row].index;
    if ((int32_t)(position - first) >= 0)
        return d->b.qkv + (size_t)(s->first_row + position - first) * model_delta_channels(d->w);
    return kv_bytes_logged_at(d->f->kv, d->layer, s->state, position + KV_LOG);
}

/* `dim` channels of a position, from `channel` on: of a query, a key or a value head. */
static void mix_head(const struct delta *d, const struct pass_seq *s, uint32_t position,
                     uint32_t channel, float *to)
{
    const struct model_delta *w = d->w;
    const struct kernel *kernel = d->f->m->kernel;
    const float *x[KV_MAX_TAPS];
    for (uint32_t j = 0; j < w->n_taps; j++)
        x[j] = input_at(d, s, position - (w->n_taps - 1) + j) + channel;
    kernel->conv_silu(x, w->conv + channel, model_delta_channels(w), w->n_taps, w->dim, to);
    if (channel < 2 * w->n_k_heads * w->dim)
        kernel->l2norm(to, w->dim, d->f->m->params.norm_eps, to);
}

/* 1 / (1 + exp(-x)). A NaN stays a NaN. */
static double sigmoid(double x)
{
    if (x != x)
        return x;
    const double e = exact_math_exp(x < 0 ? x : -x);
    return (x < 0 ? e : 1) / (1 + e);
}

/* log(1 + exp(x)). A NaN stays a NaN. */
static double softplus(double x)
{
    if (x != x)
        return x;
    return (x > 0 ? x : 0) + exact_math_log(1 + exact_math_exp(x < 0 ? x : -x));
}

/* Beta and alpha of a row's head. */
static void read_gates(const struct delta *d, uint32_t row, uint32_t head, double *ret_beta,
                       double *ret_alpha)
{
    const uint32_t n = d->w->n_v_heads, each = n / d->w->n_k_heads;
    const float *beta = d->b.beta + (size_t)row * n + head;
    const float *alpha = has_both(d->w) ? NULL : d->b.alpha + (size_t)row * n + head;
    if (has_both(d->w)) {
        beta = d->b.beta + (size_t)row * 2 * n + head / each * 2 * each + head % each;
        alpha = beta + each;
    }
    *ret_beta = (double)*beta;
    *ret_alpha = (double)*alpha;
}

/* Decay exp(a softplus(alpha + dt)), where a < 0, and beta of a row's head. */
static void set_gates(const struct delta *d, uint32_t row, uint32_t head)
{
    float *to = d->b.gates + ((size_t)row * d->w->n_v_heads + head) * 2;
    double beta, alpha;
    read_gates(d, row, head, &beta, &alpha);
    const double log_decay = (double)d->w->a[head] * softplus(alpha + (double)d->w->dt_bias[head]);
    to[0] = log_decay != log_decay ? NAN : (float)exact_math_exp(log_decay < 0 ? log_decay : 0);
    to[1] = (float)sigmoid(beta);
}

/* The thread's part of (rows, heads of queries, keys and values). */
static void mix_rows(const struct delta *d)
{
    const struct model_delta *w = d->w;
    const struct pass_plan *plan = d->f->plan;
    const uint32_t n_heads = 2 * w->n_k_heads + w->n_v_heads;
    uint32_t from, to;
    pool_slice(d->t->i, d->t->n, d->f->n_rows * n_heads, 1, &from, &to);
    for (uint32_t item = from; item < to; item++) {
        const uint32_t row = item / n_heads, head = item % n_heads, channel = head * w->dim;
        mix_head(d, &plan->seqs[plan->rows[row].seq], plan->rows[row].index, channel,
                 d->b.mixed + (size_t)row * model_delta_channels(w) + channel);
        if (head >= 2 * w->n_k_heads)
            set_gates(d, row, head - 2 * w->n_k_heads);
    }
}

/* ---- recurrence ---- */

/* The channels of keys and of values that a value head reads. */
static uint32_t key_channel(const struct model_delta *w, uint32_t head)
{
    const uint32_t k_head =
        w->is_grouped ? head / (w->n_v_heads / w->n_k_heads) : head % w->n_k_heads;
    return (w->n_k_heads + k_head) * w->dim;
}

static uint32_t value_channel(const struct model_delta *w, uint32_t head)
{
    return (2 * w->n_k_heads + head) * w->dim;
}

/* Accepted draft rows of the pass before change the state now. */
static void replay(const struct delta *d, const struct pass_seq *s, uint32_t n, uint32_t head,
                   float *state)
{
    const struct model_delta *w = d->w;
    float *k = d->t->scratch, *v = k + w->dim, *gates = k + 2 * (size_t)w->dim;
    const size_t stride = 2 * (size_t)w->dim + 2;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t position = s->state_from + i;
        const float *logged = kv_bytes_logged_at(d->f->kv, d->layer, s->state, position);
        mix_head(d, s, position, key_channel(w, head), k + i * stride);
        mix_head(d, s, position, value_channel(w, head), v + i * stride);
        memcpy(gates + i * stride, logged + model_delta_channels(w) + 2 * (size_t)head,
               2 * sizeof(float));
    }
    d->f->m->kernel->delta(&(struct kernel_delta){.state = state,
                                                  .k = k,
                                                  .v = v,
                                                  .row_stride = stride,
                                                  .gates = gates,
                                                  .gates_stride = stride,
                                                  .n_rows = n,
                                                  .k_dim = w->dim,
                                                  .v_dim = w->dim});
}

/* n rows of the pass, from `row` on. */
static void run_rows(const struct delta *d, uint32_t row, uint32_t n, uint32_t head, float *state)
{
    const struct model_delta *w = d->w;
    const uint32_t channels = model_delta_channels(w), k = key_channel(w, head);
    const float *mixed = d->b.mixed + (size_t)row * channels;
    d->f->m->kernel->delta(
        &(struct kernel_delta){.state = state,
                               .q = mixed + k - w->n_k_heads * w->dim,
                               .k = mixed + k,
                               .v = mixed + value_channel(w, head),
                               .row_stride = channels,
                               .gates = d->b.gates + ((size_t)row * w->n_v_heads + head) * 2,
                               .gates_stride = 2 * (size_t)w->n_v_heads,
                               .out = d->b.values + ((size_t)row * w->n_v_heads + head) * w->dim,
                               .out_stride = (size_t)w->n_v_heads * w->dim,
                               .scale = 1 / sqrtf((float)w->dim),
                               .n_rows = n,
                               .k_dim = w->dim,
                               .v_dim = w->dim});
}

/* The norm of what a head has put out, and its gate. */
static void finish_rows(const struct delta *d, uint32_t row, uint32_t n, uint32_t head)
{
    const struct model_delta *w = d->w;
    const struct kernel *kernel = d->f->m->kernel;
    for (uint32_t r = row; r < row + n; r++) {
        const size_t at = ((size_t)r * w->n_v_heads + head) * w->dim;
        kernel->rmsnorm(d->b.values + at, w->norm, w->dim, d->f->m->params.norm_eps,
                        d->b.values + at);
        kernel->swiglu(d->b.z + at, d->b.values + at, w->dim, d->b.values + at);
    }
}

static void run_head(const struct delta *d, const struct pass_seq *s, uint32_t n_rows,
                     uint32_t head)
{
    const uint32_t first = d->f->plan->rows[s->first_row].index;
    const uint32_t n_kept = s->state_to - first;
    float *state = kv_bytes_state_at(d->f->kv, d->layer, s->state) + head * state_floats(d->w);
    if (first == 0)
        memset(state, 0, state_floats(d->w) * sizeof(float));
    if (first > s->state_from)
        replay(d, s, first - s->state_from, head, state);
    if (n_kept)
        run_rows(d, s->first_row, n_kept, head, state);
    if (n_rows > n_kept) {
        memcpy(d->t->scratch, state, state_floats(d->w) * sizeof(float));
        run_rows(d, s->first_row + n_kept, n_rows - n_kept, head, d->t->scratch);
    }
    finish_rows(d, s->first_row, n_rows, head);
}

static uint32_t n_rows_of(const struct forward *f, uint32_t seq)
{
    uint32_t row = f->plan->seqs[seq].first_row;
    while (row < f->n_rows && f->plan->rows[row].seq == seq)
        row++;
    return row - f->plan->seqs[seq].first_row;
}

/* A head costs as many rows more: an estimate. Its state is read and written even for one row. */
#define HEAD_COST 4

/* The thread's part of (sequences, value heads). A head belongs to the thread in whose range of
 * costs its middle lies. */
static void run_heads(const struct delta *d)
{
    const uint32_t n_heads = d->w->n_v_heads, n_seqs = d->f->plan->n_seqs;
    const uint64_t total = (d->f->n_rows + (uint64_t)HEAD_COST * n_seqs) * n_heads;
    uint64_t before = 0;
    for (uint32_t s = 0; s < n_seqs; s++) {
        const uint32_t n_rows = n_rows_of(d->f, s), cost = n_rows + HEAD_COST;
        for (uint32_t head = 0; head < n_heads; head++, before += cost)
            if (n_rows && (before + cost / 2) * d->t->n / total == d->t->i)
                run_head(d, &d->f->plan->seqs[s], n_rows, head);
    }
}

/* Logs the thread's rows that a later pass may read: draft rows, and the inputs of the next
 * convolutions. */
static void log_rows(const struct delta *d)
{
    const uint32_t channels = model_delta_channels(d->w), n_gates = 2 * d->w->n_v_heads;
    for (uint32_t row = d->t->from; row < d->t->to; row++) {
        const struct pass_row *r = &d->f->plan->rows[row];
        const struct pass_seq *s = &d->f->plan->seqs[r->seq];
        if (r->index + d->w->n_taps - 1 < s->state_to)
            continue;
        float *to = kv_bytes_logged_at(d->f->kv, d->layer, s->state, r->index);
        memcpy(to, d->b.qkv + (size_t)row * channels, channels * sizeof(float));
        memcpy(to + channels, d->b.gates + (size_t)row * n_gates, n_gates * sizeof(float));
    }
}

static void delta_run(struct forward *f, const struct forward_part *t, uint32_t layer)
{
    const struct model_attn *w = &f->m->layers[layer].attn;
    const bool both = has_both(&w->delta);
    const struct kernel_mat *mats[] = {&w->delta.qkv, &w->delta.gate,
                                       both ? &w->delta.beta_alpha : &w->delta.beta,
                                       &w->delta.alpha};
    const uint32_t n_mats = both ? 3 : 4;
    struct forward_space space = {.work = f->attn_work};
    const struct delta d = {f, t, &w->delta, layer,
                            place_buffers(&w->delta, f->opt.max_rows, &space)};

    forward_norm_rows(f, t, w->norm, mats, n_mats);
    forward_wait_rows(f);
    forward_apply_all(f, t, mats, (float *[]){d.b.qkv, d.b.z, d.b.beta, d.b.alpha}, n_mats);
    forward_wait(f);
    mix_rows(&d);
    forward_wait(f);
    run_heads(&d);
    forward_wait(f);
    log_rows(&d);
    forward_prepare_rows(f, t, &w->o, d.b.values);
    forward_wait_rows(f);
    forward_apply_and_add(f, t, &w->o, NULL);
    forward_wait(f);
}

const struct sublayer_ops attn_delta = {delta_plan, delta_bytes, delta_run};
