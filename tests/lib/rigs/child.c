/* child.c - a program of this project as a child process. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/mem.h"
#include "lib/lib.h"
#include "lib/rigs/child.h"

static pid_t living[64]; // registered processes, killed at the end of the test program

static void kill_living(void)
{
    for (size_t i = 0; i < ARRAY_LEN(living); i++)
        if (living[i])
            kill(living[i], SIGKILL);
}

void child_register(pid_t old, pid_t now)
{
    static bool registered;
    if (!registered)
        registered = atexit(kill_living) == 0;
    for (size_t i = 0; i < ARRAY_LEN(living); i++) {
        if (living[i] == old) {
            living[i] = now;
            return;
        }
    }
}

struct child child_start(const char *program, const char *const *args)
{
    struct child s = {0};
    char path[] = "/tmp/tandem-test-log-XXXXXX";
    const char *argv[CHILD_MAX_ARGS + 2] = {program};
    for (unsigned i = 0; args[i]; i++) {
        assert_true(i < CHILD_MAX_ARGS);
        argv[i + 1] = args[i];
    }
    int fd = mkostemp(path, O_CLOEXEC | O_APPEND);
    assert_true(fd >= 0);
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attr;
    sigset_t none;
    sigemptyset(&none);
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_adddup2(&files, fd, 1);
    posix_spawn_file_actions_adddup2(&files, fd, 2);
    posix_spawnattr_init(&attr);
    posix_spawnattr_setsigmask(&attr, &none);
    posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK);
    int e = posix_spawn(&s.pid, program, &files, &attr, (char **)(uintptr_t)argv, environ);
    if (e)
        fail_msg("cannot start %s: %s", program, strerror(e));
    posix_spawnattr_destroy(&attr);
    posix_spawn_file_actions_destroy(&files);
    close(fd);
    s.log = strdup(path);
    child_register(0, s.pid);
    return s;
}

static void show_log(const struct child *s)
{
    size_t len;
    char *text = lib_read(s->log, &len);
    fprintf(stderr, "%s\n", text); // print_error() would cut it
    free(text);
}

char *child_wait_log(const struct child *s, const char *mark)
{
    int64_t until_us = clock_us() + 20000000;
    while (clock_us() < until_us) {
        size_t len;
        char *text = lib_read(s->log, &len), *at = strstr(text, mark);
        if (at && strchr(at, '\n')) {
            char *rest = strndup(at + strlen(mark), strcspn(at + strlen(mark), "\n"));
            free(text);
            return rest;
        }
        free(text);
        if (waitpid(s->pid, NULL, WNOHANG) == s->pid)
            break;
        poll(NULL, 0, 5);
    }
    show_log(s);
    fail_msg("the log does not contain '%s'", mark);
    return NULL;
}

void child_signal(const struct child *s, int sig)
{
    assert_true(s->pid > 0); // 0 means the whole process group, ctest included
    assert_int_equal(kill(s->pid, sig), 0);
}

int child_wait(struct child *s)
{
    struct pollfd p = {(int)syscall(SYS_pidfd_open, s->pid, 0), POLLIN, 0};
    if (poll(&p, 1, 60000) != 1) {
        show_log(s);
        kill(s->pid, SIGKILL);
        waitpid(s->pid, NULL, 0);
        fail_msg("the process does not end");
    }
    close(p.fd);
    int status = 0;
    waitpid(s->pid, &status, 0);
    int rc = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    if (rc != 0 && rc != -SIGKILL)
        show_log(s);
    unlink(s->log);
    free(s->log);
    s->log = NULL;
    child_register(s->pid, 0);
    s->pid = 0;
    return rc;
}

void child_stop(struct child *s)
{
    child_signal(s, SIGTERM);
    assert_int_equal(child_wait(s), 0);
}
