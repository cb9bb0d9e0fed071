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

static void refusals_are_repeated_for_a_while(void **state)
{
    (void)state;
    refuse("a", FULL_QUEUES_MAX - 1, 5);
    assert_int_equal(full_queues_check(&f, "a", one, 6), 0);
    refuse("a", 1, 7);
    assert_int_equal(full_queues_check(&f, "a", one, 7), -EAGAIN);
    assert_string_equal(fail_text(), "the queue is full: 7 wait");
    assert_int_equal(full_queues_check(&f, "a", one, 5 + FULL_QUEUES_US - 1), -EAGAIN);
    assert_int_equal(full_queues_check(&f, "a", one, 5 + FULL_QUEUES_US), 0);
    refuse("a", 1, 5 + FULL_QUEUES_US); // the first one again
    assert_int_equal(full_queues_check(&f, "a", one, 5 + FULL_QUEUES_US), 0);
}

static void others_and_other_models_are_asked_for(void **state)
{
    (void)state;
    refuse("a", FULL_QUEUES_MAX, 5);
    assert_int_equal(full_queues_check(&f, "a", one, 6), -EAGAIN);
    assert_int_equal(full_queues_check(&f, "a", two, 6), 0);
    assert_int_equal(full_queues_check(&f, "b", one, 6), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(refusals_are_repeated_for_a_while, start, end),
        cmocka_unit_test_setup_teardown(others_and_other_models_are_asked_for, start, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
