/* unix_socket.h - listening on a path: the socket of a server that died is replaced, a live one's
 * and any other file are not, and nobody else's path is removed.
 *
 * Threads: any; several processes may ask for the same path at once. */
#pragma once
#include <stdbool.h>
#include <sys/stat.h>
#include <sys/un.h>

struct unix_socket {
    int fd;                                                 // listens, does not block
    char path[sizeof(((struct sockaddr_un *)0)->sun_path)]; // ours to remove
    ino_t inode;                                            // of it
    dev_t device;
};

/* mode: of the path, whatever the umask says. -EINVAL: the path is empty or too long; -EADDRINUSE:
 * another server listens there, or it is no socket; -ENOENT, -EACCES ...: the folder. Each with a
 * sentence. */
int unix_socket_listen(const char *path, mode_t mode, struct unix_socket *ret);
/* Removes the path if it is still ours; the descriptor stays open. */
void unix_socket_remove(const struct unix_socket *s);
