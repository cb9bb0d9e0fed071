/* answer.h - short answers every endpoint gives: JSON and errors in OpenAI's shape. */
#pragma once
#include "base/buf.h"
#include "gateway/http/http.h"
#include "gateway/openai/openai_request.h"
#include "rpc/rpc.h"

/* Takes the bytes. */
void answer_json(struct http_request *r, int status, struct buf *body);
void answer_error(struct http_request *r, int status, const char *text, const char *param);
void answer_fault(struct http_request *r, const struct openai_fault *fault);

/* HTTP's number for a gRPC status: INVALID_ARGUMENT 400, RESOURCE_EXHAUSTED 429, UNAVAILABLE 503
 * ... */
int answer_status_of(enum rpc_code code);
