/* failing_thread.h - makes the n-th pthread_create() fail, in programs linked with
 * --wrap=pthread_create (tests/CMakeLists.txt).
 *
 * Threads: any. Threads of libraries are not counted. */
#pragma once

/* Makes the n-th pthread_create() after this call fail, n from 1; 0: none. */
void failing_thread_at(unsigned n);
