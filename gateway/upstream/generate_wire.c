/* generate_wire.c - packs a checked request into messages for the verifier, unpacks its events. */
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "base/mem.h"
#include "gateway/upstream/generate_wire.h"

static void set_sampling(const struct openai_request *q, Tandem__V1__Sampling *s)
{
    if (q->temperature.set) {
        s->has_temperature_case = TANDEM__V1__SAMPLING__HAS_TEMPERATURE_TEMPERATURE;
        s->temperature = (float)q->temperature.value;
    }
    if (q->top_k.set) {
        s->has_top_k_case = TANDEM__V1__SAMPLING__HAS_TOP_K_TOP_K;
        s->top_k = q->top_k.value > 0 ? (uint32_t)q->top_k.value : 0; // -1 is vLLM's "off"
    }
    if (q->top_p.set) {
        s->has_top_p_case = TANDEM__V1__SAMPLING__HAS_TOP_P_TOP_P;
        s->top_p = (float)q->top_p.value;
    }
    if (q->min_p.set) {
        s->has_min_p_case = TANDEM__V1__SAMPLING__HAS_MIN_P_MIN_P;
        s->min_p = (float)q->min_p.value;
    }
    if (q->repetition.set) {
        s->has_repetition_case = TANDEM__V1__SAMPLING__HAS_REPETITION_REPETITION_PENALTY;
        s->repetition_penalty = (float)q->repetition.value;
    }
    if (q->presence.set) {
        s->has_presence_case = TANDEM__V1__SAMPLING__HAS_PRESENCE_PRESENCE_PENALTY;
        s->presence_penalty = (float)q->presence.value;
    }
    if (q->frequency.set) {
        s->has_frequency_case = TANDEM__V1__SAMPLING__HAS_FREQUENCY_FREQUENCY_PENALTY;
        s->frequency_penalty = (float)q->frequency.value;
    }
    if (q->seed.set) {
        s->has_seed_case = TANDEM__V1__SAMPLING__HAS_SEED_SEED;
        s->seed = q->seed.value;
    }
}

static void set_speculative(const struct openai_request *q, Tandem__V1__Speculative *s)
{
    s->proposer = rpc_text(q->proposer);
    if (q->n_max.set) {
        s->has_n_max_case = TANDEM__V1__SPECULATIVE__HAS_N_MAX_N_MAX;
        s->n_max = (uint32_t)q->n_max.value;
    }
    s->fixed = q->fixed;
    s->rule = rpc_text(q->rule);
    if (q->rule_parameter.set) {
        s->has_rule_parameter_case = TANDEM__V1__SPECULATIVE__HAS_RULE_PARAMETER_RULE_PARAMETER;
        s->rule_parameter = (float)q->rule_parameter.value;
    }
    s->dense_q = q->dense_q;
    if (q->p_min.set) {
        s->has_p_min_case = TANDEM__V1__SPECULATIVE__HAS_P_MIN_P_MIN;
        s->p_min = (float)q->p_min.value;
    }
    s->n_min = q->n_min.set ? (uint32_t)q->n_min.value : 0;
}

static void set_limits(const struct openai_request *q, Tandem__V1__GenerateRequest *m)
{
    bool default_limit = !q->max_tokens.set && q->kind == OPENAI_COMPLETION;
    if (q->max_tokens.set || default_limit) {
        m->has_max_tokens_case = TANDEM__V1__GENERATE_REQUEST__HAS_MAX_TOKENS_MAX_TOKENS;
        m->max_tokens =
            default_limit ? GENERATE_WIRE_COMPLETION_TOKENS : (uint32_t)q->max_tokens.value;
    }
    m->min_tokens = q->min_tokens.set ? (uint32_t)q->min_tokens.value : 0;
    m->n = openai_request_n(q);
    m->ignore_eos = q->ignore_eos;
    m->logprobs = q->logprobs;
    m->top_logprobs = q->top_logprobs.set ? (uint32_t)q->top_logprobs.value : 0;
    m->echo = q->echo;
    m->render_special = !q->skip_special;
}

int generate_wire_pack(const struct openai_request *q, const char *id, const char *traceparent,
                       const ProtobufCBinaryData *model, const struct output_parser_rules *rules,
                       struct rpc_msg **ret)
{
    Tandem__V1__GenerateRequest m = TANDEM__V1__GENERATE_REQUEST__INIT;
    Tandem__V1__Sampling sampling = TANDEM__V1__SAMPLING__INIT;
    Tandem__V1__Speculative speculative = TANDEM__V1__SPECULATIVE__INIT;
    ProtobufCBinaryData stops[OPENAI_MAX_STOPS], shown[OUTPUT_PARSER_MARKERS_MAX];
    const char *markers[OUTPUT_PARSER_MARKERS_MAX];
    AUTO(mem_free) Tandem__V1__LogitBias *bias = calloc(q->n_bias + 1, sizeof(*bias));
    AUTO(mem_free) Tandem__V1__LogitBias **biases = calloc(q->n_bias + 1, sizeof(*biases));
    if (!bias || !biases)
        return fail(-ENOMEM, "no memory for this request");
    for (unsigned i = 0; i < q->n_bias; i++) {
        tandem__v1__logit_bias__init(&bias[i]);
        bias[i].token = q->bias[i].token;
        bias[i].bias = q->bias[i].bias;
        biases[i] = &bias[i];
    }
    for (unsigned i = 0; i < q->n_stops; i++)
        stops[i] = rpc_text(q->stops[i]);
    sampling.n_logit_bias = q->n_bias;
    sampling.logit_bias = biases;
    set_sampling(q, &sampling);
    set_speculative(q, &speculative);
    set_limits(q, &m);
    m.id = rpc_text(id);
    m.traceparent = rpc_text(traceparent);
    m.model = *model;
    m.sampling = &sampling;
    m.speculative = &speculative;
    m.n_stop = q->n_stops;
    m.stop = stops;
    m.n_stop_token_ids = q->n_stop_ids;
    m.stop_token_ids = (uint32_t *)(uintptr_t)q->stop_ids;
    m.n_shown_special = output_parser_rules_markers(rules, markers);
    for (size_t i = 0; i < m.n_shown_special; i++)
        shown[i] = rpc_text(markers[i]);
    m.shown_special = shown;
    m.prediction = rpc_text(q->prediction);
    m.tenant = rpc_text(q->cache_salt);
    m.flow = rpc_text(q->flow);
    *ret = rpc_pack(&m.base);
    return 0;
}

/* A chat gets no BOS here: its template writes BOS if the model needs it. */
struct rpc_msg *generate_wire_pack_prompt(const struct openai_request *q,
                                          const struct openai_prompt *p,
                                          const struct rpc_msg *shared)
{
    Tandem__V1__GenerateRequest m = TANDEM__V1__GENERATE_REQUEST__INIT;
    Tandem__V1__TokenIds ids = TANDEM__V1__TOKEN_IDS__INIT;
    if (p->ids) {
        ids.ids = p->ids;
        ids.n_ids = p->n_ids;
        m.prompt_case = TANDEM__V1__GENERATE_REQUEST__PROMPT_TOKENS;
        m.tokens = &ids;
    } else {
        m.prompt_case = TANDEM__V1__GENERATE_REQUEST__PROMPT_TEXT;
        m.text = rpc_data(p->text, p->len);
        m.parse_special = true;
        m.add_bos = q->kind == OPENAI_COMPLETION && (!q->add_special.set || q->add_special.value);
    }
    struct rpc_msg *own = rpc_pack(&m.base), *all = rpc_msg_joined(shared, own);
    rpc_msg_free(own);
    return all;
}

/* ---- the verifier's events ---- */

void generate_wire_started(struct openai_reply *r, unsigned choice, const Tandem__V1__Started *s,
                           struct buf *to)
{
    openai_reply_prompt(r, choice, s->prompt_tokens, s->cached_tokens);
    if (r->n_seeds == 0 || (r->n_seeds == 1 && r->seed != s->seed)) {
        r->seed = s->seed;
        r->n_seeds++;
    }
    openai_reply_started(r, choice, generate_wire_text(s->prompt_text), to);
}

static const char *origin_name(Tandem__V1__TokenOrigin origin)
{
    switch (origin) {
    case TANDEM__V1__TOKEN_ORIGIN__TOKEN_ORIGIN_ACCEPTED:
        return "accepted";
    case TANDEM__V1__TOKEN_ORIGIN__TOKEN_ORIGIN_CORRECTION:
        return "correction";
    case TANDEM__V1__TOKEN_ORIGIN__TOKEN_ORIGIN_BONUS:
        return "bonus";
    default:
        return "target";
    }
}

/* top: (OPENAI_MAX_TOP). The texts in t point into the message. */
static void read_token(const Tandem__V1__TokenRun *run, size_t at, struct openai_alternative *top,
                       struct openai_token *t)
{
    const Tandem__V1__Token *from = run->tokens[at];
    size_t n = from->n_top < OPENAI_MAX_TOP ? from->n_top : OPENAI_MAX_TOP;
    for (size_t i = 0; i < n; i++)
        top[i] = (struct openai_alternative){generate_wire_text(from->top[i]->text),
                                             from->top[i]->logprob};
    *t = (struct openai_token){.text = generate_wire_text(from->text),
                               .bytes = generate_wire_text(from->bytes),
                               .logprob = from->logprob,
                               .n_held = from->held,
                               .top = top,
                               .n_top = (unsigned)n,
                               .id = from->id,
                               .origin = origin_name(from->origin),
                               .round = run->round,
                               .drafted = run->drafted,
                               .proposer = generate_wire_text(run->proposer)};
}

void generate_wire_run(struct openai_reply *r, unsigned choice, const Tandem__V1__TokenRun *run,
                       struct buf *to)
{
    struct openai_alternative top[OPENAI_MAX_TOP];
    struct openai_token t;
    for (size_t i = 0; i < run->n_tokens; i++) {
        read_token(run, i, top, &t);
        openai_reply_token(r, choice, &t, to);
    }
}

/* Letters, digits, '-', '_' and '.'; other bytes become '?', so that a name is one word of the
 * log. */
static void take_name(ProtobufCBinaryData from, char *ret, size_t size)
{
    size_t n = from.len < size - 1 ? from.len : size - 1;
    for (size_t i = 0; i < n; i++) {
        bool plain = isalnum(from.data[i]) || (from.data[i] && strchr("-_.", from.data[i]));
        ret[i] = plain ? (char)from.data[i] : '?';
    }
    ret[n] = 0;
}

static void add_speculation(struct openai_reply *r, const Tandem__V1__SpeculationUsage *s)
{
    if (!s)
        return;
    r->speculation.rounds += s->rounds;
    r->speculation.rounds_drafted += s->rounds_drafted;
    r->speculation.drafted += s->drafted;
    r->speculation.accepted += s->accepted;
    r->speculation.bonus += s->bonus;
    r->speculation.k = s->k;
    for (size_t i = 0; i < s->n_kept_steps && i < OPENAI_ACCEPTED_MAX; i++)
        r->speculation.accepted_histogram[i] += s->kept_steps[i];
    take_name(s->rule, r->rule, sizeof(r->rule));
    take_name(s->proposer, r->proposer, sizeof(r->proposer));
}

static void add_timings(struct openai_reply *r, const Tandem__V1__Timings *t)
{
    if (!t)
        return;
    double prompt_ms = (double)t->prompt_us / 1e3, decode_ms = (double)t->decode_us / 1e3;
    if (prompt_ms + decode_ms > r->timings.prompt_ms + r->timings.decode_ms)
        r->timings = (struct openai_timings){prompt_ms, decode_ms};
}

void generate_wire_finished(struct openai_reply *r, unsigned choice, const Tandem__V1__Finished *f,
                            struct buf *to)
{
    bool length = f->reason == TANDEM__V1__FINISH_REASON__FINISH_REASON_LENGTH;
    add_speculation(r, f->speculation);
    add_timings(r, f->timings);
    openai_reply_finished(r, choice, length ? "length" : "stop", generate_wire_text(f->text),
                          generate_wire_text(f->stop), to);
}
