/* prop_ngram.c - copies the continuation of an earlier occurrence of the context's last tokens.
 *
 * The last n tokens are looked up in the context, for n from ngram_max down to ngram_min. The
 * longest n with an occurrence wins, and the tokens after the occurrence are the draft:
 *   - "latest" copies after the last occurrence. A copy that reaches the end of the context
 *     continues with its own tokens, so periodic text is continued without end.
 *   - "earliest_full" copies after the first occurrence, and only if k tokens follow it (Saxena
 *     2023, "Prompt lookup decoding").
 *
 * There is one hash table per n. It maps an n-gram to the position after it. Lookup and append cost
 * O(ngram_max) expected, at any context length. A table stores only positions, and compares tokens
 * in the context. before[] stores the entry that an insertion replaced, so a cut undoes insertions
 * in reverse order. The last inserted key is thus the first removed one, and linear probing needs
 * no tombstones.
 *
 * Memory per n: at most 11.7 bytes per token of context and 9.6 KiB. For n = 1 .. 4: 47 bytes per
 * token and 38 KiB. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "base/mem.h"
#include "base/rng.h"
#include "proposer-svc/props/prop_ngram.h"

#define SPARE 1024 // tokens; capacity beyond 5/4 of the context

struct prop_ngram_settings prop_ngram_settings;

static const struct conf_option options[] = {
    {.name = "ngram_max",
     .kind = CONF_INT,
     .value = &prop_ngram_settings.ngram_max,
     .fallback = "4",
     .min = 1,
     .max = NGRAM_LEN_MAX,
     .alias = "prompt_lookup_max",
     .help = "longest n-gram to look up, in tokens"},
    {.name = "ngram_min",
     .kind = CONF_INT,
     .value = &prop_ngram_settings.ngram_min,
     .fallback = "1",
     .min = 1,
     .max = NGRAM_LEN_MAX,
     .alias = "prompt_lookup_min",
     .help = "shortest n-gram to look up, in tokens"},
    {.name = "ngram_match",
     .kind = CONF_CHOICE,
     .value = &prop_ngram_settings.ngram_match,
     .fallback = "latest",
     .choices = "latest|earliest_full",
     .help = "which occurrence is copied: the latest, or the earliest with k tokens after it"},
    {.name = "prompt_lookup",
     .kind = CONF_BOOL,
     .value = &prop_ngram_settings.prompt_lookup,
     .fallback = "true",
     .help = "search the prompt too, not only the generated text"},
};

/* Probability that the i-th copied token is accepted if the tokens before it are, by length of the
 * match. Measured by tests/bench/bench_ngram.c over all its texts, see docs/benchmarks.md. Row 4
 * also stands for longer matches, column 4 also for later tokens. */
static const float accept_ratio[5][5] = {
    {0},
    {0.16f, 0.38f, 0.45f, 0.50f, 0.56f},
    {0.33f, 0.44f, 0.50f, 0.57f, 0.65f},
    {0.43f, 0.49f, 0.58f, 0.65f, 0.70f},
    {0.72f, 0.82f, 0.87f, 0.90f, 0.93f},
};

struct shared {
    uint32_t len_max, len_min;
    bool earliest_full, prompt_lookup;
    uint64_t salt; // random, so that no prompt can be made of n-grams that collide
};

/* An n-gram is identified by its end: e means the tokens [e - n, e). 0: none. */
struct table {
    uint32_t *slots;  // (n_slots)
    uint32_t *before; // (capacity), by e: the entry that e replaced
};

struct ngram_seq {
    uint32_t n_known;  // ends 1 .. n_known are in the tables; a token follows each
    uint32_t n_prompt; // tokens at the start that are not searched
    uint32_t capacity, n_slots;
    struct table tables[NGRAM_LEN_MAX];
};

static int ngram_open(void **ret_shared)
{
    const struct prop_ngram_settings *set = &prop_ngram_settings;
    if (set->ngram_min > set->ngram_max)
        return fail(-EINVAL, "ngram_min %ld is above ngram_max %ld", (long)set->ngram_min,
                    (long)set->ngram_max);
    struct shared *sh = calloc(1, sizeof(*sh));
    if (!sh)
        return fail(-ENOMEM, "ngram: no memory");
    sh->len_max = (uint32_t)set->ngram_max;
    sh->len_min = (uint32_t)set->ngram_min;
    sh->earliest_full = strcmp(set->ngram_match, "earliest_full") == 0;
    sh->prompt_lookup = set->prompt_lookup;
    sh->salt = rng_secret();
    *ret_shared = sh;
    return 0;
}

static void ngram_close(void *shared)
{
    free(shared);
}

static void ngram_seq_done(void *shared, void *seq, const struct prop_context *c)
{
    (void)shared;
    (void)c;
    struct ngram_seq *s = seq;
    for (unsigned i = 0; i < NGRAM_LEN_MAX; i++) {
        free(s->tables[i].slots);
        free(s->tables[i].before);
    }
}

static uint64_t hash_of(const struct shared *sh, const uint32_t *gram, uint32_t n)
{
    uint64_t h = sh->salt;
    for (uint32_t i = 0; i < n; i++) {
        h = (h ^ gram[i]) * 0x9e3779b97f4a7c15u;
        h ^= h >> 32;
    }
    return h;
}

/* The slot of the n-gram that ends at e, or the empty one where it belongs. */
static uint32_t *slot_of(const struct shared *sh, const struct ngram_seq *s, const uint32_t *tokens,
                         uint32_t e, uint32_t n)
{
    uint32_t *slots = s->tables[n - 1].slots;
    const uint32_t *gram = tokens + e - n;
    uint32_t i = (uint32_t)((hash_of(sh, gram, n) >> 32) * s->n_slots >> 32);
    while (slots[i] && memcmp(tokens + slots[i] - n, gram, n * sizeof(*gram)) != 0)
        i = i + 1 < s->n_slots ? i + 1 : 0;
    return &slots[i];
}

/* The longest n-gram that ends at e and lies in the searched part; may be less than len_min. */
static uint32_t longest_at(const struct shared *sh, const struct ngram_seq *s, uint32_t e)
{
    uint32_t n = e > s->n_prompt ? e - s->n_prompt : 0;
    return n < sh->len_max ? n : sh->len_max;
}

static void insert_end(const struct shared *sh, struct ngram_seq *s, const uint32_t *tokens,
                       uint32_t e)
{
    for (uint32_t n = longest_at(sh, s, e); n >= sh->len_min; n--) {
        uint32_t *slot = slot_of(sh, s, tokens, e, n);
        s->tables[n - 1].before[e] = *slot;
        if (!*slot || !sh->earliest_full)
            *slot = e;
    }
}

/* Undoes insert_end() of the end that was inserted last. */
static void remove_end(const struct shared *sh, struct ngram_seq *s, const uint32_t *tokens,
                       uint32_t e)
{
    for (uint32_t n = longest_at(sh, s, e); n >= sh->len_min; n--)
        *slot_of(sh, s, tokens, e, n) = s->tables[n - 1].before[e];
}

static void clear_tables(const struct shared *sh, struct ngram_seq *s)
{
    for (uint32_t n = sh->len_min; n <= sh->len_max && s->tables[n - 1].slots; n++)
        memset(s->tables[n - 1].slots, 0, s->n_slots * sizeof(uint32_t));
    s->n_known = 0;
}

static void ngram_cut(void *shared, void *seq, const struct prop_context *c, uint32_t keep)
{
    const struct shared *sh = shared;
    struct ngram_seq *s = seq;
    uint32_t stays = keep ? keep - 1 : 0; // no token follows the last one
    if (stays == 0) {
        clear_tables(sh, s);
        return;
    }
    for (; s->n_known > stays; s->n_known--)
        remove_end(sh, s, c->tokens, s->n_known);
}

/* Makes the tables large enough for n tokens. Larger tables are empty. */
static int reserve_tables(const struct shared *sh, struct ngram_seq *s, uint32_t n)
{
    if (n < s->capacity)
        return 0;
    uint64_t capacity = (uint64_t)n + n / 4 + SPARE, n_slots = capacity / 3 * 4 + 4;
    if (n_slots > UINT32_MAX)
        return fail(-ENOMEM, "ngram: no memory for %u tokens", n);
    for (uint32_t i = sh->len_min - 1; i < sh->len_max; i++) {
        struct table *t = &s->tables[i];
        free(t->slots);
        free(t->before);
        t->slots = calloc(n_slots, sizeof(*t->slots));
        t->before = malloc(capacity * sizeof(*t->before));
        if (!t->slots || !t->before)
            return fail(-ENOMEM, "ngram: no memory for %u tokens", n);
    }
    s->capacity = (uint32_t)capacity;
    s->n_slots = (uint32_t)n_slots;
    s->n_known = 0;
    return 0;
}

static int ngram_grow(void *shared, void *seq, const struct prop_context *c)
{
    const struct shared *sh = shared;
    struct ngram_seq *s = seq;
    uint32_t n_prompt = sh->prompt_lookup ? 0 : c->n_prompt;
    if (n_prompt != s->n_prompt) {
        clear_tables(sh, s);
        s->n_prompt = n_prompt;
    }
    int r = reserve_tables(sh, s, c->n);
    if (r < 0)
        return r;
    while (s->n_known + 1 < c->n)
        insert_end(sh, s, c->tokens, ++s->n_known);
    return 0;
}

/* Copies k tokens, starting at position `from`. After the end of the context come the copied tokens
 * themselves. */
static void copy_tokens(const struct prop_context *c, uint32_t from, uint32_t k, uint32_t n_matched,
                        struct draft *to)
{
    const float *accept = accept_ratio[n_matched < 4 ? n_matched : 4];
    float survival = 1;
    for (uint32_t i = 0; i < k; i++) {
        to->tokens[i] = from + i < c->n ? c->tokens[from + i] : to->tokens[from + i - c->n];
        survival *= accept[i < 5 ? i : 4];
        to->survival[i] = survival;
    }
    to->n = k;
}

static void draft_one(const struct shared *sh, const struct prop_ask *ask)
{
    const struct ngram_seq *s = ask->seq;
    const struct prop_context *c = &ask->context;
    ask->to->n = 0;
    ask->to->tree = false;
    ask->to->q_mode = DRAFT_POINT;
    for (uint32_t n = longest_at(sh, s, c->n); n >= sh->len_min && s->n_known; n--) {
        uint32_t from = *slot_of(sh, s, c->tokens, c->n, n);
        if (from && (!sh->earliest_full || from + ask->max_depth <= c->n)) {
            copy_tokens(c, from, ask->max_depth, n, ask->to);
            return;
        }
    }
}

static void ngram_draft(void *shared, struct prop_ask *const *asks, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        draft_one(shared, asks[i]);
        asks[i]->done = true;
    }
}

const struct prop_ops prop_ngram = {
    .name = "ngram",
    .seq_size = sizeof(struct ngram_seq),
    .options = options,
    .n_options = ARRAY_LEN(options),
    .open = ngram_open,
    .close = ngram_close,
    .seq_done = ngram_seq_done,
    .cut = ngram_cut,
    .grow = ngram_grow,
    .draft = ngram_draft,
};
