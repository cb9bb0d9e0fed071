/* instance.h - the name of a running service in metrics.
 *
 * By default the host and the address of the socket. So two services have different names, whatever
 * hosts they run on.
 *
 * Threads: any. */
#pragma once
#include <stddef.h>

#define INSTANCE_MAX 384 // bytes of a name, with its end

/* The address of a listening socket: "127.0.0.1:41234" or "unix:/path". */
void instance_address(int fd, char *ret_address, size_t size);
/* chosen: the setting `instance`; NULL or "": the name is HOST:PORT or HOST:/path. address: as from
 * instance_address(). Longer names are cut. */
void instance_name(const char *chosen, const char *address, char *ret_name, size_t size);
