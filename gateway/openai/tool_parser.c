/* tool_parser.c - how models write the calls of tools into their text. */
#include <ctype.h>
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include "base/buf.h"
#include "gateway/openai/json_read.h"
#include "gateway/openai/text_cursor.h"
#include "gateway/openai/tool_parser.h"

static const struct tool_markers markers[TOOLS_N_FORMATS] = {
    [TOOLS_HERMES] = {.begin = {"<tool_call>"}, .end = "</tool_call>", .first = "{"},
    [TOOLS_CODER] = {.begin = {"<function="},
                     .end = "</function>",
                     .before = {"<tool_call>"},
                     .behind = {"</tool_call>"},
                     .behind_name = ">",
                     .then = {"<parameter=", "</function>"}},
    [TOOLS_LLAMA] = {.begin = {"<|python_tag|>", "{"}, .behind = {";"}, .first = "{"},
    [TOOLS_MISTRAL] = {.begin = {"[TOOL_CALLS]"},
                       .inside = {"[ARGS]", "[CALL_ID]"},
                       .first = "[",
                       .behind_name = "[{"},
    [TOOLS_DEEPSEEK] = {.begin = {"<｜tool▁call▁begin｜>"},
                        .end = "<｜tool▁call▁end｜>",
                        .before = {"<｜tool▁calls▁begin｜>"},
                        .behind = {"<｜tool▁calls▁end｜>"},
                        .inside = {"<｜tool▁sep｜>"},
                        .behind_name = "<"},
    [TOOLS_DSML] = {.begin = {"<｜DSML｜invoke name=\""},
                    .end = "</｜DSML｜invoke>",
                    .before = {"<｜DSML｜function_calls>"},
                    .behind = {"</｜DSML｜function_calls>"},
                    .inside = {"｜DSML｜"},
                    .behind_name = "\""},
    [TOOLS_GLM] = {.begin = {"<tool_call>"},
                   .end = "</tool_call>",
                   .inside = {"<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"},
                   .behind_name = "<"},
    [TOOLS_KIMI] = {.begin = {"<|tool_call_begin|>"},
                    .end = "<|tool_call_end|>",
                    .before = {"<|tool_calls_section_begin|>"},
                    .behind = {"<|tool_calls_section_end|>"},
                    .inside = {"<|tool_call_argument_begin|>"},
                    .behind_name = "<",
                    .ends_reasoning = true},
};

const struct tool_markers *tool_markers(enum tool_format f)
{
    return f == TOOLS_NONE ? NULL : &markers[f];
}

/* The first mark that is there decides. */
enum tool_format tool_format_of(const char *source, size_t len)
{
    static const struct {
        const char *mark;
        enum tool_format format;
    } v[] = {
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

bool tool_format_types(enum tool_format f)
{
    return f == TOOLS_CODER || f == TOOLS_GLM || f == TOOLS_LLAMA;
}

enum tool_format tool_format_named(const char *name)
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

void tool_calls_cut(struct tool_calls *c, unsigned n)
{
    for (; c->n > n; c->n--) {
        struct tool_call *last = &c->v[c->n - 1];
        free(last->name);
        free(last->arguments);
        free(last->id);
    }
}

void tool_calls_clear(struct tool_calls *c)
{
    tool_calls_cut(c, 0);
    free(c->v);
    *c = (struct tool_calls){0};
}

/* ---- calls ---- */

bool tool_name_char(char c)
{
    return c && strchr("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.:/", c);
}

static bool is_name(struct slice t)
{
    for (size_t i = 0; i < t.len; i++)
        if (!tool_name_char(t.data[i]))
            return false;
    return t.len > 0 && t.len <= 256;
}

static int add_call(struct tool_calls *to, struct slice name, char *arguments, struct slice id)
{
    AUTO(mem_free) char *args = arguments;
    if (!args)
        return -ENOMEM;
    if (!is_name(name) || to->n == TOOL_CALLS_MAX)
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

static struct slice text_of(const json_t *string)
{
    return (struct slice){json_string_value(string), json_string_length(string)};
}

/* {"name", "arguments" or "parameters", "id"}, read from `raw`. Some models write arguments as a
 * string of JSON. */
static int add_object(struct tool_calls *to, const json_t *call, struct slice raw)
{
    const json_t *name = json_object_get(call, "name"), *args = json_object_get(call, "arguments");
    struct slice text = slice_member(raw, args ? "arguments" : "parameters");
    args = args ? args : json_object_get(call, "parameters");
    AUTO(json_decref_own) json_t *opened = NULL;
    if (json_is_string(args)) {
        struct slice rest = text = slice_trimmed(text_of(args));
        if (slice_json(&rest, &opened) < 0 || rest.len)
            return -EINVAL;
        args = opened;
    }
    if (!json_is_string(name) || !json_is_object(args) || !text.len)
        return -EINVAL;
    return add_call(to, text_of(name), strndup(text.data, text.len),
                    text_of(json_object_get(call, "id")));
}

/* Takes an object, and adds it as the arguments, which stay as the model wrote them. */
static int add_verbatim(struct tool_calls *to, struct slice name, struct slice *t, struct slice id)
{
    AUTO(json_decref_own) json_t *v = NULL;
    slice_skip_space(t);
    struct slice args = *t;
    int rc = slice_json(t, &v);
    if (rc < 0)
        return rc;
    if (!json_is_object(v))
        return -EINVAL;
    args.len -= t->len;
    slice_skip_space(t);
    return add_call(to, slice_trimmed(name), strndup(args.data, args.len), id);
}

static int read_hermes(struct slice t, struct tool_calls *to)
{
    AUTO(json_decref_own) json_t *call = NULL;
    slice_skip_word(&t, "<tool_call>");
    struct slice raw = t;
    int rc = slice_json(&t, &call);
    if (rc < 0)
        return rc;
    slice_skip_space(&t);
    slice_skip_word(&t, "</tool_call>");
    return t.len ? -EINVAL : add_object(to, call, raw);
}

/* An answer may be JSON and no call: without the tag it must name a tool that there is. */
static int read_llama(struct slice t, const struct tool_types *types, struct tool_calls *to)
{
    AUTO(json_decref_own) json_t *call = NULL;
    bool tagged = slice_skip_word(&t, "<|python_tag|>");
    struct slice raw = t;
    int rc = slice_json(&t, &call);
    if (rc < 0)
        return rc;
    struct slice name = text_of(json_object_get(call, "name"));
    if (slice_trimmed(t).len || !(tagged || tool_types_offer(types, name.data, name.len)))
        return -EINVAL;
    return add_object(to, call, raw);
}

static int read_mistral(struct slice t, struct tool_calls *to)
{
    AUTO(json_decref_own) json_t *calls = NULL;
    const json_t *call;
    struct slice name, id = {0};
    size_t i;
    slice_skip_word(&t, "[TOOL_CALLS]");
    slice_skip_space(&t);
    if (!t.len || *t.data != '[') {
        const char *brace = memchr(t.data, '{', t.len);
        if (!brace)
            return -EAGAIN;
        name = (struct slice){t.data, (size_t)(brace - t.data)};
        slice_take(&t, name.len);
        struct slice head = name;
        if (slice_until(&head, "[CALL_ID]", &name) && !slice_until(&head, "[ARGS]", &id))
            return -EINVAL;
        head = name;
        slice_until(&head, "[ARGS]", &name);
        int rc = add_verbatim(to, name, &t, slice_trimmed(id));
        return rc == 0 && t.len ? -EINVAL : rc;
    }
    struct slice raw = t;
    int rc = slice_json(&t, &calls);
    slice_take(&raw, 1);
    if (rc == 0 && (!json_array_size(calls) || slice_trimmed(t).len))
        rc = -EINVAL;
    json_array_foreach(calls, i, call)
    {
        if (rc < 0)
            break;
        rc = add_object(to, call, slice_take_value(&raw));
        slice_take(&raw, raw.len > 0); // the comma
    }
    return rc;
}

/* R1 and V3 write `function` before the name, and the arguments as a block of code. */
static int read_deepseek(struct slice t, struct tool_calls *to)
{
    struct slice name;
    slice_skip_word(&t, "<｜tool▁call▁begin｜>");
    if (!slice_until(&t, "<｜tool▁sep｜>", &name))
        return -EAGAIN;
    slice_skip_space(&t);
    if (t.len && *t.data != '{' &&
        (!slice_until(&t, "\n", &name) || !slice_skip_word(&t, "```json")))
        return -EINVAL;
    int rc = add_verbatim(to, name, &t, (struct slice){0});
    if (rc < 0)
        return rc;
    slice_skip_word(&t, "```");
    slice_skip_space(&t);
    slice_skip_word(&t, "<｜tool▁call▁end｜>");
    return t.len ? -EINVAL : 0;
}

static int read_kimi(struct slice t, struct tool_calls *to)
{
    struct slice id;
    slice_skip_word(&t, "<|tool_call_begin|>");
    if (!slice_until(&t, "<|tool_call_argument_begin|>", &id))
        return -EAGAIN;
    id = slice_trimmed(id);
    struct slice name = id;
    slice_skip_word(&name, "functions.");
    const char *colon = memrchr(name.data, ':', name.len);
    name.len = colon ? (size_t)(colon - name.data) : name.len;
    int rc = add_verbatim(to, name, &t, id);
    slice_skip_word(&t, "<|tool_call_end|>");
    return rc == 0 && t.len ? -EINVAL : rc;
}

/* ---- calls whose values are written without quotes ---- */

/* How a format writes a parameter: {before}KEY{between}{open}VALUE{after}. */
struct syntax {
    const char *before, *between, *open, *after;
    const char *end; // of the call
    bool lines;      // the value stands on lines of its own
    bool says;       // string="true" stands between, if the value is text
};

static int read_open(struct slice *t, const struct syntax *s, bool *ret_text)
{
    slice_skip_space(t);
    if (!s->says)
        return slice_skip_word(t, s->open) ? 0 : t->len < strlen(s->open) ? -EAGAIN : -EINVAL;
    *ret_text = slice_skip_word(t, "string=\"true\">");
    return *ret_text || slice_skip_word(t, "string=\"false\">") ? 0 : -EINVAL;
}

/* args: names and what is JSON text, as text: numbers stay as the model wrote them. */
static int set(json_t *args, const char *key, char *value)
{
    AUTO(mem_free) char *v = value;
    return !v || json_object_set_new(args, key, json_string(v)) < 0 ? -EINVAL : 0; // also: no UTF-8
}

static int read_parameter(struct slice *t, const struct syntax *s, struct slice name,
                          const struct tool_types *types, json_t *args)
{
    struct slice key, value;
    char k[256];
    bool is_text = false;
    if (!slice_until(t, s->between, &key))
        return -EAGAIN;
    int rc = s->open || s->says ? read_open(t, s, &is_text) : 0;
    if (rc < 0)
        return rc;
    if (!slice_until(t, s->after, &value))
        return -EAGAIN;
    if (s->lines && value.len && *value.data == '\n')
        slice_take(&value, 1);
    if (s->lines && value.len && value.data[value.len - 1] == '\n')
        value.len--;
    key = slice_trimmed(key);
    if (!key.len || key.len >= sizeof(k) || memchr(key.data, 0, key.len))
        return -EINVAL;
    memcpy(k, key.data, key.len);
    k[key.len] = 0;
    return set(args, k,
               is_text ? tool_types_text(value.data, value.len)
                       : tool_types_value(s->says ? NULL : types, name.data, name.len, k,
                                          value.data, value.len));
}

static char *joined(const json_t *args)
{
    AUTO(buf_done) struct buf b;
    const char *key;
    const json_t *value;
    buf_init(&b, 8 * TOOL_CALLS_MAX_BYTES); // six bytes may stand for one
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

static int read_parameters(struct slice t, const struct syntax *s, struct slice name,
                           const struct tool_types *types, struct tool_calls *to)
{
    AUTO(json_decref_own) json_t *args = json_object();
    name = slice_trimmed(name);
    slice_skip_space(&t);
    while (slice_skip_word(&t, s->before)) {
        int rc = read_parameter(&t, s, name, types, args);
        if (rc < 0)
            return rc;
        slice_skip_space(&t);
    }
    if (!slice_skip_word(&t, s->end) || t.len)
        return t.len < strlen(s->end) ? -EAGAIN : -EINVAL;
    return add_call(to, name, joined(args), (struct slice){0});
}

static int read_coder(struct slice t, const struct tool_types *types, struct tool_calls *to)
{
    static const struct syntax s = {"<parameter=",  ">",           NULL,
                                    "</parameter>", "</function>", .lines = true};
    struct slice name;
    slice_skip_word(&t, "<function=");
    return slice_until(&t, ">", &name) ? read_parameters(t, &s, name, types, to) : -EAGAIN;
}

static int read_glm(struct slice t, const struct tool_types *types, struct tool_calls *to)
{
    static const struct syntax s = {"<arg_key>",    "</arg_key>",   "<arg_value>",
                                    "</arg_value>", "</tool_call>", .lines = false};
    slice_skip_word(&t, "<tool_call>");
    const char *at = memchr(t.data, '<', t.len);
    if (!at)
        return -EAGAIN;
    struct slice name = {t.data, (size_t)(at - t.data)};
    slice_take(&t, name.len);
    return read_parameters(t, &s, name, types, to);
}

static int read_dsml(struct slice t, const struct tool_types *types, struct tool_calls *to)
{
    static const struct syntax s = {
        "<｜DSML｜parameter name=\"", "\"",        NULL, "</｜DSML｜parameter>",
        "</｜DSML｜invoke>",          .says = true};
    struct slice name;
    slice_skip_word(&t, "<｜DSML｜invoke name=\"");
    return slice_until(&t, "\">", &name) ? read_parameters(t, &s, name, types, to) : -EAGAIN;
}

static int read_call(enum tool_format f, struct slice t, const struct tool_types *types,
                     struct tool_calls *ret)
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
    default:
        return -EINVAL;
    }
}

/* Templates of Kimi want the model's own ids, those of Mistral ids of a certain form; models of
 * other formats have no business with them. */
static bool good_id(enum tool_format f, struct slice id)
{
    for (size_t i = 0; i < id.len && f == TOOLS_MISTRAL; i++)
        if (id.len != 9 || !isalnum((unsigned char)id.data[i]))
            return false;
    return f == TOOLS_MISTRAL || (f == TOOLS_KIMI && is_name(id));
}

static void drop_ids(enum tool_format f, struct tool_call *v, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        if (v[i].id && !good_id(f, (struct slice){v[i].id, strlen(v[i].id)}))
            free(TAKE(v[i].id));
}

int tool_calls_read(enum tool_format f, const char *raw, size_t len, const struct tool_types *types,
                    struct tool_calls *ret)
{
    unsigned before = ret->n;
    int rc = read_call(f, slice_trimmed((struct slice){raw, len}), types, ret);
    if (rc < 0)
        tool_calls_cut(ret, before);
    else
        drop_ids(f, ret->v + before, ret->n - before);
    return rc;
}
