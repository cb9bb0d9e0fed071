/* test_template_turns.c - the turns of payers, their limits, and the pauses of failing templates.
 * Time is an argument. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "base/err.h"
#include "gateway/serve/template_turns.h"
#include "lib/fakes/failing.h"
#include "lib/lib.h"

#define MAX 64
#define WAIT_US 1000000
#define S 1000000 // microseconds

static struct template_turns *t;
static struct template_turn places[2 * MAX];
static unsigned n_places;

static int start(void **state)
{
    (void)state;
    n_places = 0;
    assert_int_equal(template_turns_new(MAX, WAIT_US, &t), 0);
    return 0;
}

static int end(void **state)
{
    (void)state;
    while (template_turns_drop(t))
        ;
    template_turns_free(t);
    return 0;
}

static int enter(const char *payer, const char *source, int64_t now_us)
{
    return template_turns_enter(t, &places[n_places++], payer, source, strlen(source), now_us);
}

/* The number of the chat whose turn it is. -1: none. */
static int next(int want, int64_t now_us)
{
    struct template_turn *p;
    assert_int_equal(template_turns_next(t, now_us, &p), want);
    return p ? (int)(p - places) : -1;
}

/* The template is rendered for the payer with this result. */
static void render(const char *payer, enum template_turns_result result, int64_t now_us)
{
    assert_int_equal(enter(payer, "x", now_us), 0);
    int i = next(0, now_us);
    assert_int_equal(i, n_places - 1);
    template_turns_end(t, &places[i], result, now_us);
}

static void payers_take_turns(void **state)
{
    (void)state;
    static const char *const payers[] = {"a", "a", "a", "b", "c", "b"};
    static const int order[] = {0, 3, 4, 1, 5, 2, -1};
    for (size_t i = 0; i < ARRAY_LEN(payers); i++)
        assert_int_equal(enter(payers[i], "x", 0), 0);
    for (size_t i = 0; i < ARRAY_LEN(order); i++)
        assert_int_equal(next(0, 0), order[i]);
}

static void a_payer_leaves_places_for_others(void **state)
{
    (void)state;
    for (unsigned i = 0; i < MAX / 2; i++)
        assert_int_equal(enter("a", "x", 0), 0);
    assert_int_equal(enter("a", "x", 0), -EDQUOT);
    assert_non_null(strstr(fail_text(), "32 of your chats already wait for their templates"));
    for (unsigned i = 0; i < MAX / 2; i++) {
        char payer[16];
        snprintf(payer, sizeof(payer), "b%u", i);
        assert_int_equal(enter(payer, "x", 0), 0);
    }
    assert_int_equal(enter("c", "x", 0), -EAGAIN);
    assert_non_null(strstr(fail_text(), "64 chats already wait for their templates"));
    for (unsigned i = 0; i < MAX; i++)
        assert_non_null(template_turns_drop(t));
    assert_null(template_turns_drop(t));
    assert_int_equal(enter("a", "x", 0), 0);
}

static void a_chat_that_has_waited_too_long_is_not_rendered(void **state)
{
    (void)state;
    assert_int_equal(enter("a", "x", 0), 0);
    assert_int_equal(enter("a", "x", 1), 0);
    assert_int_equal(next(-ETIMEDOUT, WAIT_US + 1), 0);
    assert_non_null(strstr(fail_text(), "longest time allowed, 1 s"));
    assert_int_equal(next(0, WAIT_US + 1), 1);
}

static void pauses_of_a_failing_template_grow(void **state)
{
    (void)state;
    static const int64_t pauses_s[] = {0, 1, 2, 4, 8, 16, 32, 60, 60};
    int64_t now_us = 0;
    for (size_t i = 0; i < ARRAY_LEN(pauses_s); i++) {
        render("a", TEMPLATE_TURNS_FAILED, now_us);
        if (pauses_s[i]) {
            now_us += pauses_s[i] * S - 1;
            assert_int_equal(enter("a", "x", now_us), 0);
            assert_int_equal(next(-EBUSY, now_us), n_places - 1);
            assert_non_null(strstr(fail_text(), "times in a row"));
            assert_int_equal(places[n_places - 1].retry_s, 1); // rounded up
            now_us++;
        }
    }
    render("a", TEMPLATE_TURNS_NOT_TRIED, now_us);
    render("a", TEMPLATE_TURNS_FAILED, now_us); // the tenth
    assert_int_equal(enter("a", "x", now_us), 0);
    assert_int_equal(next(-EBUSY, now_us), n_places - 1);
    assert_int_equal(places[n_places - 1].retry_s, 60);
    now_us += 60 * S;
    render("a", TEMPLATE_TURNS_DONE, now_us);
    render("a", TEMPLATE_TURNS_FAILED, now_us); // the first again
    render("a", TEMPLATE_TURNS_FAILED, now_us);
}

/* One payer's messages may make a template slow that is good for others. */
static void a_pause_is_of_one_payer_and_one_template(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 2; i++)
        render("a", TEMPLATE_TURNS_FAILED, 0);
    render("b", TEMPLATE_TURNS_DONE, 0);
    assert_int_equal(enter("a", "y", 0), 0);
    assert_int_equal(next(0, 0), n_places - 1);
    assert_int_equal(enter("a", "x", 0), 0);
    assert_int_equal(next(-EBUSY, 0), n_places - 1);
}

static void a_failing_template_has_one_helper_at_a_time(void **state)
{
    (void)state;
    render("a", TEMPLATE_TURNS_FAILED, 0);
    int first = (int)n_places;
    assert_int_equal(enter("a", "x", 0), 0);
    assert_int_equal(enter("a", "x", 0), 0);
    assert_int_equal(enter("b", "x", 0), 0);
    assert_int_equal(next(0, 0), first);
    assert_int_equal(next(0, 0), first + 2);
    assert_int_equal(next(0, 0), -1);
    assert_false(template_turns_end(t, &places[first + 2], TEMPLATE_TURNS_DONE, 0));
    assert_int_equal(next(0, 0), -1);
    assert_true(template_turns_end(t, &places[first], TEMPLATE_TURNS_DONE, 0));
    assert_int_equal(next(0, 0), first + 1);
}

/* The table of failing templates is full; the one whose pause ended first is forgotten. */
static void only_some_failing_templates_are_known(void **state)
{
    (void)state;
    render("first", TEMPLATE_TURNS_FAILED, 0);
    for (unsigned i = 0; i < TEMPLATE_TURNS_FAILING; i++) {
        char payer[16];
        snprintf(payer, sizeof(payer), "b%u", i);
        n_places = 0;
        render(payer, TEMPLATE_TURNS_FAILED, 1);
    }
    render("first", TEMPLATE_TURNS_FAILED, 1);
    render("first", TEMPLATE_TURNS_FAILED, 1);
    assert_int_equal(enter("first", "x", 1), 0);
    assert_int_equal(next(-EBUSY, 1), n_places - 1);
}

/* The table is full while a template that has failed is tried again. */
static void a_template_that_runs_is_not_forgotten(void **state)
{
    (void)state;
    render("a", TEMPLATE_TURNS_FAILED, 0);
    assert_int_equal(enter("a", "x", 0), 0);
    assert_int_equal(enter("a", "x", 0), 0);
    struct template_turn *first;
    assert_int_equal(template_turns_next(t, 0, &first), 0);
    struct template_turn probe = *first;
    for (unsigned i = 0; i < TEMPLATE_TURNS_FAILING; i++) {
        char payer[16];
        snprintf(payer, sizeof(payer), "b%u", i);
        n_places = 3;
        assert_int_equal(enter(payer, "x", 1), 0);
        assert_int_equal(next(0, 1), 3);
        template_turns_end(t, &places[3], TEMPLATE_TURNS_FAILED, 1);
    }
    assert_int_equal(next(0, 1), -1);
    assert_true(template_turns_end(t, &probe, TEMPLATE_TURNS_DONE, 1));
    assert_int_equal(next(0, 1), 2);
}

/* Two helpers run the template, which has not failed before; then one of them fails. */
static void an_end_admits_others_only_after_its_own_probe(void **state)
{
    (void)state;
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(enter("a", "x", 0), 0);
    assert_int_equal(next(0, 0), 0);
    assert_int_equal(next(0, 0), 1);
    template_turns_end(t, &places[0], TEMPLATE_TURNS_FAILED, 0);
    assert_int_equal(next(0, 0), 2); // the only helper from now on
    assert_int_equal(next(0, 0), -1);
    assert_false(template_turns_end(t, &places[1], TEMPLATE_TURNS_NOT_TRIED, 0));
    assert_int_equal(next(0, 0), -1);
    assert_true(template_turns_end(t, &places[2], TEMPLATE_TURNS_NOT_TRIED, 0));
    assert_int_equal(next(0, 0), 3);
}

static void a_payer_without_memory_takes_no_place(void **state)
{
    (void)state;
    failing_at(1);
    assert_int_equal(enter("a", "x", 0), -ENOMEM);
    assert_true(failing_has_failed());
    assert_int_equal(next(0, 0), -1);
    assert_int_equal(enter("a", "x", 0), 0);
    assert_int_equal(next(0, 0), n_places - 1);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, start, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(payers_take_turns),
        CASE(a_payer_leaves_places_for_others),
        CASE(a_chat_that_has_waited_too_long_is_not_rendered),
        CASE(pauses_of_a_failing_template_grow),
        CASE(a_pause_is_of_one_payer_and_one_template),
        CASE(a_failing_template_has_one_helper_at_a_time),
        CASE(only_some_failing_templates_are_known),
        CASE(a_template_that_runs_is_not_forgotten),
        CASE(an_end_admits_others_only_after_its_own_probe),
        CASE(a_payer_without_memory_takes_no_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
