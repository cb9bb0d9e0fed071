/* prop_draft.c - a smaller model of the target's vocabulary says what comes next.
 *
 * Each sequence has rows of KV for its context and for what was drafted behind it. When the context
 * grows, rows of draft tokens that were committed stay, the others go; the rows that lack (after a
 * fully accepted draft its last token and the bonus) run in the next draft's first pass. All
 * sequences that are asked for together share the passes, so a batch costs hardly more than one.
 *
 * A sequence whose context is mostly unknown is fed in the background, a chunk of a few
 * milliseconds at a time while no Round waits, and has no draft until that is done. KV comes from
 * one pool: when it is used up, sequences that have not been asked for lately lose theirs (their
 * tokens are still known, so they are fed again), and without such a sequence there is no draft.
 * Full blocks of a context are found by later sequences of the same tenant that begin alike, as
 * long as nobody needs their room.
 *
 * The confidence in a row is the model's greatest probability there. It looks at the tokens before
 * that row's draw and never at the draw, so a draft may be ended and rated by it whatever the q
 * mode. (Which rows are dropped must not depend on the tokens drawn in them: Leviathan, Kalman,
 * Matias 2023 assume so.)
 *
 * Memory per token: that of the model's KV for the sequences in use, none for the others. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/svc.h"
#include "model/runner.h"
#include "proposer-svc/prop_draft.h"
#include "text/tok.h"

#define ROWS_MAX 256      // of a pass
#define GROUP_MAX 32      // sequences drafted for together
#define BRANCHES_MAX 6    // of a draft ahead; fewer if many share the passes
#define BRANCHES_TOP 3    // tokens of a row that may begin one
#define CATCH_UP 8        // rows that may lack for a draft to begin: GROUP_MAX times it is ROWS_MAX
#define POOL_SEQUENCES 16 // that a pool without a size of its own is made for
#define FEED_US 3000      // a chunk of context takes so long: what a Round may have to wait
#define FEED_ROWS_MIN 16
#define IDLE_CALLS 64          // a sequence not asked for in so many drafts may lose its KV
#define DENSE_MAX (224u << 10) // probabilities of a dense q: 896 KiB
#define SHOW_US 1000000
#define LOADING_EXTEND_US 30000000

struct prop_draft_settings prop_draft_settings;

static const struct conf_option options[] = {
    {.name = "draft.model",
     .kind = CONF_TEXT,
     .value = &prop_draft_settings.model,
     .alias = "model_draft|speculative_model",
     .help = "GGUF file of the draft model; its vocabulary is the target's"},
    {.name = "draft.context",
     .kind = CONF_INT,
     .value = &prop_draft_settings.context,
     .fallback = "0",
     .min = 0,
     .max = 1 << 24,
     .alias = "ctx_size_draft",
     .help = "tokens of a sequence, longer ones get no drafts; 0: what it was trained for"},
    {.name = "draft.kv_mib",
     .kind = CONF_INT,
     .value = &prop_draft_settings.kv_mib,
     .fallback = "0",
     .min = 0,
     .max = 1 << 24,
     .help = "memory of the draft model's KV pool in MiB; 0: for 16 whole contexts, at most a "
             "quarter of what it leaves free"},
    {.name = "draft.kv_type",
     .kind = CONF_CHOICE,
     .value = &prop_draft_settings.kv_type,
     .fallback = "int8",
     .choices = "int8|f16|f32",
     .help = "how the draft model's K and V are kept, as the verifier's kv_type"},
    {.name = "draft.memory_check",
     .kind = CONF_BOOL,
     .value = &prop_draft_settings.memory_check,
     .fallback = "true",
     .help = "refuse to load a draft model that would take more memory than is available"},
    {.name = "draft.p_min",
     .kind = CONF_FLOAT,
     .value = &prop_draft_settings.p_min,
     .fallback = "0",
     .min = 0,
     .max = 1,
     .alias = "draft_p_min",
     .help = "a draft ends where the model's greatest probability is below this"},
    {.name = "draft.quantize",
     .kind = CONF_CHOICE,
     .value = &prop_draft_settings.quantise,
     .fallback = "no",
     .choices = "no|q8_0|q4_0",
     .help = "round matrices of larger types to this one when they are loaded: any model, also the "
             "target itself, as a faster drafter"},
    {.name = "draft.float_gemm",
     .kind = CONF_CHOICE,
     .value = &prop_draft_settings.float_gemm,
     .fallback = "own",
     .choices = "own|blas",
     .help = "who multiplies matrices of floats, as the verifier's float_gemm"},
    {.name = "draft.sparse_k",
     .kind = CONF_INT,
     .value = &prop_draft_settings.sparse_k,
     .fallback = "64",
     .min = 1,
     .max = 256,
     .help = "tokens that a sparse q is over, 6 bytes each"},
    {.name = "draft.threads",
     .kind = CONF_INT,
     .value = &prop_draft_settings.threads,
     .fallback = "0",
     .min = 0,
     .max = 256,
     .alias = "threads_draft",
     .help = "threads of the draft model's passes; 0: one per core that may be used"},
    {.name = "draft.pin",
     .kind = CONF_BOOL,
     .value = &prop_draft_settings.pin,
     .fallback = "true",
     .help = "bind these threads to cores"},
};

/* One sequence. Rows [0, kv.len) are there; those behind the context are of draft tokens. */
struct draft_seq {
    struct draft_seq *newer, *older; // in the order of use
    struct draft_seq *next_fed;      // waits to be fed
    struct prop_context context;
    struct kv_seq kv; // blocks NULL: was never asked for
    uint64_t used;    // n_calls when it was asked for last
    bool is_fed;      // is in the list of those
    bool starved;     // there was no room for its rows
    bool is_foreign;  // from foreign_at on there are tokens that the model has not
    uint32_t foreign_at;
    uint32_t ahead_at;          // position of the last draft's first token
    uint32_t ahead[PROP_K_MAX]; // its tokens
    struct branches *branches;  // of drafting ahead; NULL: it never did
};

/* One way on from tokens that are being verified. */
struct branch {
    struct kv_seq kv; // shares its rows with the sequence's
    uint32_t node;    // of the draft: its last one
    uint32_t n;       // its nodes
    uint32_t row;     // of the pass
    bool going;
};

struct branches {
    bool begun; // there is an ask for them
    struct branch v[BRANCHES_MAX];
};

struct draft {
    struct runner run;
    char *name;
    uint64_t vocab_digest;
    uint32_t n_eos, eos[TOK_MAX_EOS];
    uint32_t sparse_k;
    float p_min;
    uint64_t key, n_draws;             // its own random numbers: no draw's counter comes again
    uint64_t n_calls;                  // in which an ask was done
    struct draft_seq *newest, *oldest; // those with a table of blocks
    struct draft_seq *first_fed;
    bool is_ahead;     // the last draft() left some that is made ahead to be gone on with
    float feed_row_us; // what a row of a chunk takes
    int64_t pass_us;   // of the last pass of drafts
    struct forward_row rows[ROWS_MAX];
    int64_t show_us; // when to say next how far loading is
};

/* ---- loading ---- */

static bool show_progress(void *arg, float done)
{
    struct draft *d = arg;
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

/* What is kept of the vocabulary. Ids behind the last used one are never drafted: a target with the
 * same digest may not have them. */
static int read_vocabulary(struct draft *d, const struct gguf *g, uint32_t *ret_n_used)
{
    AUTO(tok_free) struct tok *tok = NULL;
    const uint32_t *eos;
    int r = tok_new(g, &tok);
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

static int load(struct draft *d, const struct prop_draft_settings *set)
{
    AUTO(gguf_close) struct gguf *g = NULL;
    int64_t start_us = clock_us();
    d->show_us = start_us + SHOW_US;
    struct runner_options opt = {.prefix = "draft.",
                                 .threads = (unsigned)set->threads,
                                 .pin = set->pin,
                                 .memory_check = set->memory_check,
                                 .quantise = quantise_type(set->quantise),
                                 .blas = strcmp(set->float_gemm, "blas") == 0,
                                 .context = (uint32_t)set->context,
                                 .kv_mib = (uint64_t)set->kv_mib,
                                 .max_sequences = POOL_SEQUENCES,
                                 .max_rows = ROWS_MAX,
                                 .min_logits = GROUP_MAX};
    kernel_kv_type(set->kv_type, &opt.kv_type);
    int r = gguf_open(set->model, &g);
    if (r == 0)
        r = read_vocabulary(d, g, &opt.n_vocab);
    if (r == 0)
        r = runner_plan(&d->run, g, &opt);
    if (r == 0)
        r = runner_load(&d->run, show_progress, d);
    if (r == 0)
        r = kv_open_index(d->run.kv, 0, kv_hash);
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
    struct draft *d = shared;
    runner_done(&d->run);
    free(d->name);
    free(d);
}

static int draft_open(void **ret_shared)
{
    const struct prop_draft_settings *set = &prop_draft_settings;
    if (!set->model)
        return fail(-EINVAL, "draft.model is missing: the GGUF file of the draft model");
    struct draft *d = calloc(1, sizeof(*d));
    if (!d)
        return fail(-ENOMEM, "draft: no memory");
    const char *slash = strrchr(set->model, '/');
    d->name = strdup(slash ? slash + 1 : set->model);
    d->p_min = (float)set->p_min;
    d->sparse_k = (uint32_t)set->sparse_k;
    if (getrandom(&d->key, sizeof(d->key), GRND_NONBLOCK) < 0)
        d->key = rng_splitmix64((uint64_t)clock_us() ^ (uintptr_t)d);
    int r = d->name ? load(d, set) : fail(-ENOMEM, "draft: no memory");
    if (r < 0) {
        draft_close(d);
        return r;
    }
    *ret_shared = d;
    return 0;
}

static void draft_about(void *shared, struct prop_about *to)
{
    const struct draft *d = shared;
    *to = (struct prop_about){.model = d->name,
                              .vocab_digest = d->vocab_digest,
                              .max_context = d->run.context,
                              .q_modes = 1u << PROP_POINT | 1u << PROP_COUPLED | 1u << PROP_SPARSE |
                                         1u << PROP_DENSE};
}

/* ---- sequences and their rows ---- */

static void unlink_use(struct draft *d, struct draft_seq *s)
{
    *(s->newer ? &s->newer->older : &d->newest) = s->older;
    *(s->older ? &s->older->newer : &d->oldest) = s->newer;
}

static void link_newest(struct draft *d, struct draft_seq *s)
{
    s->newer = NULL;
    s->older = d->newest;
    *(d->newest ? &d->newest->newer : &d->oldest) = s;
    d->newest = s;
}

/* It was asked for now. False: no memory. */
static bool touch(struct draft *d, struct draft_seq *s)
{
    if (s->kv.blocks)
        unlink_use(d, s);
    else if (kv_seq_init(&s->kv, d->run.context) < 0)
        return false;
    link_newest(d, s);
    s->used = d->n_calls;
    return true;
}

static void feed_later(struct draft *d, struct draft_seq *s)
{
    struct draft_seq **at = &d->first_fed;
    if (s->is_fed)
        return;
    while (*at)
        at = &(*at)->next_fed;
    *at = s;
    s->next_fed = NULL;
    s->is_fed = true;
}

static void stop_feeding(struct draft *d, struct draft_seq *s)
{
    struct draft_seq **at = &d->first_fed;
    if (!s->is_fed)
        return;
    while (*at != s)
        at = &(*at)->next_fed;
    *at = s->next_fed;
    s->is_fed = false;
}

static void draft_seq_done(void *shared, void *seq, const struct prop_context *c)
{
    struct draft *d = shared;
    struct draft_seq *s = seq;
    (void)c;
    stop_feeding(d, s);
    if (!s->kv.blocks)
        return;
    unlink_use(d, s);
    kv_seq_done(d->run.kv, &s->kv);
    for (uint32_t i = 0; s->branches && i < BRANCHES_MAX; i++)
        kv_seq_done(d->run.kv, &s->branches->v[i].kv);
    free(s->branches);
}

/* What was drafted ahead is of no use any more. */
static void drop_branches(struct draft *d, struct draft_seq *s)
{
    for (uint32_t i = 0; s->branches && i < BRANCHES_MAX; i++) {
        kv_keep(d->run.kv, &s->branches->v[i].kv, 0, NULL, 0);
        s->branches->v[i].going = false;
    }
    if (s->branches)
        s->branches->begun = false;
}

static void keep_rows(struct draft *d, struct draft_seq *s, uint32_t n)
{
    if (s->kv.len > n)
        kv_keep(d->run.kv, &s->kv, n, NULL, 0);
}

/* Room for n rows more, at the cost of sequences that idle. */
static bool grow_rows(struct draft *d, struct draft_seq *s, uint32_t n)
{
    struct draft_seq *v = d->oldest;
    while (kv_grow(d->run.kv, &s->kv, n) < 0) {
        while (v && (v == s || !v->kv.n_blocks))
            v = v->newer;
        if (!v || v->used + IDLE_CALLS > d->n_calls)
            return false;
        keep_rows(d, v, 0);
    }
    return true;
}

/* Rows of its context that another sequence of the tenant has left, as the last turn of a chat,
 * need not run again; and it leaves its own, of which all are committed, to others. */
static void share_rows(struct draft *d, struct draft_seq *s)
{
    const struct prop_context *c = &s->context;
    struct kv_root root = {c->tenant, c->tenant_len};
    if (!s->kv.len)
        kv_match(d->run.kv, &s->kv, &root, c->tokens, c->n - 1);
    kv_enter(d->run.kv, &s->kv, &root, c->tokens, s->kv.len);
}

static void draft_cut(void *shared, void *seq, const struct prop_context *c, uint32_t keep)
{
    struct draft_seq *s = seq;
    (void)c;
    drop_branches(shared, s);
    keep_rows(shared, s, keep);
    s->context.n = keep;
    s->is_foreign = s->is_foreign && s->foreign_at < keep;
}

/* A target may have tokens beyond the draft model's rows: behind one there are no drafts. */
static void find_foreign(const struct draft *d, struct draft_seq *s, const struct prop_context *c)
{
    for (uint32_t i = s->context.n; i < c->n && !s->is_foreign; i++) {
        s->is_foreign = c->tokens[i] >= d->run.model->params.n_vocab;
        s->foreign_at = i;
    }
}

/* Rows of draft tokens that were committed stay. */
static int draft_grow(void *shared, void *seq, const struct prop_context *c)
{
    struct draft_seq *s = seq;
    uint32_t at = s->context.n;
    find_foreign(shared, s, c);
    drop_branches(shared, s);
    while (at < c->n && at < s->kv.len && s->ahead[at - s->ahead_at] == c->tokens[at])
        at++;
    if (at < c->n)
        keep_rows(shared, s, at);
    s->context = *c;
    return 0;
}

/* ---- drafts ---- */

/* The next 64 random bits. */
static uint64_t bits(struct draft *d)
{
    uint64_t n = d->n_draws++;
    return rng_u64(d->key, RNG_PROPOSER, (uint32_t)n, (uint32_t)(n >> 32), 0);
}

/* The `width` likeliest tokens of the law, the likeliest first, ties to the lowest id; what it
 * lacks is filled up with tokens that cannot come. */
static void find_likeliest(const struct dist_law *law, uint32_t width, uint32_t *ids)
{
    uint32_t n = 0;
    for (uint32_t k = 0; k < law->n_kept; k++) {
        uint32_t id = law->kept[k], at;
        double w = law->weights[id];
        if (n == width && !(w > law->weights[ids[n - 1]]))
            continue;
        n += n < width;
        at = n - 1;
        for (; at && (w > law->weights[ids[at - 1]] ||
                      (w == law->weights[ids[at - 1]] && id < ids[at - 1]));
             at--)
            ids[at] = ids[at - 1];
        ids[at] = id;
    }
    for (uint32_t id = 0, n_law = n; n < width; id++) {
        uint32_t i = 0;
        while (i < n_law && ids[i] != id)
            i++;
        if (i == n_law)
            ids[n++] = id;
    }
}

/* A token drawn from integers that sum to 65536, each at least 1, which go to the row of q. */
static uint32_t draw_sparse(struct draft *d, const struct dist_law *law, const struct prop_q *q,
                            uint32_t row)
{
    uint32_t *ids = q->ids + (size_t)row * q->width;
    uint16_t *probs = q->probs + (size_t)row * q->width;
    uint32_t left = 65536 - q->width, pick = bits(d) >> 48;
    double sum = 0;
    find_likeliest(law, q->width, ids);
    for (uint32_t i = 0; i < q->width; i++)
        sum += law->weights[ids[i]];
    for (uint32_t i = q->width - 1; i > 0; i--) {
        probs[i] = (uint16_t)(law->weights[ids[i]] / sum * (65536 - q->width));
        left -= probs[i];
    }
    probs[0] = (uint16_t)left;
    for (uint32_t i = 0; i < q->width; i++) {
        if (pick <= probs[i])
            return ids[i];
        pick -= probs[i] + 1u;
    }
    return ids[0]; // not reached
}

/* A token drawn from the floats that go to the row of q. */
static uint32_t draw_dense(struct draft *d, const struct dist_law *law, const struct prop_q *q,
                           uint32_t row)
{
    float *probs = q->dense + (size_t)row * q->width;
    double sum = 0;
    uint32_t token = 0;
    for (uint32_t i = 0; i < q->width; i++) {
        probs[i] = (float)(law->weights[i] / law->sum);
        sum += (double)probs[i];
    }
    double pick = rng_uniform(bits(d)) * sum;
    for (uint32_t i = 0; i < q->width && pick >= 0; i++) {
        if (probs[i] > 0)
            token = i;
        pick -= (double)probs[i];
    }
    return token;
}

/* The ask's sampling parameters on these logits. */
static void set_law(struct draft *d, const struct prop_ask *ask, const float *logits)
{
    const struct prop_sampling *s = &ask->sampling;
    const struct dist_params p = {.temperature = s->temperature,
                                  .top_k = s->top_k,
                                  .top_p = s->top_p,
                                  .min_p = s->min_p,
                                  .repetition = 1};
    dist_set(d->run.dist, logits, &p, NULL);
}

/* The draft's next token, drawn as its mode says. */
static uint32_t draw_token(struct draft *d, const struct prop_ask *ask, const float *logits)
{
    uint32_t n = ask->to->n;
    set_law(d, ask, logits);
    if (ask->q_mode == PROP_COUPLED)
        return dist_draw(d->run.dist, ask->draw_key, ask->context.n + n);
    struct dist_law law = dist_law(d->run.dist);
    return ask->q_mode == PROP_SPARSE ? draw_sparse(d, &law, ask->to->q, n)
                                      : draw_dense(d, &law, ask->to->q, n);
}

static bool is_eos(const struct draft *d, uint32_t token)
{
    uint32_t i = 0;
    while (i < d->n_eos && d->eos[i] != token)
        i++;
    return i < d->n_eos;
}

/* Adds the token behind the row with these logits. False: the draft ends. */
static bool draw(struct draft *d, struct prop_ask *ask, const float *logits)
{
    struct prop_draft *to = ask->to;
    struct dist_top best;
    float logprob;
    dist_logprobs(d->run.dist, logits, 0, 1, &logprob, &best);
    float confidence = expf(best.logprob);
    if (!(confidence >= d->p_min))
        return false;
    uint32_t token = ask->q_mode == PROP_POINT ? best.token : draw_token(d, ask, logits);
    to->tokens[to->n] = token;
    to->survival[to->n] = confidence * (to->n ? to->survival[to->n - 1] : 1);
    to->n++;
    return to->n < ask->k && !is_eos(d, token); // behind an end there is another text
}

static uint32_t token_at(const struct draft_seq *s, uint32_t pos)
{
    return pos < s->context.n ? s->context.tokens[pos] : s->ahead[pos - s->ahead_at];
}

/* The rows [from, kv.len) of a sequence, which has grown by them, behind the n rows there are. */
static uint32_t add_rows(struct draft *d, const struct draft_seq *s, uint32_t from, uint32_t n)
{
    for (uint32_t pos = from; pos < s->kv.len; pos++)
        d->rows[n++] = (struct forward_row){
            .seq = &s->kv, .token = token_at(s, pos), .pos = pos, .index = pos, .parent = -1};
    return n;
}

struct going {
    struct prop_ask *ask;
    uint32_t row; // of the pass: where its next token is drawn
};

static void run_pass(struct draft *d, uint32_t n_rows)
{
    int64_t start_us = clock_us();
    forward_run(d->run.forward, d->rows, n_rows);
    d->pass_us = clock_us() - start_us;
}

/* One pass, and a token for each; those whose draft has ended leave. */
static uint32_t step(struct draft *d, struct going *group, uint32_t n_group)
{
    uint32_t n_rows = 0, n = 0;
    for (uint32_t i = 0; i < n_group; i++) {
        struct draft_seq *s = group[i].ask->seq;
        uint32_t to = s->context.n + group[i].ask->to->n, from = s->kv.len;
        if (!grow_rows(d, s, to - from))
            continue; // keeps what it has
        n_rows = add_rows(d, s, from, n_rows);
        d->rows[n_rows - 1].wants_logits = true;
        group[n++] = (struct going){group[i].ask, n_rows - 1};
    }
    if (!n)
        return 0;
    run_pass(d, n_rows);
    int64_t now_us = clock_us();
    n_group = n;
    n = 0;
    for (uint32_t i = 0; i < n_group; i++) {
        struct prop_ask *ask = group[i].ask;
        struct draft_seq *s = ask->seq;
        bool goes_on = draw(d, ask, forward_logits(d->run.forward, group[i].row));
        if (ask->to->n)
            s->ahead[ask->to->n - 1] = ask->to->tokens[ask->to->n - 1];
        if (goes_on && now_us + d->pass_us <= ask->until_us)
            group[n++] = group[i];
    }
    return n;
}

/* Room for the q of a draft. False: no memory. */
static bool add_q(const struct draft *d, struct prop_ask *ask)
{
    bool sparse = ask->q_mode == PROP_SPARSE;
    uint32_t width = d->run.opt.n_vocab;
    if (sparse && width > d->sparse_k)
        width = d->sparse_k;
    if (!sparse && ask->k > DENSE_MAX / width)
        ask->k = DENSE_MAX / width ? DENSE_MAX / width : 1;
    size_t n = (size_t)ask->k * width;
    struct prop_q *q = malloc(sizeof(*q) + n * (sizeof(*q->ids) + sizeof(*q->probs)));
    if (!q)
        return false;
    *q = (struct prop_q){.width = width, .ids = (uint32_t *)(q + 1)};
    q->probs = (uint16_t *)(q->ids + n);
    q->dense = (float *)(void *)q->ids;
    ask->to->q = q;
    return true;
}

/* True: the next pass may draft for it. Else it is done, or fed first. */
static bool is_ready(struct draft *d, struct prop_ask *ask)
{
    struct draft_seq *s = ask->seq;
    uint32_t n = ask->context.n;
    ask->to->n = 0;
    ask->to->tree = false;
    ask->to->q_mode = ask->q_mode;
    if (n == 0 || n >= d->run.context || s->starved || s->is_foreign ||
        ask->until_us <= clock_us() || !touch(d, s)) {
        s->starved = false;
        ask->done = true;
        return false;
    }
    if (ask->k > d->run.context - n)
        ask->k = d->run.context - n;
    keep_rows(d, s, n - 1); // the last token's row gives the first draw
    share_rows(d, s);
    s->ahead_at = n;
    if (n - s->kv.len > CATCH_UP) {
        feed_later(d, s);
        return false;
    }
    if ((ask->q_mode == PROP_SPARSE || ask->q_mode == PROP_DENSE) && !add_q(d, ask)) {
        ask->done = true;
        return false;
    }
    return true;
}

/* ---- drafts ahead ---- */

/* A token that may follow some of those that are being verified. */
struct chance {
    uint32_t token;
    int32_t parent; // as in the draft
    float here;     // that the model says it there
    float score;    // and that the verifier gets there
};

static bool may_go_on(const struct draft *d, const struct prop_ask *ask)
{
    return clock_us() + d->pass_us <= ask->until_us;
}

/* Room for branches, and for the rows of what is being verified. */
static bool is_ready_ahead(struct draft *d, struct prop_ask *ask)
{
    struct draft_seq *s = ask->seq;
    uint32_t n = ask->context.n, base = n - ask->n_verifying;
    ask->to->n = 0;
    ask->to->tree = true;
    ask->to->q_mode = ask->q_mode == PROP_COUPLED ? PROP_COUPLED : PROP_POINT;
    if (base == 0 || n + ask->k >= d->run.context || ask->n_verifying >= GROUP_MAX ||
        s->is_foreign || !may_go_on(d, ask) || !touch(d, s))
        return false;
    if (!s->branches && !(s->branches = calloc(1, sizeof(*s->branches))))
        return false;
    for (uint32_t i = 0; i < BRANCHES_MAX; i++) {
        struct kv_seq *kv = &s->branches->v[i].kv;
        if (!kv->blocks && kv_seq_init(kv, d->run.context) < 0)
            return false;
    }
    keep_rows(d, s, base - 1);
    return base - s->kv.len <= CATCH_UP;
}

/* Puts a chance among the n best, of which there may be so many; the first one stays where it is.
 */
static uint32_t add_chance(struct chance *best, uint32_t n, uint32_t most, const struct chance *c)
{
    if (n == most && (n == 1 || c->score <= best[n - 1].score))
        return n;
    uint32_t at = n < most ? n++ : n - 1;
    for (; at > 1 && best[at - 1].score < c->score; at--)
        best[at] = best[at - 1];
    best[at] = *c;
    return n;
}

/* What may follow: the draft's own next token first, then the model's likeliest others where a
 * token is rejected or behind the last. first: the row of the last committed token. Returns how
 * many of the `most` there are. */
static uint32_t find_chances(struct draft *d, const struct prop_ask *ask, uint32_t first,
                             uint32_t most, struct chance *best)
{
    uint32_t m = ask->n_verifying, n = 1;
    const uint32_t *verifying = ask->context.tokens + ask->context.n - m;
    float reach = 1;
    for (uint32_t i = 0; i <= m; i++) {
        struct dist_top top[BRANCHES_TOP];
        const float *logits = forward_logits(d->run.forward, first + i);
        float logprob;
        dist_logprobs(d->run.dist, logits, i < m ? verifying[i] : 0, BRANCHES_TOP, &logprob, top);
        uint32_t drafted = i < m ? verifying[i] : top[0].token;
        if (i == m && ask->q_mode == PROP_COUPLED) {
            set_law(d, ask, logits);
            drafted = dist_draw(d->run.dist, ask->draw_key, ask->context.n);
        }
        for (uint32_t t = 0; t < BRANCHES_TOP; t++) {
            struct chance c = {top[t].token, (int32_t)i - (int32_t)m - 1, expf(top[t].logprob), 0};
            c.score = reach * c.here;
            if (c.token != drafted)
                n = add_chance(best, n, most, &c);
        }
        reach *= expf(logprob);
        best[0] = (struct chance){drafted, -1, expf(top[0].logprob), 0};
    }
    return n;
}

static void add_node(const struct draft *d, struct prop_ask *ask, struct branch *b, uint32_t token,
                     int32_t parent, float survival)
{
    struct prop_draft *to = ask->to;
    b->node = to->n++;
    b->n++;
    to->tokens[b->node] = token;
    to->parents[b->node] = parent;
    to->survival[b->node] = survival;
    b->going = b->n < ask->k && !is_eos(d, token);
}

/* Puts the rows of the tokens that are being verified behind the n_rows of the pass. Their number,
 * 0 if there is no draft. */
static uint32_t add_verifying(struct draft *d, struct prop_ask *ask, uint32_t n_rows)
{
    struct draft_seq *s = ask->seq;
    drop_branches(d, s);
    if (!is_ready_ahead(d, ask))
        return 0;
    uint32_t from = s->kv.len;
    if (!grow_rows(d, s, ask->context.n - from))
        return 0;
    uint32_t end = add_rows(d, s, from, n_rows);
    for (uint32_t i = 0; i <= ask->n_verifying; i++)
        d->rows[end - 1 - i].wants_logits = true;
    return end - n_rows;
}

/* As many of the `most` branches as may all be k long. first: the row of the last committed token.
 */
static void add_first_nodes(struct draft *d, struct prop_ask *ask, uint32_t first, uint32_t most)
{
    struct draft_seq *s = ask->seq;
    struct chance best[BRANCHES_MAX];
    uint32_t fit = (PROP_K_MAX - ask->n_verifying) / ask->k;
    uint32_t n_best = find_chances(d, ask, first, fit < 1 ? 1 : fit < most ? fit : most, best);
    for (uint32_t i = 0; i < n_best; i++) {
        struct branch *b = &s->branches->v[i];
        uint32_t n = (uint32_t)((int32_t)ask->context.n + best[i].parent + 1);
        b->n = 0;
        if (best[i].here >= d->p_min && kv_fork(d->run.kv, &s->kv, n, &b->kv) == 0)
            add_node(d, ask, b, best[i].token, best[i].parent, best[i].here);
    }
    s->branches->begun = ask->to->n > 0;
    ask->done = !s->branches->begun;
}

static bool is_begun(const struct prop_ask *ask)
{
    const struct draft_seq *s = ask->seq;
    return s->branches && s->branches->begun;
}

static bool is_open_ahead(const struct prop_ask *ask)
{
    return ask->n_verifying && !ask->done;
}

/* One pass over what is being verified of as many asks as fit in, which begins their branches.
 * False: there are none to begin. */
static bool begin_ahead(struct draft *d, struct prop_ask *const *asks, uint32_t n, uint32_t most)
{
    struct prop_ask *begun[GROUP_MAX];
    uint32_t first[GROUP_MAX], n_begun = 0, n_rows = 0, n_logits = 0;
    for (uint32_t i = 0; i < n; i++) {
        struct prop_ask *ask = asks[i];
        if (!is_open_ahead(ask) || is_begun(ask))
            continue;
        if (n_begun && n_logits + ask->n_verifying + 1 > GROUP_MAX)
            break;
        uint32_t n_added = add_verifying(d, ask, n_rows);
        ask->done = !n_added;
        if (!n_added)
            continue;
        n_rows += n_added;
        n_logits += ask->n_verifying + 1;
        first[n_begun] = n_rows - 1 - ask->n_verifying;
        begun[n_begun++] = ask;
    }
    if (!n_begun)
        return false;
    run_pass(d, n_rows);
    for (uint32_t i = 0; i < n_begun; i++)
        add_first_nodes(d, begun[i], first[i], most);
    return true;
}

/* The next token of a branch, behind its row of the pass. */
static void go_on(struct draft *d, struct prop_ask *ask, struct branch *b)
{
    struct prop_draft *to = ask->to;
    const float *logits = forward_logits(d->run.forward, b->row);
    struct dist_top top;
    float logprob;
    dist_logprobs(d->run.dist, logits, 0, 1, &logprob, &top);
    float here = expf(top.logprob);
    b->going = here >= d->p_min && to->n < PROP_K_MAX - ask->n_verifying;
    if (!b->going)
        return;
    if (ask->q_mode == PROP_COUPLED) {
        set_law(d, ask, logits);
        top.token = dist_draw(d->run.dist, ask->draw_key, b->kv.len);
    }
    add_node(d, ask, b, top.token, (int32_t)b->node, here * to->survival[b->node]);
}

/* Adds the rows of an ask's branches to the pass; how many there are. */
static uint32_t add_branches(struct draft *d, const struct prop_ask *ask, uint32_t n_rows)
{
    const struct draft_seq *s = ask->seq;
    for (struct branch *b = s->branches->v; b < s->branches->v + BRANCHES_MAX; b++) {
        b->going = b->going && kv_grow(d->run.kv, &b->kv, 1) == 0;
        if (!b->going)
            continue;
        uint32_t pos = b->kv.len - 1;
        b->row = n_rows;
        d->rows[n_rows++] = (struct forward_row){.seq = &b->kv,
                                                 .token = ask->to->tokens[b->node],
                                                 .pos = pos,
                                                 .index = pos,
                                                 .parent = -1,
                                                 .wants_logits = true};
    }
    return n_rows;
}

static uint32_t n_going(const struct prop_ask *ask)
{
    const struct draft_seq *s = ask->seq;
    uint32_t n = 0;
    for (unsigned i = 0; i < BRANCHES_MAX; i++)
        n += s->branches->v[i].going;
    return n;
}

/* One pass over the branches of as many asks as fit in. */
static void step_ahead(struct draft *d, struct prop_ask *const *asks, uint32_t n)
{
    uint32_t n_rows = 0, end = 0;
    for (; end < n; end++) {
        if (!is_open_ahead(asks[end]))
            continue;
        if (n_rows + n_going(asks[end]) > GROUP_MAX)
            break;
        n_rows = add_branches(d, asks[end], n_rows);
    }
    if (n_rows)
        run_pass(d, n_rows);
    for (uint32_t i = 0; i < end; i++) {
        const struct draft_seq *s = asks[i]->seq;
        if (!is_open_ahead(asks[i]))
            continue;
        for (struct branch *b = s->branches->v; b < s->branches->v + BRANCHES_MAX; b++)
            if (b->going)
                go_on(d, asks[i], b);
    }
}

/* One pass of what is drafted ahead, so that Rounds that wait for their drafts come first. */
static void draft_ahead(struct draft *d, struct prop_ask *const *asks, uint32_t n)
{
    uint32_t n_open = 0;
    for (uint32_t i = 0; i < n; i++)
        n_open += is_open_ahead(asks[i]);
    if (!n_open)
        return;
    uint32_t share = GROUP_MAX / n_open;
    if (!begin_ahead(d, asks, n, share < 1 ? 1 : share > BRANCHES_MAX ? BRANCHES_MAX : share))
        step_ahead(d, asks, n);
    for (uint32_t i = 0; i < n; i++) {
        if (!asks[i]->n_verifying)
            continue;
        if (!asks[i]->done && is_begun(asks[i]))
            asks[i]->done = !n_going(asks[i]) || !may_go_on(d, asks[i]);
        if (asks[i]->done)
            drop_branches(d, asks[i]->seq);
        d->is_ahead = d->is_ahead || !asks[i]->done;
    }
}

static void draft_draft(void *shared, struct prop_ask *const *asks, uint32_t n)
{
    struct draft *d = shared;
    bool any_done = false;
    draft_ahead(d, asks, n);
    for (uint32_t at = 0; at < n;) {
        struct going group[GROUP_MAX];
        uint32_t n_group = 0;
        for (; at < n && n_group < GROUP_MAX; at++) {
            if (!asks[at]->n_verifying && is_ready(d, asks[at])) {
                asks[at]->done = true;
                group[n_group++].ask = asks[at];
            }
            any_done |= asks[at]->done;
        }
        while (n_group)
            n_group = step(d, group, n_group);
    }
    d->n_calls += any_done; // asks that wait for their context come again with every piece of it
}

/* ---- contexts, between Rounds ---- */

static uint32_t chunk_rows(const struct draft *d)
{
    float rows = d->feed_row_us > 0 ? FEED_US / d->feed_row_us : FEED_ROWS_MIN;
    return rows < FEED_ROWS_MIN ? FEED_ROWS_MIN : rows > ROWS_MAX ? ROWS_MAX : (uint32_t)rows;
}

static bool draft_work(void *shared)
{
    struct draft *d = shared;
    struct draft_seq *s = d->first_fed;
    bool is_ahead = d->is_ahead;
    d->is_ahead = false; // until draft() says it again
    if (!s)
        return is_ahead;
    uint32_t from = s->kv.len, left = s->context.n - 1 - from, n = chunk_rows(d);
    if (from + CATCH_UP >= s->context.n || s->is_foreign) {
        stop_feeding(d, s);
        return true;
    }
    n = n < left ? n : left;
    if (!grow_rows(d, s, n)) {
        s->starved = true;
        stop_feeding(d, s);
        return true;
    }
    int64_t start_us = clock_us();
    forward_run(d->run.forward, d->rows, add_rows(d, s, from, 0));
    float row_us = (float)(clock_us() - start_us) / (float)n;
    d->feed_row_us = d->feed_row_us > 0 ? 0.75f * d->feed_row_us + 0.25f * row_us : row_us;
    return true;
}

const struct prop_ops prop_draft = {
    .name = "draft",
    .flags = PROP_OWN_THREAD,
    .seq_size = sizeof(struct draft_seq),
    .options = options,
    .n_options = ARRAY_LEN(options),
    .open = draft_open,
    .close = draft_close,
    .about = draft_about,
    .seq_done = draft_seq_done,
    .cut = draft_cut,
    .grow = draft_grow,
    .draft = draft_draft,
    .work = draft_work,
};
