/* sandbox.h - starts Python in a process that may compute and nothing else.
 *
 * The process keeps one socket to its parent. In layers, each of which works without the others:
 *   limits      256 MiB, 16 descriptors, no file may grow, no process, no core; no new privileges
 *   user        nobody, if this process is root
 *   namespaces  separate ones: user, network, System V IPC, mounts, host name
 *   landlock    it reads Python and the libraries, executes Python, and opens no other file
 *   seccomp     a list of system calls: no socket, no process, no signal, no file to write
 * It is killed when the thread that started it ends, so it never outlives the gateway.
 *
 * Some kernels, containers and service managers refuse the last three.
 *
 * Threads: any. */
#pragma once
#include <stdint.h>
#include <sys/types.h>

enum { SANDBOX_NAMESPACES = 1, SANDBOX_LANDLOCK = 2, SANDBOX_SECCOMP = 4 };

/* Ends the wait for a start: stop_fd is readable, or the time has come. */
struct sandbox_patience {
    int stop_fd;      // -1: none
    int64_t until_us; // clock_us()
};

/* Starts `/usr/bin/python3 -I -c script` with an empty environment. fd: a socket, which becomes its
 * descriptors 0 and 1; 2 is /dev/null. *ret_missing: the layers that are refused here.
 * -EIO: it cannot be started, or not in time, or a limit cannot be set; -ECANCELED: stop_fd. Then
 * the process is killed, and its end is awaited: as long as the kernel holds it. */
int sandbox_start(const char *script, int fd, const struct sandbox_patience *patience,
                  pid_t *ret_pid, unsigned *ret_missing);
/* "namespaces landlock"; the text of the layers in the set. */
void sandbox_text(unsigned layers, char ret_text[40]);
