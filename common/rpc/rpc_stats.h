/* rpc_stats.h - tandem.v1.Stats/GetStats: the metrics of this process as Prometheus text, and a
 * typed summary that the service provides. */
#pragma once
#include "rpc/rpc.h"
#include "tandem/v1/stats.pb-c.h"

struct rpc_stats;

/* fill: sets fields of an initialised reply, except instance, prometheus and uptime_s. The data
 * that the reply points to must live until the next call of fill. Calls of fill never overlap; they
 * run on an rpc thread and must not block. NULL: no memory. */
struct rpc_stats *rpc_stats_new(void (*fill)(void *user, Tandem__V1__StatsReply *reply),
                                void *user);
/* The server must have stopped. NULL is fine. */
void rpc_stats_free(struct rpc_stats *st);
DEFINE_AUTO(struct rpc_stats, rpc_stats_free)

/* The instance of all replies; before the server starts. */
void rpc_stats_set_instance(struct rpc_stats *st, const char *instance);
/* roles: RPC_ROLE_*, who may call GetStats. */
void rpc_stats_register(struct rpc_stats *st, struct rpc_server *s, unsigned roles);
