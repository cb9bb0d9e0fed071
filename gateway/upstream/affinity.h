/* affinity.h - which verifiers have seen the beginning of a prompt, so that it goes where its KV
 * blocks are.
 *
 * A prompt is cut every AFFINITY_PIECE bytes; each cut is known by a hash of all that comes before
 * it, whose prompt it is included. A table of fixed size holds for each hash the verifiers that got
 * such a prompt; where it is full, what was used least recently goes. All of it is advice: a wrong
 * entry costs time and nothing else.
 *
 * Threads: one at a time per table; affinity_of() any. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "base/mem.h"

#define AFFINITY_PIECE 256  // bytes, about four blocks of KV
#define AFFINITY_PIECES 256 // of a prompt; what is behind them does not matter

struct affinity;

/* The beginning of a prompt: (n) hashes. */
struct affinity_prompt {
    unsigned n;
    uint64_t hashes[AFFINITY_PIECES];
};

/* salt: whose it is; equal texts of different salts have nothing in common. */
void affinity_of(const char *salt, const void *prompt, size_t len, struct affinity_prompt *ret);

/* -ENOMEM. */
int affinity_new(struct affinity **ret);
void affinity_free(struct affinity *a);
DEFINE_AUTO(struct affinity, affinity_free)

/* ret_pieces: (n) of the prompt's pieces, in a row from the first, that each verifier has seen. */
void affinity_find(const struct affinity *a, const struct affinity_prompt *p, unsigned n,
                   unsigned *ret_pieces);
/* verifier < 32 gets it. */
void affinity_note(struct affinity *a, const struct affinity_prompt *p, unsigned verifier);
