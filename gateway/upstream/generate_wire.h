/* generate_wire.h - from a checked request to the message the verifier takes, and from its events to the
 * answer. */
#pragma once
#include <stdbool.h>
#include "gateway/openai/openai_reply.h"
#include "gateway/openai/openai_request.h"
#include "rpc/rpc.h"
#include "tandem/v1/verifier.pb-c.h"

/* max_tokens of a completion that names none, as OpenAI has it */
#define GENERATE_WIRE_COMPLETION_TOKENS 16

/* What all of the request's prompts share. rules: what the answer is searched for. -ENOMEM. */
int generate_wire_pack(const struct openai_request *q, const char *id, const char *traceparent,
                       const ProtobufCBinaryData *model, const struct output_parser_rules *rules,
                       struct rpc_msg **ret);
/* The message for one of them, with what they share, which is not copied. */
struct rpc_msg *generate_wire_pack_prompt(const struct openai_request *q,
                                          const struct openai_prompt *p,
                                          const struct rpc_msg *shared);

static inline struct openai_text generate_wire_text(ProtobufCBinaryData b)
{
    return (struct openai_text){(const char *)b.data, b.len};
}

/* The verifier's events, into the answer. choice < r->n. */
void generate_wire_started(struct openai_reply *r, unsigned choice, const Tandem__V1__Started *s,
                           struct buf *to);
void generate_wire_run(struct openai_reply *r, unsigned choice, const Tandem__V1__TokenRun *run,
                       struct buf *to);
void generate_wire_finished(struct openai_reply *r, unsigned choice, const Tandem__V1__Finished *f,
                            struct buf *to);
