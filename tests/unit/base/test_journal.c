/* test_journal.c - the fields of a log line. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/journal.h"
#include "base/log.h"
#include "base/mem.h"
#include "lib/lib.h"

/* All fields of a line, each followed by '|'. */
static const char *fields(const char *line)
{
    static char text[JOURNAL_MAX_TEXT + JOURNAL_MAX_FIELDS + 1];
    struct journal_fields f;
    size_t n = 0;
    journal_fields(line, &f);
    for (unsigned i = 0; i < f.n; i++) {
        memcpy(text + n, f.v[i].iov_base, f.v[i].iov_len);
        n += f.v[i].iov_len;
        text[n++] = '|';
    }
    text[n] = 0;
    return text;
}

static void words_with_a_value_become_fields(void **state)
{
    (void)state;
    static const struct {
        const char *line, *fields;
    } v[] = {
        {"", ""},
        {"serving", ""},
        {"request done id=a-7 status=200 ms=1.5", "TANDEM_ID=a-7|TANDEM_STATUS=200|TANDEM_MS=1.5|"},
        {"listening on 127.0.0.1:80, version=0.1 n=", "TANDEM_VERSION=0.1|TANDEM_N=|"},
        {"ended, reason=time, refused", "TANDEM_REASON=time|"},
        {"proposer late target=unix:/p.sock: go on=1", "TANDEM_TARGET=unix:/p.sock|"},
        {"refused code=X: what id=2 said", "TANDEM_CODE=X|"},
        {"a sentence: id=2", ""},
        {"A=1 =2 Id=3 i-d=4 id=5", "TANDEM_ID=5|"},
    };
    for (size_t i = 0; i < ARRAY_LEN(v); i++)
        assert_string_equal(fields(v[i].line), v[i].fields);
}

static void quoted_text_is_one_value_whatever_it_contains(void **state)
{
    (void)state;
    char line[128], quoted[64];
    log_quote("a \"b\\ id=2: c", 13, quoted, sizeof(quoted));
    snprintf(line, sizeof(line), "done model=%s id=7", quoted);
    assert_string_equal(fields(line), "TANDEM_MODEL=a \"b\\ id=2: c|TANDEM_ID=7|");
    assert_string_equal(fields("x=\"a\": id=2"), "TANDEM_X=a|");
    assert_string_equal(fields("x=\"open id=2"), "TANDEM_X=open id=2|");
    assert_string_equal(fields("x=\"a\\"), "TANDEM_X=a\\|");
}

static void a_line_may_have_any_length(void **state)
{
    (void)state;
    static char line[3 * JOURNAL_MAX_TEXT];
    struct journal_fields f;
    for (size_t i = 0; i + 4 < sizeof(line); i += 4)
        memcpy(line + i, "k=v ", 4);
    journal_fields(line, &f);
    assert_int_equal(f.n, JOURNAL_MAX_FIELDS);
    memset(line, 'x', sizeof(line) - 1);
    memcpy(line, "a=1 b=", 6);
    assert_string_equal(fields(line), "TANDEM_A=1|");
    memset(line, 'k', sizeof(line) - 1);
    line[sizeof(line) - 3] = '=';
    assert_string_equal(fields(line), "");
}

static void another_stream_is_not_the_journal(void **state)
{
    (void)state;
    unsetenv("JOURNAL_STREAM");
    assert_false(journal_is_connected());
    setenv("JOURNAL_STREAM", "1:2", 1);
    assert_false(journal_is_connected());
    unsetenv("JOURNAL_STREAM");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_with_a_value_become_fields),
        cmocka_unit_test(quoted_text_is_one_value_whatever_it_contains),
        cmocka_unit_test(a_line_may_have_any_length),
        cmocka_unit_test(another_stream_is_not_the_journal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
