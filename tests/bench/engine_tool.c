/* engine_tool.c - the engine as a child of engine.py: runs passes on command and reports the time
 * of each.
 *
 *   engine_tool own|blas int8|f16|f32 MODEL THREADS CONTEXT SEQUENCES [DRAFT_MODEL]
 *
 * loads the models. own|blas: the code that multiplies float matrices. int8|f16|f32: the type of K
 * and V. Each sequence gets CONTEXT positions: 512 positions of the first sequence are computed,
 * their K and V are copied to all others. Then it prints
 *
 *   ready KERNEL BYTES READ   BYTES of weights; READ of them by a pass of one row
 *
 * and answers each line of stdin with a line of milliseconds:
 *
 *   pass N ROWS LOGITS REPS   REPS passes of ROWS rows after the context of each of the first N
 *                             sequences, logits for the last LOGITS rows of each
 *   read STREAMS REPS         reads the same weights as plain memory, STREAMS streams per thread
 *   spec K N FIRST            N greedy tokens after the context and FIRST, drafts of K tokens
 *
 * For spec the line continues with milliseconds in the draft model and in the target, tokens and
 * rounds. Then it has drafted tokens, accepted tokens, and rounds that accepted their whole draft.
 * K = 0 is plain decoding.
 * Later runs with the same N and FIRST must generate the same tokens. */
#include "lib/rigs/model_rig.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_ROWS 512 // in a pass
#define MAX_SEQUENCES 64
#define MAX_STREAMS 16
#define MAX_K 64
#define LINE 64 // bytes

struct tool {
    struct model_rig rig, draft;
    struct kv_seq seqs[MAX_SEQUENCES], draft_seq;
    uint32_t *tokens; // (context + MAX_ROWS)
    unsigned n_seqs, context;
    bool has_draft, blas;
    enum kernel_kv kv_type;
    const char *weights; // of a pass: head and layers are contiguous
    size_t bytes;
    size_t read; // of these by a pass of one row
};

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static _Noreturn void refuse(const char *what)
{
    fprintf(stderr, "engine_tool: %s\n", what);
    exit(2);
}

/* The same tokens as in peer_child.py. */
static uint32_t token_at(uint32_t i)
{
    return 300 + i * 37 % 600;
}

/* ---- passes ---- */

/* Adds rows for tokens after those that the sequence holds; the last n_logits want logits. */
static void add_rows(struct model_rig *rig, struct kv_seq *seq, const uint32_t *tokens, unsigned n,
                     unsigned n_logits)
{
    uint32_t at = seq->len;
    if (kv_grow(rig->kv, seq, n) < 0)
        refuse("the sequences do not fit");
    pass_plan_add_chain(&rig->plan, pass_plan_add_seq(&rig->plan, seq, 0), tokens, at, n, n_logits);
}

static double time_plan(struct model_rig *rig)
{
    double from = now_ms();
    forward_run(rig->forward, &rig->plan);
    return now_ms() - from;
}

static void drop(struct model_rig *rig, struct kv_seq *seq, uint32_t len)
{
    seq->state_len = len < seq->state_len ? len : seq->state_len; // any state takes the same time
    kv_keep(rig->kv, seq, len < seq->len ? len : seq->len, NULL, 0);
}

static double time_pass(struct tool *t, unsigned n_seqs, unsigned n_rows, unsigned n_logits)
{
    pass_plan_clear(&t->rig.plan);
    for (unsigned s = 0; s < n_seqs; s++)
        add_rows(&t->rig, &t->seqs[s], t->tokens + t->context, n_rows, n_logits);
    double took = time_plan(&t->rig);
    for (unsigned s = 0; s < n_seqs; s++)
        drop(&t->rig, &t->seqs[s], t->context);
    return took;
}

/* ---- speculation ---- */

struct text {
    uint32_t tokens[MAX_ROWS]; // the first token is given
    unsigned n;                // decided tokens; the target has not processed the last one
    double draft_ms, target_ms;
    unsigned rounds, drafted, accepted, full;
};

static uint32_t best(const struct model_rig *rig, unsigned row)
{
    return rig->model->kernel->argmax(forward_logits(rig->forward, row),
                                      rig->model->params.n_vocab);
}

/* Drafts k tokens after the decided ones. */
static void draft(struct tool *t, struct text *x, unsigned k)
{
    for (unsigned i = x->n; i < x->n + k; i++) {
        unsigned from = t->draft_seq.len - t->context;
        pass_plan_clear(&t->draft.plan);
        add_rows(&t->draft, &t->draft_seq, x->tokens + from, i - from, 1);
        forward_run(t->draft.forward, &t->draft.plan);
        x->tokens[i] = best(&t->draft, i - from - 1);
    }
}

/* Appends the drafted tokens that the target confirms, and one token of the target. */
static void verify(struct tool *t, struct text *x, unsigned k)
{
    unsigned kept = 0;
    pass_plan_clear(&t->rig.plan);
    add_rows(&t->rig, &t->seqs[0], x->tokens + x->n - 1, k + 1, k + 1);
    x->target_ms += time_plan(&t->rig);
    while (kept < k && best(&t->rig, kept) == x->tokens[x->n + kept])
        kept++;
    x->tokens[x->n + kept] = best(&t->rig, kept);
    x->n += kept + 1;
    x->rounds++;
    x->drafted += k;
    x->accepted += kept;
    x->full += kept == k;
}

static void speculate(struct tool *t, unsigned k, unsigned n_tokens, uint32_t first)
{
    static struct text x, plain;
    x = (struct text){.tokens = {first}, .n = 1};
    double from = now_ms();
    while (x.n <= n_tokens) {
        double start = now_ms();
        draft(t, &x, k);
        x.draft_ms += now_ms() - start;
        verify(t, &x, k);
        drop(&t->rig, &t->seqs[0], t->context + x.n - 1);
        if (k)
            drop(&t->draft, &t->draft_seq, t->context + x.n - 1);
    }
    double took = now_ms() - from;
    drop(&t->rig, &t->seqs[0], t->context);
    if (k)
        drop(&t->draft, &t->draft_seq, t->context);
    if (k == 0)
        plain = x;
    if (memcmp(x.tokens, plain.tokens, (n_tokens + 1) * sizeof(*x.tokens)) != 0)
        refuse("speculation changed the text, or the plain one was not asked for before");
    printf("%.4f %.4f %.4f %u %u %u %u %u", took, x.draft_ms, x.target_ms, x.n - 1, x.rounds,
           x.drafted, x.accepted, x.full);
}

/* ---- reading ---- */

struct reader {
    const struct tool *tool;
    unsigned n_streams;
    uint64_t sums[POOL_MAX_THREADS]; // keeps the compiler from removing reads
};

/* One read per cache line fetches the line. */
static void read_share(void *arg, unsigned i, unsigned n)
{
    struct reader *r = arg;
    unsigned from, to;
    pool_slice(i, n, (unsigned)(r->tool->bytes / LINE), r->n_streams, &from, &to);
    const char *at[MAX_STREAMS];
    size_t n_lines = (to - from) / r->n_streams;
    uint64_t sum = 0, word;
    for (unsigned s = 0; s < r->n_streams; s++)
        at[s] = r->tool->weights + (from + s * n_lines) * LINE;
    for (size_t line = 0; line < n_lines; line++)
        for (unsigned s = 0; s < r->n_streams; s++) {
            memcpy(&word, at[s] + line * LINE, sizeof(word));
            sum += word;
        }
    r->sums[i] = sum;
}

static double time_read(const struct tool *t, unsigned n_streams)
{
    static struct reader r;
    r.tool = t;
    r.n_streams = n_streams;
    double from = now_ms();
    pool_run(t->rig.pool, read_share, &r);
    return now_ms() - from;
}

/* ---- start and loop ---- */

/* n such matrices, one after another, of which a row reads n_read; 0: the model has none. */
static void note(struct tool *t, const char **end, const struct kernel_mat *w, uint32_t n,
                 uint32_t n_read)
{
    if (!n_read)
        return;
    const size_t bytes = kernel_packed_bytes(w->type, w->n_out, w->n_in);
    const char *from = w->data, *to = from + n * bytes;
    t->weights = !t->weights || from < t->weights ? from : t->weights;
    t->read += n_read * bytes;
    *end = to > *end ? to : *end;
}

static void find_weights(struct tool *t)
{
    const struct model *m = t->rig.model;
    const char *end = NULL;
    note(t, &end, &m->head, 1, 1);
    for (uint32_t l = 0; l < m->params.n_layers; l++) {
        const struct model_attn *a = &m->layers[l].attn;
        const struct model_ffn *f = &m->layers[l].ffn;
        const struct model_experts *e = &f->experts;
        const struct kernel_mat *of_all[] = {&a->q, &a->k, &a->v, &a->o},
                                *dense[] = {&f->gate, &f->up, &f->down},
                                *of_experts[] = {&e->gate, &e->up, &e->down};
        for (size_t i = 0; i < ARRAY_LEN(of_all); i++)
            note(t, &end, of_all[i], 1, 1);
        for (size_t i = 0; i < ARRAY_LEN(dense); i++)
            note(t, &end, dense[i], 1, f->n_ff > 0);
        for (size_t i = 0; i < ARRAY_LEN(of_experts); i++)
            note(t, &end, of_experts[i], e->n, e->n_used);
        note(t, &end, &e->router, 1, e->n > 0);
        note(t, &end, &f->shared_router, 1, e->n && f->n_ff);
    }
    t->bytes = (size_t)(end - t->weights);
}

/* Fills the rest of a context with repeated K and V of the first sequence's n_fed blocks. */
static void repeat_context(struct tool *t, struct model_rig *rig, const struct kv_seq *first,
                           unsigned n_fed, struct kv_seq *seq)
{
    unsigned from = seq->n_blocks;
    if (kv_grow(rig->kv, seq, t->context - seq->len) < 0)
        refuse("the contexts do not fit");
    for (unsigned b = from; b < seq->n_blocks; b++)
        kv_bytes_copy(kv_bytes_of(rig->kv), first->blocks[b % n_fed], seq->blocks[b]);
}

/* Computes only MAX_ROWS tokens: a prefill of 8192 for each sequence would take minutes. */
static void feed_contexts(struct tool *t, struct model_rig *rig, struct kv_seq *seqs,
                          unsigned n_seqs)
{
    for (unsigned s = 0; s < n_seqs; s++)
        seqs[s] = model_rig_seq(rig);
    model_rig_feed(rig, &seqs[0], t->tokens, t->context < MAX_ROWS ? t->context : MAX_ROWS, 0,
                   NULL);
    unsigned n_fed = seqs[0].n_blocks;
    for (unsigned s = 0; s < n_seqs; s++)
        repeat_context(t, rig, &seqs[0], n_fed, &seqs[s]);
}

static void name_tokens(struct tool *t)
{
    t->tokens = calloc(t->context + MAX_ROWS, sizeof(*t->tokens));
    if (!t->tokens)
        abort();
    for (uint32_t i = 0; i < t->context + MAX_ROWS; i++)
        t->tokens[i] = token_at(i);
}

static void answer(struct tool *t, const char *line)
{
    unsigned n = 0, rows = 0, logits = 0, reps = 0, streams = 0, k = 0, first = 0;
    bool is_pass = sscanf(line, "pass %u %u %u %u", &n, &rows, &logits, &reps) == 4;
    bool is_read = !is_pass && sscanf(line, "read %u %u", &streams, &reps) == 2;
    bool is_spec = !is_pass && !is_read && sscanf(line, "spec %u %u %u", &k, &n, &first) == 3;
    if (!is_pass && !is_read && !is_spec)
        refuse(
            "a line is \"pass N ROWS LOGITS REPS\", \"read STREAMS REPS\" or \"spec K N FIRST\"");
    if (is_pass && (!n || n > t->n_seqs || !rows || rows > MAX_ROWS / n || !logits))
        refuse("a pass is of 1 .. 512 rows of the sequences there are");
    if (is_read && (!streams || streams > MAX_STREAMS))
        refuse("there are 1 .. 16 streams");
    if (is_spec && ((k && !t->has_draft) || k > MAX_K || n > MAX_ROWS - 2 * MAX_K - 2 ||
                    first >= t->rig.model->params.n_vocab))
        refuse("drafts are of 0 .. 64 tokens by a draft model, texts of at most 382");
    if (is_spec)
        speculate(t, k, n, first);
    for (unsigned i = 0; i < reps; i++)
        printf("%.4f ", is_pass ? time_pass(t, n, rows, logits) : time_read(t, streams));
    printf("\n");
    fflush(stdout);
}

static void open_model(struct tool *t, struct model_rig *rig, const char *path, unsigned n_threads,
                       struct pool *pool)
{
    unsigned n_blocks = t->n_seqs * ((t->context + MAX_ROWS) / KV_BLOCK + 2);
    model_rig_open(rig, path,
                   &(struct model_rig_options){.may_be_alone = true, // both as in the verifier
                                               .pin = true,
                                               .blas = t->blas,
                                               .kv_type = t->kv_type,
                                               .n_threads = n_threads,
                                               .pool = pool,
                                               .max_rows = MAX_ROWS,
                                               .n_blocks = n_blocks});
    for (uint32_t i = 0; i < rig->tune.n; i++) {
        const struct tune_choice *c = &rig->tune.of[i];
        fprintf(stderr, "walk of %s %ux%u: one row %u:%u, more %u:%u\n", kernel_type_name(c->type),
                c->n_out, c->n_in, c->one.n_streams, c->one.ahead, c->more.n_streams,
                c->more.ahead);
    }
}

static void close_all(struct tool *t)
{
    if (t->has_draft) {
        kv_seq_done(t->draft.kv, &t->draft_seq);
        model_rig_close(&t->draft);
    }
    for (unsigned s = 0; s < t->n_seqs; s++)
        kv_seq_done(t->rig.kv, &t->seqs[s]);
    model_rig_close(&t->rig);
    free(t->tokens);
}

int main(int argc, char **argv)
{
    static struct tool t;
    if ((argc != 7 && argc != 8) || !kernel_kv_type(argv[2], &t.kv_type))
        refuse("engine_tool own|blas int8|f16|f32 MODEL THREADS CONTEXT SEQUENCES [DRAFT_MODEL]");
    t.blas = strcmp(argv[1], "blas") == 0;
    t.context = (unsigned)strtoul(argv[5], NULL, 10);
    t.n_seqs = (unsigned)strtoul(argv[6], NULL, 10);
    t.has_draft = argc == 8;
    if (!t.n_seqs || t.n_seqs > MAX_SEQUENCES)
        refuse("SEQUENCES is 1 .. 64");
    open_model(&t, &t.rig, argv[3], (unsigned)strtoul(argv[4], NULL, 10), NULL);
    if (t.has_draft)
        open_model(&t, &t.draft, argv[7], 0, t.rig.pool);
    if (t.has_draft && t.draft.model->params.n_vocab != t.rig.model->params.n_vocab)
        refuse("the draft model has another number of tokens");
    find_weights(&t);
    name_tokens(&t);
    feed_contexts(&t, &t.rig, t.seqs, t.n_seqs);
    if (t.has_draft)
        feed_contexts(&t, &t.draft, &t.draft_seq, 1);
    printf("ready %s %zu %zu\n", t.rig.model->kernel->name, t.bytes, t.read);
    fflush(stdout);
    for (char line[256]; fgets(line, sizeof(line), stdin);)
        answer(&t, line);
    close_all(&t);
    return 0;
}
