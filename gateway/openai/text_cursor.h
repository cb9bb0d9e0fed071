/* text_cursor.h - text that is read from its beginning on, and never copied.
 *
 * Threads: any, nothing is shared. */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

struct text_cursor {
    const char *data;
    size_t len;
};

void text_cursor_take(struct text_cursor *t, size_t n); // n <= len
void text_cursor_skip_space(struct text_cursor *t);
struct text_cursor text_cursor_trimmed(struct text_cursor t);
bool text_cursor_skip_word(struct text_cursor *t, const char *word);
/* What stands before the word, which is skipped as well. */
bool text_cursor_until(struct text_cursor *t, const char *word, struct text_cursor *ret);

/* Takes a value: new reference. Integers of any length are read, as reals: whoever wants numbers as
 * they were written takes the text. -EAGAIN: it is cut short; -EINVAL: it is none. */
int text_cursor_json(struct text_cursor *t, json_t **ret);
/* Of text that is JSON: takes a value as it is written, and the space behind it ... */
struct text_cursor text_cursor_take_value(struct text_cursor *t);
/* ... and the value of an object's member, of several the last; empty: there is none. */
struct text_cursor text_cursor_member(struct text_cursor object, const char *name);
