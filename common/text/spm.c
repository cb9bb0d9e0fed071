/* spm.c - SentencePiece BPE with byte fallback (Kudo, Richardson 2018, arXiv:1808.06226). */
#include <errno.h>
#include <string.h>
#include "base/buf.h"
#include "base/err.h"
#include "base/mem.h"
#include "text/spm.h"
#include "base/utf8.h"

static int read_bool(const struct checkpoint *c, const char *key, bool *value)
{
    int r = checkpoint_bool(c, key, value);
    return r == -ENOENT ? 0 : r;
}

/* True if no token has a space after another character. Then no join crosses such a place, and
 * texts are joined word by word, in memory that stays in the cache. */
static bool tokens_end_at_spaces(const struct vocab *v)
{
    for (uint32_t id = 0; id < v->n; id++) {
        struct span text = vocab_bytes(v, id);
        for (size_t i = 1; i < text.len; i++)
            if (text.data[i] == ' ' && text.data[i - 1] != ' ' && v->kinds[id] != TOK_CONTROL)
                return false;
    }
    return true;
}

int spm_init(struct spm *s, const struct checkpoint *c, const struct vocab *vocab, uint32_t unknown)
{
    *s = (struct spm){.vocab = vocab, .unknown = unknown, .add_space_prefix = true};
    s->by_words = tokens_end_at_spaces(vocab);
    if (!vocab->scores)
        return fail(-EINVAL, "tokenizer: %s has no %s", checkpoint_path(c),
                    checkpoint_key_name(c, "tokenizer.scores"));
    int r = read_bool(c, "tokenizer.add_space_prefix", &s->add_space_prefix);
    if (r < 0)
        return r;
    return read_bool(c, "tokenizer.remove_extra_whitespaces", &s->remove_extra_spaces);
}

/* ---- spaces ---- */

/* U+2581, which SentencePiece writes for a space, becomes a space. */
static void add_text(struct buf *to, const char *text, size_t len)
{
    static const char mark[] = "\xe2\x96\x81";
    for (const char *at; (at = memmem(text, len, mark, 3));
         len -= (size_t)(at + 3 - text), text = at + 3) {
        buf_add(to, text, (size_t)(at - text));
        buf_add(to, " ", 1);
    }
    buf_add(to, text, len);
}

/* Runs of spaces become one space; spaces at the end are removed. */
static void remove_extra_spaces(struct buf *b, size_t from)
{
    size_t to = from;
    for (size_t i = from; i < b->len; i++)
        if (b->data[i] != ' ' || (to > from && b->data[to - 1] != ' '))
            b->data[to++] = b->data[i];
    b->len = to > from && b->data[to - 1] == ' ' ? to - 1 : to;
}

static int prepare_text(const struct spm *s, const char *text, size_t len, bool fresh,
                        struct buf *to)
{
    bool prefix = fresh && s->add_space_prefix;
    buf_add(to, " ", prefix);
    add_text(to, text, len);
    int r = buf_error(to);
    if (r == 0 && s->remove_extra_spaces)
        remove_extra_spaces(to, prefix);
    return r;
}

/* ---- joining ---- */

/* Higher scores first: floats as integers whose order is the reverse. */
static uint32_t order_of(float score)
{
    uint32_t bits;
    score += 0.0f; // -0 is 0
    memcpy(&bits, &score, sizeof(bits));
    return bits >> 31 ? bits : ~(bits | 0x80000000u);
}

static bool pair(const void *arg, const char *text, const struct merge_symbol *left,
                 const struct merge_symbol *right, uint32_t *ret_order, uint32_t *ret_id)
{
    const struct vocab *v = arg;
    uint32_t id = vocab_find(v, text + left->start, left->len + right->len);
    if (id == VOCAB_NONE)
        return false;
    *ret_order = order_of(v->scores[id]);
    *ret_id = id;
    return true;
}

static void add_bytes(const struct spm *s, const char *bytes, uint32_t len, struct ids *to)
{
    for (uint32_t i = 0; i < len; i++) {
        uint32_t id = s->vocab->byte_ids[(uint8_t)bytes[i]];
        id = id != VOCAB_NONE ? id : s->unknown;
        if (id != VOCAB_NONE)
            ids_add(to, id);
    }
}

static int join_symbols(const struct spm *s, const char *text, size_t len, struct merge *work,
                        struct ids *to)
{
    size_t n = 0;
    int r = merge_reserve(work, len);
    if (r < 0)
        return r;
    for (size_t at = 0; at < len; n++) {
        enum utf8_what what;
        unsigned bytes = utf8_step(text + at, len - at, &what);
        work->symbols[n] =
            (struct merge_symbol){.start = (uint32_t)at, .len = bytes, .id = VOCAB_NONE};
        at += bytes;
    }
    work->n = n;
    struct merge_rule rule = {pair, s->vocab};
    merge_run(work, &rule, text);
    for (uint32_t i = 0; i != MERGE_END; i = work->symbols[i].next) {
        const struct merge_symbol *sym = &work->symbols[i];
        uint32_t id = sym->id;
        if (id == VOCAB_NONE) // a single character
            id = vocab_find(s->vocab, text + sym->start, sym->len);
        if (id != VOCAB_NONE)
            ids_add(to, id);
        else
            add_bytes(s, text + sym->start, sym->len, to);
    }
    return 0;
}

/* The end of the word that begins at `at`: the next space that follows another character. */
static size_t word_end(const char *text, size_t len, size_t at)
{
    for (at++; at < len; at++)
        if (text[at] == ' ' && text[at - 1] != ' ')
            return at;
    return len;
}

int spm_encode(const struct spm *s, const char *text, size_t len, bool fresh, struct merge *work,
               struct ids *to)
{
    AUTO(buf_done) struct buf prepared = {0};
    buf_init(&prepared, len + 1);
    int r = prepare_text(s, text, len, fresh, &prepared);
    for (size_t at = 0, end; r == 0 && at < prepared.len; at = end) {
        end = s->by_words ? word_end(prepared.data, prepared.len, at) : prepared.len;
        r = join_symbols(s, prepared.data + at, end - at, work, to);
    }
    return r;
}
