/* harmony.h - splits the answers of gpt-oss, while they arrive.
 *
 * An answer consists of messages. The prompt has begun the first one:
 *
 *     <|start|>assistant<|channel|>analysis<|message|>TEXT<|end|>               reasoning
 *     <|start|>assistant<|channel|>final<|message|>TEXT<|return|>               content
 *     <|start|>assistant<|channel|>commentary<|message|>TEXT<|end|>             content
 *     <|start|>assistant<|channel|>commentary to=functions.NAME
 *         <|constrain|>json<|message|>{...}<|call|>                             a call
 *
 * The recipient may also come before the channel. Text to other recipients is reasoning, and so is
 * a call if the request has no tools. Text without a header is content. A header without text is
 * left out. Messages of the same kind are separated by an empty line.
 * Source: OpenAI, "OpenAI Harmony Response Format".
 *
 * Part of output_parser.h. Threads: one at a time. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "base/buf.h"

struct output_parser_out;
struct output_parser_rules;

#define HARMONY_HEADER_MAX 512 // bytes; a longer one is text

struct harmony {
    enum { HARMONY_HEADER, HARMONY_REASONING, HARMONY_CONTENT, HARMONY_CALL } state;
    bool has_reasoning, has_content; // the answer has some
    bool begun;                      // this message has text
    struct buf held;                 // the header so far, or what may be a marker
    struct buf call;                 // header and text of a call
    size_t n_header;                 // bytes of it
    unsigned n_calls;                // of the answer
};

/* Whether a chat template writes this format. */
bool harmony_is_in(const char *source, size_t len);
/* The markers of the format. Returns their number, 7 at most. */
unsigned harmony_markers(const char *ret[]);

void harmony_init(struct harmony *h);
void harmony_done(struct harmony *h);
size_t harmony_bytes(const struct harmony *h); // memory of the text that it holds back
/* Both add to `to`, whose content carries the error if there is no memory. */
void harmony_feed(struct harmony *h, const struct output_parser_rules *rules, const char *text,
                  size_t len, struct output_parser_out *to);
void harmony_end(struct harmony *h, const struct output_parser_rules *rules,
                 struct output_parser_out *to);
