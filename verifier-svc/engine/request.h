/* request.h - a checked request in the engine's terms, independent of the wire.
 *
 * request_read() converts foreign bytes to numbers within their limits; no later code checks them
 * again. A request has n choices, each a sequence (seq.h) that is allocated with it.
 *
 * Threads: filled by one rpc thread, then immutable except for the flags, which any thread may set.
 * It is reference-counted: the call and the engine hold it, and the last holder frees it. */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/mem.h"
#include "base/trace.h"
#include "model/constraint.h"
#include "model/dist.h"
#include "text/detok.h"
#include "text/tok.h"
#include "verifier-svc/accept/accept.h"
#include "verifier-svc/drafts/drafts.h"
#include "verifier-svc/engine/flows.h"

#define REQUEST_MAX_ID TRACE_REQUEST_MAX
#define REQUEST_MAX_N 128     // choices
#define REQUEST_MAX_BIAS 1024 // logit biases
#define REQUEST_MAX_STOP_IDS 64
#define REQUEST_MAX_SHOWN 16
#define REQUEST_MAX_NAME 64               // bytes of a proposer's or tenant's name
#define REQUEST_MAX_PREDICTION (1u << 20) // bytes
#define REQUEST_MAX_ERROR 160             // bytes of an error's sentence, NUL included
#define REQUEST_MAX_TEXT (8u << 20)       // bytes of a prompt
/* The flow of all clients that may not name one. It is no text in UTF-8. */
#define REQUEST_CLIENT_FLOW                                                                        \
    "\xff"                                                                                         \
    "client"

struct Tandem__V1__GenerateRequest;
struct rpc_call;
struct seq;

/* The limits that a request is checked against. */
struct request_limits {
    const struct tok *tok;
    const char *model;       // the loaded model's name
    uint32_t context;        // positions of a sequence
    uint32_t max_sequences;  // that run at the same time
    const char *fingerprint; // of the loaded model
    bool may_name; // the client is a gateway or an operator, so it names its tenant and flow
};

/* Usage of a generation. */
struct request_usage {
    uint32_t n_prompt, n_generated;
    uint32_t n_rounds, n_drafted_rounds, n_drafted, n_accepted, n_bonus;
    /* [i]: rounds with a draft of which i tokens were accepted. */
    uint32_t accepted_histogram[DRAFT_MAX_NODES + 1];
    int64_t queue_us, prompt_us, decode_us;
    uint32_t k;                     // most draft tokens per round that were allowed
    char proposer[DRAFTS_NAME_MAX]; // of the last draft; "": there was none
};

/* What another verifier has committed of a choice (continuation.h). */
struct request_choice {
    uint32_t *tokens; // (n)
    uint32_t n, round;
    bool finished;
};

struct request {
    atomic_uint n_holders;
    atomic_bool cancelled;     // the client has cancelled it
    atomic_bool paused;        // too many bytes of the answer are unread
    struct rpc_call *call;     // the edge's
    atomic_bool closing;       // Verify: no more drafts follow; the last one is still verified
    atomic_bool draft_pending; // Verify: a draft is in the inbox
    atomic_uint n_drains;      // how often on_drain was called
    bool verify;               // a Verify stream: the client sends the drafts
    int64_t arrived_us;

    char id[REQUEST_MAX_ID + 1];  // printable
    char trace[TRACE_ID_LEN + 1]; // of the traceparent, or ""
    uint32_t *prompt;             // (n_prompt)
    uint32_t n_prompt;
    char *prompt_text; // echo; else NULL
    size_t prompt_text_len;
    bool render_special, logprobs, ignore_eos;
    uint32_t shown[REQUEST_MAX_SHOWN]; // special tokens that still appear in the text
    uint32_t n_shown;

    struct dist_params params;
    struct dist_bias *bias;    // memory of params
    struct constraint_ban ban; // of min_tokens; n 0: no token is banned
    uint32_t *banned;          // memory of ban
    uint64_t *ban_mask;        // every token but the banned ones, from request_open() on; or NULL
    int64_t seed;
    uint32_t n, n_top;
    uint32_t max_tokens; // generated; within the context
    uint32_t min_tokens;
    char *stop_text; // memory of stops
    struct detok_stop stops[DETOK_MAX_STOPS];
    uint32_t n_stops;
    uint32_t stop_ids[REQUEST_MAX_STOP_IDS];
    uint32_t n_stop_ids;

    char proposer[REQUEST_MAX_NAME + 1]; // "": any
    uint32_t k_max;                      // draft tokens per round; 0: off
    uint32_t n_min;                      // a shorter draft is not verified
    float p_min;                         // draft tokens with a lower probability are not verified
    enum accept_rule rule;
    double rule_parameter;
    bool dense_q;
    bool fixed; // k_max draft tokens in every round, even if they do not pay
    uint8_t tenant[REQUEST_MAX_NAME];
    size_t tenant_len;
    uint8_t flow[FLOWS_MAX_NAME];
    size_t flow_len;
    uint32_t *hint; // `prediction` as tokens
    size_t n_hint;

    struct request_choice *continued; // (n) NULL: the answer begins here
    struct flows_place place;         // in the queue; flows.h

    struct seq **seqs; // (n), NULL until request_open()

    /* The engine thread's. */
    uint32_t n_open;    // choices that have not ended
    uint32_t n_started; // of these, those that were admitted
    uint32_t n_places;  // of the engine's max_started
    int error;          // set in a round; the request ends after the round
    char error_text[REQUEST_MAX_ERROR];

    /* The sender thread's (edge/verifier_service_out.c). */
    bool answered;              // its last event was sent
    struct request_usage total; // sum over its choices
    int64_t slow_since_us;      // since when the client has not read its answer; 0: it reads
    struct request *next_slow;
};

/* The id in printable ASCII, the same in the logs of all services. */
void request_id(const struct Tandem__V1__GenerateRequest *msg, char ret_id[REQUEST_MAX_ID + 1]);
/* Checks everything and tokenizes; *ret has one holder. -EINVAL, -EILSEQ, -EMSGSIZE: a mistake of
 * the client, with a sentence that names the limit; -ENOENT: another model's name; -ENOMEM. */
int request_read(const struct Tandem__V1__GenerateRequest *msg, const struct request_limits *limits,
                 struct request **ret);
/* Creates the sequences of all choices; seq_open() allocates their memory at admission. -ENOMEM. */
int request_open(struct request *r, const struct tok *tok);
void request_hold(struct request *r);
void request_drop(struct request *r); // NULL is fine
DEFINE_AUTO(struct request, request_drop)
