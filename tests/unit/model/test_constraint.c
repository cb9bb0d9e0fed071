/* test_constraint.c - the state of a constraint along a context, and its effect on a
 * distribution. */
#include "base/err.h"
#include "lib/lib.h"
#include "lib/oracles/plain_dist.h"
#include "model/constraint.h"

#define V 70

static void without_a_constraint_every_token_may_come(void **state)
{
    (void)state;
    constraint_advance(NULL, 3);
    constraint_rewind(NULL, 1);
    assert_null(constraint_mask(NULL));
}

static void a_ban_ends_when_the_context_is_long_enough(void **state)
{
    (void)state;
    const uint64_t mask[2] = {1, 2};
    struct constraint_ban_state s;
    constraint_ban_init(&s, mask, 12, 10);
    assert_ptr_equal(constraint_mask(&s.constraint), mask);
    constraint_advance(&s.constraint, 5);
    assert_ptr_equal(constraint_mask(&s.constraint), mask);
    constraint_advance(&s.constraint, 6);
    assert_null(constraint_mask(&s.constraint));
    constraint_ban_init(&s, mask, 10, 10);
    assert_null(constraint_mask(&s.constraint));
}

/* The state after a draft that was looked at and taken back is the committed one. */
static void a_rewound_ban_holds_again(void **state)
{
    (void)state;
    const uint64_t mask[2] = {1, 2};
    struct constraint_ban_state s;
    constraint_ban_init(&s, mask, 12, 10);
    for (uint32_t n = 0; n < 6; n++) {
        for (uint32_t i = 0; i < n; i++)
            constraint_advance(&s.constraint, i);
        assert_ptr_equal(constraint_mask(&s.constraint), n < 2 ? mask : NULL);
        constraint_rewind(&s.constraint, n);
        assert_ptr_equal(constraint_mask(&s.constraint), mask);
    }
}

/* The best token is banned: the next best is drawn until the ban ends. */
static void a_draw_obeys_the_constraint(void **state)
{
    (void)state;
    AUTO(dist_free) struct dist *d = NULL;
    assert_int_equal(dist_new(V, &plain_kernel, &d), 0);
    const struct dist_params greedy = {.top_p = 1, .repetition = 1};
    const float logits[V] = {[65] = 3, [2] = 2};
    uint64_t mask[2];
    struct constraint_ban_state s;
    dist_mask_ban(mask, V, (const uint32_t[]){65}, 1);
    constraint_ban_init(&s, mask, 4, 1);
    for (uint32_t n = 1; n < 8; n++) {
        dist_set(d, logits, &greedy, NULL, constraint_mask(&s.constraint));
        uint32_t token = dist_draw(d, 7, n);
        assert_int_equal(token, n < 4 ? 2 : 65);
        constraint_advance(&s.constraint, token);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_a_constraint_every_token_may_come),
        cmocka_unit_test(a_ban_ends_when_the_context_is_long_enough),
        cmocka_unit_test(a_rewound_ban_holds_again),
        cmocka_unit_test(a_draw_obeys_the_constraint),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
