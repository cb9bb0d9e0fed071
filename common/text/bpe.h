/* bpe.h - byte-level BPE: words become bytes, and the file's merges join bytes. Private to tok.
 *
 * Threads: immutable after bpe_init(). */
#pragma once
#include "text/ids.h"
#include "text/merge.h"
#include "text/pretok.h"
#include "text/vocab.h"

struct bpe_slot {
    uint64_t pair;     // left id << 32 | right id
    uint32_t rank, id; // id: of the merged pair; VOCAB_NONE: empty slot
};

struct bpe {
    const struct vocab *vocab;
    struct pretok pretok;
    struct bpe_slot *slots; // (mask + 1) merges by pair
    uint32_t mask;
    uint32_t byte_ids[256]; // VOCAB_NONE: the vocabulary lacks the byte; it is dropped
};

/* Reads tokenizer.pre and tokenizer.merges. The vocabulary must outlive b. */
int bpe_init(struct bpe *b, const struct checkpoint *c, const struct vocab *vocab);
void bpe_done(struct bpe *b);
/* Appends the ids of a text. -ENOMEM; -EINVAL as pretok_split(). */
int bpe_encode(const struct bpe *b, const char *text, size_t len, struct merge *work,
               struct ids *to);
