/* Requests that cost much do not stop the gateway for the others: the watchdog is fed, and other
 * streams get their tokens. Times are measured by bench_neighbours. */
#include <poll.h>
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
#define PING_LIMIT_US 10000000

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

static void await_ping(struct http_client *c, unsigned n)
{
    int64_t from_us = clock_us();
    while (!strstr(manager_message(), "WATCHDOG=1")) {
        if (clock_us() - from_us > PING_LIMIT_US)
            fail_msg("the watchdog was not fed for %d s", PING_LIMIT_US / 1000000);
        drain(c, n);
        poll(NULL, 0, 10);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(costly_streams_do_not_stop_the_gateway, manager_open,
                                        manager_close),
    };
    return cmocka_run_group_tests(tests, stage_open_verifier, stage_close_verifier);
}
