/* arch_qwen3.c - Qwen 3: the heads of q and k have norms. */
#include "model/arch.h"

static const struct arch_tensor tensors[] = {
    {CHECKPOINT_ATTN_NORM, ARCH_EMBD, ARCH_ONE, .to = ARCH_TO(attn.norm)},
    {CHECKPOINT_FFN_NORM, ARCH_EMBD, ARCH_ONE, .to = ARCH_TO(ffn.norm)},
    {CHECKPOINT_ATTN_Q_NORM, ARCH_K_DIM, ARCH_ONE, .to = ARCH_TO(attn.q_norm)},
    {CHECKPOINT_ATTN_K_NORM, ARCH_K_DIM, ARCH_ONE, .to = ARCH_TO(attn.k_norm)},
    {CHECKPOINT_ATTN_Q, ARCH_EMBD, ARCH_Q_ROWS, .to = ARCH_TO(attn.q), .joins_next = true},
    {CHECKPOINT_ATTN_K, ARCH_EMBD, ARCH_K_ROWS, .to = ARCH_TO(attn.k), .joins_next = true},
    {CHECKPOINT_ATTN_V, ARCH_EMBD, ARCH_V_ROWS, .to = ARCH_TO(attn.v)},
    {CHECKPOINT_ATTN_OUTPUT, ARCH_O_COLS, ARCH_EMBD, .to = ARCH_TO(attn.o)},
    {CHECKPOINT_FFN_GATE, ARCH_EMBD, ARCH_FF, .to = ARCH_TO(ffn.gate)},
    {CHECKPOINT_FFN_UP, ARCH_EMBD, ARCH_FF, .to = ARCH_TO(ffn.up)},
    {CHECKPOINT_FFN_DOWN, ARCH_FF, ARCH_EMBD, .to = ARCH_TO(ffn.down)},
};

static const struct arch_layer layer = {MODEL_ATTN_FULL, MODEL_FFN_DENSE, tensors,
                                        ARRAY_LEN(tensors)};

/* All layers are alike. */
static const struct arch_layer *describe_layer(const struct model_params *p, uint32_t l)
{
    (void)p;
    (void)l;
    return &layer;
}

const struct arch arch_qwen3 = {"qwen3", MODEL_ROPE_HALVES, describe_layer};
