/* stage.h - a gateway with a fake verifier, shared by all tests of a program. Errors end tests. */
#pragma once
#include <stdbool.h>
#include "lib/clients/chats.h"
#include "lib/rigs/gateway.h"

extern struct stage {
    char address[128]; // of the verifier
    char keys[256];    // path of a file for API keys
    struct fake_verifier *verifier;
    struct child gateway;
    unsigned port;
} stage;

/* Starts both. more: as for gateway_start(). Returns 0, for set-up functions of cmocka. */
int stage_open(const char *const *more);
int stage_close(void **state);
/* Set-up and tear-down with the verifier only: each test starts gateways with its own options. */
int stage_open_verifier(void **state);
int stage_close_verifier(void **state);
/* Writes stage.keys, mode 0600. */
void stage_write_keys(const char *text);

/* The gateway's answer to a chat (chat_body()), and to these bytes. */
struct http_answer stage_chat(const char *what, const char *more);
struct http_answer stage_raw(const char *text);
void stage_still_serves(void);
/* A streaming chat whose header has arrived with status 200. */
struct http_client stage_open_stream(const char *what);
/* Whether is(x) becomes true within 60 s. */
bool stage_becomes(bool (*is)(unsigned x), unsigned x);
