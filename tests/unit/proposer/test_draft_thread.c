/* test_draft_thread.c - the thread takes all waiting Rounds, and its queue is bounded. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <tandem/v1/proposer.pb-c.h>
#include "base/clock.h"
#include "base/rng.h"
#include "lib/fakes/failing.h"
#include "lib/rigs/rpc_rig.h"
#include "proposer-svc/draft_thread.h"

#define TOKEN_OPEN 13 // a context that ends with it gets no draft

/* ---- a proposer whose draft() waits for the test ---- */

static struct {
    int drafts;          // calls of draft()
    int works;           // calls of work()
    uint32_t n_asks[64]; // of each call of draft()
    int answers, fails;
    uint64_t answered[8]; // streams, in the order of their answers
    int err;              // of the last failure
    char text[FAIL_TEXT_MAX];
} seen;
static atomic_bool is_held;
static sem_t may_draft;
static int n_work; // calls of work() that return true

static void stub_seq_done(void *shared, void *seq, const struct prop_context *c)
{
    (void)shared;
    (void)seq;
    (void)c;
}

static void stub_cut(void *shared, void *seq, const struct prop_context *c, uint32_t keep)
{
    (void)shared;
    (void)seq;
    (void)c;
    (void)keep;
}

static int stub_grow(void *shared, void *seq, const struct prop_context *c)
{
    (void)shared;
    (void)seq;
    (void)c;
    return 0;
}

static void stub_draft(void *shared, struct prop_ask *const *asks, uint32_t n)
{
    (void)shared;
    bool waits = is_held; // before the test sees that this draft has begun, and releases it
    if (seen.drafts < (int)ARRAY_LEN(seen.n_asks))
        seen.n_asks[seen.drafts] = n;
    rpc_rig_bump(&seen.drafts);
    if (waits)
        sem_wait(&may_draft);
    for (uint32_t i = 0; i < n; i++) {
        if (asks[i]->context.tokens[asks[i]->context.n - 1] == TOKEN_OPEN)
            continue;
        asks[i]->to->n = 1;
        asks[i]->to->tokens[0] = 5;
        asks[i]->to->survival[0] = 1;
        asks[i]->to->tree = false;
        asks[i]->to->q_mode = DRAFT_POINT;
        asks[i]->done = true;
    }
}

static bool stub_work(void *shared)
{
    (void)shared;
    bool more = seen.works < n_work;
    rpc_rig_bump(&seen.works);
    return more;
}

static const struct prop_ops stub = {.name = "stub",
                                     .seq_done = stub_seq_done,
                                     .cut = stub_cut,
                                     .grow = stub_grow,
                                     .draft = stub_draft,
                                     .work = stub_work};

static void count_answer(const struct batch_origin *to, struct rpc_msg *msg)
{
    if (seen.answers < (int)ARRAY_LEN(seen.answered))
        seen.answered[seen.answers] = to->stream;
    rpc_msg_free(msg);
    rpc_rig_bump(&seen.answers);
}

static void count_failure(const struct batch_origin *to, int err)
{
    (void)to;
    seen.err = err;
    snprintf(seen.text, sizeof(seen.text), "%s", fail_text());
    rpc_rig_bump(&seen.fails);
}

/* ---- the thread, and a call that its Rounds come from ---- */

static struct rpc_rig rig;
static struct rpc_tally tally;
static struct rpc_stream *stream;
static struct sessions *sessions;
static struct draft_thread *thread;

static struct draft_thread_config config(void)
{
    struct metric *m = metrics_counter("test_draft_thread", "", NULL);
    return (struct draft_thread_config){
        .batch = {.sessions = sessions,
                  .ops = &stub,
                  .q_modes = 1u << DRAFT_POINT,
                  .rounds = m,
                  .drafts = m,
                  .tokens = m,
                  .needed = m,
                  .seconds = metrics_histogram("test_draft_s", "", NULL, NULL, 0)},
        .send = count_answer,
        .failed = count_failure};
}

static int start(void **state)
{
    (void)state;
    memset(&seen, 0, sizeof(seen));
    is_held = false;
    n_work = 0;
    sem_init(&may_draft, 0, 0);
    rpc_rig_init(&rig, NULL);
    stream = rpc_rig_keep(&rig, &tally);
    const struct sessions_config sc = {.ops = &stub,
                                       .max_sessions = 3 * BATCH_SEQUENCES_MAX,
                                       .max_tokens = 1 << 24,
                                       .max_context = 1000,
                                       .k_max = 8,
                                       .idle_us = -1};
    assert_int_equal(sessions_new(&sc, &sessions), 0);
    const struct draft_thread_config c = config();
    assert_int_equal(draft_thread_new(&c, &thread), 0);
    return 0;
}

/* Lets a draft continue, also in the thread that the caller waits for. */
int __real_pthread_join(pthread_t t, void **ret);
int __wrap_pthread_join(pthread_t t, void **ret);
int __wrap_pthread_join(pthread_t t, void **ret)
{
    if (is_held)
        sem_post(&may_draft);
    return __real_pthread_join(t, ret);
}

/* The call's cancel releases the reference of Keep. All others must be gone: the server waits for
 * them. */
static int stop(void **state)
{
    (void)state;
    draft_thread_free(thread);
    is_held = false;
    sessions_free(sessions);
    rpc_stream_cancel(stream);
    rpc_rig_finish(stream, &tally, RPC_CANCELLED);
    rpc_rig_done(&rig);
    sem_destroy(&may_draft);
    return 0;
}

/* A Round with n new sequences whose context is one token. The receiver owns it. */
static Tandem__V1__Round *round_of(size_t n, uint32_t token, uint32_t budget_us)
{
    static Tandem__V1__RoundSequence seqs[BATCH_SEQUENCES_MAX + 1];
    static Tandem__V1__RoundSequence *pointers[BATCH_SEQUENCES_MAX + 1];
    Tandem__V1__Round round = TANDEM__V1__ROUND__INIT;
    round.sequences = pointers;
    round.n_sequences = n;
    round.budget_us = budget_us;
    for (size_t i = 0; i < n; i++) {
        pointers[i] = &seqs[i];
        tandem__v1__round_sequence__init(pointers[i]);
        seqs[i].seq = i;
        seqs[i].base_len = 1;
        seqs[i].n_tokens = 1;
        seqs[i].tokens = &token;
        seqs[i].digest = rng_splitmix64(token + 1);
        seqs[i].k = 1;
    }
    struct rpc_msg *msg = rpc_pack(&round.base);
    Tandem__V1__Round *to = (Tandem__V1__Round *)rpc_unpack(&tandem__v1__round__descriptor, msg);
    rpc_msg_free(msg);
    assert_non_null(to);
    return to;
}

static int push(uint64_t of_stream, Tandem__V1__Round *round, size_t bytes)
{
    struct batch_origin from = {of_stream, rpc_rig_seen.kept};
    return draft_thread_round(thread, &from, round, bytes);
}

static void must_push(uint64_t of_stream, size_t n, uint32_t token)
{
    assert_int_equal(push(of_stream, round_of(n, token, 1000000000), 100), 0);
}

/* The thread is in draft(), so that Rounds wait, until release(). */
static void hold(void)
{
    is_held = true;
    must_push(1, 1, 5);
    rpc_rig_await(&seen.drafts, 1);
}

static void release(void)
{
    is_held = false;
    sem_post(&may_draft);
}

/* Waits until a condition is true that the thread makes true soon. */
#define AWAIT(what)                                                                                \
    for (int64_t until_us_ = clock_us() + RPC_RIG_WAIT_US; !(what); sched_yield())                 \
    assert_true(clock_us() < until_us_)

static uint32_t n_sessions(void)
{
    struct sessions_stats stats;
    sessions_stats(sessions, &stats);
    return stats.n_sessions;
}

/* ---- tests ---- */

static void a_round_is_answered_to_its_stream(void **state)
{
    (void)state;
    must_push(7, 3, 5);
    rpc_rig_await(&seen.answers, 1);
    must_push(8, 1, 5);
    rpc_rig_await(&seen.answers, 2);
    assert_int_equal(seen.answered[0], 7);
    assert_int_equal(seen.answered[1], 8);
    assert_int_equal(seen.n_asks[0], 3);
}

static void a_round_that_contradicts_itself_fails_with_the_reason(void **state)
{
    (void)state;
    Tandem__V1__Round *bad = round_of(1, 5, 1000);
    bad->sequences[0]->keep = 7;
    assert_int_equal(push(1, bad, 100), 0);
    rpc_rig_await(&seen.fails, 1);
    assert_int_equal(seen.err, -EINVAL);
    assert_string_equal(seen.text, "sequence 0: 1 tokens do not lead from keep 7 to base_len 1");
    must_push(1, 1, 5);
    rpc_rig_await(&seen.answers, 1);
}

static void at_most_1024_rounds_wait(void **state)
{
    (void)state;
    for (int turn = 0; turn < 2; turn++) {
        hold();
        for (unsigned i = 0; i < DRAFT_THREAD_ROUNDS_MAX; i++)
            must_push(2, 1, 5);
        for (unsigned i = 0; i < 3; i++) // each of them leaves the counts as they were
            assert_int_equal(push(2, round_of(1, 5, 1000), 100), -ENOSPC);
        assert_string_equal(fail_text(), "too many rounds wait for a draft");
        release();
        rpc_rig_await(&seen.answers, 1 + DRAFT_THREAD_ROUNDS_MAX);
        seen.answers = seen.drafts = 0;
    }
}

static void waiting_rounds_have_at_most_64_mib(void **state)
{
    (void)state;
    for (int turn = 0; turn < 2; turn++) {
        hold();
        assert_int_equal(push(2, round_of(1, 5, 1000), DRAFT_THREAD_BYTES_MAX + 1), -ENOSPC);
        assert_int_equal(push(2, round_of(1, 5, 1000), DRAFT_THREAD_BYTES_MAX), 0);
        assert_int_equal(push(2, round_of(1, 5, 1000), 1), -ENOSPC);
        release();
        rpc_rig_await(&seen.answers, 2);
        seen.answers = seen.drafts = 0;
    }
}

/* What the thread takes at a time, and so the size of a batch, is bounded. */
static void no_round_is_taken_beside_4096_open_asks(void **state)
{
    (void)state;
    hold();
    must_push(2, BATCH_SEQUENCES_MAX - 1, TOKEN_OPEN);
    must_push(3, 1, TOKEN_OPEN);
    must_push(4, 1, 5);
    release();
    rpc_rig_await(&seen.answers, 2);
    assert_int_equal(seen.n_asks[0], 1);
    assert_int_equal(seen.n_asks[1], BATCH_SEQUENCES_MAX);
    assert_int_equal(seen.n_asks[2], BATCH_SEQUENCES_MAX + 1);
    assert_int_equal(seen.answered[1], 4);
}

static void an_open_ask_is_answered_when_its_time_is_up(void **state)
{
    (void)state;
    int64_t from_us = clock_us();
    assert_int_equal(push(1, round_of(1, TOKEN_OPEN, 20000), 100), 0);
    rpc_rig_await(&seen.answers, 1);
    assert_true(clock_us() - from_us > 17000);
    assert_in_range(rpc_rig_count(&seen.drafts), 2, 20); // it sleeps meanwhile
}

static void work_is_called_until_there_is_none(void **state)
{
    (void)state;
    n_work = 5;
    must_push(1, 1, 5);
    rpc_rig_await(&seen.works, 6);
    must_push(1, 1, 5);
    rpc_rig_await(&seen.works, 7);
    assert_int_equal(seen.drafts, 2); // none without an ask
}

static void while_a_round_waits_there_is_no_work(void **state)
{
    (void)state;
    hold();
    must_push(1, 1, 5);
    sem_post(&may_draft); // for the first draft
    rpc_rig_await(&seen.drafts, 2);
    assert_int_equal(rpc_rig_count(&seen.works), 0);
    release();
    rpc_rig_await(&seen.works, 1);
}

static void the_end_of_a_stream_drops_its_rounds_and_sessions(void **state)
{
    (void)state;
    struct draft_job *end;
    assert_int_equal(draft_thread_begin_stream(thread, 1, &end), 0);
    must_push(1, 3, TOKEN_OPEN);
    must_push(2, 1, TOKEN_OPEN);
    AWAIT(n_sessions() == 4);
    draft_thread_end_stream(thread, end);
    AWAIT(n_sessions() == 1);
    must_push(2, 1, 5);
    rpc_rig_await(&seen.answers, 2);
    assert_int_equal(seen.answered[0], 2); // the open ask of its session
    assert_int_equal(seen.answered[1], 2);
}

static struct draft_job *ends[DRAFT_THREAD_STREAMS_MAX];

static void at_most_1024_streams_are_open(void **state)
{
    (void)state;
    struct draft_job *none;
    for (int turn = 0; turn < 2; turn++) {
        for (unsigned i = 0; i < DRAFT_THREAD_STREAMS_MAX; i++)
            AWAIT(draft_thread_begin_stream(thread, i, &ends[i]) == 0); // the ends before are read
        for (unsigned i = 0; i < 3; i++)
            assert_int_equal(draft_thread_begin_stream(thread, 0, &none), -ENOSPC);
        assert_string_equal(fail_text(), "more than 1024 verifiers are connected");
        for (unsigned i = 0; i < DRAFT_THREAD_STREAMS_MAX; i++)
            draft_thread_end_stream(thread, ends[i]);
    }
}

/* The queue has space for both. */
static void all_streams_may_end_while_1024_rounds_wait(void **state)
{
    (void)state;
    for (unsigned i = 0; i < DRAFT_THREAD_STREAMS_MAX; i++)
        assert_int_equal(draft_thread_begin_stream(thread, i, &ends[i]), 0);
    hold();
    for (unsigned i = 0; i < DRAFT_THREAD_ROUNDS_MAX; i++)
        must_push(2, 1, 5);
    for (unsigned i = 0; i < DRAFT_THREAD_STREAMS_MAX; i++)
        draft_thread_end_stream(thread, ends[i]);
    release();
    AWAIT(n_sessions() == 0);
}

static void idle_sessions_are_dropped_on_request(void **state)
{
    (void)state;
    must_push(1, 2, 5);
    rpc_rig_await(&seen.answers, 1);
    assert_int_equal(n_sessions(), 2);
    draft_thread_expire(thread);
    AWAIT(n_sessions() == 0);
    for (int i = 2; i <= 3; i++) { // once
        must_push(1, 2, 5);
        rpc_rig_await(&seen.answers, i);
        assert_int_equal(n_sessions(), 2);
    }
}

/* A sanitizer sees Rounds that are not freed, stop() references to their call. */
static void rounds_that_still_wait_are_freed_with_the_thread(void **state)
{
    (void)state;
    struct draft_job *end;
    assert_int_equal(draft_thread_begin_stream(thread, 1, &end), 0);
    hold();
    must_push(1, 2, 5);
    draft_thread_end_stream(thread, end);
    must_push(2, 2, 5);
}

static void without_memory_a_round_is_refused_and_not_counted(void **state)
{
    (void)state;
    for (unsigned i = 0; i < DRAFT_THREAD_ROUNDS_MAX + 1; i++) {
        Tandem__V1__Round *round = round_of(1, 5, 1000);
        failing_at(1);
        assert_int_equal(push(1, round, DRAFT_THREAD_BYTES_MAX), -ENOMEM);
        assert_true(failing_has_failed());
        assert_string_equal(fail_text(), "draft thread: no memory");
    }
    must_push(1, 1, 5);
    rpc_rig_await(&seen.answers, 1);
}

/* The end of a stream needs no memory, so its place always becomes free. */
static void without_memory_no_stream_begins_and_each_ends(void **state)
{
    (void)state;
    hold();
    failing_at(1);
    assert_int_equal(draft_thread_begin_stream(thread, 1, &ends[0]), -ENOMEM);
    failing_at(0);
    assert_int_equal(draft_thread_begin_stream(thread, 1, &ends[0]), 0);
    failing_at(1);
    draft_thread_end_stream(thread, ends[0]);
    assert_false(failing_has_failed());
    failing_at(0);
    release();
    for (unsigned i = 0; i < DRAFT_THREAD_STREAMS_MAX; i++)
        AWAIT(draft_thread_begin_stream(thread, i, &ends[i]) == 0);
    for (unsigned i = 0; i < DRAFT_THREAD_STREAMS_MAX; i++)
        draft_thread_end_stream(thread, ends[i]);
}

static bool no_threads;

int __real_pthread_create(pthread_t *t, const pthread_attr_t *attr, void *(*run)(void *),
                          void *arg);
int __wrap_pthread_create(pthread_t *t, const pthread_attr_t *attr, void *(*run)(void *),
                          void *arg);
int __wrap_pthread_create(pthread_t *t, const pthread_attr_t *attr, void *(*run)(void *), void *arg)
{
    return no_threads ? EAGAIN : __real_pthread_create(t, attr, run, arg);
}

static void without_a_thread_there_are_no_drafts(void **state)
{
    (void)state;
    const struct draft_thread_config c = config();
    struct draft_thread *d = NULL;
    no_threads = true;
    int r = draft_thread_new(&c, &d);
    no_threads = false;
    assert_int_equal(r, -EAGAIN);
    assert_string_equal(fail_text(), "cannot start the draft thread");
    assert_null(d);
}

static void without_memory_there_is_no_thread(void **state)
{
    (void)state;
    const struct draft_thread_config c = config();
    struct draft_thread *d = NULL;
    int r = -ENOMEM;
    for (unsigned n = 1; r < 0; n++) {
        failing_at(n);
        r = draft_thread_new(&c, &d);
        assert_true(r == (failing_has_failed() ? -ENOMEM : 0));
        if (n == 1)
            assert_string_equal(fail_text(), "draft thread: no memory");
        assert_true(n < 20);
    }
    draft_thread_free(d);
    draft_thread_free(NULL);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, start, stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_round_is_answered_to_its_stream),
        TEST(a_round_that_contradicts_itself_fails_with_the_reason),
        TEST(at_most_1024_rounds_wait),
        TEST(waiting_rounds_have_at_most_64_mib),
        TEST(no_round_is_taken_beside_4096_open_asks),
        TEST(an_open_ask_is_answered_when_its_time_is_up),
        TEST(work_is_called_until_there_is_none),
        TEST(while_a_round_waits_there_is_no_work),
        TEST(the_end_of_a_stream_drops_its_rounds_and_sessions),
        TEST(at_most_1024_streams_are_open),
        TEST(all_streams_may_end_while_1024_rounds_wait),
        TEST(idle_sessions_are_dropped_on_request),
        TEST(rounds_that_still_wait_are_freed_with_the_thread),
        TEST(without_memory_a_round_is_refused_and_not_counted),
        TEST(without_memory_no_stream_begins_and_each_ends),
        TEST(without_a_thread_there_are_no_drafts),
        TEST(without_memory_there_is_no_thread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
