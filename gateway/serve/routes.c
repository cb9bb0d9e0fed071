/* routes.c - the endpoints, and which of them need an API key. */
#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <strings.h>
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "gateway/http/answer.h"
#include "gateway/http/cors.h"
#include "gateway/serve/models.h"
#include "gateway/serve/page.h"
#include "gateway/serve/access_log.h"
#include "gateway/serve/routes.h"
#include "gateway/serve/health.h"
#include "gateway/serve/rate_headers.h"
#include "gateway/serve/tokens.h"

static void chat(struct gateway *g, struct http_request *r)
{
    completions_begin(g->completions, r, OPENAI_CHAT);
}

static void completion(struct gateway *g, struct http_request *r)
{
    completions_begin(g->completions, r, OPENAI_COMPLETION);
}

static void responses(struct gateway *g, struct http_request *r)
{
    completions_begin(g->completions, r, OPENAI_RESPONSES);
}

static void no_response(struct gateway *g, struct http_request *r)
{
    (void)g;
    answer_error(r, 404, "responses are not stored", "");
}

static void page_file(struct gateway *g, struct http_request *r)
{
    (void)g;
    page_answer(r);
}

static void answer_root(struct gateway *g, struct http_request *r)
{
    struct buf text;
    http_header(r, "Vary", "Accept");
    if (page_is_wanted(r)) {
        page_file(g, r);
        return;
    }
    buf_init(&text, 4096);
    buf_puts(
        &text,
        "Tandem " TANDEM_VERSION ", an OpenAI-compatible server.\n\n"
        "POST /v1/chat/completions\nPOST /v1/completions\nPOST /v1/responses\nGET  /v1/models\n"
        "GET  /v1/spec_decode/metrics\nPOST /tokenize\nPOST /detokenize\n"
        "GET  /health\nGET  /ready\nGET  /metrics\nGET  /version\n");
    http_reply(r, 200, "text/plain; charset=utf-8", &text);
}

static void version(struct gateway *g, struct http_request *r)
{
    struct buf body;
    (void)g;
    buf_init(&body, 4096);
    buf_puts(&body, "{\"version\":\"" TANDEM_VERSION "\"}\n");
    answer_json(r, 200, &body);
}

static const char *secret_of(const struct http_request *r)
{
    const char *text = http_field(r, "Authorization");
    if (!text || strncasecmp(text, "Bearer ", 7) != 0)
        return http_field(r, "X-API-Key");
    return text + 7 + strspn(text + 7, " ");
}

static void leave_guest(void *guest)
{
    auth_leave(guest);
}

/* Checks the key. Results as those of auth_enter(). counts: also check its limits. */
static int enter(struct gateway *g, struct http_request *r, bool counts,
                 struct auth_levels *ret_levels)
{
    struct auth_guest *guest = NULL;
    int rc = auth_enter(g->auth, secret_of(r), counts, clock_unix_us(), &guest, ret_levels);
    if (guest) {
        char name[KEY_FILE_MAX_NAME + 1];
        auth_name(guest, name);
        http_set_payer(r, name);
        http_attach(r, guest, leave_guest);
    }
    return rc;
}

/* The seconds of the pause in which the client's address has sent a wrong key; 0: no pause. */
static unsigned note_bad_key(struct gateway *g, struct http_request *r)
{
    return bad_keys_note(g->bad_keys, http_client(r), clock_us());
}

/* Without a valid key the report has only the status. */
static void health(struct gateway *g, struct http_request *r)
{
    struct auth_levels levels;
    int rc = g->auth ? enter(g, r, false, &levels) : 0;
    if (rc == -EACCES)
        access_log_bad_key(r, note_bad_key(g, r) ? 429 : 401);
    if (rc == 0)
        health_report(g, r);
    else
        health_brief(g, r);
}

enum access { NEEDS_KEY, OPEN, OPEN_METRICS }; // OPEN_METRICS: open if metrics_open is set

static const struct route {
    const char *method, *path; // "GET": also HEAD; "POST": counts against the limits of a key
    bool prefix;               // also all paths that begin with it
    void (*answer)(struct gateway *g, struct http_request *r);
    enum access open; // if there are keys
} routes[] = {
    {"GET", "/", false, answer_root, OPEN},
    {"GET", "/ui/", true, page_file, OPEN},
    {"POST", "/v1/chat/completions", false, chat, NEEDS_KEY},
    {"POST", "/v1/completions", false, completion, NEEDS_KEY},
    {"POST", "/v1/responses", false, responses, NEEDS_KEY},
    {"GET", "/v1/responses/", true, no_response, NEEDS_KEY},
    {"GET", "/v1/models", false, models_list, NEEDS_KEY},
    {"GET", "/v1/models/", true, models_one, NEEDS_KEY},
    {"GET", "/v1/spec_decode/metrics", false, health_speculation, OPEN_METRICS},
    {"GET", "/health", false, health, OPEN},
    {"GET", "/ready", false, health_ready, OPEN},
    {"GET", "/metrics", false, health_metrics, OPEN_METRICS},
    {"GET", "/version", false, version, OPEN},
    {"POST", "/tokenize", false, tokens_encode, NEEDS_KEY},
    {"POST", "/detokenize", false, tokens_decode, NEEDS_KEY},
};

static bool path_fits(const struct route *e, const char *path)
{
    return e->prefix ? strncmp(path, e->path, strlen(e->path)) == 0 : strcmp(path, e->path) == 0;
}

/* Status 401, or 429 during a pause. */
static void refuse_bad_key(struct gateway *g, struct http_request *r, const char *why)
{
    unsigned pause_s = note_bad_key(g, r);
    access_log_bad_key(r, pause_s ? 429 : 401);
    if (pause_s) {
        rate_headers_retry(r, pause_s);
        fail(-EAGAIN,
             "this API key is not valid, and too many wrong keys came from this address; "
             "try again in %u s",
             pause_s);
        answer_error(r, 429, fail_text(), "");
    } else {
        http_header(r, "WWW-Authenticate", "Bearer");
        answer_error(r, 401, why, "");
    }
}

static void authenticate(struct gateway *g, struct http_request *r, const struct route *e)
{
    struct auth_levels levels;
    if (!g->auth || e->open == OPEN || (e->open == OPEN_METRICS && g->metrics_open))
        return;
    int rc = enter(g, r, e->method[0] == 'P', &levels);
    if (rc == 0)
        return;
    if (rc == -EACCES) {
        refuse_bad_key(g, r, fail_text());
    } else if (rc == -ENOKEY) {
        http_header(r, "WWW-Authenticate", "Bearer");
        access_log_bad_key(r, 401);
        answer_error(r, 401, fail_text(), "");
    } else {
        int status = rc == -EAGAIN ? 429 : 500;
        rate_headers_add(r, &levels);
        if (rc == -EAGAIN)
            rate_headers_retry(r, levels.retry_s);
        access_log_denied(r, status, fail_text());
        answer_error(r, status, fail_text(), "");
    }
}

static const struct route *route_of(const struct http_request *r)
{
    const struct route *found = NULL;
    for (size_t i = 0; i < ARRAY_LEN(routes) && !found; i++)
        if (path_fits(&routes[i], http_path(r)))
            found = &routes[i];
    return found;
}

/* Also answered on connections of the reserve. */
static bool is_for_monitors(const struct route *e)
{
    return e->answer == health || e->answer == health_ready || e->answer == health_metrics;
}

/* A client that has taken its share, or whose neighbours have taken all. */
static void refuse_place(struct http_request *r)
{
    if (http_reserve(r) == HTTP_ADDRESS_FULL)
        answer_error(r, 429,
                     "your address has too many connections (max_connections_per_ip); try again",
                     "");
    else
        answer_error(r, 503, "all connections are in use (max_connections); try again", "");
}

void routes_admit(void *user, struct http_request *r)
{
    const char *method = strcmp(http_method(r), "HEAD") == 0 ? "GET" : http_method(r);
    const struct route *found = route_of(r);
    if (cors_answer(&((struct gateway *)user)->cors, r))
        return;
    if (!found) {
        answer_error(r, 404, "there is no such path; GET / lists all paths", "");
    } else if (strcmp(method, found->method) != 0) {
        http_header(r, "Allow", found->method[0] == 'G' ? "GET, HEAD" : "POST");
        answer_error(r, 405, "this path does not accept that method; see the Allow header", "");
    } else if (http_reserve(r) && !is_for_monitors(found)) {
        refuse_place(r);
    } else {
        authenticate(user, r, found);
    }
}

void routes_answer(void *user, struct http_request *r)
{
    route_of(r)->answer(user, r);
}

void routes_tick(struct gateway *g)
{
    struct bad_keys_report bad;
    if (g->bad_keys && bad_keys_report(g->bad_keys, clock_us(), &bad))
        log_warn("requests had wrong API keys since the last such line n=%" PRIu64
                 " refused_by_pause=%" PRIu64 " last_client=%s",
                 bad.n, bad.n_paused, bad.client);
}
