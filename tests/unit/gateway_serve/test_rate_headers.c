/* test_rate_headers.c - durations in the form that OpenAI's clients read. */
#include "base/mem.h"
#include "gateway/serve/rate_headers.h"
#include "lib/lib.h"

static void durations_are_written_as_go_writes_them(void **state)
{
    (void)state;
    static const struct {
        int64_t us;
        const char *text;
    } v[] = {{0, "0s"},
             {1, "1ms"},
             {20000, "20ms"},
             {999000, "999ms"},
             {999001, "1s"},
             {1000000, "1s"},
             {1000001, "1.001s"},
             {59999001, "1m0s"},
             {3600000000, "1h0m0s"},
             {3661000000, "1h1m1s"},
             {1500000, "1.5s"},
             {59999000, "59.999s"},
             {60000000, "1m0s"},
             {360000000, "6m0s"},
             {3599000000, "59m59s"},
             {86399000000, "23h59m59s"}};
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        char text[RATE_HEADERS_DURATION];
        assert_string_equal(rate_headers_duration(v[i].us, text), v[i].text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(durations_are_written_as_go_writes_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
