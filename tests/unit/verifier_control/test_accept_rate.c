/* test_accept_rate.c - the exact rates of docs/controller.md, "Acceptance of a draft token". */
#include <math.h>
#include "lib/lib.h"
#include "verifier-svc/control/accept_rate.h"

static void must_be(double got, double expected)
{
    assert_true(fabs(got - expected) < 1e-6);
}

static void a_token_counts_in_the_class_of_its_depth(void **state)
{
    (void)state;
    static const unsigned class_of[] = {0, 1, 2, 3, 3, 3, 4, 4, 4, 4, 5, 5, 5};
    for (uint32_t depth = 0; depth < ARRAY_LEN(class_of); depth++) {
        struct accept_rate a = {0};
        accept_rate_seen(&a, depth, 1, true);
        for (unsigned i = 0; i < ACCEPT_RATE_DEPTHS; i++) {
            bool counts = i == class_of[depth];
            must_be(a.all[i].tried, counts);
            must_be(a.all[i].accepted, counts);
            must_be(a.silent[i].tried, counts);
            must_be(a.silent[i].accepted, counts);
        }
        for (unsigned i = 0; i < ACCEPT_RATE_PREDICTIONS; i++)
            must_be(a.predicted[i].tried, 0);
    }
}

static void a_prediction_below_1_counts_in_its_bin(void **state)
{
    (void)state;
    static const double predicted[] = {0, .19, .2, .39, .4, .59, .6, .79, .8, .94, .95, .99};
    for (unsigned k = 0; k < ARRAY_LEN(predicted); k++) {
        struct accept_rate a = {0};
        accept_rate_seen(&a, 1, predicted[k], false);
        for (unsigned i = 0; i < ACCEPT_RATE_PREDICTIONS; i++) {
            must_be(a.predicted[i].tried, i == k / 2);
            must_be(a.predicted[i].accepted, 0);
        }
        must_be(a.all[1].tried, 1);
        must_be(a.silent[1].tried, 0);
    }
}

static void without_counts_the_priors_hold(void **state)
{
    (void)state;
    static const double mean[] = {.1, .3, .5, .7, .88, .97};
    static const double inside[] = {.05, .25, .45, .65, .85, .96};
    struct accept_rate a = {0};
    for (uint32_t depth = 0; depth < 20; depth++) {
        must_be(accept_rate_at(&a, depth), 0.7);
        must_be(accept_rate_predicted(&a, depth, 1), 0.7);
        for (unsigned i = 0; i < ARRAY_LEN(mean); i++)
            must_be(accept_rate_predicted(&a, depth, inside[i]), mean[i]);
    }
}

static void counts_fade_and_the_prior_weighs_two_tokens(void **state)
{
    (void)state;
    struct accept_rate a = {0};
    double tried = 0, accepted = 0;
    for (unsigned i = 0; i < 50; i++) {
        bool was_accepted = i % 3 == 0;
        accept_rate_seen(&a, 0, 0.5, was_accepted);
        tried = 0.99 * tried + 1;
        accepted = 0.99 * accepted + was_accepted;
        double first = (accepted + 2 * 0.7) / (tried + 2);
        assert_true(fabs(accept_rate_at(&a, 0) - first) < 1e-5);
        assert_true(fabs(accept_rate_at(&a, 7) - first) < 1e-5); // the deepest one that was tried
        assert_true(fabs(accept_rate_predicted(&a, 4, 0.5) - (accepted + 1) / (tried + 2)) < 1e-5);
        assert_true(fabs(accept_rate_predicted(&a, 0, 1) - first) < 1e-5); // nothing silent yet
    }
}

/* r_0 is the prior of r_1, and r(d) that of the silent class. */
static void each_rate_is_the_prior_of_the_next(void **state)
{
    (void)state;
    struct accept_rate a = {0};
    accept_rate_seen(&a, 0, 0.5, false);
    accept_rate_seen(&a, 1, 1, true);
    double r0 = 2 * 0.7 / 3, r1 = (1 + 2 * r0) / 3;
    must_be(accept_rate_at(&a, 0), r0);
    must_be(accept_rate_at(&a, 1), r1);
    must_be(accept_rate_at(&a, 2), r1);
    must_be(accept_rate_predicted(&a, 1, 1), (1 + 2 * r1) / 3);
    must_be(accept_rate_predicted(&a, 0, 1), r0);
}

static void a_prediction_is_relative_to_the_parent(void **state)
{
    (void)state;
    struct draft d = {.n = 4, .parents = {-1, 0, 0, 2}, .survival = {.5f, .25f, 0, 0}};
    must_be(accept_rate_alone(&d, 0), 0.5);
    must_be(accept_rate_alone(&d, 1), 0.5);
    must_be(accept_rate_alone(&d, 2), 0);
    must_be(accept_rate_alone(&d, 3), 0); // its parent cannot survive
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_token_counts_in_the_class_of_its_depth),
        cmocka_unit_test(a_prediction_below_1_counts_in_its_bin),
        cmocka_unit_test(without_counts_the_priors_hold),
        cmocka_unit_test(counts_fade_and_the_prior_weighs_two_tokens),
        cmocka_unit_test(each_rate_is_the_prior_of_the_next),
        cmocka_unit_test(a_prediction_is_relative_to_the_parent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
