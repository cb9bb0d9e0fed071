/* handover.h - a new process of the same program takes over without a gap.
 *
 *     old                                   new
 *     handover_start(argv, sockets) ---------->  svc_listen_fds() finds the sockets
 *     serves, looks at handover_state()          reads settings, starts, serves
 *     HANDOVER_READY: stops accepting     <----  svc_ready()
 *     finishes what it has, exits
 *
 * The new one is nobody's child but the service manager's: what handover_start() spawns forks and ends.
 * A new one that ends before it is ready leaves everything as it was.
 *
 * Threads: main. */
#pragma once
#include <stdbool.h>

enum handover_state { HANDOVER_NONE, HANDOVER_STARTING, HANDOVER_READY };

/* argv: main's. While one is starting: another one follows, started by that one when it is ready,
 * or by this process when it has failed (by SIGHUP). Where one is ready, that one is told to start
 * it. -errno: it cannot be started. */
int handover_start(char *const *argv, const int *fds, int n);
/* What has become of it. One that has failed is logged, once, and is none again. */
enum handover_state handover_state(void);
/* Ends one that is starting: this process stops, and nobody is to follow. */
void handover_cancel(void);

/* ---- in the new process, for svc.c ---- */

/* Before any thread: goes on in a child that the service manager, or pid 1, has adopted. */
void handover_detach(void);
/* The sockets' number, which are descriptors 3, 4 ...; 0: nothing was handed over, or not again. */
int handover_inherit(void);
bool handover_is_heir(void);
/* The old one may leave. */
void handover_report_ready(void);

/* ---- in the new process, when it is stopped ---- */

/* Whether the old one is still there: a service manager kills it when its main process ends. */
bool handover_has_old(void);
void handover_signal_old(int sig);
