/* trace.h - W3C Trace Context: the trace of the caller to which a request belongs.
 *
 * Services forward `traceparent` unchanged and write its trace id to their logs.
 *
 * Threads: any. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#define TRACE_LEN 55 // version 00: "00-" trace id "-" parent id "-" flags
#define TRACE_ID_LEN 32

/* The trace id of a traceparent; "" and false if the text is not a valid one. text: any bytes. */
bool trace_id(const void *text, size_t len, char ret_id[TRACE_ID_LEN + 1]);
