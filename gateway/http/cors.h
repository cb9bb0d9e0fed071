/* cors.h - pages of other origins, which may use the API from a browser only if it is told so.
 *
 * A browser names the page's origin; what it does not show to a page it may still send, so a page
 * that is not meant is refused. Without keys on a loopback address a page of our own has a loopback
 * name, too: another one is somebody's who lets his name point here (DNS rebinding). */
#pragma once
#include <stdbool.h>
#include "base/conf.h"
#include "gateway/http/http.h"

struct cors {
    const struct conf_list *origins; // "*": any
    bool loopback;                   // our own page's name is a loopback one
};

/* Adds what a browser wants to see in the answer to a page of one of the origins. true: it has been
 * answered: it was the browser's question beforehand, or of a page that may not. Handler only. */
bool cors_answer(const struct cors *c, struct http_request *r);
