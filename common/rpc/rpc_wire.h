/* rpc_wire.h - the bytes that gRPC core reads, before it sees them.
 *
 * The linker gives gRPC core's calls of recvmsg() and SSL_read() to this file. It ends connections
 * whose frames exceed the limits of rpc_frames.h: recvmsg() shuts the socket down and returns 0,
 * SSL_read() returns an error. This covers what clients send to a server, what servers send to a
 * client, and unix sockets. Calls for other sockets and for other bytes than HTTP/2 pass.
 *
 * Private to common/rpc. Threads: any. */
#pragma once

/* Calls of one client over TCP without TLS, on all of its connections. gRPC core needs 10 KB and
 * some 10 us for each, also if the client closes the connection before we know of the call. Above
 * this rate, the client's connections end that make many (rpc_frames.h). */
#define RPC_WIRE_CALLS_PER_S 8000 // in the long run
#define RPC_WIRE_CALLS_BURST 8192 // streams that a connection may have open

/* Registers the metrics. Further calls do nothing. */
void rpc_wire_init(void);
