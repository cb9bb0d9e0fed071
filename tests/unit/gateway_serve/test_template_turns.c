/* test_template_turns.c - the turns of payers, their limits, slow payers, and the pauses of failing
 * templates. Time is an argument. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "base/err.h"
#include "gateway/http/others.h"
#include "gateway/serve/template_turns.h"
#include "lib/fakes/failing.h"
#include "lib/lib.h"

#define N_HELPERS 2
#define MAX 64
#define WAIT_US 1000000
#define S 1000000 // microseconds
#define SLOW_US (TEMPLATE_TURNS_SLOW_US + 1)

static struct template_turns *t;
static struct template_turn places[2 * MAX];
static struct template_turn *displaced; // by the last chat
static unsigned n_places;

/* The payers of a test have an entry each. */
uint64_t __wrap_rng_secret(void);

uint64_t __wrap_rng_secret(void)
{
    return 1;
}

static void start_with(unsigned n_helpers)
{
    n_places = 0;
    memset(places, 0, sizeof(places));
    assert_int_equal(template_turns_new(n_helpers, MAX, WAIT_US, &t), 0);
}

static int start(void **state)
{
    (void)state;
    start_with(N_HELPERS);
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
    return template_turns_enter(t, &places[n_places++], payer, source, strlen(source), now_us,
                                &displaced);
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
    template_turns_end(t, &places[i], result, 0, now_us);
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

/* The newest chat of the payer with the most gives way. */
static void a_newcomer_displaces_the_payer_with_the_most(void **state)
{
    (void)state;
    for (unsigned i = 0; i < MAX; i++)
        assert_int_equal(enter(i % 4 == 1 ? "b" : "a", "x", 0), 0);
    assert_null(displaced);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(enter("c", "x", 0), 0);
        assert_ptr_equal(displaced, &places[MAX - 1 - i]);
        assert_non_null(strstr(fail_text(), "of your chats already wait for their templates"));
    }
    assert_int_equal(enter("a", "x", 0), -EDQUOT);
    assert_null(displaced);
    assert_int_equal(next(0, 0), 0);
    assert_int_equal(enter("a", "x", 0), 0);
    assert_null(displaced);
}

static void a_payer_with_one_chat_is_not_displaced(void **state)
{
    (void)state;
    for (unsigned i = 0; i < MAX; i++) {
        char payer[16];
        snprintf(payer, sizeof(payer), "b%u", i);
        assert_int_equal(enter(payer, "x", 0), 0);
    }
    assert_int_equal(enter("c", "x", 0), -EAGAIN);
    assert_non_null(strstr(fail_text(), "64 chats already wait for their templates"));
    assert_int_equal(enter("b7", "x", 0), -EDQUOT);
    assert_non_null(strstr(fail_text(), "1 of your chats already wait for their templates"));
    for (unsigned i = 0; i < MAX; i++)
        assert_non_null(template_turns_drop(t));
    assert_null(template_turns_drop(t));
    assert_int_equal(enter("c", "x", 0), 0);
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
    assert_false(template_turns_end(t, &places[first + 2], TEMPLATE_TURNS_DONE, 0, 0));
    assert_int_equal(next(0, 0), -1);
    assert_true(template_turns_end(t, &places[first], TEMPLATE_TURNS_DONE, 0, 0));
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
    for (unsigned i = 0; i < TEMPLATE_TURNS_FAILING; i++) {
        char payer[16];
        snprintf(payer, sizeof(payer), "b%u", i);
        n_places = 3;
        assert_int_equal(enter(payer, "x", 1), 0);
        assert_int_equal(next(0, 1), 3);
        template_turns_end(t, &places[3], TEMPLATE_TURNS_FAILED, 0, 1);
    }
    assert_int_equal(next(0, 1), -1);
    assert_true(template_turns_end(t, first, TEMPLATE_TURNS_DONE, 0, 1));
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
    template_turns_end(t, &places[0], TEMPLATE_TURNS_FAILED, 0, 0);
    assert_int_equal(next(0, 0), 2); // the only helper from now on
    assert_int_equal(next(0, 0), -1);
    assert_false(template_turns_end(t, &places[1], TEMPLATE_TURNS_NOT_TRIED, 0, 0));
    assert_int_equal(next(0, 0), -1);
    assert_true(template_turns_end(t, &places[2], TEMPLATE_TURNS_NOT_TRIED, 0, 0));
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

/* ---- slow payers ---- */

/* A rendering of this payer took so long, and ends now. */
static void render_for(const char *payer, int64_t took_us, int64_t now_us)
{
    assert_int_equal(enter(payer, "x", now_us), 0);
    int i = next(0, now_us);
    assert_int_equal(i, n_places - 1);
    template_turns_end(t, &places[i], TEMPLATE_TURNS_DONE, took_us, now_us);
}

/* The chat, whose rendering ends now. Returns whether others may be rendered. */
static bool end_slow(int i, int64_t now_us)
{
    return template_turns_end(t, &places[i], TEMPLATE_TURNS_DONE, SLOW_US, now_us);
}

/* Two chats of the payer come. Returns how many of them are rendered concurrently, and ends
 * them. */
static unsigned n_concurrent(const char *payer, int64_t now_us)
{
    int running[2];
    unsigned n = 0;
    int first = (int)n_places;
    for (unsigned i = 0; i < 2; i++)
        assert_int_equal(enter(payer, "x", now_us), 0);
    while (n < 2 && (running[n] = next(0, now_us)) >= 0)
        n++;
    for (unsigned i = 0; i < n; i++) {
        assert_int_equal(running[i], first + (int)i);
        template_turns_end(t, &places[running[i]], TEMPLATE_TURNS_DONE, 0, now_us);
    }
    while (template_turns_drop(t))
        ;
    return n;
}

static void the_last_helper_is_for_quick_payers(void **state)
{
    (void)state;
    render_for("quick", SLOW_US - 1, 0);
    render_for("slow", SLOW_US, 0);
    assert_int_equal(n_concurrent("quick", 0), 2);
    int first = (int)n_places;
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(enter("slow", "x", 0), 0);
    assert_int_equal(enter("quick", "x", 0), 0);
    assert_int_equal(next(0, 0), first + 3); // it was served less
    assert_int_equal(next(0, 0), first);
    assert_int_equal(next(0, 0), -1);
    assert_false(template_turns_end(t, &places[first + 3], TEMPLATE_TURNS_DONE, 0, 0));
    assert_int_equal(next(0, 0), -1);
    assert_true(end_slow(first, 0));
    assert_int_equal(next(0, 0), first + 1);
}

static void slow_payers_together_get_all_helpers_but_one(void **state)
{
    (void)state;
    static const unsigned n_helpers[] = {1, 2, 3, 8};
    for (size_t i = 0; i < ARRAY_LEN(n_helpers); i++) {
        template_turns_free(t);
        start_with(n_helpers[i]);
        char payer[2] = "a";
        for (; payer[0] < 'j'; payer[0]++)
            render_for(payer, SLOW_US, 0);
        for (payer[0] = 'a'; payer[0] < 'j'; payer[0]++)
            assert_int_equal(enter(payer, "x", 0), 0);
        unsigned n = 0;
        while (n < 9 && next(0, 0) >= 0)
            n++;
        assert_int_equal(n, n_helpers[i] > 1 ? n_helpers[i] - 1 : 1);
        while (template_turns_drop(t))
            ;
    }
}

/* Of payers about which nothing is known. */
static void large_chats_leave_a_helper_too(void **state)
{
    (void)state;
    static const char *const payers[] = {"a", "b", "c", "d"};
    template_turns_free(t);
    start_with(3);
    for (size_t i = 0; i < ARRAY_LEN(payers); i++) {
        places[n_places].is_large = i < 3;
        assert_int_equal(enter(payers[i], "x", 0), 0);
    }
    assert_int_equal(next(0, 0), 0);
    assert_int_equal(next(0, 0), 1);
    assert_int_equal(next(0, 0), 3);
    assert_int_equal(next(0, 0), -1);
    assert_true(template_turns_end(t, &places[0], TEMPLATE_TURNS_DONE, 0, 0));
    assert_int_equal(next(0, 0), 2);
    for (int i = 1; i < 4; i++)
        template_turns_end(t, &places[i], TEMPLATE_TURNS_DONE, 0, 0);
}

static int enter_large(const char *payer, int64_t now_us)
{
    places[n_places].is_large = true;
    return enter(payer, "x", now_us);
}

/* Until one of them is not. */
static void large_chats_that_were_quick_get_all_helpers(void **state)
{
    (void)state;
    template_turns_free(t);
    start_with(2);
    assert_int_equal(enter("other", "x", 0), 0);
    assert_int_equal(next(0, 0), 0);
    template_turns_end(t, &places[0], TEMPLATE_TURNS_DONE, 0, 0);
    for (int turn = 0; turn < 3; turn++) {
        int64_t now_us = turn * INT64_C(20000000); // nobody is slow any longer
        int first = n_places;
        assert_int_equal(enter("other", "x", now_us), 0);
        assert_int_equal(next(0, now_us), first);
        template_turns_end(t, &places[first], TEMPLATE_TURNS_DONE, 0, now_us);
        assert_int_equal(enter_large("a", now_us), 0);
        assert_int_equal(enter_large("a", now_us), 0);
        assert_int_equal(next(0, now_us), first + 1);
        assert_int_equal(next(0, now_us), turn == 1 ? first + 2 : -1);
        template_turns_end(t, &places[first + 1], TEMPLATE_TURNS_DONE, turn ? SLOW_US + 1 : 1,
                           now_us);
        if (turn != 1)
            assert_int_equal(next(0, now_us), first + 2);
        template_turns_end(t, &places[first + 2], TEMPLATE_TURNS_DONE, turn ? SLOW_US + 1 : 1,
                           now_us);
    }
}

/* While the other helper is kept. */
static void a_large_chat_lets_the_others_of_its_payer_pass(void **state)
{
    (void)state;
    template_turns_free(t);
    start_with(2);
    assert_int_equal(enter_large("a", 0), 0);
    assert_int_equal(next(0, 0), 0);
    assert_int_equal(enter_large("b", 0), 0);
    assert_int_equal(enter("b", "y", 0), 0);
    assert_int_equal(enter_large("b", 0), 0);
    assert_int_equal(next(0, 0), 2);
    assert_int_equal(next(0, 0), -1);
    for (int i = 0; i < 3; i += 2)
        template_turns_end(t, &places[i], TEMPLATE_TURNS_DONE, 0, 0);
    assert_int_equal(next(0, 0), 1);
    template_turns_end(t, &places[1], TEMPLATE_TURNS_DONE, 0, 0);
    assert_int_equal(next(0, 0), 3);
    template_turns_end(t, &places[3], TEMPLATE_TURNS_DONE, 0, 0);
}

static void a_chat_that_must_wait_ends_in_time(void **state)
{
    (void)state;
    template_turns_free(t);
    start_with(2);
    assert_int_equal(enter_large("a", 0), 0);
    assert_int_equal(next(0, 0), 0);
    assert_int_equal(enter_large("b", 0), 0);
    assert_int_equal(next(0, WAIT_US), -1);
    assert_int_equal(next(-ETIMEDOUT, WAIT_US + 1), 1);
    template_turns_end(t, &places[0], TEMPLATE_TURNS_DONE, 0, WAIT_US + 1);
}

/* The renderings of many payers are just not slow. Another one waits for few of them only. */
static void the_payer_that_was_served_least_is_next(void **state)
{
    enum { PAYERS = 10 };
    (void)state;
    template_turns_free(t);
    start_with(1);
    for (char payer[2] = "a"; payer[0] < 'a' + PAYERS; payer[0]++)
        render_for(payer, SLOW_US - 1000, 0);
    render_for("z", 1, 0);
    for (int turn = 0; turn < 3; turn++) {
        for (char payer[2] = "a"; payer[0] < 'a' + PAYERS; payer[0]++)
            assert_int_equal(enter(payer, "x", 0), 0);
        int last = n_places;
        assert_int_equal(enter("z", "x", 0), 0);
        int before = 0;
        for (int i; (i = next(0, 0)) != last; before++)
            template_turns_end(t, &places[i], TEMPLATE_TURNS_DONE, SLOW_US - 1000, 0);
        template_turns_end(t, &places[last], TEMPLATE_TURNS_DONE, 1, 0);
        assert_in_range(before, 0, 1);
        for (int i; (i = next(0, 0)) >= 0;)
            template_turns_end(t, &places[i], TEMPLATE_TURNS_DONE, SLOW_US - 1000, 0);
    }
}

/* Its last chat says what the one that runs may cost. */
static void a_payer_is_charged_while_its_chat_runs(void **state)
{
    (void)state;
    template_turns_free(t);
    start_with(3);
    render_for("a", 5000, 0);
    render_for("b", 4000, 0);
    int first = n_places;
    for (int i = 0; i < 3; i++)
        assert_int_equal(enter(i < 2 ? "a" : "b", "x", 0), 0);
    int one = next(0, 0), two = next(0, 0), three = next(0, 0);
    assert_true(one == first || one == first + 2);
    assert_int_equal(two, one == first ? first + 2 : first);
    assert_int_equal(three, first + 1);
    for (int i = 0; i < 3; i++)
        template_turns_end(t, &places[first + i], TEMPLATE_TURNS_DONE, 0, 0);
}

static void slow_payers_take_turns(void **state)
{
    (void)state;
    static const char *const payers[] = {"a", "a", "a", "b", "c", "b"};
    static const int order[] = {0, 3, 4, 1, 5, 2, -1};
    for (char payer[2] = "a"; payer[0] <= 'c'; payer[0]++)
        render_for(payer, SLOW_US, 0);
    int first = (int)n_places;
    for (size_t i = 0; i < ARRAY_LEN(payers); i++)
        assert_int_equal(enter(payers[i], "x", 0), 0);
    for (size_t i = 0; order[i] >= 0; i++) {
        assert_int_equal(next(0, 0), first + order[i]);
        assert_int_equal(next(0, 0), -1);
        end_slow(first + order[i], 0);
    }
}

static void an_only_payer_uses_all_helpers(void **state)
{
    (void)state;
    enum { AWAY = OTHERS_AWAY_US };
    render_for("slow", SLOW_US, 0);
    assert_int_equal(n_concurrent("slow", 0), 2);
    render_for("quick", 0, 0);
    assert_int_equal(n_concurrent("slow", 0), 1);
    render_for("slow", SLOW_US, AWAY - 1);
    assert_int_equal(n_concurrent("slow", AWAY - 1), 1);
    assert_int_equal(n_concurrent("slow", AWAY), 2);
    render_for("quick", 0, AWAY);
    assert_int_equal(n_concurrent("slow", AWAY), 1);
}

static void a_payer_is_slow_for_a_while(void **state)
{
    (void)state;
    enum { END = TEMPLATE_TURNS_SLOW_FOR_US };
    render_for("quick", 0, 0);
    assert_int_equal(n_concurrent("a", 0), 2);
    render_for("a", SLOW_US, 0);
    render_for("a", 0, END - 1); // is quick, but was not
    assert_int_equal(n_concurrent("a", END - 1), 1);
    assert_int_equal(n_concurrent("a", END), 2);
}

/* They wait for each other for longer than a payer is slow. */
static void a_chat_of_a_slow_payer_stays_slow_while_it_waits(void **state)
{
    (void)state;
    enum { LATER = WAIT_US, STEP = TEMPLATE_TURNS_SLOW_FOR_US - LATER };
    render_for("a", SLOW_US, 0);
    render_for("b", SLOW_US, 0);
    int first = (int)n_places;
    assert_int_equal(enter("a", "x", STEP), 0);
    assert_int_equal(enter("b", "x", STEP), 0);
    assert_int_equal(next(0, STEP + LATER), first);
    assert_int_equal(next(0, STEP + LATER), -1);
    assert_true(end_slow(first, STEP + LATER));
    assert_int_equal(next(0, STEP + LATER), first + 1);
}

static void a_rendering_counts_as_slow_before_its_end(void **state)
{
    (void)state;
    render_for("slow", SLOW_US, 0);
    int first = (int)n_places;
    assert_int_equal(enter("other", "x", 0), 0);
    assert_int_equal(next(0, 1), first);
    assert_int_equal(enter("slow", "x", 1), 0);
    assert_int_equal(next(0, 1 + SLOW_US), -1);
    assert_int_equal(next(0, SLOW_US), first + 1);
}

/* ---- chats that leave ---- */

static void a_chat_that_leaves_is_not_rendered(void **state)
{
    (void)state;
    static const int leave[] = {1, 2, 4, 0, 5}; // middle, last, only one, first, last that is left
    int users[6];
    for (int i = 0; i < 6; i++) {
        places[i].user = &users[i];
        assert_int_equal(enter(i < 3 || i == 5 ? "a" : i == 3 ? "b" : "c", "x", 0), 0);
    }
    for (size_t i = 0; i < ARRAY_LEN(leave); i++) {
        assert_ptr_equal(template_turns_leave(t, &users[leave[i]]), &places[leave[i]]);
        assert_null(template_turns_leave(t, &users[leave[i]]));
    }
    assert_int_equal(next(0, 0), 3);
    assert_null(template_turns_leave(t, &users[3])); // is rendered
    assert_int_equal(next(0, 0), -1);
    assert_int_equal(enter("a", "x", 0), 0);
    assert_int_equal(enter("a", "x", 0), 0);
    assert_int_equal(next(0, 0), 6);
    assert_int_equal(next(0, 0), 7);
}

static void the_last_chat_that_leaves_is_followed_by_new_ones(void **state)
{
    (void)state;
    int user;
    places[1].user = &user;
    assert_int_equal(enter("a", "x", 0), 0);
    assert_int_equal(enter("a", "x", 0), 0);
    assert_ptr_equal(template_turns_leave(t, &user), &places[1]);
    assert_int_equal(enter("a", "x", 0), 0);
    assert_int_equal(next(0, 0), 0);
    assert_int_equal(next(0, 0), 2);
    assert_int_equal(next(0, 0), -1);
}

static void a_chat_that_leaves_frees_its_place(void **state)
{
    (void)state;
    int user;
    places[3].user = &user;
    for (unsigned i = 0; i < MAX; i++)
        assert_int_equal(enter("a", "x", 0), 0);
    assert_int_equal(enter("a", "x", 0), -EDQUOT);
    assert_ptr_equal(template_turns_leave(t, &user), &places[3]);
    assert_int_equal(enter("a", "x", 0), 0);
    assert_int_equal(enter("a", "x", 0), -EDQUOT);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, start, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(payers_take_turns),
        CASE(a_newcomer_displaces_the_payer_with_the_most),
        CASE(a_payer_with_one_chat_is_not_displaced),
        CASE(a_chat_that_has_waited_too_long_is_not_rendered),
        CASE(pauses_of_a_failing_template_grow),
        CASE(a_pause_is_of_one_payer_and_one_template),
        CASE(a_failing_template_has_one_helper_at_a_time),
        CASE(only_some_failing_templates_are_known),
        CASE(a_template_that_runs_is_not_forgotten),
        CASE(an_end_admits_others_only_after_its_own_probe),
        CASE(a_payer_without_memory_takes_no_place),
        CASE(the_last_helper_is_for_quick_payers),
        CASE(slow_payers_together_get_all_helpers_but_one),
        CASE(slow_payers_take_turns),
        CASE(an_only_payer_uses_all_helpers),
        CASE(large_chats_leave_a_helper_too),
        CASE(large_chats_that_were_quick_get_all_helpers),
        CASE(a_large_chat_lets_the_others_of_its_payer_pass),
        CASE(a_chat_that_must_wait_ends_in_time),
        CASE(the_payer_that_was_served_least_is_next),
        CASE(a_payer_is_charged_while_its_chat_runs),
        CASE(a_payer_is_slow_for_a_while),
        CASE(a_chat_of_a_slow_payer_stays_slow_while_it_waits),
        CASE(a_rendering_counts_as_slow_before_its_end),
        CASE(a_chat_that_leaves_is_not_rendered),
        CASE(the_last_chat_that_leaves_is_followed_by_new_ones),
        CASE(a_chat_that_leaves_frees_its_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
