/* test_upstream.c - what the gateway knows of its verifiers, and the requests that wait for one.
 * The verifiers are fakes (lib/fakes/fake_verifier.h). */
#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/err.h"
#include "gateway/upstream/upstream_impl.h"
#include "lib/fakes/failing.h"
#include "lib/fakes/failing_thread.h"
#include "lib/fakes/fake_verifier.h"
#include "lib/lib.h"

#define WAIT_MS 20000

static const struct upstream_patience patience = {1000000, 2000000};
static char folder[64], address[100];

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof(folder), "/tmp/tandem-test-upstream-XXXXXX");
    snprintf(address, sizeof(address), "unix:%s/v.sock", mkdtemp(folder));
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    unlink(address + 5);
    return rmdir(folder);
}

static struct upstream *upstream_of(const char *first)
{
    const char *targets[] = {first};
    struct upstream *u = NULL;
    if (upstream_new(targets, 1, &patience, &u) < 0)
        fail_msg("%s", fail_text());
    return u;
}

static enum upstream_state state_of(struct upstream *u)
{
    char problem[FAIL_TEXT_MAX];
    const struct upstream_model *model;
    enum upstream_state s = upstream_state(upstream_at(u, 0), &model, problem);
    upstream_model_unref(model);
    return s;
}

static void until(struct upstream *u, enum upstream_state s)
{
    for (unsigned i = 0; i < WAIT_MS && state_of(u) != s; i++)
        poll(NULL, 0, 1);
    assert_int_equal(state_of(u), s);
}

static void the_last_answer_is_the_state(void **state)
{
    (void)state;
    static const struct {
        Tandem__V1__ModelInfo__State reported;
        enum upstream_state is;
        const char *name;
    } v[] = {{TANDEM__V1__MODEL_INFO__STATE__LOADING, UPSTREAM_LOADING, "loading"},
             {TANDEM__V1__MODEL_INFO__STATE__READY, UPSTREAM_READY, "ready"},
             {TANDEM__V1__MODEL_INFO__STATE__DRAINING, UPSTREAM_DRAINING, "draining"},
             {TANDEM__V1__MODEL_INFO__STATE__READY, UPSTREAM_READY, "ready"}};
    struct fake_verifier *f = fake_verifier_start(address);
    AUTO(upstream_free) struct upstream *u = upstream_of(address);
    struct verifier *w = upstream_at(u, 0);
    assert_int_equal(upstream_n(u), 1);
    assert_int_equal(upstream_index(w), 0);
    assert_string_equal(upstream_target(w), address);
    assert_non_null(upstream_client(w));
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        fake_verifier_state(f, v[i].reported, 0.5f);
        until(u, v[i].is);
        assert_string_equal(upstream_state_name(v[i].is), v[i].name);
    }
    fake_verifier_protocol(f, 7);
    until(u, UPSTREAM_REFUSED);
    char problem[FAIL_TEXT_MAX];
    const struct upstream_model *model;
    upstream_state(w, &model, problem);
    assert_string_equal(problem, "the verifier speaks protocol version 7, this gateway version 1");
    assert_int_equal(model->info->name.len, strlen("fake/model")); // the last known one
    upstream_model_unref(model);
    fake_verifier_protocol(f, 1);
    until(u, UPSTREAM_READY);
    upstream_state(w, &model, problem);
    assert_string_equal(problem, "");
    upstream_model_unref(model);
    static char long_name[512 + 2]; // one more than allowed
    memset(long_name, 'n', sizeof(long_name) - 1);
    fake_verifier_model(f, long_name, "fp_fake");
    until(u, UPSTREAM_REFUSED);
    upstream_state(w, &model, problem);
    assert_string_equal(problem, "the name, architecture or weight type of its model has 513 "
                                 "bytes, at most 512 are allowed");
    upstream_model_unref(model);
    fake_verifier_model(f, long_name + 1, "fp_fake");
    until(u, UPSTREAM_READY);
    fake_verifier_stop(f);
    until(u, UPSTREAM_DOWN);
    upstream_state(w, &model, problem);
    assert_true(*problem && model);
    upstream_model_unref(model);
    assert_string_equal(upstream_state_name(UPSTREAM_UNKNOWN), "starting");
    assert_string_equal(upstream_state_name(UPSTREAM_DOWN), "down");
    assert_string_equal(upstream_state_name(UPSTREAM_REFUSED), "refused");
}

/* Nothing else is known of it: it must not look as if it had not been asked yet. */
static void a_verifier_that_was_always_busy_is_down(void **state)
{
    (void)state;
    struct fake_verifier *f = fake_verifier_start(address);
    fake_verifier_get_model(f, RPC_RESOURCE_EXHAUSTED);
    AUTO(upstream_free) struct upstream *u = upstream_of(address);
    until(u, UPSTREAM_DOWN);
    char problem[FAIL_TEXT_MAX];
    const struct upstream_model *model;
    upstream_state(upstream_at(u, 0), &model, problem);
    assert_string_equal(problem, "as you asked");
    assert_null(model);
    fake_verifier_get_model(f, RPC_OK);
    until(u, UPSTREAM_READY);
    fake_verifier_get_model(f, RPC_RESOURCE_EXHAUSTED);
    for (unsigned seen = fake_verifier_queries(f); fake_verifier_queries(f) < seen + 2;)
        poll(NULL, 0, 1);
    assert_int_equal(state_of(u), UPSTREAM_READY); // its state stays
    fake_verifier_stop(f);
}

/* A verifier that is down has been met, but not reached. */
static void verifiers_are_met_until_a_deadline(void **state)
{
    (void)state;
    AUTO(upstream_free) struct upstream *u = upstream_of(address); // nobody listens
    int64_t limit_us = WAIT_MS * INT64_C(1000), began_us = clock_us();
    upstream_meet(u, false, began_us + limit_us);
    assert_true(clock_us() < began_us + limit_us);
    assert_int_equal(state_of(u), UPSTREAM_DOWN);
    int64_t until_us = clock_us() + 50000;
    upstream_meet(u, true, until_us);
    assert_true(clock_us() >= until_us);
    struct fake_verifier *f = fake_verifier_start(address);
    upstream_meet(u, true, clock_us() + limit_us);
    assert_int_equal(state_of(u), UPSTREAM_READY);
    fake_verifier_stop(f);
}

static void requests_are_counted(void **state)
{
    (void)state;
    struct fake_verifier *f = fake_verifier_start(address);
    AUTO(upstream_free) struct upstream *u = upstream_of(address);
    struct affinity_prompt prompt = {.n = 1, .hashes = {9}};
    const struct upstream_want want = {.model = "fake/model", .prompt = &prompt};
    const struct upstream_model *model;
    struct verifier *v;
    unsigned pieces[1];
    until(u, UPSTREAM_READY);
    for (unsigned i = 1; i <= 2; i++) {
        assert_int_equal(upstream_take(u, &want, &v, &model), 0);
        assert_int_equal(atomic_load(&v->n_requests), i);
        assert_memory_equal(model->info->fingerprint.data, "fp_fake", 7);
        upstream_model_unref(model);
    }
    affinity_find(u->affinity, &prompt, 1, pieces);
    assert_int_equal(pieces[0], 1);
    upstream_release(v);
    upstream_release(v);
    upstream_release(NULL);
    assert_int_equal(atomic_load(&v->n_requests), 0);
    assert_int_equal(upstream_take(u, &(struct upstream_want){.model = "no"}, &v, &model), -ENOENT);
    fake_verifier_stop(f);
}

/* ---- waiting ---- */

static atomic_uint n_called, n_displaced;

static void count_call(void)
{
    atomic_fetch_add(&n_called, 1);
}

static void called(void *user, int err)
{
    (void)user;
    count_call();
    if (!err)
        return;
    assert_int_equal(err, -EHOSTDOWN);
    assert_string_equal(fail_text(), "1024 requests already wait for the model to load; try again");
    atomic_fetch_add(&n_displaced, 1);
}

static bool until_called(unsigned n)
{
    for (unsigned i = 0; i < WAIT_MS && atomic_load(&n_called) != n; i++)
        poll(NULL, 0, 1);
    return atomic_load(&n_called) == n;
}

static void a_waiter_is_called_when_the_model_is_loaded(void **state)
{
    (void)state;
    n_called = 0;
    struct fake_verifier *f = fake_verifier_start(address);
    fake_verifier_state(f, TANDEM__V1__MODEL_INFO__STATE__LOADING, 0.5f);
    AUTO(upstream_free) struct upstream *u = upstream_of(address);
    until(u, UPSTREAM_LOADING);
    assert_int_equal(upstream_wait(u, "fake/model", "p", 600000000, called, NULL), 0);
    assert_int_equal(upstream_wait(u, NULL, "p", 600000000, called, NULL), 0);
    assert_int_equal(upstream_wait(u, "other", "p", 600000000, called, NULL), 0); // nobody loads it
    assert_int_equal(upstream_wait(u, NULL, "p", 1000, called, NULL), 0);         // at most 1 ms
    assert_true(until_called(2));
    assert_int_equal(upstream_wait(u, NULL, "p", 600000000, called, &n_called), 0);
    upstream_wait_end(u, u); // nobody
    assert_int_equal(atomic_load(&n_called), 2);
    upstream_wait_end(u, &n_called);
    assert_int_equal(atomic_load(&n_called), 3);
    upstream_wait_end(u, &n_called);
    fake_verifier_state(f, TANDEM__V1__MODEL_INFO__STATE__READY, 1);
    assert_true(until_called(5));
    assert_int_equal(u->waiters.n, 0);
    fake_verifier_stop(f);
}

static void payers_are_known_while_they_wait(void **state)
{
    (void)state;
    struct upstream_waiters s = {0};
    struct upstream_waiter w[3], *displaced;
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(upstream_waiters_add(&s, &w[i], i ? "b" : "a", &displaced), 0);
    assert_ptr_equal(upstream_waiters_remove(&s, &s.first->next->next), &w[0]);
    assert_ptr_equal(upstream_waiters_remove(&s, &s.first), &w[2]);
    assert_ptr_equal(s.payers, w[1].payer); // the only one
    assert_ptr_equal(upstream_waiters_remove(&s, &s.first), &w[1]);
    assert_null(s.payers);
    assert_int_equal(s.n, 0);
}

static int wait_as(struct upstream *u, const char *payer)
{
    return upstream_wait(u, NULL, payer, 600000000, called, NULL);
}

/* Fresh payers come one after the other, until none has more than one request more than another. */
static void who_waits_most_gives_way_when_all_places_are_taken(void **state)
{
    (void)state;
    n_called = n_displaced = 0;
    struct fake_verifier *f = fake_verifier_start(address);
    fake_verifier_state(f, TANDEM__V1__MODEL_INFO__STATE__LOADING, 0.5f);
    AUTO(upstream_free) struct upstream *u = upstream_of(address);
    until(u, UPSTREAM_LOADING);
    for (unsigned i = 0; i < UPSTREAM_WAITING_MAX; i++)
        assert_int_equal(wait_as(u, i % 4 ? "a" : "b"), 0);
    assert_int_equal(wait_as(u, "a"), -EHOSTDOWN);
    assert_string_equal(fail_text(), "1024 requests already wait for the model to load; try again");
    assert_int_equal(n_displaced, 0);
    for (unsigned i = 0; i < 340; i++)
        assert_int_equal(wait_as(u, "c"), 0); // 768 and 256 before; 428 and 340 now
    for (unsigned i = 0; i < 85; i++)
        assert_int_equal(wait_as(u, "b"), 0); // 343 and 341
    assert_int_equal(wait_as(u, "b"), 0);     // 342 and 342
    assert_int_equal(wait_as(u, "b"), -EHOSTDOWN);
    assert_int_equal(n_displaced, 340 + 86);
    assert_int_equal(u->waiters.n, UPSTREAM_WAITING_MAX);
    upstream_stop(u);
    assert_true(until_called(UPSTREAM_WAITING_MAX + n_displaced));
    assert_int_equal(n_displaced, 340 + 86);
    assert_int_equal(wait_as(u, "x"), -EHOSTDOWN);
    assert_string_equal(fail_text(), "the server is shutting down");
    fake_verifier_stop(f);
}

static void on_encoded(void *user, const struct rpc_status *status, ProtobufCMessage *reply)
{
    struct rpc_status *to = user;
    *to = *status;
    if (reply)
        protobuf_c_message_free_unpacked(reply, NULL);
    count_call();
}

static void a_stop_ends_calls(void **state)
{
    (void)state;
    n_called = 0;
    struct rpc_status status;
    Tandem__V1__TokenizeRequest m = TANDEM__V1__TOKENIZE_REQUEST__INIT;
    struct fake_verifier *f = fake_verifier_start(address);
    struct upstream *u = upstream_of(address);
    m.text = rpc_text("x");
    upstream_unary(upstream_at(u, 0), "/tandem.v1.Verifier/Tokenize", 20000000, &m.base,
                   &tandem__v1__tokenize_reply__descriptor, on_encoded, &status);
    assert_true(until_called(1));
    assert_int_equal(status.code, RPC_OK);
    m.text = rpc_text("stall");
    upstream_unary(upstream_at(u, 0), "/tandem.v1.Verifier/Tokenize", 20000000, &m.base,
                   &tandem__v1__tokenize_reply__descriptor, on_encoded, &status);
    upstream_stop(u);
    assert_true(until_called(2));
    assert_int_equal(status.code, RPC_CANCELLED);
    assert_string_equal(status.text, "the server is shutting down");
    upstream_free(u);
    fake_verifier_stop(f);
}

/* ---- calls that run ---- */

static void a_call_leaves_a_verifier_that_drains_or_is_silent(void **state)
{
    (void)state;
    static const struct {
        enum upstream_state state;
        int64_t silent_us;
        enum upstream_stay stay;
    } v[] = {{UPSTREAM_READY, 9000, UPSTREAM_STAYS},  {UPSTREAM_LOADING, 9000, UPSTREAM_STAYS},
             {UPSTREAM_DRAINING, 0, UPSTREAM_LEAVES}, {UPSTREAM_DOWN, 1000, UPSTREAM_STAYS},
             {UPSTREAM_DOWN, 1001, UPSTREAM_SILENT},  {UPSTREAM_REFUSED, 9000, UPSTREAM_STAYS},
             {UPSTREAM_UNKNOWN, 9000, UPSTREAM_STAYS}};
    struct upstream u = {.n = 1, .mu = PTHREAD_MUTEX_INITIALIZER};
    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        u.verifiers[0] =
            (struct verifier){.u = &u, .state = v[i].state, .answered_us = 50000 - v[i].silent_us};
        assert_int_equal(upstream_stay(&u.verifiers[0], 1000, 50000), v[i].stay);
    }
}

static void from_1_to_32_verifiers_are_accepted(void **state)
{
    (void)state;
    const char *targets[UPSTREAM_MAX + 1];
    struct upstream *u = NULL;
    for (unsigned i = 0; i <= UPSTREAM_MAX; i++)
        targets[i] = address;
    assert_int_equal(upstream_new(targets, 0, &patience, &u), -EINVAL);
    assert_string_equal(fail_text(), "there must be 1 to 32 verifiers, not 0");
    assert_int_equal(upstream_new(targets, UPSTREAM_MAX + 1, &patience, &u), -EINVAL);
    assert_int_equal(upstream_new(targets, UPSTREAM_MAX, &patience, &u), 0);
    assert_int_equal(upstream_n(u), UPSTREAM_MAX);
    assert_int_equal(upstream_index(upstream_at(u, UPSTREAM_MAX - 1)), UPSTREAM_MAX - 1);
    assert_int_equal(u->keep_us, UPSTREAM_OWNER_GRACE_US + 3000000);
    until(u, UPSTREAM_DOWN);
    upstream_free(u);
    upstream_free(NULL);
}

static void failed_allocations_are_errors(void **state)
{
    (void)state;
    const char *targets[] = {address};
    struct upstream *u = NULL;
    for (unsigned n = 1; n <= 4; n++) { // itself, affinity, calls, the target
        failing_at(n);
        assert_int_equal(upstream_new(targets, 1, &patience, &u), -ENOMEM);
        assert_true(failing_has_failed());
    }
    struct upstream still = {.n = 0};
    for (unsigned n = 1; n <= 2; n++) { // the waiter, its payer
        failing_at(n);
        assert_int_equal(upstream_wait(&still, NULL, "p", 1, called, NULL), -ENOMEM);
        assert_true(failing_has_failed());
    }
}

static void an_address_that_cannot_be_used_is_an_error(void **state)
{
    (void)state;
    const char *targets[] = {address, ""};
    struct upstream *u = NULL;
    assert_int_equal(upstream_new(targets, 2, &patience, &u), -EINVAL);
    assert_string_equal(fail_text(), "cannot create a channel to the verifier ");
    assert_null(u);
}

/* The second thread is the watcher; the first one belongs to the channel. */
static void without_a_thread_there_are_no_verifiers(void **state)
{
    (void)state;
    const char *targets[] = {address};
    struct upstream *u = NULL;
    failing_thread_at(1);
    assert_true(upstream_new(targets, 1, &patience, &u) < 0);
    assert_non_null(strstr(fail_text(), "cannot create a channel to the verifier unix:"));
    failing_thread_at(2);
    assert_int_equal(upstream_new(targets, 1, &patience, &u), -EAGAIN);
    assert_string_equal(fail_text(), "cannot start a thread: Resource temporarily unavailable");
    assert_null(u);
}

/* ---- answers that find no memory ---- */

static struct {
    pthread_mutex_t mu;
    bool keeps; // the next call is kept, and not made
    unary_calls_done *done;
    void *user;
} kept = {.mu = PTHREAD_MUTEX_INITIALIZER};

void __real_unary_calls_make(struct unary_calls *s, struct rpc_client *c, const char *path,
                             int64_t timeout_us, const ProtobufCMessage *request,
                             const ProtobufCMessageDescriptor *reply, unary_calls_done *done,
                             void *user);
void __wrap_unary_calls_make(struct unary_calls *s, struct rpc_client *c, const char *path,
                             int64_t timeout_us, const ProtobufCMessage *request,
                             const ProtobufCMessageDescriptor *reply, unary_calls_done *done,
                             void *user);

void __wrap_unary_calls_make(struct unary_calls *s, struct rpc_client *c, const char *path,
                             int64_t timeout_us, const ProtobufCMessage *request,
                             const ProtobufCMessageDescriptor *reply, unary_calls_done *done,
                             void *user)
{
    pthread_mutex_lock(&kept.mu);
    bool keeps = kept.keeps;
    if (keeps) {
        kept.keeps = false;
        kept.user = user;
        kept.done = done;
    }
    pthread_mutex_unlock(&kept.mu);
    if (!keeps)
        __real_unary_calls_make(s, c, path, timeout_us, request, reply, done, user);
}

/* Waits for the next call, which is then the test's to answer. */
static void keep_a_call(void)
{
    bool is_kept = false;
    pthread_mutex_lock(&kept.mu);
    kept.keeps = true;
    pthread_mutex_unlock(&kept.mu);
    for (unsigned i = 0; i < WAIT_MS && !is_kept; i++) {
        poll(NULL, 0, 1);
        pthread_mutex_lock(&kept.mu);
        is_kept = !kept.keeps;
        pthread_mutex_unlock(&kept.mu);
    }
    assert_true(is_kept);
}

static void an_answer_without_memory_changes_no_state(void **state)
{
    (void)state;
    Tandem__V1__ModelInfo *info = calloc(1, sizeof(*info));
    struct fake_verifier *f = fake_verifier_start(address);
    AUTO(upstream_free) struct upstream *u = upstream_of(address);
    until(u, UPSTREAM_READY);
    keep_a_call();
    tandem__v1__model_info__init(info);
    info->state = TANDEM__V1__MODEL_INFO__STATE__DRAINING;
    failing_at(1);
    kept.done(kept.user, &(struct rpc_status){.code = RPC_OK}, &info->base);
    assert_true(failing_has_failed());
    assert_int_equal(state_of(u), UPSTREAM_READY);
    fake_verifier_state(f, TANDEM__V1__MODEL_INFO__STATE__LOADING, 0.5f);
    until(u, UPSTREAM_LOADING); // it is asked again
    fake_verifier_stop(f);
}

/* Its own threads answer for the engine. */
static void a_verifier_whose_engine_hangs_is_down_and_silent(void **state)
{
    (void)state;
    const uint64_t limit_ms = UPSTREAM_TURN_STALLS * (uint64_t)patience.stall_us / 1000;
    static const char problem_is[] = "its engine has not finished a pass for 4.0 s";
    char problem[FAIL_TEXT_MAX];
    const struct upstream_model *model;
    struct fake_verifier *f = fake_verifier_start(address);
    AUTO(upstream_free) struct upstream *u = upstream_of(address);
    struct verifier *v = upstream_at(u, 0);
    until(u, UPSTREAM_READY);
    fake_verifier_turn(f, limit_ms + 1);
    until(u, UPSTREAM_DOWN);
    upstream_state(v, &model, problem);
    assert_string_equal(problem, problem_is);
    upstream_model_unref(model);
    assert_int_equal(upstream_stay(v, patience.stall_us, clock_us()), UPSTREAM_SILENT);
    fake_verifier_turn(f, limit_ms);
    until(u, UPSTREAM_READY);
    assert_int_equal(upstream_stay(v, patience.stall_us, clock_us()), UPSTREAM_STAYS);
    fake_verifier_turn(f, UINT64_MAX);
    until(u, UPSTREAM_DOWN);
    fake_verifier_turn(f, 2 * (uint64_t)patience.stall_us / 1000); // a long pass is no silence
    until(u, UPSTREAM_READY);
    fake_verifier_get_model(f, RPC_UNAVAILABLE);
    until(u, UPSTREAM_DOWN);
    assert_int_equal(upstream_stay(v, WAIT_MS * 1000, clock_us()), UPSTREAM_STAYS);
    fake_verifier_stop(f);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(the_last_answer_is_the_state),
        CASE(a_verifier_that_was_always_busy_is_down),
        CASE(verifiers_are_met_until_a_deadline),
        CASE(requests_are_counted),
        CASE(a_waiter_is_called_when_the_model_is_loaded),
        CASE(payers_are_known_while_they_wait),
        CASE(who_waits_most_gives_way_when_all_places_are_taken),
        CASE(a_stop_ends_calls),
        CASE(a_call_leaves_a_verifier_that_drains_or_is_silent),
        CASE(from_1_to_32_verifiers_are_accepted),
        CASE(failed_allocations_are_errors),
        CASE(an_address_that_cannot_be_used_is_an_error),
        CASE(without_a_thread_there_are_no_verifiers),
        CASE(an_answer_without_memory_changes_no_state),
        CASE(a_verifier_whose_engine_hangs_is_down_and_silent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
