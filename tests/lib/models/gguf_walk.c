/* gguf_walk.c - touches everything that an opened GGUF file offers. */
#include "lib/models/gguf_walk.h"
#include <string.h>

static uint64_t walk_array(const struct gguf_array *a)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < a->n; i++) {
        if (a->kind == GGUF_STRING) {
            struct gguf_text text = gguf_array_text(a, i);
            for (size_t b = 0; b < text.len; b++)
                sum += (uint8_t)text.data[b];
        } else if (a->kind == GGUF_FLOAT32 || a->kind == GGUF_FLOAT64) {
            sum += gguf_array_float(a, i) > 0;
        } else {
            sum += (uint64_t)gguf_array_int(a, i);
        }
    }
    return sum;
}

static uint64_t walk_key(const struct gguf *g, const char *key)
{
    struct gguf_array array;
    struct gguf_text text = {"", 0};
    uint64_t sum = 0, large = 0;
    uint32_t small = 0;
    float number = 0;
    bool yes = false;
    gguf_u32(g, key, &small);
    gguf_u64(g, key, &large);
    gguf_float(g, key, &number);
    gguf_bool(g, key, &yes);
    if (gguf_array(g, key, &array) == 0)
        sum += walk_array(&array);
    gguf_str(g, key, &text);
    for (size_t b = 0; b < text.len; b++)
        sum += (uint8_t)text.data[b];
    return sum + small + large + (number > 0) + yes;
}

uint64_t gguf_walk(const struct gguf *g)
{
    static const char *const keys[] = {
        "general.architecture",
        "general.alignment",
        "llama.block_count",
        "a.float",
        "a.bool",
        "tokenizer.ggml.model",
        "tokenizer.ggml.tokens",
        "tokenizer.ggml.merges",
        "tokenizer.ggml.scores",
        "tokenizer.ggml.token_type",
    };
    uint64_t sum = 0;
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        sum += walk_key(g, keys[i]);
    for (uint32_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);
        const uint8_t *data = t->data;
        sum += t->bytes + (t->bytes ? data[0] + data[t->bytes - 1] : 0);
        sum += strlen(gguf_type_name(t->type));
    }
    return sum;
}
