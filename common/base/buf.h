/* buf.h - a growing byte buffer with a maximum size.
 *
 * An append that fails, or that would pass the maximum, marks the buffer; later appends do nothing.
 * The caller checks buf_error() once at the end, so building a text needs no check per line.
 *
 * Threads: any; one at a time per buffer. */
#pragma once
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct buf {
    char *data; // NULL before the first append; afterwards a NUL follows the last byte
    size_t len, cap, max;
    int error; // 0, -ENOMEM or -EMSGSIZE
};

void buf_init(struct buf *b, size_t max);
void buf_done(struct buf *b);
static inline void buf_done_auto(struct buf *b)
{
    buf_done(b);
}
/* Empties the buffer and clears its error; keeps the memory. */
void buf_clear(struct buf *b);
void buf_add(struct buf *b, const void *data, size_t len);
void buf_puts(struct buf *b, const char *text);
void buf_printf(struct buf *b, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Drops the first n bytes. */
void buf_shift(struct buf *b, size_t n);
/* Space for n more bytes at data + len, or NULL. The caller writes there, then adds the number of
 * bytes written to len. */
void *buf_reserve(struct buf *b, size_t n);
/* 0, -ENOMEM or -EMSGSIZE (an append would have passed the maximum); sets fail_text(). */
int buf_error(const struct buf *b);
/* Hands the bytes over (malloc'ed, a NUL follows them); the buffer is empty again. NULL: no
 * memory. */
char *buf_take(struct buf *b);
