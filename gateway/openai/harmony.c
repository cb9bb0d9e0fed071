/* harmony.c - splits the answers of gpt-oss, while they arrive. */
#include <errno.h>
#include <string.h>
#include "gateway/openai/harmony.h"
#include "gateway/openai/output_parser.h"
#include "gateway/openai/text_cursor.h"

static const char *const markers[] = {"<|end|>",     "<|return|>",    "<|call|>",   "<|start|>",
                                      "<|channel|>", "<|constrain|>", "<|message|>"};
#define N_ENDS 3   // of a message
#define N_BOUNDS 5 // these, and what begins a header
#define LONGEST 13 // bytes of a marker

bool harmony_is_in(const char *source, size_t len)
{
    return memmem(source, len, "<|channel|>", 11) && memmem(source, len, "<|message|>", 11);
}

unsigned harmony_markers(const char *ret[])
{
    for (unsigned i = 0; i < ARRAY_LEN(markers); i++)
        ret[i] = markers[i];
    return ARRAY_LEN(markers);
}

void harmony_init(struct harmony *h)
{
    *h = (struct harmony){.state = HARMONY_HEADER};
    buf_init(&h->held, HARMONY_HEADER_MAX + LONGEST + 1);
    buf_init(&h->call, HARMONY_HEADER_MAX + LONGEST + 1 + TOOL_PARSER_MAX_BYTES);
}

void harmony_done(struct harmony *h)
{
    buf_done(&h->held);
    buf_done(&h->call);
}

size_t harmony_bytes(const struct harmony *h)
{
    return h->held.cap + h->call.cap;
}

static void note_error(const struct buf *b, struct output_parser_out *to)
{
    if (b->error)
        to->content.error = -ENOMEM;
}

/* ---- text ---- */

/* Adds text of the message. The first of a later message of its kind follows an empty line. */
static void add_text(struct harmony *h, const struct output_parser_rules *rules, const char *text,
                     size_t len, struct output_parser_out *to)
{
    const bool reasons = h->state == HARMONY_REASONING && rules->thinking;
    bool *has = reasons ? &h->has_reasoning : &h->has_content;
    struct buf *out = reasons ? &to->reasoning : &to->content;
    if (!len)
        return;
    if (*has && !h->begun)
        buf_puts(out, "\n\n");
    buf_add(out, text, len);
    *has = h->begun = true;
}

static void begin_header(struct harmony *h)
{
    h->state = HARMONY_HEADER;
    h->begun = false;
    buf_clear(&h->held);
}

/* ---- headers ---- */

/* Whether one of s and word begins with the other. */
static bool may_become(const char *s, size_t len, const char *word)
{
    size_t n = strlen(word);
    return memcmp(s, word, len < n ? len : n) == 0;
}

static bool ends_with(const struct buf *b, const char *word)
{
    size_t n = strlen(word);
    return b->len >= n && memcmp(b->data + b->len - n, word, n) == 0;
}

/* Whether the held bytes may be the beginning of a header, or of a marker that ends a message. */
static bool may_be_header(const struct harmony *h)
{
    const char *s = h->held.data;
    size_t len = h->held.len;
    while (len && (*s == ' ' || *s == '\n')) {
        s++;
        len--;
    }
    bool may = may_become(s, len, "to=");
    for (unsigned i = 0; i < ARRAY_LEN(markers); i++)
        may = may || may_become(s, len, markers[i]);
    return may && h->held.len <= HARMONY_HEADER_MAX;
}

static bool has_marker(const struct buf *b)
{
    for (unsigned i = 0; i < ARRAY_LEN(markers); i++)
        if (b->len && memmem(b->data, b->len, markers[i], strlen(markers[i])))
            return true;
    return false;
}

/* The word after the last `mark` of a header. */
static struct text_cursor word_after(const struct buf *header, const char *mark)
{
    struct text_cursor rest = {header->data, header->len}, skipped, word = {0};
    while (text_cursor_until(&rest, mark, &skipped))
        word = rest;
    size_t n = 0;
    while (n < word.len && word.data[n] != ' ' && word.data[n] != '<')
        n++;
    word.len = n;
    return word;
}

static bool is(struct text_cursor word, const char *name)
{
    return word.len == strlen(name) && memcmp(word.data, name, word.len) == 0;
}

/* Text to another recipient than the user is no content, unless it is in the channel `final`. */
static bool is_reasoning(const struct buf *header)
{
    const struct text_cursor channel = word_after(header, "<|channel|>");
    const struct text_cursor to = word_after(header, "to=");
    if (is(channel, "final"))
        return false;
    return is(channel, "analysis") || (to.len && !is(to, "assistant") && !is(to, "user"));
}

/* The held bytes are a whole header. */
static void read_header(struct harmony *h, const struct output_parser_rules *rules,
                        struct output_parser_out *to)
{
    struct text_cursor tool = word_after(&h->held, "to=");
    if (text_cursor_skip_word(&tool, "functions.") && rules->format == TOOLS_HARMONY) {
        h->state = HARMONY_CALL;
        buf_clear(&h->call);
        buf_add(&h->call, h->held.data, h->held.len);
        note_error(&h->call, to);
        h->n_header = h->call.len;
    } else {
        h->state = is_reasoning(&h->held) ? HARMONY_REASONING : HARMONY_CONTENT;
    }
    buf_clear(&h->held);
}

/* The held bytes are no header: the first one is content, and the others are read again. */
static void release_header(struct harmony *h, const struct output_parser_rules *rules,
                           struct output_parser_out *to)
{
    char text[HARMONY_HEADER_MAX + LONGEST];
    const size_t len = h->held.len;
    memcpy(text, h->held.data, len);
    buf_clear(&h->held);
    h->state = HARMONY_CONTENT;
    add_text(h, rules, text, 1, to);
    harmony_feed(h, rules, text + 1, len - 1, to);
}

/* Text without a header is content. A header that ends, or begins again, had no text. */
static void scan_header(struct harmony *h, const struct output_parser_rules *rules,
                        struct output_parser_out *to)
{
    if (ends_with(&h->held, "<|message|>")) {
        read_header(h, rules, to);
        return;
    }
    for (unsigned i = 0; i < N_ENDS; i++)
        if (ends_with(&h->held, markers[i])) {
            begin_header(h);
            return;
        }
    if (ends_with(&h->held, "<|start|>")) {
        begin_header(h);
        buf_puts(&h->held, "<|start|>");
        note_error(&h->held, to);
    }
    if (!may_be_header(h))
        release_header(h, rules, to);
}

/* ---- messages ---- */

/* An invalid call is content, as it was written. */
static void release_call(struct harmony *h, const struct output_parser_rules *rules,
                         struct output_parser_out *to)
{
    h->state = HARMONY_CONTENT;
    add_text(h, rules, h->call.data, h->call.len, to);
    buf_clear(&h->call);
}

static void end_call(struct harmony *h, const struct output_parser_rules *rules,
                     struct output_parser_out *to)
{
    const bool is_one_more = h->n_calls < TOOL_PARSER_MAX;
    if (is_one_more &&
        tool_parser_read(TOOLS_HARMONY, h->call.data, h->call.len, NULL, &to->calls) == 0)
        h->n_calls++;
    else
        release_call(h, rules, to);
}

static void end_message(struct harmony *h, const struct output_parser_rules *rules,
                        struct output_parser_out *to)
{
    if (h->state == HARMONY_CALL)
        end_call(h, rules, to);
    begin_header(h);
}

/* Text of a message, which is no marker. */
static void take_text(struct harmony *h, const struct output_parser_rules *rules, const char *text,
                      size_t len, struct output_parser_out *to)
{
    if (h->state != HARMONY_CALL) {
        add_text(h, rules, text, len, to);
        return;
    }
    const size_t room = TOOL_PARSER_MAX_BYTES - (h->call.len - h->n_header),
                 n = len < room ? len : room;
    buf_add(&h->call, text, n);
    note_error(&h->call, to);
    if (n < room)
        return;
    release_call(h, rules, to);
    add_text(h, rules, text + n, len - n, to);
}

/* Passes held bytes on that cannot become a marker, and applies a whole one. */
static void scan_text(struct harmony *h, const struct output_parser_rules *rules,
                      struct output_parser_out *to)
{
    for (size_t n; h->held.len; buf_shift(&h->held, n)) {
        for (unsigned i = 0; i < N_BOUNDS; i++) {
            if (!may_become(h->held.data, h->held.len, markers[i]))
                continue;
            if (h->held.len < strlen(markers[i]))
                return;
            end_message(h, rules, to);
            if (i >= N_ENDS) // its end is missing
                buf_puts(&h->held, markers[i]);
            note_error(&h->held, to);
            return;
        }
        const char *next = memchr(h->held.data + 1, '<', h->held.len - 1);
        n = next ? (size_t)(next - h->held.data) : h->held.len;
        take_text(h, rules, h->held.data, n, to);
    }
}

/* Text up to the next possible marker passes in one piece. */
static size_t plain_bytes(const struct harmony *h, const char *text, size_t len)
{
    if (h->state == HARMONY_HEADER || h->held.len)
        return 0;
    const char *next = memchr(text, '<', len);
    return next ? (size_t)(next - text) : len;
}

void harmony_feed(struct harmony *h, const struct output_parser_rules *rules, const char *text,
                  size_t len, struct output_parser_out *to)
{
    for (size_t i = 0, n; i < len; i += n) {
        n = plain_bytes(h, text + i, len - i);
        take_text(h, rules, text + i, n, to);
        if (n)
            continue;
        n = 1;
        buf_add(&h->held, text + i, n);
        note_error(&h->held, to);
        if (h->held.error)
            return;
        if (h->state == HARMONY_HEADER)
            scan_header(h, rules, to);
        else
            scan_text(h, rules, to);
    }
}

void harmony_end(struct harmony *h, const struct output_parser_rules *rules,
                 struct output_parser_out *to)
{
    if (h->state == HARMONY_HEADER && !has_marker(&h->held)) // else a header without text
        h->state = HARMONY_CONTENT;
    if (h->state != HARMONY_HEADER)
        take_text(h, rules, h->held.data, h->held.len, to);
    end_message(h, rules, to);
}
