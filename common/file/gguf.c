/* gguf.c - opens and joins the parts of a GGUF model, and answers for checkpoint.h. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#include "base/err.h"
#include "base/rng.h"
#include "file/checkpoint_format.h"
#include "file/gguf.h"
#include "file/gguf_parse.h"

struct gguf {
    struct checkpoint base;
    struct gguf_part *parts;
    uint32_t n_parts;
};

#define GGUF_OF(c) OWNER(c, struct gguf, base)

/* ---- parts ---- */

/* Merges the tensor tables of all parts into one sorted table. */
static int join_tensors(struct gguf *g)
{
    uint64_t n = 0;
    for (uint32_t p = 0; p < g->n_parts; p++)
        n += g->parts[p].n_tensors;
    if (n > CHECKPOINT_MAX_TENSORS)
        return fail(-EINVAL, "%s: the parts have %llu tensors; the limit is %d", g->base.path,
                    (unsigned long long)n, CHECKPOINT_MAX_TENSORS);
    g->base.tensors = calloc(n + 1, sizeof(*g->base.tensors));
    if (!g->base.tensors)
        return fail(-ENOMEM, "%s: no memory for %llu tensors", g->base.path, (unsigned long long)n);
    for (uint32_t p = 0; p < g->n_parts; p++) {
        struct gguf_part *part = &g->parts[p];
        for (uint32_t i = 0; i < part->n_tensors; i++) {
            g->base.tensors[g->base.n_tensors] = part->tensors[i];
            g->base.tensors[g->base.n_tensors++].part = p;
        }
        free(TAKE(part->tensors));
    }
    return checkpoint_index(&g->base);
}

/* Adds the next part. Owns the file, also after an error. */
static int add_part(struct gguf *g, const char *path, struct file_reader *file)
{
    struct gguf_part *part = &g->parts[g->n_parts++];
    part->file = *file;
    part->path = strdup(path);
    if (!part->path)
        return fail(-ENOMEM, "%s: no memory", path);
    g->base.path = g->parts[0].path;
    if (file->modified > g->base.modified)
        g->base.modified = file->modified;
    if (file->is_file)
        g->base.identity = rng_splitmix64(g->base.identity ^ file->identity);
    int r = gguf_parse(part);
    if (r == 0)
        g->base.head_digest =
            rng_splitmix64(g->base.head_digest ^ XXH3_64bits(part->file.head, part->head_len));
    return r;
}

static int add_file(struct gguf *g, const char *path)
{
    struct file_reader file;
    int r = file_reader_open(path, &file);
    return r < 0 ? r : add_part(g, path, &file);
}

/* ---- split files ---- */

/* split.count and split.no; 1 and 0 for a file that is not split. */
static int split_of(const struct gguf_part *part, uint64_t *ret_count, uint64_t *ret_no)
{
    *ret_count = 1;
    *ret_no = 0;
    int r = gguf_key_u64(part, "split.count", ret_count);
    if (r < 0 && r != -ENOENT)
        return r;
    r = gguf_key_u64(part, "split.no", ret_no);
    if (r < 0 && r != -ENOENT)
        return r;
    if (*ret_count > GGUF_MAX_SPLITS)
        return fail(-EINVAL, "%s: split.count is %llu; the limit is %d", part->path,
                    (unsigned long long)*ret_count, GGUF_MAX_SPLITS);
    if (*ret_count == 0) // some writers mean "not split"
        *ret_count = 1;
    return 0;
}

/* "dir/name-00001-of-00004.gguf" -> the name of part no (from 0). -EINVAL: another name. */
static int part_path(const char *first, uint32_t no, uint32_t count, char *out, size_t size)
{
    char tail[64];
    snprintf(tail, sizeof(tail), "-00001-of-%05u.gguf", count);
    size_t len = strlen(first), tail_len = strlen(tail);
    if (len < tail_len || strcmp(first + len - tail_len, tail) != 0)
        return fail(-EINVAL, "%s: part 1 of %u has a name that does not end in %s", first, count,
                    tail);
    if ((size_t)snprintf(out, size, "%.*s-%05u-of-%05u.gguf", (int)(len - tail_len), first, no + 1,
                         count) >= size)
        return fail(-ENAMETOOLONG, "%s: the name is too long", first);
    return 0;
}

static int check_part(const struct gguf_part *part, uint64_t count, uint64_t no)
{
    uint64_t its_count, its_no;
    int r = split_of(part, &its_count, &its_no);
    if (r < 0)
        return r;
    if (its_count != count || its_no != no)
        return fail(-EINVAL, "%s: is part %llu of %llu, not %llu of %llu", part->path,
                    (unsigned long long)its_no + 1, (unsigned long long)its_count,
                    (unsigned long long)no + 1, (unsigned long long)count);
    return 0;
}

/* The first part has the number of tensors in all parts: parts of two models are refused. */
static int check_total(const struct gguf *g)
{
    uint64_t total;
    int r = gguf_key_u64(&g->parts[0], "split.tensors.count", &total);
    if (r == -ENOENT)
        return 0;
    if (r == 0 && total != g->base.n_tensors)
        return fail(-EINVAL, "%s: the parts have %u tensors, but split.tensors.count is %llu",
                    g->parts[0].path, g->base.n_tensors, (unsigned long long)total);
    return r;
}

static int open_others(struct gguf *g, uint32_t count)
{
    char path[4096];
    struct gguf_part *parts = reallocarray(g->parts, count, sizeof(*parts));
    if (!parts)
        return fail(-ENOMEM, "gguf: no memory for %u parts", count);
    memset(parts + 1, 0, (count - 1) * sizeof(*parts));
    g->parts = parts;
    for (uint32_t no = 1; no < count; no++) {
        int r = part_path(parts[0].path, no, count, path, sizeof(path));
        if (r < 0 || (r = add_file(g, path)) < 0)
            return r;
        if ((r = check_part(&parts[no], count, no)) < 0)
            return r;
    }
    return 0;
}

/* ---- opening ---- */

static void close_gguf(struct checkpoint *c)
{
    struct gguf *g = GGUF_OF(c);
    for (uint32_t p = 0; p < g->n_parts; p++)
        gguf_part_done(&g->parts[p]);
    free(g->parts);
    free(g);
}

static int new_gguf(struct file_reader *file, struct gguf **ret)
{
    struct gguf *g = calloc(1, sizeof(*g));
    struct gguf_part *parts = calloc(1, sizeof(*parts));
    if (!g || !parts) {
        free(g);
        free(parts);
        file_reader_close(file);
        return fail(-ENOMEM, "gguf: no memory");
    }
    *g = (struct gguf){.base = {.format = &gguf_format, .is_file = file->is_file}, .parts = parts};
    *ret = g;
    return 0;
}

static int open_gguf(const char *path, struct file_reader *file, struct checkpoint **ret)
{
    uint64_t count, no;
    struct gguf *g = NULL;
    int r = new_gguf(file, &g);
    if (r < 0)
        return r;
    AUTO(checkpoint_close) struct checkpoint *c = &g->base;
    if ((r = add_part(g, path, file)) < 0 || (r = split_of(&g->parts[0], &count, &no)) < 0)
        return r;
    if (!c->is_file && (count != 1 || no != 0))
        return fail(-EINVAL, "%s: one part of a split model", path);
    if (no != 0)
        return fail(-EINVAL, "%s: part %llu of a split model; open the first part", path,
                    (unsigned long long)no + 1);
    if (count > 1 && (r = open_others(g, (uint32_t)count)) < 0)
        return r;
    if ((r = join_tensors(g)) < 0)
        return r;
    if (count > 1 && (r = check_total(g)) < 0)
        return r;
    *ret = TAKE(c);
    return 0;
}

static const struct file_reader *file_of(const struct checkpoint *c,
                                         const struct checkpoint_tensor *t, const char **ret_path)
{
    const struct gguf_part *part = &GGUF_OF(c)->parts[t->part];
    *ret_path = part->path;
    return &part->file;
}

/* ---- names ---- */

static bool is_below(const char *key, const char *section)
{
    return strncmp(key, section, strlen(section)) == 0;
}

/* Parameters of an architecture have its name in front: "llama.block_count". */
static void key_name(const struct checkpoint *c, const char *key, char *to, size_t size)
{
    const struct gguf_key *arch = gguf_part_key(&GGUF_OF(c)->parts[0], "general.architecture");
    if (is_below(key, "general.") || strcmp(key, "tokenizer.chat_template") == 0)
        snprintf(to, size, "%s", key);
    else if (is_below(key, "tokenizer."))
        snprintf(to, size, "tokenizer.ggml.%s", key + strlen("tokenizer."));
    else if (arch && arch->kind == GGUF_STRING)
        snprintf(to, size, "%.*s.%s", (int)(arch->n < 64 ? arch->n : 64), (const char *)arch->value,
                 key);
    else
        snprintf(to, size, "%s", key);
}

static void role_name(enum checkpoint_role role, uint32_t layer, char *to, size_t size)
{
    static const char *const names[] = {
        [CHECKPOINT_TOKEN_EMBD] = "token_embd.weight",
        [CHECKPOINT_OUTPUT_NORM] = "output_norm.weight",
        [CHECKPOINT_OUTPUT] = "output.weight",
        [CHECKPOINT_ROPE_FREQS] = "rope_freqs.weight",
        [CHECKPOINT_ATTN_NORM] = "attn_norm.weight",
        [CHECKPOINT_ATTN_POST_NORM] = "post_attention_norm.weight",
        [CHECKPOINT_ATTN_Q] = "attn_q.weight",
        [CHECKPOINT_ATTN_K] = "attn_k.weight",
        [CHECKPOINT_ATTN_V] = "attn_v.weight",
        [CHECKPOINT_ATTN_Q_BIAS] = "attn_q.bias",
        [CHECKPOINT_ATTN_K_BIAS] = "attn_k.bias",
        [CHECKPOINT_ATTN_V_BIAS] = "attn_v.bias",
        [CHECKPOINT_ATTN_Q_NORM] = "attn_q_norm.weight",
        [CHECKPOINT_ATTN_K_NORM] = "attn_k_norm.weight",
        [CHECKPOINT_ATTN_OUTPUT] = "attn_output.weight",
        [CHECKPOINT_ATTN_OUTPUT_BIAS] = "attn_output.bias",
        [CHECKPOINT_ATTN_SINKS] = "attn_sinks.weight",
        [CHECKPOINT_DELTA_QKV] = "attn_qkv.weight",
        [CHECKPOINT_DELTA_GATE] = "attn_gate.weight",
        [CHECKPOINT_DELTA_BETA] = "ssm_beta.weight",
        [CHECKPOINT_DELTA_ALPHA] = "ssm_alpha.weight",
        [CHECKPOINT_DELTA_BETA_ALPHA] = "ssm_ba.weight",
        [CHECKPOINT_DELTA_CONV] = "ssm_conv1d.weight",
        [CHECKPOINT_DELTA_DT_BIAS] = "ssm_dt.bias",
        [CHECKPOINT_DELTA_A] = "ssm_a",
        [CHECKPOINT_DELTA_NORM] = "ssm_norm.weight",
        [CHECKPOINT_DELTA_OUTPUT] = "ssm_out.weight",
        [CHECKPOINT_FFN_NORM] = "ffn_norm.weight",
        [CHECKPOINT_FFN_GATE] = "ffn_gate.weight",
        [CHECKPOINT_FFN_UP] = "ffn_up.weight",
        [CHECKPOINT_FFN_DOWN] = "ffn_down.weight",
        [CHECKPOINT_FFN_ROUTER] = "ffn_gate_inp.weight",
        [CHECKPOINT_FFN_GATE_EXPERTS] = "ffn_gate_exps.weight",
        [CHECKPOINT_FFN_UP_EXPERTS] = "ffn_up_exps.weight",
        [CHECKPOINT_FFN_DOWN_EXPERTS] = "ffn_down_exps.weight",
        [CHECKPOINT_FFN_ROUTER_BIAS] = "ffn_gate_inp.bias",
        [CHECKPOINT_FFN_GATE_EXPERTS_BIAS] = "ffn_gate_exps.bias",
        [CHECKPOINT_FFN_UP_EXPERTS_BIAS] = "ffn_up_exps.bias",
        [CHECKPOINT_FFN_DOWN_EXPERTS_BIAS] = "ffn_down_exps.bias",
        [CHECKPOINT_FFN_SHARED_ROUTER] = "ffn_gate_inp_shexp.weight",
        [CHECKPOINT_FFN_GATE_SHARED] = "ffn_gate_shexp.weight",
        [CHECKPOINT_FFN_UP_SHARED] = "ffn_up_shexp.weight",
        [CHECKPOINT_FFN_DOWN_SHARED] = "ffn_down_shexp.weight",
    };
    if (role < CHECKPOINT_ATTN_NORM)
        snprintf(to, size, "%s", names[role]);
    else
        snprintf(to, size, "blk.%u.%s", layer, names[role]);
}

/* ---- values ---- */

static struct checkpoint_array array_of(const struct gguf_key *k)
{
    bool is_float = k->item == GGUF_FLOAT32 || k->item == GGUF_FLOAT64;
    return (struct checkpoint_array){.items = k->item == GGUF_STRING ? CHECKPOINT_TEXTS
                                              : is_float             ? CHECKPOINT_FLOATS
                                                                     : CHECKPOINT_INTS,
                                     .n = k->n,
                                     .width = gguf_kind_bytes(k->item),
                                     .is_signed = gguf_is_signed(k->item),
                                     .data = k->value,
                                     .index = k->index};
}

static void read_integer(const struct gguf_key *k, struct checkpoint_value *to)
{
    int64_t value = gguf_load_int(k->kind, k->value);
    bool negative = gguf_is_signed(k->kind) && value < 0;
    to->kind = negative ? CHECKPOINT_NEGATIVE : CHECKPOINT_UNSIGNED;
    to->integer = (uint64_t)value;
}

static bool value_of(const struct checkpoint *c, const char *name, struct checkpoint_value *ret)
{
    const struct gguf_key *k = gguf_part_key(&GGUF_OF(c)->parts[0], name);
    if (!k)
        return false;
    *ret = (struct checkpoint_value){.kind_name = gguf_kind_name(k->kind)};
    if (k->kind == GGUF_STRING) {
        ret->kind = CHECKPOINT_TEXT;
        ret->text = (struct span){(const char *)k->value, k->n};
    } else if (k->kind == GGUF_ARRAY) {
        ret->kind = CHECKPOINT_ARRAY;
        ret->array = array_of(k);
    } else if (k->kind == GGUF_BOOL) {
        ret->kind = CHECKPOINT_BOOL;
        ret->integer = *k->value;
    } else if (gguf_is_int(k->kind)) {
        read_integer(k, ret);
    } else {
        ret->kind = CHECKPOINT_FLOAT;
        ret->number = gguf_load_float(k->kind, k->value);
    }
    return true;
}

const struct checkpoint_format gguf_format = {.magic = "GGUF",
                                              .suffix = ".gguf",
                                              .open = open_gguf,
                                              .close = close_gguf,
                                              .key_name = key_name,
                                              .role_name = role_name,
                                              .file = file_of,
                                              .value = value_of};
