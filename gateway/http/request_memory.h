/* request_memory.h - the memory of all requests together, and the share of each client.
 *
 * A client may hold as much as it leaves free for the others. So one client alone gets at most half
 * of the limit, and a client that comes later half of what is free. As requests end, shares become
 * equal. The last part is only for clients that hold little. Otherwise 20 clients, each with half
 * of the rest, would leave nothing. Only the token ids that running answers add may exceed a share.
 * (The dynamic threshold of shared switch buffers with a factor of 1: Choudhury, Hahne 1998,
 * IEEE/ACM Transactions on Networking 6(2).)
 *
 * Threads: any. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include "base/mem.h"

#define REQUEST_MEMORY_NAME_MAX 80 // of a client, with its NUL; longer names are cut

/* The last part: an eighth of the limit, and at most this much. */
#define REQUEST_MEMORY_LAST_MAX ((size_t)16 << 20)
/* A client that holds at most this much may take from the last part. It suffices for a short chat:
 * up to 64 KiB are its token ids (serve/completion.c). */
#define REQUEST_MEMORY_LITTLE ((size_t)128 << 10)

struct request_memory;
struct request_memory_client;

/* limit: bytes of all requests. -ENOMEM. */
int request_memory_new(size_t limit, struct request_memory **ret);
void request_memory_free(struct request_memory *m); // after all clients have left
DEFINE_AUTO(struct request_memory, request_memory_free)

/* The client of this name, with one more reference. NULL: no memory. */
struct request_memory_client *request_memory_join(struct request_memory *m, const char *name);
const char *request_memory_name(const struct request_memory_client *c);
/* Drops a reference. What the request has counted must be 0. NULL is fine. */
void request_memory_leave(struct request_memory *m, struct request_memory_client *c);

/* Changes what a request of the client counts, *counted, to these bytes. Fewer always fit.
 * After an error nothing has changed. Each has a sentence:
 * -EMSGSIZE: the request alone needs more than half of the limit.
 * -EDQUOT: other requests of this client hold its share.
 * -EAGAIN: other clients hold the memory, or all but the last part. */
int request_memory_set(struct request_memory *m, struct request_memory_client *c, size_t bytes,
                       size_t *counted);
/* The same for a request that also counts `*beside` bytes, which may change meanwhile. */
int request_memory_set_beside(struct request_memory *m, struct request_memory_client *c,
                              size_t bytes, size_t *counted, const size_t *beside);

/* Counts more bytes for the ids of an answer that runs. Only the limit binds it, not the share:
 * clients that come later cost it nothing. false: they do not fit, and nothing has changed. */
bool request_memory_grow(struct request_memory *m, struct request_memory_client *c, size_t more,
                         size_t *counted);

size_t request_memory_used(struct request_memory *m);
/* The sum of all bytes that were counted and are no longer. */
size_t request_memory_freed(struct request_memory *m);
