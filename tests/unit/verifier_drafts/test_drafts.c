/* test_drafts.c - names of proposers in requests, without a connection. Streams are tested in
 * tests/system/proposer. */
#include <errno.h>
#include "lib/lib.h"
#include "lib/rigs/logged.h"
#include "verifier-svc/drafts/drafts.h"

static void requests_with_the_old_name_of_the_cascade_log_one_warning(void **state)
{
    (void)state;
    struct drafts_config c = {.n_targets = 1,
                              .targets = {{.name = "cascade", .target = "unix:/nonexistent/p"}},
                              .n_vocab = 16,
                              .max_sequences = 1};
    AUTO(drafts_free) struct drafts *d = NULL;
    assert_int_equal(drafts_new(&c, &d), 0);
    logged_begin();
    int present = drafts_check_name(d, "cascade");
    int first = drafts_check_name(d, "chain"), second = drafts_check_name(d, "chain");
    int other = drafts_check_name(d, "ngram");
    const char *log = logged_end();
    assert_int_equal(present | first | second, 0);
    assert_int_equal(other, -EINVAL);
    assert_int_equal(logged_count(log, "is now called"), 1);
    assert_int_equal(
        logged_count(log, "speculative.proposer: chain is now called cascade; please use"), 1);
}

/* Whichever of the two comes first. */
static void a_proposer_with_the_old_name_is_the_one_that_is_meant(void **state)
{
    (void)state;
    for (unsigned old = 0; old < 2; old++) {
        struct drafts_config c = {.n_targets = 2, .n_vocab = 16, .max_sequences = 1};
        c.targets[old] = (struct drafts_target){.name = "chain", .target = "unix:/nonexistent/old"};
        c.targets[!old] =
            (struct drafts_target){.name = "cascade", .target = "unix:/nonexistent/new"};
        AUTO(drafts_free) struct drafts *d = NULL;
        assert_int_equal(drafts_new(&c, &d), 0);
        logged_begin();
        int found = drafts_check_name(d, "chain");
        const char *log = logged_end();
        assert_int_equal(found, 0);
        assert_int_equal(logged_count(log, "is now called"), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_proposer_with_the_old_name_is_the_one_that_is_meant),
        cmocka_unit_test(requests_with_the_old_name_of_the_cascade_log_one_warning),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
