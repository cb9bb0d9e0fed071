/* test_same_bits.c - promise 3: committed tokens and logprobs are bit-identical for any settings.
 *
 * Settings are the proposer (also none, and one that dies), k, drafting ahead, batch neighbours,
 * threads, prefill chunk, kernel tier. The walks of the kernels are timed or not. The prefix cache
 * is on or off. Each request runs once per batch size, so the cache then holds most prompts.
 *
 * Each row of settings is a real verifier-svc with real proposers. The normal run covers every pair
 * of settings; TANDEM_TEST_LONG=1 runs the full product over more prompts. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "lib/lib.h"
#include "lib/clients/generate.h"
#include "lib/clients/proposers.h"
#include "lib/rigs/services.h"
#include "lib/rigs/kernel_tiers.h"

#if LIB_SANITIZED
#define MAX_ROWS 8 // every proposer once
#define N_TOKENS 16
#define BATCHES 1, 8
#else
#define MAX_ROWS UINT32_MAX
#define N_TOKENS 40
#define BATCHES 1, 4, 16
#endif
#define MAX_BATCH 16

enum factor { PROPOSER, K, POLICY, AHEAD, THREADS, CHUNK, TIER, TUNE, PREFIX, N_FACTORS };
#define ALWAYS 0 // the policy that drafts even where drafting does not pay
enum proposer {
    NO_PROPOSER,
    NGRAM,
    SUFFIX,
    CASCADE,
    DRAFT,
    RANDOM_GUESSES,
    KILLED_MIDWAY,
    DRAFT_KILLED_MIDWAY
};

#define MAX_LEVELS 8 // of a factor
static struct {
    const char *name;
    unsigned n;
    const char *values[MAX_LEVELS];
} factors[N_FACTORS] = {
    {"proposer",
     8,
     {"none", "ngram", "suffix", "cascade", "draft", "random", "killed", "draft killed"}},
    {"k", 3, {"1", "3", "8"}},
    {"policy", 3, {"fixed", "goodput", "ema"}},
    {"ahead", 2, {"--no-draft-ahead", "--draft-ahead"}},
    {"threads", 2, {"1", "2"}},
    {"chunk", 3, {"16", "64", "512"}},
    {"tier", 0, {0}}, // filled with the tiers of this CPU
    {"tune", 2, {"off", "on"}},
    {"prefix cache", 2, {"--no-prefix-cache", "--prefix-cache"}},
};
static const unsigned batches[] = {BATCHES}; // the last is the largest
#define N_BATCHES ARRAY_LEN(batches)

struct settings {
    unsigned level[N_FACTORS];
};

static const char *const prompts[] = {
    "Once upon a time, there was a little girl named Lily. She loved to play outside. One day, "
    "Lily",
    "<|user|>Write a story with the words tree, ball and rain.<|end|><|assistant|>",
    "The cat sat on the mat. The cat sat on the mat. The cat sat on the mat. The cat",
    "<|user|>Tell me a story called \"The Lost Kite\".<|end|><|assistant|>",
    "<|user|>Hello<|end|><|assistant|>",
    "A",
    "Tom had a red ball. Tom had a blue ball. Tom had a green ball. Sam had a red",
    "One day, a big bear went into the forest to find some honey. He looked under a big tree and "
    "saw "
    "a small bee. \"Hello, little bee,\" said the bear. \"Hello, big bear,\" said the little bee. "
    "\"Do "
    "you have some honey?\" asked the bear. \"Yes,\" said the bee, \"we have a lot of honey in our "
    "tree.\" The bear was very happy. He said, \"Can I have some of your honey?\" The bee said,",
    "Max is a dog. Max",
    "Once there was a",
    "<|user|>Tell me a story.<|end|><|assistant|>",
    "<|user|>Write a story about a dog named Max.<|end|><|assistant|>",
    "The sun was hot. The sun was bright. The",
    "\"No,\" said Mom. \"No,\" said Dad. \"No,\" said",
    "Lily and Ben like to play in the park. They see a big slide and a swing. They run to the "
    "slide.",
    "1, 2, 3, 4, 5, 6, 1, 2, 3, 4,",
    "She was sad because her toy was lost. She looked in her room, she looked in the",
    "In the garden, there were many flowers. Red flowers, blue flowers, yellow flowers and",
    "The old man said to the boy: \"If you find the key, you will find the door. If you find the "
    "door,",
    "<|user|>What is the capital of France?<|end|><|assistant|>",
};

/* One request of the set; neighbours in a batch are other members of the same set. */
struct variant {
    const char *prompt;
    float temperature;
    bool penalties, logprobs;
    int64_t seed;
};

static bool is_long(void)
{
    return getenv("TANDEM_TEST_LONG") && !LIB_SANITIZED;
}

/* Temperature, penalties, logprobs and seed change between requests, with different periods. */
static struct variant variant_at(unsigned i)
{
    return (struct variant){.prompt = prompts[i % ARRAY_LEN(prompts)],
                            .temperature = i % 2 ? 0.8f : 0,
                            .penalties = i / 2 % 2,
                            .logprobs = i / 4 % 2,
                            .seed = 1000 + i / 8};
}

static void send_variant(struct rpc_client *c, const struct variant *v, struct generation *g,
                         struct answer *a)
{
    Tandem__V1__GenerateRequest req = TANDEM__V1__GENERATE_REQUEST__INIT;
    Tandem__V1__Sampling s = TANDEM__V1__SAMPLING__INIT;
    s.has_temperature_case = TANDEM__V1__SAMPLING__HAS_TEMPERATURE_TEMPERATURE;
    s.temperature = v->temperature;
    s.has_seed_case = TANDEM__V1__SAMPLING__HAS_SEED_SEED;
    s.seed = v->seed;
    if (v->penalties) {
        s.has_repetition_case = TANDEM__V1__SAMPLING__HAS_REPETITION_REPETITION_PENALTY;
        s.repetition_penalty = 1.1f;
        s.has_frequency_case = TANDEM__V1__SAMPLING__HAS_FREQUENCY_FREQUENCY_PENALTY;
        s.frequency_penalty = 0.2f;
        s.has_top_p_case = TANDEM__V1__SAMPLING__HAS_TOP_P_TOP_P;
        s.top_p = 0.95f;
    }
    req.sampling = &s;
    req.prompt_case = TANDEM__V1__GENERATE_REQUEST__PROMPT_TEXT;
    req.text.data = (uint8_t *)(uintptr_t)v->prompt;
    req.text.len = strlen(v->prompt);
    req.parse_special = req.add_bos = req.ignore_eos = true;
    req.has_max_tokens_case = TANDEM__V1__GENERATE_REQUEST__HAS_MAX_TOKENS_MAX_TOKENS;
    req.max_tokens = N_TOKENS;
    req.logprobs = v->logprobs;
    req.top_logprobs = v->logprobs ? ANSWER_MAX_TOP : 0;
    generation_start(g, c, &req, a);
}

struct world {
    struct service verifier, proposer;
    struct liar *liar;
    struct rpc_client *client;
};

/* The target, quantized to q4_0: without that no draft token would be rejected. */
#define DRAFT_MODEL                                                                                \
    "--draft-model", SOURCE_DIR "/models/tales-1m-q8_0.gguf", "--draft-quantize", "q4_0"

static const char *const draft_args[] = {"--proposer", "draft", DRAFT_MODEL, NULL};
static const char *const cascade_args[] = {"--proposer", "cascade", DRAFT_MODEL, NULL};
static const char *const suffix_args[] = {"--proposer", "suffix", NULL};

static void start_proposer(struct world *w, enum proposer p, char *target, size_t size)
{
    if (p == RANDOM_GUESSES) {
        char path[120];
        snprintf(path, sizeof(path), "%s/liar.sock", service_dir());
        w->liar = liar_start(path, LIE_NOTHING, 4096);
        snprintf(target, size, "unix:%s", path);
    } else if (p != NO_PROPOSER) {
        bool draft = p == DRAFT || p == DRAFT_KILLED_MIDWAY;
        service_start(&w->proposer, "proposer-svc",
                      draft          ? draft_args
                      : p == SUFFIX  ? suffix_args
                      : p == CASCADE ? cascade_args
                                     : NULL);
        snprintf(target, size, "%s", w->proposer.target);
    }
}

static void world_start(struct world *w, const struct settings *s, const char *model)
{
    char target[200] = "";
    const char *args[] = {"--model",
                          model,
                          "--k",
                          factors[K].values[s->level[K]],
                          "--threads",
                          factors[THREADS].values[s->level[THREADS]],
                          "--prefill-chunk",
                          factors[CHUNK].values[s->level[CHUNK]],
                          "--policy",
                          factors[POLICY].values[s->level[POLICY]],
                          "--disable-batch-size",
                          "0",
                          "--no-pin",
                          factors[PREFIX].values[s->level[PREFIX]],
                          "--log-level",
                          "warn",
                          factors[AHEAD].values[s->level[AHEAD]],
                          NULL,
                          NULL,
                          NULL};
    *w = (struct world){0};
    start_proposer(w, s->level[PROPOSER], target, sizeof(target));
    if (*target) {
        args[17] = "--proposers";
        args[18] = target;
    }
    setenv("TANDEM_CPU", factors[TIER].values[s->level[TIER]], 1);
    setenv("TANDEM_TUNE", factors[TUNE].values[s->level[TUNE]], 1);
    service_start(&w->verifier, "verifier-svc", args);
    assert_int_equal(rpc_client_new(w->verifier.target, NULL, &w->client), 0);
}

static void world_stop(struct world *w)
{
    rpc_client_free(w->client);
    service_stop(&w->verifier);
    service_stop(&w->proposer);
    liar_stop(w->liar);
}

/* Answers of n_variants requests, `batch` at a time. */
static void ask_all(struct world *w, bool kill_midway, unsigned n_variants, unsigned batch,
                    struct answer *answers)
{
    struct generation g[MAX_BATCH];
    for (unsigned from = 0; from < n_variants; from += batch) {
        unsigned n = n_variants - from < batch ? n_variants - from : batch;
        for (unsigned i = 0; i < n; i++) {
            struct variant v = variant_at(from + i);
            send_variant(w->client, &v, &g[i], &answers[from + i]);
        }
        if (kill_midway && from + batch > n_variants / 2 && w->proposer.pid) {
            generation_wait_tokens(&g[0], N_TOKENS / 3);
            service_kill(&w->proposer);
        }
        for (unsigned i = 0; i < n; i++) {
            generation_end(&g[i]);
            if (g[i].status.code != RPC_OK)
                fail_msg("%s: %s", rpc_code_name(g[i].status.code), g[i].status.text);
        }
    }
}

static void must_equal(const struct answer *got, const struct answer *want, unsigned i,
                       const struct settings *s, unsigned batch)
{
    bool same = got->n == want->n && got->n == N_TOKENS &&
                memcmp(got->ids, want->ids, got->n * sizeof(*got->ids)) == 0 &&
                memcmp(got->logprobs, want->logprobs, got->n * sizeof(*got->logprobs)) == 0 &&
                memcmp(got->top, want->top, got->n * sizeof(*got->top)) == 0 &&
                got->text_len == want->text_len &&
                memcmp(got->text, want->text, got->text_len) == 0;
    if (same)
        return;
    unsigned at = 0;
    while (at < got->n && got->ids[at] == want->ids[at] && got->logprobs[at] == want->logprobs[at])
        at++;
    fprintf(stderr, "batch %u, request %u differs at token %u of %u:", batch, i, at, got->n);
    for (unsigned f = 0; f < N_FACTORS; f++)
        fprintf(stderr, " %s=%s", factors[f].name, factors[f].values[s->level[f]]);
    fail_msg("got token %u (%a), want %u (%a)", got->ids[at], (double)got->logprobs[at],
             want->ids[at], (double)want->logprobs[at]);
}

static struct draft_counts {
    unsigned drafted, accepted;
} all, by_proposer[DRAFT_KILLED_MIDWAY + 1]; // of all rows; of the rows with policy ALWAYS

/* Prints and adds the figures of one row of settings. */
static void count_row(const struct settings *s, const struct answer *answers, unsigned n)
{
    unsigned drafted = 0, accepted = 0;
    for (unsigned i = 0; i < n; i++) {
        drafted += answers[i].drafted;
        accepted += answers[i].accepted;
    }
    for (unsigned f = 0; f < N_FACTORS; f++)
        printf("%s=%s ", factors[f].name, factors[f].values[s->level[f]]);
    printf("drafted=%u accepted=%u\n", drafted, accepted);
    all.drafted += drafted;
    all.accepted += accepted;
    assert_true(accepted <= drafted);
    if (s->level[PROPOSER] == NO_PROPOSER)
        assert_int_equal(drafted, 0);
    if (s->level[POLICY] == ALWAYS) { // the other policies may decide that drafts do not pay
        by_proposer[s->level[PROPOSER]].drafted += drafted;
        by_proposer[s->level[PROPOSER]].accepted += accepted;
    }
}

/* Whether tokens of this proposer were accepted and others rejected: else the comparison proves
 * little. Random guesses are never accepted, except by chance. */
static bool proves_enough(enum proposer p)
{
    const struct draft_counts *c = &by_proposer[p];
    return c->drafted > c->accepted && (p == RANDOM_GUESSES || c->accepted > 0);
}

static void find_tiers(void)
{
    const struct kernel *k[KERNEL_TIERS_MAX];
    factors[TIER].n = kernel_tiers_here(k);
    for (unsigned i = 0; i < factors[TIER].n; i++)
        factors[TIER].values[i] = k[i]->name;
}

/* Where the proposer must die, it does so in a different batch size in each row. */
static void check_settings(const struct settings *s, unsigned n_rows, const char *model,
                           unsigned n_variants, const struct answer *want, struct answer *got)
{
    struct world w;
    enum proposer p = s->level[PROPOSER];
    bool dies = p == KILLED_MIDWAY || p == DRAFT_KILLED_MIDWAY;
    unsigned dies_in = dies ? n_rows % N_BATCHES : N_BATCHES;
    world_start(&w, s, model);
    for (unsigned b = 0; b < N_BATCHES; b++) {
        ask_all(&w, b == dies_in, n_variants, batches[b], got);
        for (unsigned i = 0; i < n_variants; i++)
            must_equal(&got[i], &want[i], i, s, batches[b]);
        if (b == 0)
            count_row(s, got, n_variants);
    }
    world_stop(&w);
}

/* ---- which settings ---- */

static_assert(KERNEL_TIERS_MAX <= MAX_LEVELS, "all tiers fit in");
static bool pair_done[N_FACTORS][MAX_LEVELS][N_FACTORS][MAX_LEVELS];

static unsigned new_pairs(const struct settings *s, bool mark)
{
    unsigned n = 0;
    for (unsigned a = 0; a < N_FACTORS; a++) {
        for (unsigned b = a + 1; b < N_FACTORS; b++) {
            bool *done = &pair_done[a][s->level[a]][b][s->level[b]];
            n += !*done;
            *done |= mark;
        }
    }
    return n;
}

static struct settings settings_at(unsigned i)
{
    struct settings s;
    for (unsigned f = 0; f < N_FACTORS; f++) {
        s.level[f] = i % factors[f].n;
        i /= factors[f].n;
    }
    return s;
}

/* Greedy: the row of the full product that covers the most uncovered pairs. */
static bool next_pairwise(unsigned n_product, struct settings *ret)
{
    unsigned best = 0;
    for (unsigned i = 0; i < n_product; i++) {
        struct settings s = settings_at(i);
        unsigned n = new_pairs(&s, false);
        if (n > best) {
            best = n;
            *ret = s;
        }
    }
    if (best)
        new_pairs(ret, true);
    return best > 0;
}

#define TRIES 20

/* Runs more rows for proposers whose drafts were too late in all rows, as on a busy machine. */
static void check_proposers_again(const char *model, unsigned n_variants, const struct answer *want,
                                  struct answer *got)
{
    for (enum proposer p = NGRAM; p <= RANDOM_GUESSES; p++) {
        const struct settings s = {.level = {[PROPOSER] = p, [K] = 1, [POLICY] = ALWAYS}};
        for (unsigned i = 0; i < TRIES && !proves_enough(p); i++)
            check_settings(&s, 0, model, n_variants, want, got);
        if (!proves_enough(p))
            fail_msg("proposer %s: accepted %u of %u draft tokens", factors[PROPOSER].values[p],
                     by_proposer[p].accepted, by_proposer[p].drafted);
    }
}

static void any_settings_give_the_same_bits(void **state)
{
    (void)state;
    const char *model = SOURCE_DIR "/models/tales-1m-q8_0.gguf";
    unsigned n_variants = is_long() ? ARRAY_LEN(prompts) * 8 : batches[N_BATCHES - 1],
             n_product = 1, n_rows = 0;
    for (unsigned f = 0; f < N_FACTORS; f++)
        n_product *= factors[f].n;
    struct answer *want = calloc(n_variants, sizeof(*want)),
                  *got = calloc(n_variants, sizeof(*got));
    assert_true(want && got);

    struct settings plain = {.level = {[PROPOSER] = NO_PROPOSER, [CHUNK] = 2}};
    struct world w;
    world_start(&w, &plain, model);
    ask_all(&w, false, n_variants, 1, want);
    world_stop(&w);

    struct settings s;
    if (is_long()) {
        for (; n_rows < n_product; n_rows++) {
            s = settings_at(n_rows);
            check_settings(&s, n_rows, model, n_variants, want, got);
        }
    } else {
        for (; n_rows < MAX_ROWS && next_pairwise(n_product, &s); n_rows++)
            check_settings(&s, n_rows, model, n_variants, want, got);
    }
    printf("%u verifiers, %u requests each at %zu batch sizes\n", n_rows, n_variants, N_BATCHES);
    if (!LIB_SANITIZED) // so slow that all drafts of a proposer may be late, but not those of all
        check_proposers_again(model, n_variants, want, got);
    assert_true(all.accepted > 0 && all.drafted > all.accepted);
    free(want);
    free(got);
}

/* Shows that the comparison can fail. */
static void another_seed_gives_other_tokens(void **state)
{
    (void)state;
    struct settings plain = {.level = {[CHUNK] = 2, [TIER] = 0}};
    struct world w;
    struct answer *a = calloc(2, sizeof(*a));
    struct generation g;
    world_start(&w, &plain, SOURCE_DIR "/models/tales-1m-q8_0.gguf");
    for (unsigned i = 0; i < 2; i++) {
        struct variant v = {.prompt = prompts[0], .temperature = 0.8f, .seed = i};
        send_variant(w.client, &v, &g, &a[i]);
        generation_end(&g);
    }
    world_stop(&w);
    assert_memory_not_equal(a[0].ids, a[1].ids, N_TOKENS * sizeof(*a[0].ids));
    free(a);
}

int main(void)
{
    find_tiers();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(another_seed_gives_other_tokens),
        cmocka_unit_test(any_settings_give_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
