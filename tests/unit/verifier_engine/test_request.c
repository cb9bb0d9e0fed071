/* test_request.c - what a GenerateRequest may say, and the sentence for what it may not. */
#include <errno.h>
#include <math.h>
#include <string.h>
#include "lib/lib.h"
#include "base/err.h"
#include "tandem/v1/verifier.pb-c.h"
#include "verifier-svc/drafts/drafts.h"
#include "verifier-svc/engine/request.h"

typedef Tandem__V1__GenerateRequest message;

static struct checkpoint *file;
static struct tok *tok;
static struct request_limits limits;
static Tandem__V1__Sampling sampling;

static int open_model(void **state)
{
    (void)state;
    assert_int_equal(checkpoint_open(SOURCE_DIR "/models/tales-1m-q8_0.gguf", &file), 0);
    assert_int_equal(tok_new(file, &tok), 0);
    limits = (struct request_limits){tok, "tales-1m-q8_0", 64, 8, "fp"};
    return 0;
}

static int close_model(void **state)
{
    (void)state;
    tok_free(tok);
    checkpoint_close(file);
    return 0;
}

static ProtobufCBinaryData text_of(const char *s)
{
    return (ProtobufCBinaryData){strlen(s), (uint8_t *)s};
}

static message a_request(void)
{
    message m = TANDEM__V1__GENERATE_REQUEST__INIT;
    m.prompt_case = TANDEM__V1__GENERATE_REQUEST__PROMPT_TEXT;
    m.text = text_of("Once upon a time");
    tandem__v1__sampling__init(&sampling);
    m.sampling = &sampling;
    return m;
}

static struct request *must_read(const message *m)
{
    struct request *r = NULL;
    if (request_read(m, &limits, &r) < 0)
        fail_msg("refused: %s", fail_text());
    return r;
}

/* The error must be this one and the sentence must have this in it. */
static void must_refuse(const message *m, int err, const char *sentence)
{
    struct request *r = NULL;
    assert_int_equal(request_read(m, &limits, &r), err);
    assert_null(r);
    if (!strstr(fail_text(), sentence))
        fail_msg("'%s' says nothing of '%s'", fail_text(), sentence);
}

static void a_plain_request_gets_the_defaults(void **state)
{
    (void)state;
    message m = a_request();
    AUTO(request_drop) struct request *r = must_read(&m);
    assert_true(r->params.temperature == 1 && r->params.top_p == 1 && r->params.repetition == 1);
    assert_int_equal(r->n, 1);
    assert_int_equal(r->max_tokens, 64 - r->n_prompt);
    assert_int_equal(r->k_max, UINT32_MAX);
    assert_true(r->seed >= 0 && r->seed < INT64_C(1) << 53);
    message again = a_request();
    AUTO(request_drop) struct request *other = must_read(&again);
    assert_true(r->seed != other->seed); // by chance once in 2^53
}

static void zero_differs_from_absent(void **state)
{
    (void)state;
    message m = a_request();
    sampling.has_temperature_case = TANDEM__V1__SAMPLING__HAS_TEMPERATURE_TEMPERATURE;
    sampling.has_seed_case = TANDEM__V1__SAMPLING__HAS_SEED_SEED;
    AUTO(request_drop) struct request *r = must_read(&m);
    assert_true(r->params.temperature == 0);
    assert_true(r->seed == 0);
}

static void a_tiny_temperature_is_greedy(void **state)
{
    (void)state;
    message m = a_request();
    sampling.has_temperature_case = TANDEM__V1__SAMPLING__HAS_TEMPERATURE_TEMPERATURE;
    sampling.temperature = 1e-30F;
    AUTO(request_drop) struct request *r = must_read(&m);
    assert_true(r->params.temperature == 0);
}

static void absurd_numbers_are_refused_with_their_range(void **state)
{
    (void)state;
    message m = a_request();
    sampling.has_temperature_case = TANDEM__V1__SAMPLING__HAS_TEMPERATURE_TEMPERATURE;
    const float bad[] = {-0.1F, 1e9F, NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        sampling.temperature = bad[i];
        must_refuse(&m, -EINVAL, "temperature is");
    }
    sampling.temperature = 1;
    sampling.has_top_p_case = TANDEM__V1__SAMPLING__HAS_TOP_P_TOP_P;
    sampling.top_p = 1.01F;
    must_refuse(&m, -EINVAL, "top_p is 1.01, allowed is 0 to 1");
    sampling.top_p = NAN;
    must_refuse(&m, -EINVAL, "top_p is nan");
    sampling.top_p = 1;
    sampling.has_min_p_case = TANDEM__V1__SAMPLING__HAS_MIN_P_MIN_P;
    sampling.min_p = -1;
    must_refuse(&m, -EINVAL, "min_p");
    sampling.min_p = 0;
    sampling.has_repetition_case = TANDEM__V1__SAMPLING__HAS_REPETITION_REPETITION_PENALTY;
    sampling.repetition_penalty = 0;
    must_refuse(&m, -EINVAL, "repetition_penalty");
    sampling.repetition_penalty = 1;
    sampling.has_presence_case = TANDEM__V1__SAMPLING__HAS_PRESENCE_PRESENCE_PENALTY;
    sampling.presence_penalty = 3;
    must_refuse(&m, -EINVAL, "presence_penalty");
    sampling.presence_penalty = 0;
    sampling.has_frequency_case = TANDEM__V1__SAMPLING__HAS_FREQUENCY_FREQUENCY_PENALTY;
    sampling.frequency_penalty = -NAN;
    must_refuse(&m, -EINVAL, "frequency_penalty");
}

static void a_prompt_must_be_there_and_fit(void **state)
{
    (void)state;
    message m = a_request();
    m.text = text_of("");
    must_refuse(&m, -EINVAL, "the prompt is empty");
    m.add_bos = true;
    AUTO(request_drop) struct request *begins = must_read(&m);
    assert_int_equal(begins->n_prompt, 1);
    m.prompt_case = TANDEM__V1__GENERATE_REQUEST__PROMPT__NOT_SET;
    must_refuse(&m, -EINVAL, "no prompt");

    uint32_t ids[64] = {1};
    Tandem__V1__TokenIds tokens = TANDEM__V1__TOKEN_IDS__INIT;
    tokens.ids = ids;
    m.prompt_case = TANDEM__V1__GENERATE_REQUEST__PROMPT_TOKENS;
    m.tokens = &tokens;
    must_refuse(&m, -EINVAL, "the prompt is empty");
    tokens.n_ids = 64;
    must_refuse(&m, -EINVAL, "the prompt has 64 tokens; the context holds 64");
    tokens.n_ids = 63;
    AUTO(request_drop) struct request *r = must_read(&m);
    assert_int_equal(r->max_tokens, 1);
    ids[5] = 4096;
    must_refuse(&m, -EINVAL, "prompt token 5 is 4096, the vocabulary ends at 4095");
}

static void text_that_is_no_utf8_is_refused(void **state)
{
    (void)state;
    message m = a_request();
    m.text = text_of("abc\xff");
    must_refuse(&m, -EILSEQ, "3");
    m = a_request();
    ProtobufCBinaryData stop = text_of("\xc3");
    m.stop = &stop;
    m.n_stop = 1;
    must_refuse(&m, -EILSEQ, "stop string 0 is not valid UTF-8");
}

static void a_megabyte_of_prompt_is_refused_with_both_numbers(void **state)
{
    (void)state;
    message m = a_request();
    AUTO(mem_free) char *text = malloc(1 << 20);
    memset(text, 'a', 1 << 20);
    m.text = (ProtobufCBinaryData){4 * 64 * tok_longest(tok), (uint8_t *)text};
    must_refuse(&m, -EINVAL, "tokens; the context holds 64");
    m.text.len = 1 << 20; // without asking the tokenizer
    must_refuse(&m, -EINVAL, "the prompt has 1048576 bytes; the context holds 64 tokens of");
}

static void a_prediction_is_cut_to_the_limit_for_proposers(void **state)
{
    (void)state;
    message m = a_request();
    size_t most = (size_t)DRAFTS_HINT_MAX * tok_longest(tok);
    assert_true(most < REQUEST_MAX_PREDICTION);
    AUTO(mem_free) char *text = malloc(REQUEST_MAX_PREDICTION);
    for (size_t i = 0; i < REQUEST_MAX_PREDICTION; i++) // characters of three bytes
        text[i] = (most + 2 - i) % 3 == 0 ? '\xE2' : (most + 2 - i) % 3 == 2 ? '\x82' : '\xAC';
    size_t first = (most + 2) % 3; // where a character begins; one lies across the cut
    m.prediction = (ProtobufCBinaryData){REQUEST_MAX_PREDICTION - 4, (uint8_t *)text + first};
    AUTO(request_drop) struct request *r = must_read(&m);
    assert_true(r->n_hint > 0 && r->n_hint <= most);
}

static void lengths_are_checked_and_cut(void **state)
{
    (void)state;
    message m = a_request();
    m.has_max_tokens_case = TANDEM__V1__GENERATE_REQUEST__HAS_MAX_TOKENS_MAX_TOKENS;
    m.max_tokens = 0;
    must_refuse(&m, -EINVAL, "max_tokens is 0, at least 1");
    m.max_tokens = 5;
    m.min_tokens = 6;
    must_refuse(&m, -EINVAL, "min_tokens is 6, more than max_tokens, which is 5");
    m.min_tokens = 0;
    m.max_tokens = UINT32_MAX;
    AUTO(request_drop) struct request *r = must_read(&m);
    assert_int_equal(r->max_tokens + r->n_prompt, 64);
}

/* The end of the ban would lie past the largest length: it lasts for ever then. */
static void min_tokens_may_exceed_every_length(void **state)
{
    (void)state;
    message m = a_request();
    AUTO(request_drop) struct request *without = must_read(&m);
    assert_int_equal(without->ban.n, 0);
    m.min_tokens = 3;
    AUTO(request_drop) struct request *few = must_read(&m);
    assert_true(few->ban.n > 0);
    assert_int_equal(few->ban.until, few->n_prompt + 3);
    m.min_tokens = UINT32_MAX;
    AUTO(request_drop) struct request *most = must_read(&m);
    assert_int_equal(most->ban.until, UINT32_MAX);
    m.has_max_tokens_case = TANDEM__V1__GENERATE_REQUEST__HAS_MAX_TOKENS_MAX_TOKENS;
    m.max_tokens = UINT32_MAX; // cut to the context, which changes no limit of min_tokens
    m.min_tokens = UINT32_MAX - 1;
    AUTO(request_drop) struct request *cut = must_read(&m);
    assert_int_equal(cut->min_tokens, UINT32_MAX - 1);
}

static void counts_have_their_limits(void **state)
{
    (void)state;
    message m = a_request();
    m.n = 9;
    must_refuse(&m, -EINVAL, "n is 9, at most 8");
    m.n = 8;
    m.top_logprobs = 21;
    must_refuse(&m, -EINVAL, "top_logprobs is 21, at most 20");
    m = a_request();
    ProtobufCBinaryData stops[17];
    for (int i = 0; i < 17; i++)
        stops[i] = text_of("x");
    m.stop = stops;
    m.n_stop = 17;
    must_refuse(&m, -EINVAL, "17 stop strings, at most 16");
    m.n_stop = 2;
    stops[1] = text_of("");
    must_refuse(&m, -EINVAL, "stop string 1 has 0 bytes");
    char id[130];
    memset(id, 'i', sizeof(id));
    m = a_request();
    m.id = (ProtobufCBinaryData){129, (uint8_t *)id};
    must_refuse(&m, -EINVAL, "id has 129 bytes");
}

static void tokens_must_be_in_the_vocabulary(void **state)
{
    (void)state;
    message m = a_request();
    uint32_t id = 5000;
    m.stop_token_ids = &id;
    m.n_stop_token_ids = 1;
    must_refuse(&m, -EINVAL, "stop_token_ids names 5000");
    m = a_request();
    Tandem__V1__LogitBias bias = TANDEM__V1__LOGIT_BIAS__INIT, *list = &bias;
    sampling.logit_bias = &list;
    sampling.n_logit_bias = 1;
    bias.token = 4096;
    must_refuse(&m, -EINVAL, "logit_bias names token 4096");
    bias.token = 1;
    bias.bias = NAN;
    must_refuse(&m, -EINVAL, "logit_bias is nan");
}

static void another_model_is_not_found(void **state)
{
    (void)state;
    message m = a_request();
    m.model = text_of("gpt-9");
    must_refuse(&m, -ENOENT, "model 'gpt-9' is not served here; this server has 'tales-1m-q8_0'");
    m.model = text_of("\xff\xfe");
    must_refuse(&m, -ENOENT, "model '' is not served");
    m.model = text_of("default");
    request_drop(must_read(&m));
    m.model = text_of("tales-1m-q8_0");
    request_drop(must_read(&m));
}

static void speculation_can_be_switched_off_by_name_or_number(void **state)
{
    (void)state;
    message m = a_request();
    Tandem__V1__Speculative spec = TANDEM__V1__SPECULATIVE__INIT;
    m.speculative = &spec;
    spec.proposer = text_of("none");
    AUTO(request_drop) struct request *none = must_read(&m);
    assert_int_equal(none->k_max, 0);
    spec.proposer = text_of("");
    spec.has_n_max_case = TANDEM__V1__SPECULATIVE__HAS_N_MAX_N_MAX;
    AUTO(request_drop) struct request *zero = must_read(&m);
    assert_int_equal(zero->k_max, 0);
    spec.n_max = 3;
    AUTO(request_drop) struct request *three = must_read(&m);
    assert_int_equal(three->k_max, 3);
}

static void a_rule_is_found_by_its_name(void **state)
{
    (void)state;
    message m = a_request();
    Tandem__V1__Speculative spec = TANDEM__V1__SPECULATIVE__INIT;
    AUTO(request_drop) struct request *plain = must_read(&m);
    assert_int_equal(plain->rule, ACCEPT_OWN_DRAW);
    m.speculative = &spec;
    for (int i = 0; i < ACCEPT_N_RULES; i++) {
        spec.rule = text_of(accept_rules[i].name);
        AUTO(request_drop) struct request *r = must_read(&m);
        assert_int_equal(r->rule, i);
        assert_true(r->rule_parameter == accept_rules[i].parameter);
    }
    const char *const unknown[] = {"Block", "blocks", "bloc", "\xff"};
    for (size_t i = 0; i < ARRAY_LEN(unknown); i++) {
        spec.rule = text_of(unknown[i]);
        must_refuse(&m, -EINVAL,
                    "speculative.rule names no acceptance rule; there are own-draw, rejection, "
                    "block, recursive, threshold, typical, lenience");
    }
}

static void only_lossy_rules_have_a_parameter(void **state)
{
    (void)state;
    message m = a_request();
    Tandem__V1__Speculative spec = TANDEM__V1__SPECULATIVE__INIT;
    m.speculative = &spec;
    spec.has_rule_parameter_case = TANDEM__V1__SPECULATIVE__HAS_RULE_PARAMETER_RULE_PARAMETER;
    spec.rule_parameter = 0.5f;
    spec.rule = text_of("lenience");
    AUTO(request_drop) struct request *r = must_read(&m);
    assert_true(r->rule_parameter == 0.5);
    const float bad[] = {0, -1, 1.01f, NAN, INFINITY};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        spec.rule_parameter = bad[i];
        must_refuse(&m, -EINVAL, "speculative.rule_parameter is");
    }
    spec.rule_parameter = 0.5f;
    spec.rule = text_of("block");
    must_refuse(&m, -EINVAL, "the rule block has no parameter");
    spec.rule = text_of("");
    must_refuse(&m, -EINVAL, "the rule own-draw has no parameter");
}

static void a_draft_is_cut_as_the_request_says(void **state)
{
    (void)state;
    message m = a_request();
    Tandem__V1__Speculative spec = TANDEM__V1__SPECULATIVE__INIT;
    m.speculative = &spec;
    AUTO(request_drop) struct request *plain = must_read(&m);
    assert_true(plain->p_min == 0 && plain->n_min == 0);
    spec.has_p_min_case = TANDEM__V1__SPECULATIVE__HAS_P_MIN_P_MIN;
    spec.p_min = 0.75f;
    spec.n_min = 2;
    AUTO(request_drop) struct request *r = must_read(&m);
    assert_true(r->p_min == 0.75f && r->n_min == 2);
    const float bad[] = {-1, 1.01f, NAN, INFINITY};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        spec.p_min = bad[i];
        must_refuse(&m, -EINVAL, "speculative.p_min is");
    }
}

static void names_of_shown_special_tokens_are_looked_up(void **state)
{
    (void)state;
    message m = a_request();
    struct span eos = tok_bytes(tok, tok_eos(tok), true);
    ProtobufCBinaryData names[REQUEST_MAX_SHOWN + 1] = {
        text_of("<|no such|>"), {eos.len, (uint8_t *)eos.data}, text_of("")};
    m.shown_special = names;
    m.n_shown_special = 3;
    AUTO(request_drop) struct request *r = must_read(&m);
    assert_int_equal(r->n_shown, 1);
    assert_int_equal(r->shown[0], tok_eos(tok));
    m.n_shown_special = REQUEST_MAX_SHOWN + 1;
    must_refuse(&m, -EINVAL, "shown_special names 17 tokens");
}

static void an_id_is_made_fit_for_logs(void **state)
{
    (void)state;
    message m = a_request();
    m.id = text_of("req-1\n\"x\"\x7f");
    AUTO(request_drop) struct request *r = must_read(&m);
    assert_string_equal(r->id, "req-1??x??");
}

static void echo_keeps_the_prompts_own_text(void **state)
{
    (void)state;
    message m = a_request();
    m.echo = true;
    AUTO(request_drop) struct request *r = must_read(&m);
    assert_int_equal(r->prompt_text_len, 16);
    assert_memory_equal(r->prompt_text, "Once upon a time", 16);
}

static void a_continuation_is_checked_against_its_request(void **state)
{
    (void)state;
    message m = a_request();
    uint32_t ids[61] = {0};
    Tandem__V1__ChoiceSoFar choices[2] = {TANDEM__V1__CHOICE_SO_FAR__INIT,
                                          TANDEM__V1__CHOICE_SO_FAR__INIT};
    Tandem__V1__Continuation c = TANDEM__V1__CONTINUATION__INIT;
    c.choices = (Tandem__V1__ChoiceSoFar *[]){&choices[0], &choices[1]};
    c.n_choices = 2;
    c.fingerprint = text_of("fp");
    c.seed = -7;
    m.continuation = &c;
    must_refuse(&m, -EINVAL, "the continuation has 2 choices, the request has 1");
    m.n = 2;
    choices[0] = (Tandem__V1__ChoiceSoFar)TANDEM__V1__CHOICE_SO_FAR__INIT;
    choices[0].tokens = ids;
    choices[0].n_tokens = 3;
    choices[0].round = 2;
    choices[1].finished = true;
    AUTO(request_drop) struct request *r = must_read(&m);
    assert_int_equal(r->seed, -7);
    assert_int_equal(r->continued[0].n, 3);
    assert_int_equal(r->continued[0].round, 2);
    assert_true(r->continued[1].finished);
    assert_int_equal(r->max_tokens, 64 - r->n_prompt);
    ids[2] = tok_n_vocab(tok);
    must_refuse(&m, -EINVAL, "token 2 of choice 0 is 4096, the vocabulary ends at 4095");
    ids[2] = 0;
    choices[0].n_tokens = r->max_tokens + 1;
    must_refuse(&m, -EINVAL, "tokens already, at most");
    choices[0].n_tokens = 3;
    choices[0].finished = true;
    must_refuse(&m, -EINVAL, "all choices have finished");
    c.fingerprint = text_of("f");
    must_refuse(&m, -ESTALE, "another fingerprint; this one has fp");
}

/* The limit of the first verifier holds, whose context may differ. */
static void a_continuation_keeps_the_limit_of_its_first_verifier(void **state)
{
    (void)state;
    message m = a_request();
    Tandem__V1__ChoiceSoFar choice = TANDEM__V1__CHOICE_SO_FAR__INIT;
    Tandem__V1__Continuation c = TANDEM__V1__CONTINUATION__INIT;
    c.choices = (Tandem__V1__ChoiceSoFar *[]){&choice};
    c.n_choices = 1;
    c.fingerprint = text_of("fp");
    c.max_tokens = 9;
    m.continuation = &c;
    m.min_tokens = 20; // more than the first context left
    AUTO(request_drop) struct request *r = must_read(&m);
    assert_int_equal(r->max_tokens, 9);
    c.max_tokens = 64 - r->n_prompt;
    AUTO(request_drop) struct request *equal = must_read(&m);
    assert_int_equal(equal->max_tokens, c.max_tokens);
    c.max_tokens++;
    must_refuse(&m, -EINVAL, "the answer may get");
    c.max_tokens = 9;
    m.has_max_tokens_case = TANDEM__V1__GENERATE_REQUEST__HAS_MAX_TOKENS_MAX_TOKENS;
    m.max_tokens = 8;
    m.min_tokens = 0;
    must_refuse(&m, -EINVAL, "may get 9 tokens, at most 8 are allowed here");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plain_request_gets_the_defaults),
        cmocka_unit_test(zero_differs_from_absent),
        cmocka_unit_test(a_tiny_temperature_is_greedy),
        cmocka_unit_test(absurd_numbers_are_refused_with_their_range),
        cmocka_unit_test(a_prompt_must_be_there_and_fit),
        cmocka_unit_test(text_that_is_no_utf8_is_refused),
        cmocka_unit_test(a_megabyte_of_prompt_is_refused_with_both_numbers),
        cmocka_unit_test(a_prediction_is_cut_to_the_limit_for_proposers),
        cmocka_unit_test(lengths_are_checked_and_cut),
        cmocka_unit_test(min_tokens_may_exceed_every_length),
        cmocka_unit_test(counts_have_their_limits),
        cmocka_unit_test(tokens_must_be_in_the_vocabulary),
        cmocka_unit_test(another_model_is_not_found),
        cmocka_unit_test(speculation_can_be_switched_off_by_name_or_number),
        cmocka_unit_test(a_rule_is_found_by_its_name),
        cmocka_unit_test(only_lossy_rules_have_a_parameter),
        cmocka_unit_test(a_draft_is_cut_as_the_request_says),
        cmocka_unit_test(names_of_shown_special_tokens_are_looked_up),
        cmocka_unit_test(an_id_is_made_fit_for_logs),
        cmocka_unit_test(a_continuation_is_checked_against_its_request),
        cmocka_unit_test(a_continuation_keeps_the_limit_of_its_first_verifier),
        cmocka_unit_test(echo_keeps_the_prompts_own_text),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
