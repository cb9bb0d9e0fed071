/* chats.h - chat requests to the gateway, and their errors. Ends the test on errors. */
#pragma once
#include "lib/clients/http_client.h"

/* The JSON of a chat whose last message is `what`. more: further members, ",..." or "". Free it. */
char *chat_body(const char *what, const char *more);
/* Sends a chat to the gateway at port `at`; the second one streams. */
void begin_chat(struct http_client *c, unsigned at, const char *what, const char *more);
void begin_stream(struct http_client *c, unsigned at, const char *what);
/* The content in a chunk, "" for other events. Frees the event. NULL: event is NULL. */
char *content_of(char *event);
/* Asserts the status and an OpenAI error with this param (NULL: null) whose message contains
 * `part`. */
void is_error(struct http_answer a, int status, const char *param, const char *part);
