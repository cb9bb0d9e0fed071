/* Addresses of clients behind proxies; the header fields are hostile. */
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "base/mem.h"
#include "base/rng.h"
#include "gateway/http/address.h"
#include "lib/lib.h"

static struct address_range trusted[3];

static int set_up(void **state)
{
    (void)state;
    static const char *const ranges[] = {"10.0.0.0/8", "2001:db8:1::/48", "unix"};
    for (unsigned i = 0; i < ARRAY_LEN(ranges); i++)
        assert_int_equal(address_range_parse(ranges[i], &trusted[i]), 0);
    return 0;
}

static struct address of(const char *text)
{
    struct address a;
    if (!address_parse(text, strlen(text), &a))
        fail_msg("%s is no address", text);
    return a;
}

/* Whether a request of `peer` with these two header fields (NULL: absent) is one of `client`. */
static void is_from(const char *peer, const char *first, const char *second, const char *client)
{
    const char *lists[2];
    char text[ADDRESS_TEXT_MAX];
    unsigned n = 0;
    struct address from = {0};
    if (strcmp(peer, "unix") != 0)
        from = of(peer);
    if (first)
        lists[n++] = first;
    if (second)
        lists[n++] = second;
    struct address a = address_client(&from, lists, n, trusted, ARRAY_LEN(trusted));
    address_text(&a, text);
    assert_string_equal(text, client);
}

static void only_a_trusted_peer_names_the_client(void **state)
{
    (void)state;
    is_from("192.0.2.1", "198.51.100.7", NULL, "192.0.2.1");
    is_from("10.1.2.3", "198.51.100.7", NULL, "198.51.100.7");
    is_from("10.1.2.3", NULL, NULL, "10.1.2.3");
    is_from("unix", "198.51.100.7", NULL, "198.51.100.7");
    is_from("2001:db8:1:2::3", "2001:db8:2::1", NULL, "2001:db8:2::1");
    is_from("2001:db8:2::1", "198.51.100.7", NULL, "2001:db8:2::1");
    is_from("11.0.0.0", "198.51.100.7", NULL, "11.0.0.0");
}

static void the_last_untrusted_address_counts(void **state)
{
    (void)state;
    is_from("10.0.0.1", "1.1.1.1, 198.51.100.7", NULL, "198.51.100.7");
    is_from("10.0.0.1", "1.1.1.1,198.51.100.7,10.0.0.2", NULL, "198.51.100.7");
    is_from("10.0.0.1", "1.1.1.1", "198.51.100.7", "198.51.100.7"); // two fields are one list
    is_from("10.0.0.1", "198.51.100.7", "10.0.0.9", "198.51.100.7");
    is_from("10.0.0.1", "10.0.0.3, 10.0.0.2", NULL, "10.0.0.3");
    is_from("10.0.0.1", "[2001:db8::5]:443 , 10.0.0.2:80", NULL, "2001:db8::5");
}

static void a_malformed_entry_ends_the_search(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "unknown",        "_hidden",      "1.2.3",       "1.2.3.4.5", "1.2.3.4:",
        "1.2.3.4:x",      "[::1",         "[::1]x",      "::1]",      "[1.2.3.4]",
        "1.2.3.4:123456", "1.2.3.4 5",    "\"1.2.3.4\"", "for=::",    "-1.2.3.4",
        "0x7f.0.0.1",     "fe80::1%eth0", ",",           ""};
    for (unsigned i = 0; i < ARRAY_LEN(bad); i++) {
        struct address a;
        assert_false(address_parse(bad[i], strlen(bad[i]), &a));
        is_from("10.0.0.1", "198.51.100.7", bad[i], *bad[i] ? "10.0.0.1" : "198.51.100.7");
    }
    assert_false(address_parse("1.2.3.4", 0, &(struct address){0}));
    assert_false(address_parse("1.2.3.4\0", 8, &(struct address){0}));
}

static void long_lists_are_read_up_to_a_limit(void **state)
{
    (void)state;
    char list[20000] = "198.51.100.7";
    for (unsigned i = 0; i < 1000; i++)
        strcat(list, ",10.0.0.9");
    is_from("10.0.0.1", list, NULL, "10.0.0.9");
}

static void random_lists_are_survived(void **state)
{
    (void)state;
    static const char *const parts[] = {
        ",",   " ", "10.0.0.1", "[",  "]", ":",    "::",         "1",
        "255", ".", "f",        "\t", "%", "\xFF", "9999999999", "::ffff:10.0.0.1"};
    uint64_t random = 1;
    for (unsigned i = 0; i < 20000; i++) {
        char list[512] = "";
        for (unsigned n = 0; n < 20; n++) {
            random = rng_splitmix64(random);
            strcat(list, parts[random % ARRAY_LEN(parts)]);
        }
        const char *lists[] = {list};
        struct address peer = of("10.0.0.1");
        char text[ADDRESS_TEXT_MAX];
        struct address a = address_client(&peer, lists, 1, trusted, ARRAY_LEN(trusted));
        address_text(&a, text);
        assert_true(a.is_ip && *text);
    }
}

static void ranges_are_checked(void **state)
{
    (void)state;
    static const char *const bad[] = {"",       "10.0.0.0/33",  "10.0.0.0/", "10.0.0.0/-1",
                                      "::/129", "10.0.0.0/8x",  "localhost", "10.0.0.0/ 8",
                                      "unix/8", "10.0.0.0/8/8", "10.0.0/8",  "/8"};
    struct address_range r;
    for (unsigned i = 0; i < ARRAY_LEN(bad); i++)
        if (address_range_parse(bad[i], &r) == 0)
            fail_msg("'%s' was taken", bad[i]);
    assert_int_equal(address_range_parse("0.0.0.0/0", &r), 0);
    struct address v4 = of("1.2.3.4"), v6 = of("2001:db8::1"), mapped = of("::ffff:1.2.3.4");
    assert_true(address_in(&v4, &r, 1));
    assert_false(address_in(&v6, &r, 1));
    assert_true(address_equal(&v4, &mapped));
    assert_int_equal(address_range_parse("10.128.0.0/9", &r), 0);
    struct address in = of("10.255.1.1"), out = of("10.127.1.1");
    assert_true(address_in(&in, &r, 1));
    assert_false(address_in(&out, &r, 1));
}

static void a_network_of_ipv6_is_one_client(void **state)
{
    (void)state;
    struct address a = of("2001:db8::1:2:3:4"), b = of("2001:db8::9"), c = of("2001:db8:0:1::9");
    a = address_site(&a), b = address_site(&b), c = address_site(&c);
    assert_true(address_equal(&a, &b));
    assert_false(address_equal(&a, &c));
    a = of("192.0.2.1"), b = of("192.0.2.2");
    a = address_site(&a), b = address_site(&b);
    assert_false(address_equal(&a, &b));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_a_trusted_peer_names_the_client),
        cmocka_unit_test(the_last_untrusted_address_counts),
        cmocka_unit_test(a_malformed_entry_ends_the_search),
        cmocka_unit_test(long_lists_are_read_up_to_a_limit),
        cmocka_unit_test(random_lists_are_survived),
        cmocka_unit_test(ranges_are_checked),
        cmocka_unit_test(a_network_of_ipv6_is_one_client),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
