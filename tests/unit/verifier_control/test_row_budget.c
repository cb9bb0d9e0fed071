/* test_row_budget.c - which draft tokens get a row, and which proposers are waited for. */
#include "lib/oracles/control_world.h"
#include "lib/lib.h"
#include "base/mem.h"
#include "base/rng.h"
#include "verifier-svc/control/row_budget.h"

static void rows_go_to_the_tokens_most_likely_to_survive(void **state)
{
    (void)state;
    struct control_world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 4);
    uint32_t most = 0, n_differ = 0;
    float least = 1;
    for (unsigned i = 0; i < 16; i++)
        world_feed(w, i, 0.2 + 0.05 * i, 8, 100);
    world_asked(w, 16, 64);
    for (unsigned i = 0; i < 16; i++) {
        const struct control_item *v = &w->items[i];
        most = v->nodes > most ? v->nodes : most;
        least = v->nodes && v->survival[v->nodes - 1] < least ? v->survival[v->nodes - 1] : least;
        n_differ += v->nodes != w->items[0].nodes;
    }
    assert_true(n_differ > 8);
    for (unsigned i = 0; i < 16; i++) // `most` may be the limit
        assert_true(w->items[i].nodes == most || w->items[i].survival[w->items[i].nodes] <= least);
}

/* Proposer p answers for sequence p after us, with tokens accepted with probability alpha. */
static void show_proposer(struct control_world *w, unsigned p, double alpha, double us)
{
    const uint32_t tokens[4] = {7, 7, 7, 7};
    struct draft draft = world_draft(4, tokens, NULL);
    for (unsigned i = 0; i < 200; i++) {
        uint32_t n = world_right_tokens(w, alpha, 4), committed[5] = {7, 7, 7, 7};
        committed[n] = 8;
        control_asked(&w->seqs[p], p, 0, 1);
        control_answered(&w->c, &w->seqs[p], p, 1 + i % 8, us, true);
        control_seen(&w->c, &w->seqs[p], p, &draft, 4, committed, n + 1);
        control_ask(&w->c, &(struct control_round){.n_decoding = 1}, w->items, 0);
    }
}

/* Sequences request from proposers 0 and 1 alternately. Returns how long waiting pays. */
static double ask_two_proposers(struct control_world *w, uint32_t n)
{
    struct control_round r = {.n_decoding = n, .draft_rows = 1000, .n_running = n};
    for (uint32_t i = 0; i < n; i++) {
        pass_time_add(&r.pass, 1, 100);
        w->items[i] = (struct control_item){.s = &w->seqs[i],
                                            .proposer = i % 2,
                                            .context = 100,
                                            .left = 1000,
                                            .max_nodes = 16,
                                            .max_depth = 16};
    }
    return control_ask(&w->c, &r, w->items, n);
}

/* Its drafts are not worth the wait, neither with those of the other proposer nor alone. */
static void a_slow_proposer_does_not_stop_others(void **state)
{
    (void)state;
    struct control_world *w = world_of(CONTROL_GOODPUT, 16, 0, 10000, 300);
    show_proposer(w, 0, 0.8, 200);
    show_proposer(w, 1, 0.1, 40000);
    double wait_us = ask_two_proposers(w, 2);
    assert_true(w->items[0].nodes > 2 && w->items[1].nodes == 0);
    assert_true(w->c.expected_wait_us < 400 && wait_us > 5000 && wait_us < 40000);
}

/* Both together pay, but the fast proposer alone is better. */
static void a_slow_proposer_is_excluded_if_that_is_better(void **state)
{
    (void)state;
    struct control_world *w = world_of(CONTROL_GOODPUT, 16, 0, 10000, 300);
    show_proposer(w, 0, 0.8, 200);
    show_proposer(w, 1, 0.8, 15000);
    ask_two_proposers(w, 2);
    assert_true(w->items[0].nodes > 2 && w->items[1].nodes == 0);
}

/* Each sequence in a message takes the proposer as long as half a token. Only four of 16 are
 * worth a row; alone they reach 1.19 of the goodput without drafts. */
static void a_sequence_without_rows_does_not_extend_the_wait(void **state)
{
    (void)state;
    struct control_world *w = world_of(CONTROL_GOODPUT, 16, 0, 10000, 60);
    for (unsigned i = 0; i < 300; i++)
        draft_latency_seen(&w->c.proposers[0].latency, 1 + i % 8, 1 + i % 5,
                           500 + (1 + i % 8) * (400 + 200.0 * (i % 5)));
    for (unsigned i = 0; i < 16; i++) {
        w->seqs[i].expected = 7e5; // at the rate of 0.7 before anything was tried
        w->seqs[i].accepted = i < 4 ? 9e5 : 0.2e5;
    }
    world_asked(w, 16, 64);
    for (unsigned i = 0; i < 16; i++)
        assert_true(i < 4 ? w->items[i].nodes > 2 : w->items[i].nodes == 0);
}

static void a_proposer_without_rows_is_not_waited_for(void **state)
{
    (void)state;
    struct control_world *w = world_of(CONTROL_GOODPUT, 16, 0, 10000, 3000);
    show_proposer(w, 0, 0.9, 200);
    show_proposer(w, 1, 0.01, 1000);
    ask_two_proposers(w, 2);
    assert_true(w->items[0].nodes > 0 && w->items[1].nodes == 0);
    assert_true(w->c.expected_wait_us < 400);
}

/* Passes of up to 16 rows take the same time, larger ones 1.6 times as long. With the slow
 * proposer, its sequences get the four free rows, and goodput is below that without drafts. The
 * sequences of the fast one would reach 1.25 of it. */
static void starved_sequences_get_rows_once_a_slow_proposer_is_excluded(void **state)
{
    (void)state;
    struct control_world *w = world_of(CONTROL_GOODPUT, 16, 0, 10000, 0);
    struct pass_time_measured m = {0};
    for (unsigned i = 0; i < PASS_TIME_TIMED; i++)
        m.us[i] = pass_time_rows_at(i) <= 16 ? 10000 : 16000;
    pass_time_init(&w->c.pass_time, &m);
    show_proposer(w, 0, 0.9, 4000);
    show_proposer(w, 1, 0.85, 200);
    for (unsigned i = 2; i < 12; i++)
        control_asked(&w->seqs[i], i % 2, 0, 1); // its context was read
    ask_two_proposers(w, 12);
    uint32_t k[2] = {0};
    for (unsigned i = 0; i < 12; i++)
        k[i % 2] += w->items[i].nodes;
    assert_true(k[0] == 0 && k[1] == 4);
}

/* ---- the steps of docs/controller.md, "Distribution of rows", without a heap ---- */

static const uint32_t plain_limits[] = {1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20};

struct plain {
    double tokens, us, wait_us;
    uint32_t nodes[WORLD_SEQS], n_rows;
    bool is_limited; // a sequence would use a larger limit
};

static uint32_t plain_usable(const struct control_item *v, uint32_t limit)
{
    return v->considered < limit ? v->considered : limit;
}

/* The item whose next token is the most likely one to survive; n: none may have another. */
static uint32_t plain_next(const struct control_item *v, uint32_t n, const bool *may,
                           uint32_t limit, const uint32_t *nodes)
{
    uint32_t best = n;
    for (uint32_t i = 0; i < n; i++) {
        bool has_next = may[i] && nodes[i] < plain_usable(&v[i], limit);
        if (has_next && (best == n || v[i].survival[nodes[i]] > v[best].survival[nodes[best]]))
            best = i;
    }
    return best;
}

/* Adds row after row until goodput is below `drop` of the best. */
static struct plain plain_rows(const struct control *c, const struct control_round *r,
                               const struct control_item *v, uint32_t n, const bool *may,
                               uint32_t limit, double wait_us, double drop)
{
    struct pass_time_work pass = r->pass;
    struct plain now = {.tokens = r->n_decoding, .wait_us = wait_us};
    pass.drafted = true;
    now.us = pass_time_us(&c->pass_time, &pass) + wait_us;
    struct plain best = now;
    while (now.n_rows < r->draft_rows && now.tokens / now.us >= drop * best.tokens / best.us) {
        uint32_t i = plain_next(v, n, may, limit, now.nodes);
        if (i == n)
            break;
        now.tokens += v[i].survival[now.nodes[i]++];
        pass.rows++;
        pass.attended += v[i].context;
        now.us = pass_time_us(&c->pass_time, &pass) + wait_us;
        now.n_rows++;
        now.is_limited |= now.nodes[i] == limit && v[i].considered > limit;
        if (now.tokens / now.us > best.tokens / best.us)
            best = now;
    }
    best.is_limited = now.is_limited;
    return best;
}

/* The longest answer of a proposer to all of its items with tokens. */
static double plain_wait(const struct control *c, const struct control_item *v, uint32_t n,
                         const uint32_t *nodes, unsigned *ret_slowest)
{
    double longest_us = 0;
    for (unsigned p = 0; p < DRAFT_MAX_PROPOSERS; p++) {
        uint32_t k = 0, n_requests = 0;
        for (uint32_t i = 0; i < n; i++) {
            k = v[i].proposer == p && nodes[i] > k ? nodes[i] : k;
            n_requests += v[i].proposer == p && nodes[i];
        }
        double us = n_requests ? control_state_latency_us(c, p, k, n_requests) : 0;
        if (n_requests && us >= longest_us) {
            longest_us = us;
            *ret_slowest = p;
        }
    }
    return longest_us;
}

/* The best of all limits, with the wait for the items that received rows. n_rows 0: none. */
static struct plain plain_limit(const struct control *c, const struct control_round *r,
                                const struct control_item *v, uint32_t n, const bool *may,
                                uint32_t *ret_limit, unsigned *ret_slowest)
{
    struct plain best = {0}, one = {.is_limited = true};
    for (unsigned l = 0; l < ARRAY_LEN(plain_limits) && one.is_limited; l++) {
        uint32_t most[WORLD_SEQS];
        unsigned unused;
        for (uint32_t i = 0; i < n; i++)
            most[i] = may[i] ? plain_usable(&v[i], plain_limits[l]) : 0;
        one = plain_rows(c, r, v, n, may, plain_limits[l], plain_wait(c, v, n, most, &unused), 0.9);
        if (!one.n_rows || (best.n_rows && one.tokens / one.us <= best.tokens / best.us))
            continue;
        best = one;
        *ret_limit = plain_limits[l];
    }
    double wait_us = plain_wait(c, v, n, best.nodes, ret_slowest);
    best.us += wait_us - best.wait_us;
    best.wait_us = wait_us;
    return best;
}

static void plain_best(const struct control *c, const struct control_round *r,
                       const struct control_item *v, uint32_t n, struct plain *ret,
                       uint32_t *ret_limit)
{
    bool is_excluded[DRAFT_MAX_PROPOSERS] = {false}, may[WORLD_SEQS];
    uint32_t limit = 0, n_may = 1;
    unsigned slowest = 0;
    *ret = (struct plain){0};
    *ret_limit = 0;
    while (n_may) {
        for (unsigned without_starved = 0; without_starved < 2; without_starved++) {
            struct plain last = {0};
            n_may = 0;
            for (uint32_t i = 0; i < n; i++) {
                may[i] = !is_excluded[v[i].proposer] && (!without_starved || may[i]);
                n_may += may[i] && v[i].considered;
            }
            last = plain_limit(c, r, v, n, may, &limit, &slowest);
            if (last.n_rows && (!*ret_limit || last.tokens / last.us > ret->tokens / ret->us)) {
                *ret = last;
                *ret_limit = limit;
            }
            if (!last.n_rows && !without_starved)
                return; // no token is worth its row
            bool is_starved = false;
            for (uint32_t i = 0; i < n; i++) {
                is_starved |= may[i] && v[i].considered && !last.nodes[i];
                may[i] = may[i] && last.nodes[i];
            }
            if (!is_starved)
                break;
        }
        is_excluded[slowest] = true;
    }
}

static uint32_t draw_below(uint64_t *seed, uint32_t n)
{
    return (uint32_t)(rng_splitmix64(++*seed) % n);
}

/* Items, proposers and pass times at random. */
static struct control_world *random_world(uint64_t *seed, struct control_round *r, uint32_t *ret_n)
{
    static const double firsts[] = {100, 1000}, rows[] = {0.5, 5, 90};
    struct control_world *w =
        world_of(CONTROL_GOODPUT, 20, 0, firsts[draw_below(seed, 2)], rows[draw_below(seed, 3)]);
    uint32_t n = 1 + draw_below(seed, 10);
    *r = (struct control_round){
        .n_decoding = n, .n_running = n, .draft_rows = draw_below(seed, 4) ? 1000 : 1 + n};
    w->c.pass_time.drafted_scale = 1 + 0.1 * draw_below(seed, 2);
    w->c.pass_time.attend_us = 0.001;
    for (unsigned i = 7 + draw_below(seed, 9); i < PASS_TIME_POINTS; i++) // a bend
        w->c.pass_time.w_us[i] += draw_below(seed, 2) ? 400 : 0;
    for (unsigned p = 0; p < 4; p++)
        draft_latency_seen(&w->c.proposers[p].latency, 1 + draw_below(seed, 4), 1,
                           1 + draw_below(seed, 2000));
    for (uint32_t i = 0; i < n; i++) {
        struct control_item *v = &w->items[i];
        float path = 1;
        *v = (struct control_item){.proposer = draw_below(seed, 4),
                                   .context = draw_below(seed, 4000),
                                   .considered = draw_below(seed, 21),
                                   .nodes = 3,
                                   .best_nodes = 7}; // of an earlier round
        pass_time_add(&r->pass, 1, v->context);
        float rate = 0.2f + 0.079f * (float)draw_below(seed, 11);
        for (uint32_t k = 0; k < v->considered; k++)
            v->survival[k] = path *= rate;
    }
    *ret_n = n;
    return w;
}

static void must_be(double got, double expected)
{
    assert_true(got >= expected * (1 - 1e-9) - 1e-9 && got <= expected * (1 + 1e-9) + 1e-9);
}

static void requests_follow_the_documented_steps(void **state)
{
    (void)state;
    uint64_t seed = 1;
    unsigned n_with_rows = 0, n_without = 0;
    for (unsigned round = 0; round < 2000; round++) {
        struct control_round r;
        uint32_t n, limit;
        struct control_world *w = random_world(&seed, &r, &n);
        struct plain plain;
        struct row_budget g;
        plain_best(&w->c, &r, w->items, n, &plain, &limit);
        world_guard(w, n);
        assert_int_equal(row_budget_best(&w->c, &r, w->items, n, &g), limit);
        world_unguard(w, n);
        for (uint32_t i = 0; i < n; i++)
            assert_int_equal(w->items[i].nodes, plain.nodes[i]);
        must_be(w->c.expected_wait_us, g.wait_us);
        n_without += !limit;
        if (!limit)
            continue;
        n_with_rows++;
        must_be(g.tokens, plain.tokens);
        must_be(g.us, plain.us);
        must_be(g.wait_us, plain.wait_us);
        must_be(row_budget_wait_us(&w->c, w->items, n), plain.wait_us);
    }
    assert_true(n_with_rows > 1000 && n_without > 20);
}

/* If no token is worth its row, the result is a round without drafts. */
static void without_rows_the_best_is_a_pass_without_drafts(void **state)
{
    (void)state;
    struct control_world *w = world_of(CONTROL_GOODPUT, 16, 0, 100, 200);
    struct control_round r = {.n_decoding = 1, .draft_rows = 1000, .pass = {.rows = 1}};
    struct row_budget g;
    w->c.pass_time.drafted_scale = 3;
    w->items[0] = (struct control_item){.considered = 1, .survival = {0.5f}};
    assert_int_equal(row_budget_best(&w->c, &r, w->items, 1, &g), 0);
    must_be(g.us, 100);
    must_be(g.tokens, 1);
    assert_true(g.n_rows == 0 && w->c.expected_wait_us == 0);
}

/* A later token of a tree may be more likely than an earlier one. */
static void present_drafts_follow_the_documented_steps(void **state)
{
    (void)state;
    uint64_t seed = 9;
    for (unsigned round = 0; round < 1000; round++) {
        struct control_round r;
        uint32_t n;
        struct control_world *w = random_world(&seed, &r, &n);
        bool over_bends = round % 2, may[WORLD_SEQS];
        w->c.expected_wait_us = draw_below(&seed, 2) ? 500 : 0;
        for (uint32_t i = 0; i < n; i++) {
            may[i] = true;
            for (uint32_t k = 1; k < w->items[i].considered; k++)
                w->items[i].survival[k] += draw_below(&seed, 4) ? 0 : 0.1f;
        }
        struct plain plain = plain_rows(&w->c, &r, w->items, n, may, DRAFT_MAX_NODES,
                                        w->c.expected_wait_us, over_bends ? 0.9 : 1);
        world_guard(w, n);
        row_budget_drafts(&w->c, &r, w->items, n, over_bends);
        world_unguard(w, n);
        for (uint32_t i = 0; i < n; i++)
            assert_int_equal(w->items[i].nodes, plain.nodes[i]);
    }
}

static void the_limit_below_is_the_next_of_the_table(void **state)
{
    (void)state;
    for (uint32_t k = 0; k < 30; k++) {
        uint32_t below = 0;
        for (unsigned i = 0; i < ARRAY_LEN(plain_limits); i++)
            below = plain_limits[i] < k ? plain_limits[i] : below;
        assert_int_equal(row_budget_limit_below(k), below);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_go_to_the_tokens_most_likely_to_survive),
        cmocka_unit_test(a_slow_proposer_does_not_stop_others),
        cmocka_unit_test(a_slow_proposer_is_excluded_if_that_is_better),
        cmocka_unit_test(a_sequence_without_rows_does_not_extend_the_wait),
        cmocka_unit_test(a_proposer_without_rows_is_not_waited_for),
        cmocka_unit_test(starved_sequences_get_rows_once_a_slow_proposer_is_excluded),
        cmocka_unit_test(requests_follow_the_documented_steps),
        cmocka_unit_test(without_rows_the_best_is_a_pass_without_drafts),
        cmocka_unit_test(present_drafts_follow_the_documented_steps),
        cmocka_unit_test(the_limit_below_is_the_next_of_the_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
