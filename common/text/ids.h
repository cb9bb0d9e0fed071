/* ids.h - a growing list of token ids. Private to tok. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

struct ids {
    uint32_t *data;
    size_t n, cap;
    bool failed; // no memory: checked once at the end
};

static inline void ids_add(struct ids *ids, uint32_t id)
{
    if (ids->n == ids->cap) {
        size_t cap = ids->cap ? 2 * ids->cap : 256;
        uint32_t *data = reallocarray(ids->data, cap, sizeof(*data));
        if (!data) {
            ids->failed = true;
            return;
        }
        ids->data = data;
        ids->cap = cap;
    }
    ids->data[ids->n++] = id;
}
