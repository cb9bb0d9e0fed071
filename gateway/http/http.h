/* http.h - the HTTP server; only http.c and http_request.c see libmicrohttpd.
 *
 * The application sees a request twice. First it admits or refuses the request by its header. Then
 * it gets the whole request: framing checked, header and body within their limits, arrived in time.
 *
 * It answers with one http_reply(), or with http_stream(), any number of http_write() and one
 * http_end(). Both may happen later and from any thread. Until then the connection is suspended and
 * occupies no thread. A disconnect is noticed immediately, also while the request waits.
 *
 * Threads: a pool inside libmicrohttpd calls the handler, which must not block. One more thread
 * watches for disconnects and timeouts. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/buf.h"
#include "base/cert.h"
#include "base/mem.h"
#include "gateway/http/address.h"

struct http_server;
struct http_request;

typedef void http_handler(void *user, struct http_request *r);

/* HTTP_ALL_FULL: max_connections is reached. HTTP_ADDRESS_FULL: max_per_ip is. */
enum http_reserve { HTTP_REGULAR, HTTP_ALL_FULL, HTTP_ADDRESS_FULL };

struct http_options {
    unsigned n_threads, max_connections;
    unsigned max_per_ip; // connections of one address; 0: half of max_connections
    const struct address_range
        *trusted; // peers that may name the client; live as long as the server
    unsigned n_trusted;
    size_t max_body;    // bytes; more is 413
    size_t max_bodies;  // memory of all requests together, see http_charge()
    size_t max_header;  // bytes of request line and header; more is 431
    size_t max_unread;  // unread bytes of a stream, its first event not counted
    int64_t reader_us;  // most time with half of max_unread unread, or a whole answer stalled
    int64_t request_us; // time for a whole request to arrive
    int64_t idle_us;    // time until a connection without a request is closed
    int64_t ping_us;    // silence after which a stream gets a comment
    /* Called when the header has arrived. It may refuse the request by http_reply(); then the body
     * is discarded. NULL: all requests are admitted. */
    http_handler *admit;
    struct cert_files *certs; // for HTTPS; must outlive the server; NULL: plain HTTP
};

/* fd is a listening socket, which the server owns from now on. A process has at most one server
 * with certificates. -ENOMEM; -EIO. */
int http_new(const struct http_options *o, int fd, http_handler *handler, void *user,
             struct http_server **ret);
/* Accepts no new connections. Each answer from now on closes its connection. */
void http_drain(struct http_server *s);
unsigned http_n_active(struct http_server *s); // requests whose answer is not complete
unsigned http_n_open(struct http_server *s);   // connections
size_t http_body_bytes(struct http_server *s); // counted against max_bodies
/* The sum of all bytes that were counted against max_bodies and are no longer. */
size_t http_freed_bytes(struct http_server *s);
/* Waits until no request is active, at most timeout_us. */
void http_wait_idle(struct http_server *s, int64_t timeout_us);
/* Ends the remaining requests and connections. References to requests stay valid. */
void http_stop(struct http_server *s);
/* After the last reference to a request. NULL is fine. Stops the server if it still runs. */
void http_free(struct http_server *s);
DEFINE_AUTO(struct http_server, http_free)

/* ---- a request ---- */

struct http_server *http_server_of(const struct http_request *r);
const char *http_method(const struct http_request *r);
const char *http_path(const struct http_request *r); // decoded, without the query
/* The client, for logs and limits: the peer, or the address that a trusted proxy names. */
const struct address *http_client(const struct http_request *r);
/* Not HTTP_REGULAR: there is no place for this request. Only monitors may be answered. */
enum http_reserve http_reserve(const struct http_request *r);
/* The value of a header field as it arrived; NULL: absent. Only from the handler. */
const char *http_field(const struct http_request *r, const char *name);
const char *http_id(const struct http_request *r); // X-Request-Id if valid, else a random one
const char *http_body(const struct http_request *r, size_t *ret_len); // a NUL follows
/* Frees the bytes once they are parsed. Their size still counts against max_bodies, because the
 * parsed data takes their place, until http_charge() sets another size. Only by the thread that
 * answers, as the next function. */
void http_free_body(struct http_request *r);
/* The API key that the request has sent pays for its memory, not its address. key: a name; keys of
 * one name have one share. Only before the first http_charge(). */
void http_set_payer(struct http_request *r, const char *key);
/* Who pays for the memory of the request. "": nothing was charged yet, and no key was set. */
const char *http_payer(const struct http_request *r);
/* Sets the bytes of memory that the request counts against max_bodies. The release of the last
 * reference sets 0. Errors are those of request_memory_set(), and -ENOMEM. */
int http_charge(struct http_request *r, size_t bytes);
size_t http_charged(const struct http_request *r); // the bytes of the last http_charge()
/* Counts n more bytes for an answer that runs, see request_memory_grow(). false: they do not
 * fit. */
bool http_hold(struct http_request *r, size_t n);
int64_t http_begun_us(const struct http_request *r); // clock_us() when the header had arrived

/* A handler that answers later keeps a reference. */
struct http_request *http_ref(struct http_request *r);
void http_unref(struct http_request *r);

/* fn(user) is called exactly once: when the client has disconnected, or the whole answer is sent.
 * Only from the handler. */
void http_on_close(struct http_request *r, void (*fn)(void *user), void *user);

/* fn(user), with the user of http_on_close(), is called when a slow reader has caught up. More than
 * half of max_unread was unread, and now at most a quarter is. */
void http_on_drain(struct http_request *r, void (*fn)(void *user));

/* Attaches an object of the application. release(it) is called before the end of the answer is
 * sent, or with the last reference. Only from the handler, once. */
void http_attach(struct http_request *r, void *it, void (*release)(void *it));
void *http_attached(const struct http_request *r); // NULL: none

/* Work on the answer has begun. Before that, the connection may be closed when all places are taken
 * (connections.h). The begin of an answer has the same effect. */
void http_keep_place(struct http_request *r);

/* The whole answer is sent at this time (clock_us()), or up to 0.1 s later. Until then the
 * connection may be closed when all places are taken. Before http_reply(). */
void http_delay(struct http_request *r, int64_t until_us);

/* Adds a header field to the answer, before the answer; at most 16. name must be static. */
void http_header(struct http_request *r, const char *name, const char *value);
/* Sends the whole answer; takes the bytes. No effect when the client has disconnected. */
void http_reply(struct http_request *r, int status, const char *type, struct buf *body);
/* Begins a stream of events (status 200, chunked). Not for HEAD: libmicrohttpd 0.9.75 would send
 * the last chunk, and the client would read it as the next answer. */
void http_stream(struct http_request *r);
/* The buffer of unread bytes counts as by http_charge(), in whole steps of 64 KiB of its capacity.
 * If it finds no memory, the reader is slow.
 * -EAGAIN: taken, but the reader is slow. Pause until the callback of http_on_drain(), or until
 * http_reader_is_slow() is false.
 * -ECANCELED: the client has disconnected. -ENOBUFS: more than max_unread is unread; the client is
 * dropped. */
int http_write(struct http_request *r, const void *data, size_t len);
bool http_reader_is_slow(struct http_request *r);
void http_end(struct http_request *r);
