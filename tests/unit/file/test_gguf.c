/* test_gguf.c - valid files, and every way to be invalid. */
#include "lib/lib.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/err.h"
#include "base/rng.h"
#include "file/gguf.h"
#include "file/gguf_write.h"
#include "lib/models/checkpoint_walk.h"

struct file {
    char *data;
    size_t len;
};

static void done(struct file *f)
{
    free(f->data);
}
#define FILE_AUTO struct file __attribute__((cleanup(done)))

/* The head, then zeros for the tensors. */
static struct file finish(struct gguf_write *w, size_t n_weights)
{
    static const char zeros[4096];
    struct file f = {0};
    FILE *out = open_memstream(&f.data, &f.len);
    assert_int_equal(gguf_write_head(w, out), 0);
    assert_int_equal(gguf_write_data(w, zeros, n_weights), 0);
    fclose(out);
    gguf_write_free(w);
    return f;
}

static struct gguf_write *writer(void)
{
    struct gguf_write *w;
    assert_int_equal(gguf_write_new(&w), 0);
    return w;
}

/* Keys of every kind and three tensors. */
static struct file sample(void)
{
    static const struct span tokens[] = {{"a", 1}, {"", 0}, {"<unk>", 5}};
    static const float scores[] = {0, -1, -2};
    struct gguf_write *w = writer();
    gguf_write_text(w, "general.architecture", "llama", 5);
    gguf_write_int(w, "general.alignment", GGUF_U32, 32);
    gguf_write_int(w, "llama.block_count", GGUF_U16, 2);
    gguf_write_int(w, "llama.negative", GGUF_I8, -5);
    gguf_write_int(w, "llama.bool", GGUF_BOOL, 1);
    gguf_write_int(w, "llama.large", GGUF_U64, 1ll << 40);
    gguf_write_float(w, "llama.float", 0.5f);
    gguf_write_texts(w, "tokenizer.ggml.tokens", tokens, 3);
    gguf_write_array(w, "tokenizer.ggml.scores", GGUF_FLOAT32, scores, 3);
    gguf_write_tensor(w, "b.weight", GGUF_Q8_0, 2, (uint64_t[]){64, 2});
    gguf_write_tensor(w, "a.weight", GGUF_F32, 1, (uint64_t[]){7});
    gguf_write_tensor(w, "c.weight", GGUF_F16, 3, (uint64_t[]){2, 3, 4});
    return finish(w, 4 * 34 + 28 + 48);
}

static int open_file(const struct file *f, struct checkpoint **ret)
{
    return checkpoint_open_memory(f->data, f->len, ret);
}

/* Opening fails with this errno, and the sentence contains `why`. */
static void refused(const struct file *f, int err, const char *why)
{
    AUTO(checkpoint_close) struct checkpoint *g = NULL;
    int r = open_file(f, &g);
    if (r != err || !strstr(fail_text(), why))
        fail_msg("got %d (%s), not %d with \"%s\"", r, r < 0 ? fail_text() : "opened", err, why);
}

/* Overwrites the first occurrence of `old`, from `skip` on. */
static void patch(struct file *f, const void *old, size_t n_old, size_t skip, const void *fresh,
                  size_t n)
{
    char *at = memmem(f->data, f->len, old, n_old);
    assert_non_null(at);
    memcpy(at + skip, fresh, n);
}

static void a_valid_file_is_read(void **state)
{
    FILE_AUTO f = sample();
    AUTO(checkpoint_close) struct checkpoint *g = NULL;
    assert_int_equal(open_file(&f, &g), 0);
    assert_int_equal(checkpoint_n_tensors(g), 3);
    assert_memory_equal(checkpoint_tensor_at(g, 0)->name.data, "b.weight", 8); // the file's order
    const struct checkpoint_tensor *t = checkpoint_find_name(g, "c.weight");
    assert_int_equal(t->type, CHECKPOINT_F16);
    assert_int_equal(t->n_dims, 3);
    assert_int_equal(t->shape[2], 4);
    assert_int_equal(t->shape[3], 1);
    assert_int_equal(t->bytes, 48);
    assert_null(checkpoint_find_name(g, "c.weigh"));
    assert_null(checkpoint_find_name(g, "c.weights"));
    assert_true(checkpoint_walk(g) > 0);
    assert_int_equal(checkpoint_modified(g), 0);
    (void)state;
}

static void numbers_convert_where_they_fit(void **state)
{
    FILE_AUTO f = sample();
    AUTO(checkpoint_close) struct checkpoint *g = NULL;
    uint32_t small;
    uint64_t large;
    float number;
    bool yes;
    struct span text;
    struct checkpoint_array array;
    assert_int_equal(open_file(&f, &g), 0);
    assert_int_equal(checkpoint_u32(g, "block_count", &small), 0);
    assert_int_equal(small, 2);
    assert_int_equal(checkpoint_u32(g, "large", &small), -EINVAL);
    assert_int_equal(checkpoint_u64(g, "large", &large), 0);
    assert_int_equal(checkpoint_u32(g, "negative", &small), -EINVAL);
    assert_int_equal(checkpoint_u32(g, "float", &small), -EINVAL);
    assert_int_equal(checkpoint_u32(g, "absent", &small), -ENOENT);
    assert_int_equal(checkpoint_float(g, "float", &number), 0);
    assert_int_equal(checkpoint_float(g, "bool", &number), -EINVAL);
    assert_int_equal(checkpoint_bool(g, "bool", &yes), 0);
    assert_int_equal(checkpoint_bool(g, "float", &yes), -EINVAL);
    assert_int_equal(checkpoint_text(g, "float", &text), -EINVAL);
    assert_non_null(strstr(fail_text(), "llama.float"));
    assert_int_equal(checkpoint_array(g, "float", &array), -EINVAL);
    (void)state;
}

static void version_2_is_read_others_are_named(void **state)
{
    FILE_AUTO f = sample();
    AUTO(checkpoint_close) struct checkpoint *g = NULL;
    f.data[4] = 2;
    assert_int_equal(open_file(&f, &g), 0);
    f.data[4] = 1;
    refused(&f, -ENOTSUP, "version 1");
    f.data[4] = 9;
    refused(&f, -ENOTSUP, "version 9");
    memcpy(f.data + 4, "\0\0\0\3", 4);
    refused(&f, -ENOTSUP, "big-endian");
    f.data[0] = 'X';
    refused(&f, -EINVAL, "not a GGUF file");
    (void)state;
}

static void a_file_cut_at_any_length_is_refused(void **state)
{
    FILE_AUTO f = sample();
    for (size_t len = 0; len < f.len - 16; len++) {      // 16: the padding after the last tensor
        AUTO(mem_free) char *exact = malloc(len + !len); // ASan sees reads past the end
        struct checkpoint *g;
        memcpy(exact, f.data, len);
        if (checkpoint_open_memory(exact, len, &g) == 0)
            fail_msg("%zu of %zu bytes were enough", len, f.len);
    }
    (void)state;
}

static void wrong_counts_are_refused(void **state)
{
    static const uint64_t wrong[] = {4, 1000, 65536, 65537, 1ull << 32, 1ull << 60, UINT64_MAX};
    FILE_AUTO f = sample();
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++)
        for (size_t at = 8; at <= 16; at += 8) { // tensors, keys
            AUTO(checkpoint_close) struct checkpoint *g = NULL;
            uint64_t truth;
            memcpy(&truth, f.data + at, 8);
            memcpy(f.data + at, &wrong[i], 8);
            assert_true(open_file(&f, &g) < 0);
            memcpy(f.data + at, &truth, 8);
        }
    (void)state;
}

static void wrong_lengths_are_refused(void **state)
{
    static const uint64_t wrong[] = {1u << 20, 1ull << 33, UINT64_MAX - 7, UINT64_MAX};
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        FILE_AUTO key = sample(), text = sample(), array = sample(), texts = sample(),
                  item = sample();
        patch(&key, "\x0e\0\0\0\0\0\0\0llama.negative", 22, 0, &wrong[i], 8);
        refused(&key, -EINVAL, "a key");
        patch(&text, "\5\0\0\0\0\0\0\0llama", 13, 0, &wrong[i], 8);
        refused(&text, -EINVAL, "text");
        patch(&array, "scores\x09\0\0\0\6\0\0\0", 14, 14, &wrong[i], 8);
        refused(&array, -EINVAL, "");
        patch(&texts, "tokens\x09\0\0\0\x08\0\0\0", 14, 14, &wrong[i], 8);
        refused(&texts, -EINVAL, "");
        patch(&item, "\5\0\0\0\0\0\0\0<unk>", 13, 0, &wrong[i], 8);
        refused(&item, -EINVAL, "text");
    }
    (void)state;
}

static void kinds_that_do_not_exist_are_refused(void **state)
{
    FILE_AUTO value = sample(), item = sample(), nested = sample(), yes = sample();
    patch(&value, "a.float\6", 8, 7, "\x0d", 1);
    refused(&value, -EINVAL, "13");
    patch(&item, "scores\x09\0\0\0\6", 11, 10, "\x40", 1);
    refused(&item, -EINVAL, "64");
    patch(&nested, "scores\x09\0\0\0\6", 11, 10, "\x09", 1);
    refused(&nested, -ENOTSUP, "array of arrays");
    patch(&yes, "a.bool\7\0\0\0\1", 11, 10, "\2", 1);
    refused(&yes, -EINVAL, "bool");
    (void)state;
}

static void names_that_occur_twice_are_refused(void **state)
{
    FILE_AUTO key = sample(), tensor = sample(), empty = sample();
    patch(&key, "a.float", 7, 0, "a.large", 7);
    refused(&key, -EINVAL, "a.large");
    patch(&tensor, "c.weight", 8, 0, "b.weight", 8);
    refused(&tensor, -EINVAL, "b.weight");
    patch(&empty, "c.weight", 8, 0, "c.wei\0ht", 8);
    refused(&empty, -EINVAL, "NUL");
    (void)state;
}

static void alignments_that_make_no_sense_are_refused(void **state)
{
    static const uint32_t wrong[] = {0, 1, 4, 24, 48, 131072, UINT32_MAX};
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        FILE_AUTO f = sample();
        patch(&f, "general.alignment\4\0\0\0", 21, 21, &wrong[i], 4);
        refused(&f, -EINVAL, "alignment");
    }
    (void)state;
}

static void offsets_outside_or_between_are_refused(void **state)
{
    static const uint64_t wrong[] = {1, 16, 4096, 1ull << 40, UINT64_MAX - 31};
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        FILE_AUTO f = sample();
        // name, one dimension of 7, type F32, offset
        patch(&f, "a.weight\1\0\0\0\7\0\0\0\0\0\0\0\0\0\0\0", 24, 24, &wrong[i], 8);
        refused(&f, -EINVAL, "a.weight");
    }
    (void)state;
}

static void shapes_that_overflow_or_do_not_fit_are_refused(void **state)
{
    static const uint64_t wrong[][2] = {
        {0, 2},          {64, 0}, {1ull << 32, 1ull << 32}, {UINT64_MAX - 63, 2},
        {1ull << 63, 1}, {33, 2}, {64, 1ull << 57},         {64, 1000000},
    };
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++) {
        FILE_AUTO f = sample();
        patch(&f, "b.weight\2\0\0\0", 12, 12, wrong[i], 16);
        refused(&f, -EINVAL, "b.weight");
    }
    (void)state;
}

static void dimensions_and_types_that_do_not_exist_are_refused(void **state)
{
    FILE_AUTO none = sample(), five = sample(), type = sample();
    patch(&none, "a.weight\1", 9, 8, "\0", 1);
    refused(&none, -EINVAL, "0 dimensions");
    patch(&five, "a.weight\1", 9, 8, "\5", 1);
    refused(&five, -EINVAL, "5 dimensions");
    patch(&type, "a.weight\1\0\0\0\7\0\0\0\0\0\0\0", 20, 20, "\x05", 1);
    refused(&type, -ENOTSUP, "type 5");
    (void)state;
}

static void types_have_names_and_blocks(void **state)
{
    uint32_t weights, bytes;
    assert_string_equal(gguf_type_name(GGUF_Q4_K), "Q4_K");
    assert_string_equal(gguf_type_name(16), "IQ2_XXS"); // not in the enum, yet named
    assert_string_equal(gguf_type_name(99), "type 99");
    assert_int_equal(gguf_type_block(GGUF_Q6_K, &weights, &bytes), 0);
    assert_int_equal(weights, 256);
    assert_int_equal(bytes, 210);
    assert_int_equal(gguf_type_block(99, &weights, &bytes), -ENOTSUP);
    (void)state;
}

static void flipped_bits_never_lead_outside(void **state)
{
    FILE_AUTO f = sample();
    unsigned n_opened = 0;
    size_t head = f.len - 256; // about where the weights begin: all of the header is before it
    for (uint64_t i = 0; i < 20000; i++) {
        AUTO(checkpoint_close) struct checkpoint *g = NULL;
        AUTO(mem_free) char *bad = malloc(f.len);
        memcpy(bad, f.data, f.len);
        for (uint64_t n = 0; n <= i % 3; n++) {
            uint64_t r = rng_splitmix64(i * 4 + n);
            bad[r % head] ^= (char)(1u << (r >> 40) % 8);
        }
        if (checkpoint_open_memory(bad, f.len, &g) == 0)
            n_opened += checkpoint_walk(g) > 0;
    }
    assert_true(n_opened > 100 && n_opened < 19000); // both happen
    (void)state;
}

/* ---- files ---- */

static char folder[64];

static int make_folder(void **state)
{
    snprintf(folder, sizeof(folder), "/tmp/test_gguf.XXXXXX");
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int drop_folder(void **state)
{
    char command[96];
    snprintf(command, sizeof(command), "rm -r %s", folder);
    (void)state;
    return system(command);
}

static const char *in_folder(const char *name)
{
    static char path[128];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    return path;
}

static void save(const char *name, const struct file *f)
{
    FILE *out = fopen(in_folder(name), "wb");
    assert_non_null(out);
    assert_int_equal(f->len > 0 ? fwrite(f->data, 1, f->len, out) : 0, f->len);
    fclose(out);
}

static void cannot_open(const char *name, int err, const char *why)
{
    AUTO(checkpoint_close) struct checkpoint *g = NULL;
    int r = checkpoint_open(in_folder(name), &g);
    if (r != err || !strstr(fail_text(), why))
        fail_msg("%s: got %d (%s), not %d with \"%s\"", name, r, r < 0 ? fail_text() : "opened",
                 err, why);
}

static void a_file_is_read_on_demand(void **state)
{
    FILE_AUTO f = sample();
    AUTO(checkpoint_close) struct checkpoint *g = NULL;
    save("model.gguf", &f);
    assert_int_equal(checkpoint_open(in_folder("model.gguf"), &g), 0);
    assert_true(checkpoint_modified(g) > 1600000000);
    const struct checkpoint_tensor *b = checkpoint_find_name(g, "b.weight");
    checkpoint_prefetch(g, b);
    assert_true(checkpoint_walk(g) > 0);
    (void)state;
}

/* Another process cuts the file after it was opened: an error, no SIGBUS. */
static void a_file_cut_short_while_it_is_open_fails_to_read(void **state)
{
    FILE_AUTO f = sample();
    AUTO(checkpoint_close) struct checkpoint *g = NULL;
    char weights[48];
    save("cut.gguf", &f);
    assert_int_equal(checkpoint_open(in_folder("cut.gguf"), &g), 0);
    const struct checkpoint_tensor *t = checkpoint_find_name(g, "c.weight");
    assert_int_equal(checkpoint_read(g, t, 0, t->bytes, weights), 0);
    assert_int_equal(truncate(in_folder("cut.gguf"), (off_t)t->offset + 7), 0);
    assert_int_equal(checkpoint_read(g, t, 0, 7, weights), 0);
    assert_int_equal(checkpoint_read(g, t, 0, 8, weights), -EIO);
    assert_non_null(strstr(fail_text(), "cut.gguf: cut short while it was read"));
    assert_int_equal(truncate(in_folder("cut.gguf"), 0), 0);
    uint32_t n;
    assert_int_equal(checkpoint_u32(g, "block_count", &n), 0); // is in memory
    checkpoint_walk(g);
    (void)state;
}

static void unusable_files_are_refused_by_name(void **state)
{
    FILE_AUTO empty = {0};
    save("empty.gguf", &empty);
    assert_int_equal(mkfifo(in_folder("fifo.gguf"), 0600), 0);
    cannot_open("absent.gguf", -ENOENT, "absent.gguf");
    cannot_open("empty.gguf", -EINVAL, "empty");
    cannot_open("fifo.gguf", -EINVAL, "regular");
    cannot_open("", -EINVAL, "regular"); // the folder
    (void)state;
}

/* One part with one tensor of four floats. */
static struct file part(const char *tensor, unsigned no, unsigned count, unsigned total)
{
    struct gguf_write *w = writer();
    gguf_write_int(w, "split.no", GGUF_U16, no);
    gguf_write_int(w, "split.count", GGUF_U16, count);
    gguf_write_int(w, "split.tensors.count", GGUF_I32, total);
    if (no == 0)
        gguf_write_int(w, "llama.block_count", GGUF_U32, 3);
    gguf_write_tensor(w, tensor, GGUF_F32, 1, (uint64_t[]){4});
    return finish(w, 16);
}

static void split_files_are_joined(void **state)
{
    FILE_AUTO a = part("x", 0, 3, 3), b = part("y", 1, 3, 3), c = part("z", 2, 3, 3);
    AUTO(checkpoint_close) struct checkpoint *g = NULL;
    uint32_t n;
    save("m-00001-of-00003.gguf", &a);
    save("m-00002-of-00003.gguf", &b);
    save("m-00003-of-00003.gguf", &c);
    assert_int_equal(checkpoint_open(in_folder("m-00001-of-00003.gguf"), &g), 0);
    assert_int_equal(checkpoint_n_tensors(g), 3);
    assert_int_equal(checkpoint_u32(g, "llama.block_count", &n), 0);
    for (const char *name = "xyz"; *name; name++) {
        const struct checkpoint_tensor *t = checkpoint_find_name(g, (char[]){*name, 0});
        assert_non_null(t);
        assert_int_equal(t->bytes, 16);
    }
    assert_true(checkpoint_walk(g) > 0);
    cannot_open("m-00002-of-00003.gguf", -EINVAL, "part 2");
    (void)state;
}

static void split_files_that_do_not_belong_together_are_refused(void **state)
{
    FILE_AUTO a = part("x", 0, 2, 2), b = part("y", 1, 2, 2), wrong_no = part("y", 0, 2, 2);
    FILE_AUTO wrong_count = part("y", 1, 3, 2), twice = part("x", 1, 2, 2), c = part("x", 0, 2, 5);
    FILE_AUTO many = part("x", 0, 2000, 2);
    save("s-00001-of-00002.gguf", &a);
    cannot_open("s-00001-of-00002.gguf", -ENOENT, "s-00002-of-00002.gguf");
    save("s-00002-of-00002.gguf", &wrong_no);
    cannot_open("s-00001-of-00002.gguf", -EINVAL, "is part 1 of 2, not 2 of 2");
    save("s-00002-of-00002.gguf", &wrong_count);
    cannot_open("s-00001-of-00002.gguf", -EINVAL, "2 of 3");
    save("s-00002-of-00002.gguf", &twice);
    cannot_open("s-00001-of-00002.gguf", -EINVAL, "two tensors have the name \"x\"");
    save("s-00002-of-00002.gguf", &b);
    save("s-00001-of-00002.gguf", &c);
    cannot_open("s-00001-of-00002.gguf", -EINVAL, "split.tensors.count is 5");
    save("named-otherwise.gguf", &a);
    cannot_open("named-otherwise.gguf", -EINVAL, "-00001-of-00002.gguf");
    save("many.gguf", &many);
    cannot_open("many.gguf", -EINVAL, "1024");
    refused(&a, -EINVAL, "split");
    (void)state;
}

static void real_models_are_read(void **state)
{
    const char *path = SOURCE_DIR "/models/tales-11m-q8_0.gguf";
    AUTO(checkpoint_close) struct checkpoint *g = NULL;
    assert_int_equal(checkpoint_open(path, &g), 0);
    assert_int_equal(checkpoint_n_tensors(g), 38);
    const struct checkpoint_tensor *t = checkpoint_find_name(g, "token_embd.weight");
    assert_int_equal(t->type, CHECKPOINT_Q8_0);
    assert_int_equal(t->shape[0], 512);
    assert_int_equal(t->shape[1], 4096);
    assert_int_equal(t->bytes, 512 * 4096 / 32 * 34);
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_valid_file_is_read),
        cmocka_unit_test(numbers_convert_where_they_fit),
        cmocka_unit_test(version_2_is_read_others_are_named),
        cmocka_unit_test(a_file_cut_at_any_length_is_refused),
        cmocka_unit_test(wrong_counts_are_refused),
        cmocka_unit_test(wrong_lengths_are_refused),
        cmocka_unit_test(kinds_that_do_not_exist_are_refused),
        cmocka_unit_test(names_that_occur_twice_are_refused),
        cmocka_unit_test(alignments_that_make_no_sense_are_refused),
        cmocka_unit_test(offsets_outside_or_between_are_refused),
        cmocka_unit_test(shapes_that_overflow_or_do_not_fit_are_refused),
        cmocka_unit_test(dimensions_and_types_that_do_not_exist_are_refused),
        cmocka_unit_test(types_have_names_and_blocks),
        cmocka_unit_test(flipped_bits_never_lead_outside),
        cmocka_unit_test(a_file_is_read_on_demand),
        cmocka_unit_test(a_file_cut_short_while_it_is_open_fails_to_read),
        cmocka_unit_test(unusable_files_are_refused_by_name),
        cmocka_unit_test(split_files_are_joined),
        cmocka_unit_test(split_files_that_do_not_belong_together_are_refused),
        cmocka_unit_test(real_models_are_read),
    };
    return cmocka_run_group_tests(tests, make_folder, drop_folder);
}
