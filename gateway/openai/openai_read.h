/* openai_read.h - the readers of a request's body, each for some of its fields.
 *
 * Private to openai_request.c, which reads the body, and to the files of the readers. Each returns
 * 0 or a negative errno with the fault filled, as json_read.h.
 *
 * Threads: any, nothing is shared. */
#pragma once
#include "gateway/openai/json_read.h"
#include "gateway/openai/openai_request.h"

/* A body that is being read into a request. */
struct openai_read {
    struct json_read *json;
    struct openai_request *q;
};

/* The fields that chats, completions and responses share. */
int openai_fields_read(struct openai_read *r, json_t *body);
/* Messages and tools of a chat, which become the variables of its template. */
int openai_chat_read(struct openai_read *r, json_t *body);
/* The input and the tools of a response, which become those of a chat. */
int openai_responses_read(struct openai_read *r, json_t *body);
