/* rpc_accept.h - which connections gRPC core may have.
 *
 * gRPC core 1.51 closes its listener for good when accept4() fails, for example because the process
 * has no free descriptor. Nor does it limit how fast a client connects. So the linker gives its
 * calls of accept4() to this file, on all watched ports:
 * - Without a free descriptor, the waiting connections are closed and the listener stays.
 * - A client that connects faster than RPC_ACCEPT_PER_S is disconnected before gRPC core works for
 *   it. A client is an address, as rpc_peer_client() tells.
 * Calls for other sockets pass to the system.
 *
 * Connections of other users at unix sockets have the same rate, and leave a quarter of the
 * descriptors to the own user and operators. Private to common/rpc.
 *
 * Threads: any. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

#define RPC_ACCEPT_PER_S 250 // in the long run
#define RPC_ACCEPT_BURST 1000

/* Registers the metrics. Further calls do nothing. */
void rpc_accept_init(void);
/* A server listens on this port of TCP. After rpc_accept_init(); until the process ends. */
void rpc_accept_watch(uint16_t port);
/* Whether this new connection may stay: it is one of TCP, or no limit for other users at unix
 * sockets is exceeded. Else closes it. */
bool rpc_accept_keeps(int fd);
