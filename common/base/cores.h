/* cores.h - the CPU cores that this process may use.
 *
 * Threads: any. */
#pragma once
#include <stdint.h>

#define CORES_MAX 256

struct cores {
    unsigned n;              // cores in the affinity of the calling thread; at least 1
    unsigned usable;         // n, limited to the CPU quota of its cgroups (v1 or v2, with parents)
    unsigned cpu[CORES_MAX]; // first allowed hyper-thread of each core; sorted by NUMA node
};

/* root: "", or a folder with a test's proc and sys, from which the quotas are read. */
void cores_find(const char *root, struct cores *ret);

/* Digest of the CPU's model: what /proc/cpuinfo says of the first CPU, but not its clock. root: the
 * same. */
uint64_t cores_model_digest(const char *root);
