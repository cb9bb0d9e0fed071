/* responses_reply.c - response objects and their events. There is one choice.
 *
 *     created, in_progress, then for each item of the output
 *     output_item.added, content_part.added, its deltas, its done, content_part.done,
 *     output_item.done, and at last completed, incomplete or failed */
#include <stdio.h>
#include <string.h>
#include "gateway/openai/json_write.h"
#include "gateway/openai/usage_json.h"
#include "gateway/openai/openai_writer.h"

enum { NOTHING, REASONING, MESSAGE };

/* The names of an item with text. */
static const struct item {
    const char *id, *type, *event;
} items[] = {[REASONING] = {"rs", "reasoning", "reasoning_text"},
             [MESSAGE] = {"msg", "message", "output_text"}};

/* ---- events ---- */

/* Both write only if the answer is a stream. */
static bool event_begin(const struct openai_reply *r, const char *name, struct buf *to)
{
    if (!r->stream)
        return false;
    buf_printf(to, "event: response.%s\ndata: {\"type\":\"response.%s\",\"sequence_number\":%u",
               name, name, r->choices[0].n_events++);
    return true;
}

static void event_end(struct buf *to)
{
    buf_puts(to, "}\n\n");
}

/* Begins an event about the text of the open item. */
static bool text_event_begin(const struct openai_reply *r, const char *name, struct buf *to)
{
    const struct openai_choice *c = &r->choices[0];
    char whole[48];
    snprintf(whole, sizeof(whole), name, items[c->open].event);
    if (!event_begin(r, whole, to))
        return false;
    buf_printf(to, ",\"item_id\":\"%s_%s_%u\",\"output_index\":%u,\"content_index\":0",
               items[c->open].id, r->id, c->n_items, c->n_items);
    return true;
}

/* ---- items with text ---- */

/* The logprobs of the message's tokens, from this byte on. */
static void write_logprobs(const struct openai_choice *c, size_t from, struct buf *to)
{
    const struct buf *all = &c->logprobs.tokens;
    from += from && from < all->len; // the comma
    buf_puts(to, ",\"logprobs\":[");
    if (from < all->len)
        buf_add(to, all->data + from, all->len - from);
    buf_puts(to, "]");
}

static void write_part(const struct openai_choice *c, bool empty, struct buf *to)
{
    buf_printf(to, "{\"type\":\"%s\",\"text\":\"", items[c->open].event);
    if (!empty)
        buf_add(to, c->text.data, c->text.len);
    buf_puts(to, "\"");
    if (c->open == MESSAGE) {
        buf_puts(to, ",\"annotations\":[]");
        write_logprobs(c, empty ? c->logprobs.tokens.len : 0, to);
    }
    buf_puts(to, "}");
}

static void write_item(const struct openai_reply *r, const char *status, struct buf *to)
{
    const struct openai_choice *c = &r->choices[0];
    bool begins = strcmp(status, "in_progress") == 0;
    buf_printf(to, "{\"id\":\"%s_%s_%u\",\"type\":\"%s\",\"status\":\"%s\",%s\"content\":[",
               items[c->open].id, r->id, c->n_items, items[c->open].type, status,
               c->open == MESSAGE ? "\"role\":\"assistant\"," : "\"summary\":[],");
    if (!begins)
        write_part(c, false, to);
    buf_puts(to, "]}");
}

static void open_item(struct openai_reply *r, int what, struct buf *to)
{
    struct openai_choice *c = &r->choices[0];
    c->open = what;
    if (event_begin(r, "output_item.added", to)) {
        buf_printf(to, ",\"output_index\":%u,\"item\":", c->n_items);
        write_item(r, "in_progress", to);
        event_end(to);
    }
    if (text_event_begin(r, "content_part.added", to)) {
        buf_puts(to, ",\"part\":");
        write_part(c, true, to);
        event_end(to);
    }
}

static void end_text(struct openai_reply *r, struct buf *to)
{
    struct openai_choice *c = &r->choices[0];
    if (text_event_begin(r, "%s.done", to)) {
        buf_puts(to, ",\"text\":\"");
        buf_add(to, c->text.data, c->text.len);
        buf_puts(to, "\"");
        if (c->open == MESSAGE)
            write_logprobs(c, 0, to);
        event_end(to);
    }
    if (text_event_begin(r, "content_part.done", to)) {
        buf_puts(to, ",\"part\":");
        write_part(c, false, to);
        event_end(to);
    }
}

/* A delta of the open item, with the logprobs that no event has sent yet. */
static void write_delta(struct openai_reply *r, const char *text, size_t len, struct buf *to)
{
    struct openai_choice *c = &r->choices[0];
    if (text_event_begin(r, "%s.delta", to)) {
        buf_puts(to, ",\"delta\":");
        json_write_text(to, text, len);
        if (c->open == MESSAGE)
            write_logprobs(c, c->n_sent_logprobs, to);
        event_end(to);
    }
    c->n_sent_logprobs = c->open == MESSAGE ? c->logprobs.tokens.len : 0;
}

static void forget_logprobs(struct openai_choice *c)
{
    openai_choice_check(c, &c->logprobs.tokens);
    buf_clear(&c->logprobs.tokens);
    c->n_sent_logprobs = 0;
}

static void end_item(struct openai_reply *r, const char *status, struct buf *to)
{
    struct openai_choice *c = &r->choices[0];
    if (c->open == NOTHING)
        return;
    if (c->open == MESSAGE && c->n_sent_logprobs < c->logprobs.tokens.len)
        write_delta(r, "", 0, to); // its last tokens have no text
    end_text(r, to);
    buf_puts(&c->items, c->items.len ? "," : "");
    size_t from = c->items.len;
    write_item(r, status, &c->items);
    if (event_begin(r, "output_item.done", to)) {
        buf_printf(to, ",\"output_index\":%u,\"item\":", c->n_items);
        buf_add(to, c->items.data + from, c->items.len - from);
        event_end(to);
    }
    openai_choice_check(c, &c->text);
    buf_clear(&c->text);
    if (c->open == MESSAGE)
        forget_logprobs(c);
    c->open = NOTHING;
    c->n_items++;
}

static void append_text(struct openai_reply *r, int what, const struct buf *text, struct buf *to)
{
    struct openai_choice *c = &r->choices[0];
    if (!text->len)
        return;
    if (c->open != what) {
        end_item(r, "completed", to);
        open_item(r, what, to);
    }
    json_write_chars(&c->text, text->data, text->len);
    write_delta(r, text->data, text->len, to);
}

/* A token that is not content follows: the tokens before it whose text was held back belong to a
 * marker, so their logprobs are dropped. */
static void add_logprobs(struct openai_reply *r, const struct openai_token *t)
{
    struct openai_choice *c = &r->choices[0];
    if (!r->logprobs || !t)
        return;
    if (r->has_content)
        openai_logprobs_add(&c->logprobs, true, t, 0);
    else
        c->logprobs.tokens.len = c->n_sent_logprobs;
}

/* ---- calls ---- */

static void write_call(const struct openai_reply *r, const struct tool_call *call, const char *id,
                       bool begins, struct buf *to)
{
    buf_printf(to, "{\"id\":\"fc_%s_%u\",\"type\":\"function_call\",\"status\":\"%s\",\"call_id\":",
               r->id, r->choices[0].n_items, begins ? "in_progress" : "completed");
    json_write_cstr(to, id);
    buf_puts(to, ",\"name\":");
    json_write_cstr(to, call->name);
    buf_puts(to, ",\"arguments\":");
    json_write_cstr(to, begins ? "" : call->arguments);
    buf_puts(to, "}");
}

static void call_event(const struct openai_reply *r, const char *name, const struct tool_call *call,
                       const char *id, struct buf *to)
{
    if (!event_begin(r, name, to))
        return;
    buf_printf(to, ",\"output_index\":%u,\"item\":", r->choices[0].n_items);
    write_call(r, call, id, strcmp(name, "output_item.added") == 0, to);
    event_end(to);
}

static void arguments_event(const struct openai_reply *r, const char *what, const char *member,
                            const struct tool_call *call, struct buf *to)
{
    char name[48];
    unsigned i = r->choices[0].n_items;
    snprintf(name, sizeof(name), "function_call_arguments.%s", what);
    if (!event_begin(r, name, to))
        return;
    buf_printf(to, ",\"item_id\":\"fc_%s_%u\",\"output_index\":%u,\"name\":", r->id, i, i);
    json_write_cstr(to, call->name);
    buf_printf(to, ",\"%s\":", member);
    json_write_cstr(to, call->arguments);
    event_end(to);
}

static void add_call(struct openai_reply *r, unsigned i, struct buf *to)
{
    struct openai_choice *c = &r->choices[0];
    const struct tool_call *call = &r->out.calls.v[i];
    char made[OPENAI_CALL_ID];
    const char *id = openai_call_id(r, 0, c->n_calls + i, call, made);
    call_event(r, "output_item.added", call, id, to);
    arguments_event(r, "delta", "delta", call, to);
    arguments_event(r, "done", "arguments", call, to);
    call_event(r, "output_item.done", call, id, to);
    buf_puts(&c->items, c->items.len ? "," : "");
    write_call(r, call, id, false, &c->items);
    c->n_items++;
}

/* ---- the response ---- */

static void write_usage(const struct openai_reply *r, struct buf *to)
{
    buf_printf(to,
               ",\"usage\":{\"input_tokens\":%u,\"input_tokens_details\":{\"cached_tokens\":%u},"
               "\"output_tokens\":%u,\"output_tokens_details\":{\"reasoning_tokens\":%u},"
               "\"total_tokens\":%u},",
               r->prompt_tokens, r->cached_tokens, r->completion_tokens, r->reasoning_tokens,
               r->prompt_tokens + r->completion_tokens);
    usage_json_metrics(r, to);
}

/* error: a sentence, or NULL. */
static void write_response(const struct openai_reply *r, const char *status, const char *error,
                           struct buf *to)
{
    const struct openai_choice *c = &r->choices[0];
    buf_puts(to, r->head);
    buf_printf(to, "\"status\":\"%s\",\"error\":", status);
    if (error) {
        buf_puts(to, "{\"code\":\"server_error\",\"message\":");
        json_write_cstr(to, error);
        buf_puts(to, "}");
    } else {
        buf_puts(to, "null");
    }
    buf_printf(to, ",\"incomplete_details\":%s,",
               strcmp(status, "incomplete") == 0 ? "{\"reason\":\"max_output_tokens\"}" : "null");
    buf_puts(to, r->echoed);
    buf_puts(to, ",\"output\":[");
    buf_add(to, c->items.data, c->items.len);
    buf_puts(to, "]");
    if (c->finished)
        write_usage(r, to);
    else
        buf_puts(to, ",\"usage\":null");
    buf_puts(to, "}");
}

static void response_event(const struct openai_reply *r, const char *status, const char *name,
                           const char *error, struct buf *to)
{
    if (!event_begin(r, name, to))
        return;
    buf_puts(to, ",\"response\":");
    write_response(r, status, error, to);
    event_end(to);
}

static void write_started(struct openai_reply *r, unsigned choice, struct openai_text prompt,
                          struct buf *to)
{
    (void)choice;
    (void)prompt;
    response_event(r, "in_progress", "created", NULL, to);
    response_event(r, "in_progress", "in_progress", NULL, to);
}

static void write_piece(struct openai_reply *r, unsigned choice, const struct openai_token *t,
                        struct buf *to)
{
    (void)choice;
    append_text(r, REASONING, &r->out.reasoning, to);
    add_logprobs(r, t);
    append_text(r, MESSAGE, &r->out.content, to);
    if (r->out.calls.n)
        end_item(r, "completed", to);
    for (unsigned i = 0; i < r->out.calls.n; i++)
        add_call(r, i, to);
}

static const char *status_of(const struct openai_reply *r)
{
    return strcmp(r->choices[0].reason, "length") == 0 ? "incomplete" : "completed";
}

static void write_finished(struct openai_reply *r, unsigned choice, struct buf *to)
{
    write_piece(r, choice, NULL, to);
    end_item(r, status_of(r), to);
}

static int write_end(struct openai_reply *r, struct buf *to)
{
    response_event(r, status_of(r), status_of(r), NULL, to);
    if (!r->stream) {
        write_response(r, status_of(r), NULL, to);
        buf_puts(to, "\n");
    }
    return buf_error(to);
}

static void write_failed(struct openai_reply *r, int status, const char *text, struct buf *to)
{
    (void)status;
    response_event(r, "failed", "failed", text, to);
}

const struct openai_writer responses_writer = {write_started, write_piece, write_finished,
                                               write_end, write_failed};
