/* page.h - the page at /, to try the server and to see speculation at work. Its files are inside
 * the program.
 *
 * Threads: any, nothing is shared. */
#pragma once
#include <stdbool.h>
#include "gateway/http/http.h"

/* The client asks for HTML, as browsers do. Only from the handler. */
bool page_is_wanted(const struct http_request *r);
/* Answers "/" with the page and "/ui/..." with its other files. */
void page_answer(struct http_request *r);
