/* test_request_pace.c - the part of the threads' time that each address gets. The times of the test
 * are far in the future, so the pace's thread ends no wait. The test calls request_pace_tick(). */
#include <errno.h>
#include <string.h>
#include "base/err.h"
#include "gateway/http/request_pace.h"
#include "lib/fakes/failing.h"
#include "lib/fakes/failing_thread.h"
#include "lib/lib.h"

#define N 400
#define REQUEST_US 50 // charged for a request without a body
#define S INT64_C(1000000)
#define NOW (INT64_C(1) << 50)
#define THREADS 2
#define INTERVAL_US (REQUEST_US * 4 / THREADS)
#define BURST (REQUEST_PACE_BURST_US / REQUEST_US + 1)

static struct request_pace *pace;
static struct request_pace_turn turns[N], other;
static unsigned n_gone, order[N];
static struct address alice, bob;

/* So the addresses of the test are apart in the table. */
uint64_t __wrap_rng_secret(void);
uint64_t __wrap_rng_secret(void)
{
    return 7;
}

static void go(struct request_pace_turn *t)
{
    order[n_gone++] = (unsigned)(t - turns);
}

static struct address address(const char *text)
{
    struct address a;
    assert_true(address_parse(text, strlen(text), &a));
    return a;
}

static int begin_test(void **state)
{
    (void)state;
    alice = address("192.0.2.1");
    bob = address("192.0.2.2");
    memset(turns, 0, sizeof(turns));
    other = (struct request_pace_turn){0};
    n_gone = 0;
    return request_pace_new(THREADS, go, &pace);
}

static int end_test(void **state)
{
    (void)state;
    request_pace_free(pace);
    return 0;
}

static void bob_asks(int64_t now_us)
{
    assert_true(request_pace_ask(pace, &other, &bob, 0, now_us));
    request_pace_done(pace, &other, REQUEST_US);
}

/* Requests [from, to) of alice ask. Returns how many may be handled now. */
static unsigned alice_asks(unsigned from, unsigned to, size_t bytes, int64_t now_us)
{
    unsigned n = 0;
    for (unsigned i = from; i < to; i++)
        n += request_pace_ask(pace, &turns[i], &alice, bytes, now_us);
    return n;
}

static void leave_all(void)
{
    for (unsigned i = 0; i < N; i++)
        request_pace_leave(pace, &turns[i]);
}

static void an_address_alone_does_not_wait(void **state)
{
    (void)state;
    assert_int_equal(alice_asks(0, N, 0, NOW), N);
    for (unsigned i = 0; i < N; i++)
        request_pace_done(pace, &turns[i], S);
    assert_int_equal(alice_asks(0, N, 0, NOW), N); // nothing was charged
}

static void an_address_waits_while_another_one_is_there(void **state)
{
    (void)state;
    bob_asks(NOW);
    assert_int_equal(alice_asks(0, N, 0, NOW), BURST);
    bob_asks(NOW); // is not concerned
    assert_int_equal(n_gone, 0);
    int64_t until_us = NOW + 10 * INTERVAL_US;
    for (int64_t now_us = NOW; now_us < until_us; now_us += INTERVAL_US)
        request_pace_tick(pace, now_us);
    assert_int_equal(n_gone, 9);
    for (unsigned i = 0; i < n_gone; i++)
        assert_int_equal(order[i], BURST + i);
    leave_all();
}

static void a_request_that_took_longer_delays_the_next_ones(void **state)
{
    (void)state;
    bob_asks(NOW);
    assert_int_equal(alice_asks(0, BURST + 1, 0, NOW), BURST);
    request_pace_done(pace, &turns[0], REQUEST_US + 7000);
    request_pace_done(pace, &turns[0], REQUEST_US + 7000); // counts once
    int64_t due_us = NOW + INTERVAL_US + 7000 * 4 / THREADS;
    request_pace_tick(pace, due_us - 1);
    assert_int_equal(n_gone, 0);
    request_pace_tick(pace, due_us);
    assert_int_equal(n_gone, 1);
}

/* A body is charged as the worst JSON of its size. */
static void a_body_is_charged_before_and_corrected_afterwards(void **state)
{
    (void)state;
    bob_asks(NOW);
    unsigned n = alice_asks(0, N, 60000, NOW);
    assert_in_range(n, 5, 10); // REQUEST_PACE_BURST_US of 600 us each
    for (unsigned i = 0; i < n; i++)
        request_pace_done(pace, &turns[i], 100);
    request_pace_tick(pace, NOW + 1000);
    assert_in_range(n_gone, 1, 10);
    leave_all();
    memset(turns, 0, sizeof(turns));
    n = alice_asks(0, N, SIZE_MAX, NOW + 10 * S); // no more than a body that the threads read
    assert_in_range(n, 5, 10);
    leave_all();
}

static void the_others_are_forgotten(void **state)
{
    (void)state;
    bob_asks(NOW);
    assert_int_equal(alice_asks(0, BURST + 100, 0, NOW), BURST);
    request_pace_done(pace, &turns[0], 1000 * S); // then none may begin for long
    request_pace_tick(pace, NOW + REQUEST_PACE_ALONE_US - 1);
    assert_int_equal(n_gone, 0);
    int64_t now_us = NOW + REQUEST_PACE_ALONE_US;
    request_pace_tick(pace, now_us);
    assert_in_range(n_gone, 1, 99); // not all together: others may come
    for (int i = 0; i < 100; i++)
        request_pace_tick(pace, now_us);
    assert_int_equal(n_gone, 100);
}

static void a_request_that_left_is_passed(void **state)
{
    (void)state;
    bob_asks(NOW);
    alice_asks(0, BURST + 4, 0, NOW);
    request_pace_leave(pace, &turns[BURST]); // the first, one in the middle, the last
    request_pace_leave(pace, &turns[BURST + 2]);
    request_pace_leave(pace, &turns[BURST + 3]);
    request_pace_leave(pace, &turns[BURST + 3]);
    request_pace_leave(pace, &turns[0]); // does not wait
    request_pace_tick(pace, NOW + S);
    assert_int_equal(n_gone, 1);
    assert_int_equal(order[0], BURST + 1);
    assert_true(request_pace_ask(pace, &turns[BURST], &alice, 0, NOW + 2 * S));
}

static void addresses_wait_apart(void **state)
{
    (void)state;
    struct address carol = address("2001:db8::1"), neighbour = address("2001:db8::2");
    bob_asks(NOW);
    assert_int_equal(alice_asks(0, 200, 0, NOW), BURST);
    unsigned n = 0;
    for (unsigned i = 200; i < N; i++) // one network
        n += request_pace_ask(pace, &turns[i], i % 2 ? &carol : &neighbour, 0, NOW);
    assert_int_equal(n, BURST);
    request_pace_tick(pace, NOW + INTERVAL_US);
    assert_int_equal(n_gone, 2);
    assert_true((order[0] == BURST) != (order[1] == BURST));
    leave_all();
}

static void at_the_end_nobody_waits(void **state)
{
    (void)state;
    bob_asks(NOW);
    assert_int_equal(alice_asks(0, 200, 0, NOW), BURST);
    request_pace_end(pace);
    for (int i = 0; i < 100; i++)
        request_pace_tick(pace, NOW);
    assert_int_equal(n_gone, 200 - BURST);
    assert_int_equal(alice_asks(200, N, 0, NOW), N - 200);
}

static int no_begin(void **state)
{
    (void)state;
    return 0;
}

static void without_memory_or_a_thread_there_is_no_pace(void **state)
{
    (void)state;
    struct request_pace *p = NULL;
    failing_at(1);
    assert_int_equal(request_pace_new(THREADS, go, &p), -ENOMEM);
    assert_true(failing_has_failed());
    failing_thread_at(1);
    assert_int_equal(request_pace_new(THREADS, go, &p), -EAGAIN);
    assert_null(p);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, begin_test, end_test)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(an_address_alone_does_not_wait),
        TEST(an_address_waits_while_another_one_is_there),
        TEST(a_request_that_took_longer_delays_the_next_ones),
        TEST(a_body_is_charged_before_and_corrected_afterwards),
        TEST(the_others_are_forgotten),
        TEST(a_request_that_left_is_passed),
        TEST(addresses_wait_apart),
        TEST(at_the_end_nobody_waits),
        cmocka_unit_test_setup_teardown(without_memory_or_a_thread_there_is_no_pace, no_begin,
                                        no_begin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
