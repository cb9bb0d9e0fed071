/* rpc_health.h - the standard grpc.health.v1 service: Check and Watch.
 *
 * The service "" is the process: it serves until rpc_health_stop(). A named service starts as not
 * serving; its owner changes that with rpc_health_set().
 *
 * Threads: any. */
#pragma once
#include "rpc/rpc.h"

#define RPC_HEALTH_MAX_SERVICES 8
#define RPC_HEALTH_MAX_WATCHES 256 // more Watch calls end with RESOURCE_EXHAUSTED

struct rpc_health;

struct rpc_health *rpc_health_new(void);
/* The server must have stopped. NULL is fine. */
void rpc_health_free(struct rpc_health *h);
DEFINE_AUTO(struct rpc_health, rpc_health_free)

/* Before the server starts. service: "package.Service"; the text must outlive h. */
void rpc_health_add(struct rpc_health *h, const char *service);
void rpc_health_register(struct rpc_health *h, struct rpc_server *s);

/* Changes the status of a service and notifies its watchers. */
void rpc_health_set(struct rpc_health *h, const char *service, bool serving);
/* Called before a drain: every service becomes not serving. Watchers are notified and their calls
 * end, so the drain does not wait for them. */
void rpc_health_stop(struct rpc_health *h);
