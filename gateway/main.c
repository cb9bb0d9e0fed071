/* main.c - the gateway: wiring, start, drain. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/err.h"
#include "base/handover.h"
#include "base/log.h"
#include "base/secret.h"
#include "base/svc.h"
#include "gateway/serve/completions.h"
#include "gateway/http/http.h"
#include "gateway/http/listen.h"
#include "gateway/gateway_options.h"
#include "gateway/serve/routes.h"
#include "gateway/serve/template.h"
#include "gateway/upstream/upstream.h"

#define TICK_US 250000
#define END_US 5000000 // behind a drain: until the last answers have left and all has ended

static struct gateway gateway;
static struct http_server *http;
static int listen_fd; // http's
static struct template *templates;

static int64_t us(double seconds)
{
    return (int64_t)(seconds * 1e6);
}

/* A socket of the service manager's, or one of our own. */
static int find_socket(const struct gateway_options *o, int *ret_fd)
{
    int fds[SVC_MAX_FDS], n = svc_listen_fds(fds);
    if (n < 0)
        return n;
    if (n > 1)
        return fail(-EINVAL, "%d sockets were passed; the gateway serves one", n);
    if (n == 0)
        return listen_open(o->listen, ret_fd);
    *ret_fd = fds[0];
    return 0;
}

/* Keys of the settings, or of the service manager (LoadCredential=api-keys:...). */
static int read_keys(const struct gateway_options *o)
{
    const char *folder = getenv("CREDENTIALS_DIRECTORY"), *path = o->api_keys;
    char credential[4096];
    snprintf(credential, sizeof(credential), "%s/api-keys", folder ? folder : "");
    if (!path && folder && access(credential, F_OK) == 0)
        path = credential;
    int rc = path ? auth_new(path, &gateway.auth) : 0;
    if (gateway.auth)
        log_info("API keys are needed, known=%u", auth_n_keys(gateway.auth));
    gateway.metrics_open = o->metrics_open;
    gateway.cors.origins = &o->cors_origins;
    return rc;
}

static int check_open(const struct gateway_options *o, int fd, const char *name)
{
    bool public = listen_is_public(fd);
    gateway.cors.loopback = !gateway.auth && !public && strncmp(name, "unix:", 5) != 0;
    if (gateway.auth || o->allow_open || !public)
        return 0;
    return fail(-EPERM,
                "anybody who reaches %s could use this server: give it --api-keys, or say "
                "--allow-open if that is meant",
                name);
}

static void reload_keys(void)
{
    if (!gateway.auth)
        log_info("SIGHUP: there are no API keys to be read again");
    else if (auth_reload(gateway.auth) < 0)
        log_error("the API keys stay as they were: %s", fail_text());
    else
        log_info("API keys read again, known=%u", auth_n_keys(gateway.auth));
}

/* A service manager follows when a new process takes over; others would lose sight of it. */
static void reload(void *user)
{
    if (!svc_is_managed())
        reload_keys();
    else if (handover_start(user, &listen_fd, 1) < 0)
        log_error("no new process takes over: %s", fail_text());
    else
        log_info("a new process starts and takes over when it is ready");
}

static int read_tls(const struct gateway_options *o, struct secret *cert, struct secret *key)
{
    if (!o->tls_cert && !o->tls_key)
        return 0;
    if (!o->tls_cert || !o->tls_key)
        return fail(-EINVAL, "tls_cert and tls_key go together: one of them is missing");
    int rc = secret_read("the TLS certificate", o->tls_cert, false, cert);
    return rc < 0 ? rc : secret_read("the TLS key", o->tls_key, true, key);
}

static int start_http(const struct gateway_options *o, int fd)
{
    struct http_options h = {.n_threads = (unsigned)o->http_threads,
                             .max_connections = (unsigned)o->max_connections,
                             .max_per_ip = (unsigned)o->max_connections_per_ip,
                             .max_body = (size_t)o->max_body_kib << 10,
                             .max_bodies = (size_t)o->max_bodies_mib << 20,
                             .max_header = (size_t)o->max_header_bytes,
                             .max_unread = (size_t)o->max_unread_kib << 10,
                             .reader_us = us(o->reader_timeout),
                             .request_us = us(o->request_timeout),
                             .idle_us = us(o->idle_timeout),
                             .ping_us = us(o->keepalive_interval),
                             .admit = routes_admit};
    AUTO(secret_done) struct secret cert = {0}, key = {0};
    int rc = read_tls(o, &cert, &key);
    h.tls_cert = cert.text;
    h.tls_key = key.text;
    if (rc < 0)
        close(fd);
    return rc < 0 ? rc : http_new(&h, fd, routes_answer, &gateway, &http);
}

static int start(const struct gateway_options *o)
{
    int fd;
    char name[256];
    if (o->max_bodies_mib << 10 < o->max_body_kib)
        return fail(-EINVAL, "max_bodies_mib must have room for one body of max_body_kib");
    int rc = find_socket(o, &fd);
    if (rc < 0)
        return rc;
    listen_name(fd, name, sizeof(name));
    gateway.started_us = clock_us();
    rc = read_keys(o);
    rc = rc < 0 ? rc : check_open(o, fd, name);
    rc = rc < 0 ? rc : rpc_tls_init(&o->rpc_tls);
    rc = rc < 0
             ? rc
             : upstream_new((const char *const *)o->verifiers.v, o->verifiers.n, &gateway.upstream);
    rc = rc < 0 ? rc
                : template_new((unsigned)o->template_workers,
                               (unsigned)(o->template_timeout * 1000), &templates);
    rc = rc < 0 ? rc
                : completions_new(gateway.upstream, templates, us(o->load_wait), us(o->queue_wait),
                                  o->tool_format, &gateway.completions);
    if (rc < 0) {
        close(fd);
        return rc;
    }
    rc = start_http(o, fd);
    listen_fd = fd;
    if (rc == 0)
        log_info("listening on %s, version=" TANDEM_VERSION " verifiers=%u", name, o->verifiers.n);
    return rc;
}

/* Until a signal (true), or until a new process has taken over. */
static bool serve(void)
{
    int sig = 0;
    while (!sig && handover_state() != HANDOVER_READY) {
        sig = svc_wait_signal(TICK_US);
        svc_watchdog();
        completions_tick(gateway.completions);
    }
    if (sig)
        log_info("stopping on signal %d, active=%u", sig, http_n_active(http));
    return sig;
}

/* Waits until none is left; false: time is up, or a second signal came. */
static bool wait_for(unsigned (*n_left)(struct http_server *s), int64_t until_us)
{
    unsigned n, told = 0;
    while ((n = n_left(http)) && clock_us() < until_us) {
        if (n != told)
            svc_status("draining, %u left", n);
        told = n;
        svc_watchdog();
        completions_tick(gateway.completions);
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

/* Finishes what was accepted, and so does the process before this one, if it is still there: the
 * first signal has each of them begin with that, and the second one end it. Where a new process
 * listens, and does not stop too, connections that wait for their next request are left to come
 * with it: each is closed behind its next answer. */
static void drain(const struct gateway_options *o, bool stopped)
{
    int64_t until_us = clock_us() + us(o->drain_timeout);
    handover_cancel();
    http_drain(http);
    if (handover_state() == HANDOVER_READY) {
        svc_retire();
        if (gateway.auth)
            reload_keys(); // a connection that is kept has one more request
        log_info("a new process has taken over, connections=%u", http_n_open(http));
        if (!stopped)
            wait_for(n_connections, until_us);
    }
    svc_on_reload(NULL, NULL);
    svc_stopping(us(o->drain_timeout) + END_US);
    gateway.draining = true;
    completions_drain(gateway.completions);
    if (handover_has_old())
        log_info("the process before this one finishes what it has");
    handover_signal_old(SIGTERM);
    if (!wait_for(n_requests, until_us)) {
        log_warn("drain time is over, ending %u requests with an error", http_n_active(http));
        handover_signal_old(SIGINT); // a second SIGTERM might melt into one that still waits
    }
    completions_abort(gateway.completions);
    wait_for(n_requests, clock_us() + END_US / 2);
}

/* Callbacks run until the last of upstream and templates is gone, so what they touch goes last. */
static void stop(void)
{
    if (gateway.completions)
        completions_abort(gateway.completions);
    if (http)
        http_stop(http);
    template_free(templates);
    upstream_free(gateway.upstream);
    completions_free(gateway.completions);
    http_free(http);
    auth_free(gateway.auth);
}

int main(int argc, char **argv)
{
    struct gateway_options *o;
    enum log_level level;
    svc_init();
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
