/* unix_socket.c - listening sockets on a path. */
#include "base/unix_socket.h"
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include "base/err.h"
#include "base/mem.h"

#define LOCK_TRIES 200 // of 10 ms

/* Only one process at a time may check whether a path is served, remove it and listen. A lock on
 * the folder needs no extra file. Returns the folder's descriptor; closing it unlocks. */
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

/* Whether a server listens on the address. A full backlog also proves that one does. */
static bool is_served(const struct sockaddr_un *addr)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return true; // unknown: do not replace it
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

/* The caller holds the lock of the folder. */
static int bind_and_listen(int fd, const struct sockaddr_un *addr)
{
    const struct sockaddr *a = (const struct sockaddr *)addr;
    const char *path = addr->sun_path;
    int r = bind(fd, a, sizeof(*addr));
    if (r < 0 && errno == EADDRINUSE) {
        if (!is_socket(path))
            return fail(-EADDRINUSE, "cannot listen on %s: it exists and is not a socket", path);
        if (is_served(addr))
            return fail(-EADDRINUSE, "cannot listen on %s: another server listens there", path);
        unlink(path); // of a server that died
        r = bind(fd, a, sizeof(*addr));
    }
    if (r < 0 || listen(fd, SOMAXCONN) < 0)
        return fail(-errno, "cannot listen on %s: %s", path, strerror(errno));
    return 0;
}

/* The caller holds the lock of the folder. */
static int open_at(const struct sockaddr_un *addr, mode_t mode, struct unix_socket *s)
{
    struct stat st;
    s->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (s->fd < 0)
        return fail(-errno, "cannot create a socket: %s", strerror(errno));
    int rc = bind_and_listen(s->fd, addr);
    if (rc == 0 && (chmod(s->path, mode) < 0 || lstat(s->path, &st) < 0))
        rc = fail(-errno, "cannot set the mode of %s: %s", s->path, strerror(errno));
    if (rc < 0) {
        close(s->fd);
        return rc;
    }
    s->inode = st.st_ino;
    s->device = st.st_dev;
    return 0;
}

int unix_socket_listen(const char *path, mode_t mode, struct unix_socket *ret)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    size_t len = strlen(path);
    if (len == 0 || len >= sizeof(addr.sun_path))
        return fail(-EINVAL, "the socket path \"%s\" must have 1 to %zu bytes", path,
                    sizeof(addr.sun_path) - 1);
    memcpy(addr.sun_path, path, len);
    *ret = (struct unix_socket){.fd = -1};
    memcpy(ret->path, path, len);
    int lock = lock_folder(path);
    if (lock < 0)
        return lock;
    int rc = open_at(&addr, mode, ret);
    close(lock);
    return rc;
}

void unix_socket_remove(const struct unix_socket *s)
{
    struct stat st;
    int lock = lock_folder(s->path);
    if (lstat(s->path, &st) == 0 && st.st_ino == s->inode && st.st_dev == s->device)
        unlink(s->path);
    if (lock >= 0)
        close(lock);
}
