/* test_request_pace.c - the part of the threads' time that each address gets, and the turns of all.
 * The pace's thread does nothing, unless a test wants it. The tests call request_pace_tick(). */
#include <errno.h>
#include <semaphore.h>
#include <string.h>
#include "base/clock.h"
#include "base/err.h"
#include "base/thread.h"
#include "gateway/http/others.h"
#include "gateway/http/request_pace.h"
#include "lib/fakes/failing.h"
#include "lib/fakes/failing_thread.h"
#include "lib/lib.h"

#define N 400
#define REQUEST_US 50 // charged for a request without a body
#define S INT64_C(1000000)
#define MS 1000
#define NOW (INT64_C(1) << 50)
#define THREADS 2
#define INTERVAL_US (REQUEST_US * 4 / THREADS)
#define BURST (REQUEST_PACE_BURST_US / REQUEST_US + 1)
#define PLACES (REQUEST_PACE_BEGUN * THREADS)

static struct request_pace *pace;
static struct request_pace_turn turns[N], other;
static unsigned n_gone, n_handled, order[N];
static int64_t took_us; // of a thread, for each request; 0: as long as it was charged for
static struct address alice, bob, carol;
static bool has_thread;
static sem_t gone;

/* So the addresses of the test are apart in the table. */
uint64_t __wrap_rng_secret(void);
uint64_t __wrap_rng_secret(void)
{
    return 7;
}

static void *no_thread(void *arg)
{
    return arg;
}

int __real_thread_start(void *(*fn)(void *), void *arg, size_t stack, pthread_t *ret);
int __wrap_thread_start(void *(*fn)(void *), void *arg, size_t stack, pthread_t *ret);
int __wrap_thread_start(void *(*fn)(void *), void *arg, size_t stack, pthread_t *ret)
{
    return __real_thread_start(has_thread ? fn : no_thread, arg, stack, ret);
}

static void go(struct request_pace_turn *t)
{
    order[n_gone++] = (unsigned)(t - turns);
    sem_post(&gone);
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
    carol = address("192.0.2.3");
    memset(turns, 0, sizeof(turns));
    other = (struct request_pace_turn){0};
    n_gone = n_handled = 0;
    took_us = 0;
    has_thread = false;
    sem_init(&gone, 0, 0);
    return request_pace_new(THREADS, go, &pace);
}

static int end_test(void **state)
{
    (void)state;
    request_pace_free(pace);
    sem_destroy(&gone);
    return 0;
}

/* Requests [from, to) of an address ask. Returns how many may be handled now. */
static unsigned ask(const struct address *a, unsigned from, unsigned to, size_t bytes,
                    int64_t now_us)
{
    unsigned n = 0;
    for (unsigned i = from; i < to; i++)
        n += request_pace_ask(pace, &turns[i], a, bytes, now_us);
    return n;
}

static void handle(struct request_pace_turn *t, int64_t now_us)
{
    request_pace_done(pace, t, took_us ? took_us : t->charged_us, now_us);
}

/* A tick; all requests that may begin are handled. */
static void tick(int64_t now_us)
{
    for (request_pace_tick(pace, now_us); n_handled < n_gone; n_handled++)
        handle(&turns[order[n_handled]], now_us);
}

/* As ask(), and all requests that may begin are handled. Returns how many. */
static unsigned ask_and_handle(const struct address *a, unsigned from, unsigned to, size_t bytes,
                               int64_t now_us)
{
    unsigned n = 0;
    for (unsigned i = from; i < to; i++) {
        if (!request_pace_ask(pace, &turns[i], a, bytes, now_us))
            continue;
        handle(&turns[i], now_us);
        n++;
    }
    tick(now_us);
    n += n_gone;
    n_gone = n_handled = 0;
    return n;
}

static void bob_asks(int64_t now_us)
{
    assert_true(request_pace_ask(pace, &other, &bob, 0, now_us));
    handle(&other, now_us);
}

static void leave_all(void)
{
    for (unsigned i = 0; i < N; i++)
        request_pace_leave(pace, &turns[i], NOW);
}

static void assert_order(const unsigned *expected, unsigned n)
{
    assert_int_equal(n_gone, n);
    for (unsigned i = 0; i < n; i++)
        assert_int_equal(order[i], expected[i]);
}

/* ---- the rate of an address ---- */

static void an_address_alone_does_not_wait(void **state)
{
    (void)state;
    assert_int_equal(ask(&alice, 0, N, 0, NOW), N);
    for (unsigned i = 0; i < N; i++)
        request_pace_done(pace, &turns[i], S, NOW);
    assert_int_equal(ask(&alice, 0, N, 0, NOW), N); // nothing was charged
}

static void an_address_waits_while_another_one_is_there(void **state)
{
    (void)state;
    bob_asks(NOW);
    assert_int_equal(ask_and_handle(&alice, 0, N, 0, NOW), BURST);
    bob_asks(NOW + MS); // is not concerned
    assert_int_equal(n_gone, 0);
    int64_t until_us = NOW + 10 * INTERVAL_US;
    for (int64_t now_us = NOW; now_us < until_us; now_us += INTERVAL_US)
        tick(now_us);
    assert_int_equal(n_gone, 9);
    for (unsigned i = 0; i < n_gone; i++)
        assert_int_equal(order[i], BURST + i);
    leave_all();
}

static void a_request_that_took_longer_delays_the_next_ones(void **state)
{
    (void)state;
    bob_asks(NOW);
    assert_int_equal(ask(&alice, 0, 1, 0, NOW), 1);
    assert_int_equal(ask_and_handle(&alice, 1, BURST + 1, 0, NOW), BURST - 1);
    request_pace_done(pace, &turns[0], REQUEST_US + 7000, NOW);
    request_pace_done(pace, &turns[0], REQUEST_US + 7000, NOW); // counts once
    int64_t due_us = NOW + INTERVAL_US + 7000 * 4 / THREADS;
    tick(due_us - 1);
    assert_int_equal(n_gone, 0);
    tick(due_us);
    assert_int_equal(n_gone, 1);
}

/* A body is charged as the worst JSON of its size. */
static void a_body_is_charged_before_and_corrected_afterwards(void **state)
{
    (void)state;
    bob_asks(NOW);
    assert_in_range(ask_and_handle(&alice, 0, N, 60000, NOW), 5, 10); // of 600 us each
    leave_all();
    memset(turns, 0, sizeof(turns));
    took_us = 100;
    assert_in_range(ask_and_handle(&alice, 0, N, 60000, NOW + S), 20, 60);
    leave_all();
    memset(turns, 0, sizeof(turns));
    took_us = 0; // at most a body that the threads read
    assert_in_range(ask_and_handle(&alice, 0, N, SIZE_MAX, NOW + 10 * S), 5, 10);
    leave_all();
}

static void the_others_are_forgotten(void **state)
{
    (void)state;
    bob_asks(NOW);
    assert_int_equal(ask(&alice, 0, 1, 0, NOW), 1);
    assert_int_equal(ask_and_handle(&alice, 1, BURST + 100, 0, NOW), BURST - 1);
    request_pace_done(pace, &turns[0], 1000 * S, NOW); // then none may begin for long
    tick(NOW + OTHERS_AWAY_US - 1);
    assert_int_equal(n_gone, 0);
    int64_t now_us = NOW + OTHERS_AWAY_US;
    request_pace_tick(pace, now_us);
    assert_int_equal(n_gone, PLACES); // not all together: others may come
    tick(now_us);
    assert_int_equal(n_gone, 100);
}

static void a_request_that_left_is_passed(void **state)
{
    (void)state;
    bob_asks(NOW);
    ask_and_handle(&alice, 0, BURST + 4, 0, NOW);
    request_pace_leave(pace, &turns[BURST], NOW); // the first, one in the middle, the last
    request_pace_leave(pace, &turns[BURST + 2], NOW);
    request_pace_leave(pace, &turns[BURST + 3], NOW);
    request_pace_leave(pace, &turns[BURST + 3], NOW);
    request_pace_leave(pace, &turns[0], NOW); // does not wait
    tick(NOW + S);
    assert_int_equal(n_gone, 1);
    assert_int_equal(order[0], BURST + 1);
    assert_true(request_pace_ask(pace, &turns[BURST], &alice, 0, NOW + 2 * S));
}

static void addresses_wait_apart(void **state)
{
    (void)state;
    struct address dave = address("2001:db8::1"), neighbour = address("2001:db8::2");
    bob_asks(NOW);
    assert_int_equal(ask_and_handle(&alice, 0, 200, 0, NOW), BURST);
    unsigned n = 0;
    for (unsigned i = 200; i < N; i++) // one network
        n += ask_and_handle(i % 2 ? &dave : &neighbour, i, i + 1, 0, NOW);
    assert_int_equal(n, BURST);
    tick(NOW + INTERVAL_US);
    assert_int_equal(n_gone, 2);
    assert_true((order[0] == BURST) != (order[1] == BURST));
    leave_all();
}

/* ---- all addresses together ---- */

static void few_requests_begin_while_others_are_there(void **state)
{
    (void)state;
    bob_asks(NOW);
    assert_int_equal(ask(&alice, 0, 50, 0, NOW), PLACES);
    for (unsigned i = 0; i < 50; i++)
        request_pace_tick(pace, NOW + S); // not the rate
    assert_int_equal(n_gone, 0);
    for (unsigned i = 0; i < 50 - PLACES; i++) {
        handle(&turns[i], NOW);
        assert_int_equal(n_gone, i + 1); // the next one begins immediately
        assert_int_equal(order[i], PLACES + i);
    }
    handle(&turns[50 - PLACES], NOW);
    assert_int_equal(n_gone, 50 - PLACES); // none is left
    assert_int_equal(ask(&alice, 50, 52, 0, NOW + MS), 1);
    leave_all();
}

/* Each is handled before the next one asks: a thread has received all of them. */
static void few_requests_begin_directly_in_a_tick(void **state)
{
    (void)state;
    bob_asks(NOW);
    for (unsigned i = 0; i < PLACES; i++) {
        assert_int_equal(ask(&alice, i, i + 1, 0, NOW), 1);
        handle(&turns[i], NOW);
    }
    assert_int_equal(ask(&bob, 100, 101, 0, NOW + MS - 1), 0);
    assert_int_equal(ask(&alice, 200, 201, 0, NOW + MS), 0); // another one waits
    assert_int_equal(n_gone, 0);
    tick(NOW + MS);
    assert_order((unsigned[]){100, 200}, 2);
    assert_int_equal(ask(&alice, 201, 202, 0, NOW + MS), 1);
}

/* The begun requests of an address that was alone count for the next one. */
static void many_that_have_begun_delay_the_next_ones(void **state)
{
    (void)state;
    assert_int_equal(ask(&alice, 0, 20, 0, NOW), 20);
    assert_int_equal(ask(&bob, 20, 21, 0, NOW), 0);
    for (unsigned i = 0; i < 20 - PLACES; i++)
        handle(&turns[i], NOW);
    assert_int_equal(n_gone, 0);
    handle(&turns[20 - PLACES], NOW);
    assert_int_equal(n_gone, 1);
    leave_all();
}

static void addresses_that_wait_take_turns(void **state)
{
    (void)state;
    bob_asks(NOW);
    ask(&alice, 0, PLACES, 0, NOW);
    assert_int_equal(ask(&alice, 100, 103, 0, NOW), 0);
    assert_int_equal(ask(&bob, 200, 202, 0, NOW), 0);
    handle(&turns[0], NOW);
    assert_int_equal(ask(&carol, 300, 301, 0, NOW), 0); // waits for one of each other address
    tick(NOW);
    assert_order((unsigned[]){100, 200, 101, 300, 201, 102}, 6);
    leave_all();
}

static void a_request_that_waits_for_its_rate_delays_no_others(void **state)
{
    (void)state;
    int64_t now_us = NOW + MS; // alice is early until the next tick
    bob_asks(NOW);
    assert_int_equal(ask_and_handle(&alice, 0, BURST + 2, 0, NOW), BURST);
    assert_int_equal(ask(&bob, 200, 200 + PLACES, 0, now_us), PLACES);
    assert_int_equal(ask(&carol, 300, 303, 0, now_us), 0);
    handle(&turns[200], now_us);
    assert_order((unsigned[]){300}, 1);
    request_pace_tick(pace, now_us); // no place
    assert_int_equal(n_gone, 1);
    for (unsigned i = 201; i < 204; i++)
        handle(&turns[i], now_us);
    assert_order((unsigned[]){300, 301, BURST, 302}, 4); // alice comes after carol
    handle(&turns[300], now_us);
    assert_int_equal(n_gone, 5);
    assert_int_equal(order[4], BURST + 1);
    leave_all();
}

/* The rate is used up while a request waits for a place. */
static void a_place_is_not_for_an_address_above_its_rate(void **state)
{
    (void)state;
    bob_asks(NOW);
    ask(&alice, 0, PLACES, 0, NOW);
    assert_int_equal(ask(&alice, 100, 102, 0, NOW), 0);
    assert_int_equal(ask(&bob, 200, 201, 0, NOW), 0);
    request_pace_done(pace, &turns[0], S, NOW);
    assert_order((unsigned[]){200}, 1);
    for (unsigned i = 1; i < PLACES; i++)
        handle(&turns[i], NOW);
    assert_int_equal(n_gone, 1);
    request_pace_tick(pace, NOW + S);
    assert_int_equal(n_gone, 1);
    request_pace_tick(pace, NOW + 2 * S); // a second of a thread is two of half of them
    assert_order((unsigned[]){200, 100, 101}, 3);
}

static void a_request_gives_its_place_back_once(void **state)
{
    (void)state;
    bob_asks(NOW);
    ask(&alice, 0, PLACES, 0, NOW);
    assert_int_equal(ask(&alice, 100, 120, 0, NOW), 0);
    handle(&turns[0], NOW);
    handle(&turns[0], NOW); // its connection was resumed
    request_pace_leave(pace, &turns[0], NOW);
    assert_int_equal(n_gone, 1);
    request_pace_leave(pace, &turns[1], NOW); // it has begun, and its connection ended
    request_pace_leave(pace, &turns[1], NOW);
    assert_int_equal(n_gone, 2);
    request_pace_leave(pace, &turns[119], NOW); // it waits
    request_pace_leave(pace, &other, NOW);
    assert_int_equal(n_gone, 2);
    handle(&turns[100], NOW); // its wait has ended
    assert_int_equal(n_gone, 3);
    request_pace_leave(pace, &turns[101], NOW);
    assert_int_equal(n_gone, 4);
    leave_all();
    assert_int_equal(ask(&alice, 0, 50, 0, NOW + 10 * S), PLACES);
    leave_all();
}

/* ---- the end ---- */

static void at_the_end_nobody_waits(void **state)
{
    (void)state;
    bob_asks(NOW);
    assert_int_equal(ask_and_handle(&alice, 0, 200, 0, NOW), BURST);
    assert_int_equal(ask(&bob, 200, 220, 0, NOW + MS), PLACES);
    request_pace_end(pace);
    request_pace_tick(pace, NOW);
    assert_int_equal(n_gone, 200 - BURST + 20 - PLACES);
    assert_int_equal(ask(&alice, 220, N, 0, NOW), N - 220);
}

/* ---- the thread ---- */

static void the_thread_ends_waits(void **state)
{
    (void)state;
    struct request_pace *p = NULL;
    has_thread = true;
    assert_int_equal(request_pace_new(THREADS, go, &p), 0);
    struct timespec limit = clock_at(clock_us() + 10 * S);
    unsigned n_waits = 0;
    assert_true(request_pace_ask(p, &other, &bob, 0, clock_us()));
    request_pace_done(p, &other, 10 * MS, clock_us());
    for (unsigned i = 0; i < N; i++) {
        if (request_pace_ask(p, &turns[i], &alice, 0, clock_us()))
            request_pace_done(p, &turns[i], MS, clock_us());
        else
            n_waits++;
    }
    assert_in_range(n_waits, 1, N);
    assert_int_equal(sem_clockwait(&gone, CLOCK_MONOTONIC, &limit), 0);
    request_pace_end(p);
    for (unsigned i = 1; i < n_waits; i++)
        assert_int_equal(sem_clockwait(&gone, CLOCK_MONOTONIC, &limit), 0);
    request_pace_free(p);
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
        TEST(few_requests_begin_while_others_are_there),
        TEST(few_requests_begin_directly_in_a_tick),
        TEST(many_that_have_begun_delay_the_next_ones),
        TEST(addresses_that_wait_take_turns),
        TEST(a_request_that_waits_for_its_rate_delays_no_others),
        TEST(a_place_is_not_for_an_address_above_its_rate),
        TEST(a_request_gives_its_place_back_once),
        TEST(at_the_end_nobody_waits),
        TEST(the_thread_ends_waits),
        cmocka_unit_test_setup_teardown(without_memory_or_a_thread_there_is_no_pace, no_begin,
                                        no_begin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
