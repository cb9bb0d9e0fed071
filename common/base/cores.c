/* cores.c - cores from hwloc, quotas from control groups (v2 and v1). */
#include <hwloc.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/cgroup.h"
#include "base/cores.h"
#include "base/rng.h"

/* ---- cores ---- */

/* Writes the first allowed CPU of each core. On a machine that does not describe its cores, every
 * CPU counts as a core. */
static unsigned list_allowed(hwloc_topology_t t, hwloc_bitmap_t allowed, unsigned *to)
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
        hwloc_topology_set_flags(t, HWLOC_TOPOLOGY_FLAG_DONT_CHANGE_BINDING);
        if (allowed && hwloc_topology_load(t) == 0)
            n = list_allowed(t, allowed, to);
        hwloc_bitmap_free(allowed);
        hwloc_topology_destroy(t);
    }
    if (!n)
        to[n++] = 0;
    return n;
}

/* ---- quotas ---- */

/* Reads the first line of a file; false: it cannot be read. */
static bool read_line(const char *path, char *line, int size)
{
    FILE *f = fopen(path, "re");
    if (!f)
        return false;
    bool ok = fgets(line, size, f);
    fclose(f);
    return ok;
}

/* The quota of one group in CPUs; 0: none. In v2, cpu.max holds "200000 100000" or "max 100000". */
static double group_quota(const char *group, bool v2)
{
    char path[8400], line[128];
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

/* For cgroup_each(): arg is the least quota so far, 0 before the first. */
static void lower_to_quota(void *arg, const char *group, bool v2)
{
    double quota = group_quota(group, v2), *least = arg;
    if (quota > 0 && (*least == 0 || quota < *least))
        *least = quota;
}

void cores_find(const char *root, struct cores *ret)
{
    ret->n = ret->usable = list_cores(ret->cpu);
    double quota = 0; // the least of all groups
    cgroup_each(root, "cpu", lower_to_quota, &quota);
    if (quota > 0 && quota < ret->n)
        ret->usable = (unsigned)ceil(quota);
}

/* ---- the model ---- */

uint64_t cores_model_digest(const char *root)
{
    static const char *const named[] = {"vendor_id", "cpu family", "model", "stepping", "microcode",
                                        "cache size", "flags",
                                        /* arm64 */
                                        "CPU implementer", "CPU part", "CPU variant", "Features"};
    char path[256], line[4096];
    uint64_t digest = 0;
    snprintf(path, sizeof(path), "%s/proc/cpuinfo", root);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof(line), f) && *line != '\n')
        for (size_t i = 0; i < sizeof(named) / sizeof(*named); i++)
            if (!strncmp(line, named[i], strlen(named[i])))
                for (const char *c = line; *c; c++)
                    digest = rng_splitmix64(digest ^ (unsigned char)*c);
    if (f)
        fclose(f);
    return digest;
}
