/* stage.h - a gateway with a fake verifier, shared by all tests of a program. Ends the test on
 * errors. */
#pragma once
#include <stdbool.h>
#include "lib/clients/chats.h"
#include "lib/rigs/gateway.h"

extern struct stage {
    char address[128]; // the verifier's
    struct fake_verifier *verifier;
    struct child gateway;
    unsigned port;
} stage;

/* Set-up and teardown for cmocka; return 0. more: see gateway_start(). */
int stage_open(const char *const *more);
int stage_close(void **state);

/* The gateway's answer to a chat (chat_body()), and to these bytes. */
struct http_answer chat(const char *what, const char *more);
struct http_answer raw(const char *text);
/* Asserts that the gateway answers a chat. */
void still_serves(void);
/* Starts a chat that streams; its head has arrived with status 200. */
struct http_client open_stream(const char *what);
/* Whether is(x) becomes true within 10 s. */
bool soon(bool (*is)(unsigned x), unsigned x);
