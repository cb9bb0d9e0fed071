/* control_state.h - the state of the controller, and its input for a round. No policy is here.
 *
 * State is kept at three levels, as docs/controller.md lists it:
 *   struct control           per verifier: pass time, counters of exploration
 *   struct control_proposer  per proposer place: acceptance, latency, granted share, prefill price
 *   struct control_seq       per sequence: factor, granted share, prefill by its proposer
 * A round is described by struct control_round and one struct control_item per sequence.
 * Policies (policy.h) read the state and fill in the items. control.h updates the state.
 *
 * Threads: the engine's; plain data. All times are in us. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "model/draft.h"
#include "verifier-svc/control/accept_rate.h"
#include "verifier-svc/control/draft_latency.h"
#include "verifier-svc/control/pass_time.h"
#include "verifier-svc/control/prefill_price.h"

#define CONTROL_K_MAX 20 // upper bound of the setting k

enum control_policy { CONTROL_GOODPUT, CONTROL_FIXED, CONTROL_EMA };

struct control_options {
    enum control_policy policy;
    uint32_t k;                  // draft tokens per sequence and round; goodput: at most
    uint32_t disable_batch_size; // no drafts when this many sequences are running; 0: no limit
};

/* All counts of a proposer fade. */
struct control_proposer {
    struct accept_rate accept_rate;
    struct draft_latency latency; // of answers with tokens
    double empty_us;              // average latency of answers without tokens; 0: none seen
    float wished, granted;        // requests answered, and those answered with tokens
    struct prefill_price prefill_price;
    struct {
        uint32_t k, n; // longest draft, most sequences in one message
        double us;     // longest latency; 0: none has arrived
    } answers;         // with tokens, to the requests of one round
    uint32_t n_tries;  // rounds in which a sequence of this proposer made a try
};

/* Starts as control_seq_init() sets it. */
struct control_seq {
    float accepted, expected; // A and E of the factor of a sequence; both fade
    float ema;                // average acceptance of its drafts, for the policy ema
    float granted;            // g: share of requests answered with tokens; below 0: no answer yet
    unsigned granted_by;      // the proposer that `granted` is about
    uint32_t n_batch;         // sequences in the message with its last request
    struct prefill_price_seq prefill; // its context, read by its proposer
    uint32_t off_rounds;              // ema: rounds without a draft since the last try
    uint32_t since_try;               // goodput: rounds since its last try
    bool trying;                      // its requested or present draft is a try
};

struct control {
    struct control_options options;
    struct pass_time pass_time;
    struct control_proposer proposers[DRAFT_MAX_PROPOSERS];
    /* For the drafts that were requested last: the part of a round beside its pass. */
    double expected_wait_us;
    double acceptance_ema; // of all rounds with drafts, shown to users
    /* Exploration (exploration.h): */
    uint32_t since_one, since_all; // rounds since a try of one sequence, and of all
    uint32_t since_less;           // rounds with drafts since a round with less
    uint32_t n_less;               // rounds with less
};

/* A decoding sequence that may request a draft, or has one. */
struct control_item {
    struct control_seq *s;
    unsigned proposer;
    uint32_t context; // positions of the sequence
    uint32_t unread;  // of these, positions that a proposer without them has to read
    uint32_t left;    // tokens that it may still generate
    /* Limits of the draft to request, or of the part of `draft` that may be verified. */
    uint32_t max_nodes;        // tokens, over all branches
    uint32_t max_depth;        // tokens of the longest path
    const struct draft *draft; // control_cut(): the draft that has arrived
    bool fixed;                // gets all tokens that it may have, under every policy
    /* Results. */
    uint32_t nodes; // tokens to request, or to verify: the first ones of the draft
    uint32_t depth; // control_ask(): longest path to request; requests are chains, so it is `nodes`
    /* For the policies. */
    uint32_t allowed;                     // tokens within all limits; to request: also within k
    uint32_t considered;                  // of these, tokens that may get a row: all or none
    uint8_t token_depth[DRAFT_MAX_NODES]; // of each token of the draft, from 1
    float survival[DRAFT_MAX_NODES];      // h: probability that the token and its path are accepted
    /* For row_budget.c. */
    uint32_t heap_item;  // item i stores place i of the heap: the index of the item there
    uint32_t best_nodes; // tokens in the best distribution so far
    bool excluded;       // the search skips all items of its proposer
    bool no_row;         // the search skips the item, because it received no row
};

/* A round without drafts. `pass` has one row for each of the n_decoding sequences, and rows of
 * prompts. The items are some of these sequences. */
struct control_round {
    struct pass_time_work pass;
    uint32_t n_decoding;
    uint32_t n_fixed;    // decoding sequences whose draft is fixed
    uint32_t n_running;  // sequences, decoding or not
    uint32_t draft_rows; // most rows for drafts
};

/* g: the probability that proposer p answers a request of this sequence with tokens. A sequence
 * without an answer of p gets a multiple of p's average, because it may fare better. */
double control_state_granted(const struct control *c, unsigned p, const struct control_seq *s);

/* True: the sequence's own granted share is about proposer p. */
bool control_state_has_answer(const struct control_seq *s, unsigned p);

/* L_p(k, n): latency of n drafts of k tokens in one message. If no answer with tokens was seen,
 * that of an answer without; 0: no answer was seen. */
double control_state_latency_us(const struct control *c, unsigned p, uint32_t k, uint32_t n);

/* Cost in us of the prefill of the item's context by its proposer. 0: the proposer has read the
 * context or is reading it, or the price is unknown. */
double control_state_prefill_us(const struct control *c, const struct control_item *v);

/* `none`: pass time without drafts per decoding sequence, so per committed token. */
double control_state_none_us(const struct control *c, const struct control_round *r);
