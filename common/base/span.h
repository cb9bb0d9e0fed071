/* span.h - bytes that another object owns: a text in a mapped file, the bytes of a token.
 *
 * Threads: plain functions. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

struct span { // not NUL-terminated
    const char *data;
    size_t len;
};

static inline bool span_is(struct span s, const char *text)
{
    return s.len == strlen(text) && memcmp(s.data, text, s.len) == 0;
}
