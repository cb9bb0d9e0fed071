/* openai_error.c - errors in the shape of OpenAI. */
#include <string.h>
#include "gateway/openai/json_write.h"
#include "gateway/openai/openai_error.h"
#include "gateway/openai/sse.h"

static const char *error_type(int status)
{
    if (status == 429)
        return "rate_limit_error";
    return status >= 500 ? "server_error" : "invalid_request_error";
}

static const char *error_code(int status, const char *param)
{
    switch (status) {
    case 401:
        return "\"invalid_api_key\"";
    case 404:
        return strcmp(param, "model") == 0 ? "\"model_not_found\"" : "\"not_found\"";
    case 429:
        return "\"rate_limit_exceeded\"";
    case 503:
        return "\"service_unavailable\"";
    case 504:
        return "\"timeout\"";
    default:
        return "null";
    }
}

void openai_error(struct buf *to, int status, const char *text, const char *param)
{
    buf_puts(to, "{\"error\":{\"message\":");
    json_write_cstr(to, text);
    buf_printf(to, ",\"type\":\"%s\",\"param\":", error_type(status));
    if (*param)
        json_write_cstr(to, param);
    else
        buf_puts(to, "null");
    buf_printf(to, ",\"code\":%s}}", error_code(status, param));
}

void openai_error_event(struct buf *to, int status, const char *text)
{
    sse_begin(to);
    openai_error(to, status, text, "");
    sse_end(to);
    sse_done(to);
}
