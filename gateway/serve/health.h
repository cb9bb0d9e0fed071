/* health.h - the state and the statistics of the gateway and its verifiers.
 *
 *     GET /health                  the full report; 200 while requests are served, else 503
 *     GET /ready                   the same status for probes, with a short body
 *     GET /metrics                 Prometheus metrics of the gateway and all verifiers, merged
 *     GET /v1/spec_decode/metrics  statistics of speculation, summed over the verifiers */
#pragma once
#include "gateway/serve/routes.h"

void health_report(struct gateway *g, struct http_request *r);
/* /health without a valid API key: only the status, by the last known states, without a call. */
void health_brief(struct gateway *g, struct http_request *r);
void health_ready(struct gateway *g, struct http_request *r);
void health_metrics(struct gateway *g, struct http_request *r);
void health_speculation(struct gateway *g, struct http_request *r);
