/* full_queues.c - clients whose requests the full queues of the verifiers refuse. */
#include <errno.h>
#include <stdbool.h>
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
    if (!is_current(e, key, now_us)) {
        e->key = key;
        e->since_us = now_us;
        e->n = 0;
    }
    e->n++;
    snprintf(e->text, sizeof(e->text), "%s", text);
    pthread_mutex_unlock(&f->mu);
}

int full_queues_check(struct full_queues *f, const char *payer, ProtobufCBinaryData model,
                      int64_t now_us)
{
    uint64_t key = key_of(f, payer, model);
    const struct full_queues_entry *e = &f->entries[key % FULL_QUEUES_ENTRIES];
    pthread_mutex_lock(&f->mu);
    bool full = is_current(e, key, now_us) && e->n >= FULL_QUEUES_MAX;
    int rc = full ? fail(-EAGAIN, "%s", e->text) : 0;
    pthread_mutex_unlock(&f->mu);
    return rc;
}
