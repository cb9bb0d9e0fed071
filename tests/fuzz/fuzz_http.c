/* fuzz_http.c - hostile clients of the HTTP server, on several connections.
 *
 * The input is what the clients send. The byte 0xFF begins a command, the next byte says which:
 *   0 to 3 (digits)  the following bytes go to this connection, which is opened if it is closed
 *   |                waits until the server has read all bytes
 *   r                answers the requests that wait for an answer
 *   h                closes the sending side of the connection
 *   c                closes the connection
 *   others           the byte itself
 *
 * Every answer must be well formed. In the end a good request gets its answer, and no connection,
 * request or counted byte is left. */
#include <errno.h>
#include <linux/sockios.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include "base/clock.h"
#include "gateway/http/answer.h"
#include "gateway/http/http.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

#define N_CLIENTS 4
#define MAX_HELD 16
#define READ_US 1000         // time that the server gets to read
#define LIMIT_US 60000000    // only ends what hangs
#define NEVER_US 600000000   // of the server's time limits
#define ANSWER_MAX (1 << 20) // bytes that a client receives
#define FIRST "first: \xC3\xA9\n\n"
#define SECOND "second\n\n"

static struct http_server *server;
static struct sockaddr_un address;
static socklen_t address_len;
static atomic_uint n_begun, n_closed, n_attached, n_released;

static _Noreturn void broken(const char *what, const struct buf *in)
{
    fprintf(stderr, "%s:\n%.*s\n", what, in ? (int)in->len : 0, in ? in->data : "");
    abort();
}

/* ---- the application ---- */

static pthread_mutex_t held_mu = PTHREAD_MUTEX_INITIALIZER;
static struct http_request *held[MAX_HELD]; // requests that are answered later
static unsigned n_held;

static bool hold(struct http_request *r)
{
    pthread_mutex_lock(&held_mu);
    bool has_place = n_held < MAX_HELD;
    if (has_place)
        held[n_held++] = http_ref(r);
    pthread_mutex_unlock(&held_mu);
    return has_place;
}

static void stream(struct http_request *r)
{
    http_stream(r);
    http_write(r, FIRST, sizeof(FIRST) - 1);
    http_write(r, SECOND, sizeof(SECOND) - 1);
    http_end(r);
}

/* The body of the request. */
static void echo(struct http_request *r)
{
    struct buf body;
    size_t len;
    const char *data = http_body(r, &len);
    buf_init(&body, SIZE_MAX / 2);
    buf_add(&body, data, len);
    http_reply(r, 200, "text/plain", &body);
}

static void answer(struct http_request *r)
{
    if (strstr(http_path(r), "stream") && strcmp(http_method(r), "HEAD") != 0)
        stream(r);
    else
        echo(r);
}

static void answer_held(void)
{
    for (;;) {
        pthread_mutex_lock(&held_mu);
        struct http_request *r = n_held ? held[--n_held] : NULL;
        pthread_mutex_unlock(&held_mu);
        if (!r)
            return;
        answer(r);
        http_unref(r);
    }
}

static void count_close(void *user)
{
    atomic_fetch_add((atomic_uint *)user, 1);
}

static void admit(void *user, struct http_request *r)
{
    (void)user;
    if (strcmp(http_method(r), "HEAD") == 0)
        http_header(r, "X-Method", "HEAD");
    if (strcmp(http_path(r), "/key") == 0)
        http_set_payer(r, "somebody");
    if (http_reserve(r))
        answer_error(r, 503, "there is no place", "");
    else if (strcmp(http_path(r), "/none") == 0)
        answer_error(r, 404, "there is no such path", "");
    else if (strcmp(http_method(r), "CONNECT") == 0) // its answer 200 would have no body
        answer_error(r, 405, "this is no proxy", "");
}

static void take_request(void *user, struct http_request *r)
{
    (void)user;
    atomic_fetch_add(&n_begun, 1);
    http_on_close(r, count_close, &n_closed);
    atomic_fetch_add(&n_attached, 1);
    http_attach(r, &n_released, count_close);
    bool is_later = strncmp(http_path(r), "/later", 6) == 0;
    if (is_later)
        http_header(r, "X-Later", "yes"); // before another thread answers
    if (!is_later || !hold(r))
        answer(r);
}

static void start(void)
{
    static struct address_range proxy;
    struct http_options o = {.n_threads = 1,
                             .max_connections = 2,
                             .max_per_ip = 1,
                             .trusted = &proxy,
                             .n_trusted = 1,
                             .max_body = 300,
                             .max_bodies = 1000,
                             .max_header = 500,
                             .max_unread = 1000,
                             .reader_us = NEVER_US,
                             .request_us = NEVER_US,
                             .idle_us = NEVER_US,
                             .ping_us = NEVER_US,
                             .admit = admit};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    address.sun_family = AF_UNIX;
    address_len = sizeof(address);
    if (address_range_parse("unix", &proxy) < 0 ||
        bind(fd, (struct sockaddr *)&address, sizeof(address.sun_family)) < 0 || // any name
        getsockname(fd, (struct sockaddr *)&address, &address_len) < 0 || listen(fd, 64) < 0 ||
        http_new(&o, fd, take_request, NULL, &server) < 0)
        broken("the server does not start", NULL);
}

/* ---- answers ---- */

/* A part of what a client has received. */
struct text {
    const char *at, *end;
};

/* Takes a line without its end. false: it is not complete. */
static bool take_line(struct text *t, struct text *ret)
{
    const char *end = memmem(t->at, (size_t)(t->end - t->at), "\r\n", 2);
    if (!end)
        return false;
    *ret = (struct text){t->at, end};
    t->at = end + 2;
    return true;
}

static bool begins(const struct text *t, const char *what)
{
    size_t n = strlen(what);
    return (size_t)(t->end - t->at) >= n && strncasecmp(t->at, what, n) == 0;
}

static bool is_printable(const struct text *t)
{
    for (const char *s = t->at; s < t->end; s++)
        if ((unsigned char)*s < ' ' || *s == 127)
            return false;
    return true;
}

struct head {
    int status;
    bool chunked, closes, bodiless;
    bool is_foreign; // libmicrohttpd made the answer
    bool is_later;   // a stream of another thread: it is cut if its client hangs up meanwhile
    size_t length;   // SIZE_MAX: not announced
};

static bool read_status(const struct text *line, struct head *ret)
{
    char text[16];
    if (line->end - line->at < 13 || !is_printable(line))
        return false;
    snprintf(text, sizeof(text), "%.13s", line->at);
    *ret = (struct head){.length = SIZE_MAX, .status = atoi(text + 9), .is_foreign = true};
    return (strncmp(text, "HTTP/1.1 ", 9) == 0 || strncmp(text, "HTTP/1.0 ", 9) == 0) &&
           text[12] == ' ' && ret->status >= 100 && ret->status <= 599;
}

static bool read_field(const struct text *line, struct head *h)
{
    if (!memchr(line->at, ':', (size_t)(line->end - line->at)) || !is_printable(line))
        return false;
    if (begins(line, "Content-Length: ")) {
        if (h->length != SIZE_MAX)
            return false;
        h->length = strtoul(line->at + 16, NULL, 10);
    }
    h->chunked |= begins(line, "Transfer-Encoding: chunked");
    h->closes |= begins(line, "Connection: close");
    h->bodiless |= begins(line, "X-Method: HEAD");
    h->is_later |= begins(line, "X-Later: ");
    h->is_foreign &= !begins(line, "X-Request-Id: ");
    return true;
}

enum found { WHOLE, CUT, MALFORMED };

static enum found take_head(struct text *t, struct head *ret)
{
    struct text line;
    if (!take_line(t, &line))
        return CUT;
    if (!read_status(&line, ret))
        return MALFORMED;
    for (;;) {
        if (!take_line(t, &line))
            return CUT;
        if (line.at == line.end)
            break;
        if (!read_field(&line, ret))
            return MALFORMED;
    }
    ret->bodiless |= ret->status == 204 || ret->status == 304 || ret->status < 200;
    return ret->chunked && ret->length != SIZE_MAX ? MALFORMED : WHOLE;
}

static enum found take_chunks(struct text *t)
{
    struct text line;
    size_t n = 1;
    while (n) {
        char *end;
        if (!take_line(t, &line))
            return CUT;
        n = strtoul(line.at, &end, 16);
        if (line.at == line.end || end != line.end)
            return MALFORMED;
        if ((size_t)(t->end - t->at) < n + 2)
            return CUT;
        if (memcmp(t->at + n, "\r\n", 2) != 0)
            return MALFORMED;
        t->at += n + 2;
    }
    return WHOLE;
}

/* Version 0.9.75 of libmicrohttpd sends the head of some errors twice. */
static void skip_repeated(struct text *t, const char *head)
{
    size_t n = (size_t)(t->at - head);
    if ((size_t)(t->end - t->at) >= n && memcmp(t->at, head, n) == 0)
        t->at += n;
}

/* Takes one answer. A refused HEAD looks like an answer whose body is missing. */
static enum found take_answer(struct text *t, struct head *ret)
{
    const char *begin = t->at;
    enum found found = take_head(t, ret);
    if (found != WHOLE || ret->bodiless)
        return found;
    if (ret->is_foreign && ret->closes)
        skip_repeated(t, begin);
    if (ret->chunked)
        return take_chunks(t);
    if (ret->length == SIZE_MAX && !ret->closes)
        return MALFORMED;
    size_t here = (size_t)(t->end - t->at), n = ret->length == SIZE_MAX ? here : ret->length;
    if (here < n)
        return here || !ret->closes ? CUT : WHOLE;
    t->at += n;
    return WHOLE;
}

/* Returns the status of the last answer; 0: there is none. */
static int check_answers(const struct buf *in)
{
    struct text t = {in->data, in->data + in->len};
    struct head h = {0};
    while (in->len && t.at < t.end) {
        if (h.closes)
            broken("bytes after the last answer", in);
        enum found found = take_answer(&t, &h);
        if (found == CUT && h.chunked && h.is_later)
            break;
        if (found != WHOLE)
            broken(found == CUT ? "a cut answer" : "a malformed answer", in);
    }
    return h.status;
}

/* ---- clients ---- */

struct client {
    int fd; // -1: closed
    struct buf in;
};

static void open_client(struct client *c)
{
    c->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    buf_init(&c->in, ANSWER_MAX);
    if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&address, address_len) < 0)
        broken("cannot connect", NULL);
}

static void send_bytes(const struct client *c, const void *data, size_t n)
{
    if (c->fd >= 0)
        (void)!send(c->fd, data, n, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* At most for a moment: a server that waits for an answer does not read. */
static void await_reads(const struct client *c)
{
    int64_t until_us = clock_us() + READ_US;
    int n = 1;
    while (c->fd >= 0 && n > 0 && clock_us() < until_us) {
        sched_yield();
        if (ioctl(c->fd, SIOCOUTQ, &n) < 0)
            return;
    }
}

static void hang_up(const struct client *c)
{
    if (c->fd >= 0)
        shutdown(c->fd, SHUT_WR);
}

static void close_client(struct client *c)
{
    if (c->fd >= 0)
        close(c->fd);
    c->fd = -1;
    buf_done(&c->in);
}

/* Receives until the server has closed. */
static void receive_all(struct client *c)
{
    for (;;) {
        struct pollfd p = {c->fd, POLLIN, 0};
        char *space = buf_reserve(&c->in, 4096);
        if (!space || poll(&p, 1, LIMIT_US / 1000) == 0)
            broken("the connection is not closed", &c->in);
        ssize_t n = recv(c->fd, space, 4096, 0);
        if (n <= 0)
            break;
        c->in.len += (size_t)n;
    }
}

static void finish_client(struct client *c)
{
    if (c->fd >= 0) {
        receive_all(c);
        check_answers(&c->in);
    }
    close_client(c);
}

static void command(struct client *c, uint8_t what)
{
    switch (what) {
    case '|':
        await_reads(c);
        break;
    case 'r':
        answer_held();
        break;
    case 'h':
        hang_up(c);
        break;
    case 'c':
        close_client(c);
        break;
    default:
        send_bytes(c, &what, 1);
    }
}

static void play(struct client *clients, const uint8_t *data, size_t n)
{
    struct client *c = clients;
    for (size_t at = 0; at < n;) {
        const uint8_t *mark = memchr(data + at, 0xFF, n - at);
        size_t len = mark ? (size_t)(mark - data) - at : n - at;
        uint8_t what = mark && at + len + 1 < n ? mark[1] : 0xFF;
        bool selects = mark && what >= '0' && what < '0' + N_CLIENTS;
        if (len)
            send_bytes(c, data + at, len);
        if (selects)
            c = &clients[what - '0'];
        if (selects && c->fd < 0)
            open_client(c);
        else if (mark && !selects)
            command(c, what);
        at += len + 2;
    }
}

/* ---- the end ---- */

static unsigned n_bytes(struct http_server *s)
{
    return (unsigned)http_body_bytes(s);
}

static void await_none(unsigned (*n_left)(struct http_server *s), const char *what)
{
    int64_t until_us = clock_us() + LIMIT_US;
    while (n_left(server)) {
        if (clock_us() > until_us)
            broken(what, NULL);
        sched_yield();
    }
}

static unsigned n_unclosed(struct http_server *s)
{
    (void)s;
    return atomic_load(&n_begun) - atomic_load(&n_closed);
}

static unsigned n_unreleased(struct http_server *s)
{
    (void)s;
    return atomic_load(&n_attached) - atomic_load(&n_released);
}

/* The server accepts connections in their order. It may still have to accept some that their
 * clients have closed. */
static void await_accepts(void)
{
    struct client last;
    open_client(&last);
    hang_up(&last);
    finish_client(&last);
}

static void check_rest(void)
{
    await_accepts();
    await_none(http_n_open, "a connection stays open");
    answer_held();
    await_none(http_n_active, "a request stays active");
    await_none(n_bytes, "bytes stay counted");
    await_none(n_unclosed, "http_on_close() was not called once for each request");
    await_none(n_unreleased, "http_attach()'s release was not called once for each request");
}

static void check_good_request(void)
{
    static const char text[] = "GET /now HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: 192.0.2.1\r\n"
                               "Connection: close\r\n\r\n";
    struct client c;
    open_client(&c);
    send_bytes(&c, text, sizeof(text) - 1);
    receive_all(&c);
    if (check_answers(&c.in) != 200)
        broken("a good request is not answered", &c.in);
    close_client(&c);
    await_none(http_n_open, "the connection of a good request stays open");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct client clients[N_CLIENTS] = {{.fd = -1}, {.fd = -1}, {.fd = -1}, {.fd = -1}};
    if (!server)
        start();
    open_client(&clients[0]);
    play(clients, data, n);
    for (unsigned i = 0; i < N_CLIENTS; i++)
        hang_up(&clients[i]);
    for (unsigned i = 0; i < N_CLIENTS; i++)
        finish_client(&clients[i]);
    check_rest();
    check_good_request();
    return 0;
}
