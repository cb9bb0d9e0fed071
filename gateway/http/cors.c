/* cors.c - browser pages of other origins. */
#include <errno.h>
#include <string.h>
#include <strings.h>
#include "base/err.h"
#include "gateway/http/answer.h"
#include "gateway/http/cors.h"

#define MAX_REQUESTED 1024 // bytes of Access-Control-Request-Headers
/* What scripts of such pages may read. */
#define EXPOSED                                                                                    \
    "X-Request-Id, Retry-After, x-ratelimit-limit-requests, x-ratelimit-limit-tokens, "            \
    "x-ratelimit-remaining-requests, x-ratelimit-remaining-tokens, x-ratelimit-reset-requests, "   \
    "x-ratelimit-reset-tokens"

/* The value for Access-Control-Allow-Origin; NULL: the origin is not configured. */
static const char *allowed_origin(const struct conf_list *origins, const char *origin)
{
    for (unsigned i = 0; i < origins->n; i++)
        if (strcmp(origins->v[i], "*") == 0 || strcmp(origins->v[i], origin) == 0)
            return origins->v[i];
    return NULL;
}

/* Whether `host` is the one of an origin: "a.example:8080" of "https://a.example:8080". */
static bool is_host_of(const char *origin, const char *host)
{
    const char *mark = strstr(origin, "://");
    return mark && strcasecmp(mark + 3, host) == 0;
}

/* Whether `origin` is the origin of this server's own page. */
static bool is_own_origin(const struct http_request *r, const char *origin)
{
    const char *host = http_field(r, "Host");
    return host && is_host_of(origin, host);
}

/* Whether a public DNS server can resolve the name. It cannot if the host is an address, has no dot
 * or ends with ".localhost" (RFC 6761). host: "localhost:8080", "127.0.0.1", "[::1]:8080". */
static bool is_public_name(const char *host)
{
    static const char local[] = ".localhost";
    size_t len = strcspn(host, ":"), n = strlen(local);
    if (*host == '[' || !memchr(host, '.', len) || strspn(host, "0123456789.") == len)
        return false;
    return len < n || strncasecmp(host + len - n, local, n) != 0;
}

static bool is_configured_host(const struct conf_list *origins, const char *host)
{
    for (unsigned i = 0; i < origins->n; i++)
        if (strcmp(origins->v[i], "*") == 0 || is_host_of(origins->v[i], host))
            return true;
    return false;
}

/* Answers a request for a host name that may be a foreign domain. */
static bool refuse_host(const struct cors *c, struct http_request *r)
{
    const char *host = http_field(r, "Host");
    if (!c->loopback || !host || !is_public_name(host) || is_configured_host(c->origins, host))
        return false;
    fail(-EACCES,
         "a server without API keys is not used by the name %.200s: its origin is not in "
         "cors_origins",
         host);
    answer_error(r, 403, fail_text(), "");
    return true;
}

static void refuse_origin(struct http_request *r, const char *origin)
{
    fail(-EACCES, "pages of %.200s may not use this server: their origin is not in cors_origins",
         origin);
    answer_error(r, 403, fail_text(), "");
}

/* There is no Access-Control-Allow-Credentials: the server reads no cookies, a page sends a key. */
bool cors_answer(const struct cors *c, struct http_request *r)
{
    const char *origin = http_field(r, "Origin");
    const char *found = origin ? allowed_origin(c->origins, origin) : NULL;
    if (c->origins->n)
        http_header(r, "Vary", "Origin");
    if (refuse_host(c, r))
        return true;
    if (!found && origin && !is_own_origin(r, origin)) {
        refuse_origin(r, origin);
        return true;
    }
    if (!found)
        return false;
    http_header(r, "Access-Control-Allow-Origin", found);
    http_header(r, "Access-Control-Expose-Headers", EXPOSED);
    if (strcmp(http_method(r), "OPTIONS") != 0 || !http_field(r, "Access-Control-Request-Method"))
        return false;
    const char *requested = http_field(r, "Access-Control-Request-Headers");
    http_header(r, "Access-Control-Allow-Methods", "GET, POST");
    http_header(r, "Access-Control-Allow-Headers",
                requested && strlen(requested) <= MAX_REQUESTED ? requested
                                                                : "Authorization, Content-Type");
    http_header(r, "Access-Control-Max-Age", "600");
    struct buf none;
    buf_init(&none, 0);
    http_reply(r, 204, "text/plain", &none);
    return true;
}
