/* test_same_bits_forward.c - a row's logits are the same bytes whatever else happens: threads,
 * chunks, neighbours, tiers, trees, rollbacks. */
#include "base/rng.h"
#include "lib/lib.h"
#include "lib/rigs/model_rig.h"
#include "lib/rigs/kernel_tiers.h"
#include "lib/models/tiny.h"
#include "lib/models/weights.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define N 150      // tokens of a sequence: past one block of KV, short of one piece of attention
#define N_LONG 600 // past two pieces
#define EMBEDDED SOURCE_DIR "/models/tales-1m-q8_0.gguf"

static enum kernel_kv kv_type; // of every rig
static void *windowed;         // gpt-oss, whose even layers have a window; NULL: the embedded model
static size_t windowed_len;
static uint64_t dice_state;

static uint32_t dice(uint32_t n)
{
    return (uint32_t)((dice_state = rng_splitmix64(dice_state)) % n);
}

static void random_tokens(uint32_t *to, uint32_t n, uint32_t n_vocab, uint64_t seed)
{
    for (uint32_t i = 0; i < n; i++)
        to[i] = (uint32_t)(rng_splitmix64(seed * 100003 + i) % n_vocab);
}

static void assert_same(const float *got, const float *want, size_t n, const char *what)
{
    if (memcmp(got, want, n * sizeof(*got)) != 0)
        fail_msg("%s: other bits", what);
}

static void open_rig(struct model_rig *r, const struct model_rig_options *opt)
{
    if (windowed)
        model_rig_open_memory(r, windowed, windowed_len, opt);
    else
        model_rig_open(r, EMBEDDED, opt);
}

static float *logits_of(struct model_rig *r, const uint32_t *tokens, uint32_t n, uint32_t chunk)
{
    float *logits = calloc((size_t)n * r->model->params.n_vocab, sizeof(*logits));
    assert_non_null(logits);
    struct kv_seq seq = model_rig_seq(r);
    model_rig_feed(r, &seq, tokens, n, chunk, logits);
    kv_seq_done(r->kv, &seq);
    return logits;
}

/* ---- threads, chunks, tiers ---- */

static void compare_ways(struct model_rig *r, const uint32_t *tokens, uint32_t n, const float *want,
                         const char *what)
{
    const uint32_t chunks[] = {1, 16, 64, 512};
    for (size_t c = 0; c < ARRAY_LEN(chunks); c++) {
        AUTO(mem_free) float *got = logits_of(r, tokens, n, chunks[c]);
        assert_same(got, want, (size_t)n * r->model->params.n_vocab, what);
    }
}

static void threads_and_chunks_and_tiers_change_nothing(void **state)
{
    (void)state;
    const struct kernel *tiers[KERNEL_TIERS_MAX];
    unsigned n_tiers = kernel_tiers_here(tiers);
    AUTO(mem_free) float *want = NULL;
    uint32_t tokens[N];
    for (unsigned t = 0; t < n_tiers; t++)
        for (unsigned threads = 1; threads <= 3; threads++) {
            struct model_rig r;
            open_rig(&r, &(struct model_rig_options){.kv_type = kv_type,
                                                     .tier = tiers[t]->name,
                                                     .n_threads = threads,
                                                     .max_rows = 512});
            random_tokens(tokens, N, r.model->params.n_vocab, 1);
            if (!want)
                want = logits_of(&r, tokens, N, 0);
            compare_ways(&r, tokens, N, want, tiers[t]->name);
            model_rig_close(&r);
        }
}

static void long_contexts_change_nothing(void **state)
{
    (void)state;
    const struct kernel *tiers[KERNEL_TIERS_MAX];
    unsigned n_tiers = kernel_tiers_here(tiers);
    AUTO(mem_free) float *want = NULL;
    uint32_t tokens[N_LONG];
    for (unsigned t = 0; t < n_tiers; t++) {
        struct model_rig r;
        open_rig(&r,
                 &(struct model_rig_options){
                     .kv_type = kv_type, .tier = tiers[t]->name, .n_threads = 2, .max_rows = 512});
        random_tokens(tokens, N_LONG, r.model->params.n_vocab, 2);
        AUTO(mem_free) float *got = logits_of(&r, tokens, N_LONG, t % 2 ? 0 : 37);
        if (want)
            assert_same(got, want, (size_t)N_LONG * r.model->params.n_vocab, tiers[t]->name);
        else
            want = TAKE(got);
        model_rig_close(&r);
    }
}

static void every_type_has_the_same_bits_everywhere(void **state)
{
    (void)state;
    const struct kernel *tiers[KERNEL_TIERS_MAX];
    unsigned n_tiers = kernel_tiers_here(tiers);
    static const char *const archs[] = {"llama", "qwen2", "qwen3"};
    static const char *const with_experts[] = {"qwen2moe", "qwen3moe", "gpt-oss"};
    for (int n = 0; n < 2 * WEIGHTS_TYPES; n++) {
        const int i = n % WEIGHTS_TYPES;
        struct tiny tiny = {.arch = n == i ? archs[i % 3] : with_experts[i % 3],
                            .type = weights_types[i].type,
                            .head_type = weights_types[(i + 1) % WEIGHTS_TYPES].type,
                            .mixed = true,
                            .n_layers = 1,
                            .seed = (uint64_t)i};
        size_t len;
        AUTO(mem_free) void *file = tiny_write(&tiny, &len);
        AUTO(mem_free) float *want = NULL;
        uint32_t tokens[40];
        random_tokens(tokens, 40, TINY_VOCAB, 3);
        for (unsigned t = 0; t < n_tiers; t++) {
            struct model_rig r;
            model_rig_open_memory(&r, file, len,
                                  &(struct model_rig_options){.kv_type = kv_type,
                                                              .tier = tiers[t]->name,
                                                              .n_threads = 1 + t % 2});
            if (!want)
                want = logits_of(&r, tokens, 40, 0);
            for (uint32_t chunk = 1; chunk <= 40; chunk = chunk * 3 + 1) {
                AUTO(mem_free) float *got = logits_of(&r, tokens, 40, chunk);
                assert_same(got, want, 40 * TINY_VOCAB, weights_types[i].name);
            }
            model_rig_close(&r);
        }
    }
}

static void passes_run_alone_have_the_same_bits(void **state)
{
    (void)state;
    AUTO(mem_free) float *want = NULL;
    uint32_t tokens[N];
    for (int alone = 0; alone < 2; alone++) {
        struct model_rig r;
        open_rig(&r, &(struct model_rig_options){
                         .kv_type = kv_type, .n_threads = 2, .may_be_alone = alone});
        random_tokens(tokens, N, r.model->params.n_vocab, 4);
        AUTO(mem_free) float *got = logits_of(&r, tokens, N, 0);
        if (want)
            assert_same(got, want, (size_t)N * r.model->params.n_vocab, "alone");
        else
            want = TAKE(got);
        model_rig_close(&r);
    }
}

/* ---- neighbours ---- */

#define N_SEQS 5

struct crowd {
    struct model_rig rig;
    struct kv_seq seqs[N_SEQS];
    uint32_t tokens[N_SEQS][N];
    float *want[N_SEQS]; // (N, n_vocab), each sequence alone
    void *file;          // of a model in memory; NULL: none
};

static void enter_crowd(struct crowd *c)
{
    for (uint32_t s = 0; s < N_SEQS; s++) {
        random_tokens(c->tokens[s], N, c->rig.model->params.n_vocab, 10 + s);
        c->want[s] = logits_of(&c->rig, c->tokens[s], N, 0);
        c->seqs[s] = model_rig_seq(&c->rig);
    }
}

static void open_crowd(struct crowd *c)
{
    open_rig(&c->rig,
             &(struct model_rig_options){.kv_type = kv_type, .n_threads = 2, .max_rows = 96});
    c->file = NULL;
    enter_crowd(c);
}

/* Two layers: what experts add changes K and V of the second. */
static void open_crowd_of_experts(struct crowd *c, const char *arch, unsigned n_threads)
{
    const struct tiny tiny = {
        .arch = arch, .type = KERNEL_Q4_K, .head_type = KERNEL_Q8_0, .mixed = true, .seed = 33};
    size_t len;
    c->file = tiny_write(&tiny, &len);
    model_rig_open_memory(
        &c->rig, c->file, len,
        &(struct model_rig_options){.kv_type = kv_type, .n_threads = n_threads, .max_rows = 512});
    enter_crowd(c);
}

static void close_crowd(struct crowd *c)
{
    for (uint32_t s = 0; s < N_SEQS; s++) {
        free(c->want[s]);
        kv_seq_done(c->rig.kv, &c->seqs[s]);
    }
    model_rig_close(&c->rig);
    free(c->file);
}

/* Adds the next rows of a sequence, n at most. */
static void add_rows(struct crowd *c, uint32_t s, uint32_t n)
{
    uint32_t from = c->seqs[s].len;
    n = n < N - from ? n : N - from;
    assert_int_equal(kv_grow(c->rig.kv, &c->seqs[s], n), 0);
    assert_int_equal(pass_plan_add_seq(&c->rig.plan, &c->seqs[s], 0), s);
    for (uint32_t i = 0; i < n; i++)
        pass_plan_add_chain(&c->rig.plan, s, &c->tokens[s][from + i], from + i, 1, dice(3) > 0);
}

/* Sequence s of the crowd is sequence s of the plan. */
static void assert_rows(struct crowd *c)
{
    size_t n_vocab = c->rig.model->params.n_vocab;
    for (uint32_t i = 0; i < c->rig.plan.n_rows; i++) {
        const struct pass_row *row = &c->rig.plan.rows[i];
        if (row->wants_logits)
            assert_same(forward_logits(c->rig.forward, i), c->want[row->seq] + row->pos * n_vocab,
                        n_vocab, "in a crowd");
    }
}

/* Passes with up to `most` rows of each sequence. */
static void run_crowd(struct crowd *c, uint32_t most)
{
    for (uint32_t n_done = 0; n_done < N_SEQS;) {
        n_done = 0;
        pass_plan_clear(&c->rig.plan);
        for (uint32_t s = 0; s < N_SEQS; s++) {
            add_rows(c, s, dice(most));
            n_done += c->seqs[s].len == N;
        }
        forward_run(c->rig.forward, &c->rig.plan);
        assert_rows(c);
    }
}

static void neighbours_change_nothing(void **state)
{
    (void)state;
    static struct crowd c;
    dice_state = 5;
    open_crowd(&c);
    run_crowd(&c, 18);
    close_crowd(&c);
}

/* Few rows, and so many that an expert's outputs are added in several pieces. */
static void neighbours_change_nothing_for_experts(void **state)
{
    static const char *const archs[] = {"qwen2moe", "gpt-oss"};
    static const uint32_t most[] = {2, 18, 140};
    static struct crowd c;
    (void)state;
    dice_state = 7;
    for (unsigned i = 0; i < ARRAY_LEN(archs) * ARRAY_LEN(most); i++) {
        open_crowd_of_experts(&c, archs[i / ARRAY_LEN(most)], 1 + i % 3);
        run_crowd(&c, most[i % ARRAY_LEN(most)]);
        close_crowd(&c);
    }
}

/* ---- trees ---- */

#define TREE 24
#define MAX_TREE (FORWARD_MAX_DEPTH + 1)

struct tree {
    int32_t n;
    uint32_t tokens[MAX_TREE];
    int32_t parents[MAX_TREE]; // -1: below the last token
};

static struct tree random_tree(uint32_t n_vocab)
{
    struct tree t = {.n = TREE};
    for (int32_t i = 0; i < t.n; i++) {
        t.tokens[i] = dice(n_vocab);
        t.parents[i] = dice(3) ? (int32_t)dice((uint32_t)i + 1) - 1 : i - 1; // bushes and chains
    }
    return t;
}

static uint32_t depth_of(const struct tree *t, int32_t node)
{
    uint32_t depth = 0;
    for (; node >= 0; node = t->parents[node])
        depth++;
    return depth;
}

/* Runs the last token and a tree below it. */
static void run_tree(struct model_rig *r, struct kv_seq *seq, uint32_t token, const struct tree *t)
{
    uint32_t base = seq->len;
    assert_int_equal(kv_grow(r->kv, seq, (uint32_t)t->n + 1), 0);
    pass_plan_clear(&r->plan);
    pass_plan_add_chain(&r->plan, pass_plan_add_seq(&r->plan, seq, 0), &token, base, 1, 1);
    for (int32_t i = 0; i < t->n; i++)
        pass_plan_add_row(&r->plan, (struct pass_row){.token = t->tokens[i],
                                                      .pos = base + depth_of(t, i),
                                                      .index = base + 1 + (uint32_t)i,
                                                      .parent = t->parents[i] + 1,
                                                      .wants_logits = true});
    forward_run(r->forward, &r->plan);
}

/* The path from the last token down to a node, rising. */
static uint32_t path_to(const struct tree *t, int32_t node, uint32_t *path)
{
    uint32_t n = depth_of(t, node);
    for (uint32_t i = n; i > 0; node = t->parents[node])
        path[--i] = (uint32_t)node;
    return n;
}

/* A node's logits are those of the chain from the beginning to it. */
static void assert_node(struct model_rig *tree_rig, struct model_rig *r, const uint32_t *context,
                        uint32_t n, const struct tree *t, int32_t node)
{
    uint32_t tokens[N + MAX_TREE], path[MAX_TREE], n_path = path_to(t, node, path);
    memcpy(tokens, context, n * sizeof(*tokens));
    for (uint32_t i = 0; i < n_path; i++)
        tokens[n + i] = t->tokens[path[i]];
    struct kv_seq seq = model_rig_seq(r);
    model_rig_feed(r, &seq, tokens, n + n_path - 1, 0, NULL);
    const float *want = model_rig_step(r, &seq, tokens[n + n_path - 1]);
    assert_same(forward_logits(tree_rig->forward, (uint32_t)node + 1), want,
                r->model->params.n_vocab, "tree");
    kv_seq_done(r->kv, &seq);
}

static void a_tree_equals_its_chains(void **state)
{
    (void)state;
    struct model_rig a, b;
    uint32_t context[N];
    open_rig(&a, &(struct model_rig_options){.kv_type = kv_type, .n_threads = 2});
    open_rig(&b, &(struct model_rig_options){.kv_type = kv_type});
    random_tokens(context, N, a.model->params.n_vocab, 20);
    for (dice_state = 0; dice_state < 6; dice_state++) {
        uint64_t seed = dice_state;
        uint32_t n = 1 + dice(60);
        struct tree t = random_tree(a.model->params.n_vocab);
        struct kv_seq seq = model_rig_seq(&a);
        model_rig_feed(&a, &seq, context, n - 1, 0, NULL);
        run_tree(&a, &seq, context[n - 1], &t);
        for (int32_t node = 0; node < t.n; node += 3)
            assert_node(&a, &b, context, n, &t, node);
        kv_seq_done(a.kv, &seq);
        dice_state = seed;
    }
    model_rig_close(&a);
    model_rig_close(&b);
}

/* A second child is not in storage order, so every row below it has a tail. */
static void a_tree_may_be_as_deep_as_promised(void **state)
{
    (void)state;
    struct model_rig a, b;
    struct tree t = {.n = MAX_TREE};
    uint32_t context[N], n = 20;
    open_rig(&a, &(struct model_rig_options){
                     .kv_type = kv_type, .n_threads = 2, .max_rows = MAX_TREE + 1});
    open_rig(&b, &(struct model_rig_options){.kv_type = kv_type});
    random_tokens(context, n, a.model->params.n_vocab, 22);
    random_tokens(t.tokens, MAX_TREE, a.model->params.n_vocab, 23);
    for (int32_t i = 0; i < t.n; i++)
        t.parents[i] = i < 2 ? -1 : i - 1;
    struct kv_seq seq = model_rig_seq(&a);
    model_rig_feed(&a, &seq, context, n - 1, 0, NULL);
    run_tree(&a, &seq, context[n - 1], &t);
    assert_int_equal(depth_of(&t, t.n - 1), FORWARD_MAX_DEPTH);
    assert_node(&a, &b, context, n, &t, t.n - 1);
    kv_seq_done(a.kv, &seq);
    model_rig_close(&a);
    model_rig_close(&b);
}

/* Accepts a path of a tree, continues, and compares with a sequence without trees. */
static void accepted_paths_equal_chains_that_never_branched(void **state)
{
    (void)state;
    struct model_rig a;
    uint32_t tokens[N + TREE * 20] = {0}, n = 40;
    open_rig(&a, &(struct model_rig_options){.kv_type = kv_type, .n_threads = 2});
    uint32_t n_vocab = a.model->params.n_vocab;
    random_tokens(tokens, n, n_vocab, 21);
    struct kv_seq seq = model_rig_seq(&a);
    model_rig_feed(&a, &seq, tokens, n - 1, 0, NULL);
    dice_state = 9;
    for (int round = 0; round < 12; round++) {
        struct tree t = random_tree(n_vocab);
        uint32_t path[MAX_TREE], base = seq.len;
        uint32_t n_path = path_to(&t, (int32_t)dice(TREE + 1) - 1, path);
        run_tree(&a, &seq, tokens[n - 1], &t);
        for (uint32_t i = 0; i < n_path; i++) {
            tokens[n + i] = t.tokens[path[i]];
            path[i] += base + 1;
        }
        kv_keep(a.kv, &seq, base + 1, path, n_path);
        n += n_path;
        tokens[n++] = dice(n_vocab); // the correction or bonus
    }
    AUTO(mem_free) float *got = calloc(n_vocab, sizeof(*got));
    memcpy(got, model_rig_step(&a, &seq, tokens[n - 1]), n_vocab * sizeof(*got));
    AUTO(mem_free) float *want = logits_of(&a, tokens, n, 0);
    assert_same(got, want + (size_t)(n - 1) * n_vocab, n_vocab, "after kept paths");
    kv_seq_done(a.kv, &seq);
    model_rig_close(&a);
}

/* ---- rollbacks ---- */

/* Runs a sequence's next token and a wrong draft, then drops most of the draft. */
static void draft_and_roll_back(struct crowd *c, uint32_t n_keep[N_SEQS])
{
    uint32_t n_draft, base[N_SEQS];
    pass_plan_clear(&c->rig.plan);
    for (uint32_t s = 0; s < N_SEQS; s++) {
        base[s] = c->seqs[s].len;
        n_draft = dice(12);
        n_keep[s] = base[s] == N ? 0 : dice(n_draft + 1) + 1;
        if (n_keep[s] == 0) {
            pass_plan_add_seq(&c->rig.plan, &c->seqs[s], 0); // without rows
            continue;
        }
        n_keep[s] = n_keep[s] < N - base[s] ? n_keep[s] : N - base[s];
        assert_int_equal(kv_grow(c->rig.kv, &c->seqs[s], 1 + n_draft), 0);
        pass_plan_add_seq(&c->rig.plan, &c->seqs[s], 0);
        for (uint32_t i = 0; i <= n_draft; i++) { // right tokens up to n_keep, then wrong
            uint32_t token =
                i < n_keep[s] ? c->tokens[s][base[s] + i] : dice(c->rig.model->params.n_vocab);
            pass_plan_add_chain(&c->rig.plan, s, &token, base[s] + i, 1, i < n_keep[s]);
        }
    }
    forward_run(c->rig.forward, &c->rig.plan);
    assert_rows(c);
    for (uint32_t s = 0; s < N_SEQS; s++)
        kv_keep(c->rig.kv, &c->seqs[s], base[s] + n_keep[s], NULL, 0);
}

static void rollbacks_of_different_lengths_leave_no_trace(void **state)
{
    (void)state;
    static struct crowd c;
    dice_state = 6;
    open_crowd(&c);
    for (int round = 0; round < 60; round++) {
        uint32_t n_keep[N_SEQS];
        draft_and_roll_back(&c, n_keep);
    }
    const struct kv_seq *seqs[N_SEQS];
    for (uint32_t s = 0; s < N_SEQS; s++) {
        assert_int_equal(c.seqs[s].len, N);
        seqs[s] = &c.seqs[s];
    }
    assert_true(kv_check(c.rig.kv, seqs, N_SEQS));
    close_crowd(&c);
}

static void a_fork_continues_like_its_origin(void **state)
{
    (void)state;
    static struct crowd c;
    open_crowd(&c);
    size_t n_vocab = c.rig.model->params.n_vocab;
    model_rig_feed(&c.rig, &c.seqs[0], c.tokens[0], 100, 0, NULL);
    for (uint32_t s = 1; s < N_SEQS; s++) {
        assert_int_equal(kv_fork(c.rig.kv, &c.seqs[0], 60 + 9 * s, &c.seqs[s]), 0);
        const float *got = model_rig_step(&c.rig, &c.seqs[s], c.tokens[0][60 + 9 * s]);
        assert_same(got, c.want[0] + (60 + 9 * s) * n_vocab, n_vocab, "fork");
    }
    close_crowd(&c);
}

/* ---- hidden rows ---- */

static void hidden_rows_are_the_same_in_any_chunk(void **state)
{
    (void)state;
    struct model_rig r;
    open_rig(&r, &(struct model_rig_options){.kv_type = kv_type, .n_threads = 2});
    const struct model_params *p = &r.model->params;
    const uint32_t layers[] = {0, 1, p->n_layers, p->n_layers + 1};
    assert_int_equal(forward_want_hidden(r.forward, layers, 4), 0);
    uint32_t tokens[32];
    random_tokens(tokens, 32, p->n_vocab, 30);
    size_t bytes = p->n_embd * sizeof(float);
    AUTO(mem_free) float *want = calloc(4 * 32, bytes), *embd = calloc(1, bytes);
    for (uint32_t chunk = 32; chunk > 0; chunk /= 2) {
        struct kv_seq seq = model_rig_seq(&r);
        for (uint32_t at = 0; at < 32; at += chunk) {
            model_rig_feed(&r, &seq, tokens + at, chunk, 0, NULL);
            for (uint32_t h = 0; h < 4; h++)
                for (uint32_t i = 0; i < chunk; i++) {
                    float *w = want + (h * 32 + at + i) * p->n_embd;
                    if (chunk == 32)
                        memcpy(w, forward_hidden(r.forward, h, i), bytes);
                    assert_same(forward_hidden(r.forward, h, i), w, p->n_embd, "hidden");
                }
        }
        kv_seq_done(r.kv, &seq);
    }
    kernel_dequant_packed(&r.model->embd, tokens[5], embd);
    assert_same(want + 5 * p->n_embd, embd, p->n_embd, "the first layer's input");
    model_rig_close(&r);
}

#define N_HIDDEN 20

/* A model whose sums the test can repeat plainly, with the first n_layers only. */
static void open_layers(struct model_rig *r, uint32_t n_layers, void **ret_file)
{
    struct tiny tiny = {.arch = "llama",
                        .type = KERNEL_F32,
                        .head_type = KERNEL_F32,
                        .n_layers = n_layers,
                        .seed = 31};
    size_t len;
    *ret_file = tiny_write(&tiny, &len);
    model_rig_open_memory(r, *ret_file, len, &(struct model_rig_options){.kv_type = kv_type});
}

static void assert_near(float got, double want, double size, const char *what)
{
    if (fabs((double)got - want) > 1e-5 * size)
        fail_msg("%s: %.9g instead of %.9g", what, (double)got, want);
}

/* y = x / sqrt(mean(x^2) + eps) * w, in double. */
static void assert_norm(const struct model *m, const float *before, const float *after)
{
    double sum = 0;
    for (uint32_t i = 0; i < TINY_EMBD; i++)
        sum += (double)before[i] * (double)before[i];
    double scale = 1 / sqrt(sum / TINY_EMBD + (double)m->params.norm_eps);
    for (uint32_t i = 0; i < TINY_EMBD; i++)
        assert_near(after[i], (double)before[i] * scale * (double)m->out_norm[i], 1, "norm");
}

static void assert_head(const struct model *m, const float *after, const float *logits)
{
    float w[TINY_EMBD];
    for (uint32_t token = 0; token < TINY_VOCAB; token++) {
        double sum = 0, size = 0;
        kernel_dequant_packed(&m->head, token, w);
        for (uint32_t i = 0; i < TINY_EMBD; i++) {
            sum += (double)after[i] * (double)w[i];
            size += fabs((double)after[i] * (double)w[i]);
        }
        assert_near(logits[token], sum, size, "logits");
    }
}

static void hidden_rows_are_what_they_are_called(void **state)
{
    (void)state;
    struct model_rig whole, cut[3]; // of 3 layers; of 1 and 2
    AUTO(mem_free) void *file = NULL;
    void *cut_file[3];
    const uint32_t layers[] = {0, 1, 2, 3, 4};
    uint32_t tokens[N_HIDDEN];
    random_tokens(tokens, N_HIDDEN, TINY_VOCAB, 32);
    open_layers(&whole, 3, &file);
    assert_int_equal(forward_want_hidden(whole.forward, layers, 5), 0);
    AUTO(mem_free) float *logits = logits_of(&whole, tokens, N_HIDDEN, 0);
    for (uint32_t l = 1; l < 3; l++) {
        open_layers(&cut[l], l, &cut_file[l]);
        assert_int_equal(forward_want_hidden(cut[l].forward, &l, 1), 0); // before its final norm
        AUTO(mem_free) float *unused = logits_of(&cut[l], tokens, N_HIDDEN, 0);
    }
    for (uint32_t i = 0; i < N_HIDDEN; i++) {
        const float *before = forward_hidden(whole.forward, 3, i);
        const float *after = forward_hidden(whole.forward, 4, i);
        for (uint32_t l = 1; l < 3; l++)
            assert_same(forward_hidden(whole.forward, l, i), forward_hidden(cut[l].forward, 0, i),
                        TINY_EMBD, "a layer's input");
        assert_norm(whole.model, before, after);
        assert_head(whole.model, after, logits + i * TINY_VOCAB);
    }
    model_rig_close(&whole);
    for (uint32_t l = 1; l < 3; l++) {
        model_rig_close(&cut[l]);
        free(cut_file[l]);
    }
}

static void hidden_rows_that_do_not_exist_are_refused(void **state)
{
    (void)state;
    struct model_rig r;
    open_rig(&r, &(struct model_rig_options){.kv_type = kv_type});
    const uint32_t beyond = r.model->params.n_layers + 2, many[FORWARD_MAX_HIDDEN + 1] = {0};
    assert_true(forward_want_hidden(r.forward, &beyond, 1) < 0);
    assert_true(forward_want_hidden(r.forward, many, FORWARD_MAX_HIDDEN + 1) < 0);
    assert_int_equal(forward_want_hidden(r.forward, many, 1), 0);
    assert_int_equal(forward_want_hidden(r.forward, NULL, 0), 0);
    model_rig_close(&r);
}

/* A pass without rows is nothing. */
static void an_empty_batch_is_nothing(void **state)
{
    (void)state;
    struct model_rig r;
    open_rig(&r, &(struct model_rig_options){.kv_type = kv_type, .n_threads = 2});
    forward_run(r.forward, &r.plan);
    model_rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_and_chunks_and_tiers_change_nothing),
        cmocka_unit_test(long_contexts_change_nothing),
        cmocka_unit_test(every_type_has_the_same_bits_everywhere),
        cmocka_unit_test(passes_run_alone_have_the_same_bits),
        cmocka_unit_test(neighbours_change_nothing),
        cmocka_unit_test(neighbours_change_nothing_for_experts),
        cmocka_unit_test(a_tree_equals_its_chains),
        cmocka_unit_test(a_tree_may_be_as_deep_as_promised),
        cmocka_unit_test(accepted_paths_equal_chains_that_never_branched),
        cmocka_unit_test(rollbacks_of_different_lengths_leave_no_trace),
        cmocka_unit_test(a_fork_continues_like_its_origin),
        cmocka_unit_test(hidden_rows_are_the_same_in_any_chunk),
        cmocka_unit_test(hidden_rows_are_what_they_are_called),
        cmocka_unit_test(hidden_rows_that_do_not_exist_are_refused),
        cmocka_unit_test(an_empty_batch_is_nothing),
    };
    const struct CMUnitTest with_windows[] = {
        cmocka_unit_test(long_contexts_change_nothing),
        cmocka_unit_test(neighbours_change_nothing),
        cmocka_unit_test(a_tree_equals_its_chains),
        cmocka_unit_test(a_tree_may_be_as_deep_as_promised),
        cmocka_unit_test(accepted_paths_equal_chains_that_never_branched),
        cmocka_unit_test(rollbacks_of_different_lengths_leave_no_trace),
        cmocka_unit_test(a_fork_continues_like_its_origin),
    };
    const struct tiny tiny = {
        .arch = "gpt-oss", .type = KERNEL_MXFP4, .head_type = KERNEL_Q8_0, .seed = 34};
    int failed = 0;
    for (kv_type = KERNEL_KV_F16; kv_type <= KERNEL_KV_INT8; kv_type++)
        failed += cmocka_run_group_tests_name(kernel_kv_name(kv_type), tests, NULL, NULL);
    windowed = tiny_write(&tiny, &windowed_len);
    for (kv_type = KERNEL_KV_F16; kv_type <= KERNEL_KV_INT8; kv_type++)
        failed += cmocka_run_group_tests_name("windows", with_windows, NULL, NULL);
    free(windowed);
    return failed;
}
