/* arch_gpt_oss.c - gpt-oss: all products but the head have biases, every second layer has a window,
 * heads have sinks, and experts have a clamped activation. */
#include "model/arch.h"

static const struct arch_tensor tensors[] = {
    ARCH_POST_NORMS,
    {CHECKPOINT_ATTN_Q_BIAS, ARCH_Q_ROWS, ARCH_ONE, .to = ARCH_TO(attn.q_bias)},
    {CHECKPOINT_ATTN_K_BIAS, ARCH_K_ROWS, ARCH_ONE, .to = ARCH_TO(attn.k_bias)},
    {CHECKPOINT_ATTN_V_BIAS, ARCH_V_ROWS, ARCH_ONE, .to = ARCH_TO(attn.v_bias)},
    {CHECKPOINT_ATTN_OUTPUT_BIAS, ARCH_EMBD, ARCH_ONE, .to = ARCH_TO(attn.o_bias)},
    {CHECKPOINT_ATTN_SINKS, ARCH_HEADS, ARCH_ONE, .to = ARCH_TO(attn.sinks)},
    ARCH_ATTENTION,
    {CHECKPOINT_FFN_ROUTER_BIAS, ARCH_EXPERTS, ARCH_ONE, .to = ARCH_TO(ffn.experts.router_bias)},
    {CHECKPOINT_FFN_GATE_EXPERTS_BIAS, ARCH_EXPERT_FF, ARCH_ONE,
     .to = ARCH_TO(ffn.experts.gate_bias), .per_expert = true},
    {CHECKPOINT_FFN_UP_EXPERTS_BIAS, ARCH_EXPERT_FF, ARCH_ONE, .to = ARCH_TO(ffn.experts.up_bias),
     .per_expert = true},
    {CHECKPOINT_FFN_DOWN_EXPERTS_BIAS, ARCH_EMBD, ARCH_ONE, .to = ARCH_TO(ffn.experts.down_bias),
     .per_expert = true},
    ARCH_OF_EXPERTS};

#define LAYER                                                                                      \
    .attn = MODEL_ATTN_FULL, .ffn = MODEL_FFN_EXPERTS, .tensors = tensors,                         \
    .n_tensors = ARRAY_LEN(tensors), .weights_sum_to_1 = true, .glu = MODEL_SWIGLU_CLAMPED

static const struct arch_layer with_window = {LAYER, .has_window = true}, without = {LAYER};

static const struct arch_layer *describe_layer(const struct model_params *p, uint32_t l)
{
    (void)p;
    return l % 2 == 0 ? &with_window : &without;
}

const struct arch arch_gpt_oss = {
    .name = "gpt-oss",
    .models = "gpt-oss 20b and 120b",
    .special = "sinks; every second layer has a window; biases; a clamped activation",
    .rope = MODEL_ROPE_HALVES,
    .experts = ARCH_ALL_EXPERTS,
    .window_every = 2,
    .layer = describe_layer,
};
