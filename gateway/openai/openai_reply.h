/* openai_reply.h - answers in OpenAI's shapes: chat.completion, text_completion and response
 * objects, or their events.
 *
 * One interface for all: started, token, finished per choice, then end. When streaming each call
 * appends its events to `to`; otherwise the parts are gathered and `end` writes the object.
 *
 * Threads: one at a time per reply. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/buf.h"
#include "gateway/openai/openai_request.h"
#include "gateway/openai/output_parser.h"

#define OPENAI_MAX_TEXT (64u << 20) // bytes one choice of a gathered answer may grow to

struct openai_text {
    const char *data; // any bytes: what is no UTF-8 leaves as U+FFFD
    size_t len;
};

struct openai_alternative {
    struct openai_text bytes;
    float logprob;
};

struct openai_token {
    struct openai_text text;  // whole characters, may be empty
    struct openai_text bytes; // the token's own (with logprobs)
    float logprob;
    uint32_t n_held; // characters of the text before its own that have not come yet
    const struct openai_alternative *top;
    unsigned n_top;
    /* For streams that tell where tokens come from (include_tokens). */
    uint32_t id;
    const char *origin; // "target", "accepted", "correction", "bonus"
    uint32_t round, drafted;
    struct openai_text proposer;
};

/* What became of the drafts of one choice. */
#define OPENAI_ACCEPTED_MAX 65
struct openai_speculation {
    uint32_t rounds, rounds_drafted, drafted, accepted, bonus;
    uint32_t k; // draft tokens per round, at most
    uint32_t
        accepted_histogram[OPENAI_ACCEPTED_MAX]; // [i]: drafted rounds of which i tokens were kept
};

/* Of the choice that took longest. */
struct openai_timings {
    double prompt_ms, decode_ms; // until the first token (queueing left out), and from there on
};

struct openai_choice;
struct openai_writer;

struct openai_reply {
    const struct openai_writer *writer; // of its shape
    bool chat;                          // or a completion, or a response
    bool stream, logprobs, echo, include_usage, include_tokens;
    bool hides_reasoning, one_call;
    bool hidden, has_content; // the token that is being written is reasoning nobody is to see, or
                              // of the content
    struct output_parser_rules rules; // how the text is split
    struct output_parser_out out;     // of the token, or the end, that is being written
    struct tool_types *types;         // memory of the rules
    char *echoed;                     // of a response
    const char *id;                   // of the request
    uint64_t id_seed;                 // ids of calls come from it
    bool has_prediction;              // the request foretold its answer
    char *head; // `{"id":...,"object":...,"created":...,"model":...,` of every object
    struct openai_choice *choices;
    unsigned n, n_each; // choices of all prompts, and of each: they follow one another
    uint32_t prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens;
    unsigned n_seeds;                      // 2: more than one is in use
    int64_t seed;                          // the last one
    struct openai_speculation speculation; // sum over the choices
    struct openai_timings timings;
    char rule[32], proposer[64];
};

struct openai_reply_head {
    enum openai_kind kind;
    bool stream, logprobs, echo, include_usage, include_tokens, has_prediction;
    bool hides_reasoning;             // it is told apart and left out
    bool one_call;                    // of several calls only the first
    struct output_parser_rules rules; // chats
    char *tools;                      // the request's, taken over; NULL: none
    char *echoed;                     // a response's, taken over
    const char *id;                   // of the request
    uint64_t id_seed;                 // never the same twice
    struct openai_text model, fingerprint;
    int64_t created;    // seconds since 1970
    unsigned n, n_each; // choices, and those of each prompt
};

/* -ENOMEM. */
int openai_reply_init(struct openai_reply *r, const struct openai_reply_head *head);
void openai_reply_done(struct openai_reply *r);

/* Tokens of the choice's prompt, and how many of them were cached. */
void openai_reply_prompt(struct openai_reply *r, unsigned choice, uint32_t n, uint32_t n_cached);
/* choice < n. prompt: its text for echo with its first choice, which starts first; else empty. */
void openai_reply_started(struct openai_reply *r, unsigned choice, struct openai_text prompt,
                          struct buf *to);
void openai_reply_token(struct openai_reply *r, unsigned choice, const struct openai_token *t,
                        struct buf *to);
/* reason: "stop", "length"; text: held back until now; stop: the stop string met, or empty. */
void openai_reply_finished(struct openai_reply *r, unsigned choice, const char *reason,
                           struct openai_text text, struct openai_text stop, struct buf *to);
bool openai_reply_complete(const struct openai_reply *r, unsigned prompt); // its choices finished
/* The last events, or the whole object. -EMSGSIZE, -ENOMEM: see buf_error. */
int openai_reply_end(struct openai_reply *r, struct buf *to);
/* The last event of a stream that has begun and cannot go on. */
void openai_reply_fail(struct openai_reply *r, int status, const char *text, struct buf *to);
