/* http.h - the HTTP server, the only door to libmicrohttpd (behind it http.c and http_request.c).
 *
 * The application lets a request in by its header, and then gets it whole: framing checked, header
 * and body within their limits, arrived in time. It is answered with one http_reply(), or with
 * http_stream(), any number of http_write() and one http_end(), now or later, from any thread;
 * meanwhile its connection sleeps and costs no thread. A client that hangs up is noticed at once,
 * also while its request waits.
 *
 * Threads: a pool inside libmicrohttpd calls the handler, which must not block. One more thread
 * watches for hang-ups and time-outs. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/buf.h"
#include "base/mem.h"

struct http_server;
struct http_request;

typedef void http_handler(void *user, struct http_request *r);

struct http_options {
    unsigned n_threads, max_connections;
    unsigned max_per_ip; // connections; 0: no such limit
    size_t max_body;     // bytes; more is 413
    size_t max_bodies;   // bytes of all bodies that are held at once; more is 503
    size_t max_header;   // bytes of request line and header; more is 431
    size_t max_unread;   // bytes of a stream that may wait for its reader behind the first event
    int64_t reader_us;   // half of max_unread waits, or a whole answer stands still, for so long
    int64_t request_us;  // a whole request must have arrived within
    int64_t idle_us;     // a connection without a request is closed after
    int64_t ping_us;     // a silent stream gets a comment this often
    /* Called first, when the header is here: may refuse by http_reply(), and then no byte of the
     * body is kept. NULL: all are let in. */
    http_handler *admit;
    const char *tls_cert, *tls_key; // PEM, read at the start; NULL: plain HTTP
};

/* fd listens already; the server owns it. -ENOMEM, -EIO; -EINVAL: certificate and key are none, or
 * do not belong together. */
int http_new(const struct http_options *o, int fd, http_handler *handler, void *user,
             struct http_server **ret);
/* No new connections; every answer from now on closes its connection. */
void http_drain(struct http_server *s);
unsigned http_n_active(struct http_server *s); // requests not yet answered in full
unsigned http_n_open(struct http_server *s);   // connections
size_t http_body_bytes(struct http_server *s); // held, of max_bodies
/* Waits until none is active, at most so long. */
void http_wait_idle(struct http_server *s, int64_t timeout_us);
/* Ends what is left; requests that are still held are gone from now on. */
void http_stop(struct http_server *s);
/* After the last reference to a request. NULL is fine; stops it if that was not done. */
void http_free(struct http_server *s);
DEFINE_AUTO(struct http_server, http_free)

/* ---- a request ---- */

struct http_server *http_server_of(const struct http_request *r);
const char *http_method(const struct http_request *r);
const char *http_path(const struct http_request *r); // decoded, without the query
/* A field of the header, as it came; NULL: absent. Only from the handler. */
const char *http_field(const struct http_request *r, const char *name);
const char *http_id(const struct http_request *r); // X-Request-Id if it is a sane one, else made
const char *http_body(const struct http_request *r, size_t *ret_len); // NUL behind it
/* Frees the body once it is parsed; what was made of it counts in max_bodies in its place, until
 * http_release_body() or the last reference. Only for whoever answers. */
void http_free_body(struct http_request *r);
void http_release_body(struct http_request *r);
int64_t http_begun_us(const struct http_request *r); // clock_us() when it began to arrive

/* Whoever answers later keeps a reference. */
struct http_request *http_ref(struct http_request *r);
void http_unref(struct http_request *r);

/* fn(user) is called exactly once: when the client is gone, or the answer has left in full. Only
 * from the handler. */
void http_on_close(struct http_request *r, void (*fn)(void *user), void *user);

/* fn(user), the same user: half of max_unread was waiting, and now at most a quarter is. */
void http_on_drain(struct http_request *r, void (*fn)(void *user));

/* What the application keeps with the request; release(it) is called before the end of the answer
 * leaves, or with the last reference. Only from the handler, once. */
void http_attach(struct http_request *r, void *it, void (*release)(void *it));
void *http_attached(const struct http_request *r); // NULL: nothing

/* A header of the answer, before it; at most 8. name must be static. */
void http_header(struct http_request *r, const char *name, const char *value);
/* The whole answer; takes the bytes. Without effect when the client is gone. */
void http_reply(struct http_request *r, int status, const char *type, struct buf *body);
/* Begins a stream of events (status 200, chunked). */
void http_stream(struct http_request *r);
/* -EAGAIN: taken, but the reader is behind: hold back what comes until http_on_drain(), or until
 * http_is_behind() says otherwise. -ECANCELED: gone. -ENOBUFS: max_unread waited already, dropped.
 */
int http_write(struct http_request *r, const void *data, size_t len);
bool http_is_behind(struct http_request *r);
void http_end(struct http_request *r);
