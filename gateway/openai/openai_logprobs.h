/* openai_logprobs.h - the logprobs of an answer, in the shapes of chats and completions.
 *
 * Threads: one at a time. */
#pragma once
#include "base/buf.h"
#include "base/mem.h"
#include "gateway/openai/openai_reply.h"

/* JSON lists without their brackets. Chats use only `tokens`. */
struct openai_logprobs {
    struct buf tokens, values, tops, offsets;
};

void openai_logprobs_init(struct openai_logprobs *l);
void openai_logprobs_done(struct openai_logprobs *l);
static inline void openai_logprobs_done_auto(struct openai_logprobs *l)
{
    openai_logprobs_done(l);
}

/* offset: characters of the answer before the token. */
void openai_logprobs_add(struct openai_logprobs *l, bool chat, const struct openai_token *t,
                         uint32_t offset);
void openai_logprobs_write(const struct openai_logprobs *l, bool chat, struct buf *to);
size_t openai_logprobs_bytes(const struct openai_logprobs *l); // memory of the lists
int openai_logprobs_error(const struct openai_logprobs *l);    // as buf_error()
