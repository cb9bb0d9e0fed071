/* test_round_ask.c - which drafts are requested, and how long they are waited for. The proposers
 * and the clock are replaced. */
#include <stdio.h>
#include <string.h>
#include "lib/lib.h"
#include "base/mem.h"
#include "verifier-svc/engine/round_impl.h"

#define N_SEQS 3
#define NOW_US 1000000
#define BUDGET_US 50000

/* ---- proposers that the test plays ---- */

int64_t __wrap_clock_us(void);
int __wrap_drafts_pick(struct drafts *d, const char *name, uint64_t seq, uint32_t base_len,
                       int64_t now_us, uint32_t *ret_k_max);
unsigned __wrap_drafts_ask(struct drafts *d, unsigned i, struct drafts_wish *wishes, unsigned n,
                           uint32_t budget_us, int64_t now_us);

/* By sequence: its proposer, the most tokens, and what drafts_ask() finds. */
static struct {
    int proposer;
    uint32_t k_max, p90_us, to_read;
} peers[N_SEQS];
static const char *picked_name;
static unsigned n_picked, n_asked;
static struct {
    unsigned proposer, n;
    uint32_t budget_us;
    struct drafts_wish wishes[N_SEQS];
} asked[DRAFT_MAX_PROPOSERS];

int64_t __wrap_clock_us(void)
{
    return NOW_US;
}

int __wrap_drafts_pick(struct drafts *d, const char *name, uint64_t seq, uint32_t base_len,
                       int64_t now_us, uint32_t *ret_k_max)
{
    (void)d;
    assert_true(base_len == 20 && now_us == NOW_US);
    picked_name = name;
    n_picked++;
    *ret_k_max = peers[seq].k_max;
    return peers[seq].proposer;
}

unsigned __wrap_drafts_ask(struct drafts *d, unsigned i, struct drafts_wish *wishes, unsigned n,
                           uint32_t budget_us, int64_t now_us)
{
    (void)d;
    assert_true(n > 0 && n <= N_SEQS && now_us == NOW_US);
    asked[n_asked].proposer = i;
    asked[n_asked].n = n;
    asked[n_asked].budget_us = budget_us;
    memcpy(asked[n_asked++].wishes, wishes, n * sizeof(*wishes));
    for (unsigned w = 0; w < n; w++) {
        wishes[w].p90_us = peers[wishes[w].seq].p90_us;
        wishes[w].to_read = peers[wishes[w].seq].to_read;
    }
    return 0;
}

/* ---- an engine with three decoding sequences ---- */

static struct stats stats;
static struct loaded_model loaded;
static struct engine engine;
static struct request requests[N_SEQS];
static struct seq seqs[N_SEQS];
static uint32_t tokens[N_SEQS][64];
static struct seq *wish_seqs[N_SEQS], *item_seqs[N_SEQS], *pass[N_SEQS];
static struct drafts_wish wishes[N_SEQS];
static struct control_item items[N_SEQS];
static struct verifier_options options;

static int set_up(void **state)
{
    (void)state;
    stats_init(&stats);
    options = (struct verifier_options){.proposer_budget_ms = BUDGET_US / 1000};
    engine = (struct engine){.options = &options,
                             .loaded = &loaded,
                             .stats = &stats,
                             .speculates = true,
                             .drafts = (struct drafts *)(void *)&engine, // is not read
                             .wishes = wishes,
                             .wish_seqs = wish_seqs,
                             .items = items,
                             .item_seqs = item_seqs,
                             .pass = pass};
    const struct control_options policy = {CONTROL_FIXED, 5, 0};
    control_init(&engine.control, &policy, &(struct pass_time){0});
    sched_init(&engine.sched, &(struct sched_limits){100, 100, 100, 1000});
    assert_int_equal(seq_list_init(&engine.running, N_SEQS), 0);
    for (unsigned i = 0; i < N_SEQS; i++) {
        requests[i] = (struct request){.k_max = UINT32_MAX, .params.temperature = 1};
        snprintf(requests[i].id, sizeof(requests[i].id), "r%u", i);
        seqs[i] = (struct seq){.id = i, .order = i, .req = &requests[i], .state = SEQ_RUNNING};
        seqs[i].tokens = tokens[i];
        seqs[i].n = 20;
        seqs[i].n_prompt = 12;
        seqs[i].n_cached = 4;
        seqs[i].max_len = 64;
        seqs[i].kv.len = 19;
        seqs[i].key = 100 + i;
        seqs[i].proposer = SEQ_NO_PROPOSER;
        control_seq_init(&seqs[i].control);
        seq_list_add(&engine.running, &seqs[i]);
        peers[i].proposer = 0;
        peers[i].k_max = 8;
        peers[i].p90_us = 3000;
        peers[i].to_read = 0;
    }
    n_picked = n_asked = 0;
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    seq_list_done(&engine.running);
    return 0;
}

/* ---- requests ---- */

static void each_proposer_gets_the_wishes_of_its_sequences(void **state)
{
    (void)state;
    peers[1].proposer = 3;
    round_ask(&engine);
    assert_true(n_picked == 3 && n_asked == 2);
    assert_true(asked[0].proposer == 0 && asked[0].n == 2 && asked[1].proposer == 3);
    assert_true(asked[0].wishes[0].seq == 0 && asked[0].wishes[1].seq == 2);
    assert_true(asked[1].n == 1 && asked[1].wishes[0].seq == 1);
    assert_true(asked[0].budget_us == BUDGET_US && asked[1].budget_us == BUDGET_US);
    for (unsigned i = 0; i < N_SEQS; i++) {
        assert_true(seqs[i].wants_draft && seqs[i].requested_us == NOW_US);
        assert_true(seqs[i].requested_k == 5 && seqs[i].await_us == 6000);
        assert_true(seqs[i].held_until_us == 0 && seqs[i].control.prefill.done);
        assert_int_equal(seqs[i].control.n_batch, i == 1 ? 1 : 2);
        assert_int_equal(seqs[i].control.prefill.proposer, i == 1 ? 3 : 0);
    }
    assert_true(metrics_value(stats.k_now) == 5);
    assert_int_equal(engine.n_wait_counted, 0); // the policy does not limit the wait
}

static void a_wish_describes_its_sequence(void **state)
{
    (void)state;
    static uint32_t banned[] = {7}, hint[] = {1, 2, 3};
    struct request *r = &requests[1];
    r->params = (struct dist_params){.temperature = 0.5F, .top_k = 9, .top_p = 0.5F};
    r->ban = (struct constraint_ban){banned, 1, 30};
    r->p_min = 0.25F;
    r->ignore_eos = true;
    memcpy(r->tenant, "alice", 5);
    r->tenant_len = 5;
    r->hint = hint;
    r->n_hint = 3;
    strcpy(r->trace, "the trace");
    peers[1].k_max = 4;
    peers[1].proposer = 2;
    round_ask(&engine);
    const struct drafts_wish *w = &asked[1].wishes[0];
    assert_true(w->seq == 1 && w->context == tokens[1] && w->base_len == 20);
    assert_true(w->prompt_len == 12 && w->max_nodes == 4 && w->max_depth == 4);
    assert_true(w->q_mode == DRAFT_COUPLED && w->draw_key == 101 && w->p_min == 0.25F);
    assert_memory_equal(&w->sampling, &r->params, sizeof(r->params));
    assert_memory_equal(&w->ban, &r->ban, sizeof(r->ban));
    assert_true(w->ignore_eos && w->tenant == r->tenant && w->tenant_len == 5);
    assert_true(w->hint == hint && w->n_hint == 3 && w->n_verifying == 0);
    assert_string_equal(w->id, "r1");
    assert_string_equal(w->trace, "the trace");
    assert_int_equal(seqs[1].requested_k, 4);
}

static void the_least_of_all_limits_is_requested(void **state)
{
    (void)state;
    requests[0].k_max = 3;
    seqs[1].max_len = 23; // two tokens after the one of the target
    peers[2].k_max = 1;
    round_ask(&engine);
    for (unsigned i = 0; i < N_SEQS; i++)
        assert_int_equal(asked[0].wishes[i].max_nodes, 3 - i);
    assert_true(metrics_value(stats.k_now) == 2);
}

static void the_wait_is_twice_the_p90_within_the_budget(void **state)
{
    (void)state;
    peers[0].p90_us = 1;
    peers[1].p90_us = BUDGET_US / 2;
    peers[2].p90_us = BUDGET_US / 2 + 1;
    round_ask(&engine);
    assert_int_equal(seqs[0].await_us, 2);
    assert_int_equal(seqs[1].await_us, BUDGET_US);
    assert_int_equal(seqs[2].await_us, BUDGET_US);
}

/* A draft that is drawn from q holds its sequence for the whole budget. */
static void a_drawn_draft_holds_its_sequence(void **state)
{
    (void)state;
    requests[0].rule = requests[1].rule = ACCEPT_REJECTION;
    requests[1].dense_q = true;
    round_ask(&engine);
    assert_int_equal(asked[0].wishes[0].q_mode, DRAFT_SPARSE);
    assert_int_equal(asked[0].wishes[1].q_mode, DRAFT_DENSE);
    assert_int_equal(seqs[0].held_until_us, NOW_US + BUDGET_US);
    assert_int_equal(seqs[1].held_until_us, NOW_US + BUDGET_US);
    assert_int_equal(seqs[2].held_until_us, 0);
}

/* The controller learns what the proposer reads first, also if only context is sent. */
static void positions_to_read_are_at_most_those_that_ran_here(void **state)
{
    (void)state;
    peers[0].to_read = 15;
    peers[1].to_read = 17; // 16 are not cached here
    peers[2].to_read = 9;
    peers[2].p90_us = 0; // no draft will arrive
    round_ask(&engine);
    assert_int_equal(seqs[0].control.prefill.positions, 15);
    assert_int_equal(seqs[1].control.prefill.positions, 16);
    assert_int_equal(seqs[2].control.prefill.positions, 9);
    for (unsigned i = 0; i < N_SEQS; i++)
        assert_int_equal(seqs[i].control.n_batch, 2); // two drafts in the message
    assert_true(seqs[2].requested_us == 0 && seqs[2].await_us == 0);
    assert_true(seqs[1].requested_us == NOW_US);
}

static void nothing_is_recorded_for_a_wish_that_is_not_sent(void **state)
{
    (void)state;
    peers[0].p90_us = 0;
    round_ask(&engine);
    assert_true(seqs[0].wants_draft && !seqs[0].requested_us && !seqs[0].requested_k);
    assert_true(!seqs[0].control.prefill.done && seqs[1].control.prefill.done);
}

static void only_sequences_that_may_have_a_draft_request_one(void **state)
{
    (void)state;
    struct draft one = {.n = 1};
    seqs[0].draft = &one;     // has a draft
    seqs[1].requested_us = 5; // waits for one
    round_ask(&engine);
    assert_true(n_picked == 1 && asked[0].n == 1 && asked[0].wishes[0].seq == 2);
    assert_true(seqs[0].wants_draft && seqs[1].wants_draft); // they may
    seqs[0].draft = NULL;
    seqs[1].requested_us = 0;
    seqs[2].requested_us = 0;

    n_picked = n_asked = 0;
    requests[0].verify = true;
    atomic_store(&requests[1].paused, true);
    seqs[2].kv.len = 18; // two rows to run
    round_ask(&engine);
    assert_true(n_picked == 0 && n_asked == 0);
    for (unsigned i = 0; i < N_SEQS; i++)
        assert_false(seqs[i].wants_draft);
    atomic_store(&requests[1].paused, false);

    requests[0].verify = false;
    requests[0].k_max = 0;
    seqs[1].max_len = 21; // its last token is the target's
    engine.speculates = true;
    round_ask(&engine);
    assert_int_equal(n_picked, 0);
    requests[0].k_max = 5;
    engine.speculates = false;
    round_ask(&engine);
    assert_int_equal(n_picked, 0);
}

static void a_request_without_a_proposers_name_gets_the_default(void **state)
{
    (void)state;
    engine.running.n = 1;
    strcpy(engine.proposer, "fast");
    round_ask(&engine);
    assert_string_equal(picked_name, "fast");
    strcpy(requests[0].proposer, "mine");
    seqs[0].requested_us = 0;
    round_ask(&engine);
    assert_string_equal(picked_name, "mine");
    seqs[0].requested_us = 0;
    peers[0].proposer = -1; // none is usable
    n_asked = 0;
    round_ask(&engine);
    assert_true(n_asked == 0 && seqs[0].wants_draft && !seqs[0].requested_us);
}

/* ---- drafts ahead ---- */

/* While one is outstanding, the proposer answers no other request: the round waits for it. */
static void an_outstanding_draft_ahead_is_waited_for(void **state)
{
    (void)state;
    for (unsigned i = 0; i < N_SEQS; i++) {
        peers[i].p90_us = 0;
        seqs[i].ahead_us = NOW_US - 100;
    }
    seqs[0].ahead_until_us = NOW_US + 700;
    seqs[1].ahead_until_us = NOW_US; // is late
    seqs[2].ahead_until_us = NOW_US + 2 * BUDGET_US;
    round_ask(&engine);
    assert_true(seqs[0].requested_us == NOW_US && seqs[0].await_us == 700);
    assert_int_equal(seqs[1].requested_us, 0);
    assert_int_equal(seqs[2].await_us, BUDGET_US);
    seqs[0].requested_us = 0;
    peers[0].p90_us = 10; // a new request was sent
    round_ask(&engine);
    assert_true(seqs[0].ahead_us == 0 && seqs[0].await_us == 20);
}

/* Sequence i has a chain of two tokens in the pass, drafted by proposer 1. */
static struct draft chains[N_SEQS];

static void put_into_pass(void)
{
    options.draft_ahead = true;
    engine.decode_us = 4000;
    engine.n_pass = N_SEQS;
    for (unsigned i = 0; i < N_SEQS; i++) {
        chains[i] = (struct draft){.n = 2, .tokens = {5, 6}, .parents = {-1, 0}};
        seqs[i].draft = &chains[i];
        seqs[i].kv.len = 22;
        seqs[i].proposer = 1;
        seqs[i].requested_k = 4;
        pass[i] = &seqs[i];
    }
}

static void drafts_of_the_pass_are_continued(void **state)
{
    (void)state;
    put_into_pass();
    seqs[1].proposer = 0;
    peers[2].p90_us = 0;  // is not awaited
    seqs[0].max_len = 26; // three tokens after the draft and the target's
    round_ask_ahead(&engine);
    assert_true(n_asked == 2 && asked[0].proposer == 0 && asked[1].proposer == 1);
    assert_true(asked[0].n == 1 && asked[1].n == 2 && asked[1].budget_us == 4000);
    const struct drafts_wish *w = asked[1].wishes;
    assert_true(w[0].seq == 0 && w[1].seq == 2 && w[0].max_nodes == DRAFT_MAX_NODES);
    assert_true(w[0].max_depth == 3 && w[1].max_depth == 5); // one more than was requested
    assert_true(w[0].verifying == chains[0].tokens && w[0].n_verifying == 2);
    assert_true(seqs[0].ahead_us == NOW_US && seqs[0].ahead_until_us == NOW_US + 4000 + 3000);
    assert_true(seqs[1].ahead_us == NOW_US && seqs[2].ahead_us == 0);
}

static void only_some_drafts_can_be_continued(void **state)
{
    (void)state;
    for (unsigned why = 0; why < 10; why++) {
        n_asked = 0;
        put_into_pass();
        engine.n_pass = 1;
        seqs[0].max_len = 64;
        requests[0].rule = ACCEPT_OWN_DRAW;
        requests[0].params.temperature = 1;
        switch (why) {
        case 1:
            seqs[0].proposer = SEQ_NO_PROPOSER;
            break;
        case 2:
            seqs[0].kv.len = 20; // its draft is not in the pass
            break;
        case 3:
            chains[0].n = 0;
            break;
        case 4:
            chains[0].tree = true;
            break;
        case 5:
            seqs[0].max_len = 23; // it may end with the draft and the target's token
            break;
        case 6:
            requests[0].rule = ACCEPT_REJECTION; // q
            break;
        case 7:
            options.draft_ahead = false;
            break;
        case 8:
            engine.decode_us = 0; // no time of a pass is known
            break;
        case 9:
            requests[0].rule = ACCEPT_REJECTION;
            requests[0].params.temperature = 0; // greedy: no q
            break;
        }
        round_ask_ahead(&engine);
        assert_int_equal(n_asked, why == 0 || why == 9);
    }
    put_into_pass();
    engine.n_pass = 1;
    seqs[0].max_len = 24; // one token more
    n_asked = 0;
    round_ask_ahead(&engine);
    assert_true(n_asked == 1 && asked[0].wishes[0].max_depth == 1);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(each_proposer_gets_the_wishes_of_its_sequences),
        TEST(a_wish_describes_its_sequence),
        TEST(the_least_of_all_limits_is_requested),
        TEST(the_wait_is_twice_the_p90_within_the_budget),
        TEST(a_drawn_draft_holds_its_sequence),
        TEST(positions_to_read_are_at_most_those_that_ran_here),
        TEST(nothing_is_recorded_for_a_wish_that_is_not_sent),
        TEST(only_sequences_that_may_have_a_draft_request_one),
        TEST(a_request_without_a_proposers_name_gets_the_default),
        TEST(an_outstanding_draft_ahead_is_waited_for),
        TEST(drafts_of_the_pass_are_continued),
        TEST(only_some_drafts_can_be_continued),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
