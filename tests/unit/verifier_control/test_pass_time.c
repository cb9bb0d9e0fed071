/* test_pass_time.c - the estimate of the time of a pass. */
#include <math.h>
#include <string.h>
#include "lib/lib.h"
#include "base/mem.h"
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

/* ---- the update, step by step as in docs/controller.md, "Pass time" ---- */

static double plain_w(const struct pass_time *t, uint32_t rows)
{
    unsigned i = 0;
    while (i < PASS_TIME_POINTS - 2 && pass_time_rows_at(i + 1) <= rows)
        i++;
    double from = pass_time_rows_at(i), to = pass_time_rows_at(i + 1);
    return t->w_us[i] + (rows - from) / (to - from) * (t->w_us[i + 1] - t->w_us[i]);
}

static double plain_us(const struct pass_time *t, const struct pass_time_work *p)
{
    double s = t->scale * (p->drafted ? t->drafted_scale : 1);
    return s * (plain_w(t, p->rows) + t->read_us * p->kv_read + t->attend_us * p->attended);
}

static double plain_weight(double least, double n, double r)
{
    return r < 1 ? fmax(least, fmin(1 / n, 1)) : least;
}

/* Isotonic regression: the greatest of the least weighted means. */
static void plain_rise(struct pass_time *t)
{
    double risen[PASS_TIME_POINTS];
    for (unsigned i = 0; i < PASS_TIME_POINTS; i++) {
        risen[i] = 0;
        for (unsigned from = 0; from <= i; from++) {
            double sum = 0, n = 0, least = INFINITY;
            for (unsigned to = from; to < PASS_TIME_POINTS; to++) {
                double w = t->n_seen[to] + 0.01;
                sum += w * t->w_us[to];
                n += w;
                least = to >= i ? fmin(least, sum / n) : least;
            }
            risen[i] = fmax(risen[i], least);
        }
    }
    memcpy(t->w_us, risen, sizeof(risen));
}

static void plain_move(struct pass_time *t, unsigned i, double share, double r)
{
    double sum = 0;
    t->n_seen[i] += share;
    for (unsigned k = 0; k < PASS_TIME_POINTS; k++)
        sum += t->n_seen[k];
    double change = share * plain_weight(0.05, t->n_seen[i], r) * (r - 1);
    double of_scale = t->n_seen[i] / fmax(sum, 1);
    t->w_us[i] *= 1 + (1 - of_scale) * change;
    t->scale *= 1 + of_scale * change;
}

static void plain_seen(struct pass_time *t, const struct pass_time_work *p, double us)
{
    double w = plain_w(t, p->rows),
           in_context = t->read_us * p->kv_read + t->attend_us * p->attended;
    double share = in_context / (w + in_context), c = 0.25 * p->attended;
    double r = fmin(us / plain_us(t, p), 2);
    double err = 0.2 * share * (r - 1) * (w + in_context);
    if (p->kv_read > 0) {
        double norm = p->kv_read * p->kv_read + c * c;
        t->read_us = fmax(0, t->read_us + err * p->kv_read / norm);
        t->attend_us = fmax(0, t->attend_us + 0.25 * err * c / norm);
    }
    double rest = (1 - share) * (1 - share);
    r = 1 + rest * (fmin(us / plain_us(t, p), 2) - 1);
    if (t->n_all && p->drafted != t->last_drafted)
        t->drafted_scale = fmax(1, t->drafted_scale * pow(1 + 0.5 * (r - 1), p->drafted ? 1 : -1));
    t->last_drafted = p->drafted;
    t->n_all++;
    t->scale *= 1 + plain_weight(0.1, t->n_all, r) * (r - 1);
    r = 1 + rest * (fmin(us / plain_us(t, p), 2) - 1);
    for (unsigned k = 0; k < PASS_TIME_POINTS; k++)
        t->n_seen[k] *= 0.99;
    unsigned i = 0;
    while (i < PASS_TIME_POINTS - 2 && pass_time_rows_at(i + 1) <= p->rows)
        i++;
    double from = pass_time_rows_at(i), to = pass_time_rows_at(i + 1);
    double part = fmin((p->rows - from) / (to - from), 1);
    plain_move(t, i, 1 - part, r);
    plain_move(t, i + 1, part, r);
    plain_rise(t);
}

static void must_equal(const struct pass_time *got, const struct pass_time *plain)
{
    for (unsigned i = 0; i < PASS_TIME_POINTS; i++) {
        must_be(got->w_us[i], plain->w_us[i]);
        must_be(got->n_seen[i], plain->n_seen[i]);
    }
    must_be(got->read_us, plain->read_us);
    must_be(got->attend_us, plain->attend_us);
    must_be(got->scale, plain->scale);
    must_be(got->drafted_scale, plain->drafted_scale);
    must_be(got->n_all, plain->n_all);
    assert_true(got->last_drafted == plain->last_drafted);
}

/* Each pass takes between 0.3 and 2.4 times the expected time. */
static void each_pass_moves_the_model_by_the_formulas(void **state)
{
    (void)state;
    static const uint32_t rows[] = {1, 4, 11, 16, 17, 40, 300, 512, 600};
    struct pass_time_measured m = {.us = {100, 103}, .context = 1000, .rows = 2};
    m.long_one_us = 140;
    m.long_rows_us = 163;
    struct pass_time c;
    pass_time_init(&c, &m);
    struct pass_time plain = c;
    for (unsigned i = 0; i < 200; i++) {
        struct pass_time_work pass = {.drafted = i / 3 % 2};
        static const uint32_t contexts[] = {0, 1, 100, 0, 1000, 300};
        pass_time_add(&pass, rows[i % ARRAY_LEN(rows)], contexts[i % ARRAY_LEN(contexts)]);
        double us = plain_us(&plain, &pass) * (0.3 + 0.3 * (i * 5 % 8));
        pass_time_seen(&c, &pass, us);
        plain_seen(&plain, &pass, us);
        must_equal(&c, &plain);
    }
}

static void the_points_are_at_24_sizes(void **state)
{
    (void)state;
    static const uint32_t sizes[] = {1,  2,  3,  4,  5,  6,  7,  8,   9,   10,  12,  14, 16,
                                     17, 20, 24, 32, 48, 64, 96, 128, 192, 256, 512, 0,  0};
    for (unsigned i = 0; i < ARRAY_LEN(sizes); i++)
        assert_int_equal(pass_time_rows_at(i), sizes[i]);
}

/* a = 0.02 and b = 0.005 from both passes; only a hint of a from one row or without a time. */
static void start_up_gives_the_times_of_a_position(void **state)
{
    (void)state;
    struct pass_time_measured m = {.us = {100, 103}, .context = 1000};
    struct pass_time c;
    for (m.rows = 1; m.rows < 4; m.rows++) {
        m.long_one_us = 100 + 1000 * 0.025;
        m.long_rows_us = 97 + 3 * m.rows + 1000 * (0.02 + 0.005 * m.rows);
        pass_time_init(&c, &m);
        must_be(c.read_us, m.rows > 1 ? 0.02 : 1e-4);
        must_be(c.attend_us, m.rows > 1 ? 0.005 : 0);
    }
    m.long_one_us = 0;
    pass_time_init(&c, &m);
    must_be(c.read_us, 1e-4);
    must_be(c.attend_us, 0);
    assert_true(c.scale == 1 && c.drafted_scale == 1);
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
        cmocka_unit_test(each_pass_moves_the_model_by_the_formulas),
        cmocka_unit_test(the_points_are_at_24_sizes),
        cmocka_unit_test(start_up_gives_the_times_of_a_position),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
