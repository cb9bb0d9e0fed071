/* rpc_stats.c - GetStats. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include "base/clock.h"
#include "base/instance.h"
#include "base/mem.h"
#include "base/metrics.h"
#include "rpc/rpc_stats.h"

#define MAX_TEXT (4 << 20) // bytes of Prometheus text

struct rpc_stats {
    void (*fill)(void *user, Tandem__V1__StatsReply *reply);
    void *user;
    struct rpc_method method;
    int64_t since_us;
    char instance[INSTANCE_MAX];
    pthread_mutex_t mu; // held during fill and the packing of the reply
};

struct rpc_stats *rpc_stats_new(void (*fill)(void *user, Tandem__V1__StatsReply *reply), void *user)
{
    struct rpc_stats *st = calloc(1, sizeof(*st));
    if (!st)
        return NULL;
    st->fill = fill;
    st->user = user;
    st->since_us = clock_us();
    pthread_mutex_init(&st->mu, NULL);
    return st;
}

void rpc_stats_free(struct rpc_stats *st)
{
    if (!st)
        return;
    pthread_mutex_destroy(&st->mu);
    free(st);
}

static void stats_start(struct rpc_call *c, struct rpc_msg *req)
{
    struct rpc_stats *st = rpc_call_service(c);
    ProtobufCMessage *m = rpc_call_unpack(c, &tandem__v1__get_stats_request__descriptor, req);
    if (!m)
        return;
    protobuf_c_message_free_unpacked(m, NULL);

    AUTO(buf_done) struct buf text = {0};
    buf_init(&text, MAX_TEXT);
    Tandem__V1__StatsReply reply = TANDEM__V1__STATS_REPLY__INIT;
    reply.instance = rpc_text(st->instance);
    pthread_mutex_lock(&st->mu);
    st->fill(st->user, &reply); // before rendering: it may set gauges
    metrics_render(&text);
    reply.prometheus = (ProtobufCBinaryData){text.len, (uint8_t *)text.data};
    reply.uptime_s = (double)(clock_us() - st->since_us) * 1e-6;
    int r = buf_error(&text);
    if (r < 0)
        rpc_call_fail(c, r);
    else
        rpc_call_reply(c, &reply.base);
    pthread_mutex_unlock(&st->mu);
}

void rpc_stats_set_instance(struct rpc_stats *st, const char *instance)
{
    snprintf(st->instance, sizeof(st->instance), "%s", instance);
}

void rpc_stats_register(struct rpc_stats *st, struct rpc_server *s, unsigned roles)
{
    st->method = (struct rpc_method){.path = "/tandem.v1.Stats/GetStats",
                                     .roles = roles,
                                     .during_drain = true,
                                     .on_start = stats_start};
    rpc_server_add(s, &st->method, st);
}
