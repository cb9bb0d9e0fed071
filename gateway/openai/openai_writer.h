/* openai_writer.h - what writes an answer in one of OpenAI's shapes; private to openai_reply.c and
 * those that do it. */
#pragma once
#include "gateway/openai/openai_logprobs.h"
#include "gateway/openai/openai_reply.h"

struct openai_choice {
    bool started, finished;
    struct output_parser parser;
    struct buf text, reasoning; // gathered, escaped; of a response: of the item that is open
    struct buf items;           // JSON, commas between: calls; of a response: all that is complete
    unsigned n_calls, n_items;
    struct buf stop;  // the stop string met, as JSON
    char reason[16];  // of its end
    uint32_t n_chars; // of the text that has come
    char *prompt;     // (n_prompt) of a prompt's first choice: to echo
    size_t n_prompt;
    uint32_t prompt_tokens, cached_tokens; // likewise
    struct openai_logprobs logprobs;
    unsigned n_events;      // of a response
    int open;               // of a response: the item that grows
    size_t n_sent_logprobs; // and bytes of its logprobs that its events have told
};

/* What a token, or the end, has given is in r->out; t: the token, NULL at the end. */
struct openai_writer {
    void (*started)(struct openai_reply *r, unsigned choice, struct openai_text prompt,
                    struct buf *to);
    void (*piece)(struct openai_reply *r, unsigned choice, const struct openai_token *t,
                  struct buf *to);
    void (*finished)(struct openai_reply *r, unsigned choice, struct buf *to);
    int (*end)(struct openai_reply *r, struct buf *to);
    void (*broken)(struct openai_reply *r, int status, const char *text, struct buf *to);
};
extern const struct openai_writer openai_text_writer, responses_writer;

/* The id of the choice's call `index`: the model's own, or one that is made. */
#define OPENAI_CALL_ID 32
const char *openai_call_id(const struct openai_reply *r, unsigned choice, unsigned index,
                           const struct tool_call *call, char made[OPENAI_CALL_ID]);
