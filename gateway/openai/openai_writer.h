/* openai_writer.h - the interface of the writers, each for one shape of answers.
 *
 * Private to openai_reply.c, which calls a writer, and to openai_text.c and responses_reply.c. */
#pragma once
#include "gateway/openai/openai_logprobs.h"
#include "gateway/openai/openai_reply.h"

struct openai_choice {
    bool started, finished;
    struct output_parser parser;
    struct buf text, reasoning; // collected and escaped; of a response: of the open item
    struct buf items;           // JSON, comma separated: calls; of a response: complete items
    unsigned n_calls, n_items;
    struct buf stop;  // the stop string found, as JSON
    int error;        // a part of the choice is lost: the first reason, of buf_error()
    char reason[16];  // finish reason
    uint32_t n_chars; // of the text so far
    char *prompt;     // (n_prompt) in the first choice of a prompt: the text to echo
    size_t n_prompt;
    uint32_t prompt_tokens, cached_tokens; // in the first choice of a prompt
    struct openai_logprobs logprobs;
    size_t collected_bytes; // memory of the buffers above
    unsigned n_events;      // of a response
    int open;               // of a response: the kind of the open item
    size_t n_sent_logprobs; // bytes of the open item's logprobs that events have sent
};

/* Records the error of a buffer that the choice has filled, before it is cleared. */
static inline void openai_choice_check(struct openai_choice *c, const struct buf *b)
{
    c->error = c->error ? c->error : b->error;
}

/* piece(), finished(): r->out holds the parsed text of the token, or of the end. t: the token, or
 * NULL. failed(): the last event of a stream that cannot continue. */
struct openai_writer {
    void (*started)(struct openai_reply *r, unsigned choice, struct openai_text prompt,
                    struct buf *to);
    void (*piece)(struct openai_reply *r, unsigned choice, const struct openai_token *t,
                  struct buf *to);
    void (*finished)(struct openai_reply *r, unsigned choice, struct buf *to);
    int (*end)(struct openai_reply *r, struct buf *to);
    void (*failed)(struct openai_reply *r, int status, const char *text, struct buf *to);
};
extern const struct openai_writer openai_text_writer, responses_writer;

/* The id of call `index` of the choice: the one that the model wrote, or one made in `made`. */
#define OPENAI_CALL_ID 32
const char *openai_call_id(const struct openai_reply *r, unsigned choice, unsigned index,
                           const struct tool_call *call, char made[OPENAI_CALL_ID]);
