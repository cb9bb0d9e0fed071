/* trace.h - W3C Trace Context: which trace of a caller's a request belongs to.
 *
 * Services pass `traceparent` on as it came and write its trace id into their logs. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#define TRACE_LEN 55 // version 00: "00-" trace id "-" parent id "-" flags
#define TRACE_ID_LEN 32

/* The trace id of a traceparent, "" and false if it is none. text: any bytes. */
bool trace_id(const void *text, size_t len, char ret_id[TRACE_ID_LEN + 1]);
