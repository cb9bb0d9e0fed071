/* test_instance.c - names of services in metrics. */
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/instance.h"
#include "base/mem.h"
#include "lib/lib.h"

static void a_chosen_name_stays(void **state)
{
    (void)state;
    char name[INSTANCE_MAX];
    instance_name("gpu-7", "unix:/run/a.sock", name, sizeof(name));
    assert_string_equal(name, "gpu-7");
}

static void the_default_is_host_and_port_or_path(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"127.0.0.1:8080", "8080"}, {"[::1]:90", "90"}, {"unix:/run/a:b.sock", "/run/a:b.sock"}};
    char host[256], name[INSTANCE_MAX], expected[INSTANCE_MAX];
    assert_int_equal(gethostname(host, sizeof(host)), 0);
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        instance_name(i ? "" : NULL, cases[i][0], name, sizeof(name));
        snprintf(expected, sizeof(expected), "%s:%s", host, cases[i][1]);
        assert_string_equal(name, expected);
    }
}

static void a_long_name_is_cut(void **state)
{
    (void)state;
    char name[4];
    instance_name("verifier", "unix:/a", name, sizeof(name));
    assert_string_equal(name, "ver");
}

static void a_socket_without_an_address_has_a_text(void **state)
{
    (void)state;
    char address[64];
    instance_address(-1, address, sizeof(address));
    assert_string_equal(address, "a passed socket");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_chosen_name_stays),
        cmocka_unit_test(the_default_is_host_and_port_or_path),
        cmocka_unit_test(a_long_name_is_cut),
        cmocka_unit_test(a_socket_without_an_address_has_a_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
