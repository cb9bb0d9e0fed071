/* Replies of hostile template helpers are bounded: a line, an object of one text. */
#include <errno.h>
#include <string.h>
#include "base/mem.h"
#include "gateway/serve/template_reply.h"
#include "lib/lib.h"

static int add(struct buf *line, const char *piece)
{
    size_t n = strlen(piece);
    memcpy(buf_reserve(line, n), piece, n);
    return template_reply_add(line, n);
}

static void a_line_arrives_in_pieces(void **state)
{
    (void)state;
    AUTO(buf_done) struct buf line = {0};
    buf_init(&line, TEMPLATE_REPLY_MAX);
    assert_int_equal(add(&line, "ab"), -EAGAIN);
    assert_int_equal(add(&line, "c"), -EAGAIN);
    assert_int_equal(add(&line, "\n"), 0);
    assert_string_equal(line.data, "abc\n");
}

static void nothing_may_follow_a_line(void **state)
{
    (void)state;
    AUTO(buf_done) struct buf line = {0};
    buf_init(&line, TEMPLATE_REPLY_MAX);
    assert_int_equal(add(&line, "a\nb\n"), -EPROTO);
    buf_clear(&line);
    assert_int_equal(add(&line, "a\nb"), -EPROTO);
}

static int parse(const char *text, struct template_reply *ret)
{
    AUTO(buf_done) struct buf line = {0};
    buf_init(&line, TEMPLATE_REPLY_MAX);
    buf_puts(&line, text);
    return template_reply_parse(&line, ret);
}

static void a_reply_is_a_text_or_an_error(void **state)
{
    (void)state;
    struct template_reply r;
    assert_int_equal(parse("{\"text\": \"a\\u0000,:[{b\"}\n", &r), 0);
    assert_false(r.is_error);
    assert_int_equal(r.len, 7);
    assert_memory_equal(r.text, "a\0,:[{b", 8);
    template_reply_done(&r);
    assert_int_equal(parse("{\"error\":\"no\"}\n", &r), 0);
    assert_true(r.is_error);
    assert_string_equal(r.text, "no");
    template_reply_done(&r);
}

static void other_lines_are_refused(void **state)
{
    (void)state;
    static const char *const lines[] = {
        "\n",
        "junk\n",
        "{}\n",
        "[\"text\",\"a\"]\n",
        "{\"text\":1}\n",
        "{\"text\":[\"a\"]}\n",
        "{\"other\":\"a\"}\n",
        "{\"text\":\"a\",\"error\":\"b\"}\n",
        "{\"text\":\"a\"} {\n",
        "{\"text\":\"a\n",
        "{\"text\":\"\xFF\"}\n",
        "{\"text\":\"\\ud800\"}\n",
    };
    struct template_reply r;
    for (size_t i = 0; i < ARRAY_LEN(lines); i++) {
        if (parse(lines[i], &r) != -EPROTO)
            fail_msg("%s", lines[i]);
        template_reply_done(&r); // is empty
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_arrives_in_pieces),
        cmocka_unit_test(nothing_may_follow_a_line),
        cmocka_unit_test(a_reply_is_a_text_or_an_error),
        cmocka_unit_test(other_lines_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
