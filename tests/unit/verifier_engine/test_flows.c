/* test_flows.c - whose request is next, and which one gives way when the queue is full. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "lib/lib.h"
#include "base/err.h"
#include "verifier-svc/engine/flows.h"

#define MAX 64

/* A queue whose requests are known by name: the letter of the flow, and a number. */
struct world {
    struct flows *flows;
    struct flows_place places[4096];
    char names[4096][8];
    uint32_t tokens[4096]; // prompt
    bool put_back[4096];   // has started, and waits again
    uint32_t n;
    char order[512]; // names in the order of starts
};

static int set_up(void **state)
{
    struct world *w = calloc(1, sizeof(*w));
    assert_non_null(w);
    const struct flows_limits limits = {.waiting = 8, .resumed = 3, .started = 8, .bytes = 100};
    assert_int_equal(flows_new(&limits, &w->flows), 0);
    *state = w;
    return 0;
}

static int tear_down(void **state)
{
    struct world *w = *state;
    flows_free(w->flows);
    free(w);
    return 0;
}

/* A request comes; its name's first letter is the flow. "+" in its name: it resumes an answer.
 * n: it displaces n others; -EAGAIN. */
static int come_with(struct world *w, const char *name, uint32_t tokens, size_t bytes)
{
    uint32_t i = w->n, n_displaced;
    w->places[i] = (struct flows_place){.resumed = strchr(name, '+') != NULL, .bytes = bytes};
    int err = flows_enter(w->flows, &w->places[i], name, 1, &n_displaced);
    if (err < 0)
        return err;
    snprintf(w->names[i], sizeof(w->names[i]), "%s", name);
    w->tokens[i] = tokens;
    w->n++;
    return (int)n_displaced;
}

static int come(struct world *w, const char *name, uint32_t tokens)
{
    return come_with(w, name, tokens, 0);
}

static uint32_t place_of(const struct world *w, const char *name)
{
    uint32_t i = 0;
    while (strcmp(w->names[i], name) != 0)
        assert_true(++i < w->n);
    return i;
}

static struct flows_place *named(struct world *w, const char *name)
{
    return &w->places[place_of(w, name)];
}

static void end(struct world *w, const char *name)
{
    flows_leave(w->flows, named(w, name));
}

/* The waiting requests by turn. */
static uint32_t turns_of(struct world *w, struct flows_turn *turns)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < w->n; i++) {
        if (flows_state(w->flows, &w->places[i]) == FLOWS_WAITING || w->put_back[i])
            turns[n++] = (struct flows_turn){&w->places[i], i, w->tokens[i],
                                             w->put_back[i] || w->places[i].resumed, 0};
    }
    flows_sort(w->flows, turns, n);
    return n;
}

/* The next request starts; "" if none waits. */
static const char *start(struct world *w)
{
    struct flows_turn turns[MAX];
    if (!turns_of(w, turns))
        return "";
    uint32_t i = turns[0].index;
    if (!w->put_back[i])
        assert_true(flows_start(w->flows, &w->places[i], w->tokens[i]));
    w->put_back[i] = false;
    return w->names[i];
}

/* All waiting requests start and end, one after the other, with n generated tokens each. */
static const char *run_all(struct world *w, uint32_t n)
{
    *w->order = 0;
    for (const char *name; *(name = start(w));) {
        flows_serve(w->flows, named(w, name), n);
        end(w, name);
        strcat(strcat(w->order, *w->order ? " " : ""), name);
    }
    return w->order;
}

static void one_flow_is_served_by_arrival(void **state)
{
    struct world *w = *state;
    come(w, "a1", 100);
    come(w, "a2", 1);
    come(w, "a3", 50);
    assert_string_equal(run_all(w, 10), "a1 a2 a3");
}

static void flows_take_turns(void **state)
{
    struct world *w = *state;
    come(w, "a1", 10);
    come(w, "a2", 10);
    come(w, "a3", 10);
    come(w, "b1", 10);
    come(w, "c1", 10);
    come(w, "b2", 10);
    assert_string_equal(run_all(w, 5), "a1 b1 c1 a2 b2 a3");
}

static void turns_are_counted_in_tokens_of_prompts(void **state)
{
    struct world *w = *state;
    come(w, "a1", 30);
    come(w, "a2", 30);
    for (const char *name = "b1\0b2\0b3\0b4\0"; *name; name += 3)
        come(w, name, 10);
    assert_string_equal(run_all(w, 0), "a1 b1 b2 b3 a2 b4");
}

/* Also if its whole prompt is cached. */
static void a_request_counts_as_one_token_at_least(void **state)
{
    struct world *w = *state;
    come(w, "a1", 0);
    come(w, "b1", 1);
    come(w, "a2", 0);
    come(w, "b2", 1);
    assert_string_equal(run_all(w, 0), "a1 b1 a2 b2");
}

static void turns_are_counted_in_generated_tokens(void **state)
{
    struct world *w = *state;
    come(w, "a1", 10);
    come(w, "a2", 10);
    come(w, "b1", 10);
    come(w, "b2", 10);
    come(w, "b3", 10);
    assert_string_equal(start(w), "a1");
    flows_serve(w->flows, named(w, "a1"), 5);
    assert_string_equal(start(w), "b1"); // 0 of 15
    assert_string_equal(start(w), "b2"); // 10 of 15
    assert_string_equal(start(w), "a2"); // b has 20
    assert_string_equal(start(w), "b3");
}

static void a_newcomer_waits_for_one_request_at_most(void **state)
{
    struct world *w = *state;
    char names[40][4];
    uint32_t n_a = 0;
    for (; n_a < 5; n_a++) {
        snprintf(names[n_a], 4, "a%u", n_a);
        come(w, names[n_a], 10);
    }
    for (unsigned i = 0; i < 10; i++) { // single requests of b in an endless burst of a
        char name[8];
        snprintf(name, sizeof(name), "b%u", i);
        come(w, name, 10);
        unsigned n_before = 0;
        for (const char *next = start(w);; next = start(w)) {
            flows_serve(w->flows, named(w, next), 5);
            end(w, next);
            if (*next == 'b')
                break;
            n_before++;
            snprintf(names[n_a], 4, "a%u", n_a);
            come(w, names[n_a++], 10);
        }
        assert_true(n_before <= 1);
    }
}

static void nobody_collects_credit_while_it_does_not_wait(void **state)
{
    struct world *w = *state;
    come(w, "b1", 1);
    end(w, "b1");
    for (unsigned i = 0; i < 5; i++) {
        come(w, "a", 1000);
        run_all(w, 1000);
        w->n = 0;
    }
    come(w, "a1", 10);
    come(w, "a2", 10);
    come(w, "a3", 10);
    come(w, "b2", 10);
    come(w, "b3", 10);
    assert_string_equal(run_all(w, 0), "a1 b2 a2 b3 a3");
}

static void nobody_collects_debt_while_nobody_else_waits(void **state)
{
    struct world *w = *state;
    come(w, "a1", 1000);
    assert_string_equal(run_all(w, 1000), "a1");
    come(w, "b1", 10);
    come(w, "b2", 10);
    come(w, "a2", 10);
    assert_string_equal(run_all(w, 0), "b1 a2 b2");
}

static void a_burst_is_paid_although_its_queue_was_empty_in_between(void **state)
{
    struct world *w = *state;
    come(w, "a1", 100);
    come(w, "b1", 10);
    come(w, "b2", 10);
    come(w, "b3", 10);
    assert_string_equal(start(w), "a1");
    assert_string_equal(start(w), "b1");
    come(w, "a2", 10); // b waited all the time
    assert_string_equal(run_all(w, 0), "b2 b3 a2");
}

static void put_back_requests_are_first(void **state)
{
    struct world *w = *state;
    come(w, "a1", 1000);
    come(w, "a2", 1000);
    come(w, "b1", 10);
    assert_string_equal(start(w), "a1");
    w->put_back[place_of(w, "a1")] = true;
    assert_string_equal(start(w), "a1");
    assert_string_equal(start(w), "b1");
    assert_string_equal(start(w), "a2");
}

static void a_full_queue_displaces_the_newest_of_the_most(void **state)
{
    struct world *w = *state;
    for (const char *name = "a1\0a2\0a3\0a4\0a5\0b1\0b2\0b3\0"; *name; name += 3)
        assert_int_equal(come(w, name, 10), 0);
    assert_int_equal(come(w, "a6", 10), -EAGAIN); // a has the most
    assert_non_null(strstr(fail_text(), "the queue is full: 8 requests wait already"));
    assert_int_equal(come(w, "c1", 10), 1);
    assert_int_equal(flows_state(w->flows, named(w, "a5")), FLOWS_DISPLACED);
    assert_int_equal(come(w, "b4", 10), -EAGAIN); // b would have as many as a
    assert_int_equal(come(w, "c2", 10), 1);
    assert_int_equal(flows_state(w->flows, named(w, "a4")), FLOWS_DISPLACED);
    assert_int_equal(come(w, "c3", 10), -EAGAIN); // three of each, but two of c
    assert_false(flows_start(w->flows, named(w, "a5"), 10));
    assert_string_equal(run_all(w, 0), "a1 b1 c1 a2 b2 c2 a3 b3");
}

static void a_full_queue_has_places_for_resumed_answers(void **state)
{
    struct world *w = *state;
    for (const char *name = "a1\0a2\0a3\0a4\0a5\0a6\0a7\0a8\0"; *name; name += 3)
        assert_int_equal(come(w, name, 10), 0);
    for (const char *name = "a+1\0a+2\0b+3\0"; *name; name += 4)
        assert_int_equal(come(w, name, 10), 0); // nobody gives way
    assert_int_equal(come(w, "c+4", 10), -EAGAIN);
    assert_non_null(strstr(fail_text(), "the queue is full: 3 resumed answers wait already"));
    for (const char *name = "c1\0c2\0c3\0"; *name; name += 3)
        assert_int_equal(come(w, name, 10), 1);
    for (uint32_t i = 0; i < w->n; i++) { // a new request gives way, a resumed one never
        if (w->places[i].resumed)
            assert_int_equal(flows_state(w->flows, &w->places[i]), FLOWS_WAITING);
    }
    assert_int_equal(come(w, "a9", 10), -EAGAIN); // each has its own limit
    end(w, "a+1");
    assert_int_equal(come(w, "a9", 10), -EAGAIN);
    assert_int_equal(come(w, "c+4", 10), 0);
    assert_int_equal(come(w, "c+5", 10), -EAGAIN);
}

static enum flows_state state_of(struct world *w, const char *name)
{
    return flows_state(w->flows, named(w, name));
}

static void a_queue_full_of_bytes_displaces_the_newest_of_the_most(void **state)
{
    struct world *w = *state;
    come_with(w, "a1", 10, 30);
    come_with(w, "a2", 10, 30);
    come_with(w, "b1", 10, 20);
    come_with(w, "a3", 10, 20);
    assert_int_equal(come_with(w, "a4", 10, 1), -EAGAIN); // a has the most
    assert_non_null(strstr(fail_text(), "MiB of requests wait already"));
    assert_int_equal(come_with(w, "c1", 10, 10), 1);
    assert_int_equal(state_of(w, "a3"), FLOWS_DISPLACED);
    assert_int_equal(come_with(w, "c2", 10, 10), 0);
    assert_int_equal(come_with(w, "c3", 10, 40), -EAGAIN); // c would have as many as a
    assert_int_equal(come_with(w, "d1", 10, 31), -EAGAIN); // a2 is not enough, b has less
    assert_int_equal(state_of(w, "a2"), FLOWS_WAITING);
    assert_int_equal(come_with(w, "d1", 10, 30), 1);
    assert_int_equal(state_of(w, "a2"), FLOWS_DISPLACED);
    assert_string_equal(run_all(w, 0), "a1 b1 c1 d1 c2");
    assert_int_equal(come_with(w, "e1", 10, 100), 0); // all bytes are free again
}

static void a_large_request_displaces_several(void **state)
{
    struct world *w = *state;
    for (const char *name = "a1\0a2\0a3\0a4\0a5\0"; *name; name += 3)
        come_with(w, name, 10, 20);
    assert_int_equal(come_with(w, "b1", 10, 101), -EAGAIN);
    assert_int_equal(come_with(w, "b1", 10, 50), 3);
    assert_int_equal(state_of(w, "a3"), FLOWS_DISPLACED);
    assert_string_equal(run_all(w, 0), "a1 b1 a2");
}

static void bytes_of_resumed_answers_have_a_limit_of_their_own(void **state)
{
    struct world *w = *state;
    assert_int_equal(come_with(w, "a1", 10, 100), 0);
    assert_int_equal(come_with(w, "a+2", 10, 90), 0);
    assert_int_equal(come_with(w, "b+3", 10, 11), -EAGAIN);
    assert_non_null(strstr(fail_text(), "MiB of resumed answers wait already"));
    end(w, "a+2");
    assert_int_equal(come_with(w, "b+3", 10, 100), 0);
    assert_int_equal(state_of(w, "a1"), FLOWS_WAITING);
}

static void resumed_answers_are_first(void **state)
{
    struct world *w = *state;
    come(w, "a1", 10);
    come(w, "b1", 10);
    come(w, "b+2", 100);
    come(w, "b+3", 100);
    come(w, "a+4", 100);
    /* Their flows take turns among them, and pay for them. */
    assert_string_equal(run_all(w, 0), "b+2 a+4 b+3 a1 b1");
}

static void displaced_requests_are_bounded_until_they_leave(void **state)
{
    struct world *w = *state;
    char name[8];
    int n = 0;
    for (unsigned i = 0; i < 8; i++)
        assert_int_equal(come(w, "a", 10), 0);
    for (int flow = 'b'; flow <= 'z'; flow++) {
        snprintf(name, sizeof(name), "%c", flow);
        while (come(w, name, 10) == 1)
            n++;
    }
    assert_int_equal(n, 8);
    for (uint32_t i = 0; i < w->n; i++)
        flows_leave(w->flows, &w->places[i]);
    for (unsigned i = 0; i < 8; i++)
        assert_int_equal(come(w, "a", 10), 0); // every place is free again
    assert_int_equal(come(w, "a", 10), -EAGAIN);
    assert_int_equal(come(w, "b", 10), 1);
}

static void a_request_that_leaves_gives_its_place_back(void **state)
{
    struct world *w = *state;
    for (unsigned i = 0; i < 8; i++)
        come(w, "a", 10);
    for (unsigned i = 0; i < 100; i++)
        assert_int_equal(come(w, "a", 10), -EAGAIN); // refusals take no place
    flows_leave(w->flows, &w->places[3]);
    flows_leave(w->flows, &w->places[3]); // no effect
    assert_int_equal(come(w, "a", 10), 0);
    assert_int_equal(come(w, "a", 10), -EAGAIN);
    assert_true(flows_start(w->flows, &w->places[0], 10));
    assert_int_equal(come(w, "a", 10), 0);
    flows_leave(w->flows, &w->places[0]); // it waited no more
    assert_int_equal(come(w, "a", 10), -EAGAIN);
}

static void names_without_end_take_no_memory(void **state)
{
    struct world *w = *state;
    uint32_t n_displaced;
    come(w, "a1", 10);
    come(w, "a2", 10);
    assert_string_equal(start(w), "a1");
    for (uint32_t i = 0; i < 10000; i++) {
        struct flows_place p = {0};
        assert_int_equal(flows_enter(w->flows, &p, &i, sizeof(i), &n_displaced), 0);
        assert_true(flows_start(w->flows, &p, 1 + i % 7));
        flows_leave(w->flows, &p);
    }
    come(w, "b1", 10);
    assert_string_equal(run_all(w, 0), "a2 b1"); // flows with requests are not forgotten
}

/* Shell's sort against the order that each pair must have. */
static void many_requests_are_sorted(void **state)
{
    (void)state;
    enum { N = 700 };
    AUTO(flows_free) struct flows *f = NULL;
    static struct flows_place p[N];
    static struct flows_turn v[N];
    uint32_t n_displaced;
    const struct flows_limits limits = {.waiting = N, .started = 1, .bytes = SIZE_MAX};
    assert_int_equal(flows_new(&limits, &f), 0);
    for (uint32_t i = 0; i < N; i++) {
        uint32_t flow = i * i % 23;
        assert_int_equal(flows_enter(f, &p[i], &flow, sizeof(flow), &n_displaced), 0);
        v[i] = (struct flows_turn){&p[i], i, 1 + i * 7 % 31, false, 0};
    }
    flows_sort(f, v, N);
    for (uint32_t i = 1; i < N; i++)
        assert_true(v[i - 1].at < v[i].at ||
                    (v[i - 1].at == v[i].at && v[i - 1].index < v[i].index));
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(one_flow_is_served_by_arrival),
        TEST(flows_take_turns),
        TEST(turns_are_counted_in_tokens_of_prompts),
        TEST(a_request_counts_as_one_token_at_least),
        TEST(turns_are_counted_in_generated_tokens),
        TEST(a_newcomer_waits_for_one_request_at_most),
        TEST(nobody_collects_credit_while_it_does_not_wait),
        TEST(nobody_collects_debt_while_nobody_else_waits),
        TEST(a_burst_is_paid_although_its_queue_was_empty_in_between),
        TEST(put_back_requests_are_first),
        TEST(a_full_queue_displaces_the_newest_of_the_most),
        TEST(a_full_queue_has_places_for_resumed_answers),
        TEST(resumed_answers_are_first),
        TEST(a_queue_full_of_bytes_displaces_the_newest_of_the_most),
        TEST(a_large_request_displaces_several),
        TEST(bytes_of_resumed_answers_have_a_limit_of_their_own),
        TEST(displaced_requests_are_bounded_until_they_leave),
        TEST(a_request_that_leaves_gives_its_place_back),
        TEST(names_without_end_take_no_memory),
        TEST(many_requests_are_sorted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
