/* test_utf8.c - decoding UTF-8, compared with the definition of the code points. */
#include "lib/lib.h"
#include <string.h>
#include "base/mem.h"
#include "base/utf8.h"

static void every_code_point_is_written_and_read(void **state)
{
    for (uint32_t code = 0; code < 0x110000; code++) {
        char bytes[4];
        uint32_t back;
        if (code >= 0xd800 && code < 0xe000)
            continue;
        unsigned n = lib_put_utf8(code, bytes);
        assert_int_equal(utf8_next(bytes, n, &back), n);
        assert_int_equal(back, code);
        for (unsigned cut = 1; cut < n; cut++) {
            enum utf8_what what;
            assert_int_equal(utf8_next(bytes, cut, &back), 0);
            assert_int_equal(utf8_step(bytes, cut, &what), cut);
            assert_int_equal(what, UTF8_CUT);
        }
    }
    (void)state;
}

static void invalid_characters_are_refused(void **state)
{
    static const char *const bad[] = {
        "\x80",
        "\xbf",
        "\xc0\x80",
        "\xc1\xbf",
        "\xe0\x9f\xbf",
        "\xed\xa0\x80",
        "\xed\xbf\xbf",
        "\xf0\x8f\xbf\xbf",
        "\xf4\x90\x80\x80",
        "\xf5\x80\x80\x80",
        "\xff",
        "\xe2\x28\xa1",
        "\xc3(",
    };
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        uint32_t code;
        assert_int_equal(utf8_next(bad[i], strlen(bad[i]), &code), 0);
        assert_int_equal(utf8_valid(bad[i], strlen(bad[i])), 0);
    }
    (void)state;
}

static void the_first_bad_byte_is_found_after_long_valid_text(void **state)
{
    char text[100];
    for (size_t at = 0; at < sizeof(text); at++) {
        memset(text, 'x', sizeof(text));
        assert_int_equal(utf8_valid(text, sizeof(text)), sizeof(text));
        text[at] = '\x9c';
        assert_int_equal(utf8_valid(text, sizeof(text)), at);
    }
    (void)state;
}

/* The table of Unicode 3.9 for "maximal subparts". */
static void bad_bytes_are_cut_as_unicode_recommends(void **state)
{
    static const char text[] = "\xf1\x80\x80\xe1\x80\xc2\x62\x80\x63\x80\xbf\x64";
    static const struct {
        unsigned n;
        enum utf8_what what;
    } want[] = {{3, UTF8_BAD},  {2, UTF8_BAD}, {1, UTF8_BAD}, {1, UTF8_CHAR}, {1, UTF8_BAD},
                {1, UTF8_CHAR}, {1, UTF8_BAD}, {1, UTF8_BAD}, {1, UTF8_CHAR}};
    size_t at = 0;
    for (size_t i = 0; i < ARRAY_LEN(want); i++) {
        enum utf8_what what;
        unsigned n = utf8_step(text + at, sizeof(text) - 1 - at, &what);
        assert_int_equal(n, want[i].n);
        assert_int_equal(what, want[i].what);
        at += n;
    }
    assert_int_equal(at, sizeof(text) - 1);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_point_is_written_and_read),
        cmocka_unit_test(invalid_characters_are_refused),
        cmocka_unit_test(the_first_bad_byte_is_found_after_long_valid_text),
        cmocka_unit_test(bad_bytes_are_cut_as_unicode_recommends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
