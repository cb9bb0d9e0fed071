/* rate_headers.c - OpenAI's x-ratelimit-* header fields. */
#include "gateway/serve/rate_headers.h"
#include <inttypes.h>
#include <stdio.h>

const char *rate_headers_duration(int64_t us, char ret[RATE_HEADERS_DURATION])
{
    int64_t ms = (us + 999) / 1000, s = ms / 1000, minutes = s / 60;
    if (!ms)
        snprintf(ret, RATE_HEADERS_DURATION, "0s");
    else if (!s)
        snprintf(ret, RATE_HEADERS_DURATION, "%" PRId64 "ms", ms);
    else if (!minutes)
        snprintf(ret, RATE_HEADERS_DURATION, "%gs", (double)ms / 1e3);
    else if (minutes < 60)
        snprintf(ret, RATE_HEADERS_DURATION, "%" PRId64 "m%" PRId64 "s", minutes, s % 60);
    else
        snprintf(ret, RATE_HEADERS_DURATION, "%" PRId64 "h%" PRId64 "m%" PRId64 "s", minutes / 60,
                 minutes % 60, s % 60);
    return ret;
}

struct names {
    const char *limit, *left, *reset;
};

static void add_level(struct http_request *r, const struct names *names,
                      const struct key_budget_level *level)
{
    char text[RATE_HEADERS_DURATION];
    if (!level->limit)
        return;
    snprintf(text, sizeof(text), "%" PRIu64, level->limit);
    http_header(r, names->limit, text);
    snprintf(text, sizeof(text), "%" PRIu64, level->left);
    http_header(r, names->left, text);
    http_header(r, names->reset, rate_headers_duration(level->reset_us, text));
}

void rate_headers_add(struct http_request *r, const struct auth_levels *levels)
{
    static const struct names requests = {"x-ratelimit-limit-requests",
                                          "x-ratelimit-remaining-requests",
                                          "x-ratelimit-reset-requests"},
                              tokens = {"x-ratelimit-limit-tokens", "x-ratelimit-remaining-tokens",
                                        "x-ratelimit-reset-tokens"};
    add_level(r, &requests, &levels->requests);
    add_level(r, &tokens, &levels->tokens);
}

void rate_headers_retry(struct http_request *r, unsigned retry_s)
{
    char text[16];
    snprintf(text, sizeof(text), "%u", retry_s);
    http_header(r, "Retry-After", text);
}
