/* test_handshake_pace.c - when the TLS handshakes of an address may begin. */
#include <stdio.h>
#include <string.h>
#include "gateway/http/handshake_pace.h"
#include "lib/lib.h"

#define S INT64_C(1000000)
#define NOW (1000 * S)
#define PER_S 4

static struct handshake_pace pace;

static int reset(void **state)
{
    (void)state;
    pace = (struct handshake_pace){.secret = 7};
    return 0;
}

static int64_t begin(const char *address, int64_t now_us)
{
    struct address a;
    assert_true(address_parse(address, strlen(address), &a));
    return handshake_pace(&pace, &a, PER_S, now_us) - NOW;
}

static void further_handshakes_wait_for_each_other(void **state)
{
    (void)state;
    for (int i = 0; i < PER_S; i++)
        assert_int_equal(begin("192.0.2.1", NOW), 0);
    for (int i = 1; i <= 10 * PER_S; i++)
        assert_int_equal(begin("192.0.2.1", NOW), i * S / PER_S);
    assert_int_equal(begin("192.0.2.1", NOW + S / 2), 10 * S + S / PER_S);
}

static void an_idle_second_permits_as_many_again(void **state)
{
    (void)state;
    for (int second = 0; second < 3; second++) {
        for (int i = 0; i < PER_S; i++)
            assert_int_equal(begin("192.0.2.1", NOW + second * S), second * S);
        assert_int_equal(begin("192.0.2.1", NOW + second * S), second * S + S / PER_S);
        reset(NULL);
    }
    for (int i = 0; i < PER_S; i++)
        assert_int_equal(begin("192.0.2.1", NOW), 0);
    for (int i = 0; i < PER_S; i++) // a long pause permits no more than a second does
        assert_int_equal(begin("192.0.2.1", NOW + 100 * S), 100 * S);
    assert_int_equal(begin("192.0.2.1", NOW + 100 * S), 100 * S + S / PER_S);
}

static void a_steady_client_never_waits(void **state)
{
    (void)state;
    for (int i = 0; i < 100; i++)
        assert_int_equal(begin("192.0.2.1", NOW + i * S / PER_S), i * S / PER_S);
}

static void other_addresses_do_not_wait(void **state)
{
    (void)state;
    for (int i = 0; i < 100; i++)
        begin("2001:db8::1", NOW);
    assert_int_equal(begin("2001:db8:0:100::1", NOW), 0);
    assert_int_equal(begin("192.0.2.1", NOW), 0);
    assert_true(begin("2001:db8:0:ff::2", NOW) > 0); // of the same /56 network
}

#define THREADS 2
#define SIGNS (HANDSHAKE_PACE_SIGNS * THREADS)

/* How many of n handshakes of 192.0.2.HOST get a signature of this cost. */
static unsigned costly_signs(unsigned host, unsigned n, unsigned cost, int64_t now_us)
{
    char text[32];
    struct address a;
    unsigned n_signed = 0;
    snprintf(text, sizeof(text), "192.0.2.%u", host);
    assert_true(address_parse(text, strlen(text), &a));
    for (unsigned i = 0; i < n; i++)
        n_signed += handshake_pace_sign(&pace, &a, THREADS, cost, now_us);
    return n_signed;
}

static unsigned signs(unsigned host, unsigned n, int64_t now_us)
{
    return costly_signs(host, n, 1, now_us);
}

static void an_address_alone_gets_all_signatures_of_a_second(void **state)
{
    (void)state;
    for (int second = 0; second < 3; second++) {
        assert_int_equal(signs(1, SIGNS + 1, NOW + second * S), SIGNS);
        assert_int_equal(signs(1, 9, NOW + second * S + S - 1), 0);
    }
}

/* Also of one that comes late; the first second does not know it yet. */
static void an_address_gets_its_share_of_signatures(void **state)
{
    (void)state;
    for (int second = 0; second < 3; second++) {
        int64_t now_us = NOW + second * S;
        assert_int_equal(signs(1, SIGNS, now_us), SIGNS);
        for (unsigned host = 2; host <= 4; host++)
            assert_int_equal(signs(host, SIGNS, now_us), SIGNS / (second ? 4 : host));
        assert_int_equal(signs(1, 1, now_us), 0);
    }
    assert_int_equal(signs(1, SIGNS, NOW + 9 * S), SIGNS); // after a pause of all
    assert_int_equal(signs(2, SIGNS, NOW + 9 * S), SIGNS / 2);
}

static void any_address_gets_a_few_signatures(void **state)
{
    enum { HOSTS = 30 };
    (void)state;
    assert_int_equal(signs(1, SIGNS, NOW), SIGNS);
    for (unsigned host = 2; host <= HOSTS; host++)
        signs(host, 1, NOW);
    for (unsigned host = 2; host <= HOSTS; host++) // hosts that share an entry have fewer
        assert_in_range(signs(host, SIGNS, NOW), 0, HANDSHAKE_PACE_FEW - 1);
    assert_int_equal(signs(HOSTS + 1, SIGNS, NOW), HANDSHAKE_PACE_FEW);
}

/* Else connections that have shaken hands would wait for them. */
static void all_addresses_together_get_half_of_the_time(void **state)
{
    (void)state;
    unsigned n = 0;
    for (unsigned host = 1; host < 250; host++)
        n += signs(host, HANDSHAKE_PACE_FEW, NOW);
    assert_int_equal(n, HANDSHAKE_PACE_MOST * THREADS);
    assert_int_equal(signs(250, 1, NOW + S), 1);
    for (unsigned host = 1; host < 250; host++)
        costly_signs(host, 1, 4, NOW + 2 * S);
    assert_int_equal(pace.n, HANDSHAKE_PACE_MOST * THREADS / 4);
}

/* All addresses together get signatures for the same time, and each still gets one. */
static void costly_signatures_are_fewer(void **state)
{
    enum { COST = 4 };
    (void)state;
    assert_int_equal(costly_signs(1, SIGNS, COST, NOW), SIGNS / COST);
    for (unsigned host = 2; host < 60; host++)
        costly_signs(host, 1, COST, NOW);
    assert_int_equal(costly_signs(60, SIGNS, COST, NOW), HANDSHAKE_PACE_FEW / COST);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(further_handshakes_wait_for_each_other, reset),
        cmocka_unit_test_setup(an_idle_second_permits_as_many_again, reset),
        cmocka_unit_test_setup(a_steady_client_never_waits, reset),
        cmocka_unit_test_setup(other_addresses_do_not_wait, reset),
        cmocka_unit_test_setup(an_address_alone_gets_all_signatures_of_a_second, reset),
        cmocka_unit_test_setup(an_address_gets_its_share_of_signatures, reset),
        cmocka_unit_test_setup(any_address_gets_a_few_signatures, reset),
        cmocka_unit_test_setup(all_addresses_together_get_half_of_the_time, reset),
        cmocka_unit_test_setup(costly_signatures_are_fewer, reset),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
