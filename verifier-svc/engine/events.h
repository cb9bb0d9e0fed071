/* events.h - the results of a round for clients: one batch from the engine to the edge.
 *
 * A few batches of fixed size circulate between the two, so a round allocates nothing. If the edge
 * is late, the engine waits for it; the edge never blocks on a client.
 *
 * Threads: a batch belongs to the engine thread until events_send(), then to the edge's thread
 * until events_return(). */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/buf.h"
#include "base/mem.h"
#include "model/dist.h"
#include "verifier-svc/accept/accept.h"
#include "verifier-svc/engine/request.h"
#include "verifier-svc/engine/seq.h"

#define EVENTS_BATCHES 4

struct event_token {
    uint32_t id;
    float logprob;
    enum accept_origin origin;
    uint32_t text_at, text_len; // in the batch's text
    uint32_t n_held;            // with logprobs: held back characters before text_at
};

/* One sequence in one round. An event may have several of these parts, in this order. */
struct event {
    struct request *req;
    uint32_t choice;
    bool started;                   // the sequence was admitted
    uint32_t n_cached;              // cached rows of its prompt at that time
    uint32_t first, n_tokens;       // committed, in the batch's tokens
    uint32_t base_len, n_accepted;  // committed length, accepted draft tokens
    uint32_t round, n_draft;        // number of the round in the sequence, draft tokens verified
    char proposer[DRAFTS_NAME_MAX]; // of these draft tokens; "": none, or the client's own
    enum seq_end end;               // SEQ_CONTINUES: none
    int stop;                       // the stop string that ended it, or DETOK_NONE
    uint32_t text_at, text_len;     // text released at the end
    struct request_usage usage;     // at the end
    int error;                      // negative errno: the whole request ends
    char error_text[REQUEST_MAX_ERROR];
    bool last; // the request has ended; the edge receives the engine's hold on it
};

struct event_batch {
    struct event *v; // (max_events)
    uint32_t n, max_events;
    struct event_token *tokens; // (max_tokens)
    struct dist_top *tops;      // (max_tokens, DIST_MAX_TOP)
    uint32_t n_tokens, max_tokens;
    struct buf text; // of fixed size
};

struct events;

/* max_tokens: of a round; at least DRAFT_MAX_NODES + 1. -ENOMEM. */
int events_new(uint32_t max_events, uint32_t max_tokens, struct events **ret);
void events_free(struct events *e);
DEFINE_AUTO(struct events, events_free)

/* Allocates memory for the text of any tokens; call it before the first of them. -ENOMEM. */
int events_fit(struct events *e, const struct tok *tok);

/* The batch being filled, with space for an event of n_tokens tokens and their text, held back text
 * included. Sends a full batch first. n_tokens <= DRAFT_MAX_NODES + 1. */
struct event_batch *events_reserve(struct events *e, uint32_t n_tokens);
/* A new event in the batch that events_reserve() returned. */
struct event *events_add(struct event_batch *b, struct request *r, uint32_t choice);
/* Sends the batch to the edge, unless it is empty. */
void events_send(struct events *e);

/* For the edge: the next batch; NULL: none within wait_us, or after events_close(). */
struct event_batch *events_next(struct events *e, int64_t wait_us);
void events_return(struct events *e, struct event_batch *b);
/* Makes events_next() return without a batch. */
void events_wake(struct events *e);
/* The engine has ended. */
void events_close(struct events *e);
bool events_closed(struct events *e);
