/* unix_socket.h - listening sockets on a path.
 *
 * The socket of a server that died is replaced. The socket of a running server, or any other file,
 * is left alone. A path that another server has taken over meanwhile is not removed.
 *
 * Threads: any; several processes may try to listen on the same path simultaneously. */
#pragma once
#include <stdbool.h>
#include <sys/stat.h>
#include <sys/un.h>

struct unix_socket {
    int fd;                                                 // listens; non-blocking
    char path[sizeof(((struct sockaddr_un *)0)->sun_path)]; // removed by unix_socket_remove()
    ino_t inode;                                            // of the path
    dev_t device;
};

/* mode: of the path, whatever the umask. Errors:
 * - -EINVAL: the path is empty or too long.
 * - -EADDRINUSE: another server listens there, or the path is not a socket.
 * - -EBUSY: another process keeps the folder locked.
 * - -ENOENT, -EACCES ...: the folder. */
int unix_socket_listen(const char *path, mode_t mode, struct unix_socket *ret);
/* Removes the path if it is still ours; the descriptor stays open. */
void unix_socket_remove(const struct unix_socket *s);
