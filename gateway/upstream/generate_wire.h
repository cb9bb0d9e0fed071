/* generate_wire.h - packs a checked request into messages for the verifier, and adds the events of
 * the verifier to the answer.
 *
 * Threads: one at a time per request and per reply. */
#pragma once
#include <stdbool.h>
#include "gateway/openai/openai_reply.h"
#include "gateway/openai/openai_request.h"
#include "rpc/rpc.h"
#include "tandem/v1/verifier.pb-c.h"

/* max_tokens of a completion that sets none; OpenAI's default. */
#define GENERATE_WIRE_COMPLETION_TOKENS 16

/* Packs the fields that all prompts of the request share. rules: name the special tokens that the
 * text must show. -ENOMEM. */
int generate_wire_pack(const struct openai_request *q, const char *id, const char *traceparent,
                       const ProtobufCBinaryData *model, const struct output_parser_rules *rules,
                       struct rpc_msg **ret);
/* The message for one prompt: its own fields joined with the shared ones, which are not copied. */
struct rpc_msg *generate_wire_pack_prompt(const struct openai_request *q,
                                          const struct openai_prompt *p,
                                          const struct rpc_msg *shared);

static inline struct openai_text generate_wire_text(ProtobufCBinaryData b)
{
    return (struct openai_text){(const char *)b.data, b.len};
}

/* Add an event of the verifier to the answer; a stream's events go to `to`. choice < r->n. */
void generate_wire_started(struct openai_reply *r, unsigned choice, const Tandem__V1__Started *s,
                           struct buf *to);
void generate_wire_run(struct openai_reply *r, unsigned choice, const Tandem__V1__TokenRun *run,
                       struct buf *to);
void generate_wire_finished(struct openai_reply *r, unsigned choice, const Tandem__V1__Finished *f,
                            struct buf *to);
