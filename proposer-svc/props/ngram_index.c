/* ngram_index.c - hash tables of positions; n-grams are compared in the text itself. */
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "proposer-svc/props/ngram_index.h"

const uint32_t ngram_index_lens[NGRAM_INDEX_LENS] = {1, 2, 4, NGRAM_INDEX_LONGEST};

int ngram_index_init(struct ngram_index *g, uint32_t n_places, uint32_t n_before)
{
    uint64_t n_slots = (uint64_t)n_places / 3 * 4 + 4;
    g->slots = n_slots <= UINT32_MAX ? calloc(n_slots * NGRAM_INDEX_LENS, sizeof(*g->slots)) : NULL;
    g->before = malloc(n_before * sizeof(*g->before));
    g->n_slots = (uint32_t)n_slots;
    return g->slots && g->before ? 0 : fail(-ENOMEM, "no memory for %u tokens", n_places);
}

void ngram_index_done(struct ngram_index *g)
{
    free(g->slots);
    free(g->before);
}

void ngram_index_clear(struct ngram_index *g)
{
    memset(g->slots, 0, (size_t)g->n_slots * NGRAM_INDEX_LENS * sizeof(*g->slots));
}

static uint32_t token_at(const struct ngram_index *g, uint32_t pos)
{
    return g->tokens[pos & g->mask];
}

static uint32_t owner_at(const struct ngram_index *g, uint32_t pos)
{
    return g->owners ? g->owners[pos & g->mask] : 0;
}

static uint64_t mix_hash(uint64_t h, uint32_t token)
{
    h = (h ^ token) * 0x9e3779b97f4a7c15u;
    return h ^ h >> 32;
}

static uint32_t slot_at(const struct ngram_index *g, uint64_t hash)
{
    return (uint32_t)((hash >> 32) * g->n_slots >> 32);
}

/* The preferred slot of the n-gram before place e. */
static uint32_t home_of(const struct ngram_index *g, unsigned i, uint32_t e)
{
    uint64_t h = g->salt + owner_at(g, e - 1);
    for (uint32_t n = 1; n <= ngram_index_lens[i]; n++)
        h = mix_hash(h, token_at(g, e - n));
    return slot_at(g, h);
}

/* Whether the n-grams before places a and b are equal, and of one owner. */
static bool same_gram(const struct ngram_index *g, unsigned i, uint32_t a, uint32_t b)
{
    bool same = owner_at(g, a - 1) == owner_at(g, b - 1);
    for (uint32_t n = 1; same && n <= ngram_index_lens[i]; n++)
        same = token_at(g, a - n) == token_at(g, b - n);
    return same;
}

/* Whether the n-gram before place e is the owner's, and equal to the tokens before `end`. */
static bool gram_equals(const struct ngram_index *g, unsigned i, uint32_t e, const uint32_t *end,
                        uint32_t owner)
{
    bool same = owner_at(g, e - 1) == owner;
    for (uint32_t n = 1; same && n <= ngram_index_lens[i]; n++)
        same = token_at(g, e - n) == *(end - n);
    return same;
}

static uint32_t next_slot(const struct ngram_index *g, uint32_t slot)
{
    return slot + 1 < g->n_slots ? slot + 1 : 0;
}

/* The slot of the n-gram before place e, or the empty slot where it is to be inserted. */
static uint32_t slot_of(const struct ngram_index *g, unsigned i, uint32_t e, uint32_t home)
{
    const uint32_t *slots = g->slots + (size_t)i * g->n_slots;
    while (slots[home] && !same_gram(g, i, slots[home], e))
        home = next_slot(g, home);
    return home;
}

void ngram_index_add(struct ngram_index *g, uint32_t e, uint32_t span)
{
    uint64_t h = g->salt + owner_at(g, e - 1);
    uint32_t n = 0;
    for (unsigned i = 0; i < NGRAM_INDEX_LENS && ngram_index_lens[i] <= span; i++) {
        while (n < ngram_index_lens[i])
            h = mix_hash(h, token_at(g, e - ++n));
        uint32_t *slot = g->slots + (size_t)i * g->n_slots + slot_of(g, i, e, slot_at(g, h));
        g->before[e & g->mask][i] = *slot;
        *slot = e;
    }
}

void ngram_index_undo(struct ngram_index *g, uint32_t e, uint32_t span)
{
    for (unsigned i = 0; i < NGRAM_INDEX_LENS && ngram_index_lens[i] <= span; i++)
        g->slots[(size_t)i * g->n_slots + slot_of(g, i, e, home_of(g, i, e))] =
            g->before[e & g->mask][i];
}

void ngram_index_forget(struct ngram_index *g, unsigned i, uint32_t e)
{
    uint32_t *slots = g->slots + (size_t)i * g->n_slots;
    uint32_t hole = slot_of(g, i, e, home_of(g, i, e));
    if (slots[hole] != e)
        return; // the slot has a later place
    for (uint32_t s = next_slot(g, hole); slots[s]; s = next_slot(g, s)) {
        uint32_t home = home_of(g, i, slots[s]);
        bool stays = hole < s ? hole < home && home <= s : hole < home || home <= s;
        if (stays)
            continue;
        slots[hole] = slots[s];
        hole = s;
    }
    slots[hole] = 0;
}

uint32_t ngram_index_find(const struct ngram_index *g, unsigned i, const uint32_t *end,
                          uint32_t owner)
{
    const uint32_t *slots = g->slots + (size_t)i * g->n_slots;
    uint64_t h = g->salt + owner;
    for (uint32_t n = 1; n <= ngram_index_lens[i]; n++)
        h = mix_hash(h, *(end - n));
    uint32_t slot = slot_at(g, h);
    while (slots[slot] && !gram_equals(g, i, slots[slot], end, owner))
        slot = next_slot(g, slot);
    return slots[slot];
}
