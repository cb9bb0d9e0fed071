/* rpc_listen.h - listening sockets of our own: unix paths, and sockets passed by a service manager.
 *
 * gRPC core's unix listener takes a path over from a live server and removes it when it stops, even
 * if another server owns it by then; so we listen ourselves and hand over connections.
 * Not for other folders. */
#pragma once
#include <pthread.h>
#include <sys/stat.h>
#include <sys/un.h>
#include "rpc/rpc.h"

struct rpc_listen_socket {
    int fd;
    char path[sizeof(((struct sockaddr_un *)0)->sun_path)]; // ours to remove, or ""
    ino_t inode;                                            // of it, to remove nobody else's
    dev_t device;
};

struct rpc_listen {
    struct rpc_listen_socket sockets[RPC_LISTEN_MAX];
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
