/* token_dist.c - the target's distribution, requests with several rules, and a chi-square test of
 * their answers. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "lib/lib.h"
#include "lib/oracles/token_dist.h"
#include "lib/oracles/plain_dist.h"

#define PRESENCE 1.5F
#define FREQUENCY 1.0F

/* ---- requests ---- */

struct wish {
    Tandem__V1__GenerateRequest msg;
    Tandem__V1__Sampling sampling;
    Tandem__V1__Speculative spec;
    Tandem__V1__TokenIds ids;
    Tandem__V1__LogitBias bias[LIAR_TOKENS], *biases[LIAR_TOKENS];
    uint32_t tokens[4 + TOKEN_DIST_LEN];
};

static void add_bias(struct wish *w, uint32_t token)
{
    Tandem__V1__LogitBias *b = &w->bias[w->sampling.n_logit_bias];
    tandem__v1__logit_bias__init(b);
    b->token = token;
    b->bias = 100;
    w->biases[w->sampling.n_logit_bias++] = b;
}

static void wish_init(const struct token_dist *l, struct wish *w, uint32_t max_tokens)
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
    w->sampling.temperature = l->temperature;
}

/* Generates one token after `before`, with its logprobs. */
static void ask_one(const struct token_dist *l, struct wish *w, const uint32_t *before, unsigned n,
                    struct answer *a)
{
    for (unsigned k = 0; k < n; k++)
        w->tokens[w->ids.n_ids++] = before[k];
    w->msg.logprobs = true;
    w->msg.top_logprobs = LIAR_TOKENS;
    generation_run(l->client, &w->msg, a);
}

static double penalty(const struct token_dist *l, uint32_t token, const uint32_t *before,
                      unsigned n)
{
    unsigned count = 0;
    for (unsigned k = 0; k < n; k++)
        count += before[k] == token;
    return l->biased && count ? (double)(PRESENCE + FREQUENCY * (float)count) : 0;
}

/* Fills a node and the nodes below it. */
static void fill_nodes(struct token_dist *l, unsigned node, uint32_t *before, unsigned n,
                       struct answer *a)
{
    struct wish w;
    double sum = 0;
    wish_init(l, &w, 1);
    ask_one(l, &w, before, n, a);
    for (unsigned i = 0; i < LIAR_TOKENS; i++)
        l->nodes[node].ids[i] = l->biased ? LIAR_TOKEN(i) : a->top[0][i];
    for (unsigned i = 0; i < LIAR_TOKENS; i++) {
        uint32_t token = l->nodes[node].ids[i];
        wish_init(l, &w, 1);
        add_bias(&w, token); // forces the token; its logprob is that without the bias
        ask_one(l, &w, before, n, a);
        assert_int_equal(a->ids[0], token);
        double logit = (double)a->logprobs[0] - penalty(l, token, before, n);
        sum += l->nodes[node].p[i] = exp(logit / (double)l->temperature);
    }
    for (unsigned i = 0; i < LIAR_TOKENS; i++) {
        l->nodes[node].p[i] /= sum;
        before[n] = l->nodes[node].ids[i];
        if (n + 1 < TOKEN_DIST_LEN)
            fill_nodes(l, 3 * node + 1 + i, before, n + 1, a);
    }
}

void token_dist_learn(struct token_dist *l, struct rpc_client *client, bool biased,
                      float temperature)
{
    uint32_t before[TOKEN_DIST_LEN];
    struct answer *a = calloc(1, sizeof(*a));
    *l = (struct token_dist){.client = client, .biased = biased, .temperature = temperature};
    fill_nodes(l, 0, before, 0, a);
    free(a);
}

/* ---- batches ---- */

static void count_answer(const struct token_dist *l, struct asked *q, const struct answer *a)
{
    unsigned at = 0, node = 0;
    assert_int_equal(a->n, TOKEN_DIST_LEN);
    for (unsigned i = 0; i < TOKEN_DIST_LEN; i++) {
        unsigned k = 0;
        while (k < LIAR_TOKENS && l->nodes[node].ids[k] != a->ids[i])
            k++;
        assert_true(k < LIAR_TOKENS);
        at = at * 3 + k;
        node = 3 * node + 1 + k;
    }
    q->count[at]++;
    q->n++;
    q->n_drafted += a->drafted;
    q->n_accepted += a->accepted;
}

static void start_one(const struct token_dist *l, const struct asked *q, struct generation *g,
                      struct answer *a)
{
    struct wish w;
    wish_init(l, &w, TOKEN_DIST_LEN);
    for (unsigned i = 0; i < LIAR_TOKENS && l->biased; i++)
        add_bias(&w, LIAR_TOKEN(i));
    if (l->biased) {
        w.sampling.has_presence_case = TANDEM__V1__SAMPLING__HAS_PRESENCE_PRESENCE_PENALTY;
        w.sampling.presence_penalty = PRESENCE;
        w.sampling.has_frequency_case = TANDEM__V1__SAMPLING__HAS_FREQUENCY_FREQUENCY_PENALTY;
        w.sampling.frequency_penalty = FREQUENCY;
    } else {
        w.sampling.has_top_k_case = TANDEM__V1__SAMPLING__HAS_TOP_K_TOP_K;
        w.sampling.top_k = LIAR_TOKENS;
    }
    w.spec.rule = rpc_text(q->rule);
    w.spec.dense_q = q->dense;
    if (q->parameter) {
        w.spec.has_rule_parameter_case = TANDEM__V1__SPECULATIVE__HAS_RULE_PARAMETER_RULE_PARAMETER;
        w.spec.rule_parameter = q->parameter;
    }
    generation_start(g, l->client, &w.msg, a);
}

void token_dist_start(const struct token_dist *l, struct asked *v, unsigned n_rules, uint32_t n,
                      struct token_dist_batch *b)
{
    assert_true(n <= TOKEN_DIST_BATCH_MAX);
    b->dist = l;
    b->asked = v;
    b->n_rules = n_rules;
    b->n = n;
    b->answers = calloc(n, sizeof(*b->answers));
    for (uint32_t i = 0; i < n; i++)
        start_one(l, &v[i % n_rules], &b->g[i], &b->answers[i]);
}

void token_dist_end(struct token_dist_batch *b)
{
    for (uint32_t i = 0; i < b->n; i++) {
        struct asked *q = &b->asked[i % b->n_rules];
        generation_end(&b->g[i]);
        if (b->g[i].status.code != RPC_OK)
            fail_msg("%s", b->g[i].status.text);
        assert_string_equal(b->answers[i].rule, q->rule);
        count_answer(b->dist, q, &b->answers[i]);
    }
    free(TAKE(b->answers));
}

/* ---- chi-square ---- */

/* Probability of outcome `at`, its tokens in base 3. */
static double chance_of(const struct token_dist *l, unsigned at)
{
    double p = 1;
    unsigned node = 0;
    for (unsigned i = 0, unit = TOKEN_DIST_N / 3; i < TOKEN_DIST_LEN; i++, unit /= 3) {
        p *= l->nodes[node].p[at / unit % 3];
        node = 3 * node + 1 + at / unit % 3;
    }
    return p;
}

static double distance(double count, double expected)
{
    return (count - expected) * (count - expected) / expected;
}

/* Outcomes that are expected less than 8 times are counted together as one cell. */
double token_dist_tail(const struct token_dist *l, const struct asked *q)
{
    double chi2 = 0, rare_count = 0, rare_expected = 0, least = INFINITY;
    unsigned n_cells = 0, seldom = 0;
    for (unsigned i = 0; i < TOKEN_DIST_N; i++) {
        double expected = chance_of(l, i) * q->n;
        if (expected < 8) {
            rare_count += q->count[i];
            rare_expected += expected;
            continue;
        }
        chi2 += distance(q->count[i], expected);
        n_cells++;
        seldom = expected < least ? i : seldom;
        least = fmin(expected, least);
    }
    if (rare_expected >= 8) {
        chi2 += distance(rare_count, rare_expected);
        n_cells++;
    } else if (n_cells) { // too few: merged with the smallest other cell
        chi2 += distance(q->count[seldom] + rare_count, least + rare_expected) -
                distance(q->count[seldom], least);
    }
    assert_true(n_cells > 1); // else there are too few answers for a test
    double tail = plain_chi2_tail(chi2, n_cells - 1);
    printf("%s%s: %u answers, accepted %u of %u, chi-square p = %.3g over %u cells\n", q->rule,
           q->dense ? " (dense)" : "", q->n, q->n_accepted, q->n_drafted, tail, n_cells);
    return tail;
}
