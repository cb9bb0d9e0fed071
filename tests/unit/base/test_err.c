/* test_err.c - the sentence that describes an error. */
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include "base/err.h"
#include "lib/lib.h"

static void fail_returns_its_code_and_stores_the_sentence(void **state)
{
    (void)state;
    assert_int_equal(fail(-EINVAL, "k is %d", 21), -EINVAL);
    assert_string_equal(fail_text(), "k is 21");
}

static void the_old_sentence_may_be_part_of_the_new_one(void **state)
{
    (void)state;
    fail(-ENOENT, "no file");
    fail(-EIO, "model: %s", fail_text());
    assert_string_equal(fail_text(), "model: no file");
}

static void a_long_sentence_is_cut(void **state)
{
    (void)state;
    char big[2 * FAIL_TEXT_MAX];
    memset(big, 'x', sizeof(big));
    big[sizeof(big) - 1] = 0;
    fail(-EINVAL, "%s", big);
    assert_int_equal(strlen(fail_text()), FAIL_TEXT_MAX - 1);
}

static void *other_thread(void *arg)
{
    assert_string_equal(fail_text(), "");
    fail(-EIO, "theirs");
    return arg;
}

static void each_thread_has_its_own_sentence(void **state)
{
    (void)state;
    pthread_t t;
    fail(-EINVAL, "ours");
    pthread_create(&t, NULL, other_thread, NULL);
    pthread_join(t, NULL);
    assert_string_equal(fail_text(), "ours");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fail_returns_its_code_and_stores_the_sentence),
        cmocka_unit_test(the_old_sentence_may_be_part_of_the_new_one),
        cmocka_unit_test(a_long_sentence_is_cut),
        cmocka_unit_test(each_thread_has_its_own_sentence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
