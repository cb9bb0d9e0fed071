/* test_upstream_call.c - where a call goes when its verifiers are lost, full, silent or drain. The
 * streams are fakes (--wrap=rpc_stream_new and so on), and so is the clock (--wrap=clock_us). */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "base/mem.h"
#include "gateway/upstream/upstream_call.h"
#include "gateway/upstream/upstream_impl.h"
#include "lib/lib.h"

#define N 3
#define STALL_US 5000000
#define RESUME_US 10000000
#define TICK_US 200000
#define STREAMS_MAX 128
#define LIMIT 77 // max_tokens, as Started reports it
#define MOST 100 // tokens that the request permits
#define N_VOCAB 1000

struct rpc_stream {
    unsigned verifier;
    const struct rpc_events *events;
    void *user;
    Tandem__V1__GenerateRequest *request;
    bool cancelled, ended;
};

static struct rpc_stream streams[STREAMS_MAX];
static unsigned n_streams;
static int64_t now_us;

static struct {
    struct upstream u;
    Tandem__V1__ModelInfo info;
    struct upstream_model model;
    struct upstream_patience patience;
    struct upstream_call call;
    unsigned n_events, n_retries, n_resumes, n_full, n_done;
    bool waits, may_retry; // when all queues are full
} played;

/* ---- the fakes ---- */

int64_t __wrap_clock_us(void);
int __wrap_upstream_take(struct upstream *u, const struct upstream_want *want,
                         struct verifier **ret, const struct upstream_model **ret_model);
struct rpc_stream *__wrap_rpc_stream_new(struct rpc_client *c, const char *path,
                                         const struct rpc_options *opt, const struct rpc_events *ev,
                                         void *user);
ssize_t __wrap_rpc_stream_send(struct rpc_stream *s, struct rpc_msg *msg);
void __wrap_rpc_stream_close(struct rpc_stream *s);
void __wrap_rpc_stream_cancel(struct rpc_stream *s);
void __wrap_rpc_stream_free(struct rpc_stream *s);

int64_t __wrap_clock_us(void)
{
    return now_us;
}

int __wrap_upstream_take(struct upstream *u, const struct upstream_want *want,
                         struct verifier **ret, const struct upstream_model **ret_model)
{
    struct verifier *v = upstream_choose(u, want);
    if (!v)
        return fail(-EHOSTDOWN, UPSTREAM_UNREACHED);
    atomic_fetch_add(&v->n_requests, 1);
    *ret = v;
    *ret_model = NULL;
    return 0;
}

struct rpc_stream *__wrap_rpc_stream_new(struct rpc_client *c, const char *path,
                                         const struct rpc_options *opt, const struct rpc_events *ev,
                                         void *user)
{
    (void)path;
    (void)opt;
    assert_true(n_streams < STREAMS_MAX);
    struct rpc_stream *s = &streams[n_streams++];
    *s = (struct rpc_stream){
        .verifier = verifier_index((struct verifier *)(void *)c), .events = ev, .user = user};
    return s;
}

ssize_t __wrap_rpc_stream_send(struct rpc_stream *s, struct rpc_msg *msg)
{
    s->request =
        (Tandem__V1__GenerateRequest *)rpc_unpack(&tandem__v1__generate_request__descriptor, msg);
    assert_non_null(s->request);
    rpc_msg_free(msg);
    return 0;
}

void __wrap_rpc_stream_close(struct rpc_stream *s)
{
    (void)s;
}

void __wrap_rpc_stream_cancel(struct rpc_stream *s)
{
    s->cancelled = true;
}

void __wrap_rpc_stream_free(struct rpc_stream *s)
{
    assert_true(s->ended);
}

/* ---- what verifiers do ---- */

/* How often verifier i was asked. */
static unsigned asked(unsigned i)
{
    unsigned n = 0;
    for (unsigned k = 0; k < n_streams; k++)
        n += streams[k].verifier == i;
    return n;
}

/* The call that verifier i runs. */
static struct rpc_stream *at(unsigned i)
{
    for (unsigned k = n_streams; k-- > 0;)
        if (streams[k].verifier == i && !streams[k].ended && !streams[k].cancelled)
            return &streams[k];
    fail_msg("verifier %u runs no call", i);
    return NULL;
}

static bool runs(unsigned i)
{
    bool found = false;
    for (unsigned k = 0; k < n_streams; k++)
        found |= streams[k].verifier == i && !streams[k].ended && !streams[k].cancelled;
    return found;
}

static void end_stream(struct rpc_stream *s, enum rpc_code code)
{
    struct rpc_status status = {code, "as you asked"};
    s->ended = true;
    s->events->on_end(s->user, &status);
}

/* Calls that were cancelled end. */
static void settle(void)
{
    for (unsigned k = 0; k < n_streams; k++)
        if (streams[k].cancelled && !streams[k].ended)
            end_stream(&streams[k], RPC_CANCELLED);
}

static void end(unsigned i, enum rpc_code code)
{
    end_stream(at(i), code);
    settle();
}

static void send(unsigned i, struct rpc_msg *msg)
{
    struct rpc_stream *s = at(i);
    s->events->on_message(s->user, msg);
    rpc_msg_free(msg);
    settle();
}

static void send_event(unsigned i, Tandem__V1__GenerateEvent *e)
{
    send(i, rpc_pack(&e->base));
}

static void start_with(unsigned i, uint32_t prompt_tokens, uint32_t cached_tokens,
                       uint32_t max_tokens)
{
    Tandem__V1__GenerateEvent e = TANDEM__V1__GENERATE_EVENT__INIT;
    Tandem__V1__Started s = TANDEM__V1__STARTED__INIT;
    s.prompt_tokens = prompt_tokens;
    s.cached_tokens = cached_tokens;
    s.seed = 11;
    s.max_tokens = max_tokens;
    e.event_case = TANDEM__V1__GENERATE_EVENT__EVENT_STARTED;
    e.started = &s;
    send_event(i, &e);
}

static void start(unsigned i)
{
    start_with(i, 1, 0, LIMIT);
}

static void commit(unsigned i, uint32_t id)
{
    Tandem__V1__GenerateEvent e = TANDEM__V1__GENERATE_EVENT__INIT;
    Tandem__V1__TokenRun run = TANDEM__V1__TOKEN_RUN__INIT;
    Tandem__V1__Token token = TANDEM__V1__TOKEN__INIT, *list[] = {&token};
    token.id = id;
    run.tokens = list;
    run.n_tokens = 1;
    e.event_case = TANDEM__V1__GENERATE_EVENT__EVENT_RUN;
    e.run = &run;
    send_event(i, &e);
}

static void send_finished(unsigned i)
{
    Tandem__V1__GenerateEvent e = TANDEM__V1__GENERATE_EVENT__INIT;
    Tandem__V1__Finished f = TANDEM__V1__FINISHED__INIT;
    e.event_case = TANDEM__V1__GENERATE_EVENT__EVENT_FINISHED;
    e.finished = &f;
    send_event(i, &e);
}

/* The verifier begins or continues the call and ends it well. */
static void answer(unsigned i)
{
    start(i);
    send_finished(i);
    end(i, RPC_OK);
}

static void set_state(unsigned i, enum upstream_state state)
{
    struct verifier *v = &played.u.verifiers[i];
    v->state = state;
    v->answered_us = state == UPSTREAM_DOWN ? v->answered_us : now_us;
}

static void pass(int64_t us)
{
    for (int64_t until_us = now_us + us; now_us < until_us;) {
        now_us += TICK_US;
        for (unsigned i = 0; i < N; i++) // its answers to GetModel
            set_state(i, played.u.verifiers[i].state);
        upstream_call_tick(&played.call, now_us);
        settle();
    }
}

/* ---- the call ---- */

static void on_event(struct upstream_call *a, const Tandem__V1__GenerateEvent *e)
{
    (void)a;
    (void)e;
    played.n_events++;
}

static void on_retry(struct upstream_call *a, const char *from, const char *to, const char *why)
{
    (void)a;
    assert_non_null(from);
    assert_non_null(to);
    assert_non_null(why);
    played.n_retries++;
}

static void on_resume(struct upstream_call *a, const char *from, const char *to, const char *why)
{
    (void)a;
    assert_non_null(from);
    assert_non_null(to);
    assert_non_null(why);
    played.n_resumes++;
}

static bool on_hold(struct upstream_call *a, size_t bytes)
{
    (void)a;
    (void)bytes;
    return true;
}

static void on_lost_ids(struct upstream_call *a)
{
    (void)a;
}

static bool on_full(struct upstream_call *a)
{
    assert_int_equal(a->status.code, RPC_RESOURCE_EXHAUSTED);
    played.n_full++;
    return played.waits;
}

static bool may_retry(struct upstream_call *a)
{
    (void)a;
    return played.may_retry;
}

static void on_done(struct upstream_call *a)
{
    (void)a;
    played.n_done++;
}

static int begin_test(void **state)
{
    static const struct upstream_call_events events = {on_event,    on_retry, on_resume, on_hold,
                                                       on_lost_ids, on_full,  may_retry, on_done};
    static char *const targets[N] = {"v0", "v1", "v2"};
    Tandem__V1__GenerateRequest q = TANDEM__V1__GENERATE_REQUEST__INIT;
    (void)state;
    memset(&played, 0, sizeof(played));
    n_streams = 0;
    now_us = 1000000;
    tandem__v1__model_info__init(&played.info);
    played.info.name = rpc_text("model");
    played.info.fingerprint = rpc_text("fp");
    played.info.continues = true;
    played.info.n_vocab = N_VOCAB;
    played.model.info = &played.info;
    played.patience = (struct upstream_patience){STALL_US, RESUME_US};
    pthread_mutex_init(&played.u.mu, NULL);
    pthread_cond_init(&played.u.changed, NULL);
    played.u.n = N;
    for (unsigned i = 0; i < N; i++) {
        struct verifier *v = &played.u.verifiers[i];
        *v = (struct verifier){.u = &played.u, .target = targets[i], .model = &played.model};
        v->client = (struct rpc_client *)(void *)v;
        set_state(i, UPSTREAM_READY);
    }
    q.prompt_case = TANDEM__V1__GENERATE_REQUEST__PROMPT_TEXT;
    q.text = rpc_text("x");
    played.call = (struct upstream_call){.events = &events,
                                         .upstream = &played.u,
                                         .model = &played.model,
                                         .patience = &played.patience,
                                         .exact = true,
                                         .max_tokens = MOST,
                                         .request = rpc_pack(&q.base)};
    return upstream_call_init(&played.call, 1);
}

static int end_test(void **state)
{
    (void)state;
    upstream_call_cancel(&played.call);
    settle();
    if (!played.n_done)
        pass(TICK_US);
    assert_int_equal(played.n_done, 1);
    for (unsigned i = 0; i < N; i++)
        assert_int_equal(atomic_load(&played.u.verifiers[i].n_requests), 0);
    for (unsigned k = 0; k < n_streams; k++)
        tandem__v1__generate_request__free_unpacked(streams[k].request, NULL);
    upstream_call_done(&played.call);
    pthread_cond_destroy(&played.u.changed);
    pthread_mutex_destroy(&played.u.mu);
    return 0;
}

/* The call is sent to verifier 0; the others are in this state. */
static void begin(enum upstream_state others)
{
    set_state(1, others);
    set_state(2, others);
    upstream_call_begin(&played.call);
    assert_int_equal(asked(0), 1);
}

static void has_ended(enum rpc_code code)
{
    assert_int_equal(played.n_done, 1);
    assert_int_equal(played.call.status.code, code);
    assert_false(played.call.malformed);
}

/* ---- an answer that has begun ---- */

static void a_continuation_has_seed_and_limit_of_the_first_verifier(void **state)
{
    (void)state;
    begin(UPSTREAM_READY);
    start(0);
    commit(0, 5);
    end(0, RPC_UNAVAILABLE);
    const Tandem__V1__Continuation *c = at(1)->request->continuation;
    assert_non_null(c);
    assert_int_equal(c->seed, 11);
    assert_int_equal(c->max_tokens, LIMIT);
    assert_int_equal(c->choices[0]->tokens[0], 5);
    answer(1);
    has_ended(RPC_OK);
    assert_int_equal(played.n_resumes, 1);
}

/* The lost verifier has the fewest requests. */
static void a_lost_answer_is_not_asked_of_a_verifier_that_lost_it_before(void **state)
{
    (void)state;
    begin(UPSTREAM_READY);
    set_state(2, UPSTREAM_DOWN);
    start(0);
    end(0, RPC_UNAVAILABLE);
    set_state(2, UPSTREAM_READY);
    atomic_store(&played.u.verifiers[2].n_requests, 9);
    start(1);
    end(1, RPC_UNAVAILABLE);
    assert_true(runs(2));
    start(2);
    end(2, RPC_UNAVAILABLE); // now it has lost all
    assert_true(runs(0));
    answer(0);
    has_ended(RPC_OK);
    atomic_store(&played.u.verifiers[2].n_requests, 0);
}

/* Only then can another one continue it. */
static void an_answer_leaves_a_verifier_whose_token_does_not_exist(void **state)
{
    (void)state;
    begin(UPSTREAM_READY);
    start(0);
    commit(0, N_VOCAB - 1);
    unsigned n_events = played.n_events;
    commit(0, N_VOCAB);
    assert_int_equal(played.n_events, n_events);
    assert_false(runs(0));
    const Tandem__V1__ChoiceSoFar *c = at(1)->request->continuation->choices[0];
    assert_int_equal(c->n_tokens, 1);
    assert_int_equal(c->tokens[0], N_VOCAB - 1);
    answer(1);
    has_ended(RPC_OK);
    assert_int_equal(played.n_resumes, 1);
}

/* Its user would have to pay for them. The other verifier sends what came last again. */
static void a_verifier_that_sends_too_many_tokens_is_left(void **state)
{
    (void)state;
    begin(UPSTREAM_READY);
    start(0);
    for (unsigned i = 1; i < MOST; i++)
        commit(0, i);
    set_state(0, UPSTREAM_DRAINING);
    pass(TICK_US);
    assert_true(runs(1));
    commit(0, MOST);
    unsigned n_events = played.n_events;
    start(1);
    commit(1, MOST);
    assert_true(runs(1));
    commit(1, MOST + 1);
    assert_int_equal(played.n_events, n_events);
    assert_false(runs(1));
    assert_int_equal(at(2)->request->continuation->choices[0]->n_tokens, MOST);
    answer(2);
    has_ended(RPC_OK);
}

static void a_verifier_with_an_impossible_prompt_is_left(void **state)
{
    (void)state;
    size_t most = rpc_msg_len(played.call.request) + UPSTREAM_CALL_ADDED_MAX;
    begin(UPSTREAM_READY);
    start_with(0, (uint32_t)most + 1, 0, LIMIT);
    assert_false(runs(0));
    start_with(1, 5, 6, LIMIT);
    assert_false(runs(1));
    assert_int_equal(played.n_events, 0);
    start_with(2, (uint32_t)most, (uint32_t)most, LIMIT);
    assert_int_equal(played.n_events, 1);
    send_finished(2);
    end(2, RPC_OK);
    has_ended(RPC_OK);
}

/* Another verifier would refuse to continue the answer with such a limit. */
static void a_verifier_with_an_impossible_limit_is_left(void **state)
{
    (void)state;
    begin(UPSTREAM_READY);
    start_with(0, 1, 0, MOST + 1);
    assert_false(runs(0));
    start_with(1, 1, 0, MOST);
    send_finished(1);
    end(1, RPC_OK);
    has_ended(RPC_OK);
}

static void a_continuation_leaves_a_second_verifier_that_is_silent(void **state)
{
    (void)state;
    begin(UPSTREAM_READY);
    start(0);
    end(0, RPC_UNAVAILABLE);
    set_state(0, UPSTREAM_DOWN);
    set_state(1, UPSTREAM_DOWN);
    pass(STALL_US + 1000000);
    assert_false(runs(1));
    answer(2);
    has_ended(RPC_OK);
    assert_int_equal(played.n_resumes, 1);
}

/* It has other limits than the first one: a shorter context, or fewer sequences. */
static void a_verifier_that_cannot_continue_an_answer_is_asked_once(void **state)
{
    static const enum rpc_code codes[] = {RPC_INVALID_ARGUMENT, RPC_OUT_OF_RANGE};
    (void)state;
    begin(UPSTREAM_READY);
    start(0);
    commit(0, 5);
    end(0, RPC_UNAVAILABLE);
    for (unsigned i = 0; i < 2; i++) {
        end(1 + i, codes[i]);
        set_state(0, UPSTREAM_DOWN);
        pass(2 * TICK_US);
    }
    pass(RESUME_US / 2);
    assert_int_equal(asked(1), 1);
    assert_int_equal(asked(2), 1);
    set_state(0, UPSTREAM_READY);
    pass(2000000);
    answer(0);
    has_ended(RPC_OK);
}

static void other_errors_of_a_verifier_are_no_reason_to_ask_it_no_more(void **state)
{
    (void)state;
    begin(UPSTREAM_DOWN);
    start(0);
    end(0, RPC_UNAVAILABLE);
    pass(TICK_US);
    end(0, RPC_INTERNAL);
    pass(1000000);
    answer(0);
    has_ended(RPC_OK);
}

static void a_cancelled_continuation_ends_immediately(void **state)
{
    (void)state;
    begin(UPSTREAM_READY);
    start(0);
    end(0, RPC_UNAVAILABLE);
    upstream_call_cancel(&played.call);
    settle();
    assert_int_equal(played.n_done, 1);
}

static void a_lost_answer_ends_after_the_wait(void **state)
{
    (void)state;
    begin(UPSTREAM_DOWN);
    start(0);
    end(0, RPC_UNAVAILABLE);
    set_state(0, UPSTREAM_DOWN);
    pass(RESUME_US - TICK_US);
    assert_int_equal(played.n_done, 0);
    pass(TICK_US);
    has_ended(RPC_UNAVAILABLE);
}

static void an_answer_whose_end_has_arrived_needs_no_verifier(void **state)
{
    (void)state;
    begin(UPSTREAM_READY);
    start(0);
    commit(0, 5);
    send_finished(0);
    end(0, RPC_UNAVAILABLE);
    assert_int_equal(n_streams, 1);
    has_ended(RPC_OK);
}

/* The verifier that drains still runs the answer. */
static void a_bad_first_event_of_the_next_verifier_costs_nothing(void **state)
{
    (void)state;
    begin(UPSTREAM_READY);
    start(0);
    set_state(0, UPSTREAM_DRAINING);
    pass(TICK_US);
    send(1, rpc_msg_of("\xFF\xFF\xFF", 3));
    assert_false(runs(1));
    pass(2 * TICK_US);
    commit(2, 5); // without a start
    assert_false(runs(2));
    commit(0, 5);
    send_finished(0);
    end(0, RPC_OK);
    has_ended(RPC_OK);
    assert_int_equal(played.n_events, 3);
}

/* Another verifier would compute the prompt, and its tokens might differ. */
static void an_inexact_answer_stays_at_a_verifier_that_still_sends_it(void **state)
{
    (void)state;
    played.call.exact = false;
    begin(UPSTREAM_READY);
    start(0);
    set_state(0, UPSTREAM_DOWN);
    for (uint32_t i = 0; i < 100; i++) {
        pass(TICK_US);
        commit(0, i);
    }
    assert_int_equal(n_streams, 1);
    pass(STALL_US + TICK_US);
    start(1);
    assert_false(runs(0));
    assert_int_equal(played.n_resumes, 1);
}

/* ---- a request that has not begun ---- */

static void a_queued_request_waits_for_its_verifier(void **state)
{
    (void)state;
    begin(UPSTREAM_DOWN);
    end(0, RPC_UNAVAILABLE);
    set_state(0, UPSTREAM_DOWN);
    pass(RESUME_US / 2);
    assert_int_equal(asked(0), 1);
    set_state(0, UPSTREAM_READY);
    pass(1000000);
    assert_null(at(0)->request->continuation);
    answer(0);
    has_ended(RPC_OK);
    assert_int_equal(played.n_resumes, 0);
}

static void the_wait_of_a_queued_request_ends(void **state)
{
    (void)state;
    begin(UPSTREAM_DOWN);
    end(0, RPC_UNAVAILABLE);
    set_state(0, UPSTREAM_DOWN);
    pass(RESUME_US - TICK_US);
    assert_int_equal(played.n_done, 0);
    pass(TICK_US);
    has_ended(RPC_UNAVAILABLE);
}

static void without_a_wait_a_queued_request_ends_when_none_takes_it(void **state)
{
    (void)state;
    played.patience.resume_us = 0;
    begin(UPSTREAM_READY);
    for (unsigned i = 0; i < N; i++)
        end(i, RPC_UNAVAILABLE);
    pass(TICK_US);
    has_ended(RPC_UNAVAILABLE);
    assert_int_equal(n_streams, N);
}

/* A later prompt of a request whose first prompt has found a verifier. */
static void a_call_that_finds_no_verifier_waits_for_one(void **state)
{
    (void)state;
    for (unsigned i = 0; i < N; i++)
        set_state(i, UPSTREAM_DOWN);
    upstream_call_begin(&played.call);
    assert_int_equal(played.n_done, 0);
    set_state(2, UPSTREAM_READY);
    pass(2 * TICK_US);
    answer(2);
    has_ended(RPC_OK);
    assert_int_equal(played.n_retries, 0);
}

static void a_cancelled_call_waits_for_no_verifier(void **state)
{
    (void)state;
    for (unsigned i = 0; i < N; i++)
        set_state(i, UPSTREAM_DOWN);
    upstream_call_cancel(&played.call);
    upstream_call_begin(&played.call);
    assert_int_equal(played.n_done, 1);
}

static void the_wait_for_a_verifier_counts_as_a_wait_in_the_queue(void **state)
{
    (void)state;
    for (unsigned i = 0; i < N; i++)
        set_state(i, UPSTREAM_DOWN);
    upstream_call_begin(&played.call);
    upstream_call_expire(&played.call, now_us + 1);
    pass(TICK_US);
    assert_int_equal(played.n_done, 1);
    assert_true(played.call.overdue);
}

static void a_full_queue_is_no_reason_to_wait(void **state)
{
    (void)state;
    begin(UPSTREAM_READY);
    for (unsigned i = 0; i < N; i++)
        end(i, RPC_RESOURCE_EXHAUSTED);
    has_ended(RPC_RESOURCE_EXHAUSTED);
    assert_int_equal(played.n_full, 1);
    for (unsigned i = 0; i < N; i++)
        assert_int_equal(asked(i), 1);
}

/* Verifier 0 is the only one. */
static void is_refused_and_waits(void)
{
    set_state(1, UPSTREAM_DOWN);
    set_state(2, UPSTREAM_DOWN);
    played.waits = true;
    begin(UPSTREAM_DOWN);
    end(0, RPC_RESOURCE_EXHAUSTED);
    pass(2 * RESUME_US); // longer than a lost call would wait
    assert_int_equal(played.n_done, 0);
    assert_int_equal(asked(0), 1);
}

static void a_call_may_wait_for_a_place_in_a_queue(void **state)
{
    (void)state;
    is_refused_and_waits();
    played.may_retry = true;
    pass(TICK_US);
    assert_int_equal(asked(0), 2);
    end(0, RPC_RESOURCE_EXHAUSTED);
    assert_int_equal(played.n_full, 2);
    pass(1000000);
    assert_int_equal(asked(0), 3);
    answer(0);
    has_ended(RPC_OK);
    assert_int_equal(played.n_retries, 0); // they are not reported
}

static void a_wait_for_a_place_ends_with_the_call(void **state)
{
    (void)state;
    is_refused_and_waits();
    upstream_call_cancel(&played.call);
    pass(TICK_US);
    has_ended(RPC_RESOURCE_EXHAUSTED);
}

static void a_wait_for_a_place_has_a_limit(void **state)
{
    (void)state;
    is_refused_and_waits();
    upstream_call_expire(&played.call, now_us);
    pass(TICK_US);
    has_ended(RPC_RESOURCE_EXHAUSTED);
    assert_true(played.call.overdue);
}

/* Then it waits as long as other calls. */
static void a_call_that_waits_for_a_place_may_find_no_verifier(void **state)
{
    (void)state;
    is_refused_and_waits();
    played.may_retry = true;
    set_state(0, UPSTREAM_DOWN);
    pass(RESUME_US - TICK_US);
    assert_int_equal(played.n_done, 0);
    pass(3 * TICK_US);
    has_ended(RPC_RESOURCE_EXHAUSTED);
}

static void a_lost_call_may_wait_for_a_place(void **state)
{
    (void)state;
    played.waits = true;
    begin(UPSTREAM_DOWN);
    set_state(0, UPSTREAM_DOWN);
    end(0, RPC_UNAVAILABLE);
    set_state(0, UPSTREAM_READY);
    pass(1000000);
    end(0, RPC_RESOURCE_EXHAUSTED);
    pass(2 * RESUME_US);
    assert_int_equal(played.n_done, 0);
    played.may_retry = true;
    pass(1000000);
    answer(0);
    has_ended(RPC_OK);
}

/* One verifier is full. The other one has lost the call and works again. */
static void a_call_that_waits_for_a_place_asks_lost_verifiers_later(void **state)
{
    (void)state;
    played.waits = played.may_retry = true;
    begin(UPSTREAM_READY);
    set_state(2, UPSTREAM_DOWN);
    end(0, RPC_UNAVAILABLE);
    end(1, RPC_RESOURCE_EXHAUSTED);
    assert_int_equal(asked(0), 1);
    for (unsigned i = 0; i < 40 && !runs(0); i++) {
        pass(TICK_US);
        if (runs(1))
            end(1, RPC_RESOURCE_EXHAUSTED);
    }
    answer(0);
    has_ended(RPC_OK);
}

/* One verifier is full, and the other one loses each call. */
/* The answer has lost verifier 0; 1 begins it and ends it each time it is asked. */
static void begin_in_vain(void)
{
    played.waits = played.may_retry = true;
    begin(UPSTREAM_READY);
    set_state(2, UPSTREAM_DOWN);
    start(0);
    set_state(0, UPSTREAM_DOWN);
    end(0, RPC_UNAVAILABLE);
}

static void end_in_vain(void)
{
    if (runs(1)) {
        start(1);
        end(1, RPC_RESOURCE_EXHAUSTED);
    }
    pass(TICK_US);
}

static void an_answer_leaves_a_verifier_that_begins_it_in_vain(void **state)
{
    (void)state;
    begin_in_vain();
    while (now_us < 2000000)
        end_in_vain();
    set_state(0, UPSTREAM_READY);
    atomic_fetch_add(&played.u.verifiers[0].n_requests, 5); // so 1 is asked first
    while (!runs(0)) {
        assert_int_equal(played.n_done, 0);
        end_in_vain();
    }
    atomic_fetch_sub(&played.u.verifiers[0].n_requests, 5);
    answer(0);
    has_ended(RPC_OK);
}

static void an_answer_is_not_begun_in_vain_for_ever(void **state)
{
    (void)state;
    begin_in_vain();
    while (!played.n_done) {
        assert_true(asked(1) < 10);
        end_in_vain();
    }
    has_ended(RPC_RESOURCE_EXHAUSTED);
}

static void a_verifier_that_loses_all_calls_ends_none_that_waits(void **state)
{
    (void)state;
    played.waits = played.may_retry = true;
    begin(UPSTREAM_READY);
    set_state(2, UPSTREAM_DOWN);
    end(0, RPC_UNAVAILABLE);
    for (unsigned i = 0; i < 100; i++) {
        if (runs(0))
            end(0, RPC_UNAVAILABLE);
        else if (runs(1))
            end(1, RPC_RESOURCE_EXHAUSTED);
        pass(TICK_US);
        assert_int_equal(played.n_done, 0);
    }
    assert_true(asked(0) > 5);
    while (!runs(1)) {
        if (runs(0))
            end(0, RPC_UNAVAILABLE);
        pass(TICK_US);
    }
    answer(1);
    has_ended(RPC_OK);
}

static void a_call_that_waits_for_a_place_may_lose_its_verifier(void **state)
{
    (void)state;
    is_refused_and_waits();
    played.may_retry = true;
    pass(TICK_US);
    set_state(0, UPSTREAM_DOWN);
    end(0, RPC_UNAVAILABLE);
    pass(RESUME_US + 2 * TICK_US);
    has_ended(RPC_UNAVAILABLE);
}

static void a_lost_request_waits_while_the_other_verifiers_are_full(void **state)
{
    (void)state;
    begin(UPSTREAM_READY);
    set_state(2, UPSTREAM_DOWN);
    set_state(0, UPSTREAM_DOWN);
    end(0, RPC_UNAVAILABLE);
    end(1, RPC_RESOURCE_EXHAUSTED);
    assert_int_equal(played.n_done, 0);
    set_state(1, UPSTREAM_DOWN);
    set_state(0, UPSTREAM_READY);
    pass(1000000);
    answer(0);
    has_ended(RPC_OK);
}

/* The other one was asked before the loss. */
static void a_drained_request_waits_while_the_other_verifiers_are_full(void **state)
{
    (void)state;
    begin(UPSTREAM_READY);
    set_state(2, UPSTREAM_DOWN);
    set_state(0, UPSTREAM_DRAINING);
    pass(TICK_US);
    assert_true(runs(1));
    end(0, RPC_UNAVAILABLE);
    set_state(0, UPSTREAM_DOWN);
    end(1, RPC_RESOURCE_EXHAUSTED);
    assert_int_equal(played.n_done, 0);
    set_state(1, UPSTREAM_DOWN);
    set_state(0, UPSTREAM_READY);
    pass(1000000);
    answer(0);
    has_ended(RPC_OK);
}

static void an_error_of_the_request_is_final(void **state)
{
    (void)state;
    begin(UPSTREAM_READY);
    end(0, RPC_INVALID_ARGUMENT);
    has_ended(RPC_INVALID_ARGUMENT);
    assert_int_equal(n_streams, 1);
}

/* The silent one has not checked it. */
static void a_second_verifier_refuses_a_request_whose_verifier_is_silent(void **state)
{
    static const enum rpc_code codes[] = {RPC_INVALID_ARGUMENT, RPC_OUT_OF_RANGE};
    for (unsigned i = 0; i < ARRAY_LEN(codes); i++) {
        begin(UPSTREAM_READY);
        set_state(0, UPSTREAM_DOWN);
        pass(STALL_US + 2 * TICK_US);
        end(1, codes[i]);
        has_ended(codes[i]);
        assert_int_equal(n_streams, 2);
        if (i + 1 < ARRAY_LEN(codes)) {
            end_test(state);
            begin_test(state);
        }
    }
}

/* It has accepted the request; the second one has other limits. */
static void a_verifier_that_drains_may_answer_what_a_second_one_refuses(void **state)
{
    for (unsigned lost = 0; lost < 2; lost++) {
        begin(UPSTREAM_READY);
        set_state(2, UPSTREAM_DOWN);
        set_state(0, UPSTREAM_DRAINING);
        pass(TICK_US);
        end(1, RPC_OUT_OF_RANGE);
        pass(2000000);
        assert_int_equal(asked(1), 1);
        if (!lost) {
            answer(0);
            has_ended(RPC_OK);
            end_test(state);
            begin_test(state);
            continue;
        }
        end(0, RPC_UNAVAILABLE);
        set_state(0, UPSTREAM_DOWN);
        pass(2000000);
        end(1, RPC_OUT_OF_RANGE); // now it is the only one
        has_ended(RPC_OUT_OF_RANGE);
    }
}

/* As often as verifiers are restarted, one after the other. */
static void a_queued_request_moves_from_each_verifier_that_drains(void **state)
{
    (void)state;
    begin(UPSTREAM_READY);
    for (unsigned i = 0; i < 3 * N; i++) {
        unsigned from = i % N, to = (i + 1) % N;
        set_state((i + 2) % N, UPSTREAM_DOWN);
        set_state(to, UPSTREAM_READY);
        set_state(from, UPSTREAM_DRAINING);
        pass(1000000);
        assert_true(runs(to));
        end(from, RPC_UNAVAILABLE);
    }
    answer(0);
    has_ended(RPC_OK);
    assert_int_equal(played.n_retries, 3 * N);
}

static void a_request_that_ends_its_verifiers_does_not_end_all(void **state)
{
    (void)state;
    begin(UPSTREAM_DOWN);
    for (unsigned i = 0; i < 4; i++) {
        end(0, RPC_UNAVAILABLE);
        pass(1000000);
    }
    end(0, RPC_UNAVAILABLE);
    has_ended(RPC_UNAVAILABLE);
    assert_int_equal(asked(0), 5);
}

/* The first refuses it, the second hangs. */
static void a_request_leaves_a_second_verifier_that_is_silent(void **state)
{
    static const enum rpc_code codes[] = {RPC_UNAVAILABLE, RPC_RESOURCE_EXHAUSTED};
    for (unsigned i = 0; i < ARRAY_LEN(codes); i++) {
        begin(UPSTREAM_READY);
        end(0, codes[i]);
        set_state(0, UPSTREAM_DOWN);
        set_state(1, UPSTREAM_DOWN);
        pass(STALL_US + 2 * TICK_US);
        answer(2);
        has_ended(RPC_OK);
        assert_int_equal(played.n_retries, 2);
        if (i + 1 < ARRAY_LEN(codes)) {
            end_test(state);
            begin_test(state);
        }
    }
}

static void a_request_that_waits_can_be_cancelled(void **state)
{
    (void)state;
    begin(UPSTREAM_DOWN);
    end(0, RPC_UNAVAILABLE);
    set_state(0, UPSTREAM_DOWN);
    upstream_call_cancel(&played.call);
    pass(TICK_US);
    assert_int_equal(played.n_done, 1);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, begin_test, end_test)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_continuation_has_seed_and_limit_of_the_first_verifier),
        TEST(a_lost_answer_is_not_asked_of_a_verifier_that_lost_it_before),
        TEST(an_answer_leaves_a_verifier_whose_token_does_not_exist),
        TEST(a_verifier_that_sends_too_many_tokens_is_left),
        TEST(a_verifier_with_an_impossible_prompt_is_left),
        TEST(a_verifier_with_an_impossible_limit_is_left),
        TEST(a_continuation_leaves_a_second_verifier_that_is_silent),
        TEST(a_verifier_that_cannot_continue_an_answer_is_asked_once),
        TEST(other_errors_of_a_verifier_are_no_reason_to_ask_it_no_more),
        TEST(a_cancelled_continuation_ends_immediately),
        TEST(a_lost_answer_ends_after_the_wait),
        TEST(an_answer_whose_end_has_arrived_needs_no_verifier),
        TEST(a_bad_first_event_of_the_next_verifier_costs_nothing),
        TEST(an_inexact_answer_stays_at_a_verifier_that_still_sends_it),
        TEST(a_queued_request_waits_for_its_verifier),
        TEST(the_wait_of_a_queued_request_ends),
        TEST(without_a_wait_a_queued_request_ends_when_none_takes_it),
        TEST(a_call_that_finds_no_verifier_waits_for_one),
        TEST(a_cancelled_call_waits_for_no_verifier),
        TEST(the_wait_for_a_verifier_counts_as_a_wait_in_the_queue),
        TEST(a_full_queue_is_no_reason_to_wait),
        TEST(a_call_may_wait_for_a_place_in_a_queue),
        TEST(a_wait_for_a_place_ends_with_the_call),
        TEST(a_wait_for_a_place_has_a_limit),
        TEST(a_call_that_waits_for_a_place_may_lose_its_verifier),
        TEST(a_call_that_waits_for_a_place_asks_lost_verifiers_later),
        TEST(a_verifier_that_loses_all_calls_ends_none_that_waits),
        TEST(an_answer_leaves_a_verifier_that_begins_it_in_vain),
        TEST(an_answer_is_not_begun_in_vain_for_ever),
        TEST(a_call_that_waits_for_a_place_may_find_no_verifier),
        TEST(a_lost_call_may_wait_for_a_place),
        TEST(a_lost_request_waits_while_the_other_verifiers_are_full),
        TEST(a_drained_request_waits_while_the_other_verifiers_are_full),
        TEST(an_error_of_the_request_is_final),
        TEST(a_second_verifier_refuses_a_request_whose_verifier_is_silent),
        TEST(a_verifier_that_drains_may_answer_what_a_second_one_refuses),
        TEST(a_queued_request_moves_from_each_verifier_that_drains),
        TEST(a_request_that_ends_its_verifiers_does_not_end_all),
        TEST(a_request_leaves_a_second_verifier_that_is_silent),
        TEST(a_request_that_waits_can_be_cancelled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
