/* tok.c - the tokenizer of a model: special tokens around byte-level BPE or SentencePiece. */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "base/buf.h"
#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/rng.h"
#include "text/bpe.h"
#include "text/special.h"
#include "text/spm.h"
#include "text/tok.h"
#include "base/utf8.h"

struct tok {
    struct vocab vocab;
    struct special special;
    struct bpe bpe; // one of these two, by vocab.model
    struct spm spm;
    uint32_t bos, eos, unknown;
    bool add_bos;
    bool strips_right; // Phi-3: special tokens take the white space after them
    uint32_t eos_ids[TOK_MAX_EOS], n_eos;
    uint64_t digest;
};

/* ---- special ids ---- */

/* Names of end-of-generation tokens, by family of models. */
static const char *const end_names[] = {
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|calls|>",
    "<|flush|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "</s>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<eos>",
    "<turn|>",
    "[e~[",
    "<end_of_utterance>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<|fim_repo|>",
    "<\uff5cend\u2581of\u2581sentence\uff5c>", // DeepSeek
};

/* Some files mark these tokens as normal. A normal "</s>" or "<eos>" may also be ordinary text (a
 * closing tag of HTML), so a normal token needs a name in bars. */
static bool is_end_name(struct span text, enum tok_kind kind)
{
    if (text.len < 2 || !strchr("<[_", text.data[0]) ||
        (kind != TOK_CONTROL && kind != TOK_USER && (uint8_t)text.data[1] < 0x80 &&
         text.data[1] != '|'))
        return false;
    for (size_t i = 0; i < ARRAY_LEN(end_names); i++)
        if (span_is(text, end_names[i]))
            return true;
    return false;
}

static void add_end(struct tok *t, uint32_t id)
{
    if (id == VOCAB_NONE || t->n_eos == TOK_MAX_EOS || tok_is_eos(t, id))
        return;
    uint32_t at = t->n_eos++;
    for (; at > 0 && t->eos_ids[at - 1] > id; at--)
        t->eos_ids[at] = t->eos_ids[at - 1];
    t->eos_ids[at] = id;
}

static bool has_token(const struct tok *t, const char *name)
{
    for (uint32_t id = 0; id < t->vocab.n; id++)
        if (span_is(vocab_bytes(&t->vocab, id), name))
            return true;
    return false;
}

static void find_ends(struct tok *t)
{
    /* With <|return|> and <|call|> in the vocabulary, <|end|> ends a message, not a generation. */
    bool end_is_message = has_token(t, "<|return|>") && has_token(t, "<|call|>");
    for (uint32_t id = 0; id < t->vocab.n; id++) {
        struct span text = vocab_bytes(&t->vocab, id);
        if (!is_end_name(text, t->vocab.kinds[id]) || (end_is_message && span_is(text, "<|end|>")))
            continue;
        t->vocab.kinds[id] = TOK_CONTROL;
        add_end(t, id);
    }
}

/* Without the key, *id stays. */
static int read_id(const struct checkpoint *c, const struct tok *t, const char *key, uint32_t *id)
{
    uint32_t value;
    int r = checkpoint_u32(c, key, &value);
    if (r < 0)
        return r == -ENOENT ? 0 : r;
    if (value >= t->vocab.n && value != VOCAB_NONE) // -1 is written for "none"
        return fail(-EINVAL, "tokenizer: %s is %u, but there are %u tokens",
                    checkpoint_key_name(c, key), value, t->vocab.n);
    *id = value;
    return 0;
}

static int read_ids(const struct checkpoint *c, struct tok *t)
{
    uint32_t eot = VOCAB_NONE, eom = VOCAB_NONE;
    bool has_llama_ids = t->vocab.model == VOCAB_SPM && t->vocab.n > 2; // without keys: Llama's ids
    t->unknown = has_llama_ids ? 0 : VOCAB_NONE;
    t->bos = has_llama_ids ? 1 : VOCAB_NONE;
    t->eos = has_llama_ids ? 2 : VOCAB_NONE;
    int r = read_id(c, t, "tokenizer.bos_token_id", &t->bos);
    if (r < 0 || (r = read_id(c, t, "tokenizer.eos_token_id", &t->eos)) < 0 ||
        (r = read_id(c, t, "tokenizer.unknown_token_id", &t->unknown)) < 0 ||
        (r = read_id(c, t, "tokenizer.eot_token_id", &eot)) < 0 ||
        (r = read_id(c, t, "tokenizer.eom_token_id", &eom)) < 0)
        return r;
    find_ends(t);
    add_end(t, t->eos);
    add_end(t, eot);
    add_end(t, eom);
    return 0;
}

static int read_add_bos(const struct checkpoint *c, struct tok *t)
{
    t->add_bos = t->vocab.model == VOCAB_SPM || t->bpe.pretok.add_bos;
    int r = checkpoint_bool(c, "tokenizer.add_bos_token", &t->add_bos);
    if (r < 0 && r != -ENOENT)
        return r;
    t->add_bos = t->add_bos && t->bos != VOCAB_NONE;
    return 0;
}

/* Checkpoints lack this attribute of tokenizer.json; only the Phi-3 family uses it. */
static void read_name(const struct checkpoint *c, struct tok *t)
{
    struct span name;
    if (checkpoint_text(c, "general.name", &name) < 0)
        return;
    for (size_t i = 0; i + 4 <= name.len; i++)
        t->strips_right |= strncasecmp(name.data + i, "phi3", 4) == 0 ||
                           (i + 5 <= name.len && strncasecmp(name.data + i, "phi-3", 5) == 0);
}

/* ---- digest ---- */

static uint64_t mix_digest(uint64_t digest, struct span bytes)
{
    for (size_t at = 0; at < bytes.len; at += 8) {
        uint64_t word = 0;
        memcpy(&word, bytes.data + at, bytes.len - at < 8 ? bytes.len - at : 8);
        digest = rng_splitmix64(digest ^ word);
    }
    return digest;
}

/* "[PAD151936]": converters add such tokens to round up the size of the vocabulary. */
static bool is_padding(struct span text)
{
    if (text.len < 6 || memcmp(text.data, "[PAD", 4) != 0 || text.data[text.len - 1] != ']')
        return false;
    for (size_t i = 4; i + 1 < text.len; i++)
        if (!isdigit((unsigned char)text.data[i]))
            return false;
    return true;
}

static bool is_unused(const struct tok *t, uint32_t id)
{
    return t->vocab.kinds[id] == TOK_UNUSED || is_padding(vocab_bytes(&t->vocab, id));
}

static uint64_t digest_of(const struct tok *t)
{
    uint64_t d = 0;
    for (uint32_t id = 0; id < t->vocab.n; id++) {
        struct span bytes = vocab_bytes(&t->vocab, id);
        if (is_unused(t, id))
            continue;
        d = rng_splitmix64(d ^ ((uint64_t)id << 32 | t->vocab.kinds[id]));
        d = mix_digest(rng_splitmix64(d ^ bytes.len), bytes);
    }
    d = rng_splitmix64(d ^ t->bos);
    for (uint32_t i = 0; i < t->n_eos; i++)
        d = rng_splitmix64(d ^ t->eos_ids[i]);
    return d;
}

/* ---- reading ---- */

static int read_model(const struct checkpoint *c, enum vocab_model *ret)
{
    struct span name;
    char quoted[96];
    int r = checkpoint_text(c, "tokenizer.model", &name);
    if (r == -ENOENT)
        return fail(-EINVAL, "tokenizer: %s has no %s", checkpoint_path(c),
                    checkpoint_key_name(c, "tokenizer.model"));
    if (r < 0)
        return r;
    if (span_is(name, "gpt2"))
        *ret = VOCAB_BPE;
    else if (span_is(name, "llama"))
        *ret = VOCAB_SPM;
    else
        return fail(-ENOTSUP, "tokenizer: model %s is not supported; gpt2 and llama are",
                    log_quote(name.data, name.len, quoted, sizeof(quoted)));
    return 0;
}

int tok_new(const struct checkpoint *c, struct tok **ret)
{
    enum vocab_model model;
    int r = read_model(c, &model);
    if (r < 0)
        return r;
    AUTO(tok_free) struct tok *t = calloc(1, sizeof(*t));
    if (!t)
        return fail(-ENOMEM, "tokenizer: no memory");
    if ((r = vocab_init(&t->vocab, c, model)) < 0 || (r = read_ids(c, t)) < 0)
        return r;
    r = model == VOCAB_BPE ? bpe_init(&t->bpe, c, &t->vocab)
                           : spm_init(&t->spm, c, &t->vocab, t->unknown);
    if (r < 0 || (r = read_add_bos(c, t)) < 0 || (r = special_init(&t->special, &t->vocab)) < 0)
        return r;
    read_name(c, t);
    t->digest = digest_of(t);
    *ret = TAKE(t);
    return 0;
}

void tok_free(struct tok *t)
{
    if (!t)
        return;
    bpe_done(&t->bpe);
    special_done(&t->special);
    vocab_done(&t->vocab);
    free(t);
}

uint32_t tok_n_vocab(const struct tok *t)
{
    return t->vocab.n;
}

uint32_t tok_longest(const struct tok *t)
{
    return t->vocab.max_len;
}

enum tok_kind tok_kind_of(const struct tok *t, uint32_t id)
{
    return (enum tok_kind)t->vocab.kinds[id];
}

uint32_t tok_n_used(const struct tok *t)
{
    uint32_t n = t->vocab.n;
    while (n && is_unused(t, n - 1))
        n--;
    return n;
}

uint64_t tok_digest(const struct tok *t)
{
    return t->digest;
}

struct span tok_bytes(const struct tok *t, uint32_t id, bool special)
{
    if (id >= t->vocab.n || t->vocab.kinds[id] == TOK_UNUSED)
        return (struct span){"", 0};
    if (!special && (t->vocab.kinds[id] == TOK_CONTROL || t->vocab.kinds[id] == TOK_UNKNOWN))
        return (struct span){"", 0};
    return vocab_bytes(&t->vocab, id);
}

uint32_t tok_named(const struct tok *t, const char *name, size_t len)
{
    uint32_t id;
    if (!len || special_find(&t->special, name, len, 0, true, &id) != 0)
        return UINT32_MAX;
    return vocab_bytes(&t->vocab, id).len == len ? id : UINT32_MAX;
}

bool tok_is_eos(const struct tok *t, uint32_t id)
{
    for (uint32_t i = 0; i < t->n_eos; i++)
        if (t->eos_ids[i] == id)
            return true;
    return false;
}

uint32_t tok_bos(const struct tok *t)
{
    return t->bos;
}

uint32_t tok_eos(const struct tok *t)
{
    return t->eos;
}

bool tok_add_bos(const struct tok *t)
{
    return t->add_bos;
}

uint32_t tok_eos_ids(const struct tok *t, const uint32_t **ret_ids)
{
    *ret_ids = t->eos_ids;
    return t->n_eos;
}

/* ---- encoding ---- */

struct encoding {
    const struct tok *t;
    struct merge work;
    struct ids ids;
};

static void encoding_done(struct encoding *e)
{
    merge_done(&e->work);
    free(e->ids.data);
}

/* Text between special tokens; fresh: it follows nothing or a special token. */
static int add_text(struct encoding *e, const char *text, size_t len, bool fresh)
{
    if (len == 0)
        return 0;
    if (e->t->vocab.model == VOCAB_BPE)
        return bpe_encode(&e->t->bpe, text, len, &e->work, &e->ids);
    return spm_encode(&e->t->spm, text, len, fresh, &e->work, &e->ids);
}

static bool takes_space_after(const struct tok *t, uint32_t id)
{
    struct span name = vocab_bytes(&t->vocab, id);
    return t->strips_right && !span_is(name, "<unk>") && !span_is(name, "<s>") &&
           !span_is(name, "<|endoftext|>");
}

static int add_all(struct encoding *e, const char *text, size_t len, bool parse_special)
{
    for (size_t at = 0; at < len;) {
        uint32_t id;
        size_t found = special_find(&e->t->special, text, len, at, parse_special, &id);
        int r = add_text(e, text + at, found - at, true);
        if (r < 0 || found == len)
            return r;
        ids_add(&e->ids, id);
        at = found + vocab_bytes(&e->t->vocab, id).len;
        while (at < len && takes_space_after(e->t, id) && isspace((unsigned char)text[at]))
            at++;
    }
    return 0;
}

/* Most chat templates begin with BOS; then no second one is added. */
static bool begins_with_bos(const struct tok *t, const char *text, size_t len, bool parse_special)
{
    uint32_t id;
    return special_find(&t->special, text, len, 0, parse_special, &id) == 0 && len > 0 &&
           id == t->bos;
}

int tok_encode(const struct tok *t, const char *text, size_t len, bool parse_special, bool add_bos,
               uint32_t **ret_ids, size_t *ret_n)
{
    if (len > TOK_MAX_TEXT)
        return fail(-EMSGSIZE, "a text of %zu bytes; the limit is %u", len, TOK_MAX_TEXT);
    size_t valid = utf8_valid(text, len);
    if (valid < len)
        return fail(-EILSEQ, "the text is not UTF-8 at byte %zu", valid);

    struct encoding e __attribute__((cleanup(encoding_done))) = {.t = t};
    if (add_bos && t->add_bos && !begins_with_bos(t, text, len, parse_special))
        ids_add(&e.ids, t->bos);
    int r = add_all(&e, text, len, parse_special);
    if (r < 0)
        return r;
    if (!e.ids.data && !e.ids.failed) // ret_ids is never NULL
        e.ids.failed = !(e.ids.data = malloc(sizeof(*e.ids.data)));
    if (e.ids.failed)
        return fail(-ENOMEM, "tokenizer: no memory for the tokens of %zu bytes", len);
    *ret_n = e.ids.n;
    *ret_ids = TAKE(e.ids.data);
    return 0;
}

/* ---- decoding ---- */

int tok_decode(const struct tok *t, const uint32_t *ids, size_t n, bool special, char **ret_text,
               size_t *ret_len)
{
    bool fresh = t->vocab.model == VOCAB_SPM && t->spm.add_space_prefix;
    AUTO(buf_done) struct buf text = {0};
    buf_init(&text, SIZE_MAX / 2);
    for (size_t i = 0; i < n; i++) {
        if (ids[i] >= t->vocab.n)
            return fail(-EINVAL, "token %u is out of range: there are %u", ids[i], t->vocab.n);
        struct span bytes = tok_bytes(t, ids[i], special);
        bool is_text_token = t->vocab.kinds[ids[i]] != TOK_CONTROL;
        size_t skip = fresh && is_text_token && bytes.len > 0 && bytes.data[0] == ' ';
        buf_add(&text, bytes.data + skip, bytes.len - skip);
        fresh = fresh && !is_text_token;
    }
    buf_add(&text, "", 0);
    int r = buf_error(&text);
    if (r < 0)
        return r;
    *ret_len = text.len;
    *ret_text = buf_take(&text);
    return 0;
}
