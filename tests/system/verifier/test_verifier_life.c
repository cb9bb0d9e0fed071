/* test_verifier_life.c - a verifier loads its model, reports its properties, and drains. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "lib/lib.h"
#include "base/mem.h"
#include "lib/rigs/verifier_rig.h"

#define WITHIN_S 60

/* ---- beginning and end ---- */

static void requests_wait_for_the_model(void **state)
{
    (void)state;
    struct service s = {0};
    struct rpc_client *c;
    struct wish w;
    struct generation g;
    AUTO(mem_free) struct answer *a = answers_new(1);
    service_spawn(&s, "verifier-svc", plain_args);
    assert_int_equal(rpc_client_new(s.target, NULL, &c), 0);
    struct rpc_options opt = {.wait_for_ready = true, .timeout_us = WITHIN_S * INT64_C(1000000)};
    Tandem__V1__GetModelRequest ask = TANDEM__V1__GET_MODEL_REQUEST__INIT;
    ProtobufCMessage *reply;
    struct rpc_status st = rpc_unary(c, "/tandem.v1.Verifier/GetModel", &opt, &ask.base,
                                     &tandem__v1__model_info__descriptor, &reply);
    assert_int_equal(st.code, RPC_OK); // the port is open before the model is loaded
    protobuf_c_message_free_unpacked(reply, NULL);
    wish_init(&w, STORY, 5);
    generation_start(&g, c, &w.msg, a);
    generation_end(&g);
    assert_int_equal(g.status.code, RPC_OK);
    rpc_client_free(c);
    service_stop(&s);
}

static struct rpc_status get_model(struct rpc_client *c, uint32_t protocol, uint32_t *ret_protocol)
{
    Tandem__V1__GetModelRequest ask = TANDEM__V1__GET_MODEL_REQUEST__INIT;
    ProtobufCMessage *m = NULL;
    ask.protocol = protocol;
    struct rpc_status st = rpc_unary(c, "/tandem.v1.Verifier/GetModel", NULL, &ask.base,
                                     &tandem__v1__model_info__descriptor, &m);
    const Tandem__V1__ModelInfo *info = (const Tandem__V1__ModelInfo *)m;
    *ret_protocol = info ? info->protocol : 0;
    if (m)
        protobuf_c_message_free_unpacked(m, NULL);
    return st;
}

static void every_protocol_version_gets_version_1(void **state)
{
    (void)state;
    struct service s = {0};
    struct rpc_client *c;
    uint32_t protocol;
    service_start(&s, "verifier-svc", plain_args);
    assert_int_equal(rpc_client_new(s.target, NULL, &c), 0);
    for (uint32_t theirs = 0; theirs < 3; theirs++) { // 0: the client reports no version
        assert_int_equal(get_model(c, theirs, &protocol).code, RPC_OK);
        assert_int_equal(protocol, 1);
    }
    rpc_client_free(c);
    service_stop(&s);
}

/* Starts a verifier with these settings and returns values from GetModel. */
static void ask_model(const char *const *args, char gemm[8], char kv_type[8], char fingerprint[32])
{
    struct service s = {0};
    struct rpc_client *c;
    ProtobufCMessage *m;
    Tandem__V1__GetModelRequest ask = TANDEM__V1__GET_MODEL_REQUEST__INIT;
    service_start(&s, "verifier-svc", args);
    assert_int_equal(rpc_client_new(s.target, NULL, &c), 0);
    struct rpc_status st = rpc_unary(c, "/tandem.v1.Verifier/GetModel", NULL, &ask.base,
                                     &tandem__v1__model_info__descriptor, &m);
    assert_int_equal(st.code, RPC_OK);
    const Tandem__V1__ModelInfo *info = (const Tandem__V1__ModelInfo *)m;
    snprintf(gemm, 8, "%.*s", (int)info->float_gemm.len, (char *)info->float_gemm.data);
    snprintf(kv_type, 8, "%.*s", (int)info->kv_type.len, (char *)info->kv_type.data);
    snprintf(fingerprint, 32, "%.*s", (int)info->fingerprint.len, (char *)info->fingerprint.data);
    protobuf_c_message_free_unpacked(m, NULL);
    rpc_client_free(c);
    assert_int_equal(service_said(&s, "may get other tokens"), strcmp(gemm, "blas") == 0);
    service_stop(&s);
}

static void settings_that_change_bits_are_reported_and_change_the_fingerprint(void **state)
{
    (void)state;
    char gemm[8], kv_type[8], own[32], blas[32], f16[32];
    ask_model(plain_args, gemm, kv_type, own);
    assert_string_equal(gemm, "own");
    assert_string_equal(kv_type, "int8");
    assert_string_equal(own, "fp_15ce72b7fc4d238d"); // changes only if the computed bits change
    ask_model((const char *[]){"--model", MODEL, "--float-gemm", "blas", NULL}, gemm, kv_type,
              blas);
    assert_string_equal(gemm, "blas");
    assert_string_not_equal(own, blas);
    ask_model((const char *[]){"--model", MODEL, "--kv-type", "f16", NULL}, gemm, kv_type, f16);
    assert_string_equal(kv_type, "f16");
    assert_string_equal(f16, "fp_196a69caa15b214d");
    assert_string_not_equal(own, f16);
}

/* The reply to GetModel in wire format, without `turn_ms`; free it. */
static uint8_t *model_of(struct rpc_client *c, size_t *ret_len)
{
    Tandem__V1__GetModelRequest ask = TANDEM__V1__GET_MODEL_REQUEST__INIT;
    ProtobufCMessage *m;
    struct rpc_status st = rpc_unary(c, "/tandem.v1.Verifier/GetModel", NULL, &ask.base,
                                     &tandem__v1__model_info__descriptor, &m);
    assert_int_equal(st.code, RPC_OK);
    Tandem__V1__ModelInfo *model = (Tandem__V1__ModelInfo *)m;
    assert_true(model->chat_template.len > 0);
    model->turn_ms = 0; // depends on the moment
    uint8_t *bytes = malloc(protobuf_c_message_get_packed_size(m));
    *ret_len = protobuf_c_message_pack(m, bytes);
    protobuf_c_message_free_unpacked(m, NULL);
    return bytes;
}

static void the_file_of_a_loaded_model_may_be_removed(void **state)
{
    (void)state;
    struct service s = {0};
    struct rpc_client *c;
    struct wish w;
    char path[200];
    size_t len, before_len, after_len;
    AUTO(mem_free) struct answer *a = answers_new(2);
    AUTO(mem_free) char *file = lib_read(MODEL, &len);
    write_model("going", file, len, path);
    service_start(&s, "verifier-svc", (const char *[]){"--model", path, NULL});
    assert_int_equal(rpc_client_new(s.target, NULL, &c), 0);
    wish_init(&w, STORY, 50);
    w.msg.logprobs = true;
    w.msg.top_logprobs = 5;
    AUTO(mem_free) uint8_t *before = model_of(c, &before_len);
    generation_run(c, &w.msg, &a[0]);
    write_model("going", "", 0, path); // truncates the file that it was loaded from
    AUTO(mem_free) uint8_t *after = model_of(c, &after_len);
    generation_run(c, &w.msg, &a[1]);
    assert_int_equal(after_len, before_len);
    assert_memory_equal(after, before, before_len);
    same_answer(&a[0], &a[1]);
    rpc_client_free(c);
    service_stop(&s);
}

static void a_drain_finishes_accepted_requests(void **state)
{
    (void)state;
    struct service s = {0};
    struct rpc_client *c, *late;
    struct wish w;
    struct generation g;
    AUTO(mem_free) struct answer *a = answers_new(1);
    service_start(&s, "verifier-svc", plain_args);
    assert_int_equal(rpc_client_new(s.target, NULL, &c), 0);
    assert_int_equal(rpc_client_new(s.target, NULL, &late), 0);
    wish_init(&w, STORY, 1000);
    w.msg.ignore_eos = true;
    generation_start(&g, c, &w.msg, a);
    generation_wait_tokens(&g, 3);
    service_signal(&s, SIGTERM);
    generation_end(&g);
    assert_int_equal(g.status.code, RPC_OK);
    assert_int_equal(a->n, 1000);
    must_refuse(late, &w.msg, RPC_UNAVAILABLE, "");
    rpc_client_free(c);
    rpc_client_free(late);
    service_stop(&s); // its exit status must be 0
}

static void a_drain_ends_at_its_time_limit(void **state)
{
    (void)state;
    struct service s = {0};
    struct rpc_client *c;
    struct wish w;
    struct generation g;
    AUTO(mem_free) struct answer *a = answers_new(1);
    static const char *const args[] = {"--model", MODEL, "--drain-timeout", "0", NULL};
    service_start(&s, "verifier-svc", args);
    assert_int_equal(rpc_client_new(s.target, NULL, &c), 0);
    wish_init(&w, STORY, 1000);
    w.msg.ignore_eos = true;
    w.msg.n = 32;
    generation_start(&g, c, &w.msg, a);
    generation_wait_tokens(&g, 3);
    service_signal(&s, SIGTERM);
    generation_end(&g);
    assert_int_equal(g.status.code, RPC_UNAVAILABLE);
    assert_non_null(strstr(g.status.text, "stopping"));
    rpc_client_free(c);
    service_stop(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_wait_for_the_model),
        cmocka_unit_test(every_protocol_version_gets_version_1),
        cmocka_unit_test(settings_that_change_bits_are_reported_and_change_the_fingerprint),
        cmocka_unit_test(the_file_of_a_loaded_model_may_be_removed),
        cmocka_unit_test(a_drain_finishes_accepted_requests),
        cmocka_unit_test(a_drain_ends_at_its_time_limit),
    };
    return cmocka_run_group_tests(tests, start_verifier, stop_verifier);
}
