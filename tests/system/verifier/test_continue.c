/* test_continue.c - a verifier continues an answer that another one has begun, from any token on.
 * The rest has the same tokens, text, logprobs and end. */
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "lib/lib.h"
#include "lib/rigs/verifier_rig.h"

#define N_TOKENS 24
#define N_CHOICES 3

/* The continuation from token n on must be the end of the whole answer. */
static void must_continue(const request *whole, const struct answer *want, unsigned n)
{
    AUTO(mem_free) struct answer *a = answers_new(1);
    Tandem__V1__ModelInfo *info = must_get_model(client);
    request msg = *whole;
    struct rest c;
    rest_init(&c, &msg, info, want, n);
    generation_run(client, &msg, a);
    assert_int_equal(a->n, want->n - n);
    assert_memory_equal(a->ids, want->ids + n, a->n * sizeof(*a->ids));
    assert_memory_equal(a->logprobs, want->logprobs + n, a->n * sizeof(*a->logprobs));
    assert_memory_equal(a->top, want->top + n, a->n * sizeof(*a->top));
    assert_true(a->text_len <= want->text_len);
    assert_string_equal(a->text, want->text + want->text_len - a->text_len);
    assert_int_equal(a->reason, want->reason);
    assert_int_equal(a->seed, want->seed);
    assert_int_equal(a->prompt_tokens, want->prompt_tokens);
    assert_true(a->cached_tokens <= want->prompt_tokens);
    tandem__v1__model_info__free_unpacked(info, NULL);
}

static void must_continue_anywhere(const request *msg)
{
    AUTO(mem_free) struct answer *want = answers_new(1);
    generation_run(client, msg, want);
    unsigned step = (unsigned)lib_amount(5, 1, 1);
    assert_true(want->n > 5);
    for (unsigned n = 0; n <= want->n; n += step)
        must_continue(msg, want, n);
    must_continue(msg, want, want->n); // only its end was not sent
}

/* Sampling with all that depends on earlier tokens. */
static void wish_all(struct wish *w)
{
    wish_init(w, STORY, N_TOKENS);
    w->sampling.temperature = 1.2F;
    w->sampling.has_presence_case = TANDEM__V1__SAMPLING__HAS_PRESENCE_PRESENCE_PENALTY;
    w->sampling.presence_penalty = 1.5F;
    w->sampling.has_frequency_case = TANDEM__V1__SAMPLING__HAS_FREQUENCY_FREQUENCY_PENALTY;
    w->sampling.frequency_penalty = 0.7F;
    w->sampling.has_repetition_case = TANDEM__V1__SAMPLING__HAS_REPETITION_REPETITION_PENALTY;
    w->sampling.repetition_penalty = 1.3F;
    w->msg.logprobs = true;
    w->msg.top_logprobs = ANSWER_MAX_TOP;
}

static void penalties_count_the_tokens_of_the_other_verifier(void **state)
{
    (void)state;
    struct wish w;
    wish_all(&w);
    must_continue_anywhere(&w.msg);
}

static void an_unseeded_answer_continues_with_the_seed_that_was_drawn(void **state)
{
    (void)state;
    struct wish w;
    wish_all(&w);
    w.sampling.has_seed_case = 0;
    must_continue_anywhere(&w.msg);
}

/* The bans of min_tokens end, and stop strings begin, in the middle of the answer. */
static void min_tokens_are_those_of_the_whole_answer(void **state)
{
    (void)state;
    struct wish w;
    wish_all(&w);
    w.msg.min_tokens = N_TOKENS / 2;
    w.msg.n_stop = 2;
    w.msg.stop = (ProtobufCBinaryData[]){text_of("e"), text_of("ing")};
    must_continue_anywhere(&w.msg);
}

/* The stop string is what the answer has around its middle, so tokens end inside of it. */
static void a_stop_string_may_begin_before_the_border(void **state)
{
    (void)state;
    AUTO(mem_free) struct answer *a = answers_new(1);
    struct wish w;
    wish_all(&w);
    generation_run(client, &w.msg, a);
    char stop[9] = "";
    memcpy(stop, a->text + a->text_len - 12, 8); // of a text that is longer
    w.msg.n_stop = 1;
    w.msg.stop = (ProtobufCBinaryData[]){text_of(stop)};
    must_continue_anywhere(&w.msg);
}

static void finished_choices_get_no_events(void **state)
{
    (void)state;
    struct wish w;
    wish_all(&w);
    w.msg.n = N_CHOICES;
    must_continue_anywhere(&w.msg);
}

/* The first verifier's context left only as many tokens; here is space for more. */
static void the_answer_ends_where_the_first_context_ended(void **state)
{
    (void)state;
    AUTO(mem_free) struct answer *want = answers_new(1);
    struct wish w;
    wish_all(&w);
    w.msg.ignore_eos = true;
    generation_run(client, &w.msg, want);
    assert_int_equal(want->max_tokens, N_TOKENS);
    assert_int_equal(want->reason, TANDEM__V1__FINISH_REASON__FINISH_REASON_LENGTH);
    w.msg.has_max_tokens_case = 0;
    must_continue(&w.msg, want, 5);
}

static void what_does_not_fit_is_refused(void **state)
{
    (void)state;
    AUTO(mem_free) struct answer *a = answers_new(1);
    Tandem__V1__ModelInfo *info = must_get_model(client);
    struct wish w;
    struct rest c;
    assert_true(info->continues);
    wish_init(&w, STORY, N_TOKENS);
    generation_run(client, &w.msg, a);
    rest_init(&c, &w.msg, info, a, 3);
    c.msg.fingerprint = text_of("another");
    must_refuse(client, &w.msg, RPC_FAILED_PRECONDITION, "another fingerprint");
    rest_init(&c, &w.msg, info, a, 3);
    w.msg.stop_token_ids = &a->ids[1];
    w.msg.n_stop_token_ids = 1;
    must_refuse(client, &w.msg, RPC_INVALID_ARGUMENT,
                "choice 0 ended after 2 tokens, the continuation has 3");
    tandem__v1__model_info__free_unpacked(info, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(penalties_count_the_tokens_of_the_other_verifier),
        cmocka_unit_test(an_unseeded_answer_continues_with_the_seed_that_was_drawn),
        cmocka_unit_test(min_tokens_are_those_of_the_whole_answer),
        cmocka_unit_test(a_stop_string_may_begin_before_the_border),
        cmocka_unit_test(finished_choices_get_no_events),
        cmocka_unit_test(the_answer_ends_where_the_first_context_ended),
        cmocka_unit_test(what_does_not_fit_is_refused),
    };
    return cmocka_run_group_tests(tests, start_verifier, stop_verifier);
}
