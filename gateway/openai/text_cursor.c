/* text_cursor.c - a view of text that is read from front to back. */
#include <errno.h>
#include <string.h>
#include "gateway/openai/json_scan.h"
#include "gateway/openai/text_cursor.h"

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

void text_cursor_take(struct text_cursor *t, size_t n)
{
    t->data += n;
    t->len -= n;
}

void text_cursor_skip_space(struct text_cursor *t)
{
    while (t->len && is_space(*t->data))
        text_cursor_take(t, 1);
}

struct text_cursor text_cursor_trimmed(struct text_cursor t)
{
    text_cursor_skip_space(&t);
    while (t.len && is_space(t.data[t.len - 1]))
        t.len--;
    return t;
}

bool text_cursor_skip_word(struct text_cursor *t, const char *word)
{
    size_t n = strlen(word);
    if (t->len < n || memcmp(t->data, word, n) != 0)
        return false;
    text_cursor_take(t, n);
    return true;
}

bool text_cursor_until(struct text_cursor *t, const char *word, struct text_cursor *ret)
{
    const char *at = memmem(t->data, t->len, word, strlen(word));
    if (!at)
        return false;
    *ret = (struct text_cursor){t->data, (size_t)(at - t->data)};
    text_cursor_take(t, ret->len + strlen(word));
    return true;
}

int text_cursor_json(struct text_cursor *t, struct text_cursor *ret)
{
    text_cursor_skip_space(t);
    if (t->len && *t->data != '{' && *t->data != '[')
        return -EINVAL;
    ret->data = t->data;
    int rc = json_scan(t->data, t->len, &ret->len);
    if (rc == 0)
        text_cursor_take(t, ret->len);
    return rc;
}

static void skip_string(struct text_cursor *t)
{
    text_cursor_take(t, 1);
    while (t->len && *t->data != '"')
        text_cursor_take(t, *t->data == '\\' && t->len > 1 ? 2 : 1);
    text_cursor_take(t, t->len > 0);
}

struct text_cursor text_cursor_take_value(struct text_cursor *t)
{
    text_cursor_skip_space(t);
    struct text_cursor value = *t;
    int depth = 0;
    while (t->len && (depth || (*t->data && !strchr(":,]} \t\r\n", *t->data)))) {
        if (*t->data == '"') {
            skip_string(t);
            continue;
        }
        depth += (*t->data == '{' || *t->data == '[') - (*t->data == '}' || *t->data == ']');
        text_cursor_take(t, 1);
        if (depth == 0 && (t->data[-1] == '}' || t->data[-1] == ']'))
            break;
    }
    value.len -= t->len;
    text_cursor_skip_space(t);
    return value;
}

struct text_cursor text_cursor_member(struct text_cursor object, const char *name)
{
    struct text_cursor found = {0};
    size_t n = strlen(name);
    text_cursor_skip_space(&object);
    text_cursor_take(&object, object.len > 0);
    while (object.len && *object.data != '}') {
        struct text_cursor key = text_cursor_take_value(&object);
        text_cursor_take(&object, object.len > 0); // the colon
        struct text_cursor value = text_cursor_take_value(&object);
        if (key.len == n + 2 && memcmp(key.data + 1, name, n) == 0)
            found = value;
        if (object.len && *object.data == ',')
            text_cursor_take(&object, 1);
        text_cursor_skip_space(&object);
    }
    return found;
}
