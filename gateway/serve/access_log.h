/* access_log.h - the log line and the metrics of each request for tokens.
 *
 * Refusals of one client have a limited number of lines (refusal_lines.h); the metrics count all.
 *
 * Threads: access_log_begin() on http threads, the rest on the thread that answers the request. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/trace.h"
#include "gateway/keys/auth.h"
#include "gateway/http/http.h"
#include "gateway/openai/openai_reply.h"
#include "gateway/openai/openai_request.h"

struct access_log {
    enum openai_kind kind;
    char traceparent[TRACE_LEN + 1];     // as it arrived; "": absent or malformed
    char trace[TRACE_ID_LEN + 1];        // the trace id in it
    char key[KEY_FILE_MAX_NAME + 1];     // name of the API key; "": no key
    int64_t first_us;                    // time of the first token; 0: none yet
    int64_t last_us[OPENAI_MAX_CHOICES]; // of the last token of each choice; 0: none yet
};

/* Registers the metrics, so they exist before the first request. */
void access_log_init(void);
/* The request is refused: its API key is over a limit (429). */
void access_log_denied(struct http_request *r, int status, const char *why);
/* The API key of the request is missing or wrong. It is counted; only level debug has a line.
 * status: 401, or 429 during a pause of the address. */
void access_log_bad_key(struct http_request *r, int status);
/* Counts the request. Only from the handler. */
void access_log_begin(struct access_log *c, struct http_request *r, enum openai_kind kind);
/* The request is refused because of its content. */
void access_log_refused(const struct access_log *c, struct http_request *r,
                        const struct openai_fault *fault);
/* The request has not begun and is sent again, mostly to another verifier; why: the error of the
 * last one. */
void access_log_retried(const struct access_log *c, struct http_request *r, const char *from,
                        const char *to, const char *why);
/* The answer is continued by another verifier, or by the same one after a restart. */
void access_log_resumed(const struct access_log *c, struct http_request *r, const char *from,
                        const char *to, const char *why);
/* An answer can no longer be continued: no memory is left for its token ids. Counts it; a warning
 * says so at most once per minute. */
void access_log_lost_ids(void);
/* n tokens of a choice have arrived. */
void access_log_tokens(struct access_log *c, struct http_request *r, unsigned choice, size_t n);
/* Writes the log line. An error before the first token has one only if a refusal would. model: the
 * answering model, may be empty. status: the HTTP status, also of an error that ended a stream;
 * 499: the client disconnected. */
void access_log_end(const struct access_log *c, struct http_request *r, struct openai_text model,
                    const struct openai_reply *reply, int status);
