/* routes.h - which endpoint answers which request. */
#pragma once
#include <stdatomic.h>
#include <stdint.h>
#include "gateway/serve/auth.h"
#include "gateway/http/cors.h"
#include "gateway/serve/completions.h"
#include "gateway/http/http.h"
#include "gateway/upstream/upstream.h"

struct gateway {
    struct upstream *upstream;
    struct completions *completions;
    struct auth *auth; // NULL: everybody is let in
    bool metrics_open; // also without a key
    struct cors cors;
    int64_t started_us;
    atomic_bool draining;
};

/* http_handlers; user: the struct gateway. The first one refuses by path, method and key. */
void routes_admit(void *user, struct http_request *r);
void routes_answer(void *user, struct http_request *r);
