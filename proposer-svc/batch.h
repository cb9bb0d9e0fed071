/* batch.h - the Rounds in progress: turns messages into asks, and drafts into answers.
 *
 * batch_take() adds Rounds, and batch_draft() drafts for all of them together. A sequence's answer
 * is ready when its draft is done or its time is up. A session has one ask at a time: an ask that
 * is open when its session's next update comes is answered without tokens.
 *
 * Threads: one at a time. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/mem.h"
#include "base/metrics.h"
#include "proposer-svc/session.h"

struct rpc_call;
struct rpc_msg;
struct Tandem__V1__Round;

#define BATCH_SEQUENCES_MAX 4096 // of one Round

struct batch_origin {
    uint64_t stream;
    struct rpc_call *call; // held as long as its Round is in the batch; NULL: none
};

struct batch_config {
    struct sessions *sessions;
    const struct prop_ops *ops;
    void *shared;     // what its open() returned
    unsigned q_modes; // that the proposer offers: bits 1 << enum draft_q_mode
    struct metric *rounds, *drafts, *tokens, *needed, *seconds;
    /* Whether the verifier leaves too much unread to get drafts with q; NULL: never. */
    bool (*is_slow)(const struct batch_origin *to);
};

struct batch;

int batch_new(const struct batch_config *c, struct batch **ret); // -ENOMEM
void batch_free(struct batch *b);
DEFINE_AUTO(struct batch, batch_free)

/* Updates the sessions and opens an ask for each requested draft. `round` must stay valid until its
 * last answer was returned. owned: the same round, if the batch is to free it then; NULL: the
 * caller frees the round. -EINVAL: fields of the round contradict each other. -ENOMEM. After an
 * error no ask is open. */
int batch_take(struct batch *b, const struct batch_origin *from,
               const struct Tandem__V1__Round *round, struct Tandem__V1__Round *owned,
               int64_t now_us);
/* Drafts for all open asks. Asks that are not done and out of time are answered without tokens. */
void batch_draft(struct batch *b);
/* Returns the next Drafts message that is ready; NULL: none. A slow verifier gets no draft with
 * q: its sequence is answered without tokens. *ret_from: its stream and call, valid until the next
 * call of batch_answer(). */
struct rpc_msg *batch_answer(struct batch *b, struct batch_origin *ret_from);
/* Drops the Rounds of a stream that has ended. */
void batch_end_stream(struct batch *b, uint64_t stream);

/* The number of open asks. */
uint32_t batch_n_open(const struct batch *b);
/* The earliest deadline of all open asks; INT64_MAX: none is open. */
int64_t batch_until_us(const struct batch *b);
