/* openai_request.c - the JSON body of a request, checked field by field. */
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/buf.h"
#include "base/mem.h"
#include "gateway/openai_request.h"

static inline void json_decref_own(json_t *j)
{
    json_decref(j);
}
DEFINE_AUTO(json_t, json_decref_own)

/* One request being read: where it goes and where complaints go. */
struct reading {
    struct openai_request *q;
    struct openai_fault *fault;
    unsigned n_values; // seen in its JSON so far
};

static int refuse(struct reading *r, const char *param, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static int refuse(struct reading *r, const char *param, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    r->fault->status = 400;
    snprintf(r->fault->param, sizeof(r->fault->param), "%s", param);
    vsnprintf(r->fault->text, sizeof(r->fault->text), format, args);
    va_end(args);
    return fail(-EINVAL, "%s", r->fault->text);
}

static int no_memory(struct reading *r)
{
    *r->fault = (struct openai_fault){.status = 500, .text = "no memory for this request"};
    return fail(-ENOMEM, "%s", r->fault->text);
}

/* The member, NULL when absent or null. */
static json_t *member(const json_t *object, const char *name)
{
    json_t *v = json_object_get(object, name);
    return json_is_null(v) ? NULL : v;
}

static const char *type_name(const json_t *v)
{
    static const char *const names[] = {"an object", "an array", "a string", "an integer",
                                        "a number",  "true",     "false",    "null"};
    return names[json_typeof(v)];
}

static int copy_text(struct reading *r, const json_t *v, const char *name, char **ret)
{
    if (!v)
        return 0;
    if (!json_is_string(v))
        return refuse(r, name, "%s must be a string, not %s", name, type_name(v));
    *ret = strdup(json_string_value(v));
    return *ret ? 0 : no_memory(r);
}

/* ---- plain fields: one table ---- */

enum field_type { FIELD_FLAG, FIELD_INT, FIELD_REAL };

struct field {
    const char *name;
    enum field_type type;
    unsigned kinds; // enum openai_kind
    size_t at;
    double min, max;
};

#define AT(member) offsetof(struct openai_request, member)
#define BOTH (OPENAI_CHAT | OPENAI_COMPLETION)
static const struct field fields[] = {
    {"stream", FIELD_FLAG, BOTH, AT(stream), 0, 0},
    {"ignore_eos", FIELD_FLAG, BOTH, AT(ignore_eos), 0, 0},
    {"skip_special_tokens", FIELD_FLAG, BOTH, AT(skip_special), 0, 0},
    {"echo", FIELD_FLAG, OPENAI_COMPLETION, AT(echo), 0, 0},
    {"logprobs", FIELD_FLAG, OPENAI_CHAT, AT(logprobs), 0, 0},
    {"temperature", FIELD_REAL, BOTH, AT(temperature), 0, 100},
    {"top_p", FIELD_REAL, BOTH, AT(top_p), 0, 1},
    {"min_p", FIELD_REAL, BOTH, AT(min_p), 0, 1},
    {"repetition_penalty", FIELD_REAL, BOTH, AT(repetition), 0.01, 100},
    {"presence_penalty", FIELD_REAL, BOTH, AT(presence), -2, 2},
    {"frequency_penalty", FIELD_REAL, BOTH, AT(frequency), -2, 2},
    {"top_k", FIELD_INT, BOTH, AT(top_k), -1, OPENAI_MAX_TOKEN},
    {"n", FIELD_INT, BOTH, AT(n), 1, OPENAI_MAX_N},
    {"max_tokens", FIELD_INT, BOTH, AT(max_tokens), 1, INT32_MAX},
    {"max_completion_tokens", FIELD_INT, OPENAI_CHAT, AT(max_tokens), 1, INT32_MAX},
    {"min_tokens", FIELD_INT, BOTH, AT(min_tokens), 0, INT32_MAX},
    {"top_logprobs", FIELD_INT, OPENAI_CHAT, AT(top_logprobs), 0, OPENAI_MAX_TOP},
    {"logprobs", FIELD_INT, OPENAI_COMPLETION, AT(top_logprobs), 0, OPENAI_MAX_TOP},
};

static int read_flag(struct reading *r, const json_t *v, const char *name, bool *ret)
{
    if (!json_is_boolean(v))
        return refuse(r, name, "%s must be true or false, not %s", name, type_name(v));
    *ret = json_is_true(v);
    return 0;
}

static int read_int(struct reading *r, const json_t *v, const char *name, double min, double max,
                    struct openai_int *ret)
{
    double d = json_number_value(v);
    if (!json_is_number(v))
        return refuse(r, name, "%s must be an integer, not %s", name, type_name(v));
    if (d != floor(d) || d < min || d > max)
        return refuse(r, name, "%s must be an integer from %.0f to %.0f, it is %.9g", name, min,
                      max, d);
    *ret = (struct openai_int){true, (int64_t)d};
    return 0;
}

static int read_real(struct reading *r, const json_t *v, const char *name, double min, double max,
                     struct openai_real *ret)
{
    double d = json_number_value(v);
    if (!json_is_number(v))
        return refuse(r, name, "%s must be a number, not %s", name, type_name(v));
    if (d < min || d > max)
        return refuse(r, name, "%s must be from %g to %g, it is %.9g", name, min, max, d);
    *ret = (struct openai_real){true, d};
    return 0;
}

static int read_fields(struct reading *r, const json_t *body)
{
    for (size_t i = 0; i < ARRAY_LEN(fields); i++) {
        const struct field *f = &fields[i];
        const json_t *v = f->kinds & r->q->kind ? member(body, f->name) : NULL;
        void *to = (char *)r->q + f->at;
        int rc = 0;
        if (!v)
            continue;
        if (f->type == FIELD_FLAG)
            rc = read_flag(r, v, f->name, to);
        else if (f->type == FIELD_INT)
            rc = read_int(r, v, f->name, f->min, f->max, to);
        else
            rc = read_real(r, v, f->name, f->min, f->max, to);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* ---- fields with a shape of their own ---- */

static int read_seed(struct reading *r, const json_t *v)
{
    if (!v)
        return 0;
    if (!json_is_integer(v))
        return refuse(r, "seed", "seed must be a 64-bit integer, not %s", type_name(v));
    r->q->seed = (struct openai_int){true, json_integer_value(v)};
    return 0;
}

static int read_stop(struct reading *r, const json_t *v, const char *name)
{
    if (!json_is_string(v))
        return refuse(r, name, "%s must be a string, not %s", name, type_name(v));
    size_t len = json_string_length(v);
    if (!len || len > OPENAI_MAX_STOP_BYTES)
        return refuse(r, name, "%s must have 1 to %u bytes, it has %zu", name,
                      OPENAI_MAX_STOP_BYTES, len);
    if (r->q->n_stops == OPENAI_MAX_STOPS)
        return refuse(r, "stop", "stop takes at most %u strings", OPENAI_MAX_STOPS);
    return copy_text(r, v, name, &r->q->stops[r->q->n_stops++]);
}

static int read_stops(struct reading *r, const json_t *v)
{
    if (!v)
        return 0;
    if (!json_is_array(v))
        return read_stop(r, v, "stop");
    size_t i;
    json_t *s;
    int rc = 0;
    json_array_foreach(v, i, s)
    {
        char name[32];
        snprintf(name, sizeof(name), "stop[%zu]", i);
        if ((rc = read_stop(r, s, name)) < 0)
            break;
    }
    return rc;
}

static int read_id(struct reading *r, const json_t *v, const char *field, size_t i, uint32_t *ret)
{
    json_int_t id = json_integer_value(v);
    if (!json_is_integer(v) || id < 0 || id > OPENAI_MAX_TOKEN) {
        char name[64];
        snprintf(name, sizeof(name), "%s[%zu]", field, i);
        return refuse(r, name, "%s must be a token id", name);
    }
    *ret = (uint32_t)id;
    return 0;
}

static int read_stop_ids(struct reading *r, const json_t *v)
{
    struct openai_request *q = r->q;
    if (!v)
        return 0;
    if (!json_is_array(v) || json_array_size(v) > OPENAI_MAX_STOP_IDS)
        return refuse(r, "stop_token_ids", "stop_token_ids must be an array of at most %u ids",
                      OPENAI_MAX_STOP_IDS);
    for (; q->n_stop_ids < json_array_size(v); q->n_stop_ids++) {
        int rc = read_id(r, json_array_get(v, q->n_stop_ids), "stop_token_ids", q->n_stop_ids,
                         &q->stop_ids[q->n_stop_ids]);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* Decimal digits and nothing else. */
static bool token_of(const char *key, uint32_t *ret)
{
    uint32_t id = 0;
    size_t n = strlen(key);
    if (!n || n > 8)
        return false;
    for (; *key; key++) {
        if (*key < '0' || *key > '9')
            return false;
        id = id * 10 + (uint32_t)(*key - '0');
    }
    *ret = id;
    return id <= OPENAI_MAX_TOKEN;
}

static int read_bias(struct reading *r, json_t *v)
{
    struct openai_request *q = r->q;
    const char *key;
    json_t *value;
    if (!v)
        return 0;
    if (!json_is_object(v) || json_object_size(v) > OPENAI_MAX_BIAS)
        return refuse(r, "logit_bias", "logit_bias must be an object of at most %u token ids",
                      OPENAI_MAX_BIAS);
    if (!(q->bias = calloc(json_object_size(v) + 1, sizeof(*q->bias))))
        return no_memory(r);
    json_object_foreach(v, key, value)
    {
        struct openai_real bias = {0};
        uint32_t id;
        if (!token_of(key, &id))
            return refuse(r, "logit_bias", "logit_bias has the key '%.40s', which is no token id",
                          key);
        int rc = read_real(r, value, "logit_bias", -100, 100, &bias);
        if (rc < 0)
            return rc;
        q->bias[q->n_bias++] = (struct openai_bias){id, (float)bias.value};
    }
    return 0;
}

static int read_stream_options(struct reading *r, const json_t *v)
{
    if (!v)
        return 0;
    if (!json_is_object(v))
        return refuse(r, "stream_options", "stream_options must be an object, not %s",
                      type_name(v));
    if (!r->q->stream)
        return refuse(r, "stream_options", "stream_options is only allowed with stream: true");
    const json_t *usage = member(v, "include_usage");
    return usage ? read_flag(r, usage, "stream_options.include_usage", &r->q->include_usage) : 0;
}

/* Which rules there are the verifier knows. */
static int read_rule(struct reading *r, const json_t *v)
{
    const json_t *parameter = member(v, "rule_parameter"), *dense = member(v, "dense_q");
    int rc = copy_text(r, member(v, "rule"), "speculative.rule", &r->q->rule);
    if (!rc && parameter)
        rc = read_real(r, parameter, "speculative.rule_parameter", 0, 1, &r->q->rule_parameter);
    if (!rc && dense)
        rc = read_flag(r, dense, "speculative.dense_q", &r->q->dense_q);
    return rc;
}

static int read_speculative(struct reading *r, const json_t *v)
{
    if (!v)
        return 0;
    if (!json_is_object(v))
        return refuse(r, "speculative", "speculative must be an object, not %s", type_name(v));
    int rc = copy_text(r, member(v, "proposer"), "speculative.proposer", &r->q->proposer);
    if (rc < 0)
        return rc;
    if (r->q->proposer && strlen(r->q->proposer) > 64)
        return refuse(r, "speculative.proposer", "speculative.proposer is longer than 64 bytes");
    const json_t *n_max = member(v, "n_max");
    rc = n_max ? read_int(r, n_max, "speculative.n_max", 0, 64, &r->q->n_max) : 0;
    return rc < 0 ? rc : read_rule(r, v);
}

/* A string, or an array of {"type": "text", "text": ...} joined by line breaks: new reference. */
static int text_of(struct reading *r, json_t *v, const char *name, json_t **ret)
{
    if (!v || json_is_string(v)) {
        *ret = v ? json_incref(v) : json_string("");
        return *ret ? 0 : no_memory(r);
    }
    if (!json_is_array(v))
        return refuse(r, name, "%s must be a string or an array of parts, not %s", name,
                      type_name(v));
    AUTO(buf_done) struct buf text;
    buf_init(&text, SIZE_MAX / 2);
    size_t i;
    json_t *part;
    json_array_foreach(v, i, part)
    {
        const char *type = json_string_value(json_object_get(part, "type"));
        const json_t *t = json_object_get(part, "text");
        if (!type)
            return refuse(r, name, "%s[%zu] must be an object with a type", name, i);
        if (strcmp(type, "text") != 0)
            return refuse(r, name, "%s[%zu] is of type '%.40s'; this model takes text only", name,
                          i, type);
        if (!json_is_string(t))
            return refuse(r, name, "%s[%zu].text must be a string", name, i);
        if (i)
            buf_add(&text, "\n", 1);
        buf_add(&text, json_string_value(t), json_string_length(t));
    }
    buf_add(&text, "", 0);
    *ret = text.error ? NULL : json_stringn(text.data, text.len);
    return *ret ? 0 : no_memory(r);
}

static int read_prediction(struct reading *r, json_t *v)
{
    if (!v)
        return 0;
    const char *type = json_string_value(json_object_get(v, "type"));
    if (!type || strcmp(type, "content") != 0)
        return refuse(r, "prediction", "prediction must be an object of type \"content\"");
    AUTO(json_decref_own) json_t *text = NULL;
    int rc = text_of(r, member(v, "content"), "prediction.content", &text);
    return rc < 0 ? rc : copy_text(r, text, "prediction.content", &r->q->prediction);
}

/* Only requests with the same one share prompts that are kept. */
static int read_salt(struct reading *r, const json_t *v)
{
    int rc = copy_text(r, v, "cache_salt", &r->q->cache_salt);
    if (rc < 0 || !v)
        return rc;
    size_t n = json_string_length(v);
    if (!n || n > OPENAI_MAX_SALT)
        return refuse(r, "cache_salt", "cache_salt must have 1 to %d bytes, not %zu",
                      OPENAI_MAX_SALT, n);
    return 0;
}

/* What would be promised and not kept. */
static int refuse_unserved(struct reading *r, const json_t *body)
{
    const json_t *format = member(body, "response_format");
    const char *type = json_string_value(json_object_get(format, "type"));
    if (format && (!type || strcmp(type, "text") != 0))
        return refuse(r, "response_format", "response_format other than text is not served");
    const json_t *suffix = member(body, "suffix");
    if (r->q->kind == OPENAI_COMPLETION && suffix && json_string_length(suffix))
        return refuse(r, "suffix", "suffix is not served");
    const json_t *best = member(body, "best_of");
    if (best && json_number_value(best) > 1)
        return refuse(r, "best_of", "best_of above 1 is not served");
    return 0;
}

static int read_common(struct reading *r, json_t *body)
{
    int rc = copy_text(r, member(body, "model"), "model", &r->q->model);
    rc = rc < 0 ? rc : read_fields(r, body);
    rc = rc < 0 ? rc : copy_text(r, member(body, "user"), "user", &r->q->user);
    rc = rc < 0 ? rc : read_salt(r, member(body, "cache_salt"));
    rc = rc < 0 ? rc : read_seed(r, member(body, "seed"));
    rc = rc < 0 ? rc : read_stops(r, member(body, "stop"));
    rc = rc < 0 ? rc : read_stop_ids(r, member(body, "stop_token_ids"));
    rc = rc < 0 ? rc : read_bias(r, member(body, "logit_bias"));
    rc = rc < 0 ? rc : read_stream_options(r, member(body, "stream_options"));
    rc = rc < 0 ? rc : read_speculative(r, member(body, "speculative"));
    rc = rc < 0 ? rc : read_prediction(r, member(body, "prediction"));
    return rc < 0 ? rc : refuse_unserved(r, body);
}

/* ---- chat ---- */

/* Bounds what the parser is given, before anything recursive sees it: the depth, and the number of
 * values and keys, of which many cost far more than long ones. name: the field, "" for the body. */
static int check_shape(struct reading *r, const char *name, const char *s, size_t len)
{
    int depth = 0;
    bool quoted = false;
    for (size_t i = 0; i < len; i++) {
        if (quoted) {
            if (s[i] == '\\')
                i++;
            else
                quoted = s[i] != '"';
            continue;
        }
        quoted = s[i] == '"';
        depth += (s[i] == '[' || s[i] == '{') - (s[i] == ']' || s[i] == '}');
        r->n_values += s[i] == '[' || s[i] == '{' || s[i] == ',' || s[i] == ':';
        if (depth > OPENAI_MAX_DEPTH)
            return refuse(r, name, "%s is nested deeper than %d levels", *name ? name : "the body",
                          OPENAI_MAX_DEPTH);
        if (r->n_values > OPENAI_MAX_VALUES)
            return refuse(r, name, "the body holds more than %d values", OPENAI_MAX_VALUES);
    }
    return 0;
}

/* Templates want the arguments of a call as an object; the API carries them as text. */
static int open_arguments(struct reading *r, json_t *call, const char *name)
{
    json_t *function = json_object_get(call, "function");
    json_t *arguments = json_object_get(function, "arguments");
    if (!json_is_object(function) || !json_is_string(json_object_get(function, "name")))
        return refuse(r, name, "%s.function must be an object with a name", name);
    if (!json_is_string(arguments))
        return 0;
    const char *text = json_string_length(arguments) ? json_string_value(arguments) : "{}";
    int rc = check_shape(r, name, text, strlen(text));
    if (rc < 0)
        return rc;
    json_t *opened = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    if (!opened)
        return refuse(r, name, "%s.function.arguments is not valid JSON", name);
    return json_object_set_new(function, "arguments", opened) < 0 ? no_memory(r) : 0;
}

static int read_tool_calls(struct reading *r, json_t *calls, const char *name)
{
    size_t i;
    json_t *call;
    int rc = 0;
    if (!calls)
        return 0;
    if (!json_is_array(calls))
        return refuse(r, name, "%s must be an array, not %s", name, type_name(calls));
    json_array_foreach(calls, i, call)
    {
        char at[96];
        snprintf(at, sizeof(at), "%s[%zu]", name, i);
        if ((rc = open_arguments(r, call, at)) < 0)
            break;
    }
    return rc;
}

static bool known_role(const char *role)
{
    static const char *const roles[] = {"system",    "developer", "user",
                                        "assistant", "tool",      "function"};
    for (size_t i = 0; i < ARRAY_LEN(roles); i++)
        if (strcmp(role, roles[i]) == 0)
            return true;
    return false;
}

static int read_message(struct reading *r, json_t *message, size_t i)
{
    char name[64];
    snprintf(name, sizeof(name), "messages[%zu]", i);
    if (!json_is_object(message))
        return refuse(r, name, "%s must be an object, not %s", name, type_name(message));
    const char *role = json_string_value(json_object_get(message, "role"));
    if (!role)
        return refuse(r, name, "%s.role must be a string", name);
    if (!known_role(role))
        return refuse(r, name,
                      "%s.role is '%.40s'; it must be system, developer, user, assistant or tool",
                      name, role);
    json_t *content = member(message, "content"), *calls = member(message, "tool_calls");
    if (!content && strcmp(role, "assistant") != 0)
        return refuse(r, name, "%s.content is missing", name);

    snprintf(name, sizeof(name), "messages[%zu].content", i);
    json_t *text = NULL;
    int rc = text_of(r, content, name, &text);
    if (rc < 0)
        return rc;
    if (json_object_set_new(message, "content", text) < 0)
        return no_memory(r);
    snprintf(name, sizeof(name), "messages[%zu].tool_calls", i);
    return read_tool_calls(r, calls, name);
}

static int read_messages(struct reading *r, json_t *messages)
{
    size_t i;
    json_t *m;
    int rc = 0;
    if (!messages)
        return refuse(r, "messages", "messages is missing");
    if (!json_is_array(messages))
        return refuse(r, "messages", "messages must be an array, not %s", type_name(messages));
    if (!json_array_size(messages) || json_array_size(messages) > OPENAI_MAX_MESSAGES)
        return refuse(r, "messages", "messages must hold 1 to %u messages, it holds %zu",
                      OPENAI_MAX_MESSAGES, json_array_size(messages));
    json_array_foreach(messages, i, m) if ((rc = read_message(r, m, i)) < 0) break;
    return rc;
}

/* *ret_tools: borrowed, NULL when the template is not to see any. */
static int read_tools(struct reading *r, const json_t *body, json_t **ret_tools)
{
    json_t *tools = member(body, "tools"), *tool, *choice = member(body, "tool_choice");
    size_t i;
    if (tools && !json_is_array(tools))
        return refuse(r, "tools", "tools must be an array, not %s", type_name(tools));
    json_array_foreach(tools, i, tool) if (
        !json_is_string(json_object_get(
            json_object_get(tool, "function"),
            "name"))) return refuse(r, "tools", "tools[%zu].function.name must be a string", i);

    const char *word = choice ? json_string_value(choice) : "auto";
    if (!word || (strcmp(word, "auto") != 0 && strcmp(word, "none") != 0))
        return refuse(r, "tool_choice", "tool_choice must be \"auto\" or \"none\"");
    *ret_tools = tools && json_array_size(tools) && word[0] == 'a' ? tools : NULL;
    return 0;
}

/* chat_template_kwargs may not replace what the request itself says. */
static int add_extra_vars(struct reading *r, json_t *vars, json_t *extra)
{
    const char *key;
    json_t *value;
    if (!extra)
        return 0;
    if (!json_is_object(extra))
        return refuse(r, "chat_template_kwargs", "chat_template_kwargs must be an object, not %s",
                      type_name(extra));
    json_object_foreach(extra, key, value)
    {
        if (json_object_get(vars, key) || !strcmp(key, "tools") || !strcmp(key, "bos_token") ||
            !strcmp(key, "eos_token"))
            return refuse(r, "chat_template_kwargs", "chat_template_kwargs may not set '%.40s'",
                          key);
        if (json_object_set(vars, key, value) < 0)
            return no_memory(r);
    }
    return 0;
}

static int read_chat(struct reading *r, json_t *body)
{
    json_t *messages = member(body, "messages"), *tools = NULL;
    bool generate = true;
    const json_t *v = member(body, "add_generation_prompt");
    int rc = v ? read_flag(r, v, "add_generation_prompt", &generate) : 0;
    rc = rc < 0 ? rc : read_messages(r, messages);
    rc = rc < 0 ? rc : read_tools(r, body, &tools);
    if (rc < 0)
        return rc;
    if (r->q->top_logprobs.set && r->q->top_logprobs.value && !r->q->logprobs)
        return refuse(r, "top_logprobs", "top_logprobs needs logprobs: true");

    AUTO(json_decref_own)
    json_t *vars =
        json_pack("{s:O,s:b}", "messages", messages, "add_generation_prompt", (int)generate);
    if (!vars || (tools && json_object_set(vars, "tools", tools) < 0))
        return no_memory(r);
    if ((rc = add_extra_vars(r, vars, member(body, "chat_template_kwargs"))) < 0)
        return rc;
    r->q->template_vars = json_dumps(vars, JSON_COMPACT);
    return r->q->template_vars ? 0 : no_memory(r);
}

/* ---- completions ---- */

static int read_ids(struct reading *r, const json_t *v, const char *name)
{
    struct openai_request *q = r->q;
    size_t n = json_array_size(v);
    if (!json_is_array(v) || !n)
        return refuse(r, name, "%s must be an array of token ids and not empty", name);
    if (!(q->ids = calloc(n, sizeof(*q->ids))))
        return no_memory(r);
    for (; q->n_ids < n; q->n_ids++) {
        int rc = read_id(r, json_array_get(v, q->n_ids), name, q->n_ids, &q->ids[q->n_ids]);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int read_prompt(struct reading *r, const json_t *v)
{
    if (!v)
        return refuse(r, "prompt", "prompt is missing");
    if (json_is_string(v))
        return copy_text(r, v, "prompt", &r->q->prompt);
    if (!json_is_array(v) || !json_array_size(v))
        return refuse(r, "prompt", "prompt must be a string or an array of token ids, not empty");
    const json_t *first = json_array_get(v, 0);
    if (json_is_integer(first))
        return read_ids(r, v, "prompt");
    if (json_array_size(v) > 1)
        return refuse(r, "prompt", "prompt holds %zu prompts; send one per request",
                      json_array_size(v));
    if (json_is_string(first))
        return copy_text(r, first, "prompt[0]", &r->q->prompt);
    return read_ids(r, first, "prompt[0]");
}

static int read_add_special(struct reading *r, const json_t *v)
{
    bool flag = false;
    if (!v)
        return 0;
    int rc = read_flag(r, v, "add_special_tokens", &flag);
    r->q->add_special = (struct openai_int){rc == 0, flag};
    return rc;
}

static int read_completion(struct reading *r, const json_t *body)
{
    r->q->logprobs = r->q->top_logprobs.set;
    if (r->q->echo && r->q->logprobs)
        return refuse(r, "logprobs", "logprobs of the prompt (with echo) are not served");
    int rc = read_add_special(r, member(body, "add_special_tokens"));
    return rc < 0 ? rc : read_prompt(r, member(body, "prompt"));
}

/* ---- the body ---- */

static int load(struct reading *r, const char *body, size_t len, json_t **ret)
{
    json_error_t e;
    int rc = check_shape(r, "", body, len);
    if (rc < 0)
        return rc;
    AUTO(json_decref_own) json_t *j = json_loadb(body, len, JSON_REJECT_DUPLICATES, &e);
    if (!j)
        return refuse(r, "", "the body is not valid JSON: %s (line %d, column %d)", e.text, e.line,
                      e.column);
    if (!json_is_object(j))
        return refuse(r, "", "the body must be a JSON object, not %s", type_name(j));
    *ret = TAKE(j);
    return 0;
}

/* Reads the body with `read`; what is half-read is freed. */
static int parse(enum openai_kind kind, const char *body, size_t len,
                 int (*read)(struct reading *r, json_t *body), struct openai_request *ret,
                 struct openai_fault *ret_fault)
{
    *ret = (struct openai_request){.kind = kind, .skip_special = true};
    *ret_fault = (struct openai_fault){0};
    struct reading r = {ret, ret_fault, 0};
    AUTO(json_decref_own) json_t *j = NULL;
    int rc = load(&r, body, len, &j);
    rc = rc < 0 ? rc : read(&r, j);
    if (rc < 0)
        openai_request_done(ret);
    return rc;
}

static int read_generation(struct reading *r, json_t *body)
{
    int rc = read_common(r, body);
    if (rc < 0)
        return rc;
    return r->q->kind == OPENAI_CHAT ? read_chat(r, body) : read_completion(r, body);
}

int openai_request_parse(enum openai_kind kind, const char *body, size_t len,
                         struct openai_request *ret, struct openai_fault *ret_fault)
{
    return parse(kind, body, len, read_generation, ret, ret_fault);
}

static int read_tokenize(struct reading *r, json_t *body)
{
    const json_t *prompt = member(body, "prompt");
    if (!prompt)
        return refuse(r, "prompt", "prompt is missing");
    int rc = read_add_special(r, member(body, "add_special_tokens"));
    return rc < 0 ? rc : copy_text(r, prompt, "prompt", &r->q->prompt);
}

int openai_tokenize_parse(const char *body, size_t len, struct openai_request *ret,
                          struct openai_fault *ret_fault)
{
    return parse(OPENAI_COMPLETION, body, len, read_tokenize, ret, ret_fault);
}

static int read_detokenize(struct reading *r, json_t *body)
{
    return read_ids(r, member(body, "tokens"), "tokens");
}

int openai_detokenize_parse(const char *body, size_t len, struct openai_request *ret,
                            struct openai_fault *ret_fault)
{
    return parse(OPENAI_COMPLETION, body, len, read_detokenize, ret, ret_fault);
}

void openai_request_done(struct openai_request *q)
{
    free(q->model);
    free(q->template_vars);
    free(q->prompt);
    free(q->ids);
    free(q->prediction);
    free(q->user);
    free(q->cache_salt);
    free(q->proposer);
    free(q->rule);
    for (unsigned i = 0; i < q->n_stops; i++)
        free(q->stops[i]);
    free(q->bias);
    *q = (struct openai_request){0};
}
