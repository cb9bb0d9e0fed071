/* test_lossless.c - promise 2 through the real services: with drafts drawn from a law that the
 * proposer tells, the committed tokens follow the target's own.
 *
 * Three tokens can come at each place. Four are generated behind one prompt, over and over: the
 * first without a draft, the others with drafts of two. What the target says behind each of the 40
 * beginnings is asked for one by one, so the joint law of the four is known; requests of all rules
 * run side by side. Once the drafts are those of a test's proposer, and the request's penalties
 * count the draft's own tokens; once those of a draft model, ahead where nothing is drawn; once
 * those of a chain. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "lib/generate.h"
#include "lib/lib.h"
#include "lib/plain_dist.h"
#include "lib/proposers.h"
#include "lib/services.h"
#include "tandem/v1/stats.pb-c.h"
#include "verifier-svc/accept.h"

#define SMALL SOURCE_DIR "/models/tales-1m-q8_0.gguf"
#define LARGE SOURCE_DIR "/models/tales-11m-q8_0.gguf"
#define N_VOCAB 4096
#define N_AT_ONCE 24
#define LEN 4
#define N_LAW 81   // 3^LEN
#define N_NODES 40 // beginnings of up to three tokens
#define PRESENCE 1.5F
#define FREQUENCY 1.0F
#define SURELY_WRONG 1e-6

static struct service verifier, drafter;
static struct liar *liar;
static struct rpc_client *client;
static bool biased;       // a bias leaves the liar's three tokens; else the target's three best
static float temperature; // so high that all three come

/* Node 0: nothing yet; 3 i + 1 + k: behind token k of node i. */
static struct {
    uint32_t ids[LIAR_LAW];
    double p[LIAR_LAW];
} nodes[N_NODES];

/* ---- requests ---- */

struct wish {
    Tandem__V1__GenerateRequest msg;
    Tandem__V1__Sampling sampling;
    Tandem__V1__Speculative spec;
    Tandem__V1__TokenIds ids;
    Tandem__V1__LogitBias bias[LIAR_LAW], *biases[LIAR_LAW];
    uint32_t tokens[4 + LEN];
};

static void add_bias(struct wish *w, uint32_t token)
{
    Tandem__V1__LogitBias *b = &w->bias[w->sampling.n_logit_bias];
    tandem__v1__logit_bias__init(b);
    b->token = token;
    b->bias = 100;
    w->biases[w->sampling.n_logit_bias++] = b;
}

static void wish_init(struct wish *w, uint32_t max_tokens)
{
    tandem__v1__generate_request__init(&w->msg);
    tandem__v1__sampling__init(&w->sampling);
    tandem__v1__speculative__init(&w->spec);
    tandem__v1__token_ids__init(&w->ids);
    memcpy(w->tokens, ((uint32_t[]){1, 500, 600, 700}), 4 * sizeof(uint32_t));
    w->ids.ids = w->tokens;
    w->ids.n_ids = 4;
    w->msg.prompt_case = TANDEM__V1__GENERATE_REQUEST__PROMPT_TOKENS;
    w->msg.tokens = &w->ids;
    w->msg.sampling = &w->sampling;
    w->msg.speculative = &w->spec;
    w->msg.has_max_tokens_case = TANDEM__V1__GENERATE_REQUEST__HAS_MAX_TOKENS_MAX_TOKENS;
    w->msg.max_tokens = max_tokens;
    w->msg.ignore_eos = true;
    w->sampling.logit_bias = w->biases;
    w->sampling.has_temperature_case = TANDEM__V1__SAMPLING__HAS_TEMPERATURE_TEMPERATURE;
    w->sampling.temperature = temperature;
}

/* One token behind these; what the model says of it. */
static void ask_one(struct wish *w, const uint32_t *before, unsigned n, struct answer *a)
{
    for (unsigned k = 0; k < n; k++)
        w->tokens[w->ids.n_ids++] = before[k];
    w->msg.logprobs = true;
    w->msg.top_logprobs = LIAR_LAW;
    memset(a, 0, sizeof(*a));
    generation_run(client, &w->msg, a);
}

static double penalty(uint32_t token, const uint32_t *before, unsigned n)
{
    unsigned count = 0;
    for (unsigned k = 0; k < n; k++)
        count += before[k] == token;
    return biased && count ? (double)(PRESENCE + FREQUENCY * (float)count) : 0;
}

/* Fills a node and those below it. */
static void ask_law(unsigned node, uint32_t *before, unsigned n, struct answer *a)
{
    struct wish w;
    double sum = 0;
    wish_init(&w, 1);
    ask_one(&w, before, n, a);
    for (unsigned i = 0; i < LIAR_LAW; i++)
        nodes[node].ids[i] = biased ? LIAR_TOKEN(i) : a->top[0][i];
    for (unsigned i = 0; i < LIAR_LAW; i++) {
        uint32_t token = nodes[node].ids[i];
        wish_init(&w, 1);
        add_bias(&w, token); // it comes, with the logprob that it has without
        ask_one(&w, before, n, a);
        assert_int_equal(a->ids[0], token);
        double logit = (double)a->logprobs[0] - penalty(token, before, n);
        sum += nodes[node].p[i] = exp(logit / (double)temperature);
    }
    for (unsigned i = 0; i < LIAR_LAW; i++) {
        nodes[node].p[i] /= sum;
        before[n] = nodes[node].ids[i];
        if (n + 1 < LEN)
            ask_law(3 * node + 1 + i, before, n + 1, a);
    }
}

/* Probability of outcome `at`, its tokens in base 3. */
static double law_of(unsigned at)
{
    double p = 1;
    unsigned node = 0;
    for (unsigned i = 0, unit = N_LAW / 3; i < LEN; i++, unit /= 3) {
        p *= nodes[node].p[at / unit % 3];
        node = 3 * node + 1 + at / unit % 3;
    }
    return p;
}

/* ---- services ---- */

static void wait_proposer(void)
{
    int64_t until = clock_us() + INT64_C(60000000);
    for (bool there = false; !there;) {
        Tandem__V1__GetStatsRequest req = TANDEM__V1__GET_STATS_REQUEST__INIT;
        Tandem__V1__StatsReply *s = NULL;
        struct rpc_status st =
            rpc_unary(client, "/tandem.v1.Stats/GetStats", NULL, &req.base,
                      &tandem__v1__stats_reply__descriptor, (ProtobufCMessage **)&s);
        if (!s)
            fail_msg("%s", st.text);
        there = s->n_proposers == 1 && s->proposers[0]->connected;
        tandem__v1__stats_reply__free_unpacked(s, NULL);
        assert_true(clock_us() < until);
    }
}

static void start_verifier(const char *model, const char *proposer, bool ahead)
{
    uint32_t before[LEN];
    struct answer *a = calloc(1, sizeof(*a));
    service_start(&verifier, "verifier-svc",
                  (const char *[]){"--model", model, "--policy", "fixed", "--k", "2",
                                   "--disable-batch-size", "0", "--proposer-budget-ms", "250",
                                   "--proposers", proposer,
                                   ahead ? "--draft-ahead" : "--no-draft-ahead", NULL});
    assert_int_equal(rpc_client_new(verifier.target, NULL, &client), 0);
    wait_proposer();
    ask_law(0, before, 0, a);
    free(a);
}

static int start_with_liar(void **state)
{
    (void)state;
    char path[PROPOSER_PATH_MAX], target[PROPOSER_PATH_MAX + 8];
    snprintf(path, sizeof(path), "%s/drawer.sock", service_dir());
    snprintf(target, sizeof(target), "unix:%s", path);
    liar = liar_start(path, LIE_DRAWN, N_VOCAB);
    biased = true;
    temperature = 3;
    start_verifier(SMALL, target, false);
    return 0;
}

static int start_with_service(const char *proposer, bool ahead)
{
    service_start(&drafter, "proposer-svc",
                  (const char *[]){"--proposer", proposer, "--chain", "suffix,draft",
                                   "--draft-model", SMALL, NULL});
    biased = false;
    temperature = 2;
    start_verifier(LARGE, drafter.target, ahead);
    return 0;
}

static int start_with_draft_model(void **state)
{
    (void)state;
    return start_with_service("draft", true);
}

/* Past outputs are known to it: what it says of them is chosen, what its model says is drawn. */
static int start_with_chain(void **state)
{
    (void)state;
    return start_with_service("chain", false);
}

static int stop(void **state)
{
    (void)state;
    rpc_client_free(client);
    service_stop(&verifier);
    service_stop(&drafter);
    liar_stop(liar);
    liar = NULL;
    return 0;
}

/* ---- many of them ---- */

struct asked {
    const char *rule;
    bool dense;
    float parameter; // 0: the rule's own
    uint32_t count[N_LAW];
    uint32_t n, n_drafted, n_accepted;
};

static void take(struct asked *q, const struct answer *a)
{
    unsigned at = 0, node = 0;
    assert_int_equal(a->n, LEN);
    for (unsigned i = 0; i < LEN; i++) {
        unsigned k = 0;
        while (k < LIAR_LAW && nodes[node].ids[k] != a->ids[i])
            k++;
        assert_true(k < LIAR_LAW);
        at = at * 3 + k;
        node = 3 * node + 1 + k;
    }
    q->count[at]++;
    q->n++;
    q->n_drafted += a->drafted;
    q->n_accepted += a->accepted;
}

static void start_one(const struct asked *q, struct generation *g, struct answer *a)
{
    struct wish w;
    wish_init(&w, LEN);
    for (unsigned i = 0; i < LIAR_LAW && biased; i++)
        add_bias(&w, LIAR_TOKEN(i));
    if (biased) {
        w.sampling.has_presence_case = TANDEM__V1__SAMPLING__HAS_PRESENCE_PRESENCE_PENALTY;
        w.sampling.presence_penalty = PRESENCE;
        w.sampling.has_frequency_case = TANDEM__V1__SAMPLING__HAS_FREQUENCY_FREQUENCY_PENALTY;
        w.sampling.frequency_penalty = FREQUENCY;
    } else {
        w.sampling.has_top_k_case = TANDEM__V1__SAMPLING__HAS_TOP_K_TOP_K;
        w.sampling.top_k = LIAR_LAW;
    }
    w.spec.rule = rpc_text(q->rule);
    w.spec.dense_q = q->dense;
    if (q->parameter) {
        w.spec.has_rule_parameter_case = TANDEM__V1__SPECULATIVE__HAS_RULE_PARAMETER_RULE_PARAMETER;
        w.spec.rule_parameter = q->parameter;
    }
    memset(a, 0, sizeof(*a));
    generation_start(g, client, &w.msg, a);
}

/* n requests for each of the rules, in one batch after the other, all rules in each. */
static void run(struct asked *v, unsigned n_rules, uint32_t n)
{
    struct answer *answers = calloc(N_AT_ONCE, sizeof(*answers));
    struct generation g[N_AT_ONCE];
    for (uint32_t left = n_rules * n; left;) {
        uint32_t now = left < N_AT_ONCE ? left : N_AT_ONCE;
        for (uint32_t i = 0; i < now; i++)
            start_one(&v[i % n_rules], &g[i], &answers[i]);
        for (uint32_t i = 0; i < now; i++) {
            generation_end(&g[i]);
            if (g[i].status.code != RPC_OK)
                fail_msg("%s", g[i].status.text);
            assert_string_equal(answers[i].rule, v[i % n_rules].rule);
            take(&v[i % n_rules], &answers[i]);
        }
        left -= now;
    }
    free(answers);
}

/* Tokens are a fraction as likely as the rare ones together count as one. */
static double tail_of(const struct asked *q)
{
    double chi2 = 0, rare_count = 0, rare_expected = 0;
    unsigned n_cells = 0;
    for (unsigned i = 0; i < N_LAW; i++) {
        double expected = law_of(i) * q->n;
        if (expected < 8) {
            rare_count += q->count[i];
            rare_expected += expected;
            continue;
        }
        chi2 += (q->count[i] - expected) * (q->count[i] - expected) / expected;
        n_cells++;
    }
    if (rare_expected > 0) {
        chi2 += (rare_count - rare_expected) * (rare_count - rare_expected) / rare_expected;
        n_cells++;
    }
    double tail = plain_chi2_tail(chi2, n_cells - 1);
    printf("%s%s: %u answers, accepted %u of %u, chi-square p = %.3g over %u cells\n", q->rule,
           q->dense ? " (dense)" : "", q->n, q->n_accepted, q->n_drafted, tail, n_cells);
    return tail;
}

static uint32_t n_answers(void)
{
    return (uint32_t)lib_amount(200, 2000, 50000);
}

static void every_lossless_rule_keeps_the_targets_law(void **state)
{
    (void)state;
    struct asked v[] = {{.rule = "own-draw"},
                        {.rule = "rejection"},
                        {.rule = "block"},
                        {.rule = "recursive"},
                        {.rule = "block", .dense = true}};
    run(v, ARRAY_LEN(v), n_answers());
    for (unsigned i = 0; i < ARRAY_LEN(v); i++) {
        assert_true(tail_of(&v[i]) > SURELY_WRONG);
        assert_true(v[i].n_accepted > 0);
    }
}

static void lossy_rules_and_a_lying_q_show(void **state)
{
    (void)state;
    struct asked v[] = {{.rule = "threshold"},
                        {.rule = "lenience", .parameter = .5F},
                        {.rule = "own-draw"}, // beside them in every batch
                        {.rule = "block"}};
    const uint32_t n = (uint32_t)lib_amount(200, 1500, 1500); // too few to show under a sanitizer
    struct asked lied[] = {{.rule = "rejection"}, {.rule = "block"}};
    run(v, ARRAY_LEN(v), n);
    for (unsigned i = 0; i < ARRAY_LEN(v); i++)
        assert_true(i < 2 ? LIB_SANITIZED || tail_of(&v[i]) < SURELY_WRONG
                          : tail_of(&v[i]) > SURELY_WRONG);
    liar_change(liar, LIE_OTHER_Q);
    run(lied, ARRAY_LEN(lied), n);
    for (unsigned i = 0; i < ARRAY_LEN(lied); i++)
        assert_true(LIB_SANITIZED || tail_of(&lied[i]) < SURELY_WRONG);
}

int main(void)
{
    const struct CMUnitTest told[] = {
        cmocka_unit_test(every_lossless_rule_keeps_the_targets_law),
        cmocka_unit_test(lossy_rules_and_a_lying_q_show),
    };
    const struct CMUnitTest modelled[] = {
        cmocka_unit_test(every_lossless_rule_keeps_the_targets_law),
    };
    int failed = cmocka_run_group_tests(told, start_with_liar, stop);
    failed += cmocka_run_group_tests(modelled, start_with_draft_model, stop);
    return failed + cmocka_run_group_tests(modelled, start_with_chain, stop);
}
