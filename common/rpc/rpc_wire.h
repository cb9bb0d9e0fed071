/* rpc_wire.h - the bytes that gRPC core reads, before it sees them.
 *
 * The linker gives gRPC core's calls of recvmsg() and SSL_read() to this file. It ends connections
 * whose frames exceed the limits of rpc_frames.h: recvmsg() shuts the socket down and returns 0,
 * SSL_read() returns an error. This covers what clients send to a server, what servers send to a
 * client, and unix sockets. Calls for other sockets and for other bytes than HTTP/2 pass.
 *
 * Private to common/rpc. Threads: any. */
#pragma once
#include <stdint.h>

/* Calls of one client. This is an address over TCP without TLS, a certificate over TLS, or another
 * user at a unix socket. gRPC core needs 10 KB and some 10 us for each call, also if the client
 * closes the connection before we know of the call. A client over TCP has this rate twice:
 * - Its settled connections (rpc_peers.h) have equal shares of the first one. A gateway makes some
 *   1,000 calls per second; with the most settled connections, its share is 500.
 * - All of its connections together have the second one. A settled connection pays from its own
 *   share first.
 * While all clients together make more than RPC_WIRE_ALL_PER_S, each has RPC_WIRE_SHARE_PER_S, in
 * the same way.
 * The connection whose call finds no rate ends. A gateway passes on what its clients send. So the
 * own user has no limit, and a certificate of a service has RPC_WIRE_SERVICE_TIMES as much. */
#define RPC_WIRE_CALLS_PER_S 8000 // in the long run
#define RPC_WIRE_CALLS_BURST 8192 // streams that a connection may have open
#define RPC_WIRE_SERVICE_TIMES 4
#define RPC_WIRE_ALL_PER_S 12000 // with the burst of one client
#define RPC_WIRE_SHARE_PER_S 1000
#define RPC_WIRE_SHARE_BURST 1024

/* Registers the metrics. Further calls do nothing. */
void rpc_wire_init(void);
/* The bytes that gRPC core has read from fd, which is no connection of TLS; 0: none. */
uint64_t rpc_wire_received(int fd);
/* fd is one of the n settled connections of its client. */
void rpc_wire_settled(int fd, unsigned n);
