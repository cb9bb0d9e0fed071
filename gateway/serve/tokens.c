/* tokens.c - POST /tokenize and POST /detokenize: the verifier's tokenizer over HTTP. */
#include <errno.h>
#include <stdlib.h>
#include "base/err.h"
#include "base/log.h"
#include "gateway/http/answer.h"
#include "gateway/openai/json_write.h"
#include "gateway/serve/tokens.h"

#define CALL_TIMEOUT_US 10000000
#define BODY_MAX (64u << 20)
#define ANSWER_RATIO 8 // memory of the ids or the text and of its JSON, in bytes of the reply

struct way;

/* A request, until it is answered. */
struct tokens {
    struct gateway *g;
    struct http_request *http;
    const struct way *way;
    struct openai_request q;
    const struct upstream_model *model; // of the verifier
    uint32_t tried;                     // bit i: upstream_at() i was lost, or is asked now
    struct reader_job job;              // for a large body, later for a large answer
    ProtobufCMessage *reply;
};

/* What the two endpoints do. */
struct way {
    int (*parse)(const char *body, size_t len, const struct openai_memory *memory,
                 struct openai_request *ret, struct openai_fault *ret_fault);
    void (*send)(struct tokens *x, struct verifier *v);
    void (*write)(const ProtobufCMessage *reply, struct buf *to); // the body of the answer
};

/* After the request is answered. */
static void tokens_free(struct tokens *x)
{
    if (x->reply)
        protobuf_c_message_free_unpacked(x->reply, NULL);
    openai_request_done(&x->q);
    upstream_model_unref(x->model);
    http_unref(x->http);
    free(x);
}

/* ---- request ---- */

/* Reads the body and takes a verifier. false: the request was answered with an error. */
static bool take_request(struct tokens *x, struct verifier **ret)
{
    struct http_request *r = x->http;
    struct openai_request *q = &x->q;
    struct openai_fault fault;
    size_t len;
    const char *body = http_body(r, &len);
    const struct openai_memory memory = answer_memory(r);
    int rc = x->way->parse(body, len, &memory, q, &fault);
    http_free_body(r);
    http_charge(r, openai_request_bytes(q)); // less than while it was parsed
    if (rc < 0 || (rc = auth_bind_model(http_attached(r), q, &fault)) < 0 ||
        (rc = auth_bind_flow(http_attached(r), http_payer(r), q, &fault)) < 0) {
        answer_fault(r, &fault);
        return false;
    }
    rc = upstream_take(x->g->upstream, &(struct upstream_want){.model = q->model}, ret, &x->model);
    if (rc < 0)
        answer_error(r, rc == -ENOENT ? 404 : 503, fail_text(), rc == -ENOENT ? "model" : "");
    return rc == 0;
}

/* The way's send() passes x to on_reply(). */
static void ask(struct tokens *x, struct verifier *v)
{
    x->tried |= UINT32_C(1) << upstream_index(v);
    x->way->send(x, v);
    upstream_release(v);
}

static void read_body(struct tokens *x)
{
    struct verifier *v;
    if (take_request(x, &v))
        ask(x, v);
    else
        tokens_free(x);
}

static void read_large(void *user, bool stops)
{
    struct tokens *x = user;
    if (!stops) {
        read_body(x);
        return;
    }
    answer_error(x->http, 503, READER_STOPPING, "");
    tokens_free(x);
}

static void begin(struct gateway *g, struct http_request *r, const struct way *way)
{
    struct tokens *x = calloc(1, sizeof(*x));
    size_t len;
    if (!x) {
        answer_error(r, 500, "no memory for this request", "");
        return;
    }
    *x = (struct tokens){.g = g, .http = http_ref(r), .way = way};
    http_body(r, &len);
    if (len <= READER_BYTES) {
        read_body(x);
        return;
    }
    int rc = reader_read(g->reader, &x->job, http_payer(r), read_large, x);
    if (rc < 0) {
        answer_error(r, reader_status(rc), fail_text(), "");
        tokens_free(x);
    }
}

/* ---- answer ---- */

static void write_answer(struct tokens *x)
{
    struct buf body;
    buf_init(&body, BODY_MAX);
    x->way->write(x->reply, &body);
    answer_json(x->http, 200, &body);
    tokens_free(x);
}

static void write_large(void *user, bool stops)
{
    (void)stops; // memory limits the answers that wait
    write_answer(user);
}

/* Asks another verifier of the same model. */
static bool ask_another(struct tokens *x)
{
    struct verifier *v;
    const struct upstream_model *model;
    const struct upstream_want want = {.model = x->q.model, .like = x->model, .except = x->tried};
    if (upstream_take(x->g->upstream, &want, &v, &model) < 0)
        return false;
    upstream_model_unref(model);
    ask(x, v);
    return true;
}

static void refuse_request(struct tokens *x, const struct rpc_status *status)
{
    bool lost = status->code == RPC_UNAVAILABLE;
    if (lost && ask_another(x))
        return;
    if (lost)
        log_warn("request lost id=%s: %s", http_id(x->http), status->text);
    answer_error(x->http, answer_status_of(status->code), lost ? UPSTREAM_UNREACHED : status->text,
                 "");
    tokens_free(x);
}

static void on_reply(void *user, const struct rpc_status *status, ProtobufCMessage *reply)
{
    struct tokens *x = user;
    if (status->code != RPC_OK) {
        refuse_request(x, status);
        return;
    }
    size_t len = protobuf_c_message_get_packed_size(reply);
    x->reply = reply;
    openai_request_done(&x->q);
    int rc = http_charge(x->http, len * ANSWER_RATIO);
    if (rc < 0) {
        answer_error(x->http, answer_charge_status(rc), fail_text(), "");
        tokens_free(x);
    } else if (len <= READER_BYTES ||
               reader_write(x->g->reader, &x->job, http_payer(x->http), write_large, x) < 0) {
        write_answer(x);
    }
}

/* ---- /tokenize ---- */

static void send_text(struct tokens *x, struct verifier *v)
{
    const struct openai_request *q = &x->q;
    Tandem__V1__TokenizeRequest m = TANDEM__V1__TOKENIZE_REQUEST__INIT;
    m.text = rpc_data(q->prompts->text, q->prompts->len);
    m.parse_special = true;
    m.add_bos = !q->add_special.set || q->add_special.value;
    m.flow = rpc_text(q->flow);
    upstream_unary(v, "/tandem.v1.Verifier/Tokenize", CALL_TIMEOUT_US, &m.base,
                   &tandem__v1__tokenize_reply__descriptor, on_reply, x);
}

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

void tokens_encode(struct gateway *g, struct http_request *r)
{
    static const struct way way = {openai_tokenize_parse, send_text, write_ids};
    begin(g, r, &way);
}

/* ---- /detokenize ---- */

static void send_ids(struct tokens *x, struct verifier *v)
{
    const struct openai_request *q = &x->q;
    Tandem__V1__DetokenizeRequest m = TANDEM__V1__DETOKENIZE_REQUEST__INIT;
    m.ids = q->prompts->ids;
    m.n_ids = q->prompts->n_ids;
    m.render_special = true;
    m.flow = rpc_text(q->flow);
    upstream_unary(v, "/tandem.v1.Verifier/Detokenize", CALL_TIMEOUT_US, &m.base,
                   &tandem__v1__detokenize_reply__descriptor, on_reply, x);
}

static void write_text(const ProtobufCMessage *reply, struct buf *to)
{
    const Tandem__V1__DetokenizeReply *t = (const Tandem__V1__DetokenizeReply *)reply;
    buf_puts(to, "{\"prompt\":");
    json_write_text(to, t->text.data, t->text.len);
    buf_puts(to, "}\n");
}

void tokens_decode(struct gateway *g, struct http_request *r)
{
    static const struct way way = {openai_detokenize_parse, send_ids, write_text};
    begin(g, r, &way);
}
