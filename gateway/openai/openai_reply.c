/* openai_reply.c - answers in the shapes of OpenAI: the common part of all shapes. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "base/mem.h"
#include "base/rng.h"
#include "gateway/openai/json_write.h"
#include "gateway/openai/openai_writer.h"

/* Events of a response's stream that repeat what the request has set: created, in_progress, and the
 * last one. All may wait unread. */
#define ECHOING_EVENTS 3

/* `{"id":...,"object":...,"created":...,"model":...,"system_fingerprint":...,` */
static char *head_of(const struct openai_reply_head *h)
{
    static const struct {
        const char *id, *object, *chunk, *created;
    } v[] = {[OPENAI_CHAT] = {"chatcmpl-", "chat.completion", "chat.completion.chunk", "created"},
             [OPENAI_COMPLETION] = {"cmpl-", "text_completion", "text_completion", "created"},
             [OPENAI_RESPONSES] = {"resp_", "response", "response", "created_at"}};
    AUTO(buf_done) struct buf head = {0};
    buf_init(&head, 1 << 20);
    buf_printf(
        &head, "{\"id\":\"%s%s\",\"object\":\"%s\",\"%s\":%" PRId64 ",\"model\":", v[h->kind].id,
        h->id, h->stream ? v[h->kind].chunk : v[h->kind].object, v[h->kind].created, h->created);
    json_write_text(&head, h->model.data, h->model.len);
    buf_puts(&head, ",\"system_fingerprint\":");
    json_write_text(&head, h->fingerprint.data, h->fingerprint.len);
    buf_puts(&head, ",");
    return head.error ? NULL : buf_take(&head);
}

static void choice_init(struct openai_choice *c, const struct output_parser_rules *rules)
{
    output_parser_init(&c->parser, rules);
    buf_init(&c->text, OPENAI_MAX_TEXT);
    buf_init(&c->reasoning, OPENAI_MAX_TEXT);
    buf_init(&c->items, OPENAI_MAX_TEXT);
    buf_init(&c->stop, 4096);
    openai_logprobs_init(&c->logprobs);
}

static void choice_done(struct openai_choice *c)
{
    output_parser_done(&c->parser);
    buf_done(&c->text);
    buf_done(&c->reasoning);
    buf_done(&c->items);
    buf_done(&c->stop);
    openai_logprobs_done(&c->logprobs);
    free(TAKE(c->prompt));
}

int openai_reply_init(struct openai_reply *r, const struct openai_reply_head *h)
{
    bool response = h->kind == OPENAI_RESPONSES;
    AUTO(tool_types_free) struct tool_types *tools = h->tools;
    *r = (struct openai_reply){.writer = response ? &responses_writer : &openai_text_writer,
                               .chat = h->kind == OPENAI_CHAT,
                               .stream = h->stream,
                               .logprobs = h->logprobs,
                               .echo = h->echo,
                               .include_usage = h->include_usage,
                               .include_tokens = h->include_tokens,
                               .has_prediction = h->has_prediction,
                               .hides_reasoning = h->hides_reasoning,
                               .one_call = h->one_call,
                               .rules = h->rules,
                               .echoed = h->echoed,
                               .id = h->id,
                               .id_seed = h->id_seed,
                               .head = head_of(h)};
    output_parser_out_init(&r->out);
    r->choices = calloc(h->n, sizeof(*r->choices));
    if (!r->head || !r->choices) {
        openai_reply_done(r);
        return fail(-ENOMEM, "reply: no memory for %u choices", h->n);
    }
    if (tool_parser_uses_types(h->rules.format))
        r->types = TAKE(tools);
    r->rules.types = r->types;
    r->n_each = h->n_each;
    for (; r->n < h->n; r->n++)
        choice_init(&r->choices[r->n], &r->rules);
    return 0;
}

void openai_reply_drop(struct openai_reply *r)
{
    for (unsigned i = 0; i < r->n; i++)
        choice_done(&r->choices[i]);
    output_parser_out_done(&r->out);
}

void openai_reply_done(struct openai_reply *r)
{
    openai_reply_drop(r);
    free(r->choices);
    free(r->head);
    tool_types_free(r->types);
    free(r->echoed);
    *r = (struct openai_reply){0};
}

size_t openai_reply_kept_bytes(const struct openai_reply *r)
{
    size_t n_echoed = r->echoed ? strlen(r->echoed) + 1 : 0;
    return tool_types_bytes(r->types) + n_echoed * (r->stream ? 1 + ECHOING_EVENTS : 1);
}

size_t openai_reply_end_bytes(const struct openai_reply *r)
{
    bool repeats = !r->stream || r->writer == &responses_writer;
    size_t n_echoed = r->echoed ? strlen(r->echoed) : 0;
    return repeats ? r->collected_bytes - r->out_bytes + n_echoed : 0;
}

/* Updates the count after a change of the choice and of `out`. */
static void count_collected(struct openai_reply *r, struct openai_choice *c)
{
    size_t n = c->text.cap + c->reasoning.cap + c->items.cap + c->stop.cap + c->n_prompt +
               openai_logprobs_bytes(&c->logprobs) + output_parser_bytes(&c->parser);
    size_t n_out = r->out.reasoning.cap + r->out.content.cap;
    r->collected_bytes += n - c->collected_bytes; // may wrap around zero on the way
    r->collected_bytes += n_out - r->out_bytes;
    c->collected_bytes = n;
    r->out_bytes = n_out;
}

/* After a change of the choice: records what is lost of it, and counts its memory. */
static void choice_changed(struct openai_reply *r, struct openai_choice *c, const struct buf *to)
{
    const struct buf *parts[] = {&r->out.reasoning, &r->out.content, &c->text, &c->reasoning,
                                 &c->items,         &c->stop,        to};
    for (size_t i = 0; i < ARRAY_LEN(parts); i++)
        openai_choice_check(c, parts[i]);
    c->error = c->error ? c->error : openai_logprobs_error(&c->logprobs);
    count_collected(r, c);
}

/* A made id has nine characters: Mistral's templates refuse any other length. */
const char *openai_call_id(const struct openai_reply *r, unsigned choice, unsigned index,
                           const struct tool_call *call, char made[OPENAI_CALL_ID])
{
    static const char digits[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    uint64_t x = rng_splitmix64(r->id_seed + ((uint64_t)choice << 32 | index));
    if (call->id)
        return call->id;
    int n = r->rules.format == TOOLS_MISTRAL ? 0 : sprintf(made, "call_");
    for (int i = 0; i < 9; i++, x /= 62)
        made[n++] = digits[x % 62];
    made[n] = 0;
    return made;
}

/* Saves the prompt for the other choices. Without memory the other choices do not echo it. */
static void save_prompt(struct openai_choice *first, struct openai_text prompt)
{
    first->prompt = prompt.len ? malloc(prompt.len) : NULL;
    first->n_prompt = first->prompt ? prompt.len : 0;
    if (first->prompt)
        memcpy(first->prompt, prompt.data, prompt.len);
}

static struct openai_choice *first_of(struct openai_reply *r, unsigned choice)
{
    return &r->choices[choice - choice % r->n_each];
}

/* Each choice of a prompt reports these numbers. Later choices may find more cached tokens; the
 * maximum counts. */
void openai_reply_prompt(struct openai_reply *r, unsigned choice, uint32_t n, uint32_t n_cached)
{
    struct openai_choice *first = first_of(r, choice);
    uint32_t most = n_cached > first->cached_tokens ? n_cached : first->cached_tokens;
    r->prompt_tokens += n - first->prompt_tokens;
    r->cached_tokens += most - first->cached_tokens;
    first->prompt_tokens = n;
    first->cached_tokens = most;
}

static uint32_t count_chars(struct openai_text t)
{
    uint32_t n = 0;
    for (size_t i = 0; i < t.len; i++)
        n += ((unsigned char)t.data[i] & 0xC0) != 0x80;
    return n;
}

void openai_reply_started(struct openai_reply *r, unsigned choice, struct openai_text prompt,
                          struct buf *to)
{
    struct openai_choice *c = &r->choices[choice], *first = first_of(r, choice);
    if (c->started)
        return;
    c->started = true;
    if (!r->echo)
        prompt.len = 0;
    else if (c != first)
        prompt = (struct openai_text){first->prompt, first->n_prompt};
    else if (r->n_each > 1)
        save_prompt(first, prompt);
    c->n_chars += count_chars(prompt);
    r->writer->started(r, choice, prompt, to);
    choice_changed(r, c, to);
}

/* Drops hidden reasoning, and calls after the first if only one is allowed. */
static void drop_unwanted(struct openai_reply *r, struct openai_choice *c)
{
    if (r->hides_reasoning)
        buf_clear(&r->out.reasoning);
    if (r->one_call)
        tool_parser_cut(&r->out.calls, c->n_calls ? 0 : 1);
}

void openai_reply_token(struct openai_reply *r, unsigned choice, const struct openai_token *t,
                        struct buf *to)
{
    struct openai_choice *c = &r->choices[choice];
    bool reasoned = output_parser_reasons(&c->parser);
    output_parser_out_clear(&r->out);
    output_parser_feed(&c->parser, t->text.data, t->text.len, &r->out);
    drop_unwanted(r, c);
    reasoned |= output_parser_reasons(&c->parser);
    r->completion_tokens++;
    r->reasoning_tokens += reasoned;
    bool quiet = reasoned || c->parser.state == OUTPUT_PARSER_CALL || r->out.calls.n;
    r->has_content = r->out.content.len || !quiet;
    r->hidden = r->hides_reasoning && reasoned && !r->out.content.len && !r->out.calls.n;
    r->writer->piece(r, choice, t, to);
    c->n_calls += r->out.calls.n;
    c->n_chars += count_chars(t->text);
    choice_changed(r, c, to);
}

void openai_reply_finished(struct openai_reply *r, unsigned choice, const char *reason,
                           struct openai_text text, struct openai_text stop, struct buf *to)
{
    struct openai_choice *c = &r->choices[choice];
    if (c->finished)
        return;
    c->finished = true;
    output_parser_out_clear(&r->out);
    output_parser_feed(&c->parser, text.data, text.len, &r->out);
    output_parser_end(&c->parser, &r->out);
    drop_unwanted(r, c);
    bool called = c->n_calls || r->out.calls.n;
    snprintf(c->reason, sizeof(c->reason), "%s",
             called && strcmp(reason, "stop") == 0 ? "tool_calls" : reason);
    if (stop.len)
        json_write_text(&c->stop, stop.data, stop.len);
    else
        buf_puts(&c->stop, "null");
    if (!c->stop.error) // else the JSON is cut off: the choice is lost, see choice_changed()
        r->writer->finished(r, choice, to);
    c->n_calls += r->out.calls.n;
    choice_changed(r, c, to);
}

bool openai_reply_complete(const struct openai_reply *r, unsigned prompt)
{
    for (unsigned i = 0; i < r->n_each; i++)
        if (!r->choices[prompt * r->n_each + i].finished)
            return false;
    return true;
}

int openai_reply_end(struct openai_reply *r, struct buf *to)
{
    for (unsigned i = 0; i < r->n; i++)
        if (r->choices[i].error)
            return fail(r->choices[i].error, "a part of choice %u is lost", i);
    return r->writer->end(r, to);
}

void openai_reply_fail(struct openai_reply *r, int status, const char *text, struct buf *to)
{
    r->writer->failed(r, status, text, to);
}
