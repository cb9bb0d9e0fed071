/* main.c - the proposer service: settings, sessions, server, signals. */
#include <errno.h>
#include "base/err.h"
#include "base/log.h"
#include "base/svc.h"
#include "proposer-svc/proposer.h"
#include "proposer-svc/proposer_options.h"
#include "rpc/rpc_service.h"
#include "rpc/rpc_tls.h"

#define TICK_US 1000000       // between two searches for idle sessions
#define MESSAGE_MAX (8 << 20) // bytes of a Round; verifiers send at most 1 MiB of context per Round

/* SIGHUP: the only settings that a proposer rereads are its certificates. */
static void reload(void *user)
{
    (void)user;
    if (rpc_tls_on())
        rpc_tls_reload();
    else
        log_info("SIGHUP ignored: no certificates to reload, and settings are read only at start");
}

static void serve_until_signal(struct proposer *service)
{
    while (svc_wait_signal(TICK_US) == 0) {
        svc_watchdog();
        rpc_tls_poll();
        proposer_expire(service);
        svc_trim();
    }
}

static int serve(const struct proposer_options *set, struct proposer *service)
{
    struct rpc_service_options opt = {.name = "tandem.v1.Proposer",
                                      .instance = set->instance,
                                      .listen = &set->listen,
                                      .access = &set->access,
                                      .stats_roles = RPC_ROLE_VERIFIER | RPC_ROLE_OPERATOR,
                                      .server.own_role = RPC_ROLE_VERIFIER,
                                      .server.n_threads = (unsigned)set->threads,
                                      .server.max_message = MESSAGE_MAX,
                                      .fill_stats = proposer_fill_stats,
                                      .user = service};
    struct rpc_service *rpc = NULL;
    int r = rpc_service_new(&opt, &rpc);
    if (r < 0)
        return r;
    proposer_add(service, rpc_service_server(rpc));
    r = rpc_service_start(rpc);
    if (r == 0) {
        rpc_service_serving(rpc, true);
        log_info("serving proposer=%s", set->proposer);
        svc_on_reload(reload, NULL);
        svc_ready("serving");
        serve_until_signal(service);
    }
    rpc_service_stop(rpc, (unsigned)(set->drain_timeout_s * 1000));
    return r;
}

static int run(const struct proposer_options *set, const struct prop_ops *ops, void *shared)
{
    struct prop_about about = {0};
    if (ops->about)
        ops->about(shared, &about);
    int64_t max_context = set->max_context;
    if (about.max_context && about.max_context < max_context)
        max_context = about.max_context;
    struct sessions_config sc = {.ops = ops,
                                 .shared = shared,
                                 .max_sessions = (uint32_t)set->max_sessions,
                                 .max_tokens = (uint64_t)set->max_tokens,
                                 .max_context = (uint32_t)max_context,
                                 .k_max = (uint32_t)set->k_max,
                                 .idle_us = (int64_t)(set->idle_timeout_s * 1e6)};
    AUTO(sessions_free) struct sessions *sessions = NULL;
    int r = sessions_new(&sc, &sessions);
    if (r < 0)
        return r;
    struct proposer_config c = {.name = set->name ? set->name : set->proposer,
                                .k_max = sc.k_max,
                                .max_context = sc.max_context,
                                .sessions = sessions,
                                .ops = ops,
                                .shared = shared};
    AUTO(proposer_free) struct proposer *service = NULL;
    r = proposer_new(&c, &service);
    return r < 0 ? r : serve(set, service);
}

int main(int argc, char **argv)
{
    svc_init();
    log_init("proposer", LOG_LEVEL_INFO); // old spellings of settings are warned of
    const struct proposer_options *set;
    int r = proposer_options_read(argc, argv, &set);
    if (r > 0)
        return 0;
    enum log_level level = LOG_LEVEL_INFO;
    if (r == 0)
        r = log_level_of(set->log_level, &level);
    log_init("proposer", level);
    if (r == 0)
        r = rpc_tls_init(&set->tls, &set->access.tls_roles);
    void *shared = NULL;
    const struct prop_ops *ops = r == 0 ? prop_find(set->proposer) : NULL;
    if (ops && ops->open)
        r = ops->open(&shared);
    if (r == 0)
        r = run(set, ops, shared);
    if (shared && ops->close)
        ops->close(shared);
    if (r < 0 && r != -ECANCELED) { // -ECANCELED: a stop signal during loading
        log_error("%s", fail_text());
        return 1;
    }
    log_info("stopped");
    return 0;
}
