/* test_connections.c - connections that are accepted and never opened. The server is a fake. */
#include <arpa/inet.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>
#include "base/clock.h"
#include "gateway/http/connections.h"
#include "gateway/http/http_watch.h"
#include "lib/lib.h"

#define PLACES 4

static int kept; // the accepted descriptor of keep()

/* As libmicrohttpd without memory: it has taken the connection, and closes it in silence. */
static bool lose(void *user, int fd, const struct sockaddr *a, socklen_t len)
{
    (void)user, (void)a, (void)len;
    close(fd);
    return true;
}

/* As libmicrohttpd when it is busy: it will open the connection later. */
static bool keep(void *user, int fd, const struct sockaddr *a, socklen_t len)
{
    (void)user, (void)a, (void)len;
    kept = fd;
    return true;
}

static struct connections *listening(connections_accept_fn *take, struct sockaddr_in *ret)
{
    const struct http_options o = {.max_connections = PLACES,
                                   .max_per_ip = PLACES,
                                   .idle_us = 600000000,
                                   .request_us = 600000000};
    struct connections *s = NULL;
    socklen_t len = sizeof(*ret);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    *ret = (struct sockaddr_in){.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    assert_int_equal(bind(fd, (struct sockaddr *)ret, len), 0);
    assert_int_equal(listen(fd, 64), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)ret, &len), 0);
    assert_int_equal(connections_new(&o, &s), 0);
    connections_listen(s, fd, take, NULL);
    return s;
}

static int connect_to(const struct sockaddr_in *to)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)to, sizeof(*to)), 0);
    return fd;
}

static bool becomes_open(struct connections *s, unsigned n)
{
    for (unsigned i = 0; i < 6000 && connections_n_open(s) != n; i++)
        poll(NULL, 0, 10);
    return connections_n_open(s) == n;
}

/* Waits until the other side has closed it. */
static void await_close(int fd)
{
    char byte;
    assert_int_equal(read(fd, &byte, 1), 0);
    close(fd);
}

static void connections_that_are_lost_before_they_open_free_their_places(void **state)
{
    (void)state;
    struct sockaddr_in at;
    struct connections *s = listening(lose, &at);
    int fd[PLACES];
    for (unsigned i = 0; i < PLACES; i++)
        fd[i] = connect_to(&at);
    for (unsigned i = 0; i < PLACES; i++)
        await_close(fd[i]);
    assert_true(becomes_open(s, 0));
    connections_stop(s);
    connections_unlisten(s);
    connections_free(s);
}

/* Another file has got the number of the lost socket. It must not be shut down. */
static void a_number_that_is_used_again_is_left_alone(void **state)
{
    (void)state;
    struct sockaddr_in at;
    struct connections *s = listening(lose, &at);
    int fd = connect_to(&at), other[3][2];
    await_close(fd);
    connections_stop(s);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, other[i]), 0);
    connections_unlisten(s);
    connections_end(s, 20000000);
    assert_int_equal(connections_n_open(s), 0);
    for (unsigned i = 0; i < 6; i++)
        assert_int_equal(send(other[i / 2][i % 2], "x", 1, MSG_NOSIGNAL), 1);
    for (unsigned i = 0; i < 6; i++)
        close(other[i / 2][i % 2]);
    connections_free(s);
}

static void a_connection_that_opens_late_keeps_its_place(void **state)
{
    (void)state;
    struct sockaddr_in at;
    struct connections *s = listening(keep, &at);
    int fd = connect_to(&at);
    assert_true(becomes_open(s, 1));
    poll(NULL, 0, 250); // some ticks of the watcher
    assert_int_equal(connections_n_open(s), 1);
    struct connection *k = connections_open(s, kept, NULL);
    assert_non_null(k);
    connections_close(s, k);
    assert_int_equal(connections_n_open(s), 0);
    close(kept);
    close(fd);
    connections_stop(s);
    connections_unlisten(s);
    connections_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(connections_that_are_lost_before_they_open_free_their_places),
        cmocka_unit_test(a_number_that_is_used_again_is_left_alone),
        cmocka_unit_test(a_connection_that_opens_late_keeps_its_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
