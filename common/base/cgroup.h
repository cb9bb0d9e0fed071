/* cgroup.h - the control groups that this process belongs to. */
#pragma once
#include <stdbool.h>

/* Visits the folder of each group that has the controller ("cpu", "memory"), in cgroup v2 and v1,
 * then the folders of its parents. In a container some of these folders may not exist.
 * root: "", or the folder in which a test keeps its /proc and /sys. Any thread. */
void cgroup_each(const char *root, const char *controller,
                 void (*visit)(void *arg, const char *folder, bool v2), void *arg);
