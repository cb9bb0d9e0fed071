/* room.c - available memory from /proc/meminfo, control groups (v2 and v1) and limits. */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include "base/cgroup.h"
#include "model/room.h"

/* The number behind `key` in a file of lines "key 123 kB"; key "" for a file of one number. */
static size_t number_in(const char *path, const char *key, size_t unit, size_t otherwise)
{
    FILE *f = fopen(path, "re");
    if (!f)
        return otherwise;
    char line[256];
    size_t found = otherwise, n = strlen(key);
    while (fgets(line, sizeof(line), f)) {
        char *end;
        if (strncmp(line, key, n) != 0)
            continue;
        unsigned long long v = strtoull(line + n, &end, 10);
        if (end != line + n) // "max" is no number
            found = v > SIZE_MAX / unit ? SIZE_MAX : (size_t)v * unit;
        break;
    }
    fclose(f);
    return found;
}

/* What one control group leaves: its limit less what it holds; file pages are given back. */
static size_t group_room(const char *folder, bool v2)
{
    char path[8400];
    snprintf(path, sizeof(path), "%s/%s", folder, v2 ? "memory.max" : "memory.limit_in_bytes");
    size_t max = number_in(path, "", 1, SIZE_MAX);
    if (max == SIZE_MAX)
        return SIZE_MAX;
    snprintf(path, sizeof(path), "%s/%s", folder, v2 ? "memory.current" : "memory.usage_in_bytes");
    size_t used = number_in(path, "", 1, 0);
    snprintf(path, sizeof(path), "%s/memory.stat", folder);
    size_t cache = number_in(path, v2 ? "inactive_file " : "total_inactive_file ", 1, 0) +
                   number_in(path, v2 ? "active_file " : "total_active_file ", 1, 0);
    used -= cache < used ? cache : used;
    return used < max ? max - used : 0;
}

static void take_room(void *least, const char *folder, bool v2)
{
    size_t room = group_room(folder, v2), *to = least;
    *to = room < *to ? room : *to;
}

/* What RLIMIT_AS leaves of the address space. */
static size_t limit_room(const char *root)
{
    struct rlimit limit;
    char path[256];
    if (getrlimit(RLIMIT_AS, &limit) < 0 || limit.rlim_cur == RLIM_INFINITY)
        return SIZE_MAX;
    snprintf(path, sizeof(path), "%s/proc/self/statm", root);
    size_t used = number_in(path, "", (size_t)sysconf(_SC_PAGESIZE), 0);
    return used < limit.rlim_cur ? limit.rlim_cur - used : 0;
}

size_t room_available(const char *root)
{
    char path[256];
    snprintf(path, sizeof(path), "%s/proc/meminfo", root);
    size_t least = number_in(path, "MemAvailable:", 1024, SIZE_MAX), limit = limit_room(root);
    cgroup_each(root, "memory", take_room, &least);
    return limit < least ? limit : least;
}
