/* test_result_file.c - a result is read only from the file that was written. */
#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>
#include "file/result_file.h"
#include "lib/lib.h"
#include "lib/rigs/folder.h"

#define KEY 0x1234u
#define PATH "/0000000000001234.tune"

static void a_result_comes_back(void **state)
{
    (void)state;
    char f[FOLDER_PATH];
    uint32_t result = 77, got = 0;
    folder_make(f);
    assert_int_equal(result_file_read(f, "tune", KEY, &got, sizeof(got)), -ENOENT);
    assert_int_equal(result_file_write(f, "tune", KEY, &result, sizeof(result)), 0);
    assert_int_equal(result_file_read(f, "tune", KEY, &got, sizeof(got)), 0);
    assert_int_equal(got, 77);
    assert_int_equal(result_file_read(f, "tune", KEY + 1, &got, sizeof(got)), -ENOENT);
    assert_int_equal(result_file_read(f, "tune", KEY, &got, sizeof(got) - 1), -ENOENT);
    folder_remove(f);
}

/* Else the start of a service would wait for its writer. */
static void a_pipe_is_no_result(void **state)
{
    (void)state;
    char f[FOLDER_PATH];
    char path[256];
    uint32_t got = 0;
    folder_make(f);
    snprintf(path, sizeof(path), "%s" PATH, f);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(result_file_read(f, "tune", KEY, &got, sizeof(got)), -ENOENT);
    folder_remove(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_result_comes_back),
        cmocka_unit_test(a_pipe_is_no_result),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
