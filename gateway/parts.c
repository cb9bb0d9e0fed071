/* parts.c - splits the text of an answer into reasoning, content and calls of tools. */
#include <errno.h>
#include <string.h>
#include "gateway/parts.h"

#define TRIES_MAX 16  // ends of a call that may stand inside one of its values
#define MARKERS_MAX 8 // that may come next
#define OUT_MAX (64u << 20)

const struct parts_thinking *parts_thinking_of(const char *source, size_t len)
{
    static const struct parts_thinking v[] = {{"<think>", "</think>"}, {"[THINK]", "[/THINK]"}};
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

void parts_rules_prompt(struct parts_rules *r, const char *prompt, size_t len)
{
    if (!r->thinking)
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

unsigned parts_rules_markers(const struct parts_rules *r, const char *ret[PARTS_MARKERS_MAX])
{
    const struct tool_markers *m = tool_markers(r->format);
    unsigned n = 0;
    if (r->thinking) {
        ret[n++] = r->thinking->begin;
        ret[n++] = r->thinking->end;
    }
    if (!m)
        return n;
    n += add_texts(ret + n, m->begin);
    n += add_texts(ret + n, m->around);
    n += add_texts(ret + n, m->inside);
    if (m->end)
        ret[n++] = m->end;
    return n;
}

void parts_out_init(struct parts_out *o)
{
    *o = (struct parts_out){0};
    buf_init(&o->reasoning, OUT_MAX);
    buf_init(&o->content, OUT_MAX);
}

void parts_out_done(struct parts_out *o)
{
    buf_done(&o->reasoning);
    buf_done(&o->content);
    tool_calls_clear(&o->calls);
}

void parts_out_clear(struct parts_out *o)
{
    buf_clear(&o->reasoning);
    buf_clear(&o->content);
    tool_calls_clear(&o->calls);
}

void parts_init(struct parts *p, const struct parts_rules *rules)
{
    *p = (struct parts){.bare = true};
    if (rules)
        p->rules = *rules;
    buf_init(&p->held, 1024);
    buf_init(&p->call, PARTS_SPACE_MAX + TOOL_CALLS_MAX_BYTES);
    if (p->rules.thinking && p->rules.begun)
        p->state = PARTS_REASONING;
    p->drop_space = p->state == PARTS_REASONING;
}

void parts_done(struct parts *p)
{
    buf_done(&p->held);
    buf_done(&p->call);
}

/* ---- markers ---- */

enum what { NOTHING, BEGIN_THINKING, END_THINKING, BEGIN_CALL, AROUND_CALLS };

struct marker {
    const char *text;
    enum what what;
};

static unsigned add_markers(struct marker *to, const char *const *from, enum what what)
{
    unsigned n = 0;
    for (; n < 3 && from[n]; n++)
        to[n] = (struct marker){from[n], what};
    return n;
}

/* Those that may come now. JSON without a tag is a call only where there is nothing but calls. */
static unsigned markers_now(const struct parts *p, struct marker v[MARKERS_MAX])
{
    const struct parts_rules *r = &p->rules;
    const struct tool_markers *m = tool_markers(r->format);
    unsigned n = 0;
    if (p->state == PARTS_REASONING) {
        v[0] = (struct marker){r->thinking->end, END_THINKING};
        return 1;
    }
    if (r->thinking && !r->begun && !r->closed && p->bare && !p->n_calls)
        v[n++] = (struct marker){r->thinking->begin, BEGIN_THINKING};
    if (!m)
        return n;
    n += add_markers(v + n, m->begin, BEGIN_CALL);
    if (r->format != TOOLS_LLAMA || (p->bare && p->n_calls))
        n += add_markers(v + n, m->around, AROUND_CALLS);
    else if (!p->bare)
        n--; // the brace
    return n;
}

/* What s is, or whether it may become a marker. */
static enum what look(const struct marker *v, unsigned n, const char *s, size_t len, bool *ret_may)
{
    *ret_may = len == 0;
    for (unsigned i = 0; i < n; i++) {
        size_t whole = strlen(v[i].text);
        if (len <= whole && memcmp(v[i].text, s, len) == 0) {
            *ret_may = true;
            if (len == whole)
                return v[i].what;
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

/* Gives out the first n bytes of what is held. */
static void give(struct parts *p, size_t n, struct parts_out *to)
{
    size_t space = n_space(&p->held), from = p->drop_space ? (space < n ? space : n) : 0;
    bool reasons = p->state == PARTS_REASONING;
    buf_add(reasons ? &to->reasoning : &to->content, p->held.data + from, n - from);
    if (n > space) {
        p->drop_space = false;
        p->bare = p->bare && reasons;
    }
    buf_shift(&p->held, n);
}

static void begin_call(struct parts *p)
{
    buf_clear(&p->call);
    size_t skipped = p->drop_space ? n_space(&p->held) : 0;
    buf_add(&p->call, p->held.data + skipped, p->held.len - skipped);
    p->state = PARTS_CALL;
    p->n_tries = 0;
    memset(&p->json, 0, sizeof(p->json));
    p->begun_call = p->call.data[p->call.len - 1] == '{'; // the marker is the JSON's beginning
    p->json.begun = p->begun_call;
    p->json.depth = p->begun_call;
}

static void act(struct parts *p, enum what what)
{
    if (what == BEGIN_CALL)
        begin_call(p);
    else if (what != AROUND_CALLS)
        p->state = what == BEGIN_THINKING ? PARTS_REASONING : PARTS_CONTENT;
    p->drop_space = p->drop_space || what != BEGIN_CALL;
    buf_clear(&p->held);
}

/* Decides as much of what is held as can be decided. */
static void settle(struct parts *p, struct parts_out *to)
{
    struct marker v[MARKERS_MAX];
    while (p->held.len) {
        unsigned n = markers_now(p, v);
        size_t space = n_space(&p->held);
        bool may;
        enum what what = look(v, n, p->held.data + space, p->held.len - space, &may);
        if (what != NOTHING) {
            act(p, what);
            return;
        }
        if (n && may && space <= PARTS_SPACE_MAX)
            return;
        give(p, space < p->held.len ? space + 1 : space, to);
    }
}

/* ---- calls ---- */

/* No call: all of it is content, and what follows is looked at anew. */
static void release_call(struct parts *p, struct parts_out *to)
{
    buf_add(&to->content, p->call.data, p->call.len);
    p->state = PARTS_CONTENT;
    p->bare = p->drop_space = false;
}

/* True: the call is over, as one or as none. */
static bool try_call(struct parts *p, bool last, struct parts_out *to)
{
    unsigned before = to->calls.n;
    int rc = p->n_calls < TOOL_CALLS_MAX ? tool_calls_read(p->rules.format, p->call.data,
                                                           p->call.len, p->rules.tools, &to->calls)
                                         : -EINVAL;
    if (rc == -EAGAIN && !last && ++p->n_tries < TRIES_MAX)
        return false;
    if (rc < 0) {
        release_call(p, to);
        return true;
    }
    p->n_calls += to->calls.n - before;
    p->state = PARTS_CONTENT;
    p->drop_space = true;
    return true;
}

/* Whether the JSON of a call ends with this byte. */
static bool json_ends(struct parts *p, char c, bool first)
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

static void feed_call(struct parts *p, char c, struct parts_out *to)
{
    const struct tool_markers *m = tool_markers(p->rules.format);
    bool first = !is_space(c) && !p->begun_call;
    p->begun_call = p->begun_call || first;
    buf_add(&p->call, &c, 1);
    if (first && m->first && !strchr(m->first, c))
        release_call(p, to);
    else if (m->end ? ends_with(p->call.data, p->call.len, m->end) : json_ends(p, c, first))
        try_call(p, false, to);
    if (p->state == PARTS_CALL && p->call.len >= TOOL_CALLS_MAX_BYTES)
        release_call(p, to);
}

void parts_feed(struct parts *p, const char *text, size_t len, struct parts_out *to)
{
    if (!p->rules.thinking && p->rules.format == TOOLS_NONE) {
        buf_add(&to->content, text, len);
        return;
    }
    for (size_t i = 0; i < len; i++) {
        if (p->state == PARTS_CALL) {
            feed_call(p, text[i], to);
        } else {
            buf_add(&p->held, &text[i], 1);
            settle(p, to);
        }
    }
}

void parts_end(struct parts *p, struct parts_out *to)
{
    if (p->state == PARTS_CALL)
        try_call(p, true, to);
    if (p->held.len)
        give(p, p->held.len, to);
}
