/* test_verifier_options.c - checks between settings, targets of proposers, and reloading. */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "base/mem.h"
#include "lib/lib.h"
#include "lib/rigs/logged.h"
#include "verifier-svc/settings/verifier_options.h"

static int read_proposers(const char *proposers, const struct verifier_options **ret)
{
    char *argv[] = {"verifier-svc", "--model", "m.gguf", "--proposers", (char *)proposers, NULL};
    return verifier_options_read(ARRAY_LEN(argv) - 1, argv, ret);
}

static void a_proposer_is_a_target_or_a_name_and_a_target(void **state)
{
    (void)state;
    static const char *const cases[][3] = {
        // as written, name, target
        {"unix:/run/p.sock", "", "unix:/run/p.sock"},
        {"unix:/run/a=b.sock", "", "unix:/run/a=b.sock"},
        {"host:50052", "", "host:50052"},
        {"dns:///h:1", "", "dns:///h:1"},
        {"n-gram_2.x=unix:/run/a=b.sock", "n-gram_2.x", "unix:/run/a=b.sock"},
        {"a123456789a123456789a123456789a=h:1", "a123456789a123456789a123456789a", "h:1"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const struct verifier_options *o = NULL;
        assert_int_equal(read_proposers(cases[i][0], &o), 0);
        assert_int_equal(o->speculation.n_targets, 1);
        assert_string_equal(o->speculation.targets[0].name, cases[i][1]);
        assert_string_equal(o->speculation.targets[0].target, cases[i][2]);
        assert_string_equal(o->proposers.v[0], cases[i][0]); // the setting is kept as written
    }
}

static void none_adds_no_proposer(void **state)
{
    (void)state;
    const struct verifier_options *o = NULL;
    assert_int_equal(read_proposers("none", &o), 0);
    assert_int_equal(o->speculation.n_targets, 0);
    assert_int_equal(read_proposers("a=h:1,b=h:2", &o), 0);
    assert_int_equal(o->speculation.n_targets, 2);
    assert_string_equal(o->speculation.targets[1].name, "b");
}

static void an_invalid_name_is_refused_with_a_sentence(void **state)
{
    (void)state;
    static const char *const bad[] = {"=h:1", "my proposer=h:1", "gr\xc3\xbcn=h:1", "a\"b=h:1",
                                      "a123456789a123456789a123456789ab=h:1"};
    const struct verifier_options *o;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        assert_int_equal(read_proposers(bad[i], &o), -EINVAL);
        assert_non_null(strstr(fail_text(), "a name is 1 to 31 letters, digits, '-', '_' or '.'"));
    }
    assert_int_equal(read_proposers("ngram=", &o), -EINVAL);
    assert_non_null(strstr(fail_text(), "proposers: \"ngram=\" has no target after the name"));
}

static int read_default(const char *proposers, const char *name,
                        const struct verifier_options **ret)
{
    char *argv[] = {"verifier-svc",       "--model",    "m", "--proposers", (char *)proposers,
                    "--default-proposer", (char *)name, NULL};
    return verifier_options_read(ARRAY_LEN(argv) - 1, argv, ret);
}

static void the_default_proposer_must_be_a_target(void **state)
{
    (void)state;
    const struct verifier_options *o = NULL;
    assert_int_equal(read_default("a=h:1,b=h:2", "b", &o), 0);
    assert_string_equal(o->speculation.proposer, "b");
    assert_int_equal(read_default("a=h:1,h:2", "b", &o), 0); // the second may have this name
    assert_int_equal(read_default("a=h:1,b=h:2", "c", &o), -EINVAL);
    assert_non_null(
        strstr(fail_text(), "the default proposer is c, but no proposer has this name"));
    assert_int_equal(read_default("a=h:1", "a\"b", &o), -EINVAL);
    assert_non_null(strstr(fail_text(), "default_proposer must be at most 31 letters"));
    assert_int_equal(read_default("a=h:1", "", &o), 0);
    assert_string_equal(o->speculation.proposer, "");
}

static void the_old_name_of_the_cascade_is_a_default_proposer_with_one_warning(void **state)
{
    (void)state;
    const struct verifier_options *o = NULL;
    char *argv[] = {(char *)"verifier-svc",
                    (char *)"--model",
                    (char *)"m",
                    (char *)"--proposers=cascade=h:1",
                    (char *)"--default-proposer=chain",
                    NULL};
    struct speculation_change change;
    char waiting[8];
    logged_begin();
    int read = verifier_options_read(ARRAY_LEN(argv) - 1, argv, &o);
    int reread =
        verifier_options_reread(ARRAY_LEN(argv) - 1, argv, &change, waiting, sizeof(waiting));
    const char *log = logged_end();
    assert_int_equal(read | reread, 0);
    assert_int_equal(logged_count(log, "\n"), 1);
    assert_int_equal(logged_count(log, "default_proposer: chain is now called cascade"), 1);
}

static void rereading_returns_changes_and_names_settings_that_need_a_restart(void **state)
{
    (void)state;
    const struct verifier_options *o;
    char *argv[] = {(char *)"verifier-svc", (char *)"--model", (char *)"m.gguf",
                    (char *)"--k",          (char *)"4",       NULL};
    struct speculation_change c;
    char waiting[200];
    assert_int_equal(verifier_options_read(ARRAY_LEN(argv) - 1, argv, &o), 0);
    setenv("TANDEM_PROPOSERS", "a=h:1,b=h:2", 1);
    setenv("TANDEM_DEFAULT_PROPOSER", "b", 1);
    setenv("TANDEM_POLICY", "ema", 1);
    setenv("TANDEM_K", "9", 1); // the flag has priority
    assert_int_equal(
        verifier_options_reread(ARRAY_LEN(argv) - 1, argv, &c, waiting, sizeof(waiting)), 0);
    assert_string_equal(waiting, "");
    assert_int_equal(c.to.n_targets, 2);
    assert_string_equal(speculation_policy(&c.to), "ema");
    assert_int_equal(c.to.k, 4);
    assert_string_equal(c.to.proposer, "b");
    assert_int_equal(c.has, SPECULATION_TARGETS | SPECULATION_PROPOSER | SPECULATION_POLICY |
                                SPECULATION_K | SPECULATION_BATCH | SPECULATION_ALLOWED);

    setenv("TANDEM_NAME", "other", 1);
    setenv("TANDEM_PIN", "off", 1);
    setenv("TANDEM_LISTEN", "h:1,h:2", 1);
    setenv("TANDEM_LOAD_WAIT", "1.5", 1);
    assert_int_equal(
        verifier_options_reread(ARRAY_LEN(argv) - 1, argv, &c, waiting, sizeof(waiting)), 0);
    assert_string_equal(waiting, "listen, name, pin, load_wait");
    setenv("TANDEM_PROPOSERS", "=", 1);
    assert_int_equal(
        verifier_options_reread(ARRAY_LEN(argv) - 1, argv, &c, waiting, sizeof(waiting)), -EINVAL);
    assert_null(o->name); // the current settings are unchanged
    assert_true(o->pin);
    assert_int_equal(o->speculation.n_targets, 0);
    assert_string_equal(o->model, "m.gguf");
    static const char *const names[] = {"PROPOSERS", "DEFAULT_PROPOSER", "POLICY",   "K", "NAME",
                                        "PIN",       "LISTEN",           "LOAD_WAIT"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        char env[40];
        snprintf(env, sizeof(env), "TANDEM_%s", names[i]);
        unsetenv(env);
    }
}

/* A number: its flag, its member, its default and both ends of its range. */
struct number {
    const char *flag;
    size_t member;
    bool is_float;
    double fallback, least, most;
};

#define INT(flag, member, fallback, least, most)                                                   \
    {                                                                                              \
        flag, offsetof(struct verifier_options, member), false, fallback, least, most              \
    }
#define SECONDS(flag, member, fallback, least, most)                                               \
    {                                                                                              \
        flag, offsetof(struct verifier_options, member), true, fallback, least, most               \
    }

static const struct number numbers[] = {
    INT("--k", k, 0, 0, 20),
    INT("--disable-batch-size", disable_batch_size, -1, -1, 4096),
    INT("--proposer-budget-ms", proposer_budget_ms, 50, 1, 250),
    INT("--context", context, 0, 0, 16777216),
    INT("--kv-mib", kv_mib, 0, 0, 16777216),
    INT("--kv-disk-size", kv_disk_size, 8192, 256, 268435456),
    INT("--kv-disk-ttl", kv_disk_ttl, 604800, 1, 1073741824),
    INT("--max-sequences", max_sequences, 64, 1, 1024),
    INT("--queue-length", queue_length, 256, 1, 65536),
    INT("--max-batch-rows", max_batch_rows, 512, 16, 8192),
    INT("--prefill-chunk", prefill_chunk, 512, 1, 8192),
    INT("--max-pass-ms", max_pass_ms, 100, 1, 10000),
    INT("--threads", threads, 0, 0, 256),
    INT("--verify-streams", verify_streams, 1024, 1, 8192),
    SECONDS("--load-wait", load_wait_s, 30, 0, 3600),
    SECONDS("--verify-timeout", verify_timeout_s, 30, 0.1, 3600),
    SECONDS("--reader-timeout", reader_timeout_s, 60, 0.1, 3600),
    SECONDS("--drain-timeout", drain_timeout_s, 120, 0, 3600),
};

static double number_in(const struct verifier_options *o, const struct number *x)
{
    const char *at = (const char *)o + x->member;
    return x->is_float ? *(const double *)(const void *)at
                       : (double)*(const int64_t *)(const void *)at;
}

/* max_sequences is at most max_batch_rows: `other` gives way to the value under test. */
static int read_number(const struct number *x, double value, const struct verifier_options **ret)
{
    char text[40];
    bool is_rows = strcmp(x->flag, "--max-batch-rows") == 0;
    snprintf(text, sizeof(text), x->is_float ? "%.4f" : "%.0f", value);
    char *argv[] = {
        "verifier-svc",  "--model", "m", is_rows ? "--max-sequences=1" : "--max-batch-rows=8192",
        (char *)x->flag, text,      NULL};
    return verifier_options_read(ARRAY_LEN(argv) - 1, argv, ret);
}

static void each_number_has_its_documented_range(void **state)
{
    (void)state;
    const struct verifier_options *o = NULL;
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++) {
        const struct number *x = &numbers[i];
        double step = x->is_float ? 0.001 : 1;
        assert_int_equal(read_number(x, x->least, &o), 0);
        assert_true(number_in(o, x) == x->least);
        assert_int_equal(read_number(x, x->most, &o), 0);
        assert_true(number_in(o, x) == x->most);
        assert_int_equal(read_number(x, x->least - step, &o), -EINVAL);
        assert_int_equal(read_number(x, x->most + step, &o), -EINVAL);
    }
}

static void each_setting_has_its_documented_default(void **state)
{
    (void)state;
    const struct verifier_options *o = NULL;
    char *argv[] = {"verifier-svc", "--model", "m", NULL};
    assert_int_equal(verifier_options_read(3, argv, &o), 0);
    for (size_t i = 0; i < ARRAY_LEN(numbers); i++)
        assert_true(number_in(o, &numbers[i]) == numbers[i].fallback);
    assert_true(o->pin && o->memory_check && o->prefix_cache && !o->draft_ahead && !o->blas);
    assert_true(o->listen.n == 1 && o->proposers.n == 0 && o->proposer_targets_allowed.n == 0);
    assert_string_equal(o->listen.v[0], "unix:/run/tandem/verifier.sock");
    assert_string_equal(o->kv_disk, "");
    assert_string_equal(o->default_proposer, "");
    assert_string_equal(o->log_level, "info");
    assert_int_equal(o->kv, KERNEL_KV_INT8);
    assert_true(!o->name && !o->instance);
    assert_true(o->speculation.on && o->speculation.policy == CONTROL_GOODPUT);
    assert_true(o->speculation.k == 0 && o->speculation.disable_batch_size == -1);
}

static int read_with(const char *first, const char *second)
{
    const struct verifier_options *o = NULL;
    char *argv[] = {"verifier-svc", "--model", "m", (char *)first, (char *)second, NULL};
    return verifier_options_read(second ? 5 : 4, argv, &o);
}

static void settings_that_contradict_each_other_are_refused(void **state)
{
    (void)state;
    assert_int_equal(read_with("--max-batch-rows=100", "--max-sequences=100"), 0);
    assert_int_equal(read_with("--max-batch-rows=100", "--max-sequences=101"), -EINVAL);
    assert_string_equal(fail_text(),
                        "max_batch_rows is 100, but must be at least max_sequences = 101");
    assert_int_equal(read_with("--kv-disk=/tmp/x", NULL), 0);
    assert_int_equal(read_with("--prefix-cache=false", NULL), 0);
    assert_int_equal(read_with("--kv-disk=/tmp/x", "--prefix-cache=false"), -EINVAL);
    assert_string_equal(fail_text(), "kv_disk requires prefix_cache = true");
    const struct verifier_options *o = NULL;
    assert_int_equal(verifier_options_read(1, (char *[]){"verifier-svc", NULL}, &o), -EINVAL);
    assert_string_equal(fail_text(), "--model is missing: the GGUF file of the target model");
}

static void words_are_read_as_what_they_mean(void **state)
{
    (void)state;
    const struct verifier_options *o = NULL;
    char *argv[] = {"verifier-svc",
                    "--model",
                    "m",
                    "--float-gemm=blas",
                    "--kv-type=f16",
                    "--proposer-targets-allowed=h:1,h:2",
                    NULL};
    assert_int_equal(verifier_options_read(6, argv, &o), 0);
    assert_true(o->blas && o->kv == KERNEL_KV_F16);
    assert_int_equal(o->speculation.n_allowed, 2);
    assert_string_equal(o->speculation.allowed[1], "h:2");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_proposer_is_a_target_or_a_name_and_a_target),
        cmocka_unit_test(none_adds_no_proposer),
        cmocka_unit_test(an_invalid_name_is_refused_with_a_sentence),
        cmocka_unit_test(the_default_proposer_must_be_a_target),
        cmocka_unit_test(the_old_name_of_the_cascade_is_a_default_proposer_with_one_warning),
        cmocka_unit_test(rereading_returns_changes_and_names_settings_that_need_a_restart),
        cmocka_unit_test(each_number_has_its_documented_range),
        cmocka_unit_test(each_setting_has_its_documented_default),
        cmocka_unit_test(settings_that_contradict_each_other_are_refused),
        cmocka_unit_test(words_are_read_as_what_they_mean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
