/* openai_text.c - chat.completion and text_completion objects, and their chunks. */
#include <inttypes.h>
#include <string.h>
#include "gateway/openai/json_write.h"
#include "gateway/openai/openai_error.h"
#include "gateway/openai/usage_json.h"
#include "gateway/openai/openai_writer.h"
#include "gateway/openai/sse.h"

static void write_buf(struct buf *to, const struct buf *text)
{
    json_write_text(to, text->data, text->len);
}

/* ---- calls ---- */

static void write_call(const struct openai_reply *r, unsigned choice, unsigned i, struct buf *to)
{
    char made[OPENAI_CALL_ID];
    const struct tool_call *call = &r->out.calls.v[i];
    unsigned index = r->choices[choice].n_calls + i;
    buf_puts(to, "{");
    if (r->stream)
        buf_printf(to, "\"index\":%u,", index);
    buf_puts(to, "\"id\":");
    json_write_cstr(to, openai_call_id(r, choice, index, call, made));
    buf_puts(to, ",\"type\":\"function\",\"function\":{\"name\":");
    json_write_cstr(to, call->name);
    buf_puts(to, ",\"arguments\":");
    json_write_cstr(to, call->arguments);
    buf_puts(to, "}}");
}

static void write_calls(const struct openai_reply *r, unsigned choice, struct buf *to)
{
    for (unsigned i = 0; i < r->out.calls.n; i++) {
        buf_puts(to, i ? "," : "");
        write_call(r, choice, i, to);
    }
}

/* ---- events ---- */

static void chunk_begin(const struct openai_reply *r, unsigned choice, struct buf *to)
{
    sse_begin(to);
    buf_puts(to, r->head);
    buf_printf(to, "\"choices\":[{\"index\":%u,", choice);
}

/* The origin of a token, which has no field in OpenAI's API. */
static void write_token(const struct openai_token *t, struct buf *to)
{
    buf_printf(to,
               ",\"tandem\":{\"tokens\":[{\"id\":%u,\"origin\":\"%s\",\"round\":%u,\"drafted\":%u,"
               "\"proposer\":",
               t->id, t->origin, t->round, t->drafted);
    json_write_text(to, t->proposer.data, t->proposer.len);
    buf_puts(to, "}]}");
}

/* t: the token of the event, or NULL. */
static void chunk_end(const struct openai_reply *r, const struct openai_token *t, struct buf *to)
{
    buf_puts(to, r->include_usage ? "}],\"usage\":null" : "}]");
    if (r->include_tokens && t)
        write_token(t, to);
    buf_puts(to, "}");
    sse_end(to);
}

/* token: the event is for a token, so it has content even if its text is empty. */
static void write_delta(const struct openai_reply *r, unsigned choice, bool token, struct buf *to)
{
    const struct output_parser_out *o = &r->out;
    bool reasons = output_parser_reasons(&r->choices[choice].parser) && !r->hides_reasoning;
    const char *comma = "";
    buf_puts(to, "\"delta\":{");
    if (o->reasoning.len || (token && reasons && !o->content.len)) {
        buf_puts(to, "\"reasoning_content\":");
        write_buf(to, &o->reasoning);
        comma = ",";
    }
    if (o->content.len || (token && !*comma && !o->calls.n)) {
        buf_printf(to, "%s\"content\":", comma);
        write_buf(to, &o->content);
        comma = ",";
    }
    if (o->calls.n) {
        buf_printf(to, "%s\"tool_calls\":[", comma);
        write_calls(r, choice, to);
        buf_puts(to, "]");
    }
    buf_puts(to, "}");
}

static void write_text(const struct openai_reply *r, unsigned choice, bool token, struct buf *to)
{
    if (r->chat) {
        write_delta(r, choice, token, to);
    } else {
        buf_puts(to, "\"text\":");
        write_buf(to, &r->out.content);
    }
}

/* The first event of a choice: the role, or the echoed prompt. */
static void write_started(struct openai_reply *r, unsigned choice, struct openai_text prompt,
                          struct buf *to)
{
    if (!r->stream) {
        json_write_chars(&r->choices[choice].text, prompt.data, prompt.len);
        return;
    }
    if (!r->chat && !prompt.len)
        return;
    chunk_begin(r, choice, to);
    buf_puts(to, r->chat ? "\"delta\":{\"role\":\"assistant\",\"content\":" : "\"text\":");
    json_write_text(to, prompt.data, prompt.len);
    buf_puts(to, r->chat ? "}" : "");
    buf_puts(to, ",\"logprobs\":null,\"finish_reason\":null");
    chunk_end(r, NULL, to);
}

static void write_event(const struct openai_reply *r, unsigned choice, const struct openai_token *t,
                        struct buf *to)
{
    AUTO(openai_logprobs_done) struct openai_logprobs l = {0};
    chunk_begin(r, choice, to);
    write_text(r, choice, true, to);
    buf_puts(to, ",\"logprobs\":");
    openai_logprobs_init(&l);
    if (r->logprobs && !r->hidden) {
        openai_logprobs_add(&l, r->chat, t, r->choices[choice].n_chars + t->n_held);
        to->error = to->error ? to->error : openai_logprobs_error(&l);
        openai_logprobs_write(&l, r->chat, to);
    } else {
        buf_puts(to, "null");
    }
    buf_puts(to, ",\"finish_reason\":null");
    chunk_end(r, r->hidden ? NULL : t, to);
}

/* ---- whole answers ---- */

static void collect_text(struct openai_reply *r, unsigned choice)
{
    struct openai_choice *c = &r->choices[choice];
    const struct output_parser_out *o = &r->out;
    json_write_chars(&c->reasoning, o->reasoning.data, o->reasoning.len);
    json_write_chars(&c->text, o->content.data, o->content.len);
    if (c->items.len && o->calls.n)
        buf_puts(&c->items, ",");
    write_calls(r, choice, &c->items);
}

static void write_piece(struct openai_reply *r, unsigned choice, const struct openai_token *t,
                        struct buf *to)
{
    struct openai_choice *c = &r->choices[choice];
    if (r->stream) {
        write_event(r, choice, t, to);
        return;
    }
    collect_text(r, choice);
    if (r->logprobs && !r->hidden)
        openai_logprobs_add(&c->logprobs, r->chat, t, c->n_chars + t->n_held);
}

static void write_finished(struct openai_reply *r, unsigned choice, struct buf *to)
{
    const struct openai_choice *c = &r->choices[choice];
    if (!r->stream) {
        collect_text(r, choice);
        return;
    }
    chunk_begin(r, choice, to);
    write_text(r, choice, false, to);
    buf_printf(to, ",\"logprobs\":null,\"finish_reason\":\"%s\",\"stop_reason\":%s", c->reason,
               c->stop.data);
    chunk_end(r, NULL, to);
}

static void write_quoted(struct buf *to, const char *name, const struct buf *escaped)
{
    buf_printf(to, "\"%s\":\"", name);
    buf_add(to, escaped->data, escaped->len);
    buf_puts(to, "\"");
}

/* The content of a message with calls and no text is null. */
static void write_message(const struct openai_choice *c, struct buf *to)
{
    buf_puts(to, "\"message\":{\"role\":\"assistant\",");
    if (c->n_calls && !c->text.len)
        buf_puts(to, "\"content\":null");
    else
        write_quoted(to, "content", &c->text);
    if (c->reasoning.len) {
        buf_puts(to, ",");
        write_quoted(to, "reasoning_content", &c->reasoning);
    }
    if (c->n_calls) {
        buf_puts(to, ",\"tool_calls\":[");
        buf_add(to, c->items.data, c->items.len);
        buf_puts(to, "]");
    }
    buf_puts(to, ",\"refusal\":null}");
}

static void write_choice(const struct openai_reply *r, unsigned i, struct buf *to)
{
    const struct openai_choice *c = &r->choices[i];
    buf_printf(to, "%s{\"index\":%u,", i ? "," : "", i);
    if (r->chat)
        write_message(c, to);
    else
        write_quoted(to, "text", &c->text);
    buf_puts(to, ",\"logprobs\":");
    if (r->logprobs)
        openai_logprobs_write(&c->logprobs, r->chat, to);
    else
        buf_puts(to, "null");
    buf_printf(to, ",\"finish_reason\":\"%s\",\"stop_reason\":%s}", c->reason,
               c->stop.data ? c->stop.data : "null");
}

/* The usage chunk, if the request includes it, then [DONE]. */
static void end_stream(const struct openai_reply *r, struct buf *to)
{
    if (r->include_usage) {
        sse_begin(to);
        buf_puts(to, r->head);
        buf_puts(to, "\"choices\":[],");
        usage_json_write(r, to);
        buf_puts(to, "}");
        sse_end(to);
    }
    sse_done(to);
}

static int write_end(struct openai_reply *r, struct buf *to)
{
    if (r->stream) {
        end_stream(r, to);
        return buf_error(to);
    }
    buf_puts(to, r->head);
    buf_puts(to, "\"choices\":[");
    for (unsigned i = 0; i < r->n; i++)
        write_choice(r, i, to);
    buf_puts(to, "],");
    usage_json_write(r, to);
    buf_puts(to, "}\n");
    return buf_error(to);
}

static void write_failed(struct openai_reply *r, int status, const char *text, struct buf *to)
{
    (void)r;
    openai_error_event(to, status, text);
}

const struct openai_writer openai_text_writer = {write_started, write_piece, write_finished,
                                                 write_end, write_failed};
