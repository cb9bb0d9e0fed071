/* openai_error.h - errors in OpenAI's shape.
 *
 * Threads: any. */
#pragma once
#include "base/buf.h"

/* {"error": {...}}; type and code follow from the HTTP status; param "": null. */
void openai_error(struct buf *to, int status, const char *text, const char *param);
/* The same as an event, for a stream that has begun; ends with [DONE]. */
void openai_error_event(struct buf *to, int status, const char *text);
