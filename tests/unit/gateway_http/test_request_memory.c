/* test_request_memory.c - the shares of clients in the memory of all requests. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "base/err.h"
#include "gateway/http/request_memory.h"
#include "lib/fakes/failing.h"
#include "lib/lib.h"

#define MIB ((size_t)1 << 20)
#define LIMIT (64 * MIB)

static struct request_memory *memory_of(size_t limit)
{
    struct request_memory *m = NULL;
    if (request_memory_new(limit, &m) < 0)
        fail_msg("%s", fail_text());
    return m;
}

static struct request_memory *memory(void)
{
    return memory_of(LIMIT);
}

/* The most that a request of the client gets, in MiB; it keeps it. */
static size_t takes_all(struct request_memory *m, struct request_memory_client *c, size_t *counted)
{
    while (request_memory_set(m, c, *counted + MIB, counted) == 0)
        ;
    return *counted / MIB;
}

static void one_client_gets_half(void **state)
{
    (void)state;
    AUTO(request_memory_free) struct request_memory *m = memory();
    struct request_memory_client *a = request_memory_join(m, "a");
    size_t first = 0, second = 0;
    assert_int_equal(request_memory_set(m, a, 20 * MIB, &first), 0);
    assert_int_equal(takes_all(m, a, &second), 12);
    assert_int_equal(request_memory_set(m, a, second + 1, &second), -EDQUOT);
    assert_non_null(strstr(fail_text(), "your other requests use 20480 KiB of memory, and 32768"));
    assert_int_equal(second, 12 * MIB);
    assert_int_equal(request_memory_set(m, a, LIMIT / 2 + 1, &second), -EMSGSIZE);
    assert_int_equal(request_memory_set(m, a, SIZE_MAX, &second), -EMSGSIZE);
    assert_int_equal(request_memory_set(m, a, 0, &first), 0);
    assert_int_equal(takes_all(m, a, &second), 32);
    assert_int_equal(request_memory_set(m, a, 0, &second), 0);
    assert_int_equal(request_memory_used(m), 0);
    assert_int_equal(request_memory_freed(m), 52 * MIB);
    request_memory_leave(m, a);
}

/* The most bytes that the client gets; it keeps them. */
static size_t takes_each_byte(struct request_memory *m, struct request_memory_client *c,
                              size_t *counted)
{
    for (size_t step = 32 * MIB; step; step /= 2)
        while (request_memory_set(m, c, *counted + step, counted) == 0)
            ;
    return *counted;
}

/* Each takes all that it can get, in turn: 32, 16, 8 MiB, and 128 KiB of the last 8. A client that
 * comes later, and wants little, still gets it. */
static void few_clients_cannot_take_all(void **state)
{
    (void)state;
    enum { N = 40 };
    AUTO(request_memory_free) struct request_memory *m = memory();
    struct request_memory_client *c[N], *late = request_memory_join(m, "late");
    size_t counted[N] = {0}, first = 0, second = 0;
    for (unsigned i = 0; i < N; i++) {
        char name[] = {(char)('0' + i), 0};
        c[i] = request_memory_join(m, name);
        assert_int_equal(takes_each_byte(m, c[i], &counted[i]),
                         i < 3 ? (32 * MIB) >> i : REQUEST_MEMORY_LITTLE);
    }
    assert_int_equal(request_memory_set(m, late, REQUEST_MEMORY_LITTLE + 1, &first), -EAGAIN);
    assert_non_null(strstr(fail_text(), "other clients use 62080 of 65536 KiB"));
    assert_int_equal(request_memory_set(m, late, REQUEST_MEMORY_LITTLE, &first), 0);
    assert_int_equal(request_memory_set(m, late, 1, &second), -EDQUOT);
    assert_non_null(strstr(fail_text(), "your other requests use 128 KiB of memory"));
    for (unsigned i = 0; i < N; i++) {
        assert_int_equal(request_memory_set(m, c[i], 0, &counted[i]), 0);
        request_memory_leave(m, c[i]);
    }
    assert_int_equal(request_memory_set(m, late, 0, &first), 0);
    request_memory_leave(m, late);
}

/* A client that holds more than little stops where the last part begins. */
static void the_last_part_is_an_eighth_and_at_most_16_mib(void **state)
{
    (void)state;
    static const size_t limits[] = {1, 64, 128, 256, 1024},
                        last[] = {MIB / 8, 8 * MIB, 16 * MIB, 16 * MIB, 16 * MIB};
    for (size_t i = 0; i < ARRAY_LEN(limits); i++) {
        size_t limit = limits[i] * MIB, of_a = 0, of_b = 0, of_c = 0, rest = limit - 3 * last[i];
        AUTO(request_memory_free) struct request_memory *m = memory_of(limit);
        struct request_memory_client *a = request_memory_join(m, "a");
        struct request_memory_client *b = request_memory_join(m, "b");
        struct request_memory_client *c = request_memory_join(m, "c");
        assert_int_equal(request_memory_set(m, a, limit / 2, &of_a), 0);
        assert_true(request_memory_grow(m, a, rest - limit / 2, &of_a));
        assert_int_equal(request_memory_set(m, b, last[i] * 3 / 2, &of_b), 0); // half of the rest
        assert_int_equal(takes_each_byte(m, c, &of_c),
                         i ? last[i] / 2 : REQUEST_MEMORY_LITTLE * 3 / 4); // little: half of it
        assert_int_equal(request_memory_set(m, a, 0, &of_a), 0);
        assert_int_equal(request_memory_set(m, b, 0, &of_b), 0);
        assert_int_equal(request_memory_set(m, c, 0, &of_c), 0);
        request_memory_leave(m, a);
        request_memory_leave(m, b);
        request_memory_leave(m, c);
    }
}

/* Another client has come since the answer began. */
static void a_running_answer_may_exceed_the_share(void **state)
{
    (void)state;
    AUTO(request_memory_free) struct request_memory *m = memory();
    struct request_memory_client *a = request_memory_join(m, "a"), *b = request_memory_join(m, "b");
    size_t answer = 0, other = 0, of_b = 0;
    assert_int_equal(takes_all(m, a, &answer), 32);
    assert_int_equal(takes_all(m, b, &of_b), 16);
    assert_int_equal(request_memory_set(m, a, answer + 1, &answer), -EMSGSIZE);
    assert_true(request_memory_grow(m, a, 15 * MIB, &answer));
    assert_int_equal(answer, 47 * MIB);
    assert_int_equal(request_memory_set(m, a, 1, &other), -EDQUOT);
    assert_false(request_memory_grow(m, a, MIB + 1, &answer));
    assert_false(request_memory_grow(m, a, SIZE_MAX, &answer));
    assert_int_equal(request_memory_used(m), 63 * MIB);
    assert_int_equal(request_memory_set(m, a, 0, &answer), 0);
    assert_int_equal(request_memory_set(m, b, 0, &of_b), 0);
    request_memory_leave(m, a);
    request_memory_leave(m, b);
}

/* A stream counts its unread bytes beside the request. Both together are one request. */
static void a_request_that_counts_twice_is_no_other_request(void **state)
{
    (void)state;
    AUTO(request_memory_free) struct request_memory *m = memory();
    struct request_memory_client *a = request_memory_join(m, "a"), *b = request_memory_join(m, "b");
    size_t request = 0, unread = 0, other = 0, of_b = 0;
    assert_int_equal(request_memory_set(m, b, 28 * MIB, &of_b), 0);
    assert_int_equal(request_memory_set(m, a, 8 * MIB, &unread), 0);
    assert_int_equal(request_memory_set_beside(m, a, 11 * MIB, &request, &unread), -EAGAIN);
    assert_non_null(strstr(fail_text(), "other clients use 28672 of 65536 KiB of memory"));
    assert_int_equal(request_memory_set_beside(m, a, 24 * MIB, &request, &unread), -EAGAIN);
    assert_int_equal(request_memory_set_beside(m, a, 24 * MIB + 1, &request, &unread), -EMSGSIZE);
    assert_int_equal(request_memory_set_beside(m, a, SIZE_MAX, &request, &unread), -EMSGSIZE);
    assert_int_equal(request_memory_set_beside(m, a, 9 * MIB, &request, &unread), 0);
    assert_int_equal(request_memory_set(m, a, MIB / 4, &other), 0);
    assert_int_equal(request_memory_set_beside(m, a, 11 * MIB, &request, &unread), -EDQUOT);
    assert_non_null(strstr(fail_text(), "your other requests use 256 KiB of memory"));
    assert_int_equal(request_memory_set(m, a, 0, &request), 0);
    assert_int_equal(request_memory_set(m, a, 0, &unread), 0);
    assert_int_equal(request_memory_set(m, a, 0, &other), 0);
    assert_int_equal(request_memory_set(m, b, 0, &of_b), 0);
    request_memory_leave(m, a);
    request_memory_leave(m, b);
}

static void a_name_is_one_client(void **state)
{
    (void)state;
    AUTO(request_memory_free) struct request_memory *m = memory();
    struct request_memory_client *a = request_memory_join(m, "a"), *b = request_memory_join(m, "b");
    assert_ptr_equal(request_memory_join(m, "a"), a);
    assert_ptr_not_equal(a, b);
    request_memory_leave(m, a);
    request_memory_leave(m, b);
    request_memory_leave(m, a);
    request_memory_leave(m, NULL);
}

static void thousands_of_clients_come_and_go(void **state)
{
    (void)state;
    enum { N = 5000 };
    AUTO(request_memory_free) struct request_memory *m = memory();
    static struct request_memory_client *c[N];
    for (unsigned i = 0; i < N; i++) {
        char name[32];
        snprintf(name, sizeof(name), "192.0.2.%u", i);
        c[i] = request_memory_join(m, name);
        assert_non_null(c[i]);
    }
    for (unsigned i = 0; i < N; i += 2)
        request_memory_leave(m, c[i]);
    for (unsigned i = 1; i < N; i += 2) {
        char name[32];
        snprintf(name, sizeof(name), "192.0.2.%u", i);
        assert_ptr_equal(request_memory_join(m, name), c[i]);
        request_memory_leave(m, c[i]);
        request_memory_leave(m, c[i]);
    }
}

/* A share has no byte more than what is free for others. */
static void shares_are_exact(void **state)
{
    (void)state;
    AUTO(request_memory_free) struct request_memory *m = memory();
    struct request_memory_client *a = request_memory_join(m, "a"), *b = request_memory_join(m, "b");
    size_t of_a = 0, of_b = 0;
    assert_int_equal(request_memory_set(m, a, LIMIT / 2, &of_a), 0);
    assert_int_equal(request_memory_set(m, b, LIMIT / 4 + 1, &of_b), -EAGAIN);
    assert_int_equal(request_memory_set(m, b, LIMIT / 4, &of_b), 0);
    assert_int_equal(request_memory_set(m, b, LIMIT / 2, &of_b), -EAGAIN); // not too much in itself
    assert_int_equal(request_memory_set(m, b, LIMIT / 2 + 1, &of_b), -EMSGSIZE);
    assert_true(request_memory_grow(m, b, LIMIT / 4, &of_b)); // all that is free
    assert_false(request_memory_grow(m, a, 1, &of_a));
    assert_int_equal(request_memory_used(m), LIMIT);
    assert_int_equal(request_memory_set(m, a, 0, &of_a), 0);
    assert_int_equal(request_memory_set(m, b, 0, &of_b), 0);
    request_memory_leave(m, a);
    request_memory_leave(m, b);
}

static void long_names_are_cut(void **state)
{
    (void)state;
    AUTO(request_memory_free) struct request_memory *m = memory();
    char name[REQUEST_MEMORY_NAME_MAX + 2];
    memset(name, 'n', sizeof(name));
    name[REQUEST_MEMORY_NAME_MAX + 1] = 0;
    struct request_memory_client *longer = request_memory_join(m, name);
    name[REQUEST_MEMORY_NAME_MAX - 1] = 0;
    struct request_memory_client *cut = request_memory_join(m, name);
    name[REQUEST_MEMORY_NAME_MAX - 2] = 0;
    struct request_memory_client *shorter = request_memory_join(m, name);
    assert_ptr_equal(longer, cut);
    assert_ptr_not_equal(cut, shorter);
    request_memory_leave(m, longer);
    request_memory_leave(m, cut);
    request_memory_leave(m, shorter);
}

static void failed_allocations_are_errors(void **state)
{
    (void)state;
    AUTO(request_memory_free) struct request_memory *m = memory();
    struct request_memory *none = NULL;
    failing_at(1);
    assert_int_equal(request_memory_new(LIMIT, &none), -ENOMEM);
    assert_null(none);
    request_memory_free(none); // no effect
    failing_at(1);
    assert_null(request_memory_join(m, "a"));
    assert_true(failing_has_failed());
    request_memory_leave(m, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_client_gets_half),
        cmocka_unit_test(few_clients_cannot_take_all),
        cmocka_unit_test(the_last_part_is_an_eighth_and_at_most_16_mib),
        cmocka_unit_test(a_running_answer_may_exceed_the_share),
        cmocka_unit_test(a_request_that_counts_twice_is_no_other_request),
        cmocka_unit_test(a_name_is_one_client),
        cmocka_unit_test(thousands_of_clients_come_and_go),
        cmocka_unit_test(shares_are_exact),
        cmocka_unit_test(long_names_are_cut),
        cmocka_unit_test(failed_allocations_are_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
