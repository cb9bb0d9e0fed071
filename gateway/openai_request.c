/* openai_request.c - the JSON body of a request, checked field by field. */
#include <stdlib.h>
#include <string.h>
#include "gateway/reading.h"

/* ---- completions ---- */

static int read_ids(struct reading *r, const json_t *v, const char *name)
{
    struct openai_request *q = r->q;
    size_t n = json_array_size(v);
    if (!json_is_array(v) || !n)
        return reading_refuse(r, name, "%s must be an array of token ids and not empty", name);
    if (!(q->ids = calloc(n, sizeof(*q->ids))))
        return reading_no_memory(r);
    for (; q->n_ids < n; q->n_ids++) {
        int rc = reading_id(r, json_array_get(v, q->n_ids), name, q->n_ids, &q->ids[q->n_ids]);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int read_prompt(struct reading *r, const json_t *v)
{
    if (!v)
        return reading_refuse(r, "prompt", "prompt is missing");
    if (json_is_string(v))
        return reading_text(r, v, "prompt", &r->q->prompt);
    if (!json_is_array(v) || !json_array_size(v))
        return reading_refuse(r, "prompt",
                              "prompt must be a string or an array of token ids, not empty");
    const json_t *first = json_array_get(v, 0);
    if (json_is_integer(first))
        return read_ids(r, v, "prompt");
    if (json_array_size(v) > 1)
        return reading_refuse(r, "prompt", "prompt holds %zu prompts; send one per request",
                              json_array_size(v));
    if (json_is_string(first))
        return reading_text(r, first, "prompt[0]", &r->q->prompt);
    return read_ids(r, first, "prompt[0]");
}

static int read_add_special(struct reading *r, const json_t *v)
{
    bool flag = false;
    if (!v)
        return 0;
    int rc = reading_flag(r, v, "add_special_tokens", &flag);
    r->q->add_special = (struct openai_int){rc == 0, flag};
    return rc;
}

static int read_completion(struct reading *r, const json_t *body)
{
    r->q->logprobs = r->q->top_logprobs.set;
    if (r->q->echo && r->q->logprobs)
        return reading_refuse(r, "logprobs", "logprobs of the prompt (with echo) are not served");
    int rc = read_add_special(r, reading_member(body, "add_special_tokens"));
    return rc < 0 ? rc : read_prompt(r, reading_member(body, "prompt"));
}

/* ---- the body ---- */

/* Reads the body with `read`; what is half-read is freed. */
static int parse(enum openai_kind kind, const char *body, size_t len,
                 int (*read)(struct reading *r, json_t *body), struct openai_request *ret,
                 struct openai_fault *ret_fault)
{
    *ret = (struct openai_request){.kind = kind,
                                   .include_reasoning = true,
                                   .separate_reasoning = true,
                                   .parallel_calls = true,
                                   .skip_special = true};
    *ret_fault = (struct openai_fault){0};
    struct reading r = {ret, ret_fault, 0};
    AUTO(json_decref_own) json_t *j = NULL;
    int rc = reading_load(&r, body, len, &j);
    rc = rc < 0 ? rc : read(&r, j);
    if (rc < 0)
        openai_request_done(ret);
    return rc;
}

static int read_generation(struct reading *r, json_t *body)
{
    int rc = openai_fields_read(r, body);
    if (rc < 0)
        return rc;
    if (r->q->kind == OPENAI_RESPONSES)
        return responses_read(r, body);
    return r->q->kind == OPENAI_CHAT ? openai_chat_read(r, body) : read_completion(r, body);
}

int openai_request_parse(enum openai_kind kind, const char *body, size_t len,
                         struct openai_request *ret, struct openai_fault *ret_fault)
{
    return parse(kind, body, len, read_generation, ret, ret_fault);
}

static int read_tokenize(struct reading *r, json_t *body)
{
    const json_t *prompt = reading_member(body, "prompt");
    if (!prompt)
        return reading_refuse(r, "prompt", "prompt is missing");
    int rc = read_add_special(r, reading_member(body, "add_special_tokens"));
    rc = rc < 0 ? rc : reading_text(r, reading_member(body, "model"), "model", &r->q->model);
    return rc < 0 ? rc : reading_text(r, prompt, "prompt", &r->q->prompt);
}

int openai_tokenize_parse(const char *body, size_t len, struct openai_request *ret,
                          struct openai_fault *ret_fault)
{
    return parse(OPENAI_COMPLETION, body, len, read_tokenize, ret, ret_fault);
}

static int read_detokenize(struct reading *r, json_t *body)
{
    int rc = reading_text(r, reading_member(body, "model"), "model", &r->q->model);
    return rc < 0 ? rc : read_ids(r, reading_member(body, "tokens"), "tokens");
}

int openai_detokenize_parse(const char *body, size_t len, struct openai_request *ret,
                            struct openai_fault *ret_fault)
{
    return parse(OPENAI_COMPLETION, body, len, read_detokenize, ret, ret_fault);
}

void openai_request_done(struct openai_request *q)
{
    free(q->model);
    free(q->template_vars);
    free(q->tools);
    free(q->echoed);
    free(q->prompt);
    free(q->ids);
    free(q->prediction);
    free(q->user);
    free(q->cache_salt);
    free(q->proposer);
    free(q->rule);
    for (unsigned i = 0; i < q->n_stops; i++)
        free(q->stops[i]);
    free(q->bias);
    *q = (struct openai_request){0};
}
