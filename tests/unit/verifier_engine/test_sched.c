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
    assert_int_equal(sched_grant_rows(&s, v, 16), 16);
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
    assert_int_equal(sched_grant_rows(&s, v, 3), 16);
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
    assert_int_equal(sched_grant_rows(&s, v, 2), 10);
    assert_int_equal(sched_draft_rows(&s, 2, 2, 0), 8); // known before there are drafts
    assert_int_equal(sched_draft_rows(&s, 20, 2, 0), 0);
}

static void a_prompt_alone_takes_the_pass(void **state)
{
    (void)state;
    struct sched s = of(512, 512);
    sched_pass_done(&s, 100, 10000); // 100 us a row: 5000 rows in 500 ms
    struct sched_grant v[] = {{.todo = 2000}};
    assert_int_equal(sched_grant_rows(&s, v, 1), 512);
    s = of(512, 64);
    sched_pass_done(&s, 100, 10000);
    assert_int_equal(sched_grant_rows(&s, v, 1), 64);
}

static void a_slow_model_takes_prompts_in_smaller_pieces(void **state)
{
    (void)state;
    struct sched s = of(512, 512);
    sched_pass_done(&s, 10, 100000); // 10 ms a row
    struct sched_grant v[] = {{.todo = 2000}};
    assert_int_equal(sched_grant_rows(&s, v, 1), 50); // 500 ms
    s = of(512, 512);
    sched_pass_done(&s, 1, SECOND); // a second per row: it still proceeds
    assert_int_equal(sched_grant_rows(&s, v, 1), SCHED_MIN_CHUNK);
}

static void a_prompt_beside_others_keeps_the_pass_short(void **state)
{
    (void)state;
    struct sched s = of(512, 512);
    sched_pass_done(&s, 1, 1000); // 1 ms a row: 100 rows in 100 ms
    struct sched_grant v[] = {{.todo = 1}, {.todo = 2000}, {.todo = 1}};
    assert_int_equal(sched_grant_rows(&s, v, 3), 100);
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
    assert_int_equal(sched_grant_rows(&s, v, 9), 64);
    assert_true(v[8].rows >= 14);
}

static void an_idle_sequence_gets_no_rows(void **state)
{
    (void)state;
    struct sched s = of(64, 512);
    struct sched_grant v[] = {{.todo = 0, .draft = 3}, {.todo = 1}};
    assert_int_equal(sched_grant_rows(&s, v, 2), 1);
    assert_int_equal(v[0].rows + v[0].draft_rows, 0);
    assert_int_equal(sched_grant_rows(&s, v, 1), 0);
    assert_int_equal(sched_grant_rows(&s, v, 0), 0);
}

static void each_pass_size_has_its_own_time(void **state)
{
    (void)state;
    struct sched s = of(512, 512);
    sched_pass_done(&s, 1, 50000); // a large model: the weights' way from memory
    struct sched_grant v[] = {{.todo = 1}, {.todo = 2000}};
    assert_int_equal(sched_grant_rows(&s, v, 2), 1 + SCHED_MIN_CHUNK);
    sched_pass_done(&s, 17, 68000); // 4 ms a row here, so 25 in 100 ms
    assert_int_equal(sched_grant_rows(&s, v, 2), 25);
    sched_pass_done(&s, 1, 50000); // rounds without prompts say nothing about it
    assert_int_equal(sched_grant_rows(&s, v, 2), 25);
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
        cmocka_unit_test(an_idle_sequence_gets_no_rows),
        cmocka_unit_test(each_pass_size_has_its_own_time),
        cmocka_unit_test(a_slower_pass_size_is_learnt_soon),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
