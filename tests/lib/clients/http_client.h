/* http_client.h - a raw HTTP/1.1 client over a loopback socket, which can also misbehave. Ends the
 * test on errors that are not the server's answer. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct http_client {
    int fd;
    char *in; // read and not yet consumed, NUL behind it
    size_t len, cap;
    char *lines; // of a stream: chunks joined and not yet consumed
    size_t n_lines;
    bool closed; // by the server
};

struct http_answer {
    int status;        // 0: the server closed without one
    char *head, *body; // body: chunks joined; NUL behind it
    size_t len;
};

struct http_client http_client_open(unsigned port);
void http_client_close(struct http_client *c);
void http_client_send(struct http_client *c, const void *data, size_t len);
void http_client_print(struct http_client *c, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* A whole answer; waits at most timeout_ms for it. */
struct http_answer http_client_read(struct http_client *c, unsigned timeout_ms);
void http_answer_done(struct http_answer *a);
/* The head alone, of a stream. Its status. */
int http_client_read_head(struct http_client *c, unsigned timeout_ms);
/* The next event's data ("[DONE]" too; comments count in *n_comments if not NULL), of a stream
 * whose head has been read; NULL: the stream has ended. Free it. */
char *http_client_event(struct http_client *c, unsigned timeout_ms, unsigned *n_comments);
/* Waits for the server to close; false: it did not within timeout_ms. */
bool http_client_wait_close(struct http_client *c, unsigned timeout_ms);

/* Asserts this status, and these words in head and body. */
void http_answer_is(struct http_answer a, int status, const char *head, const char *body);

/* what: method and path. header: lines of it, each with its end. body: "" for none. */
void http_client_ask(struct http_client *c, const char *what, const char *header, const char *body);
/* One request on a connection of its own. */
struct http_answer http_ask(unsigned port, const char *what, const char *header, const char *body);
struct http_answer http_call(unsigned port, const char *method, const char *path, const char *body);
