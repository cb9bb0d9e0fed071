/* API keys of the gateway: wrong keys, models, tokens per minute and day, who sees which ids. The
 * fake verifier counts 7 tokens for each prompt. */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/mem.h"
#include "gateway/keys/bad_keys.h"
#include "lib/clients/http_client.h"
#include "lib/lib.h"
#include "lib/rigs/services.h"
#include "lib/rigs/stage.h"

#define ALICE "sk-alice-0123456789"
#define BOB "sk-bob-0123456789ab"
#define WAIT_MS 20000

/* ---- helpers ---- */

static struct child start_gateway(const char *keys, const char *const *more, unsigned *port)
{
    const char *args[CHILD_MAX_ARGS] = {"--api-keys", stage.keys, "--metrics-open"};
    for (unsigned i = 0; more && more[i]; i++)
        args[3 + i] = more[i];
    stage_write_keys(keys);
    return gateway_start(stage.address, args, port);
}

static struct http_answer ask(unsigned port, const char *key, const char *what, const char *body)
{
    char header[128];
    snprintf(header, sizeof(header), "X-API-Key: %s\r\n", key);
    return http_ask(port, what, header, body);
}

static struct http_answer complete(unsigned port, const char *key, const char *body)
{
    return ask(port, key, "POST /v1/completions", body);
}

static unsigned count(const char *text, const char *part)
{
    unsigned n = 0;
    for (; (text = strstr(text, part)); text += strlen(part))
        n++;
    return n;
}

/* The number in a header field; -1: it is absent. */
static long field(const struct http_answer *a, const char *name)
{
    char mark[80];
    snprintf(mark, sizeof(mark), "\r\n%s: ", name);
    const char *at = strstr(a->head, mark);
    return at ? strtol(at + strlen(mark), NULL, 10) : -1;
}

/* The tokens that the key has left before this request, which costs 8: the prompt and a token. It
 * reserves one for the text, and one for the answer. */
static long left_after_probe(unsigned port, const char *key)
{
    struct http_answer a = complete(port, key, "{\"prompt\":\"say 1\",\"max_tokens\":1}");
    assert_int_equal(a.status, 200);
    long left = field(&a, "x-ratelimit-remaining-tokens");
    http_answer_done(&a);
    return left + 3; // "say 1" is estimated as 2 tokens
}

/* ---- wrong keys ---- */

/* Sends wrong keys until one comes during a pause of this address. A pause may end before the next
 * request on a slow machine; then the next pause is twice as long. Returns the 401s before. */
static unsigned until_paused(unsigned port)
{
    for (unsigned i = 0; i < BAD_KEYS_FREE + 30; i++) {
        struct http_answer a = complete(port, "sk-nobody-has-this", "{}");
        int status = a.status;
        if (status == 429) {
            assert_true(field(&a, "Retry-After") >= 1);
            assert_non_null(strstr(a.body, "too many wrong keys came from this address"));
            assert_non_null(strstr(a.body, "\"code\":\"rate_limit_exceeded\""));
        }
        http_answer_done(&a);
        if (status == 429)
            return i;
        assert_int_equal(status, 401);
    }
    fail_msg("no wrong key was paused");
    return 0;
}

static void wrong_keys_pause_their_address_but_no_right_key(void **state)
{
    (void)state;
    unsigned port;
    struct child s = start_gateway("alice " ALICE "\n", NULL, &port);
    assert_true(until_paused(port) >= BAD_KEYS_FREE);
    for (unsigned i = 0; i < 20; i++)
        http_answer_is(complete(port, ALICE, "{\"prompt\":\"say 1\"}"), 200, "", "w0");
    until_paused(port);
    http_answer_is(ask(port, ALICE, "GET /metrics", ""), 200, "", "reason=\"backoff\"} 2\n");
    child_stop(&s);
}

static void wrong_keys_are_one_line_of_the_log(void **state)
{
    (void)state;
    unsigned port;
    size_t len;
    struct child s = start_gateway("alice " ALICE "\n", NULL, &port);
    for (unsigned i = 0; i < 5; i++)
        http_answer_is(complete(port, "sk-nobody-has-this", "{}"), 401, "", "not valid");
    http_answer_is(http_ask(port, "GET /v1/models", "", ""), 401, "", "required");
    free(child_wait_log(&s, "requests had wrong API keys"));
    http_answer_is(complete(port, "sk-nobody-has-this", "{}"), 401, "", "not valid");
    http_answer_is(complete(port, ALICE, "{\"prompt\":\"say 1\"}"), 200, "", "w0");
    free(child_wait_log(&s, "request done"));
    AUTO(mem_free) char *log = lib_read(s.log, &len);
    assert_int_equal(count(log, "requests had wrong API keys"), 1);
    assert_non_null(strstr(log, "refused_by_pause=0 last_client=127.0.0.1"));
    assert_null(strstr(log, "status=401"));
    http_answer_is(http_ask(port, "GET /metrics", "", ""), 200, "", "reason=\"key\"} 7\n");
    child_stop(&s);
}

static void a_wrong_key_at_health_counts_too(void **state)
{
    (void)state;
    unsigned port;
    struct child s = start_gateway("alice " ALICE "\n", NULL, &port);
    for (unsigned i = 0; i < BAD_KEYS_FREE; i++) {
        struct http_answer a = ask(port, "sk-nobody-has-this", "GET /health", "");
        assert_int_equal(a.status, 200);
        assert_null(strstr(a.body, "verifiers"));
        http_answer_done(&a);
    }
    http_answer_is(complete(port, "sk-nobody-has-this", "{}"), 429, "", "wrong keys");
    child_stop(&s);
}

/* ---- models ---- */

static void a_key_sees_and_uses_only_its_models(void **state)
{
    (void)state;
    unsigned port;
    struct child s = start_gateway(
        "alice " ALICE " models=fake/model\nbob " BOB " models=other,further\n", NULL, &port);
    static const char *const posts[] = {"POST /v1/completions", "POST /tokenize"};
    http_answer_is(ask(port, ALICE, "GET /v1/models", ""), 200, "", "\"id\":\"fake/model\"");
    http_answer_is(ask(port, ALICE, "GET /v1/models/fake/model", ""), 200, "", "fake/model");
    http_answer_is(ask(port, BOB, "GET /v1/models", ""), 200, "", "\"data\":[]");
    http_answer_is(ask(port, BOB, "GET /v1/models/fake/model", ""), 404, "", "model_not_found");
    for (size_t i = 0; i < ARRAY_LEN(posts); i++) {
        static const char named[] = "{\"prompt\":\"say 1\",\"model\":\"fake/model\"}";
        http_answer_is(ask(port, ALICE, posts[i], named), 200, "", "");
        http_answer_is(ask(port, ALICE, posts[i], "{\"prompt\":\"say 1\"}"), 200, "", "");
        http_answer_is(ask(port, BOB, posts[i], named), 404, "",
                       "\"param\":\"model\",\"code\":\"model_not_found\"");
        http_answer_is(ask(port, BOB, posts[i], "{\"prompt\":\"say 1\"}"), 404, "",
                       "the model 'other' is not served here");
    }
    child_stop(&s);
}

/* ---- tokens ---- */

static void limits_are_in_the_header(void **state)
{
    (void)state;
    unsigned port;
    struct child s =
        start_gateway("alice " ALICE " rate=60 tokens_per_minute=6000\nbob " BOB "\n", NULL, &port);
    struct http_answer a = complete(port, ALICE, "{\"prompt\":[1,2,3],\"max_tokens\":97}");
    assert_int_equal(field(&a, "x-ratelimit-limit-requests"), 60);
    assert_int_equal(field(&a, "x-ratelimit-remaining-requests"), 59);
    assert_int_equal(field(&a, "x-ratelimit-limit-tokens"), 6000);
    assert_int_equal(field(&a, "x-ratelimit-remaining-tokens"), 5900);
    assert_non_null(strstr(a.head, "\r\nx-ratelimit-reset-requests: "));
    assert_non_null(strstr(a.head, "\r\nx-ratelimit-reset-tokens: 0s\r\n"));
    http_answer_done(&a);
    a = complete(port, BOB, "{\"prompt\":\"say 1\"}");
    assert_null(strstr(a.head, "x-ratelimit"));
    http_answer_done(&a);
    a = complete(port, ALICE, "{\"prompt\":\"say 1\",\"max_tokens\":6000}");
    assert_int_equal(a.status, 400); // never possible
    assert_int_equal(field(&a, "x-ratelimit-limit-tokens"), 6000);
    http_answer_done(&a);
    child_stop(&s);
}

static void tokens_over_a_limit_are_429(void **state)
{
    (void)state;
    unsigned port;
    struct child s = start_gateway("alice " ALICE " tokens_per_day=100\n", NULL, &port);
    http_answer_is(complete(port, ALICE, "{\"prompt\":\"say 60\",\"max_tokens\":60}"), 200, "",
                   "\"total_tokens\":67");
    struct http_answer a = complete(port, ALICE, "{\"prompt\":\"say 60\",\"max_tokens\":60}");
    assert_int_equal(a.status, 429);
    assert_int_equal(field(&a, "x-ratelimit-remaining-tokens"), 33);
    assert_int_equal(field(&a, "x-ratelimit-limit-tokens"), 100);
    assert_true(field(&a, "Retry-After") >= 1);
    assert_non_null(strstr(a.body, "100 tokens per day (tokens_per_day); 33 are left"));
    assert_non_null(strstr(a.body, "\"code\":\"rate_limit_exceeded\""));
    http_answer_done(&a);
    child_stop(&s);
}

static void failed_requests_count_per_minute(void **state)
{
    (void)state;
    unsigned port;
    struct child s = start_gateway("alice " ALICE " rate=4 concurrency=1\n", NULL, &port);
    http_answer_is(complete(port, ALICE, "no JSON"), 400, "", "");
    http_answer_is(complete(port, ALICE, "{\"prompt\":\"status 8\"}"), 429, "", "");
    struct http_client c = http_client_open(port);
    http_client_ask(&c, "POST /v1/completions", "X-API-Key: " ALICE "\r\n",
                    "{\"prompt\":\"stall\",\"stream\":true}");
    assert_int_equal(http_client_read_head(&c, WAIT_MS), 200);
    http_answer_is(complete(port, ALICE, "{\"prompt\":\"say 1\"}"), 429, "",
                   "concurrent choices (concurrency)");
    http_answer_is(complete(port, ALICE, "{\"prompt\":\"say 1\"}"), 429,
                   "Retry-After: ", "4 requests per minute (rate)");
    http_client_close(&c);
    gateway_await_running(stage.verifier, 0);
    child_stop(&s);
}

/* What the key has left of `most` tokens. The request could never be served, so it uses none. */
static long left_of(unsigned port, long most)
{
    char body[64];
    snprintf(body, sizeof(body), "{\"prompt\":[1],\"max_tokens\":%ld}", most + 1);
    struct http_answer a = complete(port, ALICE, body);
    assert_int_equal(a.status, 400);
    long left = field(&a, "x-ratelimit-remaining-tokens");
    http_answer_done(&a);
    return left;
}

#define PROMPTS(last)                                                                              \
    "{\"prompt\":[\"stall\",\"silent 12345, and 27 further bytes, or 28\",\"" last                 \
    "\"],\"max_tokens\":50}"

static void tokens_of_ended_requests_count(void **state)
{
    (void)state;
    unsigned port;
    struct child s = start_gateway("alice " ALICE " tokens_per_day=1000000\n", NULL, &port);
    /* Cut short by the verifier after 7 + 20 tokens, and two prompts. */
    http_answer_is(complete(port, ALICE, "{\"prompt\":\"short 20\",\"max_tokens\":50}"), 502, "",
                   "");
    long left = left_after_probe(port, ALICE);
    assert_int_equal(left, 1000000 - 27);
    http_answer_is(complete(port, ALICE, "{\"prompt\":[\"say 20\",\"say 20\"],\"max_tokens\":50}"),
                   200, "", "");
    long after = left_after_probe(port, ALICE); // the probe before cost 8
    assert_int_equal(after, left - 8 - 54);
    /* A client that disconnects after two events. */
    struct http_client c = http_client_open(port);
    http_client_ask(&c, "POST /v1/completions", "X-API-Key: " ALICE "\r\n",
                    "{\"prompt\":\"pace 1000 5\",\"max_tokens\":1000,\"stream\":true}");
    assert_int_equal(http_client_read_head(&c, WAIT_MS), 200);
    for (unsigned i = 0; i < 10; i++)
        free(http_client_event(&c, WAIT_MS, NULL));
    http_client_close(&c);
    gateway_await_running(stage.verifier, 0);
    /* What was reserved and not used comes back when the gateway ends the request. */
    for (unsigned i = 0; i < 2000 && (left = left_of(port, 1000000)) <= after - 900; i++)
        poll(NULL, 0, 5);
    assert_in_range(left, after - 899, after - 8 - 16);
    /* One that disconnects before the first token; a token is estimated as 4 bytes. */
    static const char *const prompts[] = {"silent 12345",
                                          "silent 12345, and 27 further bytes, or 28"};
    static const long n_tokens[] = {3, 11};
    for (size_t i = 0; i < ARRAY_LEN(prompts); i++) {
        long before = left_after_probe(port, ALICE);
        c = http_client_open(port);
        char body[100];
        snprintf(body, sizeof(body), "{\"prompt\":\"%s\",\"max_tokens\":1000}", prompts[i]);
        http_client_ask(&c, "POST /v1/completions", "X-API-Key: " ALICE "\r\n", body);
        gateway_await_running(stage.verifier, 1);
        http_client_close(&c);
        gateway_await_running(stage.verifier, 0);
        for (unsigned k = 0; k < 2000 && (left = left_of(port, 1000000)) <= before - 900; k++)
            poll(NULL, 0, 5);
        assert_int_equal(left, before - 8 - n_tokens[i]);
    }
    /* One whose first prompt has begun: 7 tokens, and most of 13 that are estimated. */
    long before = left_after_probe(port, ALICE);
    c = http_client_open(port);
    http_client_ask(&c, "POST /v1/completions", "X-API-Key: " ALICE "\r\n",
                    "{\"prompt\":[\"stall\",\"silent 12345, and 27 further bytes, or "
                    "28\"],\"max_tokens\":1000}");
    gateway_await_running(stage.verifier, 2);
    http_client_close(&c);
    gateway_await_running(stage.verifier, 0);
    for (unsigned k = 0; k < 2000 && (left = left_of(port, 1000000)) <= before - 900; k++)
        poll(NULL, 0, 5);
    assert_in_range(left, before - 8 - 7 - 13, before - 8 - 7 - 6);
    /* The same, and a third prompt is wrong. Errors of the verifier cost nothing. */
    before = left_after_probe(port, ALICE);
    http_answer_is(complete(port, ALICE, PROMPTS("status 3")), 400, "", "");
    left = left_after_probe(port, ALICE);
    assert_in_range(left, before - 8 - 7 - 15, before - 8 - 7 - 4);
    http_answer_is(complete(port, ALICE, PROMPTS("status 13")), 500, "", "");
    assert_int_equal(left_after_probe(port, ALICE), left - 8 - 7);
    child_stop(&s);
}

static void concurrent_requests_cannot_use_the_same_tokens(void **state)
{
    (void)state;
    unsigned port, n_begun = 0;
    struct http_client c[10];
    struct child s = start_gateway("alice " ALICE " tokens_per_day=500\n", NULL, &port);
    for (size_t i = 0; i < ARRAY_LEN(c); i++) {
        c[i] = http_client_open(port);
        http_client_ask(&c[i], "POST /v1/completions", "X-API-Key: " ALICE "\r\n",
                        "{\"prompt\":\"stall\",\"max_tokens\":100,\"stream\":true}");
        n_begun += http_client_read_head(&c[i], WAIT_MS) == 200;
    }
    assert_int_equal(n_begun, 4); // each may use 102
    for (size_t i = 0; i < ARRAY_LEN(c); i++)
        http_client_close(&c[i]);
    gateway_await_running(stage.verifier, 0);
    child_stop(&s);
}

/* ---- the usage file ---- */

static void counts_are_kept_over_restarts_and_shared(void **state)
{
    (void)state;
    unsigned port, second;
    char usage[300];
    snprintf(usage, sizeof(usage), "%s/usage.sqlite", service_dir());
    const char *more[] = {"--usage-file", usage, NULL};
    struct child s = start_gateway("alice " ALICE " tokens_per_day=1000\n", more, &port);
    struct child t = start_gateway("alice " ALICE " tokens_per_day=1000\n", more, &second);
    http_answer_is(complete(port, ALICE, "{\"prompt\":\"say 400\",\"max_tokens\":400}"), 200, "",
                   "w399");
    for (unsigned i = 0; i < 2000 && left_of(second, 1000) != 593; i++)
        poll(NULL, 0, 10); // the other gateway reads the file once a second
    assert_int_equal(left_of(second, 1000), 593);
    child_signal(&t, SIGKILL);
    child_wait(&t);
    child_stop(&s);
    s = start_gateway("alice " ALICE " tokens_per_day=1000\n", more, &port);
    assert_int_equal(left_of(port, 1000), 593);
    child_stop(&s);
    FILE *f = fopen(usage, "w");
    fputs("this is no database, but it is long enough to be read as one, and so it is damaged", f);
    fclose(f);
    s = start_gateway("alice " ALICE " tokens_per_day=1000\n", more, &port);
    free(child_wait_log(&s, "usage file is damaged and renamed to "));
    http_answer_is(complete(port, ALICE, "{\"prompt\":[1],\"max_tokens\":900}"), 200, "", "w0");
    child_stop(&s);
}

/* The manager may name several folders. */
static void the_managers_state_folder_holds_the_counts(void **state)
{
    (void)state;
    unsigned port;
    char folders[600], path[300];
    snprintf(folders, sizeof(folders), "%s:/nonexistent", service_dir());
    snprintf(path, sizeof(path), "%s/usage.sqlite", service_dir());
    unlink(path);
    setenv("STATE_DIRECTORY", folders, 1);
    for (unsigned i = 0; i < 2; i++) {
        struct child s = start_gateway("alice " ALICE " tokens_per_day=1000\n", NULL, &port);
        assert_int_equal(access(path, F_OK), 0);
        assert_int_equal(left_of(port, 1000), i ? 593 : 1000);
        http_answer_is(complete(port, ALICE, "{\"prompt\":\"say 400\",\"max_tokens\":400}"), 200,
                       "", "w399");
        child_stop(&s);
    }
    unsetenv("STATE_DIRECTORY");
}

static void an_unusable_usage_file_stops_the_start(void **state)
{
    (void)state;
    stage_write_keys("alice " ALICE "\n");
    const char *args[] = {"--listen",     "127.0.0.1:0",        "--verifiers",
                          stage.address,  "--api-keys",         stage.keys,
                          "--usage-file", "/nonexistent/usage", NULL};
    struct child s = child_start(BINARY_DIR "/gateway", args);
    free(child_wait_log(&s, "usage file /nonexistent/usage: No such file or directory"));
    assert_int_equal(child_wait(&s), 1);
}

/* ---- health ---- */

static void a_usage_file_without_keys_stops_the_start(void **state)
{
    (void)state;
    const char *args[] = {"--usage-file", "usage.sqlite", "--listen", "127.0.0.1:0", NULL};
    struct child s = child_start(BINARY_DIR "/gateway", args);
    free(child_wait_log(&s, "usage_file is set, but there are no API keys to count"));
    assert_int_equal(child_wait(&s), 1);
    assert_int_equal(access("usage.sqlite", F_OK), -1);
}

static void health_shows_ids_of_the_own_key_only(void **state)
{
    (void)state;
    unsigned port;
    struct child s = start_gateway("alice " ALICE "\nbob " BOB "\n", NULL, &port);
    fake_verifier_holder(stage.verifier, "id-of-alice");
    struct http_client c = http_client_open(port);
    http_client_ask(&c, "POST /v1/completions",
                    "X-API-Key: " ALICE "\r\nX-Request-Id: id-of-alice\r\n",
                    "{\"prompt\":\"stall\",\"stream\":true}");
    assert_int_equal(http_client_read_head(&c, WAIT_MS), 200);
    http_answer_is(ask(port, ALICE, "GET /health", ""), 200, "", "{\"id\":\"id-of-alice\",");
    struct http_answer a = ask(port, BOB, "GET /health", "");
    assert_null(strstr(a.body, "id-of-alice"));
    assert_non_null(strstr(a.body, "{\"id\":null,\"choice\":0"));
    http_answer_done(&a);
    http_client_close(&c);
    gateway_await_running(stage.verifier, 0);
    child_stop(&s);
    s = gateway_start(stage.address, NULL, &port); // without keys there is only the operator
    http_answer_is(http_ask(port, "GET /health", "", ""), 200, "", "{\"id\":\"id-of-alice\",");
    child_stop(&s);
    fake_verifier_holder(stage.verifier, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_keys_pause_their_address_but_no_right_key),
        cmocka_unit_test(wrong_keys_are_one_line_of_the_log),
        cmocka_unit_test(a_wrong_key_at_health_counts_too),
        cmocka_unit_test(a_key_sees_and_uses_only_its_models),
        cmocka_unit_test(limits_are_in_the_header),
        cmocka_unit_test(tokens_over_a_limit_are_429),
        cmocka_unit_test(failed_requests_count_per_minute),
        cmocka_unit_test(tokens_of_ended_requests_count),
        cmocka_unit_test(concurrent_requests_cannot_use_the_same_tokens),
        cmocka_unit_test(counts_are_kept_over_restarts_and_shared),
        cmocka_unit_test(the_managers_state_folder_holds_the_counts),
        cmocka_unit_test(an_unusable_usage_file_stops_the_start),
        cmocka_unit_test(a_usage_file_without_keys_stops_the_start),
        cmocka_unit_test(health_shows_ids_of_the_own_key_only),
    };
    return cmocka_run_group_tests(tests, stage_open_verifier, stage_close_verifier);
}
