/* rpc_health.h - the standard grpc.health.v1 service: Check and Watch.
 *
 * "" is the process: serving until rpc_health_stop(). A named service begins as not serving and is
 * switched by its owner. Any thread. */
#pragma once
#include "rpc/rpc.h"

#define RPC_HEALTH_MAX_SERVICES 8
#define RPC_HEALTH_MAX_WATCHES 256 // further ones end with RESOURCE_EXHAUSTED

struct rpc_health;

struct rpc_health *rpc_health_new(void);
/* After its server has stopped. NULL is fine. */
void rpc_health_free(struct rpc_health *h);
DEFINE_AUTO(struct rpc_health, rpc_health_free)

/* service: "package.Service"; outlives h. Before the start. */
void rpc_health_add(struct rpc_health *h, const char *service);
void rpc_health_register(struct rpc_health *h, struct rpc_server *s);

/* Tells those who watch. */
void rpc_health_set(struct rpc_health *h, const char *service, bool serving);
/* Before a drain: everything is not serving from now on, and those who watch are told and sent
 * away, so that their calls do not use up the drain. */
void rpc_health_stop(struct rpc_health *h);
