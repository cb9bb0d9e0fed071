/* test_sched.c - admission and the sharing of rows, by a fake clock. */
#include "lib/lib.h"
#include "verifier-svc/engine/sched.h"

#define SECOND INT64_C(1000000)

static struct sched of(uint32_t max_rows, uint32_t chunk)
{
    struct sched s;
    sched_init(&s, &(struct sched_limits){max_rows, max_rows, chunk, 100000});
    return s;
}

static uint32_t draft_rows(const struct sched *s, uint32_t n, uint32_t n_decoding,
                           uint32_t n_prompts)
{
    return sched_draft_rows(s, &(struct sched_load){n, n_decoding, n_prompts, false});
}

/* ---- admission ---- */

static struct sched_passed passed[3];

/* The request at place i of the queue, which needs these blocks and seats. */
static struct sched_wait needs(unsigned i, uint32_t blocks, uint32_t seats)
{
    passed[i] = (struct sched_passed){0};
    return (struct sched_wait){.passed = &passed[i], .blocks = blocks, .seats = seats};
}

static void arrival_is_the_order(void **state)
{
    (void)state;
    struct sched_wait w[] = {needs(0, 4, 1), needs(1, 1, 1)};
    assert_int_equal(sched_admit(w, 2, 100, 10, SECOND), 0);
    assert_int_equal(sched_admit(w + 1, 1, 96, 9, SECOND), 0);
    assert_int_equal(sched_admit(w, 0, 96, 9, SECOND), SCHED_NONE);
}

static void blocks_and_seats_both_count(void **state)
{
    (void)state;
    struct sched_wait w[] = {needs(0, 4, 3)};
    assert_int_equal(sched_admit(w, 1, 3, 10, SECOND), SCHED_NONE);
    assert_int_equal(sched_admit(w, 1, 4, 2, SECOND), SCHED_NONE);
    assert_int_equal(sched_admit(w, 1, 4, 3, SECOND), 0);
}

static void eight_smaller_ones_may_pass_the_head(void **state)
{
    (void)state;
    struct sched_wait w[] = {needs(0, 50, 1), needs(1, 60, 1), needs(2, 2, 1)};
    for (int i = 0; i < SCHED_MAX_PASSING; i++)
        assert_int_equal(sched_admit(w, 3, 10, 10, SECOND + i), 2);
    assert_int_equal(sched_admit(w, 3, 10, 10, SECOND + 9), SCHED_NONE);
    assert_int_equal(sched_admit(w, 3, 50, 10, SECOND + 10), 0); // its turn; the next has its own
    assert_int_equal(sched_admit(w + 1, 2, 10, 10, SECOND + 11), 1);
}

static void no_request_passes_after_two_seconds(void **state)
{
    (void)state;
    struct sched_wait w[] = {needs(0, 50, 1), needs(1, 2, 1)};
    assert_int_equal(sched_admit(w, 2, 10, 10, 5 * SECOND), 1);
    assert_int_equal(sched_admit(w, 2, 10, 10, 7 * SECOND - 1), 1);
    assert_int_equal(sched_admit(w, 2, 10, 10, 7 * SECOND), SCHED_NONE);
    struct sched_wait next[] = {needs(0, 50, 1), needs(1, 2, 1)}; // another head has its own time
    assert_int_equal(sched_admit(next, 2, 10, 10, 7 * SECOND), 1);
}

static void a_skipped_request_does_not_block_others(void **state)
{
    (void)state;
    struct sched_wait w[] = {needs(0, 2, 1), needs(1, 2, 1)};
    w[0].skip = true;
    for (int i = 0; i < 20; i++)
        assert_int_equal(sched_admit(w, 2, 10, 10, (i + 1) * SECOND), 1);
    w[1].skip = true;
    assert_int_equal(sched_admit(w, 2, 10, 10, SECOND), SCHED_NONE);
    w[0].skip = false;
    assert_int_equal(sched_admit(w, 2, 10, 10, 21 * SECOND), 0);
}

/* While it is skipped, another one is the head, which fits or is passed in its turn. */
static void the_heads_count_continues_while_it_is_skipped(void **state)
{
    (void)state;
    struct sched_wait w[] = {needs(0, 50, 1), needs(1, 60, 1), needs(2, 2, 1)};
    for (int i = 0; i < SCHED_MAX_PASSING; i++) {
        w[0].skip = i % 2;
        assert_int_equal(sched_admit(w, 3, 10, 10, SECOND + i), 2);
    }
    w[0].skip = false;
    assert_int_equal(sched_admit(w, 3, 10, 10, SECOND + 9), SCHED_NONE);
}

static void the_heads_time_continues_while_it_is_skipped(void **state)
{
    (void)state;
    struct sched_wait w[] = {needs(0, 50, 1), needs(1, 2, 1)};
    assert_int_equal(sched_admit(w, 2, 10, 10, 5 * SECOND), 1);
    w[0].skip = true;
    assert_int_equal(sched_admit(w, 2, 10, 10, 6 * SECOND), 1);
    w[0].skip = false;
    assert_int_equal(sched_admit(w, 2, 10, 10, 7 * SECOND), SCHED_NONE);
}

/* ---- rows ---- */

static void every_decoding_sequence_has_a_row(void **state)
{
    (void)state;
    struct sched s = of(16, 512);
    struct sched_grant v[16];
    for (int i = 0; i < 16; i++)
        v[i] = (struct sched_grant){.todo = 1, .draft = 5};
    assert_int_equal(sched_grant_rows(&s, v, 16, false), 16);
    for (int i = 0; i < 16; i++) {
        assert_int_equal(v[i].rows, 1);
        assert_int_equal(v[i].draft_rows, 0);
    }
}

static void drafts_get_equal_parts_of_the_remaining_rows(void **state)
{
    (void)state;
    struct sched s = of(16, 512);
    struct sched_grant v[] = {
        {.todo = 1, .draft = 9}, {.todo = 1, .draft = 9}, {.todo = 1, .draft = 1}};
    assert_int_equal(sched_grant_rows(&s, v, 3, false), 16);
    assert_int_equal(v[0].draft_rows, 6);
    assert_int_equal(v[1].draft_rows, 6);
    assert_int_equal(v[2].draft_rows, 1);
}

static void drafts_keep_within_the_rows_with_logits(void **state)
{
    (void)state;
    struct sched s = of(512, 512);
    s.limits.max_logits = 10;
    struct sched_grant v[] = {{.todo = 1, .draft = 20}, {.todo = 1, .draft = 20}};
    assert_int_equal(sched_grant_rows(&s, v, 2, false), 10);
    assert_int_equal(draft_rows(&s, 2, 2, 0), 8); // known before there are drafts
    assert_int_equal(draft_rows(&s, 20, 2, 0), 0);
}

static void a_prompt_alone_takes_the_pass(void **state)
{
    (void)state;
    struct sched s = of(512, 512);
    sched_pass_done(&s, 100, 10000); // 100 us a row: 5000 rows in 500 ms
    struct sched_grant v[] = {{.todo = 2000}};
    assert_int_equal(sched_grant_rows(&s, v, 1, false), 512);
    s = of(512, 64);
    sched_pass_done(&s, 100, 10000);
    assert_int_equal(sched_grant_rows(&s, v, 1, false), 64);
}

static void a_slow_model_takes_prompts_in_smaller_pieces(void **state)
{
    (void)state;
    struct sched s = of(512, 512);
    sched_pass_done(&s, 10, 100000); // 10 ms a row
    struct sched_grant v[] = {{.todo = 2000}};
    assert_int_equal(sched_grant_rows(&s, v, 1, false), 50); // 500 ms
    s = of(512, 512);
    sched_pass_done(&s, 1, SECOND); // a second per row: it still proceeds
    assert_int_equal(sched_grant_rows(&s, v, 1, false), SCHED_MIN_CHUNK);
}

static void a_prompt_beside_others_keeps_the_pass_short(void **state)
{
    (void)state;
    struct sched s = of(512, 512);
    sched_pass_done(&s, 1, 1000); // 1 ms a row: 100 rows in 100 ms
    struct sched_grant v[] = {{.todo = 1}, {.todo = 2000}, {.todo = 1}};
    assert_int_equal(sched_grant_rows(&s, v, 3, false), 100);
    assert_int_equal(v[0].rows, 1);
    assert_int_equal(v[1].rows, 98);
    assert_int_equal(v[2].rows, 1);
}

static void prompts_proceed_beside_many_drafts(void **state)
{
    (void)state;
    struct sched s = of(64, 512);
    sched_pass_done(&s, 1, 1000);
    struct sched_grant v[9];
    for (int i = 0; i < 8; i++)
        v[i] = (struct sched_grant){.todo = 1, .draft = 20};
    v[8] = (struct sched_grant){.todo = 500};
    assert_int_equal(sched_grant_rows(&s, v, 9, false), 64);
    assert_true(v[8].rows >= 14);
}

/* 60 sequences of one flow and one of another, at 2 ms a row: 12 rows end in 25 ms. */
static void a_flow_of_many_does_not_make_passes_long(void **state)
{
    (void)state;
    enum { MANY = 60, PASSES = 20 };
    struct sched s = of(512, 512);
    struct sched_grant v[MANY + 1];
    uint32_t n_rows[MANY + 1] = {0};
    for (uint32_t i = 0; i <= MANY; i++)
        v[i] = (struct sched_grant){.todo = 1, .flow = i == 20};
    assert_int_equal(sched_grant_rows(&s, v, MANY + 1, true), MANY + 1); // no pass was timed
    sched_pass_done(&s, MANY + 1, 2000 * (MANY + 1));
    for (unsigned pass = 0; pass < PASSES; pass++) {
        assert_int_equal(sched_grant_rows(&s, v, MANY + 1, true), 12);
        for (uint32_t i = 0; i <= MANY; i++)
            n_rows[i] += v[i].rows;
        sched_pass_done(&s, 12, 2000 * 12);
    }
    for (uint32_t i = 0; i <= MANY; i++) // alternately
        assert_in_range(n_rows[i], i == 20 ? PASSES : PASSES * 11 / MANY, i == 20 ? PASSES : 4);
    for (uint32_t i = 0; i <= MANY; i++)
        v[i].flow = 0;
    assert_int_equal(sched_grant_rows(&s, v, MANY + 1, false), MANY + 1); // alone
}

/* Some miss the pass after each that they had a row in. Each still gets its turns. */
static void sequences_that_come_and_go_take_turns(void **state)
{
    (void)state;
    enum { MANY = 9, PASSES = 90 };
    for (int whole = 0; whole < 2; whole++) {
        struct sched s = of(512, 512);
        struct sched_grant v[MANY + 1];
        uint32_t n_rows[MANY + 1] = {0};
        for (uint32_t i = 0; i <= MANY; i++)
            v[i] = (struct sched_grant){.todo = 1, .flow = i == MANY};
        sched_pass_done(&s, 1, 10000);
        for (unsigned pass = 0; pass < PASSES; pass++) {
            for (uint32_t i = 0; i < MANY; i++) {
                v[i].waits = !whole && v[i].rows;
                v[i].todo = !v[i].waits;
                v[i].whole_draft = v[i].own_draft = whole;
                v[i].draft = whole ? 2 : 0;
            }
            uint32_t used = sched_grant_rows(&s, v, MANY + 1, true);
            for (uint32_t i = 0; i <= MANY; i++)
                n_rows[i] += v[i].rows;
            sched_pass_done(&s, used, 10000 * used);
        }
        assert_int_equal(n_rows[MANY], PASSES);
        for (uint32_t i = 0; i < MANY; i++)
            assert_in_range(n_rows[i], n_rows[0] - 1, n_rows[0] + 1);
        assert_true(n_rows[0] > 3);
    }
}

/* A flow that waits for its drafts, or runs a prompt, is there: passes stay short for it. */
static void flows_without_a_row_keep_passes_short_too(void **state)
{
    (void)state;
    struct sched s = of(512, 512);
    struct sched_grant v[61];
    for (uint32_t i = 0; i < 60; i++)
        v[i] = (struct sched_grant){.todo = 1};
    sched_pass_done(&s, 60, 2000 * 60); // 12 rows in 25 ms
    v[60] = (struct sched_grant){.flow = 1, .waits = true};
    assert_int_equal(sched_grant_rows(&s, v, 61, true), 12);
    v[60] = (struct sched_grant){.flow = 1, .todo = 400};
    sched_grant_rows(&s, v, 61, true);
    uint32_t n_rows = 0;
    for (uint32_t i = 0; i < 60; i++)
        n_rows += v[i].rows;
    assert_int_equal(n_rows, 12);
    assert_true(v[60].rows > 0);
}

/* No tokens are chosen after the rows of a prompt, so they take less time than rows that decode. */
static void prompts_say_nothing_about_rows_that_decode(void **state)
{
    (void)state;
    struct sched s = of(512, 512);
    struct sched_grant prompt = {.todo = 512}, v[61];
    assert_true(sched_grant_rows(&s, &prompt, 1, false) > 0);
    sched_pass_done(&s, 512, 15000);
    for (uint32_t i = 0; i < 61; i++)
        v[i] = (struct sched_grant){.todo = 1, .flow = i == 0};
    assert_int_equal(sched_grant_rows(&s, v, 61, true), 61);
    sched_pass_done(&s, 61, 180000);
    assert_in_range(sched_grant_rows(&s, v, 61, true), 2, 31);
    assert_int_equal(v[0].rows, 1);
}

/* A stall of the machine made one pass slow. After some passes, larger ones are tried again. */
static void a_slow_pass_is_forgotten(void **state)
{
    (void)state;
    struct sched s = of(512, 512);
    struct sched_grant v[40];
    unsigned n_passes = 0;
    for (uint32_t i = 0; i < 40; i++)
        v[i] = (struct sched_grant){.todo = 1, .flow = i % 2};
    sched_pass_done(&s, 2, 40200);
    sched_pass_done(&s, 40, 44000);
    sched_pass_done(&s, 20, 42000);
    sched_pass_done(&s, 40, 2000000);
    for (uint32_t used; (used = sched_grant_rows(&s, v, 40, true)) < 40; n_passes++) {
        assert_true(n_passes < 1000);
        sched_pass_done(&s, used, 40000 + 100 * used);
    }
    assert_true(n_passes > 10);
}

/* Passes of 1 and 64 rows were timed; the time of others lies on the line between them. */
static void times_between_sizes_are_interpolated(void **state)
{
    (void)state;
    struct sched s = of(512, 512);
    struct sched_grant v[65];
    for (uint32_t i = 0; i < 65; i++)
        v[i] = (struct sched_grant){.todo = 1, .flow = i == 0};
    sched_pass_done(&s, 1, 45000);
    sched_pass_done(&s, 64, 250000);
    assert_in_range(sched_grant_rows(&s, v, 65, true), 15, 32); // 2 rows take 48 ms: 97 ms
    assert_int_equal(v[0].rows, 1);
}

/* Its weights take 300 ms to read: a pass of two rows is hardly shorter than one of 40. */
static void sequences_of_a_large_model_run_together(void **state)
{
    (void)state;
    struct sched s = of(512, 512);
    struct sched_grant v[40];
    for (uint32_t i = 0; i < 40; i++)
        v[i] = (struct sched_grant){.todo = 1, .flow = i == 0};
    sched_pass_done(&s, 2, 300000);
    sched_pass_done(&s, 40, 400000);
    assert_int_equal(sched_grant_rows(&s, v, 40, true), 40);
}

/* Equal parts; a flow with fewer sequences leaves the rest to the others. */
static void flows_have_equal_parts_of_a_short_pass(void **state)
{
    (void)state;
    struct sched s = of(512, 512);
    struct sched_grant v[30];
    for (uint32_t i = 0; i < 30; i++)
        v[i] = (struct sched_grant){.todo = 1, .flow = i < 2 ? 0 : i < 16 ? 1 : 2};
    v[29] = (struct sched_grant){.flow = 2, .waits = true};
    sched_pass_done(&s, 1, 1250);
    sched_pass_done(&s, 20, 20 * 1250); // 20 rows in 25 ms
    assert_int_equal(sched_grant_rows(&s, v, 30, true), 20);
    uint32_t n_rows[3] = {0};
    for (uint32_t i = 0; i < 30; i++)
        n_rows[v[i].flow] += v[i].rows;
    assert_true(n_rows[0] == 2 && n_rows[1] == 9 && n_rows[2] == 9);
}

static void an_idle_sequence_gets_no_rows(void **state)
{
    (void)state;
    struct sched s = of(64, 512);
    struct sched_grant v[] = {{.todo = 0, .draft = 3}, {.todo = 1}};
    assert_int_equal(sched_grant_rows(&s, v, 2, false), 1);
    assert_int_equal(v[0].rows + v[0].draft_rows, 0);
    assert_int_equal(sched_grant_rows(&s, v, 1, false), 0);
    assert_int_equal(sched_grant_rows(&s, v, 0, false), 0);
}

static void each_pass_size_has_its_own_time(void **state)
{
    (void)state;
    struct sched s = of(512, 512);
    sched_pass_done(&s, 1, 50000); // a large model: the weights' way from memory
    struct sched_grant v[] = {{.todo = 1}, {.todo = 2000}};
    assert_int_equal(sched_grant_rows(&s, v, 2, false), 1 + SCHED_MIN_CHUNK);
    sched_pass_done(&s, 17, 68000); // 4 ms a row here, so 25 in 100 ms
    assert_int_equal(sched_grant_rows(&s, v, 2, false), 25);
    sched_pass_done(&s, 1, 50000); // rounds without prompts say nothing about it
    assert_int_equal(sched_grant_rows(&s, v, 2, false), 25);
}

static void a_slower_pass_size_is_learnt_soon(void **state)
{
    (void)state;
    struct sched s = of(64, 512);
    sched_pass_done(&s, 10, 1000);
    assert_true(s.row_us[3] == 100);
    sched_pass_done(&s, 10, 3000);
    assert_true(s.row_us[3] == 200);
    sched_pass_done(&s, 10, 1000);
    assert_true(s.row_us[3] == 175);
}

static void passes_of_2_to_the_i_rows_begin_a_size(void **state)
{
    (void)state;
    struct sched s = of(512, 512);
    for (unsigned i = 0; i < SCHED_SIZES; i++) {
        s = of(512, 512);
        sched_pass_done(&s, 1u << i, 1 << i);
        sched_pass_done(&s, (2u << i) - 1, 3 * ((2 << i) - 1)); // its last one
        for (unsigned k = 0; k < SCHED_SIZES; k++)
            assert_true(s.row_us[k] == (k == i ? 2 : 0));
    }
    s = of(512, 512);
    sched_pass_done(&s, 1u << 20, 1 << 20); // larger ones are of the last size
    assert_true(s.row_us[SCHED_SIZES - 1] == 1);
}

/* Rows of a prompt of 5000 beside n decoding sequences. */
static uint32_t prompt_beside(struct sched *s, uint32_t n_decoding)
{
    struct sched_grant v[20];
    v[0] = (struct sched_grant){.todo = 5000};
    for (uint32_t i = 1; i <= n_decoding; i++)
        v[i] = (struct sched_grant){.todo = 1};
    uint32_t sum = sched_grant_rows(s, v, n_decoding + 1, false);
    assert_int_equal(sum, v[0].rows + n_decoding);
    return v[0].rows;
}

static void the_first_pass_takes_four_least_chunks(void **state)
{
    (void)state;
    struct sched s = of(512, 512);
    assert_int_equal(prompt_beside(&s, 0), 64);
    assert_int_equal(prompt_beside(&s, 5), 64);
    sched_pass_done(&s, 300, 1); // only a larger pass was timed, which was fast
    assert_int_equal(prompt_beside(&s, 5), 507);
}

/* 7 decoding rows take 20 ms each, alone: 140 ms, so a pass may take 280 ms. */
static void a_pass_may_take_twice_as_long_as_without_the_prompt(void **state)
{
    (void)state;
    struct sched s = of(512, 512);
    sched_pass_done(&s, 7, 140000);
    sched_pass_done(&s, 64, 64 * 1000); // 1 ms
    sched_pass_done(&s, 256, 256 * 1000);
    assert_int_equal(prompt_beside(&s, 7), 280 - 7);
    s = of(512, 512); // 2 ms each: the 100 ms hold
    sched_pass_done(&s, 7, 14000);
    sched_pass_done(&s, 64, 64 * 1000);
    assert_int_equal(prompt_beside(&s, 7), 100 - 7);
}

/* A pass of 64 rows is affordable, one of 128 is not: the most of its size, 127. */
static void a_pass_stays_within_its_size(void **state)
{
    (void)state;
    struct sched s = of(512, 512);
    sched_pass_done(&s, 1, 1);
    sched_pass_done(&s, 64, 64 * 10);
    sched_pass_done(&s, 128, 128 * 2000);
    assert_int_equal(prompt_beside(&s, 1), 127 - 1);
    s.row_us[7] = 100000. / 128; // exactly 128 rows are affordable
    s.row_us[8] = 1000;
    assert_int_equal(prompt_beside(&s, 1), 128 - 1);
    s.row_us[7] = 100000. / 127;
    assert_int_equal(prompt_beside(&s, 1), 127 - 1);
}

static void prompts_share_what_is_left_in_order(void **state)
{
    (void)state;
    struct sched s = of(100, 40);
    sched_pass_done(&s, 64, 64);
    struct sched_grant v[] = {{.todo = 1, .draft = 9}, {.todo = 35}, {.todo = 60}, {.todo = 60}};
    assert_int_equal(sched_grant_rows(&s, v, 4, false), 100);
    assert_true(v[0].rows == 1 && v[0].draft_rows == 9);
    assert_true(v[1].rows == 35 && v[2].rows == 40 && v[3].rows == 15);
    assert_true(v[1].draft_rows == 0 && v[3].draft_rows == 0);
}

static void drafts_leave_a_quarter_of_the_rows_to_prompts(void **state)
{
    (void)state;
    struct sched s = of(100, 512);
    assert_int_equal(draft_rows(&s, 10, 10, 0), 90);
    assert_int_equal(draft_rows(&s, 10, 10, 1), 90 / 4 * 3);
    assert_int_equal(draft_rows(&s, 100, 100, 0), 0);
    assert_int_equal(draft_rows(&s, 101, 101, 0), 0);
    assert_int_equal(draft_rows(&s, 30, 2, 0), 70); // each of 30 may want logits
}

/* 1 ms a row: 100 in 100 ms, and 25 decoding rows may take 50 ms at least. */
static void drafts_keep_a_shared_pass_short(void **state)
{
    (void)state;
    struct sched s = of(512, 512);
    sched_pass_done(&s, 1, 1000);
    struct sched_load l = {.n = 25, .n_decoding = 25, .shared = true};
    assert_int_equal(sched_draft_rows(&s, &l), 100 - 25);
    l.n_prompts = 1;
    assert_int_equal(sched_draft_rows(&s, &l), (100 - 25) / 4 * 3);
    l.shared = false;
    assert_int_equal(sched_draft_rows(&s, &l), (512 - 25) / 4 * 3);
    l = (struct sched_load){.n = 90, .n_decoding = 90, .shared = true};
    assert_int_equal(sched_draft_rows(&s, &l), 90); // twice as long as without drafts
    l = (struct sched_load){.n = 600, .n_decoding = 600, .shared = true};
    assert_int_equal(sched_draft_rows(&s, &l), 0);
    l = (struct sched_load){.n = 1, .n_decoding = 0, .n_prompts = 1, .shared = true};
    assert_int_equal(sched_draft_rows(&s, &l), 500 / 4 * 3); // of half a second

    struct sched_grant v[25];
    for (int i = 0; i < 25; i++)
        v[i] = (struct sched_grant){.todo = 1, .draft = 20};
    assert_int_equal(sched_grant_rows(&s, v, 25, true), 100);
    assert_int_equal(v[0].draft_rows, 3);
    assert_int_equal(v[24].draft_rows, 3);
    assert_int_equal(sched_grant_rows(&s, v, 25, false), 512);
    v[24] = (struct sched_grant){.todo = 500}; // the prompt gets a quarter of what 24 rows leave
    assert_int_equal(sched_grant_rows(&s, v, 25, true), 100);
    assert_int_equal(v[24].rows, 76 / 4);
}

/* More sequences than rows: the first ones decode. */
/* Passes until extra rows are granted again. Each of them has `rows` rows and takes us. */
static unsigned passes_without_extra(struct sched *s, struct sched_grant *v, uint32_t n,
                                     uint32_t rows, int64_t us)
{
    unsigned n_passes = 0;
    while (sched_grant_rows(s, v, n, true) == rows && n_passes < 1000) {
        sched_pass_done(s, rows, us);
        n_passes++;
    }
    return n_passes;
}

/* 1 ms a row: 2 rows decode, and 98 of the prompt take 98 ms. */
static void prompts_take_half_of_the_time_of_other_flows(void **state)
{
    (void)state;
    struct sched s = of(512, 512);
    sched_pass_done(&s, 2, 2000);
    sched_pass_done(&s, 100, 100000);
    struct sched_grant v[] = {{.todo = 1}, {.todo = 2000}, {.todo = 1}};
    for (unsigned turn = 0; turn < 3; turn++) {
        assert_int_equal(sched_grant_rows(&s, v, 3, true), 100);
        sched_pass_done(&s, 100, 100000);
        assert_int_equal(passes_without_extra(&s, v, 3, 2, 2000), 98 / 2);
        assert_true(v[1].rows > 0);
    }
    for (unsigned i = 0; i < 3; i++) { // one flow may do what it wants
        assert_int_equal(sched_grant_rows(&s, v, 3, false), 100);
        sched_pass_done(&s, 100, 100000);
    }
    assert_int_equal(sched_grant_rows(&s, v, 3, true), 100);
}

/* Nothing is owed to flows that do not decode. */
static void prompts_share_passes_with_prompts(void **state)
{
    (void)state;
    struct sched s = of(512, 512);
    sched_pass_done(&s, 512, 51200);
    struct sched_grant v[] = {{.todo = 2000}, {.todo = 2000}};
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(sched_grant_rows(&s, v, 2, true), 512);
        sched_pass_done(&s, 512, 51200);
    }
    v[0].todo = 1;
    assert_true(sched_grant_rows(&s, v, 2, true) > 1);
}

/* A sequence that waits for its draft decodes, too: a pass of a prompt alone is short then. */
static void prompts_take_half_of_the_time_of_a_sequence_that_waits(void **state)
{
    (void)state;
    struct sched s = of(512, 512);
    sched_pass_done(&s, 1, 1000);
    sched_pass_done(&s, 100, 100000);
    sched_pass_done(&s, 16, 16000);
    struct sched_grant v[] = {{.todo = 0, .waits = true}, {.todo = 2000}};
    assert_int_equal(sched_grant_rows(&s, v, 2, false), 100); // not of half a second
    sched_pass_done(&s, 100, 100000);
    assert_int_equal(sched_grant_rows(&s, v, 2, true), 100);
    sched_pass_done(&s, 100, 100000);
    for (unsigned i = 0; i < 30; i++) { // the gaps are used, and change nothing
        assert_int_equal(sched_grant_rows(&s, v, 2, true), SCHED_MIN_CHUNK);
        sched_pass_done(&s, 16, 16000);
    }
    v[0] = (struct sched_grant){.todo = 1};
    assert_int_equal(passes_without_extra(&s, v, 2, 1, 1000), 100);
}

static void drafts_of_clients_take_half_of_the_time_of_other_flows(void **state)
{
    (void)state;
    struct sched s = of(512, 512);
    sched_pass_done(&s, 2, 2000);
    sched_pass_done(&s, 6, 6000);
    sched_pass_done(&s, 66, 66000);
    struct sched_grant v[] = {{.todo = 1, .draft = 4}, {.todo = 1, .draft = 64, .own_draft = true}};
    assert_int_equal(sched_grant_rows(&s, v, 2, true), 70);
    sched_pass_done(&s, 70, 70000);
    assert_int_equal(passes_without_extra(&s, v, 2, 6, 6000), 11); // 64 ms of 6 ms each
    assert_int_equal(v[1].draft_rows, 64);
    sched_pass_done(&s, 70, 70000);
    assert_int_equal(sched_grant_rows(&s, v, 2, true), 6);
    assert_int_equal(v[0].draft_rows, 4); // the controller's draft continues
    assert_int_equal(sched_grant_rows(&s, v, 2, false), 70);
}

static void prompts_of_a_flow_leave_rows_to_others(void **state)
{
    (void)state;
    struct sched s = of(64, 512);
    struct sched_grant v[12] = {{0}};
    for (int i = 0; i < 10; i++)
        v[i] = (struct sched_grant){.todo = 900, .flow = 5};
    v[10] = (struct sched_grant){.todo = 5, .flow = 2};
    v[11] = (struct sched_grant){.todo = 900, .flow = 3};
    assert_int_equal(sched_grant_rows(&s, v, 12, true), 64);
    assert_int_equal(v[0].rows, 32 + 11); // the first half, and a third of the other
    assert_int_equal(v[10].rows, 5);
    assert_int_equal(v[11].rows, 16); // and what flow 2 does not need
    for (int i = 1; i < 10; i++)
        assert_int_equal(v[i].rows, 0);
    v[11] = v[10] = (struct sched_grant){.todo = 5, .flow = 2}; // none needs its part
    assert_int_equal(sched_grant_rows(&s, v, 12, true), 64);
    assert_true(v[0].rows == 54 && v[10].rows == 5 && v[11].rows == 5);
}

static void whole_drafts_miss_passes_and_are_not_cut(void **state)
{
    (void)state;
    struct sched s = of(512, 512);
    sched_pass_done(&s, 1, 1000);
    sched_pass_done(&s, 66, 66000);
    struct sched_grant v[] = {{.todo = 1},
                              {.todo = 1, .draft = 64, .own_draft = true, .whole_draft = true},
                              {.todo = 900}};
    assert_int_equal(sched_grant_rows(&s, v, 2, true), 66);
    sched_pass_done(&s, 66, 66000);
    for (int i = 0; i < 64; i++) { // as long as the draft took
        assert_int_equal(sched_grant_rows(&s, v, 2, true), 1);
        assert_true(v[0].rows == 1 && v[1].rows == 0 && v[1].draft_rows == 0);
        sched_pass_done(&s, 1, 1000);
    }
    assert_int_equal(sched_grant_rows(&s, v, 2, true), 66);
    sched_pass_done(&s, 66, 66000);
    v[1].draft = 0; // it has none now
    assert_int_equal(sched_grant_rows(&s, v, 2, true), 2);
}

/* Nobody decodes without one. */
static void whole_drafts_of_several_flows_miss_no_pass(void **state)
{
    (void)state;
    struct sched s = of(512, 512);
    sched_pass_done(&s, 1, 1000);
    sched_pass_done(&s, 40, 40000);
    struct sched_grant v[] = {{.todo = 1, .draft = 16, .own_draft = true, .whole_draft = true},
                              {.todo = 1, .draft = 16, .own_draft = true, .whole_draft = true},
                              {.todo = 900}};
    for (int i = 0; i < 9; i++) {
        assert_true(sched_grant_rows(&s, v, 3, true) > 34);
        assert_true(v[0].draft_rows == 16 && v[1].draft_rows == 16 && v[2].rows > 0);
        sched_pass_done(&s, 40, 40000);
    }
    v[2] = (struct sched_grant){.waits = true}; // it decodes, too
    assert_int_equal(sched_grant_rows(&s, v, 3, true), 34);
    sched_pass_done(&s, 34, 34000);
    assert_int_equal(sched_grant_rows(&s, v, 3, true), 2 + SCHED_MIN_CHUNK); // fills the gap
    assert_true(v[0].draft_rows == SCHED_MIN_CHUNK / 2 && v[1].draft_rows == SCHED_MIN_CHUNK / 2);
}

/* Else a flow of such drafts could take all gaps from the prompts of a third one. */
static void a_prompt_has_rows_in_the_gaps_beside_whole_drafts(void **state)
{
    (void)state;
    struct sched s = of(512, 512);
    sched_pass_done(&s, 1, 1000);
    struct sched_grant v[] = {{.todo = 1, .draft = 16, .own_draft = true, .whole_draft = true},
                              {.waits = true},
                              {.todo = 900}};
    assert_true(sched_grant_rows(&s, v, 3, true) > 17);
    sched_pass_done(&s, 40, 40000);
    assert_int_equal(sched_grant_rows(&s, v, 3, true), 1 + 2 * SCHED_MIN_CHUNK);
    assert_true(v[0].draft_rows == SCHED_MIN_CHUNK && v[2].rows == SCHED_MIN_CHUNK);
}

static void the_rows_of_a_pass_are_a_limit(void **state)
{
    (void)state;
    struct sched s = of(3, 512);
    struct sched_grant v[5];
    for (int i = 0; i < 5; i++)
        v[i] = (struct sched_grant){.todo = 1, .draft = 2};
    assert_int_equal(sched_grant_rows(&s, v, 5, false), 3);
    for (int i = 0; i < 5; i++)
        assert_true(v[i].rows == (i < 3) && v[i].draft_rows == 0);
}

static void a_request_that_never_waited_is_not_counted_as_passed(void **state)
{
    (void)state;
    struct sched_wait w[] = {needs(0, 50, 1), needs(1, 2, 1), needs(2, 2, 1)};
    w[0].skip = true;
    assert_int_equal(sched_admit(w, 3, 10, 10, SECOND), 1);
    assert_int_equal(passed[0].n, 0);
    w[0].skip = false;
    assert_int_equal(sched_admit(w, 3, 10, 10, SECOND), 1);
    assert_true(passed[0].since_us == SECOND && passed[0].n == 1);
    assert_int_equal(passed[1].n, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arrival_is_the_order),
        cmocka_unit_test(blocks_and_seats_both_count),
        cmocka_unit_test(eight_smaller_ones_may_pass_the_head),
        cmocka_unit_test(no_request_passes_after_two_seconds),
        cmocka_unit_test(a_skipped_request_does_not_block_others),
        cmocka_unit_test(the_heads_count_continues_while_it_is_skipped),
        cmocka_unit_test(the_heads_time_continues_while_it_is_skipped),
        cmocka_unit_test(every_decoding_sequence_has_a_row),
        cmocka_unit_test(drafts_get_equal_parts_of_the_remaining_rows),
        cmocka_unit_test(drafts_keep_within_the_rows_with_logits),
        cmocka_unit_test(a_prompt_alone_takes_the_pass),
        cmocka_unit_test(a_slow_model_takes_prompts_in_smaller_pieces),
        cmocka_unit_test(a_prompt_beside_others_keeps_the_pass_short),
        cmocka_unit_test(prompts_proceed_beside_many_drafts),
        cmocka_unit_test(a_flow_of_many_does_not_make_passes_long),
        cmocka_unit_test(sequences_that_come_and_go_take_turns),
        cmocka_unit_test(flows_without_a_row_keep_passes_short_too),
        cmocka_unit_test(prompts_say_nothing_about_rows_that_decode),
        cmocka_unit_test(a_slow_pass_is_forgotten),
        cmocka_unit_test(times_between_sizes_are_interpolated),
        cmocka_unit_test(sequences_of_a_large_model_run_together),
        cmocka_unit_test(flows_have_equal_parts_of_a_short_pass),
        cmocka_unit_test(an_idle_sequence_gets_no_rows),
        cmocka_unit_test(each_pass_size_has_its_own_time),
        cmocka_unit_test(a_slower_pass_size_is_learnt_soon),
        cmocka_unit_test(passes_of_2_to_the_i_rows_begin_a_size),
        cmocka_unit_test(the_first_pass_takes_four_least_chunks),
        cmocka_unit_test(a_pass_may_take_twice_as_long_as_without_the_prompt),
        cmocka_unit_test(a_pass_stays_within_its_size),
        cmocka_unit_test(prompts_share_what_is_left_in_order),
        cmocka_unit_test(drafts_leave_a_quarter_of_the_rows_to_prompts),
        cmocka_unit_test(drafts_keep_a_shared_pass_short),
        cmocka_unit_test(prompts_take_half_of_the_time_of_other_flows),
        cmocka_unit_test(prompts_take_half_of_the_time_of_a_sequence_that_waits),
        cmocka_unit_test(prompts_share_passes_with_prompts),
        cmocka_unit_test(drafts_of_clients_take_half_of_the_time_of_other_flows),
        cmocka_unit_test(prompts_of_a_flow_leave_rows_to_others),
        cmocka_unit_test(whole_drafts_miss_passes_and_are_not_cut),
        cmocka_unit_test(whole_drafts_of_several_flows_miss_no_pass),
        cmocka_unit_test(a_prompt_has_rows_in_the_gaps_beside_whole_drafts),
        cmocka_unit_test(the_rows_of_a_pass_are_a_limit),
        cmocka_unit_test(a_request_that_never_waited_is_not_counted_as_passed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
