/* http_client.c - a raw HTTP/1.1 client over a loopback socket. */
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>
#include "base/clock.h"
#include "lib/clients/http_client.h"
#include "lib/lib.h"

struct http_client http_client_open(unsigned port)
{
    return http_client_open_from(1, port);
}

struct http_client http_client_open_from(unsigned host, unsigned port)
{
    struct http_client c = {.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    struct sockaddr_in from = {.sin_family = AF_INET,
                               .sin_addr.s_addr = htonl(INADDR_LOOPBACK - 1 + host)},
                       to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int late = 1; // connect() chooses the port, which connections to other ports may share
    setsockopt(c.fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &late, sizeof(late));
    if (bind(c.fd, (struct sockaddr *)&from, sizeof(from)) < 0 ||
        connect(c.fd, (struct sockaddr *)&to, sizeof(to)) < 0)
        fail_msg("cannot connect from 127.0.0.%u to port %u: %s", host, port, strerror(errno));
    return c;
}

void http_client_close(struct http_client *c)
{
    close(c->fd);
    free(c->in);
    free(c->lines);
    *c = (struct http_client){.fd = -1};
}

void http_client_send(struct http_client *c, const void *data, size_t len)
{
    while (len) {
        ssize_t n = send(c->fd, data, len, MSG_NOSIGNAL);
        if (n <= 0)
            return; // the server has closed; its answer says why
        data = (const char *)data + n;
        len -= (size_t)n;
    }
}

void http_client_print(struct http_client *c, const char *format, ...)
{
    char *text;
    va_list args;
    va_start(args, format);
    int n = vasprintf(&text, format, args);
    va_end(args);
    assert_true(n >= 0);
    http_client_send(c, text, (size_t)n);
    free(text);
}

/* False: closed, or time is up. */
static bool read_more(struct http_client *c, int64_t until_us)
{
    int64_t left_us = until_us - clock_us();
    struct pollfd p = {c->fd, POLLIN, 0};
    if (c->closed || left_us <= 0 || poll(&p, 1, (int)(left_us / 1000) + 1) != 1)
        return false;
    if (c->len + 65537 > c->cap) {
        c->cap = c->cap * 2 + 65537;
        c->in = realloc(c->in, c->cap);
        assert_non_null(c->in);
    }
    ssize_t n = recv(c->fd, c->in + c->len, 65536, 0);
    if (n <= 0) {
        c->closed = true;
        return false;
    }
    c->len += (size_t)n;
    c->in[c->len] = 0;
    return true;
}

static void consume(struct http_client *c, size_t n)
{
    c->len -= n;
    memmove(c->in, c->in + n, c->len + 1);
}

/* Consumes the bytes up to the end of `mark`; NULL: they did not arrive. */
static char *take_until(struct http_client *c, const char *mark, int64_t until_us)
{
    char *at;
    while (!(at = c->len ? memmem(c->in, c->len, mark, strlen(mark)) : NULL))
        if (!read_more(c, until_us))
            return NULL;
    size_t n = (size_t)(at - c->in) + strlen(mark);
    char *text = strndup(c->in, n);
    consume(c, n);
    return text;
}

static const char *header_of(const char *head, const char *name)
{
    for (const char *line = strchr(head, '\n'); line; line = strchr(line, '\n')) {
        line++;
        if (strncasecmp(line, name, strlen(name)) == 0 && line[strlen(name)] == ':')
            return line + strlen(name) + 1 + strspn(line + strlen(name) + 1, " ");
    }
    return NULL;
}

static bool take_bytes(struct http_client *c, size_t n, int64_t until_us, struct http_answer *a)
{
    while (c->len < n)
        if (!read_more(c, until_us))
            return false;
    a->body = realloc(a->body, a->len + n + 1);
    memcpy(a->body + a->len, c->in, n);
    a->len += n;
    a->body[a->len] = 0;
    consume(c, n);
    return true;
}

static bool take_chunk(struct http_client *c, int64_t until_us, struct http_answer *a)
{
    char *size = take_until(c, "\r\n", until_us);
    unsigned long n = size ? strtoul(size, NULL, 16) : 0;
    free(size);
    if (n == 0) {
        free(take_until(c, "\r\n", until_us));
        return false;
    }
    bool ok = take_bytes(c, n, until_us, a);
    free(take_until(c, "\r\n", until_us));
    return ok;
}

struct http_answer http_client_read(struct http_client *c, unsigned timeout_ms)
{
    int64_t until_us = clock_us() + (int64_t)timeout_ms * 1000;
    struct http_answer a = {.head = take_until(c, "\r\n\r\n", until_us), .body = calloc(1, 1)};
    if (!a.head)
        return a;
    a.status = atoi(a.head + strlen("HTTP/1.1 "));
    if (a.status == 100) {
        free(a.head);
        free(a.body);
        return http_client_read(c, timeout_ms);
    }
    const char *length = header_of(a.head, "Content-Length");
    if (length) {
        take_bytes(c, strtoul(length, NULL, 10), until_us, &a);
    } else if (header_of(a.head, "Transfer-Encoding")) {
        while (take_chunk(c, until_us, &a))
            ;
    }
    return a;
}

void http_answer_done(struct http_answer *a)
{
    free(a->head);
    free(a->body);
    *a = (struct http_answer){0};
}

int http_client_read_head(struct http_client *c, unsigned timeout_ms)
{
    char *head = take_until(c, "\r\n\r\n", clock_us() + (int64_t)timeout_ms * 1000);
    int status = head ? atoi(head + strlen("HTTP/1.1 ")) : 0;
    free(head);
    return status;
}

/* Appends the next chunk to the lines; false: it was the last one, or time is up. */
static bool next_chunk(struct http_client *c, int64_t until_us)
{
    struct http_answer a = {.body = c->lines, .len = c->n_lines};
    bool more = take_chunk(c, until_us, &a);
    c->lines = a.body;
    c->n_lines = a.len;
    return more;
}

/* The next line without its end; NULL: no more lines. Chunks may end inside a line. */
static char *next_line(struct http_client *c, int64_t until_us)
{
    char *end;
    while (!(end = c->n_lines ? memchr(c->lines, '\n', c->n_lines) : NULL))
        if (!next_chunk(c, until_us))
            return NULL;
    size_t n = (size_t)(end - c->lines);
    char *line = strndup(c->lines, n);
    c->n_lines -= n + 1;
    memmove(c->lines, end + 1, c->n_lines + 1);
    return line;
}

char *http_client_event(struct http_client *c, unsigned timeout_ms, unsigned *n_comments)
{
    int64_t until_us = clock_us() + (int64_t)timeout_ms * 1000;
    char *line;
    while ((line = next_line(c, until_us))) {
        if (n_comments && line[0] == ':')
            ++*n_comments;
        if (strncmp(line, "data: ", 6) == 0) {
            memmove(line, line + 6, strlen(line) - 5);
            return line;
        }
        free(line);
    }
    return NULL;
}

bool http_client_wait_close(struct http_client *c, unsigned timeout_ms)
{
    int64_t until_us = clock_us() + (int64_t)timeout_ms * 1000;
    while (read_more(c, until_us))
        ;
    return c->closed;
}

struct http_answer http_call(unsigned port, const char *method, const char *path, const char *body)
{
    struct http_client c = http_client_open(port);
    http_client_print(&c, "%s %s HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n", method, path,
                      body ? strlen(body) : 0);
    if (body)
        http_client_send(&c, body, strlen(body));
    struct http_answer a = http_client_read(&c, 20000);
    http_client_close(&c);
    return a;
}

void http_answer_is(struct http_answer a, int status, const char *head, const char *body)
{
    if (a.status != status || !strstr(a.head, head) || !strstr(a.body, body))
        fail_msg("not %d '%s' '%s', but:\n%s%s", status, head, body, a.head, a.body);
    http_answer_done(&a);
}

void http_client_ask(struct http_client *c, const char *what, const char *header, const char *body)
{
    http_client_print(c, "%s HTTP/1.1\r\nHost: x\r\n%sContent-Length: %zu\r\n\r\n%s", what, header,
                      strlen(body), body);
}

struct http_answer http_ask(unsigned port, const char *what, const char *header, const char *body)
{
    struct http_client c = http_client_open(port);
    http_client_ask(&c, what, header, body);
    struct http_answer a = http_client_read(&c, 20000);
    http_client_close(&c);
    return a;
}
