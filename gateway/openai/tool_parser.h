/* tool_parser.h - how models write the calls of tools into their text.
 *
 * Each family has a format of its own; which one a model was trained on shows in its chat template.
 * A call begins with a marker and ends with one, or where its JSON ends. parts.h finds calls in an
 * answer; here they are recognised and read. The arguments leave as JSON text, whatever they came
 * as: where a format writes all values alike, the schema of the tool tells text from numbers.
 *
 * Threads: any, nothing is shared. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "base/mem.h"
#include "gateway/openai/tool_types.h"

#define TOOL_PARSER_MAX 128                // in one answer
#define TOOL_PARSER_MAX_BYTES (256u << 10) // of one call; what is longer is none

enum tool_format {
    TOOLS_NONE,
    TOOLS_HERMES, // <tool_call>{"name": ..., "arguments": {...}}</tool_call>   Hermes, Qwen 2.5, 3
    TOOLS_CODER, // <tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>
    TOOLS_LLAMA,   // {"name": ..., "parameters": {...}}, all of the answer or after <|python_tag|>
    TOOLS_MISTRAL, // [TOOL_CALLS][{"name": ..., "arguments": ...}] or [TOOL_CALLS]NAME[ARGS]{...}
    TOOLS_DEEPSEEK, // <｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{...}<｜tool▁call▁end｜>         V3,
                    // R1, V3.1
    TOOLS_DSML, // <｜DSML｜invoke name="NAME"> and a parameter each                        V3.2
    TOOLS_GLM,  // <tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>
    TOOLS_KIMI, // <|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>{...}<|tool_call_end|>
    TOOLS_N_FORMATS
};

#define TOOL_FORMAT_NAMES "none|hermes|qwen-coder|llama|mistral|deepseek|dsml|glm|kimi"

/* NULL after the last of each list. */
struct tool_parser_markers {
    const char *begin[3];  // of a call
    const char *end;       // NULL: the call ends where its JSON does
    const char *before[2]; // a call: no part of the text then
    const char *after[2];  // likewise
    const char *inside[5]; // of a call: these, too, may be special tokens
    /* What follows the beginning: one of these characters, or a name and one of those. */
    const char *first, *after_name; // NULL: neither
    const char *then[3];            // and one of these after that and white space; none: anything
    bool ends_reasoning;            // a call may begin there without its end
};
bool tool_parser_name_char(char c);

/* NULL for TOOLS_NONE. */
const struct tool_parser_markers *tool_parser_markers(enum tool_format f);
/* By the marks in the template's source. */
enum tool_format tool_parser_detect_format(const char *source, size_t len);
/* One of TOOL_FORMAT_NAMES; anything else is TOOLS_NONE. */
enum tool_format tool_parser_format_named(const char *name);

bool tool_parser_uses_types(enum tool_format f); // whether it is read by the types of the tools

struct tool_call {
    char *name, *arguments; // JSON text
    char *id;               // NULL: the model gave it none that templates take
};
struct tool_parser_calls {
    struct tool_call *v;
    unsigned n;
};
void tool_parser_clear(struct tool_parser_calls *c);
void tool_parser_cut(struct tool_parser_calls *c,
                     unsigned n); // keeps the first n, if there are more

/* Adds the call (Mistral: the calls) that `raw` is, markers included. types: of the request's
 * tools; NULL: none, or the format needs none. -EAGAIN: it is not whole yet; -EINVAL: it is none;
 * -ENOMEM. */
int tool_parser_read(enum tool_format f, const char *raw, size_t len,
                     const struct tool_types *types, struct tool_parser_calls *ret);
