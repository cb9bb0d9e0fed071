/* completions.h - the life of a request for tokens.
 *
 *     parse -> a verifier that serves the model -> chat: the template -> Generate -> answer
 *                      |  loading: wait up to load_wait      |
 *     each step runs on the thread its predecessor ended on; none blocks
 *
 * A verifier that has not begun after queue_wait is not waited for. A client that hangs up cancels
 * the verifier's work; a verifier that dies ends the answer with an error; a reader that is too
 * slow is dropped.
 *
 * Threads: completions_begin() on http threads, the rest on template and rpc threads, one at a time. */
#pragma once
#include <stdint.h>
#include "base/mem.h"
#include "gateway/http/http.h"
#include "gateway/openai/openai_request.h"
#include "gateway/serve/template.h"
#include "gateway/upstream/upstream.h"

struct completions;

/* tool_format: one of TOOL_FORMAT_NAMES, or "auto": as the model's template shows; outlives it.
 * -ENOMEM. */
int completions_new(struct upstream *u, struct template *t, int64_t load_wait_us,
                    int64_t queue_wait_us, const char *tool_format, struct completions **ret);
/* Ends requests that have waited in a verifier's queue for longer than queue_wait_us with 429. Once
 * in a while, by any one thread. */
void completions_tick(struct completions *g);
/* Refuses new requests with 503; what runs goes on. */
void completions_drain(struct completions *g);
/* Ends what runs with a clear error; templates and upstream do nothing from now on. */
void completions_abort(struct completions *g);
/* When http, templates and upstream are gone. */
void completions_free(struct completions *g);
DEFINE_AUTO(struct completions, completions_free)

/* Answers the request, now or later. */
void completions_begin(struct completions *g, struct http_request *r, enum openai_kind kind);
