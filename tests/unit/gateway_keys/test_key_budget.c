/* test_key_budget.c - what a key has used: buckets, days, reservations, and counts of two
 * processes. */
#include <errno.h>
#include "base/mem.h"
#include "gateway/keys/key_budget.h"
#include "lib/lib.h"

#define S INT64_C(1000000)
#define DAY (86400 * S)
#define NOON (20000 * DAY + DAY / 2)

static const struct key_file_limits per_minute = {.rate = 3, .tokens_per_minute = 600};
static const struct key_file_limits per_day = {.tokens_per_day = 1000};

static int reserves(struct key_budget *b, const struct key_file_limits *l, int64_t now_us,
                    uint64_t n, struct key_budget_hold *h, int64_t *wait_us)
{
    struct key_budget_level level;
    return key_budget_reserve(b, l, now_us, n, h, &level, wait_us);
}

static void requests_take_parts_of_a_bucket(void **state)
{
    (void)state;
    struct key_budget b = {0};
    int64_t wait_us;
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(key_budget_begin(&b, &per_minute, NOON, &wait_us), 0);
    assert_int_equal(key_budget_begin(&b, &per_minute, NOON, &wait_us), -EAGAIN);
    assert_int_equal(wait_us, 20 * S);
    struct key_budget_level level = key_budget_requests(&b, &per_minute, NOON + 20 * S);
    assert_int_equal(level.left, 1);
    assert_int_equal(level.reset_us, 40 * S);
    assert_int_equal(key_budget_begin(&b, &per_minute, NOON + 20 * S, &wait_us), 0);
    assert_int_equal(key_budget_requests(&b, &per_minute, NOON + 200 * S).left, 3);
}

static void used_tokens_return_after_a_minute_and_others_at_the_end(void **state)
{
    (void)state;
    struct key_budget b = {0};
    struct key_budget_hold h, other;
    int64_t wait_us;
    assert_int_equal(reserves(&b, &per_minute, NOON, 500, &h, &wait_us), 0);
    assert_int_equal(key_budget_tokens(&b, &per_minute, NOON).left, 100);
    key_budget_use(&b, &h, 200, NOON);
    assert_int_equal(key_budget_tokens(&b, &per_minute, NOON).left, 100); // used or reserved
    key_budget_end(&b, &h);
    assert_int_equal(key_budget_tokens(&b, &per_minute, NOON).left, 400);
    assert_int_equal(reserves(&b, &per_minute, NOON, 500, &other, &wait_us), -EAGAIN);
    assert_int_equal(wait_us, 10 * S); // 600 per minute: 100 more take 10 s
    assert_int_equal(reserves(&b, &per_minute, NOON + 10 * S, 500, &other, &wait_us), 0);
    assert_int_equal(reserves(&b, &per_minute, NOON, 601, &h, &wait_us), -EMSGSIZE);
}

static void more_than_reserved_is_a_debt(void **state)
{
    (void)state;
    struct key_budget b = {0};
    struct key_budget_hold h;
    int64_t wait_us;
    assert_int_equal(reserves(&b, &per_minute, NOON, 100, &h, &wait_us), 0);
    key_budget_use(&b, &h, 1200, NOON);
    key_budget_end(&b, &h);
    assert_int_equal(key_budget_tokens(&b, &per_minute, NOON + 60 * S).left, 0);
    assert_int_equal(reserves(&b, &per_minute, NOON + 60 * S, 60, &h, &wait_us), -EAGAIN);
    assert_int_equal(wait_us, 6 * S);
    /* No debt, and no wrong clock, makes a key wait for hours. */
    assert_int_equal(reserves(&b, &per_minute, NOON + 66 * S, 60, &h, &wait_us), 0);
    key_budget_use(&b, &h, 1000000000, NOON + 66 * S);
    key_budget_end(&b, &h);
    assert_true(key_budget_tokens(&b, &per_minute, NOON).reset_us <= 600 * S);
    assert_int_equal(key_budget_tokens(&b, &per_minute, NOON + 1000 * S).left, 600);
}

static void a_day_ends_at_midnight(void **state)
{
    (void)state;
    struct key_budget b = {0};
    struct key_budget_hold h, other;
    int64_t wait_us;
    assert_int_equal(reserves(&b, &per_day, NOON, 900, &h, &wait_us), 0);
    key_budget_use(&b, &h, 900, NOON);
    key_budget_end(&b, &h);
    struct key_budget_level level = key_budget_tokens(&b, &per_day, NOON);
    assert_int_equal(level.left, 100);
    assert_true(level.per_day);
    assert_int_equal(level.reset_us, DAY / 2);
    assert_int_equal(reserves(&b, &per_day, NOON + 5 * S, 101, &h, &wait_us), -EAGAIN);
    assert_int_equal(wait_us, DAY / 2 - 5 * S);
    assert_int_equal(reserves(&b, &per_day, NOON, 100, &h, &wait_us), 0);
    assert_int_equal(reserves(&b, &per_day, NOON + DAY / 2, 901, &other, &wait_us), -EAGAIN);
    assert_int_equal(wait_us, S); // the first still runs
    key_budget_use(&b, &h, 60, NOON + DAY / 2);
    key_budget_end(&b, &h);
    assert_int_equal(key_budget_tokens(&b, &per_day, NOON + DAY / 2).left, 940);
}

static void small_uses_are_not_rounded_up_each(void **state)
{
    (void)state;
    const struct key_file_limits l = {.tokens_per_minute = 500000000}; // 0.12 us each
    struct key_budget b = {0};
    struct key_budget_hold h;
    int64_t wait_us;
    assert_int_equal(reserves(&b, &l, NOON, 1000, &h, &wait_us), 0);
    for (uint64_t n = 1; n <= 1000; n++)
        key_budget_use(&b, &h, n, NOON);
    key_budget_end(&b, &h);
    assert_true(key_budget_tokens(&b, &l, NOON).left >= 500000000 - 1100);
}

/* As usage_file.c does. */
static void save(struct key_budget *b, struct key_budget_counts *file, int64_t now_us)
{
    struct key_budget_change change = key_budget_take_unsaved(b, now_us);
    struct key_budget_counts before = b->counts;
    *file = key_budget_join(&before, &change, file, now_us);
    key_budget_adopt(b, &before, file);
}

static void use(struct key_budget *b, uint64_t n, int64_t now_us)
{
    const struct key_file_limits l = {.tokens_per_minute = 6000, .tokens_per_day = 100000};
    struct key_budget_hold h;
    int64_t wait_us;
    assert_int_equal(reserves(b, &l, now_us, n, &h, &wait_us), 0);
    key_budget_use(b, &h, n, now_us);
    key_budget_end(b, &h);
}

static void processes_add_up_their_counts_in_the_file(void **state)
{
    (void)state;
    const struct key_file_limits l = {.tokens_per_minute = 6000, .tokens_per_day = 100000};
    struct key_budget a = {0}, b = {0}, next = {0};
    struct key_budget_counts file = {0};
    use(&a, 1000, NOON);
    save(&a, &file, NOON);
    save(&b, &file, NOON);
    assert_int_equal(key_budget_tokens(&b, &l, NOON).left, 5000);
    use(&a, 500, NOON);
    use(&b, 700, NOON);
    save(&a, &file, NOON + S);
    save(&b, &file, NOON + S);
    save(&a, &file, NOON + S);
    assert_int_equal(a.counts.day_tokens, 2200);
    assert_int_equal(b.counts.day_tokens, 2200);
    assert_int_equal(key_budget_tokens(&a, &l, NOON).left, 3800);
    assert_int_equal(key_budget_tokens(&b, &l, NOON).left, 3800);
    save(&next, &file, NOON + 2 * S); // a new process
    assert_int_equal(next.counts.day_tokens, 2200);
    assert_int_equal(key_budget_tokens(&next, &l, NOON).left, 3800);
    struct key_budget_counts empty = {0}; // the file was lost: the process knows all
    save(&a, &empty, NOON + 3 * S);
    assert_int_equal(empty.day_tokens, 2200);
    use(&a, 10, NOON + DAY); // what the file says of yesterday does not count
    save(&a, &file, NOON + DAY);
    assert_int_equal(file.day_tokens, 10);
    save(&b, &file, NOON + DAY / 2 - 1); // its clock has not reached the new day
    assert_int_equal(file.day_tokens, 10);
    save(&b, &file, NOON + DAY);
    assert_int_equal(b.counts.day_tokens, 10);
}

static void what_is_counted_while_the_file_is_written_stays(void **state)
{
    (void)state;
    struct key_budget b = {0};
    struct key_budget_counts file = {0};
    use(&b, 100, NOON);
    struct key_budget_change change = key_budget_take_unsaved(&b, NOON);
    struct key_budget_counts before = b.counts;
    use(&b, 30, NOON);
    file = key_budget_join(&before, &change, &file, NOON);
    key_budget_adopt(&b, &before, &file);
    assert_int_equal(file.day_tokens, 100);
    assert_int_equal(b.counts.day_tokens, 130);
    save(&b, &file, NOON);
    assert_int_equal(file.day_tokens, 130);
}

/* At midnight: the other process has written tokens of the new day before these of yesterday. */
static void the_new_day_of_another_process_adds_its_tokens(void **state)
{
    (void)state;
    struct key_budget b = {0};
    struct key_budget_counts file = {.day = NOON / DAY + 1, .day_tokens = 7};
    int64_t midnight_us = NOON + DAY / 2;
    use(&b, 900, midnight_us - 1);
    struct key_budget_change change = key_budget_take_unsaved(&b, midnight_us - 1);
    struct key_budget_counts before = b.counts;
    use(&b, 3, midnight_us); // while the file is written
    file = key_budget_join(&before, &change, &file, midnight_us - 1);
    key_budget_adopt(&b, &before, &file);
    assert_int_equal(file.day_tokens, 7);
    assert_int_equal(b.counts.day_tokens, 10);
    save(&b, &file, midnight_us);
    assert_int_equal(file.day_tokens, 10);
}

static void tomorrow_in_the_file_is_an_error_of_the_clock(void **state)
{
    (void)state;
    struct key_budget b = {0};
    struct key_budget_counts file = {.day = NOON / DAY + 1, .day_tokens = 7};
    use(&b, 100, NOON);
    save(&b, &file, NOON);
    assert_int_equal(file.day, NOON / DAY);
    assert_int_equal(file.day_tokens, 100);
}

static void limits_that_are_not_set_never_refuse(void **state)
{
    (void)state;
    const struct key_file_limits none = {0};
    struct key_budget b = {0};
    struct key_budget_hold h;
    int64_t wait_us;
    assert_int_equal(key_budget_begin(&b, &none, NOON, &wait_us), 0);
    assert_int_equal(reserves(&b, &none, NOON, UINT64_C(1) << 40, &h, &wait_us), 0);
    assert_int_equal(key_budget_requests(&b, &none, NOON).limit, 0);
    assert_int_equal(key_budget_tokens(&b, &none, NOON).limit, 0);
    key_budget_end(&b, &h);
    assert_int_equal(h.reserved, 0);
    assert_int_equal(b.reserved, 0);
}

/* Of two limits the one with fewer tokens left is shown; of equal ones that of the minute. */
static void the_tighter_limit_is_shown(void **state)
{
    (void)state;
    static const struct {
        uint32_t per_minute, per_day;
        uint64_t left;
        bool is_of_day;
    } v[] = {{600, 0, 600, false},
             {0, 1000, 1000, true},
             {600, 601, 600, false},
             {600, 600, 600, false},
             {600, 599, 599, true}};
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        const struct key_file_limits l = {.tokens_per_minute = v[i].per_minute,
                                          .tokens_per_day = v[i].per_day};
        struct key_budget b = {0};
        struct key_budget_level level = key_budget_tokens(&b, &l, NOON);
        assert_int_equal(level.left, v[i].left);
        assert_int_equal(level.per_day, v[i].is_of_day);
        assert_int_equal(level.reset_us, 0); // everything is left
    }
}

static void what_others_have_reserved_must_be_waited_for(void **state)
{
    (void)state;
    struct key_budget b = {0};
    struct key_budget_hold h, other;
    int64_t wait_us;
    assert_int_equal(reserves(&b, &per_minute, NOON, 1, &h, &wait_us), 0);
    assert_int_equal(reserves(&b, &per_minute, NOON, 600, &other, &wait_us), -EAGAIN);
    assert_int_equal(wait_us, S); // the bucket itself is full
    key_budget_end(&b, &h);
    assert_int_equal(reserves(&b, &per_minute, NOON, 600, &other, &wait_us), 0);
    struct key_budget today = {0};
    assert_int_equal(reserves(&today, &per_day, NOON, 500, &h, &wait_us), 0);
    assert_int_equal(reserves(&today, &per_day, NOON, 1000, &other, &wait_us), -EAGAIN);
    assert_int_equal(wait_us, S); // nothing of the day is used, so midnight changes nothing
    assert_int_equal(reserves(&today, &per_day, NOON, 1001, &other, &wait_us), -EMSGSIZE);
}

static void parts_of_a_bucket_are_rounded_up(void **state)
{
    (void)state;
    const struct key_file_limits l = {.rate = 59999999}; // a request takes 1.00000002 us
    struct key_budget b = {0};
    int64_t wait_us;
    assert_int_equal(key_budget_begin(&b, &l, NOON, &wait_us), 0);
    assert_int_equal(b.counts.requests_full_us, NOON + 2);
}

/* Two failures to save, the second on the next day; another process has written meanwhile. */
static void what_could_not_be_saved_is_saved_later(void **state)
{
    (void)state;
    struct key_budget b = {0}, other = {0};
    struct key_budget_counts file = {0};
    int64_t wait_us;
    use(&other, 100, NOON);
    assert_int_equal(key_budget_begin(&other, &per_minute, NOON, &wait_us), 0);
    save(&other, &file, NOON);
    use(&b, 30, NOON);
    assert_int_equal(key_budget_begin(&b, &per_minute, NOON, &wait_us), 0);
    struct key_budget_change change = key_budget_take_unsaved(&b, NOON);
    assert_int_equal(key_budget_take_unsaved(&b, NOON).day_tokens, 0);
    key_budget_return_unsaved(&b, &change, b.counts.day);
    use(&b, 5, NOON);
    save(&b, &file, NOON);
    assert_int_equal(file.day_tokens, 135);
    assert_int_equal(file.tokens_full_us, NOON + 1350000); // 6000 per minute: 10 ms each
    assert_int_equal(file.requests_full_us, NOON + 40 * S);
    use(&b, 7, NOON);
    change = key_budget_take_unsaved(&b, NOON);
    use(&b, 2, NOON + DAY); // a new day begins: the tokens of yesterday no longer matter
    key_budget_return_unsaved(&b, &change, NOON / DAY);
    save(&b, &file, NOON + DAY);
    assert_int_equal(file.day, NOON / DAY + 1);
    assert_int_equal(file.day_tokens, 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_take_parts_of_a_bucket),
        cmocka_unit_test(used_tokens_return_after_a_minute_and_others_at_the_end),
        cmocka_unit_test(more_than_reserved_is_a_debt),
        cmocka_unit_test(a_day_ends_at_midnight),
        cmocka_unit_test(small_uses_are_not_rounded_up_each),
        cmocka_unit_test(processes_add_up_their_counts_in_the_file),
        cmocka_unit_test(what_is_counted_while_the_file_is_written_stays),
        cmocka_unit_test(the_new_day_of_another_process_adds_its_tokens),
        cmocka_unit_test(tomorrow_in_the_file_is_an_error_of_the_clock),
        cmocka_unit_test(limits_that_are_not_set_never_refuse),
        cmocka_unit_test(the_tighter_limit_is_shown),
        cmocka_unit_test(what_others_have_reserved_must_be_waited_for),
        cmocka_unit_test(parts_of_a_bucket_are_rounded_up),
        cmocka_unit_test(what_could_not_be_saved_is_saved_later),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
