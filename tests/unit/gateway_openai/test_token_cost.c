/* test_token_cost.c - the work that one token can cause in the parser of an answer.
 *
 * All streams share the threads that parse, so one token must not hold up the others. Work is
 * counted in bytes: read as a call, fed to the parser, or copied between its buffers. */
#include <stdio.h>
#include "gateway/openai/output_parser.h"
#include "lib/lib.h"

/* Of about one candidate: the longest, and the longest that is scanned again when it fails. */
static const size_t sizes[] = {TOOL_PARSER_MAX_BYTES - 4096, TOOL_PARSER_MAX_BYTES / 4 - 4096};
static size_t text_bytes;

/* ---- counting ---- */

static struct output_parser parser;
static size_t work_bytes;

void __real_buf_add(struct buf *b, const void *data, size_t len);
void __wrap_buf_add(struct buf *b, const void *data, size_t len);
void __wrap_buf_add(struct buf *b, const void *data, size_t len)
{
    if (b == &parser.call || b == &parser.held || b == &parser.rescan)
        work_bytes += len;
    __real_buf_add(b, data, len);
}

int __real_tool_parser_read(enum tool_format f, const char *raw, size_t len,
                            const struct tool_types *types, struct tool_parser_calls *ret);
int __wrap_tool_parser_read(enum tool_format f, const char *raw, size_t len,
                            const struct tool_types *types, struct tool_parser_calls *ret);
int __wrap_tool_parser_read(enum tool_format f, const char *raw, size_t len,
                            const struct tool_types *types, struct tool_parser_calls *ret)
{
    work_bytes += len;
    return __real_tool_parser_read(f, raw, len, types, ret);
}

/* ---- outputs ---- */

static void fill(struct buf *to, const char *text)
{
    while (to->len < text_bytes)
        buf_puts(to, text);
}

static void one_long_call(struct buf *to)
{
    buf_puts(to, "<function=f>");
    fill(to, "<parameter=a>1</parameter>");
    buf_puts(to, "</function>");
}

/* No call: text stands between its parameters. The rest is a call. */
static void a_long_call_inside_a_failed_one(struct buf *to)
{
    buf_puts(to, "<function=f><parameter=a></parameter>text");
    one_long_call(to);
}

static void many_calls_inside_a_failed_one(struct buf *to)
{
    fill(to, "<function=f><parameter=a>");
    buf_puts(to, "\xFF</parameter></function>");
}

/* Each beginning fails at its second byte, when the first candidate is scanned again. */
static void many_beginnings_inside_a_failed_call(struct buf *to)
{
    buf_puts(to, "<function=f><parameter=a></parameter>text");
    fill(to, "<function=!");
    buf_puts(to, "</function>");
}

static void many_ends_inside_nested_calls(struct buf *to)
{
    for (unsigned i = 0; i < 4; i++)
        buf_puts(to, "<function=f><parameter=a>");
    while (to->len < OUTPUT_PARSER_BYTE_COST_MAX / 80)
        buf_puts(to, "<parameter=a>1</parameter>");
    buf_puts(to, "<parameter=z>");
    for (unsigned i = 0; i < 80; i++)
        buf_puts(to, "</function>");
}

static void a_long_name(struct buf *to)
{
    buf_puts(to, "<function=");
    fill(to, "f");
    buf_puts(to, "!");
}

static void text_without_an_end(struct buf *to)
{
    for (unsigned i = 0; i < 3 * TOOL_PARSER_MAX_BYTES / 25; i++)
        buf_puts(to, "<function=f><parameter=a>");
}

static void json_inside_text(struct buf *to)
{
    buf_puts(to, "<tool_call>{\"name\":\"f\",\"arguments\":\"");
    fill(to, "\\u0031");
    buf_puts(to, "\"}</tool_call>");
}

static void many_json_calls_inside_a_failed_one(struct buf *to)
{
    buf_puts(to, "<tool_call>{");
    fill(to, "<tool_call>!");
    buf_puts(to, "</tool_call>");
}

static void nested_json(struct buf *to)
{
    fill(to, "{\"a\":");
    for (unsigned i = 0; i < text_bytes; i++)
        buf_puts(to, "}");
}

static void nested_lists(struct buf *to)
{
    buf_puts(to, "[TOOL_CALLS]");
    fill(to, "[");
    buf_puts(to, "[TOOL_CALLS]{}");
}

static const struct {
    enum tool_format format;
    void (*make)(struct buf *to);
    const char *name;
} outputs[] = {
#define OUTPUT(format, make)                                                                       \
    {                                                                                              \
        format, make, #make                                                                        \
    }
    OUTPUT(TOOLS_CODER, one_long_call),
    OUTPUT(TOOLS_CODER, a_long_call_inside_a_failed_one),
    OUTPUT(TOOLS_CODER, many_calls_inside_a_failed_one),
    OUTPUT(TOOLS_CODER, many_beginnings_inside_a_failed_call),
    OUTPUT(TOOLS_CODER, many_ends_inside_nested_calls),
    OUTPUT(TOOLS_CODER, a_long_name),
    OUTPUT(TOOLS_CODER, text_without_an_end),
    OUTPUT(TOOLS_HERMES, json_inside_text),
    OUTPUT(TOOLS_HERMES, many_json_calls_inside_a_failed_one),
    OUTPUT(TOOLS_LLAMA, nested_json),
    OUTPUT(TOOLS_MISTRAL, nested_lists),
#undef OUTPUT
};

/* ---- tests ---- */

/* Feeds the text byte by byte. Returns the work of the worst byte; *ret_all: of all bytes. */
static size_t worst_byte(enum tool_format format, const struct buf *text, size_t *ret_all)
{
    struct output_parser_rules rules = {.format = format};
    struct output_parser_out out;
    size_t worst = 0;
    *ret_all = 0;
    output_parser_init(&parser, &rules);
    output_parser_out_init(&out);
    for (size_t i = 0; i <= text->len; i++) {
        work_bytes = 0;
        if (i < text->len)
            output_parser_feed(&parser, text->data + i, 1, &out);
        else
            output_parser_end(&parser, &out);
        worst = work_bytes > worst ? work_bytes : worst;
        *ret_all += work_bytes;
    }
    output_parser_done(&parser);
    output_parser_out_done(&out);
    return worst;
}

static void must_be_bounded(size_t i)
{
    AUTO(buf_done) struct buf text = {0};
    size_t all;
    buf_init(&text, 8 << 20);
    outputs[i].make(&text);
    size_t worst = worst_byte(outputs[i].format, &text, &all);
    printf("%-38s %7zu bytes: %8zu for all, %7zu for one\n", outputs[i].name, text.len, all, worst);
    if (worst > OUTPUT_PARSER_BYTE_COST_MAX)
        fail_msg("%s: one byte costs %zu", outputs[i].name, worst);
    if (all > 3 * text.len + OUTPUT_PARSER_BYTE_COST_MAX)
        fail_msg("%s: %zu bytes cost %zu", outputs[i].name, text.len, all);
}

static void a_byte_of_output_costs_bounded_work(void **state)
{
    (void)state;
    for (size_t s = 0; s < ARRAY_LEN(sizes); s++) {
        text_bytes = sizes[s];
        for (size_t i = 0; i < ARRAY_LEN(outputs); i++)
            must_be_bounded(i);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_byte_of_output_costs_bounded_work),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
