/* cors.c - pages of other origins. */
#include <string.h>
#include "gateway/cors.h"

#define MAX_ASKED 1024 // bytes of the header names that a page wants to send

/* The origin to be named; NULL: it is none of ours. */
static const char *allowed(const struct conf_list *origins, const char *origin)
{
    for (unsigned i = 0; i < origins->n; i++)
        if (strcmp(origins->v[i], "*") == 0 || strcmp(origins->v[i], origin) == 0)
            return origins->v[i];
    return NULL;
}

/* No cookies are looked at: a page must have been given a key, or none is needed. */
bool cors_answer(const struct conf_list *origins, struct http_request *r)
{
    const char *origin = http_field(r, "Origin");
    const char *found = origin ? allowed(origins, origin) : NULL;
    if (origins->n)
        http_header(r, "Vary", "Origin");
    if (!found)
        return false;
    http_header(r, "Access-Control-Allow-Origin", found);
    http_header(r, "Access-Control-Expose-Headers", "X-Request-Id, Retry-After");
    if (strcmp(http_method(r), "OPTIONS") != 0 || !http_field(r, "Access-Control-Request-Method"))
        return false;
    const char *asked = http_field(r, "Access-Control-Request-Headers");
    http_header(r, "Access-Control-Allow-Methods", "GET, POST");
    http_header(r, "Access-Control-Allow-Headers",
                asked && strlen(asked) <= MAX_ASKED ? asked : "Authorization, Content-Type");
    http_header(r, "Access-Control-Max-Age", "600");
    struct buf none;
    buf_init(&none, 0);
    http_reply(r, 204, "text/plain", &none);
    return true;
}
