/* relay.h - a wire of a set length to a service on another "host". Ends the test on errors.
 *
 * The other host is a network namespace: nothing but the relay reaches what listens there. The
 * relay takes TCP connections here, opens one there for each, and holds every chunk of bytes for a
 * set time in each direction. (The kernel's own delays, netem, are not everywhere.)
 *
 * Threads: any; the relay has one of its own. */
#pragma once
#include <stdbool.h>
#include "base/mem.h"

#define RELAY_TARGET_MAX 32
#define HOST_NONE (-1) // of our own namespace

/* A fresh network namespace with its loopback up, as an open file; HOST_NONE after saying why if
 * they are not permitted here. First of all in main(), before there is a second thread. */
int host_new(void);
/* The calling thread's. */
int host_ours(void);
void host_drop(int host);
/* The calling thread, and what it starts, is on that host from now on. */
void host_enter(int host);
/* "127.0.0.1:PORT" that is free on that host. */
void host_address(int host, char ret[RELAY_TARGET_MAX]);

struct relay;

/* Listens on a port of the caller's namespace; address: of what listens on that host. */
struct relay *relay_start(int host, const char *address);
void relay_stop(struct relay *r);
DEFINE_AUTO(struct relay, relay_stop)
const char *relay_target(const struct relay *r); // "127.0.0.1:PORT"

/* Chunks that come from now on are held so long in each direction. */
void relay_delay(struct relay *r, unsigned us);
/* All connections end, and new ones end at once, until it is mended. */
void relay_cut(struct relay *r, bool is_cut);
/* Nothing passes, and nothing says so. */
void relay_stall(struct relay *r, bool is_stalled);
