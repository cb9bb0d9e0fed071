/* test_kv_index.c - blocks are found by exactly what they hold, and leave in the right order. */
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "lib/lib.h"
#include "kv/kv.h"
#include "kv/kv_index.h"

#define N_BLOCKS 8

static const struct kv_root nobody = {NULL, 0};
static uint32_t holders[N_BLOCKS], scratch[N_BLOCKS];

static struct kv_index *index_of(kv_hash_fn *hash)
{
    struct kv_index *x = NULL;
    memset(holders, 0, sizeof(holders));
    assert_int_equal(kv_index_new(N_BLOCKS, 7, hash, &x), 0);
    return x;
}

static uint64_t all_collide(uint64_t key, const void *bytes, size_t n)
{
    (void)key, (void)bytes, (void)n;
    return 3;
}

static kv_hash_fn *honest = kv_hash, *colliding = all_collide;

/* Tokens of a block: all of them t. */
static const uint32_t *of(uint32_t t)
{
    static uint32_t tokens[KV_BLOCK];
    for (uint32_t i = 0; i < KV_BLOCK; i++)
        tokens[i] = t;
    return tokens;
}

static uint32_t find(const struct kv_index *x, uint32_t parent, uint32_t t)
{
    return kv_index_find(x, &nobody, parent, of(t));
}

static void add(struct kv_index *x, uint32_t parent, uint32_t t, uint32_t block)
{
    holders[block] = 1;
    kv_index_add(x, &nobody, parent, of(t), block);
}

static void release_block(struct kv_index *x, uint32_t block)
{
    holders[block] = 0;
    kv_index_idle(x, block);
}

static void assert_checked(const struct kv_index *x)
{
    if (!kv_index_check(x, holders, scratch))
        fail_msg("%s", fail_text());
}

static void a_block_is_found_below_its_parent_only(void **state)
{
    kv_hash_fn **hash = *state;
    AUTO(kv_index_free) struct kv_index *x = index_of(*hash);
    add(x, KV_NO_BLOCK, 1, 4);
    add(x, 4, 2, 5);
    add(x, KV_NO_BLOCK, 2, 6);
    add(x, 6, 2, 7);
    assert_int_equal(find(x, KV_NO_BLOCK, 1), 4);
    assert_int_equal(find(x, 4, 2), 5);
    assert_int_equal(find(x, KV_NO_BLOCK, 2), 6);
    assert_int_equal(find(x, 6, 2), 7);
    assert_int_equal(find(x, 4, 1), KV_NO_BLOCK);
    assert_int_equal(find(x, 5, 2), KV_NO_BLOCK);
    assert_int_equal(find(x, KV_NO_BLOCK, 3), KV_NO_BLOCK);
    assert_checked(x);
}

static void one_token_makes_another_block(void **state)
{
    kv_hash_fn **hash = *state;
    AUTO(kv_index_free) struct kv_index *x = index_of(*hash);
    uint32_t tokens[KV_BLOCK];
    add(x, KV_NO_BLOCK, 1, 0);
    for (unsigned i = 0; i < KV_BLOCK; i++) {
        memcpy(tokens, of(1), sizeof(tokens));
        tokens[i] ^= 1u << i;
        assert_int_equal(kv_index_find(x, &nobody, KV_NO_BLOCK, tokens), KV_NO_BLOCK);
    }
}

static void tenants_do_not_meet(void **state)
{
    kv_hash_fn **hash = *state;
    AUTO(kv_index_free) struct kv_index *x = index_of(*hash);
    const struct kv_root salts[] = {{"", 0}, {"\0", 1}, {"a", 1}, {"b", 1}, {"ab", 2}};
    for (uint32_t i = 0; i < ARRAY_LEN(salts); i++) {
        assert_int_equal(kv_index_find(x, &salts[i], KV_NO_BLOCK, of(1)), KV_NO_BLOCK);
        holders[i] = 1;
        kv_index_add(x, &salts[i], KV_NO_BLOCK, of(1), i);
    }
    for (uint32_t i = 0; i < ARRAY_LEN(salts); i++)
        assert_int_equal(kv_index_find(x, &salts[i], KV_NO_BLOCK, of(1)), i);
    assert_checked(x);
}

static void the_longest_idle_block_is_the_oldest(void **state)
{
    kv_hash_fn **hash = *state;
    AUTO(kv_index_free) struct kv_index *x = index_of(*hash);
    add(x, KV_NO_BLOCK, 1, 0);
    add(x, 0, 2, 1);
    add(x, KV_NO_BLOCK, 3, 2);
    assert_int_equal(kv_index_oldest(x), KV_NO_BLOCK);
    release_block(x, 1);
    release_block(x, 0);
    release_block(x, 2);
    assert_int_equal(kv_index_n_idle(x), 3);
    assert_int_equal(kv_index_oldest(x), 1);
    kv_index_busy(x, 0); // held again, and with it what is below
    kv_index_busy(x, 1);
    kv_index_idle(x, 1);
    kv_index_idle(x, 0);
    assert_checked(x);
    const uint32_t order[] = {2, 1, 0};
    for (unsigned i = 0; i < ARRAY_LEN(order); i++) {
        assert_int_equal(kv_index_oldest(x), order[i]);
        kv_index_remove(x, order[i]);
        assert_false(kv_index_has(x, order[i]));
        assert_checked(x);
    }
    assert_int_equal(kv_index_n_idle(x), 0);
    assert_int_equal(find(x, KV_NO_BLOCK, 1), KV_NO_BLOCK);
}

static void an_entry_names_its_parent_and_depth(void **state)
{
    (void)state;
    AUTO(kv_index_free) struct kv_index *x = index_of(kv_hash);
    const struct kv_root salt = {"salt", 4};
    holders[0] = 1;
    kv_index_add(x, &salt, KV_NO_BLOCK, of(1), 0);
    add(x, 0, 2, 1);
    struct kv_entry first = kv_index_entry(x, 0), second = kv_index_entry(x, 1);
    assert_int_equal(first.parent, KV_NO_BLOCK);
    assert_int_equal(second.parent, 0);
}

/* The output of sha256sum for the same bytes, which were written by hand. */
static void names_are_hashes_of_the_whole_prefix(void **state)
{
    (void)state;
    static const uint8_t root_right[] = {0xaa, 0xe8, 0x9f, 0xc0},
                         right[] = {0xe8, 0x86, 0xca, 0xf8};
    uint8_t root[KV_NAME], salted[KV_NAME], name[KV_NAME], child[KV_NAME];
    kv_name_root(7, &nobody, root);
    kv_name_root(7, &(struct kv_root){"a", 1}, salted);
    kv_name_next(root, of(1), name);
    kv_name_next(name, of(2), child);
    assert_memory_equal(root, root_right, 4);
    assert_memory_equal(name, right, 4);
    assert_memory_not_equal(root, salted, KV_NAME);

    AUTO(kv_index_free) struct kv_index *x = index_of(colliding);
    add(x, KV_NO_BLOCK, 1, 4);
    add(x, 4, 2, 5);
    assert_memory_equal(kv_index_entry(x, 4).name, name, KV_NAME);
    assert_memory_equal(kv_index_entry(x, 5).name, child, KV_NAME);
    assert_int_equal(kv_index_entry(x, 4).depth, 0);
    assert_int_equal(kv_index_entry(x, 5).depth, 1);
}

static void a_hash_depends_on_the_length(void **state)
{
    (void)state;
    assert_int_not_equal(kv_hash(1, "a", 1), kv_hash(1, "a\0", 2));
}

static void the_check_finds_wrong_entries(void **state)
{
    (void)state;
    AUTO(kv_index_free) struct kv_index *x = index_of(kv_hash);
    add(x, KV_NO_BLOCK, 1, 0);
    add(x, 0, 2, 1);
    assert_checked(x);
    holders[0] = 0;
    assert_false(kv_index_check(x, holders, scratch)); // not held and not idle
    release_block(x, 0);
    assert_false(kv_index_check(x, holders, scratch)); // its child is held
    release_block(x, 1);
    assert_false(kv_index_check(x, holders, scratch)); // would be evicted first
    kv_index_busy(x, 0);
    kv_index_idle(x, 0);
    assert_checked(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(a_block_is_found_below_its_parent_only, &honest),
        cmocka_unit_test_prestate(one_token_makes_another_block, &honest),
        cmocka_unit_test_prestate(tenants_do_not_meet, &honest),
        cmocka_unit_test_prestate(the_longest_idle_block_is_the_oldest, &honest),
        {"a_block_is_found_below_its_parent_only, all keys equal",
         a_block_is_found_below_its_parent_only, NULL, NULL, &colliding},
        {"one_token_makes_another_block, all keys equal", one_token_makes_another_block, NULL, NULL,
         &colliding},
        {"tenants_do_not_meet, all keys equal", tenants_do_not_meet, NULL, NULL, &colliding},
        {"the_longest_idle_block_is_the_oldest, all keys equal",
         the_longest_idle_block_is_the_oldest, NULL, NULL, &colliding},
        cmocka_unit_test(an_entry_names_its_parent_and_depth),
        cmocka_unit_test(names_are_hashes_of_the_whole_prefix),
        cmocka_unit_test(a_hash_depends_on_the_length),
        cmocka_unit_test(the_check_finds_wrong_entries),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
