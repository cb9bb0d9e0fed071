/* svc.h - what a service owes its service manager: sockets, readiness, watchdog, signals.
 *
 * With journal.h the only file that includes libsystemd. Everything works without a manager as
 * well: what has nobody to tell does nothing. Any thread, after svc_init(). */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* First of all in main: blocks SIGTERM, SIGINT, SIGHUP for every thread to come, ignores SIGPIPE,
 * raises RLIMIT_NOFILE, tunes malloc for big messages. An heir (heir.h) leaves its parent. */
void svc_init(void);
/* Waits for SIGTERM or SIGINT: its number, or 0 after timeout_us (below 0: for ever). SIGHUP calls
 * what svc_on_reload() was told; without, it is logged: there is nothing to reload. */
int svc_wait_signal(int64_t timeout_us);
/* By the thread that waits for signals. */
void svc_on_reload(void (*reload)(void *user), void *user);

#define SVC_MAX_FDS 8
/* Listening stream sockets passed by the manager (LISTEN_FDS), or by an older process of ours
 * (heir.h), close-on-exec from now on; their number, or -EINVAL with a sentence when one is no
 * listening stream socket or there are too many. The second call finds none. */
int svc_listen_fds(int fds[SVC_MAX_FDS]);

/* Whether there is a manager to be told. */
bool svc_is_managed(void);
/* READY=1, of an heir (heir.h) with MAINPID=. status: one line for `systemctl status`, or NULL. */
void svc_ready(const char *status);
void svc_status(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* STOPPING=1 and how long it may take. */
void svc_stopping(int64_t may_take_us);
/* The manager has a new main process and hears nothing more of this one. */
void svc_retire(void);
/* Loading and draining: moves the manager's time-out to at least `us` from now. */
void svc_extend(int64_t us);

/* Feeds the watchdog, unless a thread that said svc_awake() has been silent for the limit; called
 * as often as one likes: it tells the manager a few times per limit, otherwise it costs one look at
 * the clock. */
void svc_watchdog(void);
/* The calling thread serves, and says so again within the limit or says svc_asleep() before it
 * waits for others, or ends. Of more than SVC_MAX_AWAKE at once the rest is not watched. */
#define SVC_MAX_AWAKE 256
void svc_awake(void);
void svc_asleep(void);
/* How often svc_watchdog() must be called at least (half the limit); 0: no watchdog. */
int64_t svc_watchdog_interval_us(void);
