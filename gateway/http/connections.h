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

struct conns;
struct conn;

/* IDLE -> RECEIVING (the request line is here) -> ANSWERING (all of it is here) -> IDLE. */
enum conn_phase { CONN_IDLE, CONN_RECEIVING, CONN_ANSWERING };

/* -ENOMEM. */
int conns_new(const struct http_options *o, struct conns **ret);
/* The thread ends; the rest goes on. */
void conns_stop(struct conns *s);
void conns_free(struct conns *s);
DEFINE_AUTO(struct conns, conns_free)

/* New connections of fd, which listens, go to take(), which owns them then, while fewer than
 * max_connections are open; conns_open() follows, unless it says false. */
typedef bool conns_taker(void *user, int fd, const struct sockaddr *address, socklen_t len);
void conns_listen(struct conns *s, int fd, conns_taker *take, void *user);
/* No more of them; closes the listening socket. Not twice. */
void conns_unlisten(struct conns *s);

/* NULL: no memory, the connection is not watched. */
struct conn *conns_open(struct conns *s, int fd);
/* Before the socket is closed: its number may have a new owner then. */
void conns_close(struct conns *s, struct conn *k);
/* r: the request, NULL for none; held as long as the phase says so. k may be NULL. */
void conns_phase(struct conns *s, struct conn *k, enum conn_phase phase, struct http_request *r);

unsigned conns_n_active(struct conns *s); // ANSWERING
unsigned conns_n_open(struct conns *s);   // those that were taken included
void conns_wait_idle(struct conns *s, int64_t timeout_us);
void conns_give_up(struct conns *s); // http_give_up() for every request
/* Shuts every connection down until all are closed, or for so long. */
void conns_end(struct conns *s, int64_t timeout_us);

/* ---- what http.c does for it ---- */

/* The client has closed, or will not say more. */
void http_hang_up(struct http_request *r);
/* Called a few times a second; true: drop the connection. */
bool http_tend(struct http_request *r, int64_t now_us);
/* Nobody will answer it any more. */
void http_give_up(struct http_request *r);
