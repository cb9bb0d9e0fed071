/* child.h - a program of ours as a child process, for tests. Ends the test on errors. */
#pragma once
#include <sys/types.h>

#define CHILD_MAX_ARGS 32

struct child {
    pid_t pid;
    char *log; // path of what it wrote to standard error; printed when the test goes wrong
};

/* args: NULL-terminated, without the program itself. */
struct child child_start(const char *program, const char *const *args);
/* The rest of the first log line that holds `mark`, waited for at most 20 s. Free it. */
char *child_wait_log(const struct child *s, const char *mark);
void child_signal(const struct child *s, int signal);
/* Waits for its end (60 s) and gives its exit status, or -signal. */
int child_wait(struct child *s);
/* SIGTERM, and it must leave with status 0. */
void child_stop(struct child *s);

/* Remembers `now` in place of `old` (0: none) as a child to be killed when the test program ends,
 * by itself or by a failure. */
void child_note(pid_t old, pid_t now);
