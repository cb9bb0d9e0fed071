/* Addresses of clients behind proxies; the header fields are hostile. */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
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
    struct address a = of("2001:db8:0:ff:1:2:3:4"), b = of("2001:db8::9"),
                   c = of("2001:db8:0:100::9");
    a = address_site(&a), b = address_site(&b), c = address_site(&c);
    assert_true(address_equal(&a, &b));
    assert_false(address_equal(&a, &c));
    a = of("192.0.2.1"), b = of("192.0.2.2");
    a = address_site(&a), b = address_site(&b);
    assert_false(address_equal(&a, &b));
}

static void addresses_of_sockets_are_read(void **state)
{
    (void)state;
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0xC0000201)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_addr.s6_addr = {0x20, 1, [15] = 7}};
    struct sockaddr_un local = {.sun_family = AF_UNIX, .sun_path = "/x"};
    static const struct {
        unsigned short family;
        int less; // bytes that the length lacks
        const char *text;
    } v[] = {{AF_INET, 0, "192.0.2.1"},
             {AF_INET, 1, "unix"},
             {AF_INET6, 0, "2001::7"},
             {AF_INET6, 1, "unix"},
             {AF_UNIX, 0, "unix"}};
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        const void *a = v[i].family == AF_INET    ? (void *)&v4
                        : v[i].family == AF_INET6 ? (void *)&v6
                                                  : (void *)&local;
        socklen_t len = v[i].family == AF_INET    ? sizeof(v4)
                        : v[i].family == AF_INET6 ? sizeof(v6)
                                                  : sizeof(local);
        struct address is = address_of(a, len - (socklen_t)v[i].less);
        char text[ADDRESS_TEXT_MAX];
        address_text(&is, text);
        assert_string_equal(text, v[i].text);
    }
}

/* Texts of up to 63 bytes are read; a port has one to five digits. */
static void lengths_of_addresses_are_limited(void **state)
{
    (void)state;
    struct address a;
    char text[80];
    memset(text, '0', sizeof(text));
    assert_false(address_parse(text, 63, &a));
    assert_false(address_parse(text, 64, &a));
    static const struct {
        const char *text;
        bool ok;
    } v[] = {{"1.2.3.4:1", true},      {"1.2.3.4:12345", true}, {"[::1]:1", true},
             {"[::1]:12345", true},    {"[::1]:123456", false}, {"[::1]:", false},
             {"[::1]", true},          {"::1", true},           {"[]", false},
             {"::ffff:1.2.3.4", true}, {"1.2.3.4]", false}};
    for (size_t i = 0; i < ARRAY_LEN(v); i++)
        if (address_parse(v[i].text, strlen(v[i].text), &a) != v[i].ok)
            fail_msg("%s", v[i].text);
}

/* Up to ADDRESS_MAX_HOPS proxies are followed, then the address so far counts. */
static void the_number_of_hops_is_limited(void **state)
{
    (void)state;
    for (unsigned n = ADDRESS_MAX_HOPS - 1; n <= ADDRESS_MAX_HOPS; n++) {
        char list[1024] = "198.51.100.7";
        for (unsigned i = 0; i < n; i++)
            strcat(list, ",10.0.0.9");
        is_from("10.0.0.1", list, NULL, n < ADDRESS_MAX_HOPS ? "198.51.100.7" : "10.0.0.9");
    }
}

/* Every prefix length of a network: the last bit of it counts, the next one does not. */
static void each_bit_of_a_network_counts(void **state)
{
    (void)state;
    for (unsigned bits = 0; bits <= 128; bits++) {
        char text[64];
        struct address_range r;
        snprintf(text, sizeof(text), "2001:db8::/%u", bits);
        assert_int_equal(address_range_parse(text, &r), 0);
        assert_int_equal(r.n_bits, bits);
        struct address a = r.first;
        assert_true(address_in(&a, &r, 1));
        assert_false(address_in(&a, &r, 0));
        if (bits < 128) {
            a.ip[bits / 8] ^= (unsigned char)(0x80 >> bits % 8);
            assert_true(address_in(&a, &r, 1));
            a = r.first;
        }
        if (bits > 0) {
            a.ip[(bits - 1) / 8] ^= (unsigned char)(0x80 >> (bits - 1) % 8);
            assert_false(address_in(&a, &r, 1));
        }
    }
    struct address_range v4, exact, local;
    struct address unix_socket = {0}, other = of("192.0.2.2");
    assert_int_equal(address_range_parse("192.0.2.4/32", &v4), 0);
    assert_int_equal(v4.n_bits, 128);
    assert_int_equal(address_range_parse("192.0.2.2", &exact), 0);
    assert_true(address_in(&other, &exact, 1));
    assert_int_equal(address_range_parse("unix", &local), 0);
    assert_true(address_in(&unix_socket, &local, 1));
    assert_false(address_in(&other, &local, 1));
    assert_false(address_in(&unix_socket, &exact, 1));
    assert_int_equal(address_range_parse("::ffff:10.0.0.0/104", &v4), 0); // of the 128
    assert_int_equal(v4.n_bits, 104);
    assert_int_equal(address_range_parse("10.0.0.0/9", &v4), 0);
    assert_int_equal(v4.n_bits, 105);
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
        cmocka_unit_test(addresses_of_sockets_are_read),
        cmocka_unit_test(lengths_of_addresses_are_limited),
        cmocka_unit_test(the_number_of_hops_is_limited),
        cmocka_unit_test(each_bit_of_a_network_counts),
    };
    return cmocka_run_group_tests(tests, set_up, NULL);
}
