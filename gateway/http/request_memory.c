/* request_memory.c - the memory of all requests together, and the share of each client. */
#include "gateway/http/request_memory.h"
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>
#include "base/err.h"
#include "base/rng.h"

#define SLOTS 1024 // of the hash table; chains hold more clients

struct request_memory_client {
    char name[REQUEST_MEMORY_NAME_MAX];
    size_t held;
    unsigned n_refs;
    struct request_memory_client *next;
};

struct request_memory {
    size_t limit, last; // last: bytes that only clients with little may take
    uint64_t secret;    // clients must not choose names that meet in one slot
    pthread_mutex_t mu; // guards the fields below and all clients
    struct request_memory_client *slots[SLOTS];
    size_t used, freed;
};

int request_memory_new(size_t limit, struct request_memory **ret)
{
    struct request_memory *m = calloc(1, sizeof(*m));
    if (!m)
        return fail(-ENOMEM, "http: no memory");
    m->limit = limit;
    m->last = limit / 8 < REQUEST_MEMORY_LAST_MAX ? limit / 8 : REQUEST_MEMORY_LAST_MAX;
    m->secret = rng_secret();
    pthread_mutex_init(&m->mu, NULL);
    *ret = m;
    return 0;
}

void request_memory_free(struct request_memory *m)
{
    if (!m)
        return;
    pthread_mutex_destroy(&m->mu);
    free(m);
}

static struct request_memory_client **slot_of(struct request_memory *m, const char *name)
{
    return &m->slots[XXH3_64bits_withSeed(name, strlen(name), m->secret) % SLOTS];
}

/* With the lock. NULL: no memory. */
static struct request_memory_client *find_or_add(struct request_memory *m, const char *name)
{
    struct request_memory_client **slot = slot_of(m, name), *c = *slot;
    while (c && strcmp(c->name, name) != 0)
        c = c->next;
    if (c)
        return c;
    c = calloc(1, sizeof(*c));
    if (!c)
        return NULL;
    memcpy(c->name, name, strlen(name));
    c->next = *slot;
    *slot = c;
    return c;
}

struct request_memory_client *request_memory_join(struct request_memory *m, const char *name)
{
    char cut[REQUEST_MEMORY_NAME_MAX];
    snprintf(cut, sizeof(cut), "%s", name);
    pthread_mutex_lock(&m->mu);
    struct request_memory_client *c = find_or_add(m, cut);
    if (c)
        c->n_refs++;
    pthread_mutex_unlock(&m->mu);
    return c;
}

const char *request_memory_name(const struct request_memory_client *c)
{
    return c->name;
}

void request_memory_leave(struct request_memory *m, struct request_memory_client *c)
{
    if (!c)
        return;
    pthread_mutex_lock(&m->mu);
    if (--c->n_refs == 0) {
        struct request_memory_client **at = slot_of(m, c->name);
        while (*at != c)
            at = &(*at)->next;
        *at = c->next;
        free(c);
    }
    pthread_mutex_unlock(&m->mu);
}

static size_t free_bytes(const struct request_memory *m)
{
    return m->limit - m->used;
}

/* With the lock. bytes: that the whole request needs; counted: that it has. */
static int refuse(const struct request_memory *m, const struct request_memory_client *c,
                  size_t bytes, size_t counted)
{
    if (bytes > m->limit / 2)
        return fail(-EMSGSIZE,
                    "the request needs %zu MiB of memory; one client may use %zu MiB, half of "
                    "max_bodies_mib",
                    bytes >> 20, m->limit >> 21);
    if (c->held > counted)
        return fail(-EDQUOT,
                    "your other requests use %zu KiB of memory, and %zu KiB are left for all "
                    "clients (max_bodies_mib); try again when some have ended",
                    (c->held - counted) >> 10, free_bytes(m) >> 10);
    return fail(-EAGAIN, "other clients use %zu of %zu KiB of memory (max_bodies_mib); try again",
                (m->used - counted) >> 10, m->limit >> 10);
}

/* With the lock. more: bytes in addition to what the client holds. */
static bool in_share(const struct request_memory *m, const struct request_memory_client *c,
                     size_t more)
{
    if (more > free_bytes(m))
        return false;
    size_t held = c->held + more, left = free_bytes(m) - more;
    return held <= left && (left >= m->last || held <= REQUEST_MEMORY_LITTLE);
}

/* With the lock. */
static void count(struct request_memory *m, struct request_memory_client *c, size_t bytes,
                  size_t *counted)
{
    m->used += bytes - *counted; // may wrap around zero on the way
    c->held += bytes - *counted;
    m->freed += *counted > bytes ? *counted - bytes : 0;
    *counted = bytes;
}

static size_t sum(size_t a, size_t b)
{
    return a < SIZE_MAX - b ? a + b : SIZE_MAX;
}

int request_memory_set(struct request_memory *m, struct request_memory_client *c, size_t bytes,
                       size_t *counted)
{
    static const size_t nothing;
    return request_memory_set_beside(m, c, bytes, counted, &nothing);
}

int request_memory_set_beside(struct request_memory *m, struct request_memory_client *c,
                              size_t bytes, size_t *counted, const size_t *beside)
{
    int rc = 0;
    pthread_mutex_lock(&m->mu);
    if (bytes > *counted && !in_share(m, c, bytes - *counted))
        rc = refuse(m, c, sum(bytes, *beside), *counted + *beside);
    if (rc == 0)
        count(m, c, bytes, counted);
    pthread_mutex_unlock(&m->mu);
    return rc;
}

bool request_memory_grow(struct request_memory *m, struct request_memory_client *c, size_t more,
                         size_t *counted)
{
    pthread_mutex_lock(&m->mu);
    bool fits = more <= free_bytes(m);
    if (fits)
        count(m, c, *counted + more, counted);
    pthread_mutex_unlock(&m->mu);
    return fits;
}

size_t request_memory_used(struct request_memory *m)
{
    pthread_mutex_lock(&m->mu);
    size_t used = m->used;
    pthread_mutex_unlock(&m->mu);
    return used;
}

size_t request_memory_freed(struct request_memory *m)
{
    pthread_mutex_lock(&m->mu);
    size_t freed = m->freed;
    pthread_mutex_unlock(&m->mu);
    return freed;
}
