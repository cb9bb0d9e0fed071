/* runner.c - plans and loads a model within the available memory. */
#include <errno.h>
#include <stdio.h>
#include "base/err.h"
#include "base/log.h"
#include "base/minmax.h"
#include "model/mem_limit.h"
#include "model/runner.h"

#define LOGITS_BYTES (64u << 20) // for rows of logits beyond min_logits
#define MIN_BLOCKS 2             // of the KV pool
#define SHORT_CONTEXT 512        // positions that a pool of no set size must hold
#define BESIDE_BYTES (16u << 20)
/* Per thread: rows of the file that it packs, and the quantised result. */
#define BESIDE_THREAD_BYTES (2u << 20)

static uint32_t blocks_of(uint64_t positions)
{
    return (uint32_t)((positions + KV_BLOCK - 1) / KV_BLOCK);
}

static uint32_t logits_rows(const struct runner *r)
{
    uint32_t rows = LOGITS_BYTES / (r->model->params.n_vocab * (uint32_t)sizeof(float));
    if (rows < r->opt.min_logits)
        rows = r->opt.min_logits;
    return rows < r->opt.max_rows ? rows : r->opt.max_rows;
}

static struct forward_options forward_options(const struct runner *r)
{
    return (struct forward_options){
        .max_rows = r->opt.max_rows, .max_logits = r->max_logits, .blas = r->opt.blas};
}

static struct kv_shape kv_shape(const struct runner *r)
{
    return model_kv_shape(r->model, r->opt.kv_type);
}

/* Rows of a sequence's storage: those of a draft come after the context. */
static uint32_t seq_rows(const struct runner *r)
{
    return r->context + DRAFT_MAX_NODES;
}

/* ---- memory ---- */

size_t runner_bytes(const struct runner_memory *m)
{
    return m->weights + m->kv + m->states + m->activations + m->beside;
}

/* Blocks of the pool: kv_mib if it is set. Else enough for all sequences, at most a quarter of the
 * remaining memory, but at least a short context. refuse() reports a pool that then does not
 * fit. */
static uint64_t wanted_blocks(const struct runner *r, size_t block_bytes, size_t left)
{
    if (r->opt.kv_mib)
        return (r->opt.kv_mib << 20) / block_bytes;
    uint64_t all = (uint64_t)blocks_of(r->context) * r->opt.max_sequences;
    uint64_t quarter = left / 4 / block_bytes;
    uint64_t least = blocks_of(r->context < SHORT_CONTEXT ? r->context : SHORT_CONTEXT);
    quarter = quarter > least ? quarter : least;
    return all < quarter ? all : quarter;
}

static void choose_context(struct runner *r)
{
    r->context = r->opt.context ? r->opt.context : r->model->params.n_ctx_train;
    if (r->context > r->model->params.n_ctx_train)
        log_warn("context=%u is longer than the %u positions the model was trained for", r->context,
                 r->model->params.n_ctx_train);
}

/* Of the forward pass and its plan. */
static size_t activation_bytes(const struct runner *r)
{
    const struct forward_options fo = forward_options(r);
    return forward_bytes(r->model, r->pool, &fo) +
           pass_plan_bytes(r->opt.max_rows, r->opt.max_pass_seqs, seq_rows(r));
}

#define MIN_STATES 2 // one of a sequence, and a snapshot

/* States for all sequences and as many snapshots. Like the KV pool, at most a quarter of the
 * memory. Sets n_states; it stays 0 if no layer is recurrent. */
static void measure_states(struct runner *r, size_t left)
{
    const struct kv_shape shape = kv_shape(r);
    const size_t bytes = kv_bytes_state(&shape);
    if (!bytes)
        return;
    const size_t all = 2 * (size_t)r->opt.max_sequences, quarter = left / 4 / bytes;
    const size_t n = all < quarter ? all : quarter;
    r->n_states = n < MIN_STATES ? MIN_STATES : (uint32_t)n;
    r->memory.states = r->n_states * bytes;
    if (r->n_states < r->opt.max_sequences)
        log_warn("the memory holds %u states of recurrent layers, of %zu MiB each, so at most as "
                 "many sequences run at the same time",
                 r->n_states, bytes >> 20);
}

/* May reduce the context to the size of the pool. */
static int measure_kv(struct runner *r, size_t left)
{
    struct kv_shape shape = kv_shape(r);
    size_t block_bytes = kv_bytes_block(&shape);
    uint64_t blocks = wanted_blocks(r, block_bytes, left);
    r->n_blocks = blocks < KV_MAX_BLOCKS ? (uint32_t)blocks : KV_MAX_BLOCKS;
    if (r->n_blocks < MIN_BLOCKS)
        return fail(-ENOMEM, "the KV pool would hold %u blocks of %zu KiB; at least %d are needed",
                    r->n_blocks, block_bytes >> 10, MIN_BLOCKS);
    if (r->n_blocks < blocks_of(r->context)) { // one sequence must fit, or it cannot end
        r->context = r->n_blocks * KV_BLOCK;
        log_warn("the KV pool holds %u positions, which limits the context", r->context);
    }
    r->memory.kv = kv_pool_bytes(&shape, r->n_blocks);
    return 0;
}

static int refuse(const struct runner *r, size_t available, size_t promised)
{
    const struct runner_memory *m = &r->memory;
    const struct kv_shape shape = kv_shape(r);
    size_t all = runner_bytes(m), rest_mib = (all - m->kv) >> 20, available_mib = available >> 20;
    char advice[128] = "use a smaller model or type of weights", others[96] = "", states[64] = "";
    if (rest_mib + 1 + (m->kv / r->n_blocks * MIN_BLOCKS >> 20) < available_mib) {
        /* The blocks' part of the pool's memory, without their index. */
        double rows = (double)kv_bytes_block(&shape) * r->n_blocks / (double)m->kv;
        snprintf(advice, sizeof(advice), "%skv_mib=%zu would fit",
                 r->opt.prefix ? r->opt.prefix : "",
                 (size_t)(rows * (double)(available_mib - rest_mib - 1)));
    }
    if (m->states)
        snprintf(states, sizeof(states), "states of recurrent layers %zu, ", m->states >> 20);
    if (promised >> 20)
        snprintf(others, sizeof(others), " beside %zu that other services here have reserved",
                 promised >> 20);
    return fail(-ENOMEM,
                "not enough memory: %zu MiB needed (weights %zu, KV pool %zu, %sactivations %zu, "
                "other %zu), %zu MiB available%s; %s",
                all >> 20, m->weights >> 20, m->kv >> 20, states, m->activations >> 20,
                m->beside >> 20, available_mib, others, advice);
}

/* Weights that another service has in memory already. Pages of the file that nobody maps do not
 * count: Linux calls them available. */
static size_t shared_weights(const struct runner *r)
{
    size_t cached = model_cached_bytes(r->model, r->opt.weights_cache);
    size_t mapped = cached ? mem_limit_mapped("") : 0;
    return cached < mapped ? cached : mapped;
}

static unsigned n_dists(const struct runner *r)
{
    unsigned n = min_u32(r->opt.max_dists, RUNNER_MAX_DISTS);
    return max_u32(min_u32(n, pool_threads(r->pool)), 1);
}

/* Memory that the planned model and its sequences need, compared with the available memory. */
static int measure_memory(struct runner *r)
{
    struct runner_memory *m = &r->memory;
    size_t promised, available = mem_limit_available("", &promised);
    r->max_logits = logits_rows(r);
    const struct kv_shape shape = kv_shape(r);
    choose_context(r);
    m->weights = r->model->bytes - shared_weights(r);
    m->activations = activation_bytes(r);
    r->n_dists = n_dists(r);
    m->beside = BESIDE_BYTES + pool_threads(r->pool) * (size_t)BESIDE_THREAD_BYTES +
                r->n_dists * dist_bytes(r->opt.n_vocab);
    if (r->opt.beside)
        m->beside += r->opt.beside(r->opt.beside_arg, &shape);
    size_t taken = runner_bytes(m);
    size_t left = available > taken ? available - taken : 0;
    left = r->opt.memory_check ? left : available;
    measure_states(r, left);
    int err = measure_kv(r, left > m->states ? left - m->states : 0);
    if (err < 0)
        return err;
    m->activations = activation_bytes(r); // the context may be shorter now
    log_info("loading the model needed_mib=%zu weights_mib=%zu kv_mib=%zu states_mib=%zu "
             "activations_mib=%zu available_mib=%zu promised_mib=%zu",
             runner_bytes(m) >> 20, m->weights >> 20, m->kv >> 20, m->states >> 20,
             m->activations >> 20, available >> 20, promised >> 20);
    return r->opt.memory_check && runner_bytes(m) > available ? refuse(r, available, promised) : 0;
}

/* ---- loading ---- */

static int check_vocabulary(const struct runner *r)
{
    if (r->opt.n_vocab <= r->model->params.n_vocab)
        return 0;
    return fail(-EINVAL, "the tokenizer has %u tokens, but the model has only %u", r->opt.n_vocab,
                r->model->params.n_vocab);
}

int runner_plan(struct runner *r, const struct checkpoint *c, const struct runner_options *opt)
{
    *r = (struct runner){.opt = *opt};
    int err = kernel_init(&r->kernel);
    if (!err)
        err = pool_new(opt->threads, opt->pin, &r->pool);
    if (!err)
        err = model_plan(c, opt->quantise, &r->model);
    if (!err)
        err = check_vocabulary(r);
    if (err < 0)
        return err;
    r->model->kernel = r->kernel; // it decides the forms of activations, so their bytes
    return measure_memory(r);
}

static void log_walks(const struct tune *t)
{
    for (uint32_t i = 0; i < t->n; i++) {
        const struct tune_choice *c = &t->of[i];
        log_info("kernel walk type=%s n_out=%u n_in=%u one_row=%u:%u more_rows=%u:%u timed=%s",
                 kernel_type_name(c->type), c->n_out, c->n_in, c->one.n_streams, c->one.ahead,
                 c->more.n_streams, c->more.ahead, t->timed ? "yes" : "no");
    }
}

int runner_load(struct runner *r, bool (*progress)(void *arg, float done), void *arg)
{
    const struct kv_shape shape = kv_shape(r);
    const struct forward_options fo = forward_options(r);
    const struct model_load_options lo = {.pool = r->pool,
                                          .kernel = r->kernel,
                                          .progress = progress,
                                          .arg = arg,
                                          .cache = r->opt.weights_cache};
    /* First, so that other services see the reserved memory. */
    int err = kv_new(&shape, r->n_blocks, &r->kv);
    if (!err && r->n_states)
        err = kv_open_states(r->kv, r->n_states);
    if (!err)
        err = forward_new(r->model, kv_bytes_of(r->kv), r->pool, &fo, &r->forward);
    if (!err)
        err = pass_plan_init(&r->plan, r->opt.max_rows, r->opt.max_pass_seqs, seq_rows(r));
    if (!err)
        err = model_load(r->model, &lo);
    if (!err)
        err = tune_model(r->model, r->pool, r->opt.weights_cache, &r->tune);
    log_walks(&r->tune);
    for (unsigned i = 0; i < r->n_dists && !err; i++)
        err = dist_new(r->opt.n_vocab, r->kernel, &r->dists[i]);
    return err;
}

void runner_done(struct runner *r)
{
    for (unsigned i = 0; i < r->n_dists; i++)
        dist_free(r->dists[i]);
    pass_plan_done(&r->plan);
    forward_free(r->forward);
    kv_free(r->kv);
    model_free(r->model);
    pool_free(r->pool);
}
