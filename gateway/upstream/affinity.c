/* affinity.c - a set-associative table with sets of four. A hash has one set, so entries never
 * move. */
#include "gateway/upstream/affinity.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#include "base/err.h"

#define WAYS 4
#define SETS (1u << 14) // 1 MiB: 256 of the longest prompts, thousands of common ones

struct entry {
    uint64_t hash;
    uint32_t verifiers; // a bit per verifier; 0: the entry is free
    uint32_t used;      // a->now of the last use
};

struct affinity {
    uint32_t now; // number of prompts that were noted
    struct entry sets[SETS][WAYS];
};

void affinity_of(const char *salt, const void *prompt, size_t len, struct affinity_prompt *ret)
{
    uint64_t hash = XXH3_64bits(salt, strlen(salt));
    ret->n = 0;
    for (size_t at = 0; len - at >= AFFINITY_PIECE && ret->n < AFFINITY_PIECES;
         at += AFFINITY_PIECE) {
        hash = XXH3_64bits_withSeed((const char *)prompt + at, AFFINITY_PIECE, hash);
        ret->hashes[ret->n++] = hash;
    }
}

int affinity_new(struct affinity **ret)
{
    *ret = calloc(1, sizeof(**ret));
    return *ret ? 0 : fail(-ENOMEM, "affinity: no memory");
}

void affinity_free(struct affinity *a)
{
    free(a);
}

static const struct entry *find_entry(const struct affinity *a, uint64_t hash)
{
    const struct entry *set = a->sets[hash % SETS];
    for (unsigned i = 0; i < WAYS; i++)
        if (set[i].verifiers && set[i].hash == hash)
            return &set[i];
    return NULL;
}

void affinity_find(const struct affinity *a, const struct affinity_prompt *p, unsigned n,
                   unsigned *ret_pieces)
{
    uint32_t verifiers = UINT32_MAX;
    memset(ret_pieces, 0, n * sizeof(*ret_pieces));
    for (unsigned i = 0; i < p->n && verifiers; i++) {
        const struct entry *e = find_entry(a, p->hashes[i]);
        verifiers &= e ? e->verifiers : 0;
        for (unsigned v = 0; v < n; v++)
            ret_pieces[v] += verifiers >> v & 1;
    }
}

/* The entry of this hash. If there is none, the least recently used entry of the set is
 * replaced. */
static struct entry *place_entry(struct affinity *a, uint64_t hash)
{
    struct entry *set = a->sets[hash % SETS], *found = &set[0];
    for (unsigned i = 0; i < WAYS; i++) {
        if (set[i].verifiers && set[i].hash == hash)
            return &set[i];
        if (!set[i].verifiers || (found->verifiers && a->now - set[i].used > a->now - found->used))
            found = &set[i];
    }
    *found = (struct entry){.hash = hash};
    return found;
}

void affinity_note(struct affinity *a, const struct affinity_prompt *p, unsigned verifier)
{
    a->now++;
    for (unsigned i = 0; i < p->n; i++) {
        struct entry *e = place_entry(a, p->hashes[i]);
        e->verifiers |= 1u << verifier;
        e->used = a->now;
    }
}
