/* tiny.h - small models with random weights, written as GGUF files in memory, and their expected
 * logits, computed in double from the same bytes. */
#pragma once
#include "kernel/kernel.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "file/gguf.h"

struct tiny {
    /* "llama", "qwen2", "qwen3", "qwen35"; with experts "gpt-oss", "qwen2moe", "qwen3moe",
     * "qwen35moe" */
    const char *arch;
    enum kernel_type type;      // of all matrices
    enum kernel_type head_type; // of the embedding, and of the head
    bool tied;
    bool factors;                // llama: a rope_freqs tensor
    const char *scaling;         // NULL, "linear" or "yarn"
    bool mixed;                  // attn_v and ffn_down have head_type
    bool halves;                 // norms and biases in F16
    bool flat_router;            // all experts have the same probability
    uint32_t n_layers, rope_dim; // 0: 2, the whole head
    struct {
        const char *name; // without the architecture; NULL: none
        enum gguf_kind kind;
        uint32_t value;
    } more; // one more parameter
    uint64_t seed;
};

#define TINY_VOCAB 83 // not a multiple of a tile
#define TINY_EMBD 256
#define TINY_HEADS 8
#define TINY_KV_HEADS 2
#define TINY_HEAD_DIM 32
#define TINY_FF 512
#define TINY_EXPERTS 6
#define TINY_USED_EXPERTS 2
#define TINY_EXPERT_FF 512
#define TINY_SHARED_FF 768
#define TINY_WINDOW 24 // of the even layers of gpt-oss
/* Of the gated delta net, in the even layers of qwen35. */
#define TINY_DELTA_K_HEADS 2
#define TINY_DELTA_V_HEADS 4
#define TINY_DELTA_DIM 32
#define TINY_TAPS 4
#define TINY_CONTEXT 512

/* The bytes of the file, aligned for readers; free them. */
void *tiny_write(const struct tiny *t, size_t *ret_len);

/* Logits (n, TINY_VOCAB) of a chain of tokens from position 0. Only K and V are rounded, to f16, as
 * in the cache. */
void tiny_logits(const struct tiny *t, const void *file, size_t len, const uint32_t *tokens,
                 uint32_t n, double *logits);
