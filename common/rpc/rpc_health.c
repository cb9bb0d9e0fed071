/* rpc_health.c - the standard health service. */
#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "grpc/health/v1/health.pb-c.h"
#include "rpc/rpc_health.h"

#define STATUS(x) GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__##x

struct watch {
    struct rpc_call *call; // with a reference
    int service;           // index; -1: the name is unknown
};

struct rpc_health {
    pthread_mutex_t mu; // for all fields
    bool stopping;
    struct {
        const char *name;
        bool serving;
    } services[RPC_HEALTH_MAX_SERVICES];
    int n_services;
    struct watch watches[RPC_HEALTH_MAX_WATCHES];
    unsigned n_watches;
};

struct rpc_health *rpc_health_new(void)
{
    struct rpc_health *h = calloc(1, sizeof(*h));
    if (!h)
        return NULL;
    pthread_mutex_init(&h->mu, NULL);
    rpc_health_add(h, "");
    h->services[0].serving = true;
    return h;
}

void rpc_health_free(struct rpc_health *h)
{
    if (!h)
        return;
    pthread_mutex_destroy(&h->mu);
    free(h);
}

void rpc_health_add(struct rpc_health *h, const char *service)
{
    assert(h->n_services < RPC_HEALTH_MAX_SERVICES);
    h->services[h->n_services++].name = service;
}

static int find_service(const struct rpc_health *h, const char *service)
{
    int i = h->n_services - 1;
    while (i >= 0 && strcmp(h->services[i].name, service) != 0)
        i--;
    return i;
}

static int status_of(const struct rpc_health *h, int service)
{
    if (service < 0)
        return STATUS(SERVICE_UNKNOWN);
    return h->services[service].serving && !h->stopping ? STATUS(SERVING) : STATUS(NOT_SERVING);
}

static void send_status(struct rpc_call *c, int status)
{
    Grpc__Health__V1__HealthCheckResponse r = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
    r.status = (Grpc__Health__V1__HealthCheckResponse__ServingStatus)status;
    rpc_call_send(c, rpc_pack(&r.base));
}

/* The index of the requested service, or -1. False: the request is malformed; the call has
 * ended. */
static bool requested_service(struct rpc_call *c, struct rpc_msg *msg, int *ret_service)
{
    ProtobufCMessage *m =
        rpc_call_unpack(c, &grpc__health__v1__health_check_request__descriptor, msg);
    if (!m)
        return false;
    struct rpc_health *h = rpc_call_service(c);
    *ret_service = find_service(h, ((Grpc__Health__V1__HealthCheckRequest *)m)->service);
    protobuf_c_message_free_unpacked(m, NULL);
    return true;
}

static void check_start(struct rpc_call *c, struct rpc_msg *req)
{
    struct rpc_health *h = rpc_call_service(c);
    int service;
    if (!requested_service(c, req, &service))
        return;
    if (service < 0) {
        rpc_call_finish(c, RPC_NOT_FOUND, "unknown service");
        return;
    }
    pthread_mutex_lock(&h->mu);
    int status = status_of(h, service);
    pthread_mutex_unlock(&h->mu);
    send_status(c, status);
    rpc_call_finish(c, RPC_OK, NULL);
}

static void watch_start(struct rpc_call *c, struct rpc_msg *req)
{
    struct rpc_health *h = rpc_call_service(c);
    int service;
    if (!requested_service(c, req, &service))
        return;
    pthread_mutex_lock(&h->mu);
    send_status(c, status_of(h, service));
    if (h->stopping) {
        rpc_call_finish(c, RPC_UNAVAILABLE, "the server is stopping");
    } else if (h->n_watches == RPC_HEALTH_MAX_WATCHES) {
        rpc_call_finish(c, RPC_RESOURCE_EXHAUSTED, "too many calls watch this server's health");
    } else {
        rpc_call_ref(c);
        h->watches[h->n_watches++] = (struct watch){c, service};
    }
    pthread_mutex_unlock(&h->mu);
}

static void watch_cancel(struct rpc_call *c)
{
    struct rpc_health *h = rpc_call_service(c);
    bool found = false;
    pthread_mutex_lock(&h->mu);
    for (unsigned i = 0; i < h->n_watches && !found; i++) {
        found = h->watches[i].call == c;
        if (found)
            h->watches[i] = h->watches[--h->n_watches];
    }
    pthread_mutex_unlock(&h->mu);
    if (found)
        rpc_call_unref(c);
}

void rpc_health_register(struct rpc_health *h, struct rpc_server *s)
{
    static const struct rpc_method check = {.path = "/grpc.health.v1.Health/Check",
                                            .roles = RPC_ROLE_ANY,
                                            .during_drain = true,
                                            .on_start = check_start};
    static const struct rpc_method watch = {.path = "/grpc.health.v1.Health/Watch",
                                            .roles = RPC_ROLE_ANY,
                                            .during_drain = true,
                                            .on_start = watch_start,
                                            .on_cancel = watch_cancel};
    rpc_server_add(s, &check, h);
    rpc_server_add(s, &watch, h);
}

void rpc_health_set(struct rpc_health *h, const char *service, bool serving)
{
    pthread_mutex_lock(&h->mu);
    int i = find_service(h, service);
    assert(i >= 0);
    bool changes = h->services[i].serving != serving;
    h->services[i].serving = serving;
    for (unsigned k = 0; k < h->n_watches && changes; k++) {
        if (h->watches[k].service == i)
            send_status(h->watches[k].call, status_of(h, i));
    }
    pthread_mutex_unlock(&h->mu);
}

void rpc_health_stop(struct rpc_health *h)
{
    pthread_mutex_lock(&h->mu);
    h->stopping = true;
    while (h->n_watches) {
        struct watch *w = &h->watches[--h->n_watches];
        if (w->service >= 0 && h->services[w->service].serving)
            send_status(w->call, STATUS(NOT_SERVING));
        rpc_call_finish(w->call, RPC_UNAVAILABLE, "the server is stopping");
        rpc_call_unref(w->call);
    }
    pthread_mutex_unlock(&h->mu);
}
