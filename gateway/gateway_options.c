/* gateway_options.c - the settings of the gateway. */
#include "gateway/gateway_options.h"
#include "gateway/openai/tool_parser.h"
#include "base/mem.h"
#include "gateway/upstream/upstream.h"

static struct gateway_options o;

static const struct conf_option table[] = {
    {"listen", CONF_TEXT, &o.listen, "127.0.0.1:8080", 0, 0, NULL, NULL, 0,
     "address to serve HTTP on: HOST:PORT or unix:/path; a socket passed by the service manager "
     "takes its place"},
    {"api_keys", CONF_TEXT, &o.api_keys, NULL, 0, 0, NULL, NULL, 0,
     "file of API keys; without it a credential of the service manager called api-keys, if there "
     "is one, else everybody is let in"},
    {"allow_open", CONF_BOOL, &o.allow_open, "false", 0, 0, NULL, NULL, 0,
     "serve without API keys even where other machines can reach the address"},
    {"metrics_open", CONF_BOOL, &o.metrics_open, "false", 0, 0, NULL, NULL, 0,
     "figures (/metrics, /v1/spec_decode/metrics) without an API key"},
    {"tls_cert", CONF_TEXT, &o.tls_cert, NULL, 0, 0, NULL, NULL, 0,
     "file (PEM) of the certificate, and those between it and its root; with tls_key: HTTPS only"},
    {"tls_key", CONF_TEXT, &o.tls_key, NULL, 0, 0, NULL, NULL, 0, "file (PEM) of its key"},
    {"cors_origins", CONF_LIST, &o.cors_origins, NULL, 0, CONF_LIST_MAX, NULL, NULL, 0,
     "origins (https://HOST:PORT) whose pages may use the API from a browser; *: all"},
    {"verifiers", CONF_LIST, &o.verifiers, "unix:/run/tandem/verifier.sock", 0, UPSTREAM_MAX, NULL,
     NULL, 0, "verifiers to forward to: unix:/path, HOST:PORT or dns:///HOST:PORT"},
    RPC_TLS_OPTIONS(o.rpc_tls),
    {"http_threads", CONF_INT, &o.http_threads, "2", 1, 64, NULL, NULL, 0,
     "threads that read requests and write answers"},
    {"max_connections", CONF_INT, &o.max_connections, "4096", 1, 65536, NULL, NULL, 0,
     "open connections; more wait until one closes"},
    {"max_connections_per_ip", CONF_INT, &o.max_connections_per_ip, "0", 0, 65536, NULL, NULL, 0,
     "open connections from one address; 0: no such limit"},
    {"max_body_kib", CONF_INT, &o.max_body_kib, "8192", 1, 1 << 20, NULL, NULL, 0,
     "largest request body in KiB"},
    {"max_bodies_mib", CONF_INT, &o.max_bodies_mib, "256", 1, 1 << 20, NULL, NULL, 0,
     "MiB of request bodies held at once, each until a verifier has begun with it"},
    {"max_header_bytes", CONF_INT, &o.max_header_bytes, "16384", 256, 49152, NULL, NULL, 0,
     "largest request header in bytes"},
    {"max_unread_kib", CONF_INT, &o.max_unread_kib, "1024", 16, 1 << 20, NULL, NULL, 0,
     "KiB of a stream that may wait for its reader; the verifier pauses at half of it"},
    {"reader_timeout", CONF_FLOAT, &o.reader_timeout, "60", 0.1, 3600, NULL, NULL, 0,
     "seconds a stream may be held up by its reader (half of max_unread waiting)"},
    {"request_timeout", CONF_FLOAT, &o.request_timeout, "30", 0.1, 3600, NULL, NULL, 0,
     "seconds within which a whole request must have arrived"},
    {"idle_timeout", CONF_FLOAT, &o.idle_timeout, "75", 0.1, 86400, NULL, NULL, 0,
     "seconds after which a connection without a request is closed"},
    {"keepalive_interval", CONF_FLOAT, &o.keepalive_interval, "5", 0.1, 3600, NULL, NULL, 0,
     "seconds of silence after which a stream gets a comment line"},
    {"load_wait", CONF_FLOAT, &o.load_wait, "30", 0, 3600, NULL, NULL, 0,
     "seconds a request waits for a model that is loading"},
    {"queue_wait", CONF_FLOAT, &o.queue_wait, "300", 0.1, 86400, NULL, NULL, 0,
     "seconds a request may wait in a verifier's queue; then it is 429"},
    {"drain_timeout", CONF_FLOAT, &o.drain_timeout, "120", 0, 3600, NULL, NULL, 0,
     "seconds that running requests may take after SIGTERM"},
    {"template_workers", CONF_INT, &o.template_workers, "2", 1, 64, NULL, NULL, 0,
     "helper processes that render chat templates"},
    {"template_timeout", CONF_FLOAT, &o.template_timeout, "2", 0.05, 60, NULL, NULL, 0,
     "seconds after which a chat template's helper is killed"},
    {"tool_format", CONF_CHOICE, &o.tool_format, "auto", 0, 0, "auto|" TOOL_FORMAT_NAMES, NULL, 0,
     "how models write calls of tools; auto: as the chat template shows"},
    {"log_level", CONF_CHOICE, &o.log_level, "info", 0, 0, "error|warn|info|debug", NULL, 0,
     "how much is logged"},
};

static const struct conf conf = {"gateway",
                                 "Speaks the OpenAI HTTP API and forwards to Tandem's verifiers.",
                                 table, ARRAY_LEN(table)};

int gateway_options_read(int argc, char **argv, struct gateway_options **ret)
{
    *ret = &o;
    return conf_read(&conf, argc, argv);
}

void gateway_options_done(void)
{
    conf_done(&conf);
}
