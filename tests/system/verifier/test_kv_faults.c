/* test_kv_faults.c - the KV disk tier when an allocation or a file operation fails. A failure loses
 * blocks, but never returns a wrong one. The next use works. */
#include <errno.h>
#include <sqlite3.h>
#include "base/mem.h"
#include "lib/fakes/failing.h"
#include "lib/fakes/faulty_vfs.h"
#include "lib/oracles/figures.h"
#include "lib/lib.h"
#include "lib/clients/engine_client.h"
#include "lib/rigs/kv_tier_rig.h"

#define N_BLOCKS 70 // two pieces

/* ---- the tier alone ---- */

/* Opens, evicts, restores, closes. Returns the number of restored blocks. */
static uint32_t use_tier(struct kv_tier_rig *t)
{
    if (!kv_tier_rig_open(t))
        return 0;
    kv_tier_rig_evict(t);
    while (kv_tier_restores(t->tier, &t->seq, 1))
        kv_tier_rig_take(t);
    uint32_t n = kv_tier_rig_found(t);
    kv_tier_rig_close(t);
    return n;
}

/* All blocks of a new prompt are restored when nothing fails. */
static void must_restore_all(struct kv_tier_rig *t)
{
    kv_tier_rig_fresh(t);
    assert_int_equal(use_tier(t), N_BLOCKS);
}

static int set_up(void **state)
{
    *state = kv_tier_rig_new(N_BLOCKS);
    return 0;
}

static int tear_down(void **state)
{
    kv_tier_rig_free(*state);
    return 0;
}

static void any_allocation_may_fail(void **state)
{
    struct kv_tier_rig *t = *state;
    bool failed = true;
    uint32_t n_less = 0;
    for (uint64_t n = 1; failed; n = lib_next_call(n, LIB_SANITIZED ? 4 : 5)) {
        kv_tier_rig_fresh(t);
        failing_at(n);
        uint32_t found = use_tier(t);
        failed = failing_has_failed();
        n_less += found < N_BLOCKS;
        must_restore_all(t);
    }
    assert_true(n_less > 10);
}

static void any_file_operation_may_fail(void **state)
{
    static const int errors[] = {SQLITE_IOERR, SQLITE_FULL, SQLITE_CORRUPT};
    struct kv_tier_rig *t = *state;
    uint32_t n_less = 0;
    must_restore_all(t);
    faulty_vfs_fail(0, 0, 0);
    must_restore_all(t);
    const uint64_t n_calls = faulty_vfs_calls();
    for (uint64_t n = 1; n <= n_calls; n = lib_next_call(n, LIB_SANITIZED ? 2 : 3)) {
        for (int how = 0; how < 6; how++) {
            kv_tier_rig_fresh(t);
            faulty_vfs_fail(n, errors[how / 2], how % 2);
            n_less += use_tier(t) < N_BLOCKS;
            faulty_vfs_fail(0, 0, 0);
            must_restore_all(t);
        }
    }
    assert_true(n_less > 10);
}

static void memory_use_is_as_estimated(void **state)
{
    struct kv_tier_rig *t = *state;
    struct kv_store_options o = {.max_bytes = (uint64_t)t->options.kv_disk_size << 20};
    o.block_bytes = (uint32_t)kv_bytes_block(kv_shape_of(t->loaded.run.kv));
    failing_at(0);
    assert_true(kv_tier_rig_open(t));
    assert_in_range(failing_bytes(), kv_disk_bytes(&o) * 3 / 4, kv_disk_bytes(&o));
    kv_tier_rig_close(t);
}

/* ---- with an engine and its requests ---- */

#define PROMPT 200
#define ANSWER 20

static struct stats stats;
static struct verifier_options options = {.model = SOURCE_DIR "/models/tales-1m-q8_0.gguf",
                                          .max_sequences = 4,
                                          .queue_length = 4,
                                          .max_batch_rows = 512,
                                          .prefill_chunk = 512,
                                          .max_pass_ms = 100,
                                          .threads = 1,
                                          .prefix_cache = true,
                                          .kv_mib = 1,
                                          .kv_disk_size = 256,
                                          .kv_disk_ttl = 1000};

static void ask(struct engine *e, unsigned topic, uint32_t n_prompt, uint32_t n,
                struct engine_client *p)
{
    engine_client_submit(e, topic, n_prompt, n, p);
    engine_client_finish(e, p, NULL);
}

/* New prompts need the whole pool. Its blocks are written to disk, unless writing still fails. */
static void evict(struct engine *e)
{
    static unsigned topic = 100; // always new topics, so that blocks are written
    struct engine_client p;
    for (unsigned i = 0; i < 3; i++)
        ask(e, topic++, 900, 1, &p);
    while (kv_tier_counts(e->tier).n_waiting)
        nap();
}

/* An engine with a disk tier that has evicted the blocks of topic 1. */
static struct engine *engine_with_evicted(struct engine_client *want)
{
    struct engine *e = engine_client_start(&options, &stats);
    assert_non_null(e->tier);
    ask(e, 1, PROMPT, ANSWER, want);
    assert_int_equal(want->n, ANSWER);
    evict(e);
    return e;
}

/* The n-th call from now on fails. how: 0 one allocation, 1 one file operation, 2 all file
 * operations from the n-th on. */
static void fail_at(unsigned n, unsigned how)
{
    static const int errors[] = {SQLITE_IOERR, SQLITE_FULL, SQLITE_CORRUPT};
    if (how)
        faulty_vfs_fail(n, errors[n % ARRAY_LEN(errors)], how == 2);
    else
        failing_at(n);
}

/* Sends topic 1 again while a call fails. The answer is the same, or the request fails for lack of
 * memory. Returns the number of prompt tokens that were restored. ret_failed: there was such a
 * call. */
static uint32_t ask_again(struct engine *e, const struct engine_client *want, unsigned n,
                          unsigned how, bool *ret_failed)
{
    struct engine_client p;
    engine_client_init(e, 1, PROMPT, ANSWER, &p);
    fail_at(n, how);
    p.error = engine_submit(e, p.req);
    engine_client_take(e, &p, NULL, p.error ? 0 : UINT32_MAX);
    *ret_failed = how ? faulty_vfs_calls() >= n : failing_has_failed();
    failing_at(0);
    faulty_vfs_fail(0, 0, 0);
    assert_true(p.error == 0 || p.error == -ENOMEM);
    if (!p.error) {
        assert_int_equal(p.n, want->n);
        assert_memory_equal(p.ids, want->ids, want->n * sizeof(*p.ids));
    }
    uint32_t n_restored = p.req->seqs[0]->n_restored;
    if (p.ended)
        request_drop(p.req); // the engine's reference
    request_drop(p.req);
    return n_restored;
}

static void a_request_survives_any_failure_of_its_restore(void **state)
{
    struct kv_tier_rig *t = *state;
    struct engine_client want;
    uint32_t n_tries = 0, n_restored = 0;
    options.kv_disk = t->folder;
    struct engine *e = engine_with_evicted(&want);
    bool failed, any_failed = true;
    assert_true(ask_again(e, &want, 0, 0, &failed) > 0);
    evict(e);
    const uint64_t end = lib_amount(60, 60, UINT32_MAX);
    for (unsigned n = 1; n < end && any_failed; n = (unsigned)lib_next_call(n, 2)) {
        any_failed = false;
        for (unsigned how = 0; how < 3; how++) {
            n_tries++;
            n_restored += ask_again(e, &want, n, how, &failed) > 0;
            any_failed |= failed;
            if (kv_tier_counts(e->tier).on) {
                evict(e);
                continue;
            }
            engine_stop(e);
            engine_free(e);
            e = engine_with_evicted(&want);
        }
    }
    assert_in_range(n_restored, n_tries / 4, n_tries - 1);
    engine_stop(e);
    engine_free(e);
}

int main(void)
{
    stats_init(&stats);
    failing_sqlite();
    faulty_vfs_init();
#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(any_allocation_may_fail),
        TEST(any_file_operation_may_fail),
        TEST(memory_use_is_as_estimated),
        TEST(a_request_survives_any_failure_of_its_restore),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
