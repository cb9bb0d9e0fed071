/* test_upstream_choose.c - which verifier owns a model name, and who may get a request. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
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

/* ---- the choice ---- */

/* Both are ready with one model; as many requests run at them. */
static void both_ready(struct upstream *u, unsigned n_first, unsigned n_second)
{
    new_info.fingerprint = rpc_text("fp_old");
    u->verifiers[NEWCOMER].state = UPSTREAM_READY;
    u->verifiers[NEWCOMER].other_model = false;
    atomic_store(&u->verifiers[0].n_requests, n_first);
    atomic_store(&u->verifiers[1].n_requests, n_second);
}

static void the_first_of_the_least_loaded_is_chosen(void **state)
{
    static const struct {
        unsigned n_first, n_second, chosen;
    } v[] = {{0, 0, 0}, {1, 1, 0}, {1, 0, 1}, {0, 1, 0}};
    struct upstream *u = *state;
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        both_ready(u, v[i].n_first, v[i].n_second);
        assert_ptr_equal(upstream_choose(u, &(struct upstream_want){0}),
                         &u->verifiers[v[i].chosen]);
    }
}

/* 2 x the least load + 2 is the limit of the other one. */
static void a_longer_prefix_wins_within_a_limit(void **state)
{
    static const struct {
        unsigned n_first, n_second, first_pieces, second_pieces, chosen;
    } v[] = {{0, 2, 0, 1, 1}, {0, 3, 0, 1, 0}, {1, 4, 0, 1, 1}, {1, 5, 0, 1, 0},
             {0, 0, 1, 1, 0}, {0, 0, 2, 3, 1}, {0, 0, 3, 2, 0}, {1, 0, 2, 2, 1}};
    struct upstream *u = *state;
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        struct affinity_prompt whole = {.n = 3, .hashes = {11, 12, 13}}, part = whole;
        const struct upstream_want want = {.prompt = &whole};
        assert_int_equal(affinity_new(&u->affinity), 0);
        both_ready(u, v[i].n_first, v[i].n_second);
        part.n = v[i].first_pieces;
        affinity_note(u->affinity, &part, 0);
        part.n = v[i].second_pieces;
        affinity_note(u->affinity, &part, 1);
        if (upstream_choose(u, &want) != &u->verifiers[v[i].chosen])
            fail_msg("case %zu", i);
        affinity_free(u->affinity);
    }
}

static void what_a_request_requires_is_kept(void **state)
{
    struct upstream *u = *state;
    const struct verifier *first = &u->verifiers[0], *second = &u->verifiers[1];
    both_ready(u, 0, 0);
    old_info.continues = false;
    new_info.continues = true;
    assert_ptr_equal(upstream_choose(u, &(struct upstream_want){.continues = true}), second);
    assert_ptr_equal(upstream_choose(u, &(struct upstream_want){.except = 1}), second);
    assert_ptr_equal(upstream_choose(u, &(struct upstream_want){.except = 2}), first);
    assert_null(upstream_choose(u, &(struct upstream_want){.except = 3}));
    new_info.name = rpc_text("other");
    static const struct {
        const char *model;
        int chosen; // -1: none
    } v[] = {{NULL, 0},    {"", 0},      {"default", 0}, {"model", 0},
             {"other", 1}, {"othe", -1}, {"others", -1}, {"Model", -1}};
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        struct upstream_want want = {.model = v[i].model};
        assert_ptr_equal(upstream_choose(u, &want),
                         v[i].chosen < 0 ? NULL : &u->verifiers[v[i].chosen]);
    }
    const struct upstream_want like = {.like = &new_model}, old = {.like = &old_model};
    assert_ptr_equal(upstream_choose(u, &like), second);
    assert_ptr_equal(upstream_choose(u, &old), first);
}

/* Each state of the only verifier, with its model or before the first answer. */
static void a_request_that_finds_none_is_told_why(void **state)
{
    static const struct {
        enum upstream_state state;
        bool known, other_model;
        const char *model;
        int rc;
        const char *says;
        bool waits;
    } v[] = {
        {UPSTREAM_UNKNOWN, false, false, "model", -EAGAIN, "the verifier has not answered yet",
         true},
        {UPSTREAM_LOADING, true, false, "model", -EAGAIN, "the model is still loading (25 %)",
         true},
        {UPSTREAM_LOADING, true, false, "no", -EHOSTDOWN, UPSTREAM_UNREACHED, false},
        {UPSTREAM_DOWN, false, false, "model", -EHOSTDOWN, UPSTREAM_UNREACHED, false},
        {UPSTREAM_DOWN, true, false, "model", -EHOSTDOWN, UPSTREAM_UNREACHED, false},
        {UPSTREAM_DRAINING, true, false, "model", -EHOSTDOWN, "the verifier is shutting down",
         false},
        {UPSTREAM_REFUSED, true, false, "model", -EHOSTDOWN, "it speaks another version", false},
        {UPSTREAM_REFUSED, true, true, "model", -EAGAIN, UPSTREAM_UNREACHED, true},
        {UPSTREAM_REFUSED, true, true, "no", -EHOSTDOWN, UPSTREAM_UNREACHED, false},
        {UPSTREAM_READY, true, false, "no", -ENOENT, "the model 'no' is not served here", false},
    };
    struct upstream *u = *state;
    u->n = 1;
    old_info.progress = 0.25f;
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        struct verifier *w = &u->verifiers[0];
        *w = (struct verifier){.u = u,
                               .state = v[i].state,
                               .model = v[i].known ? &old_model : NULL,
                               .other_model = v[i].other_model,
                               .problem = "it speaks another version"};
        int rc = upstream_choose_error(u, v[i].model);
        if (rc != v[i].rc || strcmp(fail_text(), v[i].says) != 0)
            fail_msg("case %zu: %d %s", i, rc, fail_text());
        assert_int_equal(upstream_choose_waits(u, v[i].model), v[i].waits);
    }
}

/* A second verifier may be about to serve the model that the first one does not. */
static void another_verifier_that_may_serve_the_model_is_waited_for(void **state)
{
    struct upstream *u = *state;
    Tandem__V1__ModelInfo nameless = TANDEM__V1__MODEL_INFO__INIT;
    const struct upstream_model loading = {&nameless};
    struct verifier *second = &u->verifiers[1];
    *second = (struct verifier){.u = u, .state = UPSTREAM_UNKNOWN};
    assert_int_equal(upstream_choose_error(u, "other"), -EAGAIN);
    assert_true(upstream_choose_waits(u, "other"));
    assert_false(upstream_choose_waits(u, "model")); // served by the first
    second->state = UPSTREAM_LOADING;
    second->model = &loading; // its name is not known yet
    assert_int_equal(upstream_choose_error(u, "other"), -EAGAIN);
    assert_true(upstream_choose_waits(u, "other"));
    second->state = UPSTREAM_DOWN;
    assert_int_equal(upstream_choose_error(u, "other"), -ENOENT);
    new_info.name = rpc_text("other");
    second->model = &new_model; // it did serve it
    assert_int_equal(upstream_choose_error(u, "other"), -EHOSTDOWN);
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
        TEST(the_first_of_the_least_loaded_is_chosen),
        TEST(a_longer_prefix_wins_within_a_limit),
        TEST(what_a_request_requires_is_kept),
        TEST(a_request_that_finds_none_is_told_why),
        TEST(another_verifier_that_may_serve_the_model_is_waited_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
