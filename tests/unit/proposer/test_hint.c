/* test_hint.c - drafts are copied from the output's position in the hint. */
#include <string.h>
#include "lib/lib.h"
#include "proposer-svc/hint.h"

#define N_PROMPT 3

struct output {
    struct hint hint;
    uint32_t hint_tokens[64], context[128];
    uint32_t n;
};

/* The hint is 1, 2, 3 ... 40. The prompt (5, 6, 7) is not part of the output. */
static struct output *new_output(void)
{
    static struct output t;
    t = (struct output){.context = {5, 6, 7}, .n = N_PROMPT};
    for (uint32_t i = 0; i < 40; i++)
        t.hint_tokens[i] = i + 1;
    t.hint = (struct hint){.tokens = t.hint_tokens, .n = 40};
    return &t;
}

static struct draft draft(struct output *t, uint32_t k)
{
    struct draft d = {0};
    struct prop_context c = {.tokens = t->context, .n = t->n, .n_prompt = N_PROMPT};
    if (!hint_draft(&t->hint, &c, k, &d))
        assert_int_equal(d.n, 0);
    assert_true(d.n <= k);
    return d;
}

static void append_output(struct output *t, const uint32_t *tokens, uint32_t n)
{
    memcpy(t->context + t->n, tokens, n * sizeof(*tokens));
    t->n += n;
}

#define OUTPUT(t, ...)                                                                             \
    append_output(t, (uint32_t[]){__VA_ARGS__}, sizeof((uint32_t[]){__VA_ARGS__}) / 4)
/* A draft of three tokens is first, first + 1, first + 2. */
#define EXPECT(t, first)                                                                           \
    do {                                                                                           \
        struct draft d_ = draft(t, 3);                                                             \
        assert_int_equal(d_.n, 3);                                                                 \
        assert_memory_equal(d_.tokens, ((uint32_t[]){first, first + 1, first + 2}), 12);           \
    } while (0)

static void the_first_draft_is_the_start_of_the_hint(void **state)
{
    (void)state;
    EXPECT(new_output(), 1);
}

static void a_draft_continues_at_the_outputs_position(void **state)
{
    (void)state;
    struct output *t = new_output();
    EXPECT(t, 1);
    OUTPUT(t, 1, 2, 3, 4);
    EXPECT(t, 5);
    OUTPUT(t, 5);
    EXPECT(t, 6);
}

static void survival_rises_with_the_number_of_equal_tokens(void **state)
{
    (void)state;
    struct output *t = new_output();
    struct draft d = draft(t, 4);
    assert_true(d.survival[0] == 0.5f);
    OUTPUT(t, 1, 2, 3, 4, 5, 6, 7, 8);
    d = draft(t, 4);
    assert_true(d.survival[0] == 0.9f);
    assert_true(d.survival[3] == 9.0f / 13);
}

static void a_replaced_token_is_passed(void **state)
{
    (void)state;
    struct output *t = new_output();
    OUTPUT(t, 1, 2, 3, 99);
    assert_int_equal(draft(t, 3).n, 0);
    OUTPUT(t, 5);
    EXPECT(t, 6);
}

static void inserted_tokens_are_passed(void **state)
{
    (void)state;
    struct output *t = new_output();
    OUTPUT(t, 1, 2, 3, 90, 91, 92, 93);
    assert_int_equal(draft(t, 3).n, 0);
    OUTPUT(t, 4);
    EXPECT(t, 5);
}

static void skipped_tokens_are_passed(void **state)
{
    (void)state;
    struct output *t = new_output();
    OUTPUT(t, 1, 2, 3);
    EXPECT(t, 4);
    OUTPUT(t, 20);
    EXPECT(t, 21);
}

static void far_from_the_lost_position_one_token_is_not_enough(void **state)
{
    (void)state;
    struct output *t = new_output();
    OUTPUT(t, 1, 2, 3, 39);
    assert_int_equal(draft(t, 3).n, 0);
    t->n--;
    hint_cut(&t->hint, t->n);
    OUTPUT(t, 35, 36);
    EXPECT(t, 37);
}

static void the_longest_match_is_the_new_position(void **state)
{
    (void)state;
    struct output *t = new_output();
    memcpy(t->hint_tokens + 10, (uint32_t[]){1, 2, 50, 51}, 16); // 1 2 3 ... 1 2 50 51
    OUTPUT(t, 77, 1, 2);
    EXPECT(t, 3);
    OUTPUT(t, 9, 10, 1, 2);
    struct draft d = draft(t, 2);
    assert_memory_equal(d.tokens, ((uint32_t[]){50, 51}), 8);
}

static void after_a_cut_the_position_is_searched_again(void **state)
{
    (void)state;
    struct output *t = new_output();
    OUTPUT(t, 1, 2, 3, 4, 5, 6);
    EXPECT(t, 7);
    t->n -= 3;
    hint_cut(&t->hint, t->n);
    EXPECT(t, 4);
    t->n = N_PROMPT;
    hint_cut(&t->hint, t->n);
    EXPECT(t, 1);
}

static void at_the_end_of_the_hint_there_is_no_draft(void **state)
{
    (void)state;
    struct output *t = new_output();
    for (uint32_t i = 1; i <= 38; i++)
        OUTPUT(t, i);
    assert_int_equal(draft(t, 9).n, 2);
    OUTPUT(t, 39, 40);
    assert_int_equal(draft(t, 9).n, 0);
    OUTPUT(t, 41);
    assert_int_equal(draft(t, 9).n, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_draft_is_the_start_of_the_hint),
        cmocka_unit_test(a_draft_continues_at_the_outputs_position),
        cmocka_unit_test(survival_rises_with_the_number_of_equal_tokens),
        cmocka_unit_test(a_replaced_token_is_passed),
        cmocka_unit_test(inserted_tokens_are_passed),
        cmocka_unit_test(skipped_tokens_are_passed),
        cmocka_unit_test(far_from_the_lost_position_one_token_is_not_enough),
        cmocka_unit_test(the_longest_match_is_the_new_position),
        cmocka_unit_test(after_a_cut_the_position_is_searched_again),
        cmocka_unit_test(at_the_end_of_the_hint_there_is_no_draft),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
