/* test_trace.c - valid and invalid traceparents. */
#include <string.h>
#include "base/trace.h"
#include "lib/lib.h"

#define GOOD "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

static void the_trace_id_is_found(void **state)
{
    char id[TRACE_ID_LEN + 1];
    (void)state;
    assert_true(trace_id(GOOD, TRACE_LEN, id));
    assert_string_equal(id, "4bf92f3577b34da6a3ce929d0e0e4736");
}

static void any_deviation_from_the_format_is_refused(void **state)
{
    static const char *const bad[] = {
        "",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0",
        GOOD "0",
        GOOD "-more",
        "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "00-4BF92F3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e473g-00f067aa0ba902b7-01",
        "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0x",
        "00_4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736_00f067aa0ba902b7-01",
        "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7 01",
    };
    char id[TRACE_ID_LEN + 1];
    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        if (trace_id(bad[i], strlen(bad[i]), id))
            fail_msg("taken: %s", bad[i]);
        assert_string_equal(id, "");
    }
    assert_false(trace_id("00-4bf92f3577b34da6a3ce929d0e0e\0"
                          "736-00f067aa0ba902b7-01",
                          TRACE_LEN, id));
}

static void a_copied_trace_id_is_valid_or_empty(void **state)
{
    static const char id[] = "4bf92f3577b34da6a3ce929d0e0e4736";
    static const char *const bad[] = {"",
                                      "4bf9",
                                      "4BF92F3577B34DA6A3CE929D0E0E4736",
                                      "00000000000000000000000000000000",
                                      "4bf92f3577b34da6a3ce929d0e0e473\n",
                                      "4bf92f3577b34da6a3ce929d0e0e47360"};
    char copy[TRACE_ID_LEN + 1];
    (void)state;
    assert_true(trace_id_copy(id, strlen(id), copy));
    assert_string_equal(copy, id);
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        assert_false(trace_id_copy(bad[i], strlen(bad[i]), copy));
        assert_string_equal(copy, "");
    }
}

static void the_id_of_a_request_is_cut_and_cleaned(void **state)
{
    char hostile[2 * TRACE_REQUEST_MAX], id[TRACE_REQUEST_MAX + 1];
    (void)state;
    trace_request("cmpl-1_x", 8, id);
    assert_string_equal(id, "cmpl-1_x");
    trace_request("a b\n\"\\\x80\0c", 9, id);
    assert_string_equal(id, "a?b?????c");
    memset(hostile, 'x', sizeof(hostile));
    trace_request(hostile, sizeof(hostile), id);
    assert_int_equal(strlen(id), TRACE_REQUEST_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_trace_id_is_found),
        cmocka_unit_test(any_deviation_from_the_format_is_refused),
        cmocka_unit_test(a_copied_trace_id_is_valid_or_empty),
        cmocka_unit_test(the_id_of_a_request_is_cut_and_cleaned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
