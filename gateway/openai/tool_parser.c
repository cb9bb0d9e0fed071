/* tool_parser.c - the formats in which models write tool calls into their text. */
#include <ctype.h>
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include "base/buf.h"
#include "gateway/openai/json_read.h"
#include "gateway/openai/text_cursor.h"
#include "gateway/openai/tool_parser.h"

static const struct tool_parser_markers markers[TOOLS_N_FORMATS] = {
    [TOOLS_HERMES] = {.begin = {"<tool_call>"}, .end = "</tool_call>", .first = "{"},
    [TOOLS_CODER] = {.begin = {"<function="},
                     .end = "</function>",
                     .before = {"<tool_call>"},
                     .after = {"</tool_call>"},
                     .after_name = ">",
                     .then = {"<parameter=", "</function>"}},
    [TOOLS_LLAMA] = {.begin = {"<|python_tag|>", "{"}, .after = {";"}, .first = "{"},
    [TOOLS_MISTRAL] = {.begin = {"[TOOL_CALLS]"},
                       .inside = {"[ARGS]", "[CALL_ID]"},
                       .first = "[",
                       .after_name = "[{"},
    [TOOLS_DEEPSEEK] = {.begin = {"<｜tool▁call▁begin｜>"},
                        .end = "<｜tool▁call▁end｜>",
                        .before = {"<｜tool▁calls▁begin｜>"},
                        .after = {"<｜tool▁calls▁end｜>"},
                        .inside = {"<｜tool▁sep｜>"},
                        .after_name = "<"},
    [TOOLS_DSML] = {.begin = {"<｜DSML｜invoke name=\""},
                    .end = "</｜DSML｜invoke>",
                    .before = {"<｜DSML｜function_calls>"},
                    .after = {"</｜DSML｜function_calls>"},
                    .inside = {"｜DSML｜"},
                    .after_name = "\""},
    [TOOLS_GLM] = {.begin = {"<tool_call>"},
                   .end = "</tool_call>",
                   .inside = {"<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"},
                   .after_name = "<"},
    [TOOLS_KIMI] = {.begin = {"<|tool_call_begin|>"},
                    .end = "<|tool_call_end|>",
                    .before = {"<|tool_calls_section_begin|>"},
                    .after = {"<|tool_calls_section_end|>"},
                    .inside = {"<|tool_call_argument_begin|>"},
                    .after_name = "<",
                    .ends_reasoning = true},
};

const struct tool_parser_markers *tool_parser_markers(enum tool_format f)
{
    return f == TOOLS_NONE ? NULL : &markers[f];
}

/* The first mark of the table that the source contains decides. */
enum tool_format tool_parser_detect_format(const char *source, size_t len)
{
    static const struct {
        const char *mark;
        enum tool_format format;
    } v[] = {
        {"<|channel|>", TOOLS_HARMONY},
        {"<function=", TOOLS_CODER},
        {"<arg_key>", TOOLS_GLM},
        {"<tool_call>", TOOLS_HERMES},
        {"[TOOL_CALLS]", TOOLS_MISTRAL},
        {"<｜tool▁call▁begin｜>", TOOLS_DEEPSEEK},
        {"DSML", TOOLS_DSML},
        {"<|tool_call_begin|>", TOOLS_KIMI},
        {"<|python_tag|>", TOOLS_LLAMA},
        {"{\"name\": function name, \"parameters\":", TOOLS_LLAMA},
    };
    for (size_t i = 0; i < ARRAY_LEN(v); i++)
        if (memmem(source, len, v[i].mark, strlen(v[i].mark)))
            return v[i].format;
    return TOOLS_NONE;
}

bool tool_parser_uses_types(enum tool_format f)
{
    return f == TOOLS_CODER || f == TOOLS_GLM || f == TOOLS_LLAMA;
}

enum tool_format tool_parser_format_named(const char *name)
{
    const char *at = TOOL_FORMAT_NAMES;
    for (int f = 0; f < TOOLS_N_FORMATS; f++) {
        size_t n = strcspn(at, "|");
        if (strlen(name) == n && memcmp(name, at, n) == 0)
            return (enum tool_format)f;
        at += n + 1;
    }
    return TOOLS_NONE;
}

void tool_parser_cut(struct tool_parser_calls *c, unsigned n)
{
    for (; c->n > n; c->n--) {
        struct tool_call *last = &c->v[c->n - 1];
        free(last->name);
        free(last->arguments);
        free(last->id);
    }
}

void tool_parser_clear(struct tool_parser_calls *c)
{
    tool_parser_cut(c, 0);
    free(c->v);
    *c = (struct tool_parser_calls){0};
}

/* ---- calls ---- */

bool tool_parser_name_char(char c)
{
    return c && strchr("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.:/", c);
}

static bool is_name(struct text_cursor t)
{
    for (size_t i = 0; i < t.len; i++)
        if (!tool_parser_name_char(t.data[i]))
            return false;
    return t.len > 0 && t.len <= 256;
}

static int add_call(struct tool_parser_calls *to, struct text_cursor name, char *arguments,
                    struct text_cursor id)
{
    AUTO(mem_free) char *args = arguments;
    if (!args)
        return -ENOMEM;
    if (!is_name(name) || to->n == TOOL_PARSER_MAX)
        return -EINVAL;
    struct tool_call *v = realloc(to->v, (to->n + 1) * sizeof(*v));
    if (!v)
        return -ENOMEM;
    to->v = v;
    v[to->n] = (struct tool_call){.name = strndup(name.data, name.len),
                                  .id = id.len ? strndup(id.data, id.len) : NULL,
                                  .arguments = TAKE(args)};
    to->n++;
    return v[to->n - 1].name && (!id.len || v[to->n - 1].id) ? 0 : -ENOMEM;
}

/* The string that a JSON string stands for; NULL: it is none. */
static json_t *decode(struct text_cursor quoted)
{
    if (!quoted.len || *quoted.data != '"')
        return NULL;
    return json_loadb(quoted.data, quoted.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
}

static struct text_cursor text_of(const json_t *string)
{
    return (struct text_cursor){json_string_value(string), json_string_length(string)};
}

static bool is_object(struct text_cursor value)
{
    return value.len && *value.data == '{';
}

/* Adds the call {"name", "arguments" or "parameters", "id"}, whose text is valid JSON. Some models
 * write the arguments as a string that contains JSON. */
static int add_object(struct tool_parser_calls *to, struct text_cursor call)
{
    if (!is_object(call))
        return -EINVAL;
    AUTO(json_decref_own) json_t *name = decode(text_cursor_member(call, "name"));
    AUTO(json_decref_own) json_t *id = decode(text_cursor_member(call, "id"));
    struct text_cursor args = text_cursor_member(call, "arguments");
    if (!args.len)
        args = text_cursor_member(call, "parameters");
    AUTO(json_decref_own) json_t *written = decode(args);
    if (written) {
        struct text_cursor rest = text_cursor_trimmed(text_of(written));
        if (text_cursor_json(&rest, &args) < 0 || rest.len)
            return -EINVAL;
    }
    if (!name || !is_object(args))
        return -EINVAL;
    return add_call(to, text_of(name), strndup(args.data, args.len), text_of(id));
}

/* Takes a JSON object and adds a call with these arguments, unchanged as the model wrote them. */
static int add_verbatim(struct tool_parser_calls *to, struct text_cursor name,
                        struct text_cursor *t, struct text_cursor id)
{
    struct text_cursor args;
    int rc = text_cursor_json(t, &args);
    if (rc < 0)
        return rc;
    if (!is_object(args))
        return -EINVAL;
    text_cursor_skip_space(t);
    return add_call(to, text_cursor_trimmed(name), strndup(args.data, args.len), id);
}

static int read_hermes(struct text_cursor t, struct tool_parser_calls *to)
{
    struct text_cursor call;
    text_cursor_skip_word(&t, "<tool_call>");
    int rc = text_cursor_json(&t, &call);
    if (rc < 0)
        return rc;
    text_cursor_skip_space(&t);
    text_cursor_skip_word(&t, "</tool_call>");
    return t.len ? -EINVAL : add_object(to, call);
}

/* A JSON answer need not be a call: without the tag it must name a tool of the request. */
static int read_llama(struct text_cursor t, const struct tool_types *types,
                      struct tool_parser_calls *to)
{
    bool tagged = text_cursor_skip_word(&t, "<|python_tag|>");
    struct text_cursor call;
    int rc = text_cursor_json(&t, &call);
    if (rc < 0)
        return rc;
    if (text_cursor_trimmed(t).len || !is_object(call))
        return -EINVAL;
    AUTO(json_decref_own) json_t *name = decode(text_cursor_member(call, "name"));
    if (!tagged && !tool_types_offer(types, json_string_value(name), json_string_length(name)))
        return -EINVAL;
    return add_object(to, call);
}

/* [{"name": ...}, ...] */
static int read_list(struct text_cursor t, struct tool_parser_calls *to)
{
    struct text_cursor calls;
    int rc = text_cursor_json(&t, &calls);
    if (rc < 0)
        return rc;
    if (text_cursor_trimmed(t).len)
        return -EINVAL;
    do {
        text_cursor_take(&calls, 1); // the bracket or a comma
        rc = add_object(to, text_cursor_take_value(&calls));
    } while (rc == 0 && *calls.data == ',');
    return rc;
}

static int read_mistral(struct text_cursor t, struct tool_parser_calls *to)
{
    struct text_cursor name, id = {0};
    text_cursor_skip_word(&t, "[TOOL_CALLS]");
    text_cursor_skip_space(&t);
    if (!t.len || *t.data != '[') {
        const char *brace = memchr(t.data, '{', t.len);
        if (!brace)
            return -EAGAIN;
        name = (struct text_cursor){t.data, (size_t)(brace - t.data)};
        text_cursor_take(&t, name.len);
        struct text_cursor head = name;
        if (text_cursor_until(&head, "[CALL_ID]", &name) &&
            !text_cursor_until(&head, "[ARGS]", &id))
            return -EINVAL;
        head = name;
        text_cursor_until(&head, "[ARGS]", &name);
        int rc = add_verbatim(to, name, &t, text_cursor_trimmed(id));
        return rc == 0 && t.len ? -EINVAL : rc;
    }
    return read_list(t, to);
}

/* R1 and V3 write `function` before the name, and the arguments as a code block. */
static int read_deepseek(struct text_cursor t, struct tool_parser_calls *to)
{
    struct text_cursor name;
    text_cursor_skip_word(&t, "<｜tool▁call▁begin｜>");
    if (!text_cursor_until(&t, "<｜tool▁sep｜>", &name))
        return -EAGAIN;
    text_cursor_skip_space(&t);
    if (t.len && *t.data != '{' &&
        (!text_cursor_until(&t, "\n", &name) || !text_cursor_skip_word(&t, "```json")))
        return -EINVAL;
    int rc = add_verbatim(to, name, &t, (struct text_cursor){0});
    if (rc < 0)
        return rc;
    text_cursor_skip_word(&t, "```");
    text_cursor_skip_space(&t);
    text_cursor_skip_word(&t, "<｜tool▁call▁end｜>");
    return t.len ? -EINVAL : 0;
}

static int read_kimi(struct text_cursor t, struct tool_parser_calls *to)
{
    struct text_cursor id;
    text_cursor_skip_word(&t, "<|tool_call_begin|>");
    if (!text_cursor_until(&t, "<|tool_call_argument_begin|>", &id))
        return -EAGAIN;
    id = text_cursor_trimmed(id);
    struct text_cursor name = id;
    text_cursor_skip_word(&name, "functions.");
    const char *colon = memrchr(name.data, ':', name.len);
    name.len = colon ? (size_t)(colon - name.data) : name.len;
    int rc = add_verbatim(to, name, &t, id);
    text_cursor_skip_word(&t, "<|tool_call_end|>");
    return rc == 0 && t.len ? -EINVAL : rc;
}

/* A whole message without the marker of its end. */
static int read_harmony(struct text_cursor t, struct tool_parser_calls *to)
{
    struct text_cursor header, name;
    if (!text_cursor_until(&t, "<|message|>", &header) ||
        !text_cursor_until(&header, "to=functions.", &name))
        return -EINVAL;
    name = (struct text_cursor){header.data, 0};
    while (name.len < header.len && tool_parser_name_char(name.data[name.len]))
        name.len++;
    if (!text_cursor_trimmed(t).len) // without parameters some models write nothing
        return add_call(to, name, strdup("{}"), (struct text_cursor){0});
    int rc = add_verbatim(to, name, &t, (struct text_cursor){0});
    return rc == 0 && t.len ? -EINVAL : rc;
}

/* ---- calls with unquoted values ---- */

/* How a format writes a parameter: {before}KEY{between}{open}VALUE{after}. */
struct syntax {
    const char *before, *between, *open, *after;
    const char *end; // of the call
    bool lines;      // the value has separate lines
    bool typed;      // string="true" or "false" before the value says whether it is text
};

static int read_open(struct text_cursor *t, const struct syntax *s, bool *ret_text)
{
    text_cursor_skip_space(t);
    if (!s->typed)
        return text_cursor_skip_word(t, s->open) ? 0 : t->len < strlen(s->open) ? -EAGAIN : -EINVAL;
    *ret_text = text_cursor_skip_word(t, "string=\"true\">");
    return *ret_text || text_cursor_skip_word(t, "string=\"false\">") ? 0 : -EINVAL;
}

/* Adds a value to args as a string of JSON text, so numbers stay as the model wrote them. */
static int set_argument(json_t *args, const char *key, char *value)
{
    AUTO(mem_free) char *v = value;
    return !v || json_object_set_new(args, key, json_string(v)) < 0 ? -EINVAL
                                                                    : 0; // or invalid UTF-8
}

/* args NULL: checks the syntax only. */
static int read_parameter(struct text_cursor *t, const struct syntax *s, struct text_cursor name,
                          const struct tool_types *types, json_t *args)
{
    struct text_cursor key, value;
    char k[TOOL_TYPES_MAX_KEY + 1];
    bool is_text = false;
    if (!text_cursor_until(t, s->between, &key))
        return -EAGAIN;
    int rc = s->open || s->typed ? read_open(t, s, &is_text) : 0;
    if (rc < 0)
        return rc;
    if (!text_cursor_until(t, s->after, &value))
        return -EAGAIN;
    if (s->lines && value.len && *value.data == '\n')
        text_cursor_take(&value, 1);
    if (s->lines && value.len && value.data[value.len - 1] == '\n')
        value.len--;
    key = text_cursor_trimmed(key);
    if (!key.len || key.len >= sizeof(k) || memchr(key.data, 0, key.len))
        return -EINVAL;
    if (!args)
        return 0;
    memcpy(k, key.data, key.len);
    k[key.len] = 0;
    return set_argument(args, k,
                        is_text ? tool_types_text(value.data, value.len)
                                : tool_types_value(s->typed ? NULL : types, name.data, name.len, k,
                                                   value.data, value.len));
}

static char *join_arguments(const json_t *args)
{
    AUTO(buf_done) struct buf b = {0};
    const char *key;
    const json_t *value;
    buf_init(&b, 8 * TOOL_PARSER_MAX_BYTES); // a byte may become six
    json_object_foreach((json_t *)(uintptr_t)args, key, value)
    {
        AUTO(mem_free) char *name = tool_types_text(key, strlen(key));
        buf_puts(&b, b.len ? "," : "{");
        buf_puts(&b, name ? name : "\"\"");
        buf_puts(&b, ":");
        buf_puts(&b, json_string_value(value));
    }
    buf_puts(&b, b.len ? "}" : "{}");
    return b.error ? NULL : buf_take(&b);
}

/* Reads the parameters up to the end of the call; args as above. */
static int read_all(struct text_cursor t, const struct syntax *s, struct text_cursor name,
                    const struct tool_types *types, json_t *args)
{
    text_cursor_skip_space(&t);
    while (text_cursor_skip_word(&t, s->before)) {
        int rc = read_parameter(&t, s, name, types, args);
        if (rc < 0)
            return rc;
        text_cursor_skip_space(&t);
    }
    if (!text_cursor_skip_word(&t, s->end) || t.len)
        return t.len < strlen(s->end) ? -EAGAIN : -EINVAL;
    return 0;
}

/* The values are converted once, when the call is complete. */
static int read_parameters(struct text_cursor t, const struct syntax *s, struct text_cursor name,
                           const struct tool_types *types, struct tool_parser_calls *to)
{
    name = text_cursor_trimmed(name);
    int rc = read_all(t, s, name, types, NULL);
    if (rc < 0)
        return rc;
    AUTO(json_decref_own) json_t *args = json_object();
    rc = args ? read_all(t, s, name, types, args) : -ENOMEM;
    return rc < 0 ? rc : add_call(to, name, join_arguments(args), (struct text_cursor){0});
}

static int read_coder(struct text_cursor t, const struct tool_types *types,
                      struct tool_parser_calls *to)
{
    static const struct syntax s = {"<parameter=",  ">",           NULL,
                                    "</parameter>", "</function>", .lines = true};
    struct text_cursor name;
    text_cursor_skip_word(&t, "<function=");
    return text_cursor_until(&t, ">", &name) ? read_parameters(t, &s, name, types, to) : -EAGAIN;
}

static int read_glm(struct text_cursor t, const struct tool_types *types,
                    struct tool_parser_calls *to)
{
    static const struct syntax s = {"<arg_key>",    "</arg_key>",   "<arg_value>",
                                    "</arg_value>", "</tool_call>", .lines = false};
    text_cursor_skip_word(&t, "<tool_call>");
    const char *at = memchr(t.data, '<', t.len);
    if (!at)
        return -EAGAIN;
    struct text_cursor name = {t.data, (size_t)(at - t.data)};
    text_cursor_take(&t, name.len);
    return read_parameters(t, &s, name, types, to);
}

static int read_dsml(struct text_cursor t, const struct tool_types *types,
                     struct tool_parser_calls *to)
{
    static const struct syntax s = {
        "<｜DSML｜parameter name=\"", "\"",         NULL, "</｜DSML｜parameter>",
        "</｜DSML｜invoke>",          .typed = true};
    struct text_cursor name;
    text_cursor_skip_word(&t, "<｜DSML｜invoke name=\"");
    return text_cursor_until(&t, "\">", &name) ? read_parameters(t, &s, name, types, to) : -EAGAIN;
}

static int read_call(enum tool_format f, struct text_cursor t, const struct tool_types *types,
                     struct tool_parser_calls *ret)
{
    switch (f) {
    case TOOLS_HERMES:
        return read_hermes(t, ret);
    case TOOLS_CODER:
        return read_coder(t, types, ret);
    case TOOLS_LLAMA:
        return read_llama(t, types, ret);
    case TOOLS_MISTRAL:
        return read_mistral(t, ret);
    case TOOLS_DEEPSEEK:
        return read_deepseek(t, ret);
    case TOOLS_DSML:
        return read_dsml(t, types, ret);
    case TOOLS_GLM:
        return read_glm(t, types, ret);
    case TOOLS_KIMI:
        return read_kimi(t, ret);
    case TOOLS_HARMONY:
        return read_harmony(t, ret);
    default:
        return -EINVAL;
    }
}

/* Whether to use an id that the model wrote. Kimi's templates need the model's ids, Mistral's need
 * ids of nine characters. Other formats have no ids. */
static bool is_usable_id(enum tool_format f, struct text_cursor id)
{
    for (size_t i = 0; i < id.len && f == TOOLS_MISTRAL; i++)
        if (id.len != 9 || !isalnum((unsigned char)id.data[i]))
            return false;
    return f == TOOLS_MISTRAL || (f == TOOLS_KIMI && is_name(id));
}

static void drop_ids(enum tool_format f, struct tool_call *v, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        if (v[i].id && !is_usable_id(f, (struct text_cursor){v[i].id, strlen(v[i].id)}))
            free(TAKE(v[i].id));
}

int tool_parser_read(enum tool_format f, const char *raw, size_t len,
                     const struct tool_types *types, struct tool_parser_calls *ret)
{
    unsigned before = ret->n;
    int rc = read_call(f, text_cursor_trimmed((struct text_cursor){raw, len}), types, ret);
    if (rc < 0)
        tool_parser_cut(ret, before);
    else
        drop_ids(f, ret->v + before, ret->n - before);
    return rc;
}
