/* kernel_delta.h - the recurrence of a gated delta net (Yang et al. 2024, arXiv 2412.06464), and
 * what prepares its rows. Included by kernel_body.h.
 *
 * Lanes are values. The sums over the keys have four chains: chain c takes k = c, c + 4, ... by
 * fmaf. They are joined as (0+1)+(2+3). */
#pragma once

#define DELTA_CHAINS 4

/* The sum of the chains, of each of n blocks of sixteen values. */
INLINE vf delta_joined(const vf (*chains)[2], const int b)
{
    return v_add(v_add(chains[0][b], chains[1][b]), v_add(chains[2][b], chains[3][b]));
}

/* One row: S = decay * S + k (x) (beta * (v - decay * S^T k)), and out = scale * S^T q. s: n blocks
 * of the state. */
INLINE void delta_row(const struct kernel_delta *d, float *s, uint32_t row, uint32_t from,
                      const int n, const bool has_out)
{
    const float *k = d->k + row * d->row_stride, *q = has_out ? d->q + row * d->row_stride : k;
    const float *v = d->v + row * d->row_stride + from, *gates = d->gates + row * d->gates_stride;
    const vf decay = v_set(gates[0]), beta = v_set(gates[1]);
    const size_t block = (size_t)d->k_dim * 16;
    vf chains[DELTA_CHAINS][2], change[2];
    EACH (c, DELTA_CHAINS)
        EACH (b, n)
            chains[c][b] = v_set(0);
    for (uint32_t i = 0; i < d->k_dim; i += DELTA_CHAINS)
        EACH (c, DELTA_CHAINS)
            EACH (b, n)
                chains[c][b] =
                    v_fma(v_set(k[i + c]), v_load(s + b * block + (i + c) * 16), chains[c][b]);
    EACH (b, n) {
        const vf there = v_mul(decay, delta_joined((const vf(*)[2])chains, b));
        change[b] = v_mul(beta, v_sub(v_load(v + 16 * b), there));
    }
    EACH (c, DELTA_CHAINS)
        EACH (b, n)
            chains[c][b] = v_set(0);
    for (uint32_t i = 0; i < d->k_dim; i += DELTA_CHAINS)
        EACH (c, DELTA_CHAINS)
            EACH (b, n) {
                float *at = s + b * block + (i + c) * 16;
                const vf now = v_fma(v_set(k[i + c]), change[b], v_mul(decay, v_load(at)));
                v_store(at, now);
                if (has_out)
                    chains[c][b] = v_fma(v_set(q[i + c]), now, chains[c][b]);
            }
    EACH (b, n)
        if (has_out)
            v_store(d->out + row * d->out_stride + from + 16 * b,
                    v_mul(v_set(d->scale), delta_joined((const vf(*)[2])chains, b)));
}

/* n blocks of values, from value `from` on; they stay in L1 over all rows. */
INLINE void delta_blocks(const struct kernel_delta *d, uint32_t from, const int n)
{
    float *s = d->state + (size_t)from * d->k_dim;
    for (uint32_t r = 0; r < d->n_rows; r++) {
        if (d->q)
            delta_row(d, s, r, from, n, true);
        else
            delta_row(d, s, r, from, n, false);
    }
}

static void delta(const struct kernel_delta *d)
{
    uint32_t from = 0;
    for (; DELTA_BLOCKS == 2 && from + 32 <= d->v_dim; from += 32)
        delta_blocks(d, from, 2);
    for (; from < d->v_dim; from += 16)
        delta_blocks(d, from, 1);
}

static void conv_silu(const float *const *x, const float *w, size_t w_stride, uint32_t n_taps,
                      uint32_t n, float *y)
{
    for (uint32_t i = 0; i < n; i += 16) {
        vf sum = v_mul(v_load(x[0] + i), v_load(w + i));
        for (uint32_t j = 1; j < n_taps; j++)
            sum = v_fma(v_load(x[j] + i), v_load(w + j * w_stride + i), sum);
        v_store(y + i, v_silu_mul(sum, v_set(1)));
    }
}

static void l2norm(const float *x, uint32_t n, float eps, float *y)
{
    vf sum = v_set(0);
    for (uint32_t i = 0; i < n; i += 16)
        sum = v_fma(v_load(x + i), v_load(x + i), sum);
    const vf scale = v_set(1 / sqrtf(v_sum(sum) + eps));
    for (uint32_t i = 0; i < n; i += 16)
        v_store(y + i, v_mul(v_load(x + i), scale));
}

static void mul_sigmoid(const float *gate, uint32_t n, float *y)
{
    for (uint32_t i = 0; i < n; i += 16) {
        const vf e = v_exp(v_sub(v_set(0), v_load(gate + i)));
        v_store(y + i, v_div(v_load(y + i), v_add(v_set(1), e)));
    }
}
