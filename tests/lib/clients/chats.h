/* chats.h - chats with the gateway, and what is wrong with them. Ends the test on errors. */
#pragma once
#include "lib/clients/http_client.h"

/* A chat whose last message is `what`; more: further members, ",..." or "". Free it. */
char *chat_body(const char *what, const char *more);
/* Sends one to the gateway at this port, and one that streams. */
void begin_chat(struct http_client *c, unsigned at, const char *what, const char *more);
void begin_stream(struct http_client *c, unsigned at, const char *what);
/* The content of a chunk, "" for others; the event is freed. NULL: no more. */
char *content_of(char *event);
/* Asserts status and an OpenAI error with this param (NULL: null) whose message holds `part`. */
void is_error(struct http_answer a, int status, const char *param, const char *part);
