/* test_prompt_places.c - the places of prompts: their limits, and who gets a free one. */
#include <errno.h>
#include <stdio.h>
#include "gateway/serve/prompt_places.h"
#include "lib/fakes/failing.h"
#include "lib/lib.h"

#define N 40

static struct prompt_places p = {.mu = PTHREAD_MUTEX_INITIALIZER};
static struct prompt_places_request r[N];

/* Request i is of this payer. */
static void join(unsigned i, const char *payer)
{
    assert_int_equal(prompt_places_join(&p, &r[i], payer), 0);
}

static void take(unsigned i, unsigned n)
{
    for (unsigned k = 0; k < n; k++)
        assert_true(prompt_places_take(&p, &r[i]));
}

static void waits(unsigned i)
{
    assert_false(prompt_places_take(&p, &r[i]));
}

static void give(unsigned i, const struct prompt_places_request *heir)
{
    assert_ptr_equal(prompt_places_give(&p, &r[i]), heir);
}

static void leave(unsigned i, unsigned n)
{
    for (unsigned k = 0; k < n; k++)
        give(i, NULL);
    prompt_places_leave(&p, &r[i]);
}

static void a_payer_has_a_limit(void **state)
{
    (void)state;
    join(0, "a");
    join(1, "a");
    join(2, "b");
    take(0, PROMPT_PLACES_OF_PAYER - 1);
    take(1, 1);
    waits(0);
    waits(1);
    take(2, PROMPT_PLACES_OF_PAYER);
    waits(2);
    give(1, &r[0]); // waits longest
    waits(0);
    give(0, &r[1]);
    give(1, &r[0]);
    assert_true(prompt_places_cancel(&p, &r[2]));
    assert_false(prompt_places_cancel(&p, &r[2]));
    assert_false(prompt_places_cancel(&p, &r[1]));
    leave(0, PROMPT_PLACES_OF_PAYER);
    leave(1, 0);
    leave(2, PROMPT_PLACES_OF_PAYER);
    assert_null(p.payers);
    assert_int_equal(p.n, 0);
}

static void a_wait_ends_wherever_it_is_in_the_queue(void **state)
{
    (void)state;
    for (unsigned gone = 1; gone <= 3; gone++) {
        for (unsigned i = 0; i < 4; i++)
            join(i, "a");
        take(0, PROMPT_PLACES_OF_PAYER);
        for (unsigned i = 1; i <= 3; i++)
            waits(i);
        assert_true(prompt_places_cancel(&p, &r[gone]));
        waits(gone);
        give(0, &r[gone == 1 ? 2 : 1]);
        give(0, &r[gone == 3 ? 2 : 3]);
        give(0, &r[gone]);
        leave(0, PROMPT_PLACES_OF_PAYER - 3);
        for (unsigned i = 1; i <= 3; i++)
            leave(i, 1);
    }
    assert_null(p.payers);
}

static void the_payer_with_the_fewest_places_is_next(void **state)
{
    (void)state;
    enum { FULL = PROMPT_PLACES_MAX / PROMPT_PLACES_OF_PAYER };
    for (unsigned i = 0; i < FULL; i++) {
        char payer[8];
        snprintf(payer, sizeof(payer), "%u", i);
        join(i, payer);
        take(i, PROMPT_PLACES_OF_PAYER - (i == 0));
    }
    join(FULL, "x");
    join(FULL + 1, "y");
    take(FULL, 1);
    waits(0);
    waits(FULL);
    waits(FULL + 1);
    give(1, &r[FULL + 1]);
    give(1, &r[FULL]);
    give(1, &r[0]);
    leave(0, PROMPT_PLACES_OF_PAYER);
    leave(1, PROMPT_PLACES_OF_PAYER - 3);
    for (unsigned i = 2; i < FULL; i++)
        leave(i, PROMPT_PLACES_OF_PAYER);
    leave(FULL, 2);
    leave(FULL + 1, 1);
    assert_null(p.payers);
}

static void no_memory(void **state)
{
    (void)state;
    failing_at(1);
    int rc = prompt_places_join(&p, &r[0], "a");
    failing_at(0);
    assert_int_equal(rc, -ENOMEM);
    prompt_places_leave(&p, &r[0]); // it has not joined
    assert_null(p.payers);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_payer_has_a_limit),
        cmocka_unit_test(a_wait_ends_wherever_it_is_in_the_queue),
        cmocka_unit_test(the_payer_with_the_fewest_places_is_next),
        cmocka_unit_test(no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
