/* rpc_listen.c - listening sockets of our own. */
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include "base/err.h"
#include "base/mem.h"
#include "rpc/rpc_listen.h"

#define LOCK_TRIES 200 // of 10 ms

int rpc_listen_init(struct rpc_listen *l, void (*on_connection)(void *user, int fd), void *user)
{
    *l = (struct rpc_listen){.on_connection = on_connection, .user = user};
    l->stop_fd = eventfd(0, EFD_CLOEXEC);
    return l->stop_fd < 0 ? fail(-errno, "eventfd: %s", strerror(errno)) : 0;
}

static int add(struct rpc_listen *l, struct rpc_listen_socket socket)
{
    if (l->n == RPC_LISTEN_MAX)
        return fail(-ENOSPC, "more than %d listening sockets", RPC_LISTEN_MAX);
    l->sockets[l->n++] = socket;
    return 0;
}

int rpc_listen_fd(struct rpc_listen *l, int fd)
{
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)
        return fail(-errno, "descriptor %d: %s", fd, strerror(errno));
    return add(l, (struct rpc_listen_socket){.fd = fd});
}

/* Only one of us at a time may look whether a path is served, remove it and listen: a lock on its
 * folder leaves no file behind. Returns its descriptor; closing it unlocks. */
static int lock_folder(const char *path)
{
    AUTO(mem_free) char *copy = strdup(path);
    if (!copy)
        return fail(-ENOMEM, "no memory");
    const char *folder = dirname(copy);
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return fail(-errno, "cannot listen on %s: folder %s: %s", path, folder, strerror(errno));
    for (int i = 0; i < LOCK_TRIES; i++) {
        if (flock(fd, LOCK_EX | LOCK_NB) == 0)
            return fd;
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    close(fd);
    return fail(-EBUSY, "cannot listen on %s: folder %s stays locked", path, folder);
}

/* Whether somebody listens there. A full backlog says so too. */
static bool is_served(const struct sockaddr_un *addr)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return true; // rather not take it
    int r = connect(fd, (const struct sockaddr *)addr, sizeof(*addr));
    bool served = r == 0 || errno == EAGAIN || errno == EINPROGRESS;
    close(fd);
    return served;
}

static bool is_socket(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0 && S_ISSOCK(st.st_mode);
}

/* With the folder's lock. */
static int bind_and_listen(int fd, const struct sockaddr_un *addr)
{
    const struct sockaddr *a = (const struct sockaddr *)addr;
    const char *path = addr->sun_path;
    int r = bind(fd, a, sizeof(*addr));
    if (r < 0 && errno == EADDRINUSE) {
        if (!is_socket(path))
            return fail(-EADDRINUSE, "cannot listen on %s: it exists and is no socket", path);
        if (is_served(addr))
            return fail(-EADDRINUSE, "cannot listen on %s: another server does", path);
        unlink(path); // of a server that died
        r = bind(fd, a, sizeof(*addr));
    }
    if (r < 0 || listen(fd, SOMAXCONN) < 0)
        return fail(-errno, "cannot listen on %s: %s", path, strerror(errno));
    return 0;
}

int rpc_listen_unix(struct rpc_listen *l, const char *path, mode_t mode)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    size_t len = strlen(path);
    if (len == 0 || len >= sizeof(addr.sun_path))
        return fail(-EINVAL, "the socket path \"%s\" must have 1 to %zu bytes", path,
                    sizeof(addr.sun_path) - 1);
    memcpy(addr.sun_path, path, len);
    struct rpc_listen_socket s = {0};
    memcpy(s.path, path, len);
    int lock = lock_folder(path);
    if (lock < 0)
        return lock;
    struct stat st = {0};
    s.fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int r = s.fd < 0 ? fail(-errno, "cannot make a socket: %s", strerror(errno)) : 0;
    if (r == 0)
        r = bind_and_listen(s.fd, &addr);
    if (r == 0 && (chmod(path, mode) < 0 || lstat(path, &st) < 0))
        r = fail(-errno, "cannot set the mode of %s: %s", path, strerror(errno));
    s.inode = st.st_ino;
    s.device = st.st_dev;
    if (r == 0)
        r = add(l, s);
    close(lock);
    if (r < 0 && s.fd >= 0)
        close(s.fd);
    return r;
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
                setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int)); // not for unix
                l->on_connection(l->user, fd);
            } else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM) {
                poll(p, 1, 100); // do not spin until a descriptor is free
            }
        }
    }
    return NULL;
}

int rpc_listen_start(struct rpc_listen *l)
{
    int r = l->n ? pthread_create(&l->thread, NULL, accept_main, l) : 0;
    return r ? fail(-r, "cannot start a thread: %s", strerror(r)) : 0;
}

static void remove_path(const struct rpc_listen_socket *s)
{
    struct stat st;
    int lock = lock_folder(s->path);
    if (lstat(s->path, &st) == 0 && st.st_ino == s->inode && st.st_dev == s->device)
        unlink(s->path);
    if (lock >= 0)
        close(lock);
}

void rpc_listen_done(struct rpc_listen *l)
{
    eventfd_write(l->stop_fd, 1);
    if (l->thread)
        pthread_join(l->thread, NULL);
    for (unsigned i = 0; i < l->n; i++) {
        if (*l->sockets[i].path)
            remove_path(&l->sockets[i]); // first, so that nobody connects to what is closing
        close(l->sockets[i].fd);
    }
    close(l->stop_fd);
}
