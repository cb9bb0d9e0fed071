/* test_draft_passes.c - how many passes the draft model runs, with how many rows, and when it
 * stops. A row of a pass takes a time that the test sets. */
#include <stdlib.h>
#include <string.h>
#include "lib/fakes/failing.h"
#include "lib/lib.h"
#include "lib/rigs/draft_rig.h"
#include "lib/rigs/manager.h"
#include "model/forward.h"

/* ---- time, and the passes ---- */

static int64_t now_us = 1000000, row_us = 10;
static int64_t step_us;  // from one reading of the clock to the next
static unsigned n_reads; // of the clock
static struct {
    uint32_t n_rows, n_logits;
} passes[400];
static uint32_t n_passes;

int64_t __wrap_clock_us(void);
int64_t __wrap_clock_us(void)
{
    n_reads++;
    return now_us += step_us;
}

void __real_forward_run(struct forward *f, const struct pass_plan *plan);
void __wrap_forward_run(struct forward *f, const struct pass_plan *plan);
void __wrap_forward_run(struct forward *f, const struct pass_plan *plan)
{
    assert_true(n_passes < ARRAY_LEN(passes));
    passes[n_passes].n_rows = plan->n_rows;
    passes[n_passes].n_logits = 0;
    for (uint32_t i = 0; i < plan->n_rows; i++)
        passes[n_passes].n_logits += plan->rows[i].wants_logits;
    n_passes++;
    __real_forward_run(f, plan);
    now_us += row_us * plan->n_rows;
}

/* The passes since the last call have these numbers of rows. */
static void must_have_rows(const uint32_t *rows, uint32_t n)
{
    for (uint32_t i = 0; i < n_passes && i < n; i++)
        if (passes[i].n_rows != rows[i])
            fail_msg("pass %u has %u rows, not %u", i, passes[i].n_rows, rows[i]);
    assert_int_equal(n_passes, n);
    n_passes = 0;
}

#define MUST_HAVE_ROWS(...)                                                                        \
    must_have_rows((const uint32_t[]){__VA_ARGS__}, sizeof((const uint32_t[]){__VA_ARGS__}) / 4)

static int start(void **state)
{
    prop_defaults(state);
    draft_rig_open();
    struct prop_seq s = draft_rig_story(4); // the first one makes the text
    prop_seq_done(&s);
    n_passes = 0;
    row_us = 10;
    return 0;
}

static int stop(void **state)
{
    (void)state;
    draft_rig_close();
    return 0;
}

/* One call of draft() with one ask. */
static void draft_once(struct prop_ask *ask)
{
    prop_draft_model.draft(draft_rig_shared, (struct prop_ask *[]){ask}, 1);
}

static uint32_t n_work(void)
{
    uint32_t n = 0;
    while (prop_draft_model.work(draft_rig_shared))
        n++;
    return n;
}

/* ---- reading a context ---- */

static void up_to_eight_missing_rows_run_with_the_draft(void **state)
{
    (void)state;
    for (uint32_t n = 7; n <= 9; n++) {
        struct prop_seq s = draft_rig_story_of(n == 9 ? "another" : "tenant", n);
        struct draft d;
        struct prop_ask ask = draft_rig_ask(&s, 2, &d);
        draft_once(&ask);
        assert_int_equal(ask.done, n <= 8);
        assert_int_equal(ask.unread, n <= 8 ? 0 : 9);
        if (n <= 8)
            MUST_HAVE_ROWS(n, 1);
        else
            MUST_HAVE_ROWS();
        prop_seq_done(&s);
    }
}

/* The first chunk has 16 rows. Then a chunk takes 3 ms, with 16 to 256 rows. */
static void a_chunk_of_context_takes_three_milliseconds(void **state)
{
    (void)state;
    struct prop_seq s = draft_rig_story(900);
    struct draft d;
    struct prop_ask ask = draft_rig_ask(&s, 1, &d);
    draft_once(&ask);
    assert_int_equal(ask.unread, 900);
    row_us = 100;
    assert_true(prop_draft_model.work(draft_rig_shared));
    assert_true(prop_draft_model.work(draft_rig_shared));
    row_us = 200; // the mean becomes 125 us
    assert_true(prop_draft_model.work(draft_rig_shared));
    assert_true(prop_draft_model.work(draft_rig_shared));
    MUST_HAVE_ROWS(16, 30, 30, 24);
    row_us = 2000; // the mean becomes more than 187.5 us
    assert_true(prop_draft_model.work(draft_rig_shared));
    assert_true(prop_draft_model.work(draft_rig_shared));
    assert_true(prop_draft_model.work(draft_rig_shared));
    MUST_HAVE_ROWS(20, 16, 16); // 143.75, 607.8, ... us
    draft_once(&ask);
    assert_int_equal(ask.unread, 900 - 152);
    prop_seq_done(&s);
}

static void a_chunk_has_at_most_256_rows_and_leaves_the_last_one(void **state)
{
    (void)state;
    struct prop_seq s = draft_rig_story(800);
    struct draft d;
    struct prop_ask ask = draft_rig_ask(&s, 3, &d);
    draft_once(&ask);
    row_us = 1;
    assert_int_equal(n_work(), 6); // five chunks, and the end
    MUST_HAVE_ROWS(16, 256, 256, 256, 15);
    draft_once(&ask);
    assert_true(ask.done && !ask.unread);
    assert_int_equal(d.n, 3);
    MUST_HAVE_ROWS(1, 1, 1);
    assert_int_equal(n_work(), 0);
    prop_seq_done(&s);
}

/* Rows that are missing after a chunk may run with the draft. */
static void the_reading_ends_eight_rows_before_the_end(void **state)
{
    (void)state;
    for (uint32_t left = 8; left <= 9; left++) {
        draft_rig_close();
        draft_rig_open(); // the first chunk has 16 rows
        struct prop_seq s = draft_rig_story(16 + left);
        struct draft d;
        struct prop_ask ask = draft_rig_ask(&s, 1, &d);
        draft_once(&ask);
        assert_int_equal(n_work(), left == 8 ? 2 : 3);
        draft_once(&ask);
        assert_true(ask.done);
        if (left == 8)
            MUST_HAVE_ROWS(16, 8);
        else
            MUST_HAVE_ROWS(16, 8, 1);
        prop_seq_done(&s);
    }
}

/* An ask waits if the reading, with that of sequences before it, takes at most half of its time. */
static void an_ask_waits_for_half_of_its_time(void **state)
{
    (void)state;
    struct prop_seq a = draft_rig_story_of("a", 116), b = draft_rig_story_of("b", 50);
    struct draft d;
    struct prop_ask first = draft_rig_ask(&a, 1, &d), second = draft_rig_ask(&b, 1, &d);
    row_us = 100;
    draft_once(&first);
    assert_true(prop_draft_model.work(draft_rig_shared)); // 16 rows
    static const struct {
        int64_t time_us;
        bool waits;
    } firsts[] = {{20000, true}, {19999, true}, {19998, false}, {1, false}},
      seconds[] = {{30000, true}, {29998, false}, {1, false}};
    for (size_t i = 0; i < ARRAY_LEN(firsts); i++) {
        first.done = false;
        first.until_us = now_us + firsts[i].time_us;
        draft_once(&first);
        if (i == 1)
            continue; // 9999.5 us are rounded down
        assert_int_equal(first.done, !firsts[i].waits);
        assert_int_equal(first.unread, 100);
    }
    for (size_t i = 0; i < ARRAY_LEN(seconds); i++) {
        second.done = false;
        second.until_us = now_us + seconds[i].time_us;
        draft_once(&second);
        assert_int_equal(second.done, !seconds[i].waits);
        assert_int_equal(second.unread, 50);
    }
    prop_seq_done(&a);
    second.done = false;
    second.until_us = now_us + 10000; // the first one is no longer read
    draft_once(&second);
    assert_false(second.done);
    prop_seq_done(&b);
    assert_int_equal(n_work(), 0);
}

/* ---- the time of a draft ---- */

static void a_draft_stops_before_a_pass_that_would_be_late(void **state)
{
    (void)state;
    static const struct {
        int64_t time_us;
        uint32_t n;
    } cases[] = {{0, 0}, {1, 1}, {159, 1}, {160, 5}};
    char tenant[2] = "a";
    for (size_t i = 0; i < ARRAY_LEN(cases); i++, tenant[0]++) {
        struct prop_seq s = draft_rig_story_of(tenant, 8);
        struct draft d;
        struct prop_ask ask = draft_rig_ask(&s, 5, &d);
        ask.until_us = now_us + cases[i].time_us;
        draft_once(&ask); // a pass of 8 rows, then of one row each
        assert_true(ask.done);
        assert_int_equal(d.n, cases[i].n);
        prop_seq_done(&s);
    }
    n_passes = 0;
    struct prop_seq s = draft_rig_story_of("z", 8);
    struct draft d;
    struct prop_ask ask = draft_rig_ask(&s, 20, &d);
    ask.until_us = now_us + 80 + 3 * 10 + 5; // after three more passes none fits
    ask.until_us += 75;                      // the second pass was expected to take 80 us
    draft_once(&ask);
    assert_in_range(d.n, 5, 20);
    prop_seq_done(&s);
}

/* ---- drafts ahead ---- */

static int64_t last_pass_us; // of the last pass before an ask for a draft ahead

/* An ask whose last n_verifying of n tokens are being verified. All rows before are known. */
static struct prop_ask ahead_ask(struct prop_seq *s, uint32_t n, uint32_t n_verifying, uint32_t k,
                                 struct draft *to)
{
    *s = draft_rig_story(n - n_verifying);
    uint32_t last[64];
    prop_seq_draft(s, 1);
    for (uint32_t i = 0; i < n_verifying; i++)
        last[i] = 300 + i;
    prop_seq_update(s, s->n, last, n_verifying);
    struct prop_ask ask = draft_rig_ask(s, k, to);
    draft_rig_verify_last(&ask, n_verifying);
    last_pass_us = row_us * passes[n_passes - 1].n_rows;
    n_passes = 0;
    return ask;
}

static void a_draft_ahead_needs_time_for_a_pass(void **state)
{
    (void)state;
    for (int64_t missing_us = 0; missing_us <= 1; missing_us++) {
        struct prop_seq s;
        struct draft d;
        struct prop_ask ask = ahead_ask(&s, 40, 2, 2, &d);
        ask.until_us = now_us + last_pass_us - missing_us;
        draft_once(&ask);
        assert_true(ask.done);
        assert_int_equal(d.n > 0, !missing_us);
        if (!missing_us)
            MUST_HAVE_ROWS(3); // the last committed token, and the two
        else
            MUST_HAVE_ROWS();
        prop_seq_done(&s);
    }
}

static void a_draft_ahead_ends_before_a_pass_that_would_be_late(void **state)
{
    (void)state;
    struct prop_seq s;
    struct draft d;
    struct prop_ask ask = ahead_ask(&s, 40, 2, 4, &d);
    uint32_t n_branches;
    ask.until_us = now_us + 1000000;
    draft_once(&ask);
    assert_false(ask.done);
    n_branches = d.n;
    ask.until_us = now_us + 10 * n_branches + 10 * n_branches; // this pass, and one more
    draft_once(&ask);
    assert_false(ask.done);
    assert_int_equal(d.n, 2 * n_branches);
    ask.until_us = now_us + 10 * n_branches + 10 * n_branches - 1;
    draft_once(&ask);
    assert_true(ask.done);
    assert_int_equal(d.n, 3 * n_branches);
    MUST_HAVE_ROWS(3, n_branches, n_branches);
    prop_seq_done(&s);
}

static void a_draft_ahead_has_limits(void **state)
{
    (void)state;
    static const struct {
        uint32_t n, n_verifying, k;
        bool drafts;
    } cases[] = {{40, 31, 1, true},
                 {40, 32, 1, false}, // rows with logits of a pass
                 {100, 2, 27, true},
                 {100, 2, 28, false}}; // the context of 128 tokens
    draft_rig_close();
    prop_draft_model_settings.context = 128;
    draft_rig_open();
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct prop_seq s;
        struct draft d;
        struct prop_ask ask = ahead_ask(&s, cases[i].n, cases[i].n_verifying, cases[i].k, &d);
        draft_once(&ask);
        assert_int_equal(n_passes, cases[i].drafts);
        assert_int_equal(d.n > 0, cases[i].drafts);
        assert_true(d.tree);
        prop_seq_done(&s);
    }
    struct prop_seq s = draft_rig_story(8);
    struct draft d;
    struct prop_ask ask = draft_rig_ask(&s, 2, &d);
    draft_rig_verify_last(&ask, 8); // no token is committed
    draft_once(&ask);
    assert_true(ask.done && !d.n);
    prop_seq_done(&s);
}

static void at_most_eight_rows_may_be_missing_for_a_draft_ahead(void **state)
{
    (void)state;
    for (uint32_t more = 7; more <= 8; more++) { // after the last one, whose row is never kept
        struct prop_seq s = draft_rig_story(40);
        struct draft d;
        uint32_t tokens[10];
        prop_seq_draft(&s, 1); // 40 rows
        for (uint32_t i = 0; i < 10; i++)
            tokens[i] = 300 + i;
        prop_seq_update(&s, 40, tokens, more + 1 + 1);
        struct prop_ask ask = draft_rig_ask(&s, 2, &d);
        draft_rig_verify_last(&ask, 1);
        n_passes = 0;
        draft_once(&ask);
        assert_int_equal(d.n > 0, more == 7);
        if (more == 7)
            assert_int_equal(passes[0].n_rows, 9);
        prop_seq_done(&s);
    }
}

/* Asks with four tokens that are being verified, each with five rows in its first pass. */
static void begin_many(uint32_t n, uint32_t n_branches, const uint32_t *rows, uint32_t n_rows)
{
    enum { MAX = 34, VERIFYING = 4, K = 2 };
    struct prop_seq s[MAX];
    struct draft drafts[MAX];
    struct prop_ask asks[MAX], *open[MAX];
    for (uint32_t i = 0; i < n; i++) {
        asks[i] = ahead_ask(&s[i], 40 + VERIFYING, VERIFYING, K, &drafts[i]);
        asks[i].sampling.params.temperature = 0;
        open[i] = &asks[i];
    }
    n_passes = 0;
    for (uint32_t n_open = n; n_open;) {
        prop_draft_model.draft(draft_rig_shared, open, n);
        n_open = 0;
        for (uint32_t i = 0; i < n; i++)
            n_open += !asks[i].done;
    }
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(drafts[i].n, n_branches * K);
        prop_seq_done(&s[i]);
    }
    for (uint32_t i = 0; i < n_passes; i++)
        assert_true(passes[i].n_logits <= 32);
    must_have_rows(rows, n_rows);
}

static void a_pass_has_at_most_32_rows_with_logits(void **state)
{
    (void)state;
    begin_many(1, 6, (const uint32_t[]){5, 6}, 2);
    begin_many(5, 6, (const uint32_t[]){25, 30}, 2);
    begin_many(6, 5, (const uint32_t[]){30, 30}, 2);
    begin_many(7, 4, (const uint32_t[]){30, 5, 28}, 3);
    begin_many(16, 2, (const uint32_t[]){30, 30, 20, 32}, 4);
    begin_many(17, 1, (const uint32_t[]){30, 30, 25, 17}, 4);
    begin_many(33, 1, (const uint32_t[]){30, 30, 30, 30, 30, 15, 32, 1}, 8);
}

/* ---- eviction ---- */

static void a_sequence_is_idle_after_64_calls(void **state)
{
    (void)state;
    draft_rig_close();
    prop_draft_model_settings.kv_mib = 1; // 1365 positions
    draft_rig_open();
    struct prop_seq a = draft_rig_story_of("a", 800), b = draft_rig_story_of("b", 801);
    assert_int_equal(prop_seq_draft(&a, 5).n, 5);
    uint32_t n_tries = 1;
    while (!prop_seq_draft(&b, 5).n)
        assert_true(++n_tries < 1000);
    assert_int_equal(n_tries, 64); // the 63 before found no space
    prop_seq_done(&a);
    prop_seq_done(&b);
}

/* ---- memory ---- */

static void without_memory_there_is_no_draft(void **state)
{
    (void)state;
    for (unsigned ahead = 0; ahead < 2; ahead++) {
        unsigned n = 0;
        for (bool failed = true; failed;) {
            struct draft d = {0};
            struct prop_seq s;
            struct prop_ask ask = ahead_ask(&s, 40, 2, 3, &d);
            if (!ahead) { // the first ask of the sequence, for a drawn draft
                prop_seq_done(&s);
                s = draft_rig_story(8);
                ask = draft_rig_ask(&s, 3, &d);
                ask.q_mode = DRAFT_SPARSE;
                ask.sampling.params.temperature = 1;
            }
            failing_at(++n);
            while (!ask.done)
                draft_once(&ask);
            failed = failing_has_failed();
            assert_int_equal(d.n > 0, !failed);
            free(d.q);
            prop_seq_done(&s);
        }
        assert_int_equal(n - 1, ahead ? 7 : 2); // the list of six branches, and they; rows and q
    }
}

static void without_memory_for_counts_penalties_are_ignored(void **state)
{
    (void)state;
    struct prop_seq s = draft_rig_story(8);
    struct draft plain = prop_seq_draft(&s, 1), d = {0};
    struct prop_ask ask = draft_rig_ask(&s, 1, &d);
    ask.sampling.params.repetition = 1.5f;
    failing_at(1);
    draft_once(&ask);
    assert_true(failing_has_failed());
    prop_same_draft(&d, &plain);
    prop_seq_done(&s);
}

/* ---- loading ---- */

/* How often a load that takes this time requests more of it from the service manager. */
static unsigned n_extensions(int64_t load_us)
{
    unsigned n_extend = 0, n_status = 0;
    draft_rig_close();
    n_reads = 0;
    draft_rig_open();
    draft_rig_close();
    assert_int_equal(manager_open(NULL), 0);
    step_us = load_us / n_reads;
    draft_rig_open();
    step_us = 0;
    for (const char *text; *(text = manager_message());) {
        n_extend += strcmp(text, "EXTEND_TIMEOUT_USEC=30000000") == 0;
        n_status += strncmp(text, "STATUS=loading the draft model: ", 32) == 0;
    }
    manager_close(NULL);
    assert_int_equal(n_extend, n_status);
    return n_extend;
}

static void a_long_load_reports_once_a_second(void **state)
{
    (void)state;
    setenv("TANDEM_TUNE", "off", 1); // else the number of reads of the clock changes
    assert_int_equal(n_extensions(800000), 0);
    assert_int_equal(n_extensions(1500000), 1);
    assert_int_equal(n_extensions(2500000), 2);
    unsetenv("TANDEM_TUNE");
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, start, stop)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(up_to_eight_missing_rows_run_with_the_draft),
        TEST(a_chunk_of_context_takes_three_milliseconds),
        TEST(a_chunk_has_at_most_256_rows_and_leaves_the_last_one),
        TEST(the_reading_ends_eight_rows_before_the_end),
        TEST(an_ask_waits_for_half_of_its_time),
        TEST(a_draft_stops_before_a_pass_that_would_be_late),
        TEST(a_draft_ahead_needs_time_for_a_pass),
        TEST(a_draft_ahead_ends_before_a_pass_that_would_be_late),
        TEST(a_draft_ahead_has_limits),
        TEST(at_most_eight_rows_may_be_missing_for_a_draft_ahead),
        TEST(a_pass_has_at_most_32_rows_with_logits),
        TEST(a_sequence_is_idle_after_64_calls),
        TEST(without_memory_there_is_no_draft),
        TEST(without_memory_for_counts_penalties_are_ignored),
        TEST(a_long_load_reports_once_a_second),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
