/* test_kv.c - blocks are counted exactly and rows keep what was written to them. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "base/rng.h"
#include "lib/lib.h"
#include "kv/kv.h"

static const struct kv_layer layers[] = {{.n_heads = 2, .k_dim = 3, .v_dim = 3},
                                         {.n_heads = 1, .k_dim = 5, .v_dim = 5},
                                         {.n_heads = 2, .k_dim = 3, .v_dim = 3}};
static struct kv_shape shape = {.n_layers = ARRAY_LEN(layers), .layers = layers};
static const struct kernel *kernel; // kernel_tier() asks the CPU each time, which is slow

static struct kv *kv_of(uint32_t n_blocks)
{
    struct kv *kv = NULL;
    assert_int_equal(kv_new(&shape, n_blocks, &kv), 0);
    return kv;
}

static struct kv_seq seq_of(uint32_t max_rows)
{
    struct kv_seq seq;
    assert_int_equal(kv_seq_init(&seq, max_rows), 0);
    return seq;
}

/* K and V of a head, of no other value, layer or head. */
static void put(uint32_t l, uint32_t head, uint16_t value, uint32_t place, void *block)
{
    float k[5], v[5];
    for (uint32_t i = 0; i < layers[l].k_dim; i++) {
        k[i] = (float)((value * 31 + l * 7 + head * 5 + i * 3) % 1009) / 8;
        v[i] = (float)((value * 37 + l * 5 + head * 3 + i * 7) % 1013) / 8;
    }
    kernel->kv_put(shape.type, k, v, layers[l].k_dim, place, block);
}

/* Marks a row of storage under every head of every layer, differently in each. */
static void mark(struct kv *kv, const struct kv_seq *seq, uint32_t row, uint16_t value)
{
    uint32_t slot = kv_slot(seq, row);
    for (uint32_t l = 0; l < shape.n_layers; l++)
        for (uint32_t head = 0; head < layers[l].n_heads; head++)
            put(l, head, value, slot % KV_BLOCK,
                kv_bytes_at(kv_bytes_of(kv), l, slot / KV_BLOCK, head));
}

static void assert_head_marked(struct kv *kv, uint32_t l, uint32_t head, uint32_t slot,
                               uint16_t value)
{
    _Alignas(KERNEL_ALIGN) char put_to[1024], want[1024], got[1024];
    uint32_t dim = layers[l].k_dim;
    size_t bytes = kernel_kv_bytes(shape.type, dim);
    assert_true(bytes <= sizeof(got));
    memset(put_to, 0, bytes);
    memset(want, 0, bytes);
    memset(got, 0, bytes);
    put(l, head, value, 1, put_to);
    kernel_kv_move(shape.type, dim, put_to, 1, want, 0); // without the bytes that only fill up
    kernel_kv_move(shape.type, dim, kv_bytes_at(kv_bytes_of(kv), l, slot / KV_BLOCK, head),
                   slot % KV_BLOCK, got, 0);
    if (memcmp(got, want, bytes) != 0) // called very often, so faster than an assertion
        assert_memory_equal(got, want, bytes);
}

static void assert_marked(struct kv *kv, const struct kv_seq *seq, uint32_t row, uint16_t value)
{
    for (uint32_t l = 0; l < shape.n_layers; l++)
        for (uint32_t head = 0; head < layers[l].n_heads; head++)
            assert_head_marked(kv, l, head, kv_slot(seq, row), value);
}

static void grow_marked(struct kv *kv, struct kv_seq *seq, uint32_t n, uint16_t first)
{
    uint32_t from = seq->len;
    assert_int_equal(kv_grow(kv, seq, n), 0);
    for (uint32_t i = 0; i < n; i++)
        mark(kv, seq, from + i, (uint16_t)(first + i));
}

static void assert_checked(struct kv *kv, const struct kv_seq *a, const struct kv_seq *b)
{
    const struct kv_seq *seqs[] = {a, b};
    if (!kv_check(kv, seqs, b ? 2 : 1))
        fail_msg("%s", fail_text());
}

static void growing_takes_a_block_per_16_rows(void **state)
{
    (void)state;
    AUTO(kv_free) struct kv *kv = kv_of(4);
    struct kv_seq s = seq_of(64);
    assert_int_equal(kv_grow(kv, &s, 1), 0);
    assert_int_equal(kv_n_free(kv), 3);
    assert_int_equal(kv_grow(kv, &s, 15), 0);
    assert_int_equal(kv_n_free(kv), 3);
    assert_int_equal(kv_grow(kv, &s, 1), 0);
    assert_int_equal(kv_n_free(kv), 2);
    assert_checked(kv, &s, NULL);
    kv_seq_done(kv, &s);
    assert_int_equal(kv_n_free(kv), 4);
}

static void growing_past_the_pool_changes_nothing(void **state)
{
    (void)state;
    AUTO(kv_free) struct kv *kv = kv_of(2);
    struct kv_seq s = seq_of(100);
    grow_marked(kv, &s, 20, 1);
    assert_int_equal(kv_grow(kv, &s, 13), -ENOSPC);
    assert_int_equal(s.len, 20);
    assert_int_equal(kv_grow(kv, &s, 12), 0);
    for (uint32_t i = 0; i < 20; i++)
        assert_marked(kv, &s, i, (uint16_t)(1 + i));
    kv_seq_done(kv, &s);
}

static void growing_past_the_table_is_refused(void **state)
{
    (void)state;
    AUTO(kv_free) struct kv *kv = kv_of(8);
    struct kv_seq s = seq_of(32);
    assert_int_equal(kv_grow(kv, &s, 33), -ENOSPC);
    assert_int_equal(kv_grow(kv, &s, UINT32_MAX), -ENOSPC);
    assert_int_equal(kv_grow(kv, &s, 32), 0);
    assert_int_equal(kv_grow(kv, &s, 0), 0);
    kv_seq_done(kv, &s);
}

static void a_tree_path_moves_across_blocks(void **state)
{
    (void)state;
    AUTO(kv_free) struct kv *kv = kv_of(6);
    struct kv_seq s = seq_of(96);
    grow_marked(kv, &s, 60, 0);
    const uint32_t path[] = {14, 17, 31, 33, 48, 59};
    kv_keep(kv, &s, 14, path, 6);
    assert_int_equal(s.len, 20);
    for (uint32_t i = 0; i < 14; i++)
        assert_marked(kv, &s, i, (uint16_t)i);
    for (uint32_t i = 0; i < 6; i++)
        assert_marked(kv, &s, 14 + i, (uint16_t)path[i]);
    assert_int_equal(kv_n_free(kv), 4);
    assert_checked(kv, &s, NULL);
    kv_seq_done(kv, &s);
}

static void truncating_keeps_a_partly_filled_block(void **state)
{
    (void)state;
    AUTO(kv_free) struct kv *kv = kv_of(4);
    struct kv_seq s = seq_of(64);
    grow_marked(kv, &s, 40, 0);
    kv_keep(kv, &s, 19, NULL, 0);
    assert_int_equal(s.len, 19);
    assert_int_equal(kv_n_free(kv), 2);
    for (uint32_t i = 0; i < 19; i++)
        assert_marked(kv, &s, i, (uint16_t)i);
    kv_seq_done(kv, &s);
}

static void truncating_to_own_length_is_nothing(void **state)
{
    (void)state;
    AUTO(kv_free) struct kv *kv = kv_of(4);
    struct kv_seq s = seq_of(64);
    grow_marked(kv, &s, 40, 0);
    kv_keep(kv, &s, 40, NULL, 0);
    assert_int_equal(s.len, 40);
    assert_int_equal(kv_n_free(kv), 1);
    kv_seq_done(kv, &s);
}

static void a_released_sequence_holds_nothing_and_can_grow_again(void **state)
{
    (void)state;
    AUTO(kv_free) struct kv *kv = kv_of(4);
    struct kv_seq s = seq_of(64);
    grow_marked(kv, &s, 40, 0);
    kv_release(kv, &s);
    assert_int_equal(s.len, 0);
    assert_int_equal(kv_n_free(kv), 4);
    grow_marked(kv, &s, 64, 7);
    assert_int_equal(kv_n_free(kv), 0);
    assert_marked(kv, &s, 63, 63 + 7);
    kv_seq_done(kv, &s);
}

static void a_fork_shares_full_blocks_and_copies_the_tail(void **state)
{
    (void)state;
    AUTO(kv_free) struct kv *kv = kv_of(5);
    struct kv_seq a = seq_of(64), b = seq_of(64);
    grow_marked(kv, &a, 37, 0);
    assert_int_equal(kv_fork(kv, &a, 37, &b), 0);
    assert_int_equal(kv_n_free(kv), 1);
    assert_int_equal(a.blocks[0], b.blocks[0]);
    assert_int_equal(a.blocks[1], b.blocks[1]);
    assert_int_not_equal(a.blocks[2], b.blocks[2]);
    grow_marked(kv, &a, 3, 100);
    grow_marked(kv, &b, 3, 200);
    for (uint32_t i = 0; i < 37; i++)
        assert_marked(kv, &b, i, (uint16_t)i);
    assert_marked(kv, &a, 37, 100);
    assert_marked(kv, &b, 37, 200);
    assert_checked(kv, &a, &b);
    kv_seq_done(kv, &a);
    for (uint32_t i = 0; i < 37; i++)
        assert_marked(kv, &b, i, (uint16_t)i);
    kv_seq_done(kv, &b);
    assert_int_equal(kv_n_free(kv), 5);
}

static void growing_into_a_shared_block_copies_it_first(void **state)
{
    (void)state;
    AUTO(kv_free) struct kv *kv = kv_of(4);
    struct kv_seq a = seq_of(64), b = seq_of(64);
    grow_marked(kv, &a, 32, 0);
    assert_int_equal(kv_fork(kv, &a, 32, &b), 0);
    kv_keep(kv, &a, 20, NULL, 0);
    grow_marked(kv, &a, 2, 500);
    for (uint32_t i = 0; i < 32; i++)
        assert_marked(kv, &b, i, (uint16_t)i);
    for (uint32_t i = 0; i < 20; i++)
        assert_marked(kv, &a, i, (uint16_t)i);
    assert_marked(kv, &a, 20, 500);
    assert_int_equal(kv_n_free(kv), 1);
    assert_checked(kv, &a, &b);
    kv_seq_done(kv, &a);
    kv_seq_done(kv, &b);
}

static void a_shared_tail_needs_a_free_block_to_grow(void **state)
{
    (void)state;
    AUTO(kv_free) struct kv *kv = kv_of(2);
    struct kv_seq a = seq_of(64), b = seq_of(64);
    grow_marked(kv, &a, 32, 0);
    assert_int_equal(kv_fork(kv, &a, 32, &b), 0);
    kv_keep(kv, &a, 20, NULL, 0);
    assert_int_equal(kv_grow(kv, &a, 1), -ENOSPC);
    assert_int_equal(a.len, 20);
    kv_seq_done(kv, &b);
    assert_int_equal(kv_grow(kv, &a, 1), 0);
    kv_seq_done(kv, &a);
}

static void a_fork_without_a_free_block_for_the_tail_is_refused(void **state)
{
    (void)state;
    AUTO(kv_free) struct kv *kv = kv_of(2);
    struct kv_seq a = seq_of(64), b = seq_of(64);
    grow_marked(kv, &a, 17, 0);
    assert_int_equal(kv_fork(kv, &a, 17, &b), -ENOSPC);
    assert_int_equal(b.len, 0);
    assert_checked(kv, &a, &b);
    assert_int_equal(kv_fork(kv, &a, 16, &b), 0);
    kv_seq_done(kv, &a);
    kv_seq_done(kv, &b);
    assert_int_equal(kv_n_free(kv), 2);
}

static void the_check_finds_a_block_that_is_held_twice(void **state)
{
    (void)state;
    AUTO(kv_free) struct kv *kv = kv_of(4);
    struct kv_seq a = seq_of(64);
    grow_marked(kv, &a, 32, 0);
    const struct kv_seq *one[] = {&a}, *two[] = {&a, &a};
    assert_true(kv_check(kv, one, 1));
    assert_false(kv_check(kv, two, 2));
    assert_false(kv_check(kv, NULL, 0));
    uint32_t kept = a.blocks[1];
    a.blocks[1] = a.blocks[0];
    assert_false(kv_check(kv, one, 1));
    a.blocks[1] = kept;
    kv_seq_done(kv, &a);
}

static void absurd_pools_are_refused_with_a_sentence(void **state)
{
    (void)state;
    struct kv *kv = NULL;
    const struct kv_layer large = {.n_heads = 128 * 128, .k_dim = 1024, .v_dim = 1024};
    const struct kv_layer odd = {.n_heads = 1, .k_dim = 4, .v_dim = 8};
    const struct kv_shape huge = {.n_layers = 1, .layers = &large};
    const struct kv_shape none = {0}, deep = {.n_layers = 1u << 31, .layers = &large};
    assert_int_equal(kv_new(&huge, 1u << 24, &kv), -ENOMEM);
    assert_non_null(strstr(fail_text(), "no memory for 17179869184 MiB"));
    assert_int_equal(kv_new(&none, 1, &kv), -EINVAL);
    assert_int_equal(kv_new(&deep, 1, &kv), -EINVAL);
    assert_int_equal(kv_new(&(struct kv_shape){.n_layers = 1, .layers = &odd}, 1, &kv), -ENOTSUP);
    assert_int_equal(kv_new(&shape, 0, &kv), -EINVAL);
    assert_int_equal(kv_new(&shape, UINT32_MAX, &kv), -EINVAL);
    assert_null(kv);
}

/* ---- random operations against lists of values ---- */

#define N_SEQS 5
#define MAX_ROWS 80

struct naive {
    uint16_t rows[N_SEQS][MAX_ROWS];
    uint32_t len[N_SEQS], shared[N_SEQS]; // rows that may not be overwritten by kv_keep()
};

static uint64_t state_of_dice;

static uint32_t dice(uint32_t n)
{
    return (uint32_t)((state_of_dice = rng_splitmix64(state_of_dice)) % n);
}

static void random_grow(struct kv *kv, struct kv_seq *seqs, struct naive *n, uint32_t s)
{
    uint32_t more = dice(30);
    if (n->len[s] + more > MAX_ROWS || kv_grow(kv, &seqs[s], more) < 0)
        return;
    for (uint32_t i = 0; i < more; i++) {
        uint16_t value = (uint16_t)dice(1000);
        n->rows[s][n->len[s]] = value;
        mark(kv, &seqs[s], n->len[s]++, value);
    }
}

static void random_keep(struct kv *kv, struct kv_seq *seqs, struct naive *n, uint32_t s)
{
    uint32_t base = n->shared[s] + dice(n->len[s] - n->shared[s] + 1), rows[MAX_ROWS], n_rows = 0;
    for (uint32_t r = base; r < n->len[s]; r++)
        if (dice(2))
            rows[n_rows++] = r;
    kv_keep(kv, &seqs[s], base, rows, n_rows);
    for (uint32_t i = 0; i < n_rows; i++)
        n->rows[s][base + i] = n->rows[s][rows[i]];
    n->len[s] = base + n_rows;
}

static void random_truncate(struct kv *kv, struct kv_seq *seqs, struct naive *n, uint32_t s)
{
    uint32_t to = dice(n->len[s] + 1);
    kv_keep(kv, &seqs[s], to, NULL, 0);
    n->len[s] = to;
    uint32_t own = to / KV_BLOCK * KV_BLOCK + KV_BLOCK; // the rest of a cut block may be shared
    n->shared[s] = n->shared[s] < own && n->shared[s] < to ? n->shared[s] : to;
}

static void random_fork(struct kv *kv, struct kv_seq *seqs, struct naive *n, uint32_t s)
{
    uint32_t to = dice(N_SEQS), len = dice(n->len[s] + 1);
    if (to == s)
        return;
    kv_seq_done(kv, &seqs[to]);
    seqs[to] = seq_of(MAX_ROWS);
    n->len[to] = n->shared[to] = 0;
    if (kv_fork(kv, &seqs[s], len, &seqs[to]) < 0)
        return;
    memcpy(n->rows[to], n->rows[s], sizeof(n->rows[s]));
    n->len[to] = len;
    uint32_t full = len / KV_BLOCK * KV_BLOCK;
    n->shared[to] = full;
    n->shared[s] = n->shared[s] > full ? n->shared[s] : full;
}

static void assert_same(struct kv *kv, const struct kv_seq *seqs, const struct naive *n)
{
    const struct kv_seq *all[N_SEQS];
    for (uint32_t s = 0; s < N_SEQS; s++) {
        all[s] = &seqs[s];
        assert_int_equal(seqs[s].len, n->len[s]);
        for (uint32_t r = 0; r < n->len[s]; r++)
            assert_marked(kv, &seqs[s], r, n->rows[s][r]);
    }
    if (!kv_check(kv, all, N_SEQS))
        fail_msg("%s", fail_text());
}

static void random_operations_agree_with_plain_lists(void **state)
{
    (void)state;
    void (*const ops[])(struct kv *, struct kv_seq *, struct naive *, uint32_t) = {
        random_grow, random_grow, random_keep, random_truncate, random_fork};
    uint64_t n_seeds = lib_amount(3, 3, 20);
    for (uint64_t seed = 0; seed < n_seeds; seed++) {
        state_of_dice = seed;
        AUTO(kv_free) struct kv *kv = kv_of(14);
        struct kv_seq seqs[N_SEQS];
        struct naive n = {0};
        for (uint32_t s = 0; s < N_SEQS; s++)
            seqs[s] = seq_of(MAX_ROWS);
        for (int step = 0; step < 300; step++) {
            ops[dice(ARRAY_LEN(ops))](kv, seqs, &n, dice(N_SEQS));
            assert_same(kv, seqs, &n);
        }
        for (uint32_t s = 0; s < N_SEQS; s++)
            kv_seq_done(kv, &seqs[s]);
        assert_int_equal(kv_n_free(kv), 14);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(growing_takes_a_block_per_16_rows),
        cmocka_unit_test(growing_past_the_pool_changes_nothing),
        cmocka_unit_test(growing_past_the_table_is_refused),
        cmocka_unit_test(a_tree_path_moves_across_blocks),
        cmocka_unit_test(truncating_keeps_a_partly_filled_block),
        cmocka_unit_test(truncating_to_own_length_is_nothing),
        cmocka_unit_test(a_released_sequence_holds_nothing_and_can_grow_again),
        cmocka_unit_test(a_fork_shares_full_blocks_and_copies_the_tail),
        cmocka_unit_test(growing_into_a_shared_block_copies_it_first),
        cmocka_unit_test(a_shared_tail_needs_a_free_block_to_grow),
        cmocka_unit_test(a_fork_without_a_free_block_for_the_tail_is_refused),
        cmocka_unit_test(the_check_finds_a_block_that_is_held_twice),
        cmocka_unit_test(absurd_pools_are_refused_with_a_sentence),
        cmocka_unit_test(random_operations_agree_with_plain_lists),
    };
    int failed = 0;
    kernel = kernel_tier("c");
    for (shape.type = KERNEL_KV_F16; shape.type <= KERNEL_KV_INT8; shape.type++)
        failed += cmocka_run_group_tests_name(kernel_kv_name(shape.type), tests, NULL, NULL);
    return failed;
}
