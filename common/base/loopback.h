/* loopback.h - which addresses only this machine can reach.
 *
 * Threads: any. */
#pragma once
#include <stdbool.h>

/* "unix:/path", "unix-abstract:NAME", "127.0.0.1:80", "[::1]:80", "localhost:80", also with the
 * prefix "dns:", "dns:///", "ipv4:" or "ipv6:". Any other name may be another machine. */
bool loopback_address(const char *address);
/* Whether the socket listens on a unix path or on a loopback address. */
bool loopback_socket(int fd);
