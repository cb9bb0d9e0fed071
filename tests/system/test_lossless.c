/* test_lossless.c - promise 2 through the real verifier: with drafts drawn from a law that the
 * proposer tells, the committed tokens follow the target's own.
 *
 * A bias leaves three tokens of the vocabulary. Four are generated behind one prompt, over and
 * over: the first without a draft, the others with drafts of two. What the target says behind each
 * of the 40 beginnings is asked for one by one, so the joint law of the four is known; requests of
 * all rules run side by side. */
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

#define MODEL SOURCE_DIR "/models/tales-1m-q8_0.gguf"
#define N_VOCAB 4096
#define N_AT_ONCE 24
#define LEN 4
#define N_LAW 81         // 3^LEN
#define TEMPERATURE 3.0F // so that all three tokens come
#define SURELY_WRONG 1e-6

static const uint32_t prompt[] = {1, 500, 600, 700};
static struct service verifier;
static struct liar *liar;
static struct rpc_client *client;
static double law[N_LAW];

/* ---- requests ---- */

struct wish {
    Tandem__V1__GenerateRequest msg;
    Tandem__V1__Sampling sampling;
    Tandem__V1__Speculative spec;
    Tandem__V1__TokenIds ids;
    Tandem__V1__LogitBias bias[LIAR_LAW], *biases[LIAR_LAW];
    uint32_t tokens[ARRAY_LEN(prompt) + LEN];
};

static void wish_init(struct wish *w, uint32_t max_tokens)
{
    tandem__v1__generate_request__init(&w->msg);
    tandem__v1__sampling__init(&w->sampling);
    tandem__v1__speculative__init(&w->spec);
    tandem__v1__token_ids__init(&w->ids);
    memcpy(w->tokens, prompt, sizeof(prompt));
    w->ids.ids = w->tokens;
    w->ids.n_ids = ARRAY_LEN(prompt);
    w->msg.prompt_case = TANDEM__V1__GENERATE_REQUEST__PROMPT_TOKENS;
    w->msg.tokens = &w->ids;
    w->msg.sampling = &w->sampling;
    w->msg.speculative = &w->spec;
    w->msg.has_max_tokens_case = TANDEM__V1__GENERATE_REQUEST__HAS_MAX_TOKENS_MAX_TOKENS;
    w->msg.max_tokens = max_tokens;
    w->msg.ignore_eos = true;
    w->sampling.has_temperature_case = TANDEM__V1__SAMPLING__HAS_TEMPERATURE_TEMPERATURE;
    w->sampling.temperature = TEMPERATURE;
    for (unsigned i = 0; i < LIAR_LAW; i++) {
        tandem__v1__logit_bias__init(&w->bias[i]);
        w->bias[i].token = LIAR_TOKEN(i);
        w->bias[i].bias = 100;
        w->biases[i] = &w->bias[i];
    }
    w->sampling.logit_bias = w->biases;
    w->sampling.n_logit_bias = LIAR_LAW;
}

/* The logprob of token i behind these. */
static double logprob_of(unsigned i, const unsigned *before, unsigned n)
{
    struct wish w;
    struct answer *a = calloc(1, sizeof(*a));
    wish_init(&w, 1);
    for (unsigned k = 0; k < n; k++)
        w.tokens[w.ids.n_ids++] = LIAR_TOKEN(before[k]);
    w.biases[0] = &w.bias[i];
    w.sampling.n_logit_bias = 1;
    w.msg.logprobs = true;
    generation_run(client, &w.msg, a);
    assert_int_equal(a->ids[0], LIAR_TOKEN(i));
    double logprob = (double)a->logprobs[0];
    free(a);
    return logprob;
}

/* Fills the joint law behind the n tokens of `before`, which have this probability. */
static void ask_law(unsigned *before, unsigned n, double probability)
{
    double w[LIAR_LAW], sum = 0;
    if (n == LEN) {
        unsigned at = 0;
        for (unsigned i = 0; i < LEN; i++)
            at = at * LIAR_LAW + before[i];
        law[at] = probability;
        return;
    }
    for (unsigned i = 0; i < LIAR_LAW; i++)
        sum += w[i] = exp(logprob_of(i, before, n) / (double)TEMPERATURE);
    for (unsigned i = 0; i < LIAR_LAW; i++) {
        before[n] = i;
        ask_law(before, n + 1, probability * w[i] / sum);
    }
}

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

static int start(void **state)
{
    (void)state;
    char path[PROPOSER_PATH_MAX], target[PROPOSER_PATH_MAX + 8];
    unsigned before[LEN];
    snprintf(path, sizeof(path), "%s/drawer.sock", service_dir());
    snprintf(target, sizeof(target), "unix:%s", path);
    liar = liar_start(path, LIE_DRAWN, N_VOCAB);
    service_start(&verifier, "verifier-svc",
                  (const char *[]){"--model", MODEL, "--policy", "fixed", "--k", "2",
                                   "--disable-batch-size", "0", "--proposer-budget-ms", "250",
                                   "--proposers", target, NULL});
    assert_int_equal(rpc_client_new(verifier.target, NULL, &client), 0);
    wait_proposer();
    ask_law(before, 0, 1);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    rpc_client_free(client);
    service_stop(&verifier);
    liar_stop(liar);
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
    unsigned at = 0;
    assert_int_equal(a->n, LEN);
    for (unsigned i = 0; i < LEN; i++) {
        unsigned token = (a->ids[i] - LIAR_TOKEN(0)) / 100;
        assert_true(token < LIAR_LAW && LIAR_TOKEN(token) == a->ids[i]);
        at = at * LIAR_LAW + token;
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
        double expected = law[i] * q->n;
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
    return LIB_SANITIZED ? 600 : getenv("TANDEM_TEST_LONG") ? 100000 : 4000;
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
        assert_true(v[i].n_drafted > v[i].n && v[i].n_accepted > 0);
    }
    assert_true(v[2].n_accepted * 1.0 * v[0].n_drafted > v[0].n_accepted * 1.0 * v[2].n_drafted);
}

static void lossy_rules_and_a_lying_q_show(void **state)
{
    (void)state;
    struct asked v[] = {{.rule = "threshold"}, {.rule = "lenience", .parameter = .5F}};
    struct asked lied[] = {{.rule = "rejection"}, {.rule = "block"}};
    run(v, ARRAY_LEN(v), 1500);
    for (unsigned i = 0; i < ARRAY_LEN(v); i++)
        assert_true(tail_of(&v[i]) < SURELY_WRONG);
    liar_change(liar, LIE_OTHER_Q);
    run(lied, ARRAY_LEN(lied), 1500);
    liar_change(liar, LIE_DRAWN);
    for (unsigned i = 0; i < ARRAY_LEN(lied); i++)
        assert_true(tail_of(&lied[i]) < SURELY_WRONG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_lossless_rule_keeps_the_targets_law),
        cmocka_unit_test(lossy_rules_and_a_lying_q_show),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
