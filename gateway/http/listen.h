/* listen.h - the listening socket of the gateway. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

/* Opens "127.0.0.1:8080", "[::1]:8080", "localhost:0" or "unix:/path" (mode 0660).
 * A stale socket file is replaced, a live one is not (base/unix_socket.h).
 * -EINVAL, -EADDRINUSE, -EACCES ..., each with a sentence. */
int listen_open(const char *address, int *ret_fd);
/* Whether other machines may reach it: neither a unix socket nor a loopback address. */
bool listen_is_public(int fd);
