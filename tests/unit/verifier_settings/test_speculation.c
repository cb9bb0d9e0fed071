/* test_speculation.c - settings of speculation: parsing, defaults and changes. */
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "lib/lib.h"
#include "lib/rigs/logged.h"
#include "verifier-svc/settings/speculation.h"

static struct speculation speculation_of(const char *policy, uint32_t k, int32_t batch)
{
    struct speculation s = {.on = true, .k = k, .disable_batch_size = batch};
    assert_int_equal(speculation_set_policy(&s, policy, strlen(policy)), 0);
    return s;
}

static void must_control(struct speculation s, enum control_policy policy, uint32_t k,
                         uint32_t batch)
{
    struct control_options o = speculation_control(&s);
    assert_int_equal(o.policy, policy);
    assert_int_equal(o.k, k);
    assert_int_equal(o.disable_batch_size, batch);
}

static void a_policy_has_defaults_that_settings_replace(void **state)
{
    (void)state;
    must_control(speculation_of("goodput", 0, -1), CONTROL_GOODPUT, 16, 0);
    must_control(speculation_of("fixed", 0, -1), CONTROL_FIXED, 5, 0);
    must_control(speculation_of("ema", 0, -1), CONTROL_EMA, 5, 8);
    must_control(speculation_of("ema", 3, 0), CONTROL_EMA, 3, 0);
    must_control(speculation_of("goodput", 20, 64), CONTROL_GOODPUT, 20, 64);
    struct speculation s = speculation_of("ema", 0, -1);
    assert_string_equal(speculation_policy(&s), "ema");
    assert_int_equal(speculation_set_policy(&s, "emas", 4), -EINVAL);
    assert_string_equal(fail_text(), "policy must be goodput, fixed or ema, not \"emas\"");
}

static void a_change_applies_the_fields_that_it_names(void **state)
{
    (void)state;
    struct speculation s = speculation_of("fixed", 7, 9), r;
    struct speculation_change c = {.to = speculation_of("ema", 2, 3)};
    assert_int_equal(speculation_add_target(&s, "a=h:1", 5), 0);
    assert_int_equal(speculation_add_target(&c.to, "b=h:2", 5), 0);
    strcpy(c.to.proposer, "b");
    c.to.on = false;
    r = speculation_after(&s, &c);
    assert_memory_equal(&r, &s, sizeof(r));
    c.has = SPECULATION_K;
    r = speculation_after(&s, &c);
    must_control(r, CONTROL_FIXED, 2, 9);
    assert_true(r.on);
    c.has = SPECULATION_ON | SPECULATION_TARGETS;
    r = speculation_after(&s, &c);
    must_control(r, CONTROL_FIXED, 7, 9);
    assert_false(r.on);
    assert_string_equal(r.targets[0].name, "b");
    assert_string_equal(r.proposer, "");
    c.has = ~0u;
    r = speculation_after(&s, &c);
    assert_memory_equal(&r, &c.to, sizeof(r));
}

static int add_target(struct speculation *s, const char *text, size_t len)
{
    char *exact = malloc(len ? len : 1); // sanitizers see a read beyond it
    memcpy(exact, text, len);
    int r = speculation_add_target(s, exact, len);
    free(exact);
    return r;
}

static void bad_targets_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t len;
    } bad[] = {{"", 0},   {"a=", 2},      {"=h:1", 4},     {"h:1\n2", 5},    {"a=h\0:1", 6},
               {"\0", 1}, {"h\x7f:1", 4}, {"a\0b=h:1", 7}, {"a=\x1b[2J", 6}, {"a b=unix:/x", 11}};
    struct speculation s = {0};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        assert_int_equal(add_target(&s, bad[i].text, bad[i].len), -EINVAL);
    char longest[DRAFTS_TARGET_MAX + 1];
    memset(longest, 'x', sizeof(longest));
    assert_int_equal(add_target(&s, longest, DRAFTS_TARGET_MAX), -EINVAL);
    assert_int_equal(s.n_targets, 0);
    for (unsigned i = 0; i < DRAFT_MAX_PROPOSERS; i++)
        assert_int_equal(add_target(&s, longest, DRAFTS_TARGET_MAX - 1), 0);
    assert_int_equal(add_target(&s, "none", 4), 0);
    assert_int_equal(add_target(&s, "h:1", 3), -EINVAL);
    assert_string_equal(fail_text(), "proposers: more than 16 targets");
}

static void the_cascade_is_also_found_by_its_old_name_with_one_warning(void **state)
{
    (void)state;
    struct speculation s = {.proposer = "chain"};
    assert_int_equal(add_target(&s, "ngram=h:1", 9), 0);
    logged_begin();
    int without = speculation_check_default(&s, NULL);
    int added = add_target(&s, "cascade=h:2", 11);
    int first = speculation_check_default(&s, NULL), second = speculation_check_default(&s, NULL);
    bool is_default = speculation_is_default(&s, "cascade");
    const char *log = logged_end();
    assert_int_equal(without, -EINVAL);
    assert_int_equal(added | first | second, 0);
    assert_true(is_default);
    assert_int_equal(logged_count(log, "\n"), 1);
    assert_int_equal(logged_count(log, "default_proposer: chain is now called cascade; please use"),
                     1);
}

static void a_configured_name_is_free(void **state)
{
    (void)state;
    atomic_flag warned = ATOMIC_FLAG_INIT;
    assert_true(drafts_is_called("", &warned, "chain", "chain"));
    assert_false(drafts_is_called("", &warned, "chain", "cascade"));
    assert_false(drafts_is_called("", &warned, "ngram", "chain"));
    assert_false(atomic_flag_test_and_set(&warned)); // nothing was logged
    struct speculation s = {.proposer = "chain"};
    assert_int_equal(add_target(&s, "cascade=h:1", 11), 0);
    assert_int_equal(add_target(&s, "chain=h:2", 9), 0);
    assert_false(speculation_is_default(&s, "cascade"));
    assert_true(speculation_is_default(&s, "chain"));
}

/* What a call that names this target gets. */
static int call_with(const struct speculation *s, const char *target)
{
    struct speculation_change c = {.has = SPECULATION_TARGETS};
    assert_int_equal(add_target(&c.to, target, strlen(target)), 0);
    return speculation_check_allowed(s, &c);
}

static void a_call_names_only_targets_that_match(void **state)
{
    (void)state;
    static const char *const patterns[] = {"unix:/run/p-*.sock", "dns:///*.a.example:50", "h:1"};
    static const char *const good[] = {"unix:/run/p-1.sock", "x=unix:/run/p-a_b-C.sock",
                                       "unix:/run/p-.sock", "dns:///gpu7.a.example:50", "h:1"};
    static const char *const bad[] = {"unix:/run/p-1.sock2",
                                      "unix:/run/p-x/../../tmp/y.sock",
                                      "unix:/run/q-1.sock",
                                      "dns:///evil.example:1#.a.example:50",
                                      "dns:///evil.example:1?.a.example:50",
                                      "dns:///x.y.a.example:50",
                                      "dns:///gpu7.a.example:500",
                                      "h:11",
                                      "xh:1",
                                      "*"};
    struct speculation s = {0};
    assert_int_equal(speculation_allow(&s, patterns, ARRAY_LEN(patterns)), 0);
    for (size_t i = 0; i < ARRAY_LEN(good); i++)
        if (call_with(&s, good[i]) != 0)
            fail_msg("%s", good[i]);
    for (size_t i = 0; i < ARRAY_LEN(bad); i++)
        if (call_with(&s, bad[i]) != -EACCES)
            fail_msg("%s", bad[i]);
    assert_non_null(strstr(fail_text(), "the target \"*\" is not in proposer_targets_allowed"));
}

static void without_patterns_a_call_names_the_configured_targets(void **state)
{
    (void)state;
    struct speculation s = {0};
    assert_int_equal(add_target(&s, "a=h:1", 5), 0);
    assert_int_equal(speculation_allow(&s, NULL, 0), 0);
    assert_int_equal(call_with(&s, "b=h:1"), 0);
    assert_int_equal(call_with(&s, "h:2"), -EACCES);
    assert_int_equal(speculation_allow(&s, (const char *[]){"none"}, 1), 0);
    assert_int_equal(call_with(&s, "h:1"), -EACCES);
    struct speculation_change off = {.has = SPECULATION_ON | SPECULATION_TARGETS};
    assert_int_equal(speculation_check_allowed(&s, &off), 0); // names none
    struct speculation_change file = {.has = SPECULATION_TARGETS | SPECULATION_ALLOWED};
    assert_int_equal(add_target(&file.to, "h:3", 3), 0);
    assert_int_equal(speculation_allow(&file.to, NULL, 0), 0);
    assert_int_equal(speculation_check_allowed(&s, &file), 0); // the configuration's
    s = speculation_after(&s, &file);
    assert_int_equal(call_with(&s, "h:3"), 0);
    assert_int_equal(call_with(&s, "h:1"), -EACCES);
}

static void patterns_are_bounded(void **state)
{
    (void)state;
    struct speculation s = {0};
    const char *many[SPECULATION_ALLOWED_MAX + 1];
    char text[DRAFTS_TARGET_MAX + 1];
    for (size_t i = 0; i < ARRAY_LEN(many); i++)
        many[i] = "h:1";
    assert_int_equal(speculation_allow(&s, many, SPECULATION_ALLOWED_MAX), 0);
    assert_int_equal(speculation_allow(&s, many, ARRAY_LEN(many)), -EINVAL);
    memset(text, 'x', sizeof(text));
    text[DRAFTS_TARGET_MAX] = 0;
    assert_int_equal(speculation_allow(&s, (const char *[]){text}, 1), -EINVAL);
    text[DRAFTS_TARGET_MAX - 1] = 0;
    assert_int_equal(speculation_allow(&s, (const char *[]){text}, 1), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_policy_has_defaults_that_settings_replace),
        cmocka_unit_test(a_change_applies_the_fields_that_it_names),
        cmocka_unit_test(bad_targets_are_refused),
        cmocka_unit_test(the_cascade_is_also_found_by_its_old_name_with_one_warning),
        cmocka_unit_test(a_configured_name_is_free),
        cmocka_unit_test(a_call_names_only_targets_that_match),
        cmocka_unit_test(without_patterns_a_call_names_the_configured_targets),
        cmocka_unit_test(patterns_are_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
