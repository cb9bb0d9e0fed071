/* test_tool_parser.c - text that begins like a call: what can still become one, and what cannot.
 * test_output_parser.c tests the calls. */
#include <errno.h>
#include <string.h>
#include "gateway/openai/tool_parser.h"
#include "lib/clients/tools.h"
#include "lib/lib.h"

#define DEEPSEEK(rest) "<｜tool▁call▁begin｜>" rest
#define KIMI(rest) "<|tool_call_begin|>functions.f:0" rest

static const struct {
    enum tool_format format;
    const char *text;
    int rc; // -EAGAIN: incomplete
} v[] = {
    {TOOLS_NONE, "<tool_call>{}</tool_call>", -EINVAL},
    {TOOLS_HERMES, "<tool_call>{\"name\":\"f\"", -EAGAIN},
    {TOOLS_HERMES, "<tool_call>{\"name\":\"f\",\"arguments\":{}} x", -EINVAL},
    {TOOLS_LLAMA, "<|python_tag|>{\"name\":\"f\",\"parameters\":{}} x", -EINVAL},
    {TOOLS_LLAMA, "<|python_tag|>[1]", -EINVAL},
    {TOOLS_LLAMA, "{\"name\":\"other\",\"parameters\":{}}", -EINVAL},
    {TOOLS_MISTRAL, "[TOOL_CALLS]f[ARGS]", -EAGAIN},
    {TOOLS_MISTRAL, "[TOOL_CALLS]f[CALL_ID]a{}", -EINVAL},
    {TOOLS_MISTRAL, "[TOOL_CALLS]f[ARGS]{} x", -EINVAL},
    {TOOLS_MISTRAL, "[TOOL_CALLS][{\"name\":\"f\",\"arguments\":{}}] x", -EINVAL},
    {TOOLS_MISTRAL, "[TOOL_CALLS][{\"name\":\"f\",\"arguments\":{}},1]", -EINVAL},
    {TOOLS_DEEPSEEK, DEEPSEEK("f"), -EAGAIN},
    {TOOLS_DEEPSEEK, DEEPSEEK("function<｜tool▁sep｜>f"), -EINVAL},
    {TOOLS_DEEPSEEK, DEEPSEEK("function<｜tool▁sep｜>f\n```text"), -EINVAL},
    {TOOLS_DEEPSEEK, DEEPSEEK("function<｜tool▁sep｜>f\n```json\n[1]\n```"), -EINVAL},
    {TOOLS_DEEPSEEK, DEEPSEEK("f<｜tool▁sep｜>{} x"), -EINVAL},
    {TOOLS_KIMI, KIMI(""), -EAGAIN},
    {TOOLS_KIMI, KIMI("<|tool_call_argument_begin|>{"), -EAGAIN},
    {TOOLS_KIMI, KIMI("<|tool_call_argument_begin|>[1]"), -EINVAL},
    {TOOLS_KIMI, KIMI("<|tool_call_argument_begin|>{} x"), -EINVAL},
    {TOOLS_CODER, "<function=f", -EAGAIN},
    {TOOLS_CODER, "<function=f><parameter=a", -EAGAIN},
    {TOOLS_CODER, "<function=f><parameter=a>1", -EAGAIN},
    {TOOLS_CODER, "<function=f><parameter=>1</parameter></function>", -EINVAL},
    {TOOLS_CODER, "<function=f><function=g></function>", -EINVAL},
    {TOOLS_GLM, "<tool_call>f", -EAGAIN},
    {TOOLS_GLM, "<tool_call>f<arg_key>a", -EAGAIN},
    {TOOLS_GLM, "<tool_call>f<arg_key>a</arg_key><arg_v", -EAGAIN},
    {TOOLS_GLM, "<tool_call>f<arg_key>a</arg_key><arg_key>b</arg_key>", -EINVAL},
    {TOOLS_GLM, "<tool_call>f<arg_key>a</arg_key><arg_value>1", -EAGAIN},
    {TOOLS_DSML, "<｜DSML｜invoke name=\"f", -EAGAIN},
    {TOOLS_DSML, "<｜DSML｜invoke name=\"f\"><｜DSML｜parameter name=\"a\" x>", -EINVAL},
};

static void text_that_is_no_call_is_told_from_an_incomplete_one(void **state)
{
    (void)state;
    AUTO(tool_types_free)
    struct tool_types *types = tools_of("[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]");
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        struct tool_parser_calls calls = {0};
        int rc = tool_parser_read(v[i].format, v[i].text, strlen(v[i].text), types, &calls);
        if (rc != v[i].rc || calls.n)
            fail_msg("%s: %d, %u calls", v[i].text, rc, calls.n);
        tool_parser_clear(&calls);
    }
}

/* Of a list that is wrong later. */
static void earlier_calls_stay(void **state)
{
    (void)state;
    static const char good[] = "[TOOL_CALLS]f[ARGS]{}",
                      bad[] = "[TOOL_CALLS][{\"name\":\"g\",\"arguments\":{}},1]";
    struct tool_parser_calls calls = {0};
    assert_int_equal(tool_parser_read(TOOLS_MISTRAL, good, sizeof(good) - 1, NULL, &calls), 0);
    assert_int_equal(tool_parser_read(TOOLS_MISTRAL, bad, sizeof(bad) - 1, NULL, &calls), -EINVAL);
    assert_int_equal(calls.n, 1);
    assert_string_equal(calls.v[0].name, "f");
    tool_parser_clear(&calls);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_that_is_no_call_is_told_from_an_incomplete_one),
        cmocka_unit_test(earlier_calls_stay),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
