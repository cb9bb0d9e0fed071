/* logged.h - what this process writes to standard error while a test records it.
 *
 * Threads: the test's. Lines of other threads are recorded too. */
#pragma once

/* From here on standard error goes to memory. */
void logged_begin(void);
/* Standard error is as before. Returns the text since logged_begin(), at most LOGGED_MAX bytes of
 * it. Static buffer. */
const char *logged_end(void);
#define LOGGED_MAX 8192

/* How often the text contains `part`. */
unsigned logged_count(const char *text, const char *part);
