/* test_verifier_proposers.c - a verifier with proposers: the answers are the same, and drafts use
 * only free blocks and positions. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tandem/v1/proposer.pb-c.h>
#include "lib/lib.h"
#include "base/mem.h"
#include "lib/oracles/figures.h"
#include "lib/clients/proposers.h"
#include "kv/kv.h"
#include "lib/rigs/verifier_rig.h"

/* On a busy machine all drafts of a request may be late. A proposer that is late three times in a
 * row is excluded for a while. Requests are repeated this often, until enough drafts were in
 * time. */
#define TRIES 100

static void run_again(struct rpc_client *c, const struct wish *w, struct answer *a)
{
    wait_proposers(c);
    generation_run(c, &w->msg, a);
}

/* Repeats a request until drafts were verified. */
static void run_drafted(struct rpc_client *c, const struct wish *w, struct answer *a)
{
    run_again(c, w, a);
    for (unsigned i = 1; i < TRIES && !a->drafted; i++)
        run_again(c, w, a);
    assert_true(a->drafted > 0);
}

/* ---- proposers ---- */

static void a_proposer_changes_only_the_number_of_rounds(void **state)
{
    (void)state;
    struct service p = {0}, s = {0};
    struct rpc_client *c;
    service_spawn(&p, "proposer-svc", (const char *[]){"--proposer", "ngram", NULL});
    service_start(
        &s, "verifier-svc",
        (const char *[]){"--model", MODEL, "--policy", "fixed", "--proposers", p.target, NULL});
    assert_int_equal(rpc_client_new(s.target, NULL, &c), 0);
    wait_proposers(c);
    struct wish w;
    AUTO(mem_free) struct answer *a = answers_new(2);
    unsigned accepted = 0;
    for (int i = 0; i < 4 || (i < TRIES && accepted <= 20); i++) {
        wish_init(&w, STORY, 300);
        w.msg.ignore_eos = true;
        w.msg.logprobs = true;
        w.sampling.temperature = i % 2 ? 0.8F : 0;
        w.sampling.repetition_penalty = 1.1F;
        w.sampling.has_repetition_case =
            i / 2 ? TANDEM__V1__SAMPLING__HAS_REPETITION_REPETITION_PENALTY : 0;
        generation_run(client, &w.msg, &a[0]);
        run_again(c, &w, &a[1]);
        same_answer(&a[0], &a[1]);
        accepted += a[1].accepted;
    }
    assert_true(accepted > 20);
    service_kill(&p); // continues without the proposer
    generation_run(c, &w.msg, &a[1]);
    same_answer(&a[0], &a[1]);
    rpc_client_free(c);
    service_stop(&s);
}

/* The metrics, labelled with the proposer's name: totals, and accepted tokens per position. */
static void must_have_counted(struct rpc_client *c, unsigned drafted, unsigned accepted)
{
#define NAMED(what) "tandem_spec_decode_num_" what "{proposer=\"ngram\""
    double by_place = metric_of(c, NAMED("accepted_tokens_per_pos_total") ",position=\"0\"}") +
                      metric_of(c, NAMED("accepted_tokens_per_pos_total") ",position=\"1\"}") +
                      metric_of(c, NAMED("accepted_tokens_per_pos_total") ",position=\"2\"}");
    assert_true(metric_of(c, NAMED("draft_tokens_total") "}") == drafted);
    assert_true(metric_of(c, NAMED("accepted_tokens_total") "}") == accepted);
    assert_true(by_place == accepted && accepted > 0);
    double drafts = metric_of(c, NAMED("drafts_total") "}");
    assert_true(3 * drafts >= drafted && drafts <= drafted);
#undef NAMED
}

/* With policy goodput the controller finds that drafting does not pay for such a small model. */
static void a_request_with_fixed_k_drafts_and_reports_its_rounds(void **state)
{
    (void)state;
    struct service p = {0}, s = {0};
    struct rpc_client *c;
    service_spawn(&p, "proposer-svc", (const char *[]){"--proposer", "ngram", NULL});
    service_start(&s, "verifier-svc",
                  (const char *[]){"--model", MODEL, "--proposers", p.target, NULL});
    assert_int_equal(rpc_client_new(s.target, NULL, &c), 0);
    wait_proposers(c);
    struct wish w;
    AUTO(mem_free) struct answer *a = answers_new(2);
    Tandem__V1__Speculative speculative = TANDEM__V1__SPECULATIVE__INIT;
    speculative.has_n_max_case = TANDEM__V1__SPECULATIVE__HAS_N_MAX_N_MAX;
    speculative.n_max = 3;
    wish_init(&w, STORY, 300);
    w.msg.ignore_eos = w.msg.logprobs = true;
    w.msg.speculative = &speculative;
    unsigned drafted = 0, accepted = 0;
    for (unsigned i = 0; i < TRIES && (a[1].drafted <= 60 || a[1].drafted <= 2 * a[0].drafted);
         i++) {
        for (unsigned fixed = 0; fixed < 2; fixed++) {
            speculative.fixed = fixed;
            run_again(c, &w, &a[fixed]);
            drafted += a[fixed].drafted;
            accepted += a[fixed].accepted;
        }
        same_answer(&a[0], &a[1]);
    }
    assert_true(a[1].drafted > 60 && a[1].drafted > 2 * a[0].drafted);
    assert_int_equal(a[1].runs.rounds, a[1].rounds);
    assert_int_equal(a[1].runs.drafted, a[1].drafted);
    assert_int_equal(a[1].runs.accepted, a[1].accepted);
    assert_int_equal(a[1].runs.bonus, a[1].bonus);
    assert_string_equal(a[1].runs.proposer, "ngram");
    assert_true(a[1].drafted <= 3 * a[1].rounds);
    must_have_counted(c, drafted, accepted);
    Tandem__V1__ModelInfo *m = must_get_model(c);
    assert_true(m->n_proposers == 1 && m->proposers[0].len == strlen("ngram"));
    assert_memory_equal(m->proposers[0].data, "ngram", strlen("ngram"));
    tandem__v1__model_info__free_unpacked(m, NULL);
    speculative.n_max = 0;
    generation_run(c, &w.msg, &a[1]);
    assert_int_equal(a[1].drafted, 0);
    speculative.n_max = 3;
    speculative.proposer = text_of("none");
    generation_run(c, &w.msg, &a[1]);
    same_answer(&a[0], &a[1]);
    assert_int_equal(a[1].drafted, 0);
    rpc_client_free(c);
    service_stop(&s);
    service_stop(&p);
}

static double drafted_per_round(struct rpc_client *proposer, double before[2])
{
    double tokens = metric_of(proposer, "tandem_drafter_draft_tokens_total");
    double rounds = metric_of(proposer, "tandem_drafter_rounds_total");
    double ratio = (tokens - before[0]) / (rounds - before[1]);
    before[0] = tokens;
    before[1] = rounds;
    return ratio;
}

/* Returns the drafted tokens per round: all of them in ret[0], only likely ones in ret[1]. */
static void run_with_p_min(struct rpc_client *c, struct rpc_client *proposer, double before[2],
                           double ret[2])
{
    struct wish w;
    AUTO(mem_free) struct answer *a = answers_new(1);
    Tandem__V1__Speculative speculative = TANDEM__V1__SPECULATIVE__INIT;
    speculative.has_p_min_case = TANDEM__V1__SPECULATIVE__HAS_P_MIN_P_MIN;
    wish_init(&w, STORY, 200);
    w.msg.ignore_eos = true;
    w.msg.speculative = &speculative;
    for (unsigned i = 0; i < 2; i++) {
        speculative.p_min = i ? 0.8F : 0;
        run_again(c, &w, a);
        ret[i] = drafted_per_round(proposer, before);
    }
}

static void tokens_below_p_min_are_not_drafted(void **state)
{
    (void)state;
    struct service p = {0}, s = {0};
    struct rpc_client *c, *proposer;
    service_start(&p, "proposer-svc",
                  (const char *[]){"--proposer", "draft", "--draft-model", MODEL, NULL});
    service_start(&s, "verifier-svc",
                  (const char *[]){"--model", MODEL, "--policy", "fixed", "--k", "8",
                                   "--proposer-budget-ms", "250", "--proposers", p.target, NULL});
    assert_int_equal(rpc_client_new(s.target, NULL, &c), 0);
    assert_int_equal(rpc_client_new(p.target, NULL, &proposer), 0);
    double before[2] = {0, 0}, all_and_likely[2] = {0, 0};
    bool shorter = false;
    for (unsigned i = 0; i < TRIES && !shorter; i++) { // without drafts the ratios are NaN
        run_with_p_min(c, proposer, before, all_and_likely);
        shorter = all_and_likely[1] > 0 && all_and_likely[1] < 0.7 * all_and_likely[0];
    }
    assert_true(shorter);
    rpc_client_free(c);
    rpc_client_free(proposer);
    service_stop(&s);
    service_stop(&p);
}

enum { ENDS_IGNORED, NO_END_YET, PENALTIES, PENALTIES_HOT, BIAS, N_WISHES };

static void wish_of_kind(struct wish *w, int which, Tandem__V1__LogitBias **biases)
{
    wish_init(w, STORY, story()->n + 100);
    w->msg.ignore_eos = which != NO_END_YET;
    w->msg.min_tokens = which == NO_END_YET ? w->msg.max_tokens : 0;
    w->sampling.has_repetition_case = TANDEM__V1__SAMPLING__HAS_REPETITION_REPETITION_PENALTY;
    w->sampling.has_presence_case = TANDEM__V1__SAMPLING__HAS_PRESENCE_PRESENCE_PENALTY;
    w->sampling.has_frequency_case = TANDEM__V1__SAMPLING__HAS_FREQUENCY_FREQUENCY_PENALTY;
    w->sampling.repetition_penalty = which == PENALTIES ? 1.2F : 1;
    w->sampling.presence_penalty = which == PENALTIES ? 0.5F : 0;
    w->sampling.frequency_penalty = which == PENALTIES_HOT ? 1.5F : 0;
    w->sampling.has_temperature_case = TANDEM__V1__SAMPLING__HAS_TEMPERATURE_TEMPERATURE;
    w->sampling.temperature = which == PENALTIES_HOT ? 0.9F : 0;
    w->sampling.logit_bias = biases;
    w->sampling.n_logit_bias = which == BIAS ? 2 : 0;
}

/* A verifier whose target drafts for itself, k tokens in each round. */
static void start_self_drafting(const char *k, struct service *p, struct service *s,
                                struct rpc_client **ret)
{
    service_start(p, "proposer-svc",
                  (const char *[]){"--proposer", "draft", "--draft-model", MODEL, NULL});
    service_start(s, "verifier-svc",
                  (const char *[]){"--model", MODEL, "--policy", "fixed", "--k", k,
                                   "--proposer-budget-ms", "250", "--proposers", p->target, NULL});
    assert_int_equal(rpc_client_new(s->target, NULL, ret), 0);
    wait_proposers(*ret);
}

/* The target drafts for itself, so all draft tokens are accepted. Tokens that are banned for the
 * target are not drafted. Drafting continues after an ignored end. Penalties and bias are those of
 * the request. */
static void a_draft_model_gets_the_sampling_of_the_request(void **state)
{
    (void)state;
    struct service p = {0}, s = {0};
    struct rpc_client *c;
    Tandem__V1__LogitBias bias[2], *biases[2] = {&bias[0], &bias[1]};
    for (uint32_t i = 0; i < 2; i++) {
        tandem__v1__logit_bias__init(&bias[i]);
        bias[i].token = 400 + i;
        bias[i].bias = i ? 7 : -100;
    }
    start_self_drafting("4", &p, &s, &c);
    struct wish w;
    AUTO(mem_free) struct answer *a = answers_new(3);
    for (int which = 0; which < N_WISHES; which++) {
        wish_of_kind(&w, which, biases);
        generation_run(client, &w.msg, &a[0]);
        run_drafted(c, &w, &a[1]);
        same_answer(&a[0], &a[1]);
        assert_int_equal(a[1].n, w.msg.max_tokens);
        assert_int_equal(a[1].accepted, a[1].drafted);
        if (which == PENALTIES || which == BIAS) // these settings change the answer
            assert_memory_not_equal(a[0].ids, a[2].ids, a[0].n * sizeof(a[0].ids[0]));
        a[2] = which == ENDS_IGNORED ? a[0] : a[2];
    }
    rpc_client_free(c);
    service_stop(&s);
    service_stop(&p);
}

/* Rules other than own-draw use p after draft tokens that are not committed yet. The ban of
 * min_tokens must end at the right one of these tokens: then greedy answers equal those without
 * drafts. The answer contains the stop token at the end of the ban, in some runs also before. */
static void a_ban_ends_inside_a_draft(void **state)
{
    (void)state;
    static const char *const rules[] = {"rejection", "block", "recursive"};
    struct service p = {0}, s = {0};
    struct rpc_client *c;
    start_self_drafting("6", &p, &s, &c);
    AUTO(mem_free) struct answer *a = answers_new(2);
    unsigned accepted = 0;
    for (uint32_t i = 0; i < 24 || (i < 24 * TRIES && accepted <= 100); i++) {
        struct wish w;
        Tandem__V1__Speculative speculative = TANDEM__V1__SPECULATIVE__INIT;
        uint32_t at = 8 + i % 24, stop = story()->ids[at];
        wish_init(&w, STORY, 60);
        w.msg.min_tokens = at;
        w.msg.stop_token_ids = &stop;
        w.msg.n_stop_token_ids = 1;
        w.msg.speculative = &speculative;
        speculative.rule = text_of(rules[i % ARRAY_LEN(rules)]);
        generation_run(client, &w.msg, &a[0]);
        run_again(c, &w, &a[1]);
        same_answer(&a[0], &a[1]);
        accepted += a[1].accepted;
    }
    assert_true(accepted > 100);
    rpc_client_free(c);
    service_stop(&s);
    service_stop(&p);
}

/* The tokens of a judged draft count for penalties once, when they are committed. Greedy answers
 * equal those without drafts, over many rounds. */
static void a_judged_draft_counts_once_for_penalties(void **state)
{
    (void)state;
    static const char *const rules[] = {"rejection", "block", "recursive"};
    struct service p = {0}, s = {0};
    struct rpc_client *c;
    start_self_drafting("4", &p, &s, &c);
    AUTO(mem_free) struct answer *a = answers_new(2);
    for (unsigned i = 0; i < ARRAY_LEN(rules); i++) {
        struct wish w;
        Tandem__V1__Speculative speculative = TANDEM__V1__SPECULATIVE__INIT;
        wish_of_kind(&w, PENALTIES, NULL);
        w.sampling.frequency_penalty = 0.3F;
        w.msg.speculative = &speculative;
        speculative.rule = text_of(rules[i]);
        generation_run(client, &w.msg, &a[0]);
        run_drafted(c, &w, &a[1]);
        same_answer(&a[0], &a[1]);
        for (unsigned t = 0; t < TRIES && a[1].accepted <= 20; t++) {
            run_again(c, &w, &a[1]);
            same_answer(&a[0], &a[1]);
        }
        assert_true(a[1].accepted > 20);
    }
    rpc_client_free(c);
    service_stop(&s);
    service_stop(&p);
}

/* The sequence waits for a late drawn draft, because the time of a draft may depend on the drawn
 * tokens. Nothing is drawn ahead either, because the committed tokens decide whether a draft ahead
 * is used. */
static void a_late_drawn_draft_is_waited_for(void **state)
{
    (void)state;
    struct service s = {0};
    struct rpc_client *c;
    struct wish w;
    Tandem__V1__LogitBias bias[LIAR_TOKENS], *biases[LIAR_TOKENS];
    Tandem__V1__Speculative speculative = TANDEM__V1__SPECULATIVE__INIT;
    AUTO(mem_free) struct answer *a = answers_new(1);
    char path[PROPOSER_PATH_MAX], target[PROPOSER_PATH_MAX + 8];
    snprintf(path, sizeof(path), "%s/late.sock", service_dir());
    snprintf(target, sizeof(target), "unix:%s", path);
    AUTO(liar_stop) struct liar *liar = liar_start(path, LIE_DRAWN_LATE, 4096);
    service_start(&s, "verifier-svc",
                  (const char *[]){"--model", MODEL, "--policy", "fixed", "--k", "4",
                                   "--proposer-budget-ms", "250", "--proposers", target,
                                   "--draft-ahead", NULL});
    assert_int_equal(rpc_client_new(s.target, NULL, &c), 0);
    wait_proposers(c);
    wish_init(&w, STORY, 200);
    w.msg.ignore_eos = true;
    w.msg.speculative = &speculative;
    speculative.rule = rpc_text("rejection");
    w.sampling.temperature = 3; // few tokens are likely, so that some draft tokens are accepted
    w.sampling.logit_bias = biases;
    w.sampling.n_logit_bias = LIAR_TOKENS;
    for (unsigned i = 0; i < LIAR_TOKENS; i++) {
        biases[i] = &bias[i];
        tandem__v1__logit_bias__init(&bias[i]);
        bias[i].token = LIAR_TOKEN(i);
        bias[i].bias = 100;
    }
    generation_run(c, &w.msg, a);
    assert_int_equal(a->drafted, liar_n_drawn(liar));
    assert_true(a->accepted > 0 && a->drafted > 4 * 16); // some drafts were late
    assert_int_equal(liar_n_ahead(liar), 0);
    speculative.rule = rpc_text("own-draw");
    for (unsigned i = 0; i < TRIES && !liar_n_ahead(liar); i++)
        run_again(c, &w, a);
    assert_true(liar_n_ahead(liar) > 0); // else the test would prove nothing
    rpc_client_free(c);
    service_stop(&s);
}

static void a_round_asks_for_the_q_that_its_request_needs(void **state)
{
    (void)state;
    static const struct {
        const char *rule;
        float temperature;
        bool dense;
        Tandem__V1__QMode asked;
    } cases[] = {{"own-draw", 0.8F, true, TANDEM__V1__QMODE__Q_MODE_COUPLED},
                 {"rejection", 0.8F, false, TANDEM__V1__QMODE__Q_MODE_SPARSE},
                 {"rejection", 0.8F, true, TANDEM__V1__QMODE__Q_MODE_DENSE},
                 {"rejection", 0, true, TANDEM__V1__QMODE__Q_MODE_POINT}};
    struct service s = {0};
    struct rpc_client *c;
    char path[PROPOSER_PATH_MAX], target[PROPOSER_PATH_MAX + 8];
    snprintf(path, sizeof(path), "%s/modes.sock", service_dir());
    snprintf(target, sizeof(target), "unix:%s", path);
    AUTO(liar_stop) struct liar *liar = liar_start(path, LIE_DRAWN, 4096);
    service_start(&s, "verifier-svc",
                  (const char *[]){"--model", MODEL, "--policy", "fixed", "--k", "4",
                                   "--proposer-budget-ms", "250", "--proposers", target, NULL});
    assert_int_equal(rpc_client_new(s.target, NULL, &c), 0);
    AUTO(mem_free) struct answer *a = answers_new(1);
    for (unsigned i = 0; i < ARRAY_LEN(cases); i++) {
        struct wish w;
        Tandem__V1__Speculative speculative = TANDEM__V1__SPECULATIVE__INIT;
        wish_init(&w, STORY, 20);
        w.msg.ignore_eos = true;
        w.msg.speculative = &speculative;
        w.sampling.temperature = cases[i].temperature;
        speculative.rule = text_of(cases[i].rule);
        speculative.dense_q = cases[i].dense;
        run_drafted(c, &w, a);
        assert_int_equal(liar_q_modes(liar), 1u << cases[i].asked);
    }
    rpc_client_free(c);
    service_stop(&s);
}

enum { N_ALIKE = 8 };

/* Two verifiers, each with the same two proposers. */
struct square {
    struct service proposers[2], verifiers[2];
    struct rpc_client *clients[2];
    struct wish wishes[N_ALIKE];
    struct answer *plain; // (N_ALIKE) without a proposer
};

static void square_open(struct square *q)
{
    memset(q, 0, sizeof(*q));
    for (unsigned i = 0; i < 2; i++)
        service_spawn(&q->proposers[i], "proposer-svc", NULL);
    const char *const args[] = {"--model",     MODEL,
                                "--proposers", q->proposers[0].target,
                                "--proposers", q->proposers[1].target,
                                "--policy",    "fixed",
                                NULL};
    for (unsigned i = 0; i < 2; i++) {
        service_start(&q->verifiers[i], "verifier-svc", args);
        assert_int_equal(rpc_client_new(q->verifiers[i].target, NULL, &q->clients[i]), 0);
        wait_proposers(q->clients[i]);
    }
    q->plain = answers_new(N_ALIKE);
    for (unsigned i = 0; i < N_ALIKE; i++) {
        struct wish *w = &q->wishes[i];
        wish_init(w, STORY, LIB_SANITIZED ? 120 : 400);
        w->msg.ignore_eos = true;
        w->msg.logprobs = true;
        w->sampling.temperature = i % 2 ? 0.8F : 0;
        w->sampling.seed = i;
        generation_run(client, &w->msg, &q->plain[i]);
    }
}

static void square_close(struct square *q)
{
    for (unsigned i = 0; i < 2; i++) {
        rpc_client_free(q->clients[i]);
        service_stop(&q->verifiers[i]);
        service_stop(&q->proposers[i]);
    }
    free(q->plain);
}

/* Runs all requests on both verifiers at the same time. Kills `dying`, unless NULL, meanwhile. */
static void square_run(struct square *q, struct service *dying)
{
    struct generation g[2 * N_ALIKE];
    AUTO(mem_free) struct answer *a = answers_new(2 * N_ALIKE);
    for (unsigned i = 0; i < 2 * N_ALIKE; i++)
        generation_start(&g[i], q->clients[i % 2], &q->wishes[i / 2].msg, &a[i]);
    if (dying) {
        generation_wait_tokens(&g[0], 50);
        generation_wait_tokens(&g[1], 50);
        service_kill(dying);
    }
    for (unsigned i = 0; i < 2 * N_ALIKE; i++) {
        generation_end(&g[i]);
        assert_int_equal(g[i].status.code, RPC_OK);
        same_answer(&q->plain[i / 2], &a[i]);
    }
}

/* Runs all requests until each verifier has more drafts than before[verifier][proposer] from each
 * proposer from `first` on. */
static void square_must_draft(struct square *q, unsigned first, uint64_t before[2][2])
{
    for (unsigned i = 0; i < TRIES; i++) {
        bool all = true;
        square_run(q, NULL);
        for (unsigned v = 0; v < 2; v++)
            for (unsigned p = first; p < 2; p++)
                all = all && drafts_of(q->clients[v], p) > before[v][p];
        if (all)
            return;
    }
    fail_msg("%d times no draft came", TRIES);
}

static void two_verifiers_share_two_proposers(void **state)
{
    (void)state;
    struct square q;
    uint64_t before[2][2] = {0};
    square_open(&q);
    square_must_draft(&q, 0, before);
    square_run(&q, &q.proposers[0]);
    for (unsigned v = 0; v < 2; v++)
        before[v][1] = drafts_of(q.clients[v], 1);
    square_must_draft(&q, 1, before); // the other proposer serves both verifiers
    square_close(&q);
}

/* Only running sequences have a place at the proposer. */
static void a_preempted_sequence_gives_up_its_place_at_the_proposer(void **state)
{
    (void)state;
    struct service s = {0};
    struct rpc_client *c;
    struct wish w;
    struct generation slow;
    char path[PROPOSER_PATH_MAX], target[PROPOSER_PATH_MAX + 8];
    AUTO(mem_free) struct answer *a = answers_new(3);
    snprintf(path, sizeof(path), "%s/counts.sock", service_dir());
    snprintf(target, sizeof(target), "unix:%s", path);
    struct liar *p = liar_start(path, LIE_NOTHING, 4096);
    service_start(&s, "verifier-svc",
                  (const char *[]){"--model", MODEL, "--policy", "fixed", "--proposers", target,
                                   "--max-sequences", "4", NULL});
    assert_int_equal(rpc_client_new(s.target, NULL, &c), 0);
    wait_proposers(c);
    wish_init(&w, STORY, 900);
    w.msg.ignore_eos = true;
    w.msg.logprobs = true;
    w.msg.top_logprobs = 20;
    w.msg.n = 4;
    generation_run(client, &w.msg, &a[0]);
    generation_start(&slow, c, &w.msg, &a[1]);
    rpc_stream_pause(slow.stream);
    wait_metric(c, "tandem_num_requests_paused", 4);
    wish_init(&w, STORY, 300);
    w.msg.ignore_eos = true;
    uint64_t before = drafts_of(c, 0);
    for (unsigned i = 0; i < TRIES && drafts_of(c, 0) == before; i++)
        run_again(c, &w, &a[2]);
    assert_true(drafts_of(c, 0) > before);
    assert_true(liar_n_left(p) > 0); // paused sequences may continue later
    rpc_stream_unpause(slow.stream);
    generation_end(&slow);
    assert_int_equal(slow.status.code, RPC_OK);
    same_answer(&a[0], &a[1]);
    rpc_client_free(c);
    service_stop(&s);
    assert_true(liar_n_ended(p) > 0);
    liar_stop(p);
}

static uint32_t blocks_of(struct rpc_client *c)
{
    Tandem__V1__StatsReply *s = stats_of(c);
    uint32_t n = (uint32_t)s->cache->blocks_total;
    tandem__v1__stats_reply__free_unpacked(s, NULL);
    return n;
}

/* When they end, the sequences fill the whole pool. Until then drafts use free blocks. */
static void drafts_are_shortened_where_blocks_run_out(void **state)
{
    (void)state;
    enum { N = 5 };
    struct service p = {0}, s = {0};
    struct rpc_client *c;
    service_spawn(&p, "proposer-svc", (const char *[]){"--proposer", "ngram", NULL});
    service_start(&s, "verifier-svc",
                  (const char *[]){"--model", MODEL, "--kv-mib", "1", "--policy", "fixed", "--k",
                                   "20", "--proposers", p.target, NULL});
    assert_int_equal(rpc_client_new(s.target, NULL, &c), 0);
    wait_proposers(c);
    struct wish w[N];
    struct generation g[N];
    AUTO(mem_free) struct answer *alone = answers_new(N), *together = answers_new(N);
    unsigned drafted = 0;
    for (unsigned i = 0; i < N; i++) {
        wish_init(&w[i], STORY, 1);
        generation_run(client, &w[i].msg, &alone[i]); // measures the length of the prompt
        w[i].msg.max_tokens = blocks_of(c) / N * KV_BLOCK + 1 - alone[i].prompt_tokens;
        w[i].sampling.seed = i;
        w[i].msg.ignore_eos = true;
        w[i].msg.logprobs = true;
        memset(&alone[i], 0, sizeof(alone[i]));
        generation_run(client, &w[i].msg, &alone[i]);
    }
    for (unsigned t = 0; t < TRIES && !drafted; t++) {
        wait_proposers(c);
        for (unsigned i = 0; i < N; i++)
            generation_start(&g[i], c, &w[i].msg, &together[i]);
        for (unsigned i = 0; i < N; i++) {
            generation_end(&g[i]);
            assert_int_equal(g[i].status.code, RPC_OK);
            same_answer(&alone[i], &together[i]);
            drafted += together[i].drafted;
        }
    }
    assert_true(drafted > 0);
    assert_true(metric_of(c, "tandem_num_preemptions_total") == 0);
    assert_true(metric_of(c, "tandem_request_failed_total") == 0);
    rpc_client_free(c);
    service_stop(&s);
    service_stop(&p);
}

static void drafts_are_shortened_where_the_context_ends(void **state)
{
    (void)state;
    struct service p = {0}, s = {0};
    struct rpc_client *c;
    service_spawn(&p, "proposer-svc", (const char *[]){"--proposer", "ngram", NULL});
    service_start(&s, "verifier-svc",
                  (const char *[]){"--model", MODEL, "--context", "200", "--policy", "fixed", "--k",
                                   "20", "--proposers", p.target, NULL});
    assert_int_equal(rpc_client_new(s.target, NULL, &c), 0);
    wait_proposers(c);
    struct wish w;
    AUTO(mem_free) struct answer *a = answers_new(2);
    AUTO(mem_free) char *text = malloc(601);
    for (int i = 0; i < 150; i++)
        memcpy(text + 4 * i, i % 3 ? " the" : " cat", 5);
    wish_init(&w, text, 1000);
    w.msg.ignore_eos = true;
    w.msg.logprobs = true;
    run_drafted(c, &w, &a[1]);
    assert_int_equal(a[1].prompt_tokens + a[1].n, 200);
    assert_int_equal(a[1].reason, TANDEM__V1__FINISH_REASON__FINISH_REASON_LENGTH);
    w.msg.max_tokens = a[1].n;
    generation_run(client, &w.msg, &a[0]);
    same_answer(&a[0], &a[1]);
    rpc_client_free(c);
    service_stop(&s);
    service_stop(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_proposer_changes_only_the_number_of_rounds),
        cmocka_unit_test(a_request_with_fixed_k_drafts_and_reports_its_rounds),
        cmocka_unit_test(tokens_below_p_min_are_not_drafted),
        cmocka_unit_test(a_draft_model_gets_the_sampling_of_the_request),
        cmocka_unit_test(a_ban_ends_inside_a_draft),
        cmocka_unit_test(a_judged_draft_counts_once_for_penalties),
        cmocka_unit_test(a_late_drawn_draft_is_waited_for),
        cmocka_unit_test(a_round_asks_for_the_q_that_its_request_needs),
        cmocka_unit_test(two_verifiers_share_two_proposers),
        cmocka_unit_test(a_preempted_sequence_gives_up_its_place_at_the_proposer),
        cmocka_unit_test(drafts_are_shortened_where_blocks_run_out),
        cmocka_unit_test(drafts_are_shortened_where_the_context_ends),
    };
    return cmocka_run_group_tests(tests, start_verifier, stop_verifier);
}
