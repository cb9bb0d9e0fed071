/* openai_fields.c - reads the fields that chats, completions and responses share. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "gateway/openai/openai_read.h"

enum field_type { FIELD_FLAG, FIELD_INT, FIELD_REAL };

struct field {
    const char *name;
    enum field_type type;
    unsigned kinds; // enum openai_kind, ORed
    size_t at;
    double min, max;
};

#define AT(member) offsetof(struct openai_request, member)
#define BOTH (OPENAI_CHAT | OPENAI_COMPLETION)
#define TALK (OPENAI_CHAT | OPENAI_RESPONSES)
#define ALL (BOTH | OPENAI_RESPONSES)
static const struct field fields[] = {
    {"stream", FIELD_FLAG, ALL, AT(stream), 0, 0},
    {"ignore_eos", FIELD_FLAG, ALL, AT(ignore_eos), 0, 0},
    {"include_reasoning", FIELD_FLAG, TALK, AT(include_reasoning), 0, 0},
    {"separate_reasoning", FIELD_FLAG, TALK, AT(separate_reasoning), 0, 0},
    {"parallel_tool_calls", FIELD_FLAG, TALK, AT(parallel_calls), 0, 0},
    {"skip_special_tokens", FIELD_FLAG, ALL, AT(skip_special), 0, 0},
    {"echo", FIELD_FLAG, OPENAI_COMPLETION, AT(echo), 0, 0},
    {"logprobs", FIELD_FLAG, OPENAI_CHAT, AT(logprobs), 0, 0},
    {"temperature", FIELD_REAL, ALL, AT(temperature), 0, 100},
    {"top_p", FIELD_REAL, ALL, AT(top_p), 0, 1},
    {"min_p", FIELD_REAL, ALL, AT(min_p), 0, 1},
    {"repetition_penalty", FIELD_REAL, ALL, AT(repetition), 0.01, 100},
    {"presence_penalty", FIELD_REAL, ALL, AT(presence), -2, 2},
    {"frequency_penalty", FIELD_REAL, ALL, AT(frequency), -2, 2},
    {"top_k", FIELD_INT, ALL, AT(top_k), -1, OPENAI_MAX_TOKEN},
    {"n", FIELD_INT, BOTH, AT(n), 1, OPENAI_MAX_N},
    {"max_tokens", FIELD_INT, BOTH, AT(max_tokens), 1, INT32_MAX},
    {"max_completion_tokens", FIELD_INT, OPENAI_CHAT, AT(max_tokens), 1, INT32_MAX},
    {"max_output_tokens", FIELD_INT, OPENAI_RESPONSES, AT(max_tokens), 1, INT32_MAX},
    {"min_tokens", FIELD_INT, ALL, AT(min_tokens), 0, INT32_MAX},
    {"top_logprobs", FIELD_INT, TALK, AT(top_logprobs), 0, OPENAI_MAX_TOP},
    {"logprobs", FIELD_INT, OPENAI_COMPLETION, AT(top_logprobs), 0, OPENAI_MAX_TOP},
};

static int read_fields(struct openai_read *r, const json_t *body)
{
    for (size_t i = 0; i < ARRAY_LEN(fields); i++) {
        const struct field *f = &fields[i];
        const json_t *v = f->kinds & r->q->kind ? json_read_member(body, f->name) : NULL;
        void *to = (char *)r->q + f->at;
        int rc = 0;
        if (!v)
            continue;
        if (f->type == FIELD_FLAG)
            rc = json_read_flag(r->json, v, f->name, to);
        else if (f->type == FIELD_INT)
            rc = json_read_int(r->json, v, f->name, f->min, f->max, to);
        else
            rc = json_read_real(r->json, v, f->name, f->min, f->max, to);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* ---- fields that are not a flag or a number ---- */

static int read_seed(struct openai_read *r, const json_t *v)
{
    if (!v)
        return 0;
    if (!json_is_integer(v))
        return json_read_refuse(r->json, "seed", "seed must be a 64-bit integer, not %s",
                                json_read_type(v));
    r->q->seed = (struct openai_int){true, json_integer_value(v)};
    return 0;
}

static int read_stop(struct openai_read *r, const json_t *v, const char *name)
{
    if (!json_is_string(v))
        return json_read_refuse(r->json, name, "%s must be a string, not %s", name,
                                json_read_type(v));
    size_t len = json_string_length(v);
    if (!len || len > OPENAI_MAX_STOP_BYTES)
        return json_read_refuse(r->json, name, "%s must have 1 to %u bytes, it has %zu", name,
                                OPENAI_MAX_STOP_BYTES, len);
    if (r->q->n_stops == OPENAI_MAX_STOPS)
        return json_read_refuse(r->json, "stop", "stop takes at most %u strings", OPENAI_MAX_STOPS);
    return json_read_text(r->json, v, name, &r->q->stops[r->q->n_stops++]);
}

static int read_stops(struct openai_read *r, const json_t *v)
{
    if (!v)
        return 0;
    if (!json_is_array(v))
        return read_stop(r, v, "stop");
    size_t i;
    json_t *s;
    int rc = 0;
    json_array_foreach(v, i, s)
    {
        char name[32];
        snprintf(name, sizeof(name), "stop[%zu]", i);
        if ((rc = read_stop(r, s, name)) < 0)
            break;
    }
    return rc;
}

static int read_stop_ids(struct openai_read *r, const json_t *v)
{
    struct openai_request *q = r->q;
    if (!v)
        return 0;
    if (!json_is_array(v) || json_array_size(v) > OPENAI_MAX_STOP_IDS)
        return json_read_refuse(r->json, "stop_token_ids",
                                "stop_token_ids must be an array of at most %u ids",
                                OPENAI_MAX_STOP_IDS);
    for (; q->n_stop_ids < json_array_size(v); q->n_stop_ids++) {
        int rc = json_read_token_id(r->json, json_array_get(v, q->n_stop_ids), "stop_token_ids",
                                    q->n_stop_ids, &q->stop_ids[q->n_stop_ids]);
        if (rc < 0)
            return rc;
    }
    return 0;
}

/* A key of logit_bias: a token id, decimal digits only. */
static bool token_of(const char *key, uint32_t *ret)
{
    uint32_t id = 0;
    size_t n = strlen(key);
    if (!n || n > 8)
        return false;
    for (; *key; key++) {
        if (*key < '0' || *key > '9')
            return false;
        id = id * 10 + (uint32_t)(*key - '0');
    }
    *ret = id;
    return id <= OPENAI_MAX_TOKEN;
}

static int read_bias(struct openai_read *r, json_t *v)
{
    struct openai_request *q = r->q;
    const char *key;
    json_t *value;
    if (!v)
        return 0;
    if (!json_is_object(v) || json_object_size(v) > OPENAI_MAX_BIAS)
        return json_read_refuse(r->json, "logit_bias",
                                "logit_bias must be an object of at most %u token ids",
                                OPENAI_MAX_BIAS);
    if (!(q->bias = calloc(json_object_size(v) + 1, sizeof(*q->bias))))
        return json_read_no_memory(r->json);
    json_object_foreach(v, key, value)
    {
        struct openai_real bias = {0};
        uint32_t id;
        if (!token_of(key, &id))
            return json_read_refuse(r->json, "logit_bias",
                                    "logit_bias has the key '%.40s', which is not a token id", key);
        int rc = json_read_real(r->json, value, "logit_bias", -100, 100, &bias);
        if (rc < 0)
            return rc;
        q->bias[q->n_bias++] = (struct openai_bias){id, (float)bias.value};
    }
    return 0;
}

static int read_stream_options(struct openai_read *r, const json_t *v)
{
    if (!v)
        return 0;
    if (!json_is_object(v))
        return json_read_refuse(r->json, "stream_options",
                                "stream_options must be an object, not %s", json_read_type(v));
    if (!r->q->stream)
        return json_read_refuse(r->json, "stream_options",
                                "stream_options is only allowed with stream: true");
    const json_t *usage = json_read_member(v, "include_usage"),
                 *tokens = json_read_member(v, "include_tokens");
    int rc = 0;
    if (usage)
        rc = json_read_flag(r->json, usage, "stream_options.include_usage", &r->q->include_usage);
    if (!rc && tokens)
        rc =
            json_read_flag(r->json, tokens, "stream_options.include_tokens", &r->q->include_tokens);
    return rc;
}

/* The verifier checks the name of the rule. */
static int read_rule(struct openai_read *r, const json_t *v)
{
    const json_t *parameter = json_read_member(v, "rule_parameter"),
                 *dense = json_read_member(v, "dense_q");
    int rc = json_read_text(r->json, json_read_member(v, "rule"), "speculative.rule", &r->q->rule);
    if (!rc && parameter)
        rc = json_read_real(r->json, parameter, "speculative.rule_parameter", 0, 1,
                            &r->q->rule_parameter);
    if (!rc && dense)
        rc = json_read_flag(r->json, dense, "speculative.dense_q", &r->q->dense_q);
    return rc;
}

static int read_speculative(struct openai_read *r, const json_t *v)
{
    if (!v)
        return 0;
    if (!json_is_object(v))
        return json_read_refuse(r->json, "speculative", "speculative must be an object, not %s",
                                json_read_type(v));
    int rc = json_read_text(r->json, json_read_member(v, "proposer"), "speculative.proposer",
                            &r->q->proposer);
    if (rc < 0)
        return rc;
    if (r->q->proposer && strlen(r->q->proposer) > 64)
        return json_read_refuse(r->json, "speculative.proposer",
                                "speculative.proposer is longer than 64 bytes");
    const json_t *n_max = json_read_member(v, "n_max"), *n_min = json_read_member(v, "n_min"),
                 *p_min = json_read_member(v, "p_min"), *fixed = json_read_member(v, "fixed");
    rc = n_max ? json_read_int(r->json, n_max, "speculative.n_max", 0, 64, &r->q->n_max) : 0;
    if (!rc && n_min)
        rc = json_read_int(r->json, n_min, "speculative.n_min", 0, 64, &r->q->n_min);
    if (!rc && p_min)
        rc = json_read_real(r->json, p_min, "speculative.p_min", 0, 1, &r->q->p_min);
    if (!rc && fixed)
        rc = json_read_flag(r->json, fixed, "speculative.fixed", &r->q->fixed);
    return rc < 0 ? rc : read_rule(r, v);
}

static int read_prediction(struct openai_read *r, json_t *v)
{
    if (!v)
        return 0;
    const char *type = json_string_value(json_object_get(v, "type"));
    if (!type || strcmp(type, "content") != 0)
        return json_read_refuse(r->json, "prediction",
                                "prediction must be an object of type \"content\"");
    AUTO(json_decref_own) json_t *text = NULL;
    int rc =
        json_read_text_parts(r->json, json_read_member(v, "content"), "prediction.content", &text);
    return rc < 0 ? rc : json_read_text(r->json, text, "prediction.content", &r->q->prediction);
}

/* Requests share cached prefixes only if they have the same salt. */
static int read_salt(struct openai_read *r, const json_t *v)
{
    int rc = json_read_text(r->json, v, "cache_salt", &r->q->cache_salt);
    if (rc < 0 || !v)
        return rc;
    size_t n = json_string_length(v);
    if (!n || n > OPENAI_MAX_SALT)
        return json_read_refuse(r->json, "cache_salt",
                                "cache_salt must have 1 to %d bytes, not %zu", OPENAI_MAX_SALT, n);
    return 0;
}

/* ---- fields that are not served ---- */

static int read_format(struct openai_read *r, const json_t *v)
{
    if (!v)
        return 0;
    const json_t *type = json_object_get(v, "type");
    if (!json_is_object(v) || !json_is_string(type))
        return json_read_refuse(r->json, "response_format",
                                "response_format must be an object with a type");
    if (strcmp(json_string_value(type), "text") != 0)
        return json_read_refuse(r->json, "response_format",
                                "response_format of type '%.40s' is not served, only 'text' is",
                                json_string_value(type));
    return 0;
}

static int read_suffix(struct openai_read *r, const json_t *v)
{
    if (v && !json_is_string(v))
        return json_read_refuse(r->json, "suffix", "suffix must be a string, not %s",
                                json_read_type(v));
    if (v && json_string_length(v))
        return json_read_refuse(r->json, "suffix", "suffix is not served");
    return 0;
}

/* best_of = n is accepted, because all choices are then returned. */
static int read_best_of(struct openai_read *r, const json_t *v)
{
    struct openai_int best = {0};
    int64_t n = r->q->n.set ? r->q->n.value : 1;
    int rc = v ? json_read_int(r->json, v, "best_of", 1, OPENAI_MAX_N, &best) : 0;
    if (rc < 0 || !v || best.value == n)
        return rc;
    return json_read_refuse(r->json, "best_of", "best_of other than n is not served");
}

static int refuse_unserved(struct openai_read *r, const json_t *body)
{
    static const char *const names[] = {
        "functions",          "function_call", "audio",         "web_search_options",
        "guided_json",        "guided_regex",  "guided_choice", "guided_grammar",
        "structured_outputs", "json_schema",   "grammar",
    };
    for (size_t i = 0; i < ARRAY_LEN(names); i++)
        if (json_read_member(body, names[i]))
            return json_read_refuse(r->json, names[i], "%s is not served", names[i]);
    int rc = read_format(r, json_read_member(body, "response_format"));
    if (rc < 0 || r->q->kind != OPENAI_COMPLETION)
        return rc;
    rc = read_suffix(r, json_read_member(body, "suffix"));
    return rc < 0 ? rc : read_best_of(r, json_read_member(body, "best_of"));
}

int openai_fields_read(struct openai_read *r, json_t *body)
{
    int rc = json_read_text(r->json, json_read_member(body, "model"), "model", &r->q->model);
    rc = rc < 0 ? rc : read_fields(r, body);
    rc = rc < 0 ? rc : json_read_text(r->json, json_read_member(body, "user"), "user", &r->q->user);
    rc = rc < 0 ? rc : read_salt(r, json_read_member(body, "cache_salt"));
    rc = rc < 0 ? rc : read_seed(r, json_read_member(body, "seed"));
    rc = rc < 0 ? rc : read_stops(r, json_read_member(body, "stop"));
    rc = rc < 0 ? rc : read_stop_ids(r, json_read_member(body, "stop_token_ids"));
    rc = rc < 0 ? rc : read_bias(r, json_read_member(body, "logit_bias"));
    rc = rc < 0 ? rc : read_stream_options(r, json_read_member(body, "stream_options"));
    rc = rc < 0 ? rc : read_speculative(r, json_read_member(body, "speculative"));
    rc = rc < 0 ? rc : read_prediction(r, json_read_member(body, "prediction"));
    return rc < 0 ? rc : refuse_unserved(r, body);
}
