/* arch_qwen2.c - Qwen 1.5 to 2.5: q, k and v have biases. Those with experts have a shared one. */
#include "model/arch.h"

#define BIASES                                                                                     \
    {CHECKPOINT_ATTN_Q_BIAS, ARCH_Q_ROWS, ARCH_ONE, .to = ARCH_TO(attn.q_bias)},                   \
        {CHECKPOINT_ATTN_K_BIAS, ARCH_K_ROWS, ARCH_ONE, .to = ARCH_TO(attn.k_bias)},               \
    {                                                                                              \
        CHECKPOINT_ATTN_V_BIAS, ARCH_V_ROWS, ARCH_ONE, .to = ARCH_TO(attn.v_bias)                  \
    }

static const struct arch_tensor dense_tensors[] = {ARCH_NORMS, BIASES, ARCH_ATTENTION, ARCH_DENSE};
static const struct arch_tensor expert_tensors[] = {ARCH_NORMS, BIASES, ARCH_ATTENTION,
                                                    ARCH_OF_EXPERTS, ARCH_SHARED_EXPERT};

static const struct arch_layer dense = {.attn = MODEL_ATTN_FULL,
                                        .ffn = MODEL_FFN_DENSE,
                                        .tensors = dense_tensors,
                                        .n_tensors = ARRAY_LEN(dense_tensors)};
static const struct arch_layer with_experts = {.attn = MODEL_ATTN_FULL,
                                               .ffn = MODEL_FFN_EXPERTS,
                                               .tensors = expert_tensors,
                                               .n_tensors = ARRAY_LEN(expert_tensors),
                                               .has_shared_expert = true};

/* All layers are alike. */
static const struct arch_layer *describe_layer(const struct model_params *p, uint32_t l)
{
    (void)l;
    return p->n_experts ? &with_experts : &dense;
}

const struct arch arch_qwen2 = {
    .name = "qwen2",
    .models = "Qwen 1.5 to 2.5",
    .special = "biases of q, k and v",
    .rope = MODEL_ROPE_HALVES,
    .experts = ARCH_NO_EXPERTS,
    .layer = describe_layer,
};
const struct arch arch_qwen2moe = {
    .name = "qwen2moe",
    .models = "Qwen 1.5 MoE, Qwen 2 57B-A14B",
    .special = "biases of q, k and v; a shared expert",
    .rope = MODEL_ROPE_HALVES,
    .experts = ARCH_ALL_EXPERTS,
    .layer = describe_layer,
};
