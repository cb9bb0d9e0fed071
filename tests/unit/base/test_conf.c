/* test_conf.c - settings from defaults, file, environment and flags. */
#include <errno.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/conf.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/secret.h"
#include "lib/lib.h"
#include "lib/rigs/logged.h"

static int64_t k, big;
static double rate;
static bool lookup, mirrored;
static char *model, *proposer;
static struct conf_list listens;

static const struct conf_option options[] = {
    {.name = "k",
     .kind = CONF_INT,
     .value = &k,
     .fallback = "5",
     .min = 1,
     .max = 20,
     .alias = "num_speculative_tokens|n_max",
     .short_flag = 'k',
     .help = "draft tokens per round"},
    {.name = "max_bytes",
     .kind = CONF_INT,
     .value = &big,
     .fallback = "-3",
     .min = -0x1p62,
     .max = 0x1p62,
     .help = "a big number"},
    {.name = "ngram.rate",
     .kind = CONF_FLOAT,
     .value = &rate,
     .fallback = "0.25",
     .min = 0,
     .max = 2,
     .help = "a rate with a help text that is so long that it has to be broken into lines, since a "
             "terminal is only so wide"},
    {.name = "prompt_lookup",
     .kind = CONF_BOOL,
     .value = &lookup,
     .fallback = "true",
     .help = "look into the prompt"},
    {.name = "model", .kind = CONF_TEXT, .value = &model, .short_flag = 'm', .help = "a file"},
    {.name = "proposer",
     .kind = CONF_CHOICE,
     .value = &proposer,
     .fallback = "ngram",
     .choices = "none|ngram",
     .help = "draft method"},
    {.name = "mirror.copies",
     .kind = CONF_BOOL,
     .value = &mirrored,
     .help = "write everything twice"},
    {.name = "listen",
     .kind = CONF_LIST,
     .value = &listens,
     .fallback = "unix:/run/a,unix:/run/b",
     .max = 20,
     .help = "addresses"},
};

static const struct conf_rename renames[] = {
    {.option = "proposer", .old_value = "lookup", .new_value = "ngram"},
    {.option = "mirror.copies", .old_name = "double"},
    {.option = "listen", .old_name = "listen.on"},
};

static void print_page(FILE *to)
{
    fputs("a page\n", to);
}

static const struct conf_info info = {"--print-page", "the page", print_page};

static const struct conf table = {.info = &info,
                                  .program = "prog",
                                  .summary = "does things",
                                  .options = options,
                                  .n_options = ARRAY_LEN(options),
                                  .renames = renames,
                                  .n_renames = ARRAY_LEN(renames)};

static int forget(void **state)
{
    (void)state;
    conf_done(&table);
    unsetenv("TANDEM_K");
    unsetenv("TANDEM_NGRAM_RATE");
    unsetenv("TANDEM_LISTEN");
    unsetenv("TANDEM_LISTEN_ON");
    unsetenv("TANDEM_PROPOSER");
    unsetenv("TANDEM_CONFIG");
    return 0;
}

#define READ(...)                                                                                  \
    ({                                                                                             \
        char *argv_[] = {"prog", __VA_ARGS__ __VA_OPT__(, ) NULL};                                 \
        conf_read(&table, (int)ARRAY_LEN(argv_) - 1, argv_);                                       \
    })

#define FILE_TEXT(text) conf_read_text(&table, "t.conf", text, strlen(text))

#define REFUSED(call, ...)                                                                         \
    do {                                                                                           \
        assert_true((call) < 0);                                                                   \
        const char *parts_[] = {__VA_ARGS__};                                                      \
        for (size_t i_ = 0; i_ < ARRAY_LEN(parts_); i_++) {                                        \
            if (!strstr(fail_text(), parts_[i_]))                                                  \
                fail_msg("\"%s\" lacks \"%s\"", fail_text(), parts_[i_]);                          \
        }                                                                                          \
    } while (0)

static void without_anything_the_defaults_hold(void **state)
{
    (void)state;
    assert_int_equal(READ(), 0);
    assert_int_equal(k, 5);
    assert_int_equal(big, -3);
    assert_true(rate == 0.25);
    assert_true(lookup);
    assert_null(model);
    assert_string_equal(proposer, "ngram");
    assert_int_equal(listens.n, 2);
    assert_string_equal(listens.v[1], "unix:/run/b");
}

static const char *file_of(const char *text)
{
    static char path[] = "/tmp/tandem-test-conf-XXXXXX";
    strcpy(path + strlen(path) - 6, "XXXXXX");
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
    return path;
}

static void file_environment_and_flag_win_in_this_order(void **state)
{
    (void)state;
    const char *path = file_of("k = 6\nngram.rate = 0.5\nlisten = x\nlisten = y\n");
    char flag[64];
    snprintf(flag, sizeof(flag), "--config=%s", path);
    assert_int_equal(READ(flag), 0);
    assert_int_equal(k, 6);
    assert_true(rate == 0.5);
    assert_int_equal(listens.n, 2);
    assert_string_equal(listens.v[0], "x");

    setenv("TANDEM_K", "7", 1);
    setenv("TANDEM_LISTEN", "p,q,r", 1);
    setenv("TANDEM_NGRAM_RATE", "", 1); // set but empty counts as not set
    setenv("TANDEM_CONFIG", path, 1);
    assert_int_equal(READ(), 0);
    assert_int_equal(k, 7);
    assert_true(rate == 0.5);
    assert_int_equal(listens.n, 3);

    assert_int_equal(READ("--k", "8", "--listen", "z", "--listen=a,b"), 0);
    assert_int_equal(k, 8);
    assert_int_equal(listens.n, 3);
    assert_string_equal(listens.v[0], "z");
    assert_string_equal(listens.v[2], "b");
    unlink(path);
}

static void flags_have_several_spellings(void **state)
{
    (void)state;
    assert_int_equal(READ("--ngram-rate=1.5e0", "-k", "3", "--max_bytes", "+12", "-m", "f.gguf"),
                     0);
    assert_true(rate == 1.5);
    assert_int_equal(k, 3);
    assert_int_equal(big, 12);
    assert_string_equal(model, "f.gguf");
    assert_int_equal(READ("--num_speculative_tokens", "4"), 0);
    assert_int_equal(k, 4);
}

static void truth_values_have_several_spellings(void **state)
{
    (void)state;
    static const struct {
        char *flag;
        bool want;
    } cases[] = {{"--prompt-lookup", true},      {"--no-prompt-lookup", false},
                 {"--prompt-lookup=off", false}, {"--prompt-lookup=TRUE", true},
                 {"--prompt-lookup=0", false},   {"--prompt_lookup=yes", true}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        assert_int_equal(READ(cases[i].flag), 0);
        assert_int_equal(lookup, cases[i].want);
    }
    REFUSED(READ("--prompt-lookup=maybe"), "--prompt-lookup", "true or false", "\"maybe\"");
    REFUSED(READ("--no-prompt-lookup=1"), "--no-prompt-lookup");
    REFUSED(READ("--no-k"), "there is no flag \"--no-k\"");
}

static void bad_values_are_refused_with_their_range(void **state)
{
    (void)state;
    static char *const bad_ints[] = {
        "0", "21", "-1", "", " 5", "5 ", "5.0", "x", "0x5", "5k", "99999999999999999999", "--5"};
    for (size_t i = 0; i < ARRAY_LEN(bad_ints); i++)
        REFUSED(READ("--k", bad_ints[i]), "--k must be a whole number from 1 to 20, not \"");
    static char *const bad_floats[] = {"2.01",  "-0.1", "nan", "inf", "1e999",
                                       "0x1p0", "1,5",  "",    ".",   "1 "};
    for (size_t i = 0; i < ARRAY_LEN(bad_floats); i++)
        REFUSED(READ("--ngram-rate", bad_floats[i]), "--ngram-rate must be a number from 0 to 2");
    REFUSED(READ("--proposer", "eagle"), "--proposer must be none or ngram, not \"eagle\"");
    REFUSED(READ("--proposer="), "none or ngram");
    setenv("TANDEM_K", "x", 1);
    REFUSED(READ("--k", "5"), "TANDEM_K must be", "1 to 20");
}

static void big_numbers_are_exact(void **state)
{
    (void)state;
    assert_int_equal(READ("--max-bytes", "4611686018427387904"), 0);
    assert_int_equal(big, INT64_C(1) << 62);
    REFUSED(READ("--max-bytes", "-9223372036854775808"),
            "--max-bytes"); // INT64_MIN is read, too low
    REFUSED(READ("--max-bytes", "9223372036854775808"), "--max-bytes");
}

/* Makes a locale whose numbers have a decimal comma, and sets it. Debian installs none, and only
 * LC_NUMERIC of this one is complete. false: there is no localedef. */
static bool set_comma_locale(void)
{
    char folder[] = "/tmp/tandem-locale-XXXXXX", command[800];
    assert_non_null(mkdtemp(folder));
    snprintf(
        command, sizeof(command),
        "cd %s && printf 'LC_NUMERIC\\ndecimal_point \",\"\\nthousands_sep \"\"\\ngrouping -1\\n"
        "END LC_NUMERIC\\n' >source && printf 'CHARMAP\\n<U002C> \\\\x2c COMMA\\nEND CHARMAP\\n' "
        ">map && "
        "localedef -c -i ./source -f ./map ./comma >/dev/null 2>&1",
        folder);
    (void)!system(command); // its status is a failure, as it misses the other categories
    setenv("LOCPATH", folder, 1);
    bool set = setlocale(LC_NUMERIC, "comma");
    unsetenv("LOCPATH");
    snprintf(command, sizeof(command), "rm -r %s", folder);
    assert_int_equal(system(command), 0);
    return set;
}

static void numbers_do_not_depend_on_the_locale(void **state)
{
    (void)state;
    if (!set_comma_locale())
        lib_skip("there is no localedef");
    assert_true(strtod("0,75", NULL) == 0.75); // the locale is in effect
    assert_int_equal(READ("--ngram-rate", "0.75"), 0);
    assert_true(rate == 0.75);
    REFUSED(READ("--ngram-rate", "0,75"), "from 0 to 2");
    setlocale(LC_ALL, "C");
}

static void unknown_and_incomplete_arguments_are_named(void **state)
{
    (void)state;
    REFUSED(READ("--nothing"), "there is no flag \"--nothing\"", "prog --help");
    REFUSED(READ("-x"), "there is no flag \"-x\"");
    REFUSED(READ("stray"), "unexpected argument \"stray\"");
    REFUSED(READ("--"), "unexpected argument");
    REFUSED(READ("-"), "unexpected argument");
    REFUSED(READ("--k"), "--k needs a value");
    REFUSED(READ("-m"), "-m needs a value");
    REFUSED(READ("--config"), "--config needs a value");
}

static void a_file_has_comments_quotes_and_blanks(void **state)
{
    (void)state;
    assert_int_equal(READ(), 0);
    assert_int_equal(FILE_TEXT("# a comment\n\n \t k=9# no\n"), -EINVAL); // '#' needs a blank
    assert_int_equal(FILE_TEXT("  k =\t9 # nine\r\nmodel = \" a # b \" # quoted\r\n"
                               "proposer=none\nprompt-lookup = no\nn_max = 10"),
                     0);
    assert_int_equal(k, 10);
    assert_string_equal(model, " a # b ");
    assert_string_equal(proposer, "none");
    assert_false(lookup);
    assert_int_equal(FILE_TEXT("model = /a#b\n"), 0);
    assert_string_equal(model, "/a#b");
    assert_int_equal(FILE_TEXT(""), 0);
    assert_int_equal(FILE_TEXT("model ="), 0);
    assert_string_equal(model, "");
}

static void bad_files_are_refused_with_their_line(void **state)
{
    (void)state;
    REFUSED(FILE_TEXT("k = 5\nk = 50\n"), "t.conf, line 2: k must be", "1 to 20", "\"50\"");
    REFUSED(FILE_TEXT("\nk 5\n"), "line 2", "name = value", "\"k 5\"");
    REFUSED(FILE_TEXT("kk = 5"), "line 1", "no setting \"kk\"");
    REFUSED(FILE_TEXT("= 5"), "no setting \"\"");
    REFUSED(FILE_TEXT("model = \"a"), "line 1", "quote");
    REFUSED(FILE_TEXT("model = \"a\" b"), "line 1", "quote");
    assert_int_equal(conf_read_text(&table, "t", "k = 5\0", 6), -EINVAL);
    REFUSED(READ("--config", "/nonexistent/x"), "/nonexistent/x", "No such file");
    REFUSED(READ("--config", "/tmp"), "/tmp", "directory");
}

static void values_and_files_above_their_limit_are_refused(void **state)
{
    (void)state;
    AUTO(mem_free) char *text = malloc(CONF_FILE_MAX + 2);
    memset(text, '#', CONF_FILE_MAX + 2);
    assert_int_equal(conf_read_text(&table, "t", text, CONF_FILE_MAX), 0);
    assert_int_equal(conf_read_text(&table, "t", text, CONF_FILE_MAX + 1), -EFBIG);
    REFUSED(READ("--config", "/dev/zero"), "/dev/zero", "larger than");
    memset(text, 'x', CONF_TEXT_MAX + 1);
    text[CONF_TEXT_MAX + 1] = 0;
    REFUSED(READ("--model", text), "--model", "longer than 4096");
    text[CONF_TEXT_MAX] = 0;
    assert_int_equal(READ("--model", text), 0);
    REFUSED(READ("--k", text), "--k must be"); // and the sentence stays one
}

/* A descriptor that is opened now has the lowest free number. */
static int lowest_free(void)
{
    int fd = dup(0);
    assert_true(fd >= 0);
    close(fd);
    return fd;
}

static void files_are_closed_after_reading(void **state)
{
    (void)state;
    struct secret s;
    int before = lowest_free();
    assert_int_equal(READ("--config", "/dev/null"), 0);
    assert_int_equal(lowest_free(), before);
    REFUSED(READ("--config", "/tmp"), "/tmp");
    assert_int_equal(lowest_free(), before);
    assert_int_equal(secret_read("nothing", "/dev/null", false, &s), 0);
    secret_done(&s);
    assert_int_equal(lowest_free(), before);
    assert_true(secret_read("nothing", "/tmp", false, &s) < 0);
    assert_int_equal(lowest_free(), before);
}

static void a_value_at_a_bound_is_taken(void **state)
{
    (void)state;
    assert_int_equal(READ("--k", "1", "--ngram-rate", "0"), 0);
    assert_int_equal(k, 1);
    assert_true(rate == 0);
    assert_int_equal(READ("--k", "20", "--ngram-rate", "2"), 0);
    assert_int_equal(k, 20);
    assert_true(rate == 2);
}

static void a_list_takes_its_own_number_of_entries(void **state)
{
    (void)state;
    char text[2 * 21 + 1];
    for (int i = 0; i < 2 * 21; i += 2)
        memcpy(text + i, "a,", 3);
    REFUSED(READ("--listen", text), "--listen takes at most 20 entries");
    REFUSED(READ("--listen", "b", "--listen", text), "--listen takes at most 20 entries");
    text[2 * 20] = 0;
    assert_int_equal(READ("--listen", text), 0);
    assert_int_equal(listens.n, 20);
}

/* ---- old spellings ---- */

/* Evaluates `call`, which must return 0. Returns what it writes to standard error. */
#define LOGGED(call)                                                                               \
    ({                                                                                             \
        logged_begin();                                                                            \
        int r_ = (call);                                                                           \
        const char *text_ = logged_end();                                                          \
        assert_int_equal(r_, 0);                                                                   \
        text_;                                                                                     \
    })

/* `log` is one warning, and it contains `want`. */
static void assert_one_warning(const char *log, const char *want)
{
    if (logged_count(log, " warn") != 1 || !strstr(log, want))
        fail_msg("expected one warning with \"%s\", found \"%s\"", want, log);
}

static void an_old_name_works_in_every_source_and_warns_once(void **state)
{
    (void)state;
    assert_int_equal(READ(), 0);
    assert_one_warning(LOGGED(FILE_TEXT("listen-on = a\nlisten.on = b\n")),
                       "t.conf, line 1: listen-on is now called listen; please");
    assert_int_equal(listens.n, 2);
    assert_string_equal(listens.v[1], "b");

    setenv("TANDEM_LISTEN_ON", "p,q,r", 1);
    assert_one_warning(LOGGED(READ()), "TANDEM_LISTEN_ON is now called TANDEM_LISTEN; please");
    assert_int_equal(listens.n, 3);

    unsetenv("TANDEM_LISTEN_ON");
    assert_one_warning(LOGGED(READ("--listen-on", "a", "--listen_on=b")),
                       "--listen-on is now called --listen; please");
    assert_int_equal(listens.n, 2);
    assert_one_warning(LOGGED(READ("--double")), "--double is now called --mirror-copies; please");
    assert_true(mirrored);
    assert_one_warning(LOGGED(READ("--no-double")),
                       "--no-double is now called --mirror-copies; please");
    assert_false(mirrored);
}

static void the_environment_prefers_the_new_name(void **state)
{
    (void)state;
    setenv("TANDEM_LISTEN", "new", 1);
    setenv("TANDEM_LISTEN_ON", "old", 1);
    assert_string_equal(LOGGED(READ()), "");
    assert_int_equal(listens.n, 1);
    assert_string_equal(listens.v[0], "new");
}

static void an_old_value_stands_for_the_new_one_and_warns_once(void **state)
{
    (void)state;
    assert_int_equal(READ(), 0);
    assert_one_warning(LOGGED(FILE_TEXT("proposer = none\nproposer = lookup\n")),
                       "t.conf, line 2: proposer: lookup is now called ngram");
    assert_string_equal(proposer, "ngram");
    setenv("TANDEM_PROPOSER", "lookup", 1);
    assert_one_warning(LOGGED(READ()), "TANDEM_PROPOSER: lookup is now called ngram");
    assert_string_equal(proposer, "ngram");
    unsetenv("TANDEM_PROPOSER");
    assert_one_warning(LOGGED(READ("--proposer", "lookup")),
                       "--proposer: lookup is now called ngram");
    assert_string_equal(proposer, "ngram");
}

static void names_of_other_engines_and_new_names_do_not_warn(void **state)
{
    (void)state;
    assert_string_equal(LOGGED(READ("--num_speculative_tokens", "4", "--listen", "a", "--proposer",
                                    "ngram", "--mirror-copies")),
                        "");
}

/* ---- output ---- */

/* What `call` prints to a file in memory. */
#define PRINTED(out, call)                                                                         \
    ({                                                                                             \
        char *text_;                                                                               \
        size_t len_;                                                                               \
        FILE *out = open_memstream(&text_, &len_);                                                 \
        call;                                                                                      \
        fclose(out);                                                                               \
        text_;                                                                                     \
    })

static void help_shows_every_setting_with_range_and_default(void **state)
{
    (void)state;
    AUTO(mem_free) char *text = PRINTED(to, conf_help(&table, to));
    static const char *const parts[] = {"prog ",
                                        "does things",
                                        "  -k, --k N ",
                                        "draft tokens per round; 1 to 20 [5]\n",
                                        "  --[no-]prompt-lookup ",
                                        "  --ngram-rate X ",
                                        "0 to 2 [0.25]\n",
                                        "none or ngram [ngram]",
                                        "addresses; a list of up to 20 [",
                                        "--config FILE",
                                        "--print-page",
                                        "TANDEM_K"};
    for (size_t i = 0; i < ARRAY_LEN(parts); i++) {
        if (!strstr(text, parts[i]))
            fail_msg("help lacks \"%s\":\n%s", parts[i], text);
    }
    assert_null(strstr(text, "listen-on")); // an old name is not advertised
    assert_null(strstr(text, "lookup or"));
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
        assert_true(strlen(line) <= 100);
}

static void the_table_is_printed_in_markdown(void **state)
{
    (void)state;
    AUTO(mem_free) char *text = PRINTED(to, conf_markdown(&table, to));
    assert_non_null(strstr(text, "| `k` | `--k, -k` | `TANDEM_K` | `5` | 1 to 20 | draft tokens"));
    assert_non_null(strstr(text, "| `ngram.rate` | `--ngram-rate` | `TANDEM_NGRAM_RATE` |"));
    assert_non_null(strstr(text, "| `model` | `--model, -m` | `TANDEM_MODEL` |  | text |"));
}

static void questions_are_answered_whatever_else_is_wrong(void **state)
{
    (void)state;
    static char *const questions[] = {"--help", "-h", "--version", "--print-config",
                                      "--print-page"};
    int out = dup(STDOUT_FILENO);
    fflush(stdout);
    assert_non_null(freopen("/dev/null", "w", stdout));
    int r[ARRAY_LEN(questions)];
    for (size_t i = 0; i < ARRAY_LEN(questions); i++)
        r[i] = READ("--nonsense", questions[i]);
    fflush(stdout);
    dup2(out, STDOUT_FILENO);
    close(out);
    for (size_t i = 0; i < ARRAY_LEN(questions); i++)
        assert_int_equal(r[i], 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(without_anything_the_defaults_hold, forget),
        cmocka_unit_test_teardown(file_environment_and_flag_win_in_this_order, forget),
        cmocka_unit_test_teardown(flags_have_several_spellings, forget),
        cmocka_unit_test_teardown(truth_values_have_several_spellings, forget),
        cmocka_unit_test_teardown(bad_values_are_refused_with_their_range, forget),
        cmocka_unit_test_teardown(big_numbers_are_exact, forget),
        cmocka_unit_test_teardown(numbers_do_not_depend_on_the_locale, forget),
        cmocka_unit_test_teardown(unknown_and_incomplete_arguments_are_named, forget),
        cmocka_unit_test_teardown(a_file_has_comments_quotes_and_blanks, forget),
        cmocka_unit_test_teardown(bad_files_are_refused_with_their_line, forget),
        cmocka_unit_test_teardown(values_and_files_above_their_limit_are_refused, forget),
        cmocka_unit_test_teardown(files_are_closed_after_reading, forget),
        cmocka_unit_test_teardown(a_value_at_a_bound_is_taken, forget),
        cmocka_unit_test_teardown(a_list_takes_its_own_number_of_entries, forget),
        cmocka_unit_test_teardown(an_old_name_works_in_every_source_and_warns_once, forget),
        cmocka_unit_test_teardown(the_environment_prefers_the_new_name, forget),
        cmocka_unit_test_teardown(an_old_value_stands_for_the_new_one_and_warns_once, forget),
        cmocka_unit_test_teardown(names_of_other_engines_and_new_names_do_not_warn, forget),
        cmocka_unit_test_teardown(help_shows_every_setting_with_range_and_default, forget),
        cmocka_unit_test_teardown(the_table_is_printed_in_markdown, forget),
        cmocka_unit_test_teardown(questions_are_answered_whatever_else_is_wrong, forget),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
