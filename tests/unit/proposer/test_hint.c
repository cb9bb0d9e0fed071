/* test_hint.c - the hint is copied from where the output stands in it. */
#include <string.h>
#include "lib/lib.h"
#include "proposer-svc/hint.h"

#define N_PROMPT 3

struct talk {
    struct hint hint;
    uint32_t hint_tokens[64], context[128];
    uint32_t n;
};

/* The hint is 1, 2, 3 ... 40; the prompt is no part of the output. */
static struct talk *talk_of(void)
{
    static struct talk t;
    t = (struct talk){.context = {5, 6, 7}, .n = N_PROMPT};
    for (uint32_t i = 0; i < 40; i++)
        t.hint_tokens[i] = i + 1;
    t.hint = (struct hint){.tokens = t.hint_tokens, .n = 40};
    return &t;
}

static struct draft draft(struct talk *t, uint32_t k)
{
    struct draft d = {0};
    struct prop_context c = {.tokens = t->context, .n = t->n, .n_prompt = N_PROMPT};
    if (!hint_draft(&t->hint, &c, k, &d))
        assert_int_equal(d.n, 0);
    assert_true(d.n <= k);
    return d;
}

static void say(struct talk *t, const uint32_t *tokens, uint32_t n)
{
    memcpy(t->context + t->n, tokens, n * sizeof(*tokens));
    t->n += n;
}

#define SAY(t, ...) say(t, (uint32_t[]){__VA_ARGS__}, sizeof((uint32_t[]){__VA_ARGS__}) / 4)
/* The next three tokens are drafted from `first` on. */
#define EXPECT(t, first)                                                                           \
    do {                                                                                           \
        struct draft d_ = draft(t, 3);                                                             \
        assert_int_equal(d_.n, 3);                                                                 \
        assert_memory_equal(d_.tokens, ((uint32_t[]){first, first + 1, first + 2}), 12);           \
    } while (0)

static void it_begins_with_the_output(void **state)
{
    (void)state;
    EXPECT(talk_of(), 1);
}

static void it_goes_on_where_the_output_stands(void **state)
{
    (void)state;
    struct talk *t = talk_of();
    EXPECT(t, 1);
    SAY(t, 1, 2, 3, 4);
    EXPECT(t, 5);
    SAY(t, 5);
    EXPECT(t, 6);
}

static void it_is_sure_where_much_has_agreed(void **state)
{
    (void)state;
    struct talk *t = talk_of();
    struct draft d = draft(t, 4);
    assert_true(d.survival[0] == 0.5f);
    SAY(t, 1, 2, 3, 4, 5, 6, 7, 8);
    d = draft(t, 4);
    assert_true(d.survival[0] == 0.9f);
    assert_true(d.survival[3] == 9.0f / 13);
}

static void a_replaced_token_is_passed(void **state)
{
    (void)state;
    struct talk *t = talk_of();
    SAY(t, 1, 2, 3, 99);
    assert_int_equal(draft(t, 3).n, 0);
    SAY(t, 5);
    EXPECT(t, 6);
}

static void inserted_tokens_are_passed(void **state)
{
    (void)state;
    struct talk *t = talk_of();
    SAY(t, 1, 2, 3, 90, 91, 92, 93);
    assert_int_equal(draft(t, 3).n, 0);
    SAY(t, 4);
    EXPECT(t, 5);
}

static void left_out_tokens_are_passed(void **state)
{
    (void)state;
    struct talk *t = talk_of();
    SAY(t, 1, 2, 3);
    EXPECT(t, 4);
    SAY(t, 20);
    EXPECT(t, 21);
}

static void far_away_one_token_is_not_enough(void **state)
{
    (void)state;
    struct talk *t = talk_of();
    SAY(t, 1, 2, 3, 39);
    assert_int_equal(draft(t, 3).n, 0);
    t->n--;
    hint_cut(&t->hint, t->n);
    SAY(t, 35, 36);
    EXPECT(t, 37);
}

static void the_longest_match_is_where_it_goes_on(void **state)
{
    (void)state;
    struct talk *t = talk_of();
    memcpy(t->hint_tokens + 10, (uint32_t[]){1, 2, 50, 51}, 16); // 1 2 3 ... 1 2 50 51
    SAY(t, 77, 1, 2);
    EXPECT(t, 3);
    SAY(t, 9, 10, 1, 2);
    struct draft d = draft(t, 2);
    assert_memory_equal(d.tokens, ((uint32_t[]){50, 51}), 8);
}

static void a_cut_context_is_looked_up_again(void **state)
{
    (void)state;
    struct talk *t = talk_of();
    SAY(t, 1, 2, 3, 4, 5, 6);
    EXPECT(t, 7);
    t->n -= 3;
    hint_cut(&t->hint, t->n);
    EXPECT(t, 4);
    t->n = N_PROMPT;
    hint_cut(&t->hint, t->n);
    EXPECT(t, 1);
}

static void at_its_end_there_is_nothing(void **state)
{
    (void)state;
    struct talk *t = talk_of();
    for (uint32_t i = 1; i <= 38; i++)
        SAY(t, i);
    assert_int_equal(draft(t, 9).n, 2);
    SAY(t, 39, 40);
    assert_int_equal(draft(t, 9).n, 0);
    SAY(t, 41);
    assert_int_equal(draft(t, 9).n, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_begins_with_the_output),
        cmocka_unit_test(it_goes_on_where_the_output_stands),
        cmocka_unit_test(it_is_sure_where_much_has_agreed),
        cmocka_unit_test(a_replaced_token_is_passed),
        cmocka_unit_test(inserted_tokens_are_passed),
        cmocka_unit_test(left_out_tokens_are_passed),
        cmocka_unit_test(far_away_one_token_is_not_enough),
        cmocka_unit_test(the_longest_match_is_where_it_goes_on),
        cmocka_unit_test(a_cut_context_is_looked_up_again),
        cmocka_unit_test(at_its_end_there_is_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
