/* rpc_rig.c - an rpc server and its client in one process. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "base/err.h"
#include "grpc/health/v1/health.pb-c.h"
#include "lib/rigs/rpc_rig.h"
#include "rpc/rpc_reflection.h"
#include "tandem/v1/verifier.pb-c.h"

/* ---- counters ---- */

struct event {
    pthread_mutex_t mu;
    pthread_cond_t cv;
};
static struct event event = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER};

void rpc_rig_bump(int *counter)
{
    pthread_mutex_lock(&event.mu);
    ++*counter;
    pthread_cond_broadcast(&event.cv);
    pthread_mutex_unlock(&event.mu);
}

int rpc_rig_count(int *counter)
{
    pthread_mutex_lock(&event.mu);
    int n = *counter;
    pthread_mutex_unlock(&event.mu);
    return n;
}

void rpc_rig_await(int *counter, int at_least)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += RPC_RIG_WAIT_US / 1000000;
    int r = 0;
    pthread_mutex_lock(&event.mu);
    while (*counter < at_least && r == 0)
        r = pthread_cond_timedwait(&event.cv, &event.mu, &until);
    int n = *counter;
    pthread_mutex_unlock(&event.mu);
    if (n < at_least)
        fail_msg("time-out: the counter is %d, not %d", n, at_least);
}

/* ---- the service ---- */

struct rpc_rig_seen rpc_rig_seen;

static void on_cancel(struct rpc_call *c)
{
    (void)c;
    rpc_rig_bump(&rpc_rig_seen.cancels);
}

static void on_end(struct rpc_call *c)
{
    (void)c;
    rpc_rig_bump(&rpc_rig_seen.ends);
}

static void echo_start(struct rpc_call *c, struct rpc_msg *req)
{
    ProtobufCMessage *m = rpc_call_unpack(c, &tandem__v1__detokenize_request__descriptor, req);
    if (!m)
        return;
    Tandem__V1__DetokenizeRequest *d = (Tandem__V1__DetokenizeRequest *)m;
    if (d->n_ids == 1 && d->ids[0] == 99) {
        rpc_call_fail(c, fail(-ENOSPC, "no space for %d", 99));
    } else {
        Tandem__V1__DetokenizeReply reply = TANDEM__V1__DETOKENIZE_REPLY__INIT;
        reply.text = (ProtobufCBinaryData){d->n_ids * 4, (uint8_t *)d->ids};
        rpc_call_reply(c, &reply.base);
    }
    protobuf_c_message_free_unpacked(m, NULL);
}

struct rpc_msg *rpc_rig_text(size_t n)
{
    uint8_t *data = calloc(1, n + 1);
    Tandem__V1__DetokenizeReply r = TANDEM__V1__DETOKENIZE_REPLY__INIT;
    r.text = (ProtobufCBinaryData){n, data};
    struct rpc_msg *m = rpc_pack(&r.base);
    free(data);
    return m;
}

static void count_start(struct rpc_call *c, struct rpc_msg *req)
{
    ProtobufCMessage *m = rpc_call_unpack(c, &tandem__v1__detokenize_request__descriptor, req);
    if (!m)
        return;
    Tandem__V1__DetokenizeRequest *d = (Tandem__V1__DetokenizeRequest *)m;
    for (size_t i = 0; i < d->n_ids; i++)
        rpc_call_send(c, rpc_rig_text(d->ids[i]));
    rpc_call_finish(c, RPC_OK, NULL);
    protobuf_c_message_free_unpacked(m, NULL);
}

static void chat_start(struct rpc_call *c, struct rpc_msg *req)
{
    (void)c;
    (void)req;
    rpc_rig_bump(&rpc_rig_seen.chats);
}

static void chat_message(struct rpc_call *c, struct rpc_msg *msg)
{
    if (!msg) {
        rpc_call_finish(c, RPC_OK, NULL);
        return;
    }
    rpc_rig_bump(&rpc_rig_seen.messages);
    ProtobufCMessage *m = rpc_call_unpack(c, &tandem__v1__detokenize_request__descriptor, msg);
    if (!m)
        return;
    rpc_call_send(c, rpc_pack(m));
    protobuf_c_message_free_unpacked(m, NULL);
}

static void keep_start(struct rpc_call *c, struct rpc_msg *req)
{
    (void)req;
    rpc_call_ref(c);
    rpc_rig_seen.kept = c;
    rpc_rig_bump(&rpc_rig_seen.starts);
}

static void keep_cancel(struct rpc_call *c)
{
    rpc_rig_bump(&rpc_rig_seen.cancels);
    rpc_call_unref(c);
}

/* Sends until 256 KiB are unread; flood_drain() continues. Ends after 64 messages. */
static void flood_send(struct rpc_call *c)
{
    while (rpc_rig_count(&rpc_rig_seen.flooded) < 64) {
        rpc_rig_bump(&rpc_rig_seen.flooded);
        if (rpc_call_send(c, rpc_rig_text(64 << 10)) > 256 << 10)
            return;
    }
    rpc_call_finish(c, RPC_OK, NULL);
}

static void flood_start(struct rpc_call *c, struct rpc_msg *req)
{
    (void)req;
    flood_send(c);
}

static void flood_drain(struct rpc_call *c)
{
    rpc_rig_bump(&rpc_rig_seen.drains);
    flood_send(c);
}

static void paused_start(struct rpc_call *c, struct rpc_msg *req)
{
    (void)req;
    rpc_call_pause(c);
    rpc_call_ref(c);
    rpc_rig_seen.kept = c;
    rpc_rig_bump(&rpc_rig_seen.starts);
}

static const struct rpc_method methods[] = {
    {.path = "/test/Echo", .roles = RPC_ROLE_ANY, .on_start = echo_start, .on_end = on_end},
    {.path = "/test/Count",
     .roles = RPC_ROLE_ANY,
     .on_start = count_start,
     .on_cancel = on_cancel,
     .on_end = on_end},
    {.path = "/test/Chat",
     .roles = RPC_ROLE_ANY,
     .reads_stream = true,
     .on_start = chat_start,
     .on_message = chat_message,
     .on_cancel = on_cancel,
     .on_end = on_end},
    {.path = "/test/Keep",
     .roles = RPC_ROLE_ANY,
     .on_start = keep_start,
     .on_cancel = keep_cancel,
     .on_end = on_end},
    {.path = "/test/Flood",
     .roles = RPC_ROLE_ANY,
     .on_start = flood_start,
     .drain_mark = 256 << 10,
     .on_drain = flood_drain,
     .on_cancel = on_cancel,
     .on_end = on_end},
    {.path = "/test/Paused",
     .roles = RPC_ROLE_ANY,
     .reads_stream = true,
     .on_start = paused_start,
     .on_message = chat_message,
     .on_end = on_end},
    {.path = "/test/Own",
     .roles = RPC_ROLE_ANY,
     .on_start = keep_start,
     .on_cancel = keep_cancel,
     .on_end = on_end},
};

/* ---- server and client of one test ---- */

static const struct rpc_reflection reflection = {
    .services = {"tandem.v1.Verifier", "grpc.health.v1.Health"}, .n_services = 2};

struct rpc_server *rpc_rig_server(const struct rpc_server_options *opt, struct rpc_health *h)
{
    static const struct rpc_server_options defaults;
    struct rpc_server *s;
    assert_int_equal(rpc_server_new(opt ? opt : &defaults, &s), 0);
    for (size_t i = 0; i < ARRAY_LEN(methods); i++)
        rpc_server_add(s, &methods[i], NULL);
    rpc_server_limit(s, &methods[ARRAY_LEN(methods) - 1], RPC_RIG_OWN_CALLS);
    rpc_health_add(h, "test");
    rpc_health_register(h, s);
    rpc_reflection_register(&reflection, s);
    return s;
}

void rpc_rig_init(struct rpc_rig *r, const struct rpc_server_options *opt)
{
    memset(&rpc_rig_seen, 0, sizeof(rpc_rig_seen));
    *r = (struct rpc_rig){.health = rpc_health_new()};
    snprintf(r->folder, sizeof(r->folder), "/tmp/tandem-test-rpc-XXXXXX");
    assert_non_null(mkdtemp(r->folder));
    snprintf(r->path, sizeof(r->path), "%s/s.sock", r->folder);
    snprintf(r->target, sizeof(r->target), "unix:%s", r->path);
    r->server = rpc_rig_server(opt, r->health);
    assert_int_equal(rpc_server_listen(r->server, r->target), 1);
    assert_int_equal(rpc_server_start(r->server), 0);
    assert_int_equal(rpc_client_new(r->target, NULL, &r->client), 0);
}

void rpc_rig_done(struct rpc_rig *r)
{
    rpc_client_free(r->client);
    rpc_server_stop(r->server, 1000);
    rpc_health_free(r->health);
    assert_int_equal(access(r->path, F_OK), -1); // the server has removed its socket
    assert_int_equal(rmdir(r->folder), 0);       // and created no other file
}

int rpc_rig_setup(void **state)
{
    struct rpc_rig *r = malloc(sizeof(*r));
    assert_non_null(r);
    rpc_rig_init(r, NULL);
    *state = r;
    return 0;
}

int rpc_rig_teardown(void **state)
{
    rpc_rig_done(*state);
    free(*state);
    return 0;
}

struct rpc_status rpc_rig_echo(struct rpc_client *c, const struct rpc_options *opt, uint32_t id)
{
    Tandem__V1__DetokenizeRequest req = TANDEM__V1__DETOKENIZE_REQUEST__INIT;
    req.n_ids = 1;
    req.ids = &id;
    ProtobufCMessage *m;
    struct rpc_status st =
        rpc_unary(c, "/test/Echo", opt, &req.base, &tandem__v1__detokenize_reply__descriptor, &m);
    if (st.code == RPC_OK) {
        ProtobufCBinaryData text = ((Tandem__V1__DetokenizeReply *)m)->text;
        assert_int_equal(text.len, 4);
        assert_memory_equal(text.data, &id, 4);
        protobuf_c_message_free_unpacked(m, NULL);
    } else {
        assert_null(m);
    }
    return st;
}

void rpc_tally_message(void *user, struct rpc_msg *msg)
{
    struct rpc_tally *t = user;
    t->bytes += rpc_msg_len(msg);
    rpc_rig_bump(&t->messages);
}

static void tally_drain(void *user)
{
    rpc_rig_bump(&((struct rpc_tally *)user)->drains);
}

void rpc_tally_end(void *user, const struct rpc_status *status)
{
    struct rpc_tally *t = user;
    t->status = *status;
    rpc_rig_bump(&t->ends);
}

static const struct rpc_events tally_events = {.drain_mark = 128 << 10,
                                               .on_message = rpc_tally_message,
                                               .on_drain = tally_drain,
                                               .on_end = rpc_tally_end};

struct rpc_msg *rpc_rig_ids(uint32_t id, size_t n)
{
    uint32_t *ids = malloc(n * sizeof(*ids) + 1);
    for (size_t i = 0; i < n; i++)
        ids[i] = id;
    Tandem__V1__DetokenizeRequest req = TANDEM__V1__DETOKENIZE_REQUEST__INIT;
    req.n_ids = n;
    req.ids = ids;
    struct rpc_msg *m = rpc_pack(&req.base);
    free(ids);
    return m;
}

struct rpc_stream *rpc_rig_open(struct rpc_rig *r, const char *path, struct rpc_tally *t)
{
    *t = (struct rpc_tally){0};
    return rpc_stream_new(r->client, path, NULL, &tally_events, t);
}

struct rpc_stream *rpc_rig_call(struct rpc_rig *r, const char *path, uint32_t id, size_t n,
                                struct rpc_tally *t)
{
    struct rpc_stream *s = rpc_rig_open(r, path, t);
    rpc_stream_send(s, rpc_rig_ids(id, n));
    rpc_stream_close(s);
    return s;
}

struct rpc_stream *rpc_rig_keep(struct rpc_rig *r, struct rpc_tally *t)
{
    struct rpc_stream *s = rpc_rig_call(r, "/test/Keep", 1, 1, t);
    rpc_rig_await(&rpc_rig_seen.starts, 1);
    return s;
}

void rpc_rig_await_end(struct rpc_tally *t, enum rpc_code code)
{
    rpc_rig_await(&t->ends, 1);
    assert_int_equal(t->status.code, code);
}

int rpc_rig_health(struct rpc_client *c, const char *service)
{
    Grpc__Health__V1__HealthCheckRequest req = GRPC__HEALTH__V1__HEALTH_CHECK_REQUEST__INIT;
    req.service = (char *)(uintptr_t)service;
    ProtobufCMessage *m;
    struct rpc_status st = rpc_unary(c, "/grpc.health.v1.Health/Check", NULL, &req.base,
                                     &grpc__health__v1__health_check_response__descriptor, &m);
    if (st.code != RPC_OK)
        return -(int)st.code;
    int status = (int)((Grpc__Health__V1__HealthCheckResponse *)m)->status;
    protobuf_c_message_free_unpacked(m, NULL);
    return status;
}

void rpc_rig_finish(struct rpc_stream *s, struct rpc_tally *t, enum rpc_code code)
{
    rpc_rig_await_end(t, code);
    rpc_stream_free(s);
}
