/* rate_headers.h - OpenAI's x-ratelimit-* header fields: the limits of an API key as they are now.
 *
 * https://platform.openai.com/docs/guides/rate-limits lists the fields. A duration is written as
 * Go writes it: 6m0s, 1.5s, 20ms.
 *
 * Threads: as http_header(). */
#pragma once
#include "gateway/http/http.h"
#include "gateway/keys/auth.h"

#define RATE_HEADERS_DURATION 40 // bytes of a duration, NUL included

/* Adds the fields of each limit that the key has. Once per answer. */
void rate_headers_add(struct http_request *r, const struct auth_levels *levels);
/* Adds Retry-After, for status 429 or 503. */
void rate_headers_retry(struct http_request *r, unsigned retry_s);
/* us >= 0, rounded up to milliseconds. Returns ret. */
const char *rate_headers_duration(int64_t us, char ret[RATE_HEADERS_DURATION]);
