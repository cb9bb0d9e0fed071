/* health.c - the state and the statistics of the gateway and its verifiers. */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/metrics.h"
#include "base/rng.h"
#include "gateway/http/address_counts.h"
#include "gateway/http/answer.h"
#include "gateway/openai/json_write.h"
#include "gateway/serve/prom_merge.h"
#include "gateway/serve/proposer_metrics.h"
#include "gateway/serve/health.h"
#include "tandem/v1/stats.pb-c.h"

#define PROPOSERS_MAX 16 // of one verifier
#define CALL_TIMEOUT_US 1000000
#define BODY_MAX (64u << 20)
#define REFUSED_US 10000000 // a verifier that refuses its statistics is not asked again before
/* Of one address at the same time. The reader writes an answer in about 1 ms. */
#define QUERIES_MAX 8

/* The queries that run, by the address of the client. */
static struct {
    pthread_mutex_t mu;
    struct address_counts counts;
} running = {.mu = PTHREAD_MUTEX_INITIALIZER};

/* A request that waits for the statistics of all verifiers. */
struct query {
    struct gateway *g;
    struct http_request *http;
    struct reader_job job;
    void (*answer)(struct query *a);
    struct address_count *count;
    atomic_uint n_left;
    unsigned n;
    struct verifier_stats {
        struct query *a;
        struct verifier *v;
        Tandem__V1__StatsReply *stats; // NULL: no answer
        enum upstream_state state;
        const struct upstream_model *model; // NULL: never reported
        char problem[FAIL_TEXT_MAX];
    } replies[UPSTREAM_MAX];
};

/* -EBUSY: too many queries of this address run. -ENOMEM. */
static int count_query(const struct address *client, struct address_count **ret)
{
    pthread_mutex_lock(&running.mu);
    if (!running.counts.secret)
        running.counts.secret = rng_secret();
    struct address_count *c = address_counts_take(&running.counts, client);
    int rc = !c ? -ENOMEM : 0;
    if (c && c->n == QUERIES_MAX)
        rc = fail(-EBUSY, "%d requests for statistics from this address run already", QUERIES_MAX);
    if (rc < 0)
        address_counts_drop(&running.counts, c);
    else
        c->n++;
    pthread_mutex_unlock(&running.mu);
    *ret = c;
    return rc;
}

static void uncount_query(struct address_count *c)
{
    pthread_mutex_lock(&running.mu);
    c->n--;
    address_counts_drop(&running.counts, c);
    pthread_mutex_unlock(&running.mu);
}

static void query_free(struct query *a)
{
    for (unsigned i = 0; i < a->n; i++) {
        if (a->replies[i].stats)
            tandem__v1__stats_reply__free_unpacked(a->replies[i].stats, NULL);
        upstream_model_unref(a->replies[i].model);
    }
    http_unref(a->http);
    free(a);
}

static void answer_query(void *user, bool stops)
{
    struct query *a = user;
    (void)stops;             // QUERIES_MAX limits the answers that wait
    uncount_query(a->count); // before the client can ask again
    a->answer(a);
    query_free(a);
}

/* The thread of the last reply also delivers tokens, so it does not write the answer. */
static void drop_reply(struct query *a)
{
    char address[ADDRESS_TEXT_MAX];
    if (atomic_fetch_sub(&a->n_left, 1) != 1)
        return;
    address_text(http_client(a->http), address);
    if (reader_write(a->g->reader, &a->job, address, answer_query, a) < 0)
        answer_query(a, true);
}

/* This gateway does not have the role that may read statistics. Logged once per verifier. It would
 * be disconnected for too many refused calls. */
static void note_refused(struct gateway *g, const struct verifier *v, const char *text)
{
    static atomic_uint warned; // bit i: upstream_at(u, i)
    unsigned bit = 1u << upstream_index(v);
    atomic_store(&g->ask_again_us[upstream_index(v)], clock_us() + REFUSED_US);
    if (!(atomic_fetch_or(&warned, bit) & bit))
        log_warn("verifier refuses statistics target=%s: %s", upstream_target(v), text);
}

static void on_stats(void *user, const struct rpc_status *status, ProtobufCMessage *reply)
{
    struct verifier_stats *p = user;
    p->stats = (Tandem__V1__StatsReply *)reply;
    p->state = upstream_state(p->v, &p->model, p->problem);
    if (status->code == RPC_PERMISSION_DENIED)
        note_refused(p->a->g, p->v, status->text);
    if (status->code == RPC_UNAVAILABLE || status->code == RPC_DEADLINE_EXCEEDED) {
        p->state = UPSTREAM_DOWN; // this error is newer than the state in upstream
        snprintf(p->problem, sizeof(p->problem), "%s", status->text);
        upstream_suspect(p->v);
    }
    drop_reply(p->a);
}

static void query_verifier(struct query *a, unsigned i)
{
    struct verifier_stats *p = &a->replies[i];
    Tandem__V1__GetStatsRequest request = TANDEM__V1__GET_STATS_REQUEST__INIT;
    p->a = a;
    p->v = upstream_at(a->g->upstream, i);
    if (clock_us() >= atomic_load(&a->g->ask_again_us[i])) {
        upstream_unary(p->v, "/tandem.v1.Stats/GetStats", CALL_TIMEOUT_US, &request.base,
                       &tandem__v1__stats_reply__descriptor, on_stats, p);
        return;
    }
    p->state = upstream_state(p->v, &p->model, p->problem);
    drop_reply(a);
}

static void query_verifiers(struct gateway *g, struct http_request *r,
                            void (*answer)(struct query *a))
{
    struct query *a = calloc(1, sizeof(*a));
    struct address_count *count;
    int rc = a ? count_query(http_client(r), &count) : -ENOMEM;
    if (rc < 0) {
        free(a);
        if (rc == -EBUSY)
            answer_error(r, 429, fail_text(), "");
        else
            answer_error(r, 500, "no memory for this request", "");
        return;
    }
    *a = (struct query){.g = g, .http = http_ref(r), .answer = answer, .count = count};
    a->n = upstream_n(g->upstream);
    atomic_init(&a->n_left, a->n + 1);
    for (unsigned i = 0; i < a->n; i++)
        query_verifier(a, i);
    drop_reply(a);
}

/* ---- speculation ---- */

/* The sum over all verifiers. Counts are added; rates are averages weighted by the steps. */
static void sum_speculation(const struct query *a, Tandem__V1__SpeculationStats *sum)
{
    double committed = 0, weight = 0, ema = 0, k = 0, adaptive_k = 0;
    tandem__v1__speculation_stats__init(sum);
    for (unsigned i = 0; i < a->n; i++) {
        const Tandem__V1__SpeculationStats *s =
            a->replies[i].stats ? a->replies[i].stats->speculation : NULL;
        if (!s)
            continue;
        double w = (double)s->total_steps + 1;
        sum->enabled |= s->enabled;
        if (s->mode.len && (!sum->mode.len || s->enabled))
            sum->mode = s->mode; // owned by the reply
        sum->total_steps += s->total_steps;
        sum->total_fallback_steps += s->total_fallback_steps;
        sum->total_proposed += s->total_proposed;
        sum->total_accepted += s->total_accepted;
        sum->total_bonus_tokens += s->total_bonus_tokens;
        committed += s->avg_tokens_per_step * (double)s->total_steps;
        weight += w;
        ema += s->acceptance_rate_ema * w;
        k += s->current_k * w;
        adaptive_k += s->adaptive_k_current * w;
    }
    if (sum->total_proposed)
        sum->acceptance_rate_overall = (double)sum->total_accepted / (double)sum->total_proposed;
    if (sum->total_steps)
        sum->avg_tokens_per_step = committed / (double)sum->total_steps;
    if (weight > 0) {
        sum->acceptance_rate_ema = ema / weight;
        sum->current_k = k / weight;
        sum->adaptive_k_current = adaptive_k / weight;
    }
}

static void write_real(struct buf *to, const char *name, double value)
{
    buf_printf(to, ",\"%s\":", name);
    json_write_double(to, value);
}

static void write_speculation(const struct query *a, struct buf *to)
{
    Tandem__V1__SpeculationStats s;
    sum_speculation(a, &s);
    buf_printf(to,
               "{\"spec_decode_enabled\":%s,\"spec_decode_mode\":", s.enabled ? "true" : "false");
    if (s.mode.len)
        json_write_text(to, s.mode.data, s.mode.len);
    else
        buf_puts(to, "\"none\"");
    write_real(to, "acceptance_rate_ema", s.acceptance_rate_ema);
    write_real(to, "acceptance_rate_overall", s.acceptance_rate_overall);
    write_real(to, "avg_tokens_per_step", s.avg_tokens_per_step);
    buf_printf(to,
               ",\"total_steps\":%" PRIu64 ",\"total_fallback_steps\":%" PRIu64
               ",\"total_proposed\":%" PRIu64 ",\"total_accepted\":%" PRIu64
               ",\"total_bonus_tokens\":%" PRIu64,
               s.total_steps, s.total_fallback_steps, s.total_proposed, s.total_accepted,
               s.total_bonus_tokens);
    write_real(to, "current_k", s.current_k);
    write_real(to, "adaptive_k_current", s.adaptive_k_current);
    buf_puts(to, "}");
}

static bool has_stats(const struct query *a)
{
    for (unsigned i = 0; i < a->n; i++)
        if (a->replies[i].stats)
            return true;
    return false;
}

static void answer_speculation(struct query *a)
{
    struct buf body;
    if (!has_stats(a)) {
        answer_error(a->http, 503, "no verifier can be reached", "");
        return;
    }
    buf_init(&body, BODY_MAX);
    write_speculation(a, &body);
    buf_puts(&body, "\n");
    answer_json(a->http, 200, &body);
}

void health_speculation(struct gateway *g, struct http_request *r)
{
    query_verifiers(g, r, answer_speculation);
}

/* ---- health ---- */

static bool text_is(const ProtobufCBinaryData *b, const char *text)
{
    return b->len == strlen(text) && (!b->len || memcmp(b->data, text, b->len) == 0);
}

static void write_proposers(const Tandem__V1__StatsReply *s, struct buf *to)
{
    buf_puts(to, ",\"proposers\":[");
    for (size_t i = 0; i < s->n_proposers; i++) {
        const Tandem__V1__ProposerStats *p = s->proposers[i];
        buf_puts(to, i ? ",{\"name\":" : "{\"name\":");
        json_write_text(to, p->name.data, p->name.len);
        buf_puts(to, ",\"target\":");
        json_write_text(to, p->target.data, p->target.len);
        buf_printf(to,
                   ",\"connected\":%s,\"benched\":%s,\"drafts\":%" PRIu64
                   ",\"draft_tokens\":%" PRIu64 ",\"accepted_tokens\":%" PRIu64 ",\"late\":%" PRIu64
                   ",\"p90_us\":%u}",
                   p->connected ? "true" : "false", p->benched ? "true" : "false", p->drafts,
                   p->draft_tokens, p->accepted_tokens, p->late, p->p90_us);
    }
    buf_puts(to, "]");
}

/* The ids that a report may show: NUL-terminated, one after the other. */
struct own_ids {
    bool all;
    struct buf ids;
};

static bool may_show(const struct own_ids *own, const ProtobufCBinaryData *id)
{
    for (size_t at = 0; at < own->ids.len && !own->all; at += strlen(own->ids.data + at) + 1)
        if (text_is(id, own->ids.data + at))
            return true;
    return own->all;
}

static void write_holder(const Tandem__V1__CacheHolder *h, const struct own_ids *own,
                         struct buf *to)
{
    buf_puts(to, "{\"id\":");
    if (may_show(own, &h->id))
        json_write_text(to, h->id.data, h->id.len);
    else
        buf_puts(to, "null");
    buf_printf(to, ",\"choice\":%u,\"tokens\":%u,\"blocks\":%u}", h->choice, h->tokens, h->blocks);
}

static void write_cache(const Tandem__V1__CacheStats *c, const struct own_ids *own, struct buf *to)
{
    buf_printf(to,
               ",\"cache\":{\"blocks_total\":%" PRIu64 ",\"blocks_used\":%" PRIu64
               ",\"blocks_shared\":%" PRIu64 ",\"blocks_evictable\":%" PRIu64 ",\"bytes\":%" PRIu64
               ",\"prompt_tokens\":%" PRIu64 ",\"hit_tokens\":%" PRIu64 ",\"evictions\":%" PRIu64
               ",\"holders\":[",
               c->blocks_total, c->blocks_used, c->blocks_shared, c->blocks_evictable, c->bytes,
               c->prompt_tokens, c->hit_tokens, c->evictions);
    for (size_t i = 0; i < c->n_holders; i++) {
        buf_puts(to, i ? "," : "");
        write_holder(c->holders[i], own, to);
    }
    buf_printf(to,
               "],\"disk\":{\"up\":%s,\"blocks\":%" PRIu64 ",\"bytes\":%" PRIu64
               ",\"hit_tokens\":%" PRIu64 ",\"written\":%" PRIu64 ",\"restored\":%" PRIu64 "}}",
               c->disk ? "true" : "false", c->disk_blocks, c->disk_bytes, c->disk_hit_tokens,
               c->disk_written, c->disk_restored);
}

static void write_pass_times(const Tandem__V1__StatsReply *s, struct buf *to)
{
    buf_puts(to, ",\"pass_times\":[");
    for (size_t i = 0; i < s->n_pass_times; i++) {
        buf_printf(to, "%s{\"rows\":%u", i ? "," : "", s->pass_times[i]->rows);
        write_real(to, "seconds", s->pass_times[i]->seconds);
        buf_puts(to, "}");
    }
    buf_puts(to, "]");
}

static void write_statistics(const Tandem__V1__StatsReply *s, const struct own_ids *own,
                             struct buf *to)
{
    buf_printf(
        to, ",\"running\":%u,\"waiting\":%u,\"requests\":%" PRIu64 ",\"generated_tokens\":%" PRIu64,
        s->running, s->waiting, s->requests, s->generated_tokens);
    write_real(to, "tokens_per_s", s->tokens_per_s);
    write_real(to, "uptime_s", s->uptime_s);
    if (s->cache)
        write_cache(s->cache, own, to);
    write_pass_times(s, to);
    write_proposers(s, to);
}

/* named: the key may use the model, so it may see its name. */
static void write_problem(const struct verifier_stats *p, bool named, struct buf *to)
{
    buf_puts(to, ",\"problem\":");
    if (named || p->state != UPSTREAM_REFUSED) // a refusal has names of models
        json_write_cstr(to, p->problem);
    else
        buf_puts(to, "null");
}

static void write_model(const struct verifier_stats *p, bool named, struct buf *to)
{
    buf_puts(to, ",\"model\":");
    if (named)
        json_write_text(to, p->model->info->name.data, p->model->info->name.len);
    else
        buf_puts(to, "null");
    write_real(to, "progress", p->state == UPSTREAM_READY ? 1 : (double)p->model->info->progress);
}

static void write_verifier(const struct verifier_stats *p, const struct auth_guest *guest,
                           const struct own_ids *own, struct buf *to)
{
    ProtobufCBinaryData name = p->model ? p->model->info->name : (ProtobufCBinaryData){0};
    bool named = auth_allows_model(guest, name.data, name.len);
    buf_puts(to, "{\"target\":");
    json_write_cstr(to, upstream_target(p->v));
    buf_printf(to, ",\"state\":\"%s\"", upstream_state_name(p->state));
    if (p->state == UPSTREAM_DOWN || p->state == UPSTREAM_REFUSED)
        write_problem(p, named, to);
    if (p->model)
        write_model(p, named, to);
    if (p->stats)
        write_statistics(p->stats, own, to);
    buf_puts(to, "}");
}

/* "ok" if at least one verifier is ready, else "loading" or "unavailable"; "draining" at the
 * end. */
static const char *overall_state(const struct gateway *g, const enum upstream_state *states)
{
    bool loading = false;
    if (atomic_load(&g->draining))
        return "draining";
    for (unsigned i = 0; i < upstream_n(g->upstream); i++) {
        if (states[i] == UPSTREAM_READY)
            return "ok";
        loading |= states[i] == UPSTREAM_LOADING;
    }
    return loading ? "loading" : "unavailable";
}

/* The same by the last known states. It makes no call, so probes may be frequent. */
static const char *last_overall_state(struct gateway *g)
{
    enum upstream_state states[UPSTREAM_MAX];
    for (unsigned i = 0; i < upstream_n(g->upstream); i++) {
        const struct upstream_model *model;
        char problem[FAIL_TEXT_MAX];
        states[i] = upstream_state(upstream_at(g->upstream, i), &model, problem);
        upstream_model_unref(model);
    }
    return overall_state(g, states);
}

static int http_status_of(const char *overall)
{
    return strcmp(overall, "ok") == 0 ? 200 : 503;
}

/* Clients choose the ids of their requests. With keys, each sees only the ids that its key sent. */
static void find_own_ids(struct query *a, struct own_ids *ret)
{
    char name[KEY_FILE_MAX_NAME + 1];
    auth_name(http_attached(a->http), name);
    ret->all = !a->g->auth;
    buf_init(&ret->ids, BODY_MAX);
    if (!ret->all)
        completions_ids(a->g->completions, name, &ret->ids);
}

static void answer_health(struct query *a)
{
    enum upstream_state states[UPSTREAM_MAX];
    for (unsigned i = 0; i < a->n; i++)
        states[i] = a->replies[i].state;
    const char *status = overall_state(a->g, states);
    struct buf body;
    struct own_ids own;
    find_own_ids(a, &own);
    buf_init(&body, BODY_MAX);
    buf_printf(&body, "{\"status\":\"%s\",\"version\":\"" TANDEM_VERSION "\"", status);
    write_real(&body, "uptime_s", (double)(clock_us() - a->g->started_us) / 1e6);
    buf_printf(&body, ",\"requests_active\":%u,\"verifiers\":[",
               http_n_active(http_server_of(a->http)));
    for (unsigned i = 0; i < a->n; i++) {
        buf_puts(&body, i ? "," : "");
        write_verifier(&a->replies[i], http_attached(a->http), &own, &body);
    }
    buf_puts(&body, "],\"spec_decode\":");
    write_speculation(a, &body);
    buf_puts(&body, "}\n");
    buf_done(&own.ids);
    answer_json(a->http, http_status_of(status), &body);
}

void health_report(struct gateway *g, struct http_request *r)
{
    query_verifiers(g, r, answer_health);
}

void health_brief(struct gateway *g, struct http_request *r)
{
    const char *status = last_overall_state(g);
    struct buf body;
    buf_init(&body, 4096);
    buf_printf(&body, "{\"status\":\"%s\",\"version\":\"" TANDEM_VERSION "\"}\n", status);
    answer_json(r, http_status_of(status), &body);
}

void health_ready(struct gateway *g, struct http_request *r)
{
    int status = http_status_of(last_overall_state(g));
    struct buf body;
    buf_init(&body, 4096);
    buf_printf(&body, "{\"ready\":%s}\n", status == 200 ? "true" : "false");
    answer_json(r, status, &body);
}

/* ---- metrics ---- */

static void set_gauges(struct query *a)
{
    metrics_set(
        metrics_gauge("tandem_gateway_requests_active", "HTTP requests being answered.", NULL),
        http_n_active(http_server_of(a->http)));
    metrics_set(metrics_gauge("tandem_gateway_body_bytes", "Bytes of requests in memory.", NULL),
                (double)http_body_bytes(http_server_of(a->http)));
    for (unsigned i = 0; i < a->n; i++) {
        char label[320];
        const char *target = upstream_target(a->replies[i].v);
        metrics_label(label, sizeof(label), "target", target, strlen(target));
        metrics_set(metrics_gauge("tandem_gateway_verifier_up",
                                  "1 while this verifier serves requests.", label),
                    a->replies[i].state == UPSTREAM_READY);
    }
}

/* Whether reply i is the only one with its instance. Verifiers that were given the same one would
 * produce the same series. */
static bool has_own_instance(const struct query *a, unsigned i)
{
    const ProtobufCBinaryData *own = &a->replies[i].stats->instance;
    if (!own->len || text_is(own, a->g->instance))
        return false;
    for (unsigned j = 0; j < a->n; j++) {
        const Tandem__V1__StatsReply *other = a->replies[j].stats;
        if (j != i && other && other->instance.len == own->len &&
            memcmp(other->instance.data, own->data, own->len) == 0)
            return false;
    }
    return true;
}

/* Whether an earlier reply is that of the same target, which was listed twice. */
static bool is_repeated(const struct query *a, unsigned i)
{
    for (unsigned j = 0; j < i; j++)
        if (a->replies[j].stats &&
            !strcmp(upstream_target(a->replies[j].v), upstream_target(a->replies[i].v)))
            return true;
    return false;
}

/* The label `instance` of a verifier's series. */
static ProtobufCBinaryData instance_of(const struct query *a, unsigned i)
{
    const char *target = upstream_target(a->replies[i].v);
    if (has_own_instance(a, i))
        return a->replies[i].stats->instance;
    return (ProtobufCBinaryData){strlen(target), (uint8_t *)target};
}

static void add_verifier(struct prom_merge *all, const struct query *a, unsigned i)
{
    const Tandem__V1__StatsReply *s = a->replies[i].stats;
    ProtobufCBinaryData instance = instance_of(a, i);
    prom_merge_add(all, (char *)s->prometheus.data, s->prometheus.len, (char *)instance.data,
                   instance.len);
}

static bool same_bytes(const ProtobufCBinaryData *a, const ProtobufCBinaryData *b)
{
    return a->len == b->len && (!a->len || memcmp(a->data, b->data, a->len) == 0);
}

/* Whether the gateway, a verifier or an earlier proposer has the instance of proposer p of reply i.
 * An earlier one is the same proposer, which another verifier uses too. */
static bool is_instance_taken(const struct query *a, unsigned i, size_t p)
{
    const ProtobufCBinaryData *own = &a->replies[i].stats->proposer_series[p]->instance;
    if (!own->len || text_is(own, a->g->instance))
        return true;
    for (unsigned j = 0; j < a->n; j++) {
        const Tandem__V1__StatsReply *other = a->replies[j].stats;
        if (!other)
            continue;
        ProtobufCBinaryData instance = instance_of(a, j);
        if (same_bytes(own, &instance))
            return true;
        size_t n = j < i ? other->n_proposer_series : j == i ? p : 0;
        for (size_t q = 0; q < n; q++)
            if (same_bytes(own, &other->proposer_series[q]->instance))
                return true;
    }
    return false;
}

/* The series of the proposers of a verifier, each proposer once. */
static void add_proposers(struct prom_merge *all, const struct query *a, unsigned i)
{
    const Tandem__V1__StatsReply *s = a->replies[i].stats;
    for (size_t p = 0; p < s->n_proposer_series && p < PROPOSERS_MAX; p++) {
        const Tandem__V1__ProposerSeries *from = s->proposer_series[p];
        struct buf clean;
        if (is_instance_taken(a, i, p))
            continue;
        buf_init(&clean, BODY_MAX);
        proposer_metrics_clean((char *)from->prometheus.data, from->prometheus.len, &clean);
        if (!clean.error && clean.len)
            prom_merge_add(all, clean.data, clean.len, (char *)from->instance.data,
                           from->instance.len);
        buf_done(&clean);
    }
}

/* body: the metrics of this process, replaced by those merged with the verifiers' metrics. */
static void join_metrics(struct query *a, bool openmetrics, struct buf *body)
{
    struct prom_merge all;
    prom_merge_init(&all, openmetrics);
    prom_merge_add(&all, body->data ? body->data : "", body->len, a->g->instance,
                   strlen(a->g->instance));
    prom_merge_own_done(&all);
    buf_clear(body);
    for (unsigned i = 0; i < a->n; i++)
        if (a->replies[i].stats && !is_repeated(a, i))
            add_verifier(&all, a, i);
    for (unsigned i = 0; i < a->n; i++)
        if (a->replies[i].stats)
            add_proposers(&all, a, i);
    if (openmetrics)
        prom_merge_write_openmetrics(&all, body);
    else
        prom_merge_write(&all, body);
    prom_merge_done(&all);
}

static void answer_metrics(struct query *a)
{
    struct buf body;
    buf_init(&body, BODY_MAX);
    set_gauges(a);
    metrics_render(&body);
    join_metrics(a, false, &body);
    http_reply(a->http, 200, "text/plain; version=0.0.4; charset=utf-8", &body);
}

static void answer_openmetrics(struct query *a)
{
    struct buf body;
    buf_init(&body, BODY_MAX);
    set_gauges(a);
    metrics_render_examples(&body);
    join_metrics(a, true, &body);
    http_reply(a->http, 200, "application/openmetrics-text; version=1.0.0; charset=utf-8", &body);
}

void health_metrics(struct gateway *g, struct http_request *r)
{
    const char *accept = http_field(r, "Accept");
    bool openmetrics = accept && strstr(accept, "application/openmetrics-text");
    query_verifiers(g, r, openmetrics ? answer_openmetrics : answer_metrics);
}
