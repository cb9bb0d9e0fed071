/* reader.h - reads large bodies, writes large answers and statistics, on a separate thread.
 *
 * Such a job takes up to a tenth of a second. Smaller bodies are limited, too: an http thread may
 * find hundreds of them complete in one turn. On an http or rpc thread, the streams of other
 * clients would wait for that long. Payers take turns, and jobs of one payer keep their order: a
 * job waits for at most one job of each other payer.
 *
 * Threads: reader_read() and reader_write() on any, also within a job. The others on the main
 * thread. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "base/mem.h"

#define READER_BYTES (8u << 10) // a larger body or answer is a job of the reader
#define READER_MAX_WAITING 1024 // bodies that wait
#define READER_STOPPING "the server is shutting down"

struct reader;

/* stops: the reader stops, and the job should end quickly. */
typedef void reader_fn(void *user, bool stops);

/* A place in the queue, in an object of the caller. It is free again when fn() is called. */
struct reader_job {
    reader_fn *fn;
    void *user;
    uint64_t payer;
    struct reader_job *next;  // of the same payer
    unsigned n_places;        // that it takes: a body one, an answer none
    struct reader_job *last;  // of this payer, in its first job ...
    unsigned n_of_payer;      // ... and the places of all its jobs
    struct reader_job *later; // the first job of the payer whose turn is next
};

/* Starts the thread. -ENOMEM; -EAGAIN. */
int reader_new(struct reader **ret);
/* A body is to be read: fn(user, ...) is called exactly once, on the reader's thread.
 * payer: http_payer(), or any text of the client. It may have as many bodies waiting as it leaves
 * places free for others.
 * Without a call, and with a sentence: -EDQUOT: the payer has too many bodies; -EAGAIN:
 * READER_MAX_WAITING bodies wait; -EPIPE: the reader has stopped. */
int reader_read(struct reader *r, struct reader_job *job, const char *payer, reader_fn *fn,
                void *user);
/* The same for an answer, which needs no place. Only -EPIPE. */
int reader_write(struct reader *r, struct reader_job *job, const char *payer, reader_fn *fn,
                 void *user);
/* The status of HTTP for an error of reader_read(). */
int reader_status(int error);
/* Ends the thread after the jobs that wait. NULL is fine, and so is a second call. */
void reader_stop(struct reader *r);
/* Stops it, too. No thread may use it. NULL is fine. */
void reader_free(struct reader *r);
DEFINE_AUTO(struct reader, reader_free)
