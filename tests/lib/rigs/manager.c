/* manager.c - the service manager's notification socket. */
#include "lib/rigs/manager.h"
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/svc.h"
#include "lib/lib.h"

static int notify = -1;

int manager_open(void **state)
{
    (void)state;
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    snprintf(a.sun_path + 1, sizeof(a.sun_path) - 1, "tandem-test-manager-%d", getpid());
    socklen_t len =
        (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(a.sun_path + 1));
    notify = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (bind(notify, (struct sockaddr *)&a, len) < 0)
        return -1;
    char name[120];
    snprintf(name, sizeof(name), "@%s", a.sun_path + 1);
    setenv("NOTIFY_SOCKET", name, 1);
    return 0;
}

int manager_close(void **state)
{
    (void)state;
    close(notify);
    unsetenv("NOTIFY_SOCKET");
    unsetenv("WATCHDOG_USEC");
    return 0;
}

const char *manager_message(void)
{
    static char text[1024];
    ssize_t n = recv(notify, text, sizeof(text) - 1, 0);
    text[n > 0 ? n : 0] = 0;
    return text;
}

void manager_await_feeding(void)
{
    int64_t until_us = clock_us() + 10000000;
    do {
        assert_true(clock_us() < until_us);
        svc_watchdog();
    } while (!*manager_message());
}

bool manager_is_fed_after(int64_t us)
{
    svc_wait_signal(us);
    while (*manager_message())
        ;
    svc_watchdog();
    return *manager_message();
}
