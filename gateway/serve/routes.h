/* routes.h - dispatches requests to endpoints, and checks API keys and origins.
 *
 * Threads: http threads. */
#pragma once
#include <stdatomic.h>
#include <stdint.h>
#include "base/instance.h"
#include "gateway/keys/auth.h"
#include "gateway/keys/bad_keys.h"
#include "gateway/http/cors.h"
#include "gateway/serve/completions.h"
#include "gateway/http/http.h"
#include "gateway/serve/reader.h"
#include "gateway/upstream/upstream.h"

struct gateway {
    struct upstream *upstream;
    struct reader *reader; // of large bodies and answers
    struct completions *completions;
    struct auth *auth;         // NULL: no key is required
    struct bad_keys *bad_keys; // unless auth is NULL
    bool metrics_open;         // the metrics need no key
    char instance[INSTANCE_MAX];
    struct cors cors;
    int64_t started_us;
    /* Of upstream_at(): when a verifier that refused its statistics may be asked again. */
    atomic_int_fast64_t ask_again_us[UPSTREAM_MAX];
    atomic_bool draining;
};

/* The http_handlers; user: the struct gateway. routes_admit() refuses by origin, path, method and
 * key; routes_answer() calls the endpoint. */
void routes_admit(void *user, struct http_request *r);
void routes_answer(void *user, struct http_request *r);
/* Logs a summary of wrong API keys, at most once a minute. To be called several times per second,
 * by one thread. */
void routes_tick(struct gateway *g);
