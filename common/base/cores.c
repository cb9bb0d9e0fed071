/* cores.c - cores from hwloc, quotas from control groups (v2 and v1). */
#include <hwloc.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/cores.h"

/* ---- cores ---- */

/* Where a machine does not tell its cores, every CPU is one. */
static unsigned list(hwloc_topology_t t, hwloc_bitmap_t allowed, unsigned *to)
{
    unsigned n = 0;
    int depth = hwloc_get_type_or_below_depth(t, HWLOC_OBJ_CORE);
    if (hwloc_get_cpubind(t, allowed, HWLOC_CPUBIND_THREAD) < 0)
        hwloc_bitmap_fill(allowed);
    for (hwloc_obj_t core = NULL; (core = hwloc_get_next_obj_by_depth(t, depth, core));) {
        int first = -1;
        do
            first = hwloc_bitmap_next(core->cpuset, first);
        while (first >= 0 && !hwloc_bitmap_isset(allowed, (unsigned)first));
        if (first >= 0 && n < CORES_MAX)
            to[n++] = (unsigned)first;
    }
    return n;
}

static unsigned list_cores(unsigned *to)
{
    hwloc_topology_t t;
    unsigned n = 0;
    if (hwloc_topology_init(&t) == 0) {
        hwloc_bitmap_t allowed = hwloc_bitmap_alloc();
        hwloc_topology_set_flags(t, HWLOC_TOPOLOGY_FLAG_DONT_CHANGE_BINDING); // the caller's
        if (allowed && hwloc_topology_load(t) == 0)
            n = list(t, allowed, to);
        hwloc_bitmap_free(allowed);
        hwloc_topology_destroy(t);
    }
    if (!n)
        to[n++] = 0;
    return n;
}

/* ---- quotas ---- */

/* One line of a small file; false: no such file. */
static bool read_line(const char *path, char *line, int size)
{
    FILE *f = fopen(path, "re");
    if (!f)
        return false;
    bool ok = fgets(line, size, f);
    fclose(f);
    return ok;
}

/* The quota of one group in CPUs; 0: none. v2: "200000 100000" or "max 100000" in cpu.max. */
static double group_quota(const char *group, bool v2)
{
    char path[8192], line[128];
    long quota = 0, period = 0;
    snprintf(path, sizeof(path), "%s/%s", group, v2 ? "cpu.max" : "cpu.cfs_quota_us");
    if (!read_line(path, line, sizeof(line)))
        return 0;
    if (v2) {
        if (sscanf(line, "%ld %ld", &quota, &period) != 2)
            return 0;
    } else {
        quota = strtol(line, NULL, 10);
        snprintf(path, sizeof(path), "%s/cpu.cfs_period_us", group);
        if (read_line(path, line, sizeof(line)))
            period = strtol(line, NULL, 10);
    }
    return quota > 0 && period > 0 ? (double)quota / (double)period : 0;
}

/* Least quota of a group and those above it; in a container the path may not exist below the mount.
 */
static double path_quota(const char *mount, char *group, bool v2)
{
    double least = 0;
    for (;;) {
        char path[8000];
        snprintf(path, sizeof(path), "%s%s", mount, group);
        double q = group_quota(path, v2);
        if (q > 0 && (least == 0 || q < least))
            least = q;
        char *slash = strrchr(group, '/');
        if (!slash)
            return least;
        *slash = 0;
    }
}

/* Lines of /proc/self/cgroup: "0::/path" (v2), "4:cpu,cpuacct:/path" (v1). 0: no quota. */
static double quota_cpus(const char *root)
{
    char path[4096], line[4096];
    snprintf(path, sizeof(path), "%s/proc/self/cgroup", root);
    FILE *f = fopen(path, "re");
    double least = 0;
    while (f && fgets(line, sizeof(line), f)) {
        line[strcspn(line, "\n")] = 0;
        char *names = strchr(line, ':'), *group = names ? strchr(names + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = 0;
        bool v2 = !names[1], v1 = false;
        for (char *save, *t = strtok_r(names + 1, ",", &save); t; t = strtok_r(NULL, ",", &save))
            v1 |= !strcmp(t, "cpu");
        if (!v1 && !v2)
            continue;
        snprintf(path, sizeof(path), "%s/sys/fs/cgroup%s", root, v2 ? "" : "/cpu");
        double q = path_quota(path, group, v2);
        if (q > 0 && (least == 0 || q < least))
            least = q;
    }
    if (f)
        fclose(f);
    return least;
}

void cores_find(const char *root, struct cores *ret)
{
    ret->n = ret->usable = list_cores(ret->cpu);
    double quota = quota_cpus(root);
    if (quota > 0 && quota < ret->n)
        ret->usable = (unsigned)ceil(quota);
}
