/* trace.c - ids of requests. https://www.w3.org/TR/trace-context/#traceparent-header */
#include "base/trace.h"
#include <string.h>

/* Whether s begins with n lower-case hexadecimal digits; all may be zero only if may_be_zero. */
static bool is_hex(const char *s, size_t n, bool may_be_zero)
{
    return strspn(s, "0123456789abcdef") >= n && (may_be_zero || strspn(s, "0") < n);
}

bool trace_id(const void *text, size_t len, char ret_id[TRACE_ID_LEN + 1])
{
    char s[TRACE_LEN + 1] = "";
    *ret_id = 0;
    if (len != TRACE_LEN)
        return false;
    memcpy(s, text, TRACE_LEN);
    if (strncmp(s, "00-", 3) != 0 || s[35] != '-' || s[52] != '-' || !is_hex(s + 3, 32, false) ||
        !is_hex(s + 36, 16, false) || !is_hex(s + 53, 2, true))
        return false;
    memcpy(ret_id, s + 3, TRACE_ID_LEN);
    ret_id[TRACE_ID_LEN] = 0;
    return true;
}

bool trace_id_copy(const void *text, size_t len, char ret_id[TRACE_ID_LEN + 1])
{
    memset(ret_id, 0, TRACE_ID_LEN + 1);
    if (len == TRACE_ID_LEN)
        memcpy(ret_id, text, TRACE_ID_LEN);
    bool valid = len == TRACE_ID_LEN && is_hex(ret_id, TRACE_ID_LEN, false);
    if (!valid)
        *ret_id = 0;
    return valid;
}

void trace_request(const void *text, size_t len, char ret_id[TRACE_REQUEST_MAX + 1])
{
    const unsigned char *from = text;
    size_t n = len < TRACE_REQUEST_MAX ? len : TRACE_REQUEST_MAX;
    for (size_t i = 0; i < n; i++)
        ret_id[i] = from[i] > ' ' && from[i] < 127 && from[i] != '"' && from[i] != '\\'
                        ? (char)from[i]
                        : '?';
    ret_id[n] = 0;
}
