/* test_kv_keys.c - the table of the blocks on disk. */
#include <errno.h>
#include <stdlib.h>
#include "base/mem.h"
#include "base/rng.h"
#include "lib/lib.h"
#include "verifier-svc/kvdisk/kv_keys.h"

static void a_key_is_found_from_set_to_remove(void **state)
{
    (void)state;
    struct kv_keys k;
    assert_int_equal(kv_keys_init(&k, 2), 0);
    assert_true(kv_keys_last_use(&k, 5) == KV_KEYS_NONE);
    kv_keys_remove(&k, 5);
    assert_int_equal(kv_keys_set(&k, 5, 100), 0);
    assert_int_equal(kv_keys_set(&k, 0, 7), 0);
    assert_int_equal(kv_keys_set(&k, 5, 101), 0);
    assert_int_equal(k.n, 2);
    assert_int_equal(kv_keys_last_use(&k, 5), 101);
    assert_int_equal(kv_keys_last_use(&k, 0), 7);
    kv_keys_remove(&k, 5);
    assert_true(kv_keys_last_use(&k, 5) == KV_KEYS_NONE);
    assert_int_equal(kv_keys_last_use(&k, 0), 7);
    kv_keys_done(&k);
    assert_true(kv_keys_last_use(&k, 0) == KV_KEYS_NONE);
}

/* Compares with a plain array. There are enough keys for searches that collide and wrap around, and
 * for a table that is sometimes full. */
static void many_keys_are_set_and_removed(void **state)
{
    (void)state;
    enum { N = 3000, STEPS = 60000 };
    static int64_t expected[N];
    struct kv_keys k;
    assert_int_equal(kv_keys_init(&k, N / 3), 0);
    for (int i = 0; i < N; i++)
        expected[i] = KV_KEYS_NONE;
    uint32_t n = 0, n_refused = 0;
    for (uint64_t step = 1; step < STEPS; step++) {
        uint64_t r = rng_splitmix64(step), i = r % N;
        bool fits = expected[i] != KV_KEYS_NONE || n < k.max;
        if (r >> 63) {
            int err = kv_keys_set(&k, i * 0x9e3779b97f4a7c15u, (int64_t)step);
            assert_int_equal(err, fits ? 0 : -ENOSPC);
            n_refused += !fits;
            n += fits && expected[i] == KV_KEYS_NONE;
            expected[i] = fits ? (int64_t)step : expected[i];
        } else {
            n -= expected[i] != KV_KEYS_NONE;
            expected[i] = KV_KEYS_NONE;
            kv_keys_remove(&k, i * 0x9e3779b97f4a7c15u);
        }
        assert_int_equal(k.n, n);
    }
    assert_true(n_refused > 0);
    for (uint64_t i = 0; i < N; i++)
        assert_true(kv_keys_last_use(&k, i * 0x9e3779b97f4a7c15u) == expected[i]);
    kv_keys_done(&k);
}

static void a_table_accepts_its_maximum_of_keys(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {1, 2, 3, 1000, 1024, 1025};
    static const uint32_t n_slots[] = {2, 4, 8, 2048, 2048, 4096}; // twice as many, a power of two
    for (unsigned i = 0; i < ARRAY_LEN(sizes); i++) {
        struct kv_keys k;
        assert_int_equal(kv_keys_init(&k, sizes[i]), 0);
        assert_int_equal(k.n_slots, n_slots[i]);
        assert_int_equal(k.max, n_slots[i] / 2);
        assert_int_equal(kv_keys_bytes(sizes[i]), k.n_slots * sizeof(*k.slots));
        for (uint64_t key = 1; key <= k.max; key++)
            assert_int_equal(kv_keys_set(&k, key, 1), 0);
        assert_int_equal(kv_keys_set(&k, 0, 1), -ENOSPC);
        assert_int_equal(kv_keys_set(&k, 1, 2), 0);
        kv_keys_done(&k);
        assert_int_equal(kv_keys_set(&k, 1, 2), -ENOSPC);
    }
    assert_int_equal(kv_keys_bytes(UINT64_MAX / 4), 2ull * KV_KEYS_MAX * sizeof(struct kv_key));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_key_is_found_from_set_to_remove),
        cmocka_unit_test(many_keys_are_set_and_removed),
        cmocka_unit_test(a_table_accepts_its_maximum_of_keys),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
