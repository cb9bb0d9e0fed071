/* cores.h - the cores that this process may use.
 *
 * Threads: any. */
#pragma once

#define CORES_MAX 256

struct cores {
    unsigned n;              // that the caller's affinity allows; at least 1
    unsigned usable;         // of them, within the CPU quota of its cgroups (v1 or v2, parents too)
    unsigned cpu[CORES_MAX]; // of each its first allowed hyper-thread; those of a node together
};

/* root: "", or a folder with a test's proc and sys, where quotas are looked up. */
void cores_find(const char *root, struct cores *ret);
