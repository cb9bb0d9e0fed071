/* proposer_series.h - the metrics that a proposer reports about itself, for the gateway to merge.
 *
 * They are requested with tandem.v1.Stats/GetStats every few seconds while the proposer is
 * connected, beside its Rounds. They are passed on unread: the gateway checks them.
 *
 * Threads: proposer_series_copy() from any; the others from the proposer's keeper. */
#pragma once
#include <stdint.h>
#include "base/mem.h"
#include "rpc/rpc.h"

#define PROPOSER_SERIES_TEXT 16384 // bytes; longer metrics are dropped
#define PROPOSER_SERIES_INSTANCE 256

struct proposer_series;

struct proposer_series_copy {
    size_t n_text, n_instance; // 0: none
    char text[PROPOSER_SERIES_TEXT], instance[PROPOSER_SERIES_INSTANCE];
};

int proposer_series_new(struct proposer_series **ret); // -ENOMEM
void proposer_series_free(struct proposer_series *s);  // after proposer_series_stop()
DEFINE_AUTO(struct proposer_series, proposer_series_free)

/* Requests the metrics if it is time. Does not block. Returns when to call it again. */
int64_t proposer_series_poll(struct proposer_series *s, struct rpc_client *client, int64_t now_us);
/* The proposer is no longer connected: cancels the request, waits for its end, forgets the
 * metrics. */
void proposer_series_stop(struct proposer_series *s);
void proposer_series_copy(struct proposer_series *s, struct proposer_series_copy *ret);
