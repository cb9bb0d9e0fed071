/* text_cursor.c - text that is read from its beginning on. */
#include <errno.h>
#include <string.h>
#include "gateway/openai/text_cursor.h"

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

void slice_take(struct slice *t, size_t n)
{
    t->data += n;
    t->len -= n;
}

void slice_skip_space(struct slice *t)
{
    while (t->len && is_space(*t->data))
        slice_take(t, 1);
}

struct slice slice_trimmed(struct slice t)
{
    slice_skip_space(&t);
    while (t.len && is_space(t.data[t.len - 1]))
        t.len--;
    return t;
}

bool slice_skip_word(struct slice *t, const char *word)
{
    size_t n = strlen(word);
    if (t->len < n || memcmp(t->data, word, n) != 0)
        return false;
    slice_take(t, n);
    return true;
}

bool slice_until(struct slice *t, const char *word, struct slice *ret)
{
    const char *at = memmem(t->data, t->len, word, strlen(word));
    if (!at)
        return false;
    *ret = (struct slice){t->data, (size_t)(at - t->data)};
    slice_take(t, ret->len + strlen(word));
    return true;
}

int slice_json(struct slice *t, json_t **ret)
{
    json_error_t e;
    slice_skip_space(t);
    json_t *v = json_loadb(t->data, t->len,
                           JSON_DISABLE_EOF_CHECK | JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, &e);
    if (!v)
        return json_error_code(&e) == json_error_premature_end_of_input ? -EAGAIN : -EINVAL;
    slice_take(t, (size_t)e.position);
    *ret = v;
    return 0;
}

static void skip_string(struct slice *t)
{
    slice_take(t, 1);
    while (t->len && *t->data != '"')
        slice_take(t, *t->data == '\\' && t->len > 1 ? 2 : 1);
    slice_take(t, t->len > 0);
}

struct slice slice_take_value(struct slice *t)
{
    slice_skip_space(t);
    struct slice value = *t;
    int depth = 0;
    while (t->len && (depth || (*t->data && !strchr(":,]} \t\r\n", *t->data)))) {
        if (*t->data == '"') {
            skip_string(t);
            continue;
        }
        depth += (*t->data == '{' || *t->data == '[') - (*t->data == '}' || *t->data == ']');
        slice_take(t, 1);
        if (depth == 0 && (t->data[-1] == '}' || t->data[-1] == ']'))
            break;
    }
    value.len -= t->len;
    slice_skip_space(t);
    return value;
}

struct slice slice_member(struct slice object, const char *name)
{
    struct slice found = {0};
    size_t n = strlen(name);
    slice_skip_space(&object);
    slice_take(&object, object.len > 0);
    while (object.len && *object.data != '}') {
        struct slice key = slice_take_value(&object);
        slice_take(&object, object.len > 0); // the colon
        struct slice value = slice_take_value(&object);
        if (key.len == n + 2 && memcmp(key.data + 1, name, n) == 0)
            found = value;
        if (object.len && *object.data == ',')
            slice_take(&object, 1);
        slice_skip_space(&object);
    }
    return found;
}
