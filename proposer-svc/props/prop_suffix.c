/* prop_suffix.c - the most frequent continuation of the last tokens, in the context and past
 * outputs.
 *
 * Suffix decoding (Oliaro, Jia, Campos, Qiao 2024, arXiv:2411.04975). All places where the last m
 * tokens occur form a tree of their continuations. The draft follows the most frequent child from
 * the root. The probability of a child is its count divided by its parent's. The draft ends where
 * the product of these probabilities falls below min_prob, and at factor * m + offset tokens. Its
 * score is the sum of the products, the expected number of accepted tokens. The draft with the best
 * score wins, over both texts and all m. On a tie the context's wins, then that of the longer m.
 *
 * The trees are not stored. They are derived from the places in the index (ngram_index.h), the
 * latest 32 per n-gram length. The search goes from the longest length down, while a shorter match
 * could still score better. So the cost of a draft does not depend on the length of the texts. A
 * place whose continuation reaches the end of the context continues in the draft itself.
 *
 * An output is added to the pool of past outputs when its sequence ends, so it is added once. A
 * session that is only dropped may come back. Drafts use only outputs of the same tenant and target
 * model.
 *
 * Memory: at most 47 bytes per token of context and 40 KiB per sequence. The pool has 46 bytes per
 * token if its size is a power of two, and 112 bytes per tenant and model. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "base/mem.h"
#include "base/rng.h"
#include "proposer-svc/props/prop_suffix.h"
#include "proposer-svc/props/suffix_pool.h"

#define SPARE 1024 // tokens; capacity beyond 5/4 of the context
#define PLACES_MAX (NGRAM_INDEX_LENS * SUFFIX_LOOK_MAX)

struct prop_suffix_settings prop_suffix_settings;

static const struct conf_option options[] = {
    {.name = "suffix.max_depth",
     .kind = CONF_INT,
     .value = &prop_suffix_settings.max_depth,
     .fallback = "24",
     .min = 1,
     .max = SUFFIX_DEPTH_MAX,
     .alias = "suffix_decoding_max_tree_depth",
     .help = "longest suffix to match, in tokens"},
    {.name = "suffix.factor",
     .kind = CONF_FLOAT,
     .value = &prop_suffix_settings.factor,
     .fallback = "1",
     .min = 0,
     .max = DRAFT_MAX_NODES,
     .alias = "suffix_decoding_max_spec_factor",
     .help = "draft tokens for each matched token"},
    {.name = "suffix.offset",
     .kind = CONF_FLOAT,
     .value = &prop_suffix_settings.offset,
     .fallback = "0",
     .min = 0,
     .max = DRAFT_MAX_NODES,
     .alias = "suffix_decoding_max_spec_offset",
     .help = "draft tokens beyond suffix.factor times the match length"},
    {.name = "suffix.min_prob",
     .kind = CONF_FLOAT,
     .value = &prop_suffix_settings.min_prob,
     .fallback = "0.1",
     .min = 0,
     .max = 1,
     .alias = "suffix_decoding_min_token_prob",
     .help = "a draft ends where its estimated probability is below this"},
    {.name = "suffix.pool_tokens",
     .kind = CONF_INT,
     .value = &prop_suffix_settings.pool_tokens,
     .fallback = "262144",
     .min = 0,
     .max = 1 << 28,
     .help = "tokens of past outputs to keep; the oldest are dropped first; 0: none"},
};

struct shared {
    struct prop_suffix_settings set;
    uint64_t salt;
    struct suffix_pool *pool; // NULL: none
};

struct suffix_seq {
    uint32_t n_known; // places 1 .. n_known are in the index; a token follows each
    uint32_t capacity;
    struct ngram_index grams;
};

static void suffix_close(void *shared)
{
    struct shared *sh = shared;
    suffix_pool_free(sh->pool);
    free(sh);
}

static int suffix_open(void **ret_shared)
{
    struct shared *sh = calloc(1, sizeof(*sh));
    if (!sh)
        return fail(-ENOMEM, "suffix: no memory");
    sh->set = prop_suffix_settings;
    sh->salt = rng_secret();
    uint32_t pool_tokens = (uint32_t)sh->set.pool_tokens;
    int r = pool_tokens ? suffix_pool_new(pool_tokens, sh->salt, &sh->pool) : 0;
    if (r < 0)
        suffix_close(sh);
    else
        *ret_shared = sh;
    return r;
}

/* ---- one sequence's context ---- */

/* Token ids of one model mean nothing to another one. Returns the length. */
static uint32_t owner_of(const struct prop_context *c, uint8_t ret_owner[SUFFIX_POOL_OWNER_MAX])
{
    ret_owner[0] = (uint8_t)c->model_len;
    if (c->model_len)
        memcpy(ret_owner + 1, c->model, c->model_len);
    if (c->tenant_len)
        memcpy(ret_owner + 1 + c->model_len, c->tenant, c->tenant_len);
    return 1 + c->model_len + c->tenant_len;
}

/* If the length of the prompt is unknown, its end is too: nothing is added to the pool. */
static void suffix_seq_done(void *shared, void *seq, const struct prop_context *c)
{
    struct shared *sh = shared;
    struct suffix_seq *s = seq;
    uint8_t owner[SUFFIX_POOL_OWNER_MAX];
    if (sh->pool && c && c->n_prompt && c->n > c->n_prompt)
        suffix_pool_add(sh->pool, owner, owner_of(c, owner), c->tokens + c->n_prompt,
                        c->n - c->n_prompt);
    ngram_index_done(&s->grams);
}

static void suffix_cut(void *shared, void *seq, const struct prop_context *c, uint32_t keep)
{
    (void)shared;
    struct suffix_seq *s = seq;
    uint32_t stays = keep ? keep - 1 : 0; // no token follows the last one
    if (stays == 0 && s->n_known) {
        ngram_index_clear(&s->grams);
        s->n_known = 0;
    }
    s->grams.tokens = c->tokens;
    for (; s->n_known > stays; s->n_known--)
        ngram_index_undo(&s->grams, s->n_known, s->n_known);
}

/* Makes the index large enough for n tokens. A larger index is empty. */
static int reserve_index(const struct shared *sh, struct suffix_seq *s, uint32_t n)
{
    if (n < s->capacity)
        return 0;
    uint64_t capacity = (uint64_t)n + n / 4 + SPARE;
    if (capacity > UINT32_MAX)
        return fail(-ENOMEM, "suffix: no memory for %u tokens", n);
    ngram_index_done(&s->grams);
    s->grams = (struct ngram_index){.mask = UINT32_MAX, .salt = sh->salt};
    s->capacity = (uint32_t)capacity;
    s->n_known = 0;
    return ngram_index_init(&s->grams, s->capacity, s->capacity);
}

static int suffix_grow(void *shared, void *seq, const struct prop_context *c)
{
    struct suffix_seq *s = seq;
    int r = reserve_index(shared, s, c->n);
    if (r < 0)
        return r;
    s->grams.tokens = c->tokens;
    for (; s->n_known + 1 < c->n; s->n_known++)
        ngram_index_add(&s->grams, s->n_known + 1, s->n_known + 1);
    return 0;
}

/* ---- drafts ---- */

struct place {
    uint32_t at;      // position after the match
    uint32_t matched; // tokens of the match
};

/* A text, and the places where the context's last tokens occur in it. */
struct text {
    const struct ngram_index *grams;
    uint32_t owner;
    uint32_t oldest, end; // positions [oldest, end)
    bool is_context;
    uint32_t n_places;
    /* By length of the match, longest first; places of equal length: latest first. */
    struct place places[PLACES_MAX];
};

struct guess {
    float score;
    uint32_t n;
    uint32_t tokens[DRAFT_MAX_NODES];
    float survival[DRAFT_MAX_NODES];
};

static uint32_t token_at(const struct text *t, uint32_t pos)
{
    return t->grams->tokens[pos & t->grams->mask];
}

/* Counts the tokens at the end of the context that also precede position `at` of the text. The
 * caller has already found that the last `known` tokens do. */
static uint32_t match_length(const struct shared *sh, const struct text *t,
                             const struct prop_context *c, uint32_t at, uint32_t known)
{
    uint32_t max = (uint32_t)sh->set.max_depth, m = known;
    if (max > c->n)
        max = c->n;
    if (max > at - t->oldest)
        max = at - t->oldest;
    while (m < max && token_at(t, at - m - 1) == c->tokens[c->n - m - 1])
        m++;
    return m;
}

static_assert(PLACES_MAX < 255,
              "the number of kinds fits in a byte, and the table stays half empty");

/* The most frequent of n >= 1 tokens. On a tie the one that comes first. */
static uint32_t most_frequent(const uint32_t *tokens, uint32_t n, uint32_t *ret_count)
{
    uint32_t kinds[PLACES_MAX + 1], n_kinds = 0, best = 1;
    uint8_t counts[PLACES_MAX + 1]; // by kind, 1 .. n_kinds
    uint8_t table[256] = {0};       // hash of a token -> kind
    for (uint32_t i = 0; i < n; i++) {
        uint8_t at = (uint8_t)(tokens[i] * 0x9e3779b9u >> 24);
        while (table[at] && kinds[table[at]] != tokens[i])
            at++;
        if (!table[at]) {
            table[at] = (uint8_t)++n_kinds;
            kinds[n_kinds] = tokens[i];
            counts[n_kinds] = 0;
        }
        counts[table[at]]++;
    }
    for (uint32_t k = 2; k <= n_kinds; k++)
        best = counts[k] > counts[best] ? k : best;
    *ret_count = counts[best];
    return kinds[best];
}

/* The i-th token after a place, for a draft whose first i tokens are in `to`. SUFFIX_POOL_MARK: the
 * text has no further token. */
static uint32_t next_token(const struct text *t, uint32_t at, uint32_t i, const struct guess *to)
{
    if (at + i < t->end)
        return token_at(t, at + i);
    return t->is_context ? to->tokens[at + i - t->end] : SUFFIX_POOL_MARK;
}

/* Follows the most frequent continuation of the first n places. */
static void follow_places(const struct text *t, uint32_t n, uint32_t max, double min_prob,
                          struct guess *to)
{
    uint32_t alive[PLACES_MAX], next[PLACES_MAX];
    float prob = 1;
    for (uint32_t i = 0; i < n; i++)
        alive[i] = t->places[i].at;
    to->n = 0;
    to->score = 0;
    while (n && to->n < max) {
        uint32_t parent = n, n_next = 0, count;
        for (uint32_t i = 0; i < n; i++) {
            uint32_t token = next_token(t, alive[i], to->n, to);
            if (token == SUFFIX_POOL_MARK)
                continue;
            alive[n_next] = alive[i];
            next[n_next++] = token;
        }
        if (!n_next)
            return;
        uint32_t token = most_frequent(next, n_next, &count);
        prob *= (float)count / (float)parent;
        if ((double)prob < min_prob)
            return;
        to->tokens[to->n] = token;
        to->survival[to->n++] = prob;
        to->score += prob;
        n = 0;
        for (uint32_t i = 0; i < n_next; i++)
            if (next[i] == token)
                alive[n++] = alive[i];
    }
}

/* Adds the latest places of matches that have at least ngram_index_lens[level] tokens, and fewer
 * than those of the next level. Returns the number of places before. */
static uint32_t find_places(const struct shared *sh, struct text *t, const struct prop_context *c,
                            unsigned level)
{
    uint32_t len = ngram_index_lens[level], first = t->n_places;
    uint32_t below = level + 1 < NGRAM_INDEX_LENS ? ngram_index_lens[level + 1] : UINT32_MAX;
    uint32_t at = ngram_index_find(t->grams, level, c->tokens + c->n, t->owner);
    for (uint32_t n = 0; n < SUFFIX_LOOK_MAX && at && at - len >= t->oldest && at > len - 1; n++) {
        struct place p = {at, match_length(sh, t, c, at, len)};
        at = t->grams->before[at & t->grams->mask][level];
        if (p.matched >= below)
            continue; // was added at the next level
        uint32_t i = t->n_places++;
        for (; i > first && t->places[i - 1].matched < p.matched; i--)
            t->places[i] = t->places[i - 1];
        t->places[i] = p;
    }
    return first;
}

/* The maximum length of a draft after a match of `matched` tokens. */
static uint32_t max_tokens(const struct shared *sh, uint32_t matched, uint32_t k)
{
    double max = sh->set.factor * matched + sh->set.offset;
    return max < k ? (uint32_t)max : k;
}

static void find_best(const struct shared *sh, struct text *t, const struct prop_context *c,
                      uint32_t k, struct guess *best)
{
    struct guess g;
    t->n_places = 0;
    for (unsigned level = NGRAM_INDEX_LENS; level-- > 0;) {
        uint32_t most =
            level + 1 < NGRAM_INDEX_LENS ? ngram_index_lens[level + 1] - 1 : SUFFIX_DEPTH_MAX;
        if (best->score >= max_tokens(sh, most, k))
            return; // no shorter match can score better
        if (ngram_index_lens[level] > c->n || ngram_index_lens[level] > (uint32_t)sh->set.max_depth)
            continue;
        for (uint32_t i = find_places(sh, t, c, level); i < t->n_places; i++) {
            uint32_t matched = t->places[i].matched;
            if (i + 1 < t->n_places && t->places[i + 1].matched == matched)
                continue; // the next place has the same length: take it too
            if (best->score >= max_tokens(sh, matched, k))
                return;
            follow_places(t, i + 1, max_tokens(sh, matched, k), sh->set.min_prob, &g);
            if (g.score > best->score)
                *best = g;
        }
    }
}

static void search_pool(const struct shared *sh, const struct prop_context *c, uint32_t k,
                        struct guess *best)
{
    struct suffix_pool_view pool;
    uint8_t owner[SUFFIX_POOL_OWNER_MAX];
    if (!suffix_pool_lock(sh->pool, owner, owner_of(c, owner), &pool))
        return;
    struct text text = {
        .grams = pool.grams, .owner = pool.owner, .oldest = pool.oldest, .end = pool.end};
    find_best(sh, &text, c, k, best);
    suffix_pool_unlock(sh->pool);
}

static void draft_one(const struct shared *sh, const struct prop_ask *ask)
{
    const struct suffix_seq *s = ask->seq;
    const struct prop_context *c = &ask->context;
    struct draft *to = ask->to;
    struct guess best = {0};
    struct text text = {.grams = &s->grams, .end = c->n, .is_context = true};
    if (s->n_known)
        find_best(sh, &text, c, ask->max_depth, &best);
    if (sh->pool)
        search_pool(sh, c, ask->max_depth, &best);
    to->tree = false;
    to->q_mode = DRAFT_POINT;
    to->n = best.n;
    memcpy(to->tokens, best.tokens, best.n * sizeof(best.tokens[0]));
    memcpy(to->survival, best.survival, best.n * sizeof(best.survival[0]));
}

static void suffix_draft(void *shared, struct prop_ask *const *asks, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        draft_one(shared, asks[i]);
        asks[i]->done = true;
    }
}

const struct prop_ops prop_suffix = {
    .name = "suffix",
    .seq_size = sizeof(struct suffix_seq),
    .options = options,
    .n_options = ARRAY_LEN(options),
    .open = suffix_open,
    .close = suffix_close,
    .seq_done = suffix_seq_done,
    .cut = suffix_cut,
    .grow = suffix_grow,
    .draft = suffix_draft,
};
