/* services.h - real services as child processes, on unix sockets in a private folder of this test.
 *
 * Threads: the test's own. */
#pragma once
#include <stdbool.h>
#include <sys/types.h>

struct service {
    pid_t pid;
    const char *name; // "tandem.v1.Verifier", as its health is asked for
    char target[160]; // "unix:/tmp/.../verifier-svc-1.sock"
    char log[280];    // file with what it said
};

/* The folder of this test's sockets and logs; made on first use, removed when the test ends. */
const char *service_dir(void);
/* Starts the program of the build ("verifier-svc", "proposer-svc") with --listen TARGET and these
 * arguments (NULL behind the last; NULL for none) and returns at once. s->target empty: a fresh
 * one; else this one, as "127.0.0.1:PORT". */
void service_spawn(struct service *s, const char *program, const char *const *args);
/* Waits until the health of its service is SERVING (that of the process is while a model is being
 * loaded); ends the test with its log if it dies or 60 s pass. */
void service_wait_healthy(const struct service *s);
/* Both. */
void service_start(struct service *s, const char *program, const char *const *args);
/* SIGTERM and wait; the exit status must be 0. Does nothing when it is not running. */
void service_stop(struct service *s);
/* SIGKILL and wait. */
void service_kill(struct service *s);
void service_signal(const struct service *s, int signal);
/* Whether the service's log has this text by now. */
bool service_said(const struct service *s, const char *text);
