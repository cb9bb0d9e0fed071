/* test_pass_time.c - the estimate of the time of a pass. */
#include <math.h>
#include "lib/lib.h"
#include "verifier-svc/control/pass_time.h"

static unsigned point_of(uint32_t rows)
{
    unsigned i = 0;
    while (pass_time_rows_at(i) != rows)
        i++;
    return i;
}

static double rows_us(const struct pass_time *c, uint32_t rows)
{
    return pass_time_us(c, &(struct pass_time_work){.rows = rows});
}

/* Timed: 100 us for one row, and us for another number of rows. */
static struct pass_time timed(uint32_t rows, double us)
{
    struct pass_time_measured m = {.us = {100}};
    struct pass_time c;
    m.us[point_of(rows)] = us;
    pass_time_init(&c, &m);
    return c;
}

/* Updates by a pass of these rows without context. */
static void see(struct pass_time *c, uint32_t rows, double us)
{
    pass_time_seen(c, &(struct pass_time_work){.rows = rows}, us);
}

static void must_be(double got, double expected)
{
    assert_true(fabs(got - expected) < 1e-6 * fabs(expected) + 1e-9);
}

static void sizes_between_measured_ones_lie_on_a_line(void **state)
{
    (void)state;
    struct pass_time_measured m = {0};
    struct pass_time c;
    m.us[0] = 100;
    m.us[point_of(5)] = 140;
    m.us[point_of(17)] = 260;
    pass_time_init(&c, &m);
    must_be(rows_us(&c, 1), 100);
    must_be(rows_us(&c, 3), 120);
    must_be(rows_us(&c, 5), 140);
    must_be(rows_us(&c, 11), 200);
    must_be(rows_us(&c, 17), 260);
}

static void after_the_last_size_each_row_costs_the_same(void **state)
{
    (void)state;
    struct pass_time c = timed(8, 170);
    must_be(rows_us(&c, 108), 1170);
    must_be(rows_us(&c, 1000), 10090); // also after the end of the table
}

static void one_measured_size_is_enough(void **state)
{
    (void)state;
    struct pass_time_measured m = {.us = {50}};
    struct pass_time c;
    pass_time_init(&c, &m);
    must_be(rows_us(&c, 1), 50);
    must_be(rows_us(&c, 4), 200);
}

static void a_larger_pass_is_never_faster(void **state)
{
    (void)state;
    struct pass_time_measured m = {0};
    struct pass_time c;
    m.us[0] = 100;
    m.us[point_of(4)] = 90; // noise
    m.us[point_of(8)] = 120;
    pass_time_init(&c, &m);
    for (uint32_t rows = 1; rows < 600; rows++)
        assert_true(rows_us(&c, rows + 1) >= rows_us(&c, rows));
    for (int i = 0; i < 200; i++)
        see(&c, 8, 40);
    for (uint32_t rows = 1; rows < 600; rows++)
        assert_true(rows_us(&c, rows + 1) >= rows_us(&c, rows));
}

static void a_context_costs_once_per_sequence_and_for_each_row(void **state)
{
    (void)state;
    struct pass_time_measured m = {.context = 1000, .rows = 8};
    struct pass_time c;
    struct pass_time_work pass = {0};
    m.us[0] = 100;
    m.us[point_of(8)] = 170;
    m.long_one_us = 100 + 1000 * (0.02 + 0.005);
    m.long_rows_us = 170 + 1000 * (0.02 + 8 * 0.005);
    pass_time_init(&c, &m);
    pass_time_add(&pass, 4, 2000);
    pass_time_add(&pass, 1, 500);
    must_be(pass_time_us(&c, &pass), rows_us(&c, 5) + 2500 * 0.02 + (4 * 2000 + 500) * 0.005);
}

static void passes_update_the_table(void **state)
{
    (void)state;
    struct pass_time c = timed(8, 170);
    for (int i = 0; i < 300; i++) {
        see(&c, 1, 120);
        see(&c, 4, 300);
    }
    assert_true(fabs(rows_us(&c, 1) - 120) < 6);
    assert_true(fabs(rows_us(&c, 4) - 300) < 15);
    assert_true(rows_us(&c, 8) >= 290); // at least as long as a smaller pass
}

static void passes_with_drafts_have_a_separate_scale(void **state)
{
    (void)state;
    struct pass_time c = timed(1, 100);
    for (int i = 0; i < 300; i++)
        pass_time_seen(&c, &(struct pass_time_work){.rows = 1, .drafted = i % 4 > 0},
                       i % 4 ? 150 : 100);
    assert_true(fabs(pass_time_us(&c, &(struct pass_time_work){.rows = 1, .drafted = true}) - 150) <
                10);
    assert_true(fabs(rows_us(&c, 1) - 100) < 10);
}

static void a_busy_machine_slows_both_kinds_of_pass(void **state)
{
    (void)state;
    struct pass_time c = timed(1, 100);
    for (int i = 0; i < 300; i++)
        pass_time_seen(&c, &(struct pass_time_work){.rows = 1, .drafted = true}, 180);
    assert_true(rows_us(&c, 1) > 170);
}

static void a_size_slower_than_a_larger_one_counts_as_that_one(void **state)
{
    (void)state;
    struct pass_time_measured m = {0};
    struct pass_time c;
    m.us[0] = 100;
    m.us[point_of(4)] = 400;
    m.us[point_of(8)] = 140;
    pass_time_init(&c, &m);
    must_be(rows_us(&c, 4), 140);
    must_be(rows_us(&c, 8), 140);
}

static void faster_passes_count_immediately(void **state)
{
    (void)state;
    struct pass_time c = timed(8, 600);
    for (int i = 0; i < 100; i++)
        see(&c, 1, 100);
    for (int i = 0; i < 3; i++) {
        see(&c, 8, 150);
        for (int k = 0; k < 30; k++)
            see(&c, 1, 100);
    }
    assert_true(rows_us(&c, 8) < 250);
    assert_true(rows_us(&c, 6) <= rows_us(&c, 8));
}

static void the_time_to_read_a_position_is_learnt_from_long_contexts(void **state)
{
    (void)state;
    struct pass_time_measured m = {.us = {100, 103}, .context = 1000, .rows = 2};
    m.long_one_us = 110; // a = 0.009, b = 0.001
    m.long_rows_us = 114;
    struct pass_time c;
    pass_time_init(&c, &m);
    for (int i = 0; i < 200; i++) {
        struct pass_time_work pass = {.drafted = false};
        pass_time_add(&pass, 1 + (uint32_t)i % 4, 10000);
        pass_time_seen(&c, &pass, 100 + 3 * (i % 4) + 10000 * (0.05 + 0.001 * (1 + i % 4)));
    }
    struct pass_time_work one = {0}, two = {0};
    pass_time_add(&one, 1, 10000);
    pass_time_add(&two, 2, 10000);
    assert_true(fabs(pass_time_us(&c, &one) - 610) < 30);
    assert_true(pass_time_us(&c, &two) - pass_time_us(&c, &one) < 26); // 13
    assert_true(fabs(rows_us(&c, 1) - 100) < 30);
}

static void the_time_to_attend_to_a_position_is_learnt(void **state)
{
    (void)state;
    struct pass_time_measured m = {.us = {100, 103}, .context = 1000, .rows = 2};
    m.long_one_us = 140; // a = 0.02, b = 0.02
    m.long_rows_us = 163;
    struct pass_time c;
    pass_time_init(&c, &m);
    for (int i = 0; i < 400; i++) {
        struct pass_time_work pass = {.drafted = false};
        pass_time_add(&pass, i % 2 ? 9 : 1, 10000);
        pass_time_seen(&c, &pass, 97 + 3.0 * pass.rows + 10000 * (0.02 + 0.005 * pass.rows));
    }
    struct pass_time_work one = {0}, five = {0}, nine = {0};
    pass_time_add(&one, 1, 10000);
    pass_time_add(&five, 5, 10000);
    pass_time_add(&nine, 9, 10000);
    assert_true(fabs(pass_time_us(&c, &one) - 350) < 20);
    assert_true(fabs(pass_time_us(&c, &nine) - 774) < 40);
    assert_true(fabs(pass_time_us(&c, &five) - 562) < 30); // such a pass never ran
}

/* The passes without context were delayed and the long ones were not, or nothing was measured. */
static void a_context_measured_as_free_is_corrected(void **state)
{
    (void)state;
    struct pass_time_measured measured[] = {
        {.us = {100, 103}, .context = 1000, .rows = 2, .long_one_us = 90, .long_rows_us = 90},
        {.us = {100, 103}}};
    for (unsigned m = 0; m < 2; m++) {
        struct pass_time c;
        pass_time_init(&c, &measured[m]);
        for (int i = 0; i < 2000; i++) {
            uint32_t context = i % 2 ? 100 : 10000;
            struct pass_time_work pass = {0};
            pass_time_add(&pass, 1 + (uint32_t)i / 2 % 2, context);
            pass_time_seen(&c, &pass, 97 + 3 * pass.rows + 0.02 * context);
        }
        struct pass_time_work longer = {0}, shorter = {0};
        pass_time_add(&longer, 1, 10000);
        pass_time_add(&shorter, 1, 100);
        assert_true(fabs(pass_time_us(&c, &longer) - 300) < 30);
        assert_true(fabs(pass_time_us(&c, &shorter) - 102) < 20);
    }
}

static void one_interrupted_pass_changes_little(void **state)
{
    (void)state;
    struct pass_time c = timed(1, 100);
    see(&c, 1, 1e9);
    assert_true(rows_us(&c, 1) < 120);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sizes_between_measured_ones_lie_on_a_line),
        cmocka_unit_test(after_the_last_size_each_row_costs_the_same),
        cmocka_unit_test(one_measured_size_is_enough),
        cmocka_unit_test(a_larger_pass_is_never_faster),
        cmocka_unit_test(a_context_costs_once_per_sequence_and_for_each_row),
        cmocka_unit_test(passes_update_the_table),
        cmocka_unit_test(passes_with_drafts_have_a_separate_scale),
        cmocka_unit_test(a_busy_machine_slows_both_kinds_of_pass),
        cmocka_unit_test(a_size_slower_than_a_larger_one_counts_as_that_one),
        cmocka_unit_test(faster_passes_count_immediately),
        cmocka_unit_test(the_time_to_read_a_position_is_learnt_from_long_contexts),
        cmocka_unit_test(the_time_to_attend_to_a_position_is_learnt),
        cmocka_unit_test(a_context_measured_as_free_is_corrected),
        cmocka_unit_test(one_interrupted_pass_changes_little),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
