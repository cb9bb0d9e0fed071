/* test_upstream_call_legs.c - one Generate call and its verifiers: tries, losses, drains, cancels.
 * The streams and the clock are fakes (--wrap); the choice of a verifier is the real one. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/mem.h"
#include "gateway/upstream/upstream_call.h"
#include "gateway/upstream/upstream_impl.h"
#include "lib/lib.h"

#define N 5
#define MS INT64_C(1000)
#define S (1000 * MS)

/* ---- fakes ---- */

struct rpc_stream {
    const struct rpc_events *events;
    void *user;
    unsigned verifier;
    bool closed, cancelled, freed, paused;
    struct rpc_msg *request;
};

static struct upstream u;
static struct { // as a snapshot of upstream.c
    struct upstream_model model;
    atomic_uint n_refs;
    void *unused;
} snapshots[N];
static Tandem__V1__ModelInfo infos[N];
static struct rpc_stream streams[32];
static unsigned n_streams;
static int64_t now_us;

int64_t __wrap_clock_us(void);
struct rpc_stream *__wrap_rpc_stream_new(struct rpc_client *c, const char *path,
                                         const struct rpc_options *opt, const struct rpc_events *ev,
                                         void *user);
ssize_t __wrap_rpc_stream_send(struct rpc_stream *s, struct rpc_msg *msg);
void __wrap_rpc_stream_close(struct rpc_stream *s);
void __wrap_rpc_stream_cancel(struct rpc_stream *s);
void __wrap_rpc_stream_pause(struct rpc_stream *s);
void __wrap_rpc_stream_unpause(struct rpc_stream *s);
void __wrap_rpc_stream_free(struct rpc_stream *s);

int64_t __wrap_clock_us(void)
{
    return now_us;
}

struct rpc_stream *__wrap_rpc_stream_new(struct rpc_client *c, const char *path,
                                         const struct rpc_options *opt, const struct rpc_events *ev,
                                         void *user)
{
    assert_string_equal(path, "/tandem.v1.Verifier/Generate");
    assert_null(opt);
    assert_true(n_streams < ARRAY_LEN(streams));
    struct rpc_stream *s = &streams[n_streams++];
    *s = (struct rpc_stream){.events = ev, .user = user};
    s->verifier = (unsigned)((uintptr_t)c - 1); // see play_begin()
    return s;
}

ssize_t __wrap_rpc_stream_send(struct rpc_stream *s, struct rpc_msg *msg)
{
    assert_null(s->request);
    s->request = msg;
    return 0;
}

void __wrap_rpc_stream_close(struct rpc_stream *s)
{
    s->closed = true;
}

void __wrap_rpc_stream_cancel(struct rpc_stream *s)
{
    assert_false(s->freed);
    s->cancelled = true;
}

void __wrap_rpc_stream_pause(struct rpc_stream *s)
{
    s->paused = true;
}

void __wrap_rpc_stream_unpause(struct rpc_stream *s)
{
    s->paused = false;
}

void __wrap_rpc_stream_free(struct rpc_stream *s)
{
    assert_false(s->freed);
    assert_true(s->closed);
    s->freed = true;
}

/* ---- a call, and what its owner hears: one letter or line for each callback ---- */

static struct upstream_call call;
static struct upstream_patience patience;
static char heard[1024];
static bool may_hold;

static void hear(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void hear(const char *format, ...)
{
    va_list args;
    size_t n = strlen(heard);
    va_start(args, format);
    vsnprintf(heard + n, sizeof(heard) - n, format, args);
    va_end(args);
}

static void on_event(struct upstream_call *a, const Tandem__V1__GenerateEvent *e)
{
    assert_ptr_equal(a, &call);
    if (e->event_case == TANDEM__V1__GENERATE_EVENT__EVENT_STARTED)
        hear("started%u ", e->choice);
    else if (e->event_case == TANDEM__V1__GENERATE_EVENT__EVENT_FINISHED)
        hear("finished%u ", e->choice);
    else
        for (size_t i = 0; i < e->run->n_tokens; i++)
            hear("%u ", e->run->tokens[i]->id);
}

static void on_retry(struct upstream_call *a, const char *from, const char *to, const char *why)
{
    (void)a;
    hear("retry(%s>%s: %s) ", from, to, why);
}

static void on_resume(struct upstream_call *a, const char *from, const char *to, const char *why)
{
    (void)a;
    hear("resume(%s>%s: %s) ", from, to, why);
}

static bool on_hold(struct upstream_call *a, size_t bytes)
{
    (void)a;
    assert_true(bytes > 0);
    return may_hold;
}

static void on_lost_ids(struct upstream_call *a)
{
    (void)a;
    hear("lost_ids ");
}

static bool on_full(struct upstream_call *a)
{
    (void)a;
    return false;
}

static void on_done(struct upstream_call *a)
{
    (void)a;
    hear("done");
}

/* Compares what was heard since the last call. */
static void hears(const char *want)
{
    assert_string_equal(heard, want);
    *heard = 0;
}

/* Verifiers "0" to "4" are ready; a call for n choices that nobody was asked yet. */
static void play(unsigned n_verifiers, unsigned n)
{
    static const struct upstream_call_events events = {on_event,    on_retry, on_resume, on_hold,
                                                       on_lost_ids, on_full,  on_full,   on_done};
    static char targets[N][2];
    Tandem__V1__GenerateRequest request = TANDEM__V1__GENERATE_REQUEST__INIT;
    u = (struct upstream){.n = n_verifiers};
    pthread_mutex_init(&u.mu, NULL);
    clock_cond_init(&u.changed);
    assert_int_equal(affinity_new(&u.affinity), 0);
    for (unsigned i = 0; i < N; i++) {
        tandem__v1__model_info__init(&infos[i]);
        infos[i].name = rpc_text("model");
        infos[i].fingerprint = rpc_text("fp");
        infos[i].continues = true;
        infos[i].n_vocab = 1000;
        snapshots[i].model.info = &infos[i];
        atomic_init(&snapshots[i].n_refs, 1);
        snprintf(targets[i], sizeof(targets[i]), "%u", i);
        u.verifiers[i] = (struct verifier){.u = &u,
                                           .target = targets[i],
                                           .client = (struct rpc_client *)(uintptr_t)(i + 1),
                                           .state = UPSTREAM_READY,
                                           .model = &snapshots[i].model,
                                           .query_at_us = 1};
        atomic_init(&u.verifiers[i].n_requests, i); // so "0" is chosen first
    }
    n_streams = 0;
    now_us = 1000 * S;
    *heard = 0;
    may_hold = true;
    patience = (struct upstream_patience){.stall_us = 5 * S, .resume_us = 10 * S};
    call = (struct upstream_call){.events = &events,
                                  .upstream = &u,
                                  .model = &snapshots[0].model,
                                  .patience = &patience,
                                  .exact = true,
                                  .max_tokens = UINT32_MAX};
    request.id = rpc_text("r1");
    call.request = rpc_pack(&request.base);
    call.prompt = calloc(1, sizeof(*call.prompt));
    assert_int_equal(upstream_call_init(&call, n), 0);
}

static void play_begin(unsigned n_verifiers, unsigned n)
{
    play(n_verifiers, n);
    upstream_call_begin(&call);
    assert_int_equal(n_streams, 1);
    assert_int_equal(streams[0].verifier, 0);
    hears("");
}

static void message(unsigned i, const Tandem__V1__GenerateEvent *e)
{
    struct rpc_msg *msg = rpc_pack(&e->base);
    streams[i].events->on_message(streams[i].user, msg);
    rpc_msg_free(msg);
}

static void started(unsigned i, unsigned choice, int64_t seed)
{
    Tandem__V1__GenerateEvent e = TANDEM__V1__GENERATE_EVENT__INIT;
    Tandem__V1__Started s = TANDEM__V1__STARTED__INIT;
    e.choice = choice;
    e.event_case = TANDEM__V1__GENERATE_EVENT__EVENT_STARTED;
    e.started = &s;
    s.seed = seed;
    message(i, &e);
}

/* Tokens first, first + 1, ... */
static void run(unsigned i, unsigned choice, unsigned first, unsigned n)
{
    Tandem__V1__GenerateEvent e = TANDEM__V1__GENERATE_EVENT__INIT;
    Tandem__V1__TokenRun r = TANDEM__V1__TOKEN_RUN__INIT;
    Tandem__V1__Token tokens[8], *list[8];
    for (unsigned k = 0; k < n; k++) {
        tandem__v1__token__init(&tokens[k]);
        tokens[k].id = first + k;
        list[k] = &tokens[k];
    }
    e.choice = choice;
    e.event_case = TANDEM__V1__GENERATE_EVENT__EVENT_RUN;
    e.run = &r;
    r.n_tokens = n;
    r.tokens = list;
    r.round = 1;
    message(i, &e);
}

static void finished(unsigned i, unsigned choice)
{
    Tandem__V1__GenerateEvent e = TANDEM__V1__GENERATE_EVENT__INIT;
    Tandem__V1__Finished f = TANDEM__V1__FINISHED__INIT;
    e.choice = choice;
    e.event_case = TANDEM__V1__GENERATE_EVENT__EVENT_FINISHED;
    e.finished = &f;
    message(i, &e);
}

static void ends(unsigned i, enum rpc_code code)
{
    struct rpc_status status = {.code = code, .text = "as you asked"};
    streams[i].events->on_end(streams[i].user, &status);
    assert_true(streams[i].freed);
}

static void tick_after(int64_t us)
{
    now_us += us;
    upstream_call_tick(&call, now_us);
}

/* The call is done; all that it held is released. */
static void play_end(void)
{
    assert_true(call.done);
    for (unsigned i = 0; i < n_streams; i++) {
        assert_true(streams[i].freed);
        rpc_msg_free(streams[i].request);
    }
    upstream_call_done(&call);
    for (unsigned i = 0; i < N; i++) {
        assert_int_equal(atomic_load(&u.verifiers[i].n_requests), i);
        assert_int_equal(atomic_load(&snapshots[i].n_refs), 1);
    }
    affinity_free(u.affinity);
    pthread_cond_destroy(&u.changed);
    pthread_mutex_destroy(&u.mu);
}

/* The request that a verifier got; free it. */
static Tandem__V1__GenerateRequest *request_of(unsigned i)
{
    ProtobufCMessage *m = rpc_unpack(&tandem__v1__generate_request__descriptor, streams[i].request);
    assert_non_null(m);
    return (Tandem__V1__GenerateRequest *)m;
}

/* ---- one verifier ---- */

static void each_event_is_heard_once(void **state)
{
    (void)state;
    play_begin(1, 2);
    assert_int_equal(atomic_load(&u.verifiers[0].n_requests), 1);
    started(0, 0, 7);
    started(0, 1, 8);
    assert_int_equal(call.committed.seed, 7);
    assert_null(call.prompt);
    run(0, 0, 10, 2);
    run(0, 1, 20, 1);
    run(0, 1, 0, 0); // nothing new
    finished(0, 0);
    finished(0, 0);
    run(0, 0, 30, 1); // after its end
    Tandem__V1__GenerateEvent newer = TANDEM__V1__GENERATE_EVENT__INIT;
    message(0, &newer);
    finished(0, 1);
    hears("started0 started1 10 11 20 finished0 finished1 ");
    ends(0, RPC_OK);
    hears("done");
    assert_int_equal(call.status.code, RPC_OK);
    assert_false(call.malformed);
    assert_int_equal(u.verifiers[0].query_at_us, 1); // not suspected
    play_end();
}

static void the_owner_may_choose_the_first_verifier(void **state)
{
    (void)state;
    play(3, 1);
    call.verifier = &u.verifiers[2];
    atomic_fetch_add(&u.verifiers[2].n_requests, 1);
    upstream_call_begin(&call);
    assert_int_equal(streams[0].verifier, 2);
    ends(0, RPC_INVALID_ARGUMENT);
    hears("done");
    play_end();
}

/* 0: an event before the start; 1: another choice; 2: no message; 3: other tokens than before. */
/* A run of n tokens, or for 0 a finished event, in a message of `len` bytes. */
static void large_event(unsigned n, size_t len)
{
    Tandem__V1__GenerateEvent e = TANDEM__V1__GENERATE_EVENT__INIT;
    Tandem__V1__TokenRun r = TANDEM__V1__TOKEN_RUN__INIT;
    Tandem__V1__Finished f = TANDEM__V1__FINISHED__INIT;
    Tandem__V1__Token token = TANDEM__V1__TOKEN__INIT;
    AUTO(mem_free) Tandem__V1__Token **list = calloc(n + 1, sizeof(*list));
    AUTO(mem_free) uint8_t *text = calloc(1, len + 1);
    for (unsigned i = 0; i < n; i++)
        list[i] = &token;
    r.n_tokens = n;
    r.tokens = list;
    e.event_case =
        n ? TANDEM__V1__GENERATE_EVENT__EVENT_RUN : TANDEM__V1__GENERATE_EVENT__EVENT_FINISHED;
    if (n)
        e.run = &r;
    else
        e.finished = &f;
    ProtobufCBinaryData *part = n ? &r.proposer : &f.text;
    *part = (ProtobufCBinaryData){len, text};
    part->len -= tandem__v1__generate_event__get_packed_size(&e) - len;
    assert_int_equal(tandem__v1__generate_event__get_packed_size(&e), len);
    message(0, &e);
}

/* Its memory is charged only once the answer has it. */
static void an_event_that_is_too_large_ends_the_call(void **state)
{
    (void)state;
    static const struct {
        unsigned n;
        size_t len;
        bool malformed;
    } v[] = {{1, UPSTREAM_CALL_EVENT_MAX, false},     {1, UPSTREAM_CALL_EVENT_MAX + 1, true},
             {0, UPSTREAM_CALL_EVENT_MAX, false},     {0, UPSTREAM_CALL_EVENT_MAX + 1, true},
             {UPSTREAM_CALL_RUN_MAX, 1 << 16, false}, {UPSTREAM_CALL_RUN_MAX + 1, 1 << 16, true}};
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        play_begin(1, 1);
        call.n_lost = 5; // it cannot move
        started(0, 0, 7);
        large_event(v[i].n, v[i].len);
        assert_int_equal(call.malformed, v[i].malformed);
        assert_int_equal(streams[0].cancelled, v[i].malformed);
        ends(0, v[i].malformed ? RPC_CANCELLED : RPC_OK);
        *heard = 0;
        play_end();
    }
}

static void an_event_that_is_not_valid_ends_a_call_that_cannot_move(void **state)
{
    (void)state;
    for (unsigned kind = 0; kind < 4; kind++) {
        play_begin(3, 1);
        call.n_lost = 5;
        if (kind == 0) {
            run(0, 0, 1, 1);
        } else if (kind == 1) {
            started(0, 1, 7);
        } else if (kind == 2) {
            struct rpc_msg *msg = rpc_msg_of("\xFF", 1);
            streams[0].events->on_message(streams[0].user, msg);
            rpc_msg_free(msg);
        } else {
            started(0, 0, 7);
            call.committed.choices[0].skip = 0;
            run(0, 0, 10, 2);
            call.committed.choices[0].skip = 2;
            run(0, 0, 10, 1);
            hears("started0 10 11 ");
            run(0, 0, 12, 1);
        }
        assert_true(call.malformed);
        assert_true(streams[0].cancelled);
        started(0, 0, 7); // too late
        hears("");
        ends(0, RPC_CANCELLED);
        hears("done");
        assert_int_equal(n_streams, 1);
        play_end();
    }
}

/* ---- before the start ---- */

static void a_request_that_has_not_begun_goes_from_one_to_the_next(void **state)
{
    (void)state;
    play_begin(4, 1);
    ends(0, RPC_UNAVAILABLE);
    assert_int_equal(u.verifiers[0].query_at_us, 0); // suspected
    hears("retry(0>1: as you asked) ");
    ends(1, RPC_RESOURCE_EXHAUSTED);
    assert_int_equal(u.verifiers[1].query_at_us, 1);
    hears("retry(1>2: as you asked) ");
    assert_int_equal(streams[2].verifier, 2);
    ends(2, RPC_UNAVAILABLE);
    hears("retry(2>3: as you asked) ");
    ends(3, RPC_INVALID_ARGUMENT);
    hears("done");
    assert_int_equal(call.status.code, RPC_INVALID_ARGUMENT);
    assert_int_equal(n_streams, 4);
    play_end();
}

static void an_error_of_the_request_is_not_asked_elsewhere(void **state)
{
    (void)state;
    static const enum rpc_code theirs[] = {RPC_INVALID_ARGUMENT, RPC_OUT_OF_RANGE, RPC_NOT_FOUND,
                                           RPC_FAILED_PRECONDITION};
    for (size_t i = 0; i < ARRAY_LEN(theirs); i++) {
        play_begin(2, 1);
        ends(0, theirs[i]);
        hears("done");
        assert_int_equal(call.status.code, theirs[i]);
        play_end();
    }
}

/* Of the verifier, not of the request. */
static const enum rpc_code other_codes[] = {RPC_OK,
                                            RPC_CANCELLED,
                                            RPC_UNKNOWN,
                                            RPC_DEADLINE_EXCEEDED,
                                            RPC_PERMISSION_DENIED,
                                            RPC_RESOURCE_EXHAUSTED,
                                            RPC_INTERNAL,
                                            RPC_UNAUTHENTICATED};

/* None is waited for. */
static void another_error_before_the_start_is_asked_elsewhere_once(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(other_codes); i++) {
        play_begin(2, 1);
        ends(0, other_codes[i]);
        hears("retry(0>1: as you asked) ");
        ends(1, other_codes[i]);
        hears("done");
        assert_int_equal(call.status.code, other_codes[i]);
        play_end();
    }
}

static void a_verifier_that_drains_keeps_the_call_until_another_begins(void **state)
{
    (void)state;
    for (unsigned winner = 0; winner < 2; winner++) {
        play_begin(2, 1);
        tick_after(0);
        assert_int_equal(n_streams, 1); // it stays
        u.verifiers[0].state = UPSTREAM_DRAINING;
        tick_after(0);
        assert_int_equal(n_streams, 2);
        hears("retry(0>1: it drains) ");
        tick_after(0);
        assert_int_equal(n_streams, 2); // one at a time
        assert_false(streams[0].cancelled);
        started(winner, 0, 7);
        hears("started0 ");
        assert_true(streams[!winner].cancelled);
        assert_false(streams[winner].cancelled);
        run(!winner, 0, 66, 1); // of the one that was left
        hears("");
        ends(!winner, RPC_CANCELLED);
        finished(winner, 0);
        ends(winner, RPC_OK);
        hears("finished0 done");
        play_end();
    }
}

/* ---- after a loss ---- */

static void begin_some(unsigned n_verifiers)
{
    play_begin(n_verifiers, 1);
    started(0, 0, 7);
    run(0, 0, 10, 3);
    hears("started0 10 11 12 ");
}

static void another_verifier_continues(void **state)
{
    (void)state;
    begin_some(3);
    ends(0, RPC_UNAVAILABLE);
    assert_int_equal(n_streams, 2);
    hears(""); // it was only asked
    Tandem__V1__GenerateRequest *m = request_of(1);
    assert_int_equal(m->id.len, 2);
    assert_int_equal(m->continuation->seed, 7);
    assert_int_equal(m->continuation->choices[0]->n_tokens, 3);
    tandem__v1__generate_request__free_unpacked(m, NULL);
    assert_int_equal(call.waiting_since_us, now_us);
    started(1, 0, 9);
    hears("resume(0>1: as you asked) ");
    assert_int_equal(call.waiting_since_us, 0);
    assert_int_equal(call.committed.seed, 7);
    run(1, 0, 13, 2);
    finished(1, 0);
    ends(1, RPC_OK);
    hears("13 14 finished0 done");
    play_end();
}

/* None can be asked: pauses of 100 ms, doubled up to 1 s; the end is exactly after resume_us. */
static void a_lost_call_waits_for_a_verifier(void **state)
{
    (void)state;
    static const int64_t pauses_ms[] = {100, 200, 400, 800, 1000, 1000};
    begin_some(2);
    u.verifiers[1].state = UPSTREAM_DOWN;
    u.verifiers[0].state = UPSTREAM_DOWN;
    int64_t lost_us = now_us;
    ends(0, RPC_UNAVAILABLE);
    for (size_t i = 0; i < ARRAY_LEN(pauses_ms); i++) {
        assert_int_equal(call.try_us - now_us, pauses_ms[i] * MS);
        tick_after(pauses_ms[i] * MS - 1);
        assert_int_equal(call.try_us, now_us + 1); // not tried
        tick_after(1);
    }
    tick_after(lost_us + 10 * S - 1 - now_us);
    hears("");
    tick_after(1);
    hears("done");
    assert_int_equal(call.status.code, RPC_UNAVAILABLE);
    play_end();
}

static void a_verifier_that_comes_back_continues(void **state)
{
    (void)state;
    begin_some(1);
    u.verifiers[0].state = UPSTREAM_DOWN;
    ends(0, RPC_UNAVAILABLE);
    u.verifiers[0].state = UPSTREAM_READY;
    tick_after(99 * MS);
    assert_int_equal(n_streams, 1);
    tick_after(MS);
    assert_int_equal(n_streams, 2);
    ends(1, RPC_INTERNAL); // an error that is the verifier's: it is asked again
    hears("");
    tick_after(200 * MS - 1);
    assert_int_equal(n_streams, 2);
    tick_after(1); // all were tried: each may be asked again
    tick_after(400 * MS);
    assert_int_equal(n_streams, 3);
    started(2, 0, 7);
    assert_int_equal(call.pause_us, 100 * MS);
    finished(2, 0);
    ends(2, RPC_OK);
    hears("resume(0>0: as you asked) finished0 done");
    play_end();
}

static void an_answer_ends_with_its_verifier(void **state)
{
    (void)state;
    for (unsigned why = 0; why < 4; why++) {
        begin_some(2);
        if (why == 0) // it may not be continued
            patience.resume_us = 0;
        else if (why == 1) // older verifiers
            infos[0].continues = infos[1].continues = false;
        else if (why == 2)
            upstream_call_cancel(&call);
        else // its ids are not kept
            may_hold = false;
        if (why == 3)
            for (unsigned i = 0; i < 20; i++)
                run(0, 0, 100, 4);
        if (why == 3) {
            assert_non_null(strstr(heard, "lost_ids "));
            assert_null(strstr(strstr(heard, "lost_ids ") + 1, "lost_ids"));
            *heard = 0;
        }
        ends(0, RPC_UNAVAILABLE);
        hears("done");
        assert_int_equal(u.verifiers[0].query_at_us, why == 2); // suspected unless cancelled
        play_end();
    }
}

static void an_answer_that_ends_early_is_continued(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(other_codes); i++) {
        begin_some(2);
        ends(0, other_codes[i]);
        started(1, 0, 7);
        hears("resume(0>1: as you asked) ");
        finished(1, 0);
        ends(1, RPC_OK);
        hears("finished0 done");
        assert_int_equal(call.status.code, RPC_OK);
        play_end();
    }
}

static void an_answer_that_loses_five_verifiers_ends(void **state)
{
    (void)state;
    begin_some(5);
    for (unsigned i = 0; i < 4; i++) {
        ends(i, RPC_UNAVAILABLE);
        assert_int_equal(n_streams, i + 2);
        started(i + 1, 0, 7);
        assert_non_null(strstr(heard, "resume("));
        *heard = 0;
    }
    ends(4, RPC_UNAVAILABLE);
    hears("done");
    play_end();
}

/* The first runs on while the second is asked; its tokens come again. */
static void tokens_meanwhile_come_once(void **state)
{
    (void)state;
    begin_some(2);
    u.verifiers[0].state = UPSTREAM_DOWN;
    u.verifiers[0].answered_us = now_us - 5 * S;
    tick_after(0);
    assert_int_equal(n_streams, 1); // silent for 5 s, not for more
    tick_after(1);
    assert_int_equal(n_streams, 2);
    run(0, 0, 13, 2);
    hears("13 14 ");
    started(1, 0, 7);
    hears("resume(0>1: it is silent) ");
    assert_true(streams[0].cancelled);
    run(1, 0, 13, 3);
    hears("15 ");
    ends(0, RPC_CANCELLED);
    finished(1, 0);
    ends(1, RPC_OK);
    hears("finished0 done");
    play_end();
}

static void a_drain_moves_only_answers_that_keep_their_bits(void **state)
{
    (void)state;
    for (unsigned exact = 0; exact < 2; exact++) {
        begin_some(2);
        call.exact = exact;
        u.verifiers[0].state = UPSTREAM_DRAINING;
        tick_after(0);
        assert_int_equal(n_streams, 1 + exact);
        upstream_call_cancel(&call);
        for (unsigned i = n_streams; i-- > 0;) {
            assert_true(streams[i].cancelled);
            ends(i, RPC_CANCELLED);
        }
        hears("done");
        play_end();
    }
}

/* The next one was asked because of a drain; it has queued the answer. */
static void an_answer_waits_from_the_loss_of_its_verifier(void **state)
{
    (void)state;
    begin_some(2);
    u.verifiers[0].state = UPSTREAM_DRAINING;
    tick_after(0);
    assert_int_equal(n_streams, 2);
    now_us += 60 * S;
    upstream_call_expire(&call, now_us);
    assert_false(call.overdue); // the first one still runs it
    ends(0, RPC_UNAVAILABLE);
    upstream_call_expire(&call, now_us);
    assert_false(call.overdue);
    upstream_call_expire(&call, now_us + 1);
    assert_true(call.overdue);
    assert_true(streams[1].cancelled);
    ends(1, RPC_CANCELLED);
    hears("done");
    play_end();
}

/* The next one is silent before it begins: it is left, and the next tick asks again. */
static void a_silent_verifier_does_not_take_over(void **state)
{
    (void)state;
    begin_some(3);
    u.verifiers[0].state = UPSTREAM_DOWN;
    ends(0, RPC_UNAVAILABLE);
    assert_int_equal(streams[1].verifier, 1);
    u.verifiers[1].state = UPSTREAM_DOWN;
    u.verifiers[1].answered_us = now_us - 5 * S;
    tick_after(0);
    assert_false(streams[1].cancelled);
    tick_after(1);
    assert_true(streams[1].cancelled);
    ends(1, RPC_CANCELLED);
    tick_after(100 * MS - 1);
    assert_int_equal(n_streams, 2);
    tick_after(1);
    assert_int_equal(n_streams, 3);
    assert_int_equal(streams[2].verifier, 2); // each is tried once
    started(2, 0, 7);
    finished(2, 0);
    ends(2, RPC_OK);
    hears("resume(0>2: as you asked) finished0 done");
    play_end();
}

/* Other bits could follow these tokens, so the first one keeps the call. */
static void tokens_meanwhile_keep_an_answer_that_may_differ(void **state)
{
    (void)state;
    begin_some(2);
    call.exact = false;
    u.verifiers[0].state = UPSTREAM_DOWN;
    tick_after(5 * S + 1);
    assert_int_equal(n_streams, 2);
    run(0, 0, 13, 2);
    started(1, 0, 7);
    assert_true(streams[1].cancelled);
    assert_false(streams[0].cancelled);
    run(1, 0, 66, 1); // of the one that was left
    ends(1, RPC_CANCELLED);
    run(0, 0, 15, 1);
    finished(0, 0);
    ends(0, RPC_OK);
    hears("13 14 15 finished0 done");
    play_end();
}

static void a_call_that_ends_leaves_the_next_verifier(void **state)
{
    (void)state;
    begin_some(2);
    u.verifiers[0].state = UPSTREAM_DRAINING;
    tick_after(0);
    assert_int_equal(n_streams, 2);
    finished(0, 0);
    ends(0, RPC_OK);
    assert_true(streams[1].cancelled);
    hears("finished0 ");
    ends(1, RPC_CANCELLED);
    hears("done");
    play_end();
}

/* Each choice starts once. A verifier could otherwise keep the call for ever. */
static void a_start_too_many_is_not_valid(void **state)
{
    (void)state;
    play_begin(2, 2);
    started(0, 0, 7);
    started(0, 1, 7);
    assert_int_equal(n_streams, 1);
    started(0, 1, 7);
    assert_int_equal(n_streams, 2);
    assert_true(streams[0].cancelled);
    ends(0, RPC_CANCELLED);
    started(1, 0, 7);
    started(1, 1, 7);
    finished(1, 0);
    finished(1, 1);
    ends(1, RPC_OK);
    assert_int_equal(call.status.code, RPC_OK);
    assert_false(call.malformed);
    play_end();
}

static void the_error_of_the_last_verifier_counts_after_one_that_sent_nonsense(void **state)
{
    static const enum rpc_code codes[] = {RPC_INVALID_ARGUMENT, RPC_RESOURCE_EXHAUSTED};
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(codes); i++) {
        play_begin(2, 1);
        run(0, 0, 13, 1); // it has not started
        assert_true(call.malformed);
        ends(0, RPC_CANCELLED);
        u.verifiers[0].state = UPSTREAM_DOWN;
        ends(1, codes[i]);
        tick_after(10 * S);
        hears("retry(0>1: the verifier's answer is malformed) done");
        assert_int_equal(call.status.code, codes[i]);
        assert_false(call.malformed);
        play_end();
    }
}

/* Only an error before the start is the request's. */
static void an_answer_survives_any_error_of_its_verifier(void **state)
{
    static const enum rpc_code codes[] = {RPC_INVALID_ARGUMENT, RPC_OUT_OF_RANGE, RPC_NOT_FOUND,
                                          RPC_FAILED_PRECONDITION};
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(codes); i++) {
        begin_some(2);
        ends(0, codes[i]);
        started(1, 0, 7);
        finished(1, 0);
        ends(1, RPC_OK);
        assert_int_equal(call.status.code, RPC_OK);
        play_end();
    }
}

static void a_call_whose_verifier_sends_nonsense_ends_if_none_continues(void **state)
{
    (void)state;
    begin_some(1);
    run(0, 1, 13, 1); // there is no such choice
    u.verifiers[0].state = UPSTREAM_DOWN;
    ends(0, RPC_CANCELLED);
    hears("");
    tick_after(10 * S);
    hears("done");
    assert_int_equal(call.status.code, RPC_UNAVAILABLE);
    assert_true(call.malformed);
    play_end();
}

static void nonsense_after_the_end_of_an_answer_costs_nothing(void **state)
{
    (void)state;
    begin_some(2);
    finished(0, 0);
    hears("finished0 ");
    run(0, 1, 13, 1); // there is no such choice
    ends(0, RPC_CANCELLED);
    hears("done");
    assert_int_equal(call.status.code, RPC_OK);
    assert_false(call.malformed);
    assert_int_equal(n_streams, 1);
    play_end();
}

/* The next one was asked to continue from an earlier token. */
static void a_call_moves_to_the_next_verifier_after_an_event_that_is_not_valid(void **state)
{
    (void)state;
    begin_some(2);
    u.verifiers[0].state = UPSTREAM_DRAINING;
    tick_after(0);
    run(0, 0, 13, 1);
    hears("13 ");
    run(0, 1, 14, 1); // there is no such choice
    assert_true(streams[0].cancelled);
    ends(0, RPC_CANCELLED);
    started(1, 0, 7);
    assert_false(call.malformed);
    run(1, 0, 13, 2);
    finished(1, 0);
    ends(1, RPC_OK);
    hears("resume(0>1: the verifier's answer is malformed) 14 finished0 done");
    assert_int_equal(call.status.code, RPC_OK);
    play_end();
}

/* One that was left and has not ended yet holds its place. */
static void a_call_has_three_streams_at_most(void **state)
{
    (void)state;
    begin_some(5);
    for (unsigned i = 0; i < 2; i++) {
        u.verifiers[i].state = UPSTREAM_DRAINING;
        tick_after(i * 100 * MS);
    }
    started(1, 0, 7);
    tick_after(100 * MS);
    assert_int_equal(n_streams, 3);
    u.verifiers[2].state = UPSTREAM_DOWN; // it is silent before it begins
    tick_after(6 * S);
    assert_true(streams[0].cancelled && streams[2].cancelled);
    hears("resume(0>1: it drains) ");
    tick_after(6 * S);
    assert_int_equal(n_streams, 3);
    ends(0, RPC_CANCELLED);
    tick_after(6 * S);
    assert_int_equal(n_streams, 4);
    ends(2, RPC_CANCELLED);
    finished(1, 0);
    ends(1, RPC_OK);
    ends(3, RPC_CANCELLED);
    hears("finished0 done");
    play_end();
}

/* ---- the owner ---- */

static void a_cancel_ends_all_legs(void **state)
{
    (void)state;
    play_begin(2, 1);
    upstream_call_cancel(&call);
    assert_true(streams[0].cancelled);
    ends(0, RPC_CANCELLED);
    hears("done");
    assert_int_equal(n_streams, 1);
    upstream_call_cancel(&call); // no effect
    play_end();
    play(2, 1);
    upstream_call_cancel(&call); // before it is sent
    upstream_call_begin(&call);
    assert_true(streams[0].cancelled);
    ends(0, RPC_UNAVAILABLE);
    hears("done");
    assert_int_equal(n_streams, 1);
    play_end();
}

static void a_cancel_ends_the_wait_for_a_verifier(void **state)
{
    (void)state;
    begin_some(1);
    u.verifiers[0].state = UPSTREAM_DOWN;
    ends(0, RPC_UNAVAILABLE);
    upstream_call_cancel(&call);
    tick_after(0);
    hears("done");
    play_end();
}

static void only_a_call_that_waits_expires(void **state)
{
    (void)state;
    play_begin(1, 1);
    upstream_call_expire(&call, now_us);
    assert_false(call.overdue);
    upstream_call_expire(&call, now_us + 1);
    assert_true(call.overdue);
    assert_true(streams[0].cancelled);
    ends(0, RPC_CANCELLED);
    hears("done");
    play_end();
    play_begin(1, 1);
    upstream_call_cancel(&call);
    upstream_call_expire(&call, now_us + 1);
    assert_false(call.overdue); // its client is gone
    ends(0, RPC_CANCELLED);
    play_end();
    begin_some(1);
    upstream_call_expire(&call, now_us + 1000 * S);
    assert_false(call.overdue);
    finished(0, 0);
    ends(0, RPC_OK);
    play_end();
}

static void a_pause_reaches_the_verifiers(void **state)
{
    (void)state;
    begin_some(2);
    upstream_call_pause(&call);
    assert_true(streams[0].paused);
    upstream_call_unpause(&call);
    assert_false(streams[0].paused);
    upstream_call_cancel(&call);
    upstream_call_pause(&call); // its end must come
    assert_false(streams[0].paused);
    ends(0, RPC_CANCELLED);
    upstream_call_pause(&call);
    upstream_call_unpause(&call);
    play_end();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_event_is_heard_once),
        cmocka_unit_test(the_owner_may_choose_the_first_verifier),
        cmocka_unit_test(an_event_that_is_too_large_ends_the_call),
        cmocka_unit_test(an_event_that_is_not_valid_ends_a_call_that_cannot_move),
        cmocka_unit_test(a_request_that_has_not_begun_goes_from_one_to_the_next),
        cmocka_unit_test(an_error_of_the_request_is_not_asked_elsewhere),
        cmocka_unit_test(another_error_before_the_start_is_asked_elsewhere_once),
        cmocka_unit_test(a_verifier_that_drains_keeps_the_call_until_another_begins),
        cmocka_unit_test(another_verifier_continues),
        cmocka_unit_test(a_lost_call_waits_for_a_verifier),
        cmocka_unit_test(a_verifier_that_comes_back_continues),
        cmocka_unit_test(an_answer_ends_with_its_verifier),
        cmocka_unit_test(an_answer_that_ends_early_is_continued),
        cmocka_unit_test(an_answer_that_loses_five_verifiers_ends),
        cmocka_unit_test(tokens_meanwhile_come_once),
        cmocka_unit_test(a_drain_moves_only_answers_that_keep_their_bits),
        cmocka_unit_test(an_answer_waits_from_the_loss_of_its_verifier),
        cmocka_unit_test(a_silent_verifier_does_not_take_over),
        cmocka_unit_test(tokens_meanwhile_keep_an_answer_that_may_differ),
        cmocka_unit_test(a_call_that_ends_leaves_the_next_verifier),
        cmocka_unit_test(a_call_moves_to_the_next_verifier_after_an_event_that_is_not_valid),
        cmocka_unit_test(a_start_too_many_is_not_valid),
        cmocka_unit_test(the_error_of_the_last_verifier_counts_after_one_that_sent_nonsense),
        cmocka_unit_test(an_answer_survives_any_error_of_its_verifier),
        cmocka_unit_test(a_call_whose_verifier_sends_nonsense_ends_if_none_continues),
        cmocka_unit_test(nonsense_after_the_end_of_an_answer_costs_nothing),
        cmocka_unit_test(a_call_has_three_streams_at_most),
        cmocka_unit_test(a_cancel_ends_all_legs),
        cmocka_unit_test(a_cancel_ends_the_wait_for_a_verifier),
        cmocka_unit_test(only_a_call_that_waits_expires),
        cmocka_unit_test(a_pause_reaches_the_verifiers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
