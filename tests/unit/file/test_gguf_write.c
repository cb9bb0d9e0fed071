/* test_gguf_write.c - the reader reads back what the writer wrote. */
#include "lib/lib.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "base/err.h"
#include "file/gguf.h"
#include "file/gguf_write.h"

struct fixture {
    struct gguf_write *w;
    char *data;
    size_t len;
    FILE *file;
};

static int fresh(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    assert_int_equal(gguf_write_new(&f->w), 0);
    f->file = open_memstream(&f->data, &f->len);
    *state = f;
    return 0;
}

static int cleaned(void **state)
{
    struct fixture *f = *state;
    gguf_write_free(f->w);
    fclose(f->file);
    free(f->data);
    free(f);
    return 0;
}

static void every_kind_of_key_comes_back(void **state)
{
    struct fixture *f = *state;
    static const int32_t numbers[] = {-1, 7};
    static const struct span texts[] = {{"ab", 2}, {"", 0}, {"c\0d", 3}};
    gguf_write_int(f->w, "u8", GGUF_U8, 200);
    gguf_write_int(f->w, "i64", GGUF_I64, 1ll << 40);
    gguf_write_int(f->w, "yes", GGUF_BOOL, 1);
    gguf_write_float(f->w, "pi", 3.5f);
    gguf_write_text(f->w, "name", "x y", 3);
    gguf_write_array(f->w, "numbers", GGUF_I32, numbers, 2);
    gguf_write_texts(f->w, "texts", texts, 3);
    assert_int_equal(gguf_write_head(f->w, f->file), 0);
    assert_int_equal(gguf_write_end(f->w), 0);

    AUTO(checkpoint_close) struct checkpoint *g = NULL;
    assert_int_equal(checkpoint_open_memory(f->data, f->len, &g), 0);
    uint32_t small;
    uint64_t large;
    float number;
    bool yes;
    struct span text;
    struct checkpoint_array array;
    assert_int_equal(checkpoint_u32(g, "u8", &small), 0);
    assert_int_equal(small, 200);
    assert_int_equal(checkpoint_u64(g, "i64", &large), 0);
    assert_true(large == 1ull << 40);
    assert_int_equal(checkpoint_bool(g, "yes", &yes), 0);
    assert_true(yes);
    assert_int_equal(checkpoint_float(g, "pi", &number), 0);
    assert_true(number == 3.5f);
    assert_int_equal(checkpoint_text(g, "name", &text), 0);
    assert_memory_equal(text.data, "x y", 3);
    assert_int_equal(checkpoint_array(g, "numbers", &array), 0);
    assert_int_equal(checkpoint_array_int(&array, 0), -1);
    assert_int_equal(checkpoint_array(g, "texts", &array), 0);
    text = checkpoint_array_text(&array, 2);
    assert_int_equal(text.len, 3);
    assert_memory_equal(text.data, "c\0d", 3);
}

static void streamed_weights_lie_where_the_table_says(void **state)
{
    struct fixture *f = *state;
    float a[5], b[4];
    for (int i = 0; i < 5; i++)
        a[i] = (float)i;
    for (int i = 0; i < 4; i++)
        b[i] = 10 + (float)i;
    gguf_write_alignment(f->w, 64);
    gguf_write_tensor(f->w, "a", GGUF_F32, 1, (uint64_t[]){5});
    gguf_write_tensor(f->w, "b", GGUF_F32, 2, (uint64_t[]){2, 2});
    assert_int_equal(gguf_write_head(f->w, f->file), 0);
    for (size_t i = 0; i < sizeof(a); i++) // byte by byte
        assert_int_equal(gguf_write_data(f->w, (char *)a + i, 1), 0);
    assert_int_equal(gguf_write_data(f->w, b, sizeof(b)), 0);
    assert_int_equal(gguf_write_end(f->w), 0);

    AUTO(checkpoint_close) struct checkpoint *g = NULL;
    assert_int_equal(checkpoint_open_memory(f->data, f->len, &g), 0);
    const struct checkpoint_tensor *ta = checkpoint_find_name(g, "a"),
                                   *tb = checkpoint_find_name(g, "b");
    assert_int_equal(ta->bytes, sizeof(a));
    assert_memory_equal(f->data + ta->offset, a, sizeof(a));
    assert_memory_equal(f->data + tb->offset, b, sizeof(b));
    assert_int_equal(tb->offset % 64, 0);
    assert_int_equal(tb->shape[1], 2);
    assert_int_equal(f->len % 64, 0);
}

static void weights_that_are_missing_or_too_many_are_refused(void **state)
{
    struct fixture *f = *state;
    gguf_write_tensor(f->w, "a", GGUF_F16, 1, (uint64_t[]){4});
    assert_int_equal(gguf_write_head(f->w, f->file), 0);
    assert_int_equal(gguf_write_end(f->w), -EINVAL);
    assert_int_equal(gguf_write_data(f->w, "12345678", 8), 0);
    assert_int_equal(gguf_write_end(f->w), 0);
    assert_int_equal(gguf_write_data(f->w, "9", 1), -EINVAL);
}

static void a_row_that_does_not_fit_its_type_is_refused(void **state)
{
    struct fixture *f = *state;
    gguf_write_tensor(f->w, "odd", GGUF_Q8_0, 1, (uint64_t[]){33});
    assert_int_equal(gguf_write_head(f->w, f->file), -EINVAL);
    assert_non_null(strstr(fail_text(), "odd"));
}

static void a_size_past_64_bits_is_refused(void **state)
{
    struct fixture *f = *state;
    gguf_write_tensor(f->w, "huge", GGUF_F32, 3, (uint64_t[]){1ull << 32, 1ull << 32, 2});
    assert_int_equal(gguf_write_head(f->w, f->file), -EINVAL);
}

static void a_full_disk_is_reported(void **state)
{
    struct fixture *f = *state;
    FILE *full = fopen("/dev/full", "w");
    if (!full)
        lib_skip("there is no /dev/full");
    setvbuf(full, NULL, _IONBF, 0);
    assert_int_equal(gguf_write_head(f->w, full), -ENOSPC);
    fclose(full);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, fresh, cleaned)
    const struct CMUnitTest tests[] = {
        CASE(every_kind_of_key_comes_back),
        CASE(streamed_weights_lie_where_the_table_says),
        CASE(weights_that_are_missing_or_too_many_are_refused),
        CASE(a_row_that_does_not_fit_its_type_is_refused),
        CASE(a_size_past_64_bits_is_refused),
        CASE(a_full_disk_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
