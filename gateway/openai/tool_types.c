/* tool_types.c - the types of the parameters of a request's tools. */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <xxhash.h>
#include "base/buf.h"
#include "base/rng.h"
#include "gateway/openai/json_read.h"
#include "gateway/openai/json_scan.h"
#include "gateway/openai/tool_types.h"

enum { NONE = 1, FLAG = 2, NUMBER = 4, TEXT = 8, ARRAY = 16, OBJECT = 32, ANY = 63 };

#define A_TOOL UINT32_MAX

/* A tool, or a parameter of a tool. */
struct entry {
    uint32_t at, len; // its name, in `names`
    uint32_t tool;    // of a parameter: the index of its tool's entry; else A_TOOL
    uint32_t types;   // of a parameter
};

struct tool_types {
    struct buf names;
    struct buf entries; // of struct entry
    uint32_t *slots;    // (n_slots) hash table of 1 + index of an entry; 0: empty
    uint32_t n_slots;   // a power of two, at least twice the entries
    uint64_t seed;      // random: no request can choose names of equal hashes
};

/* ---- the table ---- */

static const struct entry *entry_of(const struct tool_types *t, uint32_t i)
{
    return (const struct entry *)(const void *)t->entries.data + i;
}

static uint32_t n_entries(const struct tool_types *t)
{
    return (uint32_t)(t->entries.len / sizeof(struct entry));
}

/* The slot of that name: it holds its entry, or is empty. */
static uint32_t *slot_of(const struct tool_types *t, uint32_t tool, const char *name, size_t len)
{
    uint64_t i = XXH3_64bits_withSeed(name, len, t->seed + tool);
    for (;; i++) {
        uint32_t *slot = &t->slots[i & (t->n_slots - 1)];
        const struct entry *e = *slot ? entry_of(t, *slot - 1) : NULL;
        if (!e ||
            (e->tool == tool && e->len == len && memcmp(t->names.data + e->at, name, len) == 0))
            return slot;
    }
}

static void add_entry(struct tool_types *t, const char *name, size_t len, uint32_t tool,
                      unsigned types)
{
    struct entry e = {(uint32_t)t->names.len, (uint32_t)len, tool, types};
    buf_add(&t->names, name, len);
    buf_add(&t->entries, &e, sizeof(e));
}

/* Of tools with the same name the first one counts. */
static int make_slots(struct tool_types *t)
{
    if (t->names.error || t->entries.error)
        return -ENOMEM;
    for (t->n_slots = 2; t->n_slots < 2 * n_entries(t);)
        t->n_slots *= 2;
    t->slots = calloc(t->n_slots, sizeof(*t->slots));
    for (uint32_t i = 0; t->slots && i < n_entries(t); i++) {
        const struct entry *e = entry_of(t, i);
        uint32_t *slot = slot_of(t, e->tool, t->names.data + e->at, e->len);
        if (!*slot)
            *slot = i + 1;
    }
    return t->slots ? 0 : -ENOMEM;
}

/* The entry of the tool, or NULL. */
static const struct entry *tool_named(const struct tool_types *t, const char *name, size_t len)
{
    uint32_t i = t ? *slot_of(t, A_TOOL, name, len) : 0;
    return i ? entry_of(t, i - 1) : NULL;
}

static unsigned types_allowed(const struct tool_types *t, const char *name, size_t len,
                              const char *key)
{
    const struct entry *tool = tool_named(t, name, len);
    uint32_t i = tool ? *slot_of(t, (uint32_t)(tool - entry_of(t, 0)), key, strlen(key)) : 0;
    return i ? entry_of(t, i - 1)->types : ANY;
}

bool tool_types_offer(const struct tool_types *t, const char *name, size_t len)
{
    return len && tool_named(t, name, len);
}

/* ---- schemas ---- */

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

/* The schemas of one tool. */
struct schemas {
    const json_t *root; // that references start from
    json_t *known;      // the types of references that were resolved, by their text
    bool no_memory;
};

/* The schema that a reference names, "#/$defs/City", or NULL. No two references name the same
 * schema. */
static const json_t *target_of(const json_t *root, const char *ref)
{
    if (*ref++ != '#')
        return NULL;
    while (root && *ref == '/') {
        size_t n = strcspn(++ref, "/");
        root = json_object_getn(root, ref, n);
        ref += n;
    }
    return *ref ? NULL : root;
}

static unsigned types_of(struct schemas *s, const json_t *schema, int depth);

static void set_known(struct schemas *s, const char *ref, unsigned types)
{
    if (json_object_set_new(s->known, ref, json_integer(types)) < 0)
        s->no_memory = true;
}

/* Each reference is resolved once. A schema that refers to itself may have any type there. */
static unsigned types_of_ref(struct schemas *s, const char *ref, int depth)
{
    const json_t *known = json_object_get(s->known, ref);
    if (known || s->no_memory)
        return known ? (unsigned)json_integer_value(known) : ANY;
    set_known(s, ref, ANY);
    unsigned types = types_of(s, target_of(s->root, ref), depth);
    set_known(s, ref, types);
    return types;
}

static unsigned types_of_any(struct schemas *s, const json_t *schemas, int depth)
{
    size_t i;
    const json_t *one;
    unsigned types = 0;
    json_array_foreach(schemas, i, one) types |= types_of(s, one, depth);
    return types ? types : ANY;
}

/* The types that `type`, `enum` and `const` of a schema allow. */
static unsigned own_types(const json_t *schema)
{
    const json_t *type = json_object_get(schema, "type"), *values = json_object_get(schema, "enum"),
                 *constant = json_object_get(schema, "const"), *one;
    unsigned named = 0, listed = 0;
    size_t i;
    json_array_foreach(type, i, one) named |= type_named(one);
    json_array_foreach(values, i, one) listed |= type_of_value(one);
    return (named ? named : type_named(type)) & (listed ? listed : ANY) &
           (constant ? type_of_value(constant) : ANY);
}

static unsigned types_of(struct schemas *s, const json_t *schema, int depth)
{
    if (!json_is_object(schema) || !depth)
        return ANY;
    const json_t *ref = json_object_get(schema, "$ref"), *one;
    unsigned types = own_types(schema);
    size_t i;
    types &= types_of_any(s, json_object_get(schema, "anyOf"), depth - 1);
    types &= types_of_any(s, json_object_get(schema, "oneOf"), depth - 1);
    json_array_foreach(json_object_get(schema, "allOf"), i, one) types &=
        types_of(s, one, depth - 1);
    if (json_is_string(ref))
        types &= types_of_ref(s, json_string_value(ref), depth - 1);
    return types | (json_is_true(json_object_get(schema, "nullable")) ? NONE : 0);
}

static int add_tool(struct tool_types *t, const json_t *function)
{
    const json_t *name = json_object_get(function, "name"),
                 *root = json_object_get(function, "parameters");
    AUTO(json_decref_own) json_t *known = json_object();
    struct schemas s = {.root = root, .known = known, .no_memory = !known};
    uint32_t tool = n_entries(t);
    const char *key;
    size_t len;
    json_t *schema;
    add_entry(t, json_string_value(name), json_string_length(name), A_TOOL, 0);
    json_t *properties = json_object_get(root, "properties");
    json_object_keylen_foreach(properties, key, len, schema)
    {
        unsigned types =
            len <= TOOL_TYPES_MAX_KEY ? types_of(&s, schema, TOOL_TYPES_MAX_DEPTH) : ANY;
        if (types != ANY)
            add_entry(t, key, len, tool, types);
    }
    return s.no_memory ? -ENOMEM : 0;
}

int tool_types_new(const json_t *tools, struct tool_types **ret)
{
    AUTO(tool_types_free) struct tool_types *t = calloc(1, sizeof(*t));
    size_t i;
    const json_t *tool;
    int rc = 0;
    if (!t)
        return fail(-ENOMEM, "tools: no memory");
    t->seed = rng_secret();
    buf_init(&t->names, UINT32_MAX);
    buf_init(&t->entries, UINT32_MAX);
    json_array_foreach(tools, i, tool) rc =
        rc < 0 ? rc : add_tool(t, json_object_get(tool, "function"));
    rc = rc < 0 ? rc : make_slots(t);
    if (rc < 0)
        return fail(rc, "tools: no memory");
    *ret = TAKE(t);
    return 0;
}

void tool_types_free(struct tool_types *t)
{
    if (!t)
        return;
    buf_done(&t->names);
    buf_done(&t->entries);
    free(t->slots);
    free(t);
}

size_t tool_types_bytes(const struct tool_types *t)
{
    return t ? sizeof(*t) + t->names.cap + t->entries.cap + t->n_slots * sizeof(*t->slots) : 0;
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
    size_t n;
    return json_scan(s, len, &n) == 0 && n == len;
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
    unsigned types = types_allowed(t, name, name_len, key);
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
