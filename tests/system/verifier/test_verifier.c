/* test_verifier.c - the real verifier service over a unix socket: answers, bad input, cancellation,
 * back-pressure, internal errors. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "lib/lib.h"
#include "base/mem.h"
#include "file/checkpoint.h"
#include "lib/oracles/figures.h"
#include "lib/rigs/verifier_rig.h"
#include "verifier-svc/control/pass_time.h"

/* ---- Generate ---- */

static void greedy_tokens_come_in_order_with_their_text(void **state)
{
    (void)state;
    struct wish w;
    AUTO(mem_free) struct answer *a = answers_new(2);
    wish_init(&w, STORY, 60);
    generation_run(client, &w.msg, &a[0]);
    assert_int_equal(a[0].n, 60);
    assert_int_equal(a[0].reason, TANDEM__V1__FINISH_REASON__FINISH_REASON_LENGTH);

    Tandem__V1__DetokenizeRequest req = TANDEM__V1__DETOKENIZE_REQUEST__INIT;
    req.ids = a[0].ids;
    req.n_ids = a[0].n;
    ProtobufCMessage *reply;
    struct rpc_status st = rpc_unary(client, "/tandem.v1.Verifier/Detokenize", NULL, &req.base,
                                     &tandem__v1__detokenize_reply__descriptor, &reply);
    assert_int_equal(st.code, RPC_OK);
    ProtobufCBinaryData text = ((Tandem__V1__DetokenizeReply *)reply)->text;
    assert_int_equal(text.len, a[0].text_len);
    assert_memory_equal(text.data, a[0].text, text.len);
    protobuf_c_message_free_unpacked(reply, NULL);

    generation_run(client, &w.msg, &a[1]);
    same_answer(&a[0], &a[1]);
}

static void neighbours_change_nothing(void **state)
{
    (void)state;
    static const char *const prompts[] = {STORY,  "Once",      "The cat", "One day, a big red",
                                          "Lily", "<|begin|>", "A",       "<|begin|>Tom and the"};
    enum { N = ARRAY_LEN(prompts) };
    struct wish w[N];
    struct generation g[N];
    AUTO(mem_free) struct answer *alone = answers_new(N), *together = answers_new(N);
    for (unsigned i = 0; i < N; i++) {
        wish_init(&w[i], prompts[i], 20 + 10 * i);
        w[i].sampling.temperature = i % 2 ? 0.9F : 0;
        w[i].sampling.seed = i;
        w[i].msg.logprobs = true;
        w[i].msg.top_logprobs = 3;
        generation_run(client, &w[i].msg, &alone[i]);
    }
    for (unsigned i = 0; i < N; i++)
        generation_start(&g[i], client, &w[i].msg, &together[i]);
    for (unsigned i = 0; i < N; i++) {
        generation_end(&g[i]);
        assert_int_equal(g[i].status.code, RPC_OK);
        same_answer(&alone[i], &together[i]);
    }
}

static void the_first_of_several_choices_equals_a_single_choice(void **state)
{
    (void)state;
    struct wish w;
    AUTO(mem_free) struct answer *a = answers_new(2);
    wish_init(&w, STORY, 40);
    w.sampling.temperature = 0.8F;
    generation_run(client, &w.msg, &a[0]);
    w.msg.n = 4;
    generation_run(client, &w.msg, &a[1]);
    same_answer(&a[0], &a[1]);
}

static void a_greedy_token_has_the_best_logprob(void **state)
{
    (void)state;
    struct wish w;
    AUTO(mem_free) struct answer *a = answers_new(1);
    wish_init(&w, STORY, 20);
    w.msg.logprobs = true;
    w.msg.top_logprobs = 5;
    generation_run(client, &w.msg, a);
    for (unsigned i = 0; i < a->n; i++) {
        assert_true(a->logprobs[i] <= 0 && a->logprobs[i] > -20);
        assert_int_equal(a->top[i][0], a->ids[i]);
    }
}

/* The answer contains many beginnings of the stop strings, but never a whole one. */
static void text_held_back_for_stops_does_not_change_token_offsets(void **state)
{
    (void)state;
    struct wish w;
    ProtobufCBinaryData stops[] = {rpc_text("e\x7F"), rpc_text("a\x7F"), rpc_text(" th\x7F"),
                                   rpc_text(" \x7F")};
    AUTO(mem_free) struct answer *a = answers_new(2);
    wish_init(&w, STORY, 40);
    w.msg.logprobs = true;
    generation_run(client, &w.msg, &a[0]);
    w.msg.n_stop = ARRAY_LEN(stops);
    w.msg.stop = stops;
    generation_run(client, &w.msg, &a[1]);
    assert_string_equal(a[0].text, a[1].text);
    for (unsigned i = 0; i < a[0].n; i++)
        assert_int_equal(a[0].offsets[i], a[1].offsets[i]);
}

static void a_seed_is_reported_and_repeats_the_answer(void **state)
{
    (void)state;
    struct wish w;
    AUTO(mem_free) struct answer *a = answers_new(2);
    wish_init(&w, STORY, 40);
    w.sampling.temperature = 1;
    w.sampling.has_seed_case = TANDEM__V1__SAMPLING__HAS_SEED__NOT_SET;
    generation_run(client, &w.msg, &a[0]);
    w.sampling.has_seed_case = TANDEM__V1__SAMPLING__HAS_SEED_SEED;
    w.sampling.seed = a[0].seed;
    generation_run(client, &w.msg, &a[1]);
    same_answer(&a[0], &a[1]);
}

static void min_tokens_delays_the_end(void **state)
{
    (void)state;
    struct wish w;
    AUTO(mem_free) struct answer *a = answers_new(2);
    wish_init(&w, "<|begin|><|user|>Hello<|end|><|assistant|>", 200);
    generation_run(client, &w.msg, &a[0]);
    assert_int_equal(a[0].reason, TANDEM__V1__FINISH_REASON__FINISH_REASON_STOP);
    w.msg.min_tokens = a[0].n + 10;
    generation_run(client, &w.msg, &a[1]);
    assert_true(a[1].n >= a[0].n + 10);
}

static void a_stop_string_is_cut_and_ends_the_answer(void **state)
{
    (void)state;
    struct wish w;
    AUTO(mem_free) struct answer *a = answers_new(2);
    wish_init(&w, STORY, 60);
    generation_run(client, &w.msg, &a[0]);
    char word[8] = {0}; // a part of the answer that spans tokens
    memcpy(word, a[0].text + 30, 7);
    ProtobufCBinaryData stop = text_of(word);
    w.msg.stop = &stop;
    w.msg.n_stop = 1;
    generation_run(client, &w.msg, &a[1]);
    assert_int_equal(a[1].reason, TANDEM__V1__FINISH_REASON__FINISH_REASON_STOP);
    const char *first = strstr(a[0].text, word);
    assert_int_equal(a[1].text_len, first - a[0].text);
    assert_memory_equal(a[1].text, a[0].text, a[1].text_len);
}

/* ---- bad input ---- */

static void bad_requests_are_refused_with_the_reason(void **state)
{
    (void)state;
    struct wish w;
    AUTO(mem_free) char *long_text = malloc(8001);
    for (int i = 0; i < 2000; i++)
        memcpy(long_text + 4 * i, " the", 5);
    wish_init(&w, long_text, 10);
    must_refuse(client, &w.msg, RPC_INVALID_ARGUMENT,
                "the prompt has 2000 tokens; the context holds 1024");
    wish_init(&w, "abc\xff", 10);
    must_refuse(client, &w.msg, RPC_INVALID_ARGUMENT, "UTF-8");
    wish_init(&w, "", 10);
    must_refuse(client, &w.msg, RPC_INVALID_ARGUMENT, "the prompt is empty");
    wish_init(&w, "x", 0);
    must_refuse(client, &w.msg, RPC_INVALID_ARGUMENT, "max_tokens is 0");
    wish_init(&w, "x", 10);
    w.sampling.temperature = NAN;
    must_refuse(client, &w.msg, RPC_INVALID_ARGUMENT, "temperature is nan");
    w.sampling.temperature = -1e30F;
    must_refuse(client, &w.msg, RPC_INVALID_ARGUMENT, "temperature is -1e+30");
    wish_init(&w, "x", 10);
    w.msg.n = 4000000000U;
    must_refuse(client, &w.msg, RPC_INVALID_ARGUMENT, "n is 4000000000");
    wish_init(&w, "x", 10);
    w.msg.model = text_of("other");
    must_refuse(client, &w.msg, RPC_NOT_FOUND, "model 'other' is not served");
}

static void a_message_above_the_size_limit_is_refused(void **state)
{
    (void)state;
    struct wish w;
    wish_init(&w, "x", 1);
    AUTO(mem_free) char *text = calloc(1, 17 << 20);
    w.msg.text = (ProtobufCBinaryData){9 << 20, (uint8_t *)text};
    must_refuse(client, &w.msg, RPC_INVALID_ARGUMENT, "at most 8388608 are allowed");
    w.msg.text.len = 17 << 20;
    must_refuse(client, &w.msg, RPC_RESOURCE_EXHAUSTED, "");
}

static void detokenized_text_has_its_limit(void **state)
{
    (void)state;
    Tandem__V1__TokenizeRequest ask = TANDEM__V1__TOKENIZE_REQUEST__INIT;
    ProtobufCMessage *reply;
    ask.text = text_of("<|assistant|>");
    ask.parse_special = true;
    assert_int_equal(rpc_unary(client, "/tandem.v1.Verifier/Tokenize", NULL, &ask.base,
                               &tandem__v1__tokenize_reply__descriptor, &reply)
                         .code,
                     RPC_OK);
    const Tandem__V1__TokenizeReply *one = (const Tandem__V1__TokenizeReply *)reply;
    assert_int_equal(one->n_ids, 1);
    Tandem__V1__DetokenizeRequest req = TANDEM__V1__DETOKENIZE_REQUEST__INIT;
    req.n_ids = 1 << 20;
    AUTO(mem_free) uint32_t *ids = malloc(req.n_ids * sizeof(*ids));
    for (size_t i = 0; i < req.n_ids; i++)
        ids[i] = one->ids[0];
    protobuf_c_message_free_unpacked(reply, NULL);
    req.ids = ids;
    req.render_special = true;
    struct rpc_status st = rpc_unary(client, "/tandem.v1.Verifier/Detokenize", NULL, &req.base,
                                     &tandem__v1__detokenize_reply__descriptor, &reply);
    assert_int_equal(st.code, RPC_INVALID_ARGUMENT);
    assert_string_equal(st.text, "the text would have 13631488 bytes, at most 8388608 are allowed");
}

static void a_malformed_message_is_refused(void **state)
{
    (void)state;
    struct verify v;
    verify_start(&v, client, "/tandem.v1.Verifier/Generate", NULL);
    rpc_stream_send(v.stream, rpc_msg_of("\x1a\xff\xff\xff\xff", 5));
    verify_must_end(&v, RPC_INVALID_ARGUMENT, "GenerateRequest");
}

/* ---- cancel, deadline, back-pressure ---- */

static void a_cancelled_request_ends_within_a_round(void **state)
{
    (void)state;
    struct wish w;
    struct generation g;
    AUTO(mem_free) struct answer *a = answers_new(1);
    wish_init(&w, STORY, 1000);
    w.msg.ignore_eos = true;
    w.msg.id = text_of("to-be-cancelled");
    generation_start(&g, client, &w.msg, a);
    generation_wait_tokens(&g, 5);
    rpc_stream_cancel(g.stream);
    generation_end(&g);
    assert_int_equal(g.status.code, RPC_CANCELLED);
    assert_true(a->n < 1000);
    wait_requests(client, 0, 0);
    assert_true(service_said(&verifier, "request cancelled id=to-be-cancelled"));
}

static void figures_report_the_time_of_passes(void **state)
{
    (void)state;
    Tandem__V1__StatsReply *s = stats_of(client);
    assert_int_equal(s->n_pass_times, PASS_TIME_TIMED);
    assert_int_equal(s->pass_times[0]->rows, 1);
    assert_int_equal(s->pass_times[PASS_TIME_TIMED - 1]->rows, 64);
    for (unsigned i = 1; i < PASS_TIME_TIMED; i++)
        assert_true(s->pass_times[i]->seconds >= s->pass_times[i - 1]->seconds);
    assert_true(s->pass_times[0]->seconds > 0);
    assert_true(metric_of(client, "tandem_engine_pass_estimate_seconds{rows=\"64\"}") > 0);
    tandem__v1__stats_reply__free_unpacked(s, NULL);
}

static void a_deadline_ends_the_request(void **state)
{
    (void)state;
    struct wish w;
    struct verify v;
    wish_init(&w, STORY, 1000);
    w.msg.ignore_eos = true;
    w.msg.n = 32; // longer than the deadline on any machine
    w.sampling.temperature = 1;
    struct rpc_options opt = {.timeout_us = 50000};
    verify_start(&v, client, "/tandem.v1.Verifier/Generate", &opt);
    rpc_stream_send(v.stream, rpc_pack(&w.msg.base));
    rpc_stream_close(v.stream);
    verify_must_end(&v, RPC_DEADLINE_EXCEEDED, "");
    wait_requests(client, 0, 0);
}

static void the_verifier_waits_for_a_client_that_does_not_read(void **state)
{
    (void)state;
    struct wish w;
    struct generation g;
    AUTO(mem_free) struct answer *a = answers_new(2);
    wish_init(&w, STORY, 900);
    w.msg.ignore_eos = true;
    w.msg.logprobs = true;
    w.msg.top_logprobs = 20; // half a kilobyte per token
    w.msg.n = 16;
    generation_run(client, &w.msg, &a[0]);
    generation_start(&g, client, &w.msg, &a[1]);
    rpc_stream_pause(g.stream);
    wait_metric(client, "tandem_num_requests_paused", 16);
    assert_true(service_said(&verifier, "answer paused"));
    rpc_stream_unpause(g.stream);
    generation_end(&g);
    assert_int_equal(g.status.code, RPC_OK);
    same_answer(&a[0], &a[1]);
}

static void a_client_that_never_reads_is_ended_after_the_timeout(void **state)
{
    (void)state;
    struct service s = {0};
    struct rpc_client *c, *slow;
    struct wish w;
    struct generation g;
    AUTO(mem_free) struct answer *a = answers_new(1);
    service_start(&s, "verifier-svc",
                  (const char *[]){"--model", MODEL, "--reader-timeout", "1", NULL});
    assert_int_equal(rpc_client_new(s.target, NULL, &c), 0);
    assert_int_equal(rpc_client_new(s.target, NULL, &slow), 0);
    wish_init(&w, STORY, 900);
    w.msg.ignore_eos = true;
    w.msg.logprobs = true;
    w.msg.top_logprobs = 20;
    w.msg.n = 16;
    generation_start(&g, slow, &w.msg, a);
    rpc_stream_pause(g.stream);
    while (metric_of(c, "tandem_request_failed_total") == 0)
        nap();
    rpc_stream_unpause(g.stream);
    generation_end(&g);
    assert_int_equal(g.status.code, RPC_RESOURCE_EXHAUSTED);
    assert_string_equal(g.status.text, "more than 256 KiB of the answer were not read for 1 s");
    wait_requests(c, 0, 0);
    rpc_client_free(slow);
    rpc_client_free(c);
    service_stop(&s);
}

/* ---- internal errors ---- */

#define BROKEN_TOKEN 3000

/* A copy of the model in which the embedding of one token is NaN. */
static void write_broken_model(char path[200])
{
    struct checkpoint *g;
    size_t len;
    AUTO(mem_free) char *file = lib_read(MODEL, &len);
    assert_int_equal(checkpoint_open_memory(file, len, &g), 0);
    const struct checkpoint_tensor *t = checkpoint_find_name(g, "token_embd.weight");
    assert_true(t && t->type == CHECKPOINT_Q8_0);
    size_t row_bytes = t->bytes / t->shape[1]; // blocks of an f16 scale and 32 weights
    memcpy(file + t->offset + BROKEN_TOKEN * row_bytes, "\x00\x7e", 2);
    checkpoint_close(g);
    write_model("broken", file, len, path);
}

static void an_internal_error_ends_only_its_sequence(void **state)
{
    (void)state;
    struct service s = {0};
    struct rpc_client *c;
    char path[200];
    write_broken_model(path);
    service_start(&s, "verifier-svc", (const char *[]){"--model", path, NULL});
    assert_int_equal(rpc_client_new(s.target, NULL, &c), 0);
    struct wish good, bad;
    struct generation g;
    AUTO(mem_free) struct answer *a = answers_new(1);
    wish_init(&good, STORY, 800);
    good.msg.ignore_eos = true;
    generation_start(&g, c, &good.msg, a);
    generation_wait_tokens(&g, 3);

    uint32_t ids[] = {5, BROKEN_TOKEN, 6};
    Tandem__V1__TokenIds tokens = TANDEM__V1__TOKEN_IDS__INIT;
    tokens.ids = ids;
    tokens.n_ids = 3;
    wish_init(&bad, "", 10);
    bad.msg.prompt_case = TANDEM__V1__GENERATE_REQUEST__PROMPT_TOKENS;
    bad.msg.tokens = &tokens;
    bad.msg.n = 3;
    must_refuse(c, &bad.msg, RPC_INTERNAL, "the model computed NaN logits");
    generation_end(&g);
    assert_int_equal(g.status.code, RPC_OK);
    assert_int_equal(a->n, 800);
    wait_requests(c, 0, 0);
    assert_true(metric_of(c, "tandem_kv_cache_usage_ratio") == 0);
    rpc_client_free(c);
    service_stop(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_tokens_come_in_order_with_their_text),
        cmocka_unit_test(neighbours_change_nothing),
        cmocka_unit_test(the_first_of_several_choices_equals_a_single_choice),
        cmocka_unit_test(a_greedy_token_has_the_best_logprob),
        cmocka_unit_test(text_held_back_for_stops_does_not_change_token_offsets),
        cmocka_unit_test(a_seed_is_reported_and_repeats_the_answer),
        cmocka_unit_test(min_tokens_delays_the_end),
        cmocka_unit_test(a_stop_string_is_cut_and_ends_the_answer),
        cmocka_unit_test(bad_requests_are_refused_with_the_reason),
        cmocka_unit_test(a_message_above_the_size_limit_is_refused),
        cmocka_unit_test(detokenized_text_has_its_limit),
        cmocka_unit_test(a_malformed_message_is_refused),
        cmocka_unit_test(a_cancelled_request_ends_within_a_round),
        cmocka_unit_test(figures_report_the_time_of_passes),
        cmocka_unit_test(a_deadline_ends_the_request),
        cmocka_unit_test(the_verifier_waits_for_a_client_that_does_not_read),
        cmocka_unit_test(a_client_that_never_reads_is_ended_after_the_timeout),
        cmocka_unit_test(an_internal_error_ends_only_its_sequence),
    };
    return cmocka_run_group_tests(tests, start_verifier, stop_verifier);
}
