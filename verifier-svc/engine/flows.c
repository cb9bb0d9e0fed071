/* flows.c - counts of flows, and the queue's order and limit. */
#include "verifier-svc/engine/flows.h"
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "base/err.h"

struct flow {
    uint8_t name[FLOWS_MAX_NAME];
    size_t len;
    uint32_t n_requests; // that refer to it
    uint32_t n_waiting;  // of these; without resumed ones
    size_t bytes;        // of the waiting ones
    size_t left;         // removable_bytes(): of `bytes`
    uint64_t n_served;   // tokens
    uint64_t next;       // flows_sort(): where its next request stands
};

struct flows {
    pthread_mutex_t mu;
    struct flows_limits limits;
    struct flow *v; // (max), the first n in use
    uint32_t n, max;
    struct flows_place **waiting; // (limits.waiting), by arrival; without resumed ones
    uint32_t n_waiting;
    size_t bytes;         // of these
    uint32_t n_displaced; // that have not left
    uint32_t n_resumed;   // that wait
    size_t resumed_bytes; // of these
    uint64_t most_served; // the largest count that any flow has had
};

int flows_new(const struct flows_limits *limits, struct flows **ret)
{
    AUTO(flows_free) struct flows *f = calloc(1, sizeof(*f));
    if (!f)
        return fail(-ENOMEM, "no memory for a queue");
    pthread_mutex_init(&f->mu, NULL);
    f->limits = *limits;
    f->max = 2 * limits->waiting + limits->resumed + limits->started + FLOWS_IDLE; // 2: displaced
    f->v = calloc(f->max, sizeof(*f->v));
    f->waiting = calloc(limits->waiting, sizeof(struct flows_place *));
    if (!f->v || !f->waiting)
        return fail(-ENOMEM, "no memory for a queue of %u requests", limits->waiting);
    *ret = TAKE(f);
    return 0;
}

uint32_t flows_max(const struct flows *f)
{
    return f->max;
}

void flows_free(struct flows *f)
{
    if (!f)
        return;
    pthread_mutex_destroy(&f->mu);
    free(f->v);
    free(f->waiting);
    free(f);
}

/* A flow without requests; of these, the one with the least count loses least. There is one, since
 * there are more flows than requests. */
static struct flow *forget_one(struct flows *f)
{
    struct flow *least = NULL;
    for (uint32_t i = 0; i < f->n; i++) {
        struct flow *w = &f->v[i];
        if (!w->n_requests && (!least || w->n_served < least->n_served))
            least = w;
    }
    return least;
}

static struct flow *find(struct flows *f, const void *name, size_t len)
{
    for (uint32_t i = 0; i < f->n; i++) {
        if (f->v[i].len == len && (!len || memcmp(f->v[i].name, name, len) == 0))
            return &f->v[i];
    }
    struct flow *w = f->n < f->max ? &f->v[f->n++] : forget_one(f);
    *w = (struct flow){.len = len};
    if (len)
        memcpy(w->name, name, len);
    return w;
}

static void remove_waiting(struct flows *f, const struct flows_place *p)
{
    if (p->resumed) {
        f->n_resumed--;
        f->resumed_bytes -= p->bytes;
        return;
    }
    uint32_t i = 0;
    while (f->waiting[i] != p)
        i++;
    memmove(&f->waiting[i], &f->waiting[i + 1],
            (f->n_waiting - i - 1) * sizeof(struct flows_place *));
    f->n_waiting--;
    f->bytes -= p->bytes;
    f->v[p->flow].n_waiting--;
    f->v[p->flow].bytes -= p->bytes;
}

static void displace(struct flows *f, struct flows_place *p)
{
    remove_waiting(f, p);
    p->state = FLOWS_DISPLACED;
    f->n_displaced++;
}

/* Makes a place for one more of w. False: w would then have the most requests, or as many. */
static bool make_place(struct flows *f, const struct flow *w)
{
    uint32_t most = w->n_waiting + 1;
    struct flows_place *p = NULL; // the newest request of the flow with the most
    for (uint32_t i = f->n_waiting; i-- > 0;) {
        uint32_t n = f->v[f->waiting[i]->flow].n_waiting;
        if (n > most) {
            most = n;
            p = f->waiting[i];
        }
    }
    if (!p || f->n_displaced == f->limits.waiting)
        return false;
    displace(f, p);
    return true;
}

/* Bytes that become free if each flow gives way while it has more than `most` bytes. */
static size_t removable_bytes(struct flows *f, size_t most)
{
    size_t bytes = 0;
    for (uint32_t i = 0; i < f->n; i++)
        f->v[i].left = f->v[i].bytes;
    for (uint32_t i = f->n_waiting; i-- > 0;) {
        struct flow *w = &f->v[f->waiting[i]->flow];
        if (w->left <= most)
            continue;
        w->left -= f->waiting[i]->bytes;
        bytes += f->waiting[i]->bytes;
    }
    return bytes;
}

/* The newest request of the flow with the most bytes. */
static struct flows_place *newest_of_largest(const struct flows *f)
{
    struct flows_place *p = NULL;
    size_t most = 0;
    for (uint32_t i = f->n_waiting; i-- > 0;) {
        size_t bytes = f->v[f->waiting[i]->flow].bytes;
        if (bytes > most) {
            most = bytes;
            p = f->waiting[i];
        }
    }
    return p;
}

/* Makes space for more bytes of w, or changes nothing. False: w would then have the most bytes. */
static bool make_bytes(struct flows *f, const struct flow *w, size_t bytes)
{
    size_t unused = f->limits.bytes - f->bytes;
    if (bytes <= unused)
        return true;
    if (f->n_waiting + f->n_displaced > f->limits.waiting ||
        removable_bytes(f, w->bytes + bytes) < bytes - unused)
        return false;
    while (bytes > f->limits.bytes - f->bytes)
        displace(f, newest_of_largest(f));
    return true;
}

/* The count of a flow that starts to wait is at least this. */
static uint64_t least_waiting(const struct flows *f)
{
    uint64_t least = f->most_served;
    for (uint32_t i = 0; i < f->n; i++) {
        if (f->v[i].n_waiting && f->v[i].n_served < least)
            least = f->v[i].n_served;
    }
    return least;
}

static void add_waiting(struct flows *f, struct flows_place *p, struct flow *w)
{
    uint64_t least = least_waiting(f);
    if (!w->n_waiting && w->n_served < least)
        w->n_served = least;
    w->n_waiting++;
    w->bytes += p->bytes;
    f->bytes += p->bytes;
    f->waiting[f->n_waiting++] = p;
}

/* A place for one more of w. */
static int enter_new(struct flows *f, struct flows_place *p, struct flow *w)
{
    if (!make_bytes(f, w, p->bytes))
        return fail(-EAGAIN, "the queue is full: %zu MiB of requests wait already",
                    f->limits.bytes >> 20);
    if (f->n_waiting == f->limits.waiting && !make_place(f, w))
        return fail(-EAGAIN, "the queue is full: %u requests wait already", f->limits.waiting);
    add_waiting(f, p, w);
    return 0;
}

static int enter_resumed(struct flows *f, const struct flows_place *p)
{
    if (p->bytes > f->limits.bytes - f->resumed_bytes)
        return fail(-EAGAIN, "the queue is full: %zu MiB of resumed answers wait already",
                    f->limits.bytes >> 20);
    if (f->n_resumed == f->limits.resumed)
        return fail(-EAGAIN, "the queue is full: %u resumed answers wait already", f->n_resumed);
    f->n_resumed++;
    f->resumed_bytes += p->bytes;
    return 0;
}

int flows_enter(struct flows *f, struct flows_place *p, const void *name, size_t len,
                uint32_t *ret_n_displaced)
{
    pthread_mutex_lock(&f->mu);
    struct flow *w = find(f, name, len);
    uint32_t n_displaced = f->n_displaced;
    int err = p->resumed ? enter_resumed(f, p) : enter_new(f, p, w);
    if (!err) {
        w->n_requests++;
        p->flow = (uint32_t)(w - f->v);
        p->state = FLOWS_WAITING;
    }
    *ret_n_displaced = f->n_displaced - n_displaced;
    pthread_mutex_unlock(&f->mu);
    return err;
}

static void serve(struct flows *f, struct flow *w, uint32_t n)
{
    w->n_served += n;
    if (w->n_served > f->most_served)
        f->most_served = w->n_served;
}

bool flows_start(struct flows *f, struct flows_place *p, uint32_t n)
{
    pthread_mutex_lock(&f->mu);
    bool starts = p->state == FLOWS_WAITING;
    if (starts) {
        remove_waiting(f, p);
        p->state = FLOWS_STARTED;
        serve(f, &f->v[p->flow], n ? n : 1);
    }
    pthread_mutex_unlock(&f->mu);
    return starts;
}

void flows_serve(struct flows *f, const struct flows_place *p, uint32_t n)
{
    pthread_mutex_lock(&f->mu);
    serve(f, &f->v[p->flow], n);
    pthread_mutex_unlock(&f->mu);
}

void flows_leave(struct flows *f, struct flows_place *p)
{
    pthread_mutex_lock(&f->mu);
    if (p->state == FLOWS_WAITING)
        remove_waiting(f, p);
    if (p->state == FLOWS_DISPLACED)
        f->n_displaced--;
    if (p->state != FLOWS_NONE)
        f->v[p->flow].n_requests--;
    p->state = FLOWS_NONE;
    pthread_mutex_unlock(&f->mu);
}

enum flows_state flows_state(struct flows *f, const struct flows_place *p)
{
    pthread_mutex_lock(&f->mu);
    enum flows_state state = p->state;
    pthread_mutex_unlock(&f->mu);
    return state;
}

/* ---- the order ---- */

static bool precedes(const struct flows_turn *a, const struct flows_turn *b)
{
    if (a->first != b->first)
        return a->first;
    return a->at != b->at ? a->at < b->at : a->index < b->index;
}

/* Shell's sort, with the gaps of Ciura 2001; qsort() may allocate. */
static void sort(struct flows_turn *v, uint32_t n)
{
    static const uint32_t gaps[] = {27397, 12177, 5412, 2405, 1069, 475, 211, 94, 42, 19, 10, 4, 1};
    for (size_t g = 0; g < ARRAY_LEN(gaps); g++) {
        for (uint32_t i = gaps[g]; i < n; i++) {
            struct flows_turn t = v[i];
            uint32_t k = i;
            for (; k >= gaps[g] && precedes(&t, &v[k - gaps[g]]); k -= gaps[g])
                v[k] = v[k - gaps[g]];
            v[k] = t;
        }
    }
}

void flows_sort(struct flows *f, struct flows_turn *v, uint32_t n)
{
    pthread_mutex_lock(&f->mu);
    for (uint32_t i = 0; i < f->n; i++)
        f->v[i].next = f->v[i].n_served;
    for (uint32_t i = 0; i < n; i++) {
        struct flow *w = &f->v[v[i].place->flow];
        v[i].at = w->next;
        w->next += v[i].first ? 0 : v[i].n_tokens;
    }
    pthread_mutex_unlock(&f->mu);
    sort(v, n);
}
