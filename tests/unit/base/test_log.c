/* test_log.c - lines on standard error. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "base/log.h"
#include "base/utf8.h"
#include "lib/lib.h"
#include "lib/rigs/logged.h"

/* The text that fn writes to standard error. */
static const char *caught(void (*fn)(void))
{
    logged_begin();
    fn();
    return logged_end();
}

static void log_all_levels(void)
{
    log_error("e=%d", 1);
    log_warn("w=2");
    log_info("i=3");
    log_debug("d=4");
}

static void log_long_line(void)
{
    char big[5000];
    memset(big, 'x', sizeof(big));
    big[sizeof(big) - 1] = 0;
    log_info("%s", big);
}

static void lines_have_time_program_and_level(void **state)
{
    (void)state;
    unsetenv("JOURNAL_STREAM");
    log_init("prog", LOG_LEVEL_INFO);
    const char *text = caught(log_all_levels);
    assert_non_null(strstr(text, " prog error: e=1\n"));
    assert_non_null(strstr(text, " prog warn: w=2\n"));
    assert_non_null(strstr(text, " prog info: i=3\n"));
    assert_null(strstr(text, "d=4"));
    int year, ms;
    assert_int_equal(sscanf(text, "%4d-%*2d-%*2d %*2d:%*2d:%*2d.%3d", &year, &ms), 2);
}

static void under_the_journal_lines_have_its_priorities(void **state)
{
    (void)state;
    setenv("JOURNAL_STREAM", "1:2", 1);
    log_init("prog", LOG_LEVEL_DEBUG);
    assert_string_equal(caught(log_all_levels), "<3>e=1\n<4>w=2\n<6>i=3\n<7>d=4\n");
    unsetenv("JOURNAL_STREAM");
}

static void a_long_line_is_cut_and_ends_with_a_line_end(void **state)
{
    (void)state;
    log_init("prog", LOG_LEVEL_INFO);
    const char *text = caught(log_long_line);
    size_t n = strlen(text);
    assert_in_range(n, 1000, 3000);
    assert_int_equal(text[n - 1], '\n');
    assert_ptr_equal(strchr(text, '\n'), text + n - 1);
}

static void log_text_of_two_lines(void)
{
    log_info("role '%s'", "x\n<3>forged\x1b[2J");
}

static void foreign_text_cannot_start_a_line(void **state)
{
    (void)state;
    log_init("prog", LOG_LEVEL_INFO);
    assert_non_null(strstr(caught(log_text_of_two_lines), "role 'x <3>forged [2J'\n"));
}

static void levels_are_read_by_name(void **state)
{
    (void)state;
    enum log_level level;
    assert_int_equal(log_level_of("debug", &level), 0);
    assert_int_equal(level, LOG_LEVEL_DEBUG);
    assert_int_equal(log_level_of("loud", &level), -EINVAL);
    assert_non_null(strstr(fail_text(), "error, warn, info, debug"));
}

static void foreign_text_is_quoted(void **state)
{
    (void)state;
    char out[64];
    assert_string_equal(log_quote("a \"b\"\n\\\x7f", 8, out, sizeof(out)),
                        "\"a \\\"b\\\"\\x0a\\\\\\x7f\"");
    assert_string_equal(log_quote("", 0, out, sizeof(out)), "\"\"");
    assert_string_equal(log_quote("a\0b", 3, out, sizeof(out)), "\"a\\x00b\"");
}

static void foreign_bytes_are_quoted_as_utf8(void **state)
{
    (void)state;
    char out[64], cut[13];
    assert_string_equal(log_quote("\xc3\xa9 \xff\xc3", 5, out, sizeof(out)),
                        "\"\xc3\xa9 \\xff\\xc3\"");
    assert_string_equal(log_quote("\xc2\x9b", 2, out, sizeof(out)), "\"\\xc2\\x9b\"");
    for (unsigned size = 8; size <= sizeof(cut); size++) { // no character is cut
        log_quote("\xe2\x82\xac\xe2\x82\xac\xe2\x82\xac", 9, cut, size);
        assert_in_range(strlen(cut), 4, size - 1);
        assert_int_equal(utf8_valid(cut, strlen(cut)), strlen(cut));
    }
}

static void long_foreign_text_is_cut(void **state)
{
    (void)state;
    char big[300], out[32];
    for (int fill = 0; fill < 2; fill++) {
        memset(big, fill ? 'x' : '\n', sizeof(big));
        log_quote(big, sizeof(big), out, sizeof(out));
        size_t n = strlen(out);
        assert_in_range(n, 20, sizeof(out) - 1);
        assert_int_equal(out[n - 1], '"');
    }
}

static void a_refusal_is_logged_up_to_its_first_quote(void **state)
{
    (void)state;
    char out[64];
    assert_string_equal(log_unquoted("role is 'a' or 'b'; why", out, sizeof(out)), "role is ...");
    assert_string_equal(log_unquoted("'a", out, sizeof(out)), "...");
    assert_string_equal(log_unquoted("the user's id near 'it's'", out, sizeof(out)),
                        "the user's id near ...");
    assert_string_equal(log_unquoted("", out, sizeof(out)), "");
    assert_string_equal(log_unquoted("the proposer's name", out, 4), "the");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_have_time_program_and_level),
        cmocka_unit_test(under_the_journal_lines_have_its_priorities),
        cmocka_unit_test(a_long_line_is_cut_and_ends_with_a_line_end),
        cmocka_unit_test(foreign_text_cannot_start_a_line),
        cmocka_unit_test(levels_are_read_by_name),
        cmocka_unit_test(foreign_text_is_quoted),
        cmocka_unit_test(foreign_bytes_are_quoted_as_utf8),
        cmocka_unit_test(long_foreign_text_is_cut),
        cmocka_unit_test(a_refusal_is_logged_up_to_its_first_quote),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
