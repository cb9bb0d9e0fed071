/* test_tune.c - which walks a model's matrices get. The kernel here has walks of known speed: a
 * product takes some microseconds more with each walk but one. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/err.h"
#include "file/result_file.h"
#include "lib/lib.h"
#include "lib/models/weights.h"
#include "lib/rigs/folder.h"
#include "model/tune.h"

#define MAX_MATS 80
#define MAX_TILES 128

/* A model of nothing but matrices. */
struct fake {
    struct kernel kernel;
    struct pool *pool;
    struct model model;
    struct kernel_mat mats[MAX_MATS], *list[MAX_MATS];
};

static struct {
    uint8_t fast_one, fast_more; // streams; 0: all walks are equally fast
    unsigned n_calls;
    uint32_t most_tiles;  // of a call
    bool seen[MAX_TILES]; // tiles that a call had
} fake;

static void wait_us(int64_t us)
{
    for (int64_t until_us = clock_us() + us; clock_us() < until_us;)
        ;
}

static void fake_matmul(const struct kernel_mat *w, const void *x, size_t x_bytes, uint32_t m,
                        float *y, size_t y_stride, uint32_t from, uint32_t to)
{
    (void)x_bytes;
    assert_non_null(x);
    assert_true(from < to && to <= w->n_out && y_stride == w->n_out);
    assert_true(m == 1 || m == TUNE_MORE_ROWS);
    for (uint32_t r = 0; r < m; r++)
        memset(y + r * y_stride + from, 0, (to - from) * sizeof(*y));
    const uint32_t first = from / KERNEL_TILE, n = (to - from + KERNEL_TILE - 1) / KERNEL_TILE;
    const uint8_t fast = m == 1 ? fake.fast_one : fake.fast_more;
    fake.n_calls++;
    fake.most_tiles = n > fake.most_tiles ? n : fake.most_tiles;
    assert_true(first + n <= MAX_TILES);
    memset(fake.seen + first, true, n);
    if (fast)
        wait_us(n * ((m == 1 ? w->one : w->more).n_streams == fast ? 10 : 30));
}

static void fake_add(struct fake *f, enum kernel_type type, uint32_t n_out, uint32_t n_in)
{
    struct kernel_mat *w = &f->mats[f->model.n_mats];
    void *rows = weights_random(type, n_out, n_in, 1, false);
    *w = weights_pack(type, rows, n_out, n_in);
    f->list[f->model.n_mats++] = w;
    free(rows);
}

static struct fake *fake_new(const char *tier)
{
    struct fake *f = calloc(1, sizeof(*f));
    assert_non_null(f);
    f->kernel = *kernel_tier(tier);
    f->kernel.matmul = fake_matmul;
    f->model.kernel = &f->kernel;
    f->model.mats = f->list;
    assert_int_equal(pool_new(1, false, &f->pool), 0);
    memset(&fake, 0, sizeof(fake));
    unsetenv("TANDEM_TUNE");
    return f;
}

static void fake_free(struct fake *f)
{
    for (uint32_t i = 0; i < f->model.n_mats; i++)
        free((void *)f->mats[i].data);
    pool_free(f->pool);
    free(f);
}

static void must_have(const struct kernel_mat *w, unsigned one, unsigned more)
{
    assert_int_equal(w->one.n_streams, one);
    assert_int_equal(w->more.n_streams, more);
}

static void the_fastest_walks_are_taken(void **state)
{
    (void)state;
    static const uint8_t streams[] = {1, 4, 8};
    for (unsigned i = 0; i < ARRAY_LEN(streams); i++) {
        struct fake *f = fake_new("c");
        struct tune tune;
        fake_add(f, KERNEL_Q8_0, 64, 256);
        fake_add(f, KERNEL_Q4_K, 40, 512);
        fake_add(f, KERNEL_Q8_0, 64, 256);
        fake.fast_one = streams[i];
        fake.fast_more = streams[(i + 1) % ARRAY_LEN(streams)];
        assert_int_equal(tune_model(&f->model, f->pool, NULL, &tune), 0);
        assert_true(tune.timed && tune.n == 2 && fake.n_calls);
        for (uint32_t k = 0; k < f->model.n_mats; k++)
            must_have(&f->mats[k], fake.fast_one, fake.fast_more);
        assert_int_equal(tune.of[1].type, KERNEL_Q4_K);
        assert_true(tune.of[1].n_out == 40 && tune.of[1].n_in == 512);
        assert_int_equal(tune.of[1].one.n_streams, fake.fast_one);
        assert_int_equal(tune.of[1].more.n_streams, fake.fast_more);
        fake_free(f);
    }
}

static void off_leaves_the_usual_walk(void **state)
{
    (void)state;
    const unsigned usual = kernel_usual_walk().n_streams;
    struct fake *f = fake_new("c");
    struct tune tune;
    fake_add(f, KERNEL_Q8_0, 64, 256);
    fake_add(f, KERNEL_Q4_K, 64, 256);
    setenv("TANDEM_TUNE", "off", 1);
    assert_int_equal(tune_model(&f->model, f->pool, NULL, &tune), 0);
    unsetenv("TANDEM_TUNE");
    assert_int_equal(fake.n_calls, 0);
    assert_false(tune.timed);
    for (uint32_t k = 0; k < f->model.n_mats; k++) {
        const struct kernel_mat *w = &f->mats[k];
        must_have(w, usual, usual);
        assert_int_equal(tune.of[k].one.n_streams, w->one.n_streams);
    }
    fake_free(f);
}

static void only_off_and_on_are_values(void **state)
{
    (void)state;
    struct fake *f = fake_new("c");
    struct tune tune;
    fake_add(f, KERNEL_Q8_0, 16, 256);
    setenv("TANDEM_TUNE", "of", 1);
    assert_int_equal(tune_model(&f->model, f->pool, NULL, &tune), -EINVAL);
    assert_non_null(strstr(fail_text(), "TANDEM_TUNE=of: must be on or off"));
    setenv("TANDEM_TUNE", "on", 1);
    assert_int_equal(tune_model(&f->model, f->pool, NULL, &tune), 0);
    assert_true(tune.timed);
    unsetenv("TANDEM_TUNE");
    fake_free(f);
}

/* Products of F16 and F32, and those of the reference kernels, read in one way only. */
static void what_has_no_walks_is_not_timed(void **state)
{
    (void)state;
    struct fake *f = fake_new("c");
    struct tune tune;
    fake_add(f, KERNEL_F16, 64, 256);
    fake_add(f, KERNEL_F32, 64, 256);
    assert_int_equal(tune_model(&f->model, f->pool, NULL, &tune), 0);
    assert_true(tune.n == 0 && !tune.timed && fake.n_calls == 0);
    fake_add(f, KERNEL_Q8_0, 64, 256);
    f->model.kernel = kernel_tier("c");
    assert_int_equal(tune_model(&f->model, f->pool, NULL, &tune), 0);
    assert_true(tune.n == 0 && !tune.timed);
    f->model.kernel = &f->kernel;
    assert_int_equal(tune_model(&f->model, f->pool, NULL, &tune), 0);
    assert_true(tune.n == 1 && tune.timed && fake.n_calls > 0);
    fake_free(f);
}

static void further_shapes_get_the_usual_walk(void **state)
{
    (void)state;
    const unsigned usual = kernel_usual_walk().n_streams;
    struct fake *f = fake_new("c");
    struct tune tune;
    for (uint32_t i = 0; i < TUNE_MAX + 2; i++)
        fake_add(f, KERNEL_Q8_0, 16 + i, 32);
    fake.fast_one = fake.fast_more = 4;
    assert_int_equal(tune_model(&f->model, f->pool, NULL, &tune), 0);
    assert_int_equal(tune.n, TUNE_MAX);
    must_have(&f->mats[TUNE_MAX - 1], 4, 4);
    for (uint32_t k = TUNE_MAX; k < TUNE_MAX + 2; k++)
        must_have(&f->mats[k], usual, usual);
    fake_free(f);
}

/* A sample of a large matrix is a part of it; the next sample is the next part. */
static void large_matrices_are_timed_in_parts(void **state)
{
    (void)state;
    enum { N_OUT = 1000, N_IN = 16384, TILES = (N_OUT + 15) / 16 };
    struct fake *f = fake_new("c");
    struct tune tune;
    fake_add(f, KERNEL_Q8_0, N_OUT, N_IN);
    const size_t tile_bytes = kernel_packed_bytes(KERNEL_Q8_0, KERNEL_TILE, N_IN);
    assert_int_equal(tune_model(&f->model, f->pool, NULL, &tune), 0);
    assert_true(tune.timed);
    assert_true(fake.most_tiles < TILES && fake.most_tiles * tile_bytes >= 8 << 20);
    assert_true((fake.most_tiles - 1) * tile_bytes <= 8 << 20);
    for (uint32_t i = 0; i < TILES; i++)
        assert_true(fake.seen[i]);
    fake_free(f);
}

/* ---- the choice in a folder ---- */

static unsigned calls_to_tune(struct fake *f, const char *folder, struct tune *tune)
{
    fake.n_calls = 0;
    assert_int_equal(tune_model(&f->model, f->pool, folder, tune), 0);
    assert_true(tune->timed);
    return fake.n_calls;
}

static void the_next_start_takes_the_kept_choice(void **state)
{
    (void)state;
    char folder[FOLDER_PATH], path[FOLDER_PATH + 256];
    struct fake *f = fake_new("c");
    struct tune tune;
    folder_make(folder);
    fake_add(f, KERNEL_Q8_0, 64, 256);
    fake.fast_one = 4;
    fake.fast_more = 1;
    assert_true(calls_to_tune(f, folder, &tune) > 0);
    fake.fast_one = fake.fast_more = 8;
    assert_int_equal(calls_to_tune(f, folder, &tune), 0);
    must_have(&f->mats[0], 4, 1);
    assert_true(tune.of[0].one.n_streams == 4 && tune.of[0].more.n_streams == 1);
    assert_int_equal(folder_files(folder, path), 1);
    fake_add(f, KERNEL_Q8_0, 32, 256); // other shapes
    assert_true(calls_to_tune(f, folder, &tune) > 0);
    must_have(&f->mats[0], 8, 8);
    assert_int_equal(folder_files(folder, path), 2);
    fake_free(f);
    folder_remove(folder);
}

static void a_damaged_choice_is_measured_again(void **state)
{
    (void)state;
    char folder[FOLDER_PATH], path[FOLDER_PATH + 256];
    struct fake *f = fake_new("c");
    struct tune tune;
    folder_make(folder);
    fake_add(f, KERNEL_Q8_0, 64, 256);
    fake.fast_one = fake.fast_more = 4;
    for (unsigned i = 0; i < 3; i++) {
        assert_true(calls_to_tune(f, folder, &tune) > 0);
        assert_int_equal(folder_files(folder, path), 1);
        assert_int_equal(calls_to_tune(f, folder, &tune), 0);
        if (i == 0)
            assert_int_equal(truncate(path, 40), 0);
        if (i == 1) {
            FILE *file = fopen(path, "ab");
            fputc(0, file);
            fclose(file);
        }
        if (i == 2) {
            FILE *file = fopen(path, "r+b");
            fseek(file, 33, SEEK_SET);
            fputc(3, file);
            fclose(file);
        }
    }
    assert_true(calls_to_tune(f, folder, &tune) > 0);
    must_have(&f->mats[0], 4, 4);
    fake_free(f);
    folder_remove(folder);
}

/* A file with a right checksum and a walk that no kernel has. */
static void a_choice_of_no_candidate_is_measured_again(void **state)
{
    (void)state;
    char folder[FOLDER_PATH], path[FOLDER_PATH + 256];
    struct fake *f = fake_new("c");
    struct tune tune;
    struct {
        struct kernel_walk one, more;
    } walks[TUNE_MAX] = {0};
    folder_make(folder);
    fake_add(f, KERNEL_Q8_0, 64, 256);
    fake.fast_one = fake.fast_more = 4;
    assert_true(calls_to_tune(f, folder, &tune) > 0);
    assert_int_equal(folder_files(folder, path), 1);
    const uint64_t key = strtoull(strrchr(path, '/') + 1, NULL, 16);
    assert_int_equal(result_file_read(folder, "tune", key, walks, sizeof(walks)), 0);
    assert_int_equal(walks[0].one.n_streams, 4);
    for (unsigned i = 0; i < 2; i++) {
        struct kernel_walk *w = i ? &walks[0].more : &walks[0].one;
        w->n_streams = 200;
        assert_int_equal(result_file_write(folder, "tune", key, walks, sizeof(walks)), 0);
        w->n_streams = 4;
        assert_true(calls_to_tune(f, folder, &tune) > 0);
        must_have(&f->mats[0], 4, 4);
    }
    assert_int_equal(tune_model(&f->model, f->pool, "/dev/null", &tune), 0); // and a warning
    assert_true(tune.timed);
    fake_free(f);
    folder_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_fastest_walks_are_taken),
        cmocka_unit_test(off_leaves_the_usual_walk),
        cmocka_unit_test(only_off_and_on_are_values),
        cmocka_unit_test(what_has_no_walks_is_not_timed),
        cmocka_unit_test(further_shapes_get_the_usual_walk),
        cmocka_unit_test(large_matrices_are_timed_in_parts),
        cmocka_unit_test(the_next_start_takes_the_kept_choice),
        cmocka_unit_test(a_damaged_choice_is_measured_again),
        cmocka_unit_test(a_choice_of_no_candidate_is_measured_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
