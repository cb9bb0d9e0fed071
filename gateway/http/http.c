/* http.c - the HTTP server: arriving requests, connections, start and end. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/rng.h"
#include "base/svc.h"
#include "gateway/http/answer.h"
#include "gateway/http/framing.h"
#include "gateway/http/http_request.h"
#include "gateway/http/http_tls.h"

#define OTHER_WORK_US 30          // of a thread for a request, beside our own: parsing, sending
#define MAX_URL_BYTES 2048        // path and query, decoded
#define POOL_BYTES (64u << 10)    // of a connection: header and read buffer
#define DISCARD_BYTES (64u << 20) // read past max_body, so that the client sees the 413
#define TINY_PIECES 1024          // of a body; beyond, their mean must be at least ...
#define TINY_PIECE_BYTES 16       // ... this many bytes
#define LIMIT_SLACK 128           // for accepted connections that are not counted yet
#define STOP_US 2000000           // for answers to end, then again for connections
#define SEND_BUFFER (256 << 10)   // in the kernel, for a stalled reader; the default is 4 MiB

/* ---- arrival ---- */

static struct connection *connection_of(struct MHD_Connection *c)
{
    const union MHD_ConnectionInfo *i =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return i ? i->socket_context : NULL;
}

static void set_phase(struct http_server *s, struct MHD_Connection *c, enum connection_phase phase,
                      struct http_request *r)
{
    connections_set_phase(s->connections, connection_of(c), phase, r);
}

static void *on_request_line(void *cls, const char *uri, struct MHD_Connection *c)
{
    (void)uri;
    set_phase(cls, c, CONNECTION_RECEIVING, NULL);
    return NULL;
}

/* A decoded NUL would cut the path short. A path with one stays encoded and matches no route. */
static size_t unescape(void *cls, struct MHD_Connection *c, char *text)
{
    (void)cls, (void)c;
    return strstr(text, "%00") ? strlen(text) : MHD_http_unescape(text);
}

static enum MHD_Result add_field(void *cls, enum MHD_ValueKind kind, const char *name,
                                 size_t name_len, const char *value, size_t len)
{
    (void)kind;
    framing_add(cls, name, name_len, value ? value : "", len);
    return MHD_YES;
}

static enum MHD_Result add_query_bytes(void *cls, enum MHD_ValueKind kind, const char *name,
                                       size_t name_len, const char *value, size_t len)
{
    (void)kind, (void)name, (void)value;
    *(size_t *)cls += name_len + len + 2;
    return MHD_YES;
}

static struct http_request *request_new(struct http_server *s, struct MHD_Connection *c,
                                        const char *path, const char *method, const char *id)
{
    struct http_request *r = calloc(1, sizeof(*r));
    if (!r || !(r->path = strdup(path))) {
        free(r);
        return NULL;
    }
    r->s = s;
    r->c = c;
    r->begun_us = clock_us();
    atomic_init(&r->n_refs, 1);
    pthread_mutex_init(&r->mu, NULL);
    buf_init(&r->body, s->o.max_body);
    snprintf(r->method, sizeof(r->method), "%s", method);
    if (framing_sane_id(id))
        snprintf(r->id, sizeof(r->id), "%s", id);
    else
        snprintf(r->id, sizeof(r->id), "%016" PRIx64, rng_secret());
    return r;
}

static enum MHD_Result refuse_body(struct http_request *r)
{
    return http_refuse(r, 413, "the request body is too large: at most %zu KiB",
                       r->s->o.max_body >> 10);
}

/* Finds out whose request it is, and whether there is a place for it. */
static void set_client(struct http_request *r, const struct framing *w)
{
    struct connection *k = connection_of(r->c);
    struct address peer = connections_peer(k);
    r->client =
        address_client(&peer, w->forwarded, w->n_forwarded, r->s->o.trusted, r->s->o.n_trusted);
    r->reserve = connections_reserve(k);
    r->closes = r->reserve != HTTP_REGULAR;
    if (!connections_set_client(r->s->connections, k, &r->client))
        r->reserve = HTTP_ADDRESS_FULL;
}

/* The header has arrived: refuses the request now if the header is enough to decide. */
static enum MHD_Result request_begin(struct http_server *s, struct MHD_Connection *c,
                                     const char *path, const char *method, const char *version,
                                     void **ret)
{
    struct framing w = {0};
    MHD_get_connection_values_n(c, MHD_HEADER_KIND, add_field, &w);
    struct http_request *r = request_new(s, c, path, method, w.id);
    if (!r)
        return MHD_NO;
    *ret = r;
    set_phase(s, c, CONNECTION_RECEIVING, r);
    set_client(r, &w);
    const char *fault = framing_fault(&w, version);
    if (fault)
        return http_refuse(r, 400, "%s", fault);
    size_t url = strlen(path);
    MHD_get_connection_values_n(c, MHD_GET_ARGUMENT_KIND, add_query_bytes, &url);
    if (url > MAX_URL_BYTES)
        return http_refuse(r, 414, "the path and its query are too long: %zu bytes, at most %d",
                           url, MAX_URL_BYTES);
    if (w.n_bytes + url > s->o.max_header)
        return http_refuse(r, 431, "the request header is too large: %zu bytes, at most %zu",
                           w.n_bytes + url, s->o.max_header);
    if (s->o.admit)
        s->o.admit(s->user, r);
    r->refused = r->answer != NONE;
    if (r->refused && w.expect) {
        http_header(r, "Connection", "close");
        return http_answer_or_sleep(r);
    }
    unsigned long long length = framing_length(&w);
    r->too_big = length > s->o.max_body;
    if (r->too_big && (w.expect || length - s->o.max_body > DISCARD_BYTES))
        return refuse_body(r);
    return MHD_YES;
}

/* Refuses the request if its body finds no memory. */
static void charge_body(struct http_request *r, size_t n)
{
    int rc = http_charge(r, r->counted + n);
    if (rc == 0)
        return;
    r->refused = true;
    http_header(r, "Connection", "close");
    answer_error(r, answer_charge_status(rc), fail_text(), "");
}

/* Whether the body comes in tiny pieces, so that its bytes cost far more than those of others.
 * libmicrohttpd passes each chunk of a chunked body separately. */
static bool is_shredded(const struct http_request *r)
{
    return r->n_pieces > TINY_PIECES && r->body_bytes / r->n_pieces < TINY_PIECE_BYTES;
}

/* A refused body is read and discarded: a client that still sends would not see the answer. */
static enum MHD_Result take_body(struct http_request *r, const char *data, size_t *n)
{
    r->body_bytes += *n;
    r->n_pieces++;
    if (is_shredded(r)) // no answer can be sent inside a body
        return MHD_NO;
    r->too_big |= r->body_bytes > r->s->o.max_body;
    if (!r->too_big && !r->refused)
        charge_body(r, *n);
    if (r->too_big || r->refused) {
        http_free_body(r);
        http_charge(r, 0);
    } else {
        buf_add(&r->body, data, *n);
    }
    *n = 0;
    return r->body_bytes > r->s->o.max_body + DISCARD_BYTES ? MHD_NO : MHD_YES;
}

/* Time that this thread has worked. */
static int64_t thread_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

/* The request is complete. */
static enum MHD_Result handle(struct http_request *r)
{
    if (!r->dispatched && !r->refused) {
        if (r->too_big)
            return refuse_body(r);
        if (r->body.error)
            return http_refuse(r, 500, "no memory for this request");
        pthread_mutex_lock(&r->mu);
        r->dispatched = true;
        pthread_mutex_unlock(&r->mu);
        svc_awake();
        r->s->handler(r->s->user, r);
        svc_asleep();
    }
    return http_answer_or_sleep(r);
}

static enum MHD_Result on_access(void *cls, struct MHD_Connection *c, const char *path,
                                 const char *method, const char *version, const char *data,
                                 size_t *n, void **request)
{
    struct http_server *s = cls;
    struct http_request *r = *request;
    if (!r)
        return request_begin(s, c, path, method, version, request);
    if (*n)
        return take_body(r, data, n);
    if (!r->asked)
        set_phase(s, c, CONNECTION_ANSWERING, r);
    enum http_turn turn = http_take_turn(r);
    if (turn != HTTP_TURN_NOW)
        return turn == HTTP_TURN_LATER ? MHD_YES : MHD_NO;
    int64_t from_us = thread_us();
    enum MHD_Result ok = handle(r);
    request_pace_done(s->pace, &r->turn, thread_us() - from_us + OTHER_WORK_US, clock_us());
    return ok;
}

static void on_completed(void *cls, struct MHD_Connection *c, void **request,
                         enum MHD_RequestTerminationCode code)
{
    struct http_server *s = cls;
    struct http_request *r = *request;
    if (!r)
        return;
    *request = NULL;
    request_pace_leave(s->pace, &r->turn, clock_us());
    /* libmicrohttpd removes a connection that ended early only when its thread wakes. */
    if (code != MHD_REQUEST_TERMINATED_COMPLETED_OK && !atomic_load(&s->stopping))
        MHD_resume_connection(c);
    pthread_mutex_lock(&r->mu);
    r->c = NULL;
    r->unreachable = true;
    pthread_mutex_unlock(&r->mu);
    http_notify_close(r);
    set_phase(s, c, CONNECTION_IDLE, NULL);
    http_unref(r);
}

/* ---- connections ---- */

static void on_connection(void *cls, struct MHD_Connection *c, void **context,
                          enum MHD_ConnectionNotificationCode code)
{
    struct http_server *s = cls;
    const union MHD_ConnectionInfo *i =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (code == MHD_CONNECTION_NOTIFY_CLOSED) {
        connections_close(s->connections, *context);
        return;
    }
    *context = i ? connections_open(s->connections, i->connect_fd, c) : NULL;
}

static bool on_new(void *user, int fd, const struct sockaddr *address, socklen_t len,
                   struct http_tls_session *session)
{
    struct http_server *s = user;
    http_tls_adopt(session);
    bool ok = MHD_add_connection(s->daemon, fd, address, len) == MHD_YES; // else it has closed fd
    http_tls_session_free(http_tls_adopt(NULL));
    return ok;
}

static void on_mhd_log(void *cls, const char *format, va_list args)
{
    char text[256];
    (void)cls;
    vsnprintf(text, sizeof(text), format, args);
    text[strcspn(text, "\n")] = 0;
    log_debug("http: %s", text); // one line per disconnect
}

/* ---- the server ---- */

/* libmicrohttpd does not listen itself. With epoll, MHD_quiesce_daemon() of version 0.9.75 aborts
 * when a thread wakes at that moment. It would also divide max_connections by its threads. */
static int start_daemon(struct http_server *s)
{
    const struct http_options *o = &s->o;
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG |
                     MHD_USE_ITC | MHD_USE_NO_LISTEN_SOCKET | (o->certs ? MHD_USE_TLS : 0);
    unsigned limit = (o->max_connections + LIMIT_SLACK) * o->n_threads; // divided among the threads
    struct MHD_OptionItem plain[] = {{MHD_OPTION_END, 0, NULL}};
    struct MHD_OptionItem tls[] = {{MHD_OPTION_HTTPS_CERT_CALLBACK2, 0, http_tls_callback()},
                                   {MHD_OPTION_HTTPS_PRIORITIES, 0, HTTP_TLS_PRIORITIES},
                                   {MHD_OPTION_END, 0, NULL}};
    s->daemon = MHD_start_daemon(
        flags, 0, NULL, NULL, on_access, s, MHD_OPTION_EXTERNAL_LOGGER, on_mhd_log, NULL,
        MHD_OPTION_NOTIFY_COMPLETED, on_completed, s, MHD_OPTION_NOTIFY_CONNECTION, on_connection,
        s, MHD_OPTION_URI_LOG_CALLBACK, on_request_line, s, MHD_OPTION_CONNECTION_LIMIT, limit,
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)POOL_BYTES, MHD_OPTION_CONNECTION_TIMEOUT,
        (unsigned)(o->idle_us / 1000000 + 1), MHD_OPTION_STRICT_FOR_CLIENT, 1,
        MHD_OPTION_UNESCAPE_CALLBACK, unescape, NULL, MHD_OPTION_THREAD_POOL_SIZE,
        o->n_threads > 1 ? o->n_threads : 0, MHD_OPTION_ARRAY, o->certs ? tls : plain,
        MHD_OPTION_END);
    return s->daemon ? 0 : fail(-EIO, "http: cannot start the server: %s", strerror(errno));
}

int http_new(const struct http_options *o, int fd, http_handler *handler, void *user,
             struct http_server **ret)
{
    struct http_server *s = calloc(1, sizeof(*s));
    if (!s) {
        close(fd);
        return fail(-ENOMEM, "http: no memory");
    }
    s->o = *o;
    s->handler = handler;
    s->user = user;
    s->listen_fd = fd;
    int size = SEND_BUFFER;
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size)); // inherited by connections
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    int rc = request_memory_new(o->max_bodies, &s->memory);
    rc = rc < 0 ? rc : request_pace_new(o->n_threads, http_on_turn, &s->pace);
    rc = rc < 0 || !o->certs ? rc : http_tls_use(o->certs);
    rc = rc < 0 ? rc : connections_new(o, &s->connections);
    rc = rc < 0 ? rc : start_daemon(s);
    if (rc < 0) {
        http_free(s);
        return rc;
    }
    connections_listen(s->connections, fd, on_new, s);
    *ret = s;
    return 0;
}

void http_drain(struct http_server *s)
{
    atomic_store(&s->draining, true);
    request_pace_end(s->pace);
    if (s->listen_fd >= 0)
        connections_unlisten(s->connections);
    s->listen_fd = -1;
}

unsigned http_n_active(struct http_server *s)
{
    return connections_n_active(s->connections);
}

unsigned http_n_open(struct http_server *s)
{
    return connections_n_open(s->connections);
}

size_t http_body_bytes(struct http_server *s)
{
    return request_memory_used(s->memory);
}

size_t http_freed_bytes(struct http_server *s)
{
    return request_memory_freed(s->memory);
}

void http_wait_idle(struct http_server *s, int64_t timeout_us)
{
    connections_wait_idle(s->connections, timeout_us);
}

/* Ends the connections before libmicrohttpd, which must not be stopped while one is suspended.
 * Version 0.9.75 also reads through NULL if it is stopped while it refuses a malformed request. */
void http_stop(struct http_server *s)
{
    atomic_store(&s->stopping, true);
    if (!s->daemon)
        return;
    connections_stop(s->connections);
    http_drain(s);
    connections_abandon(s->connections);
    http_wait_idle(s, STOP_US);
    connections_end(s->connections, STOP_US);
    MHD_stop_daemon(s->daemon);
    s->daemon = NULL;
}

void http_free(struct http_server *s)
{
    if (!s)
        return;
    http_stop(s);
    connections_free(s->connections);
    request_pace_free(s->pace);
    request_memory_free(s->memory);
    if (s->listen_fd >= 0)
        close(s->listen_fd);
    free(s);
}
