/* rpc_service.h - the common part of the gRPC services: a server with health, reflection and stats,
 * on sockets of the service manager or on configured addresses.
 *
 *     rpc_service_new(&opt, &svc);
 *     rpc_server_add(rpc_service_server(svc), &method, user);   // the service's own methods
 *     rpc_service_start(svc);                                   // calls arrive from here on
 *     ... load the model ...
 *     rpc_service_serving(svc, true); svc_ready(NULL);
 *     svc_wait_signal(-1);
 *     rpc_service_stop(svc, drain_ms);                          // then free the methods' data
 *
 * Threads: main. */
#pragma once
#include "base/conf.h"
#include "rpc/rpc.h"
#include "rpc/rpc_roles.h"
#include "rpc/rpc_stats.h"

struct rpc_service;

struct rpc_service_options {
    const char *name;               // "tandem.v1.Verifier", for health and reflection
    const char *instance;           // name in metrics; NULL or "": host and first address
    const struct conf_list *listen; // "host:port"; "unix:/path", ignored if sockets are passed
    const struct rpc_roles_settings *access; // NULL: the defaults
    unsigned stats_roles;                    // RPC_ROLE_*: who may call GetStats
    struct rpc_server_options server;        // tls_roles and insecure come from access
    void (*fill_stats)(void *user, Tandem__V1__StatsReply *reply); // see rpc_stats.h
    void *user;
};

int rpc_service_new(const struct rpc_service_options *opt, struct rpc_service **ret);
struct rpc_server *rpc_service_server(struct rpc_service *s);
/* Listens, starts the server, and logs each address. A passed socket of the name "admin"
 * (FileDescriptorName=) is an admin socket. -EINVAL: no address to listen on; other errors: see
 * rpc_server_listen(). */
int rpc_service_start(struct rpc_service *s);
/* Sets the health of the named service, which is NOT_SERVING at first. Any thread. */
void rpc_service_serving(struct rpc_service *s, bool serving);
/* Notifies the service manager, sets health to NOT_SERVING, and refuses new calls. Lets running
 * ones finish within drain_ms, ends the rest with UNAVAILABLE, then frees s. Also after a failed
 * start. NULL is fine. */
void rpc_service_stop(struct rpc_service *s, unsigned drain_ms);
