/* handshakes.h - the thread that does the TLS handshakes of new connections.
 *
 * A signature takes 0.4 ms with an RSA key of 2,048 bits, and ten times that with 4,096. In the
 * threads that serve requests it would delay established connections. So this thread does all
 * handshakes. It has a low priority, because clients that do not finish their handshakes could keep
 * it busy for ever. Addresses share its time (handshake_turns.h).
 *
 * Threads: any. */
#pragma once
#include <stdatomic.h>
#include "gateway/http/address.h"
#include "gateway/http/handshake_turns.h"

struct handshakes;
struct http_tls_session;

/* Part of the caller's record of a client, zeroed at first. Private to handshakes.c. */
struct handshake {
    struct handshake_turn turn; // first
    struct handshake *prev, *next, *next_ending;
    int fd;
    struct address peer;
    void *client;
    struct http_tls_session *session; // NULL: the client has sent nothing yet
    atomic_bool ends;
};

/* The handshake of this client is complete; the session is the callee's. Called by the thread. */
typedef void handshakes_done_fn(void *user, void *client, struct http_tls_session *session);
/* It has failed, or has to end. Called by the thread, or by handshakes_stop(). */
typedef void handshakes_failed_fn(void *user, void *client);

/* http_tls_use() must have been called. -ENOMEM, with a sentence. */
int handshakes_new(handshakes_done_fn *done, handshakes_failed_fn *failed, void *user,
                   struct handshakes **ret);
/* Ends the thread, then all handshakes that are not complete. */
void handshakes_stop(struct handshakes *h);
void handshakes_free(struct handshakes *h); // stops it first; h may be NULL

/* Shakes hands with this client over a socket that does not block. Socket and k must stay until
 * done() or failed(). -ENOMEM: neither is called. */
int handshakes_add(struct handshakes *h, struct handshake *k, int fd, const struct address *a,
                   void *client);
/* failed() shall be called soon, without waiting for a turn; or done() is called already. */
void handshakes_end(struct handshakes *h, struct handshake *k);
