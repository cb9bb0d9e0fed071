/* models.h - GET /v1/models and /v1/models/{id}. */
#pragma once
#include "gateway/serve/routes.h"

void models_list(struct gateway *g, struct http_request *r);
void models_one(struct gateway *g, struct http_request *r);
