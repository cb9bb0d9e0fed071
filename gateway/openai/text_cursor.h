/* text_cursor.h - a view of text that is read from front to back, without copies.
 *
 * Threads: any, nothing is shared. */
#pragma once
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
/* Takes the text before the word, and skips the word. false: the word does not occur. */
bool text_cursor_until(struct text_cursor *t, const char *word, struct text_cursor *ret);

/* Skips white space and takes a JSON object or array.
 * -EAGAIN: it is incomplete; -EINVAL: the text is something else. */
int text_cursor_json(struct text_cursor *t, struct text_cursor *ret);
/* The text must be valid JSON. Takes the text of a value, and skips white space after it. */
struct text_cursor text_cursor_take_value(struct text_cursor *t);
/* The text of the value of an object's member, the last one of that name; empty: none. */
struct text_cursor text_cursor_member(struct text_cursor object, const char *name);
