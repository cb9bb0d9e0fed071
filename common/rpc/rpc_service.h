/* rpc_service.h - what the gRPC services' mains share: a server with health, reflection and stats,
 * on the sockets of the service manager or on configured addresses.
 *
 *     rpc_service_new(&opt, &svc);
 *     rpc_server_add(rpc_service_server(svc), &method, user);   // the service's own methods
 *     rpc_service_start(svc);                                   // calls come from now on
 *     ... load the model ...
 *     rpc_service_serving(svc, true); svc_ready(NULL);
 *     svc_wait_signal(-1);
 *     rpc_service_stop(svc, drain_ms);                          // then free what the methods used
 *
 * Threads: main. */
#pragma once
#include "base/conf.h"
#include "rpc/rpc.h"
#include "rpc/rpc_stats.h"

struct rpc_service;

struct rpc_service_options {
    const char *name;               // "tandem.v1.Verifier": in health and reflection
    const struct conf_list *listen; // "unix:/path" (unused when sockets were passed), "host:port"
    struct rpc_server_options server;
    void (*fill_stats)(void *user, Tandem__V1__StatsReply *reply); // see rpc_stats.h
    void *user;
};

int rpc_service_new(const struct rpc_service_options *opt, struct rpc_service **ret);
struct rpc_server *rpc_service_server(struct rpc_service *s);
/* Listens and starts. -EINVAL: nowhere to listen; else see rpc_server_listen(). Logs each address.
 */
int rpc_service_start(struct rpc_service *s);
/* Health of the named service; not serving at first. Any thread. */
void rpc_service_serving(struct rpc_service *s, bool serving);
/* Tells the manager, turns health to NOT_SERVING, refuses new calls, lets running ones finish
 * within drain_ms, ends the rest with UNAVAILABLE, frees. Also after a failed start. NULL is fine.
 */
void rpc_service_stop(struct rpc_service *s, unsigned drain_ms);
