/* test_bad_keys.c - pauses for addresses that send wrong keys, and the summary for the log. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "base/err.h"
#include "gateway/keys/bad_keys.h"
#include "lib/fakes/failing.h"
#include "lib/lib.h"

#define S INT64_C(1000000)

static struct bad_keys *table(void)
{
    struct bad_keys *b = NULL;
    if (bad_keys_new(&b) < 0)
        fail_msg("%s", fail_text());
    return b;
}

/* A wrong key from ::ffff:10.0.x.y. */
static unsigned notes(struct bad_keys *b, unsigned host, int64_t now_us)
{
    struct address a = {.is_ip = true, .ip = {[10] = 0xff, [11] = 0xff, [12] = 10}};
    a.ip[14] = (uint8_t)(host >> 8);
    a.ip[15] = (uint8_t)host;
    return bad_keys_note(b, &a, now_us);
}

static void pauses_grow_and_are_bounded(void **state)
{
    (void)state;
    AUTO(bad_keys_free) struct bad_keys *b = table();
    int64_t now_us = S;
    for (unsigned i = 0; i < BAD_KEYS_FREE; i++)
        assert_int_equal(notes(b, 1, now_us), 0);
    static const unsigned pauses[] = {1, 2, 4, 8, 16, 32, 60, 60};
    for (size_t i = 0; i < ARRAY_LEN(pauses); i++) {
        assert_int_equal(notes(b, 1, now_us), pauses[i]);
        assert_int_equal(notes(b, 1, now_us + 1), pauses[i]); // it does not grow meanwhile
        assert_int_equal(notes(b, 2, now_us), 0);             // another address
        now_us += pauses[i] * S;
        assert_int_equal(notes(b, 1, now_us), 0); // one more try, then the next pause
        now_us += 1;
    }
}

static void an_address_is_forgotten(void **state)
{
    (void)state;
    AUTO(bad_keys_free) struct bad_keys *b = table();
    for (unsigned i = 0; i < BAD_KEYS_FREE; i++)
        notes(b, 1, S);
    assert_int_equal(notes(b, 1, S), 1);
    int64_t later_us = (BAD_KEYS_FORGET_S + 2) * S;
    for (unsigned i = 0; i < BAD_KEYS_FREE; i++)
        assert_int_equal(notes(b, 1, later_us), 0);
}

/* After exactly BAD_KEYS_FORGET_S the address is still known. */
static void an_address_is_known_until_then(void **state)
{
    (void)state;
    AUTO(bad_keys_free) struct bad_keys *b = table();
    for (unsigned i = 0; i < BAD_KEYS_FREE; i++)
        notes(b, 1, S);
    int64_t last_us = S + BAD_KEYS_FORGET_S * S;
    assert_int_equal(notes(b, 1, last_us), 0); // begins the second pause
    assert_int_equal(notes(b, 1, last_us), 2);
}

static void the_rest_of_a_pause_is_rounded_up(void **state)
{
    (void)state;
    AUTO(bad_keys_free) struct bad_keys *b = table();
    struct bad_keys_report r;
    for (unsigned i = 0; i < BAD_KEYS_FREE + 1; i++)
        notes(b, 1, i == BAD_KEYS_FREE ? 2 * S : S); // the last begins a pause of 2 s
    static const struct {
        int64_t after_us;
        unsigned rest_s;
    } v[] = {{1, 2}, {S - 1, 2}, {S, 1}, {S + 1, 1}, {2 * S - 1, 1}};
    for (size_t i = 0; i < ARRAY_LEN(v); i++)
        assert_int_equal(notes(b, 1, 2 * S + v[i].after_us), v[i].rest_s);
    assert_true(bad_keys_report(b, 4 * S, &r));
    assert_int_equal(r.n_paused, ARRAY_LEN(v));
}

/* The one that was seen last is never the oldest of its set. */
static void many_other_addresses_do_not_displace_a_busy_one(void **state)
{
    (void)state;
    AUTO(bad_keys_free) struct bad_keys *b = table();
    int64_t now_us = S;
    for (unsigned i = 0; i < 60000; i++) {
        assert_int_equal(notes(b, i, now_us++), 0);
        if (i % 16 == 0)
            notes(b, 65000, now_us++);
    }
    assert_true(notes(b, 65000, now_us) > 0);
}

static void many_addresses_fit_into_the_table(void **state)
{
    (void)state;
    AUTO(bad_keys_free) struct bad_keys *b = table();
    for (unsigned i = 0; i < 65536; i++)
        assert_int_equal(notes(b, i, S + i), 0);
    for (unsigned i = 0; i < BAD_KEYS_FREE; i++)
        notes(b, 77, 2 * S);
    assert_int_equal(notes(b, 77, 2 * S), 1);
}

static void an_ipv6_client_is_known_by_its_network(void **state)
{
    (void)state;
    AUTO(bad_keys_free) struct bad_keys *b = table();
    struct address a = {.is_ip = true, .ip = {0x20, 1}};
    for (unsigned i = 0; i < BAD_KEYS_FREE; i++) {
        a.ip[15] = (uint8_t)i;
        assert_int_equal(bad_keys_note(b, &a, S), 0);
    }
    a.ip[7] = 9;
    assert_int_equal(bad_keys_note(b, &a, S), 1);
    a.ip[6] = 9; // another network
    assert_int_equal(bad_keys_note(b, &a, S), 0);
}

static void a_report_comes_at_most_once_a_minute(void **state)
{
    (void)state;
    AUTO(bad_keys_free) struct bad_keys *b = table();
    struct bad_keys_report r;
    assert_false(bad_keys_report(b, S, &r));
    notes(b, 5, S);
    assert_true(bad_keys_report(b, S, &r));
    assert_int_equal(r.n, 1);
    assert_string_equal(r.client, "10.0.0.5");
    for (unsigned i = 0; i < BAD_KEYS_FREE + 3; i++)
        notes(b, 6, 2 * S);
    assert_false(bad_keys_report(b, 60 * S, &r));
    assert_true(bad_keys_report(b, 61 * S, &r));
    assert_int_equal(r.n, BAD_KEYS_FREE + 3);
    assert_int_equal(r.n_paused, 3);
    assert_false(bad_keys_report(b, 200 * S, &r));
    static const struct address unix_socket;
    bad_keys_note(b, &unix_socket, 200 * S);
    assert_true(bad_keys_report(b, 200 * S, &r));
    assert_string_equal(r.client, "unix");
}

static void a_failed_allocation_is_an_error(void **state)
{
    (void)state;
    struct bad_keys *b = NULL;
    failing_at(1);
    assert_int_equal(bad_keys_new(&b), -ENOMEM);
    assert_true(failing_has_failed());
    assert_string_equal(fail_text(), "no memory for addresses with wrong API keys");
    assert_null(b);
    bad_keys_free(b); // no effect
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pauses_grow_and_are_bounded),
        cmocka_unit_test(an_address_is_forgotten),
        cmocka_unit_test(an_address_is_known_until_then),
        cmocka_unit_test(the_rest_of_a_pause_is_rounded_up),
        cmocka_unit_test(many_other_addresses_do_not_displace_a_busy_one),
        cmocka_unit_test(many_addresses_fit_into_the_table),
        cmocka_unit_test(an_ipv6_client_is_known_by_its_network),
        cmocka_unit_test(a_report_comes_at_most_once_a_minute),
        cmocka_unit_test(a_failed_allocation_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
