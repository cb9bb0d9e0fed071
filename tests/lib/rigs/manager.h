/* manager.h - the test acts as the service manager: it reads the notification socket. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

/* Set-up and teardown of a test. The first sets NOTIFY_SOCKET; the second unsets it and
 * WATCHDOG_USEC. */
int manager_open(void **state);
int manager_close(void **state);
/* The next notification; "" if there is none. A datagram can be read as soon as it was sent. */
const char *manager_message(void);
/* Calls svc_watchdog() until the watchdog is fed; ends the test after 10 s. */
void manager_await_feeding(void);
/* Waits `us`, then calls svc_watchdog(); returns whether that feeds the watchdog. */
bool manager_is_fed_after(int64_t us);
