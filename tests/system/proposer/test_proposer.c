/* test_proposer.c - correct, late and lying proposers, and an engine that never waits for them. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <tandem/v1/proposer.pb-c.h>
#include <tandem/v1/stats.pb-c.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/rng.h"
#include "lib/clients/drafts_client.h"
#include "lib/lib.h"
#include "lib/clients/proposers.h"
#include "lib/rigs/child.h"
#include "lib/rigs/manager.h"
#include "lib/rigs/rpc_rig.h"
#include "rpc/rpc.h"

#define WAIT_US 2000000  // for answers that may be missing
#define MUST_US 20000000 // for answers that must arrive

/* Two sockets for each test, in a temporary folder. */
static char folder[64], paths[2][PROPOSER_PATH_MAX], targets[2][PROPOSER_PATH_MAX];

static int make_folder(void **state)
{
    (void)state;
    signal(SIGPIPE, SIG_IGN);
    log_init("test", LOG_LEVEL_ERROR); // the tests lose proposers on purpose
    snprintf(folder, sizeof(folder), "/tmp/tandem-test-XXXXXX");
    assert_non_null(mkdtemp(folder));
    return 0;
}

static int name_sockets(void **state)
{
    (void)state;
    static unsigned n_tests;
    n_tests++;
    for (int i = 0; i < 2; i++) {
        snprintf(paths[i], sizeof(paths[i]), "%.40s/%u-%d.sock", folder, n_tests, i);
        snprintf(targets[i], sizeof(targets[i]), "unix:%.40s/%u-%d.sock", folder, n_tests, i);
    }
    return 0;
}

static pid_t spawned; // a program that a failed test did not stop

static int clean_up(void **state)
{
    (void)state;
    if (spawned)
        kill(spawned, SIGKILL);
    spawned = 0;
    unlink(paths[0]);
    unlink(paths[1]);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    return rmdir(folder);
}

static struct drafts_client *client_of(unsigned n_targets)
{
    return drafts_client_new((const char *[]){targets[0], targets[1]}, n_targets, 64);
}

static struct drafts_stats stats_of(struct drafts_client *a, unsigned i)
{
    struct drafts_stats s;
    drafts_stats(drafts_client_drafts(a), i, &s);
    return s;
}

static void must_draft(struct drafts_client *a, unsigned i, uint64_t seq, unsigned n,
                       uint32_t base_len)
{
    unsigned right;
    assert_int_equal(drafts_client_round(a, i, seq, n, base_len, 5, MUST_US, &right), n);
    assert_int_equal(right, 5 * n);
}

static int picked(struct drafts *d, const char *name, uint64_t seq)
{
    uint32_t k_max = 0;
    int i = drafts_pick(d, name, seq, 100, clock_us(), &k_max);
    assert_true(i < 0 || k_max >= 5);
    return i;
}

static void await_sessions(struct honest *h, bool some)
{
    int64_t until_us = clock_us() + 5 * WAIT_US;
    while ((honest_n_sessions(h) > 0) != some && clock_us() < until_us)
        poll(NULL, 0, 2);
    assert_int_equal(honest_n_sessions(h) > 0, some);
}

static void a_round_trip_returns_correct_drafts(void **state)
{
    (void)state;
    AUTO(honest_stop) struct honest *h = honest_start(paths[0]);
    AUTO(drafts_client_free) struct drafts_client *a = client_of(1);
    assert_true(drafts_client_wait_usable(a, 0, true));
    for (uint32_t round = 0; round < 20; round++)
        must_draft(a, 0, 1, 16, 100 + 3 * round);
    assert_int_equal(honest_n_sessions(h), 16);
    struct drafts_stats s = stats_of(a, 0);
    assert_string_equal(s.name, "ngram");
    assert_int_equal(s.drafts, 20 * 16);
    assert_int_equal(s.draft_tokens, 20 * 16 * 5);
    assert_int_equal(s.stale + s.malformed, 0);
    assert_int_equal(picked(drafts_client_drafts(a), "ngram", 7), 0);
    assert_int_equal(picked(drafts_client_drafts(a), "eagle", 7), -1);
}

static void an_unknown_proposer_name_is_refused(void **state)
{
    (void)state;
    AUTO(honest_stop) struct honest *h = honest_start(paths[0]);
    AUTO(drafts_client_free) struct drafts_client *a = client_of(2);
    assert_true(drafts_client_wait_usable(a, 0, true));
    assert_int_equal(drafts_check_name(drafts_client_drafts(a), "eagle"),
                     0); // the other may have it
    AUTO(liar_stop) struct liar *l = liar_start(paths[1], LIE_EMPTY, DRAFTS_CLIENT_VOCAB);
    assert_true(drafts_client_wait_usable(a, 1, true));
    assert_int_equal(drafts_check_name(drafts_client_drafts(a), "eagle"), -EINVAL);
    assert_non_null(strstr(fail_text(), "none of this server's proposers: ngram, liar"));
    honest_stop(TAKE(h));
    assert_true(drafts_client_wait_usable(a, 0, false));
    assert_int_equal(drafts_check_name(drafts_client_drafts(a), "ngram"), 0); // not connected
    assert_int_equal(drafts_check_name(drafts_client_drafts(a), ""), 0);
    assert_int_equal(drafts_check_name(NULL, "ngram"), -EINVAL);
    assert_non_null(strstr(fail_text(), "it has none"));
}

static void a_sequence_that_paused_catches_up(void **state)
{
    (void)state;
    AUTO(honest_stop) struct honest *h = honest_start(paths[0]);
    AUTO(drafts_client_free) struct drafts_client *a = client_of(1);
    assert_true(drafts_client_wait_usable(a, 0, true));
    must_draft(a, 0, 1, 1, 100);
    must_draft(a, 0, 1, 1, 1777); // as after many rounds with k = 0
    unsigned right, n_came = 0;
    for (int64_t until_us = clock_us() + 5 * WAIT_US; !n_came && clock_us() < until_us;) {
        n_came = drafts_client_round(a, 0, 1, 1, 150000, 5, WAIT_US, &right);
        poll(NULL, 0, 1); // two messages precede the round
    }
    assert_int_equal(n_came, 1);
    assert_int_equal(right, 5);
}

static void closed_sequences_are_freed_at_the_proposer(void **state)
{
    (void)state;
    AUTO(honest_stop) struct honest *h = honest_start(paths[0]);
    AUTO(drafts_client_free) struct drafts_client *a = client_of(1);
    assert_true(drafts_client_wait_usable(a, 0, true));
    must_draft(a, 0, 1, 10, 100);
    for (uint64_t seq = 1; seq <= 9; seq++)
        drafts_close(drafts_client_drafts(a), seq, true);
    must_draft(a, 0, 10, 1, 101); // the closes are sent before or with it
    must_draft(a, 0, 10, 1, 102);
    assert_int_equal(honest_n_sessions(h), 1);
}

static void two_verifiers_and_two_proposers(void **state)
{
    (void)state;
    AUTO(honest_stop) struct honest *h0 = honest_start(paths[0]);
    AUTO(honest_stop) struct honest *h1 = honest_start(paths[1]);
    AUTO(drafts_client_free) struct drafts_client *a = client_of(2);
    AUTO(drafts_client_free) struct drafts_client *b = client_of(2);
    struct drafts_client *both[] = {a, b};
    for (int v = 0; v < 2; v++)
        for (unsigned i = 0; i < 2; i++)
            assert_true(drafts_client_wait_usable(both[v], i, true));
    for (uint32_t round = 0; round < 10; round++)
        for (unsigned i = 0; i < 4; i++) // the same sequence numbers for both
            must_draft(both[i / 2], i % 2, 1, 4, 100 + 2 * round + 10 * (i / 2));
    assert_int_equal(honest_n_sessions(h0), 8);
    assert_int_equal(honest_n_sessions(h1), 8);
    unsigned n_first = 0;
    for (uint64_t seq = 1000; seq < 1100; seq++)
        n_first += picked(drafts_client_drafts(a), NULL, seq) == 0;
    assert_true(n_first > 20 && n_first < 80);
    honest_stop(TAKE(h0));
    assert_true(drafts_client_wait_usable(a, 0, false));
    for (uint64_t seq = 1000; seq < 1100; seq++)
        assert_int_equal(picked(drafts_client_drafts(a), NULL, seq), 1);
}

/* Sequences 1 to n each request a draft. Returns how many are assigned to proposer 0. */
static unsigned ask_each(struct drafts_client *a, unsigned n, uint32_t base_len)
{
    unsigned n_first = 0;
    for (uint64_t seq = 1; seq <= n; seq++) {
        int i = picked(drafts_client_drafts(a), "ngram", seq);
        assert_true(i >= 0);
        must_draft(a, (unsigned)i, seq, 1, base_len);
        n_first += i == 0;
    }
    return n_first;
}

static void sequences_of_a_dead_proposer_move_to_the_other_of_its_name(void **state)
{
    (void)state;
    AUTO(honest_stop) struct honest *h0 = honest_start(paths[0]);
    AUTO(honest_stop) struct honest *h1 = honest_start(paths[1]);
    AUTO(drafts_client_free) struct drafts_client *a = client_of(2);
    assert_true(drafts_client_wait_usable(a, 0, true) && drafts_client_wait_usable(a, 1, true));
    unsigned n_first = ask_each(a, 40, 100);
    assert_true(n_first > 5 && n_first < 35);
    assert_int_equal(ask_each(a, 40, 103), n_first);
    assert_int_equal(honest_n_sessions(h0), n_first);
    honest_stop(TAKE(h0));
    assert_true(drafts_client_wait_usable(a, 0, false));
    assert_int_equal(ask_each(a, 40, 106), 0);
    assert_int_equal(honest_n_sessions(h1), 40);
    h0 = honest_start(paths[0]);
    assert_true(drafts_client_wait_usable(a, 0, true));
    assert_int_equal(ask_each(a, 40, 109), 0); // sequences stay with the proposer that knows them
}

/* ---- other proposers at run time ---- */

static struct drafts_target target_of(const char *text)
{
    struct drafts_target t = {0};
    snprintf(t.target, sizeof(t.target), "%s", text);
    return t;
}

/* Where a target's proposer is; DRAFT_MAX_PROPOSERS: nowhere. */
static unsigned place_of(struct drafts_client *a, const char *target)
{
    struct drafts_stats s;
    unsigned i = 0;
    while (i < DRAFT_MAX_PROPOSERS &&
           (!drafts_stats(drafts_client_drafts(a), i, &s) || strcmp(s.target, target) != 0))
        i++;
    return i;
}

static void remaining_proposers_keep_their_stream_and_removed_ones_are_forgotten(void **state)
{
    (void)state;
    AUTO(honest_stop) struct honest *h0 = honest_start(paths[0]);
    AUTO(honest_stop) struct honest *h1 = honest_start(paths[1]);
    AUTO(drafts_client_free) struct drafts_client *a = client_of(1);
    struct drafts_target both[] = {target_of(targets[1]), target_of(targets[0])};
    assert_true(drafts_client_wait_usable(a, 0, true));
    must_draft(a, 0, 1, 4, 100);
    assert_int_equal(drafts_set(drafts_client_drafts(a), both, 2), 0);
    assert_int_equal(place_of(a, targets[0]), 0);
    unsigned second = place_of(a, targets[1]);
    assert_true(second < DRAFT_MAX_PROPOSERS && drafts_client_wait_usable(a, second, true));
    assert_int_equal(honest_n_sessions(h0), 4);
    assert_int_equal(stats_of(a, 0).drafts, 4);

    assert_int_equal(drafts_set(drafts_client_drafts(a), both, 1), 0);
    assert_int_equal(place_of(a, targets[0]), DRAFT_MAX_PROPOSERS);
    for (uint64_t seq = 1; seq <= 4; seq++)
        assert_int_equal(picked(drafts_client_drafts(a), NULL, seq), second);
    must_draft(a, second, 1, 4, 103);
    assert_int_equal(stats_of(a, second).restarts, 0);
    await_sessions(h0, false);

    assert_int_equal(drafts_set(drafts_client_drafts(a), both, 2), 0); // added as a new proposer
    unsigned again = place_of(a, targets[0]);
    assert_true(drafts_client_wait_usable(a, again, true));
    assert_int_equal(stats_of(a, again).drafts, 0);
    must_draft(a, again, 10, 4, 100);
}

static void all_proposers_may_be_replaced_in_one_call(void **state)
{
    (void)state;
    AUTO(honest_stop) struct honest *h = honest_start(paths[0]);
    AUTO(drafts_client_free) struct drafts_client *a = client_of(1);
    struct drafts_target crowd[DRAFT_MAX_PROPOSERS + 1];
    char text[PROPOSER_PATH_MAX];
    for (unsigned turn = 0; turn < 3; turn++) {
        for (unsigned i = 0; i < DRAFT_MAX_PROPOSERS; i++) {
            snprintf(text, sizeof(text), "unix:/nowhere/%u/%u.sock", turn, i);
            crowd[i] = target_of(text);
        }
        crowd[DRAFT_MAX_PROPOSERS - 1] = target_of(targets[0]);
        assert_int_equal(drafts_set(drafts_client_drafts(a), crowd, DRAFT_MAX_PROPOSERS), 0);
    }
    assert_int_equal(drafts_set(drafts_client_drafts(a), crowd, DRAFT_MAX_PROPOSERS + 1), -EINVAL);
    unsigned i = place_of(a, targets[0]);
    assert_true(drafts_client_wait_usable(a, i, true));
    must_draft(a, i, 1, 4, 100);
}

static void *exchange_often(void *arg)
{
    struct drafts *d = arg;
    struct drafts_target both[] = {target_of(targets[0]), target_of(targets[1])};
    for (unsigned i = 0; i < 100; i++) {
        assert_int_equal(drafts_set(d, both + i % 2, i % 5 ? 1 + (i % 3 && !(i % 2)) : 0), 0);
        poll(NULL, 0, i % 4); // lets some proposers be asked
    }
    return NULL;
}

static void proposers_are_replaced_while_they_draft(void **state)
{
    (void)state;
    AUTO(honest_stop) struct honest *h0 = honest_start(paths[0]);
    AUTO(honest_stop) struct honest *h1 = honest_start(paths[1]);
    AUTO(drafts_client_free) struct drafts_client *a = client_of(2);
    struct drafts *d = drafts_client_drafts(a);
    pthread_t other;
    assert_int_equal(pthread_create(&other, NULL, exchange_often, d), 0);
    uint32_t base_len = 100;
    for (unsigned right; pthread_tryjoin_np(other, NULL) != 0; base_len++) {
        for (uint64_t seq = 1; seq <= 8; seq++) {
            int i = picked(d, NULL, seq);
            if (i >= 0)
                drafts_client_round(a, (unsigned)i, seq, 1, base_len % 1000 + 100, 5, 1000, &right);
        }
        for (uint64_t seq = 1; base_len % 4 == 0 && seq <= 8; seq++)
            drafts_close(d, seq, true);
        struct drafts_stats s;
        for (unsigned i = 0; i < DRAFT_MAX_PROPOSERS; i++)
            drafts_stats(d, i, &s);
        drafts_check_name(d, "ngram");
    }
    struct drafts_target last = target_of(targets[1]);
    assert_int_equal(drafts_set(d, &last, 1), 0);
    unsigned i = place_of(a, targets[1]);
    assert_true(drafts_client_wait_usable(a, i, true));
    must_draft(a, i, 100, 4, 100);
}

static void a_proposer_that_starts_later_is_found(void **state)
{
    (void)state;
    AUTO(drafts_client_free) struct drafts_client *a = client_of(1);
    unsigned right;
    assert_int_equal(drafts_client_round(a, 0, 1, 1, 100, 5, 0, &right), 0);
    AUTO(honest_stop) struct honest *h = honest_start(paths[0]);
    assert_true(drafts_client_wait_usable(a, 0, true));
    must_draft(a, 0, 1, 1, 100);
}

static void a_restarted_proposer_gets_all_contexts_again(void **state)
{
    (void)state;
    AUTO(honest_stop) struct honest *h = honest_start(paths[0]);
    AUTO(drafts_client_free) struct drafts_client *a = client_of(1);
    assert_true(drafts_client_wait_usable(a, 0, true));
    must_draft(a, 0, 1, 4, 100);
    honest_stop(TAKE(h));
    assert_true(drafts_client_wait_usable(a, 0, false));
    h = honest_start(paths[0]);
    assert_true(drafts_client_wait_usable(a, 0, true));
    must_draft(a, 0, 1, 4, 107);
    assert_int_equal(stats_of(a, 0).restarts, 1);
}

/* Runs rounds like an engine until the proposer is excluded. No round may take long. */
static void run_until_excluded(struct drafts_client *a, uint32_t *base_len)
{
    int64_t until = clock_us() + 10000000;
    unsigned right;
    while (drafts_client_usable(a, 0)) {
        assert_true(clock_us() < until);
        if (drafts_client_round(a, 0, 1, 4, ++*base_len, 5, 10000, &right) == 0)
            poll(NULL, 0, 2); // the other sequences' work
    }
}

static void lying_proposers_are_excluded_and_tried_again(void **state)
{
    (void)state;
    static const enum lie lies[] = {LIE_SILENT,  LIE_LATE,    LIE_STALE,        LIE_OVERLONG,
                                    LIE_PARENTS, LIE_NAN,     LIE_VOCABULARY,   LIE_GARBAGE,
                                    LIE_Q_MODE,  LIE_HANG_UP, LIE_NEED_CONTEXT, LIE_HUGE,
                                    LIE_FLOOD};
    for (unsigned i = 0; i < ARRAY_LEN(lies); i++) {
        print_message("%s\n", lie_name(lies[i]));
        AUTO(liar_stop) struct liar *l = liar_start(paths[0], lies[i], DRAFTS_CLIENT_VOCAB);
        AUTO(drafts_client_free) struct drafts_client *a = client_of(1);
        assert_true(drafts_client_wait_usable(a, 0, true));
        uint32_t base_len = 10;
        run_until_excluded(a, &base_len);
        liar_change(l, LIE_EMPTY); // now behaves
        assert_true(drafts_client_wait_usable(a, 0, true));
        unsigned right, n_came = 0;
        for (int n = 0; n < 10 && !n_came; n++) // the flood may still be draining
            n_came = drafts_client_round(a, 0, 1, 4, base_len++, 5, WAIT_US, &right);
        assert_int_equal(n_came, 4);
        assert_int_equal(right, 0);
    }
}

/* Long contexts of sequences that have ended: no answer is outstanding. */
static void a_proposer_that_does_not_read_is_excluded(void **state)
{
    (void)state;
    AUTO(liar_stop) struct liar *l = liar_start(paths[0], LIE_DEAF, DRAFTS_CLIENT_VOCAB);
    AUTO(drafts_client_free) struct drafts_client *a = client_of(1);
    assert_true(drafts_client_wait_usable(a, 0, true));
    int64_t until = clock_us() + MUST_US;
    unsigned right;
    for (uint64_t seq = 1; drafts_client_usable(a, 0); seq++) {
        assert_true(clock_us() < until);
        assert_int_equal(drafts_client_round(a, 0, seq, 1, 60000, 5, 0, &right), 0);
        drafts_close(drafts_client_drafts(a), seq, true);
        poll(NULL, 0, 2); // the other sequences' work
    }
    liar_change(l, LIE_EMPTY);
    assert_true(drafts_client_wait_usable(a, 0, true));
}

static void wrong_draft_tokens_are_not_an_error(void **state)
{
    (void)state;
    AUTO(liar_stop) struct liar *l = liar_start(paths[0], LIE_NOTHING, DRAFTS_CLIENT_VOCAB);
    AUTO(drafts_client_free) struct drafts_client *a = client_of(1);
    assert_true(drafts_client_wait_usable(a, 0, true));
    unsigned right;
    for (uint32_t i = 0; i < 50; i++)
        assert_int_equal(drafts_client_round(a, 0, 1, 4, 10 + i, 5, MUST_US, &right), 4);
    assert_int_equal(stats_of(a, 0).stale + stats_of(a, 0).malformed, 0);
}

static void a_proposer_that_does_not_fit_is_refused(void **state)
{
    (void)state;
    static const enum lie lies[] = {LIE_PROTOCOL, LIE_DIGEST, LIE_NO_DESCRIBE};
    for (unsigned i = 0; i < ARRAY_LEN(lies); i++) {
        AUTO(liar_stop) struct liar *l = liar_start(paths[0], lies[i], DRAFTS_CLIENT_VOCAB);
        int64_t since = clock_us();
        AUTO(drafts_client_free) struct drafts_client *a = client_of(1);
        while (liar_n_described(l) < 3) {
            assert_true(clock_us() < since + 5 * WAIT_US);
            poll(NULL, 0, 1);
        }
        assert_true(clock_us() - since >= 250000 + 500000); // the pauses between tries grow
        assert_false(drafts_client_usable(a, 0));
        assert_int_equal(liar_n_streams(l), 0);
        liar_change(l, LIE_EMPTY);
        assert_true(drafts_client_wait_usable(a, 0, true));
    }
}

/* ---- the service, by hand ---- */

static struct rpc_status describe(struct rpc_client *c, uint32_t protocol, uint32_t *ret_protocol)
{
    Tandem__V1__DescribeRequest req = TANDEM__V1__DESCRIBE_REQUEST__INIT;
    ProtobufCMessage *m = NULL;
    req.protocol = protocol;
    struct rpc_status st = rpc_unary(c, "/tandem.v1.Proposer/Describe", NULL, &req.base,
                                     &tandem__v1__describe_reply__descriptor, &m);
    const Tandem__V1__DescribeReply *reply = (const Tandem__V1__DescribeReply *)m;
    *ret_protocol = reply ? reply->protocol : 0;
    if (m)
        protobuf_c_message_free_unpacked(m, NULL);
    return st;
}

static void every_protocol_version_gets_version_1(void **state)
{
    (void)state;
    AUTO(honest_stop) struct honest *h = honest_start(paths[0]);
    AUTO(rpc_client_free) struct rpc_client *c = NULL;
    assert_int_equal(rpc_client_new(targets[0], NULL, &c), 0);
    for (uint32_t theirs = 0; theirs < 3; theirs++) { // 0: no version
        uint32_t protocol;
        assert_int_equal(describe(c, theirs, &protocol).code, RPC_OK);
        assert_int_equal(protocol, 1);
    }
}

/* Counts the messages of a stream and keeps its end. */
struct listener {
    pthread_mutex_t mu;
    pthread_cond_t changed;
    unsigned n_messages;
    bool ended;
    struct rpc_status status;
};

static void on_message(void *user, struct rpc_msg *msg)
{
    struct listener *l = user;
    (void)msg;
    pthread_mutex_lock(&l->mu);
    l->n_messages++;
    pthread_cond_signal(&l->changed);
    pthread_mutex_unlock(&l->mu);
}

static void on_end(void *user, const struct rpc_status *status)
{
    struct listener *l = user;
    pthread_mutex_lock(&l->mu);
    l->ended = true;
    l->status = *status;
    pthread_cond_signal(&l->changed);
    pthread_mutex_unlock(&l->mu);
}

/* Sends one message on a new stream, waits for an answer or the end, and closes the stream. */
static struct rpc_status send_one(const void *bytes, size_t len, unsigned *ret_n_messages)
{
    static const struct rpc_events events = {.on_message = on_message, .on_end = on_end};
    struct listener l = {.mu = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    AUTO(rpc_client_free) struct rpc_client *c = NULL;
    assert_int_equal(rpc_client_new(targets[0], NULL, &c), 0);
    struct rpc_stream *s = rpc_stream_new(c, "/tandem.v1.Proposer/Draft", NULL, &events, &l);
    rpc_stream_send(s, rpc_msg_of(bytes, len));
    pthread_mutex_lock(&l.mu);
    while (!l.n_messages && !l.ended)
        pthread_cond_wait(&l.changed, &l.mu);
    pthread_mutex_unlock(&l.mu);
    rpc_stream_close(s);
    pthread_mutex_lock(&l.mu);
    while (!l.ended)
        pthread_cond_wait(&l.changed, &l.mu);
    pthread_mutex_unlock(&l.mu);
    rpc_stream_free(s);
    *ret_n_messages = l.n_messages;
    return l.status;
}

static void an_empty_round_is_answered(void **state)
{
    (void)state;
    AUTO(honest_stop) struct honest *h = honest_start(paths[0]);
    unsigned n;
    assert_int_equal(send_one("", 0, &n).code, RPC_OK);
    assert_int_equal(n, 1);
}

static void a_bad_round_ends_its_stream_with_the_reason(void **state)
{
    (void)state;
    AUTO(honest_stop) struct honest *h = honest_start(paths[0]);
    AUTO(drafts_client_free) struct drafts_client *a = client_of(1);
    assert_true(drafts_client_wait_usable(a, 0, true));
    must_draft(a, 0, 1, 1, 100);
    unsigned n;
    assert_int_equal(send_one("\xff\xff", 2, &n).code, RPC_INVALID_ARGUMENT);
    static const char lies[] = "\x0a\x04\x10\x09\x18\x05"; // base_len 9, keep 5, no tokens
    struct rpc_status st = send_one(lies, sizeof(lies) - 1, &n);
    assert_int_equal(st.code, RPC_INVALID_ARGUMENT);
    assert_string_equal(st.text, "sequence 0: 0 tokens do not lead from keep 5 to base_len 9");
    static uint8_t many[5000][11]; // sequences with only a number
    for (size_t i = 0; i < ARRAY_LEN(many); i++)
        memcpy(many[i], "\x0a\x09\x09", 3);
    st = send_one(many, sizeof(many), &n);
    assert_int_equal(st.code, RPC_INVALID_ARGUMENT);
    assert_string_equal(st.text, "a round of 5000 sequences is beyond the limit of 4096");
    must_draft(a, 0, 1, 1, 103); // other streams continue
    assert_int_equal(stats_of(a, 0).restarts, 0);
}

#define STRANGERS 4000 // sequences in a round with an unknown context

/* A round of one sequence with its context, and many without. */
static struct rpc_msg *round_of_strangers(void)
{
    static Tandem__V1__RoundSequence sequences[1 + STRANGERS];
    static Tandem__V1__RoundSequence *pointers[1 + STRANGERS];
    uint32_t token = 5;
    for (size_t i = 0; i < ARRAY_LEN(sequences); i++) {
        pointers[i] = &sequences[i];
        tandem__v1__round_sequence__init(pointers[i]);
        sequences[i].seq = i;
        sequences[i].base_len = sequences[i].keep = 1;
        sequences[i].digest = rng_splitmix64(token + 1);
    }
    sequences[0].keep = 0;
    sequences[0].tokens = &token;
    sequences[0].n_tokens = 1;
    Tandem__V1__Round round = TANDEM__V1__ROUND__INIT;
    round.sequences = pointers;
    round.n_sequences = ARRAY_LEN(pointers);
    return rpc_pack(&round.base);
}

static void a_verifier_that_does_not_read_is_disconnected(void **state)
{
    (void)state;
    static const struct rpc_events events = {.on_message = on_message, .on_end = on_end};
    struct listener l = {.mu = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};
    AUTO(honest_stop) struct honest *h = honest_start(paths[0]);
    AUTO(rpc_client_free) struct rpc_client *c = NULL;
    assert_int_equal(rpc_client_new(targets[0], NULL, &c), 0);
    struct rpc_stream *s = rpc_stream_new(c, "/tandem.v1.Proposer/Draft", NULL, &events, &l);
    rpc_stream_pause(s);
    rpc_stream_send(s, round_of_strangers());
    await_sessions(h, true);
    for (int i = 0; i < 60; i++) // 6 MiB of answers
        rpc_stream_send(s, round_of_strangers());
    await_sessions(h, false);
    rpc_stream_cancel(s);
    rpc_stream_free(s);
}

/* ---- the program itself ---- */

static char *program_path(void)
{
    static char path[4096];
    const char *bin = getenv("TANDEM_BIN");
    snprintf(path, sizeof(path), "%s/proposer-svc", bin ? bin : BINARY_DIR);
    return path;
}

static pid_t must_spawn(void)
{
    char *program = program_path();
    char *argv[] = {program, (char *)"--listen", targets[0], (char *)"--log-level", (char *)"error",
                    NULL};
    pid_t pid;
    int r = posix_spawn(&pid, program, NULL, NULL, argv, environ);
    if (r != 0)
        fail_msg("%s: %s", program, strerror(r));
    spawned = pid;
    return pid;
}

static void must_exit(pid_t pid, int with_signal)
{
    int status;
    kill(pid, with_signal);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    spawned = 0;
    if (with_signal == SIGTERM)
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static long rss_kib(void)
{
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%*d %ld", &pages), 1);
    fclose(f);
    return pages * (sysconf(_SC_PAGESIZE) / 1024);
}

static void a_stopped_proposer_costs_bounded_memory_and_no_time(void **state)
{
    (void)state;
    pid_t pid = must_spawn();
    AUTO(drafts_client_free) struct drafts_client *a = client_of(1);
    assert_true(drafts_client_wait_usable(a, 0, true));
    must_draft(a, 0, 1, 16, 2000);
    kill(pid, SIGSTOP);
    uint32_t base_len = 2000;
    unsigned right;
    long before = rss_kib();
    int64_t since = clock_us();
    for (uint64_t seq = 1000; seq < 3000; seq++) { // 2,000 contexts of 8 KiB and more
        drafts_client_round(a, 0, seq, 1, 2000 + seq % 3000, 5, 0, &right);
        drafts_close(drafts_client_drafts(a), seq, true);
    }
    assert_true(clock_us() - since < 30000000); // 2,000 waits would take longer
    assert_true(rss_kib() - before < 32 << 10);
    run_until_excluded(a, &base_len);
    kill(pid, SIGCONT);
    assert_true(drafts_client_wait_usable(a, 0, true));
    must_draft(a, 0, 1, 16, base_len);
    must_exit(pid, SIGTERM);
}

static void a_killed_proposer_is_found_again(void **state)
{
    (void)state;
    pid_t pid = must_spawn();
    AUTO(drafts_client_free) struct drafts_client *a = client_of(1);
    assert_true(drafts_client_wait_usable(a, 0, true));
    must_draft(a, 0, 1, 4, 100);
    must_exit(pid, SIGKILL);
    assert_true(drafts_client_wait_usable(a, 0, false));
    pid = must_spawn();
    assert_true(drafts_client_wait_usable(a, 0, true));
    must_draft(a, 0, 1, 4, 101);
    must_exit(pid, SIGTERM);
}

static void sigterm_ends_the_service_immediately(void **state)
{
    (void)state;
    pid_t pid = must_spawn();
    AUTO(drafts_client_free) struct drafts_client *a = client_of(1);
    assert_true(drafts_client_wait_usable(a, 0, true));
    must_draft(a, 0, 1, 4, 100);
    int64_t since = clock_us();
    must_exit(pid, SIGTERM);
    assert_true(clock_us() - since < 10000000);
    assert_true(drafts_client_wait_usable(a, 0, false));
}

/* The service on the first socket, with up to six further arguments. */
static struct child must_start(const char *const *more)
{
    const char *args[9] = {"--listen", targets[0]};
    for (unsigned i = 0; more[i]; i++)
        args[2 + i] = more[i];
    return child_start(program_path(), args);
}

#define MUST_START(...) must_start((const char *const[]){__VA_ARGS__, NULL})

/* Skips notifications until one that begins with this text. */
static void await_notification(const char *begin)
{
    int64_t until_us = clock_us() + MUST_US;
    for (const char *text = ""; strncmp(text, begin, strlen(begin)) != 0;) {
        assert_true(clock_us() < until_us);
        text = manager_message();
        if (!*text)
            poll(NULL, 0, 2);
    }
}

static void the_service_manager_is_told_of_start_life_and_end(void **state)
{
    setenv("WATCHDOG_USEC", "4000000", 1);
    assert_int_equal(manager_open(state), 0);
    struct child c = MUST_START("--drain-timeout", "0.3");
    await_notification("READY=1\nSTATUS=serving");
    for (int i = 0; i < 3; i++) // about one a second
        await_notification("WATCHDOG=1");
    child_signal(&c, SIGHUP);
    free(child_wait_log(&c, "SIGHUP ignored: no certificates to reload"));
    child_stop(&c);
    await_notification("STOPPING=1\nEXTEND_TIMEOUT_USEC=30300000");
    manager_close(state);
}

static uint32_t stored_sessions(struct rpc_client *c)
{
    Tandem__V1__GetStatsRequest req = TANDEM__V1__GET_STATS_REQUEST__INIT;
    ProtobufCMessage *m = NULL;
    struct rpc_status st = rpc_unary(c, "/tandem.v1.Stats/GetStats", NULL, &req.base,
                                     &tandem__v1__stats_reply__descriptor, &m);
    assert_int_equal(st.code, RPC_OK);
    uint32_t n = ((Tandem__V1__StatsReply *)m)->sessions;
    protobuf_c_message_free_unpacked(m, NULL);
    return n;
}

static void an_idle_sequence_is_dropped(void **state)
{
    (void)state;
    struct child p = MUST_START("--idle-timeout", "1.5");
    AUTO(drafts_client_free) struct drafts_client *a = client_of(1);
    AUTO(rpc_client_free) struct rpc_client *c = NULL;
    assert_int_equal(rpc_client_new(targets[0], NULL, &c), 0);
    assert_true(drafts_client_wait_usable(a, 0, true));
    must_draft(a, 0, 1, 4, 100);
    int64_t since_us = clock_us(), n = stored_sessions(c);
    assert_int_equal(n, 4);
    while (stored_sessions(c)) {
        assert_true(clock_us() - since_us < MUST_US);
        poll(NULL, 0, 20);
    }
    assert_true(clock_us() - since_us > 1000000);
    child_stop(&p);
}

struct described {
    const char *args[7];
    const char *kind;
    uint32_t k_max, max_context;
};

static void must_describe(const struct described *want)
{
    struct child p = must_start(want->args);
    AUTO(rpc_client_free) struct rpc_client *c = NULL;
    Tandem__V1__DescribeRequest req = TANDEM__V1__DESCRIBE_REQUEST__INIT;
    ProtobufCMessage *m = NULL;
    struct rpc_options patient = {.timeout_us = MUST_US, .wait_for_ready = true};
    free(child_wait_log(&p, "serving proposer="));
    assert_int_equal(rpc_client_new(targets[0], NULL, &c), 0);
    struct rpc_status st = rpc_unary(c, "/tandem.v1.Proposer/Describe", &patient, &req.base,
                                     &tandem__v1__describe_reply__descriptor, &m);
    assert_int_equal(st.code, RPC_OK);
    const Tandem__V1__DescribeReply *d = (const Tandem__V1__DescribeReply *)m;
    assert_int_equal(d->kind.len, strlen(want->kind));
    assert_memory_equal(d->kind.data, want->kind, d->kind.len);
    assert_int_equal(d->k_max, want->k_max);
    assert_int_equal(d->max_context, want->max_context);
    protobuf_c_message_free_unpacked(m, NULL);
    assert_int_equal(rpc_rig_health(c, "tandem.v1.Proposer"), 1); // SERVING
    child_stop(&p);
}

static void describe_has_the_settings_and_the_models_limit(void **state)
{
    (void)state;
#define MODEL "--draft-model=" SOURCE_DIR "/models/tales-1m-q8_0.gguf"
    static const struct described all[] = {
        {{NULL}, "ngram", 20, 1048576},
        {{"--name=x", "--k-max=7", "--max-context=64"}, "x", 7, 64},
        {{"--proposer=draft", MODEL, "--draft-context=64"}, "draft", 20, 64},
        {{"--proposer=draft", MODEL, "--draft-context=64", "--max-context=63"}, "draft", 20, 63}};
    for (size_t i = 0; i < ARRAY_LEN(all); i++)
        must_describe(&all[i]);
}

/* Waits for the end of the process, which must have printed the text. Returns its status. */
static int exit_status(struct child *c, const char *text)
{
    siginfo_t info;
    size_t len;
    assert_int_equal(waitid(P_PID, (id_t)c->pid, &info, WEXITED | WNOWAIT), 0);
    AUTO(mem_free) char *log = lib_read(c->log, &len);
    if (!strstr(log, text))
        fail_msg("'%s' is not in: %s", text, log);
    return child_wait(c);
}

static void a_start_that_fails_ends_with_status_1_and_the_reason(void **state)
{
    (void)state;
    static const char *const refused[][3] = {
        {"--proposer=eagle", NULL, "proposer must be one of"},
        {"--ngram-min=5", NULL, "ngram_min 5 is above ngram_max 4"},
        {"--listen=nowhere", NULL, "cannot listen on nowhere"},
        {"--rpc-tls-cert=x", NULL, "must be set together"}};
    for (size_t i = 0; i < ARRAY_LEN(refused); i++) {
        struct child c = must_start(refused[i]);
        assert_int_equal(exit_status(&c, refused[i][2]), 1);
    }
    struct child help = MUST_START("--help");
    assert_int_equal(exit_status(&help, "Drafts the next tokens for verifiers."), 0);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, name_sockets, clean_up)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_round_trip_returns_correct_drafts),
        TEST(an_unknown_proposer_name_is_refused),
        TEST(a_sequence_that_paused_catches_up),
        TEST(closed_sequences_are_freed_at_the_proposer),
        TEST(two_verifiers_and_two_proposers),
        TEST(sequences_of_a_dead_proposer_move_to_the_other_of_its_name),
        TEST(remaining_proposers_keep_their_stream_and_removed_ones_are_forgotten),
        TEST(all_proposers_may_be_replaced_in_one_call),
        TEST(proposers_are_replaced_while_they_draft),
        TEST(a_proposer_that_starts_later_is_found),
        TEST(a_restarted_proposer_gets_all_contexts_again),
        TEST(lying_proposers_are_excluded_and_tried_again),
        TEST(a_proposer_that_does_not_read_is_excluded),
        TEST(wrong_draft_tokens_are_not_an_error),
        TEST(a_proposer_that_does_not_fit_is_refused),
        TEST(every_protocol_version_gets_version_1),
        TEST(an_empty_round_is_answered),
        TEST(a_bad_round_ends_its_stream_with_the_reason),
        TEST(a_verifier_that_does_not_read_is_disconnected),
        TEST(a_stopped_proposer_costs_bounded_memory_and_no_time),
        TEST(a_killed_proposer_is_found_again),
        TEST(sigterm_ends_the_service_immediately),
        TEST(the_service_manager_is_told_of_start_life_and_end),
        TEST(an_idle_sequence_is_dropped),
        TEST(describe_has_the_settings_and_the_models_limit),
        TEST(a_start_that_fails_ends_with_status_1_and_the_reason),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
