/* test_upstream_choose.c - which verifier owns a model name, and who may get a request. */
#include <errno.h>
#include <stdlib.h>
#include "base/err.h"
#include "gateway/upstream/upstream_impl.h"
#include "lib/lib.h"

#define KEEP_US 1000
#define HOLDER 0
#define NEWCOMER 1

static Tandem__V1__ModelInfo old_info, new_info;
static const struct upstream_model old_model = {&old_info}, new_model = {&new_info};

/* The owner of the name was READY at time 0; the newcomer is refused for its fingerprint. */
static int start(void **state)
{
    struct upstream *u = calloc(1, sizeof(*u));
    tandem__v1__model_info__init(&old_info);
    tandem__v1__model_info__init(&new_info);
    old_info.name = new_info.name = rpc_text("model");
    old_info.fingerprint = rpc_text("fp_old");
    new_info.fingerprint = rpc_text("fp_new");
    u->n = 2;
    u->keep_us = KEEP_US;
    u->verifiers[HOLDER] = (struct verifier){
        .u = u, .state = UPSTREAM_READY, .model = &old_model, .owned = &old_model};
    u->verifiers[NEWCOMER] = (struct verifier){
        .u = u, .state = UPSTREAM_REFUSED, .other_model = true, .model = &new_model};
    *state = u;
    return 0;
}

static int end(void **state)
{
    free(*state);
    return 0;
}

static void a_ready_owner_keeps_its_name(void **state)
{
    struct upstream *u = *state;
    const struct verifier *newcomer = &u->verifiers[NEWCOMER];
    assert_ptr_equal(upstream_choose_owner(newcomer, 0), &u->verifiers[HOLDER]);
    assert_ptr_equal(upstream_choose_owner(newcomer, 9 * KEEP_US), &u->verifiers[HOLDER]);
    assert_null(upstream_choose_owner(&u->verifiers[HOLDER], 0));
}

static void an_owner_that_is_away_keeps_its_name_for_a_while(void **state)
{
    static const enum upstream_state away[] = {UPSTREAM_DOWN, UPSTREAM_LOADING, UPSTREAM_DRAINING};
    struct upstream *u = *state;
    struct verifier *owner = &u->verifiers[HOLDER], *newcomer = &u->verifiers[NEWCOMER];
    Tandem__V1__ModelInfo nameless = TANDEM__V1__MODEL_INFO__INIT;
    const struct upstream_model loading = {&nameless};
    for (size_t i = 0; i < ARRAY_LEN(away); i++) {
        owner->state = away[i];
        owner->model = away[i] == UPSTREAM_LOADING ? &loading : &old_model;
        assert_ptr_equal(upstream_choose_owner(newcomer, KEEP_US - 1), owner);
        assert_null(upstream_choose_owner(newcomer, KEEP_US));
    }
}

static void a_newcomer_of_another_name_or_equal_bits_has_no_conflict(void **state)
{
    struct upstream *u = *state;
    new_info.fingerprint = rpc_text("fp_old");
    assert_null(upstream_choose_owner(&u->verifiers[NEWCOMER], 0));
    new_info.fingerprint = rpc_text("fp_new");
    new_info.name = rpc_text("other");
    assert_null(upstream_choose_owner(&u->verifiers[NEWCOMER], 0));
}

static void an_owner_is_known_by_its_name_and_fingerprint(void **state)
{
    struct upstream *u = *state;
    struct verifier *owner = &u->verifiers[HOLDER];
    assert_true(upstream_choose_owned(owner));
    assert_false(upstream_choose_owned(&u->verifiers[NEWCOMER]));
    owner->model = &new_model; // it comes back with another file
    assert_false(upstream_choose_owned(owner));
}

/* An answer that has begun needs equal bits; the owner of the name does not matter. */
static void an_answer_may_continue_at_a_verifier_refused_for_its_fingerprint(void **state)
{
    struct upstream *u = *state;
    struct verifier *newcomer = &u->verifiers[NEWCOMER];
    assert_ptr_equal(upstream_choose(u, &(struct upstream_want){.like = &new_model}), newcomer);
    u->verifiers[HOLDER].state = UPSTREAM_DOWN;
    assert_null(upstream_choose(u, &(struct upstream_want){.model = "model"}));
    assert_null(upstream_choose(u, &(struct upstream_want){.like = &old_model}));
    newcomer->other_model = false; // it speaks another protocol version
    assert_null(upstream_choose(u, &(struct upstream_want){.like = &new_model}));
}

static void a_request_waits_while_the_owner_of_the_name_is_away(void **state)
{
    struct upstream *u = *state;
    assert_false(upstream_choose_waits(u, "model"));
    u->verifiers[HOLDER].state = UPSTREAM_DOWN;
    assert_true(upstream_choose_waits(u, "model"));
    assert_int_equal(upstream_choose_error(u, "model"), -EAGAIN);
    assert_string_equal(fail_text(), UPSTREAM_UNREACHED);
    u->verifiers[NEWCOMER].other_model = false;
    assert_false(upstream_choose_waits(u, "model"));
    assert_int_equal(upstream_choose_error(u, "model"), -EHOSTDOWN);
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, start, end)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_ready_owner_keeps_its_name),
        TEST(an_owner_that_is_away_keeps_its_name_for_a_while),
        TEST(a_newcomer_of_another_name_or_equal_bits_has_no_conflict),
        TEST(an_owner_is_known_by_its_name_and_fingerprint),
        TEST(an_answer_may_continue_at_a_verifier_refused_for_its_fingerprint),
        TEST(a_request_waits_while_the_owner_of_the_name_is_away),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
