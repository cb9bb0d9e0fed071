/* json_read.c - reads a JSON body value by value. */
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/buf.h"
#include "gateway/openai/json_read.h"

int json_read_refuse(struct json_read *r, const char *param, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    r->fault->status = 400;
    snprintf(r->fault->param, sizeof(r->fault->param), "%s", param);
    vsnprintf(r->fault->text, sizeof(r->fault->text), format, args);
    va_end(args);
    return fail(-EINVAL, "%s", r->fault->text);
}

int json_read_no_memory(struct json_read *r)
{
    *r->fault = (struct openai_fault){.status = 500, .text = "no memory for this request"};
    return fail(-ENOMEM, "%s", r->fault->text);
}

static int add_dumped(const char *text, size_t len, void *to)
{
    buf_add(to, text, len);
    return 0; // jansson ignores some errors; the buffer keeps its own
}

void json_read_dump(const json_t *v, struct buf *to)
{
    if (json_dump_callback(v, add_dumped, to, JSON_COMPACT | JSON_ENCODE_ANY) < 0)
        to->error = -ENOMEM;
}

json_t *json_read_member(const json_t *object, const char *name)
{
    json_t *v = json_object_get(object, name);
    return json_is_null(v) ? NULL : v;
}

const char *json_read_type(const json_t *v)
{
    static const char *const names[] = {"an object", "an array", "a string", "an integer",
                                        "a number",  "true",     "false",    "null"};
    return names[json_typeof(v)];
}

int json_read_text(struct json_read *r, const json_t *v, const char *name, char **ret)
{
    if (!v)
        return 0;
    if (!json_is_string(v))
        return json_read_refuse(r, name, "%s must be a string, not %s", name, json_read_type(v));
    *ret = strdup(json_string_value(v));
    return *ret ? 0 : json_read_no_memory(r);
}

int json_read_flag(struct json_read *r, const json_t *v, const char *name, bool *ret)
{
    if (!json_is_boolean(v))
        return json_read_refuse(r, name, "%s must be true or false, not %s", name,
                                json_read_type(v));
    *ret = json_is_true(v);
    return 0;
}

int json_read_int(struct json_read *r, const json_t *v, const char *name, double min, double max,
                  struct openai_int *ret)
{
    double d = json_number_value(v);
    if (!json_is_number(v))
        return json_read_refuse(r, name, "%s must be an integer, not %s", name, json_read_type(v));
    if (d != floor(d) || d < min || d > max)
        return json_read_refuse(r, name, "%s must be an integer from %.0f to %.0f, it is %.9g",
                                name, min, max, d);
    *ret = (struct openai_int){true, (int64_t)d};
    return 0;
}

int json_read_real(struct json_read *r, const json_t *v, const char *name, double min, double max,
                   struct openai_real *ret)
{
    double d = json_number_value(v);
    if (!json_is_number(v))
        return json_read_refuse(r, name, "%s must be a number, not %s", name, json_read_type(v));
    if (d < min || d > max)
        return json_read_refuse(r, name, "%s must be from %g to %g, it is %.9g", name, min, max, d);
    *ret = (struct openai_real){true, d};
    return 0;
}

int json_read_token_id(struct json_read *r, const json_t *v, const char *field, size_t i,
                       uint32_t *ret)
{
    json_int_t id = json_integer_value(v);
    if (!json_is_integer(v) || id < 0 || id > OPENAI_MAX_TOKEN) {
        char name[64];
        snprintf(name, sizeof(name), "%s[%zu]", field, i);
        return json_read_refuse(r, name, "%s must be a token id", name);
    }
    *ret = (uint32_t)id;
    return 0;
}

int json_read_text_parts(struct json_read *r, json_t *v, const char *name, json_t **ret)
{
    if (!v || json_is_string(v)) {
        *ret = v ? json_incref(v) : json_string("");
        return *ret ? 0 : json_read_no_memory(r);
    }
    if (!json_is_array(v))
        return json_read_refuse(r, name, "%s must be a string or an array of parts, not %s", name,
                                json_read_type(v));
    AUTO(buf_done) struct buf text = {0};
    buf_init(&text, SIZE_MAX / 2);
    size_t i;
    json_t *part;
    json_array_foreach(v, i, part)
    {
        const char *type = json_string_value(json_object_get(part, "type"));
        const json_t *t = json_object_get(part, "text");
        if (!type)
            return json_read_refuse(r, name, "%s[%zu] must be an object with a type", name, i);
        if (strcmp(type, "text") != 0)
            return json_read_refuse(
                r, name, "%s[%zu] is of type '%.40s'; this model takes text only", name, i, type);
        if (!json_is_string(t))
            return json_read_refuse(r, name, "%s[%zu].text must be a string", name, i);
        if (i)
            buf_add(&text, "\n", 1);
        buf_add(&text, json_string_value(t), json_string_length(t));
    }
    buf_add(&text, "", 0);
    *ret = text.error ? NULL : json_stringn(text.data, text.len);
    return *ret ? 0 : json_read_no_memory(r);
}

int json_read_shape(struct json_read *r, const char *name, const char *s, size_t len)
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
        if (depth > JSON_READ_MAX_DEPTH)
            return json_read_refuse(r, name, "%s is nested deeper than %d levels",
                                    *name ? name : "the body", JSON_READ_MAX_DEPTH);
        if (r->n_values > JSON_READ_MAX_VALUES)
            return json_read_refuse(r, name, "the body holds more than %d values",
                                    JSON_READ_MAX_VALUES);
    }
    return 0;
}

static bool is_long_integer(const char *s, size_t len)
{
    char text[24];
    for (size_t i = 0; i < len; i++)
        if (strchr(".eE", s[i]))
            return false;
    if (len >= sizeof(text))
        return true;
    memcpy(text, s, len);
    text[len] = 0;
    errno = 0;
    strtoll(text, NULL, 10);
    return errno == ERANGE;
}

/* Copies the text and adds an exponent to integers that do not fit: jansson then reads a real. */
static void add_exponents(struct buf *to, const char *s, size_t len)
{
    bool quoted = false;
    for (size_t i = 0, n; i < len; i += n) {
        n = 1;
        if (quoted)
            n += s[i] == '\\' && i + 1 < len;
        else
            while (i + n < len && s[i] && strchr("-0123456789", s[i]) && s[i + n] &&
                   strchr("+-.eE0123456789", s[i + n]))
                n++;
        quoted ^= n == 1 && s[i] == '"';
        buf_add(to, s + i, n);
        if (!quoted && n > 1 && is_long_integer(s + i, n))
            buf_puts(to, "e0");
    }
}

json_t *json_read_parse(const char *s, size_t len, size_t flags, json_error_t *e)
{
    json_t *j = json_loadb(s, len, flags, e);
    if (j || json_error_code(e) != json_error_numeric_overflow)
        return j;
    AUTO(buf_done) struct buf longer = {0};
    buf_init(&longer, SIZE_MAX / 2);
    add_exponents(&longer, s, len);
    if (!longer.error)
        return json_loadb(longer.data, longer.len, flags, e);
    e->text[sizeof(e->text) - 1] = json_error_out_of_memory; // where jansson keeps its code
    return NULL;
}

/* Counts the body and its tree. -ENOBUFS: there is too little memory; the fault has the status. */
static int count_tree(struct json_read *r, size_t len)
{
    size_t tree = (size_t)r->n_values * JSON_READ_VALUE_BYTES;
    int status = r->memory ? r->memory->set(r->memory->user, len + tree) : 0;
    if (!status)
        return 0;
    *r->fault = (struct openai_fault){.status = status};
    snprintf(r->fault->text, sizeof(r->fault->text), "%s", fail_text());
    return -ENOBUFS;
}

int json_read_body(struct json_read *r, const char *body, size_t len, json_t **ret)
{
    json_error_t e = {0};
    int rc = json_read_shape(r, "", body, len);
    rc = rc < 0 ? rc : count_tree(r, len);
    if (rc < 0)
        return rc;
    AUTO(json_decref_own) json_t *j = json_read_parse(body, len, JSON_REJECT_DUPLICATES, &e);
    if (!j && json_error_code(&e) == json_error_out_of_memory)
        return json_read_no_memory(r);
    if (!j)
        return json_read_refuse(r, "", "the body is not valid JSON: %s (line %d, column %d)",
                                e.text, e.line, e.column);
    if (!json_is_object(j))
        return json_read_refuse(r, "", "the body must be a JSON object, not %s", json_read_type(j));
    *ret = TAKE(j);
    return 0;
}
