/* output_parser.c - splits the text of an answer into reasoning, content and tool calls. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "gateway/openai/output_parser.h"

#define TRIES_MAX 16  // end markers tried per call: one may be part of a value
#define MARKERS_MAX 8 // that may come next
/* Limit of the bytes that an answer's failed candidates may cost. Beyond the limit, the text of a
 * failed candidate is emitted as content and not rescanned. One token can cause all of that
 * work. */
#define WASTED_BYTES_MAX (TOOL_PARSER_MAX_BYTES / 2)
#define OUT_MAX (64u << 20)

const struct output_parser_thinking *output_parser_thinking_of(const char *source, size_t len)
{
    static const struct output_parser_thinking v[] = {{"<think>", "</think>"},
                                                      {"[THINK]", "[/THINK]"}};
    static const struct output_parser_thinking analysis = {"<|channel|>analysis<|message|>",
                                                           "<|end|>"};
    if (harmony_is_in(source, len))
        return &analysis;
    for (size_t i = 0; i < ARRAY_LEN(v); i++)
        if (memmem(source, len, v[i].end, strlen(v[i].end)))
            return &v[i];
    return NULL;
}

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static bool ends_with(const char *s, size_t len, const char *word)
{
    size_t n = strlen(word);
    return len >= n && memcmp(s + len - n, word, n) == 0;
}

void output_parser_rules_prompt(struct output_parser_rules *r, const char *prompt, size_t len)
{
    if (!r->thinking || r->is_harmony)
        return;
    while (len && is_space(prompt[len - 1]))
        len--;
    r->begun = ends_with(prompt, len, r->thinking->begin);
    r->closed = ends_with(prompt, len, r->thinking->end);
}

static unsigned add_texts(const char **to, const char *const *from)
{
    unsigned n = 0;
    for (; from[n]; n++)
        to[n] = from[n];
    return n;
}

unsigned output_parser_rules_markers(const struct output_parser_rules *r,
                                     const char *ret[OUTPUT_PARSER_MARKERS_MAX])
{
    const struct tool_parser_markers *m = tool_parser_markers(r->format);
    unsigned n = 0;
    if (r->is_harmony)
        return harmony_markers(ret);
    if (r->thinking) {
        ret[n++] = r->thinking->begin;
        ret[n++] = r->thinking->end;
    }
    if (!m)
        return n;
    n += add_texts(ret + n, m->begin);
    n += add_texts(ret + n, m->before);
    n += add_texts(ret + n, m->after);
    n += add_texts(ret + n, m->inside);
    if (m->end)
        ret[n++] = m->end;
    return n;
}

void output_parser_out_init(struct output_parser_out *o)
{
    *o = (struct output_parser_out){0};
    buf_init(&o->reasoning, OUT_MAX);
    buf_init(&o->content, OUT_MAX);
}

void output_parser_out_done(struct output_parser_out *o)
{
    buf_done(&o->reasoning);
    buf_done(&o->content);
    tool_parser_clear(&o->calls);
}

void output_parser_out_clear(struct output_parser_out *o)
{
    buf_clear(&o->reasoning);
    buf_clear(&o->content);
    tool_parser_clear(&o->calls);
}

/* A header counts as reasoning: it is no content, and may not be seen if reasoning may not. */
static void follow_harmony(struct output_parser *p)
{
    switch (p->harmony.state) {
    case HARMONY_HEADER:
        p->state = p->rules.thinking ? OUTPUT_PARSER_REASONING : OUTPUT_PARSER_CALL;
        break;
    case HARMONY_REASONING:
        p->state = p->rules.thinking ? OUTPUT_PARSER_REASONING : OUTPUT_PARSER_CONTENT;
        break;
    case HARMONY_CONTENT:
        p->state = OUTPUT_PARSER_CONTENT;
        break;
    case HARMONY_CALL:
        p->state = OUTPUT_PARSER_CALL;
        break;
    }
}

void output_parser_init(struct output_parser *p, const struct output_parser_rules *rules)
{
    *p = (struct output_parser){.only_calls = true};
    if (rules)
        p->rules = *rules;
    buf_init(&p->held, 1024);
    buf_init(&p->ids, TOOL_PARSER_MAX * 300);
    buf_init(&p->call, OUTPUT_PARSER_SPACE_MAX + TOOL_PARSER_MAX_BYTES);
    buf_init(&p->rescan, OUTPUT_PARSER_SPACE_MAX + TOOL_PARSER_MAX_BYTES);
    harmony_init(&p->harmony);
    if (p->rules.is_harmony)
        follow_harmony(p);
    if (p->rules.thinking && p->rules.begun)
        p->state = OUTPUT_PARSER_REASONING;
    p->drop_space = p->state == OUTPUT_PARSER_REASONING;
}

void output_parser_done(struct output_parser *p)
{
    buf_done(&p->held);
    buf_done(&p->ids);
    buf_done(&p->call);
    buf_done(&p->rescan);
    harmony_done(&p->harmony);
}

size_t output_parser_bytes(const struct output_parser *p)
{
    return p->held.cap + p->ids.cap + p->call.cap + p->rescan.cap + harmony_bytes(&p->harmony);
}

/* ---- markers ---- */

enum marker_kind { NOTHING, BEGIN_THINKING, END_THINKING, BEGIN_CALL, BEFORE_CALL, AFTER_CALL };

struct marker {
    const char *text;
    enum marker_kind kind;
};

static unsigned add_markers(struct marker *to, const char *const *from, enum marker_kind kind)
{
    unsigned n = 0;
    for (; from[n]; n++)
        to[n] = (struct marker){from[n], kind};
    return n;
}

/* The markers that may come now. JSON without a tag is a call only if no content precedes it. */
static unsigned markers_now(const struct output_parser *p, struct marker v[MARKERS_MAX])
{
    const struct output_parser_rules *r = &p->rules;
    const struct tool_parser_markers *m = tool_parser_markers(r->format);
    unsigned n = 0;
    if (p->state == OUTPUT_PARSER_REASONING) {
        v[n++] = (struct marker){r->thinking->end, END_THINKING};
        if (m && m->ends_reasoning)
            n += add_markers(v + n, m->before, BEFORE_CALL);
        return n;
    }
    if (r->thinking && !r->begun && !r->closed && p->only_calls && !p->n_calls)
        v[n++] = (struct marker){r->thinking->begin, BEGIN_THINKING};
    if (!m)
        return n;
    n += add_markers(v + n, m->begin, BEGIN_CALL);
    if (r->format == TOOLS_LLAMA && !p->only_calls)
        n--; // the brace
    n += add_markers(v + n, m->before, BEFORE_CALL);
    if (p->after_call)
        n += add_markers(v + n, m->after, AFTER_CALL);
    return n;
}

/* The marker that equals s, or NOTHING. *ret_maybe: s may be the beginning of a marker. */
static enum marker_kind match_marker(const struct marker *v, unsigned n, const char *s, size_t len,
                                     bool *ret_maybe)
{
    *ret_maybe = len == 0;
    for (unsigned i = 0; i < n; i++) {
        size_t whole = strlen(v[i].text);
        if (len <= whole && memcmp(v[i].text, s, len) == 0) {
            *ret_maybe = true;
            if (len == whole)
                return v[i].kind;
        }
    }
    return NOTHING;
}

/* ---- text ---- */

static size_t n_space(const struct buf *b)
{
    size_t n = 0;
    while (n < b->len && is_space(b->data[n]))
        n++;
    return n;
}

/* Emits the first n held bytes. */
static void emit_held(struct output_parser *p, size_t n, struct output_parser_out *to)
{
    size_t space = p->n_held_space, from = p->drop_space ? (space < n ? space : n) : 0;
    bool reasons = p->state == OUTPUT_PARSER_REASONING;
    buf_add(reasons ? &to->reasoning : &to->content, p->held.data + from, n - from);
    if (n > space) {
        p->drop_space = p->after_call = false;
        p->only_calls = p->only_calls && reasons;
    }
    buf_shift(&p->held, n);
    p->n_held_space = n_space(&p->held);
}

/* The marker that begins the call is the end of p->call, from `at` on. */
static void begin_call(struct output_parser *p, size_t at)
{
    bool brace = p->call.data[at] == '{'; // the marker is part of the JSON
    p->candidate.at = at;
    p->candidate.stage = brace ? OUTPUT_PARSER_BODY : OUTPUT_PARSER_FIRST;
    p->n_tries = 0;
    memset(&p->json, 0, sizeof(p->json));
    p->json.begun = brace;
    p->json.depth = brace;
}

/* The held bytes are the first marker of a possible call, and white space before it. */
static void begin_candidate(struct output_parser *p, enum marker_kind kind)
{
    size_t space = p->n_held_space, skipped = p->drop_space ? space : 0;
    buf_clear(&p->call);
    buf_add(&p->call, p->held.data + skipped, p->held.len - skipped);
    if (p->call.error)
        return; // see stop_splitting()
    p->candidate.outer_state = p->state;
    p->candidate.n_first = p->candidate.next = p->call.len;
    p->candidate.stage = OUTPUT_PARSER_BEFORE;
    p->state = OUTPUT_PARSER_CALL;
    if (kind == BEGIN_CALL)
        begin_call(p, space - skipped);
}

static void apply_marker(struct output_parser *p, enum marker_kind kind)
{
    if (kind == BEGIN_CALL || kind == BEFORE_CALL) {
        begin_candidate(p, kind);
    } else {
        if (kind != AFTER_CALL)
            p->state = kind == BEGIN_THINKING ? OUTPUT_PARSER_REASONING : OUTPUT_PARSER_CONTENT;
        p->drop_space = true;
    }
    buf_clear(&p->held);
    p->n_held_space = 0;
}

/* Emits held bytes that are no marker, and applies a complete marker. */
static void scan_held(struct output_parser *p, struct output_parser_out *to)
{
    struct marker v[MARKERS_MAX];
    while (p->held.len) {
        unsigned n = markers_now(p, v);
        size_t space = p->n_held_space;
        bool maybe;
        enum marker_kind kind =
            match_marker(v, n, p->held.data + space, p->held.len - space, &maybe);
        if (kind != NOTHING) {
            apply_marker(p, kind);
            return;
        }
        if (n && maybe && space <= OUTPUT_PARSER_SPACE_MAX)
            return;
        emit_held(p, space < p->held.len ? space + 1 : space, to);
    }
}

/* ---- calls ---- */

/* The candidate is not a call: emits its first marker as text, and rescans the rest. */
static void release_call(struct output_parser *p, struct output_parser_out *to)
{
    bool reasons = p->candidate.outer_state == OUTPUT_PARSER_REASONING;
    p->wasted_bytes += p->call.len;
    size_t n = p->wasted_bytes > WASTED_BYTES_MAX ? p->call.len : p->candidate.n_first;
    buf_add(reasons ? &to->reasoning : &to->content, p->call.data, n);
    p->state = reasons ? OUTPUT_PARSER_REASONING : OUTPUT_PARSER_CONTENT;
    p->only_calls = p->only_calls && reasons;
    p->drop_space = p->after_call = false;

    if (p->rescan.len) { // all of the candidate came from there
        p->rescan_at -= p->call.len - n;
        return;
    }
    struct buf rest = p->call;
    p->call = p->rescan;
    p->rescan = rest;
    p->rescan_at = n;
}

/* Records the id of a call. An id that an earlier call had is dropped. */
static void record_id(struct output_parser *p, struct tool_call *c)
{
    AUTO(mem_free) char *id = NULL;
    if (!c->id || asprintf(&id, " %s ", c->id) < 0)
        return;
    if (p->ids.len && memmem(p->ids.data, p->ids.len, id, strlen(id)))
        free(TAKE(c->id));
    else
        buf_puts(&p->ids, id);
}

/* Tries to read the candidate as a call. It stays open only if it is incomplete and not the
 * last. */
static void try_call(struct output_parser *p, bool last, struct output_parser_out *to)
{
    unsigned before = to->calls.n;
    size_t at = p->candidate.at, len = p->call.len - at;
    int rc = p->n_calls < TOOL_PARSER_MAX ? tool_parser_read(p->rules.format, p->call.data + at,
                                                             len, p->rules.types, &to->calls)
                                          : -EINVAL;
    if (rc < 0) {
        p->wasted_bytes += len;
        if (rc != -EAGAIN || last || ++p->n_tries == TRIES_MAX)
            release_call(p, to);
        return;
    }
    for (unsigned i = before; i < to->calls.n; i++)
        record_id(p, &to->calls.v[i]);
    p->n_calls += to->calls.n - before;
    p->state = OUTPUT_PARSER_CONTENT;
    p->drop_space = p->after_call = true;
}

/* Whether the JSON of a call ends with this byte. */
static bool json_ends(struct output_parser *p, char c, bool first)
{
    if (p->json.quoted) {
        bool escaped = p->json.escaped;
        p->json.escaped = !escaped && c == '\\';
        p->json.quoted = escaped || c != '"';
        return false;
    }
    p->json.begun |= c == '{' || (first && c == '[');
    if (!p->json.begun)
        return false;
    p->json.quoted = c == '"';
    p->json.depth += (c == '{' || c == '[') - (c == '}' || c == ']');
    return p->json.depth <= 0;
}

/* Whether one of the words follows at candidate.next, after white space. If none can follow, the
 * candidate is released. */
static bool marker_follows(struct output_parser *p, const char *const *words,
                           struct output_parser_out *to)
{
    struct marker v[MARKERS_MAX];
    unsigned n = add_markers(v, words, BEGIN_CALL);
    size_t *at = &p->candidate.next;
    bool maybe;
    while (*at < p->call.len && is_space(p->call.data[*at]))
        ++*at;
    if (match_marker(v, n, p->call.data + *at, p->call.len - *at, &maybe) != NOTHING)
        return true;
    if (!maybe)
        release_call(p, to);
    return false;
}

/* After the first marker must come the one that begins a call. */
static void expect_begin(struct output_parser *p, struct output_parser_out *to)
{
    if (marker_follows(p, tool_parser_markers(p->rules.format)->begin, to))
        begin_call(p, p->candidate.next);
}

static void expect_body(struct output_parser *p, struct output_parser_out *to)
{
    if (marker_follows(p, tool_parser_markers(p->rules.format)->then, to))
        p->candidate.stage = OUTPUT_PARSER_BODY;
}

/* Scans a byte of the part before the arguments. false: it cannot be a call. */
static bool scan_name(struct output_parser *p, char c)
{
    const struct tool_parser_markers *m = tool_parser_markers(p->rules.format);
    const char *marks = p->candidate.stage == OUTPUT_PARSER_FIRST ? m->first : m->after_name;
    bool name =
        m->after_name && tool_parser_name_char(c) && p->candidate.stage != OUTPUT_PARSER_AFTER_NAME;
    if (is_space(c))
        p->candidate.stage += p->candidate.stage == OUTPUT_PARSER_NAME;
    else if (name)
        p->candidate.stage = OUTPUT_PARSER_NAME;
    else if (marks && c && strchr(marks, c))
        p->candidate.stage = m->then[0] ? OUTPUT_PARSER_THEN : OUTPUT_PARSER_BODY;
    else
        return false;
    p->candidate.next = p->call.len;
    return true;
}

static void feed_call(struct output_parser *p, char c, struct output_parser_out *to)
{
    const struct tool_parser_markers *m = tool_parser_markers(p->rules.format);
    int stage = p->candidate.stage;
    buf_add(&p->call, &c, 1);
    if (p->call.error)
        return; // see stop_splitting()
    if (stage == OUTPUT_PARSER_BEFORE)
        expect_begin(p, to);
    else if (stage == OUTPUT_PARSER_THEN)
        expect_body(p, to);
    else if (stage != OUTPUT_PARSER_BODY && !scan_name(p, c))
        release_call(p, to);
    if (p->state == OUTPUT_PARSER_CALL && p->candidate.stage == OUTPUT_PARSER_BODY &&
        (m->end ? ends_with(p->call.data, p->call.len, m->end)
                : json_ends(p, c, stage == OUTPUT_PARSER_FIRST)))
        try_call(p, false, to);
    if (p->state == OUTPUT_PARSER_CALL && p->call.len >= TOOL_PARSER_MAX_BYTES)
        release_call(p, to);
}

/* Without memory, held bytes are lost, and all text that follows is content. */
static void stop_splitting(struct output_parser *p, struct output_parser_out *to)
{
    p->rules = (struct output_parser_rules){0};
    p->state = OUTPUT_PARSER_CONTENT;
    p->n_held_space = 0;
    buf_clear(&p->held);
    buf_clear(&p->call);
    to->content.error = -ENOMEM;
}

static void feed_text(struct output_parser *p, char c, struct output_parser_out *to)
{
    bool space = p->n_held_space == p->held.len && is_space(c);
    buf_add(&p->held, &c, 1);
    if (p->held.error)
        return;
    p->n_held_space += space;
    scan_held(p, to);
}

static void feed_byte(struct output_parser *p, char c, struct output_parser_out *to)
{
    if (p->state == OUTPUT_PARSER_CALL)
        feed_call(p, c, to);
    else
        feed_text(p, c, to);
    if (p->held.error || p->call.error)
        stop_splitting(p, to);
}

static void feed_rescan(struct output_parser *p, struct output_parser_out *to)
{
    while (p->rescan_at < p->rescan.len)
        feed_byte(p, p->rescan.data[p->rescan_at++], to);
    buf_clear(&p->rescan);
    p->rescan_at = 0;
}

static void feed_harmony(struct output_parser *p, const char *text, size_t len,
                         struct output_parser_out *to)
{
    harmony_feed(&p->harmony, &p->rules, text, len, to);
    follow_harmony(p);
}

void output_parser_feed(struct output_parser *p, const char *text, size_t len,
                        struct output_parser_out *to)
{
    if (p->rules.is_harmony) {
        feed_harmony(p, text, len, to);
        return;
    }
    if (!p->rules.thinking && p->rules.format == TOOLS_NONE) {
        buf_add(&to->content, text, len);
        return;
    }
    for (size_t i = 0; i < len; i++) {
        feed_byte(p, text[i], to);
        feed_rescan(p, to);
    }
}

void output_parser_end(struct output_parser *p, struct output_parser_out *to)
{
    if (p->rules.is_harmony) {
        harmony_end(&p->harmony, &p->rules, to);
        return;
    }
    while (p->state == OUTPUT_PARSER_CALL) {
        if (p->candidate.stage == OUTPUT_PARSER_BEFORE)
            release_call(p, to);
        else
            try_call(p, true, to);
        feed_rescan(p, to);
    }
    if (p->held.len)
        emit_held(p, p->held.len, to);
}
