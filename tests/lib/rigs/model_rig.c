/* model_rig.c - opens a model for tests and benchmarks. */
#include <stdio.h>
#include <string.h>
#include "base/err.h"
#include "lib/lib.h"
#include "lib/rigs/model_rig.h"

static void must(int r, const char *what)
{
    if (r < 0) {
        fprintf(stderr, "%s: %s\n", what, fail_text());
        abort();
    }
}

static void build(struct model_rig *r, const struct model_rig_options *opt)
{
    const struct kernel *kernel = opt->tier ? kernel_tier(opt->tier) : NULL;
    if (!kernel)
        must(kernel_init(&kernel), "kernel_init");
    r->max_rows = opt->max_rows ? opt->max_rows : 64;
    r->pool = opt->pool;
    r->has_own_pool = !opt->pool;
    if (r->has_own_pool)
        must(pool_new(opt->n_threads ? opt->n_threads : 1, opt->pin, &r->pool), "pool_new");
    must(model_plan(r->file, MODEL_AS_FILE, &r->model), "model_plan");
    must(model_load(r->model, &(struct model_load_options){.pool = r->pool, .kernel = kernel}),
         "model_load");
    must(tune_model(r->model, r->pool, NULL, &r->tune), "tune_model");
    const struct kv_shape shape = model_kv_shape(r->model, opt->kv_type);
    must(kv_new(&shape, opt->n_blocks ? opt->n_blocks : 128, &r->kv), "kv_new");
    if (kv_bytes_state(&shape))
        must(kv_open_states(r->kv, MODEL_RIG_MAX_SEQS), "kv_open_states");
    must(forward_new(r->model, kv_bytes_of(r->kv), r->pool,
                     &(struct forward_options){.max_rows = r->max_rows,
                                               .max_logits = r->max_rows,
                                               .alone_bytes = opt->may_be_alone ? 0 : 1,
                                               .blas = opt->blas},
                     &r->forward),
         "forward_new");
    must(pass_plan_init(&r->plan, r->max_rows, MODEL_RIG_MAX_SEQS, kv_n_blocks(r->kv) * KV_BLOCK),
         "pass_plan_init");
}

void model_rig_open(struct model_rig *r, const char *path, const struct model_rig_options *opt)
{
    *r = (struct model_rig){0};
    must(checkpoint_open(path, &r->file), path);
    build(r, opt);
}

void model_rig_open_memory(struct model_rig *r, const void *data, size_t len,
                           const struct model_rig_options *opt)
{
    *r = (struct model_rig){0};
    must(checkpoint_open_memory(data, len, &r->file), "checkpoint_open_memory");
    build(r, opt);
}

void model_rig_close(struct model_rig *r)
{
    pass_plan_done(&r->plan);
    forward_free(r->forward);
    kv_free(r->kv);
    model_free(r->model);
    if (r->has_own_pool)
        pool_free(r->pool);
    checkpoint_close(r->file);
}

struct kv_seq model_rig_seq(const struct model_rig *r)
{
    struct kv_seq seq;
    must(kv_seq_init(&seq, kv_n_blocks(r->kv) * KV_BLOCK), "kv_seq_init");
    return seq;
}

static void feed_chunk(struct model_rig *r, struct kv_seq *seq, const uint32_t *tokens, uint32_t n,
                       float *logits)
{
    size_t n_vocab = r->model->params.n_vocab;
    uint32_t at = seq->len;
    must(kv_grow(r->kv, seq, n), "kv_grow");
    pass_plan_clear(&r->plan);
    pass_plan_add_chain(&r->plan, pass_plan_add_seq(&r->plan, seq, 0), tokens, at, n,
                        logits ? n : 0);
    forward_run(r->forward, &r->plan);
    for (uint32_t i = 0; i < n && logits; i++)
        memcpy(logits + i * n_vocab, forward_logits(r->forward, i), n_vocab * sizeof(*logits));
}

void model_rig_feed(struct model_rig *r, struct kv_seq *seq, const uint32_t *tokens, uint32_t n,
                    uint32_t chunk, float *logits)
{
    chunk = chunk && chunk < r->max_rows ? chunk : r->max_rows;
    for (uint32_t i = 0; i < n; i += chunk)
        feed_chunk(r, seq, tokens + i, n - i < chunk ? n - i : chunk,
                   logits ? logits + (size_t)i * r->model->params.n_vocab : NULL);
}

const float *model_rig_step(struct model_rig *r, struct kv_seq *seq, uint32_t token)
{
    uint32_t at = seq->len;
    must(kv_grow(r->kv, seq, 1), "kv_grow");
    pass_plan_clear(&r->plan);
    pass_plan_add_chain(&r->plan, pass_plan_add_seq(&r->plan, seq, 0), &token, at, 1, 1);
    forward_run(r->forward, &r->plan);
    return forward_logits(r->forward, 0);
}
