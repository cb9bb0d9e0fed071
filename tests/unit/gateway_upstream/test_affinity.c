/* A prompt finds the verifiers that have seen its prefixes, and no others. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "gateway/upstream/affinity.h"
#include "lib/fakes/failing.h"
#include "lib/lib.h"

#define PIECES(n) ((n)*AFFINITY_PIECE)

static char text[PIECES(AFFINITY_PIECES + 8)];

/* The first len bytes of a text; the byte at `at` differs (-1: none). */
static struct affinity_prompt prompt(const char *salt, size_t len, int at)
{
    struct affinity_prompt p;
    for (size_t i = 0; i < sizeof(text); i++)
        text[i] = (char)(i * 31 + i / 251);
    if (at >= 0)
        text[at] ^= 1;
    affinity_of(salt, text, len, &p);
    return p;
}

static unsigned seen_by(const struct affinity *a, struct affinity_prompt p, unsigned verifier)
{
    unsigned pieces[32];
    affinity_find(a, &p, 32, pieces);
    return pieces[verifier];
}

static void only_whole_pieces_count(void **state)
{
    (void)state;
    assert_int_equal(prompt("", 0, -1).n, 0);
    assert_int_equal(prompt("", PIECES(1) - 1, -1).n, 0);
    assert_int_equal(prompt("", PIECES(1), -1).n, 1);
    assert_int_equal(prompt("", PIECES(3) + 7, -1).n, 3);
    assert_int_equal(prompt("", sizeof(text), -1).n, AFFINITY_PIECES);
}

static void the_common_prefix_is_found(void **state)
{
    (void)state;
    AUTO(affinity_free) struct affinity *a = NULL;
    assert_int_equal(affinity_new(&a), 0);
    struct affinity_prompt p = prompt("", PIECES(10), -1);
    assert_int_equal(seen_by(a, p, 0), 0);
    affinity_note(a, &p, 0);
    assert_int_equal(seen_by(a, p, 0), 10);
    assert_int_equal(seen_by(a, p, 1), 0);
    assert_int_equal(seen_by(a, prompt("", PIECES(20), -1), 0), 10);
    assert_int_equal(seen_by(a, prompt("", PIECES(4), -1), 0), 4);
    assert_int_equal(seen_by(a, prompt("", PIECES(10), PIECES(6) + 1), 0), 6);
    assert_int_equal(seen_by(a, prompt("", PIECES(10), 0), 0), 0);
}

static void each_verifier_has_its_own_prefix_length(void **state)
{
    (void)state;
    AUTO(affinity_free) struct affinity *a = NULL;
    assert_int_equal(affinity_new(&a), 0);
    struct affinity_prompt shorter = prompt("", PIECES(3), -1), longer = prompt("", PIECES(9), -1);
    affinity_note(a, &shorter, 31);
    affinity_note(a, &longer, 2);
    assert_int_equal(seen_by(a, longer, 31), 3);
    assert_int_equal(seen_by(a, longer, 2), 9);
    assert_int_equal(seen_by(a, longer, 0), 0);
}

static void tenants_share_no_prefix(void **state)
{
    (void)state;
    AUTO(affinity_free) struct affinity *a = NULL;
    assert_int_equal(affinity_new(&a), 0);
    struct affinity_prompt p = prompt("one", PIECES(5), -1);
    affinity_note(a, &p, 0);
    assert_int_equal(seen_by(a, prompt("one", PIECES(5), -1), 0), 5);
    assert_int_equal(seen_by(a, prompt("two", PIECES(5), -1), 0), 0);
    assert_int_equal(seen_by(a, prompt("", PIECES(5), -1), 0), 0);
}

/* More prompts than entries: entries in use stay. */
static void unused_entries_are_replaced(void **state)
{
    (void)state;
    AUTO(affinity_free) struct affinity *a = NULL;
    assert_int_equal(affinity_new(&a), 0);
    struct affinity_prompt used = prompt("used", PIECES(20), -1),
                           left = prompt("left", PIECES(20), -1);
    affinity_note(a, &used, 0);
    affinity_note(a, &left, 0);
    for (unsigned i = 0; i < 2000; i++) {
        char salt[16];
        snprintf(salt, sizeof(salt), "%u", i);
        struct affinity_prompt other = prompt(salt, PIECES(100), -1);
        affinity_note(a, &other, 1);
        affinity_note(a, &used, 0);
    }
    assert_int_equal(seen_by(a, used, 0), 20);
    assert_int_equal(seen_by(a, left, 0), 0);
}

/* A set holds four prompts. Hashes are chosen here, so that all are in one set. */
static void of_a_full_set_the_one_unused_for_longest_goes(void **state)
{
    (void)state;
    AUTO(affinity_free) struct affinity *a = NULL;
    assert_int_equal(affinity_new(&a), 0);
    struct affinity_prompt p[6];
    for (unsigned i = 0; i < ARRAY_LEN(p); i++)
        p[i] = (struct affinity_prompt){.n = 1, .hashes = {(uint64_t)(i + 1) << 32}};
    for (unsigned i = 0; i < 4; i++)
        affinity_note(a, &p[i], i);
    affinity_note(a, &p[0], 5); // used again
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(seen_by(a, p[i], i), 1);
    assert_int_equal(seen_by(a, p[0], 5), 1);
    affinity_note(a, &p[4], 4); // in place of 1
    affinity_note(a, &p[5], 5); // in place of 2
    static const unsigned found[] = {1, 0, 0, 1, 1, 1};
    for (unsigned i = 0; i < ARRAY_LEN(p); i++)
        assert_int_equal(seen_by(a, p[i], i), found[i]);
    assert_int_equal(seen_by(a, p[4], 1), 0); // nothing stays of the replaced one
}

static void a_failed_allocation_is_an_error(void **state)
{
    (void)state;
    struct affinity *a = NULL;
    failing_at(1);
    assert_int_equal(affinity_new(&a), -ENOMEM);
    assert_true(failing_has_failed());
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_whole_pieces_count),
        cmocka_unit_test(the_common_prefix_is_found),
        cmocka_unit_test(each_verifier_has_its_own_prefix_length),
        cmocka_unit_test(tenants_share_no_prefix),
        cmocka_unit_test(unused_entries_are_replaced),
        cmocka_unit_test(of_a_full_set_the_one_unused_for_longest_goes),
        cmocka_unit_test(a_failed_allocation_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
