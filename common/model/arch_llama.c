/* arch_llama.c - Llama 1 to 3.x, Mistral, SmolLM and the like: q, k and v may have biases.
 *
 * The converter reorders the rows of Q and K, so that the two numbers of a rotation are
 * neighbours. */
#include "model/arch.h"

static const struct arch_tensor tensors[] = {
    {CHECKPOINT_ATTN_NORM, ARCH_EMBD, ARCH_ONE, .to = ARCH_TO(attn.norm)},
    {CHECKPOINT_FFN_NORM, ARCH_EMBD, ARCH_ONE, .to = ARCH_TO(ffn.norm)},
    {CHECKPOINT_ATTN_Q_BIAS, ARCH_Q_ROWS, ARCH_ONE, .to = ARCH_TO(attn.q_bias), .has = ARCH_MAYBE},
    {CHECKPOINT_ATTN_K_BIAS, ARCH_K_ROWS, ARCH_ONE, .to = ARCH_TO(attn.k_bias), .has = ARCH_MAYBE},
    {CHECKPOINT_ATTN_V_BIAS, ARCH_V_ROWS, ARCH_ONE, .to = ARCH_TO(attn.v_bias), .has = ARCH_MAYBE},
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

const struct arch arch_llama = {"llama", MODEL_ROPE_PAIRS, describe_layer};
