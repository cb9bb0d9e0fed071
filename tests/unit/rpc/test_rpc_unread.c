/* test_rpc_unread.c - clients that start many calls and read no answer, or send no message, refuse
 * nothing to others. */
#include <poll.h>
#include "grpc/health/v1/health.pb-c.h"
#include "lib/clients/http2_client.h"
#include "lib/rigs/rpc_rig.h"
#include "tandem/v1/verifier.pb-c.h"

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

static void unread_answers_leave_places_to_other_calls(void **state)
{
    (void)state;
    struct rpc_rig r;
    rpc_rig_init(&r, &(struct rpc_server_options){.max_calls = 8});
    struct http2_client c = http2_client_open(r.path);
    start_calls(&c, "/test/Echo", 20);
    assert_int_equal(rpc_rig_echo(r.client, NULL, 7).code, RPC_OK);
    for (int i = 0; i < 1000 && rpc_server_n_calls(r.server) > 5; i++)
        poll(NULL, 0, 10);
    assert_int_equal(rpc_server_n_calls(r.server), 5); // of the 6 places; the others have ended
    http2_client_close(&c);
    rpc_rig_done(&r);
}

/* Two messages; a client that pauses immediately reads the first. */
static struct rpc_msg *small_and_large(uint32_t large)
{
    Tandem__V1__DetokenizeRequest req = TANDEM__V1__DETOKENIZE_REQUEST__INIT;
    req.ids = (uint32_t[]){10, large};
    req.n_ids = 2;
    return rpc_pack(&req.base);
}

/* Answers of 1 MiB each, of which 4 MiB may be unread. */
static void unread_answers_above_their_bytes_are_ended(void **state)
{
    enum { N = 9, FIT = 4, BYTES = (1 << 20) - 64 };
    (void)state;
    struct rpc_rig r;
    struct rpc_tally t[N];
    struct rpc_stream *s[N];
    rpc_rig_init(&r, &(struct rpc_server_options){.max_unread = FIT << 20});
    for (int i = 0; i < N; i++) {
        s[i] = rpc_rig_open(&r, "/test/Count", &t[i]);
        rpc_stream_pause(s[i]);
        rpc_stream_send(s[i], small_and_large(BYTES));
        rpc_stream_close(s[i]);
        rpc_rig_await(&rpc_rig_seen.cancels, i + 1 > FIT ? i + 1 - FIT : 0);
    }
    assert_int_equal(rpc_rig_echo(r.client, NULL, 7).code, RPC_OK);
    assert_int_equal(rpc_rig_count(&rpc_rig_seen.cancels), N - FIT);
    for (int i = 0; i < N; i++) {
        rpc_stream_unpause(s[i]);
        rpc_rig_finish(s[i], &t[i], i < N - FIT ? RPC_RESOURCE_EXHAUSTED : RPC_OK);
    }
    rpc_rig_done(&r);
}

/* Of running streams, too. The one with most unread bytes ends. */
static void unread_messages_of_streams_have_a_limit_together(void **state)
{
    enum { N = 5, IDS = 200000, LONGEST = 2 };
    (void)state;
    struct rpc_rig r;
    struct rpc_tally t[N];
    struct rpc_stream *s[N];
    rpc_rig_init(&r, &(struct rpc_server_options){.max_unread = 4 << 20});
    for (int i = 0; i < N; i++) {
        s[i] = rpc_rig_open(&r, "/test/Chat", &t[i]);
        rpc_stream_pause(s[i]);
        rpc_rig_await(&rpc_rig_seen.chats, i + 1);
        rpc_stream_send(s[i], rpc_rig_ids(7, 1)); // the first one is read
        rpc_stream_send(s[i], rpc_rig_ids(UINT32_MAX, i == LONGEST ? IDS + 1000 : IDS)); // 1 MB
        rpc_rig_await(&rpc_rig_seen.messages, 2 * (i + 1));
    }
    for (int i = 0; i < N; i++) {
        rpc_stream_unpause(s[i]);
        rpc_stream_close(s[i]);
        if (i != LONGEST) {
            rpc_rig_finish(s[i], &t[i], RPC_OK);
            continue;
        }
        rpc_rig_await(&t[i].ends, 1);
        assert_int_not_equal(t[i].status.code, RPC_OK); // its messages in flight were cut
        rpc_stream_free(s[i]);
    }
    rpc_rig_done(&r);
}

/* Calls whose request does not come. gRPC core would hold any number of them. */
static void calls_without_a_request_give_way(void **state)
{
    enum { PLACES = 6, N = 20 };
    (void)state;
    struct rpc_rig r;
    struct rpc_tally t[N];
    struct rpc_stream *s[N];
    rpc_rig_init(&r, &(struct rpc_server_options){.max_calls = 8});
    assert_int_equal(rpc_rig_echo(r.client, NULL, 7).code, RPC_OK); // connects
    for (int i = 0; i < N; i++) {
        s[i] = rpc_rig_open(&r, "/test/Echo", &t[i]);
        if (i >= PLACES)
            rpc_rig_await_end(&t[i - PLACES], RPC_RESOURCE_EXHAUSTED);
    }
    assert_int_equal(rpc_rig_echo(r.client, NULL, 7).code, RPC_OK);
    for (int i = 0; i < N; i++) {
        rpc_stream_cancel(s[i]);
        rpc_stream_free(s[i]);
    }
    rpc_rig_done(&r);
    assert_int_equal(rpc_rig_seen.ends, 2); // only calls that have started
}

/* A server that this user's clients reach as gateways, by its unix socket, and others by a port. */
static unsigned listen_as_gateway(struct rpc_rig *r, const struct rpc_server_options *opt)
{
    rpc_server_stop(r->server, 0);
    rpc_health_free(r->health);
    r->health = rpc_health_new();
    r->server = rpc_rig_server(opt, r->health);
    assert_int_equal(rpc_server_listen(r->server, r->target), 1);
    int port = rpc_server_listen(r->server, "127.0.0.1:0");
    assert_true(port > 0);
    assert_int_equal(rpc_server_start(r->server), 0);
    return (unsigned)port;
}

/* Takes all places of a method: three quarters as a client, and then the rest as a service. */
static void take_all_places(struct rpc_rig *r, const char *path, int n)
{
    enum { MOST = 8 };
    unsigned port = listen_as_gateway(
        r, &(struct rpc_server_options){.max_calls = MOST, .own_role = RPC_ROLE_GATEWAY});
    struct rpc_rig by_port = *r;
    char target[32];
    snprintf(target, sizeof(target), "127.0.0.1:%u", port);
    assert_int_equal(rpc_client_new(target, NULL, &by_port.client), 0);
    struct rpc_tally t[MOST], t_refused;
    struct rpc_stream *s[MOST], *refused;
    for (int i = 0; i < n; i++) {
        struct rpc_rig *by = i < n - n / 4 ? &by_port : r;
        if (i == n - n / 4) {
            refused = rpc_rig_call(&by_port, path, 1, 1, &t_refused);
            rpc_rig_finish(refused, &t_refused, RPC_RESOURCE_EXHAUSTED);
        }
        s[i] = rpc_rig_call(by, path, 1, 1, &t[i]);
        rpc_rig_await(&rpc_rig_seen.starts, i + 1);
    }
    refused = rpc_rig_call(r, path, 1, 1, &t_refused);
    rpc_rig_finish(refused, &t_refused, RPC_RESOURCE_EXHAUSTED);
    for (int i = 0; i < n; i++) {
        rpc_stream_cancel(s[i]);
        rpc_rig_finish(s[i], &t[i], RPC_CANCELLED);
    }
    rpc_client_free(by_port.client);
}

static void clients_leave_a_quarter_of_the_places_to_services(void **state)
{
    take_all_places(*state, "/test/Keep", 8);
}

static void clients_leave_a_quarter_of_a_methods_own_places_to_services(void **state)
{
    take_all_places(*state, "/test/Own", RPC_RIG_OWN_CALLS);
}

/* Sends a message and reads its answer. */
static void chat(struct rpc_stream *s, struct rpc_tally *t)
{
    int n = rpc_rig_count(&t->messages);
    rpc_stream_send(s, rpc_rig_ids(7, 1));
    rpc_rig_await(&t->messages, n + 1);
}

static void streams_without_a_message_give_way_to_new_calls(void **state)
{
    enum { PLACES = 4, CLIENTS = 3 };
    (void)state;
    struct rpc_rig r;
    struct rpc_tally t[PLACES];
    struct rpc_stream *s[PLACES];
    rpc_rig_init(&r, &(struct rpc_server_options){.max_calls = PLACES});
    for (int i = 0; i < CLIENTS; i++) {
        s[i] = rpc_rig_open(&r, "/test/Chat", &t[i]);
        rpc_rig_await(&rpc_rig_seen.chats, i + 1);
    }
    chat(s[0], &t[0]);
    s[CLIENTS] = rpc_rig_open(&r, "/test/Chat", &t[CLIENTS]);
    rpc_rig_await(&t[1].ends, 1); // the oldest without a message
    assert_non_null(strstr(t[1].status.text, "no message arrived on this stream"));
    assert_int_equal(rpc_rig_echo(r.client, NULL, 7).code, RPC_OK);
    rpc_rig_await(&t[2].ends, 1);
    rpc_rig_await(&rpc_rig_seen.cancels, 2); // the owner knows
    chat(s[0], &t[0]);
    chat(s[CLIENTS], &t[CLIENTS]);
    for (int i = 0; i < PLACES; i++) {
        rpc_stream_close(s[i]);
        rpc_rig_finish(s[i], &t[i], i == 1 || i == 2 ? RPC_RESOURCE_EXHAUSTED : RPC_OK);
    }
    rpc_rig_done(&r);
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

/* Clients have three quarters of the places, and a service has one of the last quarter. */
static void streams_of_clients_give_way_beside_services(void **state)
{
    enum { CLIENTS = 6, N = 2 * CLIENTS + 1 };
    struct rpc_rig *r = *state;
    unsigned port = listen_as_gateway(
        r, &(struct rpc_server_options){.max_calls = 8, .own_role = RPC_ROLE_GATEWAY});
    struct rpc_rig by_port = *r;
    char target[32];
    snprintf(target, sizeof(target), "127.0.0.1:%u", port);
    assert_int_equal(rpc_client_new(target, NULL, &by_port.client), 0);
    struct rpc_tally t[N], t_service;
    struct rpc_stream *s[N], *service = NULL;
    for (int i = 0; i < N; i++) {
        s[i] = rpc_rig_open(&by_port, "/test/Chat", &t[i]);
        rpc_rig_await(&rpc_rig_seen.chats, 1 + i + (service != NULL));
        if (i != CLIENTS - 1)
            continue;
        service = rpc_rig_open(r, "/test/Chat", &t_service);
        rpc_rig_await(&rpc_rig_seen.chats, CLIENTS + 1);
    }
    for (int i = 0; i < N - CLIENTS; i++) {
        rpc_rig_await_end(&t[i], RPC_RESOURCE_EXHAUSTED);
        assert_non_null(strstr(t[i].status.text, "no message arrived on this stream"));
    }
    chat(service, &t_service); // it was the oldest
    for (int i = 0; i < N; i++) {
        if (i >= N - CLIENTS)
            chat(s[i], &t[i]);
        rpc_stream_close(s[i]);
        rpc_rig_finish(s[i], &t[i], i < N - CLIENTS ? RPC_RESOURCE_EXHAUSTED : RPC_OK);
    }
    rpc_stream_close(service);
    rpc_rig_finish(service, &t_service, RPC_OK);
    rpc_client_free(by_port.client);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RPC_RIG_TEST(unread_answers_of_one_connection_refuse_nothing_to_others),
        RPC_RIG_TEST(unread_answers_of_many_connections_give_way),
        cmocka_unit_test(unread_answers_leave_places_to_other_calls),
        cmocka_unit_test(unread_answers_above_their_bytes_are_ended),
        cmocka_unit_test(unread_messages_of_streams_have_a_limit_together),
        cmocka_unit_test(calls_without_a_request_give_way),
        RPC_RIG_TEST(clients_leave_a_quarter_of_the_places_to_services),
        RPC_RIG_TEST(clients_leave_a_quarter_of_a_methods_own_places_to_services),
        cmocka_unit_test(streams_without_a_message_give_way_to_new_calls),
        RPC_RIG_TEST(streams_of_clients_give_way_beside_services),
        RPC_RIG_TEST(watches_of_one_connection_refuse_none_to_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
