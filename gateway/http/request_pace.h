/* request_pace.h - when a complete request may be handled.
 *
 * The threads of the server handle requests in the order in which they are complete. So the others
 * would wait for a client that sends many, or costly ones, over many connections. Therefore these
 * rules hold while other addresses send requests:
 *
 * - Each address gets at most a quarter of the threads' time, and after a pause
 *   REQUEST_PACE_BURST_US of it together. This is the generic cell rate algorithm (ITU-T I.371) for
 *   time instead of cells. An address is charged when a request begins, for the most that one of
 *   its size usually takes. The difference is corrected when it is handled.
 * - At most REQUEST_PACE_BEGUN requests per thread have begun and are not handled yet. So few
 *   requests are ahead at the threads, however many addresses there are.
 * - As many may begin in a millisecond without a wait, if no request waits for others.
 *
 * Further requests wait, those of one address in the order of their arrival. The addresses whose
 * rate allows a request take turns: one request of each, then the next of each.
 *
 * The table has a fixed size. Addresses that meet in one entry share its time and its turns.
 *
 * Threads: any; it has its own lock. Waits end when other requests are handled or leave, and in a
 * separate thread. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/mem.h"
#include "gateway/http/address.h"

#define REQUEST_PACE_ENTRIES 4096
#define REQUEST_PACE_BURST_US 5000 // of the threads' time
#define REQUEST_PACE_BEGUN 2       // per thread; 4 and 8 were not faster (2026-11-28)

struct request_pace;

/* The place of a request; starts zeroed. */
struct request_pace_turn {
    struct request_pace_entry *entry; // NULL: the request has not asked
    int64_t charged_us;               // of the threads' time; 0: nothing
    bool waits;
    bool begun;                            // and is not handled yet
    struct request_pace_turn *prev, *next; // of those that wait in the entry
};

/* go: ends the wait of a request. It is called with the pace's lock, so it must not call the pace.
 * request_pace_done(), request_pace_leave() and request_pace_tick() call it for other requests.
 * -ENOMEM; -EAGAIN: no thread. */
int request_pace_new(unsigned n_threads, void (*go)(struct request_pace_turn *t),
                     struct request_pace **ret);
void request_pace_free(struct request_pace *p); // no request may wait; NULL is fine
DEFINE_AUTO(struct request_pace, request_pace_free)

/* A request of this many bytes is complete. true: it may be handled. false: it waits, until go() or
 * request_pace_leave(). */
bool request_pace_ask(struct request_pace *p, struct request_pace_turn *t, const struct address *a,
                      size_t bytes, int64_t now_us);
/* The request was handled, and a thread worked for this long. Only the first call counts. */
void request_pace_done(struct request_pace *p, struct request_pace_turn *t, int64_t took_us,
                       int64_t now_us);
/* The request has ended, whether it was handled or not. It no longer waits. */
void request_pace_leave(struct request_pace *p, struct request_pace_turn *t, int64_t now_us);
/* From now on nobody waits. */
void request_pace_end(struct request_pace *p);
/* Ends the waits that are over. The thread calls it once per millisecond while anybody waits. */
void request_pace_tick(struct request_pace *p, int64_t now_us);
