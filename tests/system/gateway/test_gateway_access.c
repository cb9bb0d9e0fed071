/* Access to the gateway: API keys and their limits, addresses that other machines can reach. */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/mem.h"
#include "lib/clients/http_client.h"
#include "lib/lib.h"
#include "lib/rigs/services.h"
#include "lib/rigs/stage.h"

#define ALICE "sk-alice-0123456789"
#define BOB "sk-bob-0123456789ab"

/* ---- helpers ---- */

static struct child start_locked(const char *text, unsigned *port)
{
    const char *more[] = {"--api-keys", stage.keys, NULL};
    stage_write_keys(text);
    return gateway_start(stage.address, more, port);
}

static struct http_answer completion(unsigned port, const char *key, const char *body)
{
    char header[128];
    snprintf(header, sizeof(header), "Authorization: Bearer %s\r\n", key);
    return http_ask(port, "POST /v1/completions", header, body);
}

/* ---- keys ---- */

static void without_a_key_only_health_and_version_are_served(void **state)
{
    (void)state;
    unsigned port;
    struct child s = start_locked("alice " ALICE "\n", &port);
    static const struct {
        const char *what;
        bool open;
    } v[] = {{"GET /", true},
             {"GET /health", true},
             {"GET /ready", true},
             {"GET /version", true},
             {"GET /v1/models", false},
             {"GET /v1/models/fake/model", false},
             {"GET /metrics", false},
             {"GET /v1/spec_decode/metrics", false},
             {"POST /v1/completions", false},
             {"POST /v1/chat/completions", false},
             {"POST /tokenize", false},
             {"POST /detokenize", false}};
    struct http_answer a = http_ask(port, "GET /health", "", "");
    assert_string_equal(strchr(a.body, ','), strstr(a.body, ",\"version\"")); // and nothing else
    assert_null(strstr(a.body, "verifiers"));
    http_answer_done(&a);
    http_answer_is(http_ask(port, "GET /health", "X-API-Key: " ALICE "\r\n", ""), 200, "",
                   "\"verifiers\":[{");
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        if (v[i].open) {
            http_answer_is(http_ask(port, v[i].what, "", ""), 200, "", "");
            continue;
        }
        http_answer_is(
            http_ask(port, v[i].what, "", "{}"), 401, "WWW-Authenticate: Bearer\r\n",
            "\"type\":\"invalid_request_error\",\"param\":null,\"code\":\"invalid_api_key\"");
        http_answer_is(
            http_ask(port, v[i].what, "Authorization: Bearer sk-nobody-has-this\r\n", "{}"), 401,
            "WWW-Authenticate", "this API key is not valid");
    }
    child_stop(&s);
}

static void a_key_may_be_in_either_header(void **state)
{
    (void)state;
    unsigned port;
    struct child s = start_locked("alice " ALICE "\nbob " BOB "\n", &port);
    static const char *const good[] = {"Authorization: Bearer " ALICE "\r\n",
                                       "Authorization: bearer   " BOB "\r\n",
                                       "X-API-Key: " ALICE "\r\n"};
    static const char *const bad[] = {"Authorization: Basic " ALICE "\r\n",
                                      "Authorization: " ALICE "\r\n", "Authorization: Bearer\r\n",
                                      "X-API-Key: \r\n", "X-API-Key: alice\r\n"};
    for (size_t i = 0; i < ARRAY_LEN(good); i++)
        http_answer_is(http_ask(port, "POST /v1/completions", good[i], "{\"prompt\":\"say 1\"}"),
                       200, "", "w0");
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        http_answer_is(http_ask(port, "POST /v1/completions", bad[i], "{\"prompt\":\"say 1\"}"),
                       401, "", "API key");
    child_stop(&s);
}

#define BODY_BYTES 700000

/* Sends a body except for its last byte. */
static struct http_client begin_body(unsigned port, const char *header)
{
    static char text[BODY_BYTES];
    struct http_client c = http_client_open(port);
    memset(text, ' ', sizeof(text));
    memcpy(text, "{\"prompt\":\"say 1\"", 17);
    http_client_print(&c,
                      "POST /v1/completions HTTP/1.1\r\nHost: x\r\n%sContent-Length: %d\r\n\r\n",
                      header, BODY_BYTES);
    http_client_send(&c, text, BODY_BYTES - 1);
    return c;
}

static struct http_answer end_body(struct http_client *c)
{
    http_client_send(c, "}", 1);
    struct http_answer a = http_client_read(c, 20000);
    http_client_close(c);
    return a;
}

static void bodies_without_a_key_use_no_memory(void **state)
{
    (void)state;
    unsigned port;
    struct http_client c[4];
    const char *more[] = {
        "--api-keys", stage.keys, "--metrics-open", "--max-body-kib", "1024", "--max-bodies-mib",
        "2",          NULL};
    stage_write_keys("alice " ALICE "\n");
    struct child s = gateway_start(stage.address, more, &port);
    for (size_t i = 0; i < ARRAY_LEN(c); i++)
        c[i] = begin_body(port, i % 2 ? "" : "X-API-Key: sk-nobody-has-this\r\n");
    http_answer_is(http_ask(port, "GET /metrics", "", ""), 200, "",
                   "\ntandem_gateway_body_bytes{instance=\"gateway\"} 0\n");
    struct http_client known = begin_body(port, "X-API-Key: " ALICE "\r\n");
    http_answer_is(end_body(&known), 200, "", "w0");
    for (size_t i = 0; i < ARRAY_LEN(c); i++)
        http_answer_is(end_body(&c[i]), 401, "WWW-Authenticate: Bearer\r\n", "API key");
    child_stop(&s);
}

static void expect_without_a_key_is_refused_before_the_body(void **state)
{
    (void)state;
    unsigned port;
    struct child s = start_locked("alice " ALICE "\n", &port);
    static const struct {
        const char *what;
        int status;
    } v[] = {{"POST /v1/completions", 401}, {"POST /nowhere", 404}, {"PUT /v1/completions", 405}};
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        struct http_client c = http_client_open(port);
        http_client_print(&c,
                          "%s HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
                          "Content-Length: 1000\r\n\r\n",
                          v[i].what);
        http_answer_is(http_client_read(&c, 20000), v[i].status, "Connection: close\r\n", "error");
        assert_true(http_client_wait_close(&c, 20000));
        http_client_close(&c);
    }
    child_stop(&s);
}

/* Repeats a request with the key until its answer is the expected one. */
static void becomes(unsigned port, const char *key, int status)
{
    struct http_answer a = completion(port, key, "{\"prompt\":\"say 1\"}");
    for (unsigned i = 0; i < 2000 && a.status != status; i++) {
        http_answer_done(&a);
        poll(NULL, 0, 5);
        a = completion(port, key, "{\"prompt\":\"say 1\"}");
    }
    http_answer_is(a, status, "", "");
}

static bool holds_a_body(unsigned port)
{
    struct http_answer a = http_ask(port, "GET /metrics", "", "");
    bool holds = !strstr(a.body, "\ntandem_gateway_body_bytes{instance=\"gateway\"} 0\n");
    http_answer_done(&a);
    return holds;
}

static void an_arriving_body_counts_for_its_key(void **state)
{
    (void)state;
    unsigned port;
    const char *more[] = {"--api-keys", stage.keys, "--metrics-open", NULL};
    stage_write_keys("alice " ALICE " concurrency=1\n");
    struct child s = gateway_start(stage.address, more, &port);
    struct http_client c = begin_body(port, "X-API-Key: " ALICE "\r\n");
    for (unsigned i = 0; i < 2000 && !holds_a_body(port); i++)
        poll(NULL, 0, 5);
    becomes(port, ALICE, 429);
    http_client_close(&c);
    becomes(port, ALICE, 200);
    child_stop(&s);
}

static void an_unread_answer_is_ended_and_counts_until_then(void **state)
{
    (void)state;
    unsigned port;
    const char *more[] = {"--api-keys", stage.keys, "--reader-timeout", "2", NULL};
    stage_write_keys("alice " ALICE " concurrency=1\n");
    struct child s = gateway_start(stage.address, more, &port);
    static char body[500000]; // its answer does not fit into the socket buffers
    memset(body, ' ', sizeof(body) - 1);
    memcpy(body, "{\"prompt\":\"", 11);
    memcpy(body + sizeof(body) - 3, "\"}", 2);
    struct http_client c = http_client_open(port);
    http_client_ask(&c, "POST /tokenize", "X-API-Key: " ALICE "\r\n", body);
    struct pollfd begun = {c.fd, POLLIN, 0};
    assert_int_equal(poll(&begun, 1, 20000), 1);
    becomes(port, ALICE, 429);
    becomes(port, ALICE, 200);
    http_client_close(&c);
    child_stop(&s);
}

static void limits_of_a_key_are_429_by_name(void **state)
{
    (void)state;
    unsigned port;
    struct child s = start_locked("alice " ALICE " concurrency=1\nbob " BOB " rate=2\n", &port);
    struct http_client held = http_client_open(port);
    http_client_ask(&held, "POST /v1/completions", "X-API-Key: " ALICE "\r\n",
                    "{\"prompt\":\"stall\",\"stream\":true}");
    assert_int_equal(http_client_read_head(&held, 20000), 200);
    http_answer_is(completion(port, ALICE, "{\"prompt\":\"say 1\"}"), 429, "Retry-After: 1\r\n",
                   "1 concurrent choices (concurrency)");
    http_client_close(&held);
    gateway_await_running(stage.verifier, 0);
    for (unsigned i = 0; i < 20; i++) // sequential requests are not concurrent
        http_answer_is(completion(port, ALICE, "{\"prompt\":\"say 1\"}"), 200, "", "w0");
    for (unsigned i = 0; i < 2; i++)
        http_answer_is(completion(port, BOB, "{\"prompt\":\"say 1\"}"), 200, "", "w0");
    http_answer_is(completion(port, BOB, "{\"prompt\":\"say 1\"}"), 429, "Retry-After: 3",
                   "2 requests per minute (rate)");
    http_answer_is(http_ask(port, "GET /v1/models", "X-API-Key: " BOB "\r\n", ""), 200, "",
                   "fake/model");
    child_stop(&s);
}

static void is_counted(unsigned port, const char *reason, unsigned n)
{
    char line[128];
    snprintf(line, sizeof(line),
             "\ntandem_gateway_requests_refused_total{instance=\"gateway\",reason=\"%s\"} %u\n",
             reason, n);
    http_answer_is(http_ask(port, "GET /metrics", "", ""), 200, "", line);
}

static void refusals_by_key_are_counted(void **state)
{
    (void)state;
    unsigned port;
    const char *more[] = {"--api-keys", stage.keys, "--metrics-open", NULL};
    stage_write_keys("alice " ALICE " concurrency=2\nbob " BOB " rate=1\n");
    struct child s = gateway_start(stage.address, more, &port);
    is_counted(port, "key", 0);
    is_counted(port, "limit", 0);
    http_answer_is(http_ask(port, "GET /health", "", ""), 200, "", ""); // needs no key
    http_answer_is(http_ask(port, "GET /v1/models", "", ""), 401, "", "");
    http_answer_is(completion(port, "sk-nobody-has-this", "{}"), 401, "", "");
    is_counted(port, "key", 2);
    http_answer_is(completion(port, BOB, "{\"prompt\":\"say 1\"}"), 200, "", "");
    http_answer_is(completion(port, BOB, "{\"prompt\":\"say 1\"}"), 429, "", "(rate)");
    struct http_client held = http_client_open(port);
    http_client_ask(&held, "POST /v1/completions", "X-API-Key: " ALICE "\r\n",
                    "{\"prompt\":\"stall\",\"stream\":true}");
    assert_int_equal(http_client_read_head(&held, 20000), 200);
    http_answer_is(completion(port, ALICE, "{\"prompt\":\"say 1\",\"n\":2}"), 429,
                   "Retry-After: 1\r\n", "2 concurrent choices (concurrency)");
    is_counted(port, "limit", 2);
    http_answer_is(completion(port, ALICE, "{\"prompt\":\"say 1\",\"n\":3}"), 400, "",
                   "\"param\":\"n\"");
    is_counted(port, "limit", 2);
    http_client_close(&held);
    gateway_await_running(stage.verifier, 0);
    child_stop(&s);
}

static void a_key_bounds_tokens_and_names_the_tenant(void **state)
{
    (void)state;
    unsigned port;
    struct child s = start_locked("alice " ALICE " max_tokens=30\nbob " BOB "\n", &port);
    http_answer_is(completion(port, ALICE, "{\"prompt\":\"say 1\",\"max_tokens\":31}"), 400, "",
                   "\"param\":\"max_tokens\"");
    http_answer_is(
        http_ask(
            port, "POST /v1/chat/completions", "X-API-Key: " ALICE "\r\n",
            "{\"messages\":[{\"role\":\"user\",\"content\":\"say 1\"}],\"cache_salt\":\"pepper\"}"),
        200, "", "w0");
    Tandem__V1__GenerateRequest *first = fake_verifier_request(stage.verifier);
    assert_int_equal(first->max_tokens, 30);
    assert_int_equal(first->tenant.len, 64);
    http_answer_is(completion(port, BOB, "{\"prompt\":\"say 1\",\"cache_salt\":\"pepper\"}"), 200,
                   "", "w0");
    Tandem__V1__GenerateRequest *second = fake_verifier_request(stage.verifier);
    assert_int_equal(second->tenant.len, 64);
    assert_int_equal(first->flow.len, 64);
    assert_int_equal(second->flow.len, 64);
    assert_memory_not_equal(first->flow.data, second->flow.data, 64);
    assert_memory_not_equal(first->tenant.data, second->tenant.data, 64);
    tandem__v1__generate_request__free_unpacked(first, NULL);
    tandem__v1__generate_request__free_unpacked(second, NULL);
    child_stop(&s);
}

/* The flow of a completion from 127.0.0.host. */
static void flow_from(unsigned host, unsigned port, char ret[65])
{
    struct http_client c = http_client_open_from(host, port);
    http_client_ask(&c, "POST /v1/completions", "", "{\"prompt\":\"say 1\"}");
    http_answer_is(http_client_read(&c, 20000), 200, "", "w0");
    http_client_close(&c);
    Tandem__V1__GenerateRequest *r = fake_verifier_request(stage.verifier);
    snprintf(ret, 65, "%.*s", (int)r->flow.len, (char *)r->flow.data);
    tandem__v1__generate_request__free_unpacked(r, NULL);
}

static void without_keys_each_address_has_its_flow(void **state)
{
    (void)state;
    char one[65], same[65], other[65];
    unsigned port;
    struct child s = gateway_start(stage.address, (const char *[]){NULL}, &port);
    flow_from(2, port, one);
    flow_from(2, port, same);
    flow_from(9, port, other);
    assert_int_equal(strlen(one), 64);
    assert_string_equal(one, same);
    assert_string_not_equal(one, other);
    child_stop(&s);
}

static void a_reload_rereads_the_keys(void **state)
{
    (void)state;
    unsigned port;
    struct child s = start_locked("alice " ALICE "\n", &port);
    stage_write_keys("nonsense\n");
    child_signal(&s, SIGHUP);
    free(child_wait_log(&s, "line 1: a key must have 16 to 256 characters"));
    http_answer_is(completion(port, ALICE, "{\"prompt\":\"say 1\"}"), 200, "", "w0");
    stage_write_keys("bob " BOB "\nbob sk-another-of-bobs\n");
    child_signal(&s, SIGHUP);
    free(child_wait_log(&s, "API keys reloaded keys=2"));
    http_answer_is(completion(port, ALICE, "{\"prompt\":\"say 1\"}"), 401, "", "not valid");
    http_answer_is(completion(port, BOB, "{\"prompt\":\"say 1\"}"), 200, "", "w0");
    child_stop(&s);
}

static void metrics_may_be_open(void **state)
{
    (void)state;
    unsigned port;
    const char *more[] = {"--api-keys", stage.keys, "--metrics-open", NULL};
    stage_write_keys("alice " ALICE "\n");
    struct child s = gateway_start(stage.address, more, &port);
    http_answer_is(http_ask(port, "GET /metrics", "", ""), 200, "",
                   "tandem_gateway_requests_total");
    http_answer_is(http_ask(port, "GET /v1/spec_decode/metrics", "", ""), 200, "",
                   "total_proposed");
    http_answer_is(http_ask(port, "GET /v1/models", "", ""), 401, "", "API key");
    child_stop(&s);
}

static void keys_may_be_a_credential_and_readable_keys_are_a_warning(void **state)
{
    (void)state;
    unsigned port;
    stage_write_keys("alice " ALICE "\n");
    chmod(stage.keys, 0604);
    setenv("CREDENTIALS_DIRECTORY", service_dir(), 1);
    struct child s = gateway_start(stage.address, NULL, &port);
    unsetenv("CREDENTIALS_DIRECTORY");
    free(child_wait_log(&s, "everybody on this machine may read the API keys: chmod o= "));
    free(child_wait_log(&s, "API key authentication enabled keys=1"));
    http_answer_is(http_ask(port, "GET /v1/models", "", ""), 401, "", "API key");
    child_stop(&s);
}

/* ---- addresses ---- */

static void ends_with(const char *const *args, const char *sentence)
{
    struct child s = child_start(BINARY_DIR "/gateway", args);
    free(child_wait_log(&s, sentence));
    assert_int_equal(child_wait(&s), 1);
}

static void a_public_address_without_keys_needs_allow_open(void **state)
{
    (void)state;
    static const char *const addresses[] = {"0.0.0.0:0", "[::]:0"};
    for (size_t i = 0; i < ARRAY_LEN(addresses); i++) {
        const char *args[] = {"--listen", addresses[i], "--verifiers", stage.address, NULL};
        ends_with(args, "needs no API key: set --api-keys, or --allow-open");
    }
    unsigned port;
    stage_write_keys("alice " ALICE "\n");
    const char *locked[] = {"--listen", "0.0.0.0:0", "--api-keys", stage.keys, NULL};
    struct child s = gateway_start(stage.address, locked, &port);
    http_answer_is(completion(port, ALICE, "{\"prompt\":\"say 1\"}"), 200, "", "w0");
    child_stop(&s);
    const char *meant[] = {"--listen", "0.0.0.0:0", "--allow-open", NULL};
    s = gateway_start(stage.address, meant, &port);
    http_answer_is(http_ask(port, "POST /v1/completions", "", "{\"prompt\":\"say 1\"}"), 200, "",
                   "w0");
    child_stop(&s);
}

static void unreadable_keys_stop_the_start(void **state)
{
    (void)state;
    const char *args[] = {"--listen", "127.0.0.1:0", "--api-keys", "/nonexistent/keys", NULL};
    ends_with(args, "cannot read the API keys from /nonexistent/keys: No such file");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_a_key_only_health_and_version_are_served),
        cmocka_unit_test(a_key_may_be_in_either_header),
        cmocka_unit_test(bodies_without_a_key_use_no_memory),
        cmocka_unit_test(expect_without_a_key_is_refused_before_the_body),
        cmocka_unit_test(an_arriving_body_counts_for_its_key),
        cmocka_unit_test(an_unread_answer_is_ended_and_counts_until_then),
        cmocka_unit_test(limits_of_a_key_are_429_by_name),
        cmocka_unit_test(refusals_by_key_are_counted),
        cmocka_unit_test(a_key_bounds_tokens_and_names_the_tenant),
        cmocka_unit_test(without_keys_each_address_has_its_flow),
        cmocka_unit_test(a_reload_rereads_the_keys),
        cmocka_unit_test(metrics_may_be_open),
        cmocka_unit_test(keys_may_be_a_credential_and_readable_keys_are_a_warning),
        cmocka_unit_test(a_public_address_without_keys_needs_allow_open),
        cmocka_unit_test(unreadable_keys_stop_the_start),
    };
    return cmocka_run_group_tests(tests, stage_open_verifier, stage_close_verifier);
}
