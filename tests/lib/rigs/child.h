/* child.h - a program of this project as a child process. Ends the test on errors. */
#pragma once
#include <sys/types.h>

#define CHILD_MAX_ARGS 32

struct child {
    pid_t pid;
    char *log; // path of the file with its standard output and error; printed if the test fails
};

/* args: NULL-terminated, without the program itself. */
struct child child_start(const char *program, const char *const *args);
/* Waits at most 20 s for a log line that contains `mark`; returns the text after it. Free it. */
char *child_wait_log(const struct child *s, const char *mark);
void child_signal(const struct child *s, int signal);
/* Waits at most 60 s for its end; returns its exit status, or -signal. */
int child_wait(struct child *s);
/* Sends SIGTERM; the process must exit with status 0. */
void child_stop(struct child *s);

/* Registers process `now` in place of `old` (0: none): it is killed when the test program ends or
 * fails. */
void child_register(pid_t old, pid_t now);
