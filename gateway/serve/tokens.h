/* tokens.h - POST /tokenize {"prompt", "add_special_tokens"} and POST /detokenize {"tokens"}.
 *
 * Threads: http threads. The reader (reader.h) reads large bodies and writes large answers. */
#pragma once
#include "gateway/serve/routes.h"

void tokens_encode(struct gateway *g, struct http_request *r);
void tokens_decode(struct gateway *g, struct http_request *r);
