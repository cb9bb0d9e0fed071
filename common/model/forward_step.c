/* forward_step.c - the steps that sublayers consist of: norms, prepared rows, products of matrices.
 *
 * Rows are split among threads where work is per row, output columns where a matrix is applied.
 * Nothing is summed across threads. */
#include "model/forward_impl.h"

void forward_wait(struct forward *f)
{
    if (!f->alone)
        pool_barrier(f->pool);
}

void forward_wait_rows(struct forward *f)
{
    if (!f->few)
        forward_wait(f);
}

void forward_rows_to_prepare(const struct forward *f, const struct forward_part *t,
                             uint32_t *ret_from, uint32_t *ret_to)
{
    *ret_from = f->few ? 0 : t->from;
    *ret_to = f->few ? f->n_rows : t->to;
}

static void prepare_row(struct forward *f, const struct forward_part *t, enum kernel_form form,
                        const float *x, uint32_t n_in, uint32_t r)
{
    f->m->kernel->prepare(form, x, n_in, r, f->n_rows, t->act[form], f->act_bytes[form]);
}

void forward_norm_rows(struct forward *f, const struct forward_part *t, const float *norm,
                       const struct kernel_mat *const *mats, uint32_t n_mats)
{
    const struct model_params *p = &f->m->params;
    uint32_t from, to;
    forward_rows_to_prepare(f, t, &from, &to);
    for (uint32_t r = from; r < to; r++) {
        f->m->kernel->rmsnorm(f->x + (size_t)r * p->n_embd, norm, p->n_embd, p->norm_eps,
                              t->scratch);
        unsigned done = 0;
        for (uint32_t i = 0; i < n_mats; i++) {
            enum kernel_form form = f->m->kernel->form(mats[i]->type, f->n_rows);
            if (!(done & 1u << form))
                prepare_row(f, t, form, t->scratch, p->n_embd, r);
            done |= 1u << form;
        }
    }
}

void forward_prepare_rows(struct forward *f, const struct forward_part *t,
                          const struct kernel_mat *w, const float *x)
{
    enum kernel_form form = f->m->kernel->form(w->type, f->n_rows);
    uint32_t from, to;
    forward_rows_to_prepare(f, t, &from, &to);
    for (uint32_t r = from; r < to; r++)
        prepare_row(f, t, form, x + (size_t)r * w->n_in, w->n_in, r);
}

void forward_columns(const struct forward_part *t, const struct kernel_mat *w, uint32_t *ret_from,
                     uint32_t *ret_to)
{
    model_columns(w->n_out, 0, model_tiles(w), t->i, t->n, ret_from, ret_to);
}

void forward_apply(struct forward *f, const struct forward_part *t, const struct kernel_mat *w,
                   float *y, uint32_t n_rows, uint32_t from, uint32_t to)
{
    enum kernel_form form = f->m->kernel->form(w->type, n_rows);
    if (from < to && f->opt.blas)
        kernel_blas_matmul(f->m->kernel, w, t->act[form], f->act_bytes[form], n_rows, y, w->n_out,
                           from, to, t->scratch);
    else if (from < to)
        f->m->kernel->matmul(w, t->act[form], f->act_bytes[form], n_rows, y, w->n_out, from, to);
}

void forward_apply_all(struct forward *f, const struct forward_part *t,
                       const struct kernel_mat *const *mats, float *const *ys, uint32_t n_mats)
{
    uint32_t n_tiles = 0, before = 0, from, to;
    for (uint32_t k = 0; k < n_mats; k++)
        n_tiles += model_tiles(mats[k]);
    for (uint32_t k = 0; k < n_mats; k++) {
        model_columns(mats[k]->n_out, before, n_tiles, t->i, t->n, &from, &to);
        forward_apply(f, t, mats[k], ys[k], f->n_rows, from, to);
        before += model_tiles(mats[k]);
    }
}

void forward_apply_and_add(struct forward *f, const struct forward_part *t,
                           const struct kernel_mat *w, const float *bias)
{
    const struct kernel *kernel = f->m->kernel;
    uint32_t from, to;
    forward_columns(t, w, &from, &to);
    forward_apply(f, t, w, f->out, f->n_rows, from, to);
    for (uint32_t r = 0; r < f->n_rows && from < to; r++) {
        float *out = f->out + (size_t)r * w->n_out + from;
        if (bias)
            kernel->add(out, bias + from, to - from);
        kernel->add(f->x + (size_t)r * w->n_out + from, out, to - from);
    }
}
