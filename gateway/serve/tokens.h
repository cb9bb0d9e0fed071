/* tokens.h - POST /tokenize {"prompt", "add_special_tokens"} and POST /detokenize {"tokens"}. */
#pragma once
#include "gateway/serve/routes.h"

void tokens_encode(struct gateway *g, struct http_request *r);
void tokens_decode(struct gateway *g, struct http_request *r);
