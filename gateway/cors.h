/* cors.h - pages of other origins, which may use the API from a browser only if it is told so. */
#pragma once
#include <stdbool.h>
#include "base/conf.h"
#include "gateway/http.h"

/* Adds what a browser wants to see in the answer to a page of one of the origins ("*": any).
 * true: the request was the browser's question beforehand, and has been answered. Handler only. */
bool cors_answer(const struct conf_list *origins, struct http_request *r);
