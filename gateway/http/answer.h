/* answer.h - the short answers that all endpoints share: JSON, and errors in the shape of OpenAI.
 *
 * Threads: any. */
#pragma once
#include "base/buf.h"
#include "gateway/http/http.h"
#include "gateway/openai/openai_request.h"
#include "rpc/rpc.h"

/* Takes the bytes of body. A body that is too large or found no memory becomes error 500. */
void answer_json(struct http_request *r, int status, struct buf *body);
void answer_error(struct http_request *r, int status, const char *text, const char *param);
void answer_fault(struct http_request *r, const struct openai_fault *fault);

/* Counts memory for the request by http_charge(); the HTTP status for an error of it. */
struct openai_memory answer_memory(struct http_request *r);
int answer_charge_status(int error);

/* The HTTP status for a gRPC status: INVALID_ARGUMENT 400, RESOURCE_EXHAUSTED 429 ... */
int answer_status_of(enum rpc_code code);
