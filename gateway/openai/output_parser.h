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
struct parts_thinking {
    const char *begin, *end;
};
const struct parts_thinking *parts_thinking_of(const char *source, size_t len); // its template

struct parts_rules {
    const struct parts_thinking *thinking; // NULL: reasoning is not told apart
    bool begun;                            // the prompt has begun it
    bool closed;                           // the prompt holds it already
    enum tool_format format;               // TOOLS_NONE: calls are not told apart
    const struct tool_types *types;        // of the request's tools; outlive the parts
};
/* Looks how the prompt ends. */
void parts_rules_prompt(struct parts_rules *r, const char *prompt, size_t len);

/* All that the rules look for: these must be in the text. Returns how many. */
#define PARTS_MARKERS_MAX 16
unsigned parts_rules_markers(const struct parts_rules *r, const char *ret[PARTS_MARKERS_MAX]);

#define PARTS_SPACE_MAX 256 // bytes of white space that may be held back

struct parts {
    struct parts_rules rules;
    enum { PARTS_CONTENT, PARTS_REASONING, PARTS_CALL } state;
    bool bare;       // of content nothing has come yet but calls
    bool drop_space; // white space behind a marker
    bool after_call; // nothing but its markers has come since
    unsigned n_calls, n_tries;
    size_t work;      // bytes that were read or fed in vain
    struct buf ids;   // that calls had, a space before and behind each
    struct buf held;  // may be a marker's beginning, white space before it included
    struct buf call;  // its text so far, white space before it included
    struct buf again; // of what was no call, what is to be fed once more ...
    size_t again_at;  // ... from here on
    struct {
        int outside;    // the state it began in
        size_t n_first; // bytes until behind the first marker
        size_t at;      // its beginning
        enum {
            PARTS_BEFORE,
            PARTS_FIRST,
            PARTS_NAME,
            PARTS_BEHIND_NAME,
            PARTS_THEN,
            PARTS_BODY
        } stage;
        size_t n_head; // bytes until behind its name
    } of_call;
    struct {
        int depth;
        bool quoted, escaped, begun;
    } json; // where a call without an end marker ends
};

/* What a piece of text has given. */
struct parts_out {
    struct buf reasoning, content;
    struct tool_calls calls;
};
void parts_out_init(struct parts_out *o);
void parts_out_done(struct parts_out *o);
void parts_out_clear(struct parts_out *o); // keeps the memory

void parts_init(struct parts *p, const struct parts_rules *rules); // NULL: all is content
void parts_done(struct parts *p);
/* Both add to `to`; what has no memory shows in its buffers. */
void parts_feed(struct parts *p, const char *text, size_t len, struct parts_out *to);
/* The answer has ended: what was held back becomes what it is. */
void parts_end(struct parts *p, struct parts_out *to);
static inline bool parts_reasons(const struct parts *p)
{
    return p->state == PARTS_REASONING;
}
