/* health.h - what the gateway says about itself and its verifiers: GET /health and, short and for
 * probes, /ready (200 only while requests are served), /metrics (everybody's, merged) and
 * /v1/spec_decode/metrics. */
#pragma once
#include "gateway/serve/routes.h"

void health_report(struct gateway *g, struct http_request *r);
/* Its status alone, of what was said last: nobody is asked. */
void health_brief(struct gateway *g, struct http_request *r);
void health_ready(struct gateway *g, struct http_request *r);
void health_metrics(struct gateway *g, struct http_request *r);
void health_speculation(struct gateway *g, struct http_request *r);
