/* cgroup.h - the control groups that this process is in. */
#pragma once
#include <stdbool.h>

/* Visits the folder of each group that has the controller ("cpu", "memory"), v2 and v1, and those
 * of its parents; in a container some may not exist. root: "" or where a test keeps /proc and /sys.
 * Any thread. */
void cgroup_each(const char *root, const char *controller,
                 void (*visit)(void *arg, const char *folder, bool v2), void *arg);
