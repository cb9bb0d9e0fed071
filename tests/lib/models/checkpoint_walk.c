/* checkpoint_walk.c - reads everything in an opened checkpoint. */
#include "lib/models/checkpoint_walk.h"
#include <string.h>

static uint64_t walk_array(const struct checkpoint_array *a)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < a->n; i++) {
        if (a->items == CHECKPOINT_TEXTS) {
            struct span text = checkpoint_array_text(a, i);
            for (size_t b = 0; b < text.len; b++)
                sum += (uint8_t)text.data[b];
        } else if (a->items == CHECKPOINT_FLOATS) {
            sum += checkpoint_array_float(a, i) > 0;
        } else {
            sum += (uint64_t)checkpoint_array_int(a, i);
        }
    }
    return sum;
}

static uint64_t walk_key(const struct checkpoint *g, const char *key)
{
    struct checkpoint_array array;
    struct span text = {"", 0};
    uint64_t sum = 0, large = 0;
    uint32_t small = 0;
    float number = 0;
    bool yes = false;
    checkpoint_u32(g, key, &small);
    checkpoint_u64(g, key, &large);
    checkpoint_float(g, key, &number);
    checkpoint_bool(g, key, &yes);
    if (checkpoint_array(g, key, &array) == 0)
        sum += walk_array(&array);
    checkpoint_text(g, key, &text);
    for (size_t b = 0; b < text.len; b++)
        sum += (uint8_t)text.data[b];
    return sum + small + large + (number > 0) + yes;
}

uint64_t checkpoint_walk(const struct checkpoint *g)
{
    static const char *const keys[] = {
        "general.architecture",
        "general.alignment",
        "block_count",
        "float",
        "bool",
        "tokenizer.model",
        "tokenizer.tokens",
        "tokenizer.merges",
        "tokenizer.scores",
        "tokenizer.token_type",
    };
    uint64_t sum = 0;
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        sum += walk_key(g, keys[i]);
    for (uint32_t i = 0; i < checkpoint_n_tensors(g); i++) {
        const struct checkpoint_tensor *t = checkpoint_tensor_at(g, i);
        uint8_t ends[2] = {0};
        if (t->bytes) {
            checkpoint_read(g, t, 0, 1, &ends[0]);
            checkpoint_read(g, t, t->bytes - 1, 1, &ends[1]);
        }
        sum += t->bytes + ends[0] + ends[1];
        sum += strlen(t->type_name);
    }
    return sum;
}
