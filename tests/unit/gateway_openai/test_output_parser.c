/* Answers of models are split into reasoning, content and calls; the result does not depend on how
 * the text is divided. The calls are those of the golden renderings of the templates. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "gateway/openai/output_parser.h"
#include "lib/clients/tools.h"
#include "lib/fakes/failing.h"
#include "lib/lib.h"

#define TOOLS                                                                                      \
    "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"parameters\":{"              \
    "\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"},"                          \
    "\"unit\":{\"type\":\"string\"},\"days\":{\"type\":\"integer\"},"                              \
    "\"exact\":{\"type\":\"boolean\"},\"zip\":{\"type\":[\"string\",\"null\"]},"                   \
    "\"places\":{\"type\":\"array\"}}}}},"                                                         \
    "{\"type\":\"function\",\"function\":{\"name\":\"get_time\"}}]"
#define PARIS "get_weather({\"city\": \"Paris\", \"unit\": \"celsius\"})"
#define PARIS_COMPACT "get_weather({\"city\":\"Paris\",\"unit\":\"celsius\"})"

/* The parsed answer on one line: reasoning|content|call;call; */
static char *flat(const struct output_parser_out *o)
{
    AUTO(buf_done) struct buf b = {0};
    buf_init(&b, 1 << 20);
    buf_add(&b, o->reasoning.data, o->reasoning.len);
    buf_puts(&b, "|");
    buf_add(&b, o->content.data, o->content.len);
    buf_puts(&b, "|");
    for (unsigned i = 0; i < o->calls.n; i++) {
        const struct tool_call *c = &o->calls.v[i];
        buf_printf(&b, "%s%s%s(%s);", c->id ? c->id : "", c->id ? "=" : "", c->name, c->arguments);
    }
    return buf_take(&b);
}

/* Feeds pieces of `step` bytes, the first one of `first` bytes. */
static char *split(const struct output_parser_rules *rules, const char *text, size_t first,
                   size_t step)
{
    struct output_parser p;
    struct output_parser_out o;
    size_t len = strlen(text);
    output_parser_init(&p, rules);
    output_parser_out_init(&o);
    for (size_t at = 0, n = first; at < len; at += n, n = step) {
        n = n < len - at ? n : len - at;
        output_parser_feed(&p, text + at, n, &o);
    }
    output_parser_end(&p, &o);
    char *all = flat(&o);
    output_parser_out_done(&o);
    output_parser_done(&p);
    return all;
}

static void becomes(const struct output_parser_rules *rules, const char *text, const char *want)
{
    AUTO(mem_free) char *whole = split(rules, text, SIZE_MAX, 1), *bytes = split(rules, text, 1, 1);
    if (strcmp(whole, want) != 0)
        fail_msg("%s\n  got  %s\n  want %s", text, whole, want);
    assert_string_equal(bytes, want);
    for (size_t cut = 1; cut < strlen(text); cut++) {
        AUTO(mem_free) char *pieces = split(rules, text, cut, SIZE_MAX);
        if (strcmp(pieces, want) != 0)
            fail_msg("cut at %zu: %s\n  got  %s\n  want %s", cut, text, pieces, want);
    }
}

static void calls(enum tool_format f, const char *text, const char *want)
{
    AUTO(tool_types_free) struct tool_types *types = tools_of(TOOLS);
    becomes(&(struct output_parser_rules){.format = f, .types = types}, text, want);
}

static void without_rules_all_text_is_content(void **state)
{
    (void)state;
    becomes(NULL, "<think>a</think> <tool_call>{}</tool_call>",
            "|<think>a</think> <tool_call>{}</tool_call>|");
}

static void hermes_writes_objects_between_tags(void **state)
{
    (void)state;
#define HERMES(name, args)                                                                         \
    "<tool_call>\n{\"name\": \"" name "\", \"arguments\": " args "}\n</tool_call>"
    calls(TOOLS_HERMES, HERMES("get_weather", "{\"city\": \"Paris\", \"unit\": \"celsius\"}"),
          "||" PARIS ";");
    calls(
        TOOLS_HERMES,
        "I'll look.\n\n" HERMES("get_time", "{}") "\n" HERMES("get_weather", "{\"days\":1.5}") "\n",
        "|I'll look.|get_time({});get_weather({\"days\":1.5});");
    calls(TOOLS_HERMES, HERMES("f", "{\"x\":\"</tool_call> \\\" {\"}"),
          "||f({\"x\":\"</tool_call> \\\" {\"});");
    calls(TOOLS_HERMES, HERMES("f", "\"{\\\"a\\\":1}\""), "||f({\"a\":1});");
    calls(TOOLS_HERMES, "<tool_call>{\"name\":\"f\",\"arguments\":{}}", "||f({});"); // no end
}

static void arguments_stay_as_they_were_written(void **state)
{
    (void)state;
#define ARGS                                                                                       \
    "{ \"x\" : 0.1, \"n\":12345678901234567890,\"a\":[{},\"]}\\\"\", 1e5 ],\"arguments\":{} }"
    calls(TOOLS_HERMES, HERMES("f", ARGS), "||f(" ARGS ");");
    calls(TOOLS_HERMES, "<tool_call>{\"arguments\" : " ARGS " , \"name\":\"f\"}</tool_call>",
          "||f(" ARGS ");");
    calls(TOOLS_LLAMA, "{\"name\": \"get_time\", \"parameters\":" ARGS "}",
          "||get_time(" ARGS ");");
    calls(TOOLS_MISTRAL,
          "[TOOL_CALLS] [ {\"name\":\"f\",\"arguments\":" ARGS "} , {\"arguments\":{}, "
          "\"name\":\"g\"}]",
          "||f(" ARGS ");g({});");
    calls(TOOLS_MISTRAL, "[TOOL_CALLS]f[ARGS]" ARGS, "||f(" ARGS ");");
    calls(TOOLS_CODER,
          "<function=get_weather><parameter=places>[0.1, 12345678901234567890]</parameter>"
          "</function>",
          "||get_weather({\"places\":[0.1, 12345678901234567890]});");
}

static void text_that_is_not_a_call_is_content(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "a <tool_call> b",
        "\n <tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1",
        "<tool_call>{\"name\": \"f\"}</tool_call> and on",
        "<tool_call>{\"name\": 1, \"arguments\": {}}</tool_call>",
        "<tool_call>{\"name\": \"two words\", \"arguments\": {}}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>",
        "<tool_call>{\"name\": \"f\", \"arguments\": {}} }</tool_call>",
        "<tool_",
        "<<tool_cal\xC3\xA9",
        "1 < 2 \xE2\x82\xAC\n\n",
    };
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        AUTO(mem_free) char *want = NULL;
        assert_true(asprintf(&want, "|%s|", texts[i]) > 0);
        calls(TOOLS_HERMES, texts[i], want);
    }
    calls(TOOLS_HERMES, "a <tool_call> b\n" HERMES("f", "{}"), "|a <tool_call> b|f({});");
}

static void qwen_coder_writes_tags(void **state)
{
    (void)state;
#define CODER(args) "<tool_call>\n<function=get_weather>\n" args "</function>\n</tool_call>"
#define ARG(key, value) "<parameter=" key ">\n" value "\n</parameter>\n"
    calls(TOOLS_CODER, CODER(ARG("city", "Paris") ARG("unit", "celsius")), "||" PARIS_COMPACT ";");
    calls(TOOLS_CODER,
          "<function=get_weather>\n" ARG("city", "12") ARG("days", "12") ARG("exact", "True")
              ARG("zip", "null") ARG("places", "[1, {\"a\": \"b\"}]") ARG("more", "1e2")
                  ARG("other", "a\n b") "</function>\n</tool_call>\n\n",
          "||get_weather({\"city\":\"12\",\"days\":12,\"exact\":true,\"zip\":null,"
          "\"places\":[1, {\"a\": \"b\"}],\"more\":1e2,\"other\":\"a\\n b\"});");
    calls(TOOLS_CODER, CODER(ARG("city", "a </function> b")),
          "||get_weather({\"city\":\"a </function> b\"});");
    calls(TOOLS_CODER, "<tool_call>\n<function=get_weather>\n" ARG("city", "Paris"),
          "|<tool_call>\n<function=get_weather>\n" ARG("city", "Paris") "|"); // cut short
}

static void glm_writes_keys_and_values(void **state)
{
    (void)state;
    calls(TOOLS_GLM,
          "\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n"
          "<arg_key>unit</arg_key>\n<arg_value>celsius</arg_value>\n</tool_call>",
          "||" PARIS_COMPACT ";");
    calls(TOOLS_GLM,
          "x<tool_call>get_weather<arg_key>days</arg_key><arg_value>3</arg_value></tool_call>"
          "<tool_call>get_time</tool_call>",
          "|x|get_weather({\"days\":3});get_time({});");
    calls(TOOLS_GLM, "<tool_call>no name</tool_call>", "|<tool_call>no name</tool_call>|");
}

static void llama_answers_with_an_object(void **state)
{
    (void)state;
    calls(TOOLS_LLAMA,
          "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Paris\", \"unit\": "
          "\"celsius\"}}",
          "||" PARIS ";");
    calls(TOOLS_LLAMA, "<|python_tag|>{\"name\": \"f\", \"parameters\": {\"q\": \"{\\\"\"}}",
          "||f({\"q\": \"{\\\"\"});");
    calls(TOOLS_LLAMA,
          "{\"name\": \"get_time\", \"parameters\": {}}; {\"name\": \"get_weather\", "
          "\"parameters\": {}}",
          "||get_time({});get_weather({});");
    calls(TOOLS_LLAMA, "{\"name\": \"Bob\", \"parameters\": {}}",
          "|{\"name\": \"Bob\", \"parameters\": {}}|"); // no such tool
    calls(TOOLS_LLAMA, "{\"a\": {}} {\"name\": \"get_time\", \"parameters\": {}}",
          "|{\"a\": {}} {\"name\": \"get_time\", \"parameters\": {}}|");
    calls(TOOLS_LLAMA, "so; {\"name\": \"get_time\", \"parameters\": {}}",
          "|so; {\"name\": \"get_time\", \"parameters\": {}}|");
    calls(TOOLS_LLAMA, "<|python_tag|>search.call()", "|<|python_tag|>search.call()|");
}

static void mistral_writes_a_list_or_names(void **state)
{
    (void)state;
    calls(TOOLS_MISTRAL,
          "[TOOL_CALLS][{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\", \"unit\": "
          "\"celsius\"}, \"id\": \"call00001\"}, {\"name\": \"get_time\", \"arguments\": {}}]",
          "||call00001=" PARIS ";get_time({});");
    calls(TOOLS_MISTRAL,
          "[TOOL_CALLS]get_weather[CALL_ID]call00001[ARGS]{\"city\": \"Paris\", \"unit\": "
          "\"celsius\"}",
          "||call00001=" PARIS ";");
    calls(TOOLS_MISTRAL, "ok [TOOL_CALLS]f[ARGS]{\"a\": \"}\"}[TOOL_CALLS]g{}",
          "|ok|f({\"a\": \"}\"});g({});");
    calls(TOOLS_MISTRAL, "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}}, 1] x",
          "|[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}}, 1] x|");
}

static void deepseek_writes_special_tokens(void **state)
{
    (void)state;
#define CALLS(x) "<｜tool▁calls▁begin｜>" x "<｜tool▁calls▁end｜>"
#define CALL(x) "<｜tool▁call▁begin｜>" x "<｜tool▁call▁end｜>"
    calls(TOOLS_DEEPSEEK,
          CALLS(CALL("get_weather<｜tool▁sep｜>{\"city\": \"Paris\", \"unit\": \"celsius\"}")),
          "||" PARIS ";");
    calls(TOOLS_DEEPSEEK,
          "Yes.\n" CALLS(
              CALL("function<｜tool▁sep｜>get_time\n```json\n{\"zone\": \"`\"}\n```") "\n" CALL(
                  "function<｜tool▁sep｜>get_time\n```json\n{}\n```")),
          "|Yes.|get_time({\"zone\": \"`\"});get_time({});");
    calls(TOOLS_DEEPSEEK,
          CALLS(CALL("function<｜tool▁sep｜>write\n```json\n{\"x\":\"```py\\n<｜tool▁call▁end｜>\"}"
                     "\n```") CALL("get_time<｜tool▁sep｜>{}")),
          "||write({\"x\":\"```py\\n<｜tool▁call▁end｜>\"});get_time({});");
    calls(TOOLS_DSML,
          "\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"get_weather\">\n"
          "<｜DSML｜parameter name=\"city\" string=\"true\">Paris</｜DSML｜parameter>\n"
          "<｜DSML｜parameter name=\"days\" string=\"false\">3</｜DSML｜parameter>\n"
          "</｜DSML｜invoke>\n<｜DSML｜invoke name=\"get_time\">\n</｜DSML｜invoke>\n"
          "</｜DSML｜function_calls>",
          "||get_weather({\"city\":\"Paris\",\"days\":3});get_time({});");
}

static void kimi_names_its_calls(void **state)
{
    (void)state;
    calls(
        TOOLS_KIMI,
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
        "<|tool_call_argument_begin|>{\"city\": \"Paris\", \"unit\": \"celsius\"}<|tool_call_end|>"
        "<|tool_call_begin|>functions.get_time:1<|tool_call_argument_begin|>{}<|tool_call_end|>"
        "<|tool_calls_section_end|>",
        "||functions.get_weather:0=" PARIS ";functions.get_time:1=get_time({});");
    calls(TOOLS_KIMI,
          "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{\"x\":"
          "\"<|tool_call_end|>\"}<|tool_call_end|>",
          "||functions.f:0=f({\"x\":\"<|tool_call_end|>\"});");
}

static const struct output_parser_thinking think = {"<think>", "</think>"};

static void reasoning_is_separated(void **state)
{
    (void)state;
    struct output_parser_rules r = {.thinking = &think};
    becomes(&r, "\n<think>\n2+2=4\n\n</think>\n\n4\n", "2+2=4|4\n|");
    becomes(&r, "4 <think>no</think>", "|4 <think>no</think>|"); // not at the beginning
    becomes(&r, "<think></think>4", "|4|");
    becomes(&r, "<think>and so", "and so||"); // cut short
    becomes(&r, " 4", "| 4|");
    becomes(&r, "<thin", "|<thin|");
    r.begun = true;
    becomes(&r, "2+2=4</think>4</think>", "2+2=4|4</think>|");
    becomes(&r, "a </thin b", "a </thin b||");
    r = (struct output_parser_rules){.thinking = &think, .closed = true};
    becomes(&r, "<think>4", "|<think>4|");
}

static void calls_follow_reasoning(void **state)
{
    (void)state;
    AUTO(tool_types_free) struct tool_types *types = tools_of(TOOLS);
    struct output_parser_rules r = {.thinking = &think, .format = TOOLS_HERMES, .types = types};
    becomes(&r, "<think>\nHm <tool_call>.\n</think>\n\nSo:\n" HERMES("f", "{}"),
            "Hm <tool_call>.|So:|f({});");
    r.format = TOOLS_LLAMA;
    becomes(&r, "<think>a</think>\n{\"name\": \"get_time\", \"parameters\": {}}",
            "a||get_time({});");
}

static void a_section_of_kimi_ends_its_reasoning(void **state)
{
    (void)state;
    struct output_parser_rules r = {.thinking = &think, .begun = true, .format = TOOLS_KIMI};
#define KIMI(id) "<|tool_call_begin|>" id "<|tool_call_argument_begin|>{}<|tool_call_end|>"
    becomes(&r,
            "Hm.\n<|tool_calls_section_begin|>" KIMI("functions.f:0") "<|tool_calls_section_end|>x",
            "Hm.|x|functions.f:0=f({});");
    becomes(&r, "Hm. <|tool_calls_section_begin|> no</think>4",
            "Hm. <|tool_calls_section_begin|> no|4|");
    becomes(&r, "Hm. " KIMI("f") "</think>4", "Hm. " KIMI("f") "|4|");
}

static void ids_are_used_where_templates_need_them(void **state)
{
    (void)state;
    calls(TOOLS_HERMES,
          "<tool_call>{\"name\":\"f\",\"arguments\":{},\"id\":\"call00001\"}</tool_call>",
          "||f({});");
    calls(TOOLS_MISTRAL,
          "[TOOL_CALLS][{\"name\":\"f\",\"arguments\":{},\"id\":\"call00001\"},"
          "{\"name\":\"f\",\"arguments\":{},\"id\":\"call00001\"},"
          "{\"name\":\"f\",\"arguments\":{},\"id\":\"call-0001\"},"
          "{\"name\":\"f\",\"arguments\":{},\"id\":\"1\"}]",
          "||call00001=f({});f({});f({});f({});");
    calls(TOOLS_KIMI, KIMI("functions.f:0") KIMI("functions.f:0") KIMI("functions.f:1"),
          "||functions.f:0=f({});f({});functions.f:1=f({});");
}

static void the_prompt_decides_whether_reasoning_has_begun(void **state)
{
    (void)state;
    struct output_parser_rules r = {.thinking = &think};
    output_parser_rules_prompt(&r, "x<think>\n", 9);
    assert_true(r.begun && !r.closed);
    output_parser_rules_prompt(&r, "<think></think> ", 16);
    assert_true(!r.begun && r.closed);
    output_parser_rules_prompt(&r, "x", 1);
    assert_true(!r.begun && !r.closed);
}

/* ---- gpt-oss ---- */

#define HEADER(channel) "<|channel|>" channel "<|message|>"
#define NEXT "<|end|><|start|>assistant"

static void harmony(bool thinking, enum tool_format f, const char *text, const char *want)
{
    static const struct output_parser_thinking analysis;
    becomes(&(struct output_parser_rules){.thinking = thinking ? &analysis : NULL,
                                          .is_harmony = true,
                                          .format = f},
            text, want);
}

/* The texts and their meanings are those of llama.cpp's tests of the format. */
static void channels_of_gpt_oss_are_separated(void **state)
{
    (void)state;
    harmony(true, TOOLS_NONE, HEADER("final") "Hello, world!\nWhat's up?",
            "|Hello, world!\nWhat's up?|");
    harmony(true, TOOLS_NONE, HEADER("commentary") "Hello", "|Hello|");
    harmony(true, TOOLS_NONE,
            HEADER("analysis") "I'm\nthinking" NEXT HEADER("final") "Hello<|return|>",
            "I'm\nthinking|Hello|");
    harmony(false, TOOLS_NONE, HEADER("analysis") "a" NEXT HEADER("final") "b", "|a\n\nb|");
    harmony(true, TOOLS_NONE, HEADER("analysis") "I'm", "I'm||");
    harmony(true, TOOLS_NONE,
            HEADER("analysis") "a" NEXT "<|channel|>final <|constrain|>json<|message|>{\"n\": 1.5}",
            "a|{\"n\": 1.5}|");
    harmony(true, TOOLS_NONE,
            HEADER("analysis") "a" NEXT HEADER("analysis") "b" NEXT HEADER(
                "commentary") "c" NEXT HEADER("final") "d",
            "a\n\nb|c\n\nd|");
    harmony(true, TOOLS_NONE, "<|channel|>commentary to=assistant" HEADER("final") "x", "|x|");
}

static void calls_of_gpt_oss_have_recipients(void **state)
{
    (void)state;
    static const char *const headers[] = {
        " to=functions.f<|channel|>analysis<|message|>",
        "<|channel|>analysis to=functions.f<|message|>",
        " to=functions.f<|channel|>analysis <|constrain|>json<|message|>",
        "<|channel|>commentary to=functions.f<|message|>",
        "<|channel|>commentary to=functions.f <|constrain|>json<|message|>",
        "<|start|>assistant to=functions.f<|channel|>commentary json<|message|>",
    };
    static const char *const ends[] = {"", "<|call|>", "<|end|>"};
    for (size_t i = 0; i < ARRAY_LEN(headers) * ARRAY_LEN(ends); i++) {
        const char *header = headers[i % ARRAY_LEN(headers)], *end = ends[i / ARRAY_LEN(headers)];
        AUTO(mem_free) char *text = NULL, *after = NULL;
        assert_true(asprintf(&text, "%s{ \"a<|\": 1}%s", header, end) > 0);
        harmony(true, TOOLS_HARMONY, text, "||f({ \"a<|\": 1});");
        assert_true(asprintf(&after, HEADER("analysis") "hm" NEXT "%s", text) > 0);
        harmony(true, TOOLS_HARMONY, after, "hm||f({ \"a<|\": 1});");
        harmony(true, TOOLS_NONE, text, "{ \"a<|\": 1}||"); // no tool of the request
    }
    harmony(true, TOOLS_HARMONY, "<|channel|>commentary to=python<|message|>1 + 1", "1 + 1||");
    harmony(
        true, TOOLS_HARMONY,
        HEADER("commentary") "I look." NEXT
                             "<|channel|>commentary to=functions.f<|message|>{}<|call|>"
                             "<|start|>assistant<|channel|>commentary to=functions.g<|message|>{}",
        "|I look.|f({});g({});");
    harmony(true, TOOLS_HARMONY, "<|channel|>commentary to=functions.f<|message|>not JSON<|call|>",
            "|<|channel|>commentary to=functions.f<|message|>not JSON|");
    harmony(true, TOOLS_HARMONY, "<|channel|>commentary to=functions.now<|message|><|call|>",
            "||now({});");
    harmony(true, TOOLS_HARMONY, "<|channel|>commentary to=functions.f<|message|>{\"a\": ",
            "|<|channel|>commentary to=functions.f<|message|>{\"a\": |");
}

static void text_without_channels_is_content(void **state)
{
    (void)state;
    static const char *const texts[] = {"Hello",     "to be < or <| not", " tool",  "t",
                                        "<",         "<|unknown|>",       "<|chan", "x<|en",
                                        "1 <|end of"};
    for (size_t i = 0; i < ARRAY_LEN(texts); i++) {
        AUTO(mem_free) char *want = NULL;
        assert_true(asprintf(&want, "|%s|", texts[i]) > 0);
        harmony(true, TOOLS_HARMONY, texts[i], want);
    }
    harmony(true, TOOLS_HARMONY, "<|end|>" HEADER("final") "x", "|x|");
    harmony(true, TOOLS_HARMONY, " <|end|>" HEADER("final") "x", "|x|");
    harmony(true, TOOLS_HARMONY, "t<|return|>", "|t|");
    harmony(true, TOOLS_HARMONY, "<|channel|>analysis" NEXT HEADER("final") "x<|return|>", "|x|");
    harmony(true, TOOLS_HARMONY, "<|channel|>analysis<|start|>assistant" HEADER("final") "x",
            "|x|");
    harmony(true, TOOLS_HARMONY, HEADER("analysis") "a" HEADER("final") "b", "a|b|"); // no end
    harmony(true, TOOLS_HARMONY, HEADER("final") "a" NEXT "<|channel|>fin", "|a|");   // cut off
}

/* Longer headers are text, longer arguments are no call, and there are 128 calls at most. */
static void answers_of_gpt_oss_have_limits(void **state)
{
    (void)state;
    AUTO(buf_done) struct buf text = {0}, want = {0};
    buf_init(&text, 1 << 20);
    buf_init(&want, 1 << 20);
    buf_puts(&text, "<|channel|>");
    while (text.len <= HARMONY_HEADER_MAX)
        buf_puts(&text, "x");
    buf_printf(&want, "|%s|", text.data);
    AUTO(mem_free)
    char *got = split(&(struct output_parser_rules){.is_harmony = true}, text.data, 1, 1);
    assert_string_equal(got, want.data);

    buf_clear(&text);
    buf_puts(&text, "<|channel|>commentary to=functions.f<|message|>");
    const size_t n_header = text.len;
    buf_puts(&text, "{\"");
    while (text.len - n_header < TOOL_PARSER_MAX_BYTES)
        buf_puts(&text, "y");
    buf_puts(&text, "\": 1}<|call|>");
    const struct output_parser_rules rules = {.is_harmony = true, .format = TOOLS_HARMONY};
    free(got);
    got = split(&rules, text.data, 1000, 1000);
    assert_int_equal(strlen(got), text.len - strlen("<|call|>") + 2);
    assert_memory_equal(got, "|<|channel|>commentary", 22);

    buf_clear(&text);
    for (unsigned i = 0; i < TOOL_PARSER_MAX + 2; i++)
        buf_puts(&text, "<|channel|>commentary to=functions.f<|message|>{}<|call|>");
    free(got);
    got = split(&rules, text.data, 1, 1);
    unsigned n = 0;
    for (const char *at = got; (at = strstr(at, "f({});")); at++)
        n++;
    assert_int_equal(n, TOOL_PARSER_MAX);
    assert_memory_equal(got, "|<|channel|>commentary to=functions.f<|message|>{}\n\n<|", 54);
}

static void a_call_without_an_end_becomes_content(void **state)
{
    (void)state;
    size_t n = TOOL_PARSER_MAX_BYTES + 100;
    AUTO(mem_free) char *text = malloc(n + 1);
    memset(text, 'x', n);
    memcpy(text, "<tool_call>{", 12);
    text[n] = 0;
    struct output_parser_rules r = {.format = TOOLS_HERMES};
    struct output_parser p;
    struct output_parser_out o;
    output_parser_init(&p, &r);
    output_parser_out_init(&o);
    output_parser_feed(&p, text, TOOL_PARSER_MAX_BYTES - 1, &o);
    assert_int_equal(o.content.len, 0);
    output_parser_feed(&p, text + TOOL_PARSER_MAX_BYTES - 1, 1, &o);
    assert_int_equal(o.content.len, TOOL_PARSER_MAX_BYTES);
    output_parser_out_done(&o);
    output_parser_done(&p);
}

/* The markers of a section are left out only before or after a call. */
static void failed_calls_lose_no_byte(void **state)
{
    (void)state;
    static const struct {
        enum tool_format format;
        const char *text;
    } v[] = {
        {TOOLS_CODER, "Close it with </tool_call> and go on"},
        {TOOLS_CODER, "<tool_call>\n<tool_call>\n"},
        {TOOLS_CODER, "<tool_call> <function= x>"},
        {TOOLS_CODER, "<function=get_time> <param"},
        {TOOLS_CODER, "<function=get_time>\n"},
        {TOOLS_CODER, "<function=get_time>\n<parameter=</function>"},
        {TOOLS_GLM, "A <tool_call> is not <tool_call>\n</tool_call>"},
        {TOOLS_DEEPSEEK, "\n" CALLS(" ") " \n"},
        {TOOLS_DEEPSEEK, "is <｜tool▁call▁begin｜> it"},
        {TOOLS_DSML, "a <｜DSML｜function_calls> </｜DSML｜function_calls>"},
        {TOOLS_KIMI, " <|tool_calls_section_begin|>\n\n<|tool_calls_section_end|> x"},
        {TOOLS_MISTRAL, "a [TOOL_CALLS] is a mark"},
        {TOOLS_LLAMA, " ; {}"},
    };
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        AUTO(mem_free) char *want = NULL;
        assert_true(asprintf(&want, "|%s|", v[i].text) > 0);
        calls(v[i].format, v[i].text, want);
    }
}

static void a_false_marker_does_not_hide_a_call(void **state)
{
    (void)state;
    static const char one[] = "<tool_call>\n<function=get_time>\n</function>\n</tool_call>";
    AUTO(mem_free) char *text = NULL;
    assert_true(asprintf(&text, "I emit <tool_call> now.\n%s", one) > 0);
    calls(TOOLS_CODER, text, "|I emit <tool_call> now.|get_time({});");
    calls(TOOLS_CODER, "<tool_call>\n<tool_call>\n<function=get_time>\n</function></tool_call>",
          "|<tool_call>|get_time({});");
    calls(TOOLS_CODER, "<function=get_time> <function=get_time></function>",
          "|<function=get_time>|get_time({});");
    calls(TOOLS_HERMES, "<tool_call>\n<tool_call>\n{\"name\":\"f\",\"arguments\":{}}\n</tool_call>",
          "|<tool_call>|f({});");
    calls(TOOLS_HERMES, "<tool_call>{ <tool_call>{\"name\":\"f\",\"arguments\":{}}",
          "|<tool_call>{|f({});");
    calls(TOOLS_GLM, "A <tool_call> is <tool_call>get_time</tool_call>",
          "|A <tool_call> is|get_time({});");
    calls(TOOLS_GLM, "<tool_call>\n<tool_call>get_time\n</tool_call>",
          "|<tool_call>|get_time({});");
}

static void prose_about_calls_is_not_held_back(void **state)
{
    (void)state;
    static const enum tool_format v[] = {TOOLS_HERMES, TOOLS_CODER, TOOLS_GLM};
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        struct output_parser_rules r = {.format = v[i]};
        struct output_parser p;
        struct output_parser_out o;
        output_parser_init(&p, &r);
        output_parser_out_init(&o);
        output_parser_feed(&p, "A <tool_call> is x", 18, &o);
        assert_int_equal(o.content.len, 18);
        output_parser_feed(&p, " <function=f> is y", 18, &o);
        assert_int_equal(o.content.len, 36);
        output_parser_out_done(&o);
        output_parser_done(&p);
    }
}

/* Without the limit, each marker would be scanned with all text after it, which has no end
 * marker. */
static void the_cost_of_failed_calls_is_limited(void **state)
{
    (void)state;
    static const char one[] = "<tool_call>{";
    struct output_parser_rules r = {.format = TOOLS_HERMES};
    struct output_parser p;
    struct output_parser_out o;
    output_parser_init(&p, &r);
    output_parser_out_init(&o);
    size_t n = TOOL_PARSER_MAX_BYTES / strlen(one) * 4;
    for (size_t i = 0; i < n; i++)
        output_parser_feed(&p, one, strlen(one), &o);
    output_parser_end(&p, &o);
    assert_int_equal(o.content.len, n * strlen(one));
    assert_true(p.wasted_bytes < 2u << 20);
    output_parser_out_done(&o);
    output_parser_done(&p);
}

/* The template of the model shows how the model writes calls. */
static void templates_determine_the_format(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        enum tool_format format;
        bool thinks;
    } v[] = {
        {"GLM-4.6", TOOLS_GLM, true},
        {"GLM-4.7-Flash", TOOLS_GLM, true},
        {"Kimi-K2-Instruct", TOOLS_KIMI, false},
        {"openai-gpt-oss-120b", TOOLS_HARMONY, true},
        {"Kimi-K2-Thinking", TOOLS_KIMI, true},
        {"moonshotai-Kimi-K2", TOOLS_KIMI, false},
        {"Mistral-Small-3.2-24B-Instruct-2506", TOOLS_MISTRAL, false},
        {"mistralai-Mistral-Nemo-Instruct-2407", TOOLS_MISTRAL, false},
        {"mistralai-Ministral-3-14B-Reasoning-2512", TOOLS_MISTRAL, true},
        {"NousResearch-Hermes-3-Llama-3.1-8B-tool_use", TOOLS_HERMES, false},
        {"Qwen-Qwen2.5-7B-Instruct", TOOLS_HERMES, false},
        {"Qwen-Qwen3-0.6B", TOOLS_HERMES, true},
        {"Qwen3-Coder", TOOLS_CODER, false},
        {"Qwen3.5-4B", TOOLS_CODER, true},
        {"deepseek-ai-DeepSeek-R1-Distill-Llama-8B", TOOLS_DEEPSEEK, true},
        {"deepseek-ai-DeepSeek-V3.1", TOOLS_DEEPSEEK, true},
        {"deepseek-ai-DeepSeek-V3.2", TOOLS_DSML, true},
        {"meta-llama-Llama-3.1-8B-Instruct", TOOLS_LLAMA, false},
        {"meta-llama-Llama-3.2-3B-Instruct", TOOLS_LLAMA, false},
        {"meta-llama-Llama-3.3-70B-Instruct", TOOLS_LLAMA, false},
        {"google-gemma-2-2b-it", TOOLS_NONE, false},
        {"microsoft-Phi-3.5-mini-instruct", TOOLS_NONE, false},
    };
    const char *shared = lib_need_shared("data/templates");
    char folder[4096];
    snprintf(folder, sizeof(folder), "%s", shared);
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        char path[5000];
        size_t len;
        snprintf(path, sizeof(path), "%s/%s.jinja", folder, v[i].name);
        AUTO(mem_free) char *source = lib_read(path, &len);
        if (tool_parser_detect_format(source, len) != v[i].format ||
            (output_parser_thinking_of(source, len) != NULL) != v[i].thinks)
            fail_msg("%s: %d", v[i].name, tool_parser_detect_format(source, len));
    }
}

static void formats_have_names(void **state)
{
    (void)state;
    assert_int_equal(tool_parser_format_named("none"), TOOLS_NONE);
    assert_int_equal(tool_parser_format_named("hermes"), TOOLS_HERMES);
    assert_int_equal(tool_parser_format_named("kimi"), TOOLS_KIMI);
    assert_int_equal(tool_parser_format_named("auto"), TOOLS_NONE);
    static const char *const names[] = {"none",     "hermes", "qwen-coder", "llama", "mistral",
                                        "deepseek", "dsml",   "glm",        "kimi",  "harmony"};
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        char part[32];
        snprintf(part, sizeof(part), "%.*s", (int)strlen(names[i]) - 1, names[i]);
        assert_int_equal(tool_parser_format_named(names[i]), i);
        assert_int_equal(tool_parser_format_named(part), TOOLS_NONE);
    }
    static const struct {
        const char *mark;
        enum tool_format format;
    } v[] = {{"<function=", TOOLS_CODER},
             {"<arg_key>", TOOLS_GLM},
             {"<tool_call>", TOOLS_HERMES},
             {"[TOOL_CALLS]", TOOLS_MISTRAL},
             {"<｜tool▁call▁begin｜>", TOOLS_DEEPSEEK},
             {"DSML", TOOLS_DSML},
             {"<|tool_call_begin|>", TOOLS_KIMI},
             {"<|python_tag|>", TOOLS_LLAMA},
             {"<|channel|>commentary", TOOLS_HARMONY},
             {"<tool_call><function=", TOOLS_CODER}, // the more special one
             {"plain", TOOLS_NONE}};
    for (size_t i = 0; i < ARRAY_LEN(v); i++)
        assert_int_equal(tool_parser_detect_format(v[i].mark, strlen(v[i].mark)), v[i].format);
}

/* n times a character; free it. */
static char *many(char c, size_t n)
{
    char *text = malloc(n + 1);
    memset(text, c, n);
    text[n] = 0;
    return text;
}

/* Whether the whole text becomes one call, or else content. */
static bool is_call(enum tool_format f, const char *text)
{
    AUTO(tool_types_free) struct tool_types *types = tools_of(TOOLS);
    struct output_parser_rules r = {.format = f, .types = types};
    AUTO(mem_free) char *got = split(&r, text, SIZE_MAX, 1);
    bool content = strncmp(got + 1, text, strlen(text)) == 0;
    assert_true(*got == '|' && (content || got[1] == '|'));
    return !content;
}

static void names_of_calls_have_up_to_256_characters(void **state)
{
    (void)state;
    static const char others[] = " !\"#$%&'()*+,;<=>?@[]^`{|}~\x7F";
    for (size_t n = 256; n <= 257; n++) {
        AUTO(mem_free) char *name = many('n', n), *text = NULL;
        assert_true(
            asprintf(&text, "<tool_call>{\"name\":\"%s\",\"arguments\":{}}</tool_call>", name) > 0);
        assert_int_equal(is_call(TOOLS_HERMES, text), n == 256);
    }
    assert_false(is_call(TOOLS_HERMES, "<tool_call>{\"name\":\"\",\"arguments\":{}}</tool_call>"));
    assert_true(is_call(TOOLS_HERMES,
                        "<tool_call>{\"name\":\"AZaz09_-.:/\",\"arguments\":{}}</tool_call>"));
    for (const char *c = others; *c; c++) {
        char text[80];
        snprintf(text, sizeof(text),
                 "<tool_call>{\"name\":\"a%s%cb\",\"arguments\":{}}</tool_call>",
                 strchr("\"", *c) ? "\\" : "", *c);
        if (is_call(TOOLS_HERMES, text))
            fail_msg("%s", text);
    }
}

static void names_of_parameters_have_up_to_255_bytes(void **state)
{
    (void)state;
    for (size_t n = TOOL_TYPES_MAX_KEY; n <= TOOL_TYPES_MAX_KEY + 1; n++) {
        AUTO(mem_free) char *key = many('k', n), *text = NULL;
        assert_true(
            asprintf(&text, "<function=get_time><parameter=%s>1</parameter></function></tool_call>",
                     key) > 0);
        assert_int_equal(is_call(TOOLS_CODER, text), n == TOOL_TYPES_MAX_KEY);
    }
    assert_false(is_call(TOOLS_CODER, "<function=f><parameter= >1</parameter></function>"));
}

static void an_answer_has_up_to_128_calls(void **state)
{
    (void)state;
    static const char one[] = "<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_call>";
    struct output_parser_rules r = {.format = TOOLS_HERMES};
    struct output_parser p;
    struct output_parser_out o;
    output_parser_init(&p, &r);
    output_parser_out_init(&o);
    for (unsigned i = 0; i < TOOL_PARSER_MAX; i++)
        output_parser_feed(&p, one, strlen(one), &o);
    assert_int_equal(o.calls.n, TOOL_PARSER_MAX);
    assert_int_equal(o.content.len, 0);
    output_parser_out_clear(&o); // those of an earlier token count, too
    output_parser_feed(&p, one, strlen(one), &o);
    output_parser_end(&p, &o);
    assert_int_equal(o.calls.n, 0);
    assert_int_equal(o.content.len, strlen(one));
    output_parser_out_done(&o);
    output_parser_done(&p);
    AUTO(buf_done) struct buf list = {0};
    buf_init(&list, 1 << 20);
    buf_puts(&list, "[TOOL_CALLS][");
    for (unsigned i = 0; i <= TOOL_PARSER_MAX; i++)
        buf_printf(&list, "%s{\"name\":\"f\",\"arguments\":{}}", i ? "," : "");
    buf_puts(&list, "]");
    assert_false(is_call(TOOLS_MISTRAL, list.data)); // all of a list, or none
}

/* White space before a marker belongs to it, up to a limit. */
static void white_space_is_held_back_up_to_a_limit(void **state)
{
    (void)state;
    for (size_t n = OUTPUT_PARSER_SPACE_MAX; n <= OUTPUT_PARSER_SPACE_MAX + 2; n++) {
        struct output_parser_rules r = {.format = TOOLS_HERMES};
        struct output_parser p;
        struct output_parser_out o;
        AUTO(mem_free) char *space = many(' ', n);
        output_parser_init(&p, &r);
        output_parser_out_init(&o);
        output_parser_feed(&p, space, n, &o);
        assert_int_equal(o.content.len > 0, n > OUTPUT_PARSER_SPACE_MAX);
        output_parser_feed(&p, "x", 1, &o);
        assert_int_equal(o.content.len, n + 1);
        output_parser_out_done(&o);
        output_parser_done(&p);
    }
}

/* Each end marker may be part of a value: 16 of them are tried. */
static void sixteen_ends_of_a_call_are_tried(void **state)
{
    (void)state;
    for (unsigned n = 14; n <= 16; n++) {
        AUTO(buf_done) struct buf text = {0};
        buf_init(&text, 1 << 20);
        buf_puts(&text, "<function=get_time><parameter=a>");
        for (unsigned i = 0; i < n; i++)
            buf_puts(&text, "</function>");
        buf_puts(&text, "</parameter></function>");
        assert_int_equal(is_call(TOOLS_CODER, text.data), n < 16);
    }
}

/* A call that finds no memory is content, or the content has an error. */
static void a_failed_allocation_makes_no_call(void **state)
{
    (void)state;
    static const struct {
        enum tool_format format;
        const char *text;
    } v[] = {{TOOLS_HERMES, HERMES("f", "{\"a\":1}")},
             {TOOLS_LLAMA, "{\"name\": \"get_time\", \"parameters\": {}}"},
             {TOOLS_MISTRAL, "[TOOL_CALLS]f[CALL_ID]call00001[ARGS]{}"},
             {TOOLS_KIMI, KIMI("functions.f:0")},
             {TOOLS_CODER, CODER(ARG("city", "Paris") ARG("days", "12"))},
             {TOOLS_GLM, "<tool_call>get_weather<arg_key>days</arg_key><arg_value>3</arg_value>"
                         "</tool_call>"}};
    AUTO(tool_types_free) struct tool_types *types = tools_of(TOOLS);
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        unsigned n = 0, n_calls = 0;
        for (bool failed = true; failed;) {
            const struct output_parser_rules r = {.format = v[i].format, .types = types};
            struct output_parser p;
            struct output_parser_out o;
            output_parser_init(&p, &r);
            output_parser_out_init(&o);
            failing_at(++n);
            output_parser_feed(&p, v[i].text, strlen(v[i].text), &o);
            output_parser_end(&p, &o);
            failed = failing_has_failed();
            for (unsigned k = 0; k < o.calls.n; k++)
                assert_true(o.calls.v[k].name && o.calls.v[k].arguments);
            n_calls = o.calls.n;
            assert_true(n_calls || o.content.error || o.content.len == strlen(v[i].text));
            output_parser_out_done(&o);
            output_parser_done(&p);
        }
        assert_int_equal(n_calls, 1);
        assert_true(n > 4);
    }
}

/* Each allocation fails once. Then there is an error, else n bytes of content. */
static void fail_each_allocation(const struct output_parser_rules *r, const char *text, size_t n)
{
    for (unsigned at = 1, failed = true; failed; at++) {
        struct output_parser p;
        struct output_parser_out o;
        output_parser_init(&p, r);
        output_parser_out_init(&o);
        failing_at(at);
        output_parser_feed(&p, text, strlen(text), &o);
        output_parser_end(&p, &o);
        failed = failing_has_failed();
        assert_true(failed ? o.content.error != 0 : o.content.len == n);
        output_parser_out_done(&o);
        output_parser_done(&p);
    }
}

/* The last byte of this candidate shows that it is no call, and the candidate grows for it. */
static void a_failed_allocation_loses_no_byte_silently(void **state)
{
    (void)state;
    char text[257];
    snprintf(text, sizeof(text), "<tool_call>%244sx", "");
    fail_each_allocation(&(struct output_parser_rules){.format = TOOLS_HERMES}, text, strlen(text));
}

/* The same in the format of gpt-oss. */
static void a_failed_allocation_loses_no_channel_silently(void **state)
{
    (void)state;
    fail_each_allocation(&(struct output_parser_rules){.is_harmony = true}, HEADER("final") "said",
                         strlen("said"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_rules_all_text_is_content),
        cmocka_unit_test(hermes_writes_objects_between_tags),
        cmocka_unit_test(arguments_stay_as_they_were_written),
        cmocka_unit_test(text_that_is_not_a_call_is_content),
        cmocka_unit_test(qwen_coder_writes_tags),
        cmocka_unit_test(glm_writes_keys_and_values),
        cmocka_unit_test(llama_answers_with_an_object),
        cmocka_unit_test(mistral_writes_a_list_or_names),
        cmocka_unit_test(deepseek_writes_special_tokens),
        cmocka_unit_test(kimi_names_its_calls),
        cmocka_unit_test(reasoning_is_separated),
        cmocka_unit_test(calls_follow_reasoning),
        cmocka_unit_test(a_section_of_kimi_ends_its_reasoning),
        cmocka_unit_test(ids_are_used_where_templates_need_them),
        cmocka_unit_test(the_prompt_decides_whether_reasoning_has_begun),
        cmocka_unit_test(channels_of_gpt_oss_are_separated),
        cmocka_unit_test(calls_of_gpt_oss_have_recipients),
        cmocka_unit_test(text_without_channels_is_content),
        cmocka_unit_test(answers_of_gpt_oss_have_limits),
        cmocka_unit_test(a_call_without_an_end_becomes_content),
        cmocka_unit_test(failed_calls_lose_no_byte),
        cmocka_unit_test(a_false_marker_does_not_hide_a_call),
        cmocka_unit_test(prose_about_calls_is_not_held_back),
        cmocka_unit_test(the_cost_of_failed_calls_is_limited),
        cmocka_unit_test(templates_determine_the_format),
        cmocka_unit_test(formats_have_names),
        cmocka_unit_test(names_of_calls_have_up_to_256_characters),
        cmocka_unit_test(names_of_parameters_have_up_to_255_bytes),
        cmocka_unit_test(an_answer_has_up_to_128_calls),
        cmocka_unit_test(white_space_is_held_back_up_to_a_limit),
        cmocka_unit_test(sixteen_ends_of_a_call_are_tried),
        cmocka_unit_test(a_failed_allocation_makes_no_call),
        cmocka_unit_test(a_failed_allocation_loses_no_byte_silently),
        cmocka_unit_test(a_failed_allocation_loses_no_channel_silently),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
