/* svc.c - the service's side of a service manager, with libsystemd. */
#include <errno.h>
#include <malloc.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <systemd/sd-daemon.h>
#include <time.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/err.h"
#include "base/handover.h"
#include "base/log.h"
#include "base/svc.h"

#define TRIM_KEEP_BYTES (4 << 20) // at the top of the heap, for the next messages

static struct {
    sigset_t signals;
    void (*reload)(void *user); // NULL: none
    void *reload_user;
    int64_t watchdog_us; // the limit; 0: none
    _Atomic int64_t fed_us;
    _Atomic int64_t awake_us[SVC_MAX_AWAKE]; // time of a thread's last svc_awake(); 0: unused
} svc;

static char fd_names[SVC_MAX_FDS][32]; // longer names are cut
static atomic_bool retired;
static _Thread_local _Atomic int64_t *own_awake_us; // this thread's; NULL: it is asleep

/* By default glibc returns freed memory at the top of the heap to the kernel, and the next big
 * message faults it in again. These limits halve the cost of 1 MiB messages (521 to 261 us, gcc 12,
 * glibc 2.36). */
static void tune_malloc(void)
{
    mallopt(M_MMAP_THRESHOLD, 32 << 20);
    mallopt(M_TRIM_THRESHOLD, 512 << 20);
}

/* A burst may leave as much as M_TRIM_THRESHOLD free at the top of the heap, and any amount below
 * blocks that are in use. fordblks counts both, also after their return to the kernel. */
void svc_trim(void)
{
    static int64_t looked_us;
    int64_t now = clock_us();
    if (now - looked_us < SVC_TRIM_PACE_US)
        return;
    looked_us = now;
    if (mallinfo2().fordblks > SVC_TRIM_BYTES)
        malloc_trim(TRIM_KEEP_BYTES);
}

static void raise_nofile(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

void svc_init(void)
{
    tune_malloc();
    raise_nofile();
    signal(SIGPIPE, SIG_IGN);
    sigemptyset(&svc.signals);
    sigaddset(&svc.signals, SIGTERM);
    sigaddset(&svc.signals, SIGINT);
    sigaddset(&svc.signals, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &svc.signals, NULL);
    handover_detach();
    uint64_t limit_us = 0;
    svc.watchdog_us = sd_watchdog_enabled(0, &limit_us) > 0 ? (int64_t)limit_us : 0;
}

void svc_on_reload(void (*reload)(void *user), void *user)
{
    svc.reload = reload;
    svc.reload_user = user;
}

int svc_wait_signal(int64_t timeout_us)
{
    int64_t until = clock_us() + timeout_us;
    for (;;) {
        int64_t left = timeout_us < 0 ? 1000000 : until - clock_us();
        if (left < 0)
            left = 0;
        struct timespec t = {.tv_sec = left / 1000000, .tv_nsec = left % 1000000 * 1000};
        int sig = sigtimedwait(&svc.signals, NULL, &t);
        if (sig == SIGHUP && svc.reload)
            svc.reload(svc.reload_user);
        else if (sig == SIGHUP)
            log_info("SIGHUP ignored: this service reads its settings only at start");
        else if (sig > 0)
            return sig;
        else if (timeout_us >= 0 && errno == EAGAIN)
            return 0;
    }
}

/* sd_listen_fds() with the names of the sockets. */
static int passed_by_manager(void)
{
    char **names = NULL;
    int n = sd_listen_fds_with_names(1, &names);
    for (int i = 0; names && names[i]; i++) {
        if (i < SVC_MAX_FDS)
            snprintf(fd_names[i], sizeof(fd_names[i]), "%s", names[i]);
        free(names[i]);
    }
    free(names);
    return n;
}

const char *svc_fd_name(int i)
{
    return fd_names[i];
}

int svc_listen_fds(int fds[SVC_MAX_FDS])
{
    int n = handover_inherit();
    n = n ? n : passed_by_manager();
    if (n < 0)
        return fail(n, "cannot parse LISTEN_FDS or LISTEN_PID");
    if (n > SVC_MAX_FDS)
        return fail(-EINVAL, "%d sockets were passed; the maximum is %d", n, SVC_MAX_FDS);
    for (int i = 0; i < n; i++) {
        fds[i] = SD_LISTEN_FDS_START + i;
        if (sd_is_socket(fds[i], AF_UNSPEC, SOCK_STREAM, 1) <= 0)
            return fail(-EINVAL, "passed descriptor %d is not a listening stream socket", fds[i]);
    }
    return n;
}

bool svc_is_managed(void)
{
    return getenv("NOTIFY_SOCKET") != NULL;
}

__attribute__((format(printf, 1, 2))) static void notify(const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    if (!atomic_load(&retired))
        sd_notify(0, text);
}

void svc_ready(const char *status)
{
    if (handover_is_successor())
        notify("MAINPID=%d\nREADY=1\nSTATUS=%s", (int)getpid(), status ? status : "ready");
    else
        notify("READY=1\nSTATUS=%s", status ? status : "ready");
    handover_report_ready();
}

void svc_status(const char *format, ...)
{
    char line[256];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    notify("STATUS=%s", line);
}

void svc_stopping(int64_t may_take_us)
{
    notify("STOPPING=1\nEXTEND_TIMEOUT_USEC=%lld", (long long)may_take_us);
}

void svc_retire(void)
{
    atomic_store(&retired, true);
}

void svc_extend(int64_t us)
{
    notify("EXTEND_TIMEOUT_USEC=%lld", (long long)us);
}

void svc_awake(void)
{
    if (!svc.watchdog_us)
        return;
    int64_t now = clock_us();
    for (int i = 0; !own_awake_us && i < SVC_MAX_AWAKE; i++) {
        int64_t unused = 0;
        if (atomic_compare_exchange_strong(&svc.awake_us[i], &unused, now))
            own_awake_us = &svc.awake_us[i];
    }
    if (own_awake_us)
        atomic_store_explicit(own_awake_us, now, memory_order_relaxed);
}

void svc_asleep(void)
{
    if (own_awake_us)
        atomic_store_explicit(own_awake_us, 0, memory_order_relaxed);
    own_awake_us = NULL;
}

static bool all_are_alive(int64_t now_us)
{
    for (int i = 0; i < SVC_MAX_AWAKE; i++) {
        int64_t at_us = atomic_load_explicit(&svc.awake_us[i], memory_order_relaxed);
        if (at_us && now_us - at_us > svc.watchdog_us)
            return false;
    }
    return true;
}

void svc_watchdog(void)
{
    if (!svc.watchdog_us)
        return;
    int64_t now = clock_us(), fed = atomic_load_explicit(&svc.fed_us, memory_order_relaxed);
    if ((fed && now - fed < svc.watchdog_us / 8) || !all_are_alive(now))
        return;
    atomic_store_explicit(&svc.fed_us, now, memory_order_relaxed);
    notify("WATCHDOG=1");
}

int64_t svc_watchdog_interval_us(void)
{
    return svc.watchdog_us / 2;
}
