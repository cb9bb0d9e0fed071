/* test_handshakes.c - the thread of handshakes. The sessions are fakes (--wrap): a client's byte
 * says what its session does. */
#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
#include "gateway/http/handshakes.h"
#include "gateway/http/http_tls.h"
#include "lib/fakes/failing.h"
#include "lib/fakes/failing_thread.h"
#include "lib/lib.h"

/* What a client sends. */
enum { MORE = 'm', FULL = 'f', COMPLETE = 'c', WRONG = 'w' };

struct http_tls_session {
    int fd;
};

static struct client {
    int fd, server;
    struct http_tls_session session;
    struct handshake handshake;
    atomic_uint n_done, n_failed, n_steps;
    bool has_session;
} clients[4];
static struct handshakes *h;
static atomic_bool no_session;
static atomic_bool held; // turns last as long as this
static atomic_int nice_of_thread;
static atomic_int filled; // bytes in a full socket

int __wrap_http_tls_session_new(int fd, struct http_tls_session **ret);
void __wrap_http_tls_session_free(struct http_tls_session *s);
enum http_tls_step __wrap_http_tls_proceed(struct http_tls_session *s);

static struct client *client_of(int fd)
{
    for (size_t i = 0; i < ARRAY_LEN(clients); i++)
        if (clients[i].server == fd)
            return &clients[i];
    fail_msg("no client has the descriptor %d", fd);
    return NULL;
}

int __wrap_http_tls_session_new(int fd, struct http_tls_session **ret)
{
    struct client *c = client_of(fd);
    if (atomic_load(&no_session))
        return -ENOMEM;
    assert_false(c->has_session);
    c->has_session = true;
    c->session.fd = fd;
    *ret = &c->session;
    return 0;
}

void __wrap_http_tls_session_free(struct http_tls_session *s)
{
    if (s)
        client_of(s->fd)->has_session = false;
}

static void fill(int fd)
{
    char zeros[4096] = {0};
    for (ssize_t n; (n = send(fd, zeros, sizeof(zeros), MSG_DONTWAIT)) > 0;)
        atomic_fetch_add(&filled, (int)n);
}

enum http_tls_step __wrap_http_tls_proceed(struct http_tls_session *s)
{
    struct client *c = client_of(s->fd);
    char what = 0;
    atomic_fetch_add(&c->n_steps, 1);
    atomic_store(&nice_of_thread, getpriority(PRIO_PROCESS, 0));
    while (atomic_load(&held))
        poll(NULL, 0, 1);
    if (recv(s->fd, &what, 1, MSG_DONTWAIT) <= 0)
        return atomic_load(&c->n_steps) > 1 && filled ? HTTP_TLS_COMPLETE : HTTP_TLS_FAILED;
    if (what == FULL)
        fill(s->fd);
    return what == MORE       ? HTTP_TLS_READS
           : what == FULL     ? HTTP_TLS_WRITES
           : what == COMPLETE ? HTTP_TLS_COMPLETE
                              : HTTP_TLS_FAILED;
}

static void on_done(void *user, void *client, struct http_tls_session *session)
{
    struct client *c = client;
    assert_ptr_equal(user, clients);
    assert_ptr_equal(session, &c->session);
    atomic_fetch_add(&c->n_done, 1);
}

static void on_failed(void *user, void *client)
{
    struct client *c = client;
    assert_ptr_equal(user, clients);
    assert_false(c->has_session);
    atomic_fetch_add(&c->n_failed, 1);
}

static int start(void **state)
{
    (void)state;
    memset(clients, 0, sizeof(clients));
    filled = 0;
    for (size_t i = 0; i < ARRAY_LEN(clients); i++) {
        int fds[2];
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds),
                         0);
        clients[i].fd = fds[0];
        clients[i].server = fds[1];
    }
    return handshakes_new(on_done, on_failed, clients, &h);
}

static int end(void **state)
{
    (void)state;
    handshakes_free(TAKE(h));
    for (size_t i = 0; i < ARRAY_LEN(clients); i++) {
        assert_true(clients[i].n_done + clients[i].n_failed <= 1);
        close(clients[i].fd);
        close(clients[i].server);
    }
    return 0;
}

static void add(struct client *c)
{
    const struct address a = {.is_ip = true};
    assert_int_equal(handshakes_add(h, &c->handshake, c->server, &a, c), 0);
}

static void sends(struct client *c, char what)
{
    assert_int_equal(send(c->fd, &what, 1, 0), 1);
}

static void await(atomic_uint *n, unsigned value)
{
    for (unsigned i = 0; i < 20000 && atomic_load(n) != value; i++)
        poll(NULL, 0, 1);
    assert_int_equal(atomic_load(n), value);
}

static void each_step_follows_the_clients_bytes(void **state)
{
    (void)state;
    struct client *c = &clients[0];
    add(c);
    poll(NULL, 0, 50);
    assert_int_equal(c->n_steps, 0);
    for (unsigned i = 1; i <= 3; i++) {
        sends(c, MORE);
        await(&c->n_steps, i);
    }
    assert_int_equal(c->n_done, 0);
    sends(c, COMPLETE);
    await(&c->n_done, 1);
    assert_int_equal(c->n_steps, 4);
    assert_true(c->has_session);
    assert_int_equal(atomic_load(&nice_of_thread), getpriority(PRIO_PROCESS, 0) + 10);
}

static void handshakes_go_on_beside_each_other(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(clients); i++)
        add(&clients[i]);
    for (size_t i = 0; i < ARRAY_LEN(clients); i++)
        sends(&clients[i], MORE);
    for (size_t i = ARRAY_LEN(clients); i-- > 0;) {
        sends(&clients[i], i == 2 ? WRONG : COMPLETE);
        await(i == 2 ? &clients[i].n_failed : &clients[i].n_done, 1);
    }
}

/* The rest is sent when the client has read. */
static void a_full_socket_is_waited_for(void **state)
{
    (void)state;
    struct client *c = &clients[0];
    add(c);
    sends(c, FULL);
    await(&c->n_steps, 1);
    poll(NULL, 0, 50);
    assert_int_equal(c->n_steps, 1);
    char got[4096];
    for (int n = 0; n < filled;) {
        ssize_t more = recv(c->fd, got, sizeof(got), 0);
        assert_true(more > 0);
        n += (int)more;
    }
    await(&c->n_done, 1);
}

/* And one whose client is gone: the server shuts its socket down, too. */
static void a_handshake_that_fails_is_ended(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 3; i++)
        add(&clients[i]);
    sends(&clients[0], WRONG);
    await(&clients[0].n_failed, 1);
    shutdown(clients[1].fd, SHUT_RDWR);
    await(&clients[1].n_failed, 1);
    sends(&clients[2], MORE);
    await(&clients[2].n_steps, 1);
    shutdown(clients[2].server, SHUT_RDWR);
    await(&clients[2].n_failed, 1);
    atomic_store(&no_session, true);
    add(&clients[3]);
    sends(&clients[3], COMPLETE);
    await(&clients[3].n_failed, 1);
    atomic_store(&no_session, false);
}

/* While a turn of another one lasts, and also if the client has sent all. */
static void one_may_be_ended_before_its_turn(void **state)
{
    (void)state;
    add(&clients[0]);
    handshakes_end(h, &clients[0].handshake); // it waits for its client
    await(&clients[0].n_failed, 1);
    for (unsigned i = 1; i < 4; i++)
        add(&clients[i]);
    atomic_store(&held, true);
    sends(&clients[1], COMPLETE);
    await(&clients[1].n_steps, 1); // its turn lasts
    sends(&clients[2], COMPLETE);
    sends(&clients[3], COMPLETE);
    handshakes_end(h, &clients[2].handshake);
    atomic_store(&held, false);
    await(&clients[1].n_done, 1);
    await(&clients[2].n_failed, 1);
    await(&clients[3].n_done, 1);
    assert_int_equal(clients[2].n_steps, 0);
}

static void the_end_ends_all_that_are_left(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(clients); i++)
        add(&clients[i]);
    sends(&clients[1], MORE);
    await(&clients[1].n_steps, 1);
    sends(&clients[2], COMPLETE);
    await(&clients[2].n_done, 1);
    handshakes_stop(h);
    for (size_t i = 0; i < ARRAY_LEN(clients); i++)
        assert_int_equal(clients[i].n_failed, i != 2);
    handshakes_stop(h); // again
}

static void failures_of_the_system_are_errors(void **state)
{
    const struct address a = {.is_ip = true};
    struct handshakes *other = NULL;
    (void)state;
    struct client *c = &clients[0];
    assert_int_equal(handshakes_add(h, &c->handshake, -1, &a, c), -ENOMEM); // epoll takes it not
    failing_at(1);
    assert_int_equal(handshakes_new(on_done, on_failed, clients, &other), -ENOMEM);
    failing_at(0);
    failing_thread_at(1);
    assert_int_equal(handshakes_new(on_done, on_failed, clients, &other), -ENOMEM);
    assert_null(other);
    handshakes_free(NULL);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, start, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(each_step_follows_the_clients_bytes), CASE(handshakes_go_on_beside_each_other),
        CASE(a_full_socket_is_waited_for),         CASE(a_handshake_that_fails_is_ended),
        CASE(one_may_be_ended_before_its_turn),    CASE(the_end_ends_all_that_are_left),
        CASE(failures_of_the_system_are_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
