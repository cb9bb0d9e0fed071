/* cgroup.c - reads /proc/self/cgroup, whose format is in cgroups(7), and visits the folders that it
 * names. */
#include <stdio.h>
#include <string.h>
#include "base/cgroup.h"

/* Whether the controller is one of names, for example "cpu,cpuacct". Cuts names into pieces. */
static bool is_among(const char *controller, char *names)
{
    for (char *save, *t = strtok_r(names, ",", &save); t; t = strtok_r(NULL, ",", &save))
        if (!strcmp(t, controller))
            return true;
    return false;
}

void cgroup_each(const char *root, const char *controller,
                 void (*visit)(void *arg, const char *folder, bool v2), void *arg)
{
    char path[4096], line[4096], folder[8300];
    snprintf(path, sizeof(path), "%s/proc/self/cgroup", root);
    FILE *f = fopen(path, "re");
    while (f && fgets(line, sizeof(line), f)) { // "0::/path" (v2), "4:cpu,cpuacct:/path" (v1)
        line[strcspn(line, "\n")] = 0;
        char *names = strchr(line, ':'), *group = names ? strchr(names + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = 0;
        bool v2 = !names[1];
        if (!v2 && !is_among(controller, names + 1))
            continue;
        for (char *slash = group; slash;) { // the group, then its parents
            snprintf(folder, sizeof(folder), "%s/sys/fs/cgroup%s%s%s", root, v2 ? "" : "/",
                     v2 ? "" : controller, group);
            visit(arg, folder, v2);
            slash = strrchr(group, '/');
            if (slash)
                *slash = 0;
        }
    }
    if (f)
        fclose(f);
}
