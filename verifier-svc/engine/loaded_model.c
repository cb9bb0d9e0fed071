/* loaded_model.c - opens and loads the model. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "base/log.h"
#include "base/rng.h"
#include "verifier-svc/accept/accept.h"
#include "verifier-svc/kvdisk/kv_disk.h"
#include "verifier-svc/engine/loaded_model.h"

#define ARITHMETIC 2 // incremented when the bits of a kernel or of the forward pass change

int loaded_model_open(const struct verifier_options *o, struct loaded_model **ret)
{
    AUTO(loaded_model_free) struct loaded_model *s = calloc(1, sizeof(*s));
    if (!s)
        return fail(-ENOMEM, "no memory for a model");
    s->name = o->name ? strdup(o->name) : checkpoint_model_name(o->model);
    if (!s->name)
        return fail(-ENOMEM, "no memory for a model's name");
    int err = checkpoint_open(o->model, &s->checkpoint);
    if (!err)
        err = tok_new(s->checkpoint, &s->tok);
    if (err < 0)
        return err;
    *ret = TAKE(s);
    return 0;
}

/* The type of most bytes in the file. */
static const char *main_type(const struct checkpoint *c)
{
    size_t bytes[CHECKPOINT_TYPES] = {0}, most = 0;
    const char *name = "";
    for (uint32_t i = 0; i < checkpoint_n_tensors(c); i++) {
        const struct checkpoint_tensor *t = checkpoint_tensor_at(c, i);
        bytes[t->type] += t->bytes;
        if (bytes[t->type] > most) {
            most = bytes[t->type];
            name = t->type_name;
        }
    }
    return name;
}

static void set_identity(struct loaded_model *s)
{
    uint64_t d = rng_splitmix64(s->run.model->digest ^ ARITHMETIC);
    d = rng_splitmix64(d ^ tok_digest(s->tok) ^ s->run.opt.blas);
    for (const char *c = kernel_kv_name(s->run.opt.kv_type); *c; c++)
        d = rng_splitmix64(d ^ (uint8_t)*c);
    s->kv_identity = d;
    d = rng_splitmix64(d ^ checkpoint_head_digest(s->checkpoint));
    snprintf(s->fingerprint, sizeof(s->fingerprint), "fp_%016llx", (unsigned long long)d);
}

/* Copies what the API reports about the file, before it is closed. */
static int copy_facts(struct loaded_model *s)
{
    struct span template;
    s->weight_type = main_type(s->checkpoint);
    s->created = checkpoint_modified(s->checkpoint);
    set_identity(s);
    if (checkpoint_text(s->checkpoint, "tokenizer.chat_template", &template) < 0)
        return 0;
    s->chat_template = malloc(template.len + 1);
    if (!s->chat_template)
        return fail(-ENOMEM, "no memory for a chat template");
    memcpy(s->chat_template, template.data, template.len);
    s->template_len = template.len;
    return 0;
}

/* Nothing is on disk of a model with recurrent layers: kv_tier_new(). */
static size_t disk_bytes(const void *arg, const struct kv_shape *shape)
{
    const struct verifier_options *o = arg;
    if (kv_bytes_state(shape))
        return 0;
    return kv_disk_bytes(
        &(struct kv_store_options){.max_bytes = (uint64_t)o->kv_disk_size << 20,
                                   .block_bytes = (uint32_t)kv_bytes_block(shape)});
}

int loaded_model_load(struct loaded_model *s, const struct verifier_options *o,
                      bool (*progress)(void *arg, float done), void *arg)
{
    const struct runner_options opt = {.threads = (unsigned)o->threads,
                                       .pin = o->pin,
                                       .memory_check = o->memory_check,
                                       .quantise = MODEL_AS_FILE,
                                       .blas = o->blas,
                                       .weights_cache = o->weights_cache,
                                       .context = (uint32_t)o->context,
                                       .kv_type = o->kv,
                                       .kv_mib = (uint64_t)o->kv_mib,
                                       .max_sequences = (uint32_t)o->max_sequences,
                                       .max_rows = (uint32_t)o->max_batch_rows,
                                       .max_pass_seqs = (uint32_t)o->max_sequences,
                                       .min_logits = (uint32_t)o->max_sequences + DRAFT_MAX_NODES,
                                       .beside = o->kv_disk && *o->kv_disk ? disk_bytes : NULL,
                                       .beside_arg = o,
                                       .n_vocab = tok_n_vocab(s->tok),
                                       .max_dists = RUNNER_MAX_DISTS};
    if (o->blas)
        log_warn("float_gemm=blas core=%s: OpenBLAS has no fixed order of sums, so the same "
                 "request may get other tokens",
                 kernel_blas_init());
    int err = runner_plan(&s->run, s->checkpoint, &opt);
    if (!err)
        err = runner_load(&s->run, progress, arg);
    if (!err)
        err = copy_facts(s);
    if (!err && o->prefix_cache)
        err = kv_open_index(s->run.kv, s->kv_identity, kv_hash);
    if (!err)
        checkpoint_close(TAKE(s->checkpoint));
    return err;
}

void loaded_model_free(struct loaded_model *s)
{
    if (!s)
        return;
    runner_done(&s->run);
    tok_free(s->tok);
    checkpoint_close(s->checkpoint);
    free(s->chat_template);
    free(s->name);
    free(s);
}
