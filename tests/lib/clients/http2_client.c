/* http2_client.c - frames of RFC 9113; headers are literals of RFC 7541 that no table holds. */
#include "lib/clients/http2_client.h"
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>
#include "base/mem.h"
#include "lib/lib.h"

#define WAIT_S 60
#define PREFACE "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

enum {
    DATA = 0,
    HEADERS = 1,
    RST_STREAM = 3,
    SETTINGS = 4,
    WINDOW_UPDATE = 8,
    CONTINUATION = 9,
    UNKNOWN = 77
};                                                 // types
enum { END_STREAM = 1, END_HEADERS = 4, ACK = 1 }; // flags
enum { FRAME_HEAD = 9, FRAME_MAX = 1 << 14, INITIAL_WINDOW_SIZE = 4, INITIAL_WINDOW = 65535 };

/* False: the server has ended the connection. */
static bool send_some(struct http2_client *c, const void *data, size_t len)
{
    ssize_t n = send(c->fd, data, len, MSG_NOSIGNAL);
    assert_true(n == (ssize_t)len || n >= 0 || errno == EPIPE || errno == ECONNRESET);
    return n == (ssize_t)len;
}

static size_t put_frame(uint8_t *to, uint8_t type, uint8_t flags, uint32_t stream, const void *data,
                        uint16_t len)
{
    const uint8_t head[FRAME_HEAD] = {
        0, (uint8_t)(len >> 8),     (uint8_t)len,           type,           flags,
        0, (uint8_t)(stream >> 16), (uint8_t)(stream >> 8), (uint8_t)stream};
    memcpy(to, head, FRAME_HEAD);
    memcpy(to + FRAME_HEAD, data, len);
    return FRAME_HEAD + (size_t)len;
}

static void send_frame(struct http2_client *c, uint8_t type, uint8_t flags, uint32_t stream,
                       const void *data, uint8_t len)
{
    uint8_t frame[FRAME_HEAD + UINT8_MAX];
    send_some(c, frame, put_frame(frame, type, flags, stream, data, len));
}

static struct http2_client open_at(int family, const void *address, socklen_t len)
{
    static const uint8_t no_window[] = {0, INITIAL_WINDOW_SIZE, 0, 0, 0, 0};
    struct http2_client c = {.fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0),
                             .next_stream = 1,
                             .window = INITIAL_WINDOW};
    struct timeval wait = {.tv_sec = WAIT_S};
    assert_int_equal(setsockopt(c.fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait)), 0);
    assert_int_equal(connect(c.fd, address, len), 0);
    send_some(&c, PREFACE, strlen(PREFACE));
    send_frame(&c, SETTINGS, 0, 0, no_window, sizeof(no_window));
    return c;
}

struct http2_client http2_client_open(const char *socket_path)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    assert_true(strlen(socket_path) < sizeof(a.sun_path));
    strcpy(a.sun_path, socket_path);
    return open_at(AF_UNIX, &a, sizeof(a));
}

struct http2_client http2_client_open_tcp(uint16_t port)
{
    const struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    return open_at(AF_INET, &a, sizeof(a));
}

static size_t add_text(uint8_t *to, const char *text)
{
    to[0] = (uint8_t)strlen(text);
    memcpy(to + 1, text, to[0]);
    return 1u + to[0];
}

static size_t put_field(uint8_t *to, const char *name, const char *value)
{
    size_t n = 1; // a literal with a new name
    to[0] = 0;
    n += add_text(to + n, name);
    return n + add_text(to + n, value);
}

/* The header fields of a call. */
static uint8_t put_fields(uint8_t to[UINT8_MAX], const char *path)
{
    const char *const fields[][2] = {{":method", "POST"}, {":scheme", "http"},
                                     {":path", path},     {":authority", "test"},
                                     {"te", "trailers"},  {"content-type", "application/grpc"}};
    size_t n = 0;
    for (size_t i = 0; i < ARRAY_LEN(fields); i++) {
        n += put_field(to + n, fields[i][0], fields[i][1]);
    }
    return (uint8_t)n;
}

void http2_client_call(struct http2_client *c, const char *path)
{
    static const uint8_t empty_message[5];
    uint8_t fields[UINT8_MAX], n = put_fields(fields, path);
    send_frame(c, HEADERS, END_HEADERS, c->next_stream, fields, n);
    send_frame(c, DATA, END_STREAM, c->next_stream, empty_message, sizeof(empty_message));
    c->next_stream += 2;
}

void http2_client_reset(struct http2_client *c, const char *path, unsigned n)
{
    static const uint8_t reason[4] = {0, 0, 0, 8}; // CANCEL
    uint8_t fields[UINT8_MAX], n_fields = put_fields(fields, path), both[2 * UINT8_MAX];
    for (unsigned i = 0; i < n; i++, c->next_stream += 2) {
        size_t len = put_frame(both, HEADERS, END_HEADERS, c->next_stream, fields, n_fields);
        len += put_frame(both + len, RST_STREAM, 0, c->next_stream, reason, sizeof(reason));
        if (!send_some(c, both, len))
            return;
    }
}

void http2_client_endless_headers(struct http2_client *c, size_t n_bytes)
{
    uint8_t fields[UINT8_MAX], n = put_fields(fields, "/"), more[FRAME_HEAD + UINT8_MAX];
    uint8_t field[130] = {0, 1, 'x', sizeof(field) - 4}; // a literal with a new name
    size_t len = put_frame(more, CONTINUATION, 0, c->next_stream, field, sizeof(field));
    send_frame(c, HEADERS, 0, c->next_stream, fields, n);
    for (size_t sent = 0; sent < n_bytes && send_some(c, more, len); sent += len)
        ;
}

void http2_client_confirm(struct http2_client *c)
{
    send_frame(c, SETTINGS, ACK, 0, "", 0);
}

void http2_client_large_headers(struct http2_client *c, const char *name, const char *value,
                                size_t n_bytes)
{
    uint8_t fields[FRAME_MAX], frame[FRAME_HEAD + FRAME_MAX];
    const char filler[] = "0123456789012345678901234567890123456789012345678901234567890123456789";
    size_t n = put_fields(fields, "/test/Echo");
    n += put_field(fields + n, name, value);
    assert_true(n + n_bytes + sizeof(filler) < sizeof(fields));
    for (size_t end = n + n_bytes; n < end;)
        n += put_field(fields + n, "x-more", filler);
    send_some(
        c, frame,
        put_frame(frame, HEADERS, END_HEADERS | END_STREAM, c->next_stream, fields, (uint16_t)n));
    c->next_stream += 2;
}

void http2_client_pad(struct http2_client *c, size_t n_bytes)
{
    static const uint8_t zeros[UINT8_MAX];
    for (size_t sent = 0; sent < n_bytes; sent += FRAME_HEAD + sizeof(zeros))
        send_frame(c, UNKNOWN, 0, 0, zeros, sizeof(zeros));
}

void http2_client_await_end(struct http2_client *c)
{
    char data[FRAME_MAX];
    ssize_t n;
    while ((n = recv(c->fd, data, sizeof(data), 0)) > 0)
        ;
    assert_true(n == 0 || errno == ECONNRESET); // else WAIT_S has passed
}

/* Reads one frame. False: the server has ended the connection. */
static bool read_frame(struct http2_client *c)
{
    uint8_t head[FRAME_HEAD], data[FRAME_MAX];
    if (recv(c->fd, head, sizeof(head), MSG_WAITALL) != sizeof(head))
        return false;
    size_t len = (size_t)head[0] << 16 | (size_t)head[1] << 8 | head[2];
    assert_true(len <= sizeof(data));
    if (recv(c->fd, data, len, MSG_WAITALL) != (ssize_t)len)
        return false;
    c->n_headers += head[3] == HEADERS;
    if (head[3] == WINDOW_UPDATE && !head[5] && !head[6] && !head[7] && !head[8])
        c->window += (size_t)data[0] << 24 | (size_t)data[1] << 16 | (size_t)data[2] << 8 | data[3];
    return true;
}

bool http2_client_await(struct http2_client *c, unsigned n_headers)
{
    while (c->n_headers < n_headers) {
        if (!read_frame(c))
            return false;
    }
    return true;
}

bool http2_client_part(struct http2_client *c, const char *path, size_t n_bytes)
{
    static const uint8_t message[16000] = {0, 0, 3 << 4}; // its length: 3 MiB
    uint8_t fields[UINT8_MAX], n_fields = put_fields(fields, path);
    uint8_t frames[2 * FRAME_HEAD + sizeof(fields) + sizeof(message)];
    assert_true(n_bytes <= sizeof(message));
    while (c->window < n_bytes) {
        if (!read_frame(c))
            return false;
    }
    size_t len = put_frame(frames, HEADERS, END_HEADERS, c->next_stream, fields, n_fields);
    len += put_frame(frames + len, DATA, 0, c->next_stream, message, (uint16_t)n_bytes);
    c->next_stream += 2;
    c->window -= n_bytes;
    return send_some(c, frames, len);
}

void http2_client_close(struct http2_client *c)
{
    close(c->fd);
}
