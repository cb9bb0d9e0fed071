/* trace.h - the ids by which a request is found in the logs of all services.
 *
 * W3C Trace Context: gateway and verifier forward `traceparent` unchanged. Proposers get only the
 * trace id. Every service writes the trace id and the request's own id to its log.
 *
 * Threads: any. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

#define TRACE_LEN 55 // version 00: "00-" trace id "-" parent id "-" flags
#define TRACE_ID_LEN 32
#define TRACE_REQUEST_MAX 128 // bytes of a request's id

/* The trace id of a traceparent; "" and false if the text is not a valid one. text: any bytes. */
bool trace_id(const void *text, size_t len, char ret_id[TRACE_ID_LEN + 1]);
/* Copies a trace id; "" and false if the text is not a valid one. text: any bytes. */
bool trace_id_copy(const void *text, size_t len, char ret_id[TRACE_ID_LEN + 1]);
/* Copies a request's id for a log line: cut, and no spaces, quotes or control characters. text: any
 * bytes. */
void trace_request(const void *text, size_t len, char ret_id[TRACE_REQUEST_MAX + 1]);
