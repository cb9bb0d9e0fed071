/* tool_types.c - the types of the parameters of a request's tools. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "gateway/openai/json_read.h"
#include "gateway/openai/tool_types.h"

#define DEPTH_MAX 16    // of nested schemas
#define SCHEMAS_MAX 256 // visited for one value

struct tool_types {
    json_t *tools;
};

int tool_types_new(const char *tools, struct tool_types **ret)
{
    AUTO(tool_types_free) struct tool_types *t = calloc(1, sizeof(*t));
    if (!t)
        return fail(-ENOMEM, "tools: no memory");
    t->tools = json_loads(tools, JSON_DECODE_INT_AS_REAL, NULL);
    if (!json_is_array(t->tools))
        return fail(-EINVAL, "tools: not an array");
    *ret = TAKE(t);
    return 0;
}

void tool_types_free(struct tool_types *t)
{
    if (!t)
        return;
    json_decref(t->tools);
    free(t);
}

/* The function of that name, or NULL. */
static const json_t *tool_named(const struct tool_types *t, const char *name, size_t len)
{
    size_t i;
    const json_t *tool;
    if (!t || !len)
        return NULL;
    json_array_foreach(t->tools, i, tool)
    {
        const json_t *function = json_object_get(tool, "function");
        const json_t *own = json_object_get(function, "name");
        if (json_string_length(own) == len && memcmp(json_string_value(own), name, len) == 0)
            return function;
    }
    return NULL;
}

bool tool_types_offer(const struct tool_types *t, const char *name, size_t len)
{
    return tool_named(t, name, len) != NULL;
}

/* ---- schemas ---- */

enum { NONE = 1, FLAG = 2, NUMBER = 4, TEXT = 8, ARRAY = 16, OBJECT = 32, ANY = 63 };

static unsigned type_named(const json_t *name)
{
    static const struct {
        const char *name;
        unsigned type;
    } v[] = {{"null", NONE},   {"boolean", FLAG}, {"integer", NUMBER}, {"number", NUMBER},
             {"string", TEXT}, {"array", ARRAY},  {"object", OBJECT}};
    for (size_t i = 0; i < ARRAY_LEN(v) && json_is_string(name); i++)
        if (strcmp(json_string_value(name), v[i].name) == 0)
            return v[i].type;
    return ANY;
}

static unsigned type_of_value(const json_t *v)
{
    static const unsigned types[] = {
        [JSON_OBJECT] = OBJECT, [JSON_ARRAY] = ARRAY, [JSON_STRING] = TEXT, [JSON_INTEGER] = NUMBER,
        [JSON_REAL] = NUMBER,   [JSON_TRUE] = FLAG,   [JSON_FALSE] = FLAG,  [JSON_NULL] = NONE};
    return types[json_typeof(v)];
}

/* The schema that a reference names, "#/$defs/City", or NULL. */
static const json_t *target_of(const json_t *root, const char *ref)
{
    if (*ref++ != '#')
        return NULL;
    while (root && *ref == '/') {
        size_t n = strcspn(++ref, "/");
        root = json_object_getn(root, ref, n);
        ref += n;
    }
    return root;
}

struct schemas {
    const json_t *root; // that references start from
    int left;           // schemas that may still be visited
};

static unsigned types_of(struct schemas *s, const json_t *schema, int depth);

static unsigned types_of_any(struct schemas *s, const json_t *schemas, int depth)
{
    size_t i;
    const json_t *one;
    unsigned types = 0;
    json_array_foreach(schemas, i, one) types |= types_of(s, one, depth);
    return types ? types : ANY;
}

static unsigned types_of(struct schemas *s, const json_t *schema, int depth)
{
    const json_t *type = json_object_get(schema, "type"), *values = json_object_get(schema, "enum"),
                 *one = json_object_get(schema, "const"), *ref = json_object_get(schema, "$ref");
    unsigned types = ANY, some = 0;
    size_t i;
    if (!json_is_object(schema) || !depth || s->left-- <= 0)
        return ANY;
    json_array_foreach(type, i, one) some |= type_named(one);
    types &= some ? some : type_named(type);
    some = 0;
    json_array_foreach(values, i, one) some |= type_of_value(one);
    types &= some ? some : ANY;
    one = json_object_get(schema, "const");
    types &= one ? type_of_value(one) : ANY;
    types &= types_of_any(s, json_object_get(schema, "anyOf"), depth - 1);
    types &= types_of_any(s, json_object_get(schema, "oneOf"), depth - 1);
    json_array_foreach(json_object_get(schema, "allOf"), i, one) types &=
        types_of(s, one, depth - 1);
    if (json_is_string(ref))
        types &= types_of(s, target_of(s->root, json_string_value(ref)), depth - 1);
    return types | (json_is_true(json_object_get(schema, "nullable")) ? NONE : 0);
}

/* ---- values ---- */

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static bool is_word(const char *s, size_t len, const char *word)
{
    return len == strlen(word) && strncasecmp(s, word, len) == 0;
}

static bool is_json(const char *s, size_t len)
{
    AUTO(json_decref_own)
    json_t *v =
        json_loadb(s, len, JSON_DECODE_ANY | JSON_DECODE_INT_AS_REAL | JSON_ALLOW_NUL, NULL);
    return v;
}

/* null, true or false, in any case; also Python's None: some templates show earlier values so. */
static const char *word_of(const char *s, size_t len)
{
    return is_word(s, len, "null") || is_word(s, len, "none") ? "null"
           : is_word(s, len, "true")                          ? "true"
           : is_word(s, len, "false")                         ? "false"
                                                              : NULL;
}

char *tool_types_text(const char *s, size_t len)
{
    AUTO(json_decref_own) json_t *text = json_stringn(s, len);
    return text ? json_dumps(text, JSON_ENCODE_ANY) : NULL;
}

char *tool_types_value(const struct tool_types *t, const char *name, size_t name_len,
                       const char *key, const char *value, size_t len)
{
    const json_t *root = json_object_get(tool_named(t, name, name_len), "parameters");
    const json_t *schema = json_object_get(json_object_get(root, "properties"), key);
    struct schemas schemas = {.root = root, .left = SCHEMAS_MAX};
    unsigned types = types_of(&schemas, schema, DEPTH_MAX);

    const char *bare = value;
    size_t n = len;
    for (; n && is_space(*bare); n--)
        bare++;
    while (n && is_space(bare[n - 1]))
        n--;
    const char *word = word_of(bare, n);
    bool text = types != ANY && (types & TEXT);
    if (text && !(word && *word == 'n' && (types & NONE)))
        return tool_types_text(value, len);
    if (word)
        return strdup(word);
    return is_json(bare, n) ? strndup(bare, n) : tool_types_text(value, len);
}
