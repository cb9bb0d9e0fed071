/* test_draft.c - drafts are checked, followed and cut as trees. */
#include <stdlib.h>
#include <string.h>
#include "lib/lib.h"
#include "model/draft.h"

#define V 5

/*        context
 *        /     \
 *      1(0)    2(1)
 *      / \       \
 *   1(2)  3(3)   1(4)
 *          |
 *         2(5)           */
static const struct draft tree = {.n = 6,
                                  .tokens = {1, 2, 1, 3, 1, 2},
                                  .parents = {-1, -1, 0, 0, 1, 3},
                                  .survival = {.8f, .5f, .2f, .4f, .5f, .1f},
                                  .tree = true};

static void malformed_drafts_are_invalid(void **state)
{
    (void)state;
    struct draft forward = {.n = 2, .tokens = {1, 1}, .parents = {-1, 1}};
    struct draft below = {.n = 1, .tokens = {1}, .parents = {-2}};
    struct draft foreign = {.n = 1, .tokens = {V}, .parents = {-1}};
    struct draft too_long = {.n = DRAFT_MAX_NODES + 1};
    assert_false(draft_valid(&forward, V));
    assert_false(draft_valid(&below, V));
    assert_false(draft_valid(&foreign, V));
    assert_false(draft_valid(&too_long, V));
    assert_true(draft_valid(&tree, V));
    assert_true(draft_valid(&(struct draft){0}, V));
}

static void a_draft_branches_if_it_is_no_chain(void **state)
{
    (void)state;
    assert_true(draft_branches(&tree));
    assert_false(draft_branches(&(struct draft){.n = 3, .parents = {-1, 0, 1}}));
    assert_false(draft_branches(&(struct draft){0}));
}

static void tokens_are_followed_down_the_tree(void **state)
{
    (void)state;
    assert_int_equal(draft_follow(&tree, NULL, 0), -1);
    assert_int_equal(draft_follow(&tree, (uint32_t[]){2, 1}, 2), 4);
    assert_int_equal(draft_follow(&tree, (uint32_t[]){1, 3, 2}, 3), 5);
    assert_int_equal(draft_follow(&tree, (uint32_t[]){1, 2}, 2), -2);
    assert_int_equal(draft_follow(&tree, (uint32_t[]){1, 3, 2, 0}, 4), -2);
}

static void trimming_keeps_a_tree_whole(void **state)
{
    (void)state;
    struct draft d = tree;
    draft_trim(&d, 6, 2);
    assert_int_equal(d.n, 5); // all but the deepest
    draft_trim(&d, 4, 9);
    assert_int_equal(d.n, 4);
    assert_memory_equal(d.tokens, ((uint32_t[]){1, 2, 1, 3}), 16);
    assert_memory_equal(d.parents, ((int32_t[]){-1, -1, 0, 0}), 16);
    draft_trim(&d, 9, 0);
    assert_int_equal(d.n, 0);
    draft_trim(&d, 9, 9);
    assert_int_equal(d.n, 0);
}

static void survival_and_q_row_move_with_their_token(void **state)
{
    (void)state;
    struct draft_q q = {.row = {10, 11, 12, 13}};
    struct draft d = {.n = 4,
                      .tokens = {5, 6, 7, 8},
                      .parents = {-1, 0, -1, 2},
                      .survival = {.5f, .4f, .3f, .2f},
                      .q = &q};
    draft_trim(&d, 4, 1);
    assert_int_equal(d.n, 2);
    assert_memory_equal(d.tokens, ((uint32_t[]){5, 7}), 8);
    assert_memory_equal(d.survival, ((float[]){.5f, .3f}), 8);
    assert_memory_equal(q.row, ((uint8_t[]){10, 12}), 2);
}

static void unlikely_tokens_are_cut_with_all_below_them(void **state)
{
    (void)state;
    // a .9 -> b .45 (half of a's) -> c .45; d .3 -> e .3
    struct draft d = {.n = 5,
                      .tokens = {1, 2, 3, 4, 5},
                      .parents = {-1, 0, 1, -1, 3},
                      .survival = {.9f, .45f, .45f, .3f, .3f}};
    draft_cut(&d, .25f);
    assert_int_equal(d.n, 5);
    draft_cut(&d, .4f); // d and e
    assert_int_equal(d.n, 3);
    assert_memory_equal(d.tokens, ((uint32_t[]){1, 2, 3}), 12);
    assert_memory_equal(d.parents, ((int32_t[]){-1, 0, 1}), 12);
    draft_cut(&d, .6f); // b and c
    assert_int_equal(d.n, 1);
    draft_cut(&d, .95f);
    assert_int_equal(d.n, 0);
}

static void nodes_that_are_kept_find_their_parents(void **state)
{
    (void)state;
    struct draft d = {.n = 4,
                      .tokens = {1, 2, 3, 4},
                      .parents = {-1, -1, 0, 1},
                      .survival = {.2f, .7f, .2f, .6f}};
    draft_cut(&d, .5f);
    assert_int_equal(d.n, 2);
    assert_memory_equal(d.tokens, ((uint32_t[]){2, 4}), 8);
    assert_memory_equal(d.parents, ((int32_t[]){-1, 0}), 8);
    assert_memory_equal(d.survival, ((float[]){.7f, .6f}), 8);
}

static void an_unlikely_drawn_token_stays_and_ends_its_draft(void **state)
{
    (void)state;
    struct draft_q q = {.row = {0, 1, 2, 3}};
    struct draft d = {.n = 4,
                      .tokens = {1, 2, 3, 4},
                      .parents = {-1, 0, 1, 2},
                      .survival = {.9f, .8f, .2f, .2f},
                      .q = &q};
    draft_cut(&d, .5f);
    assert_int_equal(d.n, 3);
    assert_memory_equal(d.tokens, ((uint32_t[]){1, 2, 3}), 12);
}

static void descending_keeps_what_is_below_a_node(void **state)
{
    (void)state;
    struct draft d = tree;
    draft_descend(&d, 0);
    assert_int_equal(d.n, 3);
    assert_memory_equal(d.tokens, ((uint32_t[]){1, 3, 2}), 12);
    assert_memory_equal(d.parents, ((int32_t[]){-1, -1, 1}), 12);
    assert_memory_equal(d.survival, ((float[]){.2f / .8f, .4f / .8f, .1f / .8f}), 12);
    draft_descend(&d, 2);
    assert_int_equal(d.n, 0);
    d = tree;
    draft_descend(&d, -1);
    assert_memory_equal(&d, &tree, sizeof(d));
}

static void the_likeliest_path_has_the_best_child_of_each_node(void **state)
{
    (void)state;
    struct draft d = tree;
    draft_keep_likeliest(&d);
    assert_int_equal(d.n, 3);
    assert_memory_equal(d.tokens, ((uint32_t[]){1, 3, 2}), 12);
    assert_memory_equal(d.parents, ((int32_t[]){-1, 0, 1}), 12);
    assert_memory_equal(d.survival, ((float[]){.8f, .4f, .1f}), 12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(malformed_drafts_are_invalid),
        cmocka_unit_test(a_draft_branches_if_it_is_no_chain),
        cmocka_unit_test(tokens_are_followed_down_the_tree),
        cmocka_unit_test(trimming_keeps_a_tree_whole),
        cmocka_unit_test(survival_and_q_row_move_with_their_token),
        cmocka_unit_test(unlikely_tokens_are_cut_with_all_below_them),
        cmocka_unit_test(nodes_that_are_kept_find_their_parents),
        cmocka_unit_test(an_unlikely_drawn_token_stays_and_ends_its_draft),
        cmocka_unit_test(descending_keeps_what_is_below_a_node),
        cmocka_unit_test(the_likeliest_path_has_the_best_child_of_each_node),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
