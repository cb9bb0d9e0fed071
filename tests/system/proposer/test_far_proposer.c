/* test_far_proposer.c - a proposer on another "host": far away, cut off, stalled, restarted, lying.
 * Another proposer dies, stops or is replaced under many requests. The answers have the bits of a
 * verifier without proposers, no request fails, and no pass waits longer than allowed. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "lib/lib.h"
#include "base/clock.h"
#include "lib/oracles/figures.h"
#include "lib/clients/generate.h"
#include "lib/clients/proposers.h"
#include "lib/rigs/relay.h"
#include "lib/rigs/services.h"
#include "lib/rigs/stalls.h"

#define DRAFT SOURCE_DIR "/models/tales-1m-q8_0.gguf"
#define N_VOCAB 4096
#define MANY 16
#define FEW 4
#define TRIES 100
#define DEADLINE_S 0.05 // proposer_budget_ms
#if LIB_SANITIZED
#define TARGET DRAFT          // passes of a larger target would take too long
#define DRAFT_QUANTIZE "q4_0" // so that the models disagree at times
#define N_TOKENS 24
#else
#define TARGET SOURCE_DIR "/models/tales-11m-q8_0.gguf"
#define DRAFT_QUANTIZE "no"
#define N_TOKENS 64
#endif

static const char *const prompts[] = {
    "<|user|>Write a story with the words tree, ball and rain.<|end|><|assistant|>",
    "The cat sat on the mat. The cat sat on the mat. The cat sat on the mat. The cat",
    "Once upon a time, there was a little girl named Lily. She loved to play outside. One day,",
    "Max is a dog. Max",
};

static int host = HOST_NONE; // of the proposer
static bool ahead;           // drafts are made while the verifier verifies
static struct answer *want;  // (MANY) without proposers
static unsigned n_refused;   // rejected tokens of real proposers, in time

/* ---- requests: greedy and sampled ---- */

static void start_request(struct rpc_client *c, unsigned i, struct generation *g, struct answer *a)
{
    Tandem__V1__GenerateRequest req = TANDEM__V1__GENERATE_REQUEST__INIT;
    Tandem__V1__Sampling s = TANDEM__V1__SAMPLING__INIT;
    const char *prompt = prompts[i % ARRAY_LEN(prompts)];
    s.has_temperature_case = TANDEM__V1__SAMPLING__HAS_TEMPERATURE_TEMPERATURE;
    s.temperature = i / 2 % 2 ? 0.8f : 0;
    s.has_seed_case = TANDEM__V1__SAMPLING__HAS_SEED_SEED;
    s.seed = i;
    req.sampling = &s;
    req.prompt_case = TANDEM__V1__GENERATE_REQUEST__PROMPT_TEXT;
    req.text.data = (uint8_t *)(uintptr_t)prompt;
    req.text.len = strlen(prompt);
    req.parse_special = req.add_bos = req.ignore_eos = req.logprobs = true;
    req.has_max_tokens_case = TANDEM__V1__GENERATE_REQUEST__HAS_MAX_TOKENS_MAX_TOKENS;
    req.max_tokens = N_TOKENS;
    generation_start(g, c, &req, a);
}

static void must_equal_want(const struct generation *g, unsigned i, const char *when)
{
    const struct answer *a = g->answer, *w = &want[i];
    if (g->status.code != RPC_OK)
        fail_msg("%s, request %u: %s", when, i, g->status.text);
    if (a->n != N_TOKENS || memcmp(a->ids, w->ids, a->n * sizeof(*a->ids)) != 0 ||
        memcmp(a->logprobs, w->logprobs, a->n * sizeof(*a->logprobs)) != 0)
        fail_msg("%s, request %u: other tokens than without a proposer", when, i);
}

struct asked {
    struct generation g[MANY];
    struct answer *answers;
    unsigned n;
};

static void ask(struct asked *a, struct rpc_client *c, unsigned n)
{
    a->n = n;
    a->answers = calloc(n, sizeof(*a->answers));
    for (unsigned i = 0; i < n; i++)
        start_request(c, i, &a->g[i], &a->answers[i]);
}

struct verified {
    unsigned drafted, accepted; // draft tokens
};

static struct verified must_answer(struct asked *a, const char *when)
{
    struct verified v = {0};
    for (unsigned i = 0; i < a->n; i++) {
        generation_end(&a->g[i]);
        must_equal_want(&a->g[i], i, when);
        v.drafted += a->answers[i].drafted;
        v.accepted += a->answers[i].accepted;
    }
    printf("%s: %u requests, %u draft tokens, %u accepted\n", when, a->n, v.drafted, v.accepted);
    free(a->answers);
    return v;
}

static struct verified ask_all(struct rpc_client *c, unsigned n, const char *when)
{
    struct asked a;
    ask(&a, c, n);
    return must_answer(&a, when);
}

/* Sends requests until a draft token is accepted. On a busy machine the first drafts may all be
 * late, and the proposer is then excluded until its next try. */
static void must_draft(struct rpc_client *c, unsigned n, const char *when)
{
    for (unsigned i = 0; i < TRIES; i++) {
        wait_proposers(c);
        struct verified v = ask_all(c, n, when);
        n_refused += v.drafted - v.accepted;
        if (v.accepted)
            return;
    }
    fail_msg("%s: %d times no draft token was accepted", when, TRIES);
}

/* ---- services ---- */

static void start_verifier(struct service *v, const char *proposer, struct rpc_client **ret)
{
    const char *args[] = {"--model",
                          TARGET,
                          "--policy",
                          "fixed",
                          "--k",
                          "4",
                          "--threads",
                          "1",
                          "--no-pin",
                          ahead ? "--draft-ahead" : "--no-draft-ahead",
                          proposer ? "--proposers" : NULL,
                          proposer,
                          NULL};
    service_start(v, "verifier-svc", args);
    assert_int_equal(rpc_client_new(v->target, NULL, ret), 0);
    if (proposer)
        wait_proposers(*ret);
}

static int answer_without_proposers(void **state)
{
    (void)state;
    struct service v = {0};
    struct rpc_client *c;
    struct generation g[MANY];
    want = calloc(MANY, sizeof(*want));
    start_verifier(&v, NULL, &c);
    for (unsigned i = 0; i < MANY; i++) {
        start_request(c, i, &g[i], &want[i]);
        generation_end(&g[i]);
        assert_int_equal(g[i].status.code, RPC_OK);
        assert_int_equal(want[i].n, N_TOKENS);
    }
    rpc_client_free(c);
    service_stop(&v);
    return 0;
}

static int draft_ahead(void **state)
{
    (void)state;
    ahead = true;
    return 0;
}

static int forget_answers(void **state)
{
    (void)state;
    free(want);
    return 0;
}

static const char *const draft_args[] = {"--insecure-listen",
                                         "--proposer",
                                         "draft",
                                         "--draft-model",
                                         DRAFT,
                                         "--draft-quantize",
                                         DRAFT_QUANTIZE,
                                         "--draft-threads",
                                         "1",
                                         NULL};

/* A proposer on its host, a verifier on this one, a relay between them. */
struct world {
    struct service verifier, proposer;
    struct relay *relay;
    struct rpc_client *client;
};

static void spawn_proposer(struct world *w)
{
    int ours = host_ours();
    host_enter(host);
    service_spawn(&w->proposer, "proposer-svc", draft_args);
    host_enter(ours);
    host_drop(ours);
    struct service seen = w->proposer; // the address on this host
    snprintf(seen.target, sizeof(seen.target), "%s", relay_target(w->relay));
    service_wait_healthy(&seen);
}

static void world_start(struct world *w)
{
    *w = (struct world){0};
    char address[RELAY_TARGET_MAX];
    host_address(host, address);
    snprintf(w->proposer.target, sizeof(w->proposer.target), "%s", address);
    w->relay = relay_start(host, address);
    spawn_proposer(w);
    start_verifier(&w->verifier, relay_target(w->relay), &w->client);
}

static void world_stop(struct world *w)
{
    rpc_client_free(w->client);
    service_stop(&w->verifier);
    relay_stop(w->relay);
    service_stop(&w->proposer);
}

/* ---- far away ---- */

/* The models often agree, so some drafts ahead that are in time match the committed tokens. */
static void must_use_ahead(struct rpc_client *c)
{
    static const char used[] = "tandem_spec_decode_ahead_drafts_used_total";
    for (int i = 0; i < TRIES && metric_of(c, used) == 0; i++) {
        wait_proposers(c);
        ask_all(c, FEW, "drafts ahead");
    }
    assert_true(metric_of(c, used) > 0);
}

/* Sends requests until drafts arrive, in time or late. A proposer that was late too often before is
 * excluded until its next try, so the first requests may get none. */
static void must_get_drafts(struct rpc_client *c, const char *when)
{
    uint64_t before = drafts_of(c, 0); // includes late drafts
    for (int i = 0; i < TRIES && drafts_of(c, 0) == before; i++) {
        wait_proposers(c);
        ask_all(c, 1, when);
        ask_all(c, FEW, when);
    }
    assert_true(drafts_of(c, 0) > before);
}

static void the_round_trip_to_the_proposer_changes_no_token(void **state)
{
    (void)state;
    struct world w;
    world_start(&w);
    static const unsigned round_trips_us[] = {0, 1000, 5000, 40000};
    for (unsigned i = 0; i < ARRAY_LEN(round_trips_us); i++) {
        char when[60];
        relay_delay(w.relay, round_trips_us[i] / 2);
        snprintf(when, sizeof(when), "round trip %u us", round_trips_us[i]);
        must_get_drafts(w.client, when);
    }
    relay_delay(w.relay, 0);
    if (ahead && !LIB_SANITIZED) // sanitizer: no draft would be in time
        must_use_ahead(w.client);
    world_stop(&w);
}

static void no_request_fails_when_the_proposer_is_cut_off(void **state)
{
    (void)state;
    struct world w;
    struct asked a;
    world_start(&w);
    ask(&a, w.client, FEW);
    generation_wait_tokens(&a.g[0], N_TOKENS / 4);
    relay_cut(w.relay, true);
    must_answer(&a, "cut off midway");
    assert_int_equal(ask_all(w.client, FEW, "while cut off").drafted, 0);
    relay_cut(w.relay, false);
    must_draft(w.client, FEW, "mended");
    world_stop(&w);
}

/* On a busy machine no pass may wait for drafts: then once more. */
static void no_request_fails_when_the_proposer_stalls(void **state)
{
    static const char waits[] = "tandem_engine_draft_wait_seconds_count";
    (void)state;
    struct world w;
    struct asked a;
    world_start(&w);
    for (int i = 0; i < TRIES && (i == 0 || metric_of(w.client, waits) == 0); i++) {
        ask(&a, w.client, FEW);
        generation_wait_tokens(&a.g[0], N_TOKENS / 4);
        relay_stall(w.relay, true);
        must_answer(&a, "stalled midway");
        relay_stall(w.relay, false);
        must_draft(w.client, FEW, "flowing again");
    }
    assert_true(metric_of(w.client, waits) > 0);
    world_stop(&w);
}

static void a_restarted_proposer_gets_all_contexts_again(void **state)
{
    (void)state;
    struct world w;
    struct asked a;
    world_start(&w);
    relay_delay(w.relay, 500);
    ask(&a, w.client, FEW);
    generation_wait_tokens(&a.g[0], N_TOKENS / 4);
    service_kill(&w.proposer);
    must_answer(&a, "killed midway");
    spawn_proposer(&w);
    must_draft(w.client, FEW, "restarted");
    world_stop(&w);
}

static void a_far_lying_proposer_changes_no_token(void **state)
{
    (void)state;
    static const enum lie lies[] = {LIE_NOTHING, LIE_LATE, LIE_STALE, LIE_GARBAGE};
    for (unsigned i = 0; i < ARRAY_LEN(lies); i++) {
        struct service v = {0};
        struct rpc_client *c;
        char address[RELAY_TARGET_MAX];
        host_address(host, address);
        int ours = host_ours();
        host_enter(host);
        struct liar *liar = liar_listen(address, lies[i], N_VOCAB);
        host_enter(ours);
        host_drop(ours);
        struct relay *relay = relay_start(host, address);
        relay_delay(relay, 500);
        start_verifier(&v, relay_target(relay), &c);
        ask_all(c, FEW, lie_name(lies[i]));
        assert_true(liar_n_rounds(liar) > 0);
        rpc_client_free(c);
        service_stop(&v);
        relay_stop(relay);
        liar_stop(liar);
    }
}

/* ---- under many requests ---- */

/* Checks the verifier's histograms: how long each pass waited for drafts, and the time between
 * tokens. No pass waits longer than the deadline of its drafts. The machine may add the longest
 * time for which it kept a thread from running. The histogram has few bounds; the next one above
 * counts. */
static void must_have_kept_time(struct rpc_client *c, int64_t stall_us)
{
#define WAITS "tandem_engine_draft_wait_seconds_"
#define LATENCIES "tandem_inter_token_latency_seconds_"
    static const char *const bounds[] = {"0.1", "0.2", "0.5", "1", "2", "5", "+Inf"};
    double n_waits = metric_of(c, WAITS "count"), n_latencies = metric_of(c, LATENCIES "count");
    double limit_s = DEADLINE_S + (double)stall_us / 1e6;
    char name[80];
    unsigned i = 0;
    while (bounds[i][0] != '+' && strtod(bounds[i], NULL) < limit_s)
        i++;
    snprintf(name, sizeof(name), WAITS "bucket{le=\"%s\"}", bounds[i]);
    double n_in_time = metric_of(c, name);
    printf("%.0f waits for drafts, %.0f of at most %s s; the machine stalled for %.1f ms\n",
           n_waits, n_in_time, bounds[i], (double)stall_us / 1e3);
    assert_true(n_in_time == n_waits);
    assert_true(n_latencies > 0);
    assert_true(metric_of(c, LATENCIES "bucket{le=\"10\"}") == n_latencies);
    assert_true(metric_of(c, LATENCIES "sum") <= n_latencies);
#undef WAITS
#undef LATENCIES
}

struct crowd {
    struct service verifier, proposer;
    struct rpc_client *client;
    struct asked asked;
};

/* Many running requests, with drafts. */
static void crowd_start(struct crowd *w)
{
    *w = (struct crowd){0};
    stalls_begin();
    service_start(&w->proposer, "proposer-svc", draft_args);
    start_verifier(&w->verifier, w->proposer.target, &w->client);
    must_draft(w->client, MANY, "undisturbed");
    ask(&w->asked, w->client, MANY);
    generation_wait_tokens(&w->asked.g[0], N_TOKENS / 4);
}

static void crowd_stop(struct crowd *w)
{
    must_have_kept_time(w->client, stalls_end_us());
    rpc_client_free(w->client);
    service_stop(&w->verifier);
    service_stop(&w->proposer);
}

static void many_requests_survive_a_killed_proposer(void **state)
{
    (void)state;
    struct crowd w;
    crowd_start(&w);
    service_kill(&w.proposer);
    must_answer(&w.asked, "SIGKILL midway");
    crowd_stop(&w);
}

static void many_requests_survive_a_stopped_proposer(void **state)
{
    (void)state;
    struct crowd w;
    crowd_start(&w);
    service_signal(&w.proposer, SIGSTOP);
    must_answer(&w.asked, "SIGSTOP midway");
    service_signal(&w.proposer, SIGCONT);
    must_draft(w.client, MANY, "SIGCONT");
    crowd_stop(&w);
}

static void many_requests_survive_a_proposer_replaced_by_garbage(void **state)
{
    (void)state;
    struct crowd w;
    crowd_start(&w);
    service_kill(&w.proposer);
    struct liar *liar = liar_listen(w.proposer.target, LIE_GARBAGE, N_VOCAB);
    must_answer(&w.asked, "replaced midway");
    wait_proposers(w.client);
    ask_all(w.client, MANY, "garbage");
    assert_true(liar_n_rounds(liar) > 0);
    crowd_stop(&w);
    liar_stop(liar);
}

static void some_draft_tokens_were_rejected(void **state)
{
    (void)state;
    for (unsigned i = 0; i < TRIES && !n_refused; i++) { // most drafts were late
        struct crowd w;
        crowd_start(&w);
        must_answer(&w.asked, "undisturbed to the end");
        crowd_stop(&w);
    }
    assert_true(n_refused > 0);
}

int main(void)
{
    host = host_new();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_round_trip_to_the_proposer_changes_no_token),
        cmocka_unit_test(no_request_fails_when_the_proposer_is_cut_off),
        cmocka_unit_test(no_request_fails_when_the_proposer_stalls),
        cmocka_unit_test(a_restarted_proposer_gets_all_contexts_again),
        cmocka_unit_test(a_far_lying_proposer_changes_no_token),
        cmocka_unit_test(many_requests_survive_a_killed_proposer),
        cmocka_unit_test(many_requests_survive_a_stopped_proposer),
        cmocka_unit_test(many_requests_survive_a_proposer_replaced_by_garbage),
    };
    const struct CMUnitTest both[] = {cmocka_unit_test(some_draft_tokens_were_rejected)};
    return cmocka_run_group_tests_name("alternately", tests, answer_without_proposers, NULL) +
           cmocka_run_group_tests_name("ahead", tests, draft_ahead, NULL) +
           cmocka_run_group_tests_name("both", both, NULL, forget_answers);
}
