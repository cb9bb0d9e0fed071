/* ngram_index.h - all places of a text where the last tokens of a context stand: an exact index.
 *
 * For each of the lengths 1, 2, 4 and 8 a hash table has the latest place of every n-gram, and
 * before[] leads from a place to the one before it. A place is the position behind the n-gram,
 * never 0. A text grows at its end and shrinks at either: taking back what was added last needs no
 * more than before[], so linear probing goes without tombstones.
 *
 * Threads: one at a time, or several that only look. */
#pragma once
#include <stdint.h>

#define GRAMS_LENS 4
#define GRAMS_LONGEST 8
extern const uint32_t grams_lens[GRAMS_LENS]; // rising

/* The text is the caller's: its token at position p is tokens[p & mask]. */
struct grams {
    const uint32_t *tokens;
    const uint32_t *owners; // as tokens: what is whose; NULL: it is all 0's
    uint32_t mask;
    uint64_t salt; // so that nobody can choose texts whose n-grams collide
    uint32_t n_slots;
    uint32_t *slots;                // (GRAMS_LENS, n_slots)
    uint32_t (*before)[GRAMS_LENS]; // by place & mask
};

/* Tables for so many places, and before[] for n_before of them. -ENOMEM. */
int grams_init(struct grams *g, uint32_t n_places, uint32_t n_before);
void grams_done(struct grams *g);
/* Forgets all places. */
void grams_clear(struct grams *g);

/* The place e of all n-grams of at most `span` tokens that end there. */
void grams_add(struct grams *g, uint32_t e, uint32_t span);
/* Undoes it; e was added last. */
void grams_take_back(struct grams *g, uint32_t e, uint32_t span);
/* Forgets the place e of the n-gram of grams_lens[i], its oldest. Later places still lead to it. */
void grams_forget(struct grams *g, unsigned i, uint32_t e);

/* The latest place of the grams_lens[i] tokens before `end` in the owner's texts; 0: none. */
uint32_t grams_find(const struct grams *g, unsigned i, const uint32_t *end, uint32_t owner);
