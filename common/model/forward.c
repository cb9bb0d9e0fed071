/* forward.c - one pass: the threads of the pool walk the layers together, a barrier after each
 * step.
 *
 * A layer is two sublayers, attention and feed-forward. Each kind of them has one file and one
 * table of functions (forward_impl.h); forward_step.c has the steps that they share. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include "base/err.h"
#include "base/minmax.h"
#include "model/forward_impl.h"
#include "model/rope.h"

#define MAX_ROWS 65536

static const struct sublayer_ops *const attn_kinds[] = {
    [MODEL_ATTN_FULL] = &attn_full, [MODEL_ATTN_DELTA] = &attn_delta};
static const struct sublayer_ops *const ffn_kinds[] = {
    [MODEL_FFN_DENSE] = &ffn_dense, [MODEL_FFN_EXPERTS] = &ffn_experts};

/* ---- buffers ---- */

/* The next `n` items of `size` bytes; with no memory yet it only counts. */
static void *carve(struct forward *f, size_t n, size_t size)
{
    void *at = f->memory ? (char *)f->memory + f->bytes : NULL;
    f->bytes += forward_rounded(n * size);
    return at;
}

static void need_form(struct forward *f, enum kernel_form form, const struct kernel_mat *w)
{
    size_t bytes = forward_rounded(kernel_form_bytes(form, w->n_in));
    f->act_bytes[form] = max_size(bytes, f->act_bytes[form]);
}

void forward_need_matrix(struct forward *f, const struct kernel_mat *w)
{
    need_form(f, kernel_form_of(w->type), w);
    need_form(f, f->m->kernel->form(w->type, f->opt.max_rows), w);
    if (f->opt.blas)
        forward_need_scratch(f, kernel_blas_floats(w));
}

void forward_need_scratch(struct forward *f, size_t floats)
{
    size_t whole = forward_rounded(floats * sizeof(float)) / sizeof(float);
    f->scratch_floats = max_size(whole, f->scratch_floats);
}

/* A pass has one set of buffers for all layers, so each is as large as the largest layer needs. */
static void plan_layers(struct forward *f)
{
    forward_need_matrix(f, &f->m->head);
    forward_need_scratch(f, f->m->params.n_embd);
    for (uint32_t l = 0; l < f->m->params.n_layers; l++) {
        const struct model_layer *w = &f->m->layers[l];
        const struct sublayer_ops *attn = attn_kinds[w->attn.kind], *ffn = ffn_kinds[w->ffn.kind];
        attn->plan(f, w);
        ffn->plan(f, w);
        f->attn_bytes = max_size(attn->bytes(f, w), f->attn_bytes);
        f->ffn_bytes = max_size(ffn->bytes(f, w), f->ffn_bytes);
    }
}

static void carve_all(struct forward *f)
{
    const struct model_params *p = &f->m->params;
    size_t n = f->opt.max_rows;
    f->bytes = 0;
    f->x = carve(f, n * p->n_embd, sizeof(float));
    f->attn_work = carve(f, f->attn_bytes, 1);
    f->ffn_work = carve(f, f->ffn_bytes, 1);
    f->out = carve(f, n * p->n_embd, sizeof(float));
    f->angles = carve(f, n * p->rope_dim, sizeof(float));
    size_t few = (size_t)FORWARD_FEW_ROWS * pool_threads(f->pool);
    size_t many = (n + KERNEL_ROWS - 1) / KERNEL_ROWS * KERNEL_ROWS;
    for (int form = 0; form < KERNEL_FORMS; form++)
        f->act[form] = carve(f, max_size(many, few), f->act_bytes[form]);
    f->logits = carve(f, (size_t)f->opt.max_logits * p->n_vocab, sizeof(float));
    f->logit_row = carve(f, n, sizeof(uint32_t));
    f->sights = carve(f, n, sizeof(struct kernel_sight));
    f->tails = carve(f, n * FORWARD_MAX_DEPTH, sizeof(uint32_t));
    f->cost = carve(f, n + 1, sizeof(uint64_t));
    f->window_cost = carve(f, n + 1, sizeof(uint64_t));
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
        return fail(-EINVAL, "forward: the key/value cache does not have the shape of the model");
    return 0;
}

size_t forward_bytes(const struct model *m, struct pool *pool, const struct forward_options *opt)
{
    struct forward f = {.m = m, .pool = pool, .opt = *opt};
    plan_layers(&f);
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
    plan_layers(f);
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

/* True: one thread is faster than all. See FORWARD_ALONE_BYTES. */
static bool is_small(const struct forward *f)
{
    size_t limit = f->opt.alone_bytes ? f->opt.alone_bytes : FORWARD_ALONE_BYTES;
    return f->m->bytes < limit && f->m->bytes * (16 + f->n_rows) / 16 < limit;
}

/* Which positions row i sees. Rows of a chain and the last committed token see storage rows in
 * order. A row of a tree sees those of its parent, and itself. */
static void set_sight(struct forward *f, uint32_t i)
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

/* What every thread reads of the plan: sights, costs of attention, rows of logits. */
static void read_plan(struct forward *f)
{
    const uint32_t window = f->m->params.window;
    f->n_wanted = 0;
    f->cost[0] = f->window_cost[0] = 0;
    for (uint32_t i = 0; i < f->n_rows; i++) {
        const struct pass_row *r = &f->plan->rows[i];
        assert(r->token < f->m->params.n_vocab && r->index < f->plan->seqs[r->seq].len);
        set_sight(f, i);
        const uint32_t n_seen = f->sights[i].n_base + f->sights[i].n_tail;
        f->cost[i + 1] = f->cost[i] + n_seen + KV_BLOCK;
        f->window_cost[i + 1] = f->window_cost[i] + min_u32(n_seen, window) + KV_BLOCK;
        f->logit_row[i] = FORWARD_NO_LOGITS;
        if (r->wants_logits) {
            assert(f->n_wanted < f->opt.max_logits);
            f->logit_row[i] = f->n_wanted++;
        }
    }
}

/* ---- the pass, on thread i of n ---- */

static void keep_hidden(struct forward *f, uint32_t layer, const float *x, uint32_t from,
                        uint32_t to)
{
    size_t n = f->m->params.n_embd;
    for (uint32_t h = 0; h < f->n_hidden; h++)
        if (f->hidden_layers[h] == layer && from < to)
            memcpy(f->hidden + ((size_t)h * f->opt.max_rows + from) * n, x + from * n,
                   (to - from) * n * sizeof(float));
}

/* Embeddings of rows [from, to) into x, and the angles of their positions. */
static void embed_rows(struct forward *f, uint32_t from, uint32_t to)
{
    const struct model_params *p = &f->m->params;
    for (uint32_t r = from; r < to; r++) {
        kernel_dequant_packed(&f->m->embd, f->plan->rows[r].token, f->x + (size_t)r * p->n_embd);
        rope_angles(f->m, f->plan->rows[r].pos, f->angles + (size_t)r * p->rope_dim);
    }
}

/* The final norm. Rows that want logits go into the head's form. */
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
        if (f->logit_row[r] != FORWARD_NO_LOGITS)
            f->m->kernel->prepare(form, scratch, p->n_embd, f->logit_row[r], f->n_wanted,
                                  f->act[form], f->act_bytes[form]);
    }
}

/* One layer: attention adds to x, then feed-forward does. Both end with a barrier. */
static void run_layer(struct forward *f, const struct forward_part *t, uint32_t l)
{
    const struct model_layer *w = &f->m->layers[l];
    keep_hidden(f, l, f->x, t->from, t->to);
    attn_kinds[w->attn.kind]->run(f, t, l);
    ffn_kinds[w->ffn.kind]->run(f, t, l);
}

/* Thread i of n runs the whole pass: embed its rows, every layer, then its columns of the head. */
static void run_pass(void *arg, unsigned i, unsigned n)
{
    struct forward *f = arg;
    struct forward_part t = {.i = i, .n = n, .scratch = f->scratch + i * f->scratch_floats};
    uint32_t a, b;
    kernel_thread_init();
    pool_slice(i, n, f->n_rows, 1, &t.from, &t.to);
    for (int form = 0; form < KERNEL_FORMS; form++)
        t.act[form] = f->act[form] + (f->few ? i * FORWARD_FEW_ROWS * f->act_bytes[form] : 0);
    embed_rows(f, t.from, t.to);
    if (f->few)
        forward_wait(f);
    for (uint32_t l = 0; l < f->m->params.n_layers; l++)
        run_layer(f, &t, l);
    finish_rows(f, t.scratch, t.from, t.to);
    forward_wait(f);
    memcpy(t.act, f->act, sizeof(t.act)); // the wanted rows
    forward_columns(&t, &f->m->head, &a, &b);
    if (f->n_wanted)
        forward_apply(f, &t, &f->m->head, f->logits, f->n_wanted, a, b);
}

void forward_run(struct forward *f, const struct pass_plan *plan)
{
    uint32_t n_rows = plan->n_rows;
    assert(n_rows <= f->opt.max_rows);
    f->plan = plan;
    f->n_rows = n_rows;
    read_plan(f);
    f->alone = is_small(f);
    f->few = n_rows <= FORWARD_FEW_ROWS;
    if (n_rows && f->alone)
        run_pass(f, 0, 1);
    else if (n_rows)
        pool_run(f->pool, run_pass, f);
}

const float *forward_logits(const struct forward *f, uint32_t i)
{
    assert(i < f->n_rows && f->logit_row[i] != FORWARD_NO_LOGITS);
    return f->logits + (size_t)f->logit_row[i] * f->m->params.n_vocab;
}

const float *forward_hidden(const struct forward *f, uint32_t n, uint32_t i)
{
    assert(n < f->n_hidden && i < f->n_rows);
    return f->hidden + ((size_t)n * f->opt.max_rows + i) * f->m->params.n_embd;
}
