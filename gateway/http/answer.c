/* answer.c - the short answers that all endpoints share. */
#include <errno.h>
#include "gateway/http/answer.h"
#include "gateway/openai/openai_error.h"

void answer_json(struct http_request *r, int status, struct buf *body)
{
    if (body->error) {
        buf_done(body);
        answer_error(r, 500, "the answer is too large", "");
        return;
    }
    http_reply(r, status, "application/json", body);
}

void answer_error(struct http_request *r, int status, const char *text, const char *param)
{
    struct buf body;
    buf_init(&body, 16384);
    openai_error(&body, status, text, param);
    http_reply(r, status, "application/json", &body);
}

void answer_fault(struct http_request *r, const struct openai_fault *fault)
{
    answer_error(r, fault->status, fault->text, fault->param);
}

static int charge(void *user, size_t bytes)
{
    int rc = http_charge(user, bytes);
    return rc < 0 ? answer_charge_status(rc) : 0;
}

struct openai_memory answer_memory(struct http_request *r)
{
    return (struct openai_memory){charge, r};
}

int answer_charge_status(int error)
{
    return error == -EMSGSIZE ? 413 : error == -EDQUOT ? 429 : error == -EAGAIN ? 503 : 500;
}

int answer_status_of(enum rpc_code code)
{
    switch (code) {
    case RPC_OK:
        return 200;
    case RPC_INVALID_ARGUMENT:
    case RPC_OUT_OF_RANGE:
    case RPC_FAILED_PRECONDITION:
        return 400;
    case RPC_UNAUTHENTICATED:
        return 401;
    case RPC_PERMISSION_DENIED:
        return 403;
    case RPC_NOT_FOUND:
        return 404;
    case RPC_ALREADY_EXISTS:
    case RPC_ABORTED:
        return 409;
    case RPC_RESOURCE_EXHAUSTED:
        return 429;
    case RPC_CANCELLED:
    case RPC_UNAVAILABLE:
        return 503;
    case RPC_UNIMPLEMENTED:
        return 501;
    case RPC_DEADLINE_EXCEEDED:
        return 504;
    default:
        return 500;
    }
}
