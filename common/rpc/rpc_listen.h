/* rpc_listen.h - listening sockets of our own: unix paths, and sockets passed by a service manager.
 *
 * gRPC core's unix listener takes a path over from a live server and removes it when it stops, even
 * if another server owns it by then; so we listen ourselves and hand over connections.
 * Not for other folders. */
#pragma once
#include <pthread.h>
#include <sys/stat.h>
#include "base/unix_socket.h"
#include "rpc/rpc.h"

struct rpc_listen {
    struct unix_socket sockets[RPC_LISTEN_MAX]; // path "": a passed one
    unsigned n;
    int stop_fd;
    pthread_t thread;                          // accepts
    void (*on_connection)(void *user, int fd); // on its thread; takes the descriptor
    void *user;
};

int rpc_listen_init(struct rpc_listen *l, void (*on_connection)(void *user, int fd), void *user);
/* -EADDRINUSE: another server listens there. A socket that nobody serves is replaced. */
int rpc_listen_unix(struct rpc_listen *l, const char *path, mode_t mode);
/* Takes a socket that listens already. */
int rpc_listen_fd(struct rpc_listen *l, int fd);
int rpc_listen_start(struct rpc_listen *l);
/* No connection after it; closes the sockets and removes the paths that are still ours. */
void rpc_listen_done(struct rpc_listen *l);
