/* rounds.c - batches of hostile Rounds, as a proposer's threads process them. */
#include "lib/rigs/rounds.h"
#include <stdlib.h>
#include <tandem/v1/proposer.pb-c.h>
#include "base/clock.h"
#include "base/log.h"
#include "base/metrics.h"
#include "proposer-svc/batch.h"
#include "rpc/rpc.h"

#define MAX_SESSIONS 4
#define MAX_TOKENS 1000
#define STEPS 40 // of background work and drafts, until the open asks are dropped

static struct batch_config config;

void rounds_open(const struct prop_ops *ops)
{
    struct sessions_config sc = {.ops = ops,
                                 .max_sessions = MAX_SESSIONS,
                                 .max_tokens = MAX_TOKENS,
                                 .max_context = 500,
                                 .k_max = 20,
                                 .idle_us = INT64_MAX};
    struct prop_about about = {.q_modes = 1u << DRAFT_POINT};
    log_init("fuzz", LOG_LEVEL_ERROR);
    if (ops->open(&sc.shared) < 0 || sessions_new(&sc, &config.sessions) < 0)
        abort();
    if (ops->about)
        ops->about(sc.shared, &about);
    struct metric *m = metrics_counter("test_rounds", "", NULL);
    config.ops = ops;
    config.shared = sc.shared;
    config.q_modes = about.q_modes;
    config.rounds = config.drafts = config.tokens = config.needed = m;
    config.seconds = metrics_histogram("test_rounds_s", "", NULL, NULL, 0);
}

/* Parents precede children; survival is a probability. */
static void check_draft(const Tandem__V1__SequenceDraft *d)
{
    if (d->n_tokens > DRAFT_MAX_NODES || (d->n_parents && d->n_parents != d->n_tokens) ||
        (d->n_survival && d->n_survival != d->n_tokens))
        abort();
    for (size_t i = 0; i < d->n_parents; i++)
        if (d->parents[i] < -1 || d->parents[i] >= (int32_t)i)
            abort();
    for (size_t i = 0; i < d->n_survival; i++)
        if (!(d->survival[i] >= 0 && d->survival[i] <= 1))
            abort();
}

static void take_answers(struct batch *b)
{
    struct batch_origin from;
    for (struct rpc_msg *msg; (msg = batch_answer(b, &from));) {
        Tandem__V1__Drafts *drafts =
            (Tandem__V1__Drafts *)rpc_unpack(&tandem__v1__drafts__descriptor, msg);
        rpc_msg_free(msg);
        if (!drafts)
            abort();
        for (size_t i = 0; i < drafts->n_drafts; i++)
            check_draft(drafts->drafts[i]);
        tandem__v1__drafts__free_unpacked(drafts, NULL);
    }
}

static void draft(struct batch *b)
{
    for (int i = 0; i < STEPS && batch_n_open(b); i++) {
        batch_draft(b);
        take_answers(b);
        if (batch_n_open(b) && config.ops->work)
            config.ops->work(config.shared);
    }
}

static void end_stream(struct batch *b, uint64_t stream)
{
    batch_end_stream(b, stream);
    sessions_end_stream(config.sessions, stream);
}

static void take_round(struct batch *b, uint64_t stream, const uint8_t *data, size_t n)
{
    struct rpc_msg *msg = rpc_msg_of(data, n);
    const struct batch_origin from = {.stream = stream};
    Tandem__V1__Round *round = (Tandem__V1__Round *)rpc_unpack(&tandem__v1__round__descriptor, msg);
    rpc_msg_free(msg);
    if (round && batch_take(b, &from, round, round, clock_us()) < 0)
        end_stream(b, stream); // as the service does
}

static void check_stats(uint32_t max_sessions, uint64_t max_tokens)
{
    struct sessions_stats stats;
    sessions_stats(config.sessions, &stats);
    if (stats.n_sessions > max_sessions || stats.n_tokens > max_tokens)
        abort();
}

void rounds_read(const uint8_t *data, size_t n)
{
    struct batch *b = NULL;
    if (batch_new(&config, &b) < 0)
        abort();
    for (unsigned i = 0; n >= 2; i++) {
        size_t len = data[0] | (size_t)(data[1] & 0x7f) << 8;
        len = len < n - 2 ? len : n - 2;
        take_round(b, 1 + i % 2, data + 2, len);
        if (!(data[1] & 0x80))
            draft(b);
        take_answers(b);
        check_stats(MAX_SESSIONS, MAX_TOKENS);
        data += 2 + len;
        n -= 2 + len;
    }
    draft(b);
    end_stream(b, 1);
    end_stream(b, 2);
    if (batch_n_open(b))
        abort();
    check_stats(0, 0);
    batch_free(b);
}
