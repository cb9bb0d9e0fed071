/* test_health.c - what the gateway reports of its verifiers: health, speculation, metrics, models.
 * Their answers are made here (--wrap=upstream_unary). */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/mem.h"
#include "gateway/http/http_request.h"
#include "gateway/serve/health.h"
#include "gateway/serve/models.h"
#include "gateway/upstream/upstream_impl.h"
#include "lib/fakes/failing.h"
#include "lib/lib.h"
#include "lib/rigs/logged.h"
#include "lib/rigs/reader_hold.h"
#include "tandem/v1/stats.pb-c.h"

#define N 3

/* ---- fakes ---- */

static struct {
    unary_calls_done *done;
    void *user;
} asked[N];
static unsigned n_asked;
static const char *accept_field;

void __wrap_upstream_unary(struct verifier *v, const char *path, int64_t timeout_us,
                           const ProtobufCMessage *request, const ProtobufCMessageDescriptor *reply,
                           unary_calls_done *done, void *user);
unsigned __wrap_http_n_active(struct http_server *s);
const char *__wrap_http_field(const struct http_request *r, const char *name);

void __wrap_upstream_unary(struct verifier *v, const char *path, int64_t timeout_us,
                           const ProtobufCMessage *request, const ProtobufCMessageDescriptor *reply,
                           unary_calls_done *done, void *user)
{
    (void)request;
    assert_int_equal(upstream_index(v), n_asked);
    assert_string_equal(path, "/tandem.v1.Stats/GetStats");
    assert_int_equal(timeout_us, 1000000);
    assert_ptr_equal(reply, &tandem__v1__stats_reply__descriptor);
    asked[n_asked].done = done;
    asked[n_asked++].user = user;
}

unsigned __wrap_http_n_active(struct http_server *s)
{
    (void)s;
    return 6;
}

const char *__wrap_http_field(const struct http_request *r, const char *name)
{
    (void)r;
    assert_string_equal(name, "Accept");
    return accept_field;
}

static void answers(unsigned i, const Tandem__V1__StatsReply *s)
{
    struct rpc_msg *msg = rpc_pack(&s->base);
    ProtobufCMessage *copy = rpc_unpack(&tandem__v1__stats_reply__descriptor, msg);
    rpc_msg_free(msg);
    asked[i].done(asked[i].user, &(struct rpc_status){.code = RPC_OK}, copy);
}

static void fails(unsigned i, enum rpc_code code)
{
    asked[i].done(asked[i].user, &(struct rpc_status){.code = code, .text = "as you asked"}, NULL);
}

/* ---- a gateway with N verifiers ---- */

static struct gateway g;
static struct upstream u;
static struct http_server server;
static struct http_request *r;
static Tandem__V1__ModelInfo infos[N];
static struct { // as a snapshot of upstream.c
    struct upstream_model model;
    atomic_uint n_refs;
    void *unused;
} snapshots[N];

static int start(void **state)
{
    (void)state;
    static char *const targets[] = {(char *)"unix:/a", (char *)"unix:/b", (char *)"unix:/c"};
    n_asked = 0;
    accept_field = NULL;
    u = (struct upstream){.n = 2, .mu = PTHREAD_MUTEX_INITIALIZER};
    g = (struct gateway){.upstream = &u, .instance = "gw", .started_us = clock_us()};
    for (unsigned i = 0; i < N; i++) {
        tandem__v1__model_info__init(&infos[i]);
        infos[i].name = rpc_text(i ? "b/two" : "a/\"one\"");
        infos[i].progress = 0.25f;
        infos[i].created = 1700000000;
        infos[i].context_length = 4096;
        infos[i].architecture = rpc_text("llama");
        infos[i].n_parameters = 123;
        infos[i].weight_type = rpc_text("q8_0");
        snapshots[i].model.info = &infos[i];
        atomic_init(&snapshots[i].n_refs, 1);
        u.verifiers[i] = (struct verifier){
            .u = &u, .target = targets[i], .state = UPSTREAM_READY, .model = &snapshots[i].model};
    }
    assert_int_equal(request_memory_new(1 << 20, &server.memory), 0);
    assert_int_equal(reader_new(&g.reader), 0);
    r = calloc(1, sizeof(*r));
    *r = (struct http_request){.s = &server, .path = strdup("/v1/models/b/two")};
    atomic_init(&r->n_refs, 1);
    pthread_mutex_init(&r->mu, NULL);
    return 0;
}

static int end(void **state)
{
    (void)state;
    reader_free(g.reader);
    assert_int_equal(atomic_load(&r->n_refs), 1);
    for (unsigned i = 0; i < N; i++)
        assert_int_equal(atomic_load(&snapshots[i].n_refs), 1);
    http_unref(r);
    request_memory_free(server.memory);
    return 0;
}

/* The answer that was given; the request can be answered again. Valid until then. */
static const char *answered(int status)
{
    static char text[65536];
    reader_await(g.reader);
    assert_int_equal(r->status, status);
    assert_true(r->out.len < sizeof(text));
    memcpy(text, r->out.data, r->out.len);
    text[r->out.len] = 0;
    r->answer = NONE;
    n_asked = 0;
    return text;
}

static void has(const char *text, const char *part)
{
    if (!strstr(text, part))
        fail_msg("no %s in %s", part, text);
}

static void has_not(const char *text, const char *part)
{
    if (strstr(text, part))
        fail_msg("%s in %s", part, text);
}

static void set_path(const char *path)
{
    free(r->path);
    r->path = strdup(path);
}

/* Statistics in which every number is another one. */
static Tandem__V1__StatsReply *full(void)
{
    static Tandem__V1__StatsReply s;
    static Tandem__V1__SpeculationStats p;
    static Tandem__V1__CacheStats c;
    static Tandem__V1__CacheHolder h[2], *holders[] = {&h[0], &h[1]};
    static Tandem__V1__ProposerStats d[2], *proposers[] = {&d[0], &d[1]};
    static Tandem__V1__PassTime t[2], *times[] = {&t[0], &t[1]};
    tandem__v1__stats_reply__init(&s);
    tandem__v1__speculation_stats__init(&p);
    tandem__v1__cache_stats__init(&c);
    for (unsigned i = 0; i < 2; i++) {
        tandem__v1__cache_holder__init(&h[i]);
        tandem__v1__proposer_stats__init(&d[i]);
        tandem__v1__pass_time__init(&t[i]);
        h[i].id = rpc_text(i ? "id-2" : "id-1");
        h[i].choice = 51 + 10 * i;
        h[i].tokens = 52 + 10 * i;
        h[i].blocks = 53 + 10 * i;
        d[i].name = rpc_text(i ? "draft" : "ngram");
        d[i].target = rpc_text("unix:/p");
        d[i].connected = i == 0;
        d[i].benched = i == 1;
        d[i].drafts = 71 + 10 * i;
        d[i].draft_tokens = 72 + 10 * i;
        d[i].accepted_tokens = 73 + 10 * i;
        d[i].late = 74 + 10 * i;
        d[i].p90_us = 75 + 10 * i;
        t[i].rows = 1 + i;
        t[i].seconds = 0.5 + i;
    }
    s.instance = rpc_text("v1");
    s.running = 1;
    s.waiting = 2;
    s.requests = 3;
    s.generated_tokens = 4;
    s.tokens_per_s = 5.5;
    s.uptime_s = 6.5;
    p.enabled = true;
    p.mode = rpc_text("ngram");
    p.acceptance_rate_ema = 0.5;
    p.avg_tokens_per_step = 2;
    p.total_steps = 9;
    p.total_fallback_steps = 21;
    p.total_proposed = 40;
    p.total_accepted = 30;
    p.total_bonus_tokens = 24;
    p.current_k = 5;
    p.adaptive_k_current = 3;
    c.blocks_total = 31;
    c.blocks_used = 32;
    c.blocks_shared = 33;
    c.blocks_evictable = 34;
    c.bytes = 35;
    c.prompt_tokens = 36;
    c.hit_tokens = 37;
    c.evictions = 38;
    c.disk = true;
    c.disk_blocks = 41;
    c.disk_bytes = 42;
    c.disk_hit_tokens = 43;
    c.disk_written = 44;
    c.disk_restored = 45;
    c.n_holders = 2;
    c.holders = holders;
    s.speculation = &p;
    s.cache = &c;
    s.n_proposers = 2;
    s.proposers = proposers;
    s.n_pass_times = 2;
    s.pass_times = times;
    return &s;
}

/* ---- health ---- */

static void health_shows_every_number(void **state)
{
    (void)state;
    health_report(&g, r);
    fails(1, RPC_UNIMPLEMENTED);    // an older verifier, without statistics
    assert_int_equal(r->status, 0); // not answered yet
    reader_hold(g.reader, "other");
    answers(0, full());
    assert_int_equal(r->status, 0); // the reader writes it
    reader_let_go();
    const char *text = answered(200);
    has(text, "{\"status\":\"ok\",\"version\":\"");
    has(text, "\",\"uptime_s\":"); // it has just started: 0, or a number such as 7e-05
    has(text,
        ",\"requests_active\":6,\"verifiers\":[{\"target\":\"unix:/a\",\"state\":\"ready\","
        "\"model\":\"a/\\\"one\\\"\",\"progress\":1,\"running\":1,\"waiting\":2,\"requests\":3,"
        "\"generated_tokens\":4,\"tokens_per_s\":5.5,\"uptime_s\":6.5,\"cache\":{"
        "\"blocks_total\":31,\"blocks_used\":32,\"blocks_shared\":33,\"blocks_evictable\":34,"
        "\"bytes\":35,\"prompt_tokens\":36,\"hit_tokens\":37,\"evictions\":38,\"holders\":["
        "{\"id\":\"id-1\",\"choice\":51,\"tokens\":52,\"blocks\":53},"
        "{\"id\":\"id-2\",\"choice\":61,\"tokens\":62,\"blocks\":63}],\"disk\":{\"up\":true,"
        "\"blocks\":41,\"bytes\":42,\"hit_tokens\":43,\"written\":44,\"restored\":45}},"
        "\"pass_times\":[{\"rows\":1,\"seconds\":0.5},{\"rows\":2,\"seconds\":1.5}],"
        "\"proposers\":[{\"name\":\"ngram\",\"target\":\"unix:/p\",\"connected\":true,"
        "\"benched\":false,\"drafts\":71,\"draft_tokens\":72,\"accepted_tokens\":73,\"late\":74,"
        "\"p90_us\":75},{\"name\":\"draft\",\"target\":\"unix:/p\",\"connected\":false,"
        "\"benched\":true,\"drafts\":81,\"draft_tokens\":82,\"accepted_tokens\":83,\"late\":84,"
        "\"p90_us\":85}]},{\"target\":\"unix:/b\",\"state\":\"ready\",\"model\":\"b/two\","
        "\"progress\":1}],\"spec_decode\":{\"spec_decode_enabled\":true,"
        "\"spec_decode_mode\":\"ngram\",\"acceptance_rate_ema\":0.5,"
        "\"acceptance_rate_overall\":0.75,\"avg_tokens_per_step\":2,\"total_steps\":9,"
        "\"total_fallback_steps\":21,\"total_proposed\":40,\"total_accepted\":30,"
        "\"total_bonus_tokens\":24,\"current_k\":5,\"adaptive_k_current\":3}}\n");
}

static void the_state_of_each_verifier_is_shown(void **state)
{
    (void)state;
    u.n = 3;
    u.verifiers[0].state = UPSTREAM_REFUSED;
    strcpy(u.verifiers[0].problem, "another version");
    u.verifiers[1].state = UPSTREAM_LOADING;
    u.verifiers[2].query_at_us = 1;
    health_report(&g, r);
    fails(0, RPC_UNIMPLEMENTED);
    fails(1, RPC_UNIMPLEMENTED);
    fails(2, RPC_DEADLINE_EXCEEDED); // newer than its state
    assert_int_equal(u.verifiers[2].query_at_us, 0);
    const char *text = answered(503);
    has(text, "{\"status\":\"loading\",");
    has(text, "\"state\":\"refused\",\"problem\":\"another version\",\"model\":\"a/\\\"one\\\"\","
              "\"progress\":0.25}");
    has(text,
        "{\"target\":\"unix:/b\",\"state\":\"loading\",\"model\":\"b/two\",\"progress\":0.25}");
    has(text, "\"state\":\"down\",\"problem\":\"as you asked\",");
    has(text, "\"spec_decode\":{\"spec_decode_enabled\":false,\"spec_decode_mode\":\"none\","
              "\"acceptance_rate_ema\":0,\"acceptance_rate_overall\":0,\"avg_tokens_per_step\":0,"
              "\"total_steps\":0,");
    u.verifiers[1].model = NULL;
    health_report(&g, r);
    for (unsigned i = 0; i < 3; i++)
        fails(i, RPC_UNAVAILABLE);
    text = answered(503);
    has(text, "{\"status\":\"unavailable\",");
    has(text, "{\"target\":\"unix:/b\",\"state\":\"down\",\"problem\":\"as you asked\"}");
    u.verifiers[1].model = &snapshots[1].model;
}

/* /v1/models hides them, too. */
static void a_key_sees_only_the_names_of_its_models(void **state)
{
    (void)state;
    static const char keys[] = "alice sk-0123456789abcdef models=b/two\n";
    AUTO(auth_free) struct auth *a = NULL;
    struct auth_guest *guest;
    struct auth_levels levels;
    assert_int_equal(auth_new_text("keys", keys, strlen(keys), &a), 0);
    assert_int_equal(auth_enter(a, "sk-0123456789abcdef", false, 1, &guest, &levels), 0);
    u.n = 3;
    u.verifiers[0].state = UPSTREAM_DOWN;
    strcpy(u.verifiers[0].problem, "not reached");
    u.verifiers[2].state = UPSTREAM_REFUSED;
    strcpy(u.verifiers[2].problem, "its model has");
    r->attached = guest;
    for (unsigned i = 0; i < 2; i++) {
        if (i)
            u.verifiers[2].model = &snapshots[0].model;
        health_report(&g, r);
        for (unsigned k = 0; k < 3; k++)
            fails(k, RPC_UNIMPLEMENTED);
        const char *text = answered(200);
        has(text, "\"problem\":\"not reached\",\"model\":null,\"progress\":0.25}");
        has(text, "\"state\":\"ready\",\"model\":\"b/two\",\"progress\":1}");
        has(text, i ? "\"state\":\"refused\",\"problem\":null,\"model\":null,\"progress\":0.25}"
                    : "\"problem\":\"its model has\",\"model\":\"b/two\",\"progress\":0.25}");
    }
    u.verifiers[2].model = &snapshots[2].model;
    r->attached = NULL;
    auth_leave(guest);
}

static void the_overall_state_is_the_best_one(void **state)
{
    (void)state;
    static const struct {
        enum upstream_state first, second;
        bool draining;
        const char *status;
    } v[] = {{UPSTREAM_READY, UPSTREAM_DOWN, false, "ok"},
             {UPSTREAM_DOWN, UPSTREAM_READY, false, "ok"},
             {UPSTREAM_READY, UPSTREAM_READY, true, "draining"},
             {UPSTREAM_DOWN, UPSTREAM_LOADING, false, "loading"},
             {UPSTREAM_LOADING, UPSTREAM_DOWN, false, "loading"},
             {UPSTREAM_DOWN, UPSTREAM_REFUSED, false, "unavailable"},
             {UPSTREAM_DRAINING, UPSTREAM_UNKNOWN, false, "unavailable"}};
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        char want[64];
        bool ok = strcmp(v[i].status, "ok") == 0;
        u.verifiers[0].state = v[i].first;
        u.verifiers[1].state = v[i].second;
        atomic_store(&g.draining, v[i].draining);
        health_brief(&g, r);
        snprintf(want, sizeof(want), "{\"status\":\"%s\",\"version\":\"", v[i].status);
        has(answered(ok ? 200 : 503), want);
        health_ready(&g, r);
        assert_string_equal(answered(ok ? 200 : 503),
                            ok ? "{\"ready\":true}\n" : "{\"ready\":false}\n");
    }
}

static void a_verifier_that_refuses_statistics_is_one_warning(void **state)
{
    (void)state;
    logged_begin();
    for (unsigned i = 0; i < 2; i++) {
        health_report(&g, r);
        fails(0, RPC_PERMISSION_DENIED);
        fails(1, RPC_PERMISSION_DENIED);
        answered(200);
        health_report(&g, r); // it is not asked again for a while
        assert_int_equal(n_asked, 0);
        has(answered(200), "\"state\":\"ready\",\"model\":\"b/two\"");
        memset(g.ask_again_us, 0, sizeof(g.ask_again_us));
    }
    const char *log = logged_end();
    assert_int_equal(logged_count(log, "verifier refuses statistics target=unix:/a"), 1);
    assert_int_equal(logged_count(log, "verifier refuses statistics target=unix:/b"), 1);
}

/* ---- speculation ---- */

static void counts_are_added_and_rates_averaged(void **state)
{
    (void)state;
    Tandem__V1__StatsReply *s = full();
    health_speculation(&g, r);
    answers(0, s);
    s->speculation->enabled = false; // its mode does not replace the other one's
    s->speculation->mode = rpc_text("draft");
    s->speculation->acceptance_rate_ema = 0.25;
    s->speculation->avg_tokens_per_step = 5;
    s->speculation->total_steps = 29; // three times the weight
    s->speculation->total_accepted = 10;
    s->speculation->current_k = 9;
    s->speculation->adaptive_k_current = 7;
    answers(1, s);
    assert_string_equal(
        answered(200),
        "{\"spec_decode_enabled\":true,\"spec_decode_mode\":\"ngram\","
        "\"acceptance_rate_ema\":0.3125,\"acceptance_rate_overall\":0.5,"
        "\"avg_tokens_per_step\":4.28947,\"total_steps\":38,\"total_fallback_steps\":42,"
        "\"total_proposed\":80,\"total_accepted\":40,\"total_bonus_tokens\":48,\"current_k\":8,"
        "\"adaptive_k_current\":6}\n");
    health_speculation(&g, r);
    s->speculation->enabled = true; // of the enabled ones the last is shown
    s->speculation->mode = rpc_text("late");
    answers(0, full());
    s = full();
    s->speculation->mode = rpc_text("late");
    answers(1, s);
    has(answered(200), "\"spec_decode_mode\":\"late\"");
    health_speculation(&g, r);
    fails(0, RPC_UNAVAILABLE);
    fails(1, RPC_UNAVAILABLE);
    has(answered(503), "no verifier can be reached");
}

/* ---- metrics ---- */

static struct {
    Tandem__V1__StatsReply reply;
    Tandem__V1__ProposerSeries series[20], *list[20];
} reported[N];

static void report(unsigned i, const char *instance, const char *const *proposers)
{
    tandem__v1__stats_reply__init(&reported[i].reply);
    reported[i].reply.instance = rpc_text(instance);
    reported[i].reply.prometheus = rpc_text("tandem_m 1\n");
    unsigned n = 0;
    for (; proposers && proposers[n]; n++) {
        tandem__v1__proposer_series__init(&reported[i].series[n]);
        reported[i].series[n].instance = rpc_text(proposers[n]);
        reported[i].series[n].prometheus = rpc_text("tandem_drafter_streams 1\n");
        reported[i].list[n] = &reported[i].series[n];
    }
    reported[i].reply.n_proposer_series = n;
    reported[i].reply.proposer_series = reported[i].list;
    answers(i, &reported[i].reply);
}

static void each_verifier_has_its_instance_or_its_target(void **state)
{
    (void)state;
    static const struct {
        const char *first, *second, *has[2];
    } v[] = {{"v1", "v2", {"v1", "v2"}},      {"v1", "v1", {"unix:/a", "unix:/b"}}, // given twice
             {"gw", "v2", {"unix:/a", "v2"}}, // the gateway's own
             {"", "v2", {"unix:/a", "v2"}},   {"v1", "v12", {"v1", "v12"}},
             {"v1", "v2x", {"v1", "v2x"}}};
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        health_metrics(&g, r);
        report(0, v[i].first, NULL);
        report(1, v[i].second, NULL);
        const char *text = answered(200);
        assert_string_equal(r->type, "text/plain; version=0.0.4; charset=utf-8");
        for (unsigned j = 0; j < 2; j++) {
            char want[64];
            snprintf(want, sizeof(want), "\ntandem_m{instance=\"%s\"} 1\n", v[i].has[j]);
            has(text, want);
        }
        has(text, "\ntandem_gateway_requests_active{instance=\"gw\"} 6\n");
        has(text, "\ntandem_gateway_body_bytes{instance=\"gw\"} 0\n");
        has(text, "tandem_gateway_verifier_up{instance=\"gw\",target=\"unix:/a\"} 1\n");
    }
    u.verifiers[1].target = u.verifiers[0].target; // listed twice: its series come once
    health_metrics(&g, r);
    report(0, "v1", NULL);
    report(1, "v1", NULL);
    const char *text = answered(200), *first = strstr(text, "\ntandem_m{");
    assert_non_null(first);
    assert_null(strstr(first + 1, "\ntandem_m{"));
}

static void verifiers_without_statistics_are_left_out(void **state)
{
    (void)state;
    u.n = 3;
    u.verifiers[2].state = UPSTREAM_LOADING;
    health_metrics(&g, r);
    fails(0, RPC_UNAVAILABLE);
    report(1, "v2", NULL);
    fails(2, RPC_UNIMPLEMENTED);
    const char *text = answered(200);
    has(text, "\ntandem_m{instance=\"v2\"} 1\n");
    has(text, "target=\"unix:/a\"} 0\n");
    has(text, "target=\"unix:/b\"} 1\n");
    has(text, "target=\"unix:/c\"} 0\n"); // it loads
}

static void each_proposer_comes_once(void **state)
{
    (void)state;
    health_metrics(&g, r);
    report(0, "v1", (const char *const[]){"p1", "", "gw", "v1", "v2", "p1", "p2", NULL});
    report(1, "v2", (const char *const[]){"p2", "p3", NULL});
    const char *text = answered(200);
    static const struct {
        const char *instance;
        bool shown;
    } v[] = {{"p1", true},  {"p2", true},  {"p3", true}, {"gw", false},
             {"v1", false}, {"v2", false}, {"", false}};
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        char want[80];
        snprintf(want, sizeof(want), "tandem_drafter_streams{instance=\"%s\"} 1\n", v[i].instance);
        const char *at = strstr(text, want);
        assert_int_equal(at != NULL, v[i].shown);
        assert_true(!at || !strstr(at + 1, want));
    }
    static const char *const many[] = {"q01", "q02", "q03", "q04", "q05", "q06",
                                       "q07", "q08", "q09", "q10", "q11", "q12",
                                       "q13", "q14", "q15", "q16", "q17", NULL};
    health_metrics(&g, r);
    report(0, "v1", many);
    fails(1, RPC_UNAVAILABLE);
    text = answered(200);
    has(text, "instance=\"q16\"");
    has_not(text, "instance=\"q17\""); // 16 of one verifier
}

static void openmetrics_are_sent_on_request(void **state)
{
    (void)state;
    accept_field = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5";
    health_metrics(&g, r);
    report(0, "v1", NULL);
    report(1, "v2", NULL);
    const char *text = answered(200);
    assert_string_equal(r->type, "application/openmetrics-text; version=1.0.0; charset=utf-8");
    assert_string_equal(text + strlen(text) - 6, "# EOF\n");
    has(text, "# TYPE tandem_m unknown\ntandem_m{instance=\"v1\"} 1\n");
    accept_field = "text/plain";
    health_metrics(&g, r);
    report(0, "v1", NULL);
    report(1, "v2", NULL);
    has_not(answered(200), "# EOF");
}

/* ---- models ---- */

#define ONE                                                                                        \
    "{\"id\":\"a/\\\"one\\\"\",\"object\":\"model\",\"created\":1700000000,"                       \
    "\"owned_by\":\"tandem\",\"max_model_len\":4096,\"architecture\":\"llama\","                   \
    "\"n_parameters\":123,\"weight_type\":\"q8_0\"}"
#define TWO                                                                                        \
    "{\"id\":\"b/two\",\"object\":\"model\",\"created\":1700000000,\"owned_by\":\"tandem\","       \
    "\"max_model_len\":4096,\"architecture\":\"llama\",\"n_parameters\":123,"                      \
    "\"weight_type\":\"q8_0\"}"

static void each_model_is_listed_once(void **state)
{
    (void)state;
    u.n = 3; // the third has the name of the second
    models_list(&g, r);
    assert_string_equal(answered(200), "{\"object\":\"list\",\"data\":[" ONE "," TWO "]}\n");
    models_one(&g, r);
    assert_string_equal(answered(200), TWO);
    set_path("/v1/models/b/tw");
    models_one(&g, r);
    has(answered(404),
        "\"message\":\"the model 'b/tw' is not served here\",\"type\":"
        "\"invalid_request_error\",\"param\":\"model\",\"code\":\"model_not_found\"");
    set_path("/v1/models/");
    models_one(&g, r);
    answered(404);
}

static void only_verifiers_that_can_be_reached_have_models(void **state)
{
    (void)state;
    static const struct {
        enum upstream_state state;
        bool listed;
    } v[] = {{UPSTREAM_READY, true},
             {UPSTREAM_LOADING, true},
             {UPSTREAM_DRAINING, true},
             {UPSTREAM_DOWN, false},
             {UPSTREAM_REFUSED, false}};
    u.n = 1;
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        u.verifiers[0].state = v[i].state;
        models_list(&g, r);
        if (v[i].listed)
            assert_string_equal(answered(200), "{\"object\":\"list\",\"data\":[" ONE "]}\n");
        else
            has(answered(503), "no verifier can be reached, so no model is known");
    }
    u.verifiers[0].state = UPSTREAM_LOADING;
    infos[0].name = rpc_text(NULL); // not known yet
    models_list(&g, r);
    answered(503);
    u.verifiers[0].model = NULL;
    models_list(&g, r);
    answered(503);
    u.verifiers[0].model = &snapshots[0].model;
}

static void the_default_is_a_model(void **state)
{
    (void)state;
    u.n = 1;
    set_path("/v1/models/default");
    models_one(&g, r);
    assert_string_equal(answered(200), ONE);
}

static void a_report_comes_while_the_gateway_stops_too(void **state)
{
    (void)state;
    u.n = 1;
    health_report(&g, r);
    reader_stop(g.reader);
    answers(0, full());
    assert_int_equal(r->status, 200);
}

static void a_report_without_memory_asks_nobody(void **state)
{
    (void)state;
    failing_at(1);
    health_report(&g, r);
    assert_true(failing_has_failed());
    assert_int_equal(n_asked, 0);
    has(answered(500), "no memory for this request");
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, start, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(health_shows_every_number),
        CASE(the_state_of_each_verifier_is_shown),
        CASE(a_key_sees_only_the_names_of_its_models),
        CASE(the_overall_state_is_the_best_one),
        CASE(a_verifier_that_refuses_statistics_is_one_warning),
        CASE(counts_are_added_and_rates_averaged),
        CASE(each_verifier_has_its_instance_or_its_target),
        CASE(verifiers_without_statistics_are_left_out),
        CASE(each_proposer_comes_once),
        CASE(openmetrics_are_sent_on_request),
        CASE(a_report_comes_while_the_gateway_stops_too),
        CASE(a_report_without_memory_asks_nobody),
        CASE(each_model_is_listed_once),
        CASE(only_verifiers_that_can_be_reached_have_models),
        CASE(the_default_is_a_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
