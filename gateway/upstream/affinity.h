/* affinity.h - a table of prompt prefixes and the verifiers that have received them. A request can
 * then go to a verifier that has the KV blocks of its prompt.
 *
 * A prompt is cut every AFFINITY_PIECE bytes. Each cut has a hash of the salt and of all bytes
 * before it. A table of fixed size maps a hash to the verifiers that got a prompt with this prefix.
 * A full set replaces its least recently used entry. Entries are hints: a wrong one costs only
 * time.
 *
 * Threads: one at a time per table; affinity_of() any. */
#pragma once
#include <stddef.h>
#include <stdint.h>
#include "base/mem.h"

#define AFFINITY_PIECE 256  // bytes, about four blocks of KV
#define AFFINITY_PIECES 256 // of a prompt; later bytes are ignored

struct affinity;

/* The prefixes of a prompt: (n) hashes, shortest prefix first. */
struct affinity_prompt {
    unsigned n;
    uint64_t hashes[AFFINITY_PIECES];
};

/* salt: the tenant. Equal texts with different salts share no hash. */
void affinity_of(const char *salt, const void *prompt, size_t len, struct affinity_prompt *ret);

/* -ENOMEM. */
int affinity_new(struct affinity **ret);
void affinity_free(struct affinity *a);
DEFINE_AUTO(struct affinity, affinity_free)

/* ret_pieces: (n) the number of leading pieces of the prompt that each verifier has received. */
void affinity_find(const struct affinity *a, const struct affinity_prompt *p, unsigned n,
                   unsigned *ret_pieces);
/* Records that this verifier (< 32) gets the prompt. */
void affinity_note(struct affinity *a, const struct affinity_prompt *p, unsigned verifier);
