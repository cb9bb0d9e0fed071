/* listen.h - the listening socket of the gateway. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

/* "127.0.0.1:8080", "[::1]:8080", "localhost:0" or "unix:/path"; a stale socket file is replaced, a
 * live one is not (base/unix_socket.h; its mode is 0660). Says what is wrong: -EINVAL, -EADDRINUSE,
 * -EACCES ... */
int listen_open(const char *address, int *ret_fd);
/* For people and tests: "127.0.0.1:41234" or "unix:/path". */
void listen_name(int fd, char *name, size_t size);
/* Whether other machines may reach it: neither a unix socket nor a loopback address. */
bool listen_is_public(int fd);
