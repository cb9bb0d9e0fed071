/* arch_llama.c - Llama 1 to 3.x, Mistral, Mixtral, SmolLM and the like: q, k and v may have biases.
 *
 * The converter reorders the rows of Q and K, so that the two numbers of a rotation are
 * neighbours. */
#include "model/arch.h"

#define BIASES                                                                                     \
    {CHECKPOINT_ATTN_Q_BIAS, ARCH_Q_ROWS, ARCH_ONE, .to = ARCH_TO(attn.q_bias),                    \
     .has = ARCH_MAYBE},                                                                           \
        {CHECKPOINT_ATTN_K_BIAS, ARCH_K_ROWS, ARCH_ONE, .to = ARCH_TO(attn.k_bias),                \
         .has = ARCH_MAYBE},                                                                       \
    {                                                                                              \
        CHECKPOINT_ATTN_V_BIAS, ARCH_V_ROWS, ARCH_ONE, .to = ARCH_TO(attn.v_bias),                 \
                                                       .has = ARCH_MAYBE                           \
    }

static const struct arch_tensor dense_tensors[] = {ARCH_NORMS, BIASES, ARCH_ATTENTION, ARCH_DENSE};
static const struct arch_tensor expert_tensors[] = {ARCH_NORMS, BIASES, ARCH_ATTENTION,
                                                    ARCH_OF_EXPERTS};

static const struct arch_layer dense = {.attn = MODEL_ATTN_FULL,
                                        .ffn = MODEL_FFN_DENSE,
                                        .tensors = dense_tensors,
                                        .n_tensors = ARRAY_LEN(dense_tensors)};
static const struct arch_layer with_experts = {.attn = MODEL_ATTN_FULL,
                                               .ffn = MODEL_FFN_EXPERTS,
                                               .tensors = expert_tensors,
                                               .n_tensors = ARRAY_LEN(expert_tensors),
                                               .weights_sum_to_1 = true};

/* All layers are alike. */
static const struct arch_layer *describe_layer(const struct model_params *p, uint32_t l)
{
    (void)l;
    return p->n_experts ? &with_experts : &dense;
}

const struct arch arch_llama = {
    .name = "llama",
    .models = "Llama 1 to 3.x, Mistral, Mixtral, SmolLM and others",
    .special = "q, k and v may have biases",
    .rope = MODEL_ROPE_PAIRS,
    .experts = ARCH_SOME_EXPERTS,
    .layer = describe_layer,
};
