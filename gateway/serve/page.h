/* page.h - the page at /, a chat that shows which tokens come from speculation. Its files are
 * embedded in the program.
 *
 * Threads: any, nothing is shared. */
#pragma once
#include <stdbool.h>
#include "gateway/http/http.h"

/* Whether the client accepts HTML, as browsers do. Only from the handler. */
bool page_is_wanted(const struct http_request *r);
/* Answers "/" with the page, and "/ui/..." with its other files. */
void page_answer(struct http_request *r);
