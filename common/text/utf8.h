/* utf8.h - checking and walking UTF-8 (Unicode 15, table 3-7: no surrogates, no overlong forms). */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum utf8_what {
    UTF8_CHAR, // a character
    UTF8_BAD,  // bytes that begin none; together they become one U+FFFD (Unicode 3.9)
    UTF8_CUT,  // the beginning of a character, cut off by the end
};

#define UTF8_REPLACEMENT "\xef\xbf\xbd" // U+FFFD

/* Bytes of what stands at s (1-4); len is not 0. */
unsigned utf8_step(const char *s, size_t len, enum utf8_what *ret_what);
/* Bytes of the character at s (1-4) and its code point; 0: not valid, or cut off by the end. */
unsigned utf8_next(const char *s, size_t len, uint32_t *ret_code);
/* Offset of the first byte that is not valid UTF-8; len if all is. */
size_t utf8_valid(const char *s, size_t len);
