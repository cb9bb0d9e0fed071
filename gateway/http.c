/* http.c - the HTTP server, and the only door to libmicrohttpd. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/err.h"
#include "base/log.h"
#include "base/svc.h"
#include "gateway/conns.h"
#include "gateway/framing.h"
#include "gateway/http.h"
#include "gateway/openai_reply.h"
#include "gateway/sse.h"

#define MAX_HEADERS 8
#define MAX_URL_BYTES 2048        // path and query, decoded
#define POOL_BYTES (64u << 10)    // of a connection: header and read buffer
#define DISCARD_BYTES (64u << 20) // of a body over the limit that are read, so that 413 arrives
#define STREAM_BLOCK 16384        // bytes per chunk
#define SEND_BUFFER (256 << 10)   // the kernel's, for a reader that has stopped; by itself 4 MiB

struct http_server {
    struct http_options o;
    struct MHD_Daemon *daemon;
    struct conns *conns;
    http_handler *handler;
    void *user;
    int listen_fd;
    atomic_bool draining, stopping;
    atomic_size_t body_bytes; // that requests count for, see http_free_body()
};

enum answer { NONE, REPLY, STREAM };

struct http_request {
    struct http_server *s;
    atomic_uint n_refs;
    char *path;
    char method[16], id[72];
    struct buf body;
    size_t body_bytes; // arrived, also those over the limit
    size_t counted;    // of the server's body_bytes
    int64_t begun_us;
    bool too_big, no_room;

    pthread_mutex_t mu;       // for what follows
    struct MHD_Connection *c; // NULL: libmicrohttpd is done with it
    enum answer answer;
    bool dispatched; // the application knows it
    bool suspended;  // its connection sleeps
    bool hung_up;    // the client has closed, or will not say more
    bool gone;       // nobody will read an answer
    bool overrun;    // its reader is too slow
    bool ended;      // the stream is complete
    int status;
    const char *type;
    struct {
        const char *name;
        char *value;
    } headers[MAX_HEADERS];
    unsigned n_headers;
    struct buf out;
    size_t out_at;    // read up to here
    size_t out_first; // bytes of the event that found nothing waiting
    int64_t written_us;
    int64_t behind_us; // since when half of max_unread waits; 0: it does not
    void (*on_close)(void *user);
    void (*on_drain)(void *user);
    void *user;
    void (*release)(void *carried);
    void *carried;
};

/* ---- requests ---- */

static void put_down(struct http_request *r)
{
    pthread_mutex_lock(&r->mu);
    void *it = TAKE(r->carried);
    pthread_mutex_unlock(&r->mu);
    if (it)
        r->release(it);
}

struct http_request *http_ref(struct http_request *r)
{
    atomic_fetch_add(&r->n_refs, 1);
    return r;
}

void http_unref(struct http_request *r)
{
    if (!r || atomic_fetch_sub(&r->n_refs, 1) != 1)
        return;
    put_down(r);
    pthread_mutex_destroy(&r->mu);
    http_let_go(r);
    for (unsigned i = 0; i < r->n_headers; i++)
        free(r->headers[i].value);
    buf_done(&r->out);
    free(r->path);
    free(r);
}

struct http_server *http_server_of(const struct http_request *r)
{
    return r->s;
}

const char *http_method(const struct http_request *r)
{
    return r->method;
}

const char *http_path(const struct http_request *r)
{
    return r->path;
}

const char *http_field(const struct http_request *r, const char *name)
{
    return MHD_lookup_connection_value(r->c, MHD_HEADER_KIND, name);
}

void http_carry(struct http_request *r, void *it, void (*release)(void *it))
{
    r->carried = it;
    r->release = release;
}

void *http_carried(const struct http_request *r)
{
    return r->carried;
}

const char *http_id(const struct http_request *r)
{
    return r->id;
}

const char *http_body(const struct http_request *r, size_t *ret_len)
{
    *ret_len = r->body.len;
    return r->body.data ? r->body.data : "";
}

void http_free_body(struct http_request *r)
{
    buf_done(&r->body);
}

void http_let_go(struct http_request *r)
{
    http_free_body(r);
    atomic_fetch_sub(&r->s->body_bytes, r->counted);
    r->counted = 0;
}

int64_t http_begun_us(const struct http_request *r)
{
    return r->begun_us;
}

void http_on_close(struct http_request *r, void (*fn)(void *user), void *user)
{
    pthread_mutex_lock(&r->mu);
    r->on_close = fn;
    r->user = user;
    pthread_mutex_unlock(&r->mu);
}

void http_on_drain(struct http_request *r, void (*fn)(void *user))
{
    pthread_mutex_lock(&r->mu);
    r->on_drain = fn;
    pthread_mutex_unlock(&r->mu);
}

/* Outside the lock: the owner may call back. */
static void tell_close(struct http_request *r)
{
    pthread_mutex_lock(&r->mu);
    void (*fn)(void *user) = TAKE(r->on_close);
    pthread_mutex_unlock(&r->mu);
    if (fn)
        fn(r->user);
}

/* With the lock. */
static void wake(struct http_request *r)
{
    if (r->suspended && r->c)
        MHD_resume_connection(r->c);
    r->suspended = false;
}

void http_header(struct http_request *r, const char *name, const char *value)
{
    char *copy = r->n_headers < MAX_HEADERS ? strdup(value) : NULL;
    if (!copy)
        return;
    r->headers[r->n_headers].name = name;
    r->headers[r->n_headers++].value = copy;
}

void http_reply(struct http_request *r, int status, const char *type, struct buf *body)
{
    put_down(r);
    pthread_mutex_lock(&r->mu);
    if (r->answer == NONE && !r->gone) {
        r->answer = REPLY;
        r->status = status;
        r->type = type;
        buf_done(&r->out);
        r->out = *body;
        *body = (struct buf){.max = body->max};
        wake(r);
    }
    pthread_mutex_unlock(&r->mu);
    buf_done(body);
}

void http_stream(struct http_request *r)
{
    pthread_mutex_lock(&r->mu);
    if (r->answer == NONE && !r->gone) {
        r->answer = STREAM;
        r->status = 200;
        r->type = "text/event-stream; charset=utf-8";
        r->written_us = clock_us();
        buf_init(&r->out, SIZE_MAX / 2); // append() bounds it
        wake(r);
    }
    pthread_mutex_unlock(&r->mu);
}

/* With the lock. An event of any size is taken while no more waits than may: the first one does not
 * count, and the writer holds back once it is told to. */
static int append(struct http_request *r, const void *data, size_t len)
{
    if (r->gone || r->answer != STREAM || r->ended)
        return -ECANCELED;
    if (r->out_at) {
        buf_shift(&r->out, r->out_at);
        r->out_at = 0;
    }
    if (!r->out.len)
        r->out_first = len;
    bool full = r->out.len > r->s->o.max_unread + r->out_first;
    if (!full)
        buf_add(&r->out, data, len);
    if (full || r->out.error) {
        r->gone = r->overrun = true; // the watcher shuts the socket down
        wake(r);
        return -ENOBUFS;
    }
    r->written_us = clock_us();
    if (!r->behind_us && r->out.len > r->s->o.max_unread / 2)
        r->behind_us = r->written_us;
    wake(r);
    return r->behind_us ? -EAGAIN : 0;
}

int http_write(struct http_request *r, const void *data, size_t len)
{
    pthread_mutex_lock(&r->mu);
    int rc = append(r, data, len);
    pthread_mutex_unlock(&r->mu);
    return rc;
}

bool http_is_behind(struct http_request *r)
{
    pthread_mutex_lock(&r->mu);
    bool behind = r->behind_us != 0;
    pthread_mutex_unlock(&r->mu);
    return behind;
}

void http_end(struct http_request *r)
{
    put_down(r);
    pthread_mutex_lock(&r->mu);
    r->ended = true;
    wake(r);
    pthread_mutex_unlock(&r->mu);
}

/* ---- what the watcher asks for ---- */

/* Whoever works for a client that is gone may stop. */
void http_hang_up(struct http_request *r)
{
    pthread_mutex_lock(&r->mu);
    bool waits = r->dispatched && !r->gone && r->suspended;
    r->hung_up = true;
    if (waits) {
        r->gone = true;
        wake(r);
    }
    pthread_mutex_unlock(&r->mu);
    if (waits)
        tell_close(r);
}

/* A comment keeps proxies patient and finds connections that are dead without a word. */
bool http_tend(struct http_request *r, int64_t now_us)
{
    pthread_mutex_lock(&r->mu);
    if (r->answer == STREAM && r->suspended && now_us - r->written_us >= r->s->o.ping_us)
        append(r, SSE_PING, sizeof(SSE_PING) - 1);
    bool drop = r->overrun || (r->behind_us && now_us - r->behind_us > r->s->o.reader_us);
    pthread_mutex_unlock(&r->mu);
    return drop;
}

void http_give_up(struct http_request *r)
{
    pthread_mutex_lock(&r->mu);
    r->gone = true;
    wake(r);
    pthread_mutex_unlock(&r->mu);
}

/* ---- answers, on the connection's thread ---- */

/* With the lock. What waits, at most max bytes of it; true: the reader has caught up. */
static bool take_out(struct http_request *r, char *to, size_t max, ssize_t *ret_n)
{
    size_t left = r->out.len - r->out_at, n = left < max ? left : max;
    memcpy(to, r->out.data + r->out_at, n);
    r->out_at += n;
    *ret_n = (ssize_t)n;
    if (n == left) {
        buf_clear(&r->out);
        r->out_at = 0;
    }
    if (!r->behind_us || left - n > r->s->o.max_unread / 4)
        return false;
    r->behind_us = 0;
    return true;
}

static ssize_t stream_read(void *cls, uint64_t at, char *to, size_t max)
{
    struct http_request *r = cls;
    bool caught_up = false, waits;
    ssize_t n = 0;
    (void)at;
    pthread_mutex_lock(&r->mu);
    waits = r->out.len > r->out_at;
    if (r->gone || (r->hung_up && !waits && !r->ended)) {
        n = MHD_CONTENT_READER_END_WITH_ERROR;
    } else if (waits) {
        caught_up = take_out(r, to, max, &n);
    } else if (r->ended) {
        n = MHD_CONTENT_READER_END_OF_STREAM;
    } else {
        r->suspended = true;
        MHD_suspend_connection(r->c); // under the lock, or a wake-up is lost
    }
    void (*on_drain)(void *user) = caught_up && r->on_close ? r->on_drain : NULL;
    pthread_mutex_unlock(&r->mu);
    if (on_drain)
        on_drain(r->user);
    return n;
}

static void stream_free(void *cls)
{
    http_unref(cls);
}

static struct MHD_Response *response_of(struct http_request *r)
{
    struct MHD_Response *m;
    if (r->answer == STREAM) {
        m = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK, stream_read,
                                              http_ref(r), stream_free);
        if (!m)
            http_unref(r);
    } else {
        size_t len = r->out.len;
        m = MHD_create_response_from_buffer(len, buf_take(&r->out), MHD_RESPMEM_MUST_FREE);
    }
    if (!m)
        return NULL;
    MHD_add_response_header(m, "Content-Type", r->type);
    MHD_add_response_header(m, "X-Request-Id", r->id);
    MHD_add_response_header(m, "Cache-Control", "no-store");
    for (unsigned i = 0; i < r->n_headers; i++)
        MHD_add_response_header(m, r->headers[i].name, r->headers[i].value);
    if ((r->status == 429 || r->status == 503) && !MHD_get_response_header(m, "Retry-After"))
        MHD_add_response_header(m, "Retry-After", "1");
    if (atomic_load(&r->s->draining))
        MHD_add_response_header(m, "Connection", "close");
    return m;
}

/* With the lock. */
static enum MHD_Result queue_answer(struct http_request *r)
{
    struct MHD_Response *m = response_of(r);
    if (!m)
        return MHD_NO;
    enum MHD_Result ok = MHD_queue_response(r->c, (unsigned)r->status, m);
    MHD_destroy_response(m);
    return ok;
}

/* Answers if there is an answer, else lets the connection sleep. */
static enum MHD_Result answer_or_sleep(struct http_request *r)
{
    enum MHD_Result ok = MHD_YES;
    bool lost = false;
    pthread_mutex_lock(&r->mu);
    if (r->gone) {
        ok = MHD_NO;
    } else if (r->answer != NONE) {
        ok = queue_answer(r);
    } else if (r->hung_up || atomic_load(&r->s->stopping)) {
        r->gone = lost = true;
        ok = MHD_NO;
    } else {
        r->suspended = true;
        MHD_suspend_connection(r->c);
    }
    pthread_mutex_unlock(&r->mu);
    if (lost)
        tell_close(r);
    return ok;
}

/* An error of this file's own, in the API's shape. */
static enum MHD_Result refuse(struct http_request *r, int status, const char *text)
{
    struct buf body;
    buf_init(&body, 4096);
    openai_error(&body, status, text, "");
    http_header(r, "Connection", "close");
    http_reply(r, status, "application/json", &body);
    pthread_mutex_lock(&r->mu);
    enum MHD_Result ok = queue_answer(r);
    pthread_mutex_unlock(&r->mu);
    return ok;
}

/* ---- arrival ---- */

static void set_phase(struct http_server *s, struct MHD_Connection *c, enum conn_phase phase,
                      struct http_request *r)
{
    const union MHD_ConnectionInfo *i =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    conns_phase(s->conns, i ? i->socket_context : NULL, phase, r);
}

static void *on_request_line(void *cls, const char *uri, struct MHD_Connection *c)
{
    (void)uri;
    set_phase(cls, c, CONN_RECEIVING, NULL);
    return NULL;
}

/* A NUL would end the path before its end: what holds one stays as it came, and is no path of ours.
 */
static size_t unescape(void *cls, struct MHD_Connection *c, char *text)
{
    (void)cls, (void)c;
    return strstr(text, "%00") ? strlen(text) : MHD_http_unescape(text);
}

static enum MHD_Result walk(void *cls, enum MHD_ValueKind kind, const char *name, size_t name_len,
                            const char *value, size_t len)
{
    (void)kind;
    framing_add(cls, name, name_len, value ? value : "", len);
    return MHD_YES;
}

static enum MHD_Result walk_query(void *cls, enum MHD_ValueKind kind, const char *name,
                                  size_t name_len, const char *value, size_t len)
{
    (void)kind, (void)name, (void)value;
    *(size_t *)cls += name_len + len + 2;
    return MHD_YES;
}

static struct http_request *request_new(struct http_server *s, struct MHD_Connection *c,
                                        const char *path, const char *method, const char *id)
{
    uint64_t random = 0;
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
    if (!framing_sane_id(id) && getrandom(&random, sizeof(random), GRND_NONBLOCK) < 0)
        random = (uint64_t)r->begun_us;
    if (framing_sane_id(id))
        snprintf(r->id, sizeof(r->id), "%s", id);
    else
        snprintf(r->id, sizeof(r->id), "%016" PRIx64, random);
    return r;
}

/* The header is here: refuse now what needs no body. */
static enum MHD_Result request_begin(struct http_server *s, struct MHD_Connection *c,
                                     const char *path, const char *method, const char *version,
                                     void **ret)
{
    struct framing w = {0};
    MHD_get_connection_values_n(c, MHD_HEADER_KIND, walk, &w);
    struct http_request *r = request_new(s, c, path, method, w.id);
    if (!r)
        return MHD_NO;
    *ret = r;
    set_phase(s, c, CONN_RECEIVING, r);
    const char *fault = framing_fault(&w, version);
    if (fault)
        return refuse(r, 400, fault);
    size_t url = strlen(path);
    MHD_get_connection_values_n(c, MHD_GET_ARGUMENT_KIND, walk_query, &url);
    if (url > MAX_URL_BYTES)
        return refuse(r, 414, "the path and its query are too long");
    if (w.n_bytes + url > s->o.max_header)
        return refuse(r, 431, "the request header is too large");
    unsigned long long length = framing_length(&w);
    r->too_big = length > s->o.max_body;
    if (r->too_big && (w.expect || length - s->o.max_body > DISCARD_BYTES))
        return refuse(r, 413, "the request body is too large");
    return MHD_YES;
}

/* false: all requests together hold too much. */
static bool count(struct http_request *r, size_t n)
{
    r->counted += n;
    return atomic_fetch_add(&r->s->body_bytes, n) + n <= r->s->o.max_bodies;
}

/* What is refused is read all the same: a client that still sends would not see the answer. */
static enum MHD_Result take_body(struct http_request *r, const char *data, size_t *n)
{
    r->body_bytes += *n;
    r->too_big |= r->body_bytes > r->s->o.max_body;
    r->no_room |= !r->too_big && !r->no_room && !count(r, *n);
    if (r->too_big || r->no_room)
        http_let_go(r);
    else
        buf_add(&r->body, data, *n);
    *n = 0;
    return r->body_bytes > r->s->o.max_body + DISCARD_BYTES ? MHD_NO : MHD_YES;
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
    if (!r->dispatched) {
        if (r->too_big)
            return refuse(r, 413, "the request body is too large");
        if (r->no_room)
            return refuse(r, 503, "the bodies of other requests take all the room; try again");
        if (r->body.error)
            return refuse(r, 500, "no memory for this request");
        pthread_mutex_lock(&r->mu);
        r->dispatched = true;
        pthread_mutex_unlock(&r->mu);
        set_phase(s, c, CONN_ANSWERING, r);
        svc_awake();
        s->handler(s->user, r);
        svc_asleep();
    }
    return answer_or_sleep(r);
}

static void on_completed(void *cls, struct MHD_Connection *c, void **request,
                         enum MHD_RequestTerminationCode code)
{
    struct http_request *r = *request;
    (void)code;
    if (!r)
        return;
    *request = NULL;
    pthread_mutex_lock(&r->mu);
    r->c = NULL;
    r->gone = true;
    pthread_mutex_unlock(&r->mu);
    tell_close(r);
    set_phase(cls, c, CONN_IDLE, NULL);
    http_unref(r);
}

/* ---- connections ---- */

static void on_connection(void *cls, struct MHD_Connection *c, void **context,
                          enum MHD_ConnectionNotificationCode code)
{
    struct http_server *s = cls;
    const union MHD_ConnectionInfo *i =
        MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    if (code == MHD_CONNECTION_NOTIFY_CLOSED)
        conns_close(s->conns, *context);
    else
        *context = i ? conns_open(s->conns, i->connect_fd) : NULL;
}

static void on_mhd_log(void *cls, const char *format, va_list args)
{
    char text[256];
    (void)cls;
    vsnprintf(text, sizeof(text), format, args);
    text[strcspn(text, "\n")] = 0;
    log_debug("http: %s", text); // a line for every client that hangs up
}

/* ---- the server ---- */

static int start_daemon(struct http_server *s)
{
    const struct http_options *o = &s->o;
    unsigned flags =
        MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG | MHD_USE_ITC;
    s->daemon = MHD_start_daemon(
        flags, 0, NULL, NULL, on_access, s, MHD_OPTION_EXTERNAL_LOGGER, on_mhd_log, NULL,
        MHD_OPTION_LISTEN_SOCKET, s->listen_fd, MHD_OPTION_NOTIFY_COMPLETED, on_completed, s,
        MHD_OPTION_NOTIFY_CONNECTION, on_connection, s, MHD_OPTION_URI_LOG_CALLBACK,
        on_request_line, s, MHD_OPTION_CONNECTION_LIMIT, o->max_connections,
        MHD_OPTION_PER_IP_CONNECTION_LIMIT, o->max_per_ip, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
        (size_t)POOL_BYTES, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)(o->idle_us / 1000000 + 1),
        MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_UNESCAPE_CALLBACK, unescape, NULL,
        MHD_OPTION_THREAD_POOL_SIZE, o->n_threads > 1 ? o->n_threads : 0, MHD_OPTION_END);
    return s->daemon ? 0 : fail(-EIO, "http: the server cannot start: %s", strerror(errno));
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
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size)); // connections inherit it
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
    int rc = conns_new(o, &s->conns);
    rc = rc < 0 ? rc : start_daemon(s);
    if (rc < 0) {
        http_free(s);
        return rc;
    }
    *ret = s;
    return 0;
}

void http_drain(struct http_server *s)
{
    atomic_store(&s->draining, true);
    if (s->listen_fd >= 0 && MHD_quiesce_daemon(s->daemon) != MHD_INVALID_SOCKET) {
        close(s->listen_fd);
        s->listen_fd = -1;
    }
}

unsigned http_n_active(struct http_server *s)
{
    return conns_n_active(s->conns);
}

size_t http_body_bytes(struct http_server *s)
{
    return atomic_load(&s->body_bytes);
}

void http_wait_idle(struct http_server *s, int64_t timeout_us)
{
    conns_wait_idle(s->conns, timeout_us);
}

/* libmicrohttpd must not be stopped while a connection sleeps. */
void http_stop(struct http_server *s)
{
    atomic_store(&s->stopping, true);
    if (!s->daemon)
        return;
    conns_stop(s->conns);
    http_drain(s);
    conns_give_up(s->conns);
    http_wait_idle(s, 2000000);
    MHD_stop_daemon(s->daemon);
    s->daemon = NULL;
}

void http_free(struct http_server *s)
{
    if (!s)
        return;
    http_stop(s);
    conns_free(s->conns);
    if (s->listen_fd >= 0)
        close(s->listen_fd);
    free(s);
}
