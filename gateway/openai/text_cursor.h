/* text_cursor.h - text that is read from its beginning on, and never copied.
 *
 * Threads: any, nothing is shared. */
#pragma once
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

struct slice {
    const char *data;
    size_t len;
};

void slice_take(struct slice *t, size_t n); // n <= len
void slice_skip_space(struct slice *t);
struct slice slice_trimmed(struct slice t);
bool slice_skip_word(struct slice *t, const char *word);
/* What stands before the word, which is skipped as well. */
bool slice_until(struct slice *t, const char *word, struct slice *ret);

/* Takes a value: new reference. Integers of any length are read, as reals: whoever wants numbers as
 * they were written takes the text. -EAGAIN: it is cut short; -EINVAL: it is none. */
int slice_json(struct slice *t, json_t **ret);
/* Of text that is JSON: takes a value as it is written, and the space behind it ... */
struct slice slice_take_value(struct slice *t);
/* ... and the value of an object's member, of several the last; empty: there is none. */
struct slice slice_member(struct slice object, const char *name);
