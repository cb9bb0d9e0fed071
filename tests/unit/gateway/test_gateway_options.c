/* test_gateway_options.c - each number has its range: both ends are accepted, and what is beyond
 * them is refused by name. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "base/err.h"
#include "base/mem.h"
#include "gateway/gateway_options.h"
#include "lib/lib.h"

static int reads(const char *flag, const char *value, struct gateway_options **ret)
{
    char arg[128];
    char *argv[] = {(char *)"gateway", arg, NULL};
    snprintf(arg, sizeof(arg), "%s=%s", flag, value);
    return gateway_options_read(2, argv, ret);
}

static const struct range {
    const char *flag, *below, *least, *most, *above, *fallback;
} ranges[] = {
    {"--http-threads", "0", "1", "64", "65", "2"},
    {"--max-connections", "0", "1", "65536", "65537", "4096"},
    {"--max-connections-per-ip", "-1", "0", "65536", "65537", "0"},
    {"--max-body-kib", "0", "1", "1048576", "1048577", "8192"},
    {"--max-bodies-mib", "0", "1", "1048576", "1048577", "256"},
    {"--max-header-bytes", "255", "256", "49152", "49153", "16384"},
    {"--max-unread-kib", "15", "16", "1048576", "1048577", "1024"},
    {"--reader-timeout", "0.09", "0.1", "3600", "3600.1", "60"},
    {"--request-timeout", "0.09", "0.1", "3600", "3600.1", "30"},
    {"--idle-timeout", "0.09", "0.1", "86400", "86400.1", "75"},
    {"--keepalive-interval", "0.09", "0.1", "3600", "3600.1", "5"},
    {"--load-wait", "-0.1", "0", "3600", "3600.1", "30"},
    {"--queue-wait", "0.09", "0.1", "86400", "86400.1", "300"},
    {"--stall-timeout", "0.4", "0.5", "3600", "3600.1", "5"},
    {"--resume-wait", "-0.1", "0", "3600", "3600.1", "10"},
    {"--drain-timeout", "-0.1", "0", "3600", "3600.1", "120"},
    {"--template-workers", "0", "1", "64", "65", "2"},
    {"--template-timeout", "0.04", "0.05", "60", "60.1", "2"},
};

static void numbers_are_checked_at_both_ends(void **state)
{
    (void)state;
    struct gateway_options *o;
    for (size_t i = 0; i < ARRAY_LEN(ranges); i++) {
        const struct range *r = &ranges[i];
        const char *const good[] = {r->least, r->most, r->fallback}, *const bad[] = {r->below,
                                                                                     r->above};
        for (size_t j = 0; j < ARRAY_LEN(good); j++)
            if (reads(r->flag, good[j], &o) != 0)
                fail_msg("%s", fail_text());
        for (size_t j = 0; j < ARRAY_LEN(bad); j++) {
            if (reads(r->flag, bad[j], &o) != -EINVAL || !strstr(fail_text(), r->flag + 2))
                fail_msg("%s=%s: %s", r->flag, bad[j], fail_text());
        }
    }
    gateway_options_done();
}

/* n times "a", with commas. */
static int reads_list(const char *flag, unsigned n, struct gateway_options **ret)
{
    char text[128] = "a";
    for (unsigned i = 1; i < n; i++)
        strcat(text, ",a");
    return reads(flag, text, ret);
}

static void lists_have_32_entries_at_most(void **state)
{
    (void)state;
    static const char *const flags[] = {"--verifiers", "--cors-origins", "--trusted-proxies"};
    struct gateway_options *o;
    for (size_t i = 0; i < ARRAY_LEN(flags); i++) {
        assert_int_equal(reads_list(flags[i], 32, &o), 0);
        assert_int_equal(reads_list(flags[i], 33, &o), -EINVAL);
    }
    gateway_options_done();
}

static void without_flags_the_defaults_count(void **state)
{
    (void)state;
    char *argv[] = {(char *)"gateway", NULL};
    struct gateway_options *o;
    assert_int_equal(gateway_options_read(1, argv, &o), 0);
    assert_string_equal(o->listen, "127.0.0.1:8080");
    assert_null(o->api_keys);
    assert_null(o->usage_file);
    assert_null(o->tls_cert);
    assert_false(o->allow_open);
    assert_false(o->metrics_open);
    assert_int_equal(o->verifiers.n, 1);
    assert_string_equal(o->verifiers.v[0], "unix:/run/tandem/verifier.sock");
    assert_int_equal(o->cors_origins.n, 0);
    assert_int_equal(o->max_connections, 4096);
    assert_true(o->template_timeout == 2);
    assert_string_equal(o->tool_format, "auto");
    assert_string_equal(o->log_level, "info");
    gateway_options_done();
}

static void choices_are_checked(void **state)
{
    (void)state;
    struct gateway_options *o;
    assert_int_equal(reads("--log-level", "debug", &o), 0);
    assert_string_equal(o->log_level, "debug");
    assert_int_equal(reads("--log-level", "loud", &o), -EINVAL);
    assert_int_equal(reads("--tool-format", "hermes", &o), 0);
    assert_int_equal(reads("--tool-format", "none-such", &o), -EINVAL);
    gateway_options_done();
}

/* What --help prints. Static buffer. */
static const char *help(void)
{
    static char text[65536];
    char *argv[] = {(char *)"gateway", (char *)"--help", NULL};
    struct gateway_options *o;
    int before = dup(STDOUT_FILENO), memory = memfd_create("help", MFD_CLOEXEC);
    fflush(stdout);
    dup2(memory, STDOUT_FILENO);
    int rc = gateway_options_read(2, argv, &o);
    fflush(stdout);
    dup2(before, STDOUT_FILENO);
    close(before);
    ssize_t n = pread(memory, text, sizeof(text) - 1, 0);
    close(memory);
    gateway_options_done();
    assert_int_equal(rc, 1);
    assert_true(n > 0);
    text[n] = 0;
    return text;
}

static void the_help_names_all_settings_by_their_long_names(void **state)
{
    (void)state;
    const char *text = help();
    for (size_t i = 0; i < ARRAY_LEN(ranges); i++)
        assert_non_null(strstr(text, ranges[i].flag));
    for (const char *c = text; *c; c++)
        assert_true(*c == '\n' || (unsigned char)*c >= ' '); // no short flag but those of conf.c
    for (const char *at = text; (at = strstr(at, "\n  -")); at++)
        assert_true(at[4] == '-' || at[4] == 'h');
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_checked_at_both_ends),
        cmocka_unit_test(lists_have_32_entries_at_most),
        cmocka_unit_test(without_flags_the_defaults_count),
        cmocka_unit_test(choices_are_checked),
        cmocka_unit_test(the_help_names_all_settings_by_their_long_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
