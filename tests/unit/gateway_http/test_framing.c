/* Header fields that a proxy may read differently are refused. tests/system/gateway/
 * test_gateway_input.c tests the same over a socket. */
#include <string.h>
#include "base/mem.h"
#include "gateway/http/framing.h"
#include "lib/lib.h"

static void add(struct framing *f, const char *name, const char *value)
{
    framing_add(f, name, strlen(name), value, strlen(value));
}

static bool refused(const char *const *fields, const char *version)
{
    struct framing f = {0};
    for (; *fields; fields += 2)
        add(&f, fields[0], fields[1]);
    return framing_fault(&f, version) != NULL;
}

#define REFUSED(version, ...) refused((const char *const[]){__VA_ARGS__, NULL}, version)

static void usual_headers_pass(void **state)
{
    (void)state;
    assert_false(REFUSED("HTTP/1.1", "Host", "x", "Content-Length", "5", "X-A", "b"));
    assert_false(REFUSED("HTTP/1.1", "host", "x", "transfer-encoding", "Chunked"));
}

static void contradicting_lengths_are_refused(void **state)
{
    (void)state;
    assert_true(REFUSED("HTTP/1.1", "Content-Length", "5", "content-length", "5"));
    assert_true(REFUSED("HTTP/1.1", "Content-Length", "5", "Transfer-Encoding", "chunked"));
    assert_true(
        REFUSED("HTTP/1.1", "Transfer-Encoding", "chunked", "Transfer-Encoding", "chunked"));
    assert_true(REFUSED("HTTP/1.1", "Transfer-Encoding", "gzip, chunked"));
    assert_true(REFUSED("HTTP/1.0", "Transfer-Encoding", "chunked"));
    assert_true(REFUSED("HTTP/1.1", "Host", "a", "Host", "b"));
    static const char *const lengths[] = {"", "+5", "-5", "0x5", "5 ", "5,5", "5e1"};
    for (size_t i = 0; i < ARRAY_LEN(lengths); i++)
        assert_true(REFUSED("HTTP/1.1", "Content-Length", lengths[i]));
}

static void odd_characters_are_refused(void **state)
{
    (void)state;
    assert_true(REFUSED("HTTP/1.1", "Content-Length ", "5"));
    assert_true(REFUSED("HTTP/1.1", "a b", "c"));
    assert_true(REFUSED("HTTP/1.1", "", "c"));
    assert_true(REFUSED("HTTP/1.1", "a", "b\r\nc: d"));
    struct framing f = {0};
    framing_add(&f, "a", 1, "b\0c", 3);
    assert_non_null(framing_fault(&f, "HTTP/1.1"));
}

static void lengths_that_do_not_fit_are_huge(void **state)
{
    (void)state;
    struct framing f = {0};
    assert_int_equal(framing_length(&f), 0);
    add(&f, "Content-Length", "99999999999999999999999");
    assert_true(framing_length(&f) == ~0ULL);
}

static void only_valid_ids_are_used(void **state)
{
    (void)state;
    char long_id[66];
    memset(long_id, 'a', 65);
    long_id[65] = 0;
    assert_true(framing_sane_id("a.B-c_9"));
    assert_true(framing_sane_id(long_id + 1));
    assert_false(framing_sane_id(long_id));
    assert_false(framing_sane_id(""));
    assert_false(framing_sane_id(NULL));
    assert_false(framing_sane_id("a b"));
    assert_false(framing_sane_id("a\nb"));
}

/* Of each character, whether a name may hold it (RFC 9110, 5.6.2). */
static void names_are_tokens(void **state)
{
    (void)state;
    for (int c = 1; c < 256; c++) {
        char name[] = {'a', (char)c, 0};
        bool ok = strchr("!#$%&'*+-.^_`|~", c) || (c >= '0' && c <= '9') ||
                  (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
        if (REFUSED("HTTP/1.1", name, "v") == ok)
            fail_msg("character %d", c);
        char first[] = {(char)c, 0};
        assert_int_equal(REFUSED("HTTP/1.1", first, "v"), !ok);
    }
}

static void fields_are_kept_and_counted(void **state)
{
    (void)state;
    static const char *const values[] = {"1", "2", "3", "4", "5", "6", "7", "8", "9", "10"};
    struct framing f = {0};
    add(&f, "Host", "abc");
    assert_int_equal(f.n_bytes, 4 + 3 + 4);
    assert_int_equal(f.n_host, 1);
    add(&f, "x-request-id", "me");
    add(&f, "EXPECT", "100-continue");
    assert_string_equal(f.id, "me");
    assert_string_equal(f.expect, "100-continue");
    assert_int_equal(f.n_bytes, 11 + 12 + 2 + 4 + 6 + 12 + 4);
    for (size_t i = 0; i < ARRAY_LEN(values); i++)
        add(&f, "X-Forwarded-For", values[i]);
    assert_int_equal(f.n_forwarded, FRAMING_MAX_FORWARDED);
    for (unsigned i = 0; i < FRAMING_MAX_FORWARDED; i++)
        assert_string_equal(f.forwarded[i], values[i + 2]); // the last ones
    assert_null(framing_fault(&f, "HTTP/1.1"));
    assert_int_equal(f.n_length + f.n_coding, 0);
    add(&f, "Content-Length", "12");
    assert_int_equal(framing_length(&f), 12);
    assert_null(f.coding);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(usual_headers_pass),
        cmocka_unit_test(contradicting_lengths_are_refused),
        cmocka_unit_test(odd_characters_are_refused),
        cmocka_unit_test(lengths_that_do_not_fit_are_huge),
        cmocka_unit_test(only_valid_ids_are_used),
        cmocka_unit_test(names_are_tokens),
        cmocka_unit_test(fields_are_kept_and_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
