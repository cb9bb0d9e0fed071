/* svc.h - the service's side of a service manager: sockets, readiness, watchdog, signals.
 *
 * Only svc.c and journal.c include headers of libsystemd. Without a manager the notifications do
 * nothing.
 *
 * Threads: any, after svc_init(). */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The first call of main(). Blocks SIGTERM, SIGINT and SIGHUP in all later threads, ignores
 * SIGPIPE, raises RLIMIT_NOFILE, tunes malloc for big messages, and detaches a successor
 * (handover.h). */
void svc_init(void);
/* Returns freed memory to the kernel if malloc keeps more than SVC_TRIM_BYTES of it. May be called
 * often: it looks every SVC_TRIM_PACE_US. From one thread. */
#define SVC_TRIM_BYTES (64u << 20)
#define SVC_TRIM_PACE_US 5000000
void svc_trim(void);
/* Waits for SIGTERM or SIGINT; returns its number, or 0 after timeout_us (below 0: no limit).
 * SIGHUP calls the function of svc_on_reload(); without one, SIGHUP is only logged. */
int svc_wait_signal(int64_t timeout_us);
/* Registers the function for SIGHUP. Called by the thread that waits for signals. */
void svc_on_reload(void (*reload)(void *user), void *user);

#define SVC_MAX_FDS 8
/* Takes over the listening sockets passed by the predecessor (handover.h), or else by the manager
 * (LISTEN_FDS), and makes them close-on-exec. Returns their number; a second call returns 0.
 * -EINVAL: more than SVC_MAX_FDS, or one is not a listening stream socket. */
int svc_listen_fds(int fds[SVC_MAX_FDS]);
/* The name of the i-th passed socket (FileDescriptorName= of its unit); "unknown" or "": none.
 * After svc_listen_fds(), from the same thread. */
const char *svc_fd_name(int i);

/* Whether there is a service manager to notify. */
bool svc_is_managed(void);
/* READY=1; a successor (handover.h) also sends MAINPID= and notifies its predecessor.
 * status: one line for `systemctl status`, or NULL. */
void svc_ready(const char *status);
void svc_status(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* STOPPING=1, and the time that the stop may take. */
void svc_stopping(int64_t may_take_us);
/* The manager has a new main process; this one sends no more notifications. */
void svc_retire(void);
/* While loading or draining: moves the manager's time-out to at least `us` from now. */
void svc_extend(int64_t us);

/* Feeds the watchdog, unless a thread has been silent longer than the limit since its last
 * svc_awake(). May be called often: it notifies the manager about 8 times per limit; otherwise it
 * only reads the clock. */
void svc_watchdog(void);
/* Marks the calling thread as alive. Within the limit it must call svc_awake() again, or call
 * svc_asleep() before it waits for other threads or ends. Beyond SVC_MAX_AWAKE threads the others
 * are not watched. */
#define SVC_MAX_AWAKE 256
void svc_awake(void);
void svc_asleep(void);
/* Longest time between two calls of svc_watchdog() (half the limit); 0: no watchdog. */
int64_t svc_watchdog_interval_us(void);
