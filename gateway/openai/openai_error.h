/* openai_error.h - errors in the shape of OpenAI.
 *
 * Threads: any. */
#pragma once
#include "base/buf.h"

/* {"error": {...}}; the HTTP status determines type and code; param "": null. */
void openai_error(struct buf *to, int status, const char *text, const char *param);
/* The same as an event of a stream that has begun, then [DONE]. */
void openai_error_event(struct buf *to, int status, const char *text);
