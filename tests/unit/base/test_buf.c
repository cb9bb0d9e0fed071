/* test_buf.c - a growing byte buffer. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/buf.h"
#include "base/err.h"
#include "lib/lib.h"

static void text_grows_and_ends_with_a_nul(void **state)
{
    (void)state;
    struct buf b;
    buf_init(&b, 1 << 20);
    for (int i = 0; i < 1000; i++)
        buf_printf(&b, "%d,", i);
    buf_puts(&b, "end");
    assert_int_equal(b.len, 10 * 2 + 90 * 3 + 900 * 4 + 3);
    assert_int_equal(strlen(b.data), b.len);
    assert_string_equal(b.data + b.len - 7, "999,end");
    assert_int_equal(buf_error(&b), 0);
    buf_done(&b);
}

static void it_grows_up_to_its_maximum(void **state)
{
    (void)state;
    struct buf b;
    buf_init(&b, 10);
    buf_add(&b, "0123456789", 10);
    assert_int_equal(buf_error(&b), 0);
    buf_puts(&b, "x");
    assert_int_equal(buf_error(&b), -EMSGSIZE);
    assert_string_equal(fail_text(), "more than 10 bytes");
    assert_int_equal(b.len, 10);
    buf_clear(&b);
    assert_int_equal(buf_error(&b), 0);
    assert_string_equal(b.data, "");
    buf_done(&b);
}

static void after_a_failure_nothing_is_added(void **state)
{
    (void)state;
    struct buf b;
    buf_init(&b, 4);
    buf_puts(&b, "ab");
    buf_puts(&b, "cde");
    buf_puts(&b, "f"); // would fit, but the text before it is incomplete
    assert_string_equal(b.data, "ab");
    assert_int_equal(buf_error(&b), -EMSGSIZE);
    buf_done(&b);
}

static void the_front_is_dropped(void **state)
{
    (void)state;
    struct buf b;
    buf_init(&b, 100);
    buf_puts(&b, "hello world");
    buf_shift(&b, 6);
    assert_string_equal(b.data, "world");
    buf_shift(&b, 0);
    buf_shift(&b, 5);
    assert_int_equal(b.len, 0);
    assert_string_equal(b.data, "");
    buf_done(&b);
}

static void the_caller_may_write_into_the_buffer(void **state)
{
    (void)state;
    struct buf b;
    buf_init(&b, 8);
    char *to = buf_reserve(&b, 8);
    assert_non_null(to);
    memcpy(to, "12345678", 8);
    b.len += 8;
    assert_null(buf_reserve(&b, 1));
    assert_int_equal(buf_error(&b), -EMSGSIZE);
    buf_done(&b);
}

static void taken_bytes_belong_to_the_caller(void **state)
{
    (void)state;
    struct buf b;
    buf_init(&b, 100);
    buf_puts(&b, "mine");
    char *text = buf_take(&b);
    assert_string_equal(text, "mine");
    free(text);
    assert_int_equal(b.len, 0);
    text = buf_take(&b); // an empty text is also a text
    assert_string_equal(text, "");
    free(text);
    buf_done(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_grows_and_ends_with_a_nul),
        cmocka_unit_test(it_grows_up_to_its_maximum),
        cmocka_unit_test(after_a_failure_nothing_is_added),
        cmocka_unit_test(the_front_is_dropped),
        cmocka_unit_test(the_caller_may_write_into_the_buffer),
        cmocka_unit_test(taken_bytes_belong_to_the_caller),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
