/* relay.h - a TCP relay with a delay, to a service on another "host". Ends the test on errors.
 *
 * The other host is a network namespace; services in it can be reached only through the relay. The
 * relay accepts TCP connections here, opens one there for each, and delays every chunk of bytes in
 * each direction. (The kernel's delays, netem, are not available on every machine.)
 *
 * Threads: any; the relay runs a thread. */
#pragma once
#include <stdbool.h>
#include "base/mem.h"

#define RELAY_TARGET_MAX 32
#define HOST_NONE (-1) // no other namespace: services run in ours

/* Creates a network namespace with a loopback; returns an open file. HOST_NONE, after printing why:
 * namespaces are not permitted here. Call it first in main(), before there is a second thread. */
int host_new(void);
/* The namespace of the calling thread. */
int host_ours(void);
/* Closes the file. */
void host_drop(int host);
/* Moves the calling thread to that host; threads and processes that it starts are there, too. */
void host_enter(int host);
/* A free "127.0.0.1:PORT" on that host. */
void host_address(int host, char ret[RELAY_TARGET_MAX]);

struct relay;

/* Listens on a port of the caller's namespace. address: of the service on that host. */
struct relay *relay_start(int host, const char *address);
void relay_stop(struct relay *r);
DEFINE_AUTO(struct relay, relay_stop)
const char *relay_target(const struct relay *r); // "127.0.0.1:PORT"

/* Sets the delay of later chunks, in each direction. */
void relay_delay(struct relay *r, unsigned us);
/* While cut, all connections end, and new ones end immediately. */
void relay_cut(struct relay *r, bool is_cut);
/* While stalled, connections stay open but no bytes pass. */
void relay_stall(struct relay *r, bool is_stalled);
