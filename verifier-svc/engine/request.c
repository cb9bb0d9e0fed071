/* request.c - checks a GenerateRequest, field by field. */
#include <errno.h>
#include <stdio.h>
#include <math.h>
#include <openssl/sha.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/err.h"
#include "base/minmax.h"
#include "base/rng.h"
#include "tandem/v1/verifier.pb-c.h"
#include "base/utf8.h"
#include "verifier-svc/engine/continuation.h"
#include "verifier-svc/engine/request.h"
#include "verifier-svc/engine/seq.h"

#define PROMPT_SLACK 4

typedef Tandem__V1__GenerateRequest message;
typedef Tandem__V1__Sampling sampling;

void request_id(const message *m, char ret_id[REQUEST_MAX_ID + 1])
{
    trace_request(m->id.data, m->id.len, ret_id);
}

static int read_id(const message *m, struct request *r)
{
    request_id(m, r->id);
    trace_id(m->traceparent.data, m->traceparent.len, r->trace);
    if (m->id.len > REQUEST_MAX_ID)
        return fail(-EINVAL, "id has %zu bytes, at most %d are allowed", m->id.len, REQUEST_MAX_ID);
    return 0;
}

static bool bytes_are(const ProtobufCBinaryData *b, const char *text)
{
    return b->len == strlen(text) && (b->len == 0 || memcmp(b->data, text, b->len) == 0);
}

static int read_model(const message *m, const struct request_limits *limits)
{
    if (!m->model.len || bytes_are(&m->model, "default") || bytes_are(&m->model, limits->model))
        return 0;
    int shown = m->model.len < 100 ? (int)m->model.len : 100;
    if (utf8_valid((const char *)m->model.data, (size_t)shown) != (size_t)shown)
        shown = 0;
    return fail(-ENOENT, "model '%.*s' is not served here; this server has '%s'", shown,
                (const char *)m->model.data, limits->model);
}

static int read_prompt_tokens(const Tandem__V1__TokenIds *ids, const struct request_limits *limits,
                              struct request *r)
{
    uint32_t n_vocab = tok_n_vocab(limits->tok);
    if (ids->n_ids > REQUEST_MAX_TEXT / sizeof(uint32_t))
        return fail(-EMSGSIZE, "the prompt has %zu tokens, too many for any context", ids->n_ids);
    for (size_t i = 0; i < ids->n_ids; i++) {
        if (ids->ids[i] >= n_vocab)
            return fail(-EINVAL, "prompt token %zu is %u, the vocabulary ends at %u", i,
                        ids->ids[i], n_vocab - 1);
    }
    r->prompt = malloc(ids->n_ids * sizeof(uint32_t) + 1);
    if (!r->prompt)
        return fail(-ENOMEM, "no memory for a prompt of %zu tokens", ids->n_ids);
    if (ids->n_ids)
        memcpy(r->prompt, ids->ids, ids->n_ids * sizeof(uint32_t));
    r->n_prompt = (uint32_t)ids->n_ids;
    return 0;
}

/* Refuses prompts that cannot fit, before they are tokenized. Some vocabularies drop bytes or map
 * several unknown characters to one token, so the limit is PROMPT_SLACK times the bytes that
 * fit. */
static int check_prompt_bytes(size_t len, const struct request_limits *limits)
{
    uint32_t longest = tok_longest(limits->tok);
    if (len > REQUEST_MAX_TEXT)
        return fail(-EMSGSIZE, "the prompt has %zu bytes, at most %u are allowed", len,
                    REQUEST_MAX_TEXT);
    if (len / PROMPT_SLACK > (uint64_t)limits->context * max_u32(longest, 4))
        return fail(-EINVAL,
                    "the prompt has %zu bytes; the context holds %u tokens of at most %u bytes",
                    len, limits->context, longest);
    return 0;
}

static int read_prompt_text(const message *m, const struct request_limits *limits,
                            struct request *r)
{
    size_t n = 0;
    int err = check_prompt_bytes(m->text.len, limits);
    if (!err)
        err = tok_encode(limits->tok, m->text.len ? (const char *)m->text.data : "", m->text.len,
                         m->parse_special, m->add_bos, &r->prompt, &n);
    if (err < 0)
        return err;
    r->n_prompt = (uint32_t)n; // at most a token per byte, and BOS
    return 0;
}

static int decode_echo(const message *m, const struct tok *tok, struct request *r)
{
    size_t len = 0;
    for (uint32_t i = 0; i < r->n_prompt; i++)
        len += tok_bytes(tok, r->prompt[i], m->render_special).len;
    if (len > REQUEST_MAX_TEXT)
        return fail(-EMSGSIZE, "the prompt to echo has %zu bytes, at most %u are allowed", len,
                    REQUEST_MAX_TEXT);
    return tok_decode(tok, r->prompt, r->n_prompt, m->render_special, &r->prompt_text,
                      &r->prompt_text_len);
}

static int read_echo(const message *m, const struct request_limits *limits, struct request *r)
{
    if (!m->echo)
        return 0;
    if (m->prompt_case == TANDEM__V1__GENERATE_REQUEST__PROMPT_TOKENS)
        return decode_echo(m, limits->tok, r);
    r->prompt_text = malloc(m->text.len + 1);
    if (!r->prompt_text)
        return fail(-ENOMEM, "no memory for a prompt of %zu bytes", m->text.len);
    if (m->text.len)
        memcpy(r->prompt_text, m->text.data, m->text.len);
    r->prompt_text_len = m->text.len;
    return 0;
}

static int read_prompt(const message *m, const struct request_limits *limits, struct request *r)
{
    int err;
    if (m->prompt_case == TANDEM__V1__GENERATE_REQUEST__PROMPT_TOKENS)
        err = read_prompt_tokens(m->tokens, limits, r);
    else if (m->prompt_case == TANDEM__V1__GENERATE_REQUEST__PROMPT_TEXT)
        err = read_prompt_text(m, limits, r);
    else
        err = fail(-EINVAL, "the request has no prompt: neither text nor tokens");
    if (err < 0)
        return err;
    if (!r->n_prompt)
        return fail(-EINVAL, "the prompt is empty");
    if (r->n_prompt >= limits->context)
        return fail(-EINVAL,
                    "the prompt has %u tokens; the context holds %u, and one is for the answer",
                    r->n_prompt, limits->context);
    r->render_special = m->render_special;
    return read_echo(m, limits, r);
}

/* Checks that value is a number within [min, max]. */
static int read_float(const char *name, float value, float min, float max, float *ret)
{
    if (!(value >= min && value <= max)) // NaN too
        return fail(-EINVAL, "%s is %g, allowed is %g to %g", name, (double)value, (double)min,
                    (double)max);
    *ret = value;
    return 0;
}

static int read_bias(const sampling *s, uint32_t n_vocab, struct request *r)
{
    if (s->n_logit_bias > REQUEST_MAX_BIAS)
        return fail(-EINVAL, "logit_bias names %zu tokens, at most %d are allowed", s->n_logit_bias,
                    REQUEST_MAX_BIAS);
    r->bias = calloc(s->n_logit_bias + 1, sizeof(*r->bias));
    if (!r->bias)
        return fail(-ENOMEM, "no memory for a request");
    for (size_t i = 0; i < s->n_logit_bias; i++) {
        const Tandem__V1__LogitBias *b = s->logit_bias[i];
        if (b->token >= n_vocab)
            return fail(-EINVAL, "logit_bias names token %u, the vocabulary ends at %u", b->token,
                        n_vocab - 1);
        int err = read_float("logit_bias", b->bias, -100, 100, &r->bias[i].bias);
        if (err < 0)
            return err;
        r->bias[i].token = b->token;
    }
    r->params.bias = r->bias;
    r->params.n_bias = (uint32_t)s->n_logit_bias;
    return 0;
}

/* The seed of a request without one; small enough for a JSON number. */
static int64_t random_seed(void)
{
    return (int64_t)(rng_secret() & ((UINT64_C(1) << 53) - 1));
}

#define SEED_CASE TANDEM__V1__SAMPLING__HAS_SEED_SEED

static int read_sampling(const sampling *s, uint32_t n_vocab, struct request *r)
{
    struct dist_params *p = &r->params;
    int err = 0;
    if (s->has_temperature_case)
        err = read_float("temperature", s->temperature, 0, 100, &p->temperature);
    if (!err && s->has_top_p_case)
        err = read_float("top_p", s->top_p, 0, 1, &p->top_p);
    if (!err && s->has_min_p_case)
        err = read_float("min_p", s->min_p, 0, 1, &p->min_p);
    if (!err && s->has_repetition_case)
        err = read_float("repetition_penalty", s->repetition_penalty, 0.01F, 100, &p->repetition);
    if (!err && s->has_presence_case)
        err = read_float("presence_penalty", s->presence_penalty, -2, 2, &p->presence);
    if (!err && s->has_frequency_case)
        err = read_float("frequency_penalty", s->frequency_penalty, -2, 2, &p->frequency);
    if (err < 0)
        return err;
    if (p->temperature < 1e-5F)
        p->temperature = 0; // so close to greedy that logit/T would overflow
    if (s->has_top_k_case)
        p->top_k = s->top_k;
    if (s->has_seed_case == SEED_CASE)
        r->seed = s->seed;
    return read_bias(s, n_vocab, r);
}

static int read_stops(const message *m, struct request *r)
{
    size_t bytes = 0;
    if (m->n_stop > DETOK_MAX_STOPS)
        return fail(-EINVAL, "%zu stop strings, at most %d are allowed", m->n_stop,
                    DETOK_MAX_STOPS);
    for (size_t i = 0; i < m->n_stop; i++) {
        if (!m->stop[i].len || m->stop[i].len > DETOK_MAX_STOP_BYTES)
            return fail(-EINVAL, "stop string %zu has %zu bytes, allowed is 1 to %d", i,
                        m->stop[i].len, DETOK_MAX_STOP_BYTES);
        if (utf8_valid((const char *)m->stop[i].data, m->stop[i].len) != m->stop[i].len)
            return fail(-EILSEQ, "stop string %zu is not valid UTF-8", i);
        bytes += m->stop[i].len;
    }
    r->stop_text = malloc(bytes + 1);
    if (!r->stop_text)
        return fail(-ENOMEM, "no memory for a request");
    char *at = r->stop_text;
    for (size_t i = 0; i < m->n_stop; i++) {
        memcpy(at, m->stop[i].data, m->stop[i].len);
        r->stops[r->n_stops++] = (struct detok_stop){at, m->stop[i].len};
        at += m->stop[i].len;
    }
    return 0;
}

static int read_stop_ids(const message *m, uint32_t n_vocab, struct request *r)
{
    if (m->n_stop_token_ids > REQUEST_MAX_STOP_IDS)
        return fail(-EINVAL, "%zu stop_token_ids, at most %d are allowed", m->n_stop_token_ids,
                    REQUEST_MAX_STOP_IDS);
    for (size_t i = 0; i < m->n_stop_token_ids; i++) {
        if (m->stop_token_ids[i] >= n_vocab)
            return fail(-EINVAL, "stop_token_ids names %u, the vocabulary ends at %u",
                        m->stop_token_ids[i], n_vocab - 1);
        r->stop_ids[r->n_stop_ids++] = m->stop_token_ids[i];
    }
    return 0;
}

/* Tokens that are banned before min_tokens: the stop tokens, and EOS unless it is ignored. */
static int read_banned(const struct tok *tok, struct request *r)
{
    const uint32_t *eos;
    uint32_t n_eos = r->ignore_eos ? 0 : tok_eos_ids(tok, &eos);
    r->banned = malloc((n_eos + r->n_stop_ids + 1) * sizeof(uint32_t));
    if (!r->banned)
        return fail(-ENOMEM, "no memory for a request");
    if (n_eos)
        memcpy(r->banned, eos, n_eos * sizeof(uint32_t));
    memcpy(r->banned + n_eos, r->stop_ids, r->n_stop_ids * sizeof(uint32_t));
    r->ban = (struct constraint_ban){r->banned, n_eos + r->n_stop_ids, UINT32_MAX};
    if (r->min_tokens < UINT32_MAX - r->n_prompt)
        r->ban.until = r->n_prompt + r->min_tokens;
    return 0;
}

static int read_lengths(const message *m, const struct request_limits *limits, struct request *r)
{
    r->max_tokens = limits->context - r->n_prompt;
    if (m->has_max_tokens_case) {
        if (!m->max_tokens)
            return fail(-EINVAL, "max_tokens is 0, at least 1 is needed");
        r->max_tokens = min_u32(m->max_tokens, r->max_tokens);
        if (m->min_tokens > m->max_tokens)
            return fail(-EINVAL, "min_tokens is %u, more than max_tokens, which is %u",
                        m->min_tokens, m->max_tokens);
    }
    r->min_tokens = m->min_tokens;
    return 0;
}

/* Names without a special token are skipped: another model may write them as plain text. */
static int read_shown(const message *m, const struct tok *tok, struct request *r)
{
    if (m->n_shown_special > REQUEST_MAX_SHOWN)
        return fail(-EINVAL, "shown_special names %zu tokens, at most %d are allowed",
                    m->n_shown_special, REQUEST_MAX_SHOWN);
    for (size_t i = 0; i < m->n_shown_special; i++) {
        const ProtobufCBinaryData *name = &m->shown_special[i];
        uint32_t id = tok_named(tok, (const char *)name->data, name->len);
        if (id != UINT32_MAX)
            r->shown[r->n_shown++] = id;
    }
    return 0;
}

static int read_answer(const message *m, const struct request_limits *limits, struct request *r)
{
    uint32_t max_n = min_u32(limits->max_sequences, REQUEST_MAX_N);
    r->n = m->n ? m->n : 1;
    if (r->n > max_n)
        return fail(-EINVAL, "n is %u, at most %u choices are allowed", r->n, max_n);
    if (m->top_logprobs > DIST_MAX_TOP)
        return fail(-EINVAL, "top_logprobs is %u, at most %d are allowed", m->top_logprobs,
                    DIST_MAX_TOP);
    uint32_t n_vocab = tok_n_vocab(limits->tok);
    r->logprobs = m->logprobs || m->top_logprobs;
    r->n_top = min_u32(m->top_logprobs, n_vocab);
    r->ignore_eos = m->ignore_eos;
    int err = read_lengths(m, limits, r);
    if (!err)
        err = read_stops(m, r);
    if (!err)
        err = read_stop_ids(m, n_vocab, r);
    if (!err)
        err = read_shown(m, limits->tok, r);
    return err || !r->min_tokens ? err : read_banned(limits->tok, r);
}

/* Bytes of the prediction that can be sent to proposers: DRAFTS_HINT_MAX tokens, whole
 * characters. */
static size_t hint_bytes(const message *m, const struct tok *tok)
{
    size_t max = (size_t)DRAFTS_HINT_MAX * tok_longest(tok), n = m->prediction.len;
    if (n <= max)
        return n;
    for (n = max; n > 0 && (m->prediction.data[n] & 0xC0) == 0x80;)
        n--;
    return n;
}

static int read_hint(const message *m, const struct request_limits *limits, struct request *r)
{
    if (m->prediction.len > REQUEST_MAX_PREDICTION)
        return fail(-EMSGSIZE, "the prediction has %zu bytes, at most %u are allowed",
                    m->prediction.len, REQUEST_MAX_PREDICTION);
    if (!m->prediction.len)
        return 0;
    return tok_encode(limits->tok, (const char *)m->prediction.data, hint_bytes(m, limits->tok),
                      false, false, &r->hint, &r->n_hint);
}

static int unknown_rule(void)
{
    char names[160] = "";
    for (int i = 0; i < ACCEPT_N_RULES; i++)
        snprintf(names + strlen(names), sizeof(names) - strlen(names), "%s%s", i ? ", " : "",
                 accept_rules[i].name);
    return fail(-EINVAL, "speculative.rule names no acceptance rule; there are %s", names);
}

static int read_rule(const Tandem__V1__Speculative *s, struct request *r)
{
    const ProtobufCBinaryData *name = &s->rule;
    while (name->len && !(strlen(accept_rules[r->rule].name) == name->len &&
                          memcmp(accept_rules[r->rule].name, name->data, name->len) == 0))
        if (++r->rule == ACCEPT_N_RULES)
            return unknown_rule();
    const struct accept_rule_info *rule = &accept_rules[r->rule];
    r->rule_parameter = rule->parameter;
    r->dense_q = s->dense_q;
    if (!s->has_rule_parameter_case)
        return 0;
    if (rule->parameter == 0)
        return fail(-EINVAL, "the rule %s has no parameter", rule->name);
    r->rule_parameter = (double)s->rule_parameter;
    if (!(r->rule_parameter > 0 && r->rule_parameter <= 1)) // NaN too
        return fail(-EINVAL, "speculative.rule_parameter is %g, allowed is above 0 and up to 1",
                    r->rule_parameter);
    return 0;
}

static int read_speculation(const message *m, const struct request_limits *limits,
                            struct request *r)
{
    const Tandem__V1__Speculative *s = m->speculative;
    r->k_max = UINT32_MAX;
    if (s && s->has_n_max_case)
        r->k_max = s->n_max;
    if (s && s->proposer.len > REQUEST_MAX_NAME)
        return fail(-EINVAL, "the proposer's name has %zu bytes, at most %d are allowed",
                    s->proposer.len, REQUEST_MAX_NAME);
    if (s && s->proposer.len)
        memcpy(r->proposer, s->proposer.data, s->proposer.len);
    if (strcmp(r->proposer, "none") == 0)
        r->k_max = 0;
    r->fixed = s && s->fixed;
    int err = s ? read_rule(s, r) : 0;
    if (!err && s && s->has_p_min_case)
        err = read_float("speculative.p_min", s->p_min, 0, 1, &r->p_min);
    if (err < 0)
        return err;
    r->n_min = s ? s->n_min : 0;
    return read_hint(m, limits, r);
}

#define CLIENT_TENANT 0xFF // begins no text in UTF-8, and so no tenant of a gateway
static_assert(1 + SHA256_DIGEST_LENGTH <= REQUEST_MAX_NAME, "a client's tenant is a name");

/* A client's own tenants are apart from those of gateways. Else it could name a gateway's tenant,
 * and learn from `cached_tokens` which prompts that tenant has sent. */
static int read_tenant(const message *m, const struct request_limits *limits, struct request *r)
{
    if (m->tenant.len > REQUEST_MAX_NAME)
        return fail(-EINVAL, "the tenant has %zu bytes, at most %d are allowed", m->tenant.len,
                    REQUEST_MAX_NAME);
    if (m->tenant.len)
        memcpy(r->tenant, m->tenant.data, m->tenant.len);
    r->tenant_len = m->tenant.len;
    if (limits->may_name)
        return 0;
    uint8_t digest[SHA256_DIGEST_LENGTH];
    SHA256(r->tenant, r->tenant_len, digest);
    r->tenant[0] = CLIENT_TENANT;
    memcpy(r->tenant + 1, digest, sizeof(digest));
    r->tenant_len = 1 + sizeof(digest);
    return 0;
}

static int read_flow(const message *m, const struct request_limits *limits, struct request *r)
{
    if (m->flow.len > FLOWS_MAX_NAME)
        return fail(-EINVAL, "the flow has %zu bytes, at most %d are allowed", m->flow.len,
                    FLOWS_MAX_NAME);
    if (!limits->may_name) {
        r->flow_len = strlen(REQUEST_CLIENT_FLOW);
        memcpy(r->flow, REQUEST_CLIENT_FLOW, r->flow_len);
        return 0;
    }
    if (m->flow.len)
        memcpy(r->flow, m->flow.data, m->flow.len);
    r->flow_len = m->flow.len;
    return 0;
}

int request_read(const message *m, const struct request_limits *limits, struct request **ret)
{
    AUTO(request_drop) struct request *r = calloc(1, sizeof(*r));
    if (!r)
        return fail(-ENOMEM, "no memory for a request");
    atomic_init(&r->n_holders, 1);
    r->arrived_us = clock_us();
    r->params = (struct dist_params){.temperature = 1, .top_p = 1, .repetition = 1};
    r->seed = random_seed();

    int err = read_id(m, r);
    if (!err)
        err = read_model(m, limits);
    if (!err)
        err = read_prompt(m, limits, r);
    if (!err && m->sampling)
        err = read_sampling(m->sampling, tok_n_vocab(limits->tok), r);
    if (!err)
        err = read_answer(m, limits, r);
    if (!err)
        err = read_speculation(m, limits, r);
    if (!err)
        err = read_tenant(m, limits, r);
    if (!err)
        err = read_flow(m, limits, r);
    if (!err && m->continuation)
        err = continuation_read(m->continuation, limits, r);
    if (err < 0)
        return err;
    *ret = TAKE(r);
    return 0;
}

static int make_ban_mask(struct request *r, uint32_t n_vocab)
{
    if (!r->ban.n)
        return 0;
    r->ban_mask = malloc(dist_mask_words(n_vocab) * sizeof(*r->ban_mask));
    if (!r->ban_mask)
        return fail(-ENOMEM, "no memory for a mask of %u tokens", n_vocab);
    dist_mask_ban(r->ban_mask, n_vocab, r->ban.tokens, r->ban.n);
    return 0;
}

int request_open(struct request *r, const struct tok *tok)
{
    r->seqs = calloc(r->n, sizeof(*r->seqs));
    if (!r->seqs)
        return fail(-ENOMEM, "no memory for %u choices", r->n);
    int err = make_ban_mask(r, tok_n_vocab(tok));
    for (uint32_t i = 0; !err && i < r->n; i++)
        err = seq_new(r, i, tok, &r->seqs[i]);
    if (err < 0)
        return err;
    for (uint32_t i = 0; i < r->n; i++)
        r->n_open += r->seqs[i]->state != SEQ_ENDED;
    return 0;
}

void request_hold(struct request *r)
{
    atomic_fetch_add(&r->n_holders, 1);
}

void request_drop(struct request *r)
{
    if (!r || atomic_fetch_sub(&r->n_holders, 1) != 1)
        return;
    for (uint32_t i = 0; r->seqs && i < r->n; i++)
        seq_free(r->seqs[i]);
    free(r->seqs);
    for (uint32_t i = 0; r->continued && i < r->n; i++)
        free(r->continued[i].tokens);
    free(r->continued);
    free(r->prompt);
    free(r->prompt_text);
    free(r->bias);
    free(r->banned);
    free(r->ban_mask);
    free(r->stop_text);
    free(r->hint);
    free(r);
}
