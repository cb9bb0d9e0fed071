/* main.c - the verifier service: settings, engine, server, signals. */
#include <errno.h>
#include "base/err.h"
#include "base/log.h"
#include "base/svc.h"
#include "rpc/rpc_service.h"
#include "rpc/rpc_tls.h"
#include "verifier-svc/edge/verifier_service.h"
#include "verifier-svc/engine/engine.h"
#include "verifier-svc/engine/stats.h"
#include "verifier-svc/settings/verifier_options.h"

#define LOADING_POLL_US 20000 // between two checks of an engine that loads its model
#define TICK_US 1000000       // between two looks at the certificates and at malloc

/* Waits until the model is loaded. 0: loaded; 1: a stop signal arrived; negative: loading
 * failed. */
static int wait_for_model(struct engine *e)
{
    while (engine_state(e, NULL) == ENGINE_LOADING) {
        if (svc_wait_signal(LOADING_POLL_US))
            return 1;
        rpc_tls_poll();
    }
    if (engine_state(e, NULL) == ENGINE_FAILED)
        return fail(-EINVAL, "%s", engine_error(e));
    return 0;
}

/* What SIGHUP needs: the source of the settings, and the engine that applies them. */
struct reload {
    int argc;
    char **argv;
    struct engine *engine;
};

static void reload(void *user)
{
    struct reload *r = user;
    struct speculation_change change;
    struct speculation now;
    char waiting[512];
    rpc_tls_reload();
    int err = verifier_options_reread(r->argc, r->argv, &change, waiting, sizeof(waiting));
    if (!err)
        err = engine_speculate(r->engine, &change, &now);
    if (err < 0)
        log_error("reload failed, settings unchanged: %s", fail_text());
    else if (*waiting)
        log_warn("reloaded; restart to apply changes of: %s", waiting);
    else
        log_info("reloaded");
}

static int serve(struct rpc_service *rpc, struct engine *e)
{
    int r = wait_for_model(e);
    if (r)
        return r < 0 ? r : 0;
    rpc_service_serving(rpc, true);
    svc_ready("serving");
    while (!svc_wait_signal(TICK_US)) {
        rpc_tls_poll();
        svc_trim();
    }
    return 0;
}

/* The server refuses new calls and waits for running ones. Engine and sender threads continue until
 * these have ended. */
static void stop(const struct verifier_options *o, struct rpc_service *rpc, struct engine *e,
                 struct verifier_service *service)
{
    bool loaded = engine_loaded_model(e);
    log_info("stopping requests=%u", engine_n_requests(e));
    engine_drain(e);
    if (!loaded)
        engine_stop(e); // cancels loading, so that waiting calls end
    rpc_service_stop(rpc, loaded ? (unsigned)(o->drain_timeout_s * 1000) : 1000);
    engine_stop(e);
    verifier_service_stop(service);
}

static int run(const struct verifier_options *o, int argc, char **argv)
{
    struct stats stats;
    stats_init(&stats);
    AUTO(engine_free) struct engine *engine = NULL;
    AUTO(verifier_service_free) struct verifier_service *service = NULL;
    int r = engine_new(o, &stats, &engine);
    if (r == 0)
        r = verifier_service_new(o, engine, &stats, &service);
    struct reload again = {argc, argv, engine};
    svc_on_reload(reload, &again);
    struct rpc_service *rpc = NULL;
    struct rpc_service_options opt = {.name = VERIFIER_SERVICE_NAME,
                                      .instance = o->instance,
                                      .listen = &o->listen,
                                      .access = &o->access,
                                      .stats_roles = RPC_ROLE_GATEWAY | RPC_ROLE_OPERATOR,
                                      .server = {.n_threads = 2,
                                                 .max_message = VERIFIER_SERVICE_MAX_MESSAGE,
                                                 .own_role = RPC_ROLE_GATEWAY},
                                      .fill_stats = verifier_service_fill_stats,
                                      .user = service};
    if (r == 0)
        r = rpc_service_new(&opt, &rpc);
    if (r < 0)
        return r;
    verifier_service_add(service, rpc_service_server(rpc));
    r = engine_start(engine);
    if (r == 0)
        r = verifier_service_start(service);
    if (r == 0)
        r = rpc_service_start(rpc);
    if (r == 0)
        r = serve(rpc, engine);
    stop(o, rpc, engine, service);
    return r;
}

int main(int argc, char **argv)
{
    svc_init();
    const struct verifier_options *o;
    int r = verifier_options_read(argc, argv, &o);
    if (r > 0)
        return 0;
    enum log_level level = LOG_LEVEL_INFO;
    if (r == 0)
        r = log_level_of(o->log_level, &level);
    log_init("verifier", level);
    if (r == 0)
        r = rpc_tls_init(&o->tls, &o->access.tls_roles);
    if (r == 0)
        r = run(o, argc, argv);
    if (r < 0)
        log_error("%s", fail_text());
    else
        log_info("stopped");
    return r < 0 ? 1 : 0;
}
