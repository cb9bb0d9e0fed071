/* test_round.c - answers of proposers, late drafts above all, and the wait for drafts. */
#include <stdlib.h>
#include <string.h>
#include "lib/lib.h"
#include "base/mem.h"
#include "verifier-svc/engine/capacity.h"
#include "verifier-svc/engine/round_impl.h"

static struct engine engine;
static struct loaded_model loaded;
static struct request req;
static struct seq seq;
static uint32_t tokens[64];

/* A sequence of ten committed tokens, the last three 21 22 23. */
static int make(void **state)
{
    (void)state;
    static struct stats stats;
    stats_init(&stats);
    engine.stats = &stats;
    engine.loaded = &loaded;
    engine.request_again = false;
    memset(&seq, 0, sizeof(seq));
    for (uint32_t i = 0; i < 10; i++)
        tokens[i] = 14 + i;
    seq = (struct seq){.id = 5, .req = &req, .state = SEQ_RUNNING, .tokens = tokens};
    seq.n_prompt = 4;
    seq.n = 10;
    seq.max_len = 64;
    assert_int_equal(seq_list_init(&engine.running, 3), 0);
    seq_list_add(&engine.running, &seq);
    return 0;
}

static int unmake(void **state)
{
    (void)state;
    seq_list_done(&engine.running);
    draft_free(seq.draft);
    return 0;
}

static struct draft *draft_of(uint32_t n, const uint32_t *draft, const int32_t *parents)
{
    struct draft *d = draft_new();
    d->n = n;
    for (uint32_t i = 0; i < n; i++) {
        d->tokens[i] = draft[i];
        d->parents[i] = parents ? parents[i] : (int32_t)i - 1;
        d->survival[i] = 0;
    }
    return d;
}

/* As the inbox does: a draft that no sequence takes is freed. */
static void arrive_answer(struct draft_answer a)
{
    round_take_draft(&engine, &a);
    draft_free(a.draft);
}

static void arrive(uint64_t id, uint32_t base_len, uint32_t n, const uint32_t *draft,
                   const int32_t *parents)
{
    arrive_answer((struct draft_answer){
        .seq = id, .base_len = base_len, .draft = draft_of(n, draft, parents)});
}

static void a_draft_in_time_is_taken_whole(void **state)
{
    (void)state;
    arrive(5, 10, 3, (uint32_t[]){1, 2, 3}, NULL);
    assert_non_null(seq.draft);
    assert_int_equal(seq_n_draft(&seq), 3);
    assert_memory_equal(seq.draft->tokens, ((uint32_t[]){1, 2, 3}), 12);
}

static void an_empty_draft_ends_the_wait(void **state)
{
    (void)state;
    arrive(5, 10, 0, NULL, NULL);
    assert_non_null(seq.draft);
    assert_int_equal(seq_n_draft(&seq), 0);
}

/* Whose context is still being read is no less likely to have a draft next time. */
static void an_unread_context_ends_the_wait_and_counts_as_no_answer(void **state)
{
    (void)state;
    control_seq_init(&seq.control);
    seq.requested_k = 4;
    control_asked(&seq.control, 0, 10, 1);
    for (unsigned unread = 2; unread-- > 0;) {
        draft_free(TAKE(seq.draft));
        arrive_answer((struct draft_answer){
            .seq = 5, .base_len = 10, .unread = unread, .draft = draft_of(0, NULL, NULL)});
        assert_non_null(seq.draft);
        float given = seq.control.granted; // below 0: nothing was
        assert_true(unread ? given < 0 : given >= 0 && given < 1);
    }
}

static void the_rest_of_a_late_draft_is_used(void **state)
{
    (void)state;
    arrive(5, 8, 4, (uint32_t[]){22, 23, 1, 2}, NULL);
    assert_int_equal(seq_n_draft(&seq), 2);
    assert_memory_equal(seq.draft->tokens, ((uint32_t[]){1, 2}), 8);
    assert_memory_equal(seq.draft->parents, ((int32_t[]){-1, 0}), 8);
}

/* Committed since: 22 (it was being verified) and 23 in place of 9. */
static void the_likeliest_path_of_a_draft_ahead_is_used(void **state)
{
    (void)state;
    const uint32_t draft[] = {22, 9, 1, 23, 4, 5, 6, 7};
    const int32_t parents[] = {-1, 0, 1, 0, 3, 3, 5, 4};
    const float survival[] = {1, 1, .9f, .5f, .1f, .4f, .3f, .1f};
    struct draft_answer a = {
        .seq = 5, .base_len = 8, .ahead = true, .draft = draft_of(8, draft, parents)};
    memcpy(a.draft->survival, survival, sizeof(survival));
    arrive_answer(a);
    assert_int_equal(seq_n_draft(&seq), 2);
    assert_memory_equal(seq.draft->tokens, ((uint32_t[]){5, 6}), 8);
    assert_memory_equal(seq.draft->parents, ((int32_t[]){-1, 0}), 8);
    assert_false(engine.request_again);
}

static void a_useless_draft_ahead_causes_another_request(void **state)
{
    (void)state;
    seq.ahead_us = seq.requested_us = 1;
    arrive_answer((struct draft_answer){
        .seq = 5, .base_len = 8, .ahead = true, .draft = draft_of(1, (uint32_t[]){9}, NULL)});
    assert_null(seq.draft);
    assert_int_equal(seq.requested_us, 0);
    assert_true(engine.request_again);
}

static void a_late_draft_that_guessed_wrong_is_dropped(void **state)
{
    (void)state;
    arrive(5, 8, 4, (uint32_t[]){22, 24, 1, 2}, NULL);
    assert_null(seq.draft);
    arrive(5, 8, 2, (uint32_t[]){22, 23}, NULL); // right, but nothing is left
    assert_null(seq.draft);
    arrive(5, 8, 1, (uint32_t[]){22}, NULL); // too short to know
    assert_null(seq.draft);
}

static void a_late_trees_subtree_is_used(void **state)
{
    (void)state;
    /* 22 -> (23 -> (1, 2 -> 3), 9), 7 -> 1 */
    const uint32_t draft[] = {22, 7, 23, 9, 1, 1, 2, 3};
    const int32_t parents[] = {-1, -1, 0, 0, 1, 2, 2, 6};
    arrive(5, 8, 8, draft, parents);
    assert_int_equal(seq_n_draft(&seq), 3);
    assert_memory_equal(seq.draft->tokens, ((uint32_t[]){1, 2, 3}), 12);
    assert_memory_equal(seq.draft->parents, ((int32_t[]){-1, -1, 1}), 12);
    assert_true(seq.draft->tree);
}

static void a_drawn_draft_is_taken_whole_or_not_at_all(void **state)
{
    (void)state;
    struct draft *d = draft_of(3, (uint32_t[]){22, 23, 1}, NULL);
    struct draft_answer a = {.seq = 5, .base_len = 8, .draft = d};
    struct draft_q *q = d->q = calloc(1, sizeof(*q));
    round_take_draft(&engine,
                     &a); // correct so far, but the q of the rest depends on committed tokens
    assert_null(seq.draft);
    assert_ptr_equal(a.draft, d);
    a.base_len = 10;
    round_take_draft(&engine, &a);
    assert_int_equal(seq_n_draft(&seq), 3);
    assert_ptr_equal(seq.draft, d);
    assert_ptr_equal(seq.draft->q, q);
    assert_null(a.draft);
    seq_drop_draft(&seq);
}

static void a_held_sequence_is_released_by_its_draft_or_its_time_limit(void **state)
{
    (void)state;
    seq.kv.len = 9; // decoding
    assert_true(round_release(&engine, 5) == INT64_MAX);
    seq.held_until_us = 1000;
    assert_false(round_has_work(&engine));
    assert_true(round_release(&engine, 999) == 1000);
    assert_false(round_has_work(&engine));
    assert_true(round_release(&engine, 1000) == INT64_MAX);
    assert_true(round_has_work(&engine));
    seq.held_until_us = 1000;
    arrive(5, 10, 0, NULL, NULL);
    assert_true(round_has_work(&engine));
}

static void blocks_are_taken_from_idle_sequences_and_not_from_held_ones(void **state)
{
    (void)state;
    struct sched_grant shares[3] = {{.todo = 1}, {.todo = 0}, {.todo = 1}}; // by order
    struct seq others[2] = {{.id = 6, .req = &req, .order = 2}, {.id = 7, .req = &req, .order = 1}};
    seq.kv.n_blocks = others[0].kv.n_blocks = others[1].kv.n_blocks = 1;
    seq_list_add(&engine.running, &others[0]);
    seq_list_add(&engine.running, &others[1]);
    engine.grants = shares;
    assert_ptr_equal(capacity_victim(&engine, &seq), &others[1]);
    others[1].held_until_us = 1000;
    assert_ptr_equal(capacity_victim(&engine, &seq), &others[0]); // the youngest
    engine.grants = NULL;
}

/* Flow 1 holds three blocks in two sequences, flow 2 two in the newest one. */
static void blocks_are_taken_from_the_flow_that_holds_the_most(void **state)
{
    (void)state;
    struct sched_grant shares[3] = {{.todo = 1}, {.todo = 1}, {.todo = 1}};
    struct request other = {.place.flow = 2};
    struct seq more = {.id = 6, .req = &req, .order = 2, .kv.n_blocks = 2};
    struct seq newest = {.id = 7, .req = &other, .order = 3, .kv.n_blocks = 2};
    seq.kv.n_blocks = 1;
    seq_list_add(&engine.running, &more);
    seq_list_add(&engine.running, &newest);
    engine.grants = shares;
    assert_ptr_equal(capacity_victim(&engine, &seq), &more);
    assert_ptr_equal(capacity_victim(&engine, &newest), &more);
    more.kv.n_blocks = 1; // both hold two
    assert_ptr_equal(capacity_victim(&engine, &seq), &newest);
    newest.kv.n_blocks = 3;
    assert_ptr_equal(capacity_victim(&engine, &newest), &newest);
    engine.grants = NULL;
}

static void drafts_of_unknown_sequences_and_impossible_lengths_are_dropped(void **state)
{
    (void)state;
    arrive(6, 10, 1, (uint32_t[]){1}, NULL);
    arrive(5, 11, 1, (uint32_t[]){1}, NULL);
    arrive(5, 2, 1, (uint32_t[]){1}, NULL);
    assert_null(seq.draft);
}

static void only_requested_drafts_are_waited_for(void **state)
{
    (void)state;
    seq.kv.len = 9; // decoding
    assert_true(round_has_work(&engine));
    assert_true(round_wait_until_us(&engine) == 0);
    seq.requested_us = 1000;
    seq.await_us = 300;
    assert_true(round_wait_until_us(&engine) == 1300);
    seq.kv.len = 7; // a prompt has rows to run
    assert_true(round_wait_until_us(&engine) == 0);
    seq.kv.len = 9;
    arrive(5, 10, 0, NULL, NULL);
    assert_true(round_wait_until_us(&engine) == 0);
}

static void sequences_without_a_wish_wait_only_if_the_policy_counted_them(void **state)
{
    (void)state;
    struct seq other = {.id = 6, .req = &req, .state = SEQ_RUNNING, .n = 10, .kv.len = 9};
    other.proposer = SEQ_NO_PROPOSER;
    seq_list_add(&engine.running, &other);
    seq.kv.len = 9;
    seq.requested_us = 1000;
    seq.await_us = 300;
    engine.n_wait_counted = 0; // fixed, ema
    assert_true(round_wait_until_us(&engine) == 0);
    engine.n_wait_counted = 2;
    assert_true(round_wait_until_us(&engine) == 1300);
    engine.n_wait_counted = 1; // a client's draft has come since
    assert_true(round_wait_until_us(&engine) == 0);

    engine.n_wait_counted = 0;
    other.requested_us = 1000;
    other.await_us = 100;
    assert_true(round_wait_until_us(&engine) == 1300);
    struct draft empty = {0};
    other.draft = &empty;
    other.proposer = 0;
    assert_true(round_wait_until_us(&engine) == 1300);
    other.proposer = SEQ_NO_PROPOSER; // the client's own
    assert_true(round_wait_until_us(&engine) == 0);
    atomic_store(&req.paused, true); // no sequence runs
    assert_true(round_wait_until_us(&engine) == 0);
    atomic_store(&req.paused, false);
}

/* ---- what the controller sees ---- */

static void the_allowed_draft_is_the_least_of_all_limits(void **state)
{
    (void)state;
    static const struct {
        uint32_t n, max_len, k_max;
        bool verify;
        uint32_t allowed;
    } cases[] = {
        {10, 64, 5, false, 5},
        {10, 64, 0, false, 0},
        {10, 15, 5, false, 4}, // one token is the target's own
        {10, 11, 5, false, 0},
        {10, 500, UINT32_MAX, false, DRAFT_MAX_NODES},
        {10, 500, DRAFT_MAX_NODES - 1, false, DRAFT_MAX_NODES - 1},
        {10, 500, 5, true, DRAFT_MAX_NODES}, // the client's draft
        {10, 15, 0, true, 4},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        seq.n = cases[i].n;
        seq.max_len = cases[i].max_len;
        req.k_max = cases[i].k_max;
        req.verify = cases[i].verify;
        assert_int_equal(round_draft_allowed(&engine, &seq), cases[i].allowed);
        loaded.run.n_states = 1; // a recurrent layer logs so many rows
        assert_int_equal(round_draft_allowed(&engine, &seq),
                         cases[i].allowed < KV_MAX_CHAIN ? cases[i].allowed : KV_MAX_CHAIN);
        loaded.run.n_states = 0;
    }
    req.k_max = 0;
    req.verify = false;
}

static void an_item_is_the_controllers_view_of_a_sequence(void **state)
{
    (void)state;
    struct draft *d = seq.draft = draft_of(2, (uint32_t[]){1, 2}, NULL);
    seq.proposer = 3;
    seq.n_cached = 4;
    req.fixed = true;
    struct control_item v = round_item(&seq, 7);
    assert_true(v.s == &seq.control && v.proposer == 3 && v.context == 10 && v.unread == 6);
    assert_true(v.left == 54 && v.max_nodes == 7 && v.max_depth == 53 && v.draft == d && v.fixed);
    assert_true(v.nodes == 0 && v.depth == 0 && !v.excluded && !v.no_row);
    req.fixed = false;
    assert_false(round_item(&seq, 7).fixed);
}

static void a_round_without_drafts_has_a_row_for_each_decoding_sequence(void **state)
{
    (void)state;
    struct request fixed = {.fixed = true, .k_max = 4}, off = {.fixed = true}, paused = {0};
    struct seq prompt = {.id = 6, .req = &req, .state = SEQ_RUNNING, .n = 40, .kv.len = 30};
    struct seq idle = {.id = 7, .req = &paused, .state = SEQ_RUNNING, .n = 20, .kv.len = 19};
    atomic_store(&paused.paused, true);
    sched_init(&engine.sched, &(struct sched_limits){100, 90, 64, 1000});
    engine.prompt_rows = 33;
    seq.kv.len = 9;
    struct control_round r = round_without_drafts(&engine);
    assert_true(r.n_running == 1 && r.n_decoding == 1 && r.n_fixed == 0);
    assert_true(r.pass.rows == 1 && r.pass.kv_read == 10 && r.pass.attended == 10);
    assert_true(!r.pass.drafted && r.draft_rows == 89);
    seq.req = &fixed;
    seq_list_add(&engine.running, &prompt);
    seq_list_add(&engine.running, &idle);
    r = round_without_drafts(&engine);
    assert_true(r.n_running == 3 && r.n_decoding == 1 && r.n_fixed == 1);
    assert_true(r.pass.rows == 1 + 33 && r.pass.kv_read == 10);
    assert_int_equal(r.draft_rows, 99 / 4 * 3);
    seq.req = &off; // its drafts are off
    assert_int_equal(round_without_drafts(&engine).n_fixed, 0);
    engine.prompt_rows = 0;
}

static void a_round_is_shared_by_flows_that_have_rows(void **state)
{
    (void)state;
    struct request other = {.place.flow = 2};
    struct seq more = {.id = 6, .req = &req, .state = SEQ_RUNNING, .n = 20, .kv.len = 19};
    struct seq theirs = {.id = 7, .req = &other, .state = SEQ_RUNNING, .n = 20, .kv.len = 19};
    seq.kv.len = 9;
    assert_false(round_is_shared(&engine));
    seq_list_add(&engine.running, &more);
    assert_false(round_is_shared(&engine));
    seq_list_add(&engine.running, &theirs);
    assert_true(round_is_shared(&engine));
    atomic_store(&other.paused, true);
    assert_false(round_is_shared(&engine));
    atomic_store(&other.paused, false);
    /* 50 us a row, and a pass may take 1 ms, so 18 rows are left. */
    sched_init(&engine.sched, &(struct sched_limits){100, 90, 64, 1000});
    sched_pass_done(&engine.sched, 1, 50);
    assert_int_equal(round_without_drafts(&engine).draft_rows, 20 - 3);
    other.place.flow = 0;
    assert_int_equal(round_without_drafts(&engine).draft_rows, 90 - 3);
}

static void a_round_is_shared_with_sequences_that_wait_for_drafts(void **state)
{
    (void)state;
    struct request other = {.place.flow = 2};
    struct seq theirs = {.id = 7, .req = &other, .state = SEQ_RUNNING, .n = 20, .kv.len = 19};
    seq.kv.len = 9;
    seq_list_add(&engine.running, &theirs);
    theirs.held_until_us = 1000;
    assert_true(seq_todo(&theirs) == 0 && seq_waits(&theirs) && round_is_shared(&engine));
    atomic_store(&other.paused, true);
    assert_false(seq_waits(&theirs) || round_is_shared(&engine));
    atomic_store(&other.paused, false);
    other.verify = true; // it waits for its client, which may take long
    assert_false(seq_waits(&theirs) || round_is_shared(&engine));
    other.verify = false;
    theirs.kv.len = 5; // its prompt runs
    assert_false(seq_waits(&theirs));
    theirs.state = SEQ_BRANCH;
    theirs.kv.len = 19;
    assert_false(seq_waits(&theirs));
}

static void drafts_of_a_length_that_the_client_chose_are_its_own(void **state)
{
    (void)state;
    static const uint32_t two[] = {1, 2};
    struct request fixed = {.fixed = true, .k_max = 2}, plain = {.k_max = 2};
    seq.kv.len = 9;
    seq.req = &plain;
    seq.draft = draft_of(2, two, NULL);
    seq.proposer = 0;
    struct sched_grant g = round_wanted(&seq);
    assert_true(g.todo == 1 && g.draft == 2 && !g.own_draft && !g.waits && !g.rows);
    seq.proposer = SEQ_NO_PROPOSER;
    assert_true(round_wanted(&seq).own_draft);
    seq.proposer = 0;
    seq.req = &fixed;
    assert_true(round_wanted(&seq).own_draft);
    seq.kv.len = 5;
    g = round_wanted(&seq);
    assert_true(g.todo == 4 && g.draft == 0);
    draft_free(TAKE(seq.draft));
    seq.kv.len = 9;
    seq.held_until_us = 1000;
    g = round_wanted(&seq);
    assert_true(g.todo == 0 && g.waits);
}

static void a_sequence_decodes_one_row_before_its_next_token(void **state)
{
    (void)state;
    for (uint32_t len = 7; len <= 10; len++) {
        seq.kv.len = len;
        assert_int_equal(round_is_decoding(&seq), len == 9);
    }
    seq.kv.len = 9;
    seq.state = SEQ_BRANCH;
    assert_false(round_is_decoding(&seq));
}

/* ---- more on answers ---- */

static void a_draft_may_continue_the_prompt(void **state)
{
    (void)state;
    arrive(5, 3, 8, (uint32_t[]){17, 18, 19, 20, 21, 22, 23, 1}, NULL);
    assert_null(seq.draft); // before the end of the prompt
    arrive(5, 4, 7, (uint32_t[]){18, 19, 20, 21, 22, 23, 1}, NULL);
    assert_int_equal(seq_n_draft(&seq), 1);
    assert_int_equal(seq.draft->tokens[0], 1);
    assert_int_equal(seq.proposer, 0);
}

static void drafts_ahead_are_counted(void **state)
{
    (void)state;
    double all = metrics_value(engine.stats->ahead), used = metrics_value(engine.stats->ahead_used);
    arrive_answer((struct draft_answer){
        .seq = 5, .base_len = 8, .ahead = true, .draft = draft_of(1, (uint32_t[]){9}, NULL)});
    assert_true(metrics_value(engine.stats->ahead) == all + 1);
    assert_true(metrics_value(engine.stats->ahead_used) == used);
    assert_true(engine.request_again);
    engine.request_again = false;
    arrive_answer((struct draft_answer){.seq = 5,
                                        .base_len = 8,
                                        .ahead = true,
                                        .draft = draft_of(3, (uint32_t[]){22, 23, 4}, NULL)});
    assert_true(metrics_value(engine.stats->ahead) == all + 2);
    assert_true(metrics_value(engine.stats->ahead_used) == used + 1);
    assert_false(engine.request_again);
    assert_true(seq.ahead_us == 0 && seq.requested_us == 0);
    seq_drop_draft(&seq);
    arrive_answer((struct draft_answer){.seq = 5, // nothing was committed since
                                        .base_len = 10,
                                        .ahead = true,
                                        .draft = draft_of(1, (uint32_t[]){4}, NULL)});
    assert_true(metrics_value(engine.stats->ahead_used) == used + 1);
}

/* Its latency counts only for the request that is answered; its tokens always. */
static void an_answer_updates_the_controller(void **state)
{
    (void)state;
    struct control_options o = {CONTROL_FIXED, 5, 0};
    control_init(&engine.control, &o, &(struct pass_time){0});
    control_seq_init(&seq.control);
    control_asked(&seq.control, 2, 0, 1);
    struct draft_answer a = {.seq = 5, .base_len = 8, .proposer = 2, .rtt_us = 700};
    a.draft = draft_of(3, (uint32_t[]){22, 24, 1}, NULL);
    arrive_answer(a);
    const struct control_proposer *p = &engine.control.proposers[2];
    assert_true(p->wished == 0 && seq.control.accepted == 1); // nothing was requested
    assert_true(p->accept_rate.all[0].tried == 1 && p->accept_rate.all[1].accepted == 0);
    seq.requested_k = 4;
    a.draft = draft_of(0, NULL, NULL);
    a.base_len = 10;
    arrive_answer(a);
    assert_true(p->wished == 1 && p->granted == 0 && p->empty_us == 700);
    seq_drop_draft(&seq);
    a.draft = draft_of(1, (uint32_t[]){1}, NULL);
    arrive_answer(a);
    assert_true(p->granted == 1 && p->answers.k == 4 && p->answers.us == 700);
    assert_int_equal(seq.proposer, 2);
}

/* The earliest of the held ones; those that are late run on. */
static void the_next_release_is_the_earliest(void **state)
{
    (void)state;
    struct seq others[2] = {{.id = 6, .req = &req, .state = SEQ_RUNNING},
                            {.id = 7, .req = &req, .state = SEQ_RUNNING}};
    seq_list_add(&engine.running, &others[0]);
    seq_list_add(&engine.running, &others[1]);
    seq.held_until_us = 300;
    others[0].held_until_us = 200;
    others[1].held_until_us = 250;
    assert_true(round_release(&engine, 100) == 200);
    assert_true(round_release(&engine, 200) == 250);
    assert_int_equal(others[0].held_until_us, 0);
    assert_true(seq.held_until_us == 300 && others[1].held_until_us == 250);
}

static void the_wait_lasts_until_the_last_draft(void **state)
{
    (void)state;
    struct seq other = {.id = 6, .req = &req, .state = SEQ_RUNNING, .n = 10, .kv.len = 9};
    seq_list_add(&engine.running, &other);
    engine.n_wait_counted = 2;
    seq.kv.len = 9;
    seq.requested_us = 1000;
    seq.await_us = 300;
    other.requested_us = 900;
    other.await_us = 350;
    assert_true(round_wait_until_us(&engine) == 1300);
    other.await_us = 450;
    assert_true(round_wait_until_us(&engine) == 1350);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, make, unmake)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_draft_in_time_is_taken_whole),
        TEST(an_empty_draft_ends_the_wait),
        TEST(an_unread_context_ends_the_wait_and_counts_as_no_answer),
        TEST(the_rest_of_a_late_draft_is_used),
        TEST(a_late_draft_that_guessed_wrong_is_dropped),
        TEST(the_likeliest_path_of_a_draft_ahead_is_used),
        TEST(a_useless_draft_ahead_causes_another_request),
        TEST(a_late_trees_subtree_is_used),
        TEST(a_drawn_draft_is_taken_whole_or_not_at_all),
        TEST(a_held_sequence_is_released_by_its_draft_or_its_time_limit),
        TEST(blocks_are_taken_from_idle_sequences_and_not_from_held_ones),
        TEST(blocks_are_taken_from_the_flow_that_holds_the_most),
        TEST(drafts_of_unknown_sequences_and_impossible_lengths_are_dropped),
        TEST(only_requested_drafts_are_waited_for),
        TEST(sequences_without_a_wish_wait_only_if_the_policy_counted_them),
        TEST(the_allowed_draft_is_the_least_of_all_limits),
        TEST(an_item_is_the_controllers_view_of_a_sequence),
        TEST(a_round_without_drafts_has_a_row_for_each_decoding_sequence),
        TEST(a_round_is_shared_by_flows_that_have_rows),
        TEST(a_round_is_shared_with_sequences_that_wait_for_drafts),
        TEST(drafts_of_a_length_that_the_client_chose_are_its_own),
        TEST(a_sequence_decodes_one_row_before_its_next_token),
        TEST(a_draft_may_continue_the_prompt),
        TEST(drafts_ahead_are_counted),
        TEST(an_answer_updates_the_controller),
        TEST(the_next_release_is_the_earliest),
        TEST(the_wait_lasts_until_the_last_draft),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
