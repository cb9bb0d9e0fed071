/* utf8.h - checks and decodes UTF-8 (Unicode 15, table 3-7: no surrogates, no overlong forms). */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum utf8_what {
    UTF8_CHAR, // a character
    UTF8_BAD,  // bytes that begin no character; together one U+FFFD (Unicode 3.9)
    UTF8_CUT,  // the beginning of a character, cut by the end of the text
};

#define UTF8_REPLACEMENT "\xef\xbf\xbd" // U+FFFD

/* Length (1-4) of the character, or of the invalid bytes, at s. len must not be 0. */
unsigned utf8_step(const char *s, size_t len, enum utf8_what *ret_what);
/* Length of the character at s (1-4), and its code point. 0: invalid, or cut by the end. */
unsigned utf8_next(const char *s, size_t len, uint32_t *ret_code);
/* Offset of the first byte that is not valid UTF-8; len: all bytes are valid. */
size_t utf8_valid(const char *s, size_t len);
