/* test_cores.c - the cores that a process may use, on synthetic machines of hwloc and with control
 * groups in a folder. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include "base/cores.h"
#include "base/mem.h"
#include "lib/lib.h"
#include "lib/fakes/fake_root.h"

/* The cores of a synthetic machine, described in hwloc's syntax; NULL: of this machine. */
static struct cores cores_of(const char *machine, const char *root)
{
    struct cores c;
    if (machine)
        setenv("HWLOC_SYNTHETIC", machine, 1);
    else
        unsetenv("HWLOC_SYNTHETIC");
    cores_find(root, &c);
    unsetenv("HWLOC_SYNTHETIC");
    return c;
}

static void hyper_threads_of_a_core_count_once(void **state)
{
    (void)state;
    struct cores c = cores_of("core:4 pu:2", "/nowhere");
    assert_int_equal(c.n, 4);
    assert_int_equal(c.usable, 4);
    for (unsigned i = 0; i < 4; i++)
        assert_int_equal(c.cpu[i], 2 * i);
}

static void cores_of_a_node_are_adjacent(void **state)
{
    (void)state;
    struct cores c = cores_of("numa:2 core:2 pu:1(indexes=0,2,1,3)", "/nowhere");
    static const unsigned by_node[] = {0, 2, 1, 3};
    assert_int_equal(c.n, 4);
    assert_memory_equal(c.cpu, by_node, sizeof(by_node));
}

static void cores_beyond_the_maximum_are_left_out(void **state)
{
    (void)state;
    assert_int_equal(cores_of("core:300 pu:2", "/nowhere").n, CORES_MAX);
}

/* Binds the thread to one CPU. Returns its number; *ret_before is for allow(). */
static unsigned allow_one(cpu_set_t *ret_before)
{
    cpu_set_t one;
    unsigned last = CPU_SETSIZE - 1;
    assert_int_equal(sched_getaffinity(0, sizeof(*ret_before), ret_before), 0);
    while (!CPU_ISSET(last, ret_before))
        last--;
    CPU_ZERO(&one);
    CPU_SET(last, &one);
    assert_int_equal(sched_setaffinity(0, sizeof(one), &one), 0);
    return last;
}

static void only_cpus_that_the_caller_may_run_on_count(void **state)
{
    (void)state;
    cpu_set_t before;
    char machine[64];
    unsigned cpu = allow_one(&before);
    struct cores here = cores_of(NULL, "/nowhere");
    setenv("HWLOC_THISSYSTEM", "1", 1); // applies affinity to a synthetic machine
    snprintf(machine, sizeof(machine), "core:2 pu:%u", cpu + 1);
    struct cores there = cores_of(machine, "/nowhere");
    unsetenv("HWLOC_THISSYSTEM");
    assert_int_equal(sched_setaffinity(0, sizeof(before), &before), 0);
    assert_int_equal(here.n, 1);
    assert_int_equal(here.cpu[0], cpu);
    assert_int_equal(there.n, 1);
    assert_int_equal(there.cpu[0], cpu); // not the first hyper-thread of its core
    assert_true(cores_of(NULL, "/nowhere").n <= (unsigned)CPU_COUNT(&before));
}

struct machine {
    const char *cgroup, *path, *text, *path2, *text2;
    unsigned usable; // of 4
};

static void quotas_are_rounded_up_to_whole_cores(void **state)
{
    (void)state;
    static const struct machine machines[] = {
        {"0::/\n", "sys/fs/cgroup/cpu.max", "max 100000\n", NULL, NULL, 4},
        {"0::/a/b\n", "sys/fs/cgroup/a/cpu.max", "150000 100000\n", NULL, NULL, 2},
        {"0::/a/b\n", "sys/fs/cgroup/a/cpu.max", "300000 100000\n", "sys/fs/cgroup/a/b/cpu.max",
         "200000 100000\n", 2},
        {"0::/a/b\n", "sys/fs/cgroup/a/cpu.max", "50000 100000\n", "sys/fs/cgroup/a/b/cpu.max",
         "max 100000\n", 1},
        {"0::/a\n", "sys/fs/cgroup/a/cpu.max", "800000 100000\n", NULL, NULL, 4},
        {"0::/not/here\n", "sys/fs/cgroup/cpu.max", "10000 100000\n", NULL, NULL, 1},
        {"4:cpu,cpuacct:/x\n", "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "310000\n",
         "sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "100000\n", 4},
        {"4:cpu,cpuacct:/x\n", "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "300000\n",
         "sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "100000\n", 3},
        {"4:cpu:/x\n0::/\n", "sys/fs/cgroup/cpu/x/cpu.cfs_quota_us", "-1\n",
         "sys/fs/cgroup/cpu/x/cpu.cfs_period_us", "100000\n", 4},
        {"nonsense\n::\n1:cpu\n", "sys/fs/cgroup/cpu.max", "-5 zero\n", NULL, NULL, 4},
    };
    for (unsigned i = 0; i < ARRAY_LEN(machines); i++) {
        const struct machine *m = &machines[i];
        const char *root = fake_root_new();
        fake_root_put(root, "proc/self/cgroup", m->cgroup);
        fake_root_put(root, m->path, m->text);
        if (m->path2)
            fake_root_put(root, m->path2, m->text2);
        struct cores c = cores_of("core:4 pu:2", root);
        fake_root_remove(root);
        assert_int_equal(c.n, 4);
        assert_int_equal(c.usable, m->usable);
    }
}

static uint64_t digest_of(const char *cpuinfo)
{
    const char *root = fake_root_new();
    if (cpuinfo)
        fake_root_put(root, "proc/cpuinfo", cpuinfo);
    uint64_t digest = cores_model_digest(root);
    fake_root_remove(root);
    return digest;
}

/* Clock and number of a CPU do not count, nor do the CPUs after the first. */
static void the_model_of_a_cpu_has_a_digest(void **state)
{
    (void)state;
    const uint64_t digest = digest_of("processor\t: 0\nvendor_id\t: A\nmodel\t\t: 2\n"
                                      "model name\t: B\ncpu MHz\t: 2100.0\nflags\t: fpu\n\n"
                                      "processor\t: 1\nvendor_id\t: A\n");
    assert_true(digest == digest_of("processor\t: 7\nvendor_id\t: A\nmodel\t\t: 2\n"
                                    "model name\t: B\ncpu MHz\t: 999.0\nflags\t: fpu\n"));
    static const char *const others[] = {
        "vendor_id\t: C\nmodel\t\t: 2\nmodel name\t: B\nflags\t: fpu\n",
        "vendor_id\t: A\nmodel\t\t: 3\nmodel name\t: B\nflags\t: fpu\n",
        "vendor_id\t: A\nmodel\t\t: 2\nmodel name\t: D\nflags\t: fpu\n",
        "vendor_id\t: A\nmodel\t\t: 2\nmodel name\t: B\nflags\t: fpu avx2\n", NULL};
    for (unsigned i = 0; i < ARRAY_LEN(others); i++)
        assert_true(digest != digest_of(others[i]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hyper_threads_of_a_core_count_once),
        cmocka_unit_test(cores_of_a_node_are_adjacent),
        cmocka_unit_test(cores_beyond_the_maximum_are_left_out),
        cmocka_unit_test(only_cpus_that_the_caller_may_run_on_count),
        cmocka_unit_test(quotas_are_rounded_up_to_whole_cores),
        cmocka_unit_test(the_model_of_a_cpu_has_a_digest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
