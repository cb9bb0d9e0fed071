/* Requests that cost much do not stop the gateway for the others: the watchdog is fed, and other
 * streams get their tokens. Times are measured by bench_neighbours. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/mem.h"
#include "lib/clients/costly.h"
#include "lib/clients/http_client.h"
#include "lib/lib.h"
#include "lib/rigs/manager.h"
#include "lib/rigs/stage.h"

#define N_COSTLY 63
#define TOKEN_BYTES 4096
#define PACE_MS 100
#define WATCHDOG_US "8000000" // the gateway feeds it every second
#define N_PINGS 4
#define PING_LIMIT_US 2000000 // one is due each second, and never comes a second late

/* Reads what has come, so that the gateway does not pause the streams. */
static void drain(struct http_client *c, unsigned n)
{
    char data[1 << 16];
    for (unsigned i = 0; i < n; i++) {
        struct pollfd p = {c[i].fd, POLLIN, 0};
        while (poll(&p, 1, 0) > 0)
            if (read(c[i].fd, data, sizeof(data)) <= 0)
                fail_msg("a costly stream has ended");
    }
}

/* While the machine does not let this test run, it lets the gateway run no better; ten times that
 * is added to the limit. */
static void await_ping(struct http_client *c, unsigned n)
{
    int64_t from_us = clock_us(), stalled_us = 0;
    while (!strstr(manager_message(), "WATCHDOG=1")) {
        int64_t pause_us = clock_us();
        poll(NULL, 0, 10);
        stalled_us += clock_us() - pause_us - 10000;
        int64_t us = clock_us() - from_us;
        if (us > PING_LIMIT_US + 10 * stalled_us)
            fail_msg("the watchdog was not fed for %.2f s; the test was stalled for %.2f s",
                     (double)us / 1e6, (double)stalled_us / 1e6);
        drain(c, n);
    }
}

static void costly_streams_do_not_stop_the_gateway(void **state)
{
    (void)state;
    const char *more[] = {"--tool-format", "qwen-coder", NULL};
    static struct http_client c[N_COSTLY];
    unsigned at;
    assert_int_equal(setenv("WATCHDOG_USEC", WATCHDOG_US, 1), 0);
    costly_outputs(stage.verifier);
    fake_verifier_text(stage.verifier, 'd', "word");
    struct child s = gateway_start(stage.address, more, &at);
    for (unsigned i = 0; i < N_COSTLY; i++) {
        AUTO(mem_free) char *body = costly_body((char)('a' + i % COSTLY_N), TOKEN_BYTES, PACE_MS);
        c[i] = http_client_open(at);
        http_client_ask(&c[i], "POST /v1/chat/completions", "", body);
    }
    for (unsigned i = 0; i < N_COSTLY; i++)
        assert_int_equal(http_client_read_head(&c[i], 60000), 200);
    struct http_client other = http_client_open(at);
    http_client_ask(&other, "POST /v1/completions", "",
                    "{\"prompt\":\"spell 4 100 d\",\"stream\":true}");
    assert_int_equal(http_client_read_head(&other, 60000), 200);
    while (*manager_message()) // sent before
        ;
    for (unsigned i = 0; i < N_PINGS; i++)
        await_ping(c, N_COSTLY);
    for (unsigned i = 0; i < 4 * N_PINGS; i++) {
        AUTO(mem_free) char *event = http_client_event(&other, 60000, NULL);
        assert_non_null(strstr(event, "word"));
        drain(c, N_COSTLY);
    }
    http_client_close(&other);
    for (unsigned i = 0; i < N_COSTLY; i++)
        http_client_close(&c[i]);
    child_stop(&s);
}

/* ---- large bodies ---- */

#define N_LARGE 16
#define LARGE_BYTES (4u << 20)
#define KEY_A "sk-aaaaaaaaaaaaaaaaaaaa"
#define KEY_B "sk-bbbbbbbbbbbbbbbbbbbb"
#define LARGE_LIMIT_MS 60000

static const char key_a[] = "Authorization: Bearer " KEY_A "\r\n";
static const char key_b[] = "Authorization: Bearer " KEY_B "\r\n";

/* n bytes of escapes in a text that does not end: the parser reads them all and then refuses. */
static char *escapes(size_t n)
{
    char *text = malloc(n + 1);
    size_t at = (size_t)sprintf(text, "{\"prompt\":\"");
    for (; at + 6 <= n; at += 6)
        memcpy(text + at, "\\u0041", 6);
    memset(text + at, 'a', n - at);
    text[n] = 0;
    return text;
}

static unsigned n_answered(const struct http_client *c, unsigned n)
{
    unsigned sum = 0;
    for (unsigned i = 0; i < n; i++) {
        struct pollfd p = {c[i].fd, POLLIN, 0};
        sum += poll(&p, 1, 0) > 0;
    }
    return sum;
}

static void await_one(const struct http_client *c, unsigned n)
{
    struct pollfd p[N_LARGE];
    for (unsigned i = 0; i < n; i++)
        p[i] = (struct pollfd){c[i].fd, POLLIN, 0};
    assert_true(poll(p, n, LARGE_LIMIT_MS) > 0);
}

/* Key a has sent large bodies to this path, and the first of them has been refused. */
static void send_large(struct http_client *c, unsigned port, const char *path)
{
    AUTO(mem_free) char *body = escapes(LARGE_BYTES);
    for (unsigned i = 0; i < N_LARGE; i++) {
        c[i] = http_client_open(port);
        http_client_print(&c[i], "POST %s HTTP/1.1\r\nHost: x\r\n%sContent-Length: %u\r\n\r\n",
                          path, key_a, LARGE_BYTES);
        http_client_send(&c[i], body, LARGE_BYTES - 1);
    }
    for (unsigned i = 0; i < N_LARGE; i++)
        http_client_send(&c[i], "a", 1);
    await_one(c, N_LARGE);
}

/* The other client has its answer while most large bodies still wait. */
static void is_early(struct http_client *other, int status, struct http_client *c)
{
    http_answer_is(http_client_read(other, LARGE_LIMIT_MS), status, "", "");
    unsigned n = n_answered(c, N_LARGE);
    if (n > N_LARGE / 2)
        fail_msg("%u of %u large bodies were read first", n, N_LARGE);
    http_client_close(other);
    for (unsigned i = 0; i < N_LARGE; i++) {
        http_answer_is(http_client_read(&c[i], LARGE_LIMIT_MS), 400, "", "JSON");
        http_client_close(&c[i]);
    }
}

static void large_bodies_do_not_delay_other_clients(void **state)
{
    (void)state;
    static const char *const paths[] = {"/tokenize", "/detokenize", "/v1/completions"};
    const char *more[] = {"--http-threads", "1", "--api-keys", stage.keys, NULL};
    static struct http_client c[N_LARGE];
    AUTO(mem_free) char *short_of_large = escapes(70u << 10);
    unsigned at;
    stage_write_keys("a " KEY_A "\nb " KEY_B "\n");
    struct child s = gateway_start(stage.address, more, &at);
    for (size_t i = 0; i < ARRAY_LEN(paths); i++) {
        struct http_client other = http_client_open(at);
        send_large(c, at, paths[i]);
        http_client_ask(&other, "GET /version", "", "");
        is_early(&other, 200, c);
        other = http_client_open(at);
        send_large(c, at, paths[i]);
        http_client_ask(&other, "POST /v1/completions", key_b, short_of_large);
        is_early(&other, 400, c);
    }
    child_stop(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(large_bodies_do_not_delay_other_clients),
        cmocka_unit_test_setup_teardown(costly_streams_do_not_stop_the_gateway, manager_open,
                                        manager_close),
    };
    return cmocka_run_group_tests(tests, stage_open_verifier, stage_close_verifier);
}
