/* test_pass_plan.c - a plan holds copies: later changes of a sequence do not change it. */
#include <malloc.h>
#include <stdlib.h>
#include "lib/lib.h"
#include "model/pass_plan.h"

static const struct kv_layer layer = {.n_heads = 1, .k_dim = 4, .v_dim = 4};
static const struct kv_shape shape = {.n_layers = 1, .layers = &layer};

struct fixture {
    struct kv *kv;
    struct kv_seq a, b;
    struct pass_plan plan;
};

static struct fixture opened(void)
{
    struct fixture f;
    assert_int_equal(kv_new(&shape, 8, &f.kv), 0);
    assert_int_equal(kv_seq_init(&f.a, 64), 0);
    assert_int_equal(kv_seq_init(&f.b, 64), 0);
    assert_int_equal(pass_plan_init(&f.plan, 8, 2, 64), 0);
    return f;
}

static void close_it(struct fixture *f)
{
    pass_plan_done(&f->plan);
    kv_seq_done(f->kv, &f->a);
    kv_seq_done(f->kv, &f->b);
    kv_free(f->kv);
}

static void rows_have_the_slots_of_their_sequences(void **state)
{
    (void)state;
    struct fixture f = opened();
    const uint32_t tokens[] = {7, 8, 9};
    assert_int_equal(kv_grow(f.kv, &f.a, 18), 0);
    assert_int_equal(kv_grow(f.kv, &f.b, 3), 0);
    pass_plan_add_chain(&f.plan, pass_plan_add_seq(&f.plan, &f.a, 0), tokens, 15, 3, 1);
    pass_plan_add_chain(&f.plan, pass_plan_add_seq(&f.plan, &f.b, 0), tokens, 0, 3, 0);
    assert_int_equal(f.plan.n_rows, 6);
    for (uint32_t i = 0; i < 6; i++) {
        const struct kv_seq *seq = i < 3 ? &f.a : &f.b;
        uint32_t pos = i < 3 ? 15 + i : i - 3;
        assert_int_equal(pass_plan_slot(&f.plan, i), kv_slot(seq, pos));
        assert_int_equal(f.plan.rows[i].token, tokens[i % 3]);
        assert_int_equal(f.plan.rows[i].pos, pos);
        assert_int_equal(f.plan.rows[i].wants_logits, i == 2);
    }
    close_it(&f);
}

static void a_plan_does_not_follow_its_sequences(void **state)
{
    (void)state;
    struct fixture f = opened();
    const uint32_t token = 7;
    assert_int_equal(kv_grow(f.kv, &f.a, 17), 0);
    pass_plan_add_chain(&f.plan, pass_plan_add_seq(&f.plan, &f.a, 0), &token, 16, 1, 1);
    uint32_t slot = pass_plan_slot(&f.plan, 0);
    kv_release(f.kv, &f.a);
    assert_int_equal(pass_plan_slot(&f.plan, 0), slot);
    pass_plan_clear(&f.plan);
    assert_int_equal(f.plan.n_rows + f.plan.n_seqs + f.plan.n_blocks, 0);
    close_it(&f);
}

static void absurd_plans_are_refused(void **state)
{
    (void)state;
    struct pass_plan p = {0};
    assert_true(pass_plan_init(&p, 1, 1u << 31, 1u << 31) < 0);
    pass_plan_done(&p);
}

/* The allocator rounds each of the three arrays up. */
static void a_plan_takes_the_bytes_that_were_calculated(void **state)
{
    (void)state;
    const uint32_t sizes[][3] = {{8, 2, 64}, {100, 30, 1001}, {1, 1, 1}};
    for (size_t i = 0; i < ARRAY_LEN(sizes); i++) {
        struct pass_plan p;
        const uint32_t *n = sizes[i];
        assert_int_equal(pass_plan_init(&p, n[0], n[1], n[2]), 0);
        size_t bytes =
            malloc_usable_size(p.rows) + malloc_usable_size(p.seqs) + malloc_usable_size(p.blocks);
        assert_in_range(bytes, pass_plan_bytes(n[0], n[1], n[2]),
                        pass_plan_bytes(n[0], n[1], n[2]) + 3 * 24);
        pass_plan_done(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_have_the_slots_of_their_sequences),
        cmocka_unit_test(a_plan_does_not_follow_its_sequences),
        cmocka_unit_test(absurd_plans_are_refused),
        cmocka_unit_test(a_plan_takes_the_bytes_that_were_calculated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
