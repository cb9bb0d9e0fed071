/* mem_limit.c - available memory from /proc/meminfo, control groups (v2 and v1) and limits, less
 * the memory that other services have reserved or mapped. */
#include <ctype.h>
#include <dirent.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include "base/cgroup.h"
#include "model/mem_limit.h"

#define STACK_BYTES (2u << 20) // of a thread without RLIMIT_STACK: glibc's default

/* The number after `key` in a file of lines "key 123 kB"; key "" for a file of one number. */
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

/* What a control group can still allocate: its limit less its usage without file pages. */
static size_t group_available(const char *folder, bool v2)
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

struct mem_limit {
    size_t least;
    size_t promised; // in the groups of this process
};

static void apply_group(void *arg, const char *folder, bool v2)
{
    struct mem_limit *r = arg;
    size_t available = group_available(folder, v2);
    if (available == SIZE_MAX)
        return;
    available -= r->promised < available ? r->promised : available;
    r->least = available < r->least ? available : r->least;
}

/* The address space that RLIMIT_AS leaves. */
static size_t rlimit_available(const char *root)
{
    struct rlimit limit;
    char path[256];
    if (getrlimit(RLIMIT_AS, &limit) < 0 || limit.rlim_cur == RLIM_INFINITY)
        return SIZE_MAX;
    snprintf(path, sizeof(path), "%s/proc/self/statm", root);
    size_t used = number_in(path, "", (size_t)sysconf(_SC_PAGESIZE), 0);
    return used < limit.rlim_cur ? limit.rlim_cur - used : 0;
}

/* ---- other services ---- */

/* Reads a file of /proc/PID, cut to the size of text; "" without one. */
static void read_text(const char *root, const char *pid, const char *name, char text[512])
{
    char path[512];
    snprintf(path, sizeof(path), "%s/proc/%s/%s", root, pid, name);
    FILE *f = fopen(path, "re");
    text[f ? fread(text, 1, 511, f) : 0] = 0;
    if (f)
        fclose(f);
}

/* Memory that a process has reserved but not touched, without its threads' stacks. A process that
 * has reserved more than the machine has, as sanitizers do, will not use it: 0. */
static size_t untouched_bytes(const char *root, const char *pid)
{
    char path[512];
    struct rlimit stack = {RLIM_INFINITY, RLIM_INFINITY};
    getrlimit(RLIMIT_STACK, &stack);
    snprintf(path, sizeof(path), "%s/proc/meminfo", root);
    size_t total = number_in(path, "MemTotal:", 1024, 0);
    snprintf(path, sizeof(path), "%s/proc/%s/status", root, pid);
    size_t reserved = number_in(path, "VmData:", 1024, 0);
    size_t stacks = (number_in(path, "Threads:", 1, 1) - 1) *
                    (stack.rlim_cur == RLIM_INFINITY ? STACK_BYTES : stack.rlim_cur);
    size_t taken = number_in(path, "RssAnon:", 1024, 0) + stacks;
    return reserved > total || taken > reserved ? 0 : reserved - taken;
}

/* Packed weights that a process has mapped from a file (weights_file.h): its share, if several
 * processes map them. Linux counts them as available, but each pass reads them. */
static size_t mapped_bytes(const char *root, const char *pid)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/proc/%s/smaps_rollup", root, pid);
    return number_in(path, "Pss_File:", 1024, 0);
}

static bool is_other_service(const char *root, const char *pid)
{
    char name[512];
    if (!isdigit((unsigned char)*pid) || strtol(pid, NULL, 10) == getpid())
        return false;
    read_text(root, pid, "comm", name);
    return strcmp(name, "verifier-svc\n") == 0 || strcmp(name, "proposer-svc\n") == 0;
}

/* Calls each() for every other service of this machine. */
static void each_service(const char *root,
                         void (*each)(void *arg, const char *root, const char *pid), void *arg)
{
    char path[256];
    snprintf(path, sizeof(path), "%s/proc", root);
    DIR *proc = opendir(path);
    for (struct dirent *e; proc && (e = readdir(proc));)
        if (is_other_service(root, e->d_name))
            each(arg, root, e->d_name);
    if (proc)
        closedir(proc);
}

struct reserved {
    char groups[512]; // of this process
    size_t all, here; // here: in these groups
};

static void add_reserved(void *arg, const char *root, const char *pid)
{
    struct reserved *r = arg;
    char theirs[512];
    size_t bytes = untouched_bytes(root, pid) + mapped_bytes(root, pid);
    read_text(root, pid, "cgroup", theirs);
    r->all += bytes;
    r->here += strcmp(theirs, r->groups) == 0 ? bytes : 0;
}

static void add_mapped(void *arg, const char *root, const char *pid)
{
    *(size_t *)arg += mapped_bytes(root, pid);
}

size_t mem_limit_mapped(const char *root)
{
    size_t bytes = 0;
    each_service(root, add_mapped, &bytes);
    return bytes;
}

/* Bytes that other services have reserved. ret_here: those in the control groups of this
 * process. */
static size_t reserved_by_others(const char *root, size_t *ret_here)
{
    struct reserved r = {0};
    read_text(root, "self", "cgroup", r.groups);
    each_service(root, add_reserved, &r);
    *ret_here = r.here;
    return r.all;
}

size_t mem_limit_available(const char *root, size_t *ret_promised)
{
    char path[256];
    struct mem_limit r = {SIZE_MAX, 0};
    *ret_promised = reserved_by_others(root, &r.promised);
    snprintf(path, sizeof(path), "%s/proc/meminfo", root);
    size_t free_bytes = number_in(path, "MemAvailable:", 1024, SIZE_MAX),
           limit = rlimit_available(root);
    if (free_bytes != SIZE_MAX)
        r.least = free_bytes - (*ret_promised < free_bytes ? *ret_promised : free_bytes);
    cgroup_each(root, "memory", apply_group, &r);
    return limit < r.least ? limit : r.least;
}
