/* harmony.c - splits the answers of gpt-oss, while they arrive. */
#include <errno.h>
#include <string.h>
#include "gateway/openai/harmony.h"
#include "gateway/openai/output_parser.h"

#define TO_TOOL "to=functions."
#define MESSAGE "<|message|>"

static const char *const markers[] = {"<|end|>",     "<|return|>",    "<|call|>",   "<|start|>",
                                      "<|channel|>", "<|constrain|>", "<|message|>"};
#define N_ENDS 3   // of a message
#define N_BOUNDS 5 // these, and what begins a header
#define LONGEST 13 // bytes of a marker

bool harmony_is_in(const char *source, size_t len)
{
    return memmem(source, len, "<|channel|>", 11) && memmem(source, len, MESSAGE, strlen(MESSAGE));
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
static bool may_be(const char *s, size_t len, const char *word)
{
    size_t n = strlen(word);
    return memcmp(s, word, len < n ? len : n) == 0;
}

/* Whether the held bytes may be the beginning of a header. */
static bool is_header(const struct harmony *h)
{
    const char *s = h->held.data;
    size_t len = h->held.len;
    while (len && (*s == ' ' || *s == '\n')) {
        s++;
        len--;
    }
    bool is = may_be(s, len, "to=");
    for (unsigned i = N_ENDS; i < ARRAY_LEN(markers); i++)
        is = is || may_be(s, len, markers[i]);
    return is && h->held.len <= HARMONY_HEADER_MAX;
}

static bool has(const struct buf *b, const char *word)
{
    return memmem(b->data, b->len, word, strlen(word)) != NULL;
}

static bool has_marker(const struct buf *b)
{
    for (unsigned i = 0; i < ARRAY_LEN(markers); i++)
        if (b->len && has(b, markers[i]))
            return true;
    return false;
}

/* The held bytes are a whole header. */
static void read_header(struct harmony *h, const struct output_parser_rules *rules,
                        struct output_parser_out *to)
{
    if (has(&h->held, TO_TOOL) && rules->format == TOOLS_HARMONY) {
        h->state = HARMONY_CALL;
        buf_clear(&h->call);
        buf_add(&h->call, h->held.data, h->held.len);
        note_error(&h->call, to);
        h->n_header = h->call.len;
    } else {
        const bool to_tool = has(&h->held, "to=") && !has(&h->held, "to=assistant");
        const bool reasons = to_tool || has(&h->held, "<|channel|>analysis");
        h->state = reasons ? HARMONY_REASONING : HARMONY_CONTENT;
    }
    buf_clear(&h->held);
}

/* Without a header the text is content. An end marker alone ends an empty message. */
static void scan_header(struct harmony *h, const struct output_parser_rules *rules,
                        struct output_parser_out *to)
{
    const struct buf *b = &h->held;
    const size_t n = strlen(MESSAGE);
    if (b->len >= n && memcmp(b->data + b->len - n, MESSAGE, n) == 0) {
        read_header(h, rules, to);
        return;
    }
    for (unsigned i = 0; i < N_ENDS; i++)
        if (may_be(b->data, b->len, markers[i])) {
            if (b->len == strlen(markers[i]))
                begin_header(h);
            return;
        }
    if (is_header(h))
        return;
    h->state = HARMONY_CONTENT;
    add_text(h, rules, b->data, b->len, to);
    buf_clear(&h->held);
}

/* ---- messages ---- */

/* The text of an invalid call is content. */
static void release_call(struct harmony *h, const struct output_parser_rules *rules,
                         struct output_parser_out *to)
{
    h->state = HARMONY_CONTENT;
    add_text(h, rules, h->call.data + h->n_header, h->call.len - h->n_header, to);
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
            if (!may_be(h->held.data, h->held.len, markers[i]))
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
        if (h->state == HARMONY_HEADER)
            scan_header(h, rules, to);
        else
            scan_text(h, rules, to);
    }
}

/* A header without text is left out. */
void harmony_end(struct harmony *h, const struct output_parser_rules *rules,
                 struct output_parser_out *to)
{
    if (h->state == HARMONY_HEADER && !has_marker(&h->held))
        h->state = HARMONY_CONTENT;
    if (h->state != HARMONY_HEADER)
        take_text(h, rules, h->held.data, h->held.len, to);
    end_message(h, rules, to);
}
