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

#define NGRAM_INDEX_LENS 4
#define NGRAM_INDEX_LONGEST 8
extern const uint32_t ngram_index_lens[NGRAM_INDEX_LENS]; // rising

/* The text is the caller's: its token at position p is tokens[p & mask]. */
struct ngram_index {
    const uint32_t *tokens;
    const uint32_t *owners; // as tokens: what is whose; NULL: it is all 0's
    uint32_t mask;
    uint64_t salt; // so that nobody can choose texts whose n-grams collide
    uint32_t n_slots;
    uint32_t *slots;                      // (NGRAM_INDEX_LENS, n_slots)
    uint32_t (*before)[NGRAM_INDEX_LENS]; // by place & mask
};

/* Tables for so many places, and before[] for n_before of them. -ENOMEM. */
int ngram_index_init(struct ngram_index *g, uint32_t n_places, uint32_t n_before);
void ngram_index_done(struct ngram_index *g);
/* Forgets all places. */
void ngram_index_clear(struct ngram_index *g);

/* The place e of all n-grams of at most `span` tokens that end there. */
void ngram_index_add(struct ngram_index *g, uint32_t e, uint32_t span);
/* Undoes it; e was added last. */
void ngram_index_take_back(struct ngram_index *g, uint32_t e, uint32_t span);
/* Forgets the place e of the n-gram of ngram_index_lens[i], its oldest. Later places still lead to it. */
void ngram_index_forget(struct ngram_index *g, unsigned i, uint32_t e);

/* The latest place of the ngram_index_lens[i] tokens before `end` in the owner's texts; 0: none. */
uint32_t ngram_index_find(const struct ngram_index *g, unsigned i, const uint32_t *end,
                          uint32_t owner);
