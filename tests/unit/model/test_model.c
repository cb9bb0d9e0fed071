/* test_model.c - invalid files are refused, and the sentence names the fault. */
#include "model/model.h"
#include "base/err.h"
#include "base/rng.h"
#include "lib/lib.h"
#include "lib/models/tiny.h"
#include "lib/rigs/folder.h"
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct pool *pool;
static const struct kernel *kernel;

static int set_up(void **state)
{
    (void)state;
    return kernel_init(&kernel) < 0 || pool_new(2, false, &pool) < 0;
}

static int tear_down(void **state)
{
    (void)state;
    pool_free(pool);
    return 0;
}

struct file {
    char *data;
    size_t len;
};

static struct file file_of(const char *arch)
{
    struct tiny t = {.arch = arch, .type = KERNEL_Q4_0, .head_type = KERNEL_Q4_0, .n_layers = 2};
    struct file f;
    f.data = tiny_write(&t, &f.len);
    return f;
}

static char *find_in(struct file f, const char *text)
{
    char *at = memmem(f.data, f.len, text, strlen(text));
    if (!at)
        fail_msg("no %s in the file", text);
    return at;
}

/* Overwrites the first occurrence of `text` in the file with `to`, of the same length. */
static void rename_in(struct file f, const char *text, const char *to)
{
    assert_int_equal(strlen(text), strlen(to));
    memcpy(find_in(f, text), to, strlen(to));
}

/* Sets a key whose value has four bytes. */
static void set_u32(struct file f, const char *key, uint32_t value)
{
    memcpy(find_in(f, key) + strlen(key) + 4, &value, sizeof(value));
}

static void set_float(struct file f, const char *key, float value)
{
    memcpy(find_in(f, key) + strlen(key) + 4, &value, sizeof(value));
}

static int load_as(struct file f, int quantise, struct model **ret)
{
    AUTO(checkpoint_close) struct checkpoint *g = NULL;
    AUTO(model_free) struct model *m = NULL;
    int r = checkpoint_open_memory(f.data, f.len, &g);
    if (r == 0)
        r = model_plan(g, quantise, &m);
    if (r == 0)
        r = model_load(m, &(struct model_load_options){.pool = pool, .kernel = kernel});
    if (r == 0)
        *ret = TAKE(m);
    return r;
}

static int load(struct file f, struct model **ret)
{
    return load_as(f, MODEL_AS_FILE, ret);
}

/* The file is refused with this error, and the sentence contains these words. */
static void assert_refused(struct file f, int err, const char *words)
{
    struct model *m = NULL;
    assert_int_equal(load(f, &m), err);
    assert_null(m);
    if (!strstr(fail_text(), words))
        fail_msg("'%s' does not say '%s'", fail_text(), words);
    free(f.data);
}

static void shapes_are_read_from_the_file(void **state)
{
    (void)state;
    struct file f = file_of("qwen2");
    AUTO(model_free) struct model *m = NULL;
    assert_int_equal(load(f, &m), 0);
    assert_string_equal(m->params.architecture, "qwen2");
    assert_int_equal(m->params.n_layers, 2);
    assert_int_equal(m->params.n_embd, TINY_EMBD);
    assert_int_equal(m->params.n_heads, TINY_HEADS);
    assert_int_equal(m->params.n_kv_heads, TINY_KV_HEADS);
    assert_int_equal(m->params.head_dim, TINY_HEAD_DIM);
    assert_int_equal(m->params.n_ff, TINY_FF);
    assert_int_equal(m->params.n_vocab, TINY_VOCAB);
    assert_int_equal(m->params.n_ctx_train, TINY_CONTEXT);
    assert_int_equal(m->params.rope, MODEL_ROPE_HALVES);
    assert_non_null(m->layers[1].attn.q_bias);
    assert_null(m->layers[1].attn.q_norm);
    free(f.data);
}

static void the_digest_names_the_weights(void **state)
{
    (void)state;
    struct file f = file_of("llama");
    uint64_t digest[3];
    for (int i = 0; i < 3; i++) {
        struct model *m = NULL;
        assert_int_equal(load(f, &m), 0);
        digest[i] = m->digest;
        model_free(m);
        if (i == 1)
            set_float(f, "llama.rope.freq_base", 7000);
    }
    assert_true(digest[0] == digest[1]);
    assert_true(digest[1] != digest[2]);
    free(f.data);
}

static uint64_t digest_in(struct file f)
{
    AUTO(model_free) struct model *m = NULL;
    assert_int_equal(load(f, &m), 0);
    return m->digest;
}

/* One byte of a row anywhere in a tensor, and two rows that are exchanged. */
static void every_row_is_in_the_digest(void **state)
{
    (void)state;
    struct file f = file_of("qwen2");
    uint64_t plain = digest_in(f);
    AUTO(checkpoint_close) struct checkpoint *c = NULL;
    assert_int_equal(checkpoint_open_memory(f.data, f.len, &c), 0);
    for (uint32_t i = 0; i < checkpoint_n_tensors(c); i++) {
        const struct checkpoint_tensor *t = checkpoint_tensor_at(c, i);
        size_t row_bytes = t->bytes / t->shape[1], row = t->shape[1] * (i + 1) / (i + 2);
        char *at = f.data + t->offset + row * row_bytes;
        at[row_bytes - 2] ^= 1;
        assert_true(digest_in(f) != plain);
        at[row_bytes - 2] ^= 1;
    }
    const struct checkpoint_tensor *t = checkpoint_find(c, CHECKPOINT_TOKEN_EMBD, 0);
    char *rows = f.data + t->offset, row[TINY_EMBD * 4];
    size_t n = t->bytes / t->shape[1];
    memcpy(row, rows + 40 * n, n);
    memcpy(rows + 40 * n, rows + 41 * n, n);
    memcpy(rows + 41 * n, row, n);
    assert_true(digest_in(f) != plain);
    free(f.data);
}

static void the_digest_does_not_depend_on_threads(void **state)
{
    (void)state;
    struct file f = file_of("llama");
    struct pool *two = pool;
    uint64_t digest[5] = {0};
    for (unsigned n = 1; n < ARRAY_LEN(digest); n++) {
        assert_int_equal(pool_new(n, false, &pool), 0);
        digest[n] = digest_in(f);
        pool_free(pool);
        assert_true(digest[n] == digest[1]);
    }
    pool = two;
    free(f.data);
}

/* Whichever thread meets the end of the file, the sentence is the loading thread's. */
static void a_file_cut_short_while_it_is_loaded_is_an_error(void **state)
{
    (void)state;
    struct file f = file_of("llama");
    char path[] = "/tmp/tandem-cut-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, f.data, f.len), (ssize_t)f.len);
    for (int part = 3; part < 6; part++) {
        AUTO(checkpoint_close) struct checkpoint *c = NULL;
        AUTO(model_free) struct model *m = NULL;
        assert_int_equal(pwrite(fd, f.data, f.len, 0), (ssize_t)f.len);
        assert_int_equal(checkpoint_open(path, &c), 0);
        assert_int_equal(model_plan(c, MODEL_AS_FILE, &m), 0);
        assert_int_equal(ftruncate(fd, (off_t)f.len * part / 6), 0);
        assert_int_equal(
            model_load(m, &(struct model_load_options){.pool = pool, .kernel = kernel}), -EIO);
        assert_non_null(strstr(fail_text(), "cut short while it was read"));
    }
    close(fd);
    unlink(path);
    free(f.data);
}

static uint64_t digest_of(const struct tiny *t)
{
    struct file f;
    f.data = tiny_write(t, &f.len);
    AUTO(model_free) struct model *m = NULL;
    assert_int_equal(load(f, &m), 0);
    free(f.data);
    return m->digest;
}

/* Zeros in all tensors: only names, shapes, types and the rotation are left to tell files apart. */
static struct file zeroed_file_of(const struct tiny *t)
{
    struct file f;
    f.data = tiny_write(t, &f.len);
    AUTO(checkpoint_close) struct checkpoint *c = NULL;
    assert_int_equal(checkpoint_open_memory(f.data, f.len, &c), 0);
    for (uint32_t i = 0; i < checkpoint_n_tensors(c); i++) {
        const struct checkpoint_tensor *tensor = checkpoint_tensor_at(c, i);
        memset(f.data + tensor->offset, 0, tensor->bytes);
    }
    return f;
}

/* Fingerprints and names of KV blocks on disk are made of digests. */
static void the_digest_of_a_file_never_changes(void **state)
{
    (void)state;
    static const struct {
        const char *arch;
        enum kernel_type type;
        uint64_t digest;
    } files[] = {
        {"llama", KERNEL_F32, 0x43afbe2a2f575ddd},    {"qwen2", KERNEL_F16, 0x0b430f5a91f96f17},
        {"qwen3", KERNEL_BF16, 0xd231a02ef164cb7e},   {"llama", KERNEL_Q4_0, 0x998bd432ae71eedc},
        {"qwen2", KERNEL_Q4_1, 0x1b5605a59d525d32},   {"qwen3", KERNEL_Q5_0, 0x2d00c9748491ed91},
        {"llama", KERNEL_Q5_1, 0x6963e10d0e3666cd},   {"qwen2", KERNEL_Q8_0, 0x6f08ef27d21145ff},
        {"qwen3", KERNEL_Q4_K, 0x232405f0f1d4f58b},   {"llama", KERNEL_Q5_K, 0x7dcbb1b71aac947d},
        {"qwen2", KERNEL_Q6_K, 0x524a305ebf40f880},   {"qwen3", KERNEL_IQ4_NL, 0xc8c1860734aa4504},
        {"llama", KERNEL_IQ4_XS, 0x2496ba68d99d68de}, {"qwen2moe", KERNEL_Q8_0, 0x8958fffd1b2be800},
        {"qwen2", KERNEL_MXFP4, 0xc6a7aa5f44cf4644},  {"gpt-oss", KERNEL_MXFP4, 0x7aca8cf9938e14f4},
    };
    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        struct tiny t = {files[i].arch, files[i].type, KERNEL_F16, .n_layers = 1, .seed = 7};
        struct file f = zeroed_file_of(&t);
        AUTO(model_free) struct model *m = NULL;
        assert_int_equal(load(f, &m), 0);
        if (m->digest != files[i].digest)
            fail_msg("%s, type %u: the digest is 0x%016llx", files[i].arch, files[i].type,
                     (unsigned long long)m->digest);
        free(f.data);
    }
}

static void the_digest_of_an_embedded_model_never_changes(void **state)
{
    (void)state;
    struct file f;
    f.data = lib_read(SOURCE_DIR "/models/tales-11m-q8_0.gguf", &f.len);
    AUTO(model_free) struct model *m = NULL;
    assert_int_equal(load(f, &m), 0);
    assert_true(m->digest == 0xf104b8b36872dac9);
    free(f.data);
}

static void the_digest_names_the_rotation(void **state)
{
    (void)state;
    struct tiny t = {.arch = "llama", .type = KERNEL_Q4_0, .head_type = KERNEL_Q4_0, .n_layers = 1};
    uint64_t plain = digest_of(&t);
    t.scaling = "linear";
    assert_true(digest_of(&t) != plain);
    t.scaling = NULL;
    t.factors = true;
    assert_true(digest_of(&t) != plain);
}

static void other_architectures_are_named(void **state)
{
    (void)state;
    struct file f = file_of("llama");
    memcpy(find_in(f, "general.architecture") + strlen("general.architecture") + 12, "mamba", 5);
    assert_refused(f, -ENOTSUP, "'mamba'");
}

static void missing_keys_and_tensors_are_named(void **state)
{
    (void)state;
    struct file f = file_of("llama");
    rename_in(f, "llama.block_count", "llama.block_xount");
    assert_refused(f, -EINVAL, "llama.block_count is missing");
    f = file_of("llama");
    rename_in(f, "blk.1.ffn_down.weight", "blk.1.ffn_xown.weight");
    assert_refused(f, -EINVAL, "blk.1.ffn_down.weight is missing");
    f = file_of("qwen3");
    rename_in(f, "blk.0.attn_k_norm.weight", "blk.0.attn_x_norm.weight");
    assert_refused(f, -EINVAL, "blk.0.attn_k_norm.weight is missing");
    f = file_of("llama");
    rename_in(f, "token_embd.weight", "token_embx.weight");
    assert_refused(f, -EINVAL, "token_embd.weight is missing");
}

static void wrong_shapes_name_both(void **state)
{
    (void)state;
    struct file f = file_of("llama");
    set_u32(f, "llama.feed_forward_length", 1024);
    assert_refused(f, -EINVAL, "blk.0.ffn_gate.weight is 256 x 512 x 1 x 1, must be 256 x 1024");
    f = file_of("llama");
    set_u32(f, "llama.attention.head_count_kv", 4);
    assert_refused(f, -EINVAL, "blk.0.attn_k.weight");
}

static void numbers_out_of_range_are_refused(void **state)
{
    (void)state;
    const struct {
        const char *key;
        uint32_t value;
        int err;
    } cases[] = {
        {"llama.block_count", 0, -EINVAL},
        {"llama.block_count", UINT32_MAX, -EINVAL},
        {"llama.embedding_length", 0, -EINVAL},
        {"llama.embedding_length", UINT32_MAX, -EINVAL},
        {"llama.feed_forward_length", 1u << 31, -EINVAL},
        {"llama.attention.head_count", 0, -EINVAL},
        {"llama.attention.head_count", 1000000, -EINVAL},
        {"llama.attention.head_count_kv", 3, -EINVAL},
        {"llama.attention.head_count_kv", 0, -EINVAL},
        {"llama.attention.key_length", 40, -ENOTSUP},
        {"llama.attention.value_length", 64, -ENOTSUP},
        {"llama.rope.dimension_count", 33, -EINVAL},
        {"llama.rope.dimension_count", 64, -EINVAL},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct file f = file_of("llama");
        set_u32(f, cases[i].key, cases[i].value);
        assert_refused(f, cases[i].err, "(memory): ");
    }
    const float bad[] = {NAN, -1, INFINITY};
    for (size_t i = 0; i < ARRAY_LEN(bad); i++) {
        struct file f = file_of("llama");
        set_float(f, "llama.rope.freq_base", bad[i]);
        assert_refused(f, -EINVAL, "llama.rope.freq_base");
        f = file_of("llama");
        set_float(f, "llama.attention.layer_norm_rms_epsilon", bad[i]);
        assert_refused(f, -EINVAL, "layer_norm_rms_epsilon");
    }
}

static void delta_nets_that_cannot_be_are_refused(void **state)
{
    (void)state;
    const struct {
        const char *key;
        uint32_t value;
        int error;
        const char *words;
    } cases[] = {
        {"qwen35.ssm.group_count", 0, -EINVAL, "group_count is 0, not 1 .. 1024"},
        {"qwen35.ssm.group_count", 3, -ENOTSUP, "4 value heads of 32 with 3 key heads"},
        {"qwen35.ssm.time_step_rank", 6, -EINVAL, "inner_size is 128, not 6 heads of 32"},
        {"qwen35.ssm.time_step_rank", UINT32_MAX, -EINVAL, "not 1 .. 1024"},
        {"qwen35.ssm.state_size", 24, -ENOTSUP, "4 value heads of 24 with 2 key heads"},
        {"qwen35.ssm.state_size", 64, -EINVAL, "inner_size is 128, not 4 heads of 64"},
        {"qwen35.ssm.inner_size", 0, -EINVAL, "inner_size is 0, not 1 .. "},
        {"qwen35.ssm.conv_kernel", 5, -EINVAL, "conv_kernel is 5, not 1 .. 4"},
        {"qwen35.ssm.conv_kernel", 3, -EINVAL, "ssm_conv1d.weight is 4 x 256 x 1 x 1, must be 3"},
        {"qwen35.full_attention_interval", 0, -EINVAL, "full_attention_interval is 0, not 1"},
        {"qwen35.full_attention_interval", 3, -ENOTSUP, "none of the 2 layers has attention"},
        {"qwen35.full_attention_interval", 1, -EINVAL, "blk.0.attn_q_norm.weight is missing"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct file f = file_of("qwen35");
        set_u32(f, cases[i].key, cases[i].value);
        assert_refused(f, cases[i].error, cases[i].words);
    }
    struct file f = file_of("qwen35");
    rename_in(f, "blk.0.ssm_dt.bias", "blk.0.ssm_xt.bias");
    assert_refused(f, -EINVAL, "blk.0.ssm_dt.bias is missing");
}

/* The layers for multi-token prediction are the last ones of block_count. */
static void layers_for_multi_token_prediction_are_skipped(void **state)
{
    (void)state;
    struct tiny t = {.arch = "qwen3", .seed = 3, .n_layers = 3};
    t.more.name = "nextn_predict_layers";
    t.more.kind = GGUF_U32;
    t.more.value = 1;
    struct file f;
    f.data = tiny_write(&t, &f.len);
    AUTO(checkpoint_close) struct checkpoint *c = NULL;
    AUTO(model_free) struct model *m = NULL;
    assert_int_equal(checkpoint_open_memory(f.data, f.len, &c), 0);
    assert_int_equal(model_plan(c, MODEL_AS_FILE, &m), 0);
    assert_true(m->params.n_layers == 2 && m->params.n_skipped_layers == 1);
    free(f.data);
    t.more.value = 3;
    f.data = tiny_write(&t, &f.len);
    assert_refused(f, -EINVAL, "nextn_predict_layers is 3 of 3 layers");
}

static void experts_that_cannot_be_are_refused(void **state)
{
    (void)state;
    const struct {
        const char *key;
        uint32_t value;
        const char *words;
    } cases[] = {
        {"qwen3moe.expert_count", 0, "expert_count is 0, not 1 .. 1024"},
        {"qwen3moe.expert_count", 1, "expert_used_count is 2, not 1 .. 1"},
        {"qwen3moe.expert_count", 5,
         "blk.0.ffn_gate_inp.weight is 256 x 6 x 1 x 1, must be 256 x 5"},
        {"qwen3moe.expert_count", 4096, "expert_count is 4096, not 1 .. 1024"},
        {"qwen3moe.expert_used_count", 0, "expert_used_count is 0, not 1 .. 6"},
        {"qwen3moe.expert_used_count", 7, "expert_used_count is 7, not 1 .. 6"},
        {"qwen3moe.expert_feed_forward_length", 0, "expert_feed_forward_length is 0, not 1 .. "},
        {"qwen3moe.expert_feed_forward_length", 128, "256 x 512 x 6 x 1, must be 256 x 128 x 6"},
        {"qwen3moe.expert_feed_forward_length", 520, "256 x 512 x 6 x 1, must be 256 x 520 x 6"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct file f = file_of("qwen3moe");
        set_u32(f, cases[i].key, cases[i].value);
        assert_refused(f, -EINVAL, cases[i].words);
    }
    struct file f = file_of("qwen3moe");
    rename_in(f, "qwen3moe.expert_used_count", "qwen3moe.expert_xsed_count");
    assert_refused(f, -EINVAL, "qwen3moe.expert_used_count is missing");
    f = file_of("qwen3moe");
    rename_in(f, "qwen3moe.expert_count", "qwen3moe.expert_xount");
    assert_refused(f, -EINVAL, "expert_count is 0, not 1 .. 1024");
    f = file_of("qwen3moe");
    rename_in(f, "blk.1.ffn_up_exps.weight", "blk.1.ffn_xp_exps.weight");
    assert_refused(f, -EINVAL, "blk.1.ffn_up_exps.weight is missing");
}

static void windows_that_cannot_be_are_refused(void **state)
{
    (void)state;
    struct file f = file_of("gpt-oss");
    set_u32(f, "gpt-oss.attention.sliding_window", 0);
    assert_refused(f, -EINVAL, "gpt-oss.attention.sliding_window is 0, not 1 .. ");
    f = file_of("gpt-oss");
    rename_in(f, "gpt-oss.attention.sliding_window", "gpt-oss.attention.sliding_xindow");
    assert_refused(f, -EINVAL, "gpt-oss.attention.sliding_window is missing");
    f = file_of("gpt-oss");
    rename_in(f, "blk.1.attn_sinks.weight", "blk.1.attn_xinks.weight");
    assert_refused(f, -EINVAL, "blk.1.attn_sinks.weight is missing");
    for (uint32_t pattern = 2; pattern < 4; pattern++) { // every second layer, and another one
        const struct tiny t = {.arch = "gpt-oss",
                               .more = {"attention.sliding_window_pattern", GGUF_U32, pattern}};
        AUTO(model_free) struct model *m = NULL;
        f.data = tiny_write(&t, &f.len);
        if (pattern == 2)
            assert_int_equal(load(f, &m), 0);
        else
            assert_refused(f, -ENOTSUP, "the value of gpt-oss.attention.sliding_window_pattern");
        if (pattern == 2)
            free(f.data);
    }
}

/* Their experts may work in other ways. */
static void experts_of_another_architecture_are_refused(void **state)
{
    (void)state;
    const struct {
        struct tiny file;
        const char *words;
    } cases[] = {
        {{.arch = "qwen3", .more = {"expert_count", GGUF_U32, 6}},
         "qwen3 with 6 experts is not supported"},
        {{.arch = "qwen3moe", .more = {"expert_gating_func", GGUF_U32, 2}},
         "the value of qwen3moe.expert_gating_func is not supported"},
        {{.arch = "qwen2moe", .more = {"expert_gating_func", GGUF_U32, 3}}, "expert_gating_func"},
        {{.arch = "qwen3moe", .more = {"expert_group_count", GGUF_U32, 2}}, "expert_group_count"},
        {{.arch = "qwen3moe", .more = {"expert_weights_scale", GGUF_FLOAT32, 2}},
         "expert_weights_scale"},
        {{.arch = "qwen3moe", .more = {"expert_weights_norm", GGUF_BOOL, 0}},
         "expert_weights_norm"},
        {{.arch = "qwen2moe", .more = {"expert_weights_norm", GGUF_BOOL, 1}},
         "expert_weights_norm"},
    };
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        struct file bad;
        bad.data = tiny_write(&cases[i].file, &bad.len);
        assert_refused(bad, -ENOTSUP, cases[i].words);
    }
    const struct tiny plain[] = {
        {.arch = "qwen3moe", .more = {"expert_gating_func", GGUF_U32, 1}},
        {.arch = "qwen3moe", .more = {"expert_gating_func", GGUF_U32, 3}},
        {.arch = "qwen3moe", .more = {"expert_group_count", GGUF_U32, 1}},
        {.arch = "qwen3moe", .more = {"expert_weights_scale", GGUF_FLOAT32, 0}},
        {.arch = "qwen3moe", .more = {"expert_weights_scale", GGUF_FLOAT32, 1}},
        {.arch = "qwen3moe", .more = {"expert_weights_norm", GGUF_BOOL, 1}},
        {.arch = "qwen2moe", .more = {"expert_weights_norm", GGUF_BOOL, 0}},
    };
    for (size_t i = 0; i < ARRAY_LEN(plain); i++) {
        struct file good;
        AUTO(model_free) struct model *m = NULL;
        good.data = tiny_write(&plain[i], &good.len);
        assert_int_equal(load(good, &m), 0);
        free(good.data);
    }
    struct file f = file_of("qwen2moe");
    rename_in(f, "blk.0.ffn_gate_inp_shexp.weight", "blk.0.ffn_xate_inp_shexp.weight");
    assert_refused(f, -EINVAL, "blk.0.ffn_gate_inp_shexp.weight is missing");
}

static void unused_tensors_are_refused(void **state)
{
    (void)state;
    struct tiny t = {.arch = "qwen3", .type = KERNEL_Q4_0, .head_type = KERNEL_Q4_0, .n_layers = 1};
    struct file g;
    g.data = tiny_write(&t, &g.len);
    for (char *at; (at = memmem(g.data, g.len, "qwen3", 5));)
        memcpy(at, "llama", 5);
    assert_refused(g, -ENOTSUP, "norm.weight is not known in architecture llama");
}

static void unknown_architectures_are_named(void **state)
{
    (void)state;
    static const struct {
        const char *arch, *words;
    } cases[] = {
        {"gptoss", "'gptoss' is Ollama's form of gpt-oss, which is not supported; use a "},
        {"gpt-osx", "architecture 'gpt-osx' is not supported; verifier-svc --print-models"}};
    for (size_t i = 0; i < ARRAY_LEN(cases); i++) {
        const struct tiny t = {.arch = cases[i].arch, .n_layers = 1};
        struct file f;
        f.data = tiny_write(&t, &f.len);
        assert_refused(f, -ENOTSUP, cases[i].words);
    }
}

static void unknown_rope_scaling_is_named(void **state)
{
    (void)state;
    struct tiny t = {.arch = "llama",
                     .type = KERNEL_Q4_0,
                     .head_type = KERNEL_Q4_0,
                     .scaling = "longrope",
                     .n_layers = 1};
    struct file f;
    f.data = tiny_write(&t, &f.len);
    assert_refused(f, -ENOTSUP, "'longrope'");
}

struct progress {
    int n_calls, give_up_at;
    float last;
};

static bool note_progress(void *arg, float done)
{
    struct progress *p = arg;
    assert_true(done >= p->last && done <= 1);
    p->last = done;
    return ++p->n_calls != p->give_up_at;
}

/* Loads with somebody looking on. */
static int load_watched(struct file f, struct progress *p)
{
    AUTO(checkpoint_close) struct checkpoint *g = NULL;
    AUTO(model_free) struct model *m = NULL;
    assert_int_equal(checkpoint_open_memory(f.data, f.len, &g), 0);
    assert_int_equal(model_plan(g, MODEL_AS_FILE, &m), 0);
    return model_load(m, &(struct model_load_options){
                             .pool = pool, .kernel = kernel, .progress = note_progress, .arg = p});
}

static void loading_reports_progress(void **state)
{
    (void)state;
    struct file f = file_of("llama");
    struct progress p = {0};
    assert_int_equal(load_watched(f, &p), 0);
    assert_true(p.last == 1);
    assert_true(p.n_calls > 2 * 9 + 2 * 5); // tensors begun, and bands of this thread's columns
    free(f.data);
}

static void loading_can_be_cancelled(void **state)
{
    (void)state;
    struct file f = file_of("llama");
    for (int at = 1; at < 4; at++) {
        struct progress p = {.give_up_at = at};
        assert_int_equal(load_watched(f, &p), -ECANCELED);
        assert_int_equal(p.n_calls, at);
    }
    free(f.data);
}

/* A matrix holds the tensor's rows, rounded to its type. */
static void assert_rounded(struct file f, const char *name, const struct kernel_mat *w)
{
    AUTO(checkpoint_close) struct checkpoint *g = NULL;
    assert_int_equal(checkpoint_open_memory(f.data, f.len, &g), 0);
    const struct checkpoint_tensor *t = checkpoint_find_name(g, name);
    enum kernel_type type;
    assert_int_equal(model_weight_type(t, &type), 0);
    AUTO(mem_free) float *x = calloc(2 * w->n_in, sizeof(*x));
    AUTO(mem_free) char *row = malloc(w->n_in * sizeof(*x));
    float *got = x + w->n_in;
    for (uint32_t i = 0; i < w->n_out; i++) {
        kernel_dequant(type, f.data + t->offset + i * (t->bytes / w->n_out), w->n_in, x);
        kernel_quantise(w->type, x, w->n_in, row);
        kernel_dequant(w->type, row, w->n_in, x);
        kernel_dequant_packed(w, i, got);
        assert_memory_equal(got, x, w->n_in * sizeof(*x));
    }
}

static void larger_types_are_quantised_on_the_way(void **state)
{
    (void)state;
    static const enum kernel_type from[] = {KERNEL_F32, KERNEL_BF16, KERNEL_Q6_K};
    static const enum kernel_type to[] = {KERNEL_Q8_0, KERNEL_Q4_0, KERNEL_Q4_0};
    for (size_t i = 0; i < ARRAY_LEN(to); i++) {
        struct tiny t = {"llama", from[i], KERNEL_F16, .seed = 5};
        struct file f = {0};
        f.data = tiny_write(&t, &f.len);
        AUTO(model_free) struct model *m = NULL;
        assert_int_equal(load_as(f, (int)to[i], &m), 0);
        assert_int_equal(m->layers[1].attn.v.type, to[i]);
        assert_rounded(f, "token_embd.weight", &m->embd);
        assert_rounded(f, "output.weight", &m->head);
        assert_rounded(f, "blk.0.attn_q.weight", &m->layers[0].attn.q);
        assert_rounded(f, "blk.1.attn_v.weight", &m->layers[1].attn.v);
        assert_rounded(f, "blk.1.ffn_down.weight", &m->layers[1].ffn.down);
        free(f.data);
    }
}

static void smaller_types_stay_as_they_are(void **state)
{
    (void)state;
    struct tiny t = {"llama", KERNEL_Q4_0, KERNEL_Q8_0, .seed = 5};
    struct file f = {0};
    f.data = tiny_write(&t, &f.len);
    AUTO(model_free) struct model *m = NULL;
    assert_int_equal(load_as(f, KERNEL_Q8_0, &m), 0);
    assert_int_equal(m->layers[0].attn.q.type, KERNEL_Q4_0);
    assert_int_equal(m->embd.type, KERNEL_Q8_0);
    free(f.data);
}

/* Columns of all threads together are those of the matrices, each once. */
static void the_columns_of_several_matrices_are_shared_out(void **state)
{
    (void)state;
    const struct kernel_mat mats[] = {
        {.n_out = 2048}, {.n_out = 512}, {.n_out = 83}, {.n_out = 16}};
    for (unsigned n = 1; n <= 7; n++) {
        uint32_t before = 0, n_tiles = 0, from, to, least = UINT32_MAX, most = 0;
        uint32_t of_thread[7] = {0};
        for (unsigned k = 0; k < ARRAY_LEN(mats); k++)
            n_tiles += model_tiles(&mats[k]);
        for (unsigned k = 0; k < ARRAY_LEN(mats); k++) {
            uint32_t next = 0;
            for (unsigned i = 0; i < n; i++) {
                model_columns(mats[k].n_out, before, n_tiles, i, n, &from, &to);
                assert_true(from <= to && (from == to || from == next) && from % KERNEL_TILE == 0);
                of_thread[i] += to - from;
                next = from < to ? to : next;
            }
            assert_int_equal(next, mats[k].n_out);
            before += model_tiles(&mats[k]);
        }
        for (unsigned i = 0; i < n; i++) {
            least = of_thread[i] < least ? of_thread[i] : least;
            most = of_thread[i] > most ? of_thread[i] : most;
        }
        assert_true(most - least < 2 * KERNEL_TILE);
    }
}

/* Everything but the weights. */
static int plan(struct file f)
{
    AUTO(checkpoint_close) struct checkpoint *g = NULL;
    AUTO(model_free) struct model *m = NULL;
    int r = checkpoint_open_memory(f.data, f.len, &g);
    return r < 0 ? r : model_plan(g, MODEL_AS_FILE, &m);
}

/* No damaged file may crash. Most are refused by the plan; some are valid but different, and of
 * some of those the weights are loaded as well. */
static void damaged_files_never_crash(void **state)
{
    (void)state;
    struct file f = file_of("qwen3");
    size_t head = (size_t)(find_in(f, "blk.1.attn_k_norm.weight") - f.data) + 64;
    AUTO(mem_free) char *kept = malloc(head);
    memcpy(kept, f.data, head);
    uint64_t dice = 1;
    uint32_t n_refused = 0;
    for (int i = 0; i < 1000; i++) {
        for (int k = 0; k < 1 + i % 3; k++) {
            dice = rng_splitmix64(dice);
            f.data[dice % head] ^= (char)(1 << (dice >> 32) % 8);
        }
        struct model *m = NULL;
        n_refused += (i % 8 ? plan(f) : load(f, &m)) < 0;
        model_free(m);
        memcpy(f.data, kept, head);
    }
    assert_true(n_refused > 300);
    free(f.data);
}

/* ---- packed weights in a folder ---- */

static const struct timespec some_time[2] = {{.tv_sec = 1000000000}, {.tv_sec = 1000000000}};
static const struct timespec other_times[][2] = {
    {{.tv_sec = 1000000000}, {.tv_sec = 1000000001}},
    {{.tv_sec = 1000000000}, {.tv_sec = 1000000000, .tv_nsec = 1}}};

static struct model *load_with(const char *path, const char *cache)
{
    AUTO(checkpoint_close) struct checkpoint *c = NULL;
    struct model *m = NULL;
    assert_int_equal(checkpoint_open(path, &c), 0);
    assert_int_equal(model_plan(c, MODEL_AS_FILE, &m), 0);
    const struct model_load_options o = {.pool = pool, .kernel = kernel, .cache = cache};
    if (model_load(m, &o) < 0)
        fail_msg("%s", fail_text());
    return m;
}

static void write_model(const char *path, struct file f)
{
    FILE *to = fopen(path, "wb");
    assert_non_null(to);
    assert_int_equal(fwrite(f.data, 1, f.len, to), f.len);
    fclose(to);
    assert_int_equal(utimensat(AT_FDCWD, path, some_time, 0), 0);
}

static void must_have_equal_weights(const struct model *a, const struct model *b)
{
    assert_true(a->digest == b->digest && a->n_mats == b->n_mats && a->bytes == b->bytes);
    for (uint32_t i = 0; i < a->n_mats; i++) {
        const struct kernel_mat *w = a->mats[i];
        assert_memory_equal(w->data, b->mats[i]->data,
                            kernel_packed_bytes(w->type, w->n_out, w->n_in));
    }
    assert_memory_equal(a->out_norm, b->out_norm, a->params.n_embd * sizeof(float));
    for (uint32_t l = 0; l < a->params.n_layers; l++)
        assert_memory_equal(a->layers[l].attn.norm, b->layers[l].attn.norm,
                            a->params.n_embd * sizeof(float));
}

/* The last load but one does not read the file's weights. They are changed then, but the size and
 * the time of the file are as before. */
static void a_cache_has_the_packed_weights_of_a_file(void **state)
{
    (void)state;
    char folder[FOLDER_PATH], path[100];
    struct file f = file_of("llama");
    folder_make(folder);
    snprintf(path, sizeof(path), "%s/model.gguf", folder);
    write_model(path, f);
    struct model *none = load_with(path, NULL), *first = load_with(path, folder);
    must_have_equal_weights(none, first);
    f.data[f.len - 1] ^= 1; // of the last tensor
    write_model(path, f);
    struct model *mapped = load_with(path, folder);
    must_have_equal_weights(none, mapped);
    for (unsigned i = 0; i < ARRAY_LEN(other_times); i++) {
        assert_int_equal(utimensat(AT_FDCWD, path, other_times[i], 0), 0);
        struct model *changed = load_with(path, folder);
        assert_true(changed->digest != none->digest);
        model_free(changed);
    }
    model_free(none);
    model_free(first);
    model_free(mapped);
    folder_remove(folder);
    free(f.data);
}

static void each_type_has_its_packed_weights(void **state)
{
    (void)state;
    char folder[FOLDER_PATH], path[100];
    static const int types[] = {MODEL_AS_FILE, KERNEL_Q4_0, MODEL_AS_FILE, KERNEL_Q4_0};
    const struct tiny t = {
        .arch = "llama", .type = KERNEL_Q8_0, .head_type = KERNEL_Q8_0, .n_layers = 2};
    struct file f;
    f.data = tiny_write(&t, &f.len);
    uint64_t digests[ARRAY_LEN(types)];
    enum kernel_type packed[ARRAY_LEN(types)];
    folder_make(folder);
    snprintf(path, sizeof(path), "%s/model.gguf", folder);
    write_model(path, f);
    for (unsigned i = 0; i < ARRAY_LEN(types); i++) {
        AUTO(checkpoint_close) struct checkpoint *c = NULL;
        AUTO(model_free) struct model *m = NULL;
        assert_int_equal(checkpoint_open(path, &c), 0);
        assert_int_equal(model_plan(c, types[i], &m), 0);
        assert_int_equal(model_cached_bytes(m, folder), i < 2 ? 0 : m->bytes);
        const struct model_load_options o = {.pool = pool, .kernel = kernel, .cache = folder};
        assert_int_equal(model_load(m, &o), 0);
        digests[i] = m->digest;
        packed[i] = m->layers[0].attn.q.type;
    }
    assert_true(packed[0] == packed[2] && packed[1] == KERNEL_Q4_0 && packed[3] == KERNEL_Q4_0);
    assert_true(packed[0] != KERNEL_Q4_0);
    assert_true(digests[0] == digests[2] && digests[1] == digests[3]);
    folder_remove(folder);
    free(f.data);
}

/* A load that begins while another one packs the same weights. */
struct second_load {
    const char *path, *folder;
    bool cancelled, started;
    float done;  // the most of its progress
    sem_t waits; // posted at each step of its progress
    pthread_t thread;
    struct pool *pool;
    struct model *model;
    int result;
};

static bool second_goes_on(void *arg, float done)
{
    struct second_load *s = arg;
    s->done = done > s->done ? done : s->done;
    sem_post(&s->waits);
    return !s->cancelled;
}

static void *load_second(void *arg)
{
    struct second_load *s = arg;
    AUTO(checkpoint_close) struct checkpoint *c = NULL;
    assert_int_equal(checkpoint_open(s->path, &c), 0);
    assert_int_equal(model_plan(c, MODEL_AS_FILE, &s->model), 0);
    s->result = model_load(s->model, &(struct model_load_options){.pool = s->pool,
                                                                  .kernel = kernel,
                                                                  .progress = second_goes_on,
                                                                  .arg = s,
                                                                  .cache = s->folder});
    return NULL;
}

/* Progress of the first load. */
static bool start_second(void *arg, float done)
{
    struct second_load *s = arg;
    if (done <= 0 || s->started)
        return true;
    s->started = true;
    assert_int_equal(pthread_create(&s->thread, NULL, load_second, s), 0);
    if (s->cancelled)
        pthread_join(s->thread, NULL);
    else
        sem_wait(&s->waits);
    return true;
}

static void check_two_loads(bool cancel)
{
    char folder[FOLDER_PATH], path[100];
    struct second_load second = {.path = path, .folder = folder, .cancelled = cancel};
    AUTO(checkpoint_close) struct checkpoint *c = NULL;
    AUTO(model_free) struct model *first = NULL;
    struct file f = file_of("llama");
    folder_make(folder);
    snprintf(path, sizeof(path), "%s/model.gguf", folder);
    write_model(path, f);
    assert_int_equal(sem_init(&second.waits, 0, 0), 0);
    assert_int_equal(pool_new(1, false, &second.pool), 0);
    assert_int_equal(checkpoint_open(path, &c), 0);
    assert_int_equal(model_plan(c, MODEL_AS_FILE, &first), 0);
    assert_int_equal(model_load(first, &(struct model_load_options){.pool = pool,
                                                                    .kernel = kernel,
                                                                    .progress = start_second,
                                                                    .arg = &second,
                                                                    .cache = folder}),
                     0);
    assert_true(second.started);
    if (!cancel)
        pthread_join(second.thread, NULL);
    assert_int_equal(second.result, cancel ? -ECANCELED : 0);
    if (!cancel)
        must_have_equal_weights(first, second.model);
    assert_true(second.done == 0); // it packed nothing
    model_free(second.model);
    pool_free(second.pool);
    folder_remove(folder);
    free(f.data);
}

static void a_second_load_waits_for_the_first(void **state)
{
    (void)state;
    check_two_loads(false);
}

static void a_load_that_waits_can_be_cancelled(void **state)
{
    (void)state;
    check_two_loads(true);
}

/* Without a folder that can be written the model loads as without a cache. */
static void a_cache_that_fails_is_not_used(void **state)
{
    (void)state;
    char path[] = "/tmp/tandem-model-XXXXXX";
    struct file f = file_of("llama");
    close(mkstemp(path));
    write_model(path, f);
    struct model *none = load_with(path, NULL), *failed = load_with(path, "/dev/null");
    must_have_equal_weights(none, failed);
    model_free(none);
    model_free(failed);
    unlink(path);
    free(f.data);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes_are_read_from_the_file),
        cmocka_unit_test(the_digest_names_the_weights),
        cmocka_unit_test(the_digest_of_a_file_never_changes),
        cmocka_unit_test(the_digest_of_an_embedded_model_never_changes),
        cmocka_unit_test(every_row_is_in_the_digest),
        cmocka_unit_test(the_digest_does_not_depend_on_threads),
        cmocka_unit_test(the_digest_names_the_rotation),
        cmocka_unit_test(a_file_cut_short_while_it_is_loaded_is_an_error),
        cmocka_unit_test(other_architectures_are_named),
        cmocka_unit_test(missing_keys_and_tensors_are_named),
        cmocka_unit_test(wrong_shapes_name_both),
        cmocka_unit_test(numbers_out_of_range_are_refused),
        cmocka_unit_test(delta_nets_that_cannot_be_are_refused),
        cmocka_unit_test(layers_for_multi_token_prediction_are_skipped),
        cmocka_unit_test(experts_that_cannot_be_are_refused),
        cmocka_unit_test(windows_that_cannot_be_are_refused),
        cmocka_unit_test(experts_of_another_architecture_are_refused),
        cmocka_unit_test(unused_tensors_are_refused),
        cmocka_unit_test(unknown_architectures_are_named),
        cmocka_unit_test(unknown_rope_scaling_is_named),
        cmocka_unit_test(loading_reports_progress),
        cmocka_unit_test(loading_can_be_cancelled),
        cmocka_unit_test(larger_types_are_quantised_on_the_way),
        cmocka_unit_test(smaller_types_stay_as_they_are),
        cmocka_unit_test(the_columns_of_several_matrices_are_shared_out),
        cmocka_unit_test(damaged_files_never_crash),
        cmocka_unit_test(a_cache_has_the_packed_weights_of_a_file),
        cmocka_unit_test(each_type_has_its_packed_weights),
        cmocka_unit_test(a_second_load_waits_for_the_first),
        cmocka_unit_test(a_load_that_waits_can_be_cancelled),
        cmocka_unit_test(a_cache_that_fails_is_not_used),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
