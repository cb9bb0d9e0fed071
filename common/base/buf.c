/* buf.c - a growing byte buffer. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/buf.h"
#include "base/err.h"

void buf_init(struct buf *b, size_t max)
{
    *b = (struct buf){.max = max};
}

void buf_done(struct buf *b)
{
    free(b->data);
    *b = (struct buf){0};
}

void buf_clear(struct buf *b)
{
    b->len = 0;
    b->error = 0;
    if (b->data)
        b->data[0] = 0;
}

void *buf_reserve(struct buf *b, size_t n)
{
    if (b->error)
        return NULL;
    if (n > b->max - b->len) {
        b->error = -EMSGSIZE;
        return NULL;
    }
    if (b->len + n + 1 > b->cap) { // one byte for the NUL
        size_t cap = b->cap ? b->cap * 2 : 256;
        if (cap < b->len + n + 1)
            cap = b->len + n + 1;
        char *data = realloc(b->data, cap);
        if (!data) {
            b->error = -ENOMEM;
            return NULL;
        }
        b->data = data;
        b->cap = cap;
    }
    return b->data + b->len;
}

void buf_add(struct buf *b, const void *data, size_t len)
{
    char *to = buf_reserve(b, len);
    if (!to)
        return;
    if (len)
        memcpy(to, data, len);
    b->len += len;
    b->data[b->len] = 0;
}

void buf_puts(struct buf *b, const char *text)
{
    buf_add(b, text, strlen(text));
}

void buf_printf(struct buf *b, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    char *to = n < 0 ? NULL : buf_reserve(b, (size_t)n);
    if (to) {
        vsnprintf(to, (size_t)n + 1, format, again);
        b->len += (size_t)n;
    }
    va_end(again);
    va_end(args);
}

void buf_shift(struct buf *b, size_t n)
{
    if (n == 0)
        return;
    memmove(b->data, b->data + n, b->len - n);
    b->len -= n;
    b->data[b->len] = 0;
}

int buf_error(const struct buf *b)
{
    if (b->error == -EMSGSIZE)
        return fail(-EMSGSIZE, "more than %zu bytes", b->max);
    if (b->error)
        return fail(b->error, "no memory for %zu bytes", b->len);
    return 0;
}

char *buf_take(struct buf *b)
{
    if (!b->data)
        buf_add(b, "", 0);
    char *data = b->data;
    *b = (struct buf){.max = b->max};
    return data;
}
