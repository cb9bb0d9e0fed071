/* ffn_experts.c - the feed-forward sublayer by experts. A router chooses a few of them for a row.
 * If there is a shared expert, each row runs through it, too.
 *
 * The rows of each expert form a group, so its weights are read once in a pass. A row in a group is
 * a pair (row, expert). Groups stand in the order of the experts, the shared one last. The outputs
 * of a row's experts are added in this order. So the bits of a row do not depend on the rows that
 * share its experts.
 *
 * Threads share the columns of all gates and ups as one list. Each has the same columns of all
 * downs, so that it adds the outputs of its columns alone. If a pass has few rows, each thread
 * prepares all of them for itself. */
#include <string.h>
#include "base/minmax.h"
#include "model/forward_impl.h"

/* Cost of reading the weights of a tile of columns, in units of the product of one row. It is an
 * estimate, and only decides how even the threads' parts are. */
#define TILE_COST 4
/* Floats of a thread for outputs of a group, before they are added: 256 KiB stay in L2. */
#define OUT_FLOATS 65536
#define OUT_COLUMNS (8 * KERNEL_TILE) // at least: the streams of a walk

/* The rows of an expert. */
struct group {
    uint32_t expert;        // the number of experts: the shared one
    uint32_t first, n_rows; // pairs
    size_t in, in_up;       // where its prepared rows are: for the gate, for the up
    size_t hidden;          // floats before its rows
    size_t mid;             // where its prepared rows for the down are
};

/* Rows as one thread sees them: those of all threads, or few rows that it prepares for itself. */
struct rows {
    float *norm;      // (n_rows, n_embd)
    uint32_t *chosen; // (n_rows, n_used): experts, rising
    float *weight;    // (n_rows, n_used): of their outputs
    char *act;        // prepared rows of all groups, of norm or of the hidden ones
};

struct buffers {
    float *logits;        // (max_rows, n): of the router
    float *shared_logits; // (max_rows)
    float *gate, *up;     // (rows of experts, n_ff), then (max_rows, n_ff of the shared expert)
    struct rows rows;
    /* Of the thread: */
    struct group *groups; // (n + 1)
    uint32_t *row;        // (pairs_of(max_rows)): row of each pair
    float *by;            // the same: factor of each pair's output
    float *out;           // (OUT_FLOATS or more)
};

/* What the steps of one layer need. */
struct experts {
    struct forward *f;
    const struct forward_part *t;
    const struct model_ffn *w;
    struct buffers b;
    uint32_t n_groups, n_pairs; // with those of the shared expert
};

static bool has_shared(const struct model_ffn *w)
{
    return w->n_ff > 0;
}

/* ---- memory ---- */

static uint32_t pairs_of(const struct model_ffn *w, uint32_t n_rows)
{
    return n_rows * (w->experts.n_used + has_shared(w));
}

static bool is_tiles(enum kernel_form form)
{
    return form == KERNEL_FORM_TILES || form == KERNEL_FORM_TILES_256;
}

/* A row prepared for w, of m together. */
static size_t row_bytes(const struct kernel *k, const struct kernel_mat *w, uint32_t m)
{
    return kernel_form_bytes(k->form(w->type, m), w->n_in);
}

static size_t rows_bytes(const struct kernel *k, const struct kernel_mat *w, uint32_t m)
{
    bool fills_up = is_tiles(k->form(w->type, m));
    uint32_t n = fills_up ? (m + KERNEL_ROWS - 1) / KERNEL_ROWS * KERNEL_ROWS : m;
    return n * row_bytes(k, w, m);
}

/* Upper bound for n_pairs prepared rows in up to n_groups groups of up to n_rows rows. */
static size_t most_bytes(const struct kernel *k, const struct kernel_mat *w, uint32_t n_pairs,
                         uint32_t n_groups, uint32_t n_rows)
{
    size_t n = n_pairs;
    if (is_tiles(k->form(w->type, n_rows)))
        n += (size_t)n_groups * (KERNEL_ROWS - 1);
    return n * max_size(row_bytes(k, w, 1), row_bytes(k, w, n_rows));
}

/* As most_bytes(), for the inputs of gates and ups. They share the prepared rows if their types are
 * the same. */
static size_t most_inputs(const struct kernel *k, const struct kernel_mat *gate,
                          const struct kernel_mat *up, uint32_t n_pairs, uint32_t n_groups,
                          uint32_t n_rows)
{
    size_t bytes = most_bytes(k, gate, n_pairs, n_groups, n_rows);
    return gate->type == up->type ? bytes : bytes + most_bytes(k, up, n_pairs, n_groups, n_rows);
}

static size_t act_bytes(const struct kernel *k, const struct model_ffn *w, uint32_t n_rows)
{
    const struct model_experts *e = &w->experts;
    const uint32_t n_pairs = n_rows * e->n_used, n_groups = min_u32(e->n, n_pairs);
    size_t in = most_inputs(k, &e->gate, &e->up, n_pairs, n_groups, n_rows);
    size_t mid = most_bytes(k, &e->down, n_pairs, n_groups, n_rows);
    if (has_shared(w)) {
        in += most_inputs(k, &w->gate, &w->up, n_rows, 1, n_rows);
        mid += most_bytes(k, &w->down, n_rows, 1, n_rows);
    }
    return max_size(in, mid);
}

/* The next n items of a piece of memory. base NULL: they are only counted. */
struct memory {
    char *base;
    size_t bytes;
};

static void *carve(struct memory *m, size_t n, size_t size)
{
    void *at = m->base ? m->base + m->bytes : NULL;
    m->bytes += forward_rounded(n * size);
    return at;
}

static struct rows carve_rows(struct memory *m, const struct forward *f, const struct model_ffn *w,
                              uint32_t n_rows)
{
    const size_t n_used = w->experts.n_used;
    return (struct rows){.norm = carve(m, n_rows * (size_t)w->experts.gate.n_in, sizeof(float)),
                         .chosen = carve(m, n_rows * n_used, sizeof(uint32_t)),
                         .weight = carve(m, n_rows * n_used, sizeof(float)),
                         .act = carve(m, act_bytes(f->m->kernel, w, n_rows), 1)};
}

static void carve_shared(struct memory *m, const struct forward *f, const struct model_ffn *w,
                         struct buffers *b)
{
    const size_t max_rows = f->opt.max_rows;
    const size_t hidden = max_rows * (w->experts.n_used * (size_t)w->experts.n_ff + w->n_ff);
    b->logits = carve(m, max_rows * w->experts.n, sizeof(float));
    b->shared_logits = carve(m, max_rows, sizeof(float));
    b->gate = carve(m, hidden, sizeof(float));
    b->up = carve(m, hidden, sizeof(float));
    b->rows = carve_rows(m, f, w, f->opt.max_rows);
}

/* Of one thread. */
static void carve_own(struct memory *m, const struct forward *f, const struct model_ffn *w,
                      struct buffers *b)
{
    const size_t max_rows = f->opt.max_rows, n_pairs = pairs_of(w, f->opt.max_rows);
    struct rows few = carve_rows(m, f, w, FORWARD_FEW_ROWS);
    if (f->few)
        b->rows = few;
    b->groups = carve(m, w->experts.n + (size_t)1, sizeof(*b->groups));
    b->row = carve(m, n_pairs, sizeof(*b->row));
    b->by = carve(m, n_pairs, sizeof(*b->by));
    b->out = carve(m, max_size(OUT_FLOATS, max_rows * OUT_COLUMNS), sizeof(*b->out));
}

static size_t own_bytes(const struct forward *f, const struct model_ffn *w)
{
    struct memory m = {0};
    struct buffers b;
    carve_own(&m, f, w, &b);
    return m.bytes;
}

static size_t experts_bytes(const struct forward *f, const struct model_layer *l)
{
    struct memory m = {0};
    struct buffers b;
    carve_shared(&m, f, &l->ffn, &b);
    return m.bytes + pool_threads(f->pool) * own_bytes(f, &l->ffn);
}

static struct buffers buffers_of(const struct forward *f, const struct model_ffn *w, unsigned i)
{
    struct memory m = {.base = f->ffn_work};
    struct buffers b;
    carve_shared(&m, f, w, &b);
    m.bytes += i * own_bytes(f, w);
    carve_own(&m, f, w, &b);
    return b;
}

static void experts_plan(struct forward *f, const struct model_layer *l)
{
    forward_need_matrix(f, &l->ffn.experts.router);
    forward_need_scratch(f, l->ffn.experts.n);
    if (has_shared(&l->ffn))
        forward_need_matrix(f, &l->ffn.shared_router);
}

/* ---- choosing ---- */

/* The experts of the largest logits, in rising order. Of equal ones the first are chosen. */
static void choose_experts(const float *logits, uint32_t n, uint32_t n_used, uint32_t *chosen)
{
    uint32_t count = 0;
    for (uint32_t e = 0; e < n; e++) { // chosen has falling logits
        if (count == n_used && !(logits[e] > logits[chosen[count - 1]]))
            continue;
        uint32_t at = count < n_used ? count++ : count - 1;
        for (; at > 0 && logits[e] > logits[chosen[at - 1]]; at--)
            chosen[at] = chosen[at - 1];
        chosen[at] = e;
    }
    for (uint32_t i = 1; i < count; i++) {
        uint32_t e = chosen[i], at = i;
        for (; at > 0 && chosen[at - 1] > e; at--)
            chosen[at] = chosen[at - 1];
        chosen[at] = e;
    }
}

/* The weights of the chosen experts' outputs: their probabilities, or these divided by their sum.
 * Then the sum of all cancels. */
static void weigh_experts(const struct model_experts *w, const float *logits,
                          const uint32_t *chosen, float *weight)
{
    float most = logits[chosen[0]], sum = 0;
    for (uint32_t i = 1; i < w->n_used; i++)
        most = logits[chosen[i]] > most ? logits[chosen[i]] : most;
    for (uint32_t i = 0; i < w->n_used; i++)
        weight[i] = kernel_expf(logits[chosen[i]] - most);
    for (uint32_t i = 0; i < w->n_used && w->weights_sum_to_1; i++)
        sum += weight[i];
    for (uint32_t e = 0; e < w->n && !w->weights_sum_to_1; e++)
        sum += kernel_expf(logits[e] - most);
    for (uint32_t i = 0; i < w->n_used; i++)
        weight[i] /= sum;
}

/* The logits of a row with their biases. */
static const float *add_router_bias(const struct experts *x, const float *logits)
{
    const struct model_experts *w = &x->w->experts;
    if (!w->router_bias)
        return logits;
    memcpy(x->t->scratch, logits, w->n * sizeof(*logits)); // other threads read them, too
    x->f->m->kernel->add(x->t->scratch, w->router_bias, w->n);
    return x->t->scratch;
}

static void choose_rows(const struct experts *x)
{
    const struct model_experts *w = &x->w->experts;
    uint32_t from, to;
    forward_rows_to_prepare(x->f, x->t, &from, &to);
    for (uint32_t r = from; r < to; r++) {
        const float *logits = add_router_bias(x, x->b.logits + (size_t)r * w->n);
        uint32_t *chosen = x->b.rows.chosen + (size_t)r * w->n_used;
        choose_experts(logits, w->n, w->n_used, chosen);
        weigh_experts(w, logits, chosen, x->b.rows.weight + (size_t)r * w->n_used);
    }
}

/* ---- groups ---- */

struct matrices {
    struct kernel_mat gate, up, down;
    const float *gate_bias, *up_bias, *down_bias; // NULL: none
    enum model_glu glu;
};

static const float *bias_of(const float *first, uint32_t expert, uint32_t n)
{
    return first ? first + (size_t)expert * n : NULL;
}

static struct matrices matrices_of(const struct experts *x, const struct group *g)
{
    const struct model_experts *e = &x->w->experts;
    if (g->expert == e->n)
        return (struct matrices){x->w->gate, x->w->up, x->w->down, .glu = MODEL_SWIGLU};
    return (struct matrices){model_expert(&e->gate, g->expert),
                             model_expert(&e->up, g->expert),
                             model_expert(&e->down, g->expert),
                             bias_of(e->gate_bias, g->expert, e->gate.n_out),
                             bias_of(e->up_bias, g->expert, e->up.n_out),
                             bias_of(e->down_bias, g->expert, e->down.n_out),
                             e->glu};
}

/* Experts that rows have chosen, with the number of their rows. */
static void count_rows(struct experts *x)
{
    const struct model_experts *w = &x->w->experts;
    struct group *groups = x->b.groups;
    for (uint32_t e = 0; e < w->n; e++)
        groups[e] = (struct group){.expert = e};
    for (uint32_t i = 0; i < x->f->n_rows * w->n_used; i++)
        groups[x->b.rows.chosen[i]].n_rows++;
    for (uint32_t e = 0; e < w->n; e++) {
        groups[e].first = x->n_pairs;
        x->n_pairs += groups[e].n_rows;
    }
}

/* Lists the pairs of each expert; their rows rise. */
static void list_pairs(const struct experts *x)
{
    const struct model_experts *w = &x->w->experts;
    struct group *groups = x->b.groups;
    for (uint32_t i = 0; i < x->f->n_rows * w->n_used; i++) {
        uint32_t pair = groups[x->b.rows.chosen[i]].first++;
        x->b.row[pair] = i / w->n_used;
        x->b.by[pair] = x->b.rows.weight[i];
    }
    for (uint32_t e = 0; e < w->n; e++)
        groups[e].first -= groups[e].n_rows;
}

static void add_shared(struct experts *x)
{
    const uint32_t n = x->f->n_rows;
    x->b.groups[x->n_groups++] =
        (struct group){.expert = x->w->experts.n, .first = x->n_pairs, .n_rows = n};
    for (uint32_t r = 0; r < n; r++) {
        x->b.row[x->n_pairs + r] = r;
        x->b.by[x->n_pairs + r] = 1 / (1 + kernel_expf(-x->b.shared_logits[r]));
    }
    x->n_pairs += n;
}

/* Where the rows of the groups lie. All experts have the same types, so in a pass of one row they
 * have the same input. */
static void place_groups(const struct experts *x)
{
    const struct kernel *k = x->f->m->kernel;
    size_t in = 0, hidden = 0, mid = 0;
    for (uint32_t i = 0; i < x->n_groups; i++) {
        struct group *g = &x->b.groups[i];
        const struct matrices w = matrices_of(x, g);
        const bool is_input_of_first = i && x->f->n_rows == 1 && g->expert < x->w->experts.n;
        g->in = in;
        in += rows_bytes(k, &w.gate, g->n_rows);
        g->in_up = w.gate.type == w.up.type ? g->in : in;
        in += w.gate.type == w.up.type ? 0 : rows_bytes(k, &w.up, g->n_rows);
        if (is_input_of_first) {
            g->in = x->b.groups[0].in;
            g->in_up = x->b.groups[0].in_up;
        }
        g->hidden = hidden;
        hidden += (size_t)g->n_rows * w.gate.n_out;
        g->mid = mid;
        mid += rows_bytes(k, &w.down, g->n_rows);
    }
}

static void group_rows(struct experts *x)
{
    count_rows(x);
    list_pairs(x);
    for (uint32_t e = 0; e < x->w->experts.n; e++)
        if (x->b.groups[e].n_rows)
            x->b.groups[x->n_groups++] = x->b.groups[e];
    if (has_shared(x->w))
        add_shared(x);
    place_groups(x);
}

/* ---- rows of groups ---- */

/* The pairs that the thread prepares. */
static void pairs_to_prepare(const struct experts *x, uint32_t *ret_from, uint32_t *ret_to)
{
    *ret_from = 0;
    *ret_to = x->n_pairs;
    if (!x->f->few)
        pool_slice(x->t->i, x->t->n, x->n_pairs, 1, ret_from, ret_to);
}

static void prepare(const struct experts *x, const struct group *g, const struct kernel_mat *w,
                    const float *from, uint32_t pair, size_t at)
{
    const struct kernel *k = x->f->m->kernel;
    k->prepare(k->form(w->type, g->n_rows), from, w->n_in, pair - g->first, g->n_rows,
               x->b.rows.act + at, row_bytes(k, w, g->n_rows));
}

static void prepare_inputs(const struct experts *x)
{
    uint32_t from, to;
    pairs_to_prepare(x, &from, &to);
    for (uint32_t i = 0; i < x->n_groups; i++) {
        const struct group *g = &x->b.groups[i];
        const struct matrices w = matrices_of(x, g);
        uint32_t first = max_u32(g->first, from), end = min_u32(g->first + g->n_rows, to);
        if (i && g->in == x->b.groups[0].in)
            continue; // prepared for the first group
        for (uint32_t p = first; p < end; p++) {
            const float *norm = x->b.rows.norm + (size_t)x->b.row[p] * w.gate.n_in;
            prepare(x, g, &w.gate, norm, p, g->in);
            if (g->in_up != g->in)
                prepare(x, g, &w.up, norm, p, g->in_up);
        }
    }
}

static void prepare_hidden(const struct experts *x)
{
    uint32_t from, to;
    pairs_to_prepare(x, &from, &to);
    for (uint32_t i = 0; i < x->n_groups; i++) {
        const struct group *g = &x->b.groups[i];
        const struct kernel_mat down = matrices_of(x, g).down;
        uint32_t first = max_u32(g->first, from), end = min_u32(g->first + g->n_rows, to);
        for (uint32_t p = first; p < end; p++)
            prepare(x, g, &down, x->b.gate + g->hidden + (size_t)(p - g->first) * down.n_in, p,
                    g->mid);
    }
}

/* ---- products ---- */

static void add_bias(const struct kernel *k, float *y, const float *bias, uint32_t from,
                     uint32_t to)
{
    if (bias)
        k->add(y, bias + from, to - from);
}

/* gate = glu(gate, up) of columns [from, to). */
static void run_gate(const struct experts *x, const struct group *g, uint32_t from, uint32_t to)
{
    const struct kernel *k = x->f->m->kernel;
    const struct matrices w = matrices_of(x, g);
    const uint32_t n = g->n_rows, n_ff = w.gate.n_out;
    const char *act = x->b.rows.act;
    float *h = x->b.gate + g->hidden, *u = x->b.up + g->hidden;
    k->matmul(&w.gate, act + g->in, row_bytes(k, &w.gate, n), n, h, n_ff, from, to);
    k->matmul(&w.up, act + g->in_up, row_bytes(k, &w.up, n), n, u, n_ff, from, to);
    for (uint32_t r = 0; r < n; r++) {
        float *gate = h + (size_t)r * n_ff + from, *up = u + (size_t)r * n_ff + from;
        add_bias(k, gate, w.gate_bias, from, to);
        add_bias(k, up, w.up_bias, from, to);
        if (w.glu == MODEL_SWIGLU)
            k->swiglu(gate, up, to - from, gate);
        else
            k->swiglu_clamped(gate, up, to - from, gate);
    }
}

static uint64_t tile_cost(const struct group *g)
{
    return TILE_COST + g->n_rows;
}

/* The first tile of the group whose cost begins at `cost` or later; all groups before cost
 * `before`. */
static uint32_t tile_at(const struct group *g, uint32_t n_tiles, uint64_t before, uint64_t cost)
{
    uint64_t each = tile_cost(g);
    uint64_t tile = cost > before ? (cost - before + each - 1) / each : 0;
    return tile < n_tiles ? (uint32_t)tile : n_tiles;
}

/* The thread's part of the tiles of all gates and ups. Each thread's cost about the same. */
static void run_gates(const struct experts *x)
{
    uint64_t all = 0, before = 0;
    for (uint32_t i = 0; i < x->n_groups; i++) {
        const struct kernel_mat gate = matrices_of(x, &x->b.groups[i]).gate;
        all += model_tiles(&gate) * tile_cost(&x->b.groups[i]);
    }
    for (uint32_t i = 0; i < x->n_groups; i++) {
        const struct group *g = &x->b.groups[i];
        const struct kernel_mat gate = matrices_of(x, g).gate;
        const uint32_t n_tiles = model_tiles(&gate);
        uint32_t from = tile_at(g, n_tiles, before, all * x->t->i / x->t->n) * KERNEL_TILE;
        uint32_t to = tile_at(g, n_tiles, before, all * (x->t->i + 1) / x->t->n) * KERNEL_TILE;
        if (from < to)
            run_gate(x, g, from, min_u32(to, gate.n_out));
        before += n_tiles * tile_cost(g);
    }
}

/* x += weight * (down(hidden) + bias) of columns [from, to). */
static void run_down(const struct experts *x, const struct group *g, const struct matrices *w,
                     uint32_t from, uint32_t to)
{
    const struct kernel *k = x->f->m->kernel;
    const uint32_t n = g->n_rows, n_embd = w->down.n_out;
    struct kernel_mat part = w->down;
    part.data = (const char *)part.data + kernel_packed_bytes(part.type, from, part.n_in);
    part.n_out = to - from;
    k->matmul(&part, x->b.rows.act + g->mid, row_bytes(k, &part, n), n, x->b.out, part.n_out, 0,
              part.n_out);
    for (uint32_t r = 0; r < n; r++) {
        float *out = x->b.out + (size_t)r * part.n_out;
        add_bias(k, out, w->down_bias, from, to);
        k->add_scaled(x->f->x + (size_t)x->b.row[g->first + r] * n_embd + from,
                      x->b.by[g->first + r], out, part.n_out);
    }
}

/* The thread's columns of all downs. */
static void run_downs(const struct experts *x)
{
    for (uint32_t i = 0; i < x->n_groups; i++) {
        const struct group *g = &x->b.groups[i];
        const struct matrices w = matrices_of(x, g);
        const uint32_t most =
            max_u32(OUT_COLUMNS, OUT_FLOATS / g->n_rows / OUT_COLUMNS * OUT_COLUMNS);
        uint32_t from, to;
        forward_columns(x->t, &w.down, &from, &to);
        for (uint32_t end; from < to; from = end) {
            end = min_u32(to, from + most);
            run_down(x, g, &w, from, end);
        }
    }
}

/* ---- the sublayer ---- */

static void norm_rows(const struct experts *x)
{
    const struct model_params *p = &x->f->m->params;
    uint32_t from, to;
    forward_rows_to_prepare(x->f, x->t, &from, &to);
    for (uint32_t r = from; r < to; r++)
        x->f->m->kernel->rmsnorm(x->f->x + (size_t)r * p->n_embd, x->w->norm, p->n_embd,
                                 p->norm_eps, x->b.rows.norm + (size_t)r * p->n_embd);
    forward_prepare_rows(x->f, x->t, &x->w->experts.router, x->b.rows.norm);
    if (has_shared(x->w) && x->w->shared_router.type != x->w->experts.router.type)
        forward_prepare_rows(x->f, x->t, &x->w->shared_router, x->b.rows.norm);
}

static void experts_run(struct forward *f, const struct forward_part *t, uint32_t layer)
{
    const struct model_ffn *w = &f->m->layers[layer].ffn;
    const struct kernel_mat *routers[] = {&w->experts.router, &w->shared_router};
    struct experts x = {.f = f, .t = t, .w = w, .b = buffers_of(f, w, t->i)};

    norm_rows(&x);
    forward_wait_rows(f);
    forward_apply_all(f, t, routers, (float *[]){x.b.logits, x.b.shared_logits},
                      has_shared(w) ? 2 : 1);
    forward_wait(f);
    choose_rows(&x);
    forward_wait_rows(f);
    group_rows(&x);
    prepare_inputs(&x);
    forward_wait_rows(f);
    run_gates(&x);
    forward_wait(f);
    prepare_hidden(&x);
    forward_wait_rows(f);
    run_downs(&x);
    forward_wait(f);
}

const struct sublayer_ops ffn_experts = {experts_plan, experts_bytes, experts_run};
