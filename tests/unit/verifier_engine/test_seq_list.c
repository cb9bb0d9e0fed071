/* test_seq_list.c - a list of sequences in order of arrival. */
#include "lib/lib.h"
#include "base/mem.h"
#include "verifier-svc/engine/seq_list.h"

#define N 5

static struct seq seqs[N];

/* The list has exactly these sequences, by their order of arrival. */
static void must_hold(const struct seq_list *l, const uint64_t *orders, uint32_t n)
{
    assert_int_equal(l->n, n);
    for (uint32_t i = 0; i < n; i++)
        assert_int_equal(l->v[i]->order, orders[i]);
}

static void sequences_are_kept_by_arrival(void **state)
{
    (void)state;
    static const unsigned added[N] = {2, 0, 4, 1, 3};
    struct seq_list l;
    assert_int_equal(seq_list_init(&l, N), 0);
    for (unsigned i = 0; i < N; i++) {
        struct seq *s = &seqs[added[i]];
        s->order = added[i];
        s->id = 100 + added[i];
        seq_list_add(&l, s);
    }
    must_hold(&l, (const uint64_t[]){0, 1, 2, 3, 4}, N);
    for (unsigned i = 0; i < N; i++)
        assert_ptr_equal(seq_list_find(&l, 100 + i), &seqs[i]);
    assert_null(seq_list_find(&l, 99));
    assert_null(seq_list_find(&l, 105));
    seq_list_remove(&l, &seqs[2]);
    must_hold(&l, (const uint64_t[]){0, 1, 3, 4}, N - 1);
    seq_list_remove(&l, &seqs[2]); // is not in it
    must_hold(&l, (const uint64_t[]){0, 1, 3, 4}, N - 1);
    seq_list_remove(&l, &seqs[4]);
    seq_list_remove(&l, &seqs[0]);
    must_hold(&l, (const uint64_t[]){1, 3}, 2);
    assert_null(seq_list_find(&l, 100));
    seq_list_done(&l);
    assert_true(l.v == NULL && l.n == 0 && l.max == 0);
}

/* Such as two choices of one request. */
static void equal_orders_stay_in_the_order_of_adding(void **state)
{
    (void)state;
    struct seq_list l;
    assert_int_equal(seq_list_init(&l, N), 0);
    for (unsigned i = 0; i < 3; i++) {
        seqs[i].order = 7;
        seq_list_add(&l, &seqs[i]);
    }
    for (unsigned i = 0; i < 3; i++)
        assert_ptr_equal(l.v[i], &seqs[i]);
    seq_list_done(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sequences_are_kept_by_arrival),
        cmocka_unit_test(equal_orders_stay_in_the_order_of_adding),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
