/* test_drafts_wire.c - what a proposer says of itself is checked. */
#include <errno.h>
#include <string.h>
#include "base/err.h"
#include "lib/lib.h"
#include "verifier-svc/drafts_wire.h"

static int check(uint32_t protocol, const char *kind)
{
    Tandem__V1__DescribeReply reply = TANDEM__V1__DESCRIBE_REPLY__INIT;
    struct drafts_described about;
    reply.protocol = protocol;
    reply.kind = (ProtobufCBinaryData){strlen(kind), (uint8_t *)kind};
    reply.k_max = 4;
    return drafts_check_described(&reply, 0, &about);
}

static void a_proposer_that_names_no_version_speaks_the_first(void **state)
{
    (void)state;
    assert_int_equal(check(0, "mine"), 0);
    assert_int_equal(check(1, "mine"), 0);
    assert_int_equal(check(2, "mine"), -EPROTO);
    assert_string_equal(fail_text(), "it speaks protocol version 2, this verifier version 1");
}

static void a_name_is_one_word(void **state)
{
    (void)state;
    assert_int_equal(check(1, "eagle-3.v2_x"), 0);
    assert_true(check(1, "") < 0);
    assert_true(check(1, "two words") < 0);
    assert_true(check(1, "a name that is far longer than names may be") < 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_proposer_that_names_no_version_speaks_the_first),
        cmocka_unit_test(a_name_is_one_word),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
