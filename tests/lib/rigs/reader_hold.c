/* reader_hold.c - holds the thread of a reader. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
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

void reader_hold(struct reader *r, const char *payer, unsigned n)
{
    static struct reader_job first, more[READER_MAX_WAITING];
    assert_false(holds);
    sem_init(&held, 0, 0);
    sem_init(&gate, 0, 0);
    assert_int_equal(reader_add(r, &first, payer, hold, NULL), 0);
    sem_wait(&held);
    holds = true;
    for (unsigned i = 0; i < n; i++)
        assert_int_equal(reader_add(r, &more[i], payer, nothing, NULL), 0);
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
    sem_init(&end, 0, 0);
    int rc;
    while ((rc = reader_add(r, &job, "the test", done, &end)) == -EAGAIN) // all places are taken
        sched_yield();
    assert_int_equal(rc, 0);
    sem_wait(&end);
}
