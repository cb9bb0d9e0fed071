/* request.h - a checked request: what the engine needs of it, and nothing of the wire.
 *
 * request_read() is where foreign bytes become numbers within their limits; after it nothing needs
 * checking. A request may have n choices, each a sequence (seq.h) that is allocated with it.
 *
 * Threads: filled by one rpc thread, then immutable but for the flags, which any thread may set. It
 * has holders (the call, the engine) and is freed by the last one. */
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

#define REQUEST_MAX_ID 128    // bytes
#define REQUEST_MAX_N 128     // choices
#define REQUEST_MAX_BIAS 1024 // logit biases
#define REQUEST_MAX_STOP_IDS 64
#define REQUEST_MAX_SHOWN 16
#define REQUEST_MAX_NAME 64               // bytes of a proposer's or tenant's name
#define REQUEST_MAX_PREDICTION (1u << 20) // bytes
#define REQUEST_MAX_ERROR 160             // bytes of an error's sentence, NUL included
#define REQUEST_MAX_TEXT (8u << 20)       // bytes of a prompt

struct Tandem__V1__GenerateRequest;
struct rpc_call;
struct seq;

/* What a request is checked against. */
struct request_limits {
    const struct tok *tok;
    const char *model;      // the served model's name
    uint32_t context;       // positions of a sequence
    uint32_t max_sequences; // at once
};

/* Figures of a generation. */
struct request_usage {
    uint32_t n_prompt, n_generated;
    uint32_t n_rounds, n_drafted_rounds, n_drafted, n_accepted, n_bonus;
    uint32_t accepted_histogram[ACCEPT_MAX + 1]; // [i]: drafted rounds of which i tokens were kept
    int64_t queue_us, prompt_us, decode_us;
    uint32_t k;                     // draft tokens per round that were allowed, at most
    char proposer[DRAFTS_NAME_MAX]; // of the last draft; "": there was none
};

struct request {
    atomic_uint n_holders;
    atomic_bool cancelled;     // nobody waits for the answer any more
    atomic_bool paused;        // too much of the answer is unread
    struct rpc_call *call;     // the edge's
    atomic_bool closing;       // Verify: no draft comes any more, the last one is still verified
    atomic_bool draft_pending; // Verify: a draft is on its way to the engine
    atomic_uint n_drains;      // how often unread bytes became few again
    bool verify;               // a Verify stream: the client sends the drafts
    int64_t arrived_us;

    char id[REQUEST_MAX_ID + 1];  // printable
    char trace[TRACE_ID_LEN + 1]; // of its traceparent, or ""
    uint32_t *prompt;             // (n_prompt)
    uint32_t n_prompt;
    char *prompt_text; // echo; else NULL
    size_t prompt_text_len;
    bool render_special, logprobs, ignore_eos;
    uint32_t shown[REQUEST_MAX_SHOWN]; // special tokens that appear in the text all the same
    uint32_t n_shown;

    struct dist_params params;
    struct dist_bias *bias;    // memory of params
    struct constraint_ban ban; // of min_tokens; n 0: no token is banned
    uint32_t *banned;          // memory of ban
    uint64_t *ban_mask;        // every token but the banned ones, from request_open() on; or NULL
    int64_t seed;
    uint32_t n, n_top;
    uint32_t max_tokens; // generated; the context's end is counted in
    uint32_t min_tokens;
    char *stop_text; // memory of stops
    struct detok_stop stops[DETOK_MAX_STOPS];
    uint32_t n_stops;
    uint32_t stop_ids[REQUEST_MAX_STOP_IDS];
    uint32_t n_stop_ids;

    char proposer[REQUEST_MAX_NAME + 1]; // "": any
    uint32_t k_max;                      // draft tokens per round; 0: off
    uint32_t n_min;                      // draft tokens without which a round has none
    float p_min;                         // a draft ends where its proposer gives a token less
    enum accept_rule rule;
    double rule_parameter;
    bool dense_q;
    bool fixed; // k_max draft tokens in every round, whether they pay or not
    uint8_t tenant[REQUEST_MAX_NAME];
    size_t tenant_len;
    uint32_t *hint; // `prediction` as tokens
    size_t n_hint;

    struct seq **seqs; // (n), NULL until request_open()

    /* The engine's. */
    uint32_t n_open; // choices that have not ended
    int error;       // set in a round: the request ends with it after the round
    char error_text[REQUEST_MAX_ERROR];

    /* The sending thread's. */
    bool answered;              // its last event was sent
    struct request_usage total; // of its choices
    int64_t slow_since_us;      // since when its answer is not read; 0: it is
    struct request *next_slow;
};

/* Its id in printable ASCII, so that logs of all services can be searched for it. */
void request_id(const struct Tandem__V1__GenerateRequest *msg, char ret_id[REQUEST_MAX_ID + 1]);
/* Checks everything and tokenizes. -EINVAL, -EILSEQ, -EMSGSIZE: the client's mistake, in one
 * sentence with the limit; -ENOENT: another model's name; -ENOMEM. One holder. */
int request_read(const struct Tandem__V1__GenerateRequest *msg, const struct request_limits *limits,
                 struct request **ret);
/* Makes the sequences of all choices (their memory comes with their admission). -ENOMEM. */
int request_open(struct request *r, const struct tok *tok);
void request_hold(struct request *r);
void request_drop(struct request *r); // NULL is fine
DEFINE_AUTO(struct request, request_drop)
