/* buf.h - a growing run of bytes with a written maximum.
 *
 * Growth that fails or passes the maximum marks the buffer; further appends do nothing and
 * buf_error() tells once at the end, so that building a text needs no check per line. */
#pragma once
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf {
    char *data; // NUL behind the last byte once anything was appended
    size_t len, cap, max;
    int error; // 0, -ENOMEM or -EMSGSIZE
};

void buf_init(struct buf *b, size_t max);
void buf_done(struct buf *b);
static inline void buf_done_auto(struct buf *b)
{
    buf_done(b);
}
void buf_clear(struct buf *b); // keeps the memory
void buf_add(struct buf *b, const void *data, size_t len);
void buf_puts(struct buf *b, const char *text);
void buf_printf(struct buf *b, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Drops the first n bytes. */
void buf_shift(struct buf *b, size_t n);
/* Room for n more bytes at data + len, or NULL; the caller adds to len what it wrote. */
void *buf_room(struct buf *b, size_t n);
/* 0, -ENOMEM or -EMSGSIZE (the maximum was passed); with a sentence. */
int buf_error(const struct buf *b);
/* Hands the bytes over (malloc'ed, NUL behind them); the buffer is empty again. */
char *buf_take(struct buf *b);
