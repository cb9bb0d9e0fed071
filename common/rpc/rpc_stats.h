/* rpc_stats.h - tandem.v1.Stats/GetStats: this process's metrics as Prometheus text, and the typed
 * summary that its service fills in. */
#pragma once
#include "rpc/rpc.h"
#include "tandem/v1/stats.pb-c.h"

struct rpc_stats;

/* fill: sets what it knows in an initialised reply (all but prometheus and uptime_s). What the
 * reply then points to must live until the next call of fill; those never overlap. Runs on an rpc
 * thread, must not block. NULL without memory. */
struct rpc_stats *rpc_stats_new(void (*fill)(void *user, Tandem__V1__StatsReply *reply),
                                void *user);
/* After its server has stopped. NULL is fine. */
void rpc_stats_free(struct rpc_stats *st);
DEFINE_AUTO(struct rpc_stats, rpc_stats_free)

void rpc_stats_register(struct rpc_stats *st, struct rpc_server *s);
