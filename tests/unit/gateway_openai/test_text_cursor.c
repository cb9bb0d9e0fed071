/* test_text_cursor.c - the view of text takes what it should, and never reads past its end. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "gateway/openai/text_cursor.h"
#include "lib/lib.h"

static struct text_cursor of(const char *text)
{
    return (struct text_cursor){text, strlen(text)};
}

static void is(struct text_cursor t, const char *want)
{
    assert_int_equal(t.len, strlen(want));
    assert_memory_equal(t.data, want, t.len);
}

static void words_and_blanks_are_skipped(void **state)
{
    (void)state;
    struct text_cursor t = of(" \n\t\r ab cd "), before;
    is(text_cursor_trimmed(t), "ab cd");
    is(text_cursor_trimmed(of("  ")), "");
    is(text_cursor_trimmed(of("a")), "a");
    text_cursor_skip_space(&t);
    is(t, "ab cd ");
    assert_false(text_cursor_skip_word(&t, "abc"));
    assert_false(text_cursor_skip_word(&t, "b"));
    is(t, "ab cd ");
    assert_true(text_cursor_skip_word(&t, "ab"));
    is(t, " cd ");
    assert_false(text_cursor_until(&t, "x", &before));
    is(t, " cd ");
    assert_true(text_cursor_until(&t, "d", &before));
    is(before, " c");
    is(t, " ");
    t = of("whole");
    assert_true(text_cursor_skip_word(&t, "whole"));
    is(t, "");
    assert_false(text_cursor_skip_word(&t, "w"));
}

static void only_objects_and_arrays_are_taken(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int rc;
        const char *json, *rest;
    } v[] = {{" {\"a\":[1]} x", 0, "{\"a\":[1]}", " x"},
             {"[]", 0, "[]", ""},
             {"{", -EAGAIN, NULL, NULL},
             {"", -EAGAIN, NULL, NULL},
             {"  ", -EAGAIN, NULL, NULL},
             {"1", -EINVAL, NULL, NULL},
             {"\"a\"", -EINVAL, NULL, NULL},
             {"{]", -EINVAL, NULL, NULL}};
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        struct text_cursor t = of(v[i].text), json;
        assert_int_equal(text_cursor_json(&t, &json), v[i].rc);
        if (v[i].rc == 0) {
            is(json, v[i].json);
            is(t, v[i].rest);
        }
    }
}

static void a_value_ends_where_json_says(void **state)
{
    (void)state;
    static const struct {
        const char *text, *value, *rest;
    } v[] = {{" 12 , 3", "12", ", 3"},
             {"\"a,}\\\"]\" : 1", "\"a,}\\\"]\"", ": 1"},
             {"{\"a\":[1,{}],\"b\":\"}\"} ,2", "{\"a\":[1,{}],\"b\":\"}\"}", ",2"},
             {"[[],[]]]", "[[],[]]", "]"},
             {"true}", "true", "}"},
             {"null]", "null", "]"},
             {"-1.5e3\n}", "-1.5e3", "}"},
             {"\"\\\\\",1", "\"\\\\\"", ",1"}};
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        struct text_cursor t = of(v[i].text);
        is(text_cursor_take_value(&t), v[i].value);
        is(t, v[i].rest);
    }
}

static void members_are_found_by_name(void **state)
{
    (void)state;
    static const char object[] = " { \"a\" : 1 , \"ab\":{\"a\":2}, \"b\":\"x\" ,\"a\" : [3] } ";
    static const struct {
        const char *name, *value;
    } v[] = {{"a", "[3]"}, {"ab", "{\"a\":2}"}, {"b", "\"x\""}, {"c", ""}, {"", ""}, {"abc", ""}};
    for (size_t i = 0; i < ARRAY_LEN(v); i++)
        is(text_cursor_member(of(object), v[i].name), v[i].value);
    is(text_cursor_member(of("{}"), "a"), "");
    is(text_cursor_member(of("{\"\":1}"), ""), "1");
}

/* Each text that is cut short, in memory that ends with it. */
static void nothing_is_read_past_the_end(void **state)
{
    (void)state;
    static const char whole[] = " {\"a\\\"\" : [1, \"x\\\\\", {\"b\":null}] , \"c\" : \"d\\\\\" } ";
    for (size_t len = 0; len < sizeof(whole); len++)
        for (size_t from = 0; from <= len; from++) {
            size_t n = len - from;
            AUTO(mem_free) char *text = malloc(n + !n);
            memcpy(text, whole + from, n);
            struct text_cursor t = {text, n}, ret;
            text_cursor_member(t, "c");
            text_cursor_trimmed(t);
            struct text_cursor value = text_cursor_take_value(&t);
            assert_true(value.len <= n && t.len <= n);
            t = (struct text_cursor){text, n};
            text_cursor_json(&t, &ret);
            text_cursor_until(&t, "d\\\\\"", &ret);
            text_cursor_skip_word(&t, "} ");
            assert_true(t.len <= n);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_and_blanks_are_skipped),
        cmocka_unit_test(only_objects_and_arrays_are_taken),
        cmocka_unit_test(a_value_ends_where_json_says),
        cmocka_unit_test(members_are_found_by_name),
        cmocka_unit_test(nothing_is_read_past_the_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
