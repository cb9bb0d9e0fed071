/* http_watch.h - the calls of the connection watcher into the request of a connection.
 *
 * Implemented by http_request.c, called by connections.c, which does not see libmicrohttpd.
 *
 * Threads: the watcher's; http_watch_abandon() also the one that stops the server. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "gateway/http/http.h"

struct MHD_Connection;

/* The client has closed the connection, or at least its sending side. */
void http_watch_hung_up(struct http_request *r);
/* Called a few times per second. Sends the keep-alive comment of a silent stream when it is due.
 * true: the reader is too slow, drop the connection. */
bool http_watch_tick(struct http_request *r, int64_t now_us);
/* Whether the connection may be closed for its place. It may while its request waits for its turn,
 * and when its complete answer waits for the reader. unbegun: also while no work on the answer has
 * begun, see http_keep_place(). */
bool http_watch_gives_way(struct http_request *r, int64_t now_us, bool unbegun);
/* The server stops: nobody will answer this request. */
void http_watch_abandon(struct http_request *r);
/* Wakes the thread of a connection whose socket is shut down. libmicrohttpd 0.9.75 sometimes
 * sleeps with such a connection, and does not close it. */
void http_watch_wake(struct MHD_Connection *c);
