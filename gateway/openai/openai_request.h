/* openai_request.h - the JSON body of a request as a plain struct, checked field by field.
 *
 * Every known field is checked for type and range; an error names the field. null means absent.
 * Unknown fields are ignored. Fields that the server cannot honour are refused: structured output,
 * images, forced tool calls. Users of this header do not see jansson.
 *
 * Threads: any, nothing is shared. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "gateway/openai/openai_values.h"

#define OPENAI_MAX_MESSAGES 4096
#define OPENAI_MAX_STOPS 16 // as tandem.v1.GenerateRequest
#define OPENAI_MAX_STOP_BYTES 256
#define OPENAI_MAX_STOP_IDS 64
#define OPENAI_MAX_SALT 64 // bytes of cache_salt
#define OPENAI_MAX_BIAS 1024
#define OPENAI_MAX_TOP 20 // top_logprobs
#define OPENAI_MAX_N 64
#define OPENAI_MAX_PROMPTS 128
#define OPENAI_MAX_CHOICES 256 // of all prompts together
#define OPENAI_MAX_RUNNING 16  // prompts of one request that run at a time

enum openai_kind {
    OPENAI_CHAT = 1,       // POST /v1/chat/completions
    OPENAI_COMPLETION = 2, // POST /v1/completions
    OPENAI_RESPONSES = 4,  // POST /v1/responses
};

struct tool_types;

struct openai_bias {
    uint32_t token;
    float bias;
};

/* Text, or tokens. */
struct openai_prompt {
    char *text;
    size_t len;
    uint32_t *ids; // NULL: text
    size_t n_ids;
};

struct openai_request {
    enum openai_kind kind;
    char *model;         // NULL: any
    char *template_vars; // chat: a JSON object, the variables of the template (messages, tools ...)
    struct tool_types *tools;        // chat: the tools that may be called; NULL: none
    char *echoed;                    // responses: members of the answer that repeat the request
    struct openai_prompt *prompts;   // (n_prompts) of a completion; of a chat once it is rendered
    unsigned n_prompts, max_running; // max_running: prompts that may run at a time
    char *prediction;                // NULL: none
    char *user;                      // NULL: none
    char *cache_salt;                // NULL: none
    char *flow;     // of the API key or address, whose requests take turns; NULL: none
    char *proposer; // speculative.proposer, NULL: the server's choice
    char *rule;     // speculative.rule, NULL: the server's choice
    bool dense_q;   // speculative.dense_q
    bool fixed;     // speculative.fixed
    struct openai_real rule_parameter, p_min;
    char *stops[OPENAI_MAX_STOPS];
    unsigned n_stops;
    uint32_t stop_ids[OPENAI_MAX_STOP_IDS];
    unsigned n_stop_ids;
    struct openai_bias *bias;
    unsigned n_bias;
    bool stream, include_usage, include_tokens, echo, ignore_eos, logprobs;
    /* The next four are true by default. */
    bool include_reasoning;        // reasoning is part of the answer
    bool separate_reasoning;       // reasoning has its own field, separate from the content
    bool parallel_calls;           // an answer may have several tool calls
    bool skip_special;             // the answer shows no special tokens
    struct openai_int add_special; // add_special_tokens: BOS before a completion's prompt
    struct openai_real temperature, top_p, min_p, repetition, presence, frequency;
    struct openai_int top_k, n, seed, max_tokens, min_tokens, top_logprobs, n_max, n_min;
};

/* body need not end with NUL. memory: counts what parsing takes; NULL: it is not counted.
 * -EINVAL, -ENOMEM, and the errors of `memory`, with *ret_fault filled. */
int openai_request_parse(enum openai_kind kind, const char *body, size_t len,
                         const struct openai_memory *memory, struct openai_request *ret,
                         struct openai_fault *ret_fault);
/* The memory that the request takes. */
size_t openai_request_bytes(const struct openai_request *q);
void openai_request_done(struct openai_request *q);
/* Sets the rendered prompt of a chat, which is copied. -ENOMEM. */
int openai_request_rendered(struct openai_request *q, const char *text, size_t len);
/* The number of choices of each prompt, and of all prompts. */
static inline unsigned openai_request_n(const struct openai_request *q)
{
    return q->n.set ? (unsigned)q->n.value : 1;
}
static inline unsigned openai_request_choices(const struct openai_request *q)
{
    return openai_request_n(q) * (q->n_prompts ? q->n_prompts : 1);
}

/* Read POST /tokenize {"model", "prompt", "add_special_tokens"} and POST /detokenize {"model",
 * "tokens"}. They fill model, one prompt and add_special. Errors as above. */
int openai_tokenize_parse(const char *body, size_t len, const struct openai_memory *memory,
                          struct openai_request *ret, struct openai_fault *ret_fault);
int openai_detokenize_parse(const char *body, size_t len, const struct openai_memory *memory,
                            struct openai_request *ret, struct openai_fault *ret_fault);
