/* The limits of one client, and their effect on others. */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "lib/rigs/gateway.h"
#include "lib/clients/http_client.h"
#include "lib/lib.h"
#include "lib/rigs/services.h"

static char address[128];
static struct fake_verifier *verifier;

static void asks(struct http_client *c, const char *prompt, bool stream)
{
    char body[256];
    int n = snprintf(body, sizeof(body), "{\"prompt\":\"%s\",\"stream\":%s}", prompt,
                     stream ? "true" : "false");
    http_client_print(c, "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s",
                      n, body);
}

static struct http_answer answer_to(unsigned port, const char *prompt)
{
    struct http_client c = http_client_open(port);
    asks(&c, prompt, false);
    struct http_answer a = http_client_read(&c, 20000);
    http_client_close(&c);
    return a;
}

static void serves(unsigned port)
{
    struct http_answer a = answer_to(port, "say 2");
    assert_int_equal(a.status, 200);
    http_answer_done(&a);
}

static void a_half_closed_connection_is_closed_after_the_answer(void **state)
{
    (void)state;
    unsigned port;
    struct child s = gateway_start(address, NULL, &port); // idle connections may stay 75 s
    struct http_client c = http_client_open(port);
    http_client_print(&c, "GET /version HTTP/1.1\r\nHost: x\r\n\r\n");
    shutdown(c.fd, SHUT_WR);
    struct http_answer a = http_client_read(&c, 20000);
    assert_int_equal(a.status, 200);
    http_answer_done(&a);
    assert_true(http_client_wait_close(&c, 20000));
    http_client_close(&c);
    child_stop(&s);
}

static void a_request_too_long_in_the_queue_is_429(void **state)
{
    (void)state;
    unsigned port;
    const char *more[] = {"--queue-wait", "1.5", NULL};
    struct child s = gateway_start(address, more, &port);
    struct http_client begun = http_client_open(port);
    asks(&begun, "stall", true);
    assert_int_equal(http_client_read_head(&begun, 20000), 200);
    unsigned cancelled = fake_verifier_cancelled(verifier);
    struct http_answer a = answer_to(port, "silent");
    assert_int_equal(a.status, 429);
    assert_non_null(strstr(a.head, "Retry-After: "));
    assert_non_null(strstr(a.body, "waited in the queue for the longest time allowed, 1.5 s"));
    assert_non_null(strstr(a.body, "rate_limit_error"));
    http_answer_done(&a);
    gateway_await_running(verifier, 1); // a request that has begun continues
    assert_int_equal(fake_verifier_cancelled(verifier), cancelled + 1);
    http_client_close(&begun);
    gateway_await_running(verifier, 0);
    child_stop(&s);
}

static void a_path_or_query_over_the_limit_is_414(void **state)
{
    (void)state;
    unsigned port;
    struct child s = gateway_start(address, NULL, &port);
    static const char *const formats[] = {"/%s", "/version?%s", "/version?a=%s"};
    for (size_t i = 0; i < ARRAY_LEN(formats); i++) {
        char url[4096], more[3000];
        memset(more, 'a', sizeof(more) - 1);
        more[sizeof(more) - 1] = 0;
        snprintf(url, sizeof(url), formats[i], more);
        struct http_answer a = http_call(port, "GET", url, NULL);
        assert_int_equal(a.status, 414);
        assert_non_null(strstr(a.body, "bytes, at most 2048"));
        http_answer_done(&a);
    }
    serves(port);
    child_stop(&s);
}

static void invalid_utf8_is_harmless(void **state)
{
    (void)state;
    unsigned port;
    struct child s = gateway_start(address, NULL, &port);
    static const char *const paths[] = {"/\xFF\xFE", "/v1/models/%FF%C0%80", "/%00health",
                                        "/v1/models/\xED\xA0\x80", "/..%2f..%2fetc/passwd"};
    for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
        struct http_answer a = http_call(port, "GET", paths[i], NULL);
        assert_int_equal(a.status, 404);
        http_answer_done(&a);
    }
    serves(port);
    child_stop(&s);
}

/* Random bytes with pieces of requests. */
static size_t make_garbage(uint64_t *random, char *to, size_t max)
{
    static const char *const parts[] = {"POST /v1/completions HTTP/1.1\r\n",
                                        "GET / HTTP/1.1\r\n",
                                        "Host: x\r\n",
                                        "Content-Length: 99\r\n",
                                        "Transfer-Encoding: chunked\r\n",
                                        "\r\n",
                                        "ffffffffffffffff\r\n",
                                        "{\"prompt\":",
                                        "\"say 1\"}",
                                        "\0\0",
                                        "\x16\x03\x01\x02",
                                        "PRI * HTTP/2.0\r\n\r\n"};
    size_t n = 0;
    while (n + 64 < max) {
        uint64_t r = *random = rng_splitmix64(*random);
        if (r % 3) {
            const char *part = parts[(r >> 8) % ARRAY_LEN(parts)];
            memcpy(to + n, part, strlen(part));
            n += strlen(part);
        } else {
            memcpy(to + n, &r, 8);
            n += 8;
        }
        if (r % 17 == 0)
            break;
    }
    return n;
}

static void malformed_traffic_does_not_disturb_good_traffic(void **state)
{
    (void)state;
    unsigned port;
    struct child s = gateway_start(address, NULL, &port);
    uint64_t random = 7;
    for (unsigned i = 0; i < 300; i++) {
        char garbage[1024];
        struct http_client bad = http_client_open(port);
        http_client_send(&bad, garbage, make_garbage(&random, garbage, sizeof(garbage)));
        if (i % 3 == 0)
            serves(port);
        http_client_close(&bad);
    }
    gateway_await_running(verifier, 0);
    child_stop(&s);
}

static int start_verifier(void **state)
{
    (void)state;
    snprintf(address, sizeof(address), "unix:%s/verifier.sock", service_dir());
    verifier = fake_verifier_start(address);
    return 0;
}

static int stop_verifier(void **state)
{
    (void)state;
    fake_verifier_stop(verifier);
    return 0;
}

static void a_body_in_tiny_chunks_ends_its_connection(void **state)
{
    enum { FEW = 1000, MANY = 5000 };
    (void)state;
    unsigned port;
    struct child s = gateway_start(address, NULL, &port);
    for (int i = 0; i < 2; i++) {
        struct http_client c = http_client_open(port);
        http_client_print(&c, "POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
                              "Transfer-Encoding: chunked\r\n\r\n");
        char chunks[6 * MANY + 1], *at = chunks;
        for (int k = 0; k < (i ? MANY : FEW); k++)
            at = stpcpy(at, "1\r\n \r\n");
        http_client_send(&c, chunks, (size_t)(at - chunks));
        if (!i) {
            http_client_print(&c, "2\r\n{}\r\n0\r\n\r\n");
            http_answer_is(http_client_read(&c, 20000), 400, "", "");
        } else {
            assert_true(http_client_wait_close(&c, 10000));
        }
        http_client_close(&c);
    }
    serves(port);
    child_stop(&s);
}

/* A verifier that is stopped, so statistics take their 1 s. */
static void an_address_has_few_requests_for_statistics_at_a_time(void **state)
{
    enum { MAX = 8 };
    (void)state;
    struct service v = {0};
    static const char *const args[] = {"--model", SOURCE_DIR "/models/tales-1m-q8_0.gguf", NULL};
    service_start(&v, "verifier-svc", args);
    unsigned port;
    struct child s = gateway_start(v.target, NULL, &port);
    assert_int_equal(kill(v.pid, SIGSTOP), 0);
    struct http_client c[2 * MAX];
    for (int i = 0; i < 2 * MAX; i++) {
        c[i] = http_client_open(port);
        http_client_ask(&c[i], "GET /metrics", "", "");
    }
    unsigned n_refused = 0;
    for (int i = 0; i < 2 * MAX; i++) {
        struct http_answer a = http_client_read(&c[i], 20000);
        bool refused = a.status == 429;
        n_refused += refused;
        http_answer_is(a, refused ? 429 : 200, "",
                       refused ? "8 requests for statistics from this address run already" : "");
        http_client_close(&c[i]);
    }
    assert_in_range(n_refused, 1, MAX); // fewer if the first are answered before the last arrive
    http_answer_is(http_ask(port, "GET /metrics", "", ""), 200, "", "");
    assert_int_equal(kill(v.pid, SIGCONT), 0);
    child_stop(&s);
    service_stop(&v);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_half_closed_connection_is_closed_after_the_answer),
        cmocka_unit_test(a_request_too_long_in_the_queue_is_429),
        cmocka_unit_test(a_path_or_query_over_the_limit_is_414),
        cmocka_unit_test(invalid_utf8_is_harmless),
        cmocka_unit_test(malformed_traffic_does_not_disturb_good_traffic),
        cmocka_unit_test(a_body_in_tiny_chunks_ends_its_connection),
        cmocka_unit_test(an_address_has_few_requests_for_statistics_at_a_time),
    };
    return cmocka_run_group_tests(tests, start_verifier, stop_verifier);
}
