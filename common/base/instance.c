/* instance.c - the name of a running service in metrics. */
#include <limits.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>
#include "base/instance.h"

void instance_address(int fd, char *ret_address, size_t size)
{
    struct sockaddr_storage a = {0};
    socklen_t len = sizeof(a);
    char host[64], port[8];
    if (getsockname(fd, (struct sockaddr *)&a, &len) == 0 && a.ss_family == AF_UNIX)
        snprintf(ret_address, size, "unix:%s", ((struct sockaddr_un *)&a)->sun_path);
    else if (getnameinfo((struct sockaddr *)&a, len, host, sizeof(host), port, sizeof(port),
                         NI_NUMERICHOST | NI_NUMERICSERV) == 0)
        snprintf(ret_address, size, a.ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
    else
        snprintf(ret_address, size, "a passed socket");
}

/* The part of an address that differs between services of one host. */
static const char *path_or_port(const char *address)
{
    const char *colon = strrchr(address, ':');
    if (strncmp(address, "unix:", 5) == 0)
        return address + 5;
    return colon ? colon + 1 : address;
}

void instance_name(const char *chosen, const char *address, char *ret_name, size_t size)
{
    char host[HOST_NAME_MAX + 1] = "";
    if (chosen && *chosen) {
        snprintf(ret_name, size, "%s", chosen);
        return;
    }
    if (gethostname(host, sizeof(host) - 1) < 0 || !*host)
        strcpy(host, "localhost");
    snprintf(ret_name, size, "%s:%s", host, path_or_port(address));
}
