/* Bodies become plain structs, or an error names the field. The long list of errors over HTTP is in
 * tests/system/gateway/test_gateway_input.c. */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "gateway/openai/json_read.h"
#include "gateway/openai/openai_request.h"
#include "gateway/openai/tool_types.h"
#include "lib/fakes/failing.h"
#include "lib/lib.h"

static struct openai_request q;
static struct openai_fault fault;

static int chat(const char *members)
{
    AUTO(mem_free) char *body = NULL;
    assert_true(asprintf(&body, "{%s}", members) > 0);
    return openai_request_parse(OPENAI_CHAT, body, strlen(body), NULL, &q, &fault);
}

static int completion(const char *members)
{
    AUTO(mem_free) char *body = NULL;
    assert_true(asprintf(&body, "{%s}", members) > 0);
    return openai_request_parse(OPENAI_COMPLETION, body, strlen(body), NULL, &q, &fault);
}

static void refused(int rc, const char *param)
{
    assert_int_equal(rc, -EINVAL);
    assert_int_equal(fault.status, 400);
    assert_string_equal(fault.param, param);
    assert_true(strlen(fault.text) > 10);
}

#define USER "{\"role\":\"user\",\"content\":\"Hi\"}"
#define HI "\"messages\":[" USER "]"

static void messages_become_the_templates_variables(void **state)
{
    (void)state;
    assert_int_equal(chat(HI), 0);
    assert_string_equal(q.template_vars, "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}],"
                                         "\"add_generation_prompt\":true}");
    assert_false(q.stream || q.logprobs || q.temperature.set || q.max_tokens.set);
    assert_true(q.skip_special);
    openai_request_done(&q);
}

static void parts_of_text_are_joined(void **state)
{
    (void)state;
    assert_int_equal(
        chat("\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":"
             "\"a\"},{\"type\":\"text\",\"text\":\"b\"}]}]"),
        0);
    assert_non_null(strstr(q.template_vars, "\"content\":\"a\\nb\""));
    openai_request_done(&q);
    refused(chat("\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]"),
            "messages[0].content");
}

static void arguments_of_a_tool_call_are_json(void **state)
{
    (void)state;
    static const char call[] =
        "\"messages\":[" USER ",{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":"
        "\"c\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"%s\"}}]}]";
    AUTO(mem_free) char *good = NULL, *bad = NULL;
    assert_true(asprintf(&good, call, "{\\\"city\\\": \\\"Paris\\\"}") > 0);
    assert_true(asprintf(&bad, call, "{city") > 0);
    assert_int_equal(chat(good), 0);
    assert_non_null(strstr(q.template_vars, "\"arguments\":\"{\\\"city\\\": \\\"Paris\\\"}\""));
    assert_non_null(strstr(q.template_vars, "\"content\":null"));
    openai_request_done(&q);
    refused(chat(bad), "messages[1].tool_calls[0]");
}

static void numbers_may_be_long(void **state)
{
    (void)state;
    assert_int_equal(chat(HI ",\"tools\":[{\"function\":{\"name\":\"f\",\"maximum\":"
                             "12345678901234567890,\"x\":\"\\\"12345678901234567890\","
                             "\"n\":[-1234567890123456789,1]}}]"),
                     0);
    assert_non_null(strstr(q.template_vars, "\"maximum\":1.234567890123456"));
    assert_non_null(strstr(q.template_vars, "\"x\":\"\\\"12345678901234567890\""));
    openai_request_done(&q);
    assert_int_equal(chat(HI ",\"seed\":-9223372036854775808,\"x\":9223372036854775808"), 0);
    assert_true(q.seed.value == INT64_MIN);
    openai_request_done(&q);
    assert_int_equal(chat(HI ",\"tools\":[{\"function\":{\"name\":\"f\",\"maximum\":"
                             "123456789012345678901234567890}}]"),
                     0);
    assert_non_null(strstr(q.template_vars, "\"maximum\":1.234567890123456"));
    openai_request_done(&q);
    refused(chat(HI ",\"x\":1e999"), "");
}

static void arguments_of_calls_are_returned_verbatim(void **state)
{
    (void)state;
    assert_int_equal(chat("\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"c\","
                          "\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":1,"
                          "\\\"a\\\":12345678901234567890}\"}}]}]"),
                     0);
    openai_request_done(&q);
}

static void outputs_get_the_names_of_their_calls(void **state)
{
    (void)state;
    static const char calls[] =
        "\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"c\",\"function\":{"
        "\"name\":\"f\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"%s\",\"content\":\"1\"%s}]";
    static const struct {
        const char *id, *more, *want;
    } v[] = {
        {"c", "", "\"content\":\"1\",\"name\":\"f\"}"},
        {"d", "", "\"content\":\"1\"}"},
        {"c", ",\"name\":\"g\"", "\"content\":\"1\",\"name\":\"g\"}"},
    };
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        AUTO(mem_free) char *text = NULL;
        assert_true(asprintf(&text, calls, v[i].id, v[i].more) > 0);
        assert_int_equal(chat(text), 0);
        assert_non_null(strstr(q.template_vars, v[i].want));
        openai_request_done(&q);
    }
}

/* Otherwise a name of a few megabytes would be repeated in thousands of messages. */
static void a_long_name_of_a_tool_is_not_repeated(void **state)
{
    (void)state;
    for (size_t n = 256; n <= 257; n++) {
        AUTO(mem_free) char *name = calloc(1, n + 1), *text = NULL;
        memset(name, 'f', n);
        assert_true(asprintf(&text,
                             "\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"c\","
                             "\"function\":{\"name\":\"%s\",\"arguments\":\"{}\"}}]},"
                             "{\"role\":\"tool\",\"tool_call_id\":\"c\",\"content\":\"1\"}]",
                             name) > 0);
        assert_int_equal(chat(text), 0);
        assert_int_equal(strstr(strstr(q.template_vars, name) + n, name) != NULL, n == 256);
        openai_request_done(&q);
    }
}

static void tools_reach_the_template_unless_refused_by_the_client(void **state)
{
    (void)state;
#define TOOLS HI ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]"
    assert_int_equal(chat(TOOLS), 0);
    assert_non_null(strstr(q.template_vars, "\"tools\":["));
    assert_true(tool_types_offer(q.tools, "f", 1));
    openai_request_done(&q);
    assert_int_equal(chat(TOOLS ",\"tool_choice\":\"none\""), 0);
    assert_null(strstr(q.template_vars, "\"tools\":["));
    assert_null(q.tools);
    openai_request_done(&q);
    refused(chat(TOOLS ",\"tool_choice\":\"required\""), "tool_choice");
    assert_non_null(strstr(fault.text, "a forced tool call is not served"));
    refused(chat(TOOLS ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"f\"}}"),
            "tool_choice");
    assert_non_null(strstr(fault.text, "a forced tool call is not served"));
    refused(chat(TOOLS ",\"tool_choice\":1"), "tool_choice");
    refused(chat(HI ",\"tools\":[{}]"), "tools");
}

static void template_arguments_may_add_but_not_replace(void **state)
{
    (void)state;
    assert_int_equal(chat(HI ",\"chat_template_kwargs\":{\"enable_thinking\":false}"), 0);
    assert_non_null(strstr(q.template_vars, "\"enable_thinking\":false"));
    openai_request_done(&q);
    static const char *const names[] = {"messages", "tools", "bos_token", "add_generation_prompt"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        AUTO(mem_free) char *text = NULL;
        assert_true(asprintf(&text, HI ",\"chat_template_kwargs\":{\"%s\":1}", names[i]) > 0);
        refused(chat(text), "chat_template_kwargs");
    }
}

static void null_means_absent_everywhere(void **state)
{
    (void)state;
    assert_int_equal(
        chat(HI
             ",\"model\":null,\"temperature\":null,\"top_p\":null,\"top_k\":null,\"n\":null,"
             "\"stop\":null,\"seed\":null,\"stream\":null,\"stream_options\":null,\"tools\":null,"
             "\"tool_choice\":null,\"logit_bias\":null,\"max_tokens\":null,\"logprobs\":null,"
             "\"top_logprobs\":null,\"user\":null,\"cache_salt\":null,\"speculative\":null,"
             "\"prediction\":null,"
             "\"response_format\":null,\"chat_template_kwargs\":null,\"stop_token_ids\":null"),
        0);
    assert_false(q.temperature.set || q.n.set || q.seed.set || q.n_stops || q.stream);
    openai_request_done(&q);
}

static void unknown_fields_are_ignored(void **state)
{
    (void)state;
    assert_int_equal(chat(HI ",\"store\":true,\"service_tier\":\"auto\",\"x\":[[[]]]"), 0);
    openai_request_done(&q);
}

static void a_salt_has_1_to_64_bytes(void **state)
{
    (void)state;
#define TEN "0123456789"
#define SIXTY_FOUR TEN TEN TEN TEN TEN TEN "0123"
    assert_int_equal(chat(HI ",\"cache_salt\":\"" SIXTY_FOUR "\""), 0);
    assert_string_equal(q.cache_salt, SIXTY_FOUR);
    openai_request_done(&q);
    refused(chat(HI ",\"cache_salt\":\"" SIXTY_FOUR "4\""), "cache_salt");
    refused(chat(HI ",\"cache_salt\":\"\""), "cache_salt");
    refused(chat(HI ",\"cache_salt\":1"), "cache_salt");
}

static void numbers_are_checked_at_both_ends(void **state)
{
    (void)state;
    static const struct {
        const char *field, *low, *min, *max, *high;
    } v[] = {
        {"temperature", "-0.1", "0", "100", "100.1"},
        {"top_p", "-0.1", "0", "1", "1.01"},
        {"min_p", "-1", "0", "1", "2"},
        {"repetition_penalty", "0", "0.01", "100", "101"},
        {"presence_penalty", "-2.1", "-2", "2", "2.1"},
        {"frequency_penalty", "-2.1", "-2", "2", "2.1"},
        {"top_k", "-2", "-1", "16777215", "16777216"},
        {"n", "0", "1", "64", "65"},
        {"max_tokens", "0", "1", "2147483647", "2147483648"},
        {"min_tokens", "-1", "0", "2147483647", "2147483648"},
    };
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        const char *values[] = {v[i].low, v[i].min, v[i].max, v[i].high};
        for (size_t k = 0; k < 4; k++) {
            AUTO(mem_free) char *text = NULL;
            assert_true(asprintf(&text, HI ",\"%s\":%s", v[i].field, values[k]) > 0);
            if (k == 0 || k == 3) {
                refused(chat(text), v[i].field);
            } else {
                assert_int_equal(chat(text), 0);
                openai_request_done(&q);
            }
        }
    }
}

static void seeds_have_all_64_bits(void **state)
{
    (void)state;
    assert_int_equal(chat(HI ",\"seed\":-9223372036854775808"), 0);
    assert_true(q.seed.value == INT64_MIN);
    openai_request_done(&q);
    refused(chat(HI ",\"seed\":9223372036854775808"), "seed");
    refused(chat(HI ",\"seed\":1.0"), "seed");
}

static void stops_are_a_string_or_several(void **state)
{
    (void)state;
    assert_int_equal(chat(HI ",\"stop\":\"END\""), 0);
    assert_int_equal(q.n_stops, 1);
    openai_request_done(&q);
    assert_int_equal(chat(HI ",\"stop\":[\"a\",\"b\"]"), 0);
    assert_int_equal(q.n_stops, 2);
    assert_string_equal(q.stops[1], "b");
    openai_request_done(&q);
    refused(chat(HI ",\"stop\":\"\""), "stop");
    refused(chat(HI
                 ",\"stop\":[\"1\",\"2\",\"3\",\"4\",\"5\",\"6\",\"7\",\"8\",\"9\",\"10\",\"11\","
                 "\"12\",\"13\",\"14\",\"15\",\"16\",\"17\"]"),
            "stop");
}

static void biases_name_tokens(void **state)
{
    (void)state;
    assert_int_equal(chat(HI ",\"logit_bias\":{\"5\":-100,\"7\":2.5}"), 0);
    assert_int_equal(q.n_bias, 2);
    openai_request_done(&q);
    static const char *const bad[] = {"\"x\":1",     "\"-1\":1",        "\"1 \":1",
                                      "\"\":1",      "\"99999999\":1",  "\"1\":101",
                                      "\"1\":\"2\"", "\"4294967297\":1"}; // 1 in 32 bits
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        AUTO(mem_free) char *text = NULL;
        assert_true(asprintf(&text, HI ",\"logit_bias\":{%s}", bad[i]) > 0);
        refused(chat(text), "logit_bias");
    }
}

static void a_prompt_is_text_or_tokens(void **state)
{
    (void)state;
    assert_int_equal(completion("\"prompt\":\"x\",\"logprobs\":2"), 0);
    assert_string_equal(q.prompts->text, "x");
    assert_true(q.logprobs && q.top_logprobs.value == 2);
    openai_request_done(&q);
    assert_int_equal(completion("\"prompt\":[3,1,2]"), 0);
    assert_int_equal(q.prompts->n_ids, 3);
    assert_int_equal(q.prompts->ids[0], 3);
    openai_request_done(&q);
    refused(completion("\"prompt\":[3,\"x\"]"), "prompt[1]");
    assert_int_equal(completion("\"prompt\":[[3],\"x\"],\"n\":3"), 0);
    assert_int_equal(q.n_prompts, 2);
    assert_int_equal(q.prompts[0].ids[0], 3);
    assert_string_equal(q.prompts[1].text, "x");
    assert_int_equal(openai_request_choices(&q), 6);
    openai_request_done(&q);
    refused(completion("\"prompt\":[[3],{}]"), "prompt[1]");
    refused(completion("\"prompt\":{}"), "prompt");
    refused(completion("\"prompt\":\"x\",\"echo\":true,\"logprobs\":1"), "logprobs");
}

static void unsupported_fields_are_refused(void **state)
{
    (void)state;
    refused(chat(HI ",\"response_format\":{\"type\":\"json_schema\"}"), "response_format");
    assert_non_null(strstr(fault.text, "'json_schema' is not served"));
    refused(chat(HI ",\"response_format\":\"text\""), "response_format");
    refused(chat(HI ",\"functions\":[]"), "functions");
    refused(chat(HI ",\"guided_json\":{}"), "guided_json");
    refused(completion("\"prompt\":\"x\",\"suffix\":\"y\""), "suffix");
    refused(completion("\"prompt\":\"x\",\"suffix\":1"), "suffix");
    refused(completion("\"prompt\":\"x\",\"best_of\":2"), "best_of");
    refused(completion("\"prompt\":\"x\",\"n\":2,\"best_of\":1"), "best_of");
    refused(completion("\"prompt\":\"x\",\"best_of\":\"1\""), "best_of");
}

static void neutral_values_of_unsupported_fields_are_accepted(void **state)
{
    (void)state;
    assert_int_equal(chat(HI ",\"response_format\":{\"type\":\"text\"}"), 0);
    openai_request_done(&q);
    assert_int_equal(completion("\"prompt\":\"x\",\"suffix\":\"\",\"n\":2,\"best_of\":2"), 0);
    openai_request_done(&q);
}

static void speculation_limits_are_checked(void **state)
{
    (void)state;
    assert_int_equal(chat(HI ",\"speculative\":{\"n_max\":8,\"n_min\":2,\"p_min\":0.75}"), 0);
    assert_int_equal(q.n_max.value, 8);
    assert_int_equal(q.n_min.value, 2);
    assert_true(q.p_min.value == 0.75);
    openai_request_done(&q);
    refused(chat(HI ",\"speculative\":{\"p_min\":1.5}"), "speculative.p_min");
    refused(chat(HI ",\"speculative\":{\"p_min\":\"1\"}"), "speculative.p_min");
    refused(chat(HI ",\"speculative\":{\"n_min\":65}"), "speculative.n_min");
}

/* What the tests above leave out: members of a wrong type, lists that are too long. */
static void wrong_members_are_refused_by_name(void **state)
{
    (void)state;
#define CALLS(list) "\"messages\":[{\"role\":\"assistant\",\"tool_calls\":" list "}]"
#define SIXTEEN "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,"
    static const struct {
        const char *members, *param, *text;
    } v[] = {
        {CALLS("{}"), "messages[0].tool_calls", "must be an array, not an object"},
        {CALLS("[1]"), "messages[0].tool_calls[0]", "must be an object with a name"},
        {CALLS("[{\"function\":{}}]"), "messages[0].tool_calls[0]",
         "must be an object with a name"},
        {HI ",\"tools\":{}", "tools", "must be an array, not an object"},
        {HI ",\"tool_choice\":\"some\"", "tool_choice", "must be \"auto\" or \"none\""},
        {HI ",\"chat_template_kwargs\":[]", "chat_template_kwargs", "must be an object"},
        {HI ",\"chat_template_kwargs\":{\"eos_token\":1}", "chat_template_kwargs", "may not set"},
        {HI ",\"stop_token_ids\":1", "stop_token_ids", "must be an array of at most"},
        {HI ",\"stop_token_ids\":[" SIXTEEN SIXTEEN SIXTEEN SIXTEEN "1]", "stop_token_ids",
         "must be an array of at most"},
        {HI ",\"stop_token_ids\":[5,-1]", "stop_token_ids[1]", "must be a token id"},
        {HI ",\"logit_bias\":[]", "logit_bias", "must be an object of at most"},
        {HI ",\"stream_options\":{}", "stream_options", "only allowed with stream"},
        {HI ",\"stream\":true,\"stream_options\":1", "stream_options", "must be an object"},
        {HI ",\"speculative\":1", "speculative", "must be an object"},
        {HI ",\"speculative\":{\"proposer\":1}", "speculative.proposer", "must be a string"},
        {HI ",\"speculative\":{\"proposer\":\"" SIXTY_FOUR "4\"}", "speculative.proposer",
         "longer than 64 bytes"},
        {HI ",\"prediction\":{\"type\":\"x\"}", "prediction", "of type \"content\""},
        {HI ",\"prediction\":1", "prediction", "of type \"content\""},
        {"\"messages\":[{\"role\":\"user\",\"content\":[1]}]", "messages[0].content",
         "[0] must be an object with a type"},
    };
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        refused(chat(v[i].members), v[i].param);
        if (!strstr(fault.text, v[i].text))
            fail_msg("%s\n is refused with: %s", v[i].members, fault.text);
    }
    refused(completion("\"prompt\":\"x\",\"add_special_tokens\":1"), "add_special_tokens");
    refused(completion("\"prompt\":[5,-1]"), "prompt[1]");
    refused(completion("\"prompt\":[[]]"), "prompt[0]");
}

static void empty_arguments_are_no_arguments(void **state)
{
    (void)state;
    assert_int_equal(chat(CALLS("[{\"function\":{\"name\":\"f\",\"arguments\":\"\"}}]")), 0);
    assert_non_null(strstr(q.template_vars, "\"arguments\":\"{}\""));
    openai_request_done(&q);
}

static void answers_are_split_unless_disabled(void **state)
{
    (void)state;
    assert_int_equal(chat(HI), 0);
    assert_true(q.include_reasoning && q.separate_reasoning && q.parallel_calls);
    openai_request_done(&q);
    assert_int_equal(chat(HI ",\"include_reasoning\":false,\"separate_reasoning\":false,"
                             "\"parallel_tool_calls\":false"),
                     0);
    assert_false(q.include_reasoning || q.separate_reasoning || q.parallel_calls);
    openai_request_done(&q);
    refused(chat(HI ",\"include_reasoning\":1"), "include_reasoning");
    refused(chat(HI ",\"parallel_tool_calls\":\"no\""), "parallel_tool_calls");
}

static void effort_reaches_the_template(void **state)
{
    (void)state;
    assert_int_equal(chat(HI ",\"reasoning_effort\":\"low\""), 0);
    assert_non_null(strstr(q.template_vars, "\"reasoning_effort\":\"low\""));
    openai_request_done(&q);
    refused(chat(HI ",\"reasoning_effort\":1"), "reasoning_effort");
}

static void depth_is_limited_before_parsing(void **state)
{
    (void)state;
    char deep[2 * JSON_READ_MAX_DEPTH + 64];
    for (int levels = JSON_READ_MAX_DEPTH - 1; levels <= JSON_READ_MAX_DEPTH; levels++) {
        char *at = deep + sprintf(deep, HI ",\"x\":");
        memset(at, '[', (size_t)levels);
        memset(at + levels, ']', (size_t)levels);
        at[2 * levels] = 0;
        int rc = chat(deep);
        if (levels < JSON_READ_MAX_DEPTH) {
            assert_int_equal(rc, 0);
            openai_request_done(&q);
        } else {
            refused(rc, "");
        }
    }
    assert_int_equal(chat(HI ",\"x\":\"[[[[\\\"[[[\""), 0); // not inside strings
    openai_request_done(&q);
}

static void the_number_of_values_is_limited(void **state)
{
    (void)state;
    for (size_t more = 0; more <= 1; more++) {
        size_t n = JSON_READ_MAX_VALUES - 3 + more; // { : [ and the commas after them
        AUTO(mem_free) char *text = malloc(2 * n + 32);
        char *at = text + sprintf(text, "\"prompt\":[1");
        for (size_t i = 0; i < n; i++)
            at += sprintf(at, ",1");
        strcpy(at, "]");
        int rc = completion(text);
        if (more) {
            refused(rc, "");
            assert_non_null(strstr(fault.text, "more than 262144 values"));
        } else {
            assert_int_equal(rc, 0);
            assert_int_equal(q.prompts->n_ids, n + 1);
            openai_request_done(&q);
        }
    }
}

static void arguments_of_calls_count_with_the_body(void **state)
{
    (void)state;
    size_t n = JSON_READ_MAX_VALUES / 2;
    AUTO(mem_free) char *list = malloc(2 * n + 8), *text = NULL;
    char *at = list + sprintf(list, "[1");
    for (size_t i = 0; i < n; i++)
        at += sprintf(at, ",1");
    strcpy(at, "]");
    assert_true(asprintf(&text,
                         "\"messages\":[{\"role\":\"assistant\",\"tool_calls\":["
                         "{\"function\":{\"name\":\"f\",\"arguments\":\"%s\"}},"
                         "{\"function\":{\"name\":\"f\",\"arguments\":\"%s\"}}]}]",
                         list, list) > 0);
    refused(chat(text), "messages[0].tool_calls[1]");
}

static void bodies_need_no_nul_at_the_end(void **state)
{
    (void)state;
    static const char body[] = "{\"prompt\":\"x\"}";
    for (size_t n = 0; n < sizeof(body) - 1; n++) {
        AUTO(mem_free) char *cut = malloc(n + !n);
        memcpy(cut, body, n);
        assert_int_equal(openai_request_parse(OPENAI_COMPLETION, cut, n, NULL, &q, &fault),
                         -EINVAL);
    }
}

/* A request with everything that its kind can hold. */
static const struct {
    enum openai_kind kind;
    const char *body;
} full[] = {
    {OPENAI_COMPLETION,
     "{\"model\":\"m\",\"prompt\":[\"x\",[1,2]],\"stop\":[\"a\",\"b\"],\"user\":\"u\","
     "\"cache_salt\":\"s\",\"logit_bias\":{\"5\":1},\"prediction\":{\"type\":"
     "\"content\",\"content\":[{\"type\":\"text\",\"text\":\"p\"}]},"
     "\"speculative\":{\"proposer\":\"n\",\"rule\":\"own\"}}"},
    {OPENAI_COMPLETION, "{\"prompt\":\"x\"}"},
    {OPENAI_CHAT,
     "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"}]},"
     "{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"c\",\"function\":{\"name\":\"f\","
     "\"arguments\":\"{\\\"a\\\":9223372036854775808}\"}}]},{\"role\":\"tool\",\"tool_call_id\":"
     "\"c\",\"content\":\"1\"}],"
     "\"tools\":[{\"function\":{\"name\":\"f\"}}],\"reasoning_effort\":\"low\","
     "\"seed\":9223372036854775807,\"x\":9223372036854775808,"
     "\"chat_template_kwargs\":{\"a\":1}}"},
    {OPENAI_RESPONSES,
     "{\"instructions\":\"i\",\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_text\","
     "\"text\":\"a\"}]},{\"type\":\"reasoning\",\"content\":[{\"type\":\"reasoning_text\",\"text\":"
     "\"r\"}]},"
     "{\"type\":\"function_call\",\"call_id\":\"c\",\"name\":\"f\",\"arguments\":\"{}\"},"
     "{\"type\":\"function_call_output\",\"call_id\":\"c\",\"output\":\"1\"}],"
     "\"tools\":[{\"type\":\"function\",\"name\":\"f\"}],\"reasoning\":{\"effort\":\"low\"}}"},
};

static void check_shortage(int rc, unsigned n, const char *body)
{
    if (rc != -ENOMEM || fault.status != 500)
        fail_msg("allocation %u of %s: %d, status %d: %s", n, body, rc, fault.status, fault.text);
}

/* jansson's allocations do not fail here. */
static void a_failed_allocation_is_not_the_clients_fault(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(full); i++) {
        size_t len = strlen(full[i].body);
        unsigned n = 0;
        bool failed = true;
        while (failed) {
            failing_at(++n);
            int rc = openai_request_parse(full[i].kind, full[i].body, len, NULL, &q, &fault);
            if ((failed = failing_has_failed()))
                check_shortage(rc, n, full[i].body);
            else
                assert_int_equal(rc, 0);
        }
        openai_request_done(&q);
        assert_true(n > 1);
    }
}

static void a_rendered_chat_is_the_only_prompt(void **state)
{
    (void)state;
    for (unsigned n = 1; n <= 2; n++) {
        assert_int_equal(chat(HI), 0);
        failing_at(n);
        assert_int_equal(openai_request_rendered(&q, "abc", 2), -ENOMEM);
        assert_true(failing_has_failed());
        assert_int_equal(q.n_prompts, 0);
        openai_request_done(&q);
    }
    assert_int_equal(chat(HI), 0);
    assert_int_equal(openai_request_rendered(&q, "abc", 2), 0);
    assert_int_equal(q.n_prompts, 1);
    assert_string_equal(q.prompts[0].text, "ab");
    assert_int_equal(q.prompts[0].len, 2);
    openai_request_done(&q);
}

/* ---- jansson's allocations ---- */

static size_t n_allocated, failing_n; // failing_n: that allocation fails; 0: none

static void *allocate(size_t n)
{
    return ++n_allocated == failing_n ? NULL : malloc(n);
}

/* Values that are changed or copied. Arguments of calls are empty, since others are parsed. */
static const struct {
    enum openai_kind kind;
    const char *body;
} copied[] = {
    {OPENAI_CHAT,
     "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"}]},"
     "{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"c\",\"function\":{\"name\":\"f\","
     "\"arguments\":\"\"}}]},{\"role\":\"tool\",\"tool_call_id\":\"c\",\"content\":\"1\"}],"
     "\"tools\":[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"a\":{\"$ref\":"
     "\"#/$defs/s\"}},\"$defs\":{\"s\":{\"type\":\"string\"}}}}}],\"reasoning_effort\":\"low\","
     "\"chat_template_kwargs\":{\"a\":1,\"b\":2,\"c\":3,\"d\":4,\"e\":5}}"},
    {OPENAI_RESPONSES,
     "{\"instructions\":\"i\",\"input\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_text\","
     "\"text\":\"a\"}]},{\"type\":\"reasoning\",\"content\":[{\"type\":\"reasoning_text\",\"text\":"
     "\"r\"}]},"
     "{\"type\":\"function_call\",\"call_id\":\"c\",\"name\":\"f\",\"arguments\":\"\"},"
     "{\"type\":\"function_call_output\",\"call_id\":\"c\",\"output\":\"1\"},"
     "{\"type\":\"reasoning\",\"content\":\"r\"}],"
     "\"tools\":[{\"type\":\"function\",\"name\":\"f\"}],\"tool_choice\":\"none\","
     "\"chat_template_kwargs\":{\"a\":1},\"reasoning\":{\"effort\":\"low\"},"
     "\"metadata\":{\"a\":\"b\"}}"},
};

/* Whether no text is another one. */
static bool same_request(const struct openai_request *a, const struct openai_request *b)
{
    return a->template_vars && strcmp(a->template_vars, b->template_vars) == 0 &&
           (!b->echoed || (a->echoed && strcmp(a->echoed, b->echoed) == 0)) &&
           tool_types_bytes(a->tools) == tool_types_bytes(b->tools);
}

/* Version 2.14 may crash if its parser has no memory, so allocations fail after the parsing only.
 * A request that is read has lost nothing. */
static void values_that_cannot_be_copied_are_not_lost(void **state)
{
    (void)state;
    json_set_alloc_funcs(allocate, free);
    for (size_t i = 0; i < ARRAY_LEN(copied); i++) {
        size_t len = strlen(copied[i].body);
        struct openai_request whole;
        failing_n = n_allocated = 0;
        json_decref(json_loadb(copied[i].body, len, JSON_REJECT_DUPLICATES, NULL));
        size_t n = n_allocated;
        assert_int_equal(
            openai_request_parse(copied[i].kind, copied[i].body, len, NULL, &whole, &fault), 0);
        for (bool failed = true; failed;) {
            failing_n = ++n;
            n_allocated = 0;
            int rc = openai_request_parse(copied[i].kind, copied[i].body, len, NULL, &q, &fault);
            failed = n_allocated >= failing_n;
            if (rc < 0 || !same_request(&q, &whole))
                check_shortage(rc, (unsigned)n, copied[i].body);
            openai_request_done(&q);
        }
        openai_request_done(&whole);
    }
    json_set_alloc_funcs(malloc, free);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_become_the_templates_variables),
        cmocka_unit_test(parts_of_text_are_joined),
        cmocka_unit_test(arguments_of_a_tool_call_are_json),
        cmocka_unit_test(numbers_may_be_long),
        cmocka_unit_test(arguments_of_calls_are_returned_verbatim),
        cmocka_unit_test(outputs_get_the_names_of_their_calls),
        cmocka_unit_test(a_long_name_of_a_tool_is_not_repeated),
        cmocka_unit_test(tools_reach_the_template_unless_refused_by_the_client),
        cmocka_unit_test(template_arguments_may_add_but_not_replace),
        cmocka_unit_test(null_means_absent_everywhere),
        cmocka_unit_test(unknown_fields_are_ignored),
        cmocka_unit_test(a_salt_has_1_to_64_bytes),
        cmocka_unit_test(numbers_are_checked_at_both_ends),
        cmocka_unit_test(seeds_have_all_64_bits),
        cmocka_unit_test(stops_are_a_string_or_several),
        cmocka_unit_test(biases_name_tokens),
        cmocka_unit_test(a_prompt_is_text_or_tokens),
        cmocka_unit_test(unsupported_fields_are_refused),
        cmocka_unit_test(neutral_values_of_unsupported_fields_are_accepted),
        cmocka_unit_test(speculation_limits_are_checked),
        cmocka_unit_test(wrong_members_are_refused_by_name),
        cmocka_unit_test(empty_arguments_are_no_arguments),
        cmocka_unit_test(answers_are_split_unless_disabled),
        cmocka_unit_test(effort_reaches_the_template),
        cmocka_unit_test(depth_is_limited_before_parsing),
        cmocka_unit_test(the_number_of_values_is_limited),
        cmocka_unit_test(arguments_of_calls_count_with_the_body),
        cmocka_unit_test(bodies_need_no_nul_at_the_end),
        cmocka_unit_test(a_failed_allocation_is_not_the_clients_fault),
        cmocka_unit_test(a_rendered_chat_is_the_only_prompt),
        cmocka_unit_test(values_that_cannot_be_copied_are_not_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
