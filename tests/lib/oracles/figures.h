/* figures.h - what a verifier says of itself (GetStats), for tests; waits 60 s at most. */
#pragma once
#include <stdint.h>
#include "rpc/rpc.h"
#include "tandem/v1/stats.pb-c.h"

void nap(void); // between two looks
/* Free it with tandem__v1__stats_reply__free_unpacked(). */
Tandem__V1__StatsReply *stats_of(struct rpc_client *c);
/* Until so many run and wait: the engine tells nobody, so it is asked. */
void wait_load(struct rpc_client *c, uint32_t running, uint32_t waiting);
/* Until all proposers are connected. */
void wait_proposers(struct rpc_client *c);
/* Drafts that the proposer has sent; how many come in time is the machine's affair. */
uint64_t drafts_of(struct rpc_client *c, size_t proposer);
uint64_t late_of(struct rpc_client *c, size_t proposer);     // of them, after their budget
uint64_t restarts_of(struct rpc_client *c, size_t proposer); // connections but the first
/* A line of its Prometheus text; name: with its labels. The test ends if there is none. */
double metric_of(struct rpc_client *c, const char *name);
void wait_metric(struct rpc_client *c, const char *name, double at_least);
