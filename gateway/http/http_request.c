/* http_request.c - a request inside the HTTP server: its references, its waiting, its answer. */
#include <errno.h>
#include <netinet/in.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/err.h"
#include "gateway/http/http_request.h"
#include "gateway/http/http_watch.h"
#include "gateway/openai/openai_error.h"
#include "gateway/openai/sse.h"

#define BLOCK_BYTES 16384 // of an answer per read
#define OUT_STEP 65536    // unread bytes of a stream are counted in whole steps
/* A usual reader takes the next block within some ms. With more time, two addresses could hold all
 * places with 4,096 requests in it. */
#define UNREAD_US 100000

/* ---- for the application ---- */

static void release_attached(struct http_request *r)
{
    pthread_mutex_lock(&r->mu);
    void *it = TAKE(r->attached);
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
    release_attached(r);
    pthread_mutex_destroy(&r->mu);
    http_free_body(r);
    for (unsigned i = 0; i < r->n_headers; i++)
        free(r->headers[i].value);
    buf_done(&r->out);
    http_charge(r, 0);
    if (r->out_counted)
        request_memory_set(r->s->memory, r->payer, 0, &r->out_counted);
    request_memory_leave(r->s->memory, r->payer);
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

const struct address *http_client(const struct http_request *r)
{
    return &r->client;
}

enum http_reserve http_reserve(const struct http_request *r)
{
    return r->reserve;
}

const char *http_field(const struct http_request *r, const char *name)
{
    return MHD_lookup_connection_value(r->c, MHD_HEADER_KIND, name);
}

void http_attach(struct http_request *r, void *it, void (*release)(void *it))
{
    r->attached = it;
    r->release = release;
}

void *http_attached(const struct http_request *r)
{
    return r->attached;
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

static int join(struct http_request *r, const char *name)
{
    r->payer = request_memory_join(r->s->memory, name);
    return r->payer ? 0 : fail(-ENOMEM, "no memory for this request");
}

void http_set_payer(struct http_request *r, const char *key)
{
    char name[REQUEST_MEMORY_NAME_MAX];
    snprintf(name, sizeof(name), "key %s", key);
    if (!r->payer)
        join(r, name);
}

const char *http_payer(const struct http_request *r)
{
    return r->payer ? request_memory_name(r->payer) : "";
}

static int join_as_address(struct http_request *r)
{
    char name[ADDRESS_TEXT_MAX];
    struct address site = address_site(&r->client);
    address_text(&site, name);
    return join(r, name);
}

int http_charge(struct http_request *r, size_t bytes)
{
    if (bytes == r->counted)
        return 0;
    int rc = r->payer ? 0 : join_as_address(r);
    return rc < 0 ? rc
                  : request_memory_set_beside(r->s->memory, r->payer, bytes, &r->counted,
                                              &r->out_counted);
}

size_t http_charged(const struct http_request *r)
{
    return r->counted;
}

bool http_hold(struct http_request *r, size_t n)
{
    return (r->payer || join_as_address(r) == 0) &&
           request_memory_grow(r->s->memory, r->payer, n, &r->counted);
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

void http_notify_close(struct http_request *r)
{
    pthread_mutex_lock(&r->mu);
    void (*fn)(void *user) = TAKE(r->on_close);
    pthread_mutex_unlock(&r->mu);
    if (fn)
        fn(r->user);
}

/* With the lock. */
static void resume_locked(struct http_request *r)
{
    if (r->suspended && r->c)
        MHD_resume_connection(r->c);
    r->suspended = false;
}

/* With the lock. */
static void sleep_locked(struct http_request *r)
{
    r->suspended = true;
    MHD_suspend_connection(r->c);
}

void http_header(struct http_request *r, const char *name, const char *value)
{
    char *copy = r->n_headers < HTTP_MAX_HEADERS ? strdup(value) : NULL;
    if (!copy)
        return;
    r->headers[r->n_headers].name = name;
    r->headers[r->n_headers++].value = copy;
}

void http_reply(struct http_request *r, int status, const char *type, struct buf *body)
{
    pthread_mutex_lock(&r->mu);
    if (r->answer == NONE && !r->unreachable) {
        r->answer = REPLY;
        r->status = status;
        r->type = type;
        buf_done(&r->out);
        r->out = *body;
        *body = (struct buf){.max = body->max};
        if (!r->delay_until_us)
            resume_locked(r);
    }
    pthread_mutex_unlock(&r->mu);
    buf_done(body);
}

void http_keep_place(struct http_request *r)
{
    pthread_mutex_lock(&r->mu);
    r->keeps_place = true;
    pthread_mutex_unlock(&r->mu);
}

void http_delay(struct http_request *r, int64_t until_us)
{
    pthread_mutex_lock(&r->mu);
    r->delay_until_us = until_us;
    pthread_mutex_unlock(&r->mu);
}

void http_stream(struct http_request *r)
{
    pthread_mutex_lock(&r->mu);
    if (r->answer == NONE && !r->unreachable) {
        r->answer = STREAM;
        r->status = 200;
        r->type = "text/event-stream; charset=utf-8";
        r->written_us = clock_us();
        buf_init(&r->out, SIZE_MAX / 2); // append_event() bounds it
        resume_locked(r);
    }
    pthread_mutex_unlock(&r->mu);
}

/* With the lock. Counts the memory of the unread bytes. false: it does not fit. */
static bool count_out(struct http_request *r)
{
    size_t bytes = r->out.cap - r->out.cap % OUT_STEP;
    if (bytes == r->out_counted)
        return true;
    return (r->payer || join_as_address(r) == 0) &&
           request_memory_set(r->s->memory, r->payer, bytes, &r->out_counted) == 0;
}

/* With the lock. Takes an event of any size while at most max_unread is unread. The first event
 * does not count. The writer must pause after -EAGAIN. */
static int append_event(struct http_request *r, const void *data, size_t len)
{
    if (r->unreachable || r->answer != STREAM || r->ended)
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
        r->unreachable = r->overrun = true; // the watcher shuts the socket down
        resume_locked(r);
        return -ENOBUFS;
    }
    r->written_us = clock_us();
    bool fits = count_out(r);
    if (!r->slow_since_us && (!fits || r->out.len > r->s->o.max_unread / 2))
        r->slow_since_us = r->written_us;
    resume_locked(r);
    return r->slow_since_us ? -EAGAIN : 0;
}

int http_write(struct http_request *r, const void *data, size_t len)
{
    pthread_mutex_lock(&r->mu);
    int rc = append_event(r, data, len);
    pthread_mutex_unlock(&r->mu);
    return rc;
}

bool http_reader_is_slow(struct http_request *r)
{
    pthread_mutex_lock(&r->mu);
    bool slow = r->slow_since_us != 0;
    pthread_mutex_unlock(&r->mu);
    return slow;
}

void http_end(struct http_request *r)
{
    pthread_mutex_lock(&r->mu);
    bool pending = r->out.len > r->out_at; // stream_read() will release the attached object
    r->ended = pending;
    r->taken_us = clock_us();
    pthread_mutex_unlock(&r->mu);
    if (pending)
        return;
    release_attached(r);
    pthread_mutex_lock(&r->mu);
    r->ended = true;
    resume_locked(r);
    pthread_mutex_unlock(&r->mu);
}

/* ---- calls of the watcher ---- */

/* The application's callback may stop the work for this client. */
void http_watch_hung_up(struct http_request *r)
{
    pthread_mutex_lock(&r->mu);
    bool pending = r->asked && !r->unreachable && r->suspended;
    r->hung_up = true;
    if (pending) {
        r->unreachable = true;
        resume_locked(r);
    }
    pthread_mutex_unlock(&r->mu);
    if (pending)
        http_notify_close(r);
}

/* With the lock. How long a complete answer has waited for its reader. */
static int64_t unread_us(const struct http_request *r, int64_t now_us)
{
    bool complete = r->answer == REPLY || (r->answer == STREAM && r->ended);
    return complete && r->taken_us ? now_us - r->taken_us : 0;
}

/* With the lock. Nobody waits for a delayed answer while the server drains. */
static void end_delay(struct http_request *r, int64_t now_us)
{
    if (!r->delay_until_us || (now_us < r->delay_until_us && !atomic_load(&r->s->draining)))
        return;
    r->delay_until_us = 0;
    if (r->answer == REPLY)
        resume_locked(r);
}

/* The comment keeps proxies from closing the connection, and reveals dead connections. */
bool http_watch_tick(struct http_request *r, int64_t now_us)
{
    pthread_mutex_lock(&r->mu);
    end_delay(r, now_us);
    if (r->answer == STREAM && r->suspended && now_us - r->written_us >= r->s->o.ping_us)
        append_event(r, SSE_PING, sizeof(SSE_PING) - 1);
    bool drop = r->overrun || unread_us(r, now_us) > r->s->o.reader_us ||
                (r->slow_since_us && now_us - r->slow_since_us > r->s->o.reader_us);
    pthread_mutex_unlock(&r->mu);
    return drop;
}

bool http_watch_gives_way(struct http_request *r, int64_t now_us, bool unbegun)
{
    pthread_mutex_lock(&r->mu);
    bool waits = (r->asked && !r->has_turn) || r->delay_until_us ||
                 (unbegun && r->answer == NONE && !r->keeps_place);
    bool gives_way = waits || unread_us(r, now_us) > UNREAD_US;
    pthread_mutex_unlock(&r->mu);
    return gives_way;
}

void http_watch_abandon(struct http_request *r)
{
    pthread_mutex_lock(&r->mu);
    r->unreachable = true;
    resume_locked(r);
    pthread_mutex_unlock(&r->mu);
}

void http_watch_wake(struct MHD_Connection *c)
{
    MHD_resume_connection(c);
}

/* ---- answers, on the connection's thread ---- */

/* With the lock. Frees the empty buffer if its memory is counted, or should be. */
static void drop_large(struct http_request *r)
{
    if (r->out.cap < OUT_STEP)
        return;
    size_t max = r->out.max;
    buf_done(&r->out);
    buf_init(&r->out, max);
    count_out(r);
}

/* With the lock. Copies unread bytes, at most max; true: the reader has caught up. */
static bool copy_out(struct http_request *r, char *to, size_t max, ssize_t *ret_n)
{
    size_t left = r->out.len - r->out_at, n = left < max ? left : max;
    memcpy(to, r->out.data + r->out_at, n);
    r->out_at += n;
    *ret_n = (ssize_t)n;
    if (n == left) {
        buf_clear(&r->out);
        r->out_at = 0;
        drop_large(r);
    }
    if (!r->slow_since_us || left - n > r->s->o.max_unread / 4)
        return false;
    r->slow_since_us = 0;
    return true;
}

static ssize_t stream_read(void *cls, uint64_t at, char *to, size_t max)
{
    struct http_request *r = cls;
    bool caught_up = false, pending;
    ssize_t n = 0;
    (void)at;
    pthread_mutex_lock(&r->mu);
    pending = r->out.len > r->out_at;
    r->taken_us = clock_us();
    if (r->unreachable || (r->hung_up && !pending && !r->ended)) {
        n = MHD_CONTENT_READER_END_WITH_ERROR;
    } else if (pending) {
        caught_up = copy_out(r, to, max, &n);
    } else if (r->ended) {
        n = MHD_CONTENT_READER_END_OF_STREAM;
    } else {
        sleep_locked(r); // under the lock, or a resume would be lost
    }
    void (*on_drain)(void *user) = caught_up && r->on_close ? r->on_drain : NULL;
    bool over = r->ended && r->out.len == r->out_at;
    pthread_mutex_unlock(&r->mu);
    if (over)
        release_attached(r);
    if (on_drain)
        on_drain(r->user);
    return n;
}

static ssize_t reply_read(void *cls, uint64_t at, char *to, size_t max)
{
    struct http_request *r = cls;
    pthread_mutex_lock(&r->mu);
    size_t left = r->out.len - at, n = left < max ? left : max;
    memcpy(to, r->out.data + at, n);
    r->taken_us = clock_us();
    pthread_mutex_unlock(&r->mu);
    if (n == left)
        release_attached(r);
    return (ssize_t)n;
}

static void response_free(void *cls)
{
    http_unref(cls);
}

static struct MHD_Response *response_of(struct http_request *r)
{
    bool streams = r->answer == STREAM;
    struct MHD_Response *m = MHD_create_response_from_callback(
        streams ? MHD_SIZE_UNKNOWN : r->out.len, BLOCK_BYTES, streams ? stream_read : reply_read,
        http_ref(r), response_free);
    if (!m) {
        http_unref(r);
        return NULL;
    }
    MHD_add_response_header(m, "Content-Type", r->type);
    MHD_add_response_header(m, "X-Request-Id", r->id);
    MHD_add_response_header(m, "Cache-Control", "no-store");
    for (unsigned i = 0; i < r->n_headers; i++)
        MHD_add_response_header(m, r->headers[i].name, r->headers[i].value);
    if ((r->status == 429 || r->status == 503) && !MHD_get_response_header(m, "Retry-After"))
        MHD_add_response_header(m, "Retry-After", "1");
    if ((r->closes || atomic_load(&r->s->draining)) && !MHD_get_response_header(m, "Connection"))
        MHD_add_response_header(m, "Connection", "close");
    return m;
}

/* With the lock. */
static enum MHD_Result queue_answer(struct http_request *r)
{
    struct MHD_Response *m = response_of(r);
    if (!m)
        return MHD_NO;
    r->taken_us = clock_us();
    enum MHD_Result ok = MHD_queue_response(r->c, (unsigned)r->status, m);
    MHD_destroy_response(m);
    return ok;
}

void http_on_turn(struct request_pace_turn *t)
{
    struct http_request *r = OWNER(t, struct http_request, turn);
    pthread_mutex_lock(&r->mu);
    r->has_turn = true;
    resume_locked(r);
    pthread_mutex_unlock(&r->mu);
}

static void ask_turn(struct http_request *r)
{
    pthread_mutex_lock(&r->mu);
    bool first = !r->asked;
    r->asked = true;
    pthread_mutex_unlock(&r->mu);
    if (first && request_pace_ask(r->s->pace, &r->turn, &r->client, r->body_bytes, clock_us()))
        http_on_turn(&r->turn);
}

enum http_turn http_take_turn(struct http_request *r)
{
    enum http_turn turn = HTTP_TURN_NOW;
    ask_turn(r);
    pthread_mutex_lock(&r->mu);
    if (!r->has_turn && (r->unreachable || r->hung_up || atomic_load(&r->s->stopping))) {
        r->unreachable = true;
        turn = HTTP_TURN_NEVER;
    } else if (!r->has_turn) {
        turn = HTTP_TURN_LATER;
        sleep_locked(r);
    }
    pthread_mutex_unlock(&r->mu);
    return turn;
}

enum MHD_Result http_answer_or_sleep(struct http_request *r)
{
    enum MHD_Result ok = MHD_YES;
    bool disconnected = false;
    pthread_mutex_lock(&r->mu);
    if (r->unreachable) {
        ok = MHD_NO;
    } else if (r->answer != NONE && !r->delay_until_us) {
        ok = queue_answer(r);
    } else if (r->hung_up || atomic_load(&r->s->stopping)) {
        r->unreachable = disconnected = true;
        ok = MHD_NO;
    } else {
        sleep_locked(r);
    }
    pthread_mutex_unlock(&r->mu);
    if (disconnected)
        http_notify_close(r);
    return ok;
}

enum MHD_Result http_refuse(struct http_request *r, int status, const char *format, ...)
{
    char text[FAIL_TEXT_MAX];
    struct buf body;
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    buf_init(&body, 4096);
    openai_error(&body, status, text, "");
    http_header(r, "Connection", "close");
    http_reply(r, status, "application/json", &body);
    pthread_mutex_lock(&r->mu);
    enum MHD_Result ok = queue_answer(r);
    pthread_mutex_unlock(&r->mu);
    return ok;
}
