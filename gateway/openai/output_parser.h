/* output_parser.h - splits the text of an answer, as it comes, into reasoning, content and calls of tools.
 *
 *     <think> ... </think>   -> reasoning      markers, and white space beside them, are left out
 *     a call (tool_calls.h)  -> a call         once it is whole
 *     all else               -> content
 *
 * Text is held back only while it may be the beginning of a marker, and inside a call. Of what
 * turns out to be no call the first marker is content, and the rest is looked at anew. What comes
 * out does not depend on how the text is divided when it is fed. Without rules all is content, at
 * once.
 *
 * Threads: one at a time. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "base/buf.h"
#include "gateway/openai/tool_parser.h"

/* How a model marks its reasoning; NULL: it does not. */
struct output_parser_thinking {
    const char *begin, *end;
};
const struct output_parser_thinking *output_parser_thinking_of(const char *source,
                                                               size_t len); // its template

struct output_parser_rules {
    const struct output_parser_thinking *thinking; // NULL: reasoning is not told apart
    bool begun;                                    // the prompt has begun it
    bool closed;                                   // the prompt holds it already
    enum tool_format format;                       // TOOLS_NONE: calls are not told apart
    const struct tool_types *types;                // of the request's tools; outlive the parts
};
/* Looks how the prompt ends. */
void output_parser_rules_prompt(struct output_parser_rules *r, const char *prompt, size_t len);

/* All that the rules look for: these must be in the text. Returns how many. */
#define OUTPUT_PARSER_MARKERS_MAX 16
unsigned output_parser_rules_markers(const struct output_parser_rules *r,
                                     const char *ret[OUTPUT_PARSER_MARKERS_MAX]);

#define OUTPUT_PARSER_SPACE_MAX 256 // bytes of white space that may be held back

struct output_parser {
    struct output_parser_rules rules;
    enum { OUTPUT_PARSER_CONTENT, OUTPUT_PARSER_REASONING, OUTPUT_PARSER_CALL } state;
    bool only_calls; // of content nothing has come yet but calls
    bool drop_space; // white space after a marker
    bool after_call; // nothing but its markers has come since
    unsigned n_calls, n_tries;
    size_t wasted_bytes; // bytes that were read or fed in vain
    struct buf ids;      // that calls had, a space before and after each
    struct buf held;     // may be a marker's beginning, white space before it included
    struct buf call;     // its text so far, white space before it included
    struct buf rescan;   // of what was no call, what is to be fed once more ...
    size_t rescan_at;    // ... from here on
    struct {
        int outer_state; // the state it began in
        size_t n_first;  // bytes until after the first marker
        size_t at;       // its beginning
        enum {
            OUTPUT_PARSER_BEFORE,
            OUTPUT_PARSER_FIRST,
            OUTPUT_PARSER_NAME,
            OUTPUT_PARSER_AFTER_NAME,
            OUTPUT_PARSER_THEN,
            OUTPUT_PARSER_BODY
        } stage;
        size_t n_head; // bytes until after its name
    } candidate;
    struct {
        int depth;
        bool quoted, escaped, begun;
    } json; // where a call without an end marker ends
};

/* What a piece of text has given. */
struct output_parser_out {
    struct buf reasoning, content;
    struct tool_parser_calls calls;
};
void output_parser_out_init(struct output_parser_out *o);
void output_parser_out_done(struct output_parser_out *o);
void output_parser_out_clear(struct output_parser_out *o); // keeps the memory

void output_parser_init(struct output_parser *p,
                        const struct output_parser_rules *rules); // NULL: all is content
void output_parser_done(struct output_parser *p);
/* Both add to `to`; what has no memory shows in its buffers. */
void output_parser_feed(struct output_parser *p, const char *text, size_t len,
                        struct output_parser_out *to);
/* The answer has ended: what was held back becomes what it is. */
void output_parser_end(struct output_parser *p, struct output_parser_out *to);
static inline bool output_parser_reasons(const struct output_parser *p)
{
    return p->state == OUTPUT_PARSER_REASONING;
}
