/* The items of a response's input become messages of a chat. */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/buf.h"
#include "base/mem.h"
#include "gateway/openai/openai_request.h"
#include "lib/lib.h"

static struct openai_request q;
static struct openai_fault fault;

static int response(const char *body)
{
    return openai_request_parse(OPENAI_RESPONSES, body, strlen(body), NULL, &q, &fault);
}

static void reasoning_belongs_to_the_calls_after_it(void **state)
{
    (void)state;
    static const char body[] =
        "{\"input\":[{\"role\":\"user\",\"content\":\"Hi\"},{\"type\":\"reasoning\",\"content\":[{"
        "\"type\":\"reasoning_text\",\"text\":\"Hm\"}]},{\"type\":\"function_call\",\"call_id\":"
        "\"c\","
        "\"name\":\"f\",\"arguments\":\"{}\"},{\"type\":\"function_call_output\",\"call_id\":\"c\","
        "\"output\":\"1\"}]}";
    assert_int_equal(response(body), 0);
    assert_non_null(
        strstr(q.template_vars, "\"arguments\":\"{}\"}}],\"reasoning_content\":\"Hm\"}"));
    assert_non_null(strstr(q.template_vars, "\"content\":\"1\",\"name\":\"f\"}"));
    openai_request_done(&q);
}

#define THINK(text)                                                                                \
    "{\"type\":\"reasoning\",\"content\":[{\"type\":\"reasoning_text\",\"text\":\"" text "\"}]}"

static void reasoning_without_an_answer_is_a_message(void **state)
{
    (void)state;
    static const struct {
        const char *input, *want;
    } v[] = {
        {THINK("a") ",{\"role\":\"user\",\"content\":\"go on\"}",
         "[{\"role\":\"assistant\",\"content\":\"\",\"reasoning_content\":\"a\"},"
         "{\"role\":\"user\",\"content\":\"go on\"}]"},
        {THINK("a") "," THINK("b") ",{\"role\":\"assistant\",\"content\":\"c\"}",
         "[{\"role\":\"assistant\",\"content\":\"c\",\"reasoning_content\":\"a\\nb\"}]"},
        {"{\"role\":\"user\",\"content\":\"x\"}," THINK("a"), "\"reasoning_content\":\"a\"}]"},
        {"{\"type\":\"reasoning\",\"summary\":[],\"encrypted_content\":\"zz\"},"
         "{\"role\":\"user\",\"content\":\"x\"}",
         "[{\"role\":\"user\",\"content\":\"x\"}]"},
    };
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        AUTO(mem_free) char *body = NULL;
        assert_true(asprintf(&body, "{\"input\":[%s]}", v[i].input) > 0);
        assert_int_equal(response(body), 0);
        if (!strstr(q.template_vars, v[i].want))
            fail_msg("%s\n is not in %s", v[i].want, q.template_vars);
        openai_request_done(&q);
    }
    static const char wrong[] =
        "{\"input\":[{\"type\":\"reasoning\",\"content\":[{\"type\":\"x\"}]}]}";
    assert_int_equal(response(wrong), -EINVAL);
    assert_string_equal(fault.param, "input[0].content");
}

static void wrong_fields_are_refused_by_name(void **state)
{
    (void)state;
#define CALL "\"type\":\"function_call\",\"call_id\":\"c\",\"name\":\"f\""
#define X "\"input\":\"x\","
    static const struct {
        const char *members, *param, *text;
    } v[] = {
        {"\"x\":1", "input", "input is missing"},
        {"\"input\":1", "input", "must be a string or an array of 1 to"},
        {"\"input\":[]", "input", "must be a string or an array of 1 to"},
        {"\"input\":[1]", "input[0]", "must be an object with a type or a role"},
        {"\"input\":[{\"type\":1}]", "input[0]", "must be an object with a type or a role"},
        {"\"input\":[{\"type\":\"image\"}]", "input[0]", "is of type 'image'"},
        {"\"input\":[{\"content\":\"x\"}]", "input[0]", "role must be a string"},
        {"\"input\":[{\"role\":\"user\"}]", "input[0].content", "is missing"},
        {"\"input\":[{\"role\":\"user\",\"content\":[1]}]", "input[0].content",
         "[0] must be an object with a type"},
        {"\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]", "input[0].content",
         "[0].text must be a string"},
        {"\"input\":[{\"role\":\"king\",\"content\":\"x\"}]", "input", "role is 'king'"},
        {"\"input\":[{" CALL "}]", "input[0]", "must have call_id, name and arguments"},
        {"\"input\":[{" CALL ",\"arguments\":\"{\"}]", "input", "is not valid JSON"},
        {"\"input\":[{\"type\":\"function_call_output\"}]", "input[0]", "a call_id and an output"},
        {"\"input\":[{\"type\":\"function_call_output\",\"call_id\":\"c\",\"output\":1}]",
         "input[0].output", "must be a string or an array of parts"},
        {X "\"instructions\":1", "instructions", "must be a string, not an integer"},
        {X "\"tools\":{}", "tools", "must be an array, not an object"},
        {X "\"tools\":[{\"type\":\"web_search\"}]", "tools[0]", "no other is served"},
        {X "\"tools\":[1]", "tools[0]", "must be of type function"},
        {X "\"tools\":[{\"type\":\"function\"}]", "tools[0]", "name must be a string"},
        {X "\"tool_choice\":\"required\"", "tool_choice", "a forced tool call is not served"},
        {X "\"text\":1", "text", "must be an object, not an integer"},
        {X "\"text\":{\"format\":{\"type\":\"json_schema\"}}", "text.format", "is not served"},
        {X "\"text\":{\"format\":{\"type\":1}}", "text.format", "is not served"},
        {X "\"include\":{}", "include", "must be an array, not an object"},
        {X "\"include\":[1]", "include", "include[0] must be a string"},
        {X "\"include\":[],\"top_logprobs\":2", "top_logprobs", "needs include"},
        {X "\"store\":true", "store", "nothing is stored"},
        {X "\"background\":true", "background", "nothing is stored"},
        {X "\"store\":1", "store", "must be true or false"},
        {X "\"previous_response_id\":\"r\"", "previous_response_id", "send the whole input"},
        {X "\"conversation\":\"c\"", "conversation", "send the whole input"},
        {X "\"prompt\":{}", "prompt", "send the whole input"},
        {X "\"truncation\":\"auto\"", "truncation", "other than disabled"},
        {X "\"reasoning\":{\"effort\":1}", "reasoning_effort", "must be a string"},
    };
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        AUTO(mem_free) char *body = NULL;
        assert_true(asprintf(&body, "{%s}", v[i].members) > 0);
        assert_int_equal(response(body), -EINVAL);
        assert_int_equal(fault.status, 400);
        if (strcmp(fault.param, v[i].param) != 0 || !strstr(fault.text, v[i].text))
            fail_msg("%s\n is refused for %s: %s", body, fault.param, fault.text);
    }
}

static void fields_reach_the_template(void **state)
{
    (void)state;
    static const char body[] =
        "{\"instructions\":\"Be brief\",\"input\":[{\"role\":\"user\",\"content\":\"x\"},{" CALL
        ",\"arguments\":\"\"}],\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"description\":"
        "\"d\","
        "\"parameters\":{}}],\"reasoning\":{\"effort\":\"low\"},\"chat_template_kwargs\":{\"a\":1},"
        "\"include\":[\"message.output_text.logprobs\"],\"top_logprobs\":2,\"truncation\":"
        "\"disabled\","
        "\"store\":false,\"text\":{\"format\":{\"type\":\"text\"}}}";
    static const char *const want[] = {
        "[{\"role\":\"system\",\"content\":\"Be brief\"},{\"role\":\"user\",\"content\":\"x\"}",
        "\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}",
        ("\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":\"d\","
         "\"parameters\":{}}}]"),
        "\"reasoning_effort\":\"low\"", "\"a\":1"};
    int rc = response(body);
    if (rc < 0)
        fail_msg("%s", fault.text);
    for (size_t i = 0; i < ARRAY_LEN(want); i++)
        if (!strstr(q.template_vars, want[i]))
            fail_msg("%s\n is not in %s", want[i], q.template_vars);
    assert_true(q.logprobs);
    openai_request_done(&q);
}

#define USER(text) "{\"role\":\"user\",\"content\":\"" text "\"}"
#define MODEL(text) "{\"role\":\"assistant\",\"content\":\"" text "\"}"
#define CALL_OF(id)                                                                                \
    "{\"type\":\"function_call\",\"call_id\":\"" id "\",\"name\":\"f\",\"arguments\":\"{}\"}"
#define OUTPUT_OF(id)                                                                              \
    "{\"type\":\"function_call_output\",\"call_id\":\"" id "\",\"output\":\"o" id "\"}"
#define CALLED(id)                                                                                 \
    "{\"id\":\"" id "\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}"
#define SAID(id)                                                                                   \
    "{\"role\":\"tool\",\"tool_call_id\":\"" id "\",\"content\":\"o" id "\",\"name\":\"f\"}"
#define CALLS(content, list)                                                                       \
    "{\"role\":\"assistant\",\"content\":" content ",\"tool_calls\":[" list "]"

/* The whole list of messages for each list of items. */
static void items_become_messages(void **state)
{
    (void)state;
    static const struct {
        const char *items, *messages;
    } v[] = {
        {USER("a") "," MODEL("b") "," CALL_OF("1") "," CALL_OF("2"),
         USER("a") "," CALLS("\"b\"", CALLED("1") "," CALLED("2")) "}"},
        {USER("a") "," CALL_OF("1") "," OUTPUT_OF("1") "," CALL_OF("2") "," OUTPUT_OF("2"),
         USER("a") "," CALLS("null", CALLED("1")) "}," SAID("1") "," CALLS(
             "null", CALLED("2")) "}," SAID("2")},
        {CALL_OF("1") "," USER("a"), CALLS("null", CALLED("1")) "}," USER("a")},
        {USER("a") "," THINK("t") "," MODEL("b") "," THINK("u") "," CALL_OF("1") "," USER("c"),
         USER("a") "," CALLS("\"b\"", CALLED("1")) ",\"reasoning_content\":\"t\\nu\"}," USER("c")},
        {USER("a") "," THINK("t") "," CALL_OF("1") "," OUTPUT_OF("1") "," THINK("u") "," MODEL("b"),
         USER("a") "," CALLS("null", CALLED("1")) ",\"reasoning_content\":\"t\"}," SAID(
             "1") ",{\"role\":\"assistant\",\"content\":\"b\",\"reasoning_content\":\"u\"}"},
        {THINK("t") "," OUTPUT_OF("1"),
         "{\"role\":\"assistant\",\"content\":\"\",\"reasoning_content\":\"t\"},"
         "{\"role\":\"tool\",\"tool_call_id\":\"1\",\"content\":\"o1\"}"},
        {"{\"type\":\"message\",\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":"
         "\"a\"},{\"type\":\"output_text\",\"text\":\"b\"},{\"type\":\"text\",\"text\":\"c\"},"
         "{\"type\":\"reasoning_text\",\"text\":\"d\"},{\"type\":\"summary_text\",\"text\":\"e\"}]"
         "}",
         USER("a\\nb\\nc\\nd\\ne")},
    };
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        AUTO(mem_free) char *body = NULL, *want = NULL;
        assert_true(asprintf(&body, "{\"input\":[%s]}", v[i].items) > 0);
        assert_true(asprintf(&want, "{\"messages\":[%s],\"add_generation_prompt\":true}",
                             v[i].messages) > 0);
        if (response(body) < 0)
            fail_msg("%s: %s", body, fault.text);
        assert_string_equal(q.template_vars, want);
        openai_request_done(&q);
    }
    assert_int_equal(response("{\"instructions\":\"i\",\"input\":\"x\"}"), 0);
    assert_string_equal(q.template_vars,
                        "{\"messages\":[{\"role\":\"system\",\"content\":\"i\"}," USER(
                            "x") "],\"add_generation_prompt\":true}");
    openai_request_done(&q);
}

static void fields_are_repeated_in_the_answer(void **state)
{
    (void)state;
    assert_int_equal(response("{\"input\":\"x\"}"), 0);
    assert_string_equal(
        q.echoed,
        "\"background\":false,\"instructions\":null,\"max_output_tokens\":null,\"metadata\":{},"
        "\"parallel_tool_calls\":true,\"previous_response_id\":null,\"reasoning\":{\"effort\":null,"
        "\"summary\":null},\"store\":false,\"temperature\":1.0,\"text\":{\"format\":{\"type\":"
        "\"text\"}},\"tool_choice\":\"auto\",\"tools\":[],\"top_logprobs\":0,\"top_p\":1.0,"
        "\"truncation\":\"disabled\",\"user\":null");
    assert_false(q.logprobs);
    openai_request_done(&q);
    assert_int_equal(response("{\"input\":\"x\",\"temperature\":0.5,\"user\":\"u\","
                              "\"metadata\":{\"a\":\"b\"},\"include\":[\"other\"]}"),
                     0);
    assert_non_null(strstr(q.echoed, "\"temperature\":0.5,"));
    assert_non_null(strstr(q.echoed, "\"user\":\"u\""));
    assert_non_null(strstr(q.echoed, "\"metadata\":{\"a\":\"b\"},"));
    assert_false(q.logprobs);
    openai_request_done(&q);
}

#define MAX_ITEMS 4096

static void the_number_of_items_is_limited(void **state)
{
    (void)state;
    for (unsigned n = MAX_ITEMS; n <= MAX_ITEMS + 1; n++) {
        AUTO(buf_done) struct buf body = {0};
        buf_init(&body, 1 << 20);
        buf_puts(&body, "{\"input\":[" USER("x"));
        for (unsigned i = 1; i < n; i++)
            buf_puts(&body, "," USER("x"));
        buf_puts(&body, "]}");
        int rc = response(body.data);
        assert_int_equal(rc, n > MAX_ITEMS ? -EINVAL : 0);
        if (rc == 0)
            openai_request_done(&q);
    }
}

static size_t allocated;

static void *count(size_t n)
{
    allocated += n;
    return malloc(n);
}

/* Each reasoning item is appended; the earlier ones are not copied each time. */
static void many_reasoning_items_of_one_answer_cost_as_one(void **state)
{
    (void)state;
    static const char *const behind[] = {
        "", ",{\"type\":\"function_call\",\"call_id\":\"c\",\"name\":\"f\",\"arguments\":\"{}\"}"};
    for (size_t i = 0; i < ARRAY_LEN(behind); i++) {
        AUTO(buf_done) struct buf body = {0};
        buf_init(&body, 1 << 20);
        buf_puts(&body, "{\"input\":[");
        for (unsigned n = 0; n < 1000; n++)
            buf_printf(&body, "%s%s,", THINK("twenty bytes of text"), behind[i]);
        buf_puts(&body, "{\"role\":\"user\",\"content\":\"x\"}]}");
        allocated = 0;
        json_set_alloc_funcs(count, free);
        int rc = response(body.data);
        json_set_alloc_funcs(malloc, free);
        if (rc < 0)
            fail_msg("%s", fault.text);
        openai_request_done(&q);
        if (allocated > 64 * body.len)
            fail_msg("%zu bytes for a body of %zu", allocated, body.len);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reasoning_belongs_to_the_calls_after_it),
        cmocka_unit_test(reasoning_without_an_answer_is_a_message),
        cmocka_unit_test(wrong_fields_are_refused_by_name),
        cmocka_unit_test(fields_reach_the_template),
        cmocka_unit_test(items_become_messages),
        cmocka_unit_test(fields_are_repeated_in_the_answer),
        cmocka_unit_test(the_number_of_items_is_limited),
        cmocka_unit_test(many_reasoning_items_of_one_answer_cost_as_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
