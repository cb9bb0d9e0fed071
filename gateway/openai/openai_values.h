/* openai_values.h - the values that fields of a request have, and the error for a field that is
 * wrong.
 *
 * Plain data: no jansson, and nothing of a request that holds the fields. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "base/err.h"

#define OPENAI_MAX_TOKEN ((1 << 24) - 1) // largest token id; no vocabulary is larger

/* What is wrong with a request, in the terms of OpenAI's error objects. */
struct openai_fault {
    int status;     // HTTP
    char param[96]; // name of the field, "": the whole body
    char text[FAIL_TEXT_MAX];
};

/* Where the memory of a request is counted. */
struct openai_memory {
    /* Counts so many bytes for the request, in place of those before. Returns 0, or the HTTP status
     * of a refusal, with a sentence. 413: the request alone needs too much. 429: the other requests
     * of its client use the memory. 503: those of other clients do. */
    int (*set)(void *user, size_t bytes);
    void *user;
};

/* Optional numbers. */
struct openai_real {
    bool set;
    double value;
};
struct openai_int {
    bool set;
    int64_t value;
};
