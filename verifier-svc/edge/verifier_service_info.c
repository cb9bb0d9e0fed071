/* verifier_service_info.c - GetModel, Tokenize, Detokenize, and the summary of GetStats. */
#include <errno.h>
#include <stdlib.h>
#include "base/clock.h"
#include "base/err.h"
#include "tandem/v1/protocol.pb-c.h"
#include "verifier-svc/edge/verifier_service_impl.h"

/* ---- GetModel ---- */

static ProtobufCBinaryData data_of(struct span t)
{
    return rpc_data(t.data, t.len);
}

static ProtobufCBinaryData token_text(const struct tok *tok, uint32_t id)
{
    return id == UINT32_MAX ? rpc_data(NULL, 0) : data_of(tok_bytes(tok, id, true));
}

static void fill_model(const struct loaded_model *m, Tandem__V1__ModelInfo *to)
{
    const uint32_t *eos;
    to->chat_template = rpc_data(m->chat_template, m->template_len);
    to->name = rpc_text(m->name);
    to->architecture = rpc_text(m->run.model->params.architecture);
    to->n_vocab = tok_n_vocab(m->tok);
    to->vocab_digest = tok_digest(m->tok);
    to->context_length = m->run.context;
    to->bos_text = token_text(m->tok, tok_bos(m->tok));
    to->eos_text = token_text(m->tok, tok_eos(m->tok));
    to->add_bos = tok_add_bos(m->tok);
    to->n_eos_ids = tok_eos_ids(m->tok, &eos);
    to->eos_ids = (uint32_t *)eos;
    to->kv_type = rpc_text(kernel_kv_name(m->run.opt.kv_type));
    to->kernel_tier = rpc_text(m->run.kernel->name);
    to->float_gemm = rpc_text(m->run.opt.blas ? "blas" : "own");
    to->weight_type = rpc_text(m->weight_type);
    to->n_parameters = m->run.model->params.n_weights;
    to->created = m->created;
    to->fingerprint = rpc_text(m->fingerprint);
}

struct walks {
    Tandem__V1__KernelWalk of[TUNE_MAX], *list[TUNE_MAX];
};

/* The message refers to *walks. */
static void fill_walks(const struct tune *t, struct walks *walks, Tandem__V1__ModelInfo *to)
{
    for (uint32_t i = 0; i < t->n; i++) {
        const struct tune_choice *c = &t->of[i];
        Tandem__V1__KernelWalk *w = walks->list[i] = &walks->of[i];
        *w = (Tandem__V1__KernelWalk)TANDEM__V1__KERNEL_WALK__INIT;
        w->type = rpc_text(kernel_type_name(c->type));
        w->n_out = c->n_out;
        w->n_in = c->n_in;
        w->streams_one = c->one.n_streams;
        w->ahead_one = c->one.ahead;
        w->streams_more = c->more.n_streams;
        w->ahead_more = c->more.ahead;
    }
    to->n_kernel_walks = t->n;
    to->kernel_walks = walks->list;
    to->kernel_walks_timed = t->timed;
}

static Tandem__V1__ModelInfo__State wire_state(enum engine_state state)
{
    if (state == ENGINE_READY)
        return TANDEM__V1__MODEL_INFO__STATE__READY;
    return state == ENGINE_LOADING ? TANDEM__V1__MODEL_INFO__STATE__LOADING
                                   : TANDEM__V1__MODEL_INFO__STATE__DRAINING;
}

static void get_model(struct rpc_call *call, struct rpc_msg *in)
{
    struct verifier_service *s = rpc_call_service(call);
    Tandem__V1__GetModelRequest *req = (Tandem__V1__GetModelRequest *)rpc_call_unpack(
        call, &tandem__v1__get_model_request__descriptor, in);
    if (!req)
        return;
    tandem__v1__get_model_request__free_unpacked(req, NULL);

    Tandem__V1__ModelInfo info = TANDEM__V1__MODEL_INFO__INIT;
    ProtobufCBinaryData proposers[DRAFT_MAX_PROPOSERS];
    char names[DRAFT_MAX_PROPOSERS][DRAFTS_NAME_MAX];
    struct walks walks;
    info.state = wire_state(engine_state(s->engine, &info.progress));
    info.version = rpc_text(TANDEM_VERSION);
    info.protocol = TANDEM__V1__PROTOCOL__PROTOCOL_VERSION;
    info.continues = true;
    info.turn_ms = (uint64_t)engine_turn_us(s->engine) / 1000;
    const struct loaded_model *m = engine_loaded_model(s->engine);
    struct drafts *d = engine_drafts(s->engine);
    if (m) {
        fill_model(m, &info);
        fill_walks(&m->run.tune, &walks, &info);
    }
    info.proposers = proposers;
    for (unsigned i = 0; m && d && i < DRAFT_MAX_PROPOSERS; i++) {
        drafts_name(d, i, names[i]);
        if (*names[i])
            proposers[info.n_proposers++] = rpc_text(names[i]);
    }
    rpc_call_reply(call, &info.base);
}

const struct rpc_method verifier_service_get_model = {.path = "/" VERIFIER_SERVICE_NAME "/GetModel",
                                                      .during_drain = true,
                                                      .roles = VERIFIER_SERVICE_CALLERS,
                                                      .on_start = get_model};

/* ---- Tokenize, Detokenize ---- */

static void job_cancelled(struct rpc_call *call)
{
    verifier_service_drop_job(rpc_call_service(call), call);
}

static int tokenize(const struct tok *tok, const Tandem__V1__TokenizeRequest *req,
                    uint32_t **ret_ids, size_t *ret_n)
{
    if (req->text.len > REQUEST_MAX_TEXT)
        return fail(-EMSGSIZE, "the text has %zu bytes, at most %u are allowed", req->text.len,
                    REQUEST_MAX_TEXT);
    return tok_encode(tok, req->text.len ? (const char *)req->text.data : "", req->text.len,
                      req->parse_special, req->add_bos, ret_ids, ret_n);
}

static void run_tokenize(struct verifier_service *s, const struct job *j)
{
    Tandem__V1__TokenizeReply reply = TANDEM__V1__TOKENIZE_REPLY__INIT;
    AUTO(mem_free) uint32_t *ids = NULL;
    size_t n = 0;
    int err = tokenize(engine_loaded_model(s->engine)->tok, (Tandem__V1__TokenizeRequest *)j->msg,
                       &ids, &n);
    reply.ids = ids;
    reply.n_ids = n;
    if (err < 0)
        rpc_call_fail(j->call, err);
    else
        rpc_call_reply(j->call, &reply.base);
}

static void tokenize_start(struct rpc_call *call, struct rpc_msg *in)
{
    verifier_service_start_job(call, in, &tandem__v1__tokenize_request__descriptor, run_tokenize);
}

const struct rpc_method verifier_service_tokenize = {.path = "/" VERIFIER_SERVICE_NAME "/Tokenize",
                                                     .roles = VERIFIER_SERVICE_CALLERS,
                                                     .on_start = tokenize_start,
                                                     .on_cancel = job_cancelled};

static int detokenize(const struct tok *tok, const Tandem__V1__DetokenizeRequest *req,
                      char **ret_text, size_t *ret_len)
{
    if (req->n_ids > VERIFIER_SERVICE_MAX_DETOKENIZE)
        return fail(-EMSGSIZE, "%zu ids, at most %u are allowed", req->n_ids,
                    VERIFIER_SERVICE_MAX_DETOKENIZE);
    size_t bytes = 0;
    for (size_t i = 0; i < req->n_ids; i++)
        bytes += tok_bytes(tok, req->ids[i], req->render_special).len;
    if (bytes > REQUEST_MAX_TEXT)
        return fail(-EMSGSIZE, "the text would have %zu bytes, at most %u are allowed", bytes,
                    REQUEST_MAX_TEXT);
    return tok_decode(tok, req->ids, req->n_ids, req->render_special, ret_text, ret_len);
}

static void run_detokenize(struct verifier_service *s, const struct job *j)
{
    Tandem__V1__DetokenizeReply reply = TANDEM__V1__DETOKENIZE_REPLY__INIT;
    AUTO(mem_free) char *text = NULL;
    size_t len = 0;
    int err = detokenize(engine_loaded_model(s->engine)->tok,
                         (Tandem__V1__DetokenizeRequest *)j->msg, &text, &len);
    reply.text = rpc_data(text, len);
    if (err < 0)
        rpc_call_fail(j->call, err);
    else
        rpc_call_reply(j->call, &reply.base);
}

static void detokenize_start(struct rpc_call *call, struct rpc_msg *in)
{
    verifier_service_start_job(call, in, &tandem__v1__detokenize_request__descriptor,
                               run_detokenize);
}

const struct rpc_method verifier_service_detokenize = {.path =
                                                           "/" VERIFIER_SERVICE_NAME "/Detokenize",
                                                       .roles = VERIFIER_SERVICE_CALLERS,
                                                       .on_start = detokenize_start,
                                                       .on_cancel = job_cancelled};

/* ---- GetStats ---- */

static uint64_t count_of(const struct metric *m)
{
    return (uint64_t)metrics_value(m);
}

static void fill_proposers(struct verifier_service *s, struct drafts *d,
                           Tandem__V1__StatsReply *reply)
{
    reply->proposers = s->proposer_list;
    for (unsigned i = 0; i < DRAFT_MAX_PROPOSERS; i++) {
        size_t n = reply->n_proposers;
        struct drafts_stats *from = &s->proposer_stats[n];
        Tandem__V1__ProposerStats *to = s->proposer_list[n] = &s->proposers[n];
        if (!drafts_stats(d, i, from))
            continue;
        tandem__v1__proposer_stats__init(to);
        to->name = rpc_text(from->name);
        to->target = rpc_text(from->target);
        to->connected = from->connected;
        to->benched = from->benched;
        to->rounds = from->rounds;
        to->drafts = from->drafts;
        to->draft_tokens = from->draft_tokens;
        to->accepted_tokens = from->accepted_tokens;
        to->late = from->late;
        to->stale = from->stale;
        to->malformed = from->malformed;
        to->restarts = from->restarts;
        to->p90_us = from->p90_us;
        reply->n_proposers++;
    }
}

static void fill_series(struct verifier_service *s, struct drafts *d, Tandem__V1__StatsReply *reply)
{
    reply->proposer_series = s->series_list;
    for (unsigned i = 0; i < DRAFT_MAX_PROPOSERS; i++) {
        size_t n = reply->n_proposer_series;
        struct proposer_series_copy *from = &s->series_copies[n];
        Tandem__V1__ProposerSeries *to = s->series_list[n] = &s->series[n];
        drafts_series(d, i, from);
        if (!from->n_text || !from->n_instance)
            continue;
        tandem__v1__proposer_series__init(to);
        to->instance = rpc_data(from->instance, from->n_instance);
        to->prometheus = rpc_data(from->text, from->n_text);
        reply->n_proposer_series++;
    }
}

/* The names of all proposers in use; "none" without any. */
static const char *mode_of(struct verifier_service *s, const Tandem__V1__StatsReply *reply)
{
    s->mode[0] = 0;
    size_t len = 0;
    for (size_t i = 0; i < reply->n_proposers && len < sizeof(s->mode); i++) {
        if (*s->proposer_stats[i].name)
            len += (size_t)snprintf(s->mode + len, sizeof(s->mode) - len, "%s%s", len ? "+" : "",
                                    s->proposer_stats[i].name);
    }
    return reply->n_proposers ? s->mode : "none";
}

static void fill_speculation(struct verifier_service *s, Tandem__V1__StatsReply *reply)
{
    const struct stats *m = s->stats;
    Tandem__V1__SpeculationStats *to = reply->speculation = &s->speculation;
    struct speculation now;
    engine_speculation(s->engine, &now);
    tandem__v1__speculation_stats__init(to);
    to->enabled = now.on && reply->n_proposers > 0;
    to->mode = rpc_text(mode_of(s, reply));
    to->total_steps = count_of(m->steps);
    to->total_fallback_steps = count_of(m->fallback_steps);
    to->total_proposed = count_of(m->proposed);
    to->total_accepted = count_of(m->accepted);
    to->total_bonus_tokens = count_of(m->bonus);
    to->acceptance_rate_ema = metrics_value(m->acceptance_ema);
    if (to->total_proposed)
        to->acceptance_rate_overall = (double)to->total_accepted / (double)to->total_proposed;
    if (to->total_steps)
        to->avg_tokens_per_step = metrics_value(m->generated_tokens) / (double)to->total_steps;
    to->current_k = to->enabled ? (double)speculation_control(&now).k : 0;
    to->adaptive_k_current = metrics_value(m->k_now);
}

static void fill_holders(struct verifier_service *s, Tandem__V1__CacheStats *to)
{
    to->holders = s->holder_list;
    to->n_holders = s->kv.n_holders;
    for (uint32_t i = 0; i < s->kv.n_holders; i++) {
        const struct engine_kv_holder *from = &s->kv.holders[i];
        Tandem__V1__CacheHolder *h = s->holder_list[i] = &s->holders[i];
        tandem__v1__cache_holder__init(h);
        h->id = rpc_text(from->id);
        h->choice = from->choice;
        h->tokens = from->n_tokens;
        h->blocks = from->n_blocks;
    }
}

static void fill_cache(struct verifier_service *s, Tandem__V1__StatsReply *reply)
{
    Tandem__V1__CacheStats *to = reply->cache = &s->cache;
    engine_kv(s->engine, &s->kv);
    tandem__v1__cache_stats__init(to);
    to->blocks_total = s->kv.n_blocks;
    to->blocks_used = s->kv.n_used;
    to->blocks_shared = s->kv.n_shared;
    to->blocks_evictable = s->kv.n_evictable;
    to->bytes = s->kv.bytes;
    to->prompt_tokens = count_of(s->stats->prefix_queries);
    to->disk = metrics_value(s->stats->disk_on) > 0;
    to->disk_blocks = count_of(s->stats->disk_blocks);
    to->disk_bytes = count_of(s->stats->disk_bytes);
    to->disk_hit_tokens = count_of(s->stats->disk_hits);
    to->disk_written = count_of(s->stats->disk_written);
    to->disk_restored = count_of(s->stats->disk_restored);
    to->hit_tokens = count_of(s->stats->prefix_hits) + to->disk_hit_tokens;
    to->evictions = count_of(s->stats->evictions);
    fill_holders(s, to);
}

static void fill_pass_times(struct verifier_service *s, Tandem__V1__StatsReply *reply)
{
    reply->pass_times = s->pass_time_list;
    for (unsigned i = 0; i < PASS_TIME_TIMED; i++) {
        Tandem__V1__PassTime *to = s->pass_time_list[i] = &s->pass_times[i];
        tandem__v1__pass_time__init(to);
        to->rows = pass_time_rows_at(i);
        to->seconds = metrics_value(s->stats->pass_estimate_s[i]);
        reply->n_pass_times += to->seconds > 0;
    }
}

void verifier_service_fill_stats(void *user, Tandem__V1__StatsReply *reply)
{
    struct verifier_service *s = user;
    const struct stats *m = s->stats;
    struct drafts *d = engine_drafts(s->engine);
    reply->service = rpc_text("verifier");
    reply->running = (uint32_t)metrics_value(m->running);
    reply->waiting = (uint32_t)metrics_value(m->waiting);
    reply->tokens_per_s = stats_tokens_per_s(m, clock_us());
    if (d)
        fill_proposers(s, d, reply);
    if (d)
        fill_series(s, d, reply);
    fill_speculation(s, reply);
    fill_cache(s, reply);
    fill_pass_times(s, reply);
    reply->prompt_tokens = count_of(m->prompt_tokens);
    reply->generated_tokens = count_of(m->generated_tokens);
    reply->requests = count_of(m->failed);
    for (enum seq_end end = SEQ_STOP; end < SEQ_FAILED; end++)
        reply->requests += count_of(m->ended[end]);
}
