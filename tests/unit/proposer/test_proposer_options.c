/* test_proposer_options.c - the ranges and defaults of all settings, and settings that contradict
 * each other. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "base/err.h"
#include "lib/lib.h"
#include "lib/rigs/logged.h"
#include "proposer-svc/draftmodel/prop_draft_model.h"
#include "proposer-svc/proposer_options.h"
#include "proposer-svc/props/prop_cascade.h"
#include "proposer-svc/props/prop_ngram.h"
#include "proposer-svc/props/prop_suffix.h"
#include "rpc/rpc.h"

static const struct proposer_options *o;

/* Reads the settings with up to two flags. */
static int read_flags(const char *first, const char *second)
{
    char *argv[] = {(char *)"proposer-svc", (char *)(uintptr_t)first, (char *)(uintptr_t)second,
                    NULL};
    return proposer_options_read(first ? second ? 3 : 2 : 1, argv, &o);
}

/* The least and the greatest value, and those just outside. */
struct range {
    const char *flag, *min, *below, *max, *above;
};

static void each_number_has_its_range(void **state)
{
    (void)state;
    static const struct range ranges[] = {
        {"k-max", "1", "0", "64", "65"},
        {"max-context", "16", "15", "67108864", "67108865"},
        {"max-sessions", "1", "0", "1048576", "1048577"},
        {"max-tokens", "1024", "1023", "68719476736", "68719476737"},
        {"idle-timeout", "0.1", "0.09", "86400", "86400.5"},
        {"drain-timeout", "0", "-0.1", "3600", "3600.5"},
        {"threads", "1", "0", "64", "65"},
        {"ngram-max", "1", "0", "16", "17"}, // open() compares the two
        {"ngram-min", "1", "0", "16", "17"},
        {"draft-context", "0", "-1", "16777216", "16777217"},
        {"draft-kv-mib", "0", "-1", "16777216", "16777217"},
        {"draft-p-min", "0", "-0.1", "1", "1.1"},
        {"draft-sparse-k", "1", "0", "256", "257"},
        {"draft-threads", "0", "-1", "256", "257"},
        {"suffix-max-depth", "1", "0", "64", "65"},
        {"suffix-factor", "0", "-0.1", "64", "64.5"},
        {"suffix-offset", "0", "-0.1", "64", "64.5"},
        {"suffix-min-prob", "0", "-0.1", "1", "1.1"},
        {"suffix-pool-tokens", "0", "-1", "268435456", "268435457"}};
    for (size_t i = 0; i < ARRAY_LEN(ranges); i++) {
        const char *const values[] = {ranges[i].min, ranges[i].max, ranges[i].below,
                                      ranges[i].above};
        for (unsigned v = 0; v < 4; v++) {
            char flag[80];
            bool is_tokens = strcmp(ranges[i].flag, "max-tokens") == 0;
            snprintf(flag, sizeof(flag), "--%s=%s", ranges[i].flag, values[v]);
            int r = read_flags(is_tokens ? "--max-context=16" : "--max-tokens=68719476736", flag);
            if (r != (v < 2 ? 0 : -EINVAL))
                fail_msg("%s: %d", flag, r);
        }
    }
}

static void the_defaults_are_those_of_the_documentation(void **state)
{
    (void)state;
    assert_int_equal(read_flags(NULL, NULL), 0);
    assert_int_equal(o->listen.n, 1);
    assert_string_equal(o->listen.v[0], "unix:/run/tandem/proposer.sock");
    assert_string_equal(o->proposer, "ngram");
    assert_null(o->name);
    assert_null(o->instance);
    assert_string_equal(o->log_level, "info");
    assert_int_equal(o->k_max, 20);
    assert_int_equal(o->max_context, 1048576);
    assert_int_equal(o->max_sessions, 1024);
    assert_int_equal(o->max_tokens, 4194304);
    assert_int_equal(o->threads, 1);
    assert_true(o->idle_timeout_s == 120);
    assert_true(o->drain_timeout_s == 0.2);
    assert_int_equal(prop_ngram_settings.ngram_max, 4);
    assert_int_equal(prop_ngram_settings.ngram_min, 1);
    assert_true(prop_ngram_settings.prompt_lookup);
    assert_int_equal(prop_draft_model_settings.sparse_k, 64);
    assert_true(prop_draft_model_settings.memory_check && prop_draft_model_settings.pin);
    assert_int_equal(prop_suffix_settings.max_depth, 24);
    assert_int_equal(prop_suffix_settings.pool_tokens, 262144);
    assert_true(prop_suffix_settings.factor == 1 && prop_suffix_settings.offset == 0);
    assert_true(prop_suffix_settings.min_prob == 0.1);
    assert_int_equal(prop_cascade_settings.members.n, 2);
}

/* Reads a list of n entries. */
static int read_entries(const char *flag, unsigned n)
{
    char text[128];
    int len = snprintf(text, sizeof(text), "--%s=x", flag);
    for (unsigned i = 1; i < n; i++)
        len += snprintf(text + len, sizeof(text) - (size_t)len, ",x");
    return read_flags(text, NULL);
}

static void lists_have_their_limits(void **state)
{
    (void)state;
    assert_int_equal(read_entries("cascade", CASCADE_MEMBERS_MAX), 0);
    assert_int_equal(read_entries("cascade", CASCADE_MEMBERS_MAX + 1), -EINVAL);
    assert_int_equal(read_entries("listen", RPC_LISTEN_MAX), 0);
    assert_int_equal(read_entries("listen", RPC_LISTEN_MAX + 1), -EINVAL);
}

static void an_unknown_proposer_is_refused_with_the_known_ones(void **state)
{
    (void)state;
    assert_int_equal(read_flags("--proposer=eagle", NULL), -EINVAL);
    assert_string_equal(fail_text(),
                        "proposer must be one of ngram, draft, suffix, cascade, not \"eagle\"");
    static const char *const known[] = {"--proposer=ngram", "--proposer=draft", "--proposer=suffix",
                                        "--proposer=cascade"};
    for (size_t i = 0; i < ARRAY_LEN(known); i++)
        assert_int_equal(read_flags(known[i], NULL), 0);
}

static void max_context_may_be_max_tokens_but_not_more(void **state)
{
    (void)state;
    assert_int_equal(read_flags("--max-context=2000", "--max-tokens=2000"), 0);
    assert_int_equal(read_flags("--max-context=2001", "--max-tokens=2000"), -EINVAL);
    assert_string_equal(fail_text(), "max_context is 2001, above max_tokens 2000");
}

static void old_spellings_work_with_one_warning_each(void **state)
{
    (void)state;
    logged_begin();
    int r = read_flags("--proposer=chain", "--chain-choose=first");
    const char *log = logged_end();
    assert_int_equal(r, 0);
    assert_string_equal(o->proposer, "cascade");
    assert_string_equal(prop_cascade_settings.choose, "first");
    assert_int_equal(logged_count(log, "\n"), 2);
    logged_begin();
    r = read_flags("--chain=suffix", NULL);
    log = logged_end();
    assert_int_equal(r, 0);
    assert_int_equal(prop_cascade_settings.members.n, 1);
    assert_string_equal(prop_cascade_settings.members.v[0], "suffix");
    assert_int_equal(logged_count(log, "\n"), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_number_has_its_range),
        cmocka_unit_test(the_defaults_are_those_of_the_documentation),
        cmocka_unit_test(lists_have_their_limits),
        cmocka_unit_test(an_unknown_proposer_is_refused_with_the_known_ones),
        cmocka_unit_test(max_context_may_be_max_tokens_but_not_more),
        cmocka_unit_test(old_spellings_work_with_one_warning_each),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
