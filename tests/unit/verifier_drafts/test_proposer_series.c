/* test_proposer_series.c - metrics that a proposer reports, from a server that the test plays. */
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/mem.h"
#include "lib/lib.h"
#include "lib/rigs/rpc_rig.h"
#include "tandem/v1/stats.pb-c.h"
#include "verifier-svc/drafts/proposer_series.h"

#define INTERVAL_US 2000000

static struct {
    int held;          // calls that are not answered
    atomic_bool holds; // the next call is not answered
    atomic_size_t n_text, n_instance;
} played;

static void get_stats(struct rpc_call *call, struct rpc_msg *in)
{
    (void)in;
    static uint8_t bytes[PROPOSER_SERIES_TEXT + 1];
    if (played.holds) {
        rpc_rig_bump(&played.held);
        return;
    }
    Tandem__V1__StatsReply reply = TANDEM__V1__STATS_REPLY__INIT;
    memset(bytes, 'm', sizeof(bytes));
    reply.prometheus = (ProtobufCBinaryData){played.n_text, bytes};
    reply.instance = (ProtobufCBinaryData){played.n_instance, bytes};
    rpc_call_reply(call, &reply.base);
}

static const struct rpc_method method = {
    .path = "/tandem.v1.Stats/GetStats", .roles = RPC_ROLE_VERIFIER, .on_start = get_stats};

struct world {
    char folder[40];
    struct rpc_server *server;
    struct rpc_client *client;
    struct proposer_series *series;
};

static int set_up(void **state)
{
    struct world *w = *state = calloc(1, sizeof(*w));
    char target[80];
    assert_non_null(w);
    played.held = 0;
    played.holds = false;
    played.n_text = played.n_instance = 0;
    strcpy(w->folder, "/tmp/tandem-test-series-XXXXXX");
    assert_non_null(mkdtemp(w->folder));
    snprintf(target, sizeof(target), "unix:%s/s", w->folder);
    const struct rpc_server_options opt = {.own_role = RPC_ROLE_VERIFIER};
    assert_int_equal(rpc_server_new(&opt, &w->server), 0);
    rpc_server_add(w->server, &method, w);
    assert_true(rpc_server_listen(w->server, target) >= 0);
    assert_int_equal(rpc_server_start(w->server), 0);
    assert_int_equal(rpc_client_new(target, NULL, &w->client), 0);
    assert_int_equal(proposer_series_new(&w->series), 0);
    return 0;
}

static int tear_down(void **state)
{
    struct world *w = *state;
    proposer_series_stop(w->series);
    proposer_series_free(w->series);
    rpc_client_free(w->client);
    rpc_server_stop(w->server, 20);
    rmdir(w->folder);
    free(w);
    return 0;
}

/* Whether the last answer had these sizes; 0, 0: there is none. */
static bool reports(struct world *w, size_t n_text, size_t n_instance)
{
    struct proposer_series_copy copy;
    proposer_series_copy(w->series, &copy);
    for (size_t i = 0; i < copy.n_text; i++)
        assert_int_equal(copy.text[i], 'm');
    for (size_t i = 0; i < copy.n_instance; i++)
        assert_int_equal(copy.instance[i], 'm');
    return copy.n_text == n_text && copy.n_instance == n_instance;
}

/* Asks again and again, each time an interval later, until an answer with these sizes has come. A
 * call may end without one. Returns when to ask again. */
static int64_t ask(struct world *w, int64_t now_us, size_t n_text, size_t n_instance)
{
    for (int ms = 0; ms < 20000; ms++) {
        int64_t next_us = proposer_series_poll(w->series, w->client, now_us);
        assert_true(next_us == now_us + INTERVAL_US);
        now_us = next_us;
        poll(NULL, 0, 1); // an answer is no event for the owner
        if (reports(w, n_text, n_instance))
            return now_us;
    }
    fail_msg("no answer of %zu bytes came", n_text);
    return 0;
}

static void metrics_are_requested_every_two_seconds(void **state)
{
    struct world *w = *state;
    played.n_text = 100;
    played.n_instance = 10;
    assert_true(reports(w, 0, 0));
    int64_t next_us = ask(w, 1000, 100, 10);
    for (int64_t us = INTERVAL_US; us > 0; us -= INTERVAL_US / 4 - 1) // too early
        assert_true(proposer_series_poll(w->series, w->client, next_us - us) == next_us);
    assert_true(proposer_series_poll(w->series, w->client, next_us - 1) == next_us);
    played.n_text = 50;
    ask(w, next_us, 50, 10);
}

static void what_is_too_long_is_dropped(void **state)
{
    struct world *w = *state;
    int64_t now_us = 1000;
    static const size_t sizes[][4] = {// of the text and the instance, and what is kept
                                      {PROPOSER_SERIES_TEXT, PROPOSER_SERIES_INSTANCE,
                                       PROPOSER_SERIES_TEXT, PROPOSER_SERIES_INSTANCE},
                                      {PROPOSER_SERIES_TEXT + 1, 10, 0, 0},
                                      {7, 5, 7, 5},
                                      {10, PROPOSER_SERIES_INSTANCE + 1, 0, 0},
                                      {0, 5, 0, 5}};
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        played.n_text = sizes[i][0];
        played.n_instance = sizes[i][1];
        now_us = ask(w, now_us, sizes[i][2], sizes[i][3]);
    }
}

/* The call ends after its time limit of a second, and the last answer stays. */
static void one_call_runs_at_a_time(void **state)
{
    struct world *w = *state;
    int64_t since_us = 0;
    played.n_text = 100;
    played.n_instance = 10;
    int64_t now_us = ask(w, 1000, 100, 10);
    played.holds = true;
    for (; !rpc_rig_count(&played.held); now_us += INTERVAL_US) {
        since_us = since_us ? since_us : clock_us();
        proposer_series_poll(w->series, w->client, now_us);
        poll(NULL, 0, 1);
    }
    for (unsigned i = 0; i < 20; i++, now_us += INTERVAL_US)
        assert_true(proposer_series_poll(w->series, w->client, now_us) == now_us + INTERVAL_US);
    assert_true(rpc_rig_count(&played.held) == 1 || clock_us() - since_us > 500000);
    played.holds = false;
    assert_true(reports(w, 100, 10));
    played.n_text = 55;
    ask(w, now_us, 55, 10);
}

static void without_a_proposer_its_metrics_are_forgotten(void **state)
{
    struct world *w = *state;
    played.n_text = 100;
    played.n_instance = 10;
    ask(w, 1000, 100, 10);
    proposer_series_stop(w->series);
    assert_true(reports(w, 0, 0));
    played.n_text = 3;
    ask(w, 5, 3, 10); // immediately
    proposer_series_stop(w->series);
    proposer_series_stop(w->series);
    assert_true(reports(w, 0, 0));
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(metrics_are_requested_every_two_seconds),
        TEST(what_is_too_long_is_dropped),
        TEST(one_call_runs_at_a_time),
        TEST(without_a_proposer_its_metrics_are_forgotten),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
