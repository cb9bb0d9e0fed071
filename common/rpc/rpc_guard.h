/* rpc_guard.h - ends connections that abuse a server.
 *
 * gRPC core has no function that ends one connection. So a thread finds the server's connections
 * among the descriptors of this process, and shuts their sockets down. rpc_peers.h says which.
 * At unix sockets those of other users are watched, but not of operators: the mode of the path says
 * who may connect.
 *
 * Private to common/rpc. Threads: any for rpc_guard_call() and the functions below it. */
#pragma once
#include "rpc/rpc_peers.h"

struct rpc_guard;
struct rpc_worker;

/* workers: the server's threads, which must outlive the guard. A thread is stalled if it stays in
 * gRPC core; each should leave that every RPC_GUARD_BEAT_MS. client_bytes: see rpc_peers.h;
 * 0: RPC_PEERS_CLIENT_BYTES_MAX. */
#define RPC_GUARD_BEAT_MS 250
int rpc_guard_new(const struct rpc_worker *workers, unsigned n_workers, size_t client_bytes,
                  struct rpc_guard **ret);
void rpc_guard_free(struct rpc_guard *g); // after the last rpc_guard_done(); NULL is fine
/* A port on which the server listens. Before rpc_guard_start(). */
void rpc_guard_watch(struct rpc_guard *g, uint16_t port);
/* A connection of another user at a unix socket. Any thread. */
void rpc_guard_watch_user(struct rpc_guard *g, int fd);
int rpc_guard_start(struct rpc_guard *g);

/* A call begins. peer: its text of grpc_call_get_peer(). *ret is NULL for a connection that is not
 * watched. -ECONNABORTED: the connection is over or is being ended, so the call is void. */
int rpc_guard_call(struct rpc_guard *g, const char *peer, const struct rpc_peer_call *call,
                   struct rpc_peer **ret);
/* What happens to the call; p may be NULL. See rpc_peers.h. */
void rpc_guard_message(struct rpc_guard *g, struct rpc_peer *p, size_t bytes);
void rpc_guard_sent(struct rpc_guard *g, struct rpc_peer *p);
void rpc_guard_reset(struct rpc_guard *g, struct rpc_peer *p);
void rpc_guard_cheap(struct rpc_guard *g, struct rpc_peer *p);
void rpc_guard_refused(struct rpc_guard *g, struct rpc_peer *p);
void rpc_guard_refused_done(struct rpc_guard *g, struct rpc_peer *p);
void rpc_guard_done(struct rpc_guard *g, struct rpc_peer *p);
