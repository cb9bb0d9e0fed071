/* tool_types.h - the names of a request's tools and the types of their parameters.
 *
 * Some formats write all values alike; there the types distinguish text from numbers. A format that
 * is plain JSON needs the names to recognise a call.
 *
 * The schemas are read once, in time linear in their size, into a table: name, parameter, allowed
 * types. A parameter that may have any type takes no memory. Looking one up takes the same time
 * whatever the schemas are.
 *
 * Threads: any, nothing changes. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "base/mem.h"

struct json_t;
struct tool_types;

#define TOOL_TYPES_MAX_KEY 255  // bytes of a parameter's name; longer ones have any type
#define TOOL_TYPES_MAX_DEPTH 16 // nested schemas; deeper ones allow any type

/* tools: the JSON array of a request; not used afterwards. -ENOMEM. */
int tool_types_new(const struct json_t *tools, struct tool_types **ret);
void tool_types_free(struct tool_types *t);
DEFINE_AUTO(struct tool_types, tool_types_free)

/* The memory that it takes. t may be NULL. */
size_t tool_types_bytes(const struct tool_types *t);
/* Whether there is a tool of this name. t may be NULL: no tools. */
bool tool_types_offer(const struct tool_types *t, const char *name, size_t len);
/* Converts the value that a model wrote for a parameter to JSON text. If the parameter may be text,
 * it becomes a string. Otherwise valid JSON stays, and other text becomes a string.
 * NULL: invalid UTF-8, or no memory. */
char *tool_types_value(const struct tool_types *t, const char *name, size_t name_len,
                       const char *key, const char *value, size_t len);
/* The text as a JSON string; NULL as above. */
char *tool_types_text(const char *text, size_t len);
