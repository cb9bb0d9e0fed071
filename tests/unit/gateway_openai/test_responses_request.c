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
    return openai_request_parse(OPENAI_RESPONSES, body, strlen(body), &q, &fault);
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
        cmocka_unit_test(many_reasoning_items_of_one_answer_cost_as_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
