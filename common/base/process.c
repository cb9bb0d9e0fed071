/* process.c - resources that this process uses, from getrusage() and /proc. */
#include "base/process.h"
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static void write_family(struct buf *to, const char *name, const char *help, const char *type,
                         double value)
{
    buf_printf(to, "# HELP %s %s\n# TYPE %s %s\n%s %.15g\n", name, help, name, type, name, value);
}

static double cpu_s(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

/* 0: unknown. */
static double resident_bytes(void)
{
    unsigned long pages = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (f && fscanf(f, "%*u %lu", &pages) != 1)
        pages = 0;
    if (f)
        fclose(f);
    return (double)pages * (double)sysconf(_SC_PAGESIZE);
}

/* 0: unknown. */
static unsigned open_fds(void)
{
    unsigned n = 0;
    DIR *d = opendir("/proc/self/fd");
    while (d && readdir(d))
        n++;
    if (d)
        closedir(d);
    return n > 3 ? n - 3 : 0; // ".", "..", and the folder itself
}

/* Start of this process in seconds since 1970; 0: unknown. */
static double start_unix_s(void)
{
    unsigned long long ticks = 0;
    char line[1024] = "";
    struct timespec now, up;
    FILE *f = fopen("/proc/self/stat", "re");
    const char *rest = f && fgets(line, sizeof(line), f) ? strrchr(line, ')') : NULL;
    if (f)
        fclose(f);
    if (!rest || sscanf(rest,
                        ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %*u %*u %*d %*d %*d "
                        "%*d %*d %*d %llu",
                        &ticks) != 1)
        return 0;
    clock_gettime(CLOCK_REALTIME, &now);
    clock_gettime(CLOCK_BOOTTIME, &up);
    return (double)(now.tv_sec - up.tv_sec) + (double)(now.tv_nsec - up.tv_nsec) / 1e9 +
           (double)ticks / (double)sysconf(_SC_CLK_TCK);
}

void process_render(struct buf *to)
{
    double bytes = resident_bytes(), start_s = start_unix_s();
    unsigned fds = open_fds();
    write_family(to, "process_cpu_seconds_total", "CPU time, of user and system, in seconds.",
                 "counter", cpu_s());
    if (bytes > 0)
        write_family(to, "process_resident_memory_bytes", "Memory in use, in bytes.", "gauge",
                     bytes);
    if (fds)
        write_family(to, "process_open_fds", "Open descriptors.", "gauge", fds);
    if (start_s > 0)
        write_family(to, "process_start_time_seconds", "When it began, in seconds since 1970.",
                     "gauge", start_s);
}
