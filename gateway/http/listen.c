/* listen.c - the listening socket of the gateway. */
#include <errno.h>
#include <netdb.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include "base/err.h"
#include "base/loopback.h"
#include "base/unix_socket.h"
#include "gateway/http/listen.h"

#define BACKLOG 1024
#define SOCKET_MODE 0660

static int bind_and_listen(int fd, const struct sockaddr *a, socklen_t len, const char *address)
{
    if (bind(fd, a, len) == 0 && listen(fd, BACKLOG) == 0)
        return fd;
    int e = errno;
    close(fd);
    if (e == EADDRINUSE)
        return fail(-e, "%s is in use: another program listens there", address);
    return fail(-e, "cannot listen on %s: %s", address, strerror(e));
}

static int open_unix(const char *path)
{
    struct unix_socket s;
    int rc = unix_socket_listen(path, SOCKET_MODE, &s);
    return rc < 0 ? rc : s.fd;
}

static int open_tcp(const char *host, const char *port, const char *address)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *found = NULL;
    int e = getaddrinfo(*host ? host : NULL, port, &hints, &found);
    if (e)
        return fail(-EINVAL, "cannot listen on %s: %s", address, gai_strerror(e));
    int one = 1, fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) {
        e = errno;
        freeaddrinfo(found);
        return fail(-e, "cannot create a socket: %s", strerror(e));
    }
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    fd = bind_and_listen(fd, found->ai_addr, found->ai_addrlen, address);
    freeaddrinfo(found);
    return fd;
}

int listen_open(const char *address, int *ret_fd)
{
    char host[256];
    int fd;
    if (strncmp(address, "unix:", 5) == 0) {
        fd = open_unix(address + 5);
    } else {
        const char *colon = strrchr(address, ':');
        size_t n = colon ? (size_t)(colon - address) : 0;
        if (!colon || n >= sizeof(host) || !colon[1] || strspn(colon + 1, "0123456789") > 5 ||
            colon[1 + strspn(colon + 1, "0123456789")] || atoi(colon + 1) > 65535)
            return fail(-EINVAL, "listen address '%s' is not HOST:PORT or unix:/path", address);
        bool v6 = n > 2 && address[0] == '[' && address[n - 1] == ']';
        snprintf(host, sizeof(host), "%.*s", (int)(n - 2 * v6), address + v6);
        fd = open_tcp(host, colon + 1, address);
    }
    if (fd < 0)
        return fd;
    *ret_fd = fd;
    return 0;
}

bool listen_is_public(int fd)
{
    return !loopback_socket(fd);
}
