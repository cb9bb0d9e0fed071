/* The syntax check of JSON agrees with jansson, value by value. */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "base/rng.h"
#include "gateway/openai/json_scan.h"
#include "lib/lib.h"

static bool jansson_takes(const char *text, size_t len)
{
    json_t *j =
        json_loadb(text, len, JSON_DECODE_ANY | JSON_DECODE_INT_AS_REAL | JSON_ALLOW_NUL, NULL);
    json_decref(j);
    return j;
}

static void values_are_judged_as_jansson_does(void **state)
{
    (void)state;
    static const char *const v[] = {
        "{}",
        "[]",
        "[1]",
        "[1,]",
        "[,1]",
        "[1 2]",
        "{\"a\":1}",
        "{\"a\" : [ { } ] }",
        "{\"a\":1,}",
        "{a:1}",
        "{\"a\"}",
        "{\"a\":}",
        "{1:2}",
        "[}",
        "{]",
        "0",
        "-0",
        "00",
        "01",
        "-",
        "-a",
        "+1",
        "1.5",
        "1.",
        ".5",
        "1e5",
        "1E+5",
        "1e-5",
        "1e",
        "1e+",
        "1.5e3",
        "1e308",
        "1e309",
        "-1e309",
        "1.7976931348623157e308",
        "1.7976931348623159e308",
        "17976931348623157e292",
        "2e308",
        "0.00001e313",
        "0.00001e314",
        "0e999999999999",
        "1e-999999999999",
        "1e999999999999",
        "100e307",
        "0.1e309",
        "true",
        "false",
        "null",
        "nul",
        "nulls",
        "True",
        "\"\"",
        "\"a\"",
        "\"\\n\\\"\\\\\\/\\b\\f\\r\\t\"",
        "\"\\a\"",
        "\"\\u00e9\"",
        "\"\\u00E9\"",
        "\"\\u00g9\"",
        "\"\\ud83d\\ude00\"",
        "\"\\ud83d\"",
        "\"\\ud83d\\u0041\"",
        "\"\\ude00\"",
        "\"\\u0000\"",
        "{\"\\u0000\":1}",
        "{\"a\\u0041\":1}",
        "\"\n\"",
        "\"\x7F\"",
        "\"\xC3\xA9\"",
        "\"\xC3\"",
        "\"\xED\xA0\x80\"",
        "\"\xF0\x9F\x98\x80\"",
        "\xEF\xBB\xBF{}",
        "'a'",
        "[[[[]]]]",
        "[1] ",
    };
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        size_t n = 0, len = strlen(v[i]);
        bool taken = json_scan(v[i], len, &n) == 0 && n == len - (v[i][len - 1] == ' ');
        if (taken != jansson_takes(v[i], len))
            fail_msg("%s: %s", v[i], taken ? "taken" : "refused");
    }
}

static void a_value_that_is_cut_is_incomplete(void **state)
{
    (void)state;
    static const char text[] = "{\"a\":[1.5e+3,true,{\"b\\u00e9\\ud83d\\ude00\":null},-2,\"\\n\"]}";
    size_t n, len = strlen(text);
    for (size_t cut = 0; cut < len; cut++)
        assert_int_equal(json_scan(text, cut, &n), -EAGAIN);
    assert_int_equal(json_scan(text, len, &n), 0);
    assert_int_equal(n, len);
    assert_int_equal(json_scan("[1]x", 4, &n), 0);
    assert_int_equal(n, 3);
}

static void nesting_is_limited(void **state)
{
    (void)state;
    char text[2 * JSON_SCAN_MAX_DEPTH + 3];
    size_t n;
    for (size_t depth = JSON_SCAN_MAX_DEPTH; depth <= JSON_SCAN_MAX_DEPTH + 1; depth++) {
        memset(text, '[', depth);
        memset(text + depth, ']', depth);
        assert_int_equal(json_scan(text, 2 * depth, &n), depth > JSON_SCAN_MAX_DEPTH ? -EINVAL : 0);
    }
}

/* Texts made of pieces of JSON, most of them wrong somewhere. */
static void random_texts_are_judged_as_jansson_does(void **state)
{
    (void)state;
    static const char *const parts[] = {
        "{",  "}",    "[",       "]",    ",",        ":", "\"a\"", "\"\\u00e9\"",
        "1",  "-2.5", "e3",      "null", "true",     " ", "\n",    "\"",
        "\\", "x",    "{\"k\":", "[1,",  "\xC3\xA9", "0", ".",     "\\u12"};
    uint64_t random = 5;
    for (unsigned i = 0; i < lib_amount(20000, 200000, 5000000); i++) {
        char text[64] = "";
        random = rng_splitmix64(random);
        unsigned n_parts = 1 + (unsigned)(random % 8);
        for (unsigned k = 0; k < n_parts; k++)
            strcat(text, parts[(random = rng_splitmix64(random)) % ARRAY_LEN(parts)]);
        size_t n, len = strlen(text), from = strspn(text, " \n");
        bool taken = json_scan(text + from, len - from, &n) == 0 &&
                     n + strspn(text + from + n, " \n") == len - from;
        if (taken != jansson_takes(text, len))
            fail_msg("%s: %s", text, taken ? "taken" : "refused");
    }
}

/* Each byte after a backslash, and at each place of four digits of a code point. */
static void each_byte_of_an_escape_is_judged_as_jansson_does(void **state)
{
    (void)state;
    for (unsigned place = 0; place < 5; place++)
        for (int c = 1; c < 256; c++) {
            char text[] = "\"\\u00aA\"";
            size_t n, len = sizeof(text) - 1;
            text[2 + place] = (char)c; // place 0: what follows the backslash
            int rc = json_scan(text, len, &n);
            if ((rc == 0 && n == len) != jansson_takes(text, len))
                fail_msg("%s: %d", text, rc);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_judged_as_jansson_does),
        cmocka_unit_test(a_value_that_is_cut_is_incomplete),
        cmocka_unit_test(nesting_is_limited),
        cmocka_unit_test(random_texts_are_judged_as_jansson_does),
        cmocka_unit_test(each_byte_of_an_escape_is_judged_as_jansson_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
