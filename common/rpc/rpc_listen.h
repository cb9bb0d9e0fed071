/* rpc_listen.h - listening sockets that gRPC core does not open: unix paths, and sockets passed by
 * a service manager.
 *
 * gRPC core's unix listener replaces the socket of a running server. When it stops, it removes the
 * path even if another server has taken it over. So this thread accepts connections and passes them
 * to gRPC core. Private to common/rpc. */
#pragma once
#include <pthread.h>
#include <sys/stat.h>
#include "base/unix_socket.h"
#include "rpc/rpc.h"

struct rpc_listen {
    struct unix_socket sockets[RPC_LISTEN_MAX]; // path "": a passed socket
    unsigned doors[RPC_LISTEN_MAX];             // of each socket, for on_connection
    unsigned n;
    int stop_fd;
    pthread_t thread; // accepts connections
    /* Runs on that thread; owns the descriptor. door: that of the socket. */
    void (*on_connection)(void *user, int fd, unsigned door);
    void *user;
};

int rpc_listen_init(struct rpc_listen *l, void (*on_connection)(void *user, int fd, unsigned door),
                    void *user);
/* -EADDRINUSE: another server listens there. The socket of a dead server is replaced. */
int rpc_listen_unix(struct rpc_listen *l, const char *path, mode_t mode, unsigned door);
/* Adds a socket that already listens. */
int rpc_listen_fd(struct rpc_listen *l, int fd, unsigned door);
int rpc_listen_start(struct rpc_listen *l);
/* Stops accepting, closes the sockets, and removes the paths that still belong to this server. */
void rpc_listen_done(struct rpc_listen *l);
