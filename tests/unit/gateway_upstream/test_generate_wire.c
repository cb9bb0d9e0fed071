/* test_generate_wire.c - a request in the verifier's message, field by field, and the verifier's
 * events in the answer. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "gateway/upstream/generate_wire.h"
#include "lib/fakes/failing.h"
#include "lib/lib.h"

static const struct output_parser_rules no_rules;

static struct openai_request parsed(enum openai_kind kind, const char *body)
{
    struct openai_request q;
    struct openai_fault fault;
    if (openai_request_parse(kind, body, strlen(body), NULL, &q, &fault) < 0)
        fail_msg("%s", fault.text);
    return q;
}

/* The message for the prompt, as the verifier unpacks it. */
static Tandem__V1__GenerateRequest *packed(const struct openai_request *q, unsigned prompt)
{
    static const ProtobufCBinaryData model = {5, (uint8_t *)"m/one"};
    struct rpc_msg *shared = NULL;
    assert_int_equal(generate_wire_pack(q, "r1", "00-trace", &model, &no_rules, &shared), 0);
    struct rpc_msg *msg = generate_wire_pack_prompt(q, &q->prompts[prompt], shared);
    ProtobufCMessage *m = rpc_unpack(&tandem__v1__generate_request__descriptor, msg);
    rpc_msg_free(msg);
    rpc_msg_free(shared);
    assert_non_null(m);
    return (Tandem__V1__GenerateRequest *)m;
}

static void message_done(Tandem__V1__GenerateRequest *m)
{
    tandem__v1__generate_request__free_unpacked(m, NULL);
}

static void is_text(ProtobufCBinaryData data, const char *text)
{
    assert_int_equal(data.len, strlen(text));
    if (data.len)
        assert_memory_equal(data.data, text, data.len);
}

static void every_field_is_sent(void **state)
{
    (void)state;
    struct openai_request q = parsed(
        OPENAI_COMPLETION,
        "{\"prompt\":[\"some text\",[5,6,7]],\"temperature\":0.5,\"top_k\":40,\"top_p\":0.25,"
        "\"min_p\":0.125,\"repetition_penalty\":1.5,\"presence_penalty\":0.75,"
        "\"frequency_penalty\":-0.5,\"seed\":-9,\"max_tokens\":77,\"min_tokens\":3,\"n\":2,"
        "\"ignore_eos\":true,\"logprobs\":4,\"stop\":[\"a\",\"bc\"],"
        "\"stop_token_ids\":[8,9],\"logit_bias\":{\"11\":-1.5,\"12\":2},\"cache_salt\":\"pepper\","
        "\"skip_special_tokens\":false,\"prediction\":{\"type\":\"content\",\"content\":\"guess\"},"
        "\"speculative\":{\"proposer\":\"ngram\",\"rule\":\"own\",\"n_max\":6,\"n_min\":2,"
        "\"p_min\":0.25,\"rule_parameter\":0.5,\"dense_q\":true}}");
    q.flow = strdup("alice");
    Tandem__V1__GenerateRequest *m = packed(&q, 0);
    is_text(m->id, "r1");
    is_text(m->traceparent, "00-trace");
    is_text(m->model, "m/one");
    assert_int_equal(m->prompt_case, TANDEM__V1__GENERATE_REQUEST__PROMPT_TEXT);
    is_text(m->text, "some text");
    assert_true(m->parse_special);
    assert_true(m->add_bos);
    assert_true(m->render_special);
    const Tandem__V1__Sampling *s = m->sampling;
    assert_int_equal(s->has_temperature_case, TANDEM__V1__SAMPLING__HAS_TEMPERATURE_TEMPERATURE);
    assert_true(s->temperature == 0.5f);
    assert_int_equal(s->has_top_k_case, TANDEM__V1__SAMPLING__HAS_TOP_K_TOP_K);
    assert_int_equal(s->top_k, 40);
    assert_int_equal(s->has_top_p_case, TANDEM__V1__SAMPLING__HAS_TOP_P_TOP_P);
    assert_true(s->top_p == 0.25f);
    assert_int_equal(s->has_min_p_case, TANDEM__V1__SAMPLING__HAS_MIN_P_MIN_P);
    assert_true(s->min_p == 0.125f);
    assert_int_equal(s->has_repetition_case,
                     TANDEM__V1__SAMPLING__HAS_REPETITION_REPETITION_PENALTY);
    assert_true(s->repetition_penalty == 1.5f);
    assert_int_equal(s->has_presence_case, TANDEM__V1__SAMPLING__HAS_PRESENCE_PRESENCE_PENALTY);
    assert_true(s->presence_penalty == 0.75f);
    assert_int_equal(s->has_frequency_case, TANDEM__V1__SAMPLING__HAS_FREQUENCY_FREQUENCY_PENALTY);
    assert_true(s->frequency_penalty == -0.5f);
    assert_int_equal(s->has_seed_case, TANDEM__V1__SAMPLING__HAS_SEED_SEED);
    assert_int_equal(s->seed, -9);
    assert_int_equal(s->n_logit_bias, 2);
    for (size_t i = 0; i < 2; i++) {
        bool first = s->logit_bias[i]->token == 11;
        assert_int_equal(s->logit_bias[i]->token, first ? 11 : 12);
        assert_true(s->logit_bias[i]->bias == (first ? -1.5f : 2.0f));
    }
    assert_int_not_equal(s->logit_bias[0]->token, s->logit_bias[1]->token);
    assert_int_equal(m->has_max_tokens_case,
                     TANDEM__V1__GENERATE_REQUEST__HAS_MAX_TOKENS_MAX_TOKENS);
    assert_int_equal(m->max_tokens, 77);
    assert_int_equal(m->min_tokens, 3);
    assert_int_equal(m->n, 2);
    assert_true(m->ignore_eos);
    assert_true(m->logprobs);
    assert_int_equal(m->top_logprobs, 4);
    assert_false(m->echo);
    assert_int_equal(m->n_stop, 2);
    is_text(m->stop[0], "a");
    is_text(m->stop[1], "bc");
    assert_int_equal(m->n_stop_token_ids, 2);
    assert_int_equal(m->stop_token_ids[0], 8);
    assert_int_equal(m->stop_token_ids[1], 9);
    is_text(m->prediction, "guess");
    is_text(m->tenant, "pepper");
    is_text(m->flow, "alice");
    assert_int_equal(m->n_shown_special, 0);
    const Tandem__V1__Speculative *d = m->speculative;
    is_text(d->proposer, "ngram");
    is_text(d->rule, "own");
    assert_int_equal(d->has_n_max_case, TANDEM__V1__SPECULATIVE__HAS_N_MAX_N_MAX);
    assert_int_equal(d->n_max, 6);
    assert_int_equal(d->n_min, 2);
    assert_int_equal(d->has_p_min_case, TANDEM__V1__SPECULATIVE__HAS_P_MIN_P_MIN);
    assert_true(d->p_min == 0.25f);
    assert_int_equal(d->has_rule_parameter_case,
                     TANDEM__V1__SPECULATIVE__HAS_RULE_PARAMETER_RULE_PARAMETER);
    assert_true(d->rule_parameter == 0.5f);
    assert_true(d->dense_q);
    assert_false(d->fixed);
    message_done(m);
    m = packed(&q, 1);
    assert_int_equal(m->prompt_case, TANDEM__V1__GENERATE_REQUEST__PROMPT_TOKENS);
    assert_int_equal(m->tokens->n_ids, 3);
    assert_int_equal(m->tokens->ids[2], 7);
    assert_false(m->add_bos);
    is_text(m->id, "r1");
    message_done(m);
    openai_request_done(&q);
}

static void fields_that_are_absent_are_not_sent(void **state)
{
    (void)state;
    struct openai_request q = parsed(OPENAI_COMPLETION, "{\"prompt\":\"x\",\"echo\":true,"
                                                        "\"top_k\":-1}");
    Tandem__V1__GenerateRequest *m = packed(&q, 0);
    assert_int_equal(m->sampling->has_temperature_case, 0);
    assert_int_equal(m->sampling->has_top_p_case, 0);
    assert_int_equal(m->sampling->has_min_p_case, 0);
    assert_int_equal(m->sampling->has_repetition_case, 0);
    assert_int_equal(m->sampling->has_presence_case, 0);
    assert_int_equal(m->sampling->has_frequency_case, 0);
    assert_int_equal(m->sampling->has_seed_case, 0);
    assert_int_equal(m->sampling->top_k, 0); // -1 is off
    assert_int_equal(m->sampling->n_logit_bias, 0);
    assert_int_equal(m->speculative->has_n_max_case, 0);
    assert_int_equal(m->speculative->has_p_min_case, 0);
    assert_int_equal(m->speculative->has_rule_parameter_case, 0);
    assert_int_equal(m->speculative->n_min, 0);
    assert_false(m->speculative->dense_q);
    assert_int_equal(m->max_tokens, GENERATE_WIRE_COMPLETION_TOKENS); // of a completion
    assert_int_equal(m->min_tokens, 0);
    assert_int_equal(m->n, 1);
    assert_int_equal(m->top_logprobs, 0);
    assert_false(m->logprobs);
    assert_false(m->ignore_eos);
    assert_true(m->echo);
    assert_false(m->render_special);
    assert_int_equal(m->tenant.len + m->flow.len + m->prediction.len + m->n_stop, 0);
    message_done(m);
    openai_request_done(&q);
    q = parsed(OPENAI_COMPLETION, "{\"prompt\":\"x\",\"add_special_tokens\":true,"
                                  "\"speculative\":{\"fixed\":true,\"n_max\":3}}");
    m = packed(&q, 0);
    assert_true(m->add_bos);
    assert_true(m->speculative->fixed);
    message_done(m);
    openai_request_done(&q);
    q = parsed(OPENAI_COMPLETION, "{\"prompt\":\"x\",\"add_special_tokens\":false,\"top_k\":1}");
    m = packed(&q, 0);
    assert_false(m->add_bos);
    assert_int_equal(m->sampling->top_k, 1);
    message_done(m);
    openai_request_done(&q);
}

/* A field is read whether or not those before it are there. */
static void each_field_of_speculation_stands_alone(void **state)
{
    (void)state;
    struct openai_request q = parsed(OPENAI_COMPLETION, "{\"prompt\":\"x\",\"speculative\":"
                                                        "{\"rule_parameter\":0.25}}");
    Tandem__V1__GenerateRequest *m = packed(&q, 0);
    assert_true(m->speculative->rule_parameter == 0.25f);
    message_done(m);
    openai_request_done(&q);
    q = parsed(OPENAI_COMPLETION, "{\"prompt\":\"x\",\"speculative\":{\"dense_q\":true}}");
    m = packed(&q, 0);
    assert_true(m->speculative->dense_q);
    message_done(m);
    openai_request_done(&q);
    q = parsed(OPENAI_COMPLETION, "{\"prompt\":\"x\",\"speculative\":{\"n_min\":2}}");
    m = packed(&q, 0);
    assert_int_equal(m->speculative->n_min, 2);
    message_done(m);
    openai_request_done(&q);
    q = parsed(OPENAI_COMPLETION, "{\"prompt\":\"x\",\"speculative\":{\"p_min\":0.5}}");
    m = packed(&q, 0);
    assert_true(m->speculative->p_min == 0.5f);
    message_done(m);
    openai_request_done(&q);
}

/* Its template writes BOS, and its answer may be as long as the context. */
static void a_chat_has_no_default_limit_and_no_bos(void **state)
{
    (void)state;
    struct openai_request q =
        parsed(OPENAI_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}");
    assert_int_equal(openai_request_rendered(&q, "<s>a", 4), 0);
    Tandem__V1__GenerateRequest *m = packed(&q, 0);
    is_text(m->text, "<s>a");
    assert_false(m->add_bos);
    assert_true(m->parse_special);
    assert_int_equal(m->has_max_tokens_case, 0);
    message_done(m);
    openai_request_done(&q);
}

static void markers_of_the_answer_are_shown(void **state)
{
    (void)state;
    static const ProtobufCBinaryData model;
    static const char source[] = "<think></think>";
    const struct output_parser_rules rules = {
        .thinking = output_parser_thinking_of(source, sizeof(source) - 1)};
    const char *markers[OUTPUT_PARSER_MARKERS_MAX];
    unsigned n = output_parser_rules_markers(&rules, markers);
    struct openai_request q = parsed(OPENAI_COMPLETION, "{\"prompt\":\"x\"}");
    struct rpc_msg *shared = NULL;
    assert_int_equal(generate_wire_pack(&q, "r1", NULL, &model, &rules, &shared), 0);
    Tandem__V1__GenerateRequest *m = (Tandem__V1__GenerateRequest *)rpc_unpack(
        &tandem__v1__generate_request__descriptor, shared);
    assert_true(n >= 2);
    assert_int_equal(m->n_shown_special, n);
    for (unsigned i = 0; i < n; i++)
        is_text(m->shown_special[i], markers[i]);
    message_done(m);
    rpc_msg_free(shared);
    openai_request_done(&q);
}

static void a_failed_allocation_is_an_error(void **state)
{
    (void)state;
    static const ProtobufCBinaryData model;
    struct openai_request q = parsed(OPENAI_COMPLETION, "{\"prompt\":\"x\"}");
    struct rpc_msg *shared = NULL;
    for (unsigned n = 1; n <= 2; n++) {
        failing_at(n);
        assert_int_equal(generate_wire_pack(&q, "r1", NULL, &model, &no_rules, &shared), -ENOMEM);
        assert_true(failing_has_failed());
    }
    openai_request_done(&q);
}

/* ---- events ---- */

static struct openai_reply reply_of(unsigned n, bool include_tokens)
{
    const struct openai_reply_head head = {.kind = OPENAI_COMPLETION,
                                           .stream = true,
                                           .include_tokens = include_tokens,
                                           .logprobs = true,
                                           .id = "r1",
                                           .model = {"m", 1},
                                           .fingerprint = {"f", 1},
                                           .n = n,
                                           .n_each = n};
    struct openai_reply r;
    assert_int_equal(openai_reply_init(&r, &head), 0);
    return r;
}

static void prompts_and_seeds_are_taken_from_the_start(void **state)
{
    (void)state;
    struct openai_reply r = reply_of(3, false);
    AUTO(buf_done) struct buf to = {0};
    buf_init(&to, 1 << 20);
    Tandem__V1__Started s = TANDEM__V1__STARTED__INIT;
    s.prompt_tokens = 9;
    s.cached_tokens = 4;
    s.seed = 5;
    generate_wire_started(&r, 0, &s, &to);
    assert_int_equal(r.prompt_tokens, 9);
    assert_int_equal(r.cached_tokens, 4);
    assert_int_equal(r.seed, 5);
    assert_int_equal(r.n_seeds, 1);
    generate_wire_started(&r, 1, &s, &to);
    assert_int_equal(r.n_seeds, 1); // the same one
    s.seed = 6;
    generate_wire_started(&r, 2, &s, &to);
    assert_int_equal(r.n_seeds, 2);
    s.seed = 7;
    generate_wire_started(&r, 2, &s, &to);
    assert_int_equal(r.n_seeds, 2);
    openai_reply_done(&r);
}

static void every_member_of_a_token_is_taken(void **state)
{
    (void)state;
    static const char *const origins[] = {"target", "accepted", "correction", "bonus"};
    Tandem__V1__TopLogprob tops[OPENAI_MAX_TOP + 1], *list[OPENAI_MAX_TOP + 1];
    Tandem__V1__Token token = TANDEM__V1__TOKEN__INIT, *tokens[] = {&token};
    Tandem__V1__TokenRun run = TANDEM__V1__TOKEN_RUN__INIT;
    for (unsigned i = 0; i < ARRAY_LEN(tops); i++) {
        tandem__v1__top_logprob__init(&tops[i]);
        tops[i].text = rpc_text(i == OPENAI_MAX_TOP ? "over" : "alt");
        tops[i].logprob = -1.25f;
        list[i] = &tops[i];
    }
    run.n_tokens = 1;
    run.tokens = tokens;
    run.round = 31;
    run.drafted = 32;
    run.proposer = rpc_text("pp");
    token.id = 33;
    token.text = rpc_text("tx");
    token.bytes = rpc_text("by");
    token.logprob = -2.5f;
    token.held = 6;
    token.n_top = ARRAY_LEN(tops);
    token.top = list;
    for (int origin = 0; origin < 4; origin++) {
        struct openai_reply r = reply_of(1, true);
        AUTO(buf_done) struct buf to = {0};
        char want[128];
        buf_init(&to, 1 << 20);
        token.origin = (Tandem__V1__TokenOrigin)origin;
        generate_wire_run(&r, 0, &run, &to);
        snprintf(want, sizeof(want),
                 "{\"id\":33,\"origin\":\"%s\",\"round\":31,\"drafted\":32,\"proposer\":\"pp\"}",
                 origins[origin]);
        assert_non_null(strstr(to.data, want));
        assert_non_null(strstr(to.data, "\"text\":\"tx\""));
        assert_non_null(strstr(to.data, "\"tokens\":[\"by\"]"));
        assert_non_null(strstr(to.data, "\"token_logprobs\":[-2.5]"));
        assert_non_null(strstr(to.data, "\"text_offset\":[6]"));
        assert_non_null(strstr(to.data, "\"alt\":-1.25"));
        assert_null(strstr(to.data, "over")); // more than were requested
        openai_reply_done(&r);
    }
}

static void results_of_choices_are_added(void **state)
{
    (void)state;
    struct openai_reply r = reply_of(3, false);
    AUTO(buf_done) struct buf to = {0};
    buf_init(&to, 1 << 20);
    uint32_t kept[OPENAI_ACCEPTED_MAX + 1] = {3, 1};
    Tandem__V1__SpeculationUsage s = TANDEM__V1__SPECULATION_USAGE__INIT;
    Tandem__V1__Timings t = TANDEM__V1__TIMINGS__INIT;
    Tandem__V1__Finished f = TANDEM__V1__FINISHED__INIT;
    kept[OPENAI_ACCEPTED_MAX - 1] = 2;
    s.rounds = 10;
    s.rounds_drafted = 6;
    s.drafted = 20;
    s.accepted = 12;
    s.bonus = 4;
    s.k = 5;
    s.rule = rpc_text("own");
    s.proposer = rpc_text("ngram");
    s.kept_steps = kept;
    s.n_kept_steps = ARRAY_LEN(kept);
    t.prompt_us = 1500;
    t.decode_us = 2500;
    f.speculation = &s;
    f.timings = &t;
    f.text = rpc_text("held");
    f.stop = rpc_text("END");
    f.reason = TANDEM__V1__FINISH_REASON__FINISH_REASON_LENGTH;
    generate_wire_finished(&r, 0, &f, &to);
    assert_non_null(strstr(to.data, "\"text\":\"held\""));
    assert_non_null(strstr(to.data, "\"finish_reason\":\"length\",\"stop_reason\":\"END\""));
    t.prompt_us = 4000; // shorter in all
    t.decode_us = 0;
    f.reason = TANDEM__V1__FINISH_REASON__FINISH_REASON_STOP;
    generate_wire_finished(&r, 1, &f, &to);
    assert_non_null(strstr(to.data, "\"finish_reason\":\"stop\""));
    assert_true(r.timings.prompt_ms == 1.5 && r.timings.decode_ms == 2.5);
    assert_int_equal(r.speculation.rounds, 20);
    assert_int_equal(r.speculation.rounds_drafted, 12);
    assert_int_equal(r.speculation.drafted, 40);
    assert_int_equal(r.speculation.accepted, 24);
    assert_int_equal(r.speculation.bonus, 8);
    assert_int_equal(r.speculation.k, 5);
    assert_int_equal(r.speculation.accepted_histogram[0], 6);
    assert_int_equal(r.speculation.accepted_histogram[1], 2);
    assert_int_equal(r.speculation.accepted_histogram[OPENAI_ACCEPTED_MAX - 1], 4);
    assert_string_equal(r.rule, "own");
    assert_string_equal(r.proposer, "ngram");
    s.rule = rpc_text("own key=alice\n");
    s.proposer = rpc_text("A-z_0.9\xff");
    generate_wire_finished(&r, 2, &f, &to); // a name stays one word of the log
    assert_string_equal(r.rule, "own?key?alice?");
    assert_string_equal(r.proposer, "A-z_0.9?");
    uint32_t rounds = r.speculation.rounds;
    f.speculation = NULL; // an older verifier
    f.timings = NULL;
    generate_wire_finished(&r, 2, &f, &to);
    assert_int_equal(r.speculation.rounds, rounds);
    openai_reply_done(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_field_is_sent),
        cmocka_unit_test(fields_that_are_absent_are_not_sent),
        cmocka_unit_test(each_field_of_speculation_stands_alone),
        cmocka_unit_test(a_chat_has_no_default_limit_and_no_bos),
        cmocka_unit_test(markers_of_the_answer_are_shown),
        cmocka_unit_test(a_failed_allocation_is_an_error),
        cmocka_unit_test(prompts_and_seeds_are_taken_from_the_start),
        cmocka_unit_test(every_member_of_a_token_is_taken),
        cmocka_unit_test(results_of_choices_are_added),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
