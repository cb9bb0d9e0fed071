/* routes.h - which endpoint answers which request. */
#pragma once
#include <stdatomic.h>
#include <stdint.h>
#include "gateway/auth.h"
#include "gateway/cors.h"
#include "gateway/generate.h"
#include "gateway/http.h"
#include "gateway/upstream.h"

struct gateway {
    struct upstream *upstream;
    struct generator *generator;
    struct auth *auth; // NULL: everybody is let in
    bool metrics_open; // also without a key
    struct cors cors;
    int64_t started_us;
    atomic_bool draining;
};

/* An http_handler; user: the struct gateway. */
void routes_answer(void *user, struct http_request *r);
