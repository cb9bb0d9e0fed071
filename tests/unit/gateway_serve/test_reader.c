/* test_reader.c - the turns of payers at the reader, its limit, and its end. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "base/err.h"
#include "lib/fakes/failing.h"
#include "lib/fakes/failing_thread.h"
#include "lib/lib.h"
#include "lib/rigs/reader_hold.h"

#define MAX 16

static struct reader *reader;
static struct reader_job jobs[MAX];
static char ran[MAX + 1]; // the names of the jobs, in the order in which they ran
static bool stops[MAX];   // whether each of them was to end quickly
static unsigned n_ran;

static int start(void **state)
{
    (void)state;
    n_ran = 0;
    memset(ran, 0, sizeof(ran));
    assert_int_equal(reader_new(&reader), 0);
    return 0;
}

static int end(void **state)
{
    (void)state;
    reader_free(reader);
    return 0;
}

static void note(void *user, bool stopping)
{
    stops[n_ran] = stopping;
    ran[n_ran++] = *(const char *)user;
}

static void nothing(void *user, bool stopping)
{
    (void)user, (void)stopping;
}

/* Adds a job for each payer (a letter), with a name of the same place. */
static void add(const char *payers, const char *names)
{
    for (unsigned i = 0; payers[i]; i++) {
        const char payer[] = {payers[i], 0};
        assert_int_equal(reader_read(reader, &jobs[names[i] - '0'], payer, note, (void *)&names[i]),
                         0);
    }
}

static void jobs_of_a_payer_keep_their_order(void **state)
{
    (void)state;
    reader_hold(reader, "h");
    add("aaaa", "0123");
    reader_stop(reader);
    assert_string_equal(ran, "0123");
}

static void payers_take_turns(void **state)
{
    (void)state;
    reader_hold(reader, "h");
    add("aaabcb", "012345");
    reader_stop(reader);
    assert_string_equal(ran, "034152");
}

/* It has had its turn, so it comes after those that came meanwhile. */
static void the_payer_of_the_running_job_comes_last(void **state)
{
    (void)state;
    reader_hold(reader, "a");
    add("aabcba", "012345");
    reader_stop(reader);
    assert_string_equal(ran, "230415");
}

/* A job that adds the next one of its payer, as a client that always has one request. */
static void add_next(void *user, bool stopping)
{
    static const char *const names = "0123456789";
    unsigned left = *(unsigned *)user;
    note((void *)&names[n_ran], stopping);
    if (left) {
        *(unsigned *)user = left - 1;
        assert_int_equal(reader_read(reader, &jobs[0], "a", add_next, user), 0);
    }
}

static void a_payer_that_always_has_a_job_does_not_hold_up_others(void **state)
{
    (void)state;
    unsigned left = 3;
    reader_hold(reader, "h");
    assert_int_equal(reader_read(reader, &jobs[0], "a", add_next, &left), 0);
    add("bb", "89");
    reader_let_go();
    for (unsigned i = 0; i < 4; i++) // jobs of a
        reader_await(reader);
    reader_stop(reader);
    assert_string_equal(ran, "082945");
    assert_false(stops[5]);
}

static void jobs_that_wait_are_limited(void **state)
{
    (void)state;
    reader_hold(reader, "h");
    reader_fill(reader, READER_MAX_WAITING - 1);
    add("a", "0");
    assert_int_equal(reader_read(reader, &jobs[1], "b", note, NULL), -EAGAIN);
    assert_string_equal(fail_text(), "too many large requests wait to be read; try again");
    reader_let_go();
    reader_await(reader);
    assert_string_equal(ran, "0");
    add("b", "1");
    reader_await(reader);
    assert_string_equal(ran, "01");
}

/* The first payer takes half of the places, the next one half of the others. */
static void a_payer_leaves_places_for_others(void **state)
{
    (void)state;
    static struct reader_job many[READER_MAX_WAITING];
    reader_hold(reader, "h");
    for (unsigned i = 0; i < READER_MAX_WAITING / 2; i++)
        assert_int_equal(reader_read(reader, &many[i], "a", nothing, NULL), 0);
    assert_int_equal(reader_read(reader, &jobs[0], "a", note, NULL), -EDQUOT);
    assert_string_equal(fail_text(),
                        "512 of your large requests already wait to be read; try again");
    for (unsigned i = READER_MAX_WAITING / 2; i < READER_MAX_WAITING * 3 / 4; i++)
        assert_int_equal(reader_read(reader, &many[i], "b", nothing, NULL), 0);
    assert_int_equal(reader_read(reader, &jobs[0], "b", note, NULL), -EDQUOT);
    add("c", "0");
    reader_stop(reader);
    assert_string_equal(ran, "0");
}

static void an_answer_needs_no_place(void **state)
{
    (void)state;
    static const char name = '0';
    static struct reader_job many[READER_MAX_WAITING];
    reader_hold(reader, "h");
    for (unsigned i = 0; i < READER_MAX_WAITING; i++)
        assert_int_equal(reader_write(reader, &many[i], "a", nothing, NULL), 0);
    reader_fill(reader, READER_MAX_WAITING - 1);
    assert_int_equal(reader_read(reader, &jobs[1], "a", nothing, NULL), 0);
    assert_int_equal(reader_write(reader, &jobs[0], "h", note, (void *)&name), 0);
    reader_stop(reader);
    assert_string_equal(ran, "0");
    assert_int_equal(reader_write(reader, &jobs[0], "h", note, (void *)&name), -EPIPE);
}

static void jobs_that_wait_at_the_end_know_it(void **state)
{
    (void)state;
    add("a", "0");
    reader_await(reader);
    reader_hold(reader, "h");
    add("aba", "123");
    reader_stop(reader);
    assert_string_equal(ran, "0123");
    assert_false(stops[0]);
    for (unsigned i = 1; i < 4; i++)
        assert_true(stops[i]);
    assert_int_equal(reader_read(reader, &jobs[0], "a", note, NULL), -EPIPE);
    assert_string_equal(fail_text(), READER_STOPPING);
    reader_stop(reader);
    reader_stop(NULL);
}

static void a_reader_without_memory_or_a_thread_is_an_error(void **state)
{
    (void)state;
    struct reader *none = NULL;
    failing_at(1);
    assert_int_equal(reader_new(&none), -ENOMEM);
    assert_true(failing_has_failed());
    failing_thread_at(1);
    assert_int_equal(reader_new(&none), -EAGAIN);
    assert_string_equal(fail_text(), "cannot start a thread: Resource temporarily unavailable");
    assert_null(none);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, start, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(jobs_of_a_payer_keep_their_order),
        CASE(payers_take_turns),
        CASE(the_payer_of_the_running_job_comes_last),
        CASE(a_payer_that_always_has_a_job_does_not_hold_up_others),
        CASE(jobs_that_wait_are_limited),
        CASE(a_payer_leaves_places_for_others),
        CASE(an_answer_needs_no_place),
        CASE(jobs_that_wait_at_the_end_know_it),
        CASE(a_reader_without_memory_or_a_thread_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
