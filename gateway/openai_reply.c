/* openai_reply.c - answers in OpenAI's shapes. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "base/mem.h"
#include "gateway/jsonw.h"
#include "gateway/openai_reply.h"
#include "gateway/sse.h"

/* One list of logprobs, complete but for its brackets. Chat uses `tokens` alone. */
struct logprobs {
    struct buf tokens, values, tops, offsets;
};

struct openai_choice {
    bool started, finished;
    struct buf text; // gathered, escaped
    struct buf stop; // the stop string met, as JSON
    char reason[16];
    uint32_t n_chars; // of the text so far: text_offset
    struct logprobs logprobs;
};

static void logprobs_init(struct logprobs *l)
{
    buf_init(&l->tokens, OPENAI_MAX_TEXT);
    buf_init(&l->values, OPENAI_MAX_TEXT);
    buf_init(&l->tops, OPENAI_MAX_TEXT);
    buf_init(&l->offsets, OPENAI_MAX_TEXT);
}

static void logprobs_done(struct logprobs *l)
{
    buf_done(&l->tokens);
    buf_done(&l->values);
    buf_done(&l->tops);
    buf_done(&l->offsets);
}

static void logprobs_done_auto(struct logprobs *l)
{
    logprobs_done(l);
}

int openai_reply_init(struct openai_reply *r, const struct openai_reply_head *h)
{
    AUTO(buf_done) struct buf head;
    buf_init(&head, 1 << 20);
    buf_printf(&head, "{\"id\":\"%s-%s\",\"object\":\"%s%s\",\"created\":%" PRId64 ",\"model\":",
               h->chat ? "chatcmpl" : "cmpl", h->id,
               h->chat ? "chat.completion" : "text_completion",
               h->chat && h->stream ? ".chunk" : "", h->created);
    jsonw_text(&head, h->model.data, h->model.len);
    buf_puts(&head, ",\"system_fingerprint\":");
    jsonw_text(&head, h->fingerprint.data, h->fingerprint.len);
    buf_puts(&head, ",");
    struct openai_choice *choices = calloc(h->n, sizeof(*choices));
    if (buf_error(&head) < 0 || !choices) {
        free(choices);
        return fail(-ENOMEM, "reply: no memory for %u choices", h->n);
    }
    for (unsigned i = 0; i < h->n; i++) {
        buf_init(&choices[i].text, OPENAI_MAX_TEXT);
        buf_init(&choices[i].stop, 4096);
        logprobs_init(&choices[i].logprobs);
    }
    *r = (struct openai_reply){.chat = h->chat,
                               .stream = h->stream,
                               .logprobs = h->logprobs,
                               .echo = h->echo,
                               .include_usage = h->include_usage,
                               .include_tokens = h->include_tokens,
                               .has_prediction = h->has_prediction,
                               .head = buf_take(&head),
                               .choices = choices,
                               .n = h->n};
    return 0;
}

void openai_reply_done(struct openai_reply *r)
{
    for (unsigned i = 0; i < r->n; i++) {
        buf_done(&r->choices[i].text);
        buf_done(&r->choices[i].stop);
        logprobs_done(&r->choices[i].logprobs);
    }
    free(r->choices);
    free(r->prompt);
    free(r->head);
    *r = (struct openai_reply){0};
}

/* ---- logprobs ---- */

static bool whole(struct openai_text t)
{
    for (size_t i = 0; i < t.len;) {
        unsigned n = jsonw_utf8((const unsigned char *)t.data + i, t.len - i);
        if (!n)
            return false;
        i += n;
    }
    return true;
}

/* Bytes that are no text are named, so that different ones stay different keys. */
static void token_name(struct buf *to, struct openai_text t)
{
    if (whole(t)) {
        jsonw_text(to, t.data, t.len);
        return;
    }
    buf_puts(to, "\"bytes:");
    for (size_t i = 0; i < t.len; i++)
        buf_printf(to, "\\\\x%02x", (unsigned char)t.data[i]);
    buf_puts(to, "\"");
}

static void chat_logprob(struct buf *to, struct openai_text bytes, float logprob)
{
    buf_puts(to, "{\"token\":");
    jsonw_text(to, bytes.data, bytes.len);
    buf_puts(to, ",\"logprob\":");
    jsonw_float(to, logprob);
    buf_puts(to, ",\"bytes\":");
    jsonw_bytes(to, bytes.data, bytes.len);
}

static void comma(struct buf *to)
{
    if (to->len)
        buf_add(to, ",", 1);
}

static void add_chat_logprobs(struct logprobs *l, const struct openai_token *t)
{
    comma(&l->tokens);
    chat_logprob(&l->tokens, t->bytes, t->logprob);
    buf_puts(&l->tokens, ",\"top_logprobs\":[");
    for (unsigned i = 0; i < t->n_top; i++) {
        buf_puts(&l->tokens, i ? "," : "");
        chat_logprob(&l->tokens, t->top[i].bytes, t->top[i].logprob);
        buf_puts(&l->tokens, "}");
    }
    buf_puts(&l->tokens, "]}");
}

static void add_completion_logprobs(struct logprobs *l, const struct openai_token *t,
                                    uint32_t offset)
{
    comma(&l->tokens);
    token_name(&l->tokens, t->bytes);
    comma(&l->values);
    jsonw_float(&l->values, t->logprob);
    comma(&l->tops);
    buf_puts(&l->tops, "{");
    for (unsigned i = 0; i < t->n_top; i++) {
        buf_puts(&l->tops, i ? "," : "");
        token_name(&l->tops, t->top[i].bytes);
        buf_puts(&l->tops, ":");
        jsonw_float(&l->tops, t->top[i].logprob);
    }
    buf_puts(&l->tops, "}");
    comma(&l->offsets);
    buf_printf(&l->offsets, "%u", offset);
}

static void write_logprobs(const struct openai_reply *r, const struct logprobs *l, struct buf *to)
{
    if (!r->logprobs) {
        buf_puts(to, "null");
    } else if (r->chat) {
        buf_puts(to, "{\"content\":[");
        buf_add(to, l->tokens.data, l->tokens.len);
        buf_puts(to, "],\"refusal\":null}");
    } else {
        buf_puts(to, "{\"tokens\":[");
        buf_add(to, l->tokens.data, l->tokens.len);
        buf_puts(to, "],\"token_logprobs\":[");
        buf_add(to, l->values.data, l->values.len);
        buf_puts(to, "],\"top_logprobs\":[");
        buf_add(to, l->tops.data, l->tops.len);
        buf_puts(to, "],\"text_offset\":[");
        buf_add(to, l->offsets.data, l->offsets.len);
        buf_puts(to, "]}");
    }
}

static void add_logprobs(const struct openai_reply *r, struct openai_choice *c, struct logprobs *l,
                         const struct openai_token *t)
{
    if (r->logprobs && r->chat)
        add_chat_logprobs(l, t);
    else if (r->logprobs)
        add_completion_logprobs(l, t, c->n_chars);
}

/* ---- one choice ---- */

static uint32_t count_chars(struct openai_text t)
{
    uint32_t n = 0;
    for (size_t i = 0; i < t.len; i++)
        n += ((unsigned char)t.data[i] & 0xC0) != 0x80;
    return n;
}

static void chunk_begin(const struct openai_reply *r, unsigned choice, struct buf *to)
{
    sse_begin(to);
    buf_puts(to, r->head);
    buf_printf(to, "\"choices\":[{\"index\":%u,", choice);
}

/* What OpenAI's fields have no room for. */
static void write_token(const struct openai_token *t, struct buf *to)
{
    buf_printf(to,
               ",\"tandem\":{\"tokens\":[{\"id\":%u,\"origin\":\"%s\",\"round\":%u,\"drafted\":%u,"
               "\"proposer\":",
               t->id, t->origin, t->round, t->drafted);
    jsonw_text(to, t->proposer.data, t->proposer.len);
    buf_puts(to, "}]}");
}

/* t: the event's token, or NULL. */
static void chunk_end(const struct openai_reply *r, const struct openai_token *t, struct buf *to)
{
    buf_puts(to, r->include_usage ? "}],\"usage\":null" : "}]");
    if (r->include_tokens && t)
        write_token(t, to);
    buf_puts(to, "}");
    sse_end(to);
}

/* One event with text; role: the first of a chat's choice. t, l: its token, or NULL. */
static void text_chunk(const struct openai_reply *r, unsigned choice, const char *role,
                       struct openai_text text, const struct openai_token *t,
                       const struct logprobs *l, struct buf *to)
{
    chunk_begin(r, choice, to);
    buf_printf(to, r->chat ? "\"delta\":{%s\"content\":" : "%s\"text\":", role);
    jsonw_text(to, text.data, text.len);
    buf_puts(to, r->chat ? "},\"logprobs\":" : ",\"logprobs\":");
    if (l)
        write_logprobs(r, l, to);
    else
        buf_puts(to, "null");
    buf_puts(to, ",\"finish_reason\":null");
    chunk_end(r, t, to);
}

/* For the other choices. A prompt that finds no memory is missing there. */
static void keep_prompt(struct openai_reply *r, struct openai_text prompt)
{
    r->prompt = r->n > 1 && prompt.len ? malloc(prompt.len) : NULL;
    r->n_prompt = r->prompt ? prompt.len : 0;
    if (r->prompt)
        memcpy(r->prompt, prompt.data, prompt.len);
}

void openai_reply_started(struct openai_reply *r, unsigned choice, struct openai_text prompt,
                          struct buf *to)
{
    struct openai_choice *c = &r->choices[choice];
    if (c->started)
        return;
    c->started = true;
    if (!r->echo)
        prompt.len = 0;
    else if (choice == 0)
        keep_prompt(r, prompt);
    else
        prompt = (struct openai_text){r->prompt, r->n_prompt};
    c->n_chars += count_chars(prompt);
    if (!r->stream)
        jsonw_chars(&c->text, prompt.data, prompt.len);
    else if (r->chat)
        text_chunk(r, choice, "\"role\":\"assistant\",", prompt, NULL, NULL, to);
    else if (prompt.len)
        text_chunk(r, choice, "", prompt, NULL, NULL, to);
}

void openai_reply_token(struct openai_reply *r, unsigned choice, const struct openai_token *t,
                        struct buf *to)
{
    struct openai_choice *c = &r->choices[choice];
    r->completion_tokens++;
    if (r->stream) {
        AUTO(logprobs_done) struct logprobs l;
        logprobs_init(&l);
        add_logprobs(r, c, &l, t);
        text_chunk(r, choice, "", t->text, t, &l, to);
    } else {
        add_logprobs(r, c, &c->logprobs, t);
        jsonw_chars(&c->text, t->text.data, t->text.len);
    }
    c->n_chars += count_chars(t->text);
}

void openai_reply_finished(struct openai_reply *r, unsigned choice, const char *reason,
                           struct openai_text text, struct openai_text stop, struct buf *to)
{
    struct openai_choice *c = &r->choices[choice];
    if (c->finished)
        return;
    c->finished = true;
    strncpy(c->reason, reason, sizeof(c->reason) - 1);
    if (stop.len)
        jsonw_text(&c->stop, stop.data, stop.len);
    else
        buf_puts(&c->stop, "null");
    if (!r->stream) {
        jsonw_chars(&c->text, text.data, text.len);
        return;
    }
    chunk_begin(r, choice, to);
    buf_puts(to, r->chat ? "\"delta\":{" : "\"text\":");
    if (!r->chat || text.len) {
        buf_puts(to, r->chat ? "\"content\":" : "");
        jsonw_text(to, text.data, text.len);
    }
    buf_printf(to, "%s,\"logprobs\":null,\"finish_reason\":\"%s\",\"stop_reason\":%s",
               r->chat ? "}" : "", c->reason, c->stop.data);
    chunk_end(r, NULL, to);
}

bool openai_reply_complete(const struct openai_reply *r)
{
    for (unsigned i = 0; i < r->n; i++)
        if (!r->choices[i].finished)
            return false;
    return true;
}

/* ---- the end ---- */

static void write_usage(const struct openai_reply *r, struct buf *to)
{
    const struct openai_speculation *s = &r->speculation;
    buf_printf(to,
               "\"usage\":{\"prompt_tokens\":%u,\"completion_tokens\":%u,\"total_tokens\":%u,"
               "\"prompt_tokens_details\":{\"cached_tokens\":%u}",
               r->prompt_tokens, r->completion_tokens, r->prompt_tokens + r->completion_tokens,
               r->cached_tokens);
    if (r->has_prediction)
        buf_printf(to,
                   ",\"completion_tokens_details\":{\"accepted_prediction_tokens\":%u,"
                   "\"rejected_prediction_tokens\":%u}",
                   s->accepted, s->drafted - s->accepted);
    buf_puts(to, "}");
}

/* The seed that repeats this answer, and what speculation did; the names are vLLM's. */
static void write_metrics(const struct openai_reply *r, struct buf *to)
{
    const struct openai_speculation *s = &r->speculation;
    buf_puts(to, "\"metrics\":{");
    if (r->has_seed)
        buf_printf(to, "\"seed\":%" PRId64 ",", r->seed);
    buf_puts(to, "\"speculative_decoding\":{\"rule\":");
    jsonw_cstr(to, r->rule);
    buf_puts(to, ",\"proposer\":");
    jsonw_cstr(to, r->proposer);
    buf_puts(to, ",\"mean_acceptance_length\":");
    jsonw_double(to, s->rounds_drafted ? 1 + (double)s->accepted / s->rounds_drafted : 1);
    buf_puts(to, ",\"draft_acceptance_rate\":");
    jsonw_double(to, s->drafted ? (double)s->accepted / s->drafted : 0);
    buf_printf(to,
               ",\"num_spec_tokens\":%u,\"num_steps\":%u,\"num_spec_steps\":%u,"
               "\"num_draft_tokens\":%u,\"num_accepted_draft_tokens\":%u,\"num_bonus_tokens\":%u,"
               "\"acceptance_histogram\":[",
               s->k, s->rounds, s->rounds_drafted, s->drafted, s->accepted, s->bonus);
    unsigned n = OPENAI_KEPT_MAX;
    while (n && !s->kept_steps[n - 1])
        n--;
    for (unsigned i = 0; i < n; i++)
        buf_printf(to, "%s%u", i ? "," : "", s->kept_steps[i]);
    buf_puts(to, "]}}");
}

static void write_speed(const char *name, uint32_t n, double ms, struct buf *to)
{
    buf_printf(to, "\"%s_n\":%u,\"%s_ms\":", name, n, name);
    jsonw_double(to, ms);
    buf_printf(to, ",\"%s_per_second\":", name);
    jsonw_double(to, ms > 0 ? n / ms * 1e3 : 0);
    buf_puts(to, ",");
}

/* The names are llama.cpp's. */
static void write_timings(const struct openai_reply *r, struct buf *to)
{
    const struct openai_speculation *s = &r->speculation;
    buf_printf(to, "\"timings\":{\"cache_n\":%u,", r->cached_tokens);
    write_speed("prompt", r->prompt_tokens - r->cached_tokens, r->timings.prompt_ms, to);
    write_speed("predicted", r->completion_tokens, r->timings.decode_ms, to);
    buf_printf(to, "\"draft_n\":%u,\"draft_n_accepted\":%u}", s->drafted, s->accepted);
}

/* What follows the choices of an answer. */
static void write_figures(const struct openai_reply *r, struct buf *to)
{
    write_usage(r, to);
    buf_puts(to, ",");
    write_metrics(r, to);
    buf_puts(to, ",");
    write_timings(r, to);
}

static int write_choice(const struct openai_reply *r, unsigned i, struct buf *to)
{
    const struct openai_choice *c = &r->choices[i];
    const struct logprobs *l = &c->logprobs;
    const struct buf *parts[] = {&c->text, &l->tokens, &l->values, &l->tops, &l->offsets};
    for (size_t k = 0; k < ARRAY_LEN(parts); k++)
        if (parts[k]->error)
            return buf_error(parts[k]);
    buf_printf(to, "%s{\"index\":%u,", i ? "," : "", i);
    buf_puts(to, r->chat ? "\"message\":{\"role\":\"assistant\",\"content\":\"" : "\"text\":\"");
    buf_add(to, c->text.data, c->text.len);
    buf_puts(to, r->chat ? "\",\"refusal\":null},\"logprobs\":" : "\",\"logprobs\":");
    write_logprobs(r, l, to);
    buf_printf(to, ",\"finish_reason\":\"%s\",\"stop_reason\":%s}", c->reason,
               c->stop.data ? c->stop.data : "null");
    return buf_error(to);
}

int openai_reply_end(struct openai_reply *r, struct buf *to)
{
    if (r->stream) {
        if (r->include_usage) {
            sse_begin(to);
            buf_puts(to, r->head);
            buf_puts(to, "\"choices\":[],");
            write_figures(r, to);
            buf_puts(to, "}");
            sse_end(to);
        }
        sse_done(to);
        return buf_error(to);
    }
    buf_puts(to, r->head);
    buf_puts(to, "\"choices\":[");
    for (unsigned i = 0; i < r->n; i++) {
        int rc = write_choice(r, i, to);
        if (rc < 0)
            return rc;
    }
    buf_puts(to, "],");
    write_figures(r, to);
    buf_puts(to, "}\n");
    return buf_error(to);
}

/* ---- errors ---- */

static const char *error_type(int status)
{
    if (status == 429)
        return "rate_limit_error";
    return status >= 500 ? "server_error" : "invalid_request_error";
}

static const char *error_code(int status, const char *param)
{
    switch (status) {
    case 401:
        return "\"invalid_api_key\"";
    case 404:
        return strcmp(param, "model") == 0 ? "\"model_not_found\"" : "\"not_found\"";
    case 429:
        return "\"rate_limit_exceeded\"";
    case 503:
        return "\"service_unavailable\"";
    case 504:
        return "\"timeout\"";
    default:
        return "null";
    }
}

void openai_error(struct buf *to, int status, const char *text, const char *param)
{
    buf_puts(to, "{\"error\":{\"message\":");
    jsonw_cstr(to, text);
    buf_printf(to, ",\"type\":\"%s\",\"param\":", error_type(status));
    if (*param)
        jsonw_cstr(to, param);
    else
        buf_puts(to, "null");
    buf_printf(to, ",\"code\":%s}}", error_code(status, param));
}

void openai_error_event(struct buf *to, int status, const char *text)
{
    sse_begin(to);
    openai_error(to, status, text, "");
    sse_end(to);
    sse_done(to);
}
