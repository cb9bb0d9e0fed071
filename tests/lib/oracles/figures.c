/* figures.c - values from GetStats. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "lib/lib.h"
#include "base/clock.h"
#include "base/mem.h"
#include "lib/oracles/figures.h"

#define WITHIN_S 60

Tandem__V1__StatsReply *stats_of(struct rpc_client *c)
{
    Tandem__V1__GetStatsRequest req = TANDEM__V1__GET_STATS_REQUEST__INIT;
    ProtobufCMessage *reply;
    struct rpc_status st = rpc_unary(c, "/tandem.v1.Stats/GetStats", NULL, &req.base,
                                     &tandem__v1__stats_reply__descriptor, &reply);
    assert_int_equal(st.code, RPC_OK);
    return (Tandem__V1__StatsReply *)reply;
}

void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
}

void wait_requests(struct rpc_client *c, uint32_t running, uint32_t waiting)
{
    int64_t until = clock_us() + WITHIN_S * INT64_C(1000000);
    for (bool there = false; !there; nap()) {
        Tandem__V1__StatsReply *s = stats_of(c);
        there = s->running == running && s->waiting == waiting;
        tandem__v1__stats_reply__free_unpacked(s, NULL);
        assert_true(clock_us() < until);
    }
}

void wait_proposers(struct rpc_client *c)
{
    int64_t until = clock_us() + WITHIN_S * INT64_C(1000000);
    for (bool there = false; !there; nap()) {
        Tandem__V1__StatsReply *s = stats_of(c);
        there = s->n_proposers > 0;
        for (size_t i = 0; i < s->n_proposers; i++)
            there = there && s->proposers[i]->connected;
        tandem__v1__stats_reply__free_unpacked(s, NULL);
        assert_true(clock_us() < until);
    }
}

static Tandem__V1__ProposerStats proposer_of(struct rpc_client *c, size_t proposer)
{
    Tandem__V1__StatsReply *s = stats_of(c);
    assert_true(proposer < s->n_proposers);
    Tandem__V1__ProposerStats p = *s->proposers[proposer]; // only its numbers stay valid
    tandem__v1__stats_reply__free_unpacked(s, NULL);
    return p;
}

uint64_t drafts_of(struct rpc_client *c, size_t proposer)
{
    return proposer_of(c, proposer).drafts;
}

uint64_t late_of(struct rpc_client *c, size_t proposer)
{
    return proposer_of(c, proposer).late;
}

uint64_t restarts_of(struct rpc_client *c, size_t proposer)
{
    return proposer_of(c, proposer).restarts;
}

double metric_of(struct rpc_client *c, const char *name)
{
    Tandem__V1__StatsReply *s = stats_of(c);
    AUTO(mem_free) char *text = strndup((char *)s->prometheus.data, s->prometheus.len);
    tandem__v1__stats_reply__free_unpacked(s, NULL);
    char line[256];
    snprintf(line, sizeof(line), "\n%s ", name);
    const char *at = strstr(text, line);
    assert_non_null(at);
    return strtod(at + strlen(line), NULL);
}

void wait_metric(struct rpc_client *c, const char *name, double at_least)
{
    int64_t until = clock_us() + WITHIN_S * INT64_C(1000000);
    for (; metric_of(c, name) < at_least; nap())
        assert_true(clock_us() < until);
}
