/* reader_hold.h - holds the thread of a reader, in programs linked with --wrap=pthread_join
 * (tests/CMakeLists.txt).
 *
 * Threads: the test's only. */
#pragma once
#include "gateway/serve/reader.h"

/* The reader runs a job of the payer until reader_let_go(), or until reader_stop() waits for its
 * thread. Ends the test on errors. */
void reader_hold(struct reader *r, const char *payer);
/* n more jobs wait, each of another payer. Ends the test on errors. */
void reader_fill(struct reader *r, unsigned n);
void reader_let_go(void);
/* Waits until one more job of each payer has run, unless the reader is held or has stopped. The job
 * that runs now counts as one of its payer. */
void reader_await(struct reader *r);
