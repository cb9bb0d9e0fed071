/* http2_client.c - frames of RFC 9113; headers are literals of RFC 7541 that no table holds. */
#include "lib/clients/http2_client.h"
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>
#include "base/mem.h"
#include "lib/lib.h"

#define WAIT_S 60
#define PREFACE "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

enum { DATA = 0, HEADERS = 1, SETTINGS = 4 }; // types
enum { END_STREAM = 1, END_HEADERS = 4 };     // flags
enum { FRAME_HEAD = 9, FRAME_MAX = 1 << 14, INITIAL_WINDOW_SIZE = 4 };

static void send_all(struct http2_client *c, const void *data, size_t len)
{
    assert_int_equal(send(c->fd, data, len, MSG_NOSIGNAL), (ssize_t)len);
}

static void send_frame(struct http2_client *c, uint8_t type, uint8_t flags, uint32_t stream,
                       const void *data, uint8_t len)
{
    uint8_t frame[FRAME_HEAD + UINT8_MAX] = {0, 0, len, type, flags};
    frame[7] = (uint8_t)(stream >> 8);
    frame[8] = (uint8_t)stream;
    memcpy(frame + FRAME_HEAD, data, len);
    send_all(c, frame, FRAME_HEAD + len);
}

struct http2_client http2_client_open(const char *socket_path)
{
    static const uint8_t no_window[] = {0, INITIAL_WINDOW_SIZE, 0, 0, 0, 0};
    struct http2_client c = {.fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0),
                             .next_stream = 1};
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    struct timeval wait = {.tv_sec = WAIT_S};
    assert_true(strlen(socket_path) < sizeof(a.sun_path));
    strcpy(a.sun_path, socket_path);
    assert_int_equal(setsockopt(c.fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait)), 0);
    assert_int_equal(connect(c.fd, (struct sockaddr *)&a, sizeof(a)), 0);
    send_all(&c, PREFACE, strlen(PREFACE));
    send_frame(&c, SETTINGS, 0, 0, no_window, sizeof(no_window));
    return c;
}

static size_t add_text(uint8_t *to, const char *text)
{
    to[0] = (uint8_t)strlen(text);
    memcpy(to + 1, text, to[0]);
    return 1u + to[0];
}

void http2_client_call(struct http2_client *c, const char *path)
{
    const char *const fields[][2] = {{":method", "POST"}, {":scheme", "http"},
                                     {":path", path},     {":authority", "test"},
                                     {"te", "trailers"},  {"content-type", "application/grpc"}};
    static const uint8_t empty_message[5];
    uint8_t head[UINT8_MAX];
    size_t n = 0;
    for (size_t i = 0; i < ARRAY_LEN(fields); i++) {
        head[n++] = 0; // a literal with a new name
        n += add_text(head + n, fields[i][0]);
        n += add_text(head + n, fields[i][1]);
    }
    send_frame(c, HEADERS, END_HEADERS, c->next_stream, head, (uint8_t)n);
    send_frame(c, DATA, END_STREAM, c->next_stream, empty_message, sizeof(empty_message));
    c->next_stream += 2;
}

static void read_all(struct http2_client *c, void *data, size_t len)
{
    assert_int_equal(recv(c->fd, data, len, MSG_WAITALL), (ssize_t)len);
}

void http2_client_await(struct http2_client *c, unsigned n_headers)
{
    uint8_t head[FRAME_HEAD], data[FRAME_MAX];
    while (c->n_headers < n_headers) {
        read_all(c, head, sizeof(head));
        size_t len = (size_t)head[0] << 16 | (size_t)head[1] << 8 | head[2];
        assert_true(len <= sizeof(data));
        read_all(c, data, len);
        c->n_headers += head[3] == HEADERS;
    }
}

void http2_client_close(struct http2_client *c)
{
    close(c->fd);
}
