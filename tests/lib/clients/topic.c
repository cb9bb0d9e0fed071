/* topic.c - sampled requests with logprobs to a verifier. */
#include "lib/clients/topic.h"
#include <string.h>
#include "lib/lib.h"

void topic_init(struct topic *w, unsigned topic, uint32_t n)
{
    tandem__v1__generate_request__init(&w->msg);
    tandem__v1__sampling__init(&w->sampling);
    tandem__v1__token_ids__init(&w->prompt);
    w->msg.sampling = &w->sampling;
    w->sampling.has_temperature_case = TANDEM__V1__SAMPLING__HAS_TEMPERATURE_TEMPERATURE;
    w->sampling.temperature = 0.8F;
    w->sampling.has_seed_case = TANDEM__V1__SAMPLING__HAS_SEED_SEED;
    w->sampling.seed = topic;
    for (uint32_t i = 0; i < n; i++)
        w->tokens[i] = 300 + (topic * 7 + i * (i + 1) / 2) % 1000;
    w->msg.prompt_case = TANDEM__V1__GENERATE_REQUEST__PROMPT_TOKENS;
    w->msg.tokens = &w->prompt;
    w->prompt.ids = w->tokens;
    w->prompt.n_ids = n;
    w->msg.has_max_tokens_case = TANDEM__V1__GENERATE_REQUEST__HAS_MAX_TOKENS_MAX_TOKENS;
    w->msg.max_tokens = TOPIC_ANSWER;
    w->msg.ignore_eos = w->msg.logprobs = true;
    w->msg.top_logprobs = ANSWER_MAX_TOP;
}

struct request *topic_request(const struct topic *w, const struct tok *tok, uint32_t context)
{
    struct request_limits limits = {tok, "m", context, 16, "fp", true};
    struct request *r;
    assert_int_equal(request_read(&w->msg, &limits, &r), 0);
    assert_int_equal(request_open(r, tok), 0);
    return r;
}

void topic_same(const struct answer *a, const struct answer *b)
{
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->ids, b->ids, a->n * sizeof(a->ids[0]));
    assert_memory_equal(a->logprobs, b->logprobs, a->n * sizeof(a->logprobs[0]));
    assert_memory_equal(a->top, b->top, a->n * sizeof(a->top[0]));
    assert_int_equal(a->text_len, b->text_len);
    assert_memory_equal(a->text, b->text, a->text_len);
}
