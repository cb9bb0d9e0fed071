/* test_proposer_service.c - Describe and Draft over rpc, with a proposer on rpc's threads and with
 * one on its own thread. */
#include <errno.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tandem/v1/proposer.pb-c.h>
#include <tandem/v1/protocol.pb-c.h>
#include <tandem/v1/stats.pb-c.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/err.h"
#include "base/metrics.h"
#include "base/rng.h"
#include "lib/fakes/failing.h"
#include "lib/rigs/rpc_rig.h"
#include "proposer-svc/draft_thread.h"
#include "proposer-svc/proposer.h"

/* ---- memory; the linker hands our calls of rpc_call_service() to this ---- */

static atomic_bool no_memory; // for what the next method of a call allocates first

void *__real_rpc_call_service(const struct rpc_call *c);
void *__wrap_rpc_call_service(const struct rpc_call *c);
void *__wrap_rpc_call_service(const struct rpc_call *c)
{
    if (atomic_exchange(&no_memory, false))
        failing_at(1);
    return __real_rpc_call_service(c);
}

/* ---- a proposer that drafts one token ---- */

static atomic_bool is_held; // drafts wait
static sem_t may_draft;
static int n_drafts;

#define DENSE_WIDTH (64u << 10) // so a dense q has 256 KiB

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

static void add_q(struct draft *to)
{
    struct draft_q *q = calloc(1, sizeof(*q) + DENSE_WIDTH * sizeof(float));
    assert_non_null(q);
    *q = (struct draft_q){.width = DENSE_WIDTH, .weights = (float *)(q + 1)};
    to->q = q;
    to->q_mode = DRAFT_DENSE;
}

static void stub_draft(void *shared, struct prop_ask *const *asks, uint32_t n)
{
    (void)shared;
    bool waits = atomic_load(&is_held);
    rpc_rig_bump(&n_drafts);
    if (waits)
        sem_wait(&may_draft);
    for (uint32_t i = 0; i < n; i++) {
        asks[i]->to->n = 1;
        asks[i]->to->tokens[0] = asks[i]->context.n;
        asks[i]->to->survival[0] = 1;
        asks[i]->to->tree = false;
        asks[i]->to->q_mode = DRAFT_POINT;
        if (asks[i]->q_mode == DRAFT_DENSE)
            add_q(asks[i]->to);
        asks[i]->done = true;
    }
}

static void stub_about(void *shared, struct prop_about *to)
{
    (void)shared;
    *to = (struct prop_about){.model = "m.gguf",
                              .vocab_digest = 99,
                              .max_context = 500,
                              .q_modes = 1u << DRAFT_POINT | 1u << DRAFT_SPARSE};
}

static void stub_about_dense(void *shared, struct prop_about *to)
{
    stub_about(shared, to);
    to->q_modes = 1u << DRAFT_POINT | 1u << DRAFT_DENSE;
}

#define STUB(...)                                                                                  \
    {                                                                                              \
        .name = "stub", .seq_done = stub_seq_done, .cut = stub_cut, .grow = stub_grow,             \
        .draft = stub_draft, __VA_ARGS__                                                           \
    }
static const struct prop_ops plain = STUB(.flags = 0), threaded = STUB(.flags = PROP_OWN_THREAD),
                             with_about = STUB(.about = stub_about),
                             dense = STUB(.flags = PROP_OWN_THREAD, .about = stub_about_dense);

/* ---- the service ---- */

static struct sessions *sessions;
static struct proposer *service;
static struct rpc_server *server;
static struct rpc_client *client;
static char folder[64], target[96];

static int start_with(const struct prop_ops *ops, unsigned own_role)
{
    const struct sessions_config sc = {.ops = ops,
                                       .max_sessions = 2 * BATCH_SEQUENCES_MAX,
                                       .max_tokens = 1 << 20,
                                       .max_context = 1000,
                                       .k_max = 8,
                                       .idle_us = -1};
    assert_int_equal(sessions_new(&sc, &sessions), 0);
    const struct proposer_config c = {
        .name = "kind", .k_max = 8, .max_context = 1000, .sessions = sessions, .ops = ops};
    assert_int_equal(proposer_new(&c, &service), 0);
    assert_int_equal(rpc_server_new(&(struct rpc_server_options){.own_role = own_role}, &server),
                     0);
    proposer_add(service, server);
    snprintf(folder, sizeof(folder), "/tmp/tandem-test-XXXXXX");
    assert_non_null(mkdtemp(folder));
    snprintf(target, sizeof(target), "unix:%s/s.sock", folder);
    assert_int_equal(rpc_server_listen(server, target), 1);
    assert_int_equal(rpc_server_start(server), 0);
    return rpc_client_new(target, NULL, &client);
}

static int start_plain(void **state)
{
    (void)state;
    return start_with(&plain, RPC_ROLE_VERIFIER);
}

static int start_threaded(void **state)
{
    (void)state;
    return start_with(&threaded, RPC_ROLE_VERIFIER);
}

static int start_with_about(void **state)
{
    (void)state;
    return start_with(&with_about, RPC_ROLE_VERIFIER);
}

static int start_dense(void **state)
{
    (void)state;
    return start_with(&dense, RPC_ROLE_VERIFIER);
}

static int start_for_clients(void **state)
{
    (void)state;
    return start_with(&plain, RPC_ROLE_CLIENT);
}

static int stop(void **state)
{
    (void)state;
    rpc_client_free(client);
    rpc_server_stop(server, 1000);
    proposer_free(service);
    sessions_free(sessions);
    return rmdir(folder);
}

/* Waits until a condition is true that another thread makes true soon. */
#define AWAIT(what)                                                                                \
    for (int64_t until_us_ = clock_us() + RPC_RIG_WAIT_US; !(what); sched_yield())                 \
    assert_true(clock_us() < until_us_)

static uint32_t n_sessions(void)
{
    struct sessions_stats stats;
    sessions_stats(sessions, &stats);
    return stats.n_sessions;
}

/* ---- Describe ---- */

static struct rpc_status describe(Tandem__V1__DescribeReply **ret)
{
    Tandem__V1__DescribeRequest req = TANDEM__V1__DESCRIBE_REQUEST__INIT;
    ProtobufCMessage *m = NULL;
    struct rpc_status st = rpc_unary(client, "/tandem.v1.Proposer/Describe", NULL, &req.base,
                                     &tandem__v1__describe_reply__descriptor, &m);
    *ret = (Tandem__V1__DescribeReply *)m;
    return st;
}

static void must_be_text(ProtobufCBinaryData got, const char *want)
{
    assert_int_equal(got.len, strlen(want));
    assert_memory_equal(got.data, want, got.len);
}

static void describe_has_what_the_proposer_offers(void **state)
{
    (void)state;
    Tandem__V1__DescribeReply *d;
    assert_int_equal(describe(&d).code, RPC_OK);
    assert_int_equal(d->protocol, TANDEM__V1__PROTOCOL__PROTOCOL_VERSION);
    must_be_text(d->kind, "kind");
    assert_int_equal(d->k_max, 8);
    assert_int_equal(d->max_context, 1000);
    must_be_text(d->model, "m.gguf");
    assert_int_equal(d->vocab_digest, 99);
    assert_int_equal(d->n_q_modes, 2);
    assert_int_equal(d->q_modes[0], TANDEM__V1__QMODE__Q_MODE_POINT);
    assert_int_equal(d->q_modes[1], TANDEM__V1__QMODE__Q_MODE_SPARSE);
    must_be_text(d->version, TANDEM_VERSION);
    tandem__v1__describe_reply__free_unpacked(d, NULL);
}

static void without_about_point_drafts_are_offered_for_any_vocabulary(void **state)
{
    (void)state;
    Tandem__V1__DescribeReply *d;
    assert_int_equal(describe(&d).code, RPC_OK);
    assert_int_equal(d->model.len, 0);
    assert_int_equal(d->vocab_digest, 0);
    assert_int_equal(d->n_q_modes, 1);
    assert_int_equal(d->q_modes[0], TANDEM__V1__QMODE__Q_MODE_POINT);
    tandem__v1__describe_reply__free_unpacked(d, NULL);
}

static void a_bad_request_for_the_description_is_refused(void **state)
{
    (void)state;
    struct rpc_tally t = {0};
    static const struct rpc_events events = {.on_message = rpc_tally_message,
                                             .on_end = rpc_tally_end};
    struct rpc_stream *s =
        rpc_stream_new(client, "/tandem.v1.Proposer/Describe", NULL, &events, &t);
    rpc_stream_send(s, rpc_msg_of("\xff\xff", 2));
    rpc_rig_finish(s, &t, RPC_INVALID_ARGUMENT);
    assert_string_equal(t.status.text, "the request is not a valid tandem.v1.DescribeRequest");
}

static const struct rpc_events counting = {.on_message = rpc_tally_message,
                                           .on_end = rpc_tally_end};

static void both_methods_are_for_verifiers(void **state)
{
    (void)state;
    Tandem__V1__DescribeReply *d;
    assert_int_equal(describe(&d).code, RPC_PERMISSION_DENIED);
    struct rpc_tally t = {0};
    struct rpc_stream *s = rpc_stream_new(client, "/tandem.v1.Proposer/Draft", NULL, &counting, &t);
    rpc_rig_finish(s, &t, RPC_PERMISSION_DENIED);
}

/* ---- Draft ---- */

static struct rpc_stream *open_stream(struct rpc_tally *t)
{
    *t = (struct rpc_tally){0};
    return rpc_stream_new(client, "/tandem.v1.Proposer/Draft", NULL, &counting, t);
}

/* A Round with n new sequences, whose context is one token. */
static struct rpc_msg *round_of(size_t n, uint64_t first_seq)
{
    static Tandem__V1__RoundSequence seqs[BATCH_SEQUENCES_MAX];
    static Tandem__V1__RoundSequence *pointers[BATCH_SEQUENCES_MAX];
    static uint32_t token = 5;
    Tandem__V1__Round round = TANDEM__V1__ROUND__INIT;
    round.sequences = pointers;
    round.n_sequences = n;
    round.budget_us = 1000000;
    for (size_t i = 0; i < n; i++) {
        pointers[i] = &seqs[i];
        tandem__v1__round_sequence__init(pointers[i]);
        seqs[i].seq = first_seq + i;
        seqs[i].base_len = 1;
        seqs[i].n_tokens = 1;
        seqs[i].tokens = &token;
        seqs[i].digest = rng_splitmix64(token + 1);
        seqs[i].k = 1;
    }
    return rpc_pack(&round.base);
}

static double n_streams(void)
{
    return metrics_value(metrics_gauge("tandem_drafter_streams", "", NULL));
}

static void a_stream_drafts_until_the_verifier_closes_it(void **state)
{
    (void)state;
    struct rpc_tally a, b;
    struct rpc_stream *first = open_stream(&a), *second = open_stream(&b);
    rpc_stream_send(first, round_of(2, 1));
    rpc_rig_await(&a.messages, 1);
    rpc_stream_send(second, round_of(3, 1)); // other sequences, although the numbers are equal
    rpc_rig_await(&b.messages, 1);
    assert_int_equal(n_sessions(), 5);
    assert_true(n_streams() == 2);
    rpc_stream_close(first);
    rpc_rig_finish(first, &a, RPC_OK);
    AWAIT(n_sessions() == 3);
    AWAIT(n_streams() == 1);
    rpc_stream_cancel(second);
    rpc_rig_finish(second, &b, RPC_CANCELLED);
    AWAIT(n_sessions() == 0 && n_streams() == 0);
    assert_int_equal(a.messages + b.messages, 2);
}

static void a_bad_round_ends_only_its_stream(void **state)
{
    (void)state;
    struct rpc_tally a, b, c;
    struct rpc_stream *good = open_stream(&a), *bytes = open_stream(&b), *lie = open_stream(&c);
    rpc_stream_send(good, round_of(1, 1));
    rpc_rig_await(&a.messages, 1);
    rpc_stream_send(bytes, rpc_msg_of("\xff\xff", 2));
    rpc_rig_finish(bytes, &b, RPC_INVALID_ARGUMENT);
    static const char lies[] = "\x0a\x04\x10\x09\x18\x05"; // base_len 9, keep 5, no tokens
    rpc_stream_send(lie, rpc_msg_of(lies, sizeof(lies) - 1));
    rpc_rig_finish(lie, &c, RPC_INVALID_ARGUMENT);
    assert_string_equal(c.status.text,
                        "sequence 0: 0 tokens do not lead from keep 5 to base_len 9");
    rpc_stream_send(good, round_of(1, 2));
    rpc_rig_await(&a.messages, 2);
    rpc_stream_close(good);
    rpc_rig_finish(good, &a, RPC_OK);
    AWAIT(n_streams() == 0);
}

static void idle_sessions_expire(void **state)
{
    (void)state;
    struct rpc_tally t;
    struct rpc_stream *s = open_stream(&t);
    rpc_stream_send(s, round_of(2, 1));
    rpc_rig_await(&t.messages, 1);
    assert_int_equal(n_sessions(), 2);
    proposer_expire(service);
    AWAIT(n_sessions() == 0);
    rpc_stream_close(s);
    rpc_rig_finish(s, &t, RPC_OK);
}

/* A Round with as many sequences as it may have, of which the proposer needs the contexts. */
static struct rpc_msg *round_of_strangers(void)
{
    static Tandem__V1__RoundSequence seqs[BATCH_SEQUENCES_MAX];
    static Tandem__V1__RoundSequence *pointers[BATCH_SEQUENCES_MAX];
    Tandem__V1__Round round = TANDEM__V1__ROUND__INIT;
    round.sequences = pointers;
    round.n_sequences = BATCH_SEQUENCES_MAX;
    for (size_t i = 0; i < BATCH_SEQUENCES_MAX; i++) {
        pointers[i] = &seqs[i];
        tandem__v1__round_sequence__init(pointers[i]);
        seqs[i].seq = i + 1;
        seqs[i].base_len = seqs[i].keep = 1;
        seqs[i].digest = 1;
    }
    return rpc_pack(&round.base);
}

static void a_verifier_that_does_not_read_gets_the_reason(void **state)
{
    (void)state;
    struct rpc_tally t;
    struct rpc_stream *s = open_stream(&t);
    struct rpc_msg *round = round_of_strangers();
    struct metric *rounds = metrics_counter("tandem_drafter_rounds_total", "", NULL);
    double before = metrics_value(rounds);
    rpc_stream_pause(s);
    for (int i = 0; i < 48; i++) // 4.5 MiB of answers
        rpc_stream_send(s, rpc_msg_share(round));
    rpc_msg_free(round);
    AWAIT(metrics_value(rounds) >= before + 32); // more than 3 MiB
    AWAIT(n_streams() == 0);                     // the stream has ended at the proposer
    rpc_stream_unpause(s);
    rpc_rig_await_end(&t, RPC_RESOURCE_EXHAUSTED);
    assert_string_equal(t.status.text, "the verifier has not read 3145728 bytes of drafts");
    assert_true(t.messages < 48);
    rpc_stream_free(s);
}

static struct rpc_msg *dense_round(uint64_t seq)
{
    static uint32_t token = 5;
    Tandem__V1__RoundSequence s = TANDEM__V1__ROUND_SEQUENCE__INIT, *pointer = &s;
    Tandem__V1__Round round = TANDEM__V1__ROUND__INIT;
    round.sequences = &pointer;
    round.n_sequences = 1;
    round.budget_us = RPC_RIG_WAIT_US;
    s.seq = seq;
    s.base_len = s.n_tokens = s.k = 1;
    s.tokens = &token;
    s.digest = rng_splitmix64(token + 1);
    s.q_mode = TANDEM__V1__QMODE__Q_MODE_DENSE;
    return rpc_pack(&round.base);
}

/* The bytes of the answer to one more dense Round. */
static size_t dense_answer(struct rpc_stream *s, struct rpc_tally *t, uint64_t seq)
{
    size_t before = t->bytes;
    int n = rpc_rig_count(&t->messages);
    rpc_stream_send(s, dense_round(seq));
    rpc_rig_await(&t->messages, n + 1);
    return t->bytes - before;
}

static void a_slow_verifier_keeps_its_stream(void **state)
{
    enum { N = 40, Q_BYTES = DENSE_WIDTH * 4, SLOW = 2 << 20 };
    (void)state;
    struct rpc_tally t, t_other;
    struct rpc_stream *s = open_stream(&t), *other = open_stream(&t_other);
    assert_in_range(dense_answer(s, &t, 1), Q_BYTES, Q_BYTES + 100);
    size_t before = t.bytes;
    rpc_stream_pause(s);
    for (uint64_t i = 2; i < 2 + N; i++) // 10 MiB, if all had their q
        rpc_stream_send(s, dense_round(i));
    AWAIT(n_sessions() == 1 + N);
    dense_answer(other, &t_other, 1); // the one thread has sent the answers before
    rpc_stream_unpause(s);
    rpc_rig_await(&t.messages, 1 + N);
    assert_in_range(t.bytes - before, SLOW, SLOW + 4 * Q_BYTES); // it has read some
    assert_in_range(dense_answer(s, &t, 2 + N), Q_BYTES, Q_BYTES + 100);
    rpc_stream_close(s);
    rpc_rig_finish(s, &t, RPC_OK);
    rpc_stream_close(other);
    rpc_rig_finish(other, &t_other, RPC_OK);
}

/* Opens a stream that is refused for this reason. */
static void must_refuse(const char *reason)
{
    struct rpc_tally t;
    struct rpc_stream *s = open_stream(&t);
    rpc_rig_finish(s, &t, RPC_RESOURCE_EXHAUSTED);
    assert_string_equal(t.status.text, reason);
}

/* Opens as many streams as there may be; one more is refused. */
static void must_open_1024_streams(void)
{
    static struct rpc_tally t[DRAFT_THREAD_STREAMS_MAX];
    static struct rpc_stream *s[DRAFT_THREAD_STREAMS_MAX];
    for (unsigned i = 0; i < DRAFT_THREAD_STREAMS_MAX; i++)
        s[i] = open_stream(&t[i]);
    AWAIT(n_streams() == DRAFT_THREAD_STREAMS_MAX);
    must_refuse("more than 1024 verifiers are connected");
    for (unsigned i = 0; i < DRAFT_THREAD_STREAMS_MAX; i++) {
        rpc_stream_close(s[i]);
        rpc_rig_finish(s[i], &t[i], RPC_OK);
    }
    AWAIT(n_streams() == 0);
}

static void more_than_1024_streams_are_refused(void **state)
{
    (void)state;
    must_open_1024_streams();
}

static void a_stream_refused_without_memory_takes_no_place(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++) {
        AWAIT(rpc_server_n_calls(server) == 0); // else the end of a call gets no memory
        atomic_store(&no_memory, true);
        must_refuse("no memory for a stream");
        assert_true(failing_has_failed());
    }
    assert_true(n_streams() == 0);
    must_open_1024_streams();
}

static void a_stream_whose_rounds_have_no_place_ends_with_the_reason(void **state)
{
    (void)state;
    struct rpc_tally t;
    struct rpc_stream *s = open_stream(&t);
    int before = rpc_rig_count(&n_drafts);
    sem_init(&may_draft, 0, 0);
    atomic_store(&is_held, true);
    rpc_stream_send(s, round_of(1, 1));
    rpc_rig_await(&n_drafts, before + 1);
    for (unsigned i = 0; i <= DRAFT_THREAD_ROUNDS_MAX; i++) // the last one has no place
        rpc_stream_send(s, round_of(1, 2 + i));
    rpc_rig_finish(s, &t, RPC_RESOURCE_EXHAUSTED);
    assert_string_equal(t.status.text, "too many rounds wait for a draft");
    atomic_store(&is_held, false);
    sem_post(&may_draft);
    AWAIT(n_streams() == 0); // all rounds have left the queue
    s = open_stream(&t);
    rpc_stream_send(s, round_of(1, 1));
    rpc_rig_await(&t.messages, 1);
    rpc_stream_close(s);
    rpc_rig_finish(s, &t, RPC_OK);
    sem_destroy(&may_draft);
}

/* ---- the start ---- */

static void without_memory_there_is_no_service(void **state)
{
    (void)state;
    struct proposer *other = NULL;
    const struct proposer_config c = {
        .name = "kind", .k_max = 8, .max_context = 1000, .sessions = sessions, .ops = &threaded};
    int r = -ENOMEM;
    for (unsigned n = 1; r < 0; n++) {
        failing_at(n);
        r = proposer_new(&c, &other);
        assert_true(r == (failing_has_failed() ? -ENOMEM : 0));
        if (n == 1)
            assert_string_equal(fail_text(), "proposer: no memory");
        assert_true(n < 30);
    }
    proposer_free(other);
}

/* ---- figures ---- */

static bool is_rendered(const char *line)
{
    AUTO(buf_done) struct buf b = {0};
    buf_init(&b, 1 << 20);
    metrics_render(&b);
    buf_add(&b, "", 1);
    return strstr(b.data, line);
}

static void stats_are_those_of_this_service(void **state)
{
    (void)state;
    Tandem__V1__StatsReply before = TANDEM__V1__STATS_REPLY__INIT,
                           after = TANDEM__V1__STATS_REPLY__INIT;
    proposer_fill_stats(service, &before);
    assert_int_equal(before.sessions, 0);
    struct rpc_tally t;
    struct rpc_stream *s = open_stream(&t);
    rpc_stream_send(s, round_of(3, 1));
    rpc_stream_send(s, round_of(1, 8));
    rpc_rig_await(&t.messages, 2);
    proposer_fill_stats(service, &after);
    must_be_text(after.service, "proposer");
    assert_int_equal(after.sessions, 4);
    assert_int_equal(after.requests - before.requests, 2);
    assert_int_equal(after.generated_tokens - before.generated_tokens, 4);
    assert_true(is_rendered("\ntandem_drafter_sessions 4\n"));
    assert_true(is_rendered("\ntandem_drafter_context_tokens 260\n"));
    rpc_stream_close(s);
    rpc_rig_finish(s, &t, RPC_OK);
}

static void the_time_of_a_round_has_ten_buckets(void **state)
{
    (void)state;
    static const char *const bounds[] = {"1e-05", "2e-05", "5e-05", "0.0001", "0.0002", "0.0005",
                                         "0.001", "0.01",  "0.1",   "1",      "+Inf"};
    for (size_t i = 0; i < ARRAY_LEN(bounds); i++) {
        char line[100];
        snprintf(line, sizeof(line), "\ntandem_drafter_round_seconds_bucket{le=\"%s\"} ",
                 bounds[i]);
        if (!is_rendered(line))
            fail_msg("no bucket %s", bounds[i]);
    }
}

#define PLAIN(f) cmocka_unit_test_setup_teardown(f, start_plain, stop)
#define THREADED(f)                                                                                \
    {                                                                                              \
#f "_on_its_own_thread", f, start_threaded, stop, NULL                                     \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(describe_has_what_the_proposer_offers, start_with_about,
                                        stop),
        PLAIN(without_about_point_drafts_are_offered_for_any_vocabulary),
        cmocka_unit_test_setup_teardown(both_methods_are_for_verifiers, start_for_clients, stop),
        PLAIN(a_bad_request_for_the_description_is_refused),
        PLAIN(a_stream_drafts_until_the_verifier_closes_it),
        THREADED(a_stream_drafts_until_the_verifier_closes_it),
        PLAIN(a_bad_round_ends_only_its_stream),
        THREADED(a_bad_round_ends_only_its_stream),
        PLAIN(idle_sessions_expire),
        THREADED(idle_sessions_expire),
        PLAIN(a_verifier_that_does_not_read_gets_the_reason),
        THREADED(a_verifier_that_does_not_read_gets_the_reason),
        cmocka_unit_test_setup_teardown(a_slow_verifier_keeps_its_stream, start_dense, stop),
        THREADED(more_than_1024_streams_are_refused),
        THREADED(a_stream_refused_without_memory_takes_no_place),
        THREADED(a_stream_whose_rounds_have_no_place_ends_with_the_reason),
        PLAIN(without_memory_there_is_no_service),
        PLAIN(stats_are_those_of_this_service),
        PLAIN(the_time_of_a_round_has_ten_buckets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
