/* access_log.c - the log line and the metrics of each request for tokens. */
#include "gateway/serve/access_log.h"
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include "base/clock.h"
#include "base/log.h"
#include "base/log_pace.h"
#include "base/mem.h"
#include "base/metrics.h"
#include "base/rng.h"
#include "gateway/serve/refusal_lines.h"

static const char *const endpoints[] = {[OPENAI_CHAT] = "chat_completions",
                                        [OPENAI_COMPLETION] = "completions",
                                        [OPENAI_RESPONSES] = "responses"};

static struct {
    struct metric *requests[ARRAY_LEN(endpoints)], *no_key, *backoff, *key_limit, *failed,
        *cancelled, *retried, *resumed, *lost_ids, *first_token_s, *per_token_s, *total_s;
} metrics;

static struct refusal_lines refusal_lines = {.mu = PTHREAD_MUTEX_INITIALIZER};

static struct metric *seconds_histogram(const char *name, const char *help)
{
    static const double seconds[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                     0.5,   1,      2.5,   5,    10,    25,   60,  120};
    return metrics_histogram(name, help, NULL, seconds, ARRAY_LEN(seconds));
}

static struct metric *refused_counter(const char *reason)
{
    return metrics_counter("tandem_gateway_requests_refused_total",
                           "Requests rejected for their API key or one of its limits.", reason);
}

void access_log_init(void)
{
    refusal_lines.secret = rng_secret();
    for (size_t i = 1; i < ARRAY_LEN(endpoints); i++) {
        char label[64];
        if (!endpoints[i])
            continue; // the kinds are single bits
        snprintf(label, sizeof(label), "endpoint=\"%s\"", endpoints[i]);
        metrics.requests[i] =
            metrics_counter("tandem_gateway_requests_total", "Requests for tokens.", label);
    }
    metrics.no_key = refused_counter("reason=\"key\"");
    metrics.backoff = refused_counter("reason=\"backoff\"");
    metrics.key_limit = refused_counter("reason=\"limit\"");
    metrics.failed = metrics_counter("tandem_gateway_requests_failed_total",
                                     "Requests for tokens that ended with an error.", NULL);
    metrics.cancelled = metrics_counter("tandem_gateway_requests_cancelled_total",
                                        "Requests for tokens whose client disconnected.", NULL);
    metrics.retried = metrics_counter(
        "tandem_gateway_requests_moved_total",
        "Requests sent to another verifier, or to the same after a restart, before they began.",
        NULL);
    metrics.resumed = metrics_counter(
        "tandem_gateway_resumed_total",
        "Answers that another verifier, or the same after a restart, continued.", NULL);
    metrics.lost_ids = metrics_counter(
        "tandem_gateway_not_resumable_total",
        "Answers that can no longer be resumed: no memory was left for their token ids.", NULL);
    metrics.first_token_s =
        seconds_histogram("tandem_gateway_time_to_first_token_seconds",
                          "From the first byte of a request to its first token.");
    metrics.per_token_s = seconds_histogram("tandem_gateway_inter_token_latency_seconds",
                                            "Time per token after the first.");
    metrics.total_s = seconds_histogram(
        "tandem_gateway_e2e_request_latency_seconds",
        "From the first byte of a request to the end of its answer; failed requests left out.");
}

static void count_denied(int status)
{
    if (status == 429)
        metrics_add(metrics.key_limit, 1);
}

void access_log_bad_key(struct http_request *r, int status)
{
    metrics_add(status == 429 ? metrics.backoff : metrics.no_key, 1);
    log_debug("request without a valid API key id=%s status=%d", http_id(r), status);
}

/* Whether a refusal has a line. client: the text of its address. */
static bool has_line(const struct http_request *r, char client[ADDRESS_TEXT_MAX])
{
    uint64_t left_out;
    bool has = refusal_lines_take(&refusal_lines, http_client(r), clock_us(), &left_out);
    address_text(http_client(r), client);
    if (left_out)
        log_info("requests without a line client=%s n=%" PRIu64, client, left_out);
    return has;
}

void access_log_denied(struct http_request *r, int status, const char *why)
{
    char client[ADDRESS_TEXT_MAX];
    count_denied(status);
    if (!has_line(r, client))
        return;
    log_info("request refused id=%s client=%s status=%d: %s", http_id(r), client, status, why);
}

static double seconds_since(int64_t us, int64_t now_us)
{
    return (double)(now_us - us) / 1e6;
}

void access_log_begin(struct access_log *c, struct http_request *r, enum openai_kind kind)
{
    const char *parent = http_field(r, "traceparent");
    c->kind = kind;
    if (parent && trace_id(parent, strlen(parent), c->trace))
        memcpy(c->traceparent, parent, TRACE_LEN + 1);
    auth_name(http_attached(r), c->key);
    metrics_add(metrics.requests[kind], 1);
}

/* " client=... trace=... key=...", without absent ones. */
struct ids {
    char text[sizeof(" client= trace= key=") + ADDRESS_TEXT_MAX + TRACE_ID_LEN + KEY_FILE_MAX_NAME];
};

static struct ids ids_text(const struct access_log *c, const struct http_request *r)
{
    struct ids w;
    char client[ADDRESS_TEXT_MAX];
    address_text(http_client(r), client);
    snprintf(w.text, sizeof(w.text), " client=%s%s%s%s%s", client, *c->trace ? " trace=" : "",
             c->trace, *c->key ? " key=" : "", c->key);
    return w;
}

void access_log_refused(const struct access_log *c, struct http_request *r,
                        const struct openai_fault *fault)
{
    metrics_add(metrics.failed, 1);
    count_denied(fault->status);
    char why[sizeof(fault->text) + sizeof("...")], client[ADDRESS_TEXT_MAX];
    if (!has_line(r, client))
        return;
    log_info("request refused id=%s%s endpoint=%s status=%d param=%s: %s", http_id(r),
             ids_text(c, r).text, endpoints[c->kind], fault->status, fault->param,
             log_unquoted(fault->text, why, sizeof(why)));
}

/* "the same", "another": the verifier `to`, compared with `from`. */
static const char *same_or_another(const char *from, const char *to)
{
    return strcmp(from, to) == 0 ? "the same" : "another";
}

void access_log_retried(const struct access_log *c, struct http_request *r, const char *from,
                        const char *to, const char *why)
{
    metrics_add(metrics.retried, 1);
    log_info("request retried on %s verifier id=%s%s from=%s to=%s: %s", same_or_another(from, to),
             http_id(r), ids_text(c, r).text, from, to, why);
}

void access_log_resumed(const struct access_log *c, struct http_request *r, const char *from,
                        const char *to, const char *why)
{
    metrics_add(metrics.resumed, 1);
    log_info("answer resumed on %s verifier id=%s%s from=%s to=%s: %s", same_or_another(from, to),
             http_id(r), ids_text(c, r).text, from, to, why);
}

void access_log_lost_ids(void)
{
    static struct log_pace pace;
    metrics_add(metrics.lost_ids, 1);
    unsigned n = log_pace_due(&pace, clock_us());
    if (n)
        log_warn("answers run on but can no longer be resumed n=%u: the memory for requests is "
                 "full (max_bodies_mib)",
                 n);
}

static void observe_seconds(struct metric *m, double seconds, const struct access_log *c)
{
    if (*c->trace)
        metrics_observe_traced(m, seconds, c->trace);
    else
        metrics_observe(m, seconds);
}

void access_log_tokens(struct access_log *c, struct http_request *r, unsigned choice, size_t n)
{
    int64_t now_us = clock_us(), *last_us = &c->last_us[choice];
    if (!n)
        return;
    if (!c->first_us) {
        c->first_us = now_us;
        observe_seconds(metrics.first_token_s, seconds_since(http_begun_us(r), now_us), c);
    }
    if (*last_us)
        metrics_observe(metrics.per_token_s, seconds_since(*last_us, now_us) / (double)n);
    *last_us = now_us;
}

static double first_ms(const struct access_log *c, struct http_request *r)
{
    return c->first_us ? 1e3 * seconds_since(http_begun_us(r), c->first_us) : 0;
}

void access_log_end(const struct access_log *c, struct http_request *r, struct openai_text model,
                    const struct openai_reply *reply, int status)
{
    const struct openai_speculation *s = &reply->speculation;
    char name[160], client[ADDRESS_TEXT_MAX];
    double total_s = seconds_since(http_begun_us(r), clock_us());
    if (status == 499)
        metrics_add(metrics.cancelled, 1);
    else if (status >= 400)
        metrics_add(metrics.failed, 1);
    else
        observe_seconds(metrics.total_s, total_s, c);
    if (status >= 400 && !reply->completion_tokens && !has_line(r, client))
        return;
    log_info("request done id=%s%s endpoint=%s model=%s status=%d prompt=%u cached=%u out=%u "
             "choices=%u rounds=%u drafted=%u accepted=%u proposer=%s rule=%s resumed=%u "
             "first_ms=%.1f ms=%.1f",
             http_id(r), ids_text(c, r).text, endpoints[c->kind],
             log_quote(model.data, model.len, name, sizeof(name)), status, reply->prompt_tokens,
             reply->cached_tokens, reply->completion_tokens, reply->n, s->rounds, s->drafted,
             s->accepted, *reply->proposer ? reply->proposer : "none",
             *reply->rule ? reply->rule : "none", reply->n_resumed, first_ms(c, r), 1e3 * total_s);
}
