/* test_suffix_pool.c - the ring of past outputs: what it has, its memory, and its restart. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "base/err.h"
#include "lib/fakes/failing.h"
#include "lib/lib.h"
// A test sets a position that 2^31 tokens would reach. NOLINTNEXTLINE(bugprone-suspicious-include)
#include "proposer-svc/props/suffix_pool.c"

#define TOKENS(...) (uint32_t[]){__VA_ARGS__}, sizeof((uint32_t[]){__VA_ARGS__}) / 4

static struct suffix_pool *pool_of(uint32_t max_tokens)
{
    struct suffix_pool *p;
    assert_int_equal(suffix_pool_new(max_tokens, 7, &p), 0);
    return p;
}

static void add(struct suffix_pool *p, const char *owner, const uint32_t *tokens, uint32_t n)
{
    suffix_pool_add(p, (const uint8_t *)owner, (uint32_t)strlen(owner), tokens, n);
}

/* The latest token that follows these two in the owner's outputs; 0: none. */
static uint32_t next_of(struct suffix_pool *p, const char *owner, uint32_t a, uint32_t b)
{
    struct suffix_pool_view v;
    const uint32_t gram[] = {a, b};
    if (!suffix_pool_lock(p, (const uint8_t *)owner, (uint32_t)strlen(owner), &v))
        return 0;
    uint32_t at = ngram_index_find(v.grams, 1, gram + 2, v.owner);
    bool found = at && at >= v.oldest + 2 && at < v.end;
    uint32_t token = found ? v.grams->tokens[at & v.grams->mask] : 0;
    suffix_pool_unlock(p);
    return token == SUFFIX_POOL_MARK ? 0 : token;
}

static void an_output_of_less_than_two_tokens_is_not_added(void **state)
{
    (void)state;
    AUTO(suffix_pool_free) struct suffix_pool *p = pool_of(16);
    add(p, "a", TOKENS(1));
    add(p, "a", TOKENS(1, SUFFIX_POOL_MARK, 3));
    assert_int_equal(suffix_pool_tokens(p), 0);
    add(p, "a", TOKENS(1, 2));
    assert_int_equal(suffix_pool_tokens(p), 3);
    add(p, "a", TOKENS(1, 2, SUFFIX_POOL_MARK, 3, 4)); // ends before what is no token
    assert_int_equal(suffix_pool_tokens(p), 6);
}

static void of_a_long_output_the_end_is_kept(void **state)
{
    (void)state;
    uint32_t tokens[40];
    for (uint32_t i = 0; i < 40; i++)
        tokens[i] = 100 + i;
    for (uint32_t n = 15; n <= 40; n++) {
        AUTO(suffix_pool_free) struct suffix_pool *p = pool_of(16);
        add(p, "a", tokens, n);
        assert_int_equal(suffix_pool_tokens(p), 16);
        uint32_t first = n - 15; // a mark and 15 tokens
        assert_int_equal(next_of(p, "a", 100 + first, 101 + first), 102 + first);
        assert_int_equal(next_of(p, "a", 99 + first, 100 + first), 0);
        assert_int_equal(next_of(p, "a", 97 + n, 98 + n), 99 + n);
    }
}

static void the_ring_is_filled_exactly_before_tokens_are_dropped(void **state)
{
    (void)state;
    AUTO(suffix_pool_free) struct suffix_pool *p = pool_of(10); // not a power of two
    add(p, "a", TOKENS(1, 2, 3, 4));
    add(p, "b", TOKENS(5, 6, 7, 8));
    assert_int_equal(suffix_pool_tokens(p), 10);
    assert_int_equal(next_of(p, "a", 1, 2), 3);
    add(p, "c", TOKENS(20, 21)); // drops a mark, 1 and 2
    assert_int_equal(suffix_pool_tokens(p), 10);
    assert_int_equal(next_of(p, "a", 1, 2), 0);
    assert_int_equal(next_of(p, "a", 3, 4), 0); // a mark follows
    assert_int_equal(next_of(p, "b", 5, 6), 7);
    add(p, "c", TOKENS(30, 31, 32)); // drops the rest of a, and a mark and 5
    assert_int_equal(find_owner(p, (const uint8_t *)"a", 1), 0);
    assert_int_equal(next_of(p, "b", 6, 7), 8);
    assert_int_equal(next_of(p, "b", 5, 6), 0);
    assert_int_equal(next_of(p, "c", 30, 31), 32);
}

static uint32_t n_used_slots(const struct suffix_pool *p, unsigned length)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < p->grams.n_slots; i++)
        n += p->grams.slots[(size_t)length * p->grams.n_slots + i] != 0;
    return n;
}

/* More owners than the first table has, in few buckets. Places of dropped tokens leave no slots. */
static void many_owners_come_and_go(void **state)
{
    (void)state;
    AUTO(suffix_pool_free) struct suffix_pool *p = pool_of(600); // 200 outputs of two tokens
    char owner[16];
    for (uint32_t i = 0; i < 1000; i++) {
        snprintf(owner, sizeof(owner), "owner %u", i);
        add(p, owner, TOKENS(5000 + i, 1000 + i));
        assert_int_equal(suffix_pool_tokens(p), i < 200 ? 3 * i + 3 : 600);
        for (uint32_t k = 0; k <= i; k += i > 300 ? 97 : 1) {
            snprintf(owner, sizeof(owner), "owner %u", k);
            uint32_t number = find_owner(p, (const uint8_t *)owner, (uint32_t)strlen(owner));
            assert_int_equal(number != 0, k + 200 > i);
            if (number)
                assert_int_equal(p->table[number].n_tokens, 3);
        }
    }
    assert_in_range(p->n_owners, 201, 202); // numbers are used again
    assert_int_equal(p->max_owners, 448);   // 64, then twice as many and 64
    assert_int_equal(n_used_slots(p, 0), 200);
    assert_int_equal(n_used_slots(p, 1), 0);
}

/* At the end of the positions all outputs are dropped. */
static void beyond_the_last_position_the_pool_begins_again(void **state)
{
    (void)state;
    for (uint32_t beyond = 0; beyond <= 1; beyond++) {
        AUTO(suffix_pool_free) struct suffix_pool *p = pool_of(64);
        p->oldest = p->end = (1u << 31) - 3 + beyond;
        add(p, "a", TOKENS(1, 2));
        assert_int_equal(p->end, (1u << 31) + beyond);
        add(p, "b", TOKENS(3, 4, 5));
        assert_int_equal(suffix_pool_tokens(p), beyond ? 4 : 7);
        assert_int_equal(p->oldest == 1, beyond);
        assert_int_equal(find_owner(p, (const uint8_t *)"a", 1) != 0, !beyond);
        assert_int_equal(next_of(p, "b", 3, 4), 5);
        add(p, "c", TOKENS(6, 7, 8));
        assert_int_equal(next_of(p, "c", 6, 7), 8);
        if (beyond)
            assert_int_equal(p->n_owners, 3);
    }
}

/* The owners of freed numbers, too, are forgotten. */
static void a_restart_reuses_no_freed_number(void **state)
{
    (void)state;
    AUTO(suffix_pool_free) struct suffix_pool *p = pool_of(6);
    add(p, "a", TOKENS(1, 2));
    add(p, "b", TOKENS(1, 2));
    add(p, "b", TOKENS(1, 2)); // the number of a is free
    assert_int_not_equal(p->first_free, 0);
    p->oldest += POSITION_MAX;
    p->end += POSITION_MAX;
    add(p, "c", TOKENS(1, 2));
    assert_int_equal(p->first_free, 0);
    assert_int_equal(p->n_owners, 2);
    assert_int_equal(find_owner(p, (const uint8_t *)"c", 1), 1);
}

static void a_view_has_the_owner_and_the_valid_positions(void **state)
{
    (void)state;
    AUTO(suffix_pool_free) struct suffix_pool *p = pool_of(10);
    struct suffix_pool_view v;
    assert_false(suffix_pool_lock(p, (const uint8_t *)"a", 1, &v));
    add(p, "a", TOKENS(1, 2, 3));
    assert_true(suffix_pool_lock(p, (const uint8_t *)"a", 1, &v));
    assert_int_equal(v.oldest, 1);
    assert_int_equal(v.end, 5);
    assert_int_equal(v.owner, 1);
    suffix_pool_unlock(p);
    add(p, "a", TOKENS(1, 2, 3, 4, 5, 6, 7, 8));
    assert_true(suffix_pool_lock(p, (const uint8_t *)"a", 1, &v));
    assert_int_equal(v.end - v.oldest, 10);
    suffix_pool_unlock(p);
}

/* Tokens and owners, 16 tokens per bucket, 4/3 slots per token for each of four lengths, and the
 * four places before each. Sizes are powers of two, slots are not. */
static size_t size_of_pool(uint32_t max_tokens, uint32_t size)
{
    return sizeof(struct suffix_pool) + 8 * size + size / 16 * 4 + (max_tokens / 3 * 4 + 4) * 16 +
           16 * size;
}

static void a_pool_has_46_bytes_per_token(void **state)
{
    (void)state;
    static const struct {
        uint32_t max_tokens, size;
    } cases[] = {{1, 16}, {16, 16}, {17, 32}, {1024, 1024}, {1025, 2048}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        failing_at(0);
        AUTO(suffix_pool_free) struct suffix_pool *p = pool_of(cases[i].max_tokens);
        assert_int_equal(failing_bytes(), size_of_pool(cases[i].max_tokens, cases[i].size));
    }
    assert_true(size_of_pool(1 << 20, 1 << 20) <= 46 << 20);
}

static void an_index_of_any_size_can_be_made(void **state)
{
    (void)state;
    for (uint32_t n = 1; n < 10; n++) {
        struct ngram_index g = {0};
        assert_int_equal(ngram_index_init(&g, n, n), 0);
        assert_int_equal(g.n_slots, n / 3 * 4 + 4);
        ngram_index_done(&g);
    }
}

static void without_memory_there_is_no_pool_and_nothing_is_added(void **state)
{
    (void)state;
    struct suffix_pool *p = NULL;
    int r = -ENOMEM;
    for (unsigned n = 1; r < 0; n++) {
        failing_at(n);
        r = suffix_pool_new(16, 7, &p);
        assert_true(r == (failing_has_failed() ? -ENOMEM : 0));
        assert_string_equal(fail_text(),
                            n == 1 ? "no memory" : "no memory for 16 tokens of past outputs");
        assert_true(n < 10);
    }
    failing_at(1);
    add(p, "a", TOKENS(1, 2, 3)); // no memory for the table of owners
    assert_true(failing_has_failed());
    assert_int_equal(suffix_pool_tokens(p), 0);
    add(p, "a", TOKENS(1, 2, 3));
    assert_int_equal(next_of(p, "a", 1, 2), 3);
    suffix_pool_free(p);
    suffix_pool_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_output_of_less_than_two_tokens_is_not_added),
        cmocka_unit_test(of_a_long_output_the_end_is_kept),
        cmocka_unit_test(the_ring_is_filled_exactly_before_tokens_are_dropped),
        cmocka_unit_test(many_owners_come_and_go),
        cmocka_unit_test(beyond_the_last_position_the_pool_begins_again),
        cmocka_unit_test(a_restart_reuses_no_freed_number),
        cmocka_unit_test(a_view_has_the_owner_and_the_valid_positions),
        cmocka_unit_test(a_pool_has_46_bytes_per_token),
        cmocka_unit_test(an_index_of_any_size_can_be_made),
        cmocka_unit_test(without_memory_there_is_no_pool_and_nothing_is_added),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
