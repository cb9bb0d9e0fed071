/* relay_tool.c - a wire of a set length to a service in another network namespace, for benchmarks.
 *
 *   relay_tool NAMESPACE ADDRESS    NAMESPACE: its file, as /proc/PID/ns/net; "-": this one
 *
 * Prints the address that it listens on. Each line of standard input is a number of microseconds.
 * From then on, chunks of bytes are held that long in each direction. Each line is answered with
 * "ok". */
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "lib/rigs/relay.h"

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: relay_tool NAMESPACE ADDRESS\n");
        return 2;
    }
    bool inside = strcmp(argv[1], "-") != 0;
    int host = inside ? open(argv[1], O_RDONLY | O_CLOEXEC) : HOST_NONE;
    if (host < 0 && inside) {
        perror(argv[1]);
        return 1;
    }
    AUTO(relay_stop) struct relay *relay = relay_start(host, argv[2]);
    char line[32];
    printf("%s\n", relay_target(relay));
    fflush(stdout);
    while (fgets(line, sizeof(line), stdin)) {
        relay_delay(relay, (unsigned)strtoul(line, NULL, 10));
        printf("ok\n");
        fflush(stdout);
    }
    return 0;
}
