/* forward.c - one pass: the threads of the pool walk the layers together, a barrier after each
 * step.
 *
 * Rows are split among threads where work is per row, output columns where a matrix is applied, and
 * queries in attention: rows of a sequence under a key/value head, heads of a lone row. Nothing is
 * summed across threads. */
#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "base/err.h"
#include "model/forward.h"
#include "model/rope.h"

#define NO_LOGITS UINT32_MAX
#define MAX_ROWS 65536
/* So few rows every thread prepares for itself: four barriers of a layer fall away, and on a
 * machine with other work each may wait for a thread that is not running. */
#define FEW_ROWS 4

struct forward {
    const struct model *m;
    struct kv_bytes *kv;
    struct pool *pool;
    struct forward_options opt;
    void *memory; // all buffers below, one mapping
    size_t bytes;

    float *x;                       // (max_rows, n_embd): the residual stream
    float *q, *k, *v, *attn, *ff;   // (max_rows, heads * head_dim), ..., (max_rows, n_ff)
    float *up;                      // (max_rows, n_ff)
    float *out;                     // (max_rows, n_embd): what a block adds to x
    float *angles;                  // (max_rows, rope_dim / 2, 2)
    char *act[KERNEL_FORMS];        // (max_rows or threads * FEW_ROWS, act_bytes): prepared
    size_t act_bytes[KERNEL_FORMS]; // 0: no matrix wants that form
    float *logits;                  // (max_logits, n_vocab)
    uint32_t *logit_row;            // (max_rows): row of `logits`, or NO_LOGITS
    uint32_t *wanted;               // (max_logits): the rows that want logits
    struct kernel_sight *sights;    // (max_rows)
    uint32_t *tails;                // (max_rows, FORWARD_MAX_DEPTH)
    uint64_t *cost;                 // (max_rows + 1): attention of the rows before, in positions
    float *scratch;                 // (threads, scratch_floats)
    size_t scratch_floats, panel_floats; // the second is part of the first

    uint32_t hidden_layers[FORWARD_MAX_HIDDEN], n_hidden;
    float *hidden; // (n_hidden, max_rows, n_embd)

    const struct pass_plan *plan; // the pass that runs
    uint32_t n_rows, n_wanted;
    bool alone; // the calling thread does it all
    bool few;   // FEW_ROWS at most
};

/* What a thread has of a pass. */
struct part {
    unsigned i, n;
    uint32_t from, to; // its rows
    float *scratch;
    char *act[KERNEL_FORMS]; // the prepared rows that it reads
};

/* ---- buffers ---- */

static size_t rounded(size_t bytes)
{
    return (bytes + KERNEL_ALIGN - 1) / KERNEL_ALIGN * KERNEL_ALIGN;
}

/* The next `n` items of `size` bytes; with no memory yet it only counts. */
static void *carve(struct forward *f, size_t n, size_t size)
{
    void *at = f->memory ? (char *)f->memory + f->bytes : NULL;
    f->bytes += rounded(n * size);
    return at;
}

static void note_form(struct forward *f, enum kernel_form form, const struct kernel_mat *w)
{
    size_t bytes = rounded(kernel_form_bytes(form, w->n_in));
    f->act_bytes[form] = bytes > f->act_bytes[form] ? bytes : f->act_bytes[form];
}

/* Those of few rows and of many. */
static void note_matrix(struct forward *f, const struct kernel_mat *w)
{
    note_form(f, kernel_form_of(w->type), w);
    note_form(f, f->m->kernel->form(w->type, f->opt.max_rows), w);
    if (f->opt.blas && kernel_blas_floats(w) > f->panel_floats)
        f->panel_floats = kernel_blas_floats(w);
}

static void note_matrices(struct forward *f)
{
    note_matrix(f, &f->m->head);
    for (uint32_t l = 0; l < f->m->params.n_layers; l++) {
        const struct model_layer *w = &f->m->layers[l];
        const struct kernel_mat *mats[] = {&w->q, &w->k, &w->v, &w->o, &w->gate, &w->up, &w->down};
        for (size_t i = 0; i < ARRAY_LEN(mats); i++)
            note_matrix(f, mats[i]);
    }
}

static void carve_all(struct forward *f)
{
    const struct model_params *p = &f->m->params;
    size_t n = f->opt.max_rows, n_q = (size_t)p->n_heads * p->head_dim;
    size_t n_kv = (size_t)p->n_kv_heads * p->head_dim;
    f->bytes = 0;
    f->x = carve(f, n * p->n_embd, sizeof(float));
    f->q = carve(f, n * n_q, sizeof(float));
    f->k = carve(f, n * n_kv, sizeof(float));
    f->v = carve(f, n * n_kv, sizeof(float));
    f->attn = carve(f, n * n_q, sizeof(float));
    f->ff = carve(f, n * p->n_ff, sizeof(float));
    f->up = carve(f, n * p->n_ff, sizeof(float));
    f->out = carve(f, n * p->n_embd, sizeof(float));
    f->angles = carve(f, n * p->rope_dim, sizeof(float));
    size_t few = (size_t)FEW_ROWS * pool_threads(f->pool);
    size_t many = (n + KERNEL_ROWS - 1) / KERNEL_ROWS * KERNEL_ROWS,
           n_act = many > few ? many : few;
    for (int form = 0; form < KERNEL_FORMS; form++)
        f->act[form] = carve(f, n_act, f->act_bytes[form]);
    f->logits = carve(f, (size_t)f->opt.max_logits * p->n_vocab, sizeof(float));
    f->logit_row = carve(f, n, sizeof(uint32_t));
    f->wanted = carve(f, f->opt.max_logits, sizeof(uint32_t));
    f->sights = carve(f, n, sizeof(struct kernel_sight));
    f->tails = carve(f, n * FORWARD_MAX_DEPTH, sizeof(uint32_t));
    f->cost = carve(f, n + 1, sizeof(uint64_t));
    size_t scratch = KERNEL_ATTN_SCRATCH(p->head_dim);
    scratch = scratch > p->n_embd ? scratch : p->n_embd;
    scratch = scratch > f->panel_floats ? scratch : f->panel_floats;
    f->scratch_floats = rounded(scratch * sizeof(float)) / sizeof(float);
    f->scratch = carve(f, f->scratch_floats * pool_threads(f->pool), sizeof(float));
}

static int check_options(const struct model *m, const struct kv_bytes *kv,
                         const struct forward_options *opt)
{
    const struct kv_shape *s = kv_bytes_shape(kv);
    if (!opt->max_rows || opt->max_rows > MAX_ROWS || !opt->max_logits ||
        opt->max_logits > opt->max_rows)
        return fail(-EINVAL, "forward: %u rows with %u logits, not 1 .. %u", opt->max_rows,
                    opt->max_logits, MAX_ROWS);
    if (s->n_layers != m->params.n_layers ||
        memcmp(s->layers, m->kv_layers, s->n_layers * sizeof(*s->layers)) != 0)
        return fail(-EINVAL, "forward: the key/value cache is for another model");
    return 0;
}

size_t forward_bytes(const struct model *m, struct pool *pool, const struct forward_options *opt)
{
    struct forward f = {.m = m, .pool = pool, .opt = *opt};
    note_matrices(&f);
    carve_all(&f);
    return f.bytes;
}

int forward_new(const struct model *m, struct kv_bytes *kv, struct pool *pool,
                const struct forward_options *opt, struct forward **ret)
{
    int r = check_options(m, kv, opt);
    if (r < 0)
        return r;
    AUTO(forward_free) struct forward *f = calloc(1, sizeof(*f));
    if (!f)
        return fail(-ENOMEM, "forward: no memory");
    f->m = m;
    f->kv = kv;
    f->pool = pool;
    f->opt = *opt;
    note_matrices(f);
    carve_all(f);
    void *at = mmap(NULL, f->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED)
        return fail(-ENOMEM, "forward: no memory for %zu MiB of activations", f->bytes >> 20);
    f->memory = at;
    carve_all(f);
    if (opt->blas)
        kernel_blas_init();
    *ret = TAKE(f);
    return 0;
}

void forward_free(struct forward *f)
{
    if (!f)
        return;
    if (f->memory)
        munmap(f->memory, f->bytes);
    free(f->hidden);
    free(f);
}

int forward_want_hidden(struct forward *f, const uint32_t *layers, uint32_t n)
{
    if (n > FORWARD_MAX_HIDDEN)
        return fail(-EINVAL, "forward: %u hidden layers, at most %u", n, FORWARD_MAX_HIDDEN);
    for (uint32_t i = 0; i < n; i++)
        if (layers[i] > f->m->params.n_layers + 1)
            return fail(-EINVAL, "forward: hidden layer %u of %u", layers[i],
                        f->m->params.n_layers);
    float *hidden = NULL;
    if (n) {
        hidden = malloc((size_t)n * f->opt.max_rows * f->m->params.n_embd * sizeof(float));
        if (!hidden)
            return fail(-ENOMEM, "forward: no memory for hidden rows");
        memcpy(f->hidden_layers, layers, n * sizeof(*layers));
    }
    free(f->hidden);
    f->hidden = hidden;
    f->n_hidden = n;
    return 0;
}

/* ---- before the threads start ---- */

static bool is_small(const struct forward *f)
{
    size_t limit = f->opt.alone_bytes ? f->opt.alone_bytes : FORWARD_ALONE_BYTES;
    return f->m->bytes < limit && f->m->bytes * (16 + f->n_rows) / 16 < limit;
}

static void wait_for_all(struct forward *f)
{
    if (!f->alone)
        pool_barrier(f->pool);
}

/* After rows were prepared: few are read by none but the thread that prepared them. */
static void wait_for_rows(struct forward *f)
{
    if (!f->few)
        wait_for_all(f);
}

static void see_row(struct forward *f, uint32_t i)
{
    const struct pass_row *r = &f->plan->rows[i];
    struct kernel_sight *s = &f->sights[i];
    if (r->parent < 0) {
        assert(r->index == r->pos);
        *s = (struct kernel_sight){.n_base = r->pos + 1};
        return;
    }
    const struct pass_row *parent = &f->plan->rows[r->parent];
    assert((uint32_t)r->parent < i && parent->seq == r->seq && parent->pos + 1 == r->pos);
    (void)parent;
    const struct kernel_sight *up = &f->sights[r->parent];
    if (up->n_tail == 0 && r->index == r->pos) { // still in storage order
        *s = (struct kernel_sight){.n_base = r->pos + 1};
        return;
    }
    assert(up->n_tail < FORWARD_MAX_DEPTH);
    uint32_t *tail = f->tails + (size_t)i * FORWARD_MAX_DEPTH;
    if (up->n_tail)
        memcpy(tail, up->tail, up->n_tail * sizeof(*tail));
    tail[up->n_tail] = pass_plan_slot(f->plan, i);
    *s = (struct kernel_sight){up->n_base, up->n_tail + 1, tail};
}

static void look_at_rows(struct forward *f)
{
    f->n_wanted = 0;
    f->cost[0] = 0;
    for (uint32_t i = 0; i < f->n_rows; i++) {
        const struct pass_row *r = &f->plan->rows[i];
        assert(r->token < f->m->params.n_vocab && r->index < f->plan->seqs[r->seq].len);
        see_row(f, i);
        f->cost[i + 1] = f->cost[i] + f->sights[i].n_base + f->sights[i].n_tail + KV_BLOCK;
        f->logit_row[i] = NO_LOGITS;
        if (r->wants_logits) {
            assert(f->n_wanted < f->opt.max_logits);
            f->wanted[f->n_wanted] = i;
            f->logit_row[i] = f->n_wanted++;
        }
    }
}

/* ---- steps of a pass; thread i of n ---- */

/* The rows that the thread prepares: its own, or where there are few, all. */
static void rows_to_prepare(const struct forward *f, const struct part *t, uint32_t *ret_from,
                            uint32_t *ret_to)
{
    *ret_from = f->few ? 0 : t->from;
    *ret_to = f->few ? f->n_rows : t->to;
}

static void prepare_row(struct forward *f, const struct part *t, enum kernel_form form,
                        const float *x, uint32_t n_in, uint32_t r)
{
    f->m->kernel->prepare(form, x, n_in, r, f->n_rows, t->act[form], f->act_bytes[form]);
}

/* Rows of x, through a norm, into every form that the matrices want. */
static void norm_rows(struct forward *f, const struct part *t, const float *norm,
                      const struct kernel_mat *const *mats, uint32_t n_mats)
{
    const struct model_params *p = &f->m->params;
    uint32_t from, to;
    rows_to_prepare(f, t, &from, &to);
    for (uint32_t r = from; r < to; r++) {
        f->m->kernel->rmsnorm(f->x + (size_t)r * p->n_embd, norm, p->n_embd, p->norm_eps,
                              t->scratch);
        unsigned done = 0;
        for (uint32_t i = 0; i < n_mats; i++) {
            enum kernel_form form = f->m->kernel->form(mats[i]->type, f->n_rows);
            if (!(done & 1u << form))
                prepare_row(f, t, form, t->scratch, p->n_embd, r);
            done |= 1u << form;
        }
    }
}

static void prepare_rows(struct forward *f, const struct part *t, const struct kernel_mat *w,
                         const float *x)
{
    enum kernel_form form = f->m->kernel->form(w->type, f->n_rows);
    uint32_t from, to;
    rows_to_prepare(f, t, &from, &to);
    for (uint32_t r = from; r < to; r++)
        prepare_row(f, t, form, x + (size_t)r * w->n_in, w->n_in, r);
}

/* Columns [from, to) of y = W x for all rows. */
static void apply(struct forward *f, const struct part *t, const struct kernel_mat *w, float *y,
                  uint32_t n_rows, uint32_t from, uint32_t to)
{
    enum kernel_form form = f->m->kernel->form(w->type, n_rows);
    if (from < to && f->opt.blas)
        kernel_blas_matmul(f->m->kernel, w, t->act[form], f->act_bytes[form], n_rows, y, w->n_out,
                           from, to, t->scratch);
    else if (from < to)
        f->m->kernel->matmul(w, t->act[form], f->act_bytes[form], n_rows, y, w->n_out, from, to);
}

/* The thread's columns of a matrix that is applied by itself. */
static void columns_of(const struct part *t, const struct kernel_mat *w, uint32_t *ret_from,
                       uint32_t *ret_to)
{
    model_columns(w, 0, model_tiles(w), t->i, t->n, ret_from, ret_to);
}

/* The thread's share of the columns of several matrices taken together, so that narrow ones do not
 * leave threads without work. */
static void apply_all(struct forward *f, const struct part *t, const struct kernel_mat *const *mats,
                      float *const *ys, uint32_t n_mats)
{
    uint32_t n_tiles = 0, before = 0, from, to;
    for (uint32_t k = 0; k < n_mats; k++)
        n_tiles += model_tiles(mats[k]);
    for (uint32_t k = 0; k < n_mats; k++) {
        model_columns(mats[k], before, n_tiles, t->i, t->n, &from, &to);
        apply(f, t, mats[k], ys[k], f->n_rows, from, to);
        before += model_tiles(mats[k]);
    }
}

/* x += W act, the thread's columns. */
static void apply_and_add(struct forward *f, const struct part *t, const struct kernel_mat *w)
{
    uint32_t from, to;
    columns_of(t, w, &from, &to);
    apply(f, t, w, f->out, f->n_rows, from, to);
    for (uint32_t r = 0; r < f->n_rows && from < to; r++)
        f->m->kernel->add(f->x + (size_t)r * w->n_out + from, f->out + (size_t)r * w->n_out + from,
                          to - from);
}

/* Bias, norm and rotation of one head of Q or K. */
static void finish_head(struct forward *f, float *x, const float *bias, const float *norm,
                        uint32_t row)
{
    const struct model_params *p = &f->m->params;
    if (bias)
        f->m->kernel->add(x, bias, p->head_dim);
    if (norm)
        f->m->kernel->rmsnorm(x, norm, p->head_dim, p->norm_eps, x);
    rope_rotate(p, f->angles + (size_t)row * p->rope_dim, x);
}

/* Of one row and key/value head: the query heads of its group, and K and V into the cache. */
static void finish_group(struct forward *f, uint32_t layer, uint32_t row, uint32_t head)
{
    const struct model_params *p = &f->m->params;
    const struct model_layer *w = &f->m->layers[layer];
    uint32_t d = p->head_dim, group = p->n_heads / p->n_kv_heads;
    for (uint32_t h = head * group; h < (head + 1) * group; h++)
        finish_head(f, f->q + ((size_t)row * p->n_heads + h) * d,
                    w->q_bias ? w->q_bias + (size_t)h * d : NULL, w->q_norm, row);
    size_t at = ((size_t)row * p->n_kv_heads + head) * d;
    finish_head(f, f->k + at, w->k_bias ? w->k_bias + (size_t)head * d : NULL, w->k_norm, row);
    if (w->v_bias)
        f->m->kernel->add(f->v + at, w->v_bias + (size_t)head * d, d);
    uint32_t slot = pass_plan_slot(f->plan, row);
    f->m->kernel->kv_put(kv_bytes_shape(f->kv)->type, f->k + at, f->v + at, d, slot % KV_BLOCK,
                         kv_bytes_at(f->kv, layer, slot / KV_BLOCK, head));
}

/* Rows of one sequence, query heads of one key/value head. */
struct queries {
    uint32_t row, n_rows, head, n_heads;
};

static void attend(struct forward *f, uint32_t layer, const struct queries *q, float *scratch)
{
    const struct model_params *p = &f->m->params;
    size_t n = (size_t)p->n_heads * p->head_dim, at = q->row * n + (size_t)q->head * p->head_dim;
    f->m->kernel->attn(&(struct kernel_attn){
        .q = f->q + at,
        .out = f->attn + at,
        .row_stride = n,
        .sights = f->sights + q->row,
        .n_rows = q->n_rows,
        .n_heads = q->n_heads,
        .head_dim = p->head_dim,
        .scale = 1 / sqrtf((float)p->head_dim),
        .blocks = pass_plan_blocks(f->plan, q->row),
        .type = kv_bytes_shape(f->kv)->type,
        .kv = kv_bytes_at(f->kv, layer, 0, q->head / (p->n_heads / p->n_kv_heads)),
        .block = kv_bytes_stride(f->kv, layer),
        .scratch = scratch,
    });
}

/* The thread's part of the queries: rows, or heads where there is but one row. Each belongs to whom
 * its middle falls to; all before these cost `before`. */
static struct queries share_of(const struct forward *f, const struct queries *all, uint64_t before,
                               unsigned i, unsigned n)
{
    bool rows = all->n_rows > 1;
    uint64_t total = f->cost[f->n_rows] * f->m->params.n_heads;
    uint32_t n_items = rows ? all->n_rows : all->n_heads, first = 0, last = 0;
    for (uint32_t k = 0; k < n_items; k++) {
        uint32_t row = all->row + (rows ? k : 0);
        uint64_t cost = (f->cost[row + 1] - f->cost[row]) * (rows ? all->n_heads : 1);
        uint64_t owner = (before + cost / 2) * n / total;
        first += owner < i;
        last += owner <= i;
        before += cost;
    }
    if (rows)
        return (struct queries){all->row + first, last - first, all->head, all->n_heads};
    return (struct queries){all->row, 1, all->head + first, last - first};
}

static uint32_t end_of_sequence(const struct forward *f, uint32_t row)
{
    uint32_t seq = f->plan->rows[row].seq;
    while (row < f->n_rows && f->plan->rows[row].seq == seq)
        row++;
    return row;
}

/* The thread's part of equal cost. */
static void attend_share(struct forward *f, uint32_t layer, float *scratch, unsigned i, unsigned n)
{
    const struct model_params *p = &f->m->params;
    uint32_t group = p->n_heads / p->n_kv_heads;
    for (uint32_t row = 0, end; row < f->n_rows; row = end) {
        end = end_of_sequence(f, row);
        uint64_t before = f->cost[row] * p->n_heads, cost = f->cost[end] - f->cost[row];
        for (uint32_t head = 0; head < p->n_heads; head += group) {
            struct queries q = {row, end - row, head, group};
            q = share_of(f, &q, before + cost * head, i, n);
            if (q.n_rows && q.n_heads)
                attend(f, layer, &q, scratch);
        }
    }
}

static void keep_hidden(struct forward *f, uint32_t layer, const float *x, uint32_t from,
                        uint32_t to)
{
    size_t n = f->m->params.n_embd;
    for (uint32_t h = 0; h < f->n_hidden; h++)
        if (f->hidden_layers[h] == layer && from < to)
            memcpy(f->hidden + ((size_t)h * f->opt.max_rows + from) * n, x + from * n,
                   (to - from) * n * sizeof(float));
}

static void embed_rows(struct forward *f, uint32_t from, uint32_t to)
{
    const struct model_params *p = &f->m->params;
    for (uint32_t r = from; r < to; r++) {
        kernel_dequant_packed(&f->m->embd, f->plan->rows[r].token, f->x + (size_t)r * p->n_embd);
        rope_angles(f->m, f->plan->rows[r].pos, f->angles + (size_t)r * p->rope_dim);
    }
}

/* The wanted rows through the final norm into the head's form, and into hidden rows if asked for.
 */
static void finish_rows(struct forward *f, float *scratch, uint32_t from, uint32_t to)
{
    const struct model_params *p = &f->m->params;
    enum kernel_form form = f->m->kernel->form(f->m->head.type, f->n_wanted);
    keep_hidden(f, p->n_layers, f->x, from, to);
    for (uint32_t r = from; r < to; r++) {
        f->m->kernel->rmsnorm(f->x + (size_t)r * p->n_embd, f->m->out_norm, p->n_embd, p->norm_eps,
                              scratch);
        for (uint32_t h = 0; h < f->n_hidden; h++)
            if (f->hidden_layers[h] == p->n_layers + 1)
                memcpy(f->hidden + ((size_t)h * f->opt.max_rows + r) * p->n_embd, scratch,
                       p->n_embd * sizeof(float));
        if (f->logit_row[r] != NO_LOGITS)
            f->m->kernel->prepare(form, scratch, p->n_embd, f->logit_row[r], f->n_wanted,
                                  f->act[form], f->act_bytes[form]);
    }
}

/* One layer is one straight story: attention onto x, then the feed-forward block onto x. */
static void run_layer(struct forward *f, const struct part *t, uint32_t l)
{
    const struct model_params *p = &f->m->params;
    const struct model_layer *w = &f->m->layers[l];
    uint32_t a, b;

    keep_hidden(f, l, f->x, t->from, t->to);
    norm_rows(f, t, w->attn_norm, (const struct kernel_mat *[]){&w->q, &w->k, &w->v}, 3);
    wait_for_rows(f);
    apply_all(f, t, (const struct kernel_mat *[]){&w->q, &w->k, &w->v},
              (float *[]){f->q, f->k, f->v}, 3);
    wait_for_all(f);
    pool_slice(t->i, t->n, f->n_rows * p->n_kv_heads, 1, &a, &b);
    for (uint32_t item = a; item < b; item++)
        finish_group(f, l, item / p->n_kv_heads, item % p->n_kv_heads);
    wait_for_all(f);
    attend_share(f, l, t->scratch, t->i, t->n);
    wait_for_all(f);
    prepare_rows(f, t, &w->o, f->attn);
    wait_for_rows(f);
    apply_and_add(f, t, &w->o);
    wait_for_all(f);

    norm_rows(f, t, w->ffn_norm, (const struct kernel_mat *[]){&w->gate, &w->up}, 2);
    wait_for_rows(f);
    columns_of(t, &w->gate, &a, &b);
    apply(f, t, &w->gate, f->ff, f->n_rows, a, b);
    apply(f, t, &w->up, f->up, f->n_rows, a, b);
    for (uint32_t r = 0; r < f->n_rows && a < b; r++)
        f->m->kernel->swiglu(f->ff + (size_t)r * p->n_ff + a, f->up + (size_t)r * p->n_ff + a,
                             b - a, f->ff + (size_t)r * p->n_ff + a);
    wait_for_all(f);
    prepare_rows(f, t, &w->down, f->ff);
    wait_for_rows(f);
    apply_and_add(f, t, &w->down);
    wait_for_all(f);
}

static void run_pass(void *arg, unsigned i, unsigned n)
{
    struct forward *f = arg;
    struct part t = {.i = i, .n = n, .scratch = f->scratch + i * f->scratch_floats};
    uint32_t a, b;
    kernel_thread_init();
    pool_slice(i, n, f->n_rows, 1, &t.from, &t.to);
    for (int form = 0; form < KERNEL_FORMS; form++)
        t.act[form] = f->act[form] + (f->few ? i * FEW_ROWS * f->act_bytes[form] : 0);
    embed_rows(f, t.from, t.to);
    if (f->few)
        wait_for_all(f);
    for (uint32_t l = 0; l < f->m->params.n_layers; l++)
        run_layer(f, &t, l);
    finish_rows(f, t.scratch, t.from, t.to);
    wait_for_all(f);
    memcpy(t.act, f->act, sizeof(t.act)); // the wanted rows
    columns_of(&t, &f->m->head, &a, &b);
    if (f->n_wanted)
        apply(f, &t, &f->m->head, f->logits, f->n_wanted, a, b);
}

void forward_run(struct forward *f, const struct pass_plan *plan)
{
    uint32_t n_rows = plan->n_rows;
    assert(n_rows <= f->opt.max_rows);
    f->plan = plan;
    f->n_rows = n_rows;
    look_at_rows(f);
    f->alone = is_small(f);
    f->few = n_rows <= FEW_ROWS;
    if (n_rows && f->alone)
        run_pass(f, 0, 1);
    else if (n_rows)
        pool_run(f->pool, run_pass, f);
}

const float *forward_logits(const struct forward *f, uint32_t i)
{
    assert(i < f->n_rows && f->logit_row[i] != NO_LOGITS);
    return f->logits + (size_t)f->logit_row[i] * f->m->params.n_vocab;
}

const float *forward_hidden(const struct forward *f, uint32_t n, uint32_t i)
{
    assert(n < f->n_hidden && i < f->n_rows);
    return f->hidden + ((size_t)n * f->opt.max_rows + i) * f->m->params.n_embd;
}
