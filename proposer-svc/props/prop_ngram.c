/* prop_ngram.c - copies what followed the last words when they stood in the context before.
 *
 * The last n tokens, n from ngram_max down to ngram_min, are looked up in the context; what
 * followed there is the draft. "latest" takes the last occurrence and copies on into its own draft
 * where the context ends, so periodic text goes on for ever; "earliest_full" takes the first one
 * and only if k tokens follow it (Saxena 2023, "Prompt lookup decoding"). The longest n wins in
 * both.
 *
 * One hash table per n maps an n-gram to a position behind it: lookup and appending a token cost
 * O(ngram_max) expected, whatever the context's length. A table holds positions only and compares
 * tokens in the context. before[] remembers what an insertion replaced, so cutting the context
 * undoes insertions in reverse order; then the last key in is the first out, and linear probing
 * needs no tombstones.
 *
 * Memory per n: at most 11.7 bytes per token of context and 9.6 KiB, so 47 bytes per token and 38
 * KiB for n = 1..4. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include "base/err.h"
#include "base/mem.h"
#include "proposer-svc/props/prop_ngram.h"

#define SPARE 1024 // tokens; with a quarter of the context, what fits in before tables grow

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

/* How often the i-th copied token was kept when those before it were, by the match's length
 * (measured by tests/bench/bench_ngram.c over all its texts; docs/benchmarks.md). Longer matches as
 * 4, later tokens as the fifth. */
static const float kept_ratio[5][5] = {
    {0},
    {0.16f, 0.38f, 0.45f, 0.50f, 0.56f},
    {0.33f, 0.44f, 0.50f, 0.57f, 0.65f},
    {0.43f, 0.49f, 0.58f, 0.65f, 0.70f},
    {0.72f, 0.82f, 0.87f, 0.90f, 0.93f},
};

struct shared {
    uint32_t len_max, len_min;
    bool earliest_full, prompt_lookup;
    uint64_t salt; // so that nobody can choose prompts whose n-grams collide
};

/* Positions are ends: e stands for the n-gram [e - n, e). 0: none. */
struct table {
    uint32_t *slots;  // (n_slots)
    uint32_t *before; // (capacity): what e replaced
};

struct ngram_seq {
    uint32_t n_known;  // ends 1 .. n_known are in the tables; each has a token behind it
    uint32_t n_prompt; // tokens that are not looked at
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
    if (getrandom(&sh->salt, sizeof(sh->salt), GRND_NONBLOCK) < 0)
        sh->salt = (uintptr_t)sh;
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

static void insert(const struct shared *sh, struct ngram_seq *s, const uint32_t *tokens, uint32_t e)
{
    for (uint32_t n = longest_at(sh, s, e); n >= sh->len_min; n--) {
        uint32_t *slot = slot_of(sh, s, tokens, e, n);
        s->tables[n - 1].before[e] = *slot;
        if (!*slot || !sh->earliest_full)
            *slot = e;
    }
}

static void take_back(const struct shared *sh, struct ngram_seq *s, const uint32_t *tokens,
                      uint32_t e)
{
    for (uint32_t n = longest_at(sh, s, e); n >= sh->len_min; n--)
        *slot_of(sh, s, tokens, e, n) = s->tables[n - 1].before[e];
}

static void forget(const struct shared *sh, struct ngram_seq *s)
{
    for (uint32_t n = sh->len_min; n <= sh->len_max && s->tables[n - 1].slots; n++)
        memset(s->tables[n - 1].slots, 0, s->n_slots * sizeof(uint32_t));
    s->n_known = 0;
}

static void ngram_cut(void *shared, void *seq, const struct prop_context *c, uint32_t keep)
{
    const struct shared *sh = shared;
    struct ngram_seq *s = seq;
    uint32_t stays = keep ? keep - 1 : 0; // the last kept token has none behind it
    if (stays == 0) {
        forget(sh, s);
        return;
    }
    for (; s->n_known > stays; s->n_known--)
        take_back(sh, s, c->tokens, s->n_known);
}

/* Room for n tokens and some more. The tables are empty after it has grown. */
static int reserve(const struct shared *sh, struct ngram_seq *s, uint32_t n)
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
        forget(sh, s);
        s->n_prompt = n_prompt;
    }
    int r = reserve(sh, s, c->n);
    if (r < 0)
        return r;
    while (s->n_known + 1 < c->n)
        insert(sh, s, c->tokens, ++s->n_known);
    return 0;
}

/* Copies k tokens from position `from` on, past the context's end out of the copy itself. */
static void copy(const struct prop_context *c, uint32_t from, uint32_t k, uint32_t n_matched,
                 struct draft *to)
{
    const float *kept = kept_ratio[n_matched < 4 ? n_matched : 4];
    float survival = 1;
    for (uint32_t i = 0; i < k; i++) {
        to->tokens[i] = from + i < c->n ? c->tokens[from + i] : to->tokens[from + i - c->n];
        survival *= kept[i < 5 ? i : 4];
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
            copy(c, from, ask->max_depth, n, ask->to);
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
