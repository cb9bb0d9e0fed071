/* connections.h - who is connected, what each connection is doing since when, and the thread that
 * watches: it takes new connections, notices hang-ups of clients whose request waits, and ends what
 * takes too long.
 *
 * Private to http.c, and knows nothing of libmicrohttpd: it closes by shutting the socket down.
 *
 * Threads: any. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include "base/mem.h"
#include "gateway/http/http.h"

struct connections;
struct connection;

/* IDLE -> RECEIVING (the request line is here) -> ANSWERING (all of it is here) -> IDLE. */
enum connection_phase { CONNECTION_IDLE, CONNECTION_RECEIVING, CONNECTION_ANSWERING };

/* -ENOMEM. */
int connections_new(const struct http_options *o, struct connections **ret);
/* The thread ends; the rest goes on. */
void connections_stop(struct connections *s);
void connections_free(struct connections *s);
DEFINE_AUTO(struct connections, connections_free)

/* New connections of fd, which listens, go to take(), which owns them then, while fewer than
 * max_connections are open; connections_open() follows, unless it says false. */
typedef bool connections_accept_fn(void *user, int fd, const struct sockaddr *address,
                                   socklen_t len);
void connections_listen(struct connections *s, int fd, connections_accept_fn *take, void *user);
/* No more of them; closes the listening socket. Not twice. */
void connections_unlisten(struct connections *s);

/* NULL: no memory, the connection is not watched. */
struct connection *connections_open(struct connections *s, int fd);
/* Before the socket is closed: its number may have a new owner then. */
void connections_close(struct connections *s, struct connection *k);
/* r: the request, NULL for none; held as long as the phase says so. k may be NULL. */
void connections_set_phase(struct connections *s, struct connection *k, enum connection_phase phase,
                           struct http_request *r);

unsigned connections_n_active(struct connections *s); // ANSWERING
unsigned connections_n_open(struct connections *s);   // those that were taken included
void connections_wait_idle(struct connections *s, int64_t timeout_us);
void connections_abandon(struct connections *s); // http_watch_abandon() for every request
/* Shuts every connection down until all are closed, or for so long. */
void connections_end(struct connections *s, int64_t timeout_us);
