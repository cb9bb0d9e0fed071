/* test_full_queues.c - for how long refusals are repeated, and for whom. Time is an argument. */
#include <errno.h>
#include "gateway/serve/full_queues.h"
#include "lib/lib.h"

static struct full_queues f;
static ProtobufCBinaryData one = {3, (uint8_t *)"one"}, two = {3, (uint8_t *)"two"};

static int start(void **state)
{
    (void)state;
    full_queues_init(&f);
    return 0;
}

static int end(void **state)
{
    (void)state;
    full_queues_done(&f);
    f = (struct full_queues){0};
    return 0;
}

static void refuse(const char *payer, unsigned n, int64_t now_us)
{
    for (unsigned i = 0; i < n; i++)
        full_queues_note(&f, payer, one, "the queue is full: 7 wait", now_us);
}

static int check(const char *payer, ProtobufCBinaryData model, int64_t now_us)
{
    int64_t send_us;
    int rc = full_queues_check(&f, payer, model, now_us, &send_us);
    assert_int_equal(rc < 0, full_queues_is_full(&f, payer, model, now_us));
    return rc;
}

static void refusals_are_repeated_for_a_while(void **state)
{
    (void)state;
    refuse("a", FULL_QUEUES_MAX - 1, 5);
    assert_int_equal(check("a", one, 6), 0);
    refuse("a", 1, 7);
    assert_int_equal(check("a", one, 7), -EAGAIN);
    assert_string_equal(fail_text(), "the queue is full: 7 wait");
    assert_int_equal(check("a", one, 5 + FULL_QUEUES_US - 1), -EAGAIN);
    assert_int_equal(check("a", one, 5 + FULL_QUEUES_US), 0);
    refuse("a", 1, 5 + FULL_QUEUES_US); // the first one again
    assert_int_equal(check("a", one, 5 + FULL_QUEUES_US), 0);
}

static void others_and_other_models_are_asked_for(void **state)
{
    (void)state;
    refuse("a", FULL_QUEUES_MAX, 5);
    assert_int_equal(check("a", one, 6), -EAGAIN);
    assert_int_equal(check("a", two, 6), 0);
    assert_int_equal(check("b", one, 6), 0);
}

static void a_call_that_ends_leaves_a_place(void **state)
{
    (void)state;
    full_queues_ended(&f, "a", one); // nothing was refused
    refuse("a", FULL_QUEUES_MAX, 5);
    full_queues_ended(&f, "a", two);
    full_queues_ended(&f, "b", one);
    assert_int_equal(check("a", one, 6), -EAGAIN);
    full_queues_ended(&f, "a", one);
    assert_int_equal(check("a", one, 6), 0);
    refuse("a", 1, 7);
    assert_int_equal(check("a", one, 7), -EAGAIN);
}

static unsigned retries(int64_t now_us)
{
    unsigned n = 0;
    while (n < 100 && full_queues_may_retry(&f, "a", one, now_us))
        n++;
    return n;
}

static void retries_have_a_rate(void **state)
{
    (void)state;
    int64_t now_us = 1000000000;
    assert_int_equal(retries(now_us), 100); // nothing was refused
    refuse("a", 1, now_us);
    assert_int_equal(retries(now_us), FULL_QUEUES_RETRIES);
    now_us += FULL_QUEUES_RETRY_US - 1;
    assert_int_equal(retries(now_us), 0);
    now_us += 1;
    assert_int_equal(retries(now_us), 1);
    now_us += 60000000;
    assert_int_equal(retries(now_us), FULL_QUEUES_RETRIES);
    refuse("a", 1, now_us);
    assert_int_equal(retries(now_us), 0); // the rate is the same after a refusal
    now_us += 60000000;
    refuse("a", FULL_QUEUES_MAX, now_us);
    assert_int_equal(retries(now_us), 0);
    now_us += FULL_QUEUES_US;
    assert_int_equal(retries(now_us), FULL_QUEUES_RETRIES);
}

/* When the next error of "a" is sent. */
static int64_t sent(int64_t now_us)
{
    int64_t send_us;
    assert_int_equal(full_queues_check(&f, "a", one, now_us, &send_us), -EAGAIN);
    return send_us;
}

static void errors_are_sent_one_after_the_other(void **state)
{
    (void)state;
    const int64_t now_us = 1000000000;
    refuse("a", FULL_QUEUES_MAX, now_us);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(sent(now_us), now_us + i * FULL_QUEUES_PACE_US);
    assert_int_equal(sent(now_us + FULL_QUEUES_PACE_US), now_us + 3 * FULL_QUEUES_PACE_US);
    refuse("a", FULL_QUEUES_MAX, now_us + FULL_QUEUES_US); // earlier errors still wait
    int64_t last_us = 0;
    for (unsigned i = 0; i < 1000; i++)
        last_us = sent(now_us + FULL_QUEUES_US);
    assert_int_equal(last_us, now_us + FULL_QUEUES_US + FULL_QUEUES_DELAY_US);
}

static void an_error_waits_for_those_of_its_payer_only(void **state)
{
    (void)state;
    int64_t send_us;
    refuse("a", FULL_QUEUES_MAX, 5);
    refuse("b", FULL_QUEUES_MAX, 5);
    sent(6);
    assert_int_equal(full_queues_check(&f, "b", one, 6, &send_us), -EAGAIN);
    assert_int_equal(send_us, FULL_QUEUES_PACE_US);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(refusals_are_repeated_for_a_while, start, end),
        cmocka_unit_test_setup_teardown(others_and_other_models_are_asked_for, start, end),
        cmocka_unit_test_setup_teardown(a_call_that_ends_leaves_a_place, start, end),
        cmocka_unit_test_setup_teardown(retries_have_a_rate, start, end),
        cmocka_unit_test_setup_teardown(errors_are_sent_one_after_the_other, start, end),
        cmocka_unit_test_setup_teardown(an_error_waits_for_those_of_its_payer_only, start, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
