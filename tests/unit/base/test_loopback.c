/* test_loopback.c - addresses that only this machine can reach. */
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/loopback.h"
#include "base/mem.h"
#include "lib/lib.h"

static void names_of_other_machines_are_not_loopback(void **state)
{
    (void)state;
    static const char *const local[] = {
        "unix:/run/x.sock",   "unix-abstract:x",       "127.0.0.1:80",     "127.8.8.8:80",
        "[::1]:80",           "[::ffff:127.0.0.1]:80", "localhost:80",     "localhost",
        "dns:///localhost:1", "dns:127.0.0.1:1",       "ipv4:127.0.0.1:1", "ipv6:[::1]:1"};
    static const char *const others[] = {"0.0.0.0:80",
                                         "[::]:80",
                                         "10.0.0.1:80",
                                         "127.evil.example:80",
                                         "localhost.example:80",
                                         "127.0.0.1.example:80",
                                         "dns://8.8.8.8/localhost:80",
                                         "ipv4:127.0.0.1:80,10.0.0.1:80",
                                         "[::ffff:10.0.0.1]:80",
                                         "gpu7",
                                         ":80",
                                         ""};
    for (size_t i = 0; i < ARRAY_LEN(local); i++)
        if (!loopback_address(local[i]))
            fail_msg("%s", local[i]);
    for (size_t i = 0; i < ARRAY_LEN(others); i++)
        if (loopback_address(others[i]))
            fail_msg("%s", others[i]);
}

static bool is_loopback(in_addr_t address)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(address)};
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
    bool is = loopback_socket(fd);
    close(fd);
    return is;
}

static void a_socket_is_judged_by_its_address(void **state)
{
    (void)state;
    assert_true(is_loopback(INADDR_LOOPBACK));
    assert_false(is_loopback(INADDR_ANY));
    assert_false(loopback_socket(-1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_of_other_machines_are_not_loopback),
        cmocka_unit_test(a_socket_is_judged_by_its_address),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
