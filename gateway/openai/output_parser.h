/* output_parser.h - splits the text of an answer into reasoning, content and tool calls, while it
 * arrives.
 *
 *     <think> ... </think>    -> reasoning   without the markers and the white space next to them
 *     a call (tool_parser.h)  -> a call      once it is complete
 *     all other text          -> content
 *
 * Text is held back while it may be the beginning of a marker, and inside a call. If a candidate is
 * not a call, its first marker becomes content and the rest is scanned again. The result does not
 * depend on how the fed text is divided. Without rules all text is content and nothing is held
 * back. harmony.h splits the answers of gpt-oss, which have another structure.
 *
 * Threads: one at a time. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "base/buf.h"
#include "gateway/openai/harmony.h"
#include "gateway/openai/tool_parser.h"

/* The markers of a model's reasoning, recognised from its template. NULL: it has none. */
struct output_parser_thinking {
    const char *begin, *end;
};
const struct output_parser_thinking *output_parser_thinking_of(const char *source, size_t len);

struct output_parser_rules {
    const struct output_parser_thinking *thinking; // NULL: reasoning is not recognised
    bool is_harmony;                               // harmony.h reads the whole answer
    bool begun;                                    // the prompt ends with the begin marker
    bool closed;                                   // the prompt ends with the end marker
    enum tool_format format;                       // TOOLS_NONE: calls are not recognised
    const struct tool_types *types;                // of the request's tools; outlive the parser
};
/* Sets begun and closed by the end of the prompt. */
void output_parser_rules_prompt(struct output_parser_rules *r, const char *prompt, size_t len);

/* All markers of the rules. The verifier must show them in the text even if they are special
 * tokens. Returns their number. */
#define OUTPUT_PARSER_MARKERS_MAX 16
unsigned output_parser_rules_markers(const struct output_parser_rules *r,
                                     const char *ret[OUTPUT_PARSER_MARKERS_MAX]);

#define OUTPUT_PARSER_SPACE_MAX 256 // bytes of white space that may be held back

/* Bytes of earlier text that one more byte can cause to be read or scanned again, whatever the
 * output and the schemas are. All streams share the threads that parse, so one token delays the
 * others for that work. */
#define OUTPUT_PARSER_BYTE_COST_MAX (2 * TOOL_PARSER_MAX_BYTES)

struct output_parser {
    struct output_parser_rules rules;
    enum { OUTPUT_PARSER_CONTENT, OUTPUT_PARSER_REASONING, OUTPUT_PARSER_CALL } state;
    bool only_calls; // no content yet except calls
    bool drop_space; // the last was a marker: drop white space after it
    bool after_call; // only markers have come since the last call
    unsigned n_calls, n_tries;
    size_t wasted_bytes; // read or fed for candidates that were not calls
    struct buf ids;      // of earlier calls, a space before and after each
    struct buf held;     // white space and the possible beginning of a marker
    size_t n_held_space; // white space at the start of `held`
    struct buf call;     // white space and the text of the candidate so far
    struct buf rescan;   // rest of a failed candidate, to be fed again ...
    size_t rescan_at;    // ... from here on
    struct {
        int outer_state; // the state in which it began
        size_t n_first;  // bytes up to the end of the first marker
        size_t at;       // offset of the marker that begins the call
        enum {
            OUTPUT_PARSER_BEFORE,
            OUTPUT_PARSER_FIRST,
            OUTPUT_PARSER_NAME,
            OUTPUT_PARSER_AFTER_NAME,
            OUTPUT_PARSER_THEN,
            OUTPUT_PARSER_BODY
        } stage;
        size_t next; // where the next marker is expected; white space moves it
    } candidate;
    struct {
        int depth;
        bool quoted, escaped, begun;
    } json; // finds the end of a call without an end marker
    struct harmony harmony;
};

/* The parsed text of one call of output_parser_feed() or more. */
struct output_parser_out {
    struct buf reasoning, content;
    struct tool_parser_calls calls;
};
void output_parser_out_init(struct output_parser_out *o);
void output_parser_out_done(struct output_parser_out *o);
void output_parser_out_clear(struct output_parser_out *o); // keeps the memory

void output_parser_init(struct output_parser *p,
                        const struct output_parser_rules *rules); // NULL: all text is content
void output_parser_done(struct output_parser *p);
size_t output_parser_bytes(const struct output_parser *p); // memory of the text that it holds back
/* Both add to `to`. Its buffers carry the error if there is no memory. */
void output_parser_feed(struct output_parser *p, const char *text, size_t len,
                        struct output_parser_out *to);
/* The answer has ended: emits the held text, as a call if it is one. */
void output_parser_end(struct output_parser *p, struct output_parser_out *to);
static inline bool output_parser_reasons(const struct output_parser *p)
{
    return p->state == OUTPUT_PARSER_REASONING;
}
