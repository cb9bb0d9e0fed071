/* special.h - finds the names of special tokens in text: the longest that begins at a place.
 *
 * Private to tok. User-defined tokens are always found, control and unknown ones only on request.
 *
 * Threads: immutable after special_init(). */
#pragma once
#include "text/vocab.h"

#define SPECIAL_MAX_BYTES 512 // longer names are not found, which bounds the work per byte

struct special {
    const struct vocab *vocab;
    uint32_t *ids;       // sorted by their bytes, one for each name
    uint32_t first[257]; // ids[first[b]] to ids[first[b + 1]] begin with byte b
    bool any_user;
};

int special_init(struct special *s, const struct vocab *vocab);
void special_done(struct special *s);
/* Returns the offset of the next name from `at` on; len: none. */
size_t special_find(const struct special *s, const char *text, size_t len, size_t at,
                    bool parse_special, uint32_t *ret_id);
