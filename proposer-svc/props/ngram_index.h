/* ngram_index.h - an exact index of all places in a text where the last tokens of a context occur.
 *
 * For each of the lengths 1, 2, 4 and 8, a hash table has the latest place of every n-gram.
 * before[] leads from a place to the previous one of the same n-gram. A place is the position after
 * the n-gram, never 0. A text grows at its end, and shrinks at its end or its start. Removing the
 * latest place only needs before[], so linear probing works without tombstones.
 *
 * Threads: one at a time that changes it; several that only read. */
#pragma once
#include <stdint.h>

#define NGRAM_INDEX_LENS 4
#define NGRAM_INDEX_LONGEST 8
extern const uint32_t ngram_index_lens[NGRAM_INDEX_LENS]; // ascending

/* The text is the caller's: its token at position p is tokens[p & mask]. */
struct ngram_index {
    const uint32_t *tokens;
    const uint32_t *owners; // each token's owner, at the same index; NULL: all are owner 0's
    uint32_t mask;
    uint64_t salt; // random, so that no text can be made of n-grams that collide
    uint32_t n_slots;
    uint32_t *slots;                      // (NGRAM_INDEX_LENS, n_slots)
    uint32_t (*before)[NGRAM_INDEX_LENS]; // by place & mask
};

/* Allocates tables for n_places places, and before[] for n_before of them. -ENOMEM. */
int ngram_index_init(struct ngram_index *g, uint32_t n_places, uint32_t n_before);
void ngram_index_done(struct ngram_index *g);
/* Removes all places. */
void ngram_index_clear(struct ngram_index *g);

/* Adds place e to all n-grams of at most `span` tokens that end there. */
void ngram_index_add(struct ngram_index *g, uint32_t e, uint32_t span);
/* Undoes ngram_index_add(). e was added last. */
void ngram_index_undo(struct ngram_index *g, uint32_t e, uint32_t span);
/* Removes place e from the table of length ngram_index_lens[i]. e must be the n-gram's oldest
 * place. before[] of the next place still leads to it. */
void ngram_index_forget(struct ngram_index *g, unsigned i, uint32_t e);

/* The latest place, in the owner's text, of the ngram_index_lens[i] tokens before `end`. 0:
 * none. */
uint32_t ngram_index_find(const struct ngram_index *g, unsigned i, const uint32_t *end,
                          uint32_t owner);
