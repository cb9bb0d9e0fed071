/* arch_qwen3.c - Qwen 3, and the text of Qwen 3 VL: the heads of q and k have norms.
 *
 * The rotation of Qwen 3 VL has parts for an image's rows and columns. For text all parts have the
 * same position, so it is that of Qwen 3. */
#include "model/arch.h"

static const struct arch_tensor dense_tensors[] = {ARCH_NORMS, ARCH_HEAD_NORMS, ARCH_ATTENTION,
                                                   ARCH_DENSE};
static const struct arch_tensor expert_tensors[] = {ARCH_NORMS, ARCH_HEAD_NORMS, ARCH_ATTENTION,
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

const struct arch arch_qwen3 = {
    .name = "qwen3",
    .models = "Qwen 3",
    .special = "norms of q and k",
    .rope = MODEL_ROPE_HALVES,
    .experts = ARCH_NO_EXPERTS,
    .layer = describe_layer,
};
const struct arch arch_qwen3moe = {
    .name = "qwen3moe",
    .models = "Qwen 3 30B-A3B and 235B-A22B, Qwen 3 Coder",
    .special = "norms of q and k",
    .rope = MODEL_ROPE_HALVES,
    .experts = ARCH_ALL_EXPERTS,
    .layer = describe_layer,
};
const struct arch arch_qwen3vl = {
    .name = "qwen3vl",
    .models = "the text of Qwen 3 VL",
    .special = "norms of q and k",
    .rope = MODEL_ROPE_HALVES,
    .experts = ARCH_NO_EXPERTS,
    .layer = describe_layer,
};
const struct arch arch_qwen3vlmoe = {
    .name = "qwen3vlmoe",
    .models = "the text of Qwen 3 VL 30B-A3B and 235B-A22B",
    .special = "norms of q and k",
    .rope = MODEL_ROPE_HALVES,
    .experts = ARCH_ALL_EXPERTS,
    .layer = describe_layer,
};
