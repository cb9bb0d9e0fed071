/* rpc_service.c - the common part of the gRPC services. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/instance.h"
#include "base/log.h"
#include "base/loopback.h"
#include "base/svc.h"
#include "rpc/rpc_base.h"
#include "rpc/rpc_health.h"
#include "rpc/rpc_reflection.h"
#include "rpc/rpc_service.h"

/* Time after the drain for threads to end: a forward pass, or the tokenisation of a text, that has
 * started is completed first. The watchdog of the systemd units allows no longer pass. */
#define STOP_MARGIN_US 30000000

struct rpc_service {
    const char *name, *instance;
    const struct conf_list *listen;
    const char *admin_listen; // NULL: none
    struct rpc_server *server;
    struct rpc_health *health;
    struct rpc_stats *stats;
    struct rpc_reflection reflection;
    bool is_named; // the instance is set
};

static void service_free(struct rpc_service *s)
{
    rpc_health_free(s->health);
    rpc_stats_free(s->stats);
    free(s);
}

static void register_all(struct rpc_service *s, unsigned stats_roles)
{
    s->reflection = (struct rpc_reflection){
        .services = {s->name, "tandem.v1.Stats", "grpc.health.v1.Health",
                     "grpc.reflection.v1alpha.ServerReflection"},
        .n_services = 4,
    };
    rpc_health_add(s->health, s->name);
    rpc_health_register(s->health, s->server);
    rpc_stats_register(s->stats, s->server, stats_roles);
    rpc_reflection_register(&s->reflection, s->server);
}

int rpc_service_new(const struct rpc_service_options *opt, struct rpc_service **ret)
{
    struct rpc_service *s = calloc(1, sizeof(*s));
    if (!s)
        return fail(-ENOMEM, "rpc: no memory for a service");
    s->name = opt->name;
    s->instance = opt->instance;
    s->listen = opt->listen;
    s->health = rpc_health_new();
    s->stats = rpc_stats_new(opt->fill_stats, opt->user);
    struct rpc_server_options server = opt->server;
    if (opt->access) {
        s->admin_listen = opt->access->admin_listen;
        server.insecure = opt->access->insecure_listen;
        server.tls_roles = &opt->access->tls_roles;
    }
    int r = s->health && s->stats ? rpc_server_new(&server, &s->server)
                                  : fail(-ENOMEM, "rpc: no memory for a service");
    if (r < 0) {
        service_free(s);
        return r;
    }
    register_all(s, opt->stats_roles);
    *ret = s;
    return 0;
}

struct rpc_server *rpc_service_server(struct rpc_service *s)
{
    return s->server;
}

/* Only the first address counts. port: that of a TCP address, which may be given as 0; else at
 * most 1. */
static void name_instance(struct rpc_service *s, const char *address, int port)
{
    char name[INSTANCE_MAX], actual[16];
    if (s->is_named)
        return;
    snprintf(actual, sizeof(actual), ":%d", port);
    instance_name(s->instance, port > 1 ? actual : address, name, sizeof(name));
    rpc_stats_set_instance(s->stats, name);
    s->is_named = true;
}

static int listen_passed(struct rpc_service *s, const int *fds, int n, bool *ret_admin)
{
    char address[INSTANCE_MAX];
    int r = 0;
    *ret_admin = false;
    for (int i = 0; i < n && r >= 0; i++) {
        bool admin = strcmp(svc_fd_name(i), "admin") == 0;
        instance_address(fds[i], address, sizeof(address));
        if (!admin)
            name_instance(s, address, 0);
        *ret_admin |= admin;
        r = rpc_server_listen_fd(s->server, fds[i], admin);
        if (r >= 0)
            log_info("listening fd=%d%s", fds[i], admin ? " role=operator" : "");
    }
    return r;
}

static int listen_admin(struct rpc_service *s)
{
    int r = rpc_server_listen_admin(s->server, s->admin_listen);
    if (r >= 0)
        log_info("listening address=%s role=operator", s->admin_listen);
    return r;
}

/* Passed sockets replace the configured unix paths (tcp_only). TCP addresses are always opened
 * here, because only such sockets can speak TLS. */
static int listen_configured(struct rpc_service *s, bool tcp_only)
{
    if (!s->listen->n && !tcp_only)
        return fail(-EINVAL, "there is no address to listen on: set `listen`");
    int r = 0;
    for (unsigned i = 0; i < s->listen->n && r >= 0; i++) {
        if (tcp_only && strncmp(s->listen->v[i], "unix:", 5) == 0)
            continue;
        r = rpc_server_listen(s->server, s->listen->v[i]);
        if (r > 1 && !rpc_tls_on() && !loopback_address(s->listen->v[i]))
            log_warn("insecure_listen: any client that can connect to %s may use this service",
                     s->listen->v[i]);
        if (r > 1)
            log_info("listening address=%s port=%d", s->listen->v[i], r);
        else if (r == 1)
            log_info("listening address=%s", s->listen->v[i]);
        if (r > 0)
            name_instance(s, s->listen->v[i], r);
    }
    return r < 0 ? r : 0;
}

int rpc_service_start(struct rpc_service *s)
{
    bool admin = false;
    int fds[SVC_MAX_FDS], n = svc_listen_fds(fds);
    int r = n > 0 ? listen_passed(s, fds, n, &admin) : n;
    r = r < 0 ? r : listen_configured(s, n > admin);
    if (r >= 0 && s->admin_listen && !admin)
        r = listen_admin(s);
    return r < 0 ? r : rpc_server_start(s->server);
}

void rpc_service_serving(struct rpc_service *s, bool serving)
{
    rpc_health_set(s->health, s->name, serving);
}

void rpc_service_stop(struct rpc_service *s, unsigned drain_ms)
{
    if (!s)
        return;
    svc_stopping((int64_t)drain_ms * 1000 + STOP_MARGIN_US);
    svc_status("draining, %u running calls", rpc_server_n_calls(s->server));
    rpc_health_stop(s->health);
    rpc_server_stop(s->server, drain_ms);
    service_free(s);
}
