/* bpe.c - byte-level BPE (Sennrich, Haddow, Birch 2016, arXiv:1508.07909, on bytes as in GPT-2). */
#include <errno.h>
#include <string.h>
#include "base/err.h"
#include "text/bpe.h"

/* ---- merges ---- */

static struct bpe_slot *slot_of(const struct bpe *b, uint64_t pair)
{
    uint64_t hash = pair * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 32;
    for (uint32_t i = (uint32_t)hash;; i++) {
        struct bpe_slot *slot = &b->slots[i & b->mask];
        if (slot->id == VOCAB_NONE || slot->pair == pair)
            return slot;
    }
}

static bool pair(const void *arg, const char *text, const struct merge_symbol *left,
                 const struct merge_symbol *right, uint32_t *ret_order, uint32_t *ret_id)
{
    (void)text;
    const struct bpe_slot *slot = slot_of(arg, (uint64_t)left->id << 32 | right->id);
    *ret_order = slot->rank;
    *ret_id = slot->id;
    return slot->id != VOCAB_NONE;
}

/* text: "left right", both in byte-level letters; the left one may begin with a space. Most files
 * list merges in the order of the resulting tokens. So *next_id is tried before a lookup. */
static void add_merge(struct bpe *b, struct span text, uint32_t rank, char *scratch,
                      uint32_t *next_id)
{
    const struct vocab *v = b->vocab;
    const char *space = text.len > 1 ? memchr(text.data + 1, ' ', text.len - 1) : NULL;
    if (!space)
        return;
    size_t n_left = (size_t)(space - text.data), n_right = text.len - n_left - 1;
    size_t left_len = vocab_letters_to_bytes(text.data, n_left, scratch);
    size_t len = left_len + vocab_letters_to_bytes(space + 1, n_right, scratch + left_len);
    uint32_t left = vocab_find(v, scratch, left_len);
    uint32_t right = vocab_find(v, scratch + left_len, len - left_len), id = *next_id;
    if (left == VOCAB_NONE || right == VOCAB_NONE)
        return;
    struct span guess = id < v->n ? vocab_bytes(v, id) : (struct span){"", 0};
    if (guess.len != len || memcmp(guess.data, scratch, len) != 0 || v->kinds[id] != TOK_NORMAL)
        id = vocab_find(v, scratch, len);
    if (id == VOCAB_NONE)
        return;
    *next_id = id + 1;
    struct bpe_slot *slot = slot_of(b, (uint64_t)left << 32 | right);
    if (slot->id == VOCAB_NONE)
        *slot = (struct bpe_slot){(uint64_t)left << 32 | right, rank, id};
}

static int read_merges(struct bpe *b, const struct checkpoint *c)
{
    struct checkpoint_array merges;
    int r = checkpoint_array(c, "tokenizer.merges", &merges);
    if (r == -ENOENT)
        return fail(-EINVAL, "tokenizer: %s has no %s", checkpoint_path(c),
                    checkpoint_key_name(c, "tokenizer.merges"));
    if (r < 0)
        return r;
    if (merges.items != CHECKPOINT_TEXTS || merges.n > TOK_MAX_MERGES)
        return fail(-EINVAL, "tokenizer: %s must be at most %u strings",
                    checkpoint_key_name(c, "tokenizer.merges"), TOK_MAX_MERGES);
    uint32_t n_slots = 16, next_id = 0;
    while (n_slots < 2 * merges.n)
        n_slots *= 2;
    AUTO(mem_free) char *scratch = malloc(2 * TOK_MAX_TOKEN + 1);
    b->slots = malloc(n_slots * sizeof(*b->slots));
    if (!scratch || !b->slots)
        return fail(-ENOMEM, "tokenizer: no memory for %llu merges", (unsigned long long)merges.n);
    memset(b->slots, 0xff, n_slots * sizeof(*b->slots));
    b->mask = n_slots - 1;
    for (uint32_t i = 0; i < merges.n; i++) {
        struct span text = checkpoint_array_text(&merges, i);
        if (text.len > 2 * TOK_MAX_TOKEN)
            return fail(-EINVAL, "tokenizer: merge %u has %zu bytes; the limit is %d", i, text.len,
                        2 * TOK_MAX_TOKEN);
        add_merge(b, text, i, scratch, &next_id);
    }
    return 0;
}

static void find_byte_tokens(struct bpe *b)
{
    for (unsigned byte = 0; byte < 256; byte++) {
        char c = (char)byte;
        b->byte_ids[byte] = vocab_find(b->vocab, &c, 1);
        if (b->byte_ids[byte] == VOCAB_NONE)
            b->byte_ids[byte] = b->vocab->byte_ids[byte];
    }
}

int bpe_init(struct bpe *b, const struct checkpoint *c, const struct vocab *vocab)
{
    struct span pre = {"default", 7};
    b->vocab = vocab;
    int r = checkpoint_text(c, "tokenizer.pre", &pre);
    if ((r < 0 && r != -ENOENT) || (r = pretok_init(&b->pretok, pre)) < 0)
        return r;
    find_byte_tokens(b);
    return read_merges(b, c);
}

void bpe_done(struct bpe *b)
{
    pretok_done(&b->pretok);
    free(b->slots);
}

/* ---- words ---- */

struct word_arg {
    const struct bpe *b;
    struct merge *work;
    struct ids *to;
};

static int add_word(void *arg, const char *text, size_t len)
{
    const struct word_arg *w = arg;
    const struct bpe *b = w->b;
    uint32_t id;
    if (b->pretok.whole_words && (id = vocab_find(b->vocab, text, len)) != VOCAB_NONE) {
        ids_add(w->to, id);
        return 0;
    }
    int r = merge_reserve(w->work, len);
    if (r < 0)
        return r;
    for (size_t i = 0; i < len; i++)
        w->work->symbols[i] = (struct merge_symbol){
            .start = (uint32_t)i, .len = 1, .id = b->byte_ids[(uint8_t)text[i]]};
    struct merge_rule rule = {pair, b};
    merge_run(w->work, &rule, text);
    for (uint32_t i = 0; i != MERGE_END; i = w->work->symbols[i].next)
        if (w->work->symbols[i].id != VOCAB_NONE)
            ids_add(w->to, w->work->symbols[i].id);
    return 0;
}

int bpe_encode(const struct bpe *b, const char *text, size_t len, struct merge *work,
               struct ids *to)
{
    struct word_arg w = {b, work, to};
    return pretok_split(&b->pretok, text, len, add_word, &w);
}
