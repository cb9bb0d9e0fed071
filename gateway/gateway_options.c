/* gateway_options.c - the settings of the gateway. */
#include "gateway/gateway_options.h"
#include "gateway/openai/tool_parser.h"
#include "base/mem.h"
#include "gateway/upstream/upstream.h"

static struct gateway_options o;

static const struct conf_option table[] = {
    {"listen", CONF_TEXT, &o.listen, "127.0.0.1:8080", 0, 0, NULL, NULL, 0,
     "HTTP address: HOST:PORT or unix:/path; ignored when the service manager passes a socket"},
    {"instance", CONF_TEXT, &o.instance, NULL, 0, 0, NULL, NULL, 0,
     "name of this service in its metrics (default: host and port or path of listen)"},
    {"api_keys", CONF_TEXT, &o.api_keys, NULL, 0, 0, NULL, NULL, 0,
     "file of API keys; default: the service manager's credential api-keys if present, else no key "
     "is required"},
    {"usage_file", CONF_TEXT, &o.usage_file, NULL, 0, 0, NULL, NULL, 0,
     "file that keeps the counts of API keys over restarts; default: usage.sqlite in the service "
     "manager's state folder if there is one, else none"},
    {"allow_open", CONF_BOOL, &o.allow_open, "false", 0, 0, NULL, NULL, 0,
     "serve without API keys on an address that other machines can reach"},
    {"metrics_open", CONF_BOOL, &o.metrics_open, "false", 0, 0, NULL, NULL, 0,
     "serve /metrics and /v1/spec_decode/metrics without an API key"},
    {"tls_cert", CONF_TEXT, &o.tls_cert, NULL, 0, 0, NULL, NULL, 0,
     "PEM file of the certificate and its intermediates; with tls_key: HTTPS only"},
    {"tls_key", CONF_TEXT, &o.tls_key, NULL, 0, 0, NULL, NULL, 0,
     "PEM file of the private key of tls_cert"},
    {"cors_origins", CONF_LIST, &o.cors_origins, NULL, 0, CONF_LIST_MAX, NULL, NULL, 0,
     "origins (https://HOST:PORT) whose web pages may use the API; *: all"},
    {"verifiers", CONF_LIST, &o.verifiers, "unix:/run/tandem/verifier.sock", 0, UPSTREAM_MAX, NULL,
     NULL, 0, "verifiers to send requests to: unix:/path, HOST:PORT or dns:///HOST:PORT"},
    RPC_TLS_OPTIONS(o.rpc_tls),
    RPC_ROLES_TLS_OPTION(o.tls_roles),
    {"http_threads", CONF_INT, &o.http_threads, "2", 1, 64, NULL, NULL, 0,
     "threads that read requests and write answers"},
    {"max_connections", CONF_INT, &o.max_connections, "4096", 1, 65536, NULL, NULL, 0,
     "open connections; above it idle ones are closed, then further ones get status 503"},
    {"max_connections_per_ip", CONF_INT, &o.max_connections_per_ip, "0", 0, 65536, NULL, NULL, 0,
     "open connections of one client address; 0: half of max_connections"},
    {"trusted_proxies", CONF_LIST, &o.trusted_proxies, NULL, 0, CONF_LIST_MAX, NULL, NULL, 0,
     "proxies whose X-Forwarded-For names the client: addresses, networks (10.0.0.0/8), unix"},
    {"max_body_kib", CONF_INT, &o.max_body_kib, "8192", 1, 1 << 20, NULL, NULL, 0,
     "largest request body, in KiB"},
    {"max_bodies_mib", CONF_INT, &o.max_bodies_mib, "256", 1, 1 << 20, NULL, NULL, 0,
     "memory for all requests, in MiB: bodies, what they are parsed into, what stays of them, "
     "answers; one client may hold as much as it leaves free, so at most half"},
    {"max_header_bytes", CONF_INT, &o.max_header_bytes, "16384", 256, 49152, NULL, NULL, 0,
     "largest request header, in bytes"},
    {"max_unread_kib", CONF_INT, &o.max_unread_kib, "1024", 16, 1 << 20, NULL, NULL, 0,
     "unread bytes of a stream before it is closed, in KiB; the verifier pauses at half of it"},
    {"reader_timeout", CONF_FLOAT, &o.reader_timeout, "60", 0.1, 3600, NULL, NULL, 0,
     "how long a client may leave half of max_unread_kib, or a whole answer, unread, in s"},
    {"request_timeout", CONF_FLOAT, &o.request_timeout, "30", 0.1, 3600, NULL, NULL, 0,
     "time for a whole request to arrive, in s"},
    {"idle_timeout", CONF_FLOAT, &o.idle_timeout, "75", 0.1, 86400, NULL, NULL, 0,
     "time after which a connection without a request is closed, in s"},
    {"keepalive_interval", CONF_FLOAT, &o.keepalive_interval, "5", 0.1, 3600, NULL, NULL, 0,
     "silence after which a stream gets a comment line, in s"},
    {"load_wait", CONF_FLOAT, &o.load_wait, "30", 0, 3600, NULL, NULL, 0,
     "how long a request waits for a model that is loading, in s"},
    {"queue_wait", CONF_FLOAT, &o.queue_wait, "300", 0.1, 86400, NULL, NULL, 0,
     "how long a request may wait for its chat template, or in a verifier's queue, before it gets "
     "status 429, in s"},
    {"stall_timeout", CONF_FLOAT, &o.stall_timeout, "5", 0.5, 3600, NULL, NULL, 0,
     "silence of a verifier, which otherwise reports twice a second, until its answers are "
     "continued elsewhere, in s; a pass that takes four times as long counts as silence"},
    {"resume_wait", CONF_FLOAT, &o.resume_wait, "10", 0, 3600, NULL, NULL, 0,
     "how long a request or answer whose verifier is lost waits for one that takes it, in s; 0: it "
     "fails"},
    {"drain_timeout", CONF_FLOAT, &o.drain_timeout, "120", 0, 3600, NULL, NULL, 0,
     "how long running requests may continue after SIGTERM, in s"},
    {"template_workers", CONF_INT, &o.template_workers, "2", 1, 64, NULL, NULL, 0,
     "helper processes that render chat templates"},
    {"template_timeout", CONF_FLOAT, &o.template_timeout, "2", 0.05, 60, NULL, NULL, 0,
     "time after which a chat template's helper is killed, in s"},
    {"tool_format", CONF_CHOICE, &o.tool_format, "auto", 0, 0, "auto|" TOOL_FORMAT_NAMES, NULL, 0,
     "format of tool calls in the model's text; auto: recognised from the chat template"},
    {"log_level", CONF_CHOICE, &o.log_level, "info", 0, 0, "error|warn|info|debug", NULL, 0,
     "least severe level that is logged"},
};

static const struct conf conf = {
    .program = "gateway",
    .summary = "Serves the OpenAI HTTP API; Tandem's verifiers do the work.",
    .options = table,
    .n_options = ARRAY_LEN(table),
};

int gateway_options_read(int argc, char **argv, struct gateway_options **ret)
{
    *ret = &o;
    return conf_read(&conf, argc, argv);
}

void gateway_options_done(void)
{
    conf_done(&conf);
}
