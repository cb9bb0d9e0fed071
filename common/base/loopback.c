/* loopback.c - which addresses only this machine can reach. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include "base/loopback.h"
#include "base/mem.h"

static bool is_v4(const struct in_addr *a)
{
    return ntohl(a->s_addr) >> 24 == IN_LOOPBACKNET;
}

static bool is_v6(const struct in6_addr *a)
{
    return IN6_IS_ADDR_LOOPBACK(a) || (IN6_IS_ADDR_V4MAPPED(a) && a->s6_addr[12] == 127);
}

/* The host of "HOST:PORT" or "[HOST]:PORT". */
static bool read_host(const char *address, char *ret_host, size_t size)
{
    const char *colon = strrchr(address, ':');
    size_t n = colon ? (size_t)(colon - address) : strlen(address);
    bool brackets = n > 2 && address[0] == '[' && address[n - 1] == ']';
    n -= 2 * brackets;
    if (!n || n >= size)
        return false;
    memcpy(ret_host, address + brackets, n);
    ret_host[n] = 0;
    return true;
}

bool loopback_address(const char *address)
{
    static const char *const unix_sockets[] = {"unix:", "unix-abstract:"};
    static const char *const prefixes[] = {"dns:///", "dns:", "ipv4:", "ipv6:"};
    char host[64];
    struct in_addr v4;
    struct in6_addr v6;
    for (size_t i = 0; i < ARRAY_LEN(unix_sockets); i++)
        if (strncmp(address, unix_sockets[i], strlen(unix_sockets[i])) == 0)
            return true;
    for (size_t i = 0; i < ARRAY_LEN(prefixes); i++) {
        if (strncmp(address, prefixes[i], strlen(prefixes[i])) == 0) {
            address += strlen(prefixes[i]);
            break;
        }
    }
    if (!read_host(address, host, sizeof(host)))
        return false;
    return strcmp(host, "localhost") == 0 || (inet_pton(AF_INET, host, &v4) == 1 && is_v4(&v4)) ||
           (inet_pton(AF_INET6, host, &v6) == 1 && is_v6(&v6));
}

bool loopback_socket(int fd)
{
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
        struct sockaddr_storage storage;
    } a = {0};
    socklen_t len = sizeof(a);
    if (getsockname(fd, &a.any, &len) < 0)
        return false;
    if (a.any.sa_family == AF_INET)
        return is_v4(&a.v4.sin_addr);
    return a.any.sa_family == AF_INET6 ? is_v6(&a.v6.sin6_addr) : a.any.sa_family == AF_UNIX;
}
