/* Written values are valid JSON for any input. */
#include <jansson.h>
#include <math.h>
#include <string.h>
#include "base/mem.h"
#include "gateway/openai/json_write.h"
#include "lib/lib.h"

static void text_is(const void *in, size_t len, const char *want)
{
    AUTO(buf_done) struct buf b = {0};
    buf_init(&b, 1 << 20);
    json_write_text(&b, in, len);
    assert_string_equal(b.data, want);
    json_t *j = json_loads(b.data, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
    assert_non_null(j);
    json_decref(j);
}

static void quotes_and_control_characters_are_escaped(void **state)
{
    (void)state;
    text_is("a\"b\\c\n\r\t\x01\x7F", 10, "\"a\\\"b\\\\c\\n\\r\\t\\u0001\\u007f\"");
    text_is("", 0, "\"\"");
    text_is("<b>&'", 5, "\"<b>&'\"");
    text_is("\0x", 2, "\"\\u0000x\"");
}

static void characters_of_every_length_pass(void **state)
{
    (void)state;
    text_is("\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80", 9, "\"\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\"");
}

#define NO "\xEF\xBF\xBD"
static void invalid_utf8_is_replaced(void **state)
{
    (void)state;
    text_is("\xFF", 1, "\"" NO "\"");
    text_is("a\xE2\x82", 3, "\"a" NO NO "\"");             // cut off
    text_is("\xC0\xAF", 2, "\"" NO NO "\"");               // overlong
    text_is("\xED\xA0\x80", 3, "\"" NO NO NO "\"");        // a surrogate
    text_is("\xF4\x90\x80\x80", 4, "\"" NO NO NO NO "\""); // past U+10FFFF
    text_is("\xE2\x82\xAC\x80x", 5, "\"\xE2\x82\xAC" NO "x\"");
}

static void every_pair_of_bytes_gives_valid_json(void **state)
{
    (void)state;
    AUTO(buf_done) struct buf b = {0};
    buf_init(&b, 1 << 20);
    for (unsigned i = 0; i < 65536; i++) {
        char in[2] = {(char)(i >> 8), (char)i};
        buf_clear(&b);
        json_write_text(&b, in, 2);
        json_t *j = json_loadb(b.data, b.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
        assert_non_null(j);
        json_decref(j);
    }
}

static void floats_keep_their_bits_and_nan_becomes_a_number(void **state)
{
    (void)state;
    static const float values[] = {0,     -0.5f,        -1.17549435e-38f,
                                   -0.1f, -12.3456789f, -3.40282347e38f};
    AUTO(buf_done) struct buf b = {0};
    buf_init(&b, 1024);
    for (size_t i = 0; i < 5; i++) {
        buf_clear(&b);
        json_write_float(&b, values[i]);
        float back = strtof(b.data, NULL);
        assert_memory_equal(&back, &values[i], sizeof(back));
    }
    static const float odd[] = {NAN, INFINITY, -INFINITY, -3.40282347e38f};
    for (size_t i = 0; i < 4; i++) {
        buf_clear(&b);
        json_write_float(&b, odd[i]);
        assert_string_equal(b.data, "-9999.0");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quotes_and_control_characters_are_escaped),
        cmocka_unit_test(characters_of_every_length_pass),
        cmocka_unit_test(invalid_utf8_is_replaced),
        cmocka_unit_test(every_pair_of_bytes_gives_valid_json),
        cmocka_unit_test(floats_keep_their_bits_and_nan_becomes_a_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
