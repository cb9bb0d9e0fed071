/* room.c - available memory from /proc/meminfo and control groups (v2 and v1). */
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
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

/* What one control group leaves: its limit less what it holds, reclaimable file pages given back.
 */
static size_t group_room(const char *folder, const char *limit, const char *held,
                         const char *stat_key)
{
    char path[600];
    snprintf(path, sizeof(path), "%s/%s", folder, limit);
    size_t max = number_in(path, "", 1, SIZE_MAX);
    if (max == SIZE_MAX)
        return SIZE_MAX;
    snprintf(path, sizeof(path), "%s/%s", folder, held);
    size_t used = number_in(path, "", 1, 0);
    snprintf(path, sizeof(path), "%s/memory.stat", folder);
    size_t cache = number_in(path, stat_key, 1, 0);
    used -= cache < used ? cache : used;
    return used < max ? max - used : 0;
}

/* The least over a group and its parents; `name` is cut shorter on the way up. */
static size_t groups_room(const char *root, char *name, bool v2)
{
    size_t least = SIZE_MAX;
    for (;;) {
        char folder[512];
        snprintf(folder, sizeof(folder), "%s%s", root, name);
        size_t room = v2 ? group_room(folder, "memory.max", "memory.current", "inactive_file ")
                         : group_room(folder, "memory.limit_in_bytes", "memory.usage_in_bytes",
                                      "total_inactive_file ");
        least = room < least ? room : least;
        char *slash = strrchr(name, '/');
        if (!slash)
            return least;
        *slash = 0;
    }
}

size_t room_available(void)
{
    size_t least = number_in("/proc/meminfo", "MemAvailable:", 1024, SIZE_MAX);
    FILE *f = fopen("/proc/self/cgroup", "re");
    char line[400];
    while (f && fgets(line, sizeof(line), f)) { // "0::/path" (v2), "5:memory:/path" (v1)
        line[strcspn(line, "\n")] = 0;
        char *v1 = strstr(line, ":memory:");
        size_t room = SIZE_MAX;
        if (strncmp(line, "0::", 3) == 0)
            room = groups_room("/sys/fs/cgroup", line + 3, true);
        else if (v1)
            room = groups_room("/sys/fs/cgroup/memory", v1 + 8, false);
        least = room < least ? room : least;
    }
    if (f)
        fclose(f);
    return least;
}

int room_check(size_t bytes, const char *what)
{
    size_t room = room_available();
    if (bytes <= room)
        return 0;
    return fail(-ENOMEM, "%s: %.1f MiB needed, %.1f MiB of memory available", what,
                (double)bytes / 0x1p20, (double)room / 0x1p20);
}
