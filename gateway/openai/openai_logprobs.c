/* openai_logprobs.c - the logprobs of an answer, in the shapes of chats and completions. */
#include "gateway/openai/json_write.h"
#include "gateway/openai/openai_logprobs.h"

void openai_logprobs_init(struct openai_logprobs *l)
{
    buf_init(&l->tokens, OPENAI_MAX_TEXT);
    buf_init(&l->values, OPENAI_MAX_TEXT);
    buf_init(&l->tops, OPENAI_MAX_TEXT);
    buf_init(&l->offsets, OPENAI_MAX_TEXT);
}

void openai_logprobs_done(struct openai_logprobs *l)
{
    buf_done(&l->tokens);
    buf_done(&l->values);
    buf_done(&l->tops);
    buf_done(&l->offsets);
}

size_t openai_logprobs_bytes(const struct openai_logprobs *l)
{
    return l->tokens.cap + l->values.cap + l->tops.cap + l->offsets.cap;
}

static bool is_utf8(struct openai_text t)
{
    for (size_t i = 0; i < t.len;) {
        unsigned n = json_write_utf8((const unsigned char *)t.data + i, t.len - i);
        if (!n)
            return false;
        i += n;
    }
    return true;
}

/* The text of a token as a key. Invalid UTF-8 is written as bytes, so different tokens have
 * different keys. */
static void write_token_key(struct buf *to, struct openai_text t)
{
    if (is_utf8(t)) {
        json_write_text(to, t.data, t.len);
        return;
    }
    buf_puts(to, "\"bytes:");
    for (size_t i = 0; i < t.len; i++)
        buf_printf(to, "\\\\x%02x", (unsigned char)t.data[i]);
    buf_puts(to, "\"");
}

static void write_chat_logprob(struct buf *to, struct openai_text bytes, float logprob)
{
    buf_puts(to, "{\"token\":");
    json_write_text(to, bytes.data, bytes.len);
    buf_puts(to, ",\"logprob\":");
    json_write_float(to, logprob);
    buf_puts(to, ",\"bytes\":");
    json_write_bytes(to, bytes.data, bytes.len);
}

static void add_comma(struct buf *to)
{
    if (to->len)
        buf_add(to, ",", 1);
}

static void add_chat_logprobs(struct openai_logprobs *l, const struct openai_token *t)
{
    add_comma(&l->tokens);
    write_chat_logprob(&l->tokens, t->bytes, t->logprob);
    buf_puts(&l->tokens, ",\"top_logprobs\":[");
    for (unsigned i = 0; i < t->n_top; i++) {
        buf_puts(&l->tokens, i ? "," : "");
        write_chat_logprob(&l->tokens, t->top[i].bytes, t->top[i].logprob);
        buf_puts(&l->tokens, "}");
    }
    buf_puts(&l->tokens, "]}");
}

static void add_completion_logprobs(struct openai_logprobs *l, const struct openai_token *t,
                                    uint32_t offset)
{
    add_comma(&l->tokens);
    write_token_key(&l->tokens, t->bytes);
    add_comma(&l->values);
    json_write_float(&l->values, t->logprob);
    add_comma(&l->tops);
    buf_puts(&l->tops, "{");
    for (unsigned i = 0; i < t->n_top; i++) {
        buf_puts(&l->tops, i ? "," : "");
        write_token_key(&l->tops, t->top[i].bytes);
        buf_puts(&l->tops, ":");
        json_write_float(&l->tops, t->top[i].logprob);
    }
    buf_puts(&l->tops, "}");
    add_comma(&l->offsets);
    buf_printf(&l->offsets, "%u", offset);
}

void openai_logprobs_add(struct openai_logprobs *l, bool chat, const struct openai_token *t,
                         uint32_t offset)
{
    if (chat)
        add_chat_logprobs(l, t);
    else
        add_completion_logprobs(l, t, offset);
}

static void write_list(struct buf *to, const char *before, const struct buf *list)
{
    buf_puts(to, before);
    buf_add(to, list->data, list->len);
}

void openai_logprobs_write(const struct openai_logprobs *l, bool chat, struct buf *to)
{
    if (chat) {
        write_list(to, "{\"content\":[", &l->tokens);
        buf_puts(to, "],\"refusal\":null}");
        return;
    }
    write_list(to, "{\"tokens\":[", &l->tokens);
    write_list(to, "],\"token_logprobs\":[", &l->values);
    write_list(to, "],\"top_logprobs\":[", &l->tops);
    write_list(to, "],\"text_offset\":[", &l->offsets);
    buf_puts(to, "]}");
}

int openai_logprobs_error(const struct openai_logprobs *l)
{
    const struct buf *lists[] = {&l->tokens, &l->values, &l->tops, &l->offsets};
    for (size_t i = 0; i < ARRAY_LEN(lists); i++)
        if (lists[i]->error)
            return buf_error(lists[i]);
    return 0;
}
