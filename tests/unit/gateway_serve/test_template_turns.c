/* test_template_turns.c - the turns of payers, their limits, slow payers, and the pauses of failing
 * templates. Time is an argument. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "base/buf.h"
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
#define COST_US 3000 // expected of a chat

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

static int enter_source(struct template_turn *place, const char *payer, const char *source,
                        int64_t now_us)
{
    place->cost_us = place->cost_us ? place->cost_us : COST_US;
    return template_turns_enter(t, place, payer, source, strlen(source), now_us, &displaced);
}

static int enter_place(struct template_turn *place, const char *payer, int64_t now_us)
{
    return enter_source(place, payer, "x", now_us);
}

static int enter(const char *payer, const char *source, int64_t now_us)
{
    return enter_source(&places[n_places++], payer, source, now_us);
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

/* Those that wait have a template that has failed and is tried again. */
static void a_chat_with_another_template_does_not_wait_for_the_try(void **state)
{
    (void)state;
    render("a", TEMPLATE_TURNS_FAILED, 0);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(enter("a", "x", 0), 0);
    assert_int_equal(next(0, 0), 1);
    assert_int_equal(next(0, 0), -1);
    assert_int_equal(enter("a", "y", 0), 0);
    assert_int_equal(next(0, 0), 4);
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
    assert_int_equal(next(0, 0), first + 3); // it takes less
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
        places[n_places].cost_us = i < 3 ? SLOW_US : 0;
        assert_int_equal(enter(payers[i], "x", 0), 0);
    }
    assert_int_equal(next(0, 0), 3);
    assert_int_equal(next(0, 0), 0);
    assert_int_equal(next(0, 0), 1);
    assert_int_equal(next(0, 0), -1);
    assert_true(template_turns_end(t, &places[0], TEMPLATE_TURNS_DONE, 0, 0));
    assert_int_equal(next(0, 0), 2);
    for (int i = 1; i < 4; i++)
        template_turns_end(t, &places[i], TEMPLATE_TURNS_DONE, 0, 0);
}

static int enter_large(const char *payer, int64_t now_us)
{
    places[n_places].cost_us = SLOW_US;
    return enter(payer, "x", now_us);
}

/* A short one says nothing about a long one. */
static void a_quick_large_chat_buys_no_slow_one(void **state)
{
    (void)state;
    static const int64_t took_us[] = {1, SLOW_US};
    assert_int_equal(enter("other", "x", 0), 0);
    assert_int_equal(next(0, 0), 0);
    for (int i = 1; i < 3; i++) {
        assert_int_equal(enter_large("a", 0), 0);
        assert_int_equal(next(0, 0), i);
        template_turns_end(t, &places[i], TEMPLATE_TURNS_DONE, took_us[i - 1], 0);
    }
    template_turns_end(t, &places[0], TEMPLATE_TURNS_DONE, 0, 0);
    for (int i = 3; i < 5; i++) {
        assert_int_equal(enter_large(i == 3 ? "b" : "c", 0), 0);
        assert_int_equal(next(0, 0), i);
        template_turns_end(t, &places[i], TEMPLATE_TURNS_DONE, 1, 0);
    }
    for (int i = 5; i < 7; i++)
        assert_int_equal(enter_large(i == 5 ? "b" : "c", 0), 0);
    assert_int_equal(next(0, 0), 5);
    assert_int_equal(next(0, 0), -1);
    template_turns_end(t, &places[5], TEMPLATE_TURNS_DONE, 1, 0);
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
static void short_chats_pass_ones_that_are_nearly_slow(void **state)
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

/* Enough names to use almost all entries of payers. */
static void render_for_many(int64_t took_us)
{
    for (unsigned i = 0; i < 4 * TEMPLATE_TURNS_ENTRIES; i++) {
        char payer[16];
        snprintf(payer, sizeof(payer), "m%u", i);
        n_places = 0;
        render_for(payer, took_us, 0);
    }
}

/* Their long chats are over, and new payers have had short ones since. */
static void a_new_payer_is_not_judged_by_payers_before_it(void **state)
{
    (void)state;
    render_for_many(60000);
    for (int i = 0; i < 50; i++) {
        char payer[16];
        snprintf(payer, sizeof(payer), "n%d", i);
        n_places = 0;
        assert_int_equal(enter("m1", "x", 0), 0);
        assert_int_equal(enter(payer, "x", 0), 0);
        int first = next(0, 0), second = next(0, 0);
        if (i > 20)
            assert_int_equal(first, 1);
        template_turns_end(t, &places[first], TEMPLATE_TURNS_DONE, first ? COST_US : 60000, 0);
        template_turns_end(t, &places[second], TEMPLATE_TURNS_DONE, second ? COST_US : 60000, 0);
    }
}

static void a_payer_stays_slow_beside_many_names(void **state)
{
    (void)state;
    render_for_many(SLOW_US);
    n_places = 0;
    assert_int_equal(n_concurrent("m1", 0), 1);
    n_places = 0;
    assert_int_equal(n_concurrent("new", 0), 1); // shares an entry
}

/* ---- the expected cost ---- */

static void values_and_their_nesting_cost(void **state)
{
    (void)state;
    enum { N = 1000 };
    AUTO(buf_done) struct buf flat = {0};
    AUTO(buf_done) struct buf deep = {0};
    AUTO(buf_done) struct buf text = {0};
    AUTO(buf_done) struct buf arguments = {0};
    struct buf *all[] = {&flat, &deep, &text, &arguments};
    for (size_t i = 0; i < ARRAY_LEN(all); i++) {
        buf_init(all[i], 1 << 20);
        buf_puts(all[i], i >= 2 ? "{\"a\":\"\\\"" : "{\"a\":[");
        for (int j = 0; i == 1 && j < 90; j++)
            buf_puts(all[i], "[");
        for (int j = 0; j < N; j++)
            buf_puts(all[i], i == 3 ? "\\\"" : "0,");
        for (int j = 0; i == 1 && j < 90; j++)
            buf_puts(all[i], "]");
        buf_puts(all[i], i >= 2 ? "\"}" : "0]}");
    }
    assert_in_range(template_turns_cost_us("{}"), 3000, 3010);
    assert_in_range(template_turns_cost_us(flat.data), 3000 + N, 3000 + 2 * N);
    assert_in_range(template_turns_cost_us(deep.data), 3000 + 10 * N, 3000 + 13 * N);
    assert_in_range(template_turns_cost_us(text.data), 3000, 3100);
    assert_in_range(template_turns_cost_us(arguments.data), 3000 + N / 2, 3000 + N);
    assert_in_range(template_turns_cost_us("\"\\"), 3000, 3010); // not JSON
}

/* ---- a simulation: payers that send one chat after the other ---- */

static int start_simulation(void **state)
{
    (void)state;
    return template_turns_new(N_HELPERS, MAX, INT64_C(600) * S, &t);
}

#define SIM_PAYERS 32

struct sim_payer {
    int64_t took_us;  // of each of its chats
    int64_t cost_us;  // expected of each; 0: COST_US
    int64_t pause_us; // after each
    bool renames;     // each chat has a new name
    int64_t begins_us;
    /* Of the simulation. */
    struct template_turn place;
    char name[16];
    bool waits, runs;
    int64_t at_us, end_us;
    int64_t served_us, most_wait_us;
    unsigned n;
};

static void sim_enter(struct sim_payer *p, unsigned i, int64_t now_us)
{
    if (p->renames || !p->n)
        snprintf(p->name, sizeof(p->name), "p%u-%u", i, p->n);
    p->place = (struct template_turn){.user = p, .cost_us = p->cost_us};
    assert_int_equal(enter_place(&p->place, p->name, now_us), 0);
    p->waits = true;
    p->at_us = now_us;
    p->n++;
}

static void sim_begin(int64_t now_us, unsigned *n_running)
{
    struct template_turn *turn;
    while (*n_running < N_HELPERS && template_turns_next(t, now_us, &turn) == 0 && turn) {
        struct sim_payer *p = turn->user;
        p->waits = false;
        p->runs = true;
        p->end_us = now_us + p->took_us;
        if (now_us - p->at_us > p->most_wait_us)
            p->most_wait_us = now_us - p->at_us;
        (*n_running)++;
    }
}

static void sim_end(struct sim_payer *p, int64_t now_us, unsigned *n_running)
{
    template_turns_end(t, &p->place, TEMPLATE_TURNS_DONE, p->took_us, now_us);
    p->runs = false;
    p->served_us += p->took_us;
    p->at_us = now_us + p->pause_us;
    (*n_running)--;
}

/* Runs for this time, in steps of 1 ms, and ends what is left. */
static void simulate(struct sim_payer *v, unsigned n, int64_t from_us, int64_t until_us)
{
    unsigned n_running = 0;
    for (unsigned i = 0; i < n; i++)
        v[i].at_us = from_us + v[i].begins_us;
    for (int64_t now_us = from_us; now_us < until_us; now_us += 1000) {
        for (unsigned i = 0; i < n; i++)
            if (v[i].runs && v[i].end_us <= now_us)
                sim_end(&v[i], now_us, &n_running);
        for (unsigned i = 0; i < n; i++)
            if (!v[i].waits && !v[i].runs && v[i].at_us <= now_us)
                sim_enter(&v[i], i, now_us);
        sim_begin(now_us, &n_running);
    }
    for (unsigned i = 0; i < n; i++)
        if (v[i].runs)
            sim_end(&v[i], until_us, &n_running);
        else if (v[i].waits)
            assert_ptr_equal(template_turns_leave(t, &v[i]), &v[i].place);
    for (unsigned i = 0; i < n; i++)
        v[i].waits = false;
}

/* The first payer has sent short chats for a long time, then n others with long ones begin. */
static int64_t neighbours_wait(unsigned n, int64_t took_us, bool renames)
{
    struct sim_payer v[SIM_PAYERS] = {{.took_us = 3000, .pause_us = 10000}};
    simulate(v, 1, 0, 60 * S);
    v[0].pause_us = 50000;
    v[0].begins_us = 7000;
    for (unsigned i = 1; i <= n; i++)
        v[i] = (struct sim_payer){.took_us = took_us, .renames = renames};
    simulate(v, n + 1, 60 * S, 120 * S);
    assert_true(v[0].n > 60 * S / 13000 + 60 * S / 200000);
    return v[0].most_wait_us;
}

static void short_chats_pass_long_ones_of_new_payers(void **state)
{
    (void)state;
    assert_in_range(neighbours_wait(16, 60000, false), 0, 2 * 60000);
}

static void short_chats_pass_ones_that_are_just_not_slow(void **state)
{
    (void)state;
    enum { TOOK_US = TEMPLATE_TURNS_SLOW_US - 1000 };
    assert_in_range(neighbours_wait(16, TOOK_US, false), 0, 2 * TOOK_US);
}

/* The first ones show what to expect of the others. */
static void payers_gain_nothing_by_new_names(void **state)
{
    (void)state;
    assert_in_range(neighbours_wait(16, 60000, true), 0, 3 * 60000);
}

/* Its chat is short, too. Those of the other new names can be expected to be long. */
static void a_new_payer_passes_long_chats_of_new_names(void **state)
{
    (void)state;
    struct sim_payer v[SIM_PAYERS] = {{.took_us = 3000, .pause_us = 50000, .renames = true}};
    for (unsigned i = 1; i <= 16; i++)
        v[i] = (struct sim_payer){.took_us = 60000, .cost_us = 30000, .renames = true};
    simulate(v, 17, 0, 10 * S);
    assert_in_range(v[0].most_wait_us, 0, 3 * 60000);
}

/* It sends as much as the helpers take, and the others cannot take its share. */
static void each_payer_gets_its_share(void **state)
{
    (void)state;
    struct sim_payer v[SIM_PAYERS] = {{.took_us = 60000}};
    for (unsigned i = 1; i < 9; i++)
        v[i] = (struct sim_payer){.took_us = 3000};
    simulate(v, 9, 0, 60 * S);
    assert_in_range(v[0].served_us, 60 * S * N_HELPERS / 9 * 7 / 10, 60 * S);
    assert_in_range(v[0].most_wait_us, 0, S);
}

/* Its chats were long, now they are short. */
static void a_payer_of_shorter_chats_recovers(void **state)
{
    (void)state;
    struct sim_payer v[SIM_PAYERS] = {{.took_us = 90000}};
    for (unsigned i = 1; i <= 16; i++)
        v[i] = (struct sim_payer){.took_us = 60000};
    simulate(v, 17, 0, 20 * S);
    v[0].took_us = 3000;
    v[0].pause_us = 50000;
    simulate(v, 17, 20 * S, 30 * S);
    v[0].most_wait_us = 0;
    simulate(v, 17, 30 * S, 60 * S);
    assert_in_range(v[0].most_wait_us, 0, 2 * 60000);
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
#define SIMULATION(name) cmocka_unit_test_setup_teardown(name, start_simulation, end)

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
        CASE(a_chat_with_another_template_does_not_wait_for_the_try),
        CASE(an_end_admits_others_only_after_its_own_probe),
        CASE(a_payer_without_memory_takes_no_place),
        CASE(the_last_helper_is_for_quick_payers),
        CASE(slow_payers_together_get_all_helpers_but_one),
        CASE(slow_payers_take_turns),
        CASE(an_only_payer_uses_all_helpers),
        CASE(large_chats_leave_a_helper_too),
        CASE(a_quick_large_chat_buys_no_slow_one),
        CASE(a_large_chat_lets_the_others_of_its_payer_pass),
        CASE(a_chat_that_must_wait_ends_in_time),
        CASE(short_chats_pass_ones_that_are_nearly_slow),
        CASE(a_payer_is_charged_while_its_chat_runs),
        CASE(a_payer_is_slow_for_a_while),
        CASE(a_chat_of_a_slow_payer_stays_slow_while_it_waits),
        CASE(a_rendering_counts_as_slow_before_its_end),
        CASE(a_new_payer_is_not_judged_by_payers_before_it),
        CASE(a_payer_stays_slow_beside_many_names),
        CASE(values_and_their_nesting_cost),
        SIMULATION(short_chats_pass_long_ones_of_new_payers),
        SIMULATION(short_chats_pass_ones_that_are_just_not_slow),
        SIMULATION(payers_gain_nothing_by_new_names),
        SIMULATION(a_new_payer_passes_long_chats_of_new_names),
        SIMULATION(each_payer_gets_its_share),
        SIMULATION(a_payer_of_shorter_chats_recovers),
        CASE(a_chat_that_leaves_is_not_rendered),
        CASE(the_last_chat_that_leaves_is_followed_by_new_ones),
        CASE(a_chat_that_leaves_frees_its_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
