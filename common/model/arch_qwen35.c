/* arch_qwen35.c - Qwen 3.5, 3.6 and 3 Next: three of four layers have a gated delta net, the others
 * attention whose output has a gate.
 *
 * A quarter of each head is rotated. For text, the parts for an image's rows and columns have the
 * same position. */
#include "model/arch.h"

#define GATED_ATTENTION ARCH_ATTENTION_OF(ARCH_GATED_Q_ROWS)
/* All but beta and alpha, which follow. */
#define DELTA_BUT_GATES                                                                            \
    {CHECKPOINT_DELTA_CONV, ARCH_TAPS, ARCH_DELTA_CHANNELS, .to = ARCH_TO(attn.delta.conv),        \
     .is_transposed = true},                                                                       \
        {CHECKPOINT_DELTA_DT_BIAS, ARCH_DELTA_HEADS, ARCH_ONE, .to = ARCH_TO(attn.delta.dt_bias)}, \
        {CHECKPOINT_DELTA_A, ARCH_DELTA_HEADS, ARCH_ONE, .to = ARCH_TO(attn.delta.a)},             \
        {CHECKPOINT_DELTA_NORM, ARCH_DELTA_DIM, ARCH_ONE, .to = ARCH_TO(attn.delta.norm)},         \
        {CHECKPOINT_DELTA_OUTPUT, ARCH_DELTA_VALUES, ARCH_EMBD, .to = ARCH_TO(attn.o)},            \
        {CHECKPOINT_DELTA_QKV, ARCH_EMBD, ARCH_DELTA_CHANNELS, .to = ARCH_TO(attn.delta.qkv),      \
         .joins_next = true},                                                                      \
    {                                                                                              \
        CHECKPOINT_DELTA_GATE, ARCH_EMBD, ARCH_DELTA_VALUES, .to = ARCH_TO(attn.delta.gate),       \
                                                             .joins_next = true                    \
    }
#define DELTA                                                                                      \
    DELTA_BUT_GATES,                                                                               \
        {CHECKPOINT_DELTA_BETA, ARCH_EMBD, ARCH_DELTA_HEADS, .to = ARCH_TO(attn.delta.beta),       \
         .joins_next = true},                                                                      \
    {                                                                                              \
        CHECKPOINT_DELTA_ALPHA, ARCH_EMBD, ARCH_DELTA_HEADS, .to = ARCH_TO(attn.delta.alpha)       \
    }
/* That of Qwen 3 Next. */
#define GROUPED_DELTA                                                                              \
    DELTA_BUT_GATES,                                                                               \
    {                                                                                              \
        CHECKPOINT_DELTA_BETA_ALPHA, ARCH_EMBD, ARCH_DELTA_GATES,                                  \
            .to = ARCH_TO(attn.delta.beta_alpha)                                                   \
    }

static const struct arch_tensor full_dense[] = {ARCH_POST_NORMS, ARCH_HEAD_NORMS, GATED_ATTENTION,
                                                ARCH_DENSE};
static const struct arch_tensor full_experts[] = {ARCH_POST_NORMS, ARCH_HEAD_NORMS, GATED_ATTENTION,
                                                  ARCH_OF_EXPERTS, ARCH_SHARED_EXPERT};
static const struct arch_tensor delta_dense[] = {ARCH_POST_NORMS, DELTA, ARCH_DENSE};
static const struct arch_tensor delta_experts[] = {ARCH_POST_NORMS, DELTA, ARCH_OF_EXPERTS,
                                                   ARCH_SHARED_EXPERT};

static const struct arch_tensor grouped_experts[] = {ARCH_POST_NORMS, GROUPED_DELTA,
                                                     ARCH_OF_EXPERTS, ARCH_SHARED_EXPERT};

#define TENSORS(of) .tensors = (of), .n_tensors = ARRAY_LEN(of)
#define EXPERTS .ffn = MODEL_FFN_EXPERTS, .weights_sum_to_1 = true, .has_shared_expert = true

/* [has experts][has full attention] */
static const struct arch_layer layers[2][2] = {
    {{.attn = MODEL_ATTN_DELTA, .ffn = MODEL_FFN_DENSE, TENSORS(delta_dense)},
     {.attn = MODEL_ATTN_FULL, .has_gate = true, .ffn = MODEL_FFN_DENSE, TENSORS(full_dense)}},
    {{.attn = MODEL_ATTN_DELTA, EXPERTS, TENSORS(delta_experts)},
     {.attn = MODEL_ATTN_FULL, .has_gate = true, EXPERTS, TENSORS(full_experts)}}};

static const struct arch_layer grouped = {
    .attn = MODEL_ATTN_DELTA, .is_grouped = true, EXPERTS, TENSORS(grouped_experts)};

/* full_every 0: not read yet. */
static bool has_full_attention(const struct model_params *p, uint32_t l)
{
    return p->full_every && (l + 1) % p->full_every == 0;
}

static const struct arch_layer *describe_layer(const struct model_params *p, uint32_t l)
{
    return &layers[p->n_experts > 0][has_full_attention(p, l)];
}

static const struct arch_layer *describe_grouped_layer(const struct model_params *p, uint32_t l)
{
    return has_full_attention(p, l) ? &layers[true][true] : &grouped;
}

#define SPECIAL "a gated delta net in all but every fourth layer; gates of attention; text only"

const struct arch arch_qwen35 = {
    .name = "qwen35",
    .models = "Qwen 3.5, 3.6 and 3.8 without experts",
    .special = SPECIAL,
    .rope = MODEL_ROPE_HALVES,
    .experts = ARCH_NO_EXPERTS,
    .has_delta = true,
    .layer = describe_layer,
};
const struct arch arch_qwen35moe = {
    .name = "qwen35moe",
    .models = "Qwen 3.5 and 3.6 with experts, as 35B-A3B",
    .special = SPECIAL,
    .rope = MODEL_ROPE_HALVES,
    .experts = ARCH_ALL_EXPERTS,
    .has_delta = true,
    .layer = describe_layer,
};
const struct arch arch_qwen3next = {
    .name = "qwen3next",
    .models = "Qwen 3 Next 80B-A3B",
    .special = SPECIAL,
    .rope = MODEL_ROPE_HALVES,
    .experts = ARCH_ALL_EXPERTS,
    .has_delta = true,
    .layer = describe_grouped_layer,
};
