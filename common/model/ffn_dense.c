/* ffn_dense.c - the feed-forward sublayer that every row runs through: SwiGLU. */
#include "model/forward_impl.h"

struct buffers {
    float *gate, *up; // (max_rows, n_ff)
};

static struct buffers place_buffers(const struct model_ffn *w, uint32_t max_rows, char *work)
{
    size_t bytes = forward_rounded((size_t)max_rows * w->n_ff * sizeof(float));
    return (struct buffers){(float *)(void *)work, (float *)(void *)(work + bytes)};
}

static size_t ffn_bytes(const struct forward *f, const struct model_layer *l)
{
    return 2 * forward_rounded((size_t)f->opt.max_rows * l->ffn.n_ff * sizeof(float));
}

static void ffn_plan(struct forward *f, const struct model_layer *l)
{
    forward_need_matrix(f, &l->ffn.gate);
    forward_need_matrix(f, &l->ffn.up);
    forward_need_matrix(f, &l->ffn.down);
}

/* gate = silu(gate) * up, columns [from, to). */
static void swiglu(struct forward *f, const struct buffers *b, uint32_t n_ff, uint32_t from,
                   uint32_t to)
{
    for (uint32_t r = 0; r < f->n_rows && from < to; r++) {
        size_t at = (size_t)r * n_ff + from;
        f->m->kernel->swiglu(b->gate + at, b->up + at, to - from, b->gate + at);
    }
}

static void ffn_run(struct forward *f, const struct forward_part *t, uint32_t layer)
{
    const struct model_ffn *w = &f->m->layers[layer].ffn;
    const struct buffers b = place_buffers(w, f->opt.max_rows, f->ffn_work);
    uint32_t from, to;

    forward_norm_rows(f, t, w->norm, (const struct kernel_mat *[]){&w->gate, &w->up}, 2);
    forward_wait_rows(f);
    forward_columns(t, &w->gate, &from, &to);
    forward_apply(f, t, &w->gate, b.gate, f->n_rows, from, to);
    forward_apply(f, t, &w->up, b.up, f->n_rows, from, to);
    swiglu(f, &b, w->n_ff, from, to);
    forward_wait(f);
    forward_prepare_rows(f, t, &w->down, b.gate);
    forward_wait_rows(f);
    forward_apply_and_add(f, t, &w->down, NULL);
    forward_wait(f);
}

const struct sublayer_ops ffn_dense = {ffn_plan, ffn_bytes, ffn_run};
