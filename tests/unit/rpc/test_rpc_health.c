/* test_rpc_health.c - Check and Watch. */
#include "grpc/health/v1/health.pb-c.h"
#include "lib/rigs/rpc_rig.h"

#define SERVING GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING
#define NOT_SERVING GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__NOT_SERVING
#define SERVICE_UNKNOWN GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVICE_UNKNOWN

static void health_is_checked_by_name(void **state)
{
    struct rpc_rig *r = *state;
    assert_int_equal(rpc_rig_health(r->client, ""), SERVING);
    assert_int_equal(rpc_rig_health(r->client, "test"), NOT_SERVING);
    rpc_health_set(r->health, "test", true);
    assert_int_equal(rpc_rig_health(r->client, "test"), SERVING);
    assert_int_equal(rpc_rig_health(r->client, "other"), -RPC_NOT_FOUND);
    rpc_health_stop(r->health);
    assert_int_equal(rpc_rig_health(r->client, ""), NOT_SERVING);
    assert_int_equal(rpc_rig_health(r->client, "test"), NOT_SERVING);
}

struct watcher {
    struct rpc_tally t;
    int status[8];
};

static void watcher_message(void *user, struct rpc_msg *msg)
{
    struct watcher *w = user;
    ProtobufCMessage *m = rpc_unpack(&grpc__health__v1__health_check_response__descriptor, msg);
    assert_non_null(m);
    w->status[w->t.messages] = (int)((Grpc__Health__V1__HealthCheckResponse *)m)->status;
    protobuf_c_message_free_unpacked(m, NULL);
    rpc_tally_message(&w->t, msg);
}

static struct rpc_stream *start_watch(struct rpc_client *c, const char *service, struct watcher *w)
{
    static const struct rpc_events events = {.on_message = watcher_message,
                                             .on_end = rpc_tally_end};
    Grpc__Health__V1__HealthCheckRequest req = GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;
    req.service = (char *)(uintptr_t)service;
    *w = (struct watcher){0};
    struct rpc_stream *s = rpc_stream_new(c, "/grpc.health.v1.Health/Watch", NULL, &events, w);
    rpc_stream_send(s, rpc_pack(&req.base));
    rpc_stream_close(s);
    return s;
}

static void watchers_of_health_are_notified(void **state)
{
    struct rpc_rig *r = *state;
    struct watcher known, unknown, cancelled;
    struct rpc_stream *a = start_watch(r->client, "test", &known),
                      *b = start_watch(r->client, "other", &unknown);
    struct rpc_stream *c = start_watch(r->client, "test", &cancelled);
    rpc_rig_await(&known.t.messages, 1);
    rpc_rig_await(&unknown.t.messages, 1);
    rpc_rig_await(&cancelled.t.messages, 1);
    rpc_stream_cancel(c);
    rpc_rig_await(&cancelled.t.ends, 1);
    rpc_health_set(r->health, "test", true);
    rpc_health_set(r->health, "test", true); // no change, no message
    rpc_rig_await(&known.t.messages, 2);
    rpc_health_stop(r->health);
    rpc_rig_await(&known.t.ends, 1);
    rpc_rig_await(&unknown.t.ends, 1);
    assert_int_equal(known.t.messages, 3);
    assert_int_equal(known.status[0], NOT_SERVING);
    assert_int_equal(known.status[1], SERVING);
    assert_int_equal(known.status[2], NOT_SERVING);
    assert_int_equal(known.t.status.code, RPC_UNAVAILABLE);
    assert_int_equal(unknown.t.messages, 1);
    assert_int_equal(unknown.status[0], SERVICE_UNKNOWN);
    rpc_stream_free(a);
    rpc_stream_free(b);
    rpc_stream_free(c);
}

static void watchers_are_limited(void **state)
{
    enum { EACH = RPC_DURING_DRAIN_CONNECTION_MAX };
    struct rpc_rig *r = *state;
    static struct watcher w[RPC_HEALTH_MAX_WATCHES], last;
    struct rpc_stream *all[RPC_HEALTH_MAX_WATCHES];
    struct rpc_client *clients[RPC_HEALTH_MAX_WATCHES / EACH]; // each has one connection
    for (unsigned i = 0; i < RPC_HEALTH_MAX_WATCHES; i++) {
        if (i % EACH == 0)
            assert_int_equal(rpc_client_new(r->target, NULL, &clients[i / EACH]), 0);
        all[i] = start_watch(clients[i / EACH], "test", &w[i]);
        rpc_rig_await(&w[i].t.messages, 1);
    }
    struct rpc_stream *over = start_watch(r->client, "test", &last);
    rpc_rig_await(&last.t.ends, 1);
    assert_int_equal(last.t.status.code, RPC_RESOURCE_EXHAUSTED);
    assert_non_null(strstr(last.t.status.text, "too many calls watch"));
    rpc_stream_free(over);
    for (unsigned i = 0; i < RPC_HEALTH_MAX_WATCHES; i++) {
        assert_int_equal(rpc_rig_count(&w[i].t.ends), 0);
        rpc_stream_cancel(all[i]);
        rpc_rig_await(&w[i].t.ends, 1);
        rpc_stream_free(all[i]);
    }
    for (unsigned i = 0; i < ARRAY_LEN(clients); i++)
        rpc_client_free(clients[i]);
}

static void a_watcher_of_a_stopping_server_is_ended(void **state)
{
    struct rpc_rig *r = *state;
    struct watcher late;
    rpc_health_stop(r->health);
    struct rpc_stream *s = start_watch(r->client, "test", &late);
    rpc_rig_await(&late.t.ends, 1);
    assert_int_equal(late.status[0], NOT_SERVING);
    assert_int_equal(late.t.status.code, RPC_UNAVAILABLE);
    rpc_stream_free(s);
}

/* Watchers of a service that does not serve get no further status. */
static void a_stop_notifies_the_watchers_of_what_serves(void **state)
{
    struct rpc_rig *r = *state;
    struct watcher process, idle, serving;
    struct rpc_stream *a = start_watch(r->client, "", &process),
                      *b = start_watch(r->client, "test", &idle);
    rpc_rig_await(&process.t.messages, 1);
    rpc_rig_await(&idle.t.messages, 1);
    rpc_health_set(r->health, "test", false); // no change
    rpc_health_stop(r->health);
    rpc_rig_finish(a, &process.t, RPC_UNAVAILABLE);
    assert_string_equal(process.t.status.text, "the server is stopping");
    rpc_rig_finish(b, &idle.t, RPC_UNAVAILABLE);
    assert_int_equal(process.t.messages, 2);
    assert_int_equal(process.status[0], SERVING);
    assert_int_equal(process.status[1], NOT_SERVING);
    assert_int_equal(idle.t.messages, 1);
    struct rpc_stream *c = start_watch(r->client, "", &serving);
    rpc_rig_finish(c, &serving.t, RPC_UNAVAILABLE);
    assert_int_equal(serving.t.messages, 1);
    assert_int_equal(serving.status[0], NOT_SERVING);
    assert_string_equal(serving.t.status.text, "the server is stopping");
}

/* The status goes to the watchers of this service only, also after others have left. */
static void a_change_reaches_the_watchers_of_its_service(void **state)
{
    struct rpc_rig *r = *state;
    struct watcher w[4];
    struct rpc_stream *s[4];
    static const char *const services[] = {"test", "", "test", "other"};
    for (int i = 0; i < 4; i++) {
        s[i] = start_watch(r->client, services[i], &w[i]);
        rpc_rig_await(&w[i].t.messages, 1);
    }
    rpc_health_set(r->health, "test", true);
    rpc_rig_await(&w[0].t.messages, 2);
    rpc_rig_await(&w[2].t.messages, 2);
    rpc_stream_cancel(s[0]);
    rpc_rig_finish(s[0], &w[0].t, RPC_CANCELLED);
    rpc_health_set(r->health, "test", false);
    rpc_rig_await(&w[2].t.messages, 3);
    rpc_health_stop(r->health);
    for (int i = 1; i < 4; i++)
        rpc_rig_finish(s[i], &w[i].t, RPC_UNAVAILABLE);
    assert_int_equal(w[0].t.messages, 2);
    assert_int_equal(w[1].t.messages, 2);
    assert_int_equal(w[2].t.messages, 3);
    assert_int_equal(w[3].t.messages, 1);
}

static void a_malformed_request_is_refused(void **state)
{
    struct rpc_rig *r = *state;
    static const char *const paths[] = {"/grpc.health.v1.Health/Check",
                                        "/grpc.health.v1.Health/Watch"};
    for (int i = 0; i < 2; i++) {
        struct rpc_tally t;
        struct rpc_stream *s = rpc_rig_open(r, paths[i], &t);
        rpc_stream_send(s, rpc_msg_of("\xff\xff", 2));
        rpc_stream_close(s);
        rpc_rig_finish(s, &t, RPC_INVALID_ARGUMENT);
        assert_int_equal(t.messages, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RPC_RIG_TEST(health_is_checked_by_name),
        RPC_RIG_TEST(watchers_of_health_are_notified),
        RPC_RIG_TEST(watchers_are_limited),
        RPC_RIG_TEST(a_watcher_of_a_stopping_server_is_ended),
        RPC_RIG_TEST(a_stop_notifies_the_watchers_of_what_serves),
        RPC_RIG_TEST(a_change_reaches_the_watchers_of_its_service),
        RPC_RIG_TEST(a_malformed_request_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
