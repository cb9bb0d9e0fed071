/* connections.h - the open connections, the phase of each, and the thread that watches them.
 *
 * At most max_connections are open. When there are more, the address that holds most loses one
 * whose request nobody works on. Such a request is incomplete, it waits for its turn, or its answer
 * waits for the reader. Or no work on its answer has begun for 2 s; it gives way only to an address
 * with fewer connections. When there is none, new connections come from a reserve. These get health
 * and errors only, one request each, within seconds. An address above max_per_ip is treated in the
 * same way, among its own connections. Connections of trusted proxies count for the client that the
 * request names, while it is answered.
 *
 * The watcher accepts new connections, notices clients that disconnect while their request waits,
 * and ends connections that exceed a timeout.
 *
 * Private to http.c. It does not see libmicrohttpd: it closes a connection by shutting its socket
 * down. Its calls into requests are in http_watch.h.
 *
 * Threads: any. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>
#include "base/mem.h"
#include "gateway/http/address.h"
#include "gateway/http/http.h"

struct connections;
struct connection;
struct MHD_Connection;
struct http_tls_session;

/* IDLE -> RECEIVING (the request line is here) -> ANSWERING (the request is complete) -> IDLE. */
enum connection_phase { CONNECTION_IDLE, CONNECTION_RECEIVING, CONNECTION_ANSWERING };

/* With certificates, http_tls_use() must have been called. -ENOMEM. */
int connections_new(const struct http_options *o, struct connections **ret);
/* Ends the watcher; the connections stay open. */
void connections_stop(struct connections *s);
void connections_free(struct connections *s);
DEFINE_AUTO(struct connections, connections_free)

/* Accepts connections of the listening socket fd. take() owns each new one, and its session of TLS.
 * true: connections_open() follows, or the socket is closed; false: take() has closed it. */
typedef bool connections_accept_fn(void *user, int fd, const struct sockaddr *address,
                                   socklen_t len, struct http_tls_session *session);
void connections_listen(struct connections *s, int fd, connections_accept_fn *take, void *user);
/* Stops accepting and closes the listening socket. Only once. */
void connections_unlisten(struct connections *s);

/* The accepted connection with this socket. c: for http_watch_wake(). */
struct connection *connections_open(struct connections *s, int fd, struct MHD_Connection *c);
/* Must precede the close of the socket: its number may be reused afterwards. k may be NULL. */
void connections_close(struct connections *s, struct connection *k);
struct address connections_peer(const struct connection *k);
enum http_reserve connections_reserve(const struct connection *k);
/* The connection of a trusted proxy brings a request of this client. It counts for it until it is
 * idle. false: the client has reached max_per_ip, and nothing is counted. */
bool connections_set_client(struct connections *s, struct connection *k, const struct address *a);
/* r: the request of the phase, or NULL. It must live until the next phase. k may be NULL. */
void connections_set_phase(struct connections *s, struct connection *k, enum connection_phase phase,
                           struct http_request *r);

unsigned connections_n_active(struct connections *s); // ANSWERING
unsigned connections_n_open(struct connections *s);   // accepted ones included
void connections_wait_idle(struct connections *s, int64_t timeout_us);
void connections_abandon(struct connections *s); // http_watch_abandon() for each request
/* Shuts down all sockets until all connections are closed, at most timeout_us. */
void connections_end(struct connections *s, int64_t timeout_us);
