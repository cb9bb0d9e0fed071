/* bench_ngram.c - time and accuracy of the proposers without a model.
 *
 * Accuracy: the bench "generates" real texts from their prompts. In each round the proposer drafts
 * k tokens. The tokens that the text continues with are accepted, and the text's next token
 * follows. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "base/rng.h"
#include "lib/lib.h"
#include "lib/oracles/ngram_scan.h"
#include "lib/rigs/model_rig.h"
#include "lib/models/texts.h"
#include "proposer-svc/props/prop_ngram.h"
#include "proposer-svc/props/prop_suffix.h"

#define N_SAMPLES 160
#define N_OWN 40       // continuations by the embedded model
#define OWN_TOKENS 160 // of each

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static void *open_with(int64_t max, int64_t min, const char *match, bool prompt_lookup)
{
    void *shared;
    prop_ngram_settings = (struct prop_ngram_settings){max, min, (char *)match, prompt_lookup};
    if (prop_ngram.open(&shared) < 0)
        abort();
    return shared;
}

static void *open_suffix(double factor, double offset, double min_prob, int64_t pool_tokens)
{
    void *shared;
    prop_suffix_settings = (struct prop_suffix_settings){.max_depth = 24,
                                                         .pool_tokens = pool_tokens,
                                                         .factor = factor,
                                                         .offset = offset,
                                                         .min_prob = min_prob};
    if (prop_suffix.open(&shared) < 0)
        abort();
    return shared;
}

/* ---- time ---- */

/* Similar to text: repeated phrases, and between them words with Zipf-like frequencies. */
static void random_text(uint32_t *tokens, uint32_t n, uint64_t seed)
{
    uint32_t from = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t r = rng_splitmix64(seed + i);
        double u = (double)(r >> 40) / (1 << 24);
        if (from && r % 8) {
            tokens[i] = tokens[from++];
        } else {
            tokens[i] = (uint32_t)(32000 * u * u * u * u);
            from = (uint32_t)(r >> 8) % (i + 1);
        }
    }
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

enum { N_ROUNDS = 2000, K = 5 };

/* Times rounds after a context of n tokens. Each appends one token and drafts. */
static void time_rounds(const struct prop_ops *ops, void *shared, uint32_t n)
{
    static double grow_us[N_ROUNDS], draft_us[N_ROUNDS];
    AUTO(mem_free) uint32_t *tokens = malloc((n + N_ROUNDS) * sizeof(*tokens));
    AUTO(mem_free) void *seq = calloc(1, ops->seq_size);
    if (!tokens || !seq)
        abort();
    random_text(tokens, n + N_ROUNDS, 0);
    struct prop_context c = {.tokens = tokens, .n = n};
    struct draft draft;
    double t0 = now_us();
    ops->grow(shared, seq, &c);
    double built_us = now_us() - t0;
    for (uint32_t i = 0; i < N_ROUNDS; i++) {
        c.n++;
        double a = now_us();
        ops->grow(shared, seq, &c);
        double b = now_us();
        struct prop_ask ask = {
            .seq = seq, .context = c, .max_depth = K, .max_nodes = K, .to = &draft};
        ops->draft(shared, (struct prop_ask *[]){&ask}, 1);
        draft_us[i] = now_us() - b;
        grow_us[i] = b - a;
    }
    qsort(grow_us, N_ROUNDS, sizeof(double), by_size);
    qsort(draft_us, N_ROUNDS, sizeof(double), by_size);
    printf("%-6s %8u tokens: look up %.2f us (p99 %.2f), append a token %.2f us (p99 %.2f), build "
           "%.1f ms",
           ops->name, n, draft_us[N_ROUNDS / 2], draft_us[N_ROUNDS * 99 / 100],
           grow_us[N_ROUNDS / 2], grow_us[N_ROUNDS * 99 / 100], built_us / 1e3);
    ops->seq_done(shared, seq, &c);
}

static void print_ngram_times(uint32_t n)
{
    void *shared = open_with(4, 1, "latest", true);
    AUTO(mem_free) uint32_t *tokens = malloc(n * sizeof(*tokens));
    struct ngram_scan scan = {.len_max = 4, .len_min = 1};
    uint32_t found[K];
    if (!tokens)
        abort();
    time_rounds(&prop_ngram, shared, n);
    random_text(tokens, n, 0);
    double t0 = now_us();
    ngram_scan(&scan, tokens, n, K, found);
    printf(", plain scan %.0f us\n", now_us() - t0);
    prop_ngram.close(shared);
}

/* With a full pool, of outputs of 500 tokens. */
static void print_suffix_times(uint32_t n, uint32_t n_pool)
{
    static double add_us[1 << 16];
    uint32_t tokens[500], n_outputs = n_pool / 500 * 2, half = n_outputs / 2;
    void *shared = open_suffix(1, 0, 0.1, n_pool);
    for (uint32_t i = 0; i < n_outputs; i++) {
        AUTO(mem_free) void *seq = calloc(1, prop_suffix.seq_size);
        random_text(tokens, 500, (uint64_t)i << 32);
        struct prop_context c = {.tokens = tokens, .n = 500, .n_prompt = 1};
        double t0 = now_us();
        prop_suffix.seq_done(shared, seq, &c);
        add_us[i] = now_us() - t0;
    }
    time_rounds(&prop_suffix, shared, n);
    if (half) {
        qsort(add_us + half, half, sizeof(double), by_size);
        printf(", pool of %u: %.2f us per token in (p99 %.2f)", n_pool,
               add_us[half + half / 2] / 500, add_us[half + half * 99 / 100] / 500);
    }
    printf("\n");
    prop_suffix.close(shared);
}

/* ---- accuracy ---- */

struct score {
    uint64_t rounds, drafts, drafted, accepted;
};

static void generate_text(const struct prop_ops *ops, void *shared, const struct text_sample *s,
                          uint32_t k, struct score *to)
{
    AUTO(mem_free) void *seq = calloc(1, ops->seq_size);
    struct prop_context c = {.tokens = s->tokens, .n = s->n_prompt, .n_prompt = s->n_prompt};
    struct draft draft;
    while (seq && c.n < s->n) {
        if (ops->grow(shared, seq, &c) < 0)
            abort();
        struct prop_ask ask = {
            .seq = seq, .context = c, .max_depth = k, .max_nodes = k, .to = &draft};
        ops->draft(shared, (struct prop_ask *[]){&ask}, 1);
        uint32_t left = s->n - c.n, accepted = 0;
        while (accepted < draft.n && accepted < left &&
               draft.tokens[accepted] == s->tokens[c.n + accepted])
            accepted++;
        to->rounds++;
        to->drafts += draft.n > 0;
        to->drafted += draft.n;
        to->accepted += accepted;
        c.n += accepted < left ? accepted + 1 : accepted;
    }
    ops->seq_done(shared, seq, &c);
}

/* Closes the proposer. */
static struct score score_of(const struct texts *t, const struct prop_ops *ops, void *shared,
                             uint32_t k)
{
    struct score score = {0};
    for (unsigned i = 0; i < t->n; i++)
        generate_text(ops, shared, &t->samples[i], k, &score);
    ops->close(shared);
    return score;
}

static void print_score(struct score s)
{
    printf("  %6.3f %8.1f%% %10.2f\n", (double)(s.rounds + s.accepted) / (double)s.rounds,
           100.0 * (double)s.accepted / (double)(s.drafted + !s.drafted),
           (double)s.accepted / (double)(s.drafts + !s.drafts));
}

static void print_suffix_scores(const struct texts *t)
{
    static const struct {
        double factor, offset, min_prob;
        int64_t pool_tokens;
        uint32_t k;
    } rows[] = {{1, 0, 0.1, 0, 5},       {1, 0, 0.1, 1 << 18, 5}, {2, 0, 0.1, 1 << 18, 5},
                {1, 1, 0.1, 1 << 18, 5}, {1, 0, 0.3, 1 << 18, 5}, {1, 0, 0.1, 1 << 18, 10}};
    printf("suffix: factor offset min_prob  pool\n");
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        void *shared =
            open_suffix(rows[i].factor, rows[i].offset, rows[i].min_prob, rows[i].pool_tokens);
        printf("%14.1f %6.1f %8.1f %6d %3u", rows[i].factor, rows[i].offset, rows[i].min_prob,
               (int)rows[i].pool_tokens, rows[i].k);
        print_score(score_of(t, &prop_suffix, shared, rows[i].k));
    }
}

static void print_scores(const struct texts *t)
{
    static const struct {
        int64_t max, min;
        const char *match;
        bool prompt_lookup;
        uint32_t k;
    } rows[] = {
        {4, 1, "latest", true, 5},  {4, 1, "earliest_full", true, 5},
        {4, 2, "latest", true, 5},  {4, 2, "earliest_full", true, 5},
        {4, 3, "latest", true, 5},  {3, 1, "latest", true, 5},
        {8, 1, "latest", true, 5},  {4, 1, "latest", false, 5},
        {4, 1, "latest", true, 10}, {4, 1, "earliest_full", true, 10},
    };
    if (!t->n)
        return;
    printf("\n%s (%u)\n%-14s %5s %7s %3s  %6s %9s %10s\n", t->name, t->n, "ngram_match", "n",
           "prompt", "k", "tau", "accepted", "per draft");
    for (size_t i = 0; i < ARRAY_LEN(rows); i++) {
        void *shared = open_with(rows[i].max, rows[i].min, rows[i].match, rows[i].prompt_lookup);
        printf("%-14s %2d..%-2d %6s %3u", rows[i].match, (int)rows[i].min, (int)rows[i].max,
               rows[i].prompt_lookup ? "yes" : "no", rows[i].k);
        print_score(score_of(t, &prop_ngram, shared, rows[i].k));
    }
    print_suffix_scores(t);
}

/* For drafts whose longest match has n tokens: counts how often token i is accepted if the tokens
 * before it are. */
static void count_accepted(const struct texts *t, uint32_t n, uint64_t tried[5],
                           uint64_t accepted[5])
{
    for (unsigned s = 0; s < t->n; s++) {
        const struct text_sample *x = &t->samples[s];
        for (uint32_t at = x->n_prompt; at + 5 <= x->n; at++) {
            struct ngram_scan longer = {.len_max = n + 1, .len_min = n + 1};
            struct ngram_scan exact = {.len_max = n, .len_min = n};
            uint32_t d[5];
            if ((n < 4 && ngram_scan(&longer, x->tokens, at, 1, d)) ||
                !ngram_scan(&exact, x->tokens, at, 5, d))
                continue;
            for (uint32_t i = 0; i < 5; i++) {
                tried[i]++;
                if (d[i] != x->tokens[at + i])
                    break;
                accepted[i]++;
            }
        }
    }
}

static void print_accept_ratios(const struct texts *all, unsigned n_all)
{
    printf("\naccepted, if the tokens before were, by length of the match\n");
    for (uint32_t n = 1; n <= 4; n++) {
        uint64_t tried[5] = {0}, accepted[5] = {0};
        for (unsigned i = 0; i < n_all; i++)
            count_accepted(&all[i], n, tried, accepted);
        printf("n = %u:", n);
        for (int i = 0; i < 5; i++)
            printf(" %.2f", (double)accepted[i] / (double)(tried[i] + !tried[i]));
        printf("\n");
    }
}

/* The embedded model's greedy answers to the held-out requests. */
static struct texts own_texts(const struct texts *asked)
{
    struct texts own = {.name = "the embedded model's own answers"};
    struct model_rig rig;
    if (!asked->n)
        return own;
    model_rig_open(&rig, SOURCE_DIR "/models/tales-11m-q8_0.gguf", &(struct model_rig_options){0});
    for (unsigned i = 0; i < asked->n && i < N_OWN; i++) {
        const struct text_sample *s = &asked->samples[i];
        uint32_t n = s->n_prompt, *tokens = malloc((n + OWN_TOKENS) * sizeof(*tokens));
        struct kv_seq seq = model_rig_seq(&rig);
        memcpy(tokens, s->tokens, n * sizeof(*tokens));
        if (n > 1)
            model_rig_feed(&rig, &seq, tokens, n - 1, 0, NULL);
        for (; n < s->n_prompt + OWN_TOKENS; n++) {
            const float *logits = model_rig_step(&rig, &seq, tokens[n - 1]);
            uint32_t best = 0;
            for (uint32_t v = 1; v < rig.model->params.n_vocab; v++)
                best = logits[v] > logits[best] ? v : best;
            tokens[n] = best;
        }
        kv_seq_done(rig.kv, &seq);
        texts_add(&own, tokens, n, s->n_prompt);
    }
    model_rig_close(&rig);
    return own;
}

int main(void)
{
    for (uint32_t n = 1 << 10; n <= 1 << 18; n <<= 4)
        print_ngram_times(n);
    for (uint32_t n = 1 << 10; n <= 1 << 18; n <<= 4)
        print_suffix_times(n, 1 << 18);
    print_suffix_times(1 << 14, 1 << 22);

    struct texts t[TEXTS_KINDS + 1] = {0};
    unsigned n = 0;
    char path[4096];
    AUTO(tok_free) struct tok *tales = texts_vocabulary(SOURCE_DIR "/models/tales-11m-q8_0.gguf");
    t[n++] = texts_load(TEXTS_TALES, tales, N_SAMPLES);
    t[n] = own_texts(&t[n - 1]);
    n++;
    const char *vocabulary = lib_shared("data/vocab/vocab-llama-bpe.gguf");
    AUTO(tok_free) struct tok *llama = NULL;
    if (vocabulary) {
        snprintf(path, sizeof(path), "%s", vocabulary);
        llama = texts_vocabulary(path);
        t[n++] = texts_load(TEXTS_GSM8K, llama, N_SAMPLES);
        t[n++] = texts_load(TEXTS_HUMANEVAL, llama, N_SAMPLES);
        t[n++] = texts_load(TEXTS_DOCUMENTS, llama, N_SAMPLES);
    }
    for (unsigned i = 0; i < n; i++)
        print_scores(&t[i]);
    print_accept_ratios(t, n);
    for (unsigned i = 0; i < n; i++)
        texts_done(&t[i]);
    return 0;
}
