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

/* Calls of clients. A client is an address over TCP without TLS, a certificate over TLS, or another
 * user at a unix socket. gRPC core needs 10 KB and some 100 us for each call, also if the client
 * closes the connection before we know of the call. So all clients together have a rate of calls.
 * A call above it takes from the rate of the shares, of which each client that makes such calls has
 * an equal part. A client over TCP or at a unix socket has its part twice:
 * - Its settled connections (rpc_peers.h) have equal parts of the first one. A gateway makes some
 *   1,000 calls per second.
 * - All of its connections together have the second one. A settled connection pays from its own
 *   part first.
 * So clients make at most RPC_WIRE_ALL_PER_S + 2 * RPC_WIRE_SHARES_PER_S calls per second, unless
 * they are more than RPC_WIRE_SHARES_MAX. The connection whose call finds no rate ends.
 *
 * A gateway passes on what its clients send. So the own user has no limit, and a certificate of a
 * service has a separate rate. */
#define RPC_WIRE_ALL_PER_S 4000 // in the long run
#define RPC_WIRE_ALL_BURST 1024 // after a pause
#define RPC_WIRE_SHARES_PER_S 4000
#define RPC_WIRE_SHARES_BURST 3072
#define RPC_WIRE_SHARES_MAX 64
#define RPC_WIRE_SERVICE_PER_S 32000
#define RPC_WIRE_SERVICE_BURST 32768

/* Registers the metrics. Further calls do nothing. */
void rpc_wire_init(void);
/* The bytes that gRPC core has read from fd, which is no connection of TLS; 0: none. */
uint64_t rpc_wire_received(int fd);
/* fd is one of the n settled connections of its client. */
void rpc_wire_settled(int fd, unsigned n);
