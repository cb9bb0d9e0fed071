/* Addresses to listen on, and which of them other machines may reach. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/err.h"
#include "base/instance.h"
#include "base/mem.h"
#include "gateway/http/listen.h"
#include "lib/lib.h"

static void wrong_addresses_are_refused_with_a_sentence(void **state)
{
    (void)state;
    static const struct {
        const char *address, *says;
    } v[] = {
        {"", "is not HOST:PORT or unix:/path"},
        {"8080", "is not HOST:PORT or unix:/path"},
        {"127.0.0.1:", "is not HOST:PORT or unix:/path"},
        {"127.0.0.1:80a", "is not HOST:PORT or unix:/path"},
        {"127.0.0.1:65536", "is not HOST:PORT or unix:/path"},
        {"127.0.0.1:000080", "is not HOST:PORT or unix:/path"},
        {"300.0.0.1:80", "cannot listen on 300.0.0.1:80"},
        {"192.0.2.1:0", "cannot listen on 192.0.2.1:0"}, // an address of no machine: RFC 5737
        {"unix:/nonexistent-folder/s.sock", "/nonexistent-folder"},
    };
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        int fd = -7;
        assert_true(listen_open(v[i].address, &fd) < 0);
        assert_int_equal(fd, -7);
        if (!strstr(fail_text(), v[i].says))
            fail_msg("%s: %s", v[i].address, fail_text());
    }
}

static void check_public(const char *address, bool is_public)
{
    char name[128];
    int fd;
    if (listen_open(address, &fd) < 0)
        fail_msg("%s", fail_text());
    instance_address(fd, name, sizeof(name));
    assert_int_equal(strncmp(name, address, strrchr(address, ':') - address), 0);
    assert_int_equal(listen_is_public(fd), is_public);
    close(fd);
}

static void only_loopback_and_unix_are_private(void **state)
{
    (void)state;
    char address[64];
    check_public("127.0.0.1:0", false);
    check_public("127.8.8.8:0", false);
    check_public("0.0.0.0:0", true);
    snprintf(address, sizeof(address), "unix:/tmp/tandem-test-listen-%d.sock", (int)getpid());
    check_public(address, false);
    assert_int_equal(unlink(address + 5), 0);
}

static void ipv6_has_brackets(void **state)
{
    (void)state;
    int fd;
    if (listen_open("[::1]:0", &fd) < 0)
        lib_skip("%s", fail_text());
    close(fd);
    check_public("[::1]:0", false);
    check_public("[::]:0", true);
    static const char *const bad[] = {"[::1:0", "::1]:0", "[]:0"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        assert_int_equal(listen_open(bad[i], &fd), -EINVAL);
}

static void host_and_port_have_limits(void **state)
{
    (void)state;
    char text[300];
    int fd;
    for (unsigned n = 255; n <= 256; n++) {
        memset(text, 'h', n);
        strcpy(text + n, ":80");
        assert_int_equal(listen_open(text, &fd), -EINVAL);
        assert_int_equal(strstr(fail_text(), "is not HOST:PORT") != NULL, n == 256);
    }
    if (listen_open("127.0.0.1:65535", &fd) == 0)
        close(fd);
    else
        assert_int_equal(strstr(fail_text(), "is in use") != NULL, 1);
}

static void an_address_in_use_is_named_and_nothing_stays_open(void **state)
{
    (void)state;
    char text[64];
    int fd, next, none = -7;
    struct sockaddr_in a;
    socklen_t len = sizeof(a);
    assert_int_equal(listen_open("127.0.0.1:0", &fd), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &len), 0);
    snprintf(text, sizeof(text), "127.0.0.1:%u", ntohs(a.sin_port));
    int lowest = dup(fd);
    close(lowest);
    assert_int_equal(listen_open(text, &none), -EADDRINUSE);
    assert_non_null(strstr(fail_text(), "is in use: another program listens there"));
    assert_int_equal(listen_open("192.0.2.1:0", &none), -EADDRNOTAVAIL);
    next = dup(fd);
    assert_int_equal(next, lowest); // no descriptor was lost
    close(next);
    close(fd);
    close(STDIN_FILENO); // descriptor 0 is a descriptor
    assert_int_equal(listen_open("127.0.0.1:0", &fd), 0);
    assert_int_equal(fd, STDIN_FILENO);
    close(fd);
    assert_int_equal(open("/dev/null", O_RDONLY), STDIN_FILENO);
}

static void without_a_free_descriptor_there_is_no_socket(void **state)
{
    (void)state;
    struct rlimit before;
    int fd = -7, next = dup(STDIN_FILENO);
    close(next);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    struct rlimit few = {(rlim_t)next, before.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    int rc = listen_open("127.0.0.1:0", &fd);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(rc, -EMFILE);
    assert_int_equal(fd, -7);
    assert_string_equal(fail_text(), "cannot create a socket: Too many open files");
}

/* An unknown address counts as public: the gateway then refuses to serve without keys. */
static void a_descriptor_that_is_no_socket_counts_as_public(void **state)
{
    (void)state;
    int ends[2];
    char name[128];
    assert_int_equal(pipe(ends), 0);
    assert_true(listen_is_public(ends[0]));
    instance_address(ends[0], name, sizeof(name));
    assert_string_equal(name, "a passed socket");
    close(ends[0]);
    close(ends[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_addresses_are_refused_with_a_sentence),
        cmocka_unit_test(only_loopback_and_unix_are_private),
        cmocka_unit_test(ipv6_has_brackets),
        cmocka_unit_test(host_and_port_have_limits),
        cmocka_unit_test(an_address_in_use_is_named_and_nothing_stays_open),
        cmocka_unit_test(without_a_free_descriptor_there_is_no_socket),
        cmocka_unit_test(a_descriptor_that_is_no_socket_counts_as_public),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
