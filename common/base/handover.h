/* handover.h - replaces the running process by a new one of the same program, without a gap.
 *
 * The old process is the predecessor, the new one the successor.
 *
 *     predecessor                                successor
 *     handover_start(argv, sockets) ---------->  svc_listen_fds() returns the sockets
 *     serves, polls handover_state()             reads settings, starts, serves
 *     HANDOVER_READY: stops accepting     <----  svc_ready()
 *     finishes its requests, exits
 *
 * The successor must be a child of the service manager, not of the predecessor: the process that
 * handover_start() spawns forks the successor and exits. If the successor ends before it is ready,
 * the predecessor continues to serve as before.
 *
 * Threads: main. */
#pragma once
#include <stdbool.h>

enum handover_state { HANDOVER_NONE, HANDOVER_STARTING, HANDOVER_READY };

/* Starts a successor that inherits the n sockets in fds. argv: that of main().
 *
 * If there is a successor already, another one must follow it, because the settings may have
 * changed:
 *   - A ready successor receives SIGHUP immediately, and starts its own successor.
 *   - A starting successor receives SIGHUP when it is ready.
 *   - If the starting successor fails, this process receives SIGHUP and starts another one.
 * -errno: the process cannot be started. */
int handover_start(char *const *argv, const int *fds, int n);
/* The state of the successor. A failure is logged once; the state is then HANDOVER_NONE again. */
enum handover_state handover_state(void);
/* Kills a successor that is still starting: this process is stopping, and no other must replace
 * it. */
void handover_cancel(void);

/* ---- in the successor, for svc.c ---- */

/* Forks and exits, so that the service manager, or pid 1, adopts the child; returns in the child.
 * Does nothing in a process that is no successor. Call it before any thread exists. */
void handover_detach(void);
/* Takes over the inherited sockets: descriptors 3, 4 ... Returns their number; 0: this process
 * inherited none, or an earlier call has taken them. */
int handover_inherit(void);
/* Whether handover_inherit() has taken over sockets. */
bool handover_is_successor(void);
/* Tells the predecessor that it may stop accepting and exit. */
void handover_report_ready(void);

/* ---- in the successor, when it is stopped ---- */

/* Whether the predecessor still runs. Then the successor must wait for it: a service manager kills
 * all processes of a service when the main process ends. */
bool handover_has_old(void);
void handover_signal_old(int sig);
