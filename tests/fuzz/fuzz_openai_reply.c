/* fuzz_openai_reply.c - the text of a model becomes answers: every event and object is JSON, and a
 * stream has the same content as the whole answer. The first two bytes choose shape and rules. Then
 * each token is a byte for its length and its text. */
#include <assert.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include "base/mem.h"
#include "gateway/openai/openai_reply.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* Makes the text ASCII: tokens hold whole characters only. */
struct script {
    enum openai_kind kind;
    bool logprobs, hides, one_call, length;
    struct output_parser_rules rules;
    char *text; // (n) with the tokens' lengths in between
    size_t n;
};

static void play(const struct script *s, bool stream, struct buf *to)
{
    struct openai_reply_head head = {.kind = s->kind,
                                     .stream = stream,
                                     .logprobs = s->logprobs,
                                     .hides_reasoning = s->hides,
                                     .one_call = s->one_call,
                                     .rules = s->rules,
                                     .id = "r",
                                     .n = 1,
                                     .n_each = 1,
                                     .echoed = strdup("\"user\":null")};
    struct openai_reply r;
    const struct openai_text none = {"", 0};
    buf_init(to, 64 << 20);
    int rc = openai_reply_init(&r, &head);
    assert(rc == 0);
    openai_reply_started(&r, 0, none, to);
    for (size_t at = 0; at < s->n;) {
        size_t len = (unsigned char)s->text[at++] % 16;
        len = len < s->n - at ? len : s->n - at;
        struct openai_text text = {s->text + at, len};
        openai_reply_token(&r, 0, &(struct openai_token){.text = text, .bytes = text}, to);
        at += len;
    }
    openai_reply_finished(&r, 0, s->length ? "length" : "stop", none, none, to);
    rc = openai_reply_end(&r, to);
    assert(rc == 0);
    openai_reply_done(&r);
}

/* ---- the content of a stream ---- */

/* Appends `more` to the text at `name`; either may be absent. */
static void join(json_t *to, const char *name, const json_t *more)
{
    const char *text = json_string_value(more),
               *before = json_string_value(json_object_get(to, name));
    if (text && *text)
        json_object_set_new(to, name, json_sprintf("%s%s", before ? before : "", text));
}

static void join_list(json_t *to, const char *name, json_t *more)
{
    if (json_array_size(more) && !json_object_get(to, name))
        json_object_set_new(to, name, json_array());
    json_array_extend(json_object_get(to, name), more);
}

static void add_calls(json_t *content, json_t *calls)
{
    size_t i;
    json_t *call;
    json_array_foreach(calls, i, call)
    {
        size_t n = json_array_size(json_object_get(content, "tool_calls"));
        assert((size_t)json_integer_value(json_object_get(call, "index")) == n + i);
        json_object_del(call, "index");
    }
    join_list(content, "tool_calls", calls);
}

static void add_chunk(json_t *content, const json_t *event)
{
    const json_t *choice = json_array_get(json_object_get(event, "choices"), 0),
                 *delta = json_object_get(choice, "delta");
    join(content, "text", json_object_get(choice, "text"));
    join(content, "text", json_object_get(delta, "content"));
    join(content, "reasoning", json_object_get(delta, "reasoning_content"));
    join(content, "reason", json_object_get(choice, "finish_reason"));
    add_calls(content, json_object_get(delta, "tool_calls"));
    join_list(content, "logprobs", json_object_get(json_object_get(choice, "logprobs"), "content"));
}

static json_t *content_by_choice(const json_t *whole)
{
    const json_t *choice = json_array_get(json_object_get(whole, "choices"), 0),
                 *message = json_object_get(choice, "message");
    json_t *content = json_object();
    join(content, "text", json_object_get(choice, "text"));
    join(content, "text", json_object_get(message, "content"));
    join(content, "reasoning", json_object_get(message, "reasoning_content"));
    join(content, "reason", json_object_get(choice, "finish_reason"));
    join_list(content, "tool_calls", json_object_get(message, "tool_calls"));
    join_list(content, "logprobs", json_object_get(json_object_get(choice, "logprobs"), "content"));
    return content;
}

/* Collects the deltas of an item until its end, which must have the same text. */
static void add_typed(json_t *content, json_t *event)
{
    const char *type = json_string_value(json_object_get(event, "type"));
    json_t *open = json_object_get(content, "open");
    if (strstr(type, "_text.delta")) {
        join(open, "text", json_object_get(event, "delta"));
        join_list(open, "logprobs", json_object_get(event, "logprobs"));
    } else if (strstr(type, "output_item.added")) {
        json_object_set_new(content, "open", json_object());
    } else if (strstr(type, "output_item.done")) {
        json_t *item = json_object_get(event, "item"),
               *part = json_array_get(json_object_get(item, "content"), 0), *all = json_object();
        join(all, "text", json_object_get(part, "text"));
        join_list(all, "logprobs", json_object_get(part, "logprobs"));
        assert(!part || json_equal(all, open));
        json_decref(all);
        if (!json_object_get(content, "output"))
            json_object_set_new(content, "output", json_array());
        json_array_append(json_object_get(content, "output"), item);
    } else if (json_object_get(event, "response")) {
        json_object_set(content, "response", json_object_get(event, "response"));
    }
}

static json_t *read_json(const char *text, size_t len)
{
    json_error_t e;
    json_t *j = json_loadb(text, len, 0, &e);
    assert(j);
    return j;
}

static json_t *said_by_stream(const struct script *s, const struct buf *events)
{
    json_t *content = json_object();
    for (const char *at = events->data, *end; (at = strstr(at, "data: ")); at = end) {
        at += strlen("data: ");
        end = strchr(at, '\n');
        if (strncmp(at, "[DONE]", 6) == 0)
            continue;
        json_t *event = read_json(at, (size_t)(end - at));
        if (s->kind == OPENAI_RESPONSES)
            add_typed(content, event);
        else
            add_chunk(content, event);
        json_decref(event);
    }
    return content;
}

static void compare(const struct script *s, const struct buf *events, const struct buf *whole)
{
    json_t *streamed = said_by_stream(s, events), *all = read_json(whole->data, whole->len);
    if (s->kind == OPENAI_RESPONSES) {
        json_t *output = json_object_get(all, "output"),
               *items = json_object_get(streamed, "output");
        assert(json_equal(json_object_get(streamed, "response"), all));
        assert(items ? json_equal(items, output) : !json_array_size(output));
    } else {
        json_t *content = content_by_choice(all);
        assert(json_equal(streamed, content));
        json_decref(content);
    }
    json_decref(streamed);
    json_decref(all);
}

/* ---- the input ---- */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static const enum openai_kind kinds[] = {OPENAI_CHAT, OPENAI_RESPONSES, OPENAI_COMPLETION,
                                             OPENAI_CHAT};
    static const enum tool_format formats[] = {TOOLS_NONE,  TOOLS_HERMES,  TOOLS_CODER,
                                               TOOLS_LLAMA, TOOLS_MISTRAL, TOOLS_GLM};
    static const struct output_parser_thinking think = {"<think>", "</think>"};
    struct buf events, whole;
    if (n < 2)
        return 0;
    struct script s = {.kind = kinds[data[0] % 4],
                       .logprobs = data[0] & 4,
                       .hides = data[0] & 8,
                       .one_call = data[0] & 16,
                       .length = data[0] & 32,
                       .n = n - 2};
    if (s.kind != OPENAI_COMPLETION)
        s.rules = (struct output_parser_rules){.thinking = data[1] & 128 ? &think : NULL,
                                               .begun = data[1] & 64,
                                               .format = formats[data[1] % ARRAY_LEN(formats)]};
    s.text = malloc(s.n + 1);
    for (size_t i = 0; i < s.n; i++) {
        char c = (char)(data[i + 2] % 128);
        s.text[i] = (char)(c < ' ' && c != '\n' ? c | ' ' : c);
    }
    play(&s, true, &events);
    play(&s, false, &whole);
    compare(&s, &events, &whole);
    buf_done(&events);
    buf_done(&whole);
    free(s.text);
    return 0;
}
