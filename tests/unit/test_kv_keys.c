/* test_kv_keys.c - which blocks are on disk. */
#include <stdlib.h>
#include "base/rng.h"
#include "lib/lib.h"
#include "verifier-svc/kv_keys.h"

static void a_key_is_there_from_set_to_remove(void **state)
{
    (void)state;
    struct kv_keys k = {0};
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

/* As a plain array says, with so many keys that searches run into each other and round the end. */
static void many_keys_come_and_go(void **state)
{
    (void)state;
    enum { N = 3000, STEPS = 60000 };
    static int64_t plain[N];
    struct kv_keys k = {0};
    for (int i = 0; i < N; i++)
        plain[i] = KV_KEYS_NONE;
    uint32_t n = 0;
    for (uint64_t step = 0; step < STEPS; step++) {
        uint64_t r = rng_splitmix64(step), i = r % N;
        if (r >> 63) {
            n += plain[i] == KV_KEYS_NONE;
            plain[i] = (int64_t)step;
            assert_int_equal(kv_keys_set(&k, i * 0x9e3779b97f4a7c15u, plain[i]), 0);
        } else {
            n -= plain[i] != KV_KEYS_NONE;
            plain[i] = KV_KEYS_NONE;
            kv_keys_remove(&k, i * 0x9e3779b97f4a7c15u);
        }
        assert_int_equal(k.n, n);
    }
    for (uint64_t i = 0; i < N; i++)
        assert_true(kv_keys_last_use(&k, i * 0x9e3779b97f4a7c15u) == plain[i]);
    kv_keys_done(&k);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_key_is_there_from_set_to_remove),
        cmocka_unit_test(many_keys_come_and_go),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
