/* test_detok.c - text that grows token by token: whole characters, stop strings. */
#include "lib/lib.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "lib/models/small_vocab.h"
#include "text/detok.h"

struct fixture {
    struct tok *tok;
    struct detok d;
    struct buf out;
};

static int fresh(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    f->tok = small_vocab_tok(SMALL_BPE, NULL);
    detok_init(&f->d, f->tok, false);
    buf_init(&f->out, 1 << 20);
    *state = f;
    return 0;
}

static int cleaned(void **state)
{
    struct fixture *f = *state;
    detok_done(&f->d);
    buf_done(&f->out);
    tok_free(f->tok);
    free(f);
    return 0;
}

/* Feeds a text byte by byte (ids 0-255 are the bytes) until a stop. */
static int feed(struct fixture *f, const char *bytes)
{
    int stop = DETOK_NONE;
    for (; *bytes && stop == DETOK_NONE; bytes++)
        stop = detok_feed(&f->d, (uint8_t)*bytes, &f->out);
    return stop;
}

static void stops_at(struct fixture *f, const char *stop)
{
    assert_int_equal(detok_add_stop(&f->d, stop, strlen(stop)), 0);
}

static void out_is(struct fixture *f, const char *want)
{
    assert_int_equal(buf_error(&f->out), 0);
    assert_string_equal(f->out.data ? f->out.data : "", want);
}

static void plain_text_is_not_held_back(void **state)
{
    struct fixture *f = *state;
    assert_int_equal(detok_feed(&f->d, SMALL_HELLO, &f->out), DETOK_NONE);
    out_is(f, "hello");
    assert_int_equal(detok_feed(&f->d, SMALL_E_ACUTE, &f->out), DETOK_NONE);
    out_is(f, "hello\xc3\xa9");
}

static void the_end_can_complete_a_stop_string(void **state)
{
    struct fixture *f = *state;
    stops_at(f, "b\xef\xbf\xbd"); // the replacement of a broken character
    assert_int_equal(feed(f, "ab\xf0\x9f"), DETOK_NONE);
    out_is(f, "a");
    detok_flush(&f->d, &f->out);
    out_is(f, "a");
}

static void half_a_character_waits_for_the_other_half(void **state)
{
    struct fixture *f = *state;
    feed(f, "x\xf0\x9f\x98");
    out_is(f, "x");
    feed(f, "\x80");
    out_is(f, "x\xf0\x9f\x98\x80");
}

static void bytes_that_stay_invalid_become_replacement_characters(void **state)
{
    struct fixture *f = *state;
    feed(f, "a\xe2\x82");
    out_is(f, "a");
    feed(f, "b");
    out_is(f, "a\xef\xbf\xbd"
              "b");
    feed(f, "\xff\x80");
    out_is(f, "a\xef\xbf\xbd"
              "b\xef\xbf\xbd\xef\xbf\xbd");
    feed(f, "\xed\xa0"); // a surrogate: two bad bytes
    out_is(f, "a\xef\xbf\xbd"
              "b\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
}

static void an_unfinished_character_is_replaced_at_the_end(void **state)
{
    struct fixture *f = *state;
    feed(f, "a\xf0\x9f\x98");
    detok_flush(&f->d, &f->out);
    out_is(f, "a\xef\xbf\xbd");
    detok_flush(&f->d, &f->out);
    out_is(f, "a\xef\xbf\xbd");
}

static void a_stop_string_over_several_tokens_is_cut(void **state)
{
    struct fixture *f = *state;
    stops_at(f, "STOP");
    assert_int_equal(feed(f, "go ST"), DETOK_NONE);
    out_is(f, "go ");
    assert_int_equal(feed(f, "OP behind"), 0);
    out_is(f, "go ");
    detok_flush(&f->d, &f->out);
    out_is(f, "go ");
}

static void a_beginning_without_the_rest_is_released(void **state)
{
    struct fixture *f = *state;
    stops_at(f, "STOP");
    assert_int_equal(feed(f, "STO"), DETOK_NONE);
    out_is(f, "");
    assert_int_equal(feed(f, "R"), DETOK_NONE);
    out_is(f, "STOR");
    feed(f, "ST");
    detok_flush(&f->d, &f->out);
    out_is(f, "STORST");
}

static void a_beginning_inside_a_beginning_is_held(void **state)
{
    struct fixture *f = *state;
    stops_at(f, "aab");
    assert_int_equal(feed(f, "aaa"), DETOK_NONE);
    out_is(f, "a");
    assert_int_equal(feed(f, "b"), 0);
    out_is(f, "a");
}

static void of_two_stops_the_one_complete_first_counts(void **state)
{
    struct fixture *f = *state;
    stops_at(f, "hello!");
    stops_at(f, "ell");
    assert_int_equal(detok_feed(&f->d, SMALL_HELLO, &f->out), 1); // one token with all of it
    out_is(f, "h");
}

static void of_two_that_end_together_the_longest_counts(void **state)
{
    struct fixture *f = *state;
    stops_at(f, "lo");
    stops_at(f, "hello");
    stops_at(f, "o");
    assert_int_equal(feed(f, "x"), DETOK_NONE);
    assert_int_equal(detok_feed(&f->d, SMALL_HELLO, &f->out), 1);
    out_is(f, "x");
}

static void how_text_is_divided_into_tokens_does_not_matter(void **state)
{
    struct fixture *whole = *state, *bytes;
    fresh((void **)&bytes);
    static const char *const stops[] = {"hello!", "ell", "llo", "xx"};
    for (size_t i = 0; i < ARRAY_LEN(stops); i++) {
        stops_at(whole, stops[i]);
        stops_at(bytes, stops[i]);
    }
    int a = detok_feed(&whole->d, SMALL_HELLO, &whole->out);
    int b = feed(bytes, "hello");
    assert_int_equal(a, b);
    out_is(bytes, whole->out.data);
    cleaned((void **)&bytes);
}

static void a_stop_may_hold_characters_of_many_bytes(void **state)
{
    struct fixture *f = *state;
    stops_at(f, "\xe3\x80\x82\n");
    assert_int_equal(feed(f, "a\xe3\x80\x82"), DETOK_NONE);
    out_is(f, "a");
    assert_int_equal(feed(f, "\n"), 0);
    out_is(f, "a");
}

static void control_tokens_show_on_request_only(void **state)
{
    struct fixture *f = *state;
    detok_feed(&f->d, SMALL_BEGIN, &f->out);
    out_is(f, "");
    f->d.special = true;
    detok_feed(&f->d, SMALL_BEGIN, &f->out);
    out_is(f, "<|begin|>");
}

static void characters_that_are_held_back_are_counted(void **state)
{
    struct fixture *f = *state;
    stops_at(f, "\xc3\xa9\xc3\xa9!");
    assert_int_equal(feed(f, "a\xc3"), DETOK_NONE);
    assert_int_equal(detok_n_held(&f->d), 0); // half a one
    assert_int_equal(feed(f, "\xa9\xc3\xa9"), DETOK_NONE);
    assert_int_equal(detok_n_held(&f->d), 2);
    assert_int_equal(feed(f, "x"), DETOK_NONE);
    assert_int_equal(detok_n_held(&f->d), 0);
}

static void some_control_tokens_may_show_alone(void **state)
{
    struct fixture *f = *state;
    const uint32_t shown = SMALL_END;
    detok_show(&f->d, &shown, 1);
    detok_feed(&f->d, SMALL_BEGIN, &f->out);
    detok_feed(&f->d, SMALL_END, &f->out);
    out_is(f, "<|end|>");
}

static void stops_past_the_limits_are_refused(void **state)
{
    struct fixture *f = *state;
    char far[DETOK_MAX_STOP_BYTES + 1];
    memset(far, 'x', sizeof(far));
    assert_int_equal(detok_add_stop(&f->d, "", 0), -EINVAL);
    assert_int_equal(detok_add_stop(&f->d, "\x82", 1), -EINVAL);
    assert_int_equal(detok_add_stop(&f->d, far, sizeof(far)), -E2BIG);
    for (int i = 0; i < DETOK_MAX_STOPS; i++)
        assert_int_equal(detok_add_stop(&f->d, far, DETOK_MAX_STOP_BYTES), 0);
    assert_int_equal(detok_add_stop(&f->d, "x", 1), -E2BIG);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, fresh, cleaned)
    const struct CMUnitTest tests[] = {
        CASE(plain_text_is_not_held_back),
        CASE(the_end_can_complete_a_stop_string),
        CASE(half_a_character_waits_for_the_other_half),
        CASE(bytes_that_stay_invalid_become_replacement_characters),
        CASE(an_unfinished_character_is_replaced_at_the_end),
        CASE(a_stop_string_over_several_tokens_is_cut),
        CASE(a_beginning_without_the_rest_is_released),
        CASE(a_beginning_inside_a_beginning_is_held),
        CASE(of_two_stops_the_one_complete_first_counts),
        CASE(of_two_that_end_together_the_longest_counts),
        CASE(how_text_is_divided_into_tokens_does_not_matter),
        CASE(a_stop_may_hold_characters_of_many_bytes),
        CASE(control_tokens_show_on_request_only),
        CASE(characters_that_are_held_back_are_counted),
        CASE(some_control_tokens_may_show_alone),
        CASE(stops_past_the_limits_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
