/* access_log.h - what is told of each request for tokens: its line in the log, and the gateway's
 * figures.
 *
 * Threads: access_log_begin() on http threads, the rest by whoever answers the request. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/trace.h"
#include "gateway/serve/auth.h"
#include "gateway/http/http.h"
#include "gateway/openai/openai_reply.h"
#include "gateway/openai/openai_request.h"

struct access_log {
    enum openai_kind kind;
    char traceparent[TRACE_LEN + 1];     // as it came; "": none, or none of that format
    char trace[TRACE_ID_LEN + 1];        // its id
    char key[AUTH_MAX_NAME + 1];         // whose it is, "" without keys
    int64_t first_us;                    // token
    int64_t last_us[OPENAI_MAX_CHOICES]; // of each choice; 0: none yet
};

/* Registers the figures, so that they are there before the first request. */
void access_log_init(void);
/* Refused by its API key, or the want of one (401), or a limit of it (429). */
void access_log_denied(struct http_request *r, int status, const char *why);
/* Counts the request. Only from the handler. */
void access_log_begin(struct access_log *c, struct http_request *r, enum openai_kind kind);
/* The request itself is wrong. */
void access_log_refused(const struct access_log *c, struct http_request *r,
                        const struct openai_fault *fault);
/* Another verifier is asked, and why. */
void access_log_retried(const struct access_log *c, struct http_request *r, const char *from,
                        const char *to, const char *why);
/* n tokens of a choice have come. */
void access_log_tokens(struct access_log *c, struct http_request *r, unsigned choice, size_t n);
/* model: the one that answers, empty for none. status: HTTP's, also of an error that ended a
 * stream; 499: the client hung up. */
void access_log_end(const struct access_log *c, struct http_request *r, struct openai_text model,
                    const struct openai_reply *reply, int status);
