/* test_rpc_unread.c - clients that start many calls and read no answer refuse nothing to others. */
#include "grpc/health/v1/health.pb-c.h"
#include "lib/clients/http2_client.h"
#include "lib/rigs/rpc_rig.h"

#define CHECK "/grpc.health.v1.Health/Check"
#define WATCH "/grpc.health.v1.Health/Watch"
#define SERVING GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING
#define LIMIT RPC_DURING_DRAIN_MAX

/* Starts n calls, which the server has served or refused afterwards. */
static void start_calls(struct http2_client *c, const char *path, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        http2_client_call(c, path);
    assert_true(http2_client_await(c, c->n_headers + n));
}

static void unread_answers_of_one_connection_refuse_nothing_to_others(void **state)
{
    struct rpc_rig *r = *state;
    struct http2_client c = http2_client_open(r->path);
    start_calls(&c, CHECK, LIMIT + 1);
    assert_int_equal(rpc_rig_health(r->client, ""), SERVING);
    http2_client_close(&c);
}

static void unread_answers_of_many_connections_give_way(void **state)
{
    enum { EACH = RPC_DURING_DRAIN_CONNECTION_MAX, N = 2 * LIMIT / EACH };
    struct rpc_rig *r = *state;
    struct http2_client c[N];
    for (unsigned i = 0; i < N; i++) {
        c[i] = http2_client_open(r->path);
        start_calls(&c[i], CHECK, EACH);
        assert_int_equal(rpc_rig_health(r->client, ""), SERVING);
    }
    for (unsigned i = 0; i < N; i++)
        http2_client_close(&c[i]);
}

static void watches_of_one_connection_refuse_none_to_others(void **state)
{
    struct rpc_rig *r = *state;
    struct http2_client c = http2_client_open(r->path);
    struct rpc_tally t;
    start_calls(&c, WATCH, RPC_HEALTH_MAX_WATCHES);
    struct rpc_stream *s = rpc_rig_call(r, WATCH, 0, 0, &t);
    rpc_rig_await(&t.messages, 1);
    rpc_stream_cancel(s);
    rpc_rig_finish(s, &t, RPC_CANCELLED);
    http2_client_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RPC_RIG_TEST(unread_answers_of_one_connection_refuse_nothing_to_others),
        RPC_RIG_TEST(unread_answers_of_many_connections_give_way),
        RPC_RIG_TEST(watches_of_one_connection_refuse_none_to_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
