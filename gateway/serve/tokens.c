/* tokens.c - POST /tokenize and POST /detokenize: the verifier's tokenizer over HTTP. */
#include <errno.h>
#include "base/err.h"
#include "base/log.h"
#include "gateway/http/answer.h"
#include "gateway/openai/json_write.h"
#include "gateway/serve/tokens.h"

#define CALL_TIMEOUT_US 10000000
#define BODY_MAX (64u << 20)
#define ANSWER_RATIO 8 // memory of the ids or the text and of its JSON, in bytes of the reply

typedef int parse_fn(const char *body, size_t len, const struct openai_memory *memory,
                     struct openai_request *ret, struct openai_fault *ret_fault);

/* Reads the body and takes a verifier. false: the request was answered with an error. */
static bool take_request(struct gateway *g, struct http_request *r, parse_fn *parse,
                         struct openai_request *ret, struct verifier **ret_verifier)
{
    struct openai_fault fault;
    const struct upstream_model *model;
    size_t len;
    const char *body = http_body(r, &len);
    const struct openai_memory memory = answer_memory(r);
    int rc = parse(body, len, &memory, ret, &fault);
    http_free_body(r);
    http_charge(r, len); // less than while it was parsed
    if (rc == 0 && ((rc = auth_bind_model(http_attached(r), ret, &fault)) < 0 ||
                    (rc = auth_bind_flow(http_attached(r), http_payer(r), ret, &fault)) < 0))
        openai_request_done(ret);
    if (rc < 0) {
        answer_fault(r, &fault);
        return false;
    }
    rc = upstream_take(g->upstream, &(struct upstream_want){.model = ret->model}, ret_verifier,
                       &model);
    if (rc < 0) {
        answer_error(r, rc == -ENOENT ? 404 : 503, fail_text(), rc == -ENOENT ? "model" : "");
        openai_request_done(ret);
        return false;
    }
    upstream_model_unref(model);
    return true;
}

/* Answers the request; write: writes the body of the answer. */
static void answer_request(struct http_request *r, const struct rpc_status *status,
                           ProtobufCMessage *reply,
                           void (*write)(const ProtobufCMessage *reply, struct buf *to))
{
    struct buf body;
    size_t need = reply ? protobuf_c_message_get_packed_size(reply) * ANSWER_RATIO : 0;
    int rc = http_charge(r, need);
    if (status->code == RPC_OK && rc < 0) {
        answer_error(r, answer_charge_status(rc), fail_text(), "");
    } else if (status->code != RPC_OK) {
        bool lost = status->code == RPC_UNAVAILABLE;
        if (lost)
            log_warn("request lost id=%s: %s", http_id(r), status->text);
        answer_error(r, answer_status_of(status->code), lost ? UPSTREAM_UNREACHED : status->text,
                     "");
    } else {
        buf_init(&body, BODY_MAX);
        write(reply, &body);
        answer_json(r, 200, &body);
    }
    if (reply)
        protobuf_c_message_free_unpacked(reply, NULL);
    http_unref(r);
}

/* ---- /tokenize ---- */

/* As "%u", in a tenth of the time: an answer may have millions of ids. */
static void write_id(struct buf *to, uint32_t id, bool comma)
{
    char text[12], *at = text + sizeof(text);
    do
        *--at = (char)('0' + id % 10);
    while (id /= 10);
    if (comma)
        *--at = ',';
    buf_add(to, at, (size_t)(text + sizeof(text) - at));
}

static void write_ids(const ProtobufCMessage *reply, struct buf *to)
{
    const Tandem__V1__TokenizeReply *t = (const Tandem__V1__TokenizeReply *)reply;
    buf_printf(to, "{\"count\":%zu,\"tokens\":[", t->n_ids);
    for (size_t i = 0; i < t->n_ids; i++)
        write_id(to, t->ids[i], i);
    buf_puts(to, "]}\n");
}

static void on_encoded(void *user, const struct rpc_status *status, ProtobufCMessage *reply)
{
    answer_request(user, status, reply, write_ids);
}

void tokens_encode(struct gateway *g, struct http_request *r)
{
    Tandem__V1__TokenizeRequest m = TANDEM__V1__TOKENIZE_REQUEST__INIT;
    struct openai_request q;
    struct verifier *v;
    if (!take_request(g, r, openai_tokenize_parse, &q, &v))
        return;
    m.text = rpc_data(q.prompts->text, q.prompts->len);
    m.parse_special = true;
    m.add_bos = !q.add_special.set || q.add_special.value;
    m.flow = rpc_text(q.flow);
    upstream_unary(v, "/tandem.v1.Verifier/Tokenize", CALL_TIMEOUT_US, &m.base,
                   &tandem__v1__tokenize_reply__descriptor, on_encoded, http_ref(r));
    upstream_release(v);
    openai_request_done(&q);
}

/* ---- /detokenize ---- */

static void write_text(const ProtobufCMessage *reply, struct buf *to)
{
    const Tandem__V1__DetokenizeReply *t = (const Tandem__V1__DetokenizeReply *)reply;
    buf_puts(to, "{\"prompt\":");
    json_write_text(to, t->text.data, t->text.len);
    buf_puts(to, "}\n");
}

static void on_decoded(void *user, const struct rpc_status *status, ProtobufCMessage *reply)
{
    answer_request(user, status, reply, write_text);
}

void tokens_decode(struct gateway *g, struct http_request *r)
{
    Tandem__V1__DetokenizeRequest m = TANDEM__V1__DETOKENIZE_REQUEST__INIT;
    struct openai_request q;
    struct verifier *v;
    if (!take_request(g, r, openai_detokenize_parse, &q, &v))
        return;
    m.ids = q.prompts->ids;
    m.n_ids = q.prompts->n_ids;
    m.render_special = true;
    m.flow = rpc_text(q.flow);
    upstream_unary(v, "/tandem.v1.Verifier/Detokenize", CALL_TIMEOUT_US, &m.base,
                   &tandem__v1__detokenize_reply__descriptor, on_decoded, http_ref(r));
    upstream_release(v);
    openai_request_done(&q);
}
