/* http_client.h - a raw HTTP/1.1 client over a loopback socket, which can also misbehave. Ends the
 * test on errors, except those that the server's answer reports. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct http_client {
    int fd;
    char *in; // read and not yet consumed; a NUL follows it
    size_t len, cap;
    char *lines; // of a stream: joined chunks, not yet consumed
    size_t n_lines;
    bool closed; // by the server
};

struct http_answer {
    int status;        // 0: the server closed without an answer
    char *head, *body; // body: joined chunks; a NUL follows it
    size_t len;
};

struct http_client http_client_open(unsigned port);
/* From 127.0.0.`host`. */
struct http_client http_client_open_from(unsigned host, unsigned port);
void http_client_close(struct http_client *c);
void http_client_send(struct http_client *c, const void *data, size_t len);
void http_client_print(struct http_client *c, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Reads a whole answer; waits at most timeout_ms. */
struct http_answer http_client_read(struct http_client *c, unsigned timeout_ms);
void http_answer_done(struct http_answer *a);
/* Reads only the head, of a stream; returns its status. */
int http_client_read_head(struct http_client *c, unsigned timeout_ms);
/* The data of the next event ("[DONE]", too) of a stream whose head has been read; NULL: the stream
 * has ended. Free it. Adds the number of skipped comments to *n_comments unless NULL. */
char *http_client_event(struct http_client *c, unsigned timeout_ms, unsigned *n_comments);
/* Waits until the server closes the connection; false: it did not within timeout_ms. */
bool http_client_wait_close(struct http_client *c, unsigned timeout_ms);

/* Asserts the status, and that head and body contain these texts. Frees the answer. */
void http_answer_is(struct http_answer a, int status, const char *head, const char *body);

/* Sends a request. what: method and path. header: complete lines. body: "" for none. */
void http_client_ask(struct http_client *c, const char *what, const char *header, const char *body);
/* One request on a new connection. */
struct http_answer http_ask(unsigned port, const char *what, const char *header, const char *body);
struct http_answer http_call(unsigned port, const char *method, const char *path, const char *body);
