/* reader_hold.c - holds the thread of a reader. */
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include "lib/lib.h"
#include "lib/rigs/reader_hold.h"

static sem_t held, gate;
static bool holds;

int __real_pthread_join(pthread_t thread, void **ret);
int __wrap_pthread_join(pthread_t thread, void **ret);

int __wrap_pthread_join(pthread_t thread, void **ret)
{
    reader_let_go();
    return __real_pthread_join(thread, ret);
}

static void hold(void *user, bool stops)
{
    (void)user, (void)stops;
    sem_post(&held);
    sem_wait(&gate);
}

static void nothing(void *user, bool stops)
{
    (void)user, (void)stops;
}

static void done(void *user, bool stops)
{
    (void)stops;
    sem_post(user);
}

void reader_hold(struct reader *r, const char *payer)
{
    static struct reader_job first;
    assert_false(holds);
    sem_init(&held, 0, 0);
    sem_init(&gate, 0, 0);
    assert_int_equal(reader_read(r, &first, payer, hold, NULL), 0);
    sem_wait(&held);
    holds = true;
}

void reader_fill(struct reader *r, unsigned n)
{
    static struct reader_job jobs[READER_MAX_WAITING];
    for (unsigned i = 0; i < n; i++) {
        char payer[32];
        snprintf(payer, sizeof(payer), "payer %u", i);
        assert_int_equal(reader_read(r, &jobs[i], payer, nothing, NULL), 0);
    }
}

void reader_let_go(void)
{
    if (holds)
        sem_post(&gate);
    holds = false;
}

void reader_await(struct reader *r)
{
    static struct reader_job job;
    sem_t end;
    if (holds)
        return;
    sem_init(&end, 0, 0);
    int rc = reader_write(r, &job, "the test", done, &end);
    if (rc == -EPIPE)
        return;
    assert_int_equal(rc, 0);
    sem_wait(&end);
}
