/* manager.h - the test plays the service manager: it holds the notification socket. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

/* Set-up and teardown of a test: NOTIFY_SOCKET is there; and gone again, with WATCHDOG_USEC. */
int manager_be(void **state);
int manager_leave(void **state);
/* What has been said: a datagram is there as soon as it was sent. "" if nothing. */
const char *manager_heard(void);
/* Tells to feed the watchdog until it is fed; ends the test if it waits in vain. */
void manager_await_feeding(void);
/* Whether it is fed when told to after so long. */
bool manager_is_fed_after(int64_t us);
