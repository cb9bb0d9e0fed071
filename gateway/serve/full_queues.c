/* full_queues.c - clients whose requests the full queues of the verifiers refuse. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>
#include "base/rng.h"
#include "gateway/serve/full_queues.h"

void full_queues_init(struct full_queues *f)
{
    pthread_mutex_init(&f->mu, NULL);
    f->secret = rng_secret();
}

void full_queues_done(struct full_queues *f)
{
    pthread_mutex_destroy(&f->mu);
}

static uint64_t key_of(const struct full_queues *f, const char *payer, ProtobufCBinaryData model)
{
    return XXH3_64bits_withSeed(model.data, model.len,
                                XXH3_64bits_withSeed(payer, strlen(payer), f->secret));
}

static bool is_current(const struct full_queues_entry *e, uint64_t key, int64_t now_us)
{
    return e->n && e->key == key && now_us - e->since_us < FULL_QUEUES_US;
}

void full_queues_note(struct full_queues *f, const char *payer, ProtobufCBinaryData model,
                      const char *text, int64_t now_us)
{
    uint64_t key = key_of(f, payer, model);
    struct full_queues_entry *e = &f->entries[key % FULL_QUEUES_ENTRIES];
    pthread_mutex_lock(&f->mu);
    if (!is_current(e, key, now_us))
        *e = (struct full_queues_entry){.key = key,
                                        .since_us = now_us,
                                        .last_us = e->key == key ? e->last_us : 0,
                                        .retry_us = e->key == key ? e->retry_us : 0};
    e->n++;
    snprintf(e->text, sizeof(e->text), "%s", text);
    pthread_mutex_unlock(&f->mu);
}

void full_queues_ended(struct full_queues *f, const char *payer, ProtobufCBinaryData model)
{
    uint64_t key = key_of(f, payer, model);
    struct full_queues_entry *e = &f->entries[key % FULL_QUEUES_ENTRIES];
    pthread_mutex_lock(&f->mu);
    if (e->key == key && e->n)
        e->n--;
    pthread_mutex_unlock(&f->mu);
}

static bool is_full(const struct full_queues_entry *e, uint64_t key, int64_t now_us)
{
    return is_current(e, key, now_us) && e->n >= FULL_QUEUES_MAX;
}

bool full_queues_is_full(struct full_queues *f, const char *payer, ProtobufCBinaryData model,
                         int64_t now_us)
{
    uint64_t key = key_of(f, payer, model);
    pthread_mutex_lock(&f->mu);
    bool full = is_full(&f->entries[key % FULL_QUEUES_ENTRIES], key, now_us);
    pthread_mutex_unlock(&f->mu);
    return full;
}

/* The generic cell rate algorithm (ITU-T I.371). */
static bool take_retry(struct full_queues_entry *e, int64_t now_us)
{
    int64_t earliest_us = now_us - FULL_QUEUES_RETRIES * FULL_QUEUES_RETRY_US;
    int64_t due_us = e->retry_us > earliest_us ? e->retry_us : earliest_us;
    bool ok = due_us + FULL_QUEUES_RETRY_US <= now_us;
    if (ok)
        e->retry_us = due_us + FULL_QUEUES_RETRY_US;
    return ok;
}

bool full_queues_may_retry(struct full_queues *f, const char *payer, ProtobufCBinaryData model,
                           int64_t now_us)
{
    uint64_t key = key_of(f, payer, model);
    struct full_queues_entry *e = &f->entries[key % FULL_QUEUES_ENTRIES];
    pthread_mutex_lock(&f->mu);
    bool ok = !is_full(e, key, now_us) && (e->key != key || take_retry(e, now_us));
    pthread_mutex_unlock(&f->mu);
    return ok;
}

/* When the next error of this payer is sent. */
static int64_t take_turn(struct full_queues_entry *e, int64_t now_us)
{
    int64_t next_us = e->last_us + FULL_QUEUES_PACE_US, latest_us = now_us + FULL_QUEUES_DELAY_US;
    e->last_us = next_us < now_us ? now_us : next_us > latest_us ? latest_us : next_us;
    return e->last_us;
}

int full_queues_check(struct full_queues *f, const char *payer, ProtobufCBinaryData model,
                      int64_t now_us, int64_t *ret_send_us)
{
    uint64_t key = key_of(f, payer, model);
    struct full_queues_entry *e = &f->entries[key % FULL_QUEUES_ENTRIES];
    pthread_mutex_lock(&f->mu);
    bool full = is_full(e, key, now_us);
    int rc = full ? fail(-EAGAIN, "%s", e->text) : 0;
    *ret_send_us = full ? take_turn(e, now_us) : 0;
    pthread_mutex_unlock(&f->mu);
    return rc;
}
