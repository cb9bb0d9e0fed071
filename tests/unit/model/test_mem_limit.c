/* test_mem_limit.c - how much memory is left, by files of a folder that stands for a machine. */
#include <stdint.h>
#include <sys/resource.h>
#include <unistd.h>
#include "base/mem.h"
#include "lib/lib.h"
#include "lib/fakes/fake_root.h"
#include "model/mem_limit.h"

#define MIB (1UL << 20)
#define NO_FILE                                                                                    \
    {                                                                                              \
        NULL, NULL                                                                                 \
    }
#define SYSTEM                                                                                     \
    {                                                                                              \
        "proc/meminfo", "MemTotal: 4096 kB\nMemFree: 100 kB\nMemAvailable: 2097152 kB\n"           \
    }

struct file {
    const char *path, *text;
};

static size_t available(const struct file *files, unsigned n)
{
    const char *root = fake_root_new();
    for (unsigned i = 0; i < n && files[i].path; i++)
        fake_root_put(root, files[i].path, files[i].text);
    size_t promised, bytes = mem_limit_available(root, &promised);
    fake_root_remove(root);
    return bytes;
}

static void the_least_of_system_and_groups_is_available(void **state)
{
    (void)state;
    static const struct machine {
        struct file files[6];
        size_t bytes;
    } machines[] = {
        {{NO_FILE}, SIZE_MAX},
        {{SYSTEM}, 2048 * MIB},
        {{SYSTEM, {"proc/self/cgroup", "0::/\n"}, {"sys/fs/cgroup/memory.max", "max\n"}},
         2048 * MIB},
        {{SYSTEM,
          {"proc/self/cgroup", "0::/a/b\n"},
          {"sys/fs/cgroup/a/memory.max", "1073741824\n"},
          {"sys/fs/cgroup/a/memory.current", "104857600\n"}},
         924 * MIB},
        {{SYSTEM, // file pages are given back
          {"proc/self/cgroup", "0::/a\n"},
          {"sys/fs/cgroup/a/memory.max", "1073741824\n"},
          {"sys/fs/cgroup/a/memory.current", "1073741824\n"},
          {"sys/fs/cgroup/a/memory.stat",
           "anon 1\ninactive_file 209715200\nactive_file 104857600\n"}},
         300 * MIB},
        {{SYSTEM,
          {"proc/self/cgroup", "0::/full\n"},
          {"sys/fs/cgroup/full/memory.max", "1048576\n"},
          {"sys/fs/cgroup/full/memory.current", "2097152\n"}},
         0},
        {{SYSTEM,
          {"proc/self/cgroup", "7:pids:/\n4:memory:/x\n0::/\n"},
          {"sys/fs/cgroup/memory/x/memory.limit_in_bytes", "1073741824\n"},
          {"sys/fs/cgroup/memory/x/memory.usage_in_bytes", "524288000\n"},
          {"sys/fs/cgroup/memory/x/memory.stat",
           "inactive_file 5\ntotal_inactive_file 104857600\ntotal_active_file 104857600\n"}},
         724 * MIB},
        {{SYSTEM, {"proc/self/cgroup", ":::\n0::\n:memory:\nx\n"}}, 2048 * MIB},
    };
    for (unsigned i = 0; i < ARRAY_LEN(machines); i++) {
        size_t bytes = available(machines[i].files, ARRAY_LEN(machines[i].files));
        if (bytes != machines[i].bytes)
            fail_msg("machine %u: %zu bytes, not %zu", i, bytes, machines[i].bytes);
    }
}

#define PROCESS(pid, name, data_kib, groups)                                                       \
    {"proc/" pid "/comm", name "\n"},                                                              \
        {"proc/" pid "/status", "VmData:\t" data_kib " kB\nRssAnon:\t 102400 kB\nThreads:\t1\n"},  \
    {                                                                                              \
        "proc/" pid "/cgroup", groups "\n"                                                         \
    }

static void what_other_services_will_take_is_not_available(void **state)
{
    (void)state;
    static const struct file files[] = {
        {"proc/meminfo", "MemTotal: 4194304 kB\nMemAvailable: 2097152 kB\n"},
        PROCESS("70", "proposer-svc", "409600", "0::/a"), // 300 MiB untouched
        PROCESS("71", "verifier-svc", "307200", "0::/b"), // 200 MiB
        PROCESS("72", "verifier-svc", "90000", "0::/a"),  // all and more: stacks have been touched
        {"proc/73/smaps_rollup", "Pss_File: 51200 kB\n"},
        {"proc/72/smaps_rollup", "Rss: 9 kB\nPss_File: 51200 kB\n"}, // and 50 MiB of weights
        PROCESS("73", "editor", "409600", "0::/a"),                  // nobody knows what it is for
        PROCESS("74", "proposer-svc", "9000000", "0::/a"),           // more than there is
        {"proc/self/cgroup", "0::/a\n"},
        {"sys/fs/cgroup/a/memory.max", "1073741824\n"},
        {"sys/fs/cgroup/a/memory.current", "104857600\n"}};
    const char *root = fake_root_new();
    size_t promised;
    for (unsigned i = 0; i < ARRAY_LEN(files) - 2; i++)
        fake_root_put(root, files[i].path, files[i].text);
    assert_int_equal(mem_limit_available(root, &promised), 1498 * MIB);
    assert_int_equal(promised, 550 * MIB);
    assert_int_equal(mem_limit_mapped(root), 50 * MIB);
    for (unsigned i = ARRAY_LEN(files) - 2; i < ARRAY_LEN(files); i++)
        fake_root_put(root, files[i].path, files[i].text);
    assert_int_equal(mem_limit_available(root, &promised), 574 * MIB); // of the group
    fake_root_remove(root);
}

static void a_limited_address_space_counts(void **state)
{
    (void)state;
    static const struct file files[] = {SYSTEM, {"proc/self/statm", "1024 300 200 1 0 500 0\n"}};
    if (LIB_SANITIZED)
        lib_leave_out("the shadow of a sanitizer needs more");
    struct rlimit before, limited;
    assert_int_equal(getrlimit(RLIMIT_AS, &before), 0);
    limited = before;
    limited.rlim_cur = 1024 * MIB;
    if (setrlimit(RLIMIT_AS, &limited) < 0 || before.rlim_cur != RLIM_INFINITY)
        lib_skip("the address space is limited already");
    size_t bytes = available(files, ARRAY_LEN(files));
    assert_int_equal(setrlimit(RLIMIT_AS, &before), 0);
    assert_int_equal(bytes, 1024 * MIB - 1024 * (size_t)sysconf(_SC_PAGESIZE));
}

static void this_machine_has_some(void **state)
{
    (void)state;
    size_t promised;
    assert_in_range(mem_limit_available("", &promised), MIB, SIZE_MAX - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_least_of_system_and_groups_is_available),
        cmocka_unit_test(what_other_services_will_take_is_not_available),
        cmocka_unit_test(a_limited_address_space_counts),
        cmocka_unit_test(this_machine_has_some),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
