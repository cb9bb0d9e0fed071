/* completions.h - the requests for tokens of all clients: how they begin, and their limits in time.
 * completion.h has the state of one request.
 *
 *     parse -> take a verifier that serves the model (while it loads, wait up to load_wait)
 *           -> chat: render the template -> Generate -> answer
 *
 * Each step runs on the thread on which the step before it ended. No step blocks.
 *
 * - A request that its verifier has not begun after queue_wait ends with 429.
 * - A client that disconnects cancels the work of the verifier.
 * - If a verifier dies, hangs or drains, another one continues the answer (upstream_call.h).
 * - A reader that is too slow is dropped.
 *
 * Threads: completions_begin() on http threads, the steps after it on template and rpc threads, one
 * at a time per request. A body of more than 8 KiB is read on the reader's thread (reader.h).
 * completions_new(), completions_abort() and completions_free() on the main thread. */
#pragma once
#include <stdint.h>
#include "base/mem.h"
#include "gateway/http/http.h"
#include "gateway/openai/openai_request.h"
#include "gateway/serve/reader.h"
#include "gateway/serve/template.h"
#include "gateway/upstream/upstream.h"

struct completions;

/* tool_format: one of TOOL_FORMAT_NAMES, or "auto": recognised from the model's template. It must
 * outlive the completions. -ENOMEM. */
int completions_new(struct upstream *u, struct template *t, struct reader *reader,
                    int64_t load_wait_us, int64_t queue_wait_us,
                    const struct upstream_patience *patience, const char *tool_format,
                    struct completions **ret);
/* Ends requests that have waited in a verifier's queue for longer than queue_wait_us with 429, and
 * moves answers from verifiers that leave. To be called several times per second, by one thread. */
void completions_tick(struct completions *g);
/* Refuses new requests with 503; running requests continue. */
void completions_drain(struct completions *g);
/* Ends running requests with error 503, and stops the reader, templates and upstream. */
void completions_abort(struct completions *g);
/* After http and the reader are stopped, and templates and upstream are freed. */
void completions_free(struct completions *g);
DEFINE_AUTO(struct completions, completions_free)

/* Appends the ids of the running requests of an API key, each with a NUL. */
void completions_ids(struct completions *g, const char *key, struct buf *to);

/* Begins a request, which is answered now or later. */
void completions_begin(struct completions *g, struct http_request *r, enum openai_kind kind);
