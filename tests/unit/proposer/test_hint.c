/* test_hint.c - drafts are copied from the output's position in the hint. */
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "base/rng.h"
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

static void one_token_counts_up_to_32_after_the_lost_position(void **state)
{
    (void)state;
    for (uint32_t ahead = 32; ahead <= 33; ahead++) {
        struct output *t = new_output();
        OUTPUT(t, 1, 2, 3); // the next token of the hint is at index 3
        EXPECT(t, 4);
        OUTPUT(t, 3 + ahead);
        struct draft d = draft(t, 1);
        assert_int_equal(d.n, ahead == 32);
        if (d.n)
            assert_int_equal(d.tokens[0], 36);
    }
    struct output *t = new_output();
    OUTPUT(t, 1, 2, 3, 2); // before the lost position
    assert_int_equal(draft(t, 3).n, 0);
}

static void a_draft_is_a_chain_of_at_most_k_point_tokens(void **state)
{
    (void)state;
    struct hint h = {.n = 100};
    uint32_t tokens[100], prompt = 7;
    struct prop_context c = {.tokens = &prompt, .n = 1, .n_prompt = 1};
    for (uint32_t i = 0; i < 100; i++)
        tokens[i] = i;
    h.tokens = tokens;
    for (uint32_t k = 1; k <= DRAFT_MAX_NODES; k++) {
        struct draft d = {.tree = true, .q_mode = DRAFT_SPARSE};
        assert_true(hint_draft(&h, &c, k, &d));
        assert_int_equal(d.n, k);
        assert_false(d.tree);
        assert_int_equal(d.q_mode, DRAFT_POINT);
        assert_memory_equal(d.tokens, tokens, k * sizeof(tokens[0]));
        for (uint32_t i = 0; i < k; i++)
            assert_true(d.survival[i] == 1 / (float)(i + 2));
    }
}

static void without_a_hint_or_a_whole_prompt_there_is_no_draft(void **state)
{
    (void)state;
    struct output *t = new_output();
    struct draft d;
    struct prop_context c = {.tokens = t->context, .n = N_PROMPT, .n_prompt = N_PROMPT + 1};
    assert_false(hint_draft(&t->hint, &c, 3, &d));
    struct hint none = {0};
    c.n_prompt = N_PROMPT;
    assert_false(hint_draft(&none, &c, 3, &d));
}

/* ---- against a plain search ---- */

/* The position in the hint, found token by token. */
struct plain {
    uint32_t at, n_compared, n_agreed;
    bool is_lost;
};

static uint32_t n_equal_before(const uint32_t *hint, uint32_t at, const uint32_t *context,
                               uint32_t n, uint32_t max)
{
    uint32_t m = 0;
    while (m < max && m < at && hint[at - 1 - m] == context[n - 1 - m])
        m++;
    return m;
}

/* All positions: those after the lost one, then it and those before it, backwards. */
static void search_all(struct plain *p, const uint32_t *hint, uint32_t n_hint,
                       const struct prop_context *c)
{
    uint32_t longest = 0, best = 0, output = c->n - c->n_prompt, max = output < 32 ? output : 32;
    for (uint32_t at = p->at + 1; at <= n_hint; at++) {
        uint32_t m = n_equal_before(hint, at, c->tokens, c->n, max);
        best = m > longest ? at : best;
        longest = m > longest ? m : longest;
    }
    for (uint32_t at = p->at; at > 0; at--) {
        uint32_t m = n_equal_before(hint, at, c->tokens, c->n, max);
        best = m > longest ? at : best;
        longest = m > longest ? m : longest;
    }
    p->is_lost = longest == 0 || (longest == 1 && (best <= p->at || best > p->at + 32));
    if (!p->is_lost) {
        p->at = best;
        p->n_agreed = longest;
    }
}

static void follow(struct plain *p, const uint32_t *hint, uint32_t n_hint,
                   const struct prop_context *c)
{
    if (p->n_compared < c->n_prompt || c->n == c->n_prompt)
        *p = (struct plain){.n_compared = c->n_prompt};
    while (!p->is_lost && p->n_compared < c->n && p->at < n_hint &&
           c->tokens[p->n_compared] == hint[p->at]) {
        p->n_compared++;
        p->at++;
        p->n_agreed++;
    }
    if (c->n > c->n_prompt && (p->is_lost || p->n_compared < c->n))
        search_all(p, hint, n_hint, c);
    p->n_compared = c->n;
}

#define PLAIN_MAX 600

/* The next part of an output: a piece of the hint, or random tokens. */
static uint32_t next_part(const uint32_t *hint, uint32_t n_hint, uint32_t n_vocab, uint64_t r,
                          uint32_t *to)
{
    uint32_t from = (uint32_t)(r >> 8) % n_hint, n = r % 3 ? (uint32_t)(r >> 24) % 50 : 1;
    bool copies = r >> 60 & 3;
    n = copies && n > n_hint - from ? n_hint - from : n;
    for (uint32_t i = 0; i < n; i++)
        to[i] = copies ? hint[from + i] : (uint32_t)(rng_splitmix64(r + i) % n_vocab);
    return n;
}

/* Outputs that follow a hint, leave it and come back, and are cut. The arrays have exactly their
 * size, so that a sanitizer sees what is read outside. */
static void compare_with_plain_search(uint32_t n_hint, uint32_t n_vocab, uint64_t seed)
{
    AUTO(mem_free) uint32_t *tokens = malloc(n_hint * sizeof(*tokens));
    AUTO(mem_free) uint32_t *context = malloc(PLAIN_MAX * sizeof(*context));
    for (uint32_t i = 0; i < n_hint; i++)
        tokens[i] = (uint32_t)(rng_splitmix64(seed + i) % n_vocab);
    struct hint h = {.tokens = tokens, .n = n_hint};
    struct plain p = {0};
    struct prop_context c = {.tokens = context, .n = 2, .n_prompt = 2};
    context[0] = context[1] = 0;
    for (uint32_t step = 0; step < 60 && c.n + 50 < PLAIN_MAX; step++) {
        uint64_t r = rng_splitmix64(seed * 1000 + step);
        if (r >> 56 == 0 || step % 13 == 12) {
            c.n -= (uint32_t)(r >> 32) % (c.n - c.n_prompt + 1);
            hint_cut(&h, c.n);
            p.is_lost |= c.n < p.n_compared;
        }
        c.n += next_part(tokens, n_hint, n_vocab, r, context + c.n);
        uint32_t k = 1 + (uint32_t)(r >> 40) % 5;
        struct draft d = {0};
        bool drafted = hint_draft(&h, &c, k, &d);
        follow(&p, tokens, n_hint, &c);
        uint32_t left = p.is_lost ? 0 : n_hint - p.at;
        assert_int_equal(drafted, left > 0);
        assert_int_equal(d.n, left < k ? left : k);
        assert_memory_equal(d.tokens, tokens + p.at, d.n * sizeof(tokens[0]));
        for (uint32_t i = 0; i < d.n; i++)
            assert_true(d.survival[i] == (float)(p.n_agreed + 1) / (float)(p.n_agreed + i + 2));
    }
}

static void each_draft_equals_that_of_a_plain_search(void **state)
{
    (void)state;
    for (uint32_t n_hint = 1; n_hint <= 200; n_hint += n_hint < 8 ? 1 : 31)
        for (uint32_t n_vocab = 1; n_vocab <= 64; n_vocab *= 2)
            compare_with_plain_search(n_hint, n_vocab, n_hint * 100 + n_vocab);
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
        cmocka_unit_test(one_token_counts_up_to_32_after_the_lost_position),
        cmocka_unit_test(a_draft_is_a_chain_of_at_most_k_point_tokens),
        cmocka_unit_test(without_a_hint_or_a_whole_prompt_there_is_no_draft),
        cmocka_unit_test(each_draft_equals_that_of_a_plain_search),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
