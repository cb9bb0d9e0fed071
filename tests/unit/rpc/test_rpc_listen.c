/* test_rpc_listen.c - listening sockets: in use, replaced, left alone, passed. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/err.h"
#include "lib/rigs/rpc_rig.h"
#include "rpc/rpc_listen.h"

/* The linker hands our calls of accept4() to this. */
static atomic_int n_failing, failure; // calls that fail, and their errno

int __real_accept4(int fd, struct sockaddr *a, socklen_t *len, int flags);
int __wrap_accept4(int fd, struct sockaddr *a, socklen_t *len, int flags);
int __wrap_accept4(int fd, struct sockaddr *a, socklen_t *len, int flags)
{
    if (atomic_load(&n_failing) == 0)
        return __real_accept4(fd, a, len, flags);
    atomic_fetch_sub(&n_failing, 1);
    errno = atomic_load(&failure);
    return -1;
}

static void the_socket_of_a_running_server_is_not_replaced(void **state)
{
    struct rpc_rig *r = *state;
    AUTO(rpc_health_free) struct rpc_health *h = rpc_health_new();
    struct rpc_server *second = rpc_rig_server(NULL, h);
    assert_int_equal(rpc_server_listen(second, r->target), -EADDRINUSE);
    assert_non_null(strstr(fail_text(), "another server"));
    rpc_server_stop(second, 0);
    assert_int_equal(rpc_rig_echo(r->client, NULL, 7).code, RPC_OK);
}

static void the_socket_of_a_dead_server_is_replaced_other_files_are_not(void **state)
{
    struct rpc_rig *r = *state;
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    snprintf(a.sun_path, sizeof(a.sun_path), "%s/dead.sock", r->folder);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
    close(fd); // bound, never listened on: like the socket of a killed server
    char addr[160], file[128];
    snprintf(addr, sizeof(addr), "unix:%s", a.sun_path);
    snprintf(file, sizeof(file), "%s/file", r->folder);
    close(open(file, O_CREAT | O_WRONLY, 0600));
    AUTO(rpc_health_free) struct rpc_health *h = rpc_health_new();
    struct rpc_server *second = rpc_rig_server(NULL, h);
    assert_int_equal(rpc_server_listen(second, addr), 1);
    snprintf(addr, sizeof(addr), "unix:%s", file);
    assert_int_equal(rpc_server_listen(second, addr), -EADDRINUSE);
    rpc_server_stop(second, 0);
    assert_int_equal(access(a.sun_path, F_OK), -1);
    assert_int_equal(unlink(file), 0);
}

static void a_path_that_another_server_has_taken_over_is_left_alone(void **state)
{
    struct rpc_rig *r = *state;
    unlink(r->path);
    AUTO(rpc_health_free) struct rpc_health *h = rpc_health_new();
    struct rpc_server *next = rpc_rig_server(NULL, h);
    assert_int_equal(rpc_server_listen(next, r->target), 1);
    assert_int_equal(rpc_server_start(next), 0);
    rpc_server_stop(r->server, 0);
    struct rpc_options opt = {.timeout_us = RPC_RIG_WAIT_US, .wait_for_ready = true};
    assert_int_equal(rpc_rig_echo(r->client, &opt, 7).code, RPC_OK);
    r->server = next;
}

static void bad_addresses_are_named(void **state)
{
    (void)state;
    AUTO(rpc_health_free) struct rpc_health *h = rpc_health_new();
    struct rpc_server *s = rpc_rig_server(NULL, h);
    char addr[200] = "unix:/tmp/";
    memset(addr + 10, 'x', 150);
    assert_int_equal(rpc_server_listen(s, addr), -EINVAL);
    assert_int_equal(rpc_server_listen(s, "unix:/nonexistent-folder/s.sock"), -ENOENT);
    assert_non_null(strstr(fail_text(), "/nonexistent-folder"));
    assert_int_equal(rpc_server_listen(s, "no address"), -EINVAL);
    assert_int_equal(rpc_server_listen(s, "127.0.0.1:99999"), -EINVAL);
    rpc_server_stop(s, 0);
}

static void passed_sockets_are_served(void **state)
{
    (void)state;
    memset(&rpc_rig_seen, 0, sizeof(rpc_rig_seen));
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(a);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
    assert_int_equal(listen(fd, 10), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &len), 0);
    AUTO(rpc_health_free) struct rpc_health *h = rpc_health_new();
    struct rpc_server *s = rpc_rig_server(NULL, h);
    assert_int_equal(rpc_server_listen_fd(s, fd, false), 0);
    assert_int_equal(rpc_server_start(s), 0);
    char target[32];
    snprintf(target, sizeof(target), "127.0.0.1:%d", ntohs(a.sin_port));
    struct rpc_client *c;
    assert_int_equal(rpc_client_new(target, NULL, &c), 0);
    assert_int_equal(rpc_rig_echo(c, NULL, 3).code, RPC_OK);
    rpc_client_free(c);
    rpc_server_stop(s, 1000);
    assert_int_equal(fcntl(fd, F_GETFD), -1); // closed with the server
}

static void sockets_are_limited(void **state)
{
    struct rpc_rig *r = *state;
    AUTO(rpc_health_free) struct rpc_health *h = rpc_health_new();
    struct rpc_server *s = rpc_rig_server(NULL, h);
    assert_int_equal(rpc_server_listen_fd(s, -1, false), -EBADF);
    for (unsigned i = 0; i <= RPC_LISTEN_MAX; i++) {
        char address[160];
        snprintf(address, sizeof(address), "unix:%s/%u.sock", r->folder, i);
        int rc = rpc_server_listen(s, address);
        if (i < RPC_LISTEN_MAX)
            assert_true(rc >= 0);
        else
            assert_int_equal(rc, -ENOSPC);
    }
    assert_non_null(strstr(fail_text(), "more than 16 listening sockets"));
    rpc_server_stop(s, 0); // the tear-down checks that no socket remains
}

static void a_closed_descriptor_is_refused(void **state)
{
    (void)state;
    struct rpc_listen l;
    assert_int_equal(rpc_listen_init(&l, NULL, NULL), 0);
    assert_int_equal(rpc_listen_fd(&l, -1, 0), -EBADF);
    assert_string_equal(fail_text(), "descriptor -1: Bad file descriptor");
    rpc_listen_done(&l);
}

static void without_a_descriptor_accepting_waits_and_tries_again(void **state)
{
    enum { N = 2, WAIT_US = 100000 };
    static const int failures[] = {EMFILE, ENFILE, ENOMEM};
    struct rpc_rig *r = *state;
    for (size_t i = 0; i < ARRAY_LEN(failures); i++) {
        struct rpc_client *c;
        int64_t from_us = clock_us();
        atomic_store(&failure, failures[i]);
        atomic_store(&n_failing, N);
        assert_int_equal(rpc_client_new(r->target, NULL, &c), 0);
        assert_int_equal(rpc_rig_echo(c, NULL, 7).code, RPC_OK);
        assert_int_equal(atomic_load(&n_failing), 0);
        assert_true(clock_us() - from_us >= N * WAIT_US);
        rpc_client_free(c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        RPC_RIG_TEST(the_socket_of_a_running_server_is_not_replaced),
        RPC_RIG_TEST(the_socket_of_a_dead_server_is_replaced_other_files_are_not),
        RPC_RIG_TEST(a_path_that_another_server_has_taken_over_is_left_alone),
        cmocka_unit_test(bad_addresses_are_named),
        RPC_RIG_TEST(sockets_are_limited),
        cmocka_unit_test(passed_sockets_are_served),
        cmocka_unit_test(a_closed_descriptor_is_refused),
        RPC_RIG_TEST(without_a_descriptor_accepting_waits_and_tries_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
