/* prop_draft_model.c - drafts with a smaller model that has the target's vocabulary.
 *
 * Each sequence has KV rows for its context and for the tokens drafted after it. When the context
 * grows, rows of draft tokens that were committed stay, the others are dropped. Missing rows run in
 * the next draft's first pass: after a fully accepted draft these are its last token and the bonus
 * token. All sequences of one draft() call share the passes, so a batch costs little more
 * than one sequence.
 *
 * A long unread context is read in the background, in chunks of a few milliseconds while no Round
 * waits. The sequence has no draft until that is done. An ask waits for it if the reading takes at
 * most half of the ask's time. Otherwise it is answered immediately with `unread`: a verifier has
 * few Rounds in flight, and a waiting one prevents others from being sent.
 *
 * KV comes from one pool. When it is full, sequences without a recent request lose their rows.
 * Their tokens stay stored, so their rows can be computed again. If every sequence had a recent
 * request, there is no draft. Later sequences of the same tenant reuse full blocks of a common
 * prefix, until the pool needs these blocks.
 *
 * The confidence in a row is the model's highest probability there. It depends on the tokens before
 * that row's draw and not on the draw. So it may end a draft and estimate survival in every q mode.
 * (Leviathan, Kalman, Matias 2023 assume that tokens are not dropped because of what was drawn.)
 *
 * Memory per token: the model's KV for sequences in use, none for others. Penalties need counts: 25
 * to 35 bytes more per token, for at most as many tokens as the vocabulary has.
 *
 * This file opens the model. The others:
 *   draft_model_rows.c   sequences, their KV rows, and eviction
 *   draft_model_feed.c   reading of long contexts
 *   draft_model_step.c   drafts after the committed tokens
 *   draft_model_ahead.c  drafts after tokens that are being verified
 *   draft_model_draw.c   from logits to a token and its q
 *   draft_model_impl.h   what they share */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/svc.h"
#include "proposer-svc/draftmodel/draft_model_impl.h"
#include "proposer-svc/draftmodel/prop_draft_model.h"

#define POOL_SEQUENCES 16          // whole contexts in a pool whose size is not configured
#define SHOW_US 1000000            // between two progress reports
#define LOADING_EXTEND_US 30000000 // start-up time that each report asks systemd for

struct prop_draft_model_settings prop_draft_model_settings;

static const struct conf_option options[] = {
    {.name = "draft.model",
     .kind = CONF_TEXT,
     .value = &prop_draft_model_settings.model,
     .alias = "model_draft|speculative_model",
     .help = "GGUF file of the draft model; its vocabulary must be the target's"},
    {.name = "draft.context",
     .kind = CONF_INT,
     .value = &prop_draft_model_settings.context,
     .fallback = "0",
     .min = 0,
     .max = 1 << 24,
     .alias = "ctx_size_draft",
     .help = "longest context, in tokens; longer sequences get no drafts; 0: the draft model's "
             "training context"},
    {.name = "draft.kv_mib",
     .kind = CONF_INT,
     .value = &prop_draft_model_settings.kv_mib,
     .fallback = "0",
     .min = 0,
     .max = 1 << 24,
     .help = "memory of the draft model's KV pool, in MiB; 0: for 16 whole contexts, at most a "
             "quarter of the memory that the draft model leaves free"},
    {.name = "draft.kv_type",
     .kind = CONF_CHOICE,
     .value = &prop_draft_model_settings.kv_type,
     .fallback = "int8",
     .choices = "int8|f16|f32",
     .help = "type of the draft model's stored K and V; see the verifier's kv_type"},
    {.name = "draft.weights_cache",
     .kind = CONF_TEXT,
     .value = &prop_draft_model_settings.weights_cache,
     .fallback = "",
     .help = "folder for the draft model's packed weights; see the verifier's weights_cache"},
    {.name = "draft.memory_check",
     .kind = CONF_BOOL,
     .value = &prop_draft_model_settings.memory_check,
     .fallback = "true",
     .help = "refuse to load a draft model that needs more memory than is available"},
    {.name = "draft.p_min",
     .kind = CONF_FLOAT,
     .value = &prop_draft_model_settings.p_min,
     .fallback = "0",
     .min = 0,
     .max = 1,
     .alias = "draft_p_min",
     .help = "a draft ends where the draft model's highest probability is below this"},
    {.name = "draft.quantize",
     .kind = CONF_CHOICE,
     .value = &prop_draft_model_settings.quantise,
     .fallback = "no",
     .choices = "no|q8_0|q4_0",
     .help = "round larger weight types to this one at load; works for any model, also for the "
             "target itself as a faster draft model"},
    {.name = "draft.float_gemm",
     .kind = CONF_CHOICE,
     .value = &prop_draft_model_settings.float_gemm,
     .fallback = "own",
     .choices = "own|blas",
     .help = "backend of the draft model's float matrices; see the verifier's float_gemm"},
    {.name = "draft.sparse_k",
     .kind = CONF_INT,
     .value = &prop_draft_model_settings.sparse_k,
     .fallback = "64",
     .min = 1,
     .max = 256,
     .help = "tokens in a sparse q, 6 bytes each"},
    {.name = "draft.threads",
     .kind = CONF_INT,
     .value = &prop_draft_model_settings.threads,
     .fallback = "0",
     .min = 0,
     .max = 256,
     .alias = "threads_draft",
     .help = "threads of the draft model's passes; 0: one per usable core"},
    {.name = "draft.pin",
     .kind = CONF_BOOL,
     .value = &prop_draft_model_settings.pin,
     .fallback = "true",
     .help = "bind these threads to cores"},
};

/* ---- loading ---- */

static bool show_progress(void *arg, float done)
{
    struct draft_model *d = arg;
    int64_t now_us = clock_us();
    svc_watchdog();
    if (now_us >= d->show_us) {
        svc_extend(LOADING_EXTEND_US);
        svc_status("loading the draft model: %d %%", (int)(done * 100));
        log_info("loading the draft model percent=%d", (int)(done * 100));
        d->show_us = now_us + SHOW_US;
    }
    return svc_wait_signal(0) == 0;
}

/* Reads the parts of the vocabulary that drafts need. Ids after the last used one are never
 * drafted, because a target with the same digest may not have them. */
static int read_vocabulary(struct draft_model *d, const struct checkpoint *c, uint32_t *ret_n_used)
{
    AUTO(tok_free) struct tok *tok = NULL;
    const uint32_t *eos;
    int r = tok_new(c, &tok);
    if (r < 0)
        return r;
    d->vocab_digest = tok_digest(tok);
    d->n_eos = tok_eos_ids(tok, &eos);
    memcpy(d->eos, eos, d->n_eos * sizeof(*eos));
    *ret_n_used = tok_n_used(tok);
    return 0;
}

static int quantise_type(const char *name)
{
    return strcmp(name, "q8_0") == 0   ? (int)KERNEL_Q8_0
           : strcmp(name, "q4_0") == 0 ? (int)KERNEL_Q4_0
                                       : MODEL_AS_FILE;
}

static int load_model(struct draft_model *d, const struct prop_draft_model_settings *set)
{
    AUTO(checkpoint_close) struct checkpoint *c = NULL;
    int64_t start_us = clock_us();
    d->show_us = start_us + SHOW_US;
    struct runner_options opt = {.prefix = "draft.",
                                 .threads = (unsigned)set->threads,
                                 .pin = set->pin,
                                 .memory_check = set->memory_check,
                                 .quantise = quantise_type(set->quantise),
                                 .blas = strcmp(set->float_gemm, "blas") == 0,
                                 .weights_cache = set->weights_cache,
                                 .context = (uint32_t)set->context,
                                 .kv_mib = (uint64_t)set->kv_mib,
                                 .max_sequences = POOL_SEQUENCES,
                                 .max_rows = ROWS_MAX,
                                 .max_pass_seqs = GROUP_MAX,
                                 .min_logits = GROUP_MAX};
    kernel_kv_type(set->kv_type, &opt.kv_type);
    int r = checkpoint_open(set->model, &c);
    if (r == 0)
        r = read_vocabulary(d, c, &opt.n_vocab);
    if (r == 0)
        r = runner_plan(&d->run, c, &opt);
    if (r == 0 && d->run.n_states) // drafts are dropped at any row, where a state cannot return
        r = fail(-ENOTSUP, "%s: a draft model with recurrent layers (%s) is not supported",
                 set->model, d->run.model->params.architecture);
    if (r == 0)
        r = runner_load(&d->run, show_progress, d);
    if (r == 0)
        r = kv_open_index(d->run.kv, 0, kv_hash);
    d->adjusted = malloc(opt.n_vocab * sizeof(*d->adjusted));
    d->ban_mask = malloc(dist_mask_words(opt.n_vocab) * sizeof(*d->ban_mask));
    if (r == 0 && (!d->adjusted || !d->ban_mask))
        r = fail(-ENOMEM, "draft: no memory");
    if (r < 0)
        return r;
    log_info("draft model ready name=%s arch=%s weights_mib=%zu kv_positions=%u context=%u "
             "kernel=%s threads=%u s=%.1f",
             d->name, d->run.model->params.architecture, d->run.model->bytes >> 20,
             d->run.n_blocks * KV_BLOCK, d->run.context, d->run.kernel->name,
             pool_threads(d->run.pool), (double)(clock_us() - start_us) / 1e6);
    return 0;
}

static void draft_close(void *shared)
{
    struct draft_model *d = shared;
    runner_done(&d->run);
    free(d->adjusted);
    free(d->ban_mask);
    free(d->name);
    free(d);
}

static int draft_open(void **ret_shared)
{
    const struct prop_draft_model_settings *set = &prop_draft_model_settings;
    if (!set->model)
        return fail(-EINVAL, "draft.model is missing: the GGUF file of the draft model");
    struct draft_model *d = calloc(1, sizeof(*d));
    if (!d)
        return fail(-ENOMEM, "draft: no memory");
    const char *slash = strrchr(set->model, '/');
    d->name = strdup(slash ? slash + 1 : set->model);
    d->p_min = (float)set->p_min;
    d->sparse_k = (uint32_t)set->sparse_k;
    d->key = rng_secret();
    int r = d->name ? load_model(d, set) : fail(-ENOMEM, "draft: no memory");
    if (r < 0) {
        draft_close(d);
        return r;
    }
    *ret_shared = d;
    return 0;
}

static void draft_about(void *shared, struct prop_about *to)
{
    const struct draft_model *d = shared;
    *to = (struct prop_about){.model = d->name,
                              .vocab_digest = d->vocab_digest,
                              .max_context = d->run.context,
                              .q_modes = 1u << DRAFT_POINT | 1u << DRAFT_COUPLED |
                                         1u << DRAFT_SPARSE | 1u << DRAFT_DENSE};
}

static void draft_draft(void *shared, struct prop_ask *const *asks, uint32_t n)
{
    struct draft_model *d = shared;
    draft_model_ahead_draft(d, asks, n);
    if (draft_model_step(d, asks, n)) // not if the contexts of all asks are still being read
        d->n_calls++;
}

const struct prop_ops prop_draft_model = {
    .name = "draft",
    .flags = PROP_OWN_THREAD,
    .seq_size = sizeof(struct draft_model_seq),
    .options = options,
    .n_options = ARRAY_LEN(options),
    .open = draft_open,
    .close = draft_close,
    .about = draft_about,
    .seq_done = draft_model_rows_seq_done,
    .cut = draft_model_rows_cut,
    .grow = draft_model_rows_seq_grow,
    .draft = draft_draft,
    .work = draft_model_feed_work,
};
