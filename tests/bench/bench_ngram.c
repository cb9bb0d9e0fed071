/* bench_ngram.c - how long the n-gram proposer takes, and how often it is right.
 *
 * Right: real texts are "generated" token by token from their prompts. In each round the proposer
 * drafts k tokens, those that the text goes on with are kept, and the text's next token follows. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "base/rng.h"
#include "lib/lib.h"
#include "lib/ngram_scan.h"
#include "lib/rig.h"
#include "lib/texts.h"
#include "proposer-svc/prop_ngram.h"

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

/* ---- time ---- */

/* Text-like: phrases that come back, and between them words of a Zipf-like frequency. */
static void random_text(uint32_t *tokens, uint32_t n)
{
    uint32_t from = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint64_t r = rng_splitmix64(i);
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

static void print_times(uint32_t n)
{
    enum { N_ROUNDS = 2000, K = 5 };
    static double grow_us[N_ROUNDS], draft_us[N_ROUNDS];
    AUTO(mem_free) uint32_t *tokens = malloc((n + N_ROUNDS) * sizeof(*tokens));
    AUTO(mem_free) void *seq = calloc(1, prop_ngram.seq_size);
    if (!tokens || !seq)
        abort();
    random_text(tokens, n + N_ROUNDS);
    void *shared = open_with(4, 1, "latest", true);
    struct prop_context c = {.tokens = tokens, .n = n};
    struct prop_draft draft;
    double t0 = now_us();
    prop_ngram.grow(shared, seq, &c);
    double built_us = now_us() - t0;
    for (uint32_t i = 0; i < N_ROUNDS; i++) {
        c.n++;
        double a = now_us();
        prop_ngram.grow(shared, seq, &c);
        double b = now_us();
        struct prop_ask ask = {.seq = seq, .context = c, .k = K, .to = &draft};
        prop_ngram.draft(shared, (struct prop_ask *[]){&ask}, 1);
        draft_us[i] = now_us() - b;
        grow_us[i] = b - a;
    }
    t0 = now_us();
    struct ngram_scan scan = {.len_max = 4, .len_min = 1};
    uint32_t found[K];
    ngram_scan(&scan, tokens, c.n, K, found);
    double scan_us = now_us() - t0;
    qsort(grow_us, N_ROUNDS, sizeof(double), by_size);
    qsort(draft_us, N_ROUNDS, sizeof(double), by_size);
    printf("%8u tokens: look up %.2f us (p99 %.2f), append a token %.2f us (p99 %.2f), build %.1f "
           "ms, plain scan %.0f us\n",
           n, draft_us[N_ROUNDS / 2], draft_us[N_ROUNDS * 99 / 100], grow_us[N_ROUNDS / 2],
           grow_us[N_ROUNDS * 99 / 100], built_us / 1e3, scan_us);
    prop_ngram.seq_done(shared, seq);
    prop_ngram.close(shared);
}

/* ---- how often it is right ---- */

struct score {
    uint64_t rounds, drafts, drafted, kept;
};

static void generate(void *shared, const struct text_sample *s, uint32_t k, struct score *to)
{
    AUTO(mem_free) void *seq = calloc(1, prop_ngram.seq_size);
    struct prop_context c = {.tokens = s->tokens, .n = s->n_prompt, .n_prompt = s->n_prompt};
    struct prop_draft draft;
    while (seq && c.n < s->n) {
        if (prop_ngram.grow(shared, seq, &c) < 0)
            abort();
        struct prop_ask ask = {.seq = seq, .context = c, .k = k, .to = &draft};
        prop_ngram.draft(shared, (struct prop_ask *[]){&ask}, 1);
        uint32_t left = s->n - c.n, kept = 0;
        while (kept < draft.n && kept < left && draft.tokens[kept] == s->tokens[c.n + kept])
            kept++;
        to->rounds++;
        to->drafts += draft.n > 0;
        to->drafted += draft.n;
        to->kept += kept;
        c.n += kept < left ? kept + 1 : kept;
    }
    prop_ngram.seq_done(shared, seq);
}

static struct score score_of(const struct texts *t, int64_t max, int64_t min, const char *match,
                             bool prompt_lookup, uint32_t k)
{
    struct score score = {0};
    void *shared = open_with(max, min, match, prompt_lookup);
    for (unsigned i = 0; i < t->n; i++)
        generate(shared, &t->samples[i], k, &score);
    prop_ngram.close(shared);
    return score;
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
        struct score s =
            score_of(t, rows[i].max, rows[i].min, rows[i].match, rows[i].prompt_lookup, rows[i].k);
        printf("%-14s %2d..%-2d %6s %3u  %6.3f %8.1f%% %10.2f\n", rows[i].match, (int)rows[i].min,
               (int)rows[i].max, rows[i].prompt_lookup ? "yes" : "no", rows[i].k,
               (double)(s.rounds + s.kept) / (double)s.rounds,
               100.0 * (double)s.kept / (double)(s.drafted + !s.drafted),
               (double)s.kept / (double)(s.drafts + !s.drafts));
    }
}

/* Of drafts whose longest match has n tokens: how often token i is kept after those before it. */
static void count_kept(const struct texts *t, uint32_t n, uint64_t tried[5], uint64_t kept[5])
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
                kept[i]++;
            }
        }
    }
}

static void print_kept(const struct texts *all, unsigned n_all)
{
    printf("\nkept, given that the tokens before were, by length of the match\n");
    for (uint32_t n = 1; n <= 4; n++) {
        uint64_t tried[5] = {0}, kept[5] = {0};
        for (unsigned i = 0; i < n_all; i++)
            count_kept(&all[i], n, tried, kept);
        printf("n = %u:", n);
        for (int i = 0; i < 5; i++)
            printf(" %.2f", (double)kept[i] / (double)(tried[i] + !tried[i]));
        printf("\n");
    }
}

/* What the embedded model says greedily to the held-out requests. */
static struct texts own_texts(const struct texts *asked)
{
    struct texts own = {.name = "the embedded model's own answers"};
    struct rig rig;
    if (!asked->n)
        return own;
    rig_open(&rig, SOURCE_DIR "/models/tales-11m-q8_0.gguf", &(struct rig_options){0});
    for (unsigned i = 0; i < asked->n && i < N_OWN; i++) {
        const struct text_sample *s = &asked->samples[i];
        uint32_t n = s->n_prompt, *tokens = malloc((n + OWN_TOKENS) * sizeof(*tokens));
        struct kv_seq seq = rig_seq(&rig);
        memcpy(tokens, s->tokens, n * sizeof(*tokens));
        if (n > 1)
            rig_feed(&rig, &seq, tokens, n - 1, 0, NULL);
        for (; n < s->n_prompt + OWN_TOKENS; n++) {
            const float *logits = rig_step(&rig, &seq, tokens[n - 1]);
            uint32_t best = 0;
            for (uint32_t v = 1; v < rig.model->params.n_vocab; v++)
                best = logits[v] > logits[best] ? v : best;
            tokens[n] = best;
        }
        kv_seq_done(rig.kv, &seq);
        texts_add(&own, tokens, n, s->n_prompt);
    }
    rig_close(&rig);
    return own;
}

int main(void)
{
    print_times(1 << 10);
    print_times(1 << 14);
    print_times(1 << 17);

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
    print_kept(t, n);
    for (unsigned i = 0; i < n; i++)
        texts_done(&t[i]);
    return 0;
}
