/* test_rpc_drain.c - a server stops: running calls, late calls, restarts under traffic. */
#include <pthread.h>
#include <string.h>
#include "base/clock.h"
#include "base/rng.h"
#include "grpc/health/v1/health.pb-c.h"
#include "lib/rigs/rpc_rig.h"

#define SERVING GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING

static void *stop_main(void *arg)
{
    struct rpc_rig *r = arg;
    rpc_server_stop(r->server, 60000);
    return NULL;
}

static void a_drain_lets_running_calls_finish(void **state)
{
    struct rpc_rig *r = *state;
    struct rpc_tally t;
    struct rpc_stream *s = rpc_rig_keep(r, &t);
    pthread_t thread;
    pthread_create(&thread, NULL, stop_main, r);
    int64_t until = clock_us() + RPC_RIG_WAIT_US;
    struct rpc_status st;
    do {
        st = rpc_rig_echo(r->client, NULL, 7);
    } while (st.code == RPC_OK && clock_us() < until); // until the other thread has begun
    assert_int_equal(st.code, RPC_UNAVAILABLE);
    assert_string_equal(st.text, "the server is stopping");
    assert_int_equal(rpc_rig_health(r->client, ""), SERVING); // health still answers
    assert_int_equal(rpc_rig_count(&t.ends), 0);
    assert_true(rpc_call_send(rpc_rig_seen.kept, rpc_rig_text(5)) >= 0);
    rpc_call_finish(rpc_rig_seen.kept, RPC_OK, NULL);
    rpc_call_unref(rpc_rig_seen.kept);
    rpc_rig_await_end(&t, RPC_OK);
    assert_int_equal(t.messages, 1);
    pthread_join(thread, NULL);
    rpc_stream_free(s);
    r->server = NULL;
}

static void after_its_time_limit_a_drain_ends_calls_with_a_sentence(void **state)
{
    struct rpc_rig *r = *state;
    struct rpc_tally t;
    struct rpc_stream *s = rpc_rig_keep(r, &t);
    rpc_server_stop(r->server, 20);
    rpc_rig_finish(s, &t, RPC_UNAVAILABLE);
    assert_non_null(strstr(t.status.text, "stopping"));
    assert_int_equal(rpc_rig_seen.cancels, 1);
    assert_int_equal(rpc_rig_seen.ends, 1);
    r->server = NULL;
}

/* Its status waits for a message that is not read, so gRPC core ends the call. */
static void a_client_that_does_not_read_delays_a_stop_for_a_second(void **state)
{
    struct rpc_rig *r = *state;
    struct rpc_tally t;
    struct rpc_stream *s = rpc_rig_open(r, "/test/Flood", &t);
    rpc_stream_pause(s);
    rpc_stream_send(s, rpc_rig_ids(1, 1));
    rpc_stream_close(s);
    rpc_rig_await(&rpc_rig_seen.flooded, 5); // more than 256 KiB
    int64_t from_us = clock_us();
    rpc_server_stop(r->server, 0);
    int64_t took_us = clock_us() - from_us;
    r->server = NULL;
    assert_in_range(took_us, 1000000, RPC_RIG_WAIT_US);
    assert_int_equal(rpc_rig_seen.cancels, 1);
    assert_int_equal(rpc_rig_seen.ends, 1);
    rpc_stream_unpause(s);
    rpc_rig_await(&t.ends, 1);
    assert_int_not_equal(t.status.code, RPC_OK);
    rpc_stream_free(s);
}

/* ---- random calls and restarts ---- */

#define STRESS_THREADS 3
#define STRESS_CALLS 40 // calls of all threads between two restarts
#define STRESS_RESTARTS 5

struct stress {
    struct rpc_rig *r;
    uint64_t random;
};

static struct {
    int calls, stop;
} stress;

static unsigned random_below(struct stress *x, unsigned n)
{
    x->random = rng_splitmix64(x->random);
    return (unsigned)(x->random % n);
}

/* One stream that is cancelled, paused or closed, or times out, at a random moment. */
static void stress_stream(struct stress *x)
{
    static const char *const paths[] = {"/test/Count", "/test/Chat", "/test/Flood", "/test/None"};
    static const struct rpc_events events = {
        .drain_mark = 1 << 10, .on_message = rpc_tally_message, .on_end = rpc_tally_end};
    struct rpc_tally t = {0};
    struct rpc_options opt = {.timeout_us = 1000 + random_below(x, 30000),
                              .wait_for_ready = random_below(x, 2)};
    struct rpc_stream *s =
        rpc_stream_new(x->r->client, paths[random_below(x, ARRAY_LEN(paths))], &opt, &events, &t);
    for (unsigned n = random_below(x, 8); n; n--) {
        unsigned action = random_below(x, 6);
        if (action == 0)
            rpc_stream_pause(s);
        else if (action == 1)
            rpc_stream_unpause(s);
        else if (action == 2)
            rpc_stream_close(s);
        else
            rpc_stream_send(s, rpc_rig_ids(random_below(x, 20000), 1 + random_below(x, 200)));
    }
    if (random_below(x, 2))
        rpc_stream_cancel(s);
    rpc_stream_unpause(s);
    rpc_rig_await(&t.ends, 1); // at the latest by its deadline
    rpc_stream_free(s);
}

static void *stress_main(void *arg)
{
    struct stress *x = arg;
    while (!rpc_rig_count(&stress.stop)) {
        struct rpc_options opt = {.timeout_us = 1 + random_below(x, 5000),
                                  .wait_for_ready = random_below(x, 2)};
        if (random_below(x, 3))
            stress_stream(x);
        else
            rpc_rig_echo(x->r->client, &opt, 7); // any status
        rpc_rig_bump(&stress.calls);
    }
    return NULL;
}

static void calls_of_every_kind_survive_restarts(void **state)
{
    (void)state;
    struct rpc_rig r;
    const struct rpc_server_options opt = {.n_threads = 2, .max_calls = 8};
    rpc_rig_init(&r, &opt);
    struct stress x[STRESS_THREADS];
    pthread_t threads[STRESS_THREADS];
    for (unsigned i = 0; i < STRESS_THREADS; i++) {
        x[i] = (struct stress){.r = &r, .random = i};
        pthread_create(&threads[i], NULL, stress_main, &x[i]);
    }
    for (unsigned i = 0; i < STRESS_RESTARTS; i++) {
        rpc_rig_await(&stress.calls, rpc_rig_count(&stress.calls) + STRESS_CALLS);
        rpc_server_stop(r.server, i % 2 * 20);
        rpc_health_free(r.health);
        r.health = rpc_health_new();
        r.server = rpc_rig_server(&opt, r.health);
        assert_int_equal(rpc_server_listen(r.server, r.target), 1);
        assert_int_equal(rpc_server_start(r.server), 0);
    }
    rpc_rig_bump(&stress.stop);
    for (unsigned i = 0; i < STRESS_THREADS; i++)
        pthread_join(threads[i], NULL);
    struct rpc_options patient = {.timeout_us = RPC_RIG_WAIT_US, .wait_for_ready = true};
    assert_int_equal(rpc_rig_echo(r.client, &patient, 7).code, RPC_OK);
    rpc_rig_done(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RPC_RIG_TEST(a_drain_lets_running_calls_finish),
        RPC_RIG_TEST(after_its_time_limit_a_drain_ends_calls_with_a_sentence),
        RPC_RIG_TEST(a_client_that_does_not_read_delays_a_stop_for_a_second),
        cmocka_unit_test(calls_of_every_kind_survive_restarts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
