/* manager.h - the test plays the service manager: it holds the notification socket. */
#pragma once

/* Set-up and teardown of a test: NOTIFY_SOCKET is there; and gone again, with WATCHDOG_USEC. */
int manager_be(void **state);
int manager_leave(void **state);
/* What has been said: a datagram is there as soon as it was sent. "" if nothing. */
const char *manager_heard(void);
