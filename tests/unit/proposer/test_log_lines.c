/* test_log_lines.c - how many lines of each kind are logged, and what is said of the others. */
#include <stdlib.h>
#include "base/clock.h"
#include "base/log_burst.h"
#include "base/mem.h"
#include "lib/lib.h"
#include "lib/rigs/logged.h"
#include "proposer-svc/log_lines.h"

static int64_t now_us = 1000000000;

int64_t __wrap_clock_us(void);
int64_t __wrap_clock_us(void)
{
    return now_us;
}

static void lines_that_were_left_out_are_counted(void **state)
{
    (void)state;
    static const struct {
        enum log_lines kind;
        unsigned max;
        const char *says;
    } v[] = {{LOG_LINES_SEQUENCES, 2000, "lines not logged kind=sequence n=3"},
             {LOG_LINES_STREAMS, 200, "lines not logged kind=stream n=3"}};
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        for (unsigned k = 0; k < v[i].max + 3; k++)
            assert_int_equal(log_lines_take(v[i].kind), k < v[i].max);
        now_us += LOG_BURST_US;
        logged_begin();
        assert_true(log_lines_take(v[i].kind));
        assert_int_equal(logged_count(logged_end(), v[i].says), 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_that_were_left_out_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
