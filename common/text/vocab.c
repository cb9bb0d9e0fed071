/* vocab.c - the tokens of a model, read from a checkpoint. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "base/utf8.h"
#include "text/vocab.h"

/* ---- bytes of tokens ---- */

#define N_LETTERS 324 // code points that stand for bytes: 256 and the 68 unprintable ones moved up

static bool printable(unsigned byte)
{
    return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

/* GPT-2 writes every byte as a printable letter: the unprintable ones become U+0100 and up. */
static int byte_of_letter(uint32_t code)
{
    if (code >= N_LETTERS)
        return -1;
    if (code < 256)
        return printable(code) ? (int)code : -1;
    unsigned nth = code - 256; // of the unprintable bytes: 0-32, 127-160, 173
    return nth < 33 ? (int)nth : nth < 67 ? (int)(127 + nth - 33) : 173;
}

size_t vocab_letters_to_bytes(const char *text, size_t len, char *out)
{
    size_t n_out = 0;
    for (size_t at = 0; at < len;) {
        uint32_t code;
        unsigned n = utf8_next(text + at, len - at, &code);
        int byte = n > 0 ? byte_of_letter(code) : -1;
        if (byte >= 0) {
            out[n_out++] = (char)byte;
        } else {
            n += !n;
            memcpy(out + n_out, text + at, n);
            n_out += n;
        }
        at += n;
    }
    return n_out;
}

static size_t marks_to_spaces(const char *text, size_t len, char *out)
{
    size_t n_out = 0;
    for (size_t at = 0; at < len;) {
        if (len - at >= 3 && memcmp(text + at, "\xe2\x96\x81", 3) == 0) {
            out[n_out++] = ' ';
            at += 3;
        } else {
            out[n_out++] = text[at++];
        }
    }
    return n_out;
}

static int digit_of(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* "<0x0A>" */
static int byte_of_name(struct span name)
{
    if (name.len != 6 || memcmp(name.data, "<0x", 3) != 0 || name.data[5] != '>')
        return -1;
    int high = digit_of(name.data[3]), low = digit_of(name.data[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

static size_t bytes_of(enum vocab_model model, enum tok_kind kind, struct span text, char *out)
{
    int byte;
    if (kind == TOK_BYTE && (byte = byte_of_name(text)) >= 0) {
        *out = (char)byte;
        return 1;
    }
    if (kind == TOK_NORMAL || kind == TOK_UNUSED)
        return model == VOCAB_BPE ? vocab_letters_to_bytes(text.data, text.len, out)
                                  : marks_to_spaces(text.data, text.len, out);
    memcpy(out, text.data, text.len);
    return text.len;
}

/* ---- ids by bytes ---- */

static uint32_t hash_of(const char *bytes, size_t len)
{
    uint64_t h = len, word;
    for (; len >= sizeof(word); bytes += sizeof(word), len -= sizeof(word)) {
        memcpy(&word, bytes, sizeof(word));
        h = (h ^ word) * 0x9e3779b97f4a7c15u;
        h ^= h >> 29;
    }
    word = 0;
    memcpy(&word, bytes, len);
    h = (h ^ word) * 0x9e3779b97f4a7c15u;
    h ^= h >> 32;
    return (uint32_t)(h * 0xd6e8feb86659fd93u >> 32);
}

static uint32_t *slot_of(const struct vocab *v, const char *bytes, size_t len, uint32_t hash)
{
    for (uint32_t i = hash;; i++) {
        struct vocab_slot *slot = &v->slots[i & v->mask];
        if (slot->id == VOCAB_NONE)
            return &slot->id;
        if (slot->hash != hash)
            continue;
        struct span own = vocab_bytes(v, slot->id);
        if (own.len == len && memcmp(own.data, bytes, len) == 0)
            return &slot->id;
    }
}

uint32_t vocab_find(const struct vocab *v, const char *bytes, size_t len)
{
    if (len > v->max_len)
        return VOCAB_NONE;
    return *slot_of(v, bytes, len, hash_of(bytes, len));
}

static void insert(struct vocab *v, uint32_t id)
{
    struct span own = vocab_bytes(v, id);
    uint32_t hash = hash_of(own.data, own.len);
    uint32_t *slot = slot_of(v, own.data, own.len, hash);
    if (own.len == 0 || *slot != VOCAB_NONE)
        return;
    *slot = id;
    OWNER(slot, struct vocab_slot, id)->hash = hash;
}

static int build_index(struct vocab *v)
{
    uint32_t n_slots = 16;
    while (n_slots < 2 * v->n)
        n_slots *= 2;
    v->slots = malloc(n_slots * sizeof(*v->slots));
    if (!v->slots)
        return fail(-ENOMEM, "tokenizer: no memory for %u tokens", v->n);
    memset(v->slots, 0xff, n_slots * sizeof(*v->slots));
    v->mask = n_slots - 1;
    // Normal tokens come first: of tokens with the same bytes the first is found.
    for (uint32_t id = 0; id < v->n; id++)
        if (v->kinds[id] == TOK_NORMAL)
            insert(v, id);
    for (uint32_t id = 0; id < v->n; id++)
        if (v->kinds[id] == TOK_USER || v->kinds[id] == TOK_UNUSED)
            insert(v, id);
    return 0;
}

/* ---- reading ---- */

static int read_tokens(const struct checkpoint *c, struct vocab *v, struct checkpoint_array *ret)
{
    size_t total = 0;
    int r = checkpoint_array(c, "tokenizer.tokens", ret);
    if (r == -ENOENT)
        return fail(-EINVAL, "tokenizer: %s has no %s", checkpoint_path(c),
                    checkpoint_key_name(c, "tokenizer.tokens"));
    if (r < 0)
        return r;
    if (ret->items != CHECKPOINT_TEXTS || ret->n == 0 || ret->n > TOK_MAX_VOCAB)
        return fail(-EINVAL, "tokenizer: %s must be 1 to %u strings",
                    checkpoint_key_name(c, "tokenizer.tokens"), TOK_MAX_VOCAB);
    v->n = (uint32_t)ret->n;
    for (uint32_t i = 0; i < v->n; i++) {
        size_t len = checkpoint_array_text(ret, i).len;
        if (len > TOK_MAX_TOKEN)
            return fail(-EINVAL, "tokenizer: token %u has %zu bytes; the limit is %d", i, len,
                        TOK_MAX_TOKEN);
        total += len;
    }
    if (total > TOK_MAX_BYTES)
        return fail(-EINVAL, "tokenizer: the tokens have %zu bytes; the limit is %u", total,
                    TOK_MAX_BYTES);
    v->at = malloc((v->n + 1) * sizeof(*v->at));
    v->bytes = malloc(total + 1);
    v->kinds = malloc(v->n);
    if (!v->at || !v->bytes || !v->kinds)
        return fail(-ENOMEM, "tokenizer: no memory for %u tokens", v->n);
    return 0;
}

/* An array with an item for every token. n 0: the file has none. */
static int read_parallel(const struct checkpoint *c, const struct vocab *v, const char *key,
                         struct checkpoint_array *ret)
{
    ret->n = 0;
    int r = checkpoint_array(c, key, ret);
    if (r < 0)
        return r == -ENOENT ? 0 : r;
    if (ret->n < v->n)
        return fail(-EINVAL, "tokenizer: %s has %llu items for %u tokens",
                    checkpoint_key_name(c, key), (unsigned long long)ret->n, v->n);
    return 0;
}

static int read_kinds(const struct checkpoint *c, struct vocab *v)
{
    static const char key[] = "tokenizer.token_type";
    struct checkpoint_array array;
    int r = read_parallel(c, v, key, &array);
    if (r < 0)
        return r;
    if (array.n > 0 && (array.items != CHECKPOINT_INTS || array.width != 4))
        return fail(-EINVAL, "tokenizer: %s must be 32-bit integers", checkpoint_key_name(c, key));
    for (uint32_t i = 0; i < v->n; i++) {
        int64_t kind = array.n > 0 ? checkpoint_array_int(&array, i) : TOK_NORMAL;
        v->kinds[i] = kind >= TOK_NORMAL && kind <= TOK_BYTE ? (uint8_t)kind : TOK_UNUSED;
    }
    return 0;
}

static int read_scores(const struct checkpoint *c, struct vocab *v)
{
    static const char key[] = "tokenizer.scores";
    struct checkpoint_array array;
    int r = read_parallel(c, v, key, &array);
    if (r < 0 || array.n == 0)
        return r;
    if (array.items != CHECKPOINT_FLOATS)
        return fail(-EINVAL, "tokenizer: %s must be floats", checkpoint_key_name(c, key));
    v->scores = malloc(v->n * sizeof(*v->scores));
    if (!v->scores)
        return fail(-ENOMEM, "tokenizer: no memory for %u scores", v->n);
    for (uint32_t i = 0; i < v->n; i++) {
        float score = (float)checkpoint_array_float(&array, i);
        v->scores[i] = isnan(score) ? -INFINITY : score;
    }
    return 0;
}

static void place_tokens(struct vocab *v, const struct checkpoint_array *tokens)
{
    uint32_t at = 0;
    for (uint32_t i = 0; i < 256; i++)
        v->byte_ids[i] = VOCAB_NONE;
    for (uint32_t id = 0; id < v->n; id++) {
        size_t len =
            bytes_of(v->model, v->kinds[id], checkpoint_array_text(tokens, id), v->bytes + at);
        v->at[id] = at;
        if (v->kinds[id] == TOK_BYTE && len == 1)
            v->byte_ids[(uint8_t)v->bytes[at]] = id;
        if (len > v->max_len)
            v->max_len = (uint32_t)len;
        at += (uint32_t)len;
    }
    v->at[v->n] = at;
}

int vocab_init(struct vocab *v, const struct checkpoint *c, enum vocab_model model)
{
    struct checkpoint_array tokens;
    *v = (struct vocab){.model = model};
    int r = read_tokens(c, v, &tokens);
    if (r < 0 || (r = read_kinds(c, v)) < 0 || (r = read_scores(c, v)) < 0)
        return r;
    place_tokens(v, &tokens);
    return build_index(v);
}

void vocab_done(struct vocab *v)
{
    free(v->at);
    free(v->bytes);
    free(v->kinds);
    free(v->scores);
    free(v->slots);
}
