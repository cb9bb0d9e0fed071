/* Unquoted values of a model become JSON by the schema of the tool. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/buf.h"
#include "gateway/openai/json_read.h"
#include "gateway/openai/tool_types.h"
#include "lib/clients/tools.h"
#include "lib/fakes/failing.h"
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

/* The value "1" of the parameter "p" of the tool; free it. */
static char *one_of(const struct tool_types *t, const char *tool, const char *key)
{
    char *got = tool_types_value(t, tool, strlen(tool), key, "1", 1);
    assert_non_null(got);
    return got;
}

/* Schemas up to this depth are read; deeper ones allow any type. */
static void the_depth_of_schemas_is_limited(void **state)
{
    (void)state;
    static const char *const nests[] = {"anyOf", "oneOf", "allOf"};
    for (size_t i = 0; i < ARRAY_LEN(nests); i++)
        for (unsigned n = TOOL_TYPES_MAX_DEPTH - 1; n <= TOOL_TYPES_MAX_DEPTH; n++) {
            AUTO(buf_done) struct buf b = {0};
            buf_init(&b, 1 << 16);
            buf_puts(&b, "[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"p\":");
            for (unsigned k = 0; k < n; k++)
                buf_printf(&b, "{\"%s\":[", nests[i]);
            buf_puts(&b, "{\"type\":\"string\"}");
            for (unsigned k = 0; k < n; k++)
                buf_puts(&b, "]}");
            buf_puts(&b, "}}}}]");
            AUTO(tool_types_free) struct tool_types *t = tools_of(b.data);
            AUTO(mem_free) char *got = one_of(t, "f", "p");
            assert_string_equal(got, n < TOOL_TYPES_MAX_DEPTH ? "\"1\"" : "1");
        }
    for (unsigned n = TOOL_TYPES_MAX_DEPTH - 1; n <= TOOL_TYPES_MAX_DEPTH; n++) {
        AUTO(buf_done) struct buf b = {0};
        buf_init(&b, 1 << 16);
        buf_puts(&b, "[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"p\":"
                     "{\"$ref\":\"#/d/1\"}},\"d\":{");
        for (unsigned k = 1; k < n; k++)
            buf_printf(&b, "\"%u\":{\"$ref\":\"#/d/%u\"},", k, k + 1);
        buf_printf(&b, "\"%u\":{\"type\":\"string\"}}}}}]", n);
        AUTO(tool_types_free) struct tool_types *t = tools_of(b.data);
        AUTO(mem_free) char *got = one_of(t, "f", "p");
        assert_string_equal(got, n < TOOL_TYPES_MAX_DEPTH ? "\"1\"" : "1");
    }
}

#define TYPED(name, key, type)                                                                     \
    "{\"function\":{\"name\":\"" name "\",\"parameters\":{\"properties\":{\"" key                  \
    "\":{\"type\":\"" type "\"}}}}}"

static void each_tool_has_its_own_parameters(void **state)
{
    (void)state;
    AUTO(tool_types_free)
    struct tool_types *t = tools_of("[" TYPED("f", "a", "string") "," TYPED(
        "g", "b", "string") "," TYPED("g", "a", "string") "," TYPED("h", "a", "integer") "]");
    static const struct {
        const char *tool, *key, *want;
    } v[] = {{"f", "a", "\"1\""}, {"f", "b", "1"},  {"g", "b", "\"1\""},
             {"g", "a", "1"}, // of two tools with one name the first counts
             {"h", "a", "1"},     {"f", "aa", "1"}, {"f", "", "1"}};
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        AUTO(mem_free) char *got = one_of(t, v[i].tool, v[i].key);
        assert_string_equal(got, v[i].want);
    }
    assert_true(tool_types_offer(t, "h", 1));
    assert_true(tool_types_bytes(t) > 0);
    assert_int_equal(tool_types_bytes(NULL), 0);
}

static void long_names_of_parameters_have_any_type(void **state)
{
    (void)state;
    for (unsigned n = TOOL_TYPES_MAX_KEY; n <= TOOL_TYPES_MAX_KEY + 1; n++) {
        char key[TOOL_TYPES_MAX_KEY + 2];
        AUTO(buf_done) struct buf b = {0};
        buf_init(&b, 1 << 16);
        memset(key, 'k', n);
        key[n] = 0;
        buf_printf(&b,
                   "[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"%s\":"
                   "{\"type\":\"string\"}}}}}]",
                   key);
        AUTO(tool_types_free) struct tool_types *t = tools_of(b.data);
        AUTO(mem_free) char *got = one_of(t, "f", key);
        assert_string_equal(got, n > TOOL_TYPES_MAX_KEY ? "1" : "\"1\"");
    }
}

/* The table grows with them. */
static void many_parameters_are_found(void **state)
{
    (void)state;
    enum { N = 300 };
    AUTO(buf_done) struct buf b = {0};
    buf_init(&b, 1 << 20);
    buf_puts(&b, "[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"x\":{}");
    for (unsigned i = 0; i < N; i++)
        buf_printf(&b, ",\"p%u\":{\"type\":\"%s\"}", i, i % 2 ? "string" : "integer");
    buf_puts(&b, "}}}}]");
    AUTO(tool_types_free) struct tool_types *t = tools_of(b.data);
    for (unsigned i = 0; i < N; i++) {
        char key[16];
        snprintf(key, sizeof(key), "p%u", i);
        AUTO(mem_free) char *got = one_of(t, "f", key);
        assert_string_equal(got, i % 2 ? "\"1\"" : "1");
    }
}

static void a_failed_allocation_is_an_error(void **state)
{
    (void)state;
    AUTO(json_decref_own) json_t *j = json_loads("[" TYPED("f", "a", "string") "]", 0, NULL);
    unsigned n = 0;
    for (bool failed = true; failed;) {
        struct tool_types *t = NULL;
        failing_at(++n);
        int rc = tool_types_new(j, &t);
        failed = failing_has_failed();
        assert_int_equal(rc, failed ? -ENOMEM : 0);
        tool_types_free(t);
    }
    assert_int_equal(n, 5); // itself, names, entries, slots
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_follow_the_schema),
        cmocka_unit_test(tools_are_offered_by_name),
        cmocka_unit_test(the_depth_of_schemas_is_limited),
        cmocka_unit_test(each_tool_has_its_own_parameters),
        cmocka_unit_test(long_names_of_parameters_have_any_type),
        cmocka_unit_test(many_parameters_are_found),
        cmocka_unit_test(a_failed_allocation_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
