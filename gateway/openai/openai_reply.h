/* openai_reply.h - answers in the shapes of OpenAI: chat.completion, text_completion and response
 * objects, or their events.
 *
 * All shapes have one interface: started, token, finished for each choice, then end. For a stream
 * each call appends events to `to`. Otherwise the text is collected and `end` writes the object.
 *
 * Threads: one at a time per reply. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/buf.h"
#include "gateway/openai/openai_request.h"
#include "gateway/openai/output_parser.h"

#define OPENAI_MAX_TEXT (64u << 20) // bytes of one choice of an answer without a stream

struct openai_text {
    const char *data; // any bytes; invalid UTF-8 is written as U+FFFD
    size_t len;
};

struct openai_alternative {
    struct openai_text bytes;
    float logprob;
};

struct openai_token {
    struct openai_text text;  // whole characters, may be empty
    struct openai_text bytes; // of the token itself (with logprobs)
    float logprob;
    uint32_t n_held; // characters before its own that the verifier still holds back
    const struct openai_alternative *top;
    unsigned n_top;
    /* For streams with the origin of each token (include_tokens). */
    uint32_t id;
    const char *origin; // "target", "accepted", "correction", "bonus"
    uint32_t round, drafted;
    struct openai_text proposer;
};

/* The results of the drafts of one choice. */
#define OPENAI_ACCEPTED_MAX 65
struct openai_speculation {
    uint32_t rounds, rounds_drafted, drafted, accepted, bonus;
    uint32_t k;                                       // draft tokens per round, at most
    uint32_t accepted_histogram[OPENAI_ACCEPTED_MAX]; // [i]: drafted rounds with i accepted tokens
};

/* Times of the choice that took longest. */
struct openai_timings {
    double prompt_ms, decode_ms; // until the first token (without queueing), and after it
};

struct openai_choice;
struct openai_writer;

struct openai_reply {
    const struct openai_writer *writer; // for the shape of the answer
    bool chat;                          // false: a completion or a response
    bool stream, logprobs, echo, include_usage, include_tokens;
    bool hides_reasoning, one_call;
    bool hidden;                      // the current token is hidden reasoning
    bool has_content;                 // the current token belongs to the content
    struct output_parser_rules rules; // how the text is split
    struct output_parser_out out;     // of the current token, or of the end
    struct tool_types *types;         // memory of the rules
    char *echoed;                     // of a response
    const char *id;                   // of the request
    uint64_t id_seed;                 // the ids of calls are derived from it
    bool has_prediction;              // the request has a predicted output
    char *head; // `{"id":...,"object":...,"created":...,"model":...,` of every object
    struct openai_choice *choices;
    unsigned n, n_each;     // choices of all prompts, and of each prompt; grouped by prompt
    size_t out_bytes;       // memory of `out`
    size_t collected_bytes; // memory of what is collected of the choices, and of `out`
    uint32_t prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens;
    unsigned n_seeds;                      // 0, 1, or 2: the choices have different seeds
    int64_t seed;                          // the last one
    struct openai_speculation speculation; // sum over the choices
    struct openai_timings timings;
    uint32_t n_resumed; // times that another verifier continued
    bool may_differ;    // ... although it need not have the same bits
    char rule[32], proposer[64];
};

struct openai_reply_head {
    enum openai_kind kind;
    bool stream, logprobs, echo, include_usage, include_tokens, has_prediction;
    bool hides_reasoning;             // reasoning is recognised and left out
    bool one_call;                    // only the first of several calls
    struct output_parser_rules rules; // chats
    struct tool_types *tools;         // of the request, owned from now on; NULL: none
    char *echoed;                     // of a response, owned from now on
    const char *id;                   // of the request
    uint64_t id_seed;                 // differs between requests
    struct openai_text model, fingerprint;
    int64_t created;    // seconds since 1970
    unsigned n, n_each; // choices of all prompts, and of each prompt
};

/* -ENOMEM. */
int openai_reply_init(struct openai_reply *r, const struct openai_reply_head *head);
void openai_reply_done(struct openai_reply *r);
/* Frees what is collected of the choices, after the end. The counts stay. */
void openai_reply_drop(struct openai_reply *r);
/* The most bytes that openai_reply_end() repeats: none in streams, except those of responses. */
size_t openai_reply_end_bytes(const struct openai_reply *r);
/* The memory that stays of the request while it is answered, with the parts of it that events of a
 * stream repeat. */
size_t openai_reply_kept_bytes(const struct openai_reply *r);

/* The number of tokens of the choice's prompt, and how many of them were cached. */
void openai_reply_prompt(struct openai_reply *r, unsigned choice, uint32_t n, uint32_t n_cached);
/* choice < n. prompt: its text for echo, only with the first choice, which starts first. */
void openai_reply_started(struct openai_reply *r, unsigned choice, struct openai_text prompt,
                          struct buf *to);
void openai_reply_token(struct openai_reply *r, unsigned choice, const struct openai_token *t,
                        struct buf *to);
/* reason: "stop", "length"; text: held back until now; stop: the stop string found, or empty. */
void openai_reply_finished(struct openai_reply *r, unsigned choice, const char *reason,
                           struct openai_text text, struct openai_text stop, struct buf *to);
/* Whether all choices of the prompt have finished. */
bool openai_reply_complete(const struct openai_reply *r, unsigned prompt);
/* Writes the last events, or the whole object. -EMSGSIZE, -ENOMEM: see buf_error(), of this text or
 * of an earlier one. A part of the answer is lost then, so a stream needs openai_reply_fail(). */
int openai_reply_end(struct openai_reply *r, struct buf *to);
/* Writes the last event of a stream that has begun and cannot continue. */
void openai_reply_fail(struct openai_reply *r, int status, const char *text, struct buf *to);
