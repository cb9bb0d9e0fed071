/* failing_threads.h - makes pthread_create() fail, in programs linked with --wrap=pthread_create
 * (tests/CMakeLists.txt).
 *
 * Threads: any. Threads of libraries are not affected. */
#pragma once
#include <stdbool.h>

/* Whether calls from now on fail; at first they do not. */
void failing_threads(bool fail);
