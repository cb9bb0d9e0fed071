/* json_write.h - writes JSON values into a buffer, without a tree of JSON objects.
 *
 * Threads: one per buffer. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "base/buf.h"

/* The escaped characters of a string, without quotes. Invalid UTF-8 becomes U+FFFD, so the output
 * is always valid JSON. */
void json_write_chars(struct buf *to, const void *text, size_t len);
/* A string with its quotes. */
void json_write_text(struct buf *to, const void *text, size_t len);
void json_write_cstr(struct buf *to, const char *text);
/* [226,130,172] */
void json_write_bytes(struct buf *to, const void *data, size_t len);
/* Nine digits, so the reader gets the same float. Infinities and NaN become -9999. */
void json_write_float(struct buf *to, float value);
void json_write_double(struct buf *to, double value);

/* Bytes of the UTF-8 character at s (1-4), 0: not valid (Unicode 15, table 3-7). */
unsigned json_write_utf8(const unsigned char *s, size_t len);
