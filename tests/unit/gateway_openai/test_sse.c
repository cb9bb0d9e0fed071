/* An event is one line, with any text in it. */
#include <string.h>
#include "base/mem.h"
#include "gateway/openai/json_write.h"
#include "gateway/openai/sse.h"
#include "lib/lib.h"

static void an_event_is_one_line_and_an_empty_one(void **state)
{
    (void)state;
    AUTO(buf_done) struct buf b = {0};
    buf_init(&b, 1024);
    sse_begin(&b);
    json_write_cstr(&b, "two\nlines\r\n\r\ndata: x");
    sse_end(&b);
    assert_string_equal(b.data, "data: \"two\\nlines\\r\\n\\r\\ndata: x\"\n\n");
}

static void the_end_is_an_event(void **state)
{
    (void)state;
    AUTO(buf_done) struct buf b = {0};
    buf_init(&b, 1024);
    sse_done(&b);
    assert_string_equal(b.data, "data: [DONE]\n\n");
}

static void a_ping_is_a_comment(void **state)
{
    (void)state;
    assert_int_equal(SSE_PING[0], ':');
    assert_string_equal(&SSE_PING[strlen(SSE_PING) - 2], "\n\n");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_event_is_one_line_and_an_empty_one),
        cmocka_unit_test(the_end_is_an_event),
        cmocka_unit_test(a_ping_is_a_comment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
