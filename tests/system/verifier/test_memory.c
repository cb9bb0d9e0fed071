/* test_memory.c - a verifier takes the memory that it estimates. A setting that does not fit is
 * refused at the start, before the kernel would kill the service. */
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include "lib/lib.h"
#include "base/err.h"
#include "lib/rigs/child.h"
#include "lib/rigs/services.h"
#include "verifier-svc/engine/loaded_model.h"

#define MIB (1UL << 20)
#define VERIFIER BINARY_DIR "/verifier-svc"
#define SMALL SOURCE_DIR "/models/tales-1m-q8_0.gguf"

/* Writes a model of n_layers layers (67 MiB with 8 layers of Q8_0). Returns its path; free it. */
static char *write_model(const char *type, int n_layers)
{
    char *path = NULL, command[600];
    assert_true(asprintf(&path, "%s/%s.gguf", service_dir(), type) > 0);
    snprintf(command, sizeof(command),
             "%s/tests/make_model --shape 0.1b --type %s --layers %d --out %s 2>/dev/null",
             BINARY_DIR, type, n_layers, path);
    assert_int_equal(system(command), 0);
    return path;
}

/* ---- the estimate ---- */

/* The value of a line of /proc/self/status, in bytes. */
static size_t status_bytes(const char *key)
{
    char line[256];
    size_t kib = 0;
    FILE *f = fopen("/proc/self/status", "r");
    assert_non_null(f);
    while (fgets(line, sizeof(line), f))
        if (strncmp(line, key, strlen(key)) == 0)
            kib = strtoul(line + strlen(key), NULL, 10);
    fclose(f);
    return kib << 10;
}

static void reset_peak(void)
{
    FILE *f = fopen("/proc/self/clear_refs", "w");
    assert_non_null(f);
    assert_true(fputs("5", f) >= 0);
    assert_int_equal(fclose(f), 0);
}

/* Writes to every block. */
static void fill_kv(struct runner *r)
{
    const struct kv_bytes *b = kv_bytes_of(r->kv);
    for (uint32_t l = 0; l < kv_bytes_shape(b)->n_layers; l++)
        memset(kv_bytes_at(b, l, 0, 0), 1, kv_bytes_stride(b, l) * kv_n_blocks(r->kv));
}

/* Runs a pass with the maximum of rows and logits. */
static void fill_activations(struct runner *r, uint32_t n_rows)
{
    struct kv_seq seq;
    assert_int_equal(kv_seq_init(&seq, n_rows), 0);
    assert_int_equal(kv_grow(r->kv, &seq, n_rows), 0);
    pass_plan_clear(&r->plan);
    pass_plan_add_seq(&r->plan, &seq, 0);
    for (uint32_t i = 0; i < n_rows; i++)
        pass_plan_add_row(&r->plan, (struct pass_row){0, 300 + i, i, i, -1, i < r->max_logits});
    forward_run(r->forward, &r->plan);
    kv_seq_done(r->kv, &seq);
}

static void check_estimate(char *path, bool blas)
{
    struct verifier_options o = {.model = path,
                                 .blas = blas,
                                 .kv_mib = 48,
                                 .context = 1024,
                                 .max_sequences = 16,
                                 .max_batch_rows = 512,
                                 .threads = 2,
                                 .memory_check = true};
    AUTO(loaded_model_free) struct loaded_model *s = NULL;
    assert_int_equal(loaded_model_open(&o, &s), 0);
    size_t before = status_bytes("RssAnon:"), all_before = status_bytes("VmRSS:");
    reset_peak();
    assert_int_equal(loaded_model_load(s, &o, NULL, NULL), 0);
    size_t peak = status_bytes("VmHWM:") - all_before; // includes file pages that packing read
    size_t loaded = status_bytes("RssAnon:") - before;
    fill_kv(&s->run);
    fill_activations(&s->run, (uint32_t)o.max_batch_rows);
    size_t full = status_bytes("RssAnon:") - before;
    const struct runner_memory *m = &s->run.memory;
    size_t measured_out = m->weights + m->kv + m->activations;
    print_message("weights %zu, loaded %zu, peak %zu; estimated %zu and %zu beside, full %zu MiB\n",
                  m->weights / MIB, loaded / MIB, peak / MIB, measured_out / MIB, m->beside / MIB,
                  full / MIB);
    assert_in_range(m->weights, 60 * MIB, 80 * MIB);
    // the C library may reuse memory that was counted before
    assert_in_range(loaded, m->weights * 95 / 100, m->weights + 8 * MIB);
    assert_in_range(peak, m->weights, m->weights + m->beside);
    assert_in_range(full, measured_out * 95 / 100, runner_bytes(m));
}

static void serving_takes_the_estimated_memory(void **state)
{
    (void)state;
    if (LIB_SANITIZED)
        lib_leave_out("the memory of the sanitizer would be counted, too");
    AUTO(mem_free) char *q8_0 = write_model("q8_0", 8);
    AUTO(mem_free) char *f16 = write_model("f16", 1);
    check_estimate(q8_0, false);
    check_estimate(f16, true);
}

/* ---- refusals ---- */

/* Starts `program` with these arguments, waits for its end and checks its status. Returns its log;
 * free it. */
static char *must_end(const char *program, const char *const *args, int status)
{
    size_t len;
    struct child c = child_start(program, args);
    char *kept = strdup(c.log), copy[64];
    snprintf(copy, sizeof(copy), "%s.kept", kept);
    assert_int_equal(link(kept, copy), 0); // child_wait() removes it
    int got = child_wait(&c);
    char *text = lib_read(copy, &len);
    unlink(copy);
    free(kept);
    if (got != status)
        fail_msg("ended with %d, not %d: %s", got, status, text);
    return text;
}

/* The number before `unit` in "... 123 MiB available". */
static size_t number_before(const char *text, const char *unit)
{
    const char *at = strstr(text, unit);
    assert_non_null(at);
    while (at > text && at[-1] >= '0' && at[-1] <= '9')
        at--;
    return strtoul(at, NULL, 10);
}

static void a_pool_beyond_all_memory_is_refused_with_both_numbers(void **state)
{
    (void)state;
    char target[128];
    snprintf(target, sizeof(target), "unix:%s/v.sock", service_dir());
    AUTO(mem_free)
    char *text = must_end(
        VERIFIER,
        (const char *[]){"--listen", target, "--model", SMALL, "--kv-mib", "400000", NULL}, 1);
    size_t needed = number_before(text, " MiB needed"),
           room = number_before(text, " MiB available");
    size_t fits = strtoul(strstr(text, "; kv_mib=") + 9, NULL, 10);
    assert_in_range(needed, 400000, 440000); // includes the index of these many small blocks
    assert_in_range(room, 1, 499999);
    assert_in_range(fits, room / 2, room);
}

static void memory_reserved_by_a_proposer_is_named(void **state)
{
    (void)state;
    if (LIB_SANITIZED)
        lib_leave_out("the sanitizer reserves more than the machine has");
    struct service proposer = {0};
    service_start(&proposer, "proposer-svc",
                  (const char *[]){"--proposer", "draft", "--draft-model", SMALL, "--draft-kv-mib",
                                   "2000", NULL});
    char target[128];
    snprintf(target, sizeof(target), "unix:%s/d.sock", service_dir());
    AUTO(mem_free)
    char *text = must_end(
        VERIFIER,
        (const char *[]){"--listen", target, "--model", SMALL, "--kv-mib", "400000", NULL}, 1);
    const char *beside = strstr(text, " MiB available beside ");
    assert_non_null(beside);
    assert_in_range(strtoul(beside + 22, NULL, 10), 1990, 20000);
    service_stop(&proposer);
}

static void a_limit_of_address_space_is_respected(void **state)
{
    (void)state;
    if (LIB_SANITIZED)
        lib_leave_out("the sanitizer needs more address space");
    char target[128];
    snprintf(target, sizeof(target), "unix:%s/a.sock", service_dir());
    AUTO(mem_free)
    char *text = must_end("/usr/bin/prlimit",
                          (const char *[]){"--as=3221225472", VERIFIER, "--listen", target,
                                           "--model", SMALL, "--kv-mib", "3000", NULL},
                          1);
    assert_in_range(number_before(text, " MiB available"), 1, 3072);
    assert_in_range(number_before(text, " MiB needed"), 3000, 3300);
    AUTO(mem_free)
    char *unchecked =
        must_end("/usr/bin/prlimit",
                 (const char *[]){"--as=3221225472", VERIFIER, "--listen", target, "--model", SMALL,
                                  "--kv-mib", "3000", "--memory-check=false", NULL},
                 1);
    assert_non_null(strstr(unchecked, "loading the model"));
    assert_non_null(strstr(unchecked, "kv: no memory for "));
}

/* ---- a control group ---- */

#define GROUP_ENTER "echo 0 > \"$0/cgroup.procs\"; exec \"$@\""

static char group[600];

static void leave_group(void)
{
    rmdir(group);
}

static bool group_write(const char *name, size_t bytes)
{
    char path[700];
    snprintf(path, sizeof(path), "%s/%s", group, name);
    FILE *f = fopen(path, "w");
    if (!f)
        return false;
    fprintf(f, "%zu\n", bytes);
    return fclose(f) == 0;
}

/* Limits the memory of a control group of this test. false: no group can be created here. */
static bool limit_group(size_t bytes)
{
    char line[500];
    FILE *f = fopen("/proc/self/cgroup", "r");
    while (!*group && f && fgets(line, sizeof(line), f)) {
        line[strcspn(line, "\n")] = 0;
        char *v1 = strstr(line, ":memory:");
        const char *of = v1 ? v1 + 8 : strncmp(line, "0::", 3) == 0 ? line + 3 : NULL;
        if (!of)
            continue;
        snprintf(group, sizeof(group), "/sys/fs/cgroup%s%s/tandem-test-%d", v1 ? "/memory" : "",
                 strcmp(of, "/") ? of : "", getpid());
        if (mkdir(group, 0700) < 0 ||
            !(group_write("memory.max", bytes) || group_write("memory.limit_in_bytes", bytes))) {
            rmdir(group);
            *group = 0;
        } else {
            atexit(leave_group);
        }
    }
    if (f)
        fclose(f);
    return *group &&
           (group_write("memory.max", bytes) || group_write("memory.limit_in_bytes", bytes));
}

static void a_control_group_too_small_is_refused_not_killed(void **state)
{
    (void)state;
    if (LIB_SANITIZED)
        lib_leave_out("the sanitizer needs more memory");
    if (!limit_group(80 * MIB))
        lib_skip("no control group with a limit can be created here");
    char target[128];
    AUTO(mem_free) char *model = write_model("q8_0", 8);
    snprintf(target, sizeof(target), "unix:%s/g.sock", service_dir());
    const char *args[] = {"-c",      GROUP_ENTER, group,      VERIFIER, "--listen", target,
                          "--model", model,       "--kv-mib", "16",     NULL,       NULL};
    AUTO(mem_free) char *text = must_end("/bin/sh", args, 1);
    assert_in_range(number_before(text, " MiB available"), 1, 80);
    assert_in_range(number_before(text, " MiB needed"), 81, 300);
    assert_non_null(strstr(text, "a smaller model"));

    args[10] = "--memory-check=false"; // without the check the kernel kills it
    assert_true(limit_group(40 * MIB));
    AUTO(mem_free) char *unchecked = must_end("/bin/sh", args, -SIGKILL);
    assert_non_null(strstr(unchecked, "loading the model"));

    args[10] = NULL; // a limit that is large enough
    assert_true(limit_group(260 * MIB));
    struct child c = child_start("/bin/sh", args);
    free(child_wait_log(&c, "model ready"));
    child_stop(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(serving_takes_the_estimated_memory),
        cmocka_unit_test(a_pool_beyond_all_memory_is_refused_with_both_numbers),
        cmocka_unit_test(memory_reserved_by_a_proposer_is_named),
        cmocka_unit_test(a_limit_of_address_space_is_respected),
        cmocka_unit_test(a_control_group_too_small_is_refused_not_killed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
