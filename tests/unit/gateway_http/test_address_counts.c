/* test_address_counts.c - the counts of connections by client address. */
#include "gateway/http/address_counts.h"
#include "lib/fakes/failing.h"
#include "lib/lib.h"

#define N (3 * ADDRESS_COUNTS_SLOTS) // many share a slot

static struct address_counts counts;

/* 10.0.x.y */
static struct address host(unsigned n)
{
    return (struct address){.is_ip = true,
                            .ip = {[10] = 0xff, [11] = 0xff, 10, 0, n >> 8 & 255, n & 255}};
}

static struct address_count *take(unsigned n)
{
    struct address a = host(n);
    return address_counts_take(&counts, &a);
}

static unsigned n_slots_in_use(void)
{
    unsigned n = 0;
    for (unsigned i = 0; i < ADDRESS_COUNTS_SLOTS; i++)
        n += counts.slots[i] != NULL;
    return n;
}

/* The first and the last of a slot, and those between. */
static void addresses_that_share_a_slot_are_counted_separately(void **state)
{
    (void)state;
    static struct address_count *c[N];
    for (unsigned i = 0; i < N; i++) {
        c[i] = take(i);
        assert_non_null(c[i]);
        assert_int_equal(c[i]->n, 0);
        c[i]->n = i;
    }
    assert_true(n_slots_in_use() < N);
    for (unsigned i = 0; i < N; i++)
        assert_ptr_equal(take(i), c[i]); // a second reference
    for (unsigned i = 0; i < N; i++)
        address_counts_drop(&counts, c[i]);
    for (unsigned i = 0; i < N; i += 2)
        address_counts_drop(&counts, c[i]); // the last reference
    for (unsigned i = 1; i < N; i += 2) {
        assert_ptr_equal(take(i), c[i]);
        assert_int_equal(c[i]->n, i);
        address_counts_drop(&counts, c[i]);
        address_counts_drop(&counts, c[i]);
    }
    assert_int_equal(n_slots_in_use(), 0);
}

static void a_failed_allocation_is_no_count(void **state)
{
    (void)state;
    failing_at(1);
    struct address_count *c = take(1);
    assert_true(failing_has_failed());
    assert_null(c);
    address_counts_drop(&counts, c); // no effect
    assert_int_equal(n_slots_in_use(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(addresses_that_share_a_slot_are_counted_separately),
        cmocka_unit_test(a_failed_allocation_is_no_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
