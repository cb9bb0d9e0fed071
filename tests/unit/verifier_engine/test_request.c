/* test_request.c - what a GenerateRequest may say, and the sentence for what it may not. */
#include <errno.h>
#include <math.h>
#include <string.h>
#include "lib/lib.h"
#include "base/err.h"
#include "tandem/v1/verifier.pb-c.h"
#include "base/utf8.h"
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
    limits = (struct request_limits){tok, "tales-1m-q8_0", 64, 8, "fp", true};
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

/* Each number of a request: where it is, and the ends of its range. */
struct range {
    const char *name;
    float *value;
    int32_t *has; // which case is set; 0: absent
    double least, most;
};

static void numbers_are_allowed_up_to_both_ends_of_their_range(void **state)
{
    (void)state;
    message m = a_request();
    Tandem__V1__Speculative spec = TANDEM__V1__SPECULATIVE__INIT;
    m.speculative = &spec;
    const struct range ranges[] = {
        {"temperature", &sampling.temperature, (int32_t *)&sampling.has_temperature_case, 0, 100},
        {"top_p", &sampling.top_p, (int32_t *)&sampling.has_top_p_case, 0, 1},
        {"min_p", &sampling.min_p, (int32_t *)&sampling.has_min_p_case, 0, 1},
        {"repetition_penalty", &sampling.repetition_penalty,
         (int32_t *)&sampling.has_repetition_case, 0.01, 100},
        {"presence_penalty", &sampling.presence_penalty, (int32_t *)&sampling.has_presence_case, -2,
         2},
        {"frequency_penalty", &sampling.frequency_penalty, (int32_t *)&sampling.has_frequency_case,
         -2, 2},
        {"speculative.p_min", &spec.p_min, (int32_t *)&spec.has_p_min_case, 0, 1},
    };
    /* The numbers of these fields in the .proto files. */
    static const int32_t cases[] = {
        TANDEM__V1__SAMPLING__HAS_TEMPERATURE_TEMPERATURE,
        TANDEM__V1__SAMPLING__HAS_TOP_P_TOP_P,
        TANDEM__V1__SAMPLING__HAS_MIN_P_MIN_P,
        TANDEM__V1__SAMPLING__HAS_REPETITION_REPETITION_PENALTY,
        TANDEM__V1__SAMPLING__HAS_PRESENCE_PRESENCE_PENALTY,
        TANDEM__V1__SAMPLING__HAS_FREQUENCY_FREQUENCY_PENALTY,
        TANDEM__V1__SPECULATIVE__HAS_P_MIN_P_MIN,
    };
    for (size_t i = 0; i < ARRAY_LEN(ranges); i++) {
        const struct range *x = &ranges[i];
        char sentence[100];
        *x->has = cases[i];
        for (int end = 0; end < 2; end++) {
            float last = (float)(end ? x->most : x->least), beyond = end ? INFINITY : -INFINITY;
            *x->value = nextafterf(last, beyond);
            snprintf(sentence, sizeof(sentence), "%s is", x->name);
            must_refuse(&m, -EINVAL, sentence);
            snprintf(sentence, sizeof(sentence), "allowed is %g to %g", x->least, x->most);
            must_refuse(&m, -EINVAL, sentence);
            *x->value = last;
            request_drop(must_read(&m));
        }
    }
    AUTO(request_drop) struct request *r = must_read(&m);
    assert_true(r->params.temperature == 100 && r->params.top_p == 1 && r->params.min_p == 1);
    assert_true(r->params.repetition == 100 && r->params.presence == 2 && r->params.frequency == 2);
    assert_true(r->p_min == 1);
}

static void a_temperature_below_a_hundred_thousandth_is_greedy(void **state)
{
    (void)state;
    message m = a_request();
    sampling.has_temperature_case = TANDEM__V1__SAMPLING__HAS_TEMPERATURE_TEMPERATURE;
    sampling.temperature = 1e-5F;
    AUTO(request_drop) struct request *least = must_read(&m);
    assert_true(least->params.temperature == 1e-5F);
    sampling.temperature = 9.9e-6F;
    AUTO(request_drop) struct request *below = must_read(&m);
    assert_true(below->params.temperature == 0);
}

static void every_list_may_be_full_and_keeps_its_order(void **state)
{
    (void)state;
    message m = a_request();
    static uint32_t ids[REQUEST_MAX_STOP_IDS + 1];
    static Tandem__V1__LogitBias biases[REQUEST_MAX_BIAS + 1], *bias_list[REQUEST_MAX_BIAS + 1];
    ProtobufCBinaryData stops[DETOK_MAX_STOPS];
    char text[DETOK_MAX_STOP_BYTES + 1];
    memset(text, 's', sizeof(text));
    for (uint32_t i = 0; i <= REQUEST_MAX_STOP_IDS; i++)
        ids[i] = 4095 - i;
    for (uint32_t i = 0; i <= REQUEST_MAX_BIAS; i++) {
        tandem__v1__logit_bias__init(&biases[i]);
        biases[i].token = 4095 - i;
        biases[i].bias = i % 2 ? 100 : -100;
        bias_list[i] = &biases[i];
    }
    for (size_t i = 0; i < ARRAY_LEN(stops); i++)
        stops[i] = (ProtobufCBinaryData){DETOK_MAX_STOP_BYTES - i, (uint8_t *)text};
    m.stop = stops;
    m.n_stop = ARRAY_LEN(stops);
    m.stop_token_ids = ids;
    m.n_stop_token_ids = REQUEST_MAX_STOP_IDS;
    sampling.logit_bias = bias_list;
    sampling.n_logit_bias = REQUEST_MAX_BIAS;
    AUTO(request_drop) struct request *r = must_read(&m);
    assert_int_equal(r->n_stops, ARRAY_LEN(stops));
    for (size_t i = 0; i < ARRAY_LEN(stops); i++) {
        assert_int_equal(r->stops[i].len, DETOK_MAX_STOP_BYTES - i);
        assert_memory_equal(r->stops[i].data, text, r->stops[i].len);
    }
    assert_int_equal(r->n_stop_ids, REQUEST_MAX_STOP_IDS);
    assert_memory_equal(r->stop_ids, ids, REQUEST_MAX_STOP_IDS * sizeof(*ids));
    assert_int_equal(r->params.n_bias, REQUEST_MAX_BIAS);
    for (uint32_t i = 0; i < REQUEST_MAX_BIAS; i++) {
        assert_int_equal(r->params.bias[i].token, 4095 - i);
        assert_true(r->params.bias[i].bias == (i % 2 ? 100 : -100));
    }
    m.n_stop_token_ids++;
    must_refuse(&m, -EINVAL, "65 stop_token_ids, at most 64 are allowed");
    m.n_stop_token_ids = 0;
    sampling.n_logit_bias++;
    must_refuse(&m, -EINVAL, "logit_bias names 1025 tokens, at most 1024 are allowed");
    sampling.n_logit_bias = 0;
    stops[3].len = DETOK_MAX_STOP_BYTES + 1;
    must_refuse(&m, -EINVAL, "stop string 3 has");
}

static void a_bias_is_at_most_100_in_magnitude(void **state)
{
    (void)state;
    message m = a_request();
    Tandem__V1__LogitBias bias = TANDEM__V1__LOGIT_BIAS__INIT, *list = &bias;
    sampling.logit_bias = &list;
    sampling.n_logit_bias = 1;
    for (int sign = -1; sign <= 1; sign += 2) {
        bias.bias = (float)sign * nextafterf(100, INFINITY);
        must_refuse(&m, -EINVAL, "logit_bias is");
        bias.bias = (float)sign * 100;
        request_drop(must_read(&m));
    }
    bias.token = 4095; // the last one of the vocabulary
    request_drop(must_read(&m));
}

static void the_last_token_of_the_vocabulary_may_be_named(void **state)
{
    (void)state;
    message m = a_request();
    uint32_t id = 4095;
    Tandem__V1__TokenIds tokens = TANDEM__V1__TOKEN_IDS__INIT;
    m.stop_token_ids = &id;
    m.n_stop_token_ids = 1;
    m.prompt_case = TANDEM__V1__GENERATE_REQUEST__PROMPT_TOKENS;
    m.tokens = &tokens;
    tokens.ids = &id;
    tokens.n_ids = 1;
    AUTO(request_drop) struct request *r = must_read(&m);
    assert_int_equal(r->prompt[0], 4095);
    assert_int_equal(r->stop_ids[0], 4095);
    id = 4096;
    tokens.n_ids = 0;
    m.prompt_case = TANDEM__V1__GENERATE_REQUEST__PROMPT_TEXT;
    m.text = text_of("x");
    must_refuse(&m, -EINVAL, "stop_token_ids names 4096, the vocabulary ends at 4095");
}

/* A field of bytes, its limit, the error beyond it, and the sentence. */
struct text_limit {
    ProtobufCBinaryData *field;
    size_t most;
    int err;
    const char *sentence;
};

static void every_text_has_a_longest_length(void **state)
{
    (void)state;
    message m = a_request();
    Tandem__V1__Speculative spec = TANDEM__V1__SPECULATIVE__INIT;
    m.speculative = &spec;
    AUTO(mem_free) uint8_t *text = malloc(REQUEST_MAX_PREDICTION + 1);
    memset(text, 'a', REQUEST_MAX_PREDICTION + 1);
    const struct text_limit limits_of[] = {
        {&m.id, REQUEST_MAX_ID, -EINVAL, "id has 129 bytes, at most 128 are allowed"},
        {&m.tenant, REQUEST_MAX_NAME, -EINVAL, "the tenant has 65 bytes, at most 64 are allowed"},
        {&spec.proposer, REQUEST_MAX_NAME, -EINVAL,
         "the proposer's name has 65 bytes, at most 64 are allowed"},
        {&m.flow, FLOWS_MAX_NAME, -EINVAL, "the flow has"},
        {&m.prediction, REQUEST_MAX_PREDICTION, -EMSGSIZE,
         "the prediction has 1048577 bytes, at most 1048576 are allowed"},
    };
    for (size_t i = 0; i < ARRAY_LEN(limits_of); i++) {
        const struct text_limit *x = &limits_of[i];
        *x->field = (ProtobufCBinaryData){x->most + 1, text};
        must_refuse(&m, x->err, x->sentence);
        x->field->len = x->most;
        request_drop(must_read(&m));
    }
    AUTO(request_drop) struct request *r = must_read(&m);
    assert_int_equal(r->tenant_len, REQUEST_MAX_NAME);
    assert_int_equal(r->flow_len, FLOWS_MAX_NAME);
    assert_memory_equal(r->tenant, text, REQUEST_MAX_NAME);
    assert_memory_equal(r->flow, text, FLOWS_MAX_NAME);
    assert_int_equal(strlen(r->proposer), REQUEST_MAX_NAME);
    assert_memory_equal(r->proposer, text, REQUEST_MAX_NAME);
}

/* Sets the tenant and reads the request as that of a client. */
static struct request *read_as_client(const char *tenant)
{
    struct request_limits as_client = limits;
    struct request *r = NULL;
    message m = a_request();
    as_client.may_name = false;
    m.tenant = m.flow = text_of(tenant);
    assert_int_equal(request_read(&m, &as_client, &r), 0);
    return r;
}

static void a_client_has_its_own_tenants_and_one_flow(void **state)
{
    (void)state;
    AUTO(request_drop) struct request *a = read_as_client("a");
    AUTO(request_drop) struct request *same = read_as_client("a");
    AUTO(request_drop) struct request *b = read_as_client("b");
    AUTO(request_drop) struct request *none = read_as_client("");
    const struct request *others[] = {b, none};
    assert_int_equal(a->tenant_len, same->tenant_len);
    assert_memory_equal(a->tenant, same->tenant, a->tenant_len);
    for (unsigned i = 0; i < ARRAY_LEN(others); i++) {
        assert_int_equal(others[i]->tenant_len, a->tenant_len);
        assert_memory_not_equal(others[i]->tenant, a->tenant, a->tenant_len);
        assert_int_equal(utf8_valid((const char *)others[i]->tenant, a->tenant_len), 0);
        assert_int_equal(others[i]->flow_len, a->flow_len);
        assert_memory_equal(others[i]->flow, a->flow, a->flow_len);
    }
    assert_memory_equal(a->flow, REQUEST_CLIENT_FLOW, a->flow_len);
}

static void the_number_of_choices_is_limited_by_both_limits(void **state)
{
    (void)state;
    message m = a_request();
    struct request_limits narrow = limits;
    m.n = 8;
    AUTO(request_drop) struct request *r = must_read(&m);
    assert_int_equal(r->n, 8);
    limits.max_sequences = 1000;
    m.n = REQUEST_MAX_N + 1;
    must_refuse(&m, -EINVAL, "n is 129, at most 128 choices are allowed");
    m.n = REQUEST_MAX_N;
    request_drop(must_read(&m));
    limits = narrow;
}

static void logprobs_are_those_of_the_request(void **state)
{
    (void)state;
    message m = a_request();
    AUTO(request_drop) struct request *none = must_read(&m);
    assert_true(!none->logprobs && none->n_top == 0);
    m.logprobs = true;
    AUTO(request_drop) struct request *own = must_read(&m);
    assert_true(own->logprobs && own->n_top == 0);
    m.logprobs = false;
    m.top_logprobs = DIST_MAX_TOP;
    AUTO(request_drop) struct request *top = must_read(&m);
    assert_true(top->logprobs && top->n_top == DIST_MAX_TOP);
}

/* min_tokens bans the stop tokens and EOS, unless EOS is ignored. */
static void min_tokens_bans_what_ends_an_answer(void **state)
{
    (void)state;
    message m = a_request();
    uint32_t ids[] = {7, 9};
    const uint32_t *eos;
    uint32_t n_eos = tok_eos_ids(tok, &eos);
    assert_true(n_eos > 0);
    m.stop_token_ids = ids;
    m.n_stop_token_ids = 2;
    m.min_tokens = 1;
    AUTO(request_drop) struct request *r = must_read(&m);
    assert_int_equal(r->ban.n, n_eos + 2);
    assert_memory_equal(r->ban.tokens, eos, n_eos * sizeof(*eos));
    assert_memory_equal(r->ban.tokens + n_eos, ids, sizeof(ids));
    m.ignore_eos = true;
    AUTO(request_drop) struct request *without = must_read(&m);
    assert_true(without->ignore_eos);
    assert_int_equal(without->ban.n, 2);
    assert_memory_equal(without->ban.tokens, ids, sizeof(ids));
}

static void max_tokens_may_be_one_and_equal_to_min_tokens(void **state)
{
    (void)state;
    message m = a_request();
    m.has_max_tokens_case = TANDEM__V1__GENERATE_REQUEST__HAS_MAX_TOKENS_MAX_TOKENS;
    m.max_tokens = 1;
    m.min_tokens = 1;
    AUTO(request_drop) struct request *r = must_read(&m);
    assert_int_equal(r->max_tokens, 1);
    assert_int_equal(r->min_tokens, 1);
}

/* The largest length with an end of the ban: every position is below UINT32_MAX. */
static void the_ban_of_min_tokens_has_an_end_below_the_largest_number(void **state)
{
    (void)state;
    message m = a_request();
    AUTO(request_drop) struct request *r = must_read(&m);
    m.min_tokens = UINT32_MAX - r->n_prompt - 1;
    AUTO(request_drop) struct request *last = must_read(&m);
    assert_int_equal(last->ban.until, UINT32_MAX - 1);
    m.min_tokens++;
    AUTO(request_drop) struct request *beyond = must_read(&m);
    assert_int_equal(beyond->ban.until, UINT32_MAX);
}

static void absent_fields_change_nothing(void **state)
{
    (void)state;
    message m = a_request();
    sampling.temperature = sampling.top_p = sampling.repetition_penalty = 0.5f;
    sampling.min_p = sampling.presence_penalty = sampling.frequency_penalty = 0.5f;
    sampling.top_k = 3;
    m.max_tokens = 2;
    Tandem__V1__Speculative spec = TANDEM__V1__SPECULATIVE__INIT;
    spec.n_max = 2;
    spec.p_min = 0.5f;
    spec.rule_parameter = 0.5f;
    m.speculative = &spec;
    AUTO(request_drop) struct request *r = must_read(&m);
    assert_true(r->params.temperature == 1 && r->params.top_p == 1 && r->params.repetition == 1);
    assert_true(r->params.min_p == 0 && r->params.presence == 0 && r->params.frequency == 0);
    assert_true(r->params.top_k == 0 && r->params.n_bias == 0);
    assert_int_equal(r->max_tokens, 64 - r->n_prompt);
    assert_true(r->k_max == UINT32_MAX && r->p_min == 0 && r->rule_parameter == 0 && !r->fixed);
    assert_true(!r->dense_q && !r->ignore_eos && r->n_hint == 0 && r->n_shown == 0);
    assert_null(r->prompt_text);
    sampling.has_top_k_case = TANDEM__V1__SAMPLING__HAS_TOP_K_TOP_K;
    spec.fixed = spec.dense_q = true;
    AUTO(request_drop) struct request *set = must_read(&m);
    assert_true(set->params.top_k == 3 && set->fixed && set->dense_q);
}

/* Of a model's name 100 bytes are shown, if they are whole characters. */
static void a_long_model_name_is_cut_in_the_sentence(void **state)
{
    (void)state;
    message m = a_request();
    char name[150], sentence[150];
    memset(name, 'm', sizeof(name));
    for (size_t len = 99; len <= 101; len++) {
        m.model = (ProtobufCBinaryData){len, (uint8_t *)name};
        snprintf(sentence, sizeof(sentence), "model '%.*s' is not", len < 100 ? 99 : 100, name);
        must_refuse(&m, -ENOENT, sentence);
    }
}

static void an_echo_of_tokens_is_their_text(void **state)
{
    (void)state;
    message m = a_request();
    AUTO(request_drop) struct request *text = must_read(&m);
    assert_null(text->prompt_text);
    Tandem__V1__TokenIds tokens = TANDEM__V1__TOKEN_IDS__INIT;
    tokens.ids = text->prompt;
    tokens.n_ids = text->n_prompt;
    m.prompt_case = TANDEM__V1__GENERATE_REQUEST__PROMPT_TOKENS;
    m.tokens = &tokens;
    m.echo = true;
    AUTO(request_drop) struct request *r = must_read(&m);
    AUTO(mem_free) char *decoded = NULL;
    size_t len = 0;
    assert_int_equal(tok_decode(tok, text->prompt, text->n_prompt, false, &decoded, &len), 0);
    assert_int_equal(r->prompt_text_len, len);
    assert_memory_equal(r->prompt_text, decoded, len);
}

/* A prediction of one character more than proposers get is cut before that character. */
static void a_prediction_is_cut_only_beyond_its_limit(void **state)
{
    (void)state;
    message m = a_request();
    size_t most = (size_t)DRAFTS_HINT_MAX * tok_longest(tok);
    AUTO(mem_free) char *text = malloc(most + 2);
    memset(text, 'a', most);
    memcpy(text + most - 1, "\xC3\xA9", 2);
    m.prediction = (ProtobufCBinaryData){most - 1, (uint8_t *)text};
    AUTO(request_drop) struct request *whole = must_read(&m);
    m.prediction.len = most + 1; // the cut is inside the last character
    AUTO(request_drop) struct request *cut = must_read(&m);
    assert_int_equal(cut->n_hint, whole->n_hint);
    assert_memory_equal(cut->hint, whole->hint, whole->n_hint * sizeof(*whole->hint));
    text[most - 1] = 'a';
    m.prediction.len = most;
    AUTO(request_drop) struct request *full = must_read(&m);
    text[most] = 'b'; // beyond the limit
    m.prediction.len = most + 1;
    AUTO(request_drop) struct request *beyond = must_read(&m);
    assert_int_equal(full->n_hint, beyond->n_hint);
    assert_memory_equal(full->hint, beyond->hint, full->n_hint * sizeof(*full->hint));
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
        cmocka_unit_test(numbers_are_allowed_up_to_both_ends_of_their_range),
        cmocka_unit_test(a_temperature_below_a_hundred_thousandth_is_greedy),
        cmocka_unit_test(every_list_may_be_full_and_keeps_its_order),
        cmocka_unit_test(a_bias_is_at_most_100_in_magnitude),
        cmocka_unit_test(the_last_token_of_the_vocabulary_may_be_named),
        cmocka_unit_test(every_text_has_a_longest_length),
        cmocka_unit_test(a_client_has_its_own_tenants_and_one_flow),
        cmocka_unit_test(the_number_of_choices_is_limited_by_both_limits),
        cmocka_unit_test(logprobs_are_those_of_the_request),
        cmocka_unit_test(min_tokens_bans_what_ends_an_answer),
        cmocka_unit_test(max_tokens_may_be_one_and_equal_to_min_tokens),
        cmocka_unit_test(the_ban_of_min_tokens_has_an_end_below_the_largest_number),
        cmocka_unit_test(absent_fields_change_nothing),
        cmocka_unit_test(a_long_model_name_is_cut_in_the_sentence),
        cmocka_unit_test(an_echo_of_tokens_is_their_text),
        cmocka_unit_test(a_prediction_is_cut_only_beyond_its_limit),
        cmocka_unit_test(a_continuation_is_checked_against_its_request),
        cmocka_unit_test(a_continuation_keeps_the_limit_of_its_first_verifier),
        cmocka_unit_test(echo_keeps_the_prompts_own_text),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
