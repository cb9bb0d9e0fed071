/* stage.h - a gateway before a verifier that is played, the same for all tests of a program. Ends
 * the test on errors. */
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

/* more: as gateway_start() has it. 0, for cmocka's set-up. */
int stage_open(const char *const *more);
int stage_close(void **state);

/* What its gateway answers: to a chat (chat_body()), and to these bytes. */
struct http_answer chat(const char *what, const char *more);
struct http_answer raw(const char *text);
void still_serves(void);
/* A chat that streams, whose head has come with status 200. */
struct http_client open_stream(const char *what);
/* Whether it is so within 10 s. */
bool soon(bool (*is)(unsigned x), unsigned x);
