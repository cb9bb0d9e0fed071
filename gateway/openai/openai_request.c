/* openai_request.c - reads the JSON body of a request. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "gateway/openai/openai_read.h"
#include "gateway/openai/tool_types.h"

/* ---- completions ---- */

static int read_ids(struct openai_read *r, const json_t *v, const char *name,
                    struct openai_prompt *ret)
{
    size_t n = json_array_size(v);
    if (!json_is_array(v) || !n)
        return json_read_refuse(r->json, name, "%s must be an array of token ids and not empty",
                                name);
    if (!(ret->ids = calloc(n, sizeof(*ret->ids))))
        return json_read_no_memory(r->json);
    for (; ret->n_ids < n; ret->n_ids++) {
        int rc = json_read_token_id(r->json, json_array_get(v, ret->n_ids), name, ret->n_ids,
                                    &ret->ids[ret->n_ids]);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int read_text(struct openai_read *r, const json_t *v, const char *name,
                     struct openai_prompt *ret)
{
    ret->len = json_string_length(v);
    return json_read_text(r->json, v, name, &ret->text);
}

static int make_prompts(struct openai_read *r, unsigned n)
{
    r->q->prompts = calloc(n, sizeof(*r->q->prompts));
    r->q->n_prompts = r->q->prompts ? n : 0;
    return r->q->prompts ? 0 : json_read_no_memory(r->json);
}

/* An array of texts or of arrays of tokens. */
static int read_prompts(struct openai_read *r, const json_t *v)
{
    size_t n = json_array_size(v), i;
    const json_t *one;
    if (n > OPENAI_MAX_PROMPTS || n * openai_request_n(r->q) > OPENAI_MAX_CHOICES)
        return json_read_refuse(
            r->json, "prompt",
            "prompt holds %zu prompts, with n %u each; at most %d prompts and %d "
            "choices are taken in one request",
            n, openai_request_n(r->q), OPENAI_MAX_PROMPTS, OPENAI_MAX_CHOICES);
    int rc = make_prompts(r, (unsigned)n);
    r->q->max_running = n < OPENAI_MAX_RUNNING ? (unsigned)n : OPENAI_MAX_RUNNING;
    json_array_foreach(v, i, one)
    {
        char name[32];
        snprintf(name, sizeof(name), "prompt[%zu]", i);
        rc = rc < 0                ? rc
             : json_is_string(one) ? read_text(r, one, name, &r->q->prompts[i])
                                   : read_ids(r, one, name, &r->q->prompts[i]);
    }
    return rc;
}

static int read_prompt(struct openai_read *r, const json_t *v)
{
    if (!v)
        return json_read_refuse(r->json, "prompt", "prompt is missing");
    if (!json_is_string(v) && !json_array_size(v))
        return json_read_refuse(r->json, "prompt",
                                "prompt must be a string, an array of token ids or an array of "
                                "either, not empty");
    if (json_is_array(v) && !json_is_integer(json_array_get(v, 0)))
        return read_prompts(r, v);
    int rc = make_prompts(r, 1);
    if (rc < 0)
        return rc;
    return json_is_string(v) ? read_text(r, v, "prompt", r->q->prompts)
                             : read_ids(r, v, "prompt", r->q->prompts);
}

static int read_add_special(struct openai_read *r, const json_t *v)
{
    bool flag = false;
    if (!v)
        return 0;
    int rc = json_read_flag(r->json, v, "add_special_tokens", &flag);
    r->q->add_special = (struct openai_int){rc == 0, flag};
    return rc;
}

static int read_completion(struct openai_read *r, const json_t *body)
{
    r->q->logprobs = r->q->top_logprobs.set;
    if (r->q->echo && r->q->logprobs)
        return json_read_refuse(r->json, "logprobs",
                                "logprobs of the prompt (with echo) are not served");
    int rc = read_add_special(r, json_read_member(body, "add_special_tokens"));
    return rc < 0 ? rc : read_prompt(r, json_read_member(body, "prompt"));
}

/* ---- the body ---- */

/* Reads the body with `read`. After an error the request is freed. */
static int parse_body(enum openai_kind kind, const char *body, size_t len,
                      const struct openai_memory *memory,
                      int (*read)(struct openai_read *r, json_t *body), struct openai_request *ret,
                      struct openai_fault *ret_fault)
{
    *ret = (struct openai_request){.kind = kind,
                                   .max_running = 1,
                                   .include_reasoning = true,
                                   .separate_reasoning = true,
                                   .parallel_calls = true,
                                   .skip_special = true};
    *ret_fault = (struct openai_fault){0};
    struct json_read json = {.fault = ret_fault, .memory = memory};
    struct openai_read r = {&json, ret};
    AUTO(json_decref_own) json_t *j = NULL;
    int rc = json_read_body(&json, body, len, &j);
    rc = rc < 0 ? rc : read(&r, j);
    if (rc < 0)
        openai_request_done(ret);
    return rc;
}

static int read_request(struct openai_read *r, json_t *body)
{
    int rc = openai_fields_read(r, body);
    if (rc < 0)
        return rc;
    if (r->q->kind == OPENAI_RESPONSES)
        return openai_responses_read(r, body);
    return r->q->kind == OPENAI_CHAT ? openai_chat_read(r, body) : read_completion(r, body);
}

int openai_request_parse(enum openai_kind kind, const char *body, size_t len,
                         const struct openai_memory *memory, struct openai_request *ret,
                         struct openai_fault *ret_fault)
{
    return parse_body(kind, body, len, memory, read_request, ret, ret_fault);
}

static int read_tokenize(struct openai_read *r, json_t *body)
{
    const json_t *prompt = json_read_member(body, "prompt");
    if (!prompt)
        return json_read_refuse(r->json, "prompt", "prompt is missing");
    int rc = read_add_special(r, json_read_member(body, "add_special_tokens"));
    rc = rc < 0 ? rc
                : json_read_text(r->json, json_read_member(body, "model"), "model", &r->q->model);
    rc = rc < 0 ? rc : make_prompts(r, 1);
    return rc < 0 ? rc : read_text(r, prompt, "prompt", r->q->prompts);
}

int openai_tokenize_parse(const char *body, size_t len, const struct openai_memory *memory,
                          struct openai_request *ret, struct openai_fault *ret_fault)
{
    return parse_body(OPENAI_COMPLETION, body, len, memory, read_tokenize, ret, ret_fault);
}

static int read_detokenize(struct openai_read *r, json_t *body)
{
    int rc = json_read_text(r->json, json_read_member(body, "model"), "model", &r->q->model);
    rc = rc < 0 ? rc : make_prompts(r, 1);
    return rc < 0 ? rc : read_ids(r, json_read_member(body, "tokens"), "tokens", r->q->prompts);
}

int openai_detokenize_parse(const char *body, size_t len, const struct openai_memory *memory,
                            struct openai_request *ret, struct openai_fault *ret_fault)
{
    return parse_body(OPENAI_COMPLETION, body, len, memory, read_detokenize, ret, ret_fault);
}

int openai_request_rendered(struct openai_request *q, const char *text, size_t len)
{
    AUTO(mem_free) char *copy = malloc(len + 1);
    if (!copy || !(q->prompts = calloc(1, sizeof(*q->prompts))))
        return fail(-ENOMEM, "no memory for this request");
    memcpy(copy, text, len);
    copy[len] = 0;
    *q->prompts = (struct openai_prompt){.text = TAKE(copy), .len = len};
    q->n_prompts = 1;
    return 0;
}

static size_t text_bytes(const char *text)
{
    return text ? strlen(text) + 1 : 0;
}

size_t openai_request_bytes(const struct openai_request *q)
{
    size_t n = text_bytes(q->template_vars) + tool_types_bytes(q->tools) + text_bytes(q->echoed) +
               text_bytes(q->prediction) + text_bytes(q->user) + text_bytes(q->model) +
               q->n_bias * sizeof(*q->bias);
    for (unsigned i = 0; i < q->n_prompts; i++)
        n += sizeof(*q->prompts) + q->prompts[i].len + q->prompts[i].n_ids * sizeof(uint32_t);
    return n;
}

void openai_request_done(struct openai_request *q)
{
    free(q->model);
    free(q->template_vars);
    tool_types_free(q->tools);
    free(q->echoed);
    for (unsigned i = 0; i < q->n_prompts; i++) {
        free(q->prompts[i].text);
        free(q->prompts[i].ids);
    }
    free(q->prompts);
    free(q->prediction);
    free(q->user);
    free(q->cache_salt);
    free(q->flow);
    free(q->proposer);
    free(q->rule);
    for (unsigned i = 0; i < q->n_stops; i++)
        free(q->stops[i]);
    free(q->bias);
    *q = (struct openai_request){0};
}
