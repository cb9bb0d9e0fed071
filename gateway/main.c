/* main.c - the gateway: wiring, start, drain. */
#include <errno.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/cert.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/handover.h"
#include "base/instance.h"
#include "base/log.h"
#include "base/svc.h"
#include "gateway/serve/completions.h"
#include "gateway/http/address.h"
#include "gateway/http/http.h"
#include "gateway/http/http_tls.h"
#include "gateway/http/listen.h"
#include "gateway/keys/usage_keeper.h"
#include "gateway/gateway_options.h"
#include "gateway/serve/routes.h"
#include "gateway/serve/template.h"
#include "gateway/upstream/upstream.h"

#define TICK_US 250000
#define TRIM_BYTES (32u << 20)     // freed by requests ...
#define TRIM_IDLE_BYTES (1u << 20) // ... or so many, and no request holds counted memory
/* Each thread's heap keeps so much at its end. malloc_trim() does not reach that memory, and the
 * messages of the gateway are smaller than those for which base/svc.c keeps 512 MiB. */
#define TRIM_KEEP_BYTES (4 << 20)
#define MEET_US 5000000 // at a start: time for the first answers of the verifiers
#define END_US 5000000  // after a drain: time for the last answers and the end of all calls

static struct gateway gateway;
static struct http_server *http;
static int listen_fd;            // http's
static struct cert_files *certs; // of HTTPS; NULL: plain HTTP
static struct template *templates;
static struct address_range proxies[CONF_LIST_MAX];
static struct usage_keeper *keeper; // NULL: the counts of keys end with the process

static int64_t to_us(double seconds)
{
    return (int64_t)(seconds * 1e6);
}

/* The socket that the service manager passes, or a new one. */
static int find_socket(const struct gateway_options *o, int *ret_fd)
{
    int fds[SVC_MAX_FDS], n = svc_listen_fds(fds);
    if (n < 0)
        return n;
    if (n > 1)
        return fail(-EINVAL, "%d sockets were passed; the gateway takes one", n);
    if (n == 0)
        return listen_open(o->listen, ret_fd);
    *ret_fd = fds[0];
    return 0;
}

/* The key file of the options, or of the service manager (LoadCredential=api-keys:...). */
static int read_keys(const struct gateway_options *o)
{
    const char *folder = getenv("CREDENTIALS_DIRECTORY"), *path = o->api_keys;
    char credential[4096];
    snprintf(credential, sizeof(credential), "%s/api-keys", folder ? folder : "");
    if (!path && folder && access(credential, F_OK) == 0)
        path = credential;
    int rc = path ? auth_new(path, &gateway.auth) : 0;
    if (gateway.auth)
        log_info("API key authentication enabled keys=%u", auth_n_keys(gateway.auth));
    if (rc == 0 && gateway.auth)
        rc = bad_keys_new(&gateway.bad_keys);
    gateway.metrics_open = o->metrics_open;
    gateway.cors.origins = &o->cors_origins;
    return rc;
}

/* The keys' counts go to the file of the options, or to the service manager's state folder. */
static int keep_usage(const struct gateway_options *o)
{
    const char *folder = getenv("STATE_DIRECTORY"), *path = o->usage_file;
    char state[4096];
    snprintf(state, sizeof(state), "%.*s/usage.sqlite", folder ? (int)strcspn(folder, ":") : 0,
             folder ? folder : "");
    if (path && !gateway.auth)
        return fail(-EINVAL, "usage_file is set, but there are no API keys to count: set api_keys");
    if (!path && folder)
        path = state;
    return gateway.auth && path ? usage_keeper_new(gateway.auth, path, &keeper) : 0;
}

static int check_open(const struct gateway_options *o, int fd, const char *name)
{
    bool public = listen_is_public(fd);
    gateway.cors.loopback = !gateway.auth && !public && strncmp(name, "unix:", 5) != 0;
    if (gateway.auth || o->allow_open || !public)
        return 0;
    return fail(-EPERM,
                "%s is reachable from other machines and needs no API key: set --api-keys, or "
                "--allow-open to permit this",
                name);
}

static void reload_keys(void)
{
    if (gateway.auth && auth_reload(gateway.auth) < 0)
        log_error("API keys not reloaded, the old ones stay valid: %s", fail_text());
    else if (gateway.auth)
        log_info("API keys reloaded keys=%u", auth_n_keys(gateway.auth));
}

/* Files that a running process can read again. */
static void reload_files(void)
{
    if (!gateway.auth && !certs && !rpc_tls_on())
        log_info("SIGHUP ignored: no API keys or certificates to reload");
    reload_keys();
    cert_files_reload(certs);
    rpc_tls_reload();
}

/* SIGHUP. Under a service manager a new process takes over, and the manager follows it. Any other
 * parent would lose track of the new process, so only keys and certificates are reloaded. */
static void reload(void *user)
{
    if (!svc_is_managed())
        reload_files();
    else if (handover_start(user, &listen_fd, 1) < 0)
        log_error("cannot start a new process to take over: %s", fail_text());
    else
        log_info("new process started, it takes over when it is ready");
}

static int read_tls(const struct gateway_options *o)
{
    struct cert_paths p = {
        .settings = "tls", .cert = o->tls_cert, .key = o->tls_key, .check = http_tls_check};
    if (!p.cert && !p.key)
        return 0;
    if (!p.cert || !p.key)
        return fail(-EINVAL, "tls_cert and tls_key must be set together: one is missing");
    return cert_files_new(&p, &certs);
}

static int read_proxies(const struct conf_list *list)
{
    int rc = 0;
    for (unsigned i = 0; i < list->n && rc == 0; i++)
        rc = address_range_parse(list->v[i], &proxies[i]);
    if (rc == 0)
        return 0;
    char why[FAIL_TEXT_MAX];
    snprintf(why, sizeof(why), "%s", fail_text());
    return fail(rc, "trusted_proxies: %.300s", why);
}

static int start_http(const struct gateway_options *o, int fd)
{
    struct http_options h = {.n_threads = (unsigned)o->http_threads,
                             .max_connections = (unsigned)o->max_connections,
                             .max_per_ip = (unsigned)o->max_connections_per_ip,
                             .trusted = proxies,
                             .n_trusted = o->trusted_proxies.n,
                             .max_body = (size_t)o->max_body_kib << 10,
                             .max_bodies = (size_t)o->max_bodies_mib << 20,
                             .max_header = (size_t)o->max_header_bytes,
                             .max_unread = (size_t)o->max_unread_kib << 10,
                             .reader_us = to_us(o->reader_timeout),
                             .request_us = to_us(o->request_timeout),
                             .idle_us = to_us(o->idle_timeout),
                             .ping_us = to_us(o->keepalive_interval),
                             .admit = routes_admit};
    int rc = read_tls(o);
    h.certs = certs;
    if (rc < 0)
        close(fd);
    return rc < 0 ? rc : http_new(&h, fd, routes_answer, &gateway, &http);
}

/* Before it accepts connections, the gateway learns what its verifiers serve. A successor waits
 * until it has reached all of them: its predecessor still serves. */
static int start(const struct gateway_options *o)
{
    int fd;
    char name[256];
    const struct upstream_patience patience = {to_us(o->stall_timeout), to_us(o->resume_wait)};
    if (o->max_bodies_mib << 9 < o->max_body_kib) // see http/request_memory.h
        return fail(-EINVAL, "max_bodies_mib must be at least twice max_body_kib");
    int rc = read_proxies(&o->trusted_proxies);
    rc = rc < 0 ? rc : find_socket(o, &fd);
    if (rc < 0)
        return rc;
    instance_address(fd, name, sizeof(name));
    instance_name(o->instance, name, gateway.instance, sizeof(gateway.instance));
    gateway.started_us = clock_us();
    rc = read_keys(o);
    rc = rc < 0 ? rc : check_open(o, fd, name);
    rc = rc < 0 ? rc : keep_usage(o);
    rc = rc < 0 ? rc : rpc_tls_init(&o->rpc_tls, &o->tls_roles);
    rc = rc < 0 ? rc
                : upstream_new((const char *const *)o->verifiers.v, o->verifiers.n, &patience,
                               &gateway.upstream);
    rc = rc < 0
             ? rc
             : template_new((unsigned)o->template_workers, (unsigned)(o->template_timeout * 1000),
                            to_us(o->queue_wait), &templates);
    rc = rc < 0 ? rc : reader_new(&gateway.reader);
    rc = rc < 0 ? rc
                : completions_new(gateway.upstream, templates, gateway.reader, to_us(o->load_wait),
                                  to_us(o->queue_wait), &patience, o->tool_format,
                                  &gateway.completions);
    if (rc < 0) {
        close(fd);
        return rc;
    }
    upstream_meet(gateway.upstream, handover_is_successor(), clock_us() + MEET_US);
    rc = start_http(o, fd);
    listen_fd = fd;
    if (rc == 0)
        log_info("listening on %s, version=" TANDEM_VERSION " verifiers=%u", name, o->verifiers.n);
    return rc;
}

/* Returns freed memory to the system once requests have freed much. malloc keeps it otherwise
 * (base/svc.c), which is faster for the messages of a steady load. */
static void trim_memory(void)
{
    static size_t trimmed_at;
    size_t freed = http_freed_bytes(http);
    bool idle = http_body_bytes(http) == 0;
    if (freed - trimmed_at < (idle ? TRIM_IDLE_BYTES : TRIM_BYTES))
        return;
    trimmed_at = freed;
    malloc_trim(TRIM_KEEP_BYTES);
}

/* One round of the main thread's periodic work. */
static void tick(void)
{
    svc_watchdog();
    cert_files_poll(certs, clock_us(), clock_unix_s());
    rpc_tls_poll();
    completions_tick(gateway.completions);
    routes_tick(&gateway);
    trim_memory();
}

/* Runs until a signal (true), or until a new process has taken over (false). */
static bool serve(void)
{
    int sig = 0;
    while (!sig && handover_state() != HANDOVER_READY) {
        sig = svc_wait_signal(TICK_US);
        tick();
    }
    if (sig)
        log_info("stopping on signal %d, active=%u", sig, http_n_active(http));
    return sig;
}

/* Waits until n_left() is 0; false: the deadline passed, or a second signal came. */
static bool wait_for(unsigned (*n_left)(struct http_server *s), int64_t until_us)
{
    unsigned n, reported = 0;
    while ((n = n_left(http)) && clock_us() < until_us) {
        if (n != reported)
            svc_status("draining, %u left", n);
        reported = n;
        tick();
        if (svc_wait_signal(TICK_US / 10))
            return false;
    }
    return !n;
}

static unsigned n_connections(struct http_server *s)
{
    return http_n_open(s) + handover_has_old();
}

static unsigned n_requests(struct http_server *s)
{
    return http_n_active(s) + handover_has_old();
}

/* Finishes the accepted requests. A predecessor that still runs does the
 * same.
 *
 * The first signal starts the drain in both processes, the second one ends it. If a new process has
 * taken over and keeps serving, idle connections stay open. Each is closed after its next
 * answer. */
static void drain(const struct gateway_options *o, bool stopped)
{
    int64_t until_us = clock_us() + to_us(o->drain_timeout);
    handover_cancel();
    http_drain(http);
    if (handover_state() == HANDOVER_READY) {
        svc_retire();
        reload_keys(); // an open connection may still send one request
        log_info("new process has taken over connections=%u", http_n_open(http));
        if (!stopped)
            wait_for(n_connections, until_us);
    }
    svc_on_reload(NULL, NULL);
    svc_stopping(to_us(o->drain_timeout) + END_US);
    gateway.draining = true;
    completions_drain(gateway.completions);
    if (handover_has_old())
        log_info("the previous process finishes its requests");
    handover_signal_old(SIGTERM);
    if (!wait_for(n_requests, until_us)) {
        log_warn("drain timeout, ending requests with an error active=%u", http_n_active(http));
        handover_signal_old(SIGINT); // a second SIGTERM could merge with a pending one
    }
    completions_abort(gateway.completions);
    wait_for(n_requests, clock_us() + END_US / 2);
}

/* Callbacks run until upstream and templates are freed. The objects that callbacks use are freed
 * last. */
static void stop(void)
{
    if (gateway.completions)
        completions_abort(gateway.completions);
    if (http)
        http_stop(http);
    template_free(templates);
    upstream_free(gateway.upstream);
    reader_free(gateway.reader);
    completions_free(gateway.completions);
    http_free(http);
    usage_keeper_free(keeper);
    cert_files_free(certs);
    auth_free(gateway.auth);
    bad_keys_free(gateway.bad_keys);
}

int main(int argc, char **argv)
{
    struct gateway_options *o;
    enum log_level level;
    svc_init();
    mallopt(M_TRIM_THRESHOLD, TRIM_KEEP_BYTES);
    int rc = gateway_options_read(argc, argv, &o);
    if (rc == 0 && log_level_of(o->log_level, &level) == 0) {
        log_init("gateway", level);
        rc = start(o);
        if (rc == 0) {
            svc_on_reload(reload, argv);
            svc_ready("serving");
            drain(o, serve());
        }
        if (rc < 0)
            log_error("%s", fail_text());
        stop();
    } else if (rc < 0) {
        fprintf(stderr, "gateway: %s\n", fail_text());
    }
    gateway_options_done();
    return rc < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
}
