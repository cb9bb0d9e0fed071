/* usage_keeper.c - the thread that saves the counts of API keys. */
#include "gateway/keys/usage_keeper.h"
#include <errno.h>
#include <pthread.h>
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/log_pace.h"
#include "base/thread.h"
#include "gateway/keys/usage_file.h"

#define PERIOD_US 1000000

struct usage_keeper {
    struct auth *auth;
    struct usage_file *file;
    struct log_pace failures;
    pthread_t thread;
    bool started;
    pthread_mutex_t mu; // guards `stopping`
    pthread_cond_t stop;
    bool stopping;
};

static void save(struct usage_keeper *k)
{
    if (auth_save(k->auth, k->file, clock_unix_us()) < 0 && log_pace_due(&k->failures, clock_us()))
        log_warn("the keys' counts are not saved now, the gateway tries again: %s", fail_text());
}

static bool waits(struct usage_keeper *k)
{
    struct timespec until = clock_at(clock_us() + PERIOD_US);
    int rc = 0;
    pthread_mutex_lock(&k->mu);
    while (!k->stopping && rc != ETIMEDOUT)
        rc = pthread_cond_timedwait(&k->stop, &k->mu, &until);
    bool stopping = k->stopping;
    pthread_mutex_unlock(&k->mu);
    return !stopping;
}

static void *keeper_main(void *arg)
{
    struct usage_keeper *k = arg;
    while (waits(k))
        save(k);
    return NULL;
}

int usage_keeper_new(struct auth *a, const char *path, struct usage_keeper **ret)
{
    AUTO(usage_keeper_free) struct usage_keeper *k = calloc(1, sizeof(*k));
    if (!k)
        return fail(-ENOMEM, "no memory for the usage file");
    clock_cond_init(&k->stop);
    pthread_mutex_init(&k->mu, NULL);
    k->auth = a;
    int rc = usage_file_open(path, clock_unix_us(), &k->file);
    rc = rc < 0 ? rc : auth_save(a, k->file, clock_unix_us());
    if (rc < 0)
        return rc;
    rc = thread_start(keeper_main, k, 0, &k->thread);
    if (rc < 0)
        return rc;
    k->started = true;
    *ret = TAKE(k);
    return 0;
}

void usage_keeper_free(struct usage_keeper *k)
{
    if (!k)
        return;
    if (k->started) {
        pthread_mutex_lock(&k->mu);
        k->stopping = true;
        pthread_cond_signal(&k->stop);
        pthread_mutex_unlock(&k->mu);
        pthread_join(k->thread, NULL);
        save(k);
    }
    usage_file_free(k->file);
    pthread_cond_destroy(&k->stop);
    pthread_mutex_destroy(&k->mu);
    free(k);
}
