/* The cost of tool calls, which a thread reads that all streams share. It is linear in the output
 * and does not depend on the schemas. Times are of this thread's CPU, the best of several runs. The
 * bounds compare two sizes of input: time 1.6 to 6 for four times the bytes is linear, 16 is
 * quadratic. */
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "base/mem.h"
#include "gateway/openai/output_parser.h"
#include "lib/clients/tools.h"
#include "lib/lib.h"

#define TRIES 5

static double cpu_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void repeat(struct buf *to, const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        buf_puts(to, text);
}

/* The CPU time to split the text, fed in tokens of four bytes. */
static double time_of(enum tool_format format, const struct tool_types *types,
                      const struct buf *text)
{
    struct output_parser_rules rules = {.format = format, .types = types};
    double best = 1e9;
    for (unsigned i = 0; i < TRIES; i++) {
        struct output_parser p;
        struct output_parser_out o;
        output_parser_init(&p, &rules);
        output_parser_out_init(&o);
        double from = cpu_s();
        for (size_t at = 0; at < text->len; at += 4)
            output_parser_feed(&p, text->data + at, text->len - at < 4 ? text->len - at : 4, &o);
        output_parser_end(&p, &o);
        double took = cpu_s() - from;
        best = took < best ? took : best;
        output_parser_done(&p);
        output_parser_out_done(&o);
    }
    return best;
}

/* Outputs of about n bytes that once took more than linear time, or many readings. */
static void spaces_after_the_name(struct buf *to, size_t n)
{
    buf_puts(to, "<function=f>");
    repeat(to, " ", n);
}

static void spaces_before_the_call(struct buf *to, size_t n)
{
    buf_puts(to, "<tool_call>");
    repeat(to, "\n", n);
}

static void many_ends_inside_a_value(struct buf *to, size_t n)
{
    buf_puts(to, "<function=f>");
    for (size_t i = 0; i < n / 40; i++)
        buf_printf(to, "<parameter=%zx>[[],{}]</parameter>", i);
    buf_puts(to, "<parameter=z>");
    repeat(to, "</function>", 20);
}

static void calls_inside_calls(struct buf *to, size_t n)
{
    repeat(to, "<function=f><parameter=a>", n / 25);
    buf_puts(to, "\xFF</parameter></function>");
}

static void many_parameters(struct buf *to, size_t n)
{
    buf_puts(to, "<function=f>");
    for (size_t i = 0; i < n / 30; i++)
        buf_printf(to, "<parameter=%zx>a</parameter>", i);
    buf_puts(to, "</function>");
}

static void output_costs_linear_time(void **state)
{
    (void)state;
    static void (*const makers[])(struct buf * to, size_t n) = {
        spaces_after_the_name, spaces_before_the_call, many_ends_inside_a_value, calls_inside_calls,
        many_parameters};
    for (size_t i = 0; i < ARRAY_LEN(makers); i++) {
        AUTO(buf_done) struct buf small = {0}, large = {0};
        buf_init(&small, 1 << 20);
        buf_init(&large, 1 << 20);
        makers[i](&small, 15000);
        makers[i](&large, 60000);
        double a = time_of(TOOLS_CODER, NULL, &small), b = time_of(TOOLS_CODER, NULL, &large);
        if (b > 10 * a)
            fail_msg("output %zu: %.3f ms, and %.3f ms for four times as much", i, a * 1e3,
                     b * 1e3);
    }
}

/* A tool with one parameter, whose schema refers n_refs times to an enumeration of n_values. */
static struct tool_types *tools_with(size_t n_values, size_t n_refs, size_t *ret_bytes)
{
    AUTO(buf_done) struct buf text = {0};
    buf_init(&text, 16 << 20);
    buf_puts(&text, "[{\"function\":{\"name\":\"f\",\"parameters\":{\"$defs\":{\"E\":{\"enum\":[0");
    repeat(&text, ",0", n_values);
    buf_puts(&text, "]}},\"properties\":{\"p\":{\"anyOf\":[{\"$ref\":\"#/$defs/E\"}");
    repeat(&text, ",{\"$ref\":\"#/$defs/E\"}", n_refs);
    buf_puts(&text, "]}}}}}]");
    *ret_bytes = text.len;
    return tools_of(text.data);
}

static void matching_does_not_depend_on_the_schemas(void **state)
{
    (void)state;
    AUTO(buf_done) struct buf text = {0};
    size_t bytes;
    AUTO(tool_types_free) struct tool_types *small = tools_with(1, 1, &bytes);
    AUTO(tool_types_free) struct tool_types *large = tools_with(100000, 240, &bytes);
    buf_init(&text, 1 << 20);
    buf_puts(&text, "<function=f>");
    repeat(&text, "<parameter=p>\n1\n</parameter>\n", 300);
    buf_puts(&text, "</function>");
    double a = time_of(TOOLS_CODER, small, &text), b = time_of(TOOLS_CODER, large, &text);
    if (b > 5 * a)
        fail_msg("%.3f ms, and %.3f ms with %zu bytes of schemas", a * 1e3, b * 1e3, bytes);
}

/* The time to read n schemas, each of which refers to the next two. Without a memory of what was
 * resolved, that takes exponential time. */
static double time_to_read(size_t n)
{
    AUTO(buf_done) struct buf text = {0};
    buf_init(&text, 16 << 20);
    buf_puts(&text, "[{\"function\":{\"name\":\"f\",\"parameters\":{\"$defs\":{");
    for (size_t i = 0; i < n; i++)
        buf_printf(
            &text,
            "%s\"d%zu\":{\"anyOf\":[{\"$ref\":\"#/$defs/d%zu\"},{\"$ref\":\"#/$defs/d%zu\"}]}",
            i ? "," : "", i, i + 1, i + 2);
    buf_puts(&text, "},\"properties\":{");
    for (size_t i = 0; i < n; i++)
        buf_printf(&text, "%s\"p%zu\":{\"$ref\":\"#/$defs/d%zu\"}", i ? "," : "", i, i);
    buf_puts(&text, "}}}}]");
    double best = 1e9;
    for (unsigned i = 0; i < TRIES; i++) {
        double from = cpu_s();
        tool_types_free(tools_of(text.data));
        double took = cpu_s() - from;
        best = took < best ? took : best;
    }
    return best;
}

static void schemas_are_read_in_linear_time(void **state)
{
    (void)state;
    double a = time_to_read(1000), b = time_to_read(4000);
    if (b > 10 * a)
        fail_msg("%.3f ms, and %.3f ms for four times the schemas", a * 1e3, b * 1e3);
}

/* A tree of the same schemas takes 26 MiB. */
static void parameters_of_any_type_take_no_memory(void **state)
{
    (void)state;
    AUTO(buf_done) struct buf text = {0};
    buf_init(&text, 16 << 20);
    buf_puts(&text, "[{\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{\"a\":{}");
    for (unsigned i = 0; i < 85000; i++)
        buf_printf(&text, ",\"%x\":{}", i);
    buf_puts(&text, ",\"s\":{\"type\":\"string\"}}}}}]");
    size_t before = mallinfo2().uordblks;
    AUTO(tool_types_free) struct tool_types *t = tools_of(text.data);
    if (!LIB_SANITIZED)
        assert_true(mallinfo2().uordblks - before < 64 << 10);
    assert_true(tool_types_bytes(t) < 4096);
    AUTO(mem_free) char *value = tool_types_value(t, "f", 1, "s", "1", 1);
    assert_string_equal(value, "\"1\"");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(output_costs_linear_time),
        cmocka_unit_test(matching_does_not_depend_on_the_schemas),
        cmocka_unit_test(schemas_are_read_in_linear_time),
        cmocka_unit_test(parameters_of_any_type_take_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
