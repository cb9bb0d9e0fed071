/* test_log_pace.c - at most one line per minute. */
#include "base/log_pace.h"
#include "lib/lib.h"

#define MINUTE_US 60000000

static void a_line_is_due_once_per_minute_with_the_count_since_the_last(void **state)
{
    (void)state;
    struct log_pace p = {0};
    assert_int_equal(log_pace_due(&p, 5), 1);
    assert_int_equal(log_pace_due(&p, 6), 0);
    assert_int_equal(log_pace_due(&p, 4 + MINUTE_US), 0);
    assert_int_equal(log_pace_due(&p, 5 + MINUTE_US), 3);
    assert_int_equal(log_pace_due(&p, 6 + MINUTE_US), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_is_due_once_per_minute_with_the_count_since_the_last),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
