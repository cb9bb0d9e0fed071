/* test_log_burst.c - a frequent event has few log lines, and the rest is counted. */
#include "base/log_burst.h"
#include "lib/lib.h"

#define MAX 3

static void events_beyond_the_limit_have_no_line(void **state)
{
    (void)state;
    struct log_burst b = {0};
    uint64_t left_out;
    for (int i = 0; i < 2 * MAX; i++) {
        assert_int_equal(log_burst_take(&b, MAX, 1000 + i, &left_out), i < MAX);
        assert_int_equal(left_out, 0);
    }
    assert_false(log_burst_take(&b, MAX, 1000 + LOG_BURST_US - 1, &left_out));
    assert_true(log_burst_take(&b, MAX, 1000 + LOG_BURST_US, &left_out));
    assert_int_equal(left_out, MAX + 1);
    assert_true(log_burst_take(&b, MAX, 1001 + LOG_BURST_US, &left_out));
    assert_int_equal(left_out, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(events_beyond_the_limit_have_no_line)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
