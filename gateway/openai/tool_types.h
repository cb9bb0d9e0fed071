/* tool_types.h - the values that the tools of a request take.
 *
 * Formats that write all values alike need it to tell text from numbers; one that is no more than
 * JSON needs the names.
 *
 * Threads: any, nothing changes. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "base/mem.h"

struct tool_types;

/* tools: a JSON array as requests have it. -EINVAL: it is none; -ENOMEM. */
int tool_types_new(const char *tools, struct tool_types **ret);
void tool_types_free(struct tool_types *t);
DEFINE_AUTO(struct tool_types, tool_types_free)

/* NULL: there are no tools. */
bool tool_types_offer(const struct tool_types *t, const char *name, size_t len);
/* What the model wrote as the value of a parameter, as JSON text: text where that may stand, else
 * what it is as JSON, and text if it is none. NULL: it is no UTF-8, or no memory. */
char *tool_types_value(const struct tool_types *t, const char *name, size_t name_len,
                       const char *key, const char *value, size_t len);
char *tool_types_text(const char *text, size_t len); // the same of text
