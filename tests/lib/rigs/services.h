/* services.h - real services as child processes, on unix sockets in a private folder of this test.
 *
 * Threads: the test's only. */
#pragma once
#include <stdbool.h>
#include <sys/types.h>
#include "rpc/rpc.h"

struct service {
    pid_t pid;
    const char *name; // "tandem.v1.Verifier", for its health
    char target[160]; // "unix:/tmp/.../verifier-svc-1.sock"
    char admin[180];  // its socket for operators: "unix:/tmp/.../verifier-svc-1-admin.sock"
    char log[280];    // path of the file with its output
};

/* The folder of this test's sockets and logs; created on first use, removed when the test ends. */
const char *service_dir(void);
/* Starts a program of the build ("verifier-svc", "proposer-svc") with --listen TARGET,
 * --admin-listen ADMIN and these arguments (terminated by NULL; NULL for none). Does not wait for
 * it. s->target: empty for a new unix socket, or an address like "127.0.0.1:PORT". */
void service_spawn(struct service *s, const char *program, const char *const *args);
/* Waits until the health of the service is SERVING; the health of the process is SERVING even while
 * a model is loaded. If the process dies or 60 s pass, prints its log and ends the test. */
void service_wait_healthy(const struct service *s);
/* Calls service_spawn(), then service_wait_healthy(). */
void service_start(struct service *s, const char *program, const char *const *args);
/* Sends SIGTERM and waits; the exit status must be 0. Does nothing if it does not run. */
void service_stop(struct service *s);
/* Sends SIGKILL and waits. */
void service_kill(struct service *s);
void service_signal(const struct service *s, int signal);
/* A client of a service that was started with --listen 127.0.0.1:0, too. It has the role client. */
void service_client_on_tcp(const struct service *s, struct rpc_client **ret);
/* Whether the service's log contains this text. */
bool service_said(const struct service *s, const char *text);
