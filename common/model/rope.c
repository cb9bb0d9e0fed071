/* rope.c - rotary position embedding: frequencies from parameters, angles, rotation. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/exact_math.h"
#include "base/err.h"
#include "kernel/kernel.h"
#include "model/rope.h"

/* A positive number under rope.scaling.*, or what *ret holds. */
static int scaling_float(const struct checkpoint *c, const char *key, float *ret)
{
    float value;
    int r = checkpoint_float(c, key, &value);
    if (r < 0)
        return r == -ENOENT ? 0 : r;
    if (!(value > 0) || !(value < 1e6f))
        return fail(-EINVAL, "%s: %s is %g, not a number above 0 and below 1e6", checkpoint_path(c),
                    checkpoint_key_name(c, key), (double)value);
    *ret = value;
    return 0;
}

/* The pair that makes `turns` turns within the original context. */
static double pair_of(const struct model_params *p, double context, double turns)
{
    return p->rope_dim * exact_math_log(context / (turns * 2 * M_PI)) /
           (2 * exact_math_log(p->rope_base));
}

/* YaRN (Peng et al. 2023, arXiv:2309.00071): fast pairs stay, slow pairs are stretched, with a ramp
 * between them. The gain compensates for the wider softmax. */
static int apply_yarn(const struct checkpoint *c, const struct model_params *p, double factor,
                      double *freqs, float *gain)
{
    static const char context_key[] = "rope.scaling.original_context_length";
    uint32_t context = p->n_ctx_train;
    float fast = 32, slow = 1;
    int r = checkpoint_u32(c, context_key, &context);
    if (r < 0 && r != -ENOENT)
        return r;
    if (context == 0)
        return fail(-EINVAL, "%s: %s is 0", checkpoint_path(c),
                    checkpoint_key_name(c, context_key));
    if ((r = scaling_float(c, "rope.scaling.yarn_beta_fast", &fast)) < 0 ||
        (r = scaling_float(c, "rope.scaling.yarn_beta_slow", &slow)) < 0 ||
        (r = scaling_float(c, "rope.scaling.attn_factor", gain)) < 0)
        return r;
    double last = p->rope_dim - 1.0;
    double low = fmin(fmax(floor(pair_of(p, context, fast)), 0), last);
    double high = fmin(fmax(ceil(pair_of(p, context, slow)), 0), last);
    for (uint32_t i = 0; i < p->rope_dim / 2; i++) {
        double kept = 1 - fmin(fmax((i - low) / fmax(high - low, 0.001), 0), 1);
        freqs[i] *= kept + (1 - kept) / factor;
    }
    *gain *= 1 + 0.1f * (float)exact_math_log(factor);
    return 0;
}

static int apply_scaling(const struct checkpoint *c, const struct model_params *p, double *freqs,
                         float *gain)
{
    struct span kind = {"linear", 6};
    int r = checkpoint_text(c, "rope.scaling.type", &kind);
    if (r < 0 && r != -ENOENT)
        return r;
    float factor = 1;
    if (span_is(kind, "none"))
        return 0;
    if ((r = scaling_float(c, "rope.scale_linear", &factor)) < 0 || // files from before 2024
        (r = scaling_float(c, "rope.scaling.factor", &factor)) < 0)
        return r;
    if (span_is(kind, "yarn"))
        return apply_yarn(c, p, factor, freqs, gain);
    if (!span_is(kind, "linear"))
        return fail(-ENOTSUP, "%s: rope scaling '%.*s' is not supported (none, linear, yarn are)",
                    checkpoint_path(c), (int)(kind.len < 64 ? kind.len : 64), kind.data);
    for (uint32_t i = 0; i < p->rope_dim / 2; i++)
        freqs[i] /= factor;
    return 0;
}

/* Llama 3.1 has its long-context factors in a tensor. */
static int apply_factors(const struct checkpoint *c, const struct model_params *p, double *freqs)
{
    const struct checkpoint_tensor *t = checkpoint_find(c, CHECKPOINT_ROPE_FREQS, 0);
    uint32_t n = p->rope_dim / 2;
    if (!t)
        return 0;
    if (t->type != CHECKPOINT_F32 || t->n_dims != 1 || t->shape[0] != n)
        return fail(-EINVAL, "%s: tensor %.*s is not %u numbers of F32", checkpoint_path(c),
                    (int)t->name.len, t->name.data, n);
    float factors[ARCH_MAX_HEAD_DIM / 2];
    int r = checkpoint_read(c, t, 0, n * sizeof(*factors), factors);
    for (uint32_t i = 0; i < n && r == 0; i++) {
        float factor = factors[i];
        if (!(factor > 0) || !(factor < INFINITY))
            return fail(-EINVAL, "%s: tensor %.*s: number %u is not above 0", checkpoint_path(c),
                        (int)t->name.len, t->name.data, i);
        freqs[i] /= factor;
    }
    return r;
}

int rope_read(const struct checkpoint *c, const struct model_params *p, float *ret_freqs,
              float *ret_gain)
{
    double freqs[ARCH_MAX_HEAD_DIM / 2];
    float gain = 1;
    for (uint32_t i = 0; i < p->rope_dim / 2; i++) // base^(-2 i / dim)
        freqs[i] = exact_math_exp(-2.0 * i / p->rope_dim * exact_math_log(p->rope_base));
    int r = apply_scaling(c, p, freqs, &gain);
    if (r < 0)
        return r;
    if ((r = apply_factors(c, p, freqs)) < 0)
        return r;
    for (uint32_t i = 0; i < p->rope_dim / 2; i++)
        ret_freqs[i] = (float)freqs[i];
    *ret_gain = gain;
    return 0;
}

void rope_angles(const struct model *m, uint32_t position, float *to)
{
    for (uint32_t i = 0; i < m->params.rope_dim / 2; i++) {
        double s, c;
        exact_math_sin_cos((double)position * (double)m->rope_freqs[i], &s, &c);
        to[2 * i] = (float)c * m->params.rope_gain;
        to[2 * i + 1] = (float)s * m->params.rope_gain;
    }
}

/* One product is rounded to float, the other is exact in double. The result is that of a fused
 * multiply-add, on every CPU and in lanes. */
static inline void rotate(float *a, float *b, float c, float s)
{
    float x = *a, y = *b, ys = y * s, xs = x * s;
    *a = (float)((double)x * (double)c - (double)ys);
    *b = (float)((double)y * (double)c + (double)xs);
}

void rope_rotate(const struct model_params *p, const float *angles, float *x)
{
    uint32_t n = p->rope_dim / 2;
    for (uint32_t i = 0; i < n; i++)
        if (p->rope == MODEL_ROPE_PAIRS)
            rotate(&x[2 * i], &x[2 * i + 1], angles[2 * i], angles[2 * i + 1]);
        else
            rotate(&x[i], &x[i + n], angles[2 * i], angles[2 * i + 1]);
}
