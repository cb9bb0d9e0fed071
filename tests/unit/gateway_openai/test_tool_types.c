/* Unquoted values of a model become JSON by the schema of the tool. */
#include <stdlib.h>
#include <string.h>
#include "gateway/openai/tool_types.h"
#include "lib/clients/tools.h"
#include "lib/lib.h"

static const char *const tools =
    "[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{"
    "\"text\":{\"type\":\"string\"},\"int\":{\"type\":\"integer\"},\"flag\":{\"type\":\"boolean\"},"
    "\"maybe\":{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]},"
    "\"both\":{\"type\":[\"integer\",\"string\"]},\"list\":{\"oneOf\":[{\"type\":\"array\"},"
    "{\"type\":\"null\"}]},\"one\":{\"enum\":[\"1\",\"2\"]},\"n\":{\"enum\":[1,2]},"
    "\"const\":{\"const\":\"1\"},\"all\":{\"allOf\":[{\"$ref\":\"#/$defs/zip\"},{}]},"
    "\"ref\":{\"$ref\":\"#/$defs/zip\"},\"lost\":{\"$ref\":\"#/no\"},"
    "\"away\":{\"$ref\":\"http://x\"},\"nullable\":{\"type\":\"string\",\"nullable\":true},"
    "\"loop\":{\"$ref\":\"#/$defs/loop\"}},\"$defs\":{\"zip\":{\"type\":\"string\"},"
    "\"loop\":{\"anyOf\":[{\"$ref\":\"#/$defs/loop\"},{\"$ref\":\"#/$defs/loop\"}]}}}}}]";

static void values_follow_the_schema(void **state)
{
    (void)state;
    static const struct {
        const char *key, *value, *want;
    } v[] = {
        {"text", "12", "\"12\""},
        {"text", "null", "\"null\""},
        {"text", " a\n", "\" a\\n\""},
        {"int", " 12\n", "12"},
        {"int", "12345678901234567890", "12345678901234567890"},
        {"int", "None", "null"},
        {"int", "twelve", "\"twelve\""},
        {"flag", "True", "true"},
        {"flag", "False", "false"},
        {"flag", "yes", "\"yes\""},
        {"maybe", "12", "\"12\""},
        {"maybe", "null", "null"},
        {"maybe", "None", "null"},
        {"maybe", "True", "\"True\""},
        {"both", "12", "\"12\""},
        {"list", "[0.1, 1]", "[0.1, 1]"},
        {"list", "null", "null"},
        {"one", "1", "\"1\""},
        {"n", "1", "1"},
        {"const", "1", "\"1\""},
        {"all", "1", "\"1\""},
        {"ref", "1", "\"1\""},
        {"lost", "1", "1"},
        {"away", "1", "1"},
        {"nullable", "null", "null"},
        {"nullable", "1", "\"1\""},
        {"loop", "1", "1"},
        {"unknown", "0.1", "0.1"},
        {"unknown", "{\"a\":\"b\"}", "{\"a\":\"b\"}"},
        {"unknown", "{\"a\":", "\"{\\\"a\\\":\""},
    };
    AUTO(tool_types_free) struct tool_types *t = tools_of(tools);
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        AUTO(mem_free)
        char *got = tool_types_value(t, "f", 1, v[i].key, v[i].value, strlen(v[i].value));
        if (!got || strcmp(got, v[i].want) != 0)
            fail_msg("%s = %s: got %s, want %s", v[i].key, v[i].value, got, v[i].want);
    }
    AUTO(mem_free) char *other = tool_types_value(t, "g", 1, "text", "1", 1);
    assert_string_equal(other, "1");
    assert_null(tool_types_value(t, "f", 1, "text", "\xFF", 1));
}

static void tools_are_offered_by_name(void **state)
{
    (void)state;
    AUTO(tool_types_free) struct tool_types *t = tools_of(tools);
    assert_true(tool_types_offer(t, "f", 1));
    assert_false(tool_types_offer(t, "ff", 2));
    assert_false(tool_types_offer(t, "", 0));
    assert_false(tool_types_offer(NULL, "f", 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_follow_the_schema),
        cmocka_unit_test(tools_are_offered_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
