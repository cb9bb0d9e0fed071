/* test_committed.c - what the gateway keeps of an answer, and how it joins the tokens of two
 * verifiers. */
#include <errno.h>
#include "gateway/upstream/committed.h"
#include "lib/fakes/failing.h"
#include "lib/lib.h"

#define MANY 1000

static size_t held, limit;

static bool hold(void *user, size_t bytes)
{
    (void)user;
    if (held + bytes > limit)
        return false;
    held += bytes;
    return true;
}

static int start(void **state)
{
    static struct committed c;
    held = 0;
    limit = SIZE_MAX / 2;
    *state = &c;
    return committed_init(&c, 2);
}

static int end(void **state)
{
    committed_done(*state);
    return 0;
}

/* Takes tokens first, first + 1, ... Returns how many of them are new. */
static int take(struct committed *c, unsigned choice, uint32_t first, uint32_t n, uint32_t round)
{
    Tandem__V1__Token tokens[MANY], *list[MANY];
    Tandem__V1__TokenRun run = TANDEM__V1__TOKEN_RUN__INIT;
    for (uint32_t i = 0; i < n; i++) {
        tandem__v1__token__init(&tokens[i]);
        tokens[i].id = first + i;
        list[i] = &tokens[i];
    }
    run.tokens = list;
    run.n_tokens = n;
    run.round = round;
    int err = committed_take(c, choice, &run, hold, NULL);
    assert_true(err < 0 || !run.n_tokens || run.tokens[0]->id == first + n - run.n_tokens);
    return err < 0 ? err : (int)run.n_tokens;
}

static Tandem__V1__GenerateRequest *packed(struct committed *c)
{
    struct rpc_msg *msg = committed_pack(c, rpc_text("fp"));
    ProtobufCMessage *m = rpc_unpack(&tandem__v1__generate_request__descriptor, msg);
    rpc_msg_free(msg);
    assert_non_null(m);
    return (Tandem__V1__GenerateRequest *)m;
}

static void a_continuation_has_all_that_was_committed(void **state)
{
    struct committed *c = *state;
    c->seed = -5;
    assert_int_equal(take(c, 0, 100, 3, 1), 3);
    assert_int_equal(take(c, 0, 103, MANY, 2), MANY);
    c->choices[1].finished = true;
    Tandem__V1__GenerateRequest *m = packed(c);
    const Tandem__V1__Continuation *to = m->continuation;
    assert_int_equal(to->seed, -5);
    assert_memory_equal(to->fingerprint.data, "fp", 2);
    assert_int_equal(to->n_choices, 2);
    assert_int_equal(to->choices[0]->n_tokens, MANY + 3);
    for (uint32_t i = 0; i < MANY + 3; i++)
        assert_int_equal(to->choices[0]->tokens[i], 100 + i);
    assert_int_equal(to->choices[0]->round, 2);
    assert_false(to->choices[0]->finished);
    assert_int_equal(to->choices[1]->n_tokens, 0);
    assert_true(to->choices[1]->finished);
    assert_true(held >= (MANY + 3) * sizeof(uint32_t));
    tandem__v1__generate_request__free_unpacked(m, NULL);
}

static void tokens_since_the_request_are_taken_once(void **state)
{
    struct committed *c = *state;
    take(c, 0, 0, 4, 1);
    tandem__v1__generate_request__free_unpacked(packed(c), NULL);
    assert_false(committed_has_more(c));
    take(c, 0, 4, 3, 2); // the first verifier continues meanwhile
    assert_true(committed_has_more(c));
    committed_continued(c);
    assert_int_equal(take(c, 0, 4, 2, 2), 0);
    assert_int_equal(take(c, 0, 6, 3, 3), 2);
    assert_int_equal(take(c, 0, 9, 1, 4), 1);
    assert_int_equal(take(c, 1, 50, 1, 1), 1);
    assert_int_equal(c->choices[0].n, 10);
}

static void other_tokens_than_before_are_an_error(void **state)
{
    struct committed *c = *state;
    take(c, 0, 0, 4, 1);
    tandem__v1__generate_request__free_unpacked(packed(c), NULL);
    take(c, 0, 4, 2, 2);
    committed_continued(c);
    assert_int_equal(take(c, 0, 7, 2, 2), -EPROTO);
}

static void without_memory_the_answer_continues_but_is_not_kept(void **state)
{
    struct committed *c = *state;
    limit = 100 * sizeof(uint32_t);
    assert_int_equal(take(c, 0, 0, 64, 1), 64);
    assert_false(c->is_partial);
    assert_int_equal(take(c, 0, 64, 64, 2), 64);
    assert_true(c->is_partial);
    assert_null(c->choices[0].ids);
    assert_int_equal(take(c, 1, 64, 64, 2), 64);
    assert_null(c->choices[1].ids);
}

/* Capacities double from 64; only the difference is asked for. */
static void memory_is_asked_for_as_it_is_needed(void **state)
{
    static const struct {
        uint32_t n;
        size_t held;
    } v[] = {{1, 64}, {63, 64}, {1, 128}, {0, 128}, {200, 512}};
    struct committed *c = *state;
    uint32_t n = 0;
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        assert_int_equal(take(c, 0, n, v[i].n, 1), v[i].n);
        n += v[i].n;
        assert_int_equal(held, v[i].held * sizeof(uint32_t));
        assert_int_equal(committed_bytes(n), held);
    }
    assert_int_equal(committed_bytes(0), 64 * sizeof(uint32_t));
    assert_int_equal(committed_bytes(64), 64 * sizeof(uint32_t));
    assert_int_equal(committed_bytes(65), 128 * sizeof(uint32_t));
}

static void the_last_known_round_stays(void **state)
{
    struct committed *c = *state;
    take(c, 0, 0, 1, 5);
    take(c, 0, 1, 1, 0); // unknown
    assert_int_equal(c->choices[0].round, 5);
}

static void failed_allocations_are_survived(void **state)
{
    struct committed *c = *state, other = {0};
    failing_at(1);
    assert_int_equal(committed_init(&other, 2), -ENOMEM);
    assert_true(failing_has_failed());
    committed_done(&other);
    take(c, 0, 0, 64, 1);
    failing_at(1);
    assert_int_equal(take(c, 0, 64, 1, 1), 1); // the answer runs on
    assert_true(failing_has_failed());
    assert_true(c->is_partial);
    for (unsigned n = 1; n <= 2; n++) {
        failing_at(n);
        assert_null(committed_pack(c, rpc_text("fp")));
        assert_true(failing_has_failed());
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_continuation_has_all_that_was_committed, start, end),
        cmocka_unit_test_setup_teardown(tokens_since_the_request_are_taken_once, start, end),
        cmocka_unit_test_setup_teardown(other_tokens_than_before_are_an_error, start, end),
        cmocka_unit_test_setup_teardown(without_memory_the_answer_continues_but_is_not_kept, start,
                                        end),
        cmocka_unit_test_setup_teardown(memory_is_asked_for_as_it_is_needed, start, end),
        cmocka_unit_test_setup_teardown(the_last_known_round_stays, start, end),
        cmocka_unit_test_setup_teardown(failed_allocations_are_survived, start, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
