/* figures.h - the figures that a verifier reports (GetStats), for tests. Waits are at most 60 s. */
#pragma once
#include <stdint.h>
#include "rpc/rpc.h"
#include "tandem/v1/stats.pb-c.h"

void nap(void); // pause between two queries
/* Free it with tandem__v1__stats_reply__free_unpacked(). */
Tandem__V1__StatsReply *stats_of(struct rpc_client *c);
/* Waits until this many requests run and wait. Polls, because the engine sends no event. */
void wait_requests(struct rpc_client *c, uint32_t running, uint32_t waiting);
/* Waits until all proposers are connected. */
void wait_proposers(struct rpc_client *c);
/* Drafts that the proposer has sent. The machine decides how many are in time. */
uint64_t drafts_of(struct rpc_client *c, size_t proposer);
uint64_t late_of(struct rpc_client *c, size_t proposer);     // of them, those after their budget
uint64_t restarts_of(struct rpc_client *c, size_t proposer); // connections after the first
/* A value of the Prometheus text. name: with labels. Ends the test if there is no such line. */
double metric_of(struct rpc_client *c, const char *name);
void wait_metric(struct rpc_client *c, const char *name, double at_least);
