/* The metrics of several processes become one text that Prometheus accepts. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "base/mem.h"
#include "gateway/serve/prom_merge.h"
#include "lib/fakes/failing.h"
#include "lib/lib.h"

static struct prom_merge p;

static int begin(void **state)
{
    (void)state;
    prom_merge_init(&p, false);
    return 0;
}

static int end(void **state)
{
    (void)state;
    prom_merge_done(&p);
    return 0;
}

static void add(const char *text, const char *instance)
{
    prom_merge_add(&p, text, strlen(text), instance, strlen(instance));
}

static void is_openmetrics(const char *want)
{
    AUTO(buf_done) struct buf b = {0};
    buf_init(&b, 1 << 20);
    prom_merge_write_openmetrics(&p, &b);
    assert_string_equal(b.data ? b.data : "", want);
}

static void is(const char *want)
{
    AUTO(buf_done) struct buf b = {0};
    buf_init(&b, 1 << 20);
    prom_merge_write(&p, &b);
    assert_string_equal(b.data ? b.data : "", want);
}

static void families_are_merged_with_an_instance_label(void **state)
{
    (void)state;
    add("# HELP a Help.\n# TYPE a counter\na 1\na{x=\"y\"} 2\n# TYPE b gauge\nb{} 3\n", "one");
    add("# HELP a Help.\n# TYPE a counter\na 4\n", "two");
    is("# HELP a Help.\n# TYPE a counter\na{instance=\"one\"} 1\na{instance=\"one\",x=\"y\"} 2\n"
       "a{instance=\"two\"} 4\n# TYPE b gauge\nb{instance=\"one\"} 3\n");
}

static void no_service_has_the_families_of_the_gateway(void **state)
{
    (void)state;
    add("# TYPE tandem_gateway_a counter\ntandem_gateway_a 1\nother 2\n", "one");
    prom_merge_own_done(&p);
    add("# HELP tandem_gateway_a Mine.\ntandem_gateway_a 9\ntandem_gateway_b 9\nother 9\nup 1\n"
        "# TYPE up gauge\nup 1\n# TYPE tandem_c gauge\ntandem_gateway_a 9\ntandem_c 3\n"
        "process_d 4\n",
        "two");
    is("# TYPE tandem_gateway_a counter\ntandem_gateway_a{instance=\"one\"} 1\n"
       "other{instance=\"one\"} 2\n# TYPE tandem_c gauge\ntandem_c{instance=\"two\"} 3\n"
       "process_d{instance=\"two\"} 4\n");
}

static void samples_of_a_histogram_stay_together(void **state)
{
    (void)state;
    add("# TYPE h histogram\nh_bucket{le=\"1\"} 1\nh_sum 2\nh_count 1\nh_other 5\n", "i");
    is("# TYPE h histogram\nh_bucket{instance=\"i\",le=\"1\"} 1\nh_sum{instance=\"i\"} 2\n"
       "h_count{instance=\"i\"} 1\nh_other{instance=\"i\"} 5\n");
}

static void openmetrics_names_counters_without_total_and_has_an_end(void **state)
{
    (void)state;
    AUTO(buf_done) struct buf b = {0};
    p.exemplars = true;
    add("# HELP a_total Says \"a\".\n# TYPE a_total counter\na_total 1\n# TYPE b counter\nb 2\n"
        "# HELP _total x\n# TYPE _total counter\n_total 6\n# TYPE c untyped\nc 3\nd 4\n"
        "# TYPE h histogram\nh_bucket{le=\"1\"} 1 # {trace_id=\"7\"} 0.5 9\n",
        "i");
    buf_init(&b, 1 << 20);
    prom_merge_write_openmetrics(&p, &b);
    assert_string_equal(
        b.data, "# HELP a Says \\\"a\\\".\n# TYPE a counter\na_total{instance=\"i\"} 1\n"
                "# TYPE b unknown\nb{instance=\"i\"} 2\n"
                "# HELP _total x\n# TYPE _total unknown\n_total{instance=\"i\"} 6\n"
                "# TYPE c unknown\nc{instance=\"i\"} 3\n# TYPE d unknown\nd{instance=\"i\"} 4\n"
                "# TYPE h histogram\nh_bucket{instance=\"i\",le=\"1\"} 1 # {trace_id=\"7\"} 0.5 9\n"
                "# EOF\n");
}

static void malformed_lines_are_dropped(void **state)
{
    (void)state;
    static const char *const bad[] = {"no sample",
                                      "}{",
                                      "9a 1",
                                      "# a comment",
                                      "",
                                      "# TYPE",
                                      "# HELP ",
                                      "a",
                                      "a ",
                                      "a=3",
                                      "a 1x",
                                      "a 0x1p3",
                                      "a 1 2",
                                      "a .",
                                      "a e5",
                                      "a 1e",
                                      "a --1",
                                      "a 1.5.2",
                                      "a inf",
                                      "a Nan",
                                      "a{b} 1",
                                      "a{b=1} 1",
                                      "a{b=\"x} 1",
                                      "a{b=\"x\"",
                                      "a{b=\"x\"}1",
                                      "a{b=\"x\\y\"} 1",
                                      "a{b=\"x\\",
                                      "a{b=\"x\" c=\"y\"} 1",
                                      "a{9=\"x\"} 1",
                                      "a{} }{ nonsense",
                                      "a{b=\"\xff\"} 1",
                                      "a 1\r",
                                      "a 1 # {",
                                      "a 1 # {b=\"c\"}",
                                      "a 1 # {b=\"c\"} x",
                                      "a 1 # {b=\"c\"} 1 2 3",
                                      "a 1 #",
                                      "a 1 # {b} 1",
                                      "a{b=\"\x7f\"} 1",
                                      "a{,} 1",
                                      "a{b:c=\"x\"} 1",
                                      "a{b=\"1\",b=\"2\"} 1",
                                      "a{__name__=\"x\"} 1",
                                      "a 1e999",
                                      "a{b=\"1\",} 9",
                                      "a  1",
                                      "a\t1",
                                      "a 1 ",
                                      "a{ b=\"c\"} 1",
                                      "a{b =\"c\"} 1",
                                      "a 1 # {b=\"c\"} 1",
                                      "a 1 # {} 1 2"};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        add(bad[i], "i");
        is("");
    }
    prom_merge_add(&p, "x\0y 1\n", 6, "i", 1);
    prom_merge_add(&p, "x 1\0y\n", 6, "i", 1); // the output has no NUL
    is("");
    add("}{\nok 1", "i");
    is("ok{instance=\"i\"} 1\n");
}

static void malformed_exemplars_are_dropped(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "a 1 # {",        "a 1 # {b=\"c\"}",       "a 1 # {b=\"c\"} x",
        "a 1 #",          "a 1 # {b=\"c\"} 1 2 3", "a 1 # {b} 1",
        "a 1 # {} 1 NaN", "a 1 # {} 1 +Inf",       "a 1  # {} 1",
        "a 1 # {} 1 "};
    p.exemplars = true;
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        add(bad[i], "i");
        is("");
    }
    add("a 1 # {} NaN 1.5", "i");
    is("a{instance=\"i\"} 1 # {} NaN 1.5\n");
}

static void numbers_are_those_of_the_text_format(void **state)
{
    (void)state;
    add("a -1.5e+07\na +2\na .5\na 5.\na NaN\na +Inf\na -Inf\na Inf\na 1E-3\n", "i");
    is("a{instance=\"i\"} -1.5e+07\na{instance=\"i\"} +2\na{instance=\"i\"} .5\n"
       "a{instance=\"i\"} 5.\na{instance=\"i\"} NaN\na{instance=\"i\"} +Inf\n"
       "a{instance=\"i\"} -Inf\na{instance=\"i\"} Inf\na{instance=\"i\"} 1E-3\n");
}

static void a_comment_with_other_bytes_or_an_unknown_type_is_dropped(void **state)
{
    (void)state;
    add("# HELP a \xff\n# TYPE a other\na 1\n# TYPE b\nb 2\n# HELP c-d x\nc 3\n", "i");
    is("a{instance=\"i\"} 1\nb{instance=\"i\"} 2\nc{instance=\"i\"} 3\n");
}

static void a_sample_with_its_own_instance_is_dropped(void **state)
{
    (void)state;
    p.exemplars = true;
    add("a{instance=\"x\"} 1\na{b=\"\\\"},\",instance=\"x\"} 2\n"
        "b{c=\"instance=\"} 5\nb{instances=\"1\"} 6\nb{c=\"\\\\\",d=\",instance=\"} 7\n"
        "b{c=\"1\"} 8 # {instance=\"y\"} 1\nb 9 # {} 1 2\n",
        "i");
    is("b{instance=\"i\",c=\"instance=\"} 5\nb{instance=\"i\",instances=\"1\"} 6\n"
       "b{instance=\"i\",c=\"\\\\\",d=\",instance=\"} 7\n"
       "b{instance=\"i\",c=\"1\"} 8 # {instance=\"y\"} 1\n"
       "b{instance=\"i\"} 9 # {} 1 2\n");
}

static void a_sample_has_sixteen_labels_at_most(void **state)
{
    (void)state;
    AUTO(buf_done) struct buf text = {0};
    buf_init(&text, 1 << 20);
    for (int n = 16; n <= 17; n++) {
        for (int i = 0; i < n; i++)
            buf_printf(&text, "%sl%d=\"\"", i ? "," : "a{", i);
        buf_printf(&text, "} %d\n", n);
    }
    prom_merge_add(&p, text.data, text.len, "i", 1);
    assert_int_equal(p.n, 1);
    buf_clear(&text);
    prom_merge_write(&p, &text);
    assert_non_null(strstr(text.data, "l15=\"\"} 16\n"));
    assert_null(strstr(text.data, "17"));
}

static void instances_cannot_break_out_of_their_label(void **state)
{
    (void)state;
    add("a 1\n", "x\"} 7\na{");
    is("a{instance=\"x\\\"} 7\\na{\"} 1\n");
}

static void families_are_limited(void **state)
{
    (void)state;
    AUTO(buf_done) struct buf text = {0};
    buf_init(&text, 1 << 20);
    for (unsigned n = 0; n < PROM_MERGE_MAX_FAMILIES; n += PROM_MERGE_MAX_OF_ONE) {
        buf_clear(&text);
        for (unsigned i = 0; i < PROM_MERGE_MAX_OF_ONE + 10; i++)
            buf_printf(&text, i % 2 ? "f%u_%u 1\n" : "# HELP f%u_%u x\n", n, i);
        prom_merge_add(&p, text.data, text.len, "i", 1);
        assert_int_equal(p.n, n + PROM_MERGE_MAX_OF_ONE);
    }
    add("new 1\n", "j");
    assert_int_equal(p.n, PROM_MERGE_MAX_FAMILIES);
}

static void a_known_family_is_found_among_many(void **state)
{
    (void)state;
    AUTO(buf_done) struct buf text = {0}, out = {0};
    buf_init(&text, 1 << 20);
    for (unsigned n = 0; n < PROM_MERGE_MAX_FAMILIES; n += PROM_MERGE_MAX_OF_ONE) {
        buf_clear(&text);
        for (unsigned round = 0; round < 2; round++)
            for (unsigned i = 0; i < PROM_MERGE_MAX_OF_ONE; i++)
                buf_printf(&text, "f%u %u\n", n + i, round);
        prom_merge_add(&p, text.data, text.len, "i", 1);
    }
    add("f7 2\nnew 1\n", "j");
    assert_int_equal(p.n, PROM_MERGE_MAX_FAMILIES);
    buf_init(&out, 1 << 20);
    prom_merge_write(&p, &out);
    assert_non_null(strstr(out.data, "f7{instance=\"i\"} 0\nf7{instance=\"i\"} 1\n"
                                     "f7{instance=\"j\"} 2\nf8{instance=\"i\"} 0\n"));
    assert_null(strstr(out.data, "new"));
}

/* Samples of a family continue after others, which have moved all families. */
static void a_family_stays_when_the_others_grow(void **state)
{
    enum { N = 200 };
    (void)state;
    AUTO(buf_done) struct buf text = {0}, out = {0};
    buf_init(&text, 1 << 20);
    buf_puts(&text, "# TYPE h histogram\n");
    for (unsigned i = 0; i < N; i++)
        buf_printf(&text, "f%u 1\nh_count %u\n", i, i);
    prom_merge_add(&p, text.data, text.len, "i", 1);
    assert_int_equal(p.n, N + 1);
    buf_init(&out, 1 << 20);
    prom_merge_write(&p, &out);
    assert_non_null(
        strstr(out.data, "h_count{instance=\"i\"} 198\nh_count{instance=\"i\"} 199\nf0{"));
}

/* The label counts for each line, so the bound is also one of the output. */
static void the_text_of_one_process_is_limited(void **state)
{
    (void)state;
    AUTO(buf_done) struct buf text = {0}, out = {0};
    size_t fits = PROM_MERGE_MAX_ADDED / (strlen("ab 1") + strlen("instance=\"i\""));
    buf_init(&text, 16 << 20);
    for (size_t i = 0; i < fits + 10; i++)
        buf_puts(&text, "ab 1\n");
    prom_merge_add(&p, text.data, text.len, "i", 1);
    buf_init(&out, 16 << 20);
    prom_merge_write(&p, &out);
    assert_int_equal(out.len, fits * strlen("ab{instance=\"i\"} 1\n"));
    add("ab 2\n", "other"); // has its own limit
    buf_clear(&out);
    prom_merge_write(&p, &out);
    assert_non_null(strstr(out.data, "ab{instance=\"other\"} 2\n"));
}

/* All families, then as many lines of further names as the limit allows; and a long name before
 * lines that are compared with it. This takes 0.05 s. With a search through all families for each
 * line it takes 20 s. */
static void many_lines_of_unknown_families_end(void **state)
{
    (void)state;
    AUTO(buf_done) struct buf text = {0};
    clock_t begun = clock(); // CPU time
    buf_init(&text, 16 << 20);
    for (unsigned i = 0; i < PROM_MERGE_MAX_FAMILIES; i++)
        buf_printf(&text, "f%u 1\n", i);
    while (text.len < PROM_MERGE_MAX_ADDED)
        buf_puts(&text, "z 1\n");
    for (unsigned i = 0; i < 32; i++) // as many verifiers
        prom_merge_add(&p, text.data, text.len, "", 0);
    assert_int_equal(p.n, PROM_MERGE_MAX_FAMILIES);
    prom_merge_done(&p);
    buf_clear(&text);
    buf_puts(&text, "# HELP ");
    while (text.len < PROM_MERGE_MAX_ADDED / 2)
        buf_puts(&text, "long");
    while (text.len < PROM_MERGE_MAX_ADDED)
        buf_puts(&text, "\nl 1");
    prom_merge_add(&p, text.data, text.len, "", 0);
    assert_int_equal(p.n, 2);
    assert_true((clock() - begun) / CLOCKS_PER_SEC < 10);
}

static void names_have_letters_digits_and_two_more_characters(void **state)
{
    (void)state;
    add("a:b_9 1\n_x 2\n:y{} 3\nA 4\nz-q 5\n9a 6\n", "i");
    is("a:b_9{instance=\"i\"} 1\n_x{instance=\"i\"} 2\n:y{instance=\"i\"} 3\nA{instance=\"i\"} "
       "4\n");
}

static void the_comments_of_the_gateway_count(void **state)
{
    (void)state;
    add("# HELP process_a\n# TYPE process_a gauge\nprocess_a 1\n# EOF\n", "one"); // the shortest
    prom_merge_own_done(&p);
    add("# HELP process_a Two.\n# TYPE process_a histogram\nprocess_a 2\nprocess_a_sum 9\n"
        "# HELPS process_a 3\n",
        "two");
    is("# HELP process_a\n# TYPE process_a gauge\nprocess_a{instance=\"one\"} 1\n"
       "process_a{instance=\"two\"} 2\n");
}

/* Neither by its place in the order. */
static void no_service_decides_for_others(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "# HELP tandem_a Forged.\n# TYPE tandem_a histogram\n# HELP tandem_b Good.\n"
        "# HELP tandem_c Forged.\n",
        "# HELP tandem_a Good.\n# TYPE tandem_a gauge\ntandem_a 1\n"
        "# HELP tandem_b Good.\n# TYPE tandem_b gauge\ntandem_b 2\n"
        "# HELP tandem_c Good.\n# TYPE tandem_c gauge\ntandem_c 3\n"};
    for (int first = 0; first < 2; first++) {
        prom_merge_done(&p);
        prom_merge_init(&p, false);
        prom_merge_own_done(&p);
        add(texts[first], "i");
        add(texts[!first], "i");
        is("# TYPE tandem_a untyped\ntandem_a{instance=\"i\"} 1\n"
           "# HELP tandem_b Good.\n# TYPE tandem_b gauge\ntandem_b{instance=\"i\"} 2\n"
           "# TYPE tandem_c gauge\ntandem_c{instance=\"i\"} 3\n");
        is_openmetrics("# TYPE tandem_a unknown\ntandem_a{instance=\"i\"} 1\n"
                       "# HELP tandem_b Good.\n# TYPE tandem_b gauge\ntandem_b{instance=\"i\"} 2\n"
                       "# TYPE tandem_c gauge\ntandem_c{instance=\"i\"} 3\n# EOF\n");
    }
}

/* Without the type, its parts are families. */
static void a_histogram_of_unknown_type_keeps_its_samples(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++)
        add("# TYPE h histogram\nh_bucket{le=\"1\"} 1\nh_sum 2\nh_count 1\n", i ? "k" : "i");
    add("# TYPE h gauge\nh 5\n", "j");
    is("# TYPE h untyped\nh{instance=\"j\"} 5\n"
       "# TYPE h_bucket untyped\nh_bucket{instance=\"i\",le=\"1\"} 1\n"
       "h_bucket{instance=\"k\",le=\"1\"} 1\n"
       "# TYPE h_sum untyped\nh_sum{instance=\"i\"} 2\nh_sum{instance=\"k\"} 2\n"
       "# TYPE h_count untyped\nh_count{instance=\"i\"} 1\nh_count{instance=\"k\"} 1\n");
}

static void samples_have_names_of_their_type(void **state)
{
    (void)state;
    add("# TYPE h histogram\nh_sum 2\nh 7\n# TYPE g gauge\ng_sum 1\ng 2\n"
        "# TYPE s summary\ns 3\ns_sum 4\ns_bucket 5\n",
        "i");
    is("# TYPE h histogram\nh_sum{instance=\"i\"} 2\n# TYPE g gauge\ng{instance=\"i\"} 2\n"
       "# TYPE s summary\ns{instance=\"i\"} 3\ns_sum{instance=\"i\"} 4\n");
}

/* Otherwise one service could take the names of another's histogram. */
static void no_family_has_the_name_of_a_part(void **state)
{
    (void)state;
    add("# TYPE a_count gauge\na_count 1\na_bucket 2\na_sum 3\na_created 4\nb 5\n", "i");
    is("b{instance=\"i\"} 5\n");
}

static void no_family_occurs_twice_in_openmetrics(void **state)
{
    (void)state;
    static const char *const texts[] = {"# TYPE a gauge\na 5\n",
                                        "# HELP a_total A.\n# TYPE a_total counter\na_total 6\n"};
    static const char *const wants[] = {"# TYPE a gauge\na{instance=\"i\"} 5\n",
                                        "# HELP a_total A.\n# TYPE a_total unknown\n"
                                        "a_total{instance=\"i\"} 6\n"};
    char want[256];
    for (int first = 0; first < 2; first++) {
        prom_merge_done(&p);
        prom_merge_init(&p, true);
        add(texts[first], "i");
        add(texts[!first], "i");
        snprintf(want, sizeof(want), "%s%s# EOF\n", wants[first], wants[!first]);
        is_openmetrics(want);
    }
}

/* A family without samples, and one whose text is over the limit, are left out. */
static void families_without_samples_are_left_out(void **state)
{
    (void)state;
    add("# HELP a Help.\n# TYPE a gauge\nb 1\n", "i");
    is("b{instance=\"i\"} 1\n");
    AUTO(buf_done) struct buf b = {0};
    buf_init(&b, 1 << 20);
    prom_merge_write_openmetrics(&p, &b);
    assert_string_equal(b.data, "# TYPE b unknown\nb{instance=\"i\"} 1\n# EOF\n");
}

static void without_memory_series_are_left_out(void **state)
{
    (void)state;
    unsigned n = 0;
    for (bool failed = true; failed;) {
        prom_merge_done(&p);
        failing_at(++n);
        add("# HELP a Help.\n# TYPE a gauge\na 1\n", "i");
        failed = failing_has_failed();
        assert_true(p.n <= 1);
    }
    is("# HELP a Help.\n# TYPE a gauge\na{instance=\"i\"} 1\n");
    assert_true(n > 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(families_are_merged_with_an_instance_label, begin, end),
        cmocka_unit_test_setup_teardown(samples_of_a_histogram_stay_together, begin, end),
        cmocka_unit_test_setup_teardown(openmetrics_names_counters_without_total_and_has_an_end,
                                        begin, end),
        cmocka_unit_test_setup_teardown(malformed_lines_are_dropped, begin, end),
        cmocka_unit_test_setup_teardown(malformed_exemplars_are_dropped, begin, end),
        cmocka_unit_test_setup_teardown(numbers_are_those_of_the_text_format, begin, end),
        cmocka_unit_test_setup_teardown(a_comment_with_other_bytes_or_an_unknown_type_is_dropped,
                                        begin, end),
        cmocka_unit_test_setup_teardown(a_sample_with_its_own_instance_is_dropped, begin, end),
        cmocka_unit_test_setup_teardown(a_sample_has_sixteen_labels_at_most, begin, end),
        cmocka_unit_test_setup_teardown(instances_cannot_break_out_of_their_label, begin, end),
        cmocka_unit_test_setup_teardown(families_are_limited, begin, end),
        cmocka_unit_test_setup_teardown(a_known_family_is_found_among_many, begin, end),
        cmocka_unit_test_setup_teardown(a_family_stays_when_the_others_grow, begin, end),
        cmocka_unit_test_setup_teardown(the_text_of_one_process_is_limited, begin, end),
        cmocka_unit_test_setup_teardown(many_lines_of_unknown_families_end, begin, end),
        cmocka_unit_test_setup_teardown(names_have_letters_digits_and_two_more_characters, begin,
                                        end),
        cmocka_unit_test_setup_teardown(no_service_has_the_families_of_the_gateway, begin, end),
        cmocka_unit_test_setup_teardown(the_comments_of_the_gateway_count, begin, end),
        cmocka_unit_test_setup_teardown(no_service_decides_for_others, begin, end),
        cmocka_unit_test_setup_teardown(a_histogram_of_unknown_type_keeps_its_samples, begin, end),
        cmocka_unit_test_setup_teardown(samples_have_names_of_their_type, begin, end),
        cmocka_unit_test_setup_teardown(no_family_has_the_name_of_a_part, begin, end),
        cmocka_unit_test_setup_teardown(no_family_occurs_twice_in_openmetrics, begin, end),
        cmocka_unit_test_setup_teardown(families_without_samples_are_left_out, begin, end),
        cmocka_unit_test_setup_teardown(without_memory_series_are_left_out, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
