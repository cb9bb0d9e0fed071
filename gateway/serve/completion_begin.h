/* completion_begin.h - the life of a request for tokens.
 *
 *     parse -> a verifier that serves the model -> chat: the template -> Generate -> answer
 *                      |  loading: wait up to load_wait      |
 *     each step runs on the thread its predecessor ended on; none blocks
 *
 * A verifier that has not begun after queue_wait is not waited for. A client that hangs up cancels
 * the verifier's work; a verifier that dies ends the answer with an error; a reader that is too
 * slow is dropped.
 *
 * Threads: generate() on http threads, the rest on template and rpc threads, one at a time. */
#pragma once
#include <stdint.h>
#include "base/mem.h"
#include "gateway/http/http.h"
#include "gateway/openai/openai_request.h"
#include "gateway/serve/template.h"
#include "gateway/upstream/upstream.h"

struct generator;

/* tool_format: one of TOOL_FORMAT_NAMES, or "auto": as the model's template shows; outlives it.
 * -ENOMEM. */
int generator_new(struct upstream *u, struct template *t, int64_t load_wait_us,
                  int64_t queue_wait_us, const char *tool_format, struct generator **ret);
/* Ends requests that have waited in a verifier's queue for longer than queue_wait_us with 429. Once
 * in a while, by any one thread. */
void generator_tend(struct generator *g);
/* Refuses new requests with 503; what runs goes on. */
void generator_drain(struct generator *g);
/* Ends what runs with a clear error; templates and upstream do nothing from now on. */
void generator_abort(struct generator *g);
/* When http, templates and upstream are gone. */
void generator_free(struct generator *g);
DEFINE_AUTO(struct generator, generator_free)

/* Answers the request, now or later. */
void generate(struct generator *g, struct http_request *r, enum openai_kind kind);
