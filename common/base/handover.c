/* handover.c - replaces the running process by a new one of the same program, without a gap.
 *
 * Both processes hold an end of a socket pair. The successor writes its pid to it when it is ready.
 * Afterwards neither writes: the end of the stream shows that the other process has ended. */
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

#define FIRST_FD 3 // SD_LISTEN_FDS_START
/* Environment variable =N: N listening sockets from FIRST_FD on, then the end of the socket
 * pair. */
#define HANDED_OVER "TANDEM_HANDED_OVER"
#define START_US 60000000 // limit for the start of a successor

static struct {
    enum handover_state state;
    pid_t group; // its process group: the pid of the spawned process, which has exited
    int fd;      // our end of the socket pair; stays open while this process runs
    pid_t pid;
    bool start_another; // settings have changed since it was started
    int64_t until_us;   // time at which it must be ready
} successor;

static int predecessor_fd = -1; // in a successor: its end of the socket pair
static bool is_successor;

/* ---- in the predecessor ---- */

/* False for variables that describe this process only; the successor must not see them. */
static bool is_inherited(const char *variable)
{
    static const char *const private[] = {"LISTEN_", "WATCHDOG_PID=", HANDED_OVER "="};
    for (size_t i = 0; i < ARRAY_LEN(private); i++)
        if (strncmp(variable, private[i], strlen(private[i])) == 0)
            return false;
    return true;
}

/* The inherited variables and `added`; the caller frees the list. */
static char **make_environment(char *added)
{
    size_t n = 0, k = 0;
    while (environ[n])
        n++;
    char **list = calloc(n + 2, sizeof(char *));
    for (size_t i = 0; list && i < n; i++)
        if (is_inherited(environ[i]))
            list[k++] = environ[i];
    if (list)
        list[k] = added;
    return list;
}

/* Starts a process in which fds[i] is descriptor FIRST_FD + i and all later ones are closed. It
 * leads a new process group. */
static int spawn_successor(char *const *argv, const int *fds, int n, char **environment, pid_t *ret)
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

/* There is a successor, but it may have read its settings before they changed. */
static int request_another(void)
{
    char byte;
    successor.start_another = successor.state == HANDOVER_STARTING;
    bool runs = successor.state == HANDOVER_READY &&
                recv(successor.fd, &byte, 1, MSG_DONTWAIT) < 0; // 0: end of the stream
    if (runs)
        kill(successor.pid, SIGHUP);
    return 0;
}

int handover_start(char *const *argv, const int *fds, int n)
{
    int pair[2], all[SVC_MAX_FDS + 1];
    char variable[40];
    if (successor.state != HANDOVER_NONE)
        return request_another();
    snprintf(variable, sizeof(variable), HANDED_OVER "=%d", n);
    AUTO(mem_free) char **environment = make_environment(variable);
    if (!environment || n > SVC_MAX_FDS ||
        socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) < 0)
        return fail(-ENOMEM, "no memory or no descriptor for a new process");
    memcpy(all, fds, (size_t)n * sizeof(int));
    all[n] = pair[1];
    int rc = spawn_successor(argv, all, n + 1, environment, &successor.group);
    close(pair[1]);
    if (rc < 0) {
        close(pair[0]);
        return fail(rc, "cannot start %s: %s", argv[0], strerror(-rc));
    }
    successor.fd = pair[0];
    successor.state = HANDOVER_STARTING;
    successor.start_another = false;
    successor.until_us = clock_us() + START_US;
    return 0;
}

/* Reaps the spawned process. Must not be called earlier: until then the zombie reserves the number
 * of the process group, so kill() cannot reach another group. */
static void reap_spawned(void)
{
    waitpid(successor.group, NULL, 0);
}

static void kill_successor(const char *why)
{
    kill(-successor.group, SIGKILL); // the group may have ended already
    reap_spawned();
    log_error("the new process %s", why);
    successor.state = HANDOVER_NONE;
    close(successor.fd);
}

enum handover_state handover_state(void)
{
    if (successor.state != HANDOVER_STARTING)
        return successor.state;
    ssize_t n = read(successor.fd, &successor.pid, sizeof(successor.pid));
    if (n < 0 && errno == EAGAIN && clock_us() < successor.until_us)
        return HANDOVER_STARTING;
    if (n == sizeof(successor.pid)) {
        reap_spawned();
        successor.state = HANDOVER_READY;
    } else {
        kill_successor(n == 0 ? "ended before it was ready (its last log line says why)"
                              : "was not ready in time");
    }
    if (successor.start_another)
        kill(successor.state == HANDOVER_READY ? successor.pid : getpid(), SIGHUP);
    return successor.state;
}

void handover_cancel(void)
{
    if (handover_state() == HANDOVER_STARTING)
        kill_successor("was killed: this process is stopping");
}

/* ---- in the successor ---- */

/* A service manager signals only its own children and is notified only when one of them ends. */
void handover_detach(void)
{
    if (!getenv(HANDED_OVER))
        return;
    int parent = pidfd_open(getpid(), 0);
    pid_t child = parent < 0 ? -1 : fork();
    if (child < 0)
        log_error("the new process cannot detach from the old one: %s", strerror(errno));
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
    predecessor_fd = FIRST_FD + n;
    is_successor = true;
    return n;
}

bool handover_is_successor(void)
{
    return is_successor;
}

void handover_report_ready(void)
{
    pid_t pid = getpid();
    if (predecessor_fd >= 0 && write(predecessor_fd, &pid, sizeof(pid)) != sizeof(pid))
        log_warn("the old process ended before this one was ready");
}

bool handover_has_old(void)
{
    char byte;
    if (predecessor_fd >= 0 && recv(predecessor_fd, &byte, 1, MSG_DONTWAIT) >= 0) { // it has ended
        close(predecessor_fd);
        predecessor_fd = -1;
    }
    return predecessor_fd >= 0;
}

void handover_signal_old(int sig)
{
    struct ucred old;
    socklen_t len = sizeof(old);
    if (handover_has_old() && getsockopt(predecessor_fd, SOL_SOCKET, SO_PEERCRED, &old, &len) == 0)
        kill(old.pid, sig);
}
