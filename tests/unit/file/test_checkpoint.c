/* test_checkpoint.c - one set of keys and roles for all formats. */
#include "lib/lib.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "base/err.h"
#include "file/checkpoint.h"
#include "file/gguf_write.h"

static struct gguf_write *w;
static char *data;
static size_t len;

static int begin(void **state)
{
    (void)state;
    return gguf_write_new(&w);
}

static int end(void **state)
{
    (void)state;
    gguf_write_free(w);
    free(TAKE(data));
    return 0;
}

static struct checkpoint *finish(void)
{
    struct checkpoint *c = NULL;
    static const float zeros[64];
    FILE *out = open_memstream(&data, &len);
    assert_int_equal(gguf_write_head(w, out), 0);
    assert_int_equal(gguf_write_data(w, zeros, sizeof(zeros)), 0);
    fclose(out);
    assert_int_equal(checkpoint_open_memory(data, len, &c), 0);
    return c;
}

static void keys_find_the_formats_parameters(void **state)
{
    static const struct {
        const char *key, *in_gguf;
    } keys[] = {
        {"general.name", "general.name"},
        {"tokenizer.merges", "tokenizer.ggml.merges"},
        {"tokenizer.chat_template", "tokenizer.chat_template"},
        {"attention.head_count", "qwen9.attention.head_count"},
    };
    gguf_write_text(w, "general.architecture", "qwen9", 5);
    for (uint32_t i = 0; i < ARRAY_LEN(keys); i++)
        gguf_write_int(w, keys[i].in_gguf, GGUF_U32, i);
    gguf_write_tensor(w, "a", GGUF_F32, 1, (uint64_t[]){64});
    AUTO(checkpoint_close) struct checkpoint *c = finish();
    for (uint32_t i = 0; i < ARRAY_LEN(keys); i++) {
        uint32_t value = UINT32_MAX;
        assert_int_equal(checkpoint_u32(c, keys[i].key, &value), 0);
        assert_int_equal(value, i);
        assert_string_equal(checkpoint_key_name(c, keys[i].key), keys[i].in_gguf);
    }
    (void)state;
}

static void errors_name_the_formats_key(void **state)
{
    struct span text;
    gguf_write_text(w, "general.architecture", "qwen9", 5);
    gguf_write_int(w, "qwen9.rope.scaling.type", GGUF_U32, 1);
    gguf_write_tensor(w, "a", GGUF_F32, 1, (uint64_t[]){64});
    AUTO(checkpoint_close) struct checkpoint *c = finish();
    assert_int_equal(checkpoint_text(c, "rope.scaling.type", &text), -EINVAL);
    assert_string_equal(fail_text(),
                        "(memory): qwen9.rope.scaling.type is of kind u32, not a string");
    (void)state;
}

static void roles_find_the_formats_tensors(void **state)
{
    gguf_write_tensor(w, "output_norm.weight", GGUF_F32, 1, (uint64_t[]){32});
    gguf_write_tensor(w, "blk.12.attn_q.bias", GGUF_F32, 1, (uint64_t[]){32});
    AUTO(checkpoint_close) struct checkpoint *c = finish();
    const struct checkpoint_tensor *t = checkpoint_find(c, CHECKPOINT_ATTN_Q_BIAS, 12);
    assert_non_null(t);
    assert_true(span_is(t->name, "blk.12.attn_q.bias"));
    assert_int_equal(t->type, CHECKPOINT_F32);
    assert_string_equal(t->type_name, "F32");
    assert_non_null(checkpoint_find(c, CHECKPOINT_OUTPUT_NORM, 0));
    assert_null(checkpoint_find(c, CHECKPOINT_ATTN_Q_BIAS, 1));
    assert_null(checkpoint_find(c, CHECKPOINT_OUTPUT, 0));
    assert_string_equal(checkpoint_role_name(c, CHECKPOINT_FFN_DOWN, 3), "blk.3.ffn_down.weight");
    (void)state;
}

static void types_that_no_model_can_use_keep_their_name(void **state)
{
    gguf_write_tensor(w, "a", GGUF_Q2_K, 1, (uint64_t[]){256});
    gguf_write_tensor(w, "b", GGUF_F32, 1, (uint64_t[]){(256 - 84) / 4});
    AUTO(checkpoint_close) struct checkpoint *c = finish();
    assert_int_equal(checkpoint_find_name(c, "a")->type, CHECKPOINT_OTHER);
    assert_string_equal(checkpoint_find_name(c, "a")->type_name, "Q2_K");
    (void)state;
}

static void models_are_called_after_their_files(void **state)
{
    static const char *const names[][2] = {
        {"/models/tales-11m.gguf", "tales-11m"},
        {"tales.v2.gguf", "tales.v2"},
        {"/models/tales.bin", "tales.bin"},
        {"/models/.gguf", ".gguf"},
        {"tales", "tales"},
    };
    for (size_t i = 0; i < ARRAY_LEN(names); i++) {
        AUTO(mem_free) char *name = checkpoint_model_name(names[i][0]);
        assert_string_equal(name, names[i][1]);
    }
    (void)state;
}

static void other_formats_are_refused(void **state)
{
    static const char files[][8] = {"", "GGU", "GGML1234", "{\"a\":1}"};
    struct checkpoint *c = NULL;
    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        assert_int_equal(checkpoint_open_memory(files[i], strnlen(files[i], 8), &c), -EINVAL);
        assert_non_null(strstr(fail_text(), "not a GGUF file"));
    }
    assert_null(c);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(keys_find_the_formats_parameters, begin, end),
        cmocka_unit_test_setup_teardown(errors_name_the_formats_key, begin, end),
        cmocka_unit_test_setup_teardown(roles_find_the_formats_tensors, begin, end),
        cmocka_unit_test_setup_teardown(types_that_no_model_can_use_keep_their_name, begin, end),
        cmocka_unit_test(models_are_called_after_their_files),
        cmocka_unit_test(other_formats_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
