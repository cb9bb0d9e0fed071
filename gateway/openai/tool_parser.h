/* tool_parser.h - the formats in which models write tool calls into their text.
 *
 * Each model family has its own format, which is recognised from the chat template. A call begins
 * with a marker. It ends with a marker, or where its JSON ends. output_parser.h finds calls in an
 * answer; this file recognises formats and reads single calls.
 *
 * The arguments of a call are always JSON text. Some formats write all values alike; there the
 * schema of the tool distinguishes text from numbers.
 *
 * Threads: any, nothing is shared. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "base/mem.h"
#include "gateway/openai/tool_types.h"

#define TOOL_PARSER_MAX 128                // calls in one answer
#define TOOL_PARSER_MAX_BYTES (256u << 10) // of one call; longer text is not a call

enum tool_format {
    TOOLS_NONE,
    /* Hermes, Qwen 2.5 and 3: <tool_call>{"name": ..., "arguments": {...}}</tool_call> */
    TOOLS_HERMES,
    /* <tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call> */
    TOOLS_CODER,
    /* {"name": ..., "parameters": {...}}, the whole answer or after <|python_tag|> */
    TOOLS_LLAMA,
    /* [TOOL_CALLS][{"name": ..., "arguments": ...}] or [TOOL_CALLS]NAME[ARGS]{...} */
    TOOLS_MISTRAL,
    /* DeepSeek V3, R1, V3.1: <｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{...}<｜tool▁call▁end｜> */
    TOOLS_DEEPSEEK,
    /* DeepSeek V3.2: <｜DSML｜invoke name="NAME">, then an element for each parameter */
    TOOLS_DSML,
    /* <tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call> */
    TOOLS_GLM,
    /* <|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{...}<|tool_call_end|> */
    TOOLS_KIMI,
    /* gpt-oss: to=functions.NAME in the header of a message (harmony.h) */
    TOOLS_HARMONY,
    TOOLS_N_FORMATS
};

#define TOOL_FORMAT_NAMES "none|hermes|qwen-coder|llama|mistral|deepseek|dsml|glm|kimi|harmony"

/* NULL after the last of each list. */
struct tool_parser_markers {
    const char *begin[3];  // of a call
    const char *end;       // NULL: the call ends where its JSON does
    const char *before[2]; // a call; then it is not part of the text
    const char *after[2];  // a call; then it is not part of the text
    const char *inside[5]; // of a call; listed because they may be special tokens
    /* After the begin marker comes one of the characters `first`, or a name and one of
     * `after_name`. NULL: not possible. */
    const char *first, *after_name;
    const char *then[3]; // one of these follows, after white space; empty: anything may follow
    bool ends_reasoning; // a call may begin inside reasoning, without its end marker
};
/* Whether c may be part of the name of a tool. */
bool tool_parser_name_char(char c);

/* NULL for TOOLS_NONE. */
const struct tool_parser_markers *tool_parser_markers(enum tool_format f);
/* Recognises the format from the source of the chat template. */
enum tool_format tool_parser_detect_format(const char *source, size_t len);
/* One of TOOL_FORMAT_NAMES; anything else is TOOLS_NONE. */
enum tool_format tool_parser_format_named(const char *name);

/* Whether tool_parser_read() needs the types of the tools for this format. */
bool tool_parser_uses_types(enum tool_format f);

struct tool_call {
    char *name, *arguments; // JSON text
    char *id;               // NULL: the model wrote none, or none that its template accepts
};
struct tool_parser_calls {
    struct tool_call *v;
    unsigned n;
};
void tool_parser_clear(struct tool_parser_calls *c);
/* Removes all but the first n calls. */
void tool_parser_cut(struct tool_parser_calls *c, unsigned n);

/* Reads raw, a call with its markers (Mistral: several calls), and adds it to *ret.
 * types: of the request's tools; NULL: there are none, or the format needs none.
 * -EAGAIN: the call is incomplete; -EINVAL: it is not a call; -ENOMEM. */
int tool_parser_read(enum tool_format f, const char *raw, size_t len,
                     const struct tool_types *types, struct tool_parser_calls *ret);
