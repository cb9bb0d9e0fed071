/* Connections: hang-ups, full slots, and one address that takes too many. The verifier is a fake
 * (lib/fakes/fake_verifier.h). */
#include <dirent.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/mem.h"
#include "lib/lib.h"
#include "lib/rigs/stage.h"

#define MANY 100

static struct child gateway;
static unsigned port;

/* A time limit far above that of the test, so that only a hang-up can close a connection. */
static const char *const patient[] = {"--request-timeout", "600", "--idle-timeout", "600", NULL};

static unsigned n_descriptors(void)
{
    char path[64];
    unsigned n = 0;
    snprintf(path, sizeof(path), "/proc/%d/fd", (int)gateway.pid);
    DIR *d = opendir(path);
    assert_non_null(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

static bool has_at_most(unsigned n)
{
    return n_descriptors() <= n;
}

static void start(const char *const *more)
{
    gateway = gateway_start(stage.address, more, &port);
}

static void send_and_hang_up(const char *data, size_t len)
{
    struct http_client c = http_client_open(port);
    http_client_send(&c, data, len);
    http_client_close(&c);
}

/* ---- hang-ups ---- */

static void a_hang_up_is_noticed_whatever_was_sent(void **state)
{
    (void)state;
    static const char body[] = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n"
                               "\r\nabc";
    static const struct {
        const char *data;
        size_t len;
    } sent[] = {{"", 0},
                {"\r\n", 2},
                {"\r\n\r\n\r\n", 6},
                {"G", 1},
                {"GET /health HT", 14},
                {"GET /health HTTP/1.1\r\nHost: x\r\n", 31},
                {body, sizeof(body) - 1},
                {"\x16\x03\x01\0\0\xFF", 6},
                {"GET /health HTTP/1.1\r\nHost: x\r\n\r\n\r\n", 35}};
    start(patient);
    unsigned before = n_descriptors();
    for (unsigned i = 0; i < ARRAY_LEN(sent); i++) {
        for (unsigned j = 0; j < MANY; j++)
            send_and_hang_up(sent[i].data, sent[i].len);
        if (!stage_becomes(has_at_most, before))
            fail_msg("%u descriptors are left after data %u", n_descriptors() - before, i);
    }
    child_stop(&gateway);
}

static void hung_up_streams_free_their_descriptors_beside_dead_connections(void **state)
{
    (void)state;
    struct http_client c[MANY];
    start(patient);
    unsigned before = n_descriptors();
    for (unsigned i = 0; i < MANY; i++) {
        begin_stream(&c[i], port, i % 2 ? "stall" : "pace 100000 10");
        assert_int_equal(http_client_read_head(&c[i], 20000), 200);
    }
    for (unsigned i = 0; i < MANY; i++)
        send_and_hang_up("\r\n", 2);
    int64_t begun_us = clock_us();
    for (unsigned i = 0; i < MANY; i++)
        http_client_close(&c[i]);
    assert_true(stage_becomes(has_at_most, before));
    print_message("closed after %.1f s\n", (double)(clock_us() - begun_us) / 1e6);
    child_stop(&gateway);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_hang_up_is_noticed_whatever_was_sent),
        cmocka_unit_test(hung_up_streams_free_their_descriptors_beside_dead_connections),
    };
    return cmocka_run_group_tests(tests, stage_open_verifier, stage_close_verifier);
}
