/* handover.c - a new process of the same program takes over without a gap. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/err.h"
#include "base/handover.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/svc.h"

#define FIRST_FD 3                       // SD_LISTEN_FDS_START
#define HANDED_OVER "TANDEM_HANDED_OVER" // =N: sockets from FIRST_FD on, behind them the old one's
#define START_US 60000000

static struct {
    enum handover_state state;
    pid_t group; // its process group, named by what was spawned, which ends at once
    int fd;      // it says its pid when it is ready; open for as long as this process is there
    pid_t pid;
    bool again; // settings have changed since it began
    int64_t until_us;
} heir;

static int old_fd = -1; // of an heir: to the old one
static bool is_heir;

/* ---- the old process ---- */

/* What is said of its own process by others does not hold for the new one. */
static bool is_passed_on(const char *variable)
{
    static const char *const own[] = {"LISTEN_", "WATCHDOG_PID=", HANDED_OVER "="};
    for (size_t i = 0; i < ARRAY_LEN(own); i++)
        if (strncmp(variable, own[i], strlen(own[i])) == 0)
            return false;
    return true;
}

static char **make_environment(char *own)
{
    size_t n = 0, k = 0;
    while (environ[n])
        n++;
    char **list = calloc(n + 2, sizeof(char *));
    for (size_t i = 0; list && i < n; i++)
        if (is_passed_on(environ[i]))
            list[k++] = environ[i];
    if (list)
        list[k] = own;
    return list;
}

/* Each fd becomes FIRST_FD + i; all others are closed. The new process leads a group of its own. */
static int spawn(char *const *argv, const int *fds, int n, char **environment, pid_t *ret)
{
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    int high[SVC_MAX_FDS + 1], err = 0;
    posix_spawn_file_actions_init(&files);
    for (int i = 0; i < n; i++) {
        high[i] = fcntl(fds[i], F_DUPFD_CLOEXEC, FIRST_FD + SVC_MAX_FDS + 1);
        err = high[i] < 0 ? errno : err;
        posix_spawn_file_actions_adddup2(&files, high[i], FIRST_FD + i);
    }
    posix_spawn_file_actions_addclosefrom_np(&files, FIRST_FD + n);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
    err = err ? err : posix_spawnp(ret, argv[0], &files, &attributes, argv, environment);
    for (int i = 0; i < n; i++)
        if (high[i] >= 0)
            close(high[i]);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&files);
    return -err;
}

/* It may have read its settings before they changed. */
static int start_again(void)
{
    char byte;
    heir.again = heir.state == HANDOVER_STARTING;
    if (heir.state == HANDOVER_READY && recv(heir.fd, &byte, 1, MSG_DONTWAIT) < 0) // it is there
        kill(heir.pid, SIGHUP);
    return 0;
}

int handover_start(char *const *argv, const int *fds, int n)
{
    int pair[2], all[SVC_MAX_FDS + 1];
    char own[40];
    if (heir.state != HANDOVER_NONE)
        return start_again();
    snprintf(own, sizeof(own), HANDED_OVER "=%d", n);
    AUTO(mem_free) char **environment = make_environment(own);
    if (!environment || n > SVC_MAX_FDS ||
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0)
        return fail(-ENOMEM, "no memory or no descriptor for a new process");
    memcpy(all, fds, (size_t)n * sizeof(int));
    all[n] = pair[1];
    int rc = spawn(argv, all, n + 1, environment, &heir.group);
    close(pair[1]);
    if (rc < 0) {
        close(pair[0]);
        return fail(rc, "cannot start %s: %s", argv[0], strerror(-rc));
    }
    heir.fd = pair[0];
    heir.state = HANDOVER_STARTING;
    heir.again = false;
    heir.until_us = clock_us() + START_US;
    return 0;
}

/* Until now what was spawned has kept the group's number from being given to others. */
static void forget_group(void)
{
    waitpid(heir.group, NULL, 0);
}

static void give_up(const char *why)
{
    kill(-heir.group, SIGKILL); // it may have ended
    forget_group();
    log_error("the new process %s", why);
    heir.state = HANDOVER_NONE;
    close(heir.fd);
}

enum handover_state handover_state(void)
{
    if (heir.state != HANDOVER_STARTING)
        return heir.state;
    ssize_t n = read(heir.fd, &heir.pid, sizeof(heir.pid));
    if (n < 0 && errno == EAGAIN && clock_us() < heir.until_us)
        return HANDOVER_STARTING;
    if (n == sizeof(heir.pid)) {
        forget_group();
        heir.state = HANDOVER_READY;
    } else {
        give_up(n == 0 ? "ended before it was ready (its own line says why)"
                       : "was not ready in time");
    }
    if (heir.again)
        kill(heir.state == HANDOVER_READY ? heir.pid : getpid(), SIGHUP);
    return heir.state;
}

void handover_cancel(void)
{
    if (handover_state() == HANDOVER_STARTING)
        give_up("is not wanted any more");
}

/* ---- the new process ---- */

/* A service manager has signals for its own children only, and hears only of their ends. */
void handover_detach(void)
{
    if (!getenv(HANDED_OVER))
        return;
    int parent = pidfd_open(getpid(), 0);
    pid_t child = parent < 0 ? -1 : fork();
    if (child < 0)
        log_error("the new process cannot leave the old one: %s", strerror(errno));
    if (child != 0)
        _exit(child < 0);
    struct pollfd end = {parent, POLLIN, 0};
    while (poll(&end, 1, -1) < 0 && errno == EINTR)
        ;
    close(parent);
}

int handover_inherit(void)
{
    const char *text = getenv(HANDED_OVER);
    int n = text ? atoi(text) : 0;
    unsetenv(HANDED_OVER);
    if (n < 1 || n > SVC_MAX_FDS)
        return 0;
    for (int i = 0; i <= n; i++)
        fcntl(FIRST_FD + i, F_SETFD, FD_CLOEXEC);
    old_fd = FIRST_FD + n;
    is_heir = true;
    return n;
}

bool handover_is_heir(void)
{
    return is_heir;
}

void handover_report_ready(void)
{
    pid_t pid = getpid();
    if (old_fd >= 0 && write(old_fd, &pid, sizeof(pid)) != sizeof(pid))
        log_warn("the old process has gone already");
}

bool handover_has_old(void)
{
    char byte;
    if (old_fd >= 0 && recv(old_fd, &byte, 1, MSG_DONTWAIT) >= 0) { // it has nothing to say
        close(old_fd);
        old_fd = -1;
    }
    return old_fd >= 0;
}

void handover_signal_old(int sig)
{
    struct ucred old;
    socklen_t len = sizeof(old);
    if (handover_has_old() && getsockopt(old_fd, SOL_SOCKET, SO_PEERCRED, &old, &len) == 0)
        kill(old.pid, sig);
}
