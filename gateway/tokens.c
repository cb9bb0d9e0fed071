/* tokens.c - POST /tokenize and POST /detokenize: the verifier's tokenizer over HTTP. */
#include <errno.h>
#include <string.h>
#include "base/err.h"
#include "gateway/answer.h"
#include "gateway/jsonw.h"
#include "gateway/tokens.h"

#define CALL_TIMEOUT_US 10000000
#define BODY_MAX (64u << 20)

/* A verifier for a call; an error has been answered. */
static bool take(struct gateway *g, struct http_request *r, struct verifier **ret,
                 const struct upstream_model **ret_model)
{
    int rc = upstream_take(g->upstream, NULL, ret, ret_model);
    if (rc < 0)
        answer_error(r, rc == -ENOENT ? 404 : 503, fail_text(), "");
    return rc == 0;
}

static bool failed(struct http_request *r, const struct rpc_status *status)
{
    if (status->code != RPC_OK)
        answer_error(r, answer_status_of(status->code), status->text, "");
    return status->code != RPC_OK;
}

static void on_encoded(void *user, const struct rpc_status *status, ProtobufCMessage *reply)
{
    struct http_request *r = user;
    struct buf body;
    if (!failed(r, status)) {
        const Tandem__V1__TokenizeReply *t = (Tandem__V1__TokenizeReply *)reply;
        buf_init(&body, BODY_MAX);
        buf_printf(&body, "{\"count\":%zu,\"tokens\":[", t->n_ids);
        for (size_t i = 0; i < t->n_ids; i++)
            buf_printf(&body, "%s%u", i ? "," : "", t->ids[i]);
        buf_puts(&body, "]}\n");
        answer_json(r, 200, &body);
        protobuf_c_message_free_unpacked(reply, NULL);
    }
    http_unref(r);
}

void tokens_encode(struct gateway *g, struct http_request *r)
{
    struct openai_request q;
    struct openai_fault fault;
    struct verifier *v;
    const struct upstream_model *model;
    size_t len;
    const char *body = http_body(r, &len);
    if (openai_tokenize_parse(body, len, &q, &fault) < 0) {
        answer_fault(r, &fault);
        return;
    }
    if (take(g, r, &v, &model)) {
        Tandem__V1__TokenizeRequest m = TANDEM__V1__TOKENIZE_REQUEST__INIT;
        m.text = (ProtobufCBinaryData){strlen(q.prompt), (uint8_t *)q.prompt};
        m.parse_special = true;
        m.add_bos = !q.add_special.set || q.add_special.value;
        upstream_call(v, "/tandem.v1.Verifier/Tokenize", CALL_TIMEOUT_US, &m.base,
                      &tandem__v1__tokenize_reply__descriptor, on_encoded, http_ref(r));
        upstream_release(v);
        upstream_model_unref(model);
    }
    openai_request_done(&q);
}

static void on_decoded(void *user, const struct rpc_status *status, ProtobufCMessage *reply)
{
    struct http_request *r = user;
    struct buf body;
    if (!failed(r, status)) {
        const Tandem__V1__DetokenizeReply *t = (Tandem__V1__DetokenizeReply *)reply;
        buf_init(&body, BODY_MAX);
        buf_puts(&body, "{\"prompt\":");
        jsonw_text(&body, t->text.data, t->text.len);
        buf_puts(&body, "}\n");
        answer_json(r, 200, &body);
        protobuf_c_message_free_unpacked(reply, NULL);
    }
    http_unref(r);
}

void tokens_decode(struct gateway *g, struct http_request *r)
{
    struct openai_request q;
    struct openai_fault fault;
    struct verifier *v;
    const struct upstream_model *model;
    size_t len;
    const char *body = http_body(r, &len);
    if (openai_detokenize_parse(body, len, &q, &fault) < 0) {
        answer_fault(r, &fault);
        return;
    }
    if (take(g, r, &v, &model)) {
        Tandem__V1__DetokenizeRequest m = TANDEM__V1__DETOKENIZE_REQUEST__INIT;
        m.ids = q.ids;
        m.n_ids = q.n_ids;
        m.render_special = true;
        upstream_call(v, "/tandem.v1.Verifier/Detokenize", CALL_TIMEOUT_US, &m.base,
                      &tandem__v1__detokenize_reply__descriptor, on_decoded, http_ref(r));
        upstream_release(v);
        upstream_model_unref(model);
    }
    openai_request_done(&q);
}
