/* routes.c - which endpoint answers which request. */
#include <string.h>
#include "gateway/answer.h"
#include "gateway/models.h"
#include "gateway/routes.h"
#include "gateway/status.h"
#include "gateway/tokens.h"

static void chat(struct gateway *g, struct http_request *r)
{
    generate(g->generator, r, OPENAI_CHAT);
}

static void completion(struct gateway *g, struct http_request *r)
{
    generate(g->generator, r, OPENAI_COMPLETION);
}

static void root(struct gateway *g, struct http_request *r)
{
    struct buf text;
    (void)g;
    buf_init(&text, 4096);
    buf_puts(&text, "Tandem " TANDEM_VERSION ", an OpenAI-compatible server.\n\n"
                    "POST /v1/chat/completions\nPOST /v1/completions\nGET  /v1/models\n"
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

static const struct route {
    const char *method, *path; // "GET" answers HEAD as well
    bool prefix;               // and what is below it
    void (*answer)(struct gateway *g, struct http_request *r);
} routes[] = {
    {"GET", "/", false, root},
    {"POST", "/v1/chat/completions", false, chat},
    {"POST", "/v1/completions", false, completion},
    {"GET", "/v1/models", false, models_list},
    {"GET", "/v1/models/", true, models_one},
    {"GET", "/v1/spec_decode/metrics", false, status_speculation},
    {"GET", "/health", false, status_health},
    {"GET", "/ready", false, status_ready},
    {"GET", "/metrics", false, status_metrics},
    {"GET", "/version", false, version},
    {"POST", "/tokenize", false, tokens_encode},
    {"POST", "/detokenize", false, tokens_decode},
};

static bool path_fits(const struct route *e, const char *path)
{
    return e->prefix ? strncmp(path, e->path, strlen(e->path)) == 0 : strcmp(path, e->path) == 0;
}

void routes_answer(void *user, struct http_request *r)
{
    const char *method = strcmp(http_method(r), "HEAD") == 0 ? "GET" : http_method(r);
    const struct route *found = NULL;
    for (size_t i = 0; i < ARRAY_LEN(routes) && !found; i++)
        if (path_fits(&routes[i], http_path(r)))
            found = &routes[i];
    if (!found) {
        answer_error(r, 404, "there is no such path; GET / lists what there is", "");
    } else if (strcmp(method, found->method) != 0) {
        http_header(r, "Allow", found->method[0] == 'G' ? "GET, HEAD" : "POST");
        answer_error(r, 405, "this path does not take that method; see the Allow header", "");
    } else {
        found->answer(user, r);
    }
}
