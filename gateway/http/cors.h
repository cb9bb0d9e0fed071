/* cors.h - browser pages of other origins (CORS): only configured origins may use the API.
 *
 * A browser names the origin of the page in its request. It may hide the answer from that page but
 * still sends the request, so requests of other origins are refused here.
 *
 * The origin of the server's own page is accepted without configuration.
 *
 * Without API keys on a loopback address, a request for a host name that is neither local nor of a
 * configured origin is refused. The name may be a foreign domain that resolves to this machine (DNS
 * rebinding). The browser takes the answer for one of that domain, and names no origin. */
#pragma once
#include <stdbool.h>
#include "base/conf.h"
#include "gateway/http/http.h"

struct cors {
    const struct conf_list *origins; // "*": any
    bool loopback;                   // without API keys on a loopback address
};

/* Adds the header fields that a browser expects for an accepted origin.
 * true: the request is answered. It was a preflight request, or its origin is refused. Only from
 * the handler. */
bool cors_answer(const struct cors *c, struct http_request *r);
