/* batch.h - Rounds at work: from messages to the sessions' asks, and from drafts to answers.
 *
 * Rounds are taken one after the other and drafted for together; a sequence's answer is there as
 * soon as its draft is made or its time is up. A session has one ask at a time: what is still open
 * when its next update comes is answered without tokens.
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

#define BATCH_SEQUENCES_MAX 4096 // in a Round

struct batch_config {
    struct sessions *sessions;
    const struct prop_ops *ops;
    void *shared;     // what its open() returned
    unsigned q_modes; // that it offers: bits 1 << enum draft_q_mode
    struct metric *rounds, *drafts, *tokens, *needed, *seconds;
};

struct batch_origin {
    uint64_t stream;
    struct rpc_call *call; // held while its Round is here; NULL: none
};

struct batch;

int batch_new(const struct batch_config *c, struct batch **ret); // -ENOMEM
void batch_free(struct batch *b);
DEFINE_AUTO(struct batch, batch_free)

/* Updates the sessions; what is asked for is open now. The round is read until its last answer has
 * been given; owned: freed then. -EINVAL: it contradicts itself; -ENOMEM; nothing of it is open
 * then. */
int batch_take(struct batch *b, const struct batch_origin *from,
               const struct Tandem__V1__Round *round, struct Tandem__V1__Round *owned,
               int64_t now_us);
/* Drafts for what is open; what is not done and out of time is answered without tokens. */
void batch_draft(struct batch *b);
/* The next Drafts that can be sent, and whose they are until the next call; NULL: no more now. */
struct rpc_msg *batch_answer(struct batch *b, struct batch_origin *ret_from);
/* Forgets the Rounds of a stream that has ended. */
void batch_end_stream(struct batch *b, uint64_t stream);

uint32_t batch_n_open(const struct batch *b);
int64_t batch_until_us(const struct batch *b); // when the first of them is out of time
