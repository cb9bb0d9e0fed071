/* rpc_listen.c - listening sockets that gRPC core does not open. */
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/err.h"
#include "base/thread.h"
#include "rpc/rpc_listen.h"

int rpc_listen_init(struct rpc_listen *l, void (*on_connection)(void *user, int fd, unsigned door),
                    void *user)
{
    *l = (struct rpc_listen){.on_connection = on_connection, .user = user};
    l->stop_fd = eventfd(0, EFD_CLOEXEC);
    return l->stop_fd < 0 ? fail(-errno, "eventfd: %s", strerror(errno)) : 0;
}

static int add_socket(struct rpc_listen *l, struct unix_socket socket, unsigned door)
{
    if (l->n == RPC_LISTEN_MAX)
        return fail(-ENOSPC, "more than %d listening sockets", RPC_LISTEN_MAX);
    l->doors[l->n] = door;
    l->sockets[l->n++] = socket;
    return 0;
}

int rpc_listen_fd(struct rpc_listen *l, int fd, unsigned door)
{
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)
        return fail(-errno, "descriptor %d: %s", fd, strerror(errno));
    return add_socket(l, (struct unix_socket){.fd = fd}, door);
}

int rpc_listen_unix(struct rpc_listen *l, const char *path, mode_t mode, unsigned door)
{
    struct unix_socket s;
    int rc = unix_socket_listen(path, mode, &s);
    if (rc == 0 && (rc = add_socket(l, s, door)) < 0) {
        unix_socket_remove(&s);
        close(s.fd);
    }
    return rc;
}

static void *accept_main(void *arg)
{
    struct rpc_listen *l = arg;
    struct pollfd p[RPC_LISTEN_MAX + 1] = {{.fd = l->stop_fd, .events = POLLIN}};
    for (unsigned i = 0; i < l->n; i++)
        p[i + 1] = (struct pollfd){.fd = l->sockets[i].fd, .events = POLLIN};
    while (poll(p, l->n + 1, -1) >= 0 || errno == EINTR) {
        if (p[0].revents)
            break;
        for (unsigned i = 1; i <= l->n; i++) {
            if (!p[i].revents)
                continue;
            int fd = accept4(p[i].fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
            if (fd >= 0) {
                setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int)); // fails for unix
                l->on_connection(l->user, fd, l->doors[i - 1]);
            } else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM) {
                poll(p, 1, 100); // wait instead of spinning until a descriptor is free
            }
        }
    }
    return NULL;
}

int rpc_listen_start(struct rpc_listen *l)
{
    return l->n ? thread_start(accept_main, l, 0, &l->thread) : 0;
}

void rpc_listen_done(struct rpc_listen *l)
{
    eventfd_write(l->stop_fd, 1);
    if (l->thread)
        pthread_join(l->thread, NULL);
    for (unsigned i = 0; i < l->n; i++) {
        if (*l->sockets[i].path)
            unix_socket_remove(&l->sockets[i]); // first: no client connects to a closing socket
        close(l->sockets[i].fd);
    }
    close(l->stop_fd);
}
