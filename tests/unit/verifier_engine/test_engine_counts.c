/* test_engine_counts.c - what the engine counts of each request: events, usage and metrics. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "lib/lib.h"
#include "lib/clients/engine_client.h"
#include "lib/clients/proposers.h"

#define N_VOCAB 4096
#define QUEUE 4
#define N_PROMPT 30
#define N_ANSWER 90

static struct stats stats;
static struct verifier_options options = {.model = SOURCE_DIR "/models/tales-1m-q8_0.gguf",
                                          .k = 5,
                                          .max_sequences = 4,
                                          .queue_length = QUEUE,
                                          .max_batch_rows = 80,
                                          .prefill_chunk = 64,
                                          .max_pass_ms = 100,
                                          .threads = 1,
                                          .verify_timeout_s = 1000,
                                          .prefix_cache = true,
                                          .kv_disk = ""};

/* ---- metrics ---- */

/* A value of the Prometheus text. */
static double figure(const char *name)
{
    AUTO(buf_done) struct buf text = {0};
    char line[120];
    buf_init(&text, 1 << 20);
    metrics_render(&text);
    AUTO(mem_free) char *all = buf_take(&text);
    snprintf(line, sizeof(line), "\n%s ", name);
    const char *at = strstr(all, line);
    assert_non_null(at);
    return strtod(at + strlen(line), NULL);
}

static const char *const names[] = {
    "tandem_request_success_total{finished_reason=\"stop\"}",
    "tandem_request_success_total{finished_reason=\"length\"}",
    "tandem_request_success_total{finished_reason=\"closed\"}",
    "tandem_request_failed_total",
    "tandem_request_refused_total",
    "tandem_prompt_tokens_total",
    "tandem_generation_tokens_total",
    "tandem_time_to_first_token_seconds_count",
    "tandem_inter_token_latency_seconds_count",
    "tandem_e2e_request_latency_seconds_count",
    "tandem_request_queue_time_seconds_count",
    "tandem_request_prefill_time_seconds_count",
    "tandem_request_decode_time_seconds_count",
    "tandem_request_prompt_tokens_sum",
    "tandem_request_prompt_tokens_count",
    "tandem_request_generation_tokens_sum",
    "tandem_request_generation_tokens_count",
    "tandem_prefix_cache_queries_total",
    "tandem_prefix_cache_hits_total{tier=\"memory\"}",
    "tandem_engine_rounds_total",
    "tandem_engine_pass_seconds_count",
    "tandem_engine_pass_rows_sum",
    "tandem_num_preemptions_total",
    "tandem_spec_decode_steps_total",
    "tandem_spec_decode_fallback_steps_total",
};
enum name {
    STOP,
    LENGTH,
    CLOSED,
    FAILED,
    REFUSED,
    PROMPT_TOKENS,
    TOKENS,
    TTFT,
    INTER_TOKEN,
    E2E,
    QUEUED,
    PREFILL,
    DECODE,
    PROMPT_SUM,
    PROMPTS,
    GENERATED_SUM,
    GENERATED,
    QUERIES,
    HITS,
    ROUNDS,
    PASSES,
    ROWS,
    PREEMPTIONS,
    STEPS,
    FALLBACK,
    N_NAMES
};
static_assert(ARRAY_LEN(names) == N_NAMES, "one for each");

struct figures_at {
    double v[N_NAMES];
};

static struct figures_at figures_now(void)
{
    struct figures_at f;
    for (unsigned i = 0; i < N_NAMES; i++)
        f.v[i] = figure(names[i]);
    return f;
}

/* Since `before`, each figure has grown by this. */
static void must_grow(const struct figures_at *before, const double by[N_NAMES])
{
    struct figures_at now = figures_now();
    for (unsigned i = 0; i < N_NAMES; i++)
        if (now.v[i] - before->v[i] != by[i])
            fail_msg("%s grew by %g, not %g", names[i], now.v[i] - before->v[i], by[i]);
}

/* ---- events ---- */

/* The answer of one choice. */
struct seen {
    uint32_t n_started, n_cached, n, n_ends, n_last, n_rounds;
    uint32_t ids[1000];
    struct event round; // the last one with tokens
    enum accept_origin first, last;
    struct event end;
    int error;
};

static void note(struct seen *s, const struct event_batch *b, const struct event *ev)
{
    s->n_started += ev->started;
    s->n_cached = ev->started ? ev->n_cached : s->n_cached;
    for (uint32_t i = 0; i < ev->n_tokens; i++)
        s->ids[s->n++] = b->tokens[ev->first + i].id;
    if (ev->n_tokens) {
        assert_int_equal(ev->round, ++s->n_rounds);
        s->round = *ev;
        s->first = b->tokens[ev->first].origin;
        s->last = b->tokens[ev->first + ev->n_tokens - 1].origin;
    }
    if (ev->end != SEQ_CONTINUES) {
        s->n_ends++;
        s->end = *ev;
    }
    s->n_last += ev->last;
    s->error = ev->error ? ev->error : s->error;
}

/* Takes the next batch; all its events are of one request. */
static void take(struct engine *e, struct seen *choices)
{
    struct event_batch *b = events_next(engine_events(e), -1);
    for (uint32_t i = 0; b && i < b->n; i++)
        note(&choices[b->v[i].choice], b, &b->v[i]);
    if (b)
        events_return(engine_events(e), b);
}

/* Runs the request to its end, and drops it. */
static void run(struct engine *e, struct request *r, struct seen *choices)
{
    memset(choices, 0, r->n * sizeof(*choices));
    assert_int_equal(engine_submit(e, r), 0);
    for (uint32_t n_last = 0; !n_last;) {
        take(e, choices);
        for (uint32_t i = 0; i < r->n; i++)
            n_last += choices[i].n_last;
    }
    request_drop(r); // the engine's
    request_drop(r);
}

static struct request *request_for(struct engine *e, unsigned topic, uint32_t n_choices)
{
    struct topic w;
    const struct loaded_model *m = engine_loaded_model(e);
    topic_init(&w, topic, N_PROMPT);
    w.msg.max_tokens = N_ANSWER;
    w.msg.n = n_choices;
    return topic_request(&w, m->tok, m->run.context);
}

/* ---- requests without drafts ---- */

static void a_plain_request_counts_once(void **state)
{
    (void)state;
    AUTO(engine_free) struct engine *e = engine_client_start(&options, &stats);
    struct figures_at before = figures_now();
    struct seen s;
    run(e, request_for(e, 1, 1), &s);
    const struct request_usage *u = &s.end.usage;
    assert_true(s.n == N_ANSWER && s.n_started == 1 && s.n_cached == 0 && s.n_ends == 1);
    assert_true(s.n_last == 1 && s.end.end == SEQ_LENGTH && s.end.stop == DETOK_NONE);
    assert_true(s.round.base_len == N_PROMPT + N_ANSWER && s.round.n_accepted == 0);
    assert_true(s.round.n_draft == 0 && !*s.round.proposer && s.first == ACCEPT_TARGET);
    assert_true(u->n_prompt == N_PROMPT && u->n_generated == N_ANSWER && u->n_rounds == N_ANSWER);
    assert_true(!u->n_drafted_rounds && !u->n_drafted && !u->n_accepted && !u->n_bonus && !u->k);
    assert_true(u->queue_us >= 0 && u->prompt_us > 0 && u->decode_us > 0 && !*u->proposer);
    assert_int_equal(engine_n_requests(e), 0);
    must_grow(&before, (double[N_NAMES]){[LENGTH] = 1,
                                         [PROMPT_TOKENS] = N_PROMPT,
                                         [TOKENS] = N_ANSWER,
                                         [TTFT] = 1,
                                         [INTER_TOKEN] = N_ANSWER - 1,
                                         [E2E] = 1,
                                         [QUEUED] = 1,
                                         [PREFILL] = 1,
                                         [DECODE] = 1,
                                         [PROMPT_SUM] = N_PROMPT,
                                         [PROMPTS] = 1,
                                         [GENERATED_SUM] = N_ANSWER,
                                         [GENERATED] = 1,
                                         [QUERIES] = N_PROMPT,
                                         [ROUNDS] = N_ANSWER,
                                         [PASSES] = N_ANSWER,
                                         [ROWS] = N_PROMPT + N_ANSWER - 1,
                                         [STEPS] = N_ANSWER});
    engine_stop(e);
    const struct pass_time *t = &e->control.pass_time; // the pass with the prompt does not count
    assert_true(t->n_all == N_ANSWER - 1 && !t->last_drafted && t->n_seen[0] > 1);
    assert_true(e->decode_us > 0 && e->prompt_rows == 0);
}

/* The second request finds the first block of the prompt; the rest of it is no whole block. The
 * second and third choice begin one pass after the first, with the prompt's last row. */
static void choices_and_cached_rows_count(void **state)
{
    (void)state;
    AUTO(engine_free) struct engine *e = engine_client_start(&options, &stats);
    struct seen first, s[3];
    run(e, request_for(e, 1, 1), &first);
    struct figures_at before = figures_now();
    run(e, request_for(e, 1, 3), s);
    for (unsigned i = 0; i < 3; i++) {
        assert_true(s[i].n == N_ANSWER && s[i].n_started == 1 && s[i].n_ends == 1);
        assert_int_equal(s[i].n_cached, KV_BLOCK);
        assert_int_equal(s[i].end.usage.n_generated, N_ANSWER);
    }
    assert_int_equal(s[0].n_last + s[1].n_last + s[2].n_last, 1);
    assert_memory_equal(s[0].ids, first.ids, N_ANSWER * sizeof(uint32_t));
    must_grow(&before, (double[N_NAMES]){[LENGTH] = 3,
                                         [PROMPT_TOKENS] = N_PROMPT,
                                         [TOKENS] = 3 * N_ANSWER,
                                         [TTFT] = 3,
                                         [INTER_TOKEN] = 3 * (N_ANSWER - 1),
                                         [E2E] = 3,
                                         [QUEUED] = 1,
                                         [PREFILL] = 3,
                                         [DECODE] = 3,
                                         [PROMPT_SUM] = N_PROMPT,
                                         [PROMPTS] = 1,
                                         [GENERATED_SUM] = 3 * N_ANSWER,
                                         [GENERATED] = 3,
                                         [QUERIES] = N_PROMPT,
                                         [HITS] = KV_BLOCK,
                                         [ROUNDS] = N_ANSWER + 1,
                                         [PASSES] = N_ANSWER + 1,
                                         [ROWS] = N_PROMPT - KV_BLOCK + 3 * (N_ANSWER - 1) + 2,
                                         [STEPS] = 3 * N_ANSWER});
    engine_stop(e);
}

static void a_cancelled_request_counts_as_failed(void **state)
{
    (void)state;
    AUTO(engine_free) struct engine *e = engine_client_start(&options, &stats);
    struct request *r = request_for(e, 1, 2);
    struct figures_at before = figures_now();
    struct seen s[2] = {0};
    atomic_store(&r->cancelled, true); // before it starts
    run(e, r, s);
    assert_true(s[0].n_started == 0 && s[0].n_last == 1 && s[0].error == -ECANCELED);
    assert_int_equal(engine_n_requests(e), 0);
    must_grow(&before, (double[N_NAMES]){[FAILED] = 1});
    engine_stop(e);
}

/* The engine's thread does not run. */
static void a_refused_request_is_not_counted_as_accepted(void **state)
{
    (void)state;
    AUTO(engine_free) struct engine *started = engine_client_start(&options, &stats);
    AUTO(engine_free) struct engine *e = NULL;
    assert_int_equal(engine_new(&options, &stats, &e), 0);
    struct request *r[QUEUE + 3];
    for (unsigned i = 0; i < ARRAY_LEN(r); i++) {
        r[i] = request_for(started, i, 1);
        assert_int_equal(engine_submit(e, r[i]), i < QUEUE ? 0 : -EAGAIN);
        assert_int_equal(engine_n_requests(e), i < QUEUE ? i + 1 : QUEUE);
    }
    for (unsigned i = 0; i < ARRAY_LEN(r); i++) {
        assert_int_equal(atomic_load(&r[i]->n_holders), i < QUEUE ? 2 : 1);
        request_drop(r[i]);
    }
    engine_stop(started);
}

/* ---- Verify ---- */

/* A draft of n tokens, which the caller fills in. */
static struct draft *new_chain(uint32_t n)
{
    struct draft *d = draft_new();
    assert_non_null(d);
    d->n = n;
    for (uint32_t i = 0; i < n; i++) {
        d->parents[i] = (int32_t)i - 1;
        d->survival[i] = 1;
    }
    return d;
}

/* Sends a draft of n tokens; the first n_right of them are the answer's. */
static void verify(struct engine *e, struct request *r, struct seen *s, const uint32_t *answer,
                   uint32_t n, uint32_t n_right)
{
    struct draft *d = new_chain(n);
    for (uint32_t i = 0; i < n; i++)
        d->tokens[i] = answer[s->n + i] ^ (i >= n_right);
    uint32_t rounds = s->n_rounds, n_before = s->n;
    assert_int_equal(engine_verify(e, r, N_PROMPT + s->n, d), 0);
    while (s->n_rounds == rounds)
        take(e, s);
    assert_int_equal(s->n - n_before, n_right + 1);
    assert_true(s->round.n_draft == n && s->round.n_accepted == n_right);
    assert_true(s->round.base_len == N_PROMPT + s->n && !*s->round.proposer);
    assert_memory_equal(s->ids, answer, s->n * sizeof(uint32_t));
    assert_int_equal(s->first, n_right ? ACCEPT_ACCEPTED : n ? ACCEPT_CORRECTION : ACCEPT_TARGET);
    assert_int_equal(s->last, n_right < n ? ACCEPT_CORRECTION : n ? ACCEPT_BONUS : ACCEPT_TARGET);
}

/* How many tokens of a long draft are verified in its first pass, beside an answer of this flow. 0:
 * the answer ended first. */
static uint32_t try_beside(struct engine *e, const char *flow)
{
    struct engine_client answer, none = {0};
    struct request *r = request_for(e, 1, 1);
    struct draft *d = new_chain(DRAFT_MAX_NODES);
    engine_client_init(e, 2, N_PROMPT, 900, &answer);
    answer.req->flow_len = strlen(flow);
    memcpy(answer.req->flow, flow, answer.req->flow_len);
    for (uint32_t i = 0; i < d->n; i++)
        d->tokens[i] = 5;
    r->verify = true;
    assert_int_equal(engine_submit(e, answer.req), 0);
    assert_int_equal(engine_submit(e, r), 0);
    engine_client_take(e, &answer, &none, 20);
    assert_int_equal(engine_verify(e, r, N_PROMPT, d), 0);
    uint32_t n_draft = 0, n_ended = 0;
    bool beside = true;
    while (n_ended < 2) {
        struct event_batch *b = events_next(engine_events(e), -1);
        for (uint32_t i = 0; b && i < b->n; i++) {
            n_draft = b->v[i].req == r && b->v[i].n_draft ? b->v[i].n_draft : n_draft;
            n_ended += b->v[i].last;
            beside &= n_draft || !n_ended;
        }
        if (b)
            events_return(engine_events(e), b);
        atomic_store(&r->closing, n_draft > 0);
        engine_wake(e);
    }
    for (unsigned i = 0; i < 2; i++) { // the engine's reference, and ours
        request_drop(answer.req);
        request_drop(r);
    }
    return beside ? n_draft : 0;
}

static uint32_t verified_beside(struct engine *e, const char *flow)
{
    uint32_t n = 0;
    for (unsigned i = 0; i < 50 && !n; i++)
        n = try_beside(e, flow);
    return n;
}

static void a_draft_does_not_make_the_passes_of_others_long(void **state)
{
    (void)state;
    struct verifier_options o = options;
    o.max_pass_ms = 0; // so a pass takes at most twice as long as without drafts
    AUTO(engine_free) struct engine *e = engine_client_start(&o, &stats);
    assert_int_equal(verified_beside(e, ""), DRAFT_MAX_NODES);
    assert_in_range(verified_beside(e, "other"), 1, DRAFT_MAX_NODES - 1);
    engine_stop(e);
}

/* The last draft is the longest, and it is accepted whole. */
static void drafts_of_a_client_count_in_its_usage(void **state)
{
    (void)state;
    AUTO(engine_free) struct engine *e = engine_client_start(&options, &stats);
    struct seen plain, s = {0};
    run(e, request_for(e, 1, 1), &plain);
    struct request *r = request_for(e, 1, 1);
    struct figures_at before = figures_now();
    double proposed = metrics_value(stats.proposed);
    r->verify = true;
    assert_int_equal(engine_submit(e, r), 0);
    verify(e, r, &s, plain.ids, 0, 0);
    verify(e, r, &s, plain.ids, 4, 4);
    verify(e, r, &s, plain.ids, 4, 2);
    verify(e, r, &s, plain.ids, 2, 0);
    verify(e, r, &s, plain.ids, DRAFT_MAX_NODES, DRAFT_MAX_NODES);
    atomic_store(&r->closing, true);
    engine_wake(e);
    while (!s.n_last)
        take(e, &s);
    const struct request_usage *u = &s.end.usage;
    const uint32_t n = 1 + 5 + 3 + 1 + DRAFT_MAX_NODES + 1;
    assert_true(s.end.end == SEQ_CLOSED && u->n_generated == n && u->n_rounds == 5);
    assert_true(u->n_drafted_rounds == 4 && u->n_drafted == 10 + DRAFT_MAX_NODES);
    assert_true(u->n_accepted == 6 + DRAFT_MAX_NODES && u->n_bonus == 2 && !*u->proposer);
    for (uint32_t i = 0; i <= DRAFT_MAX_NODES; i++)
        assert_int_equal(u->accepted_histogram[i],
                         i == 0 || i == 2 || i == 4 || i == DRAFT_MAX_NODES);
    assert_true(metrics_value(stats.proposed) == proposed); // no proposer's
    must_grow(&before,
              (double[N_NAMES]){[CLOSED] = 1,
                                [PROMPT_TOKENS] = N_PROMPT,
                                [TOKENS] = n,
                                [TTFT] = 1,
                                [INTER_TOKEN] = n - 1,
                                [E2E] = 1,
                                [QUEUED] = 1,
                                [PREFILL] = 1,
                                [DECODE] = 1,
                                [PROMPT_SUM] = N_PROMPT,
                                [PROMPTS] = 1,
                                [GENERATED_SUM] = n,
                                [GENERATED] = 1,
                                [QUERIES] = N_PROMPT,
                                [HITS] = KV_BLOCK,
                                [ROUNDS] = figure("tandem_engine_rounds_total") - before.v[ROUNDS],
                                [PASSES] = figure("tandem_engine_rounds_total") - before.v[ROUNDS],
                                [ROWS] = N_PROMPT - KV_BLOCK + 4 + 10 + DRAFT_MAX_NODES,
                                [STEPS] = 5});
    request_drop(r);
    request_drop(r);
    engine_stop(e);
    assert_true(e->control.pass_time.last_drafted);
}

/* ---- drafts of a proposer ---- */

/* The answer consists of the three tokens that the proposer drafts, so some are accepted. */
static struct request *request_for_drafts(struct engine *e, uint64_t seed)
{
    struct topic w;
    const struct loaded_model *m = engine_loaded_model(e);
    Tandem__V1__LogitBias biases[LIAR_TOKENS], *list[LIAR_TOKENS];
    topic_init(&w, 1, N_PROMPT);
    for (unsigned i = 0; i < LIAR_TOKENS; i++) {
        tandem__v1__logit_bias__init(&biases[i]);
        biases[i].token = LIAR_TOKEN(i);
        biases[i].bias = 100;
        list[i] = &biases[i];
    }
    w.sampling.logit_bias = list;
    w.sampling.n_logit_bias = LIAR_TOKENS;
    w.sampling.temperature = 2;
    w.sampling.seed = (int64_t)seed;
    w.msg.max_tokens = N_ANSWER;
    return topic_request(&w, m->tok, m->run.context);
}

static void add_usage(struct request_usage *sum, const struct request_usage *u)
{
    sum->n_rounds += u->n_rounds;
    sum->n_drafted_rounds += u->n_drafted_rounds;
    sum->n_drafted += u->n_drafted;
    sum->n_accepted += u->n_accepted;
    sum->n_bonus += u->n_bonus;
    for (uint32_t i = 0; i <= DRAFT_MAX_NODES; i++)
        sum->accepted_histogram[i] += u->accepted_histogram[i];
}

/* How many of these drafts had their token i accepted. */
static uint32_t n_accepted_at(const struct request_usage *u, uint32_t i)
{
    uint32_t n = 0;
    for (uint32_t k = i + 1; k <= DRAFT_MAX_NODES; k++)
        n += u->accepted_histogram[k];
    return n;
}

static void drafts_of_a_proposer_count_in_usage_and_metrics(void **state)
{
    (void)state;
    char folder[] = "/tmp/tandem-test-counts-XXXXXX", path[PROPOSER_PATH_MAX], target[128];
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/p.sock", folder);
    snprintf(target, sizeof(target), "unix:%s", path);
    options.speculation = (struct speculation){.on = true, .policy = CONTROL_FIXED, .k = 5};
    assert_int_equal(speculation_add_target(&options.speculation, target, strlen(target)), 0);
    options.proposer_budget_ms = 250;
    AUTO(liar_stop) struct liar *l = liar_start(path, LIE_DRAWN, N_VOCAB);
    AUTO(engine_free) struct engine *e = engine_client_start(&options, &stats);
    double before[] = {metrics_value(stats.proposed), metrics_value(stats.accepted),
                       metrics_value(stats.bonus), metrics_value(stats.steps)};
    struct request_usage sum = {0};
    struct seen s;
    for (uint64_t seed = 0; seed < 200 && (!sum.n_bonus || n_accepted_at(&sum, 2) < 3); seed++) {
        run(e, request_for_drafts(e, seed), &s);
        assert_true(s.n == N_ANSWER && s.end.usage.k == 5);
        assert_string_equal(s.end.usage.proposer, s.end.usage.n_drafted ? "liar" : "");
        add_usage(&sum, &s.end.usage);
    }
    assert_true(sum.n_bonus && n_accepted_at(&sum, 2) >= 3); // drafts were in time
    const struct stats_drafts *d = &stats.proposers[0];
    assert_string_equal(d->name, "liar");
    assert_true(metrics_value(stats.proposed) - before[0] == sum.n_drafted);
    assert_true(metrics_value(stats.accepted) - before[1] == sum.n_accepted);
    assert_true(metrics_value(stats.bonus) - before[2] == sum.n_bonus);
    assert_true(metrics_value(stats.steps) - before[3] == sum.n_rounds);
    assert_true(metrics_value(d->drafts) == sum.n_drafted_rounds);
    assert_true(metrics_value(d->tokens) == sum.n_drafted);
    assert_true(metrics_value(d->accepted) == sum.n_accepted);
    for (uint32_t i = 0; i < STATS_MAX_POSITIONS; i++)
        assert_true(metrics_value(d->accepted_at[i]) == n_accepted_at(&sum, i));
    struct drafts_stats of_drafts;
    assert_true(drafts_stats(engine_drafts(e), 0, &of_drafts));
    assert_int_equal(of_drafts.accepted_tokens, sum.n_accepted);
    engine_stop(e);
    const struct control_proposer *p = &e->control.proposers[0];
    assert_int_equal(p->answers.n, 1); // sequences in a message
    assert_true(p->granted > 0 && p->wished >= p->granted && p->accept_rate.all[0].tried > 0);
    options.speculation = (struct speculation){0};
    unlink(path);
    rmdir(folder);
}

static int init(void **state)
{
    (void)state;
    stats_init(&stats);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plain_request_counts_once),
        cmocka_unit_test(choices_and_cached_rows_count),
        cmocka_unit_test(a_cancelled_request_counts_as_failed),
        cmocka_unit_test(a_refused_request_is_not_counted_as_accepted),
        cmocka_unit_test(a_draft_does_not_make_the_passes_of_others_long),
        cmocka_unit_test(drafts_of_a_client_count_in_its_usage),
        cmocka_unit_test(drafts_of_a_proposer_count_in_usage_and_metrics),
    };
    return cmocka_run_group_tests(tests, init, NULL);
}
