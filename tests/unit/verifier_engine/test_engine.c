/* test_engine.c - the engine's thread with a real model, its clients played by the test. */
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/mem.h"
#include "base/rng.h"
#include "lib/lib.h"
#include "lib/clients/engine_client.h"
#include "lib/clients/proposers.h"
#include "lib/rigs/logged.h"
#include "tandem/v1/verifier.pb-c.h"
#include "verifier-svc/engine/engine_impl.h"

#define N_CHOICES 2
#define MANY_CHOICES 16
#define N_TOKENS 250

/* ---- what the engine's thread allocates: the linker hands all calls of ours to these ---- */

void *__real_malloc(size_t n);
void *__real_calloc(size_t n, size_t size);
void *__real_realloc(void *p, size_t n);
void *__wrap_malloc(size_t n);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *p, size_t n);

static atomic_bool watching;
static pthread_t watched;
static atomic_uint n_allocations;

static void count(void)
{
    if (atomic_load(&watching) && pthread_equal(pthread_self(), watched))
        atomic_fetch_add(&n_allocations, 1);
}

void *__wrap_malloc(size_t n)
{
    count();
    return __real_malloc(n);
}

void *__wrap_calloc(size_t n, size_t size)
{
    count();
    return __real_calloc(n, size);
}

void *__wrap_realloc(void *p, size_t n)
{
    count();
    return __real_realloc(p, n);
}

/* ---- waiting for a thread: for as long as a test wants ---- */

#define HELD_MS 5000 // at most, so that a test fails and does not hang

int __real_pthread_join(pthread_t thread, void **ret);
int __wrap_pthread_join(pthread_t thread, void **ret);

static atomic_bool hold_joins, in_join;

int __wrap_pthread_join(pthread_t thread, void **ret)
{
    for (int ms = 0; atomic_load(&hold_joins) && ms < HELD_MS; ms += 5) {
        atomic_store(&in_join, true);
        poll(NULL, 0, 5);
    }
    atomic_store(&hold_joins, false);
    return __real_pthread_join(thread, ret);
}

#define N_VOCAB 4096 // of the model
#define BUDGET_MS 50 // for drafts

/* ---- how the engine's thread sleeps, and a disk that works for as long as a test wants ---- */

void *__real_queue_pop(struct queue *q, int64_t wait_us);
void *__wrap_queue_pop(struct queue *q, int64_t wait_us);
int __real_kv_store_get(struct kv_store *s, const uint8_t *name, int64_t now_s, void *ret_data);
int __wrap_kv_store_get(struct kv_store *s, const uint8_t *name, int64_t now_s, void *ret_data);
int __real_kv_store_put(struct kv_store *s, const struct kv_store_row *rows, uint32_t n,
                        int64_t now_s);
int __wrap_kv_store_put(struct kv_store *s, const struct kv_store_row *rows, uint32_t n,
                        int64_t now_s);
void __real_kv_tier_take(struct kv_tier *t, struct kv_disk_fetch *f, struct seq *s);
void __wrap_kv_tier_take(struct kv_tier *t, struct kv_disk_fetch *f, struct seq *s);

static _Atomic(struct queue *) watched_inbox;
static atomic_uint n_looks, n_sleeps; // into the inbox; of them, those that wait
static _Atomic int64_t sleep_us;      // of the last one
static atomic_uint n_taken;           // fetches that the engine is done with
static atomic_bool hold_reads, in_read, hold_writes, in_write;

void __real_round_run(struct engine *e);
void __wrap_round_run(struct engine *e);

/* How long the engine has slept since the last round, and the most before any round. Of a sleep,
 * only the time that the engine asked for counts. So a machine that wakes the thread late changes
 * nothing. */
static int64_t slept_us, longest_us;

static void count_sleep(int64_t asked_us, int64_t begun_us)
{
    const int64_t us = clock_us() - begun_us;
    slept_us = asked_us < 0 ? 0 : slept_us + (us < asked_us ? us : asked_us); // < 0: no work
}

/* ---- choosing tokens: as slow as a test wants ---- */

#define SLOW_MS 20

void __real_decide_tokens(const struct forward *f, struct dist *d, struct seq *s);
void __wrap_decide_tokens(const struct forward *f, struct dist *d, struct seq *s);

static atomic_bool slow_choices;
static atomic_uint n_chosen_elsewhere; // not by the engine's thread

void __wrap_decide_tokens(const struct forward *f, struct dist *d, struct seq *s)
{
    if (atomic_load(&slow_choices)) {
        poll(NULL, 0, SLOW_MS);
        atomic_fetch_add(&n_chosen_elsewhere, !pthread_equal(pthread_self(), watched));
    }
    __real_decide_tokens(f, d, s);
}

void __wrap_round_run(struct engine *e)
{
    longest_us = slept_us > longest_us ? slept_us : longest_us;
    slept_us = 0;
    __real_round_run(e);
}

void *__wrap_queue_pop(struct queue *q, int64_t wait_us)
{
    if (q == atomic_load(&watched_inbox)) {
        atomic_fetch_add(&n_looks, 1);
        if (wait_us)
            atomic_store(&sleep_us, wait_us);
        atomic_fetch_add(&n_sleeps, wait_us != 0);
    }
    const int64_t begun_us = clock_us();
    void *item = __real_queue_pop(q, wait_us);
    if (wait_us && q == atomic_load(&watched_inbox))
        count_sleep(wait_us, begun_us);
    return item;
}

static void wait_while(atomic_bool *held, atomic_bool *ret_in)
{
    for (int ms = 0; atomic_load(held) && ms < 4 * HELD_MS; ms += 5) {
        atomic_store(ret_in, true);
        poll(NULL, 0, 5);
    }
}

int __wrap_kv_store_get(struct kv_store *s, const uint8_t *name, int64_t now_s, void *ret_data)
{
    wait_while(&hold_reads, &in_read);
    return __real_kv_store_get(s, name, now_s, ret_data);
}

int __wrap_kv_store_put(struct kv_store *s, const struct kv_store_row *rows, uint32_t n,
                        int64_t now_s)
{
    wait_while(&hold_writes, &in_write);
    return __real_kv_store_put(s, rows, n, now_s);
}

void __wrap_kv_tier_take(struct kv_tier *t, struct kv_disk_fetch *f, struct seq *s)
{
    __real_kv_tier_take(t, f, s);
    atomic_fetch_add(&n_taken, 1);
}

static void wait_until_more(atomic_uint *n, unsigned than)
{
    for (int ms = 0; atomic_load(n) <= than; ms += 5) {
        assert_true(ms < 4 * HELD_MS);
        poll(NULL, 0, 5);
    }
}

/* Wakes the engine, which looks for changes and sleeps again. */
static void wake(struct engine *e)
{
    for (int i = 0; i < 2; i++) { // it may have been about to sleep
        unsigned n = atomic_load(&n_sleeps);
        engine_wake(e);
        wait_until_more(&n_sleeps, n);
    }
}

/* When no more blocks are written to disk, it sleeps until it is woken, and runs its loop only as
 * often as that. */
static void must_sleep(struct engine *e)
{
    wake(e);
    for (int ms = 0; atomic_load(&sleep_us) != -1 && ms < 4 * HELD_MS; ms += 5) {
        poll(NULL, 0, 5);
        wake(e);
    }
    unsigned n = atomic_load(&n_looks);
    for (int i = 0; i < 10; i++) {
        wake(e);
        assert_true(atomic_load(&sleep_us) == -1);
    }
    assert_in_range(atomic_load(&n_looks) - n, 20, 80);
}

/* ---- an engine ---- */

static struct stats stats;
static struct verifier_options options = {.model = SOURCE_DIR "/models/tales-1m-q8_0.gguf",
                                          .k = 5,
                                          .max_sequences = 4,
                                          .queue_length = 4,
                                          .max_batch_rows = 64,
                                          .prefill_chunk = 64,
                                          .max_pass_ms = 100,
                                          .threads = 1,
                                          .prefix_cache = true,
                                          .kv_disk = ""};

/* Many different tokens, text that is held back often, and all that a token can carry. */
static struct request *request_for(struct engine *e, const char *rule, uint32_t n_choices,
                                   uint32_t n_tokens)
{
    ProtobufCBinaryData stops[] = {{6, (uint8_t *)" a b c"}, {4, (uint8_t *)". \n\n"}};
    Tandem__V1__Sampling sampling = TANDEM__V1__SAMPLING__INIT;
    Tandem__V1__GenerateRequest msg = TANDEM__V1__GENERATE_REQUEST__INIT;
    sampling.has_temperature_case = TANDEM__V1__SAMPLING__HAS_TEMPERATURE_TEMPERATURE;
    sampling.temperature = 2;
    sampling.has_presence_case = TANDEM__V1__SAMPLING__HAS_PRESENCE_PRESENCE_PENALTY;
    sampling.presence_penalty = 2;
    msg.sampling = &sampling;
    msg.prompt_case = TANDEM__V1__GENERATE_REQUEST__PROMPT_TEXT;
    msg.text = (ProtobufCBinaryData){4, (uint8_t *)"Once"};
    msg.has_max_tokens_case = TANDEM__V1__GENERATE_REQUEST__HAS_MAX_TOKENS_MAX_TOKENS;
    msg.max_tokens = n_tokens;
    msg.min_tokens = n_tokens / 2;
    msg.ignore_eos = msg.logprobs = msg.render_special = true;
    msg.top_logprobs = DIST_MAX_TOP;
    msg.stop = stops;
    msg.n_stop = ARRAY_LEN(stops);
    msg.n = n_choices;
    sampling.seed = 5;
    sampling.has_seed_case = TANDEM__V1__SAMPLING__HAS_SEED_SEED;
    Tandem__V1__Speculative speculative = TANDEM__V1__SPECULATIVE__INIT;
    if (rule) {
        speculative.rule = (ProtobufCBinaryData){strlen(rule), (uint8_t *)(uintptr_t)rule};
        msg.speculative = &speculative;
    }
    const struct loaded_model *m = engine_loaded_model(e);
    struct request_limits limits = {m->tok,    m->name,        m->run.context,
                                    n_choices, m->fingerprint, true};
    struct request *r;
    assert_int_equal(request_read(&msg, &limits, &r), 0);
    assert_int_equal(request_open(r, m->tok), 0);
    return r;
}

static struct request *request_of(struct engine *e, const char *rule)
{
    return request_for(e, rule, N_CHOICES, N_TOKENS);
}

/* Runs a request, and counts from the first tokens on. */
static void decode_without_allocating(struct engine *e)
{
    struct request *r = request_of(e, NULL);
    unsigned n_tokens[N_CHOICES] = {0}, at_start = 0;
    watched = e->thread;
    atomic_store(&n_allocations, 0);
    atomic_store(&watching, true);
    assert_int_equal(engine_submit(e, r), 0);
    for (bool last = false; !last;) {
        struct event_batch *b = events_next(engine_events(e), -1);
        for (uint32_t i = 0; b && i < b->n; i++) {
            n_tokens[b->v[i].choice] += b->v[i].n_tokens;
            last = b->v[i].last;
        }
        if (b)
            events_return(engine_events(e), b);
        if (!at_start && n_tokens[0] && n_tokens[1])
            at_start = atomic_load(&n_allocations);
    }
    assert_true(at_start > 0); // those of the admission
    assert_int_equal(atomic_load(&n_allocations), at_start);
    assert_true(n_tokens[0] > N_TOKENS / 2 && n_tokens[1] > N_TOKENS / 2);
    atomic_store(&watching, false);
    request_drop(r); // the engine's hold
    request_drop(r);
}

/* Returns a digest of the tokens of all choices, with their logprobs. */
static uint64_t run_to_the_end(struct engine *e, struct request *r)
{
    uint64_t digest[MANY_CHOICES] = {0}, all = 0;
    assert_int_equal(engine_submit(e, r), 0);
    for (bool last = false; !last;) {
        struct event_batch *b = events_next(engine_events(e), -1);
        for (uint32_t i = 0; b && i < b->n; i++) {
            const struct event *ev = &b->v[i];
            for (uint32_t k = ev->first; k < ev->first + ev->n_tokens; k++) {
                uint32_t logprob;
                memcpy(&logprob, &b->tokens[k].logprob, sizeof(logprob));
                digest[ev->choice] = rng_splitmix64(digest[ev->choice] ^ b->tokens[k].id) ^ logprob;
            }
            last |= ev->last;
        }
        if (b)
            events_return(engine_events(e), b);
    }
    for (unsigned i = 0; i < MANY_CHOICES; i++)
        all = rng_splitmix64(all ^ digest[i]);
    request_drop(r); // the engine's hold
    request_drop(r);
    return all;
}

/* Else rows of prompts and drafts would make passes longer than max_pass_ms. */
static void the_time_of_a_pass_includes_the_choice_of_tokens(void **state)
{
    (void)state;
    AUTO(engine_free) struct engine *e = engine_client_start(&options, &stats);
    watched = e->thread;
    atomic_store(&slow_choices, true);
    run_to_the_end(e, request_for(e, NULL, 1, 3));
    atomic_store(&slow_choices, false);
    engine_stop(e);
    assert_true(e->sched.row_us[0] >= SLOW_MS * 1000.0); // passes of one row
}

/* With so many choices that it pays. They have the same tokens as with one thread. */
static void the_threads_of_a_pass_choose_its_tokens(void **state)
{
    (void)state;
    static const char *const rules[] = {NULL, "typical"};
    uint64_t digest[ARRAY_LEN(rules)];
    for (unsigned n_threads = 1; n_threads <= 2; n_threads++) {
        struct verifier_options o = options;
        o.max_sequences = MANY_CHOICES;
        o.threads = (int)n_threads;
        AUTO(engine_free) struct engine *e = engine_client_start(&o, &stats);
        watched = e->thread;
        atomic_store(&n_chosen_elsewhere, 0);
        atomic_store(&slow_choices, true);
        run_to_the_end(e, request_for(e, NULL, MANY_CHOICES, 3));
        atomic_store(&slow_choices, false);
        assert_true((atomic_load(&n_chosen_elsewhere) > 0) == (n_threads > 1));
        for (size_t i = 0; i < ARRAY_LEN(rules); i++) {
            uint64_t now = run_to_the_end(e, request_for(e, rules[i], MANY_CHOICES, 60));
            assert_true(n_threads == 1 || now == digest[i]);
            digest[i] = now;
        }
        engine_stop(e);
    }
}

static void a_decoding_round_allocates_nothing(void **state)
{
    (void)state;
    AUTO(engine_free) struct engine *e = engine_client_start(&options, &stats);
    decode_without_allocating(e);
    engine_stop(e);
}

static void await_proposer(struct engine *e)
{
    struct drafts_stats s;
    for (int64_t until_us = clock_us() + 20000000;; poll(NULL, 0, 5)) {
        drafts_stats(engine_drafts(e), 0, &s);
        if (s.connected)
            return;
        assert_true(clock_us() < until_us);
    }
}

struct proposer_folder {
    char folder[40], path[PROPOSER_PATH_MAX];
};

/* Engines that are started later request drafts from a proposer at this path. */
static void propose_from(struct proposer_folder *f)
{
    char target[128];
    strcpy(f->folder, "/tmp/tandem-test-engine-XXXXXX");
    assert_non_null(mkdtemp(f->folder));
    snprintf(f->path, sizeof(f->path), "%s/p.sock", f->folder);
    snprintf(target, sizeof(target), "unix:%s", f->path);
    options.speculation =
        (struct speculation){.on = true, .policy = CONTROL_FIXED, .k = 5, .disable_batch_size = 8};
    assert_int_equal(speculation_add_target(&options.speculation, target, strlen(target)), 0);
    options.proposer_budget_ms = BUDGET_MS;
}

/* The proposer has ended, or ends before the process does. */
static void no_proposers(struct proposer_folder *f)
{
    options.speculation = (struct speculation){0};
    unlink(f->path);
    assert_int_equal(rmdir(f->folder), 0);
}

static void rounds_that_request_drafts_allocate_nothing(void **state)
{
    (void)state;
    struct proposer_folder f;
    propose_from(&f);
    struct liar *l = liar_start(f.path, LIE_NOTHING, N_VOCAB);
    AUTO(engine_free) struct engine *e = engine_client_start(&options, &stats);
    await_proposer(e);
    decode_without_allocating(e);
    assert_true(liar_n_rounds(l) > 0); // in time or not: two sequences hardly wait for a draft
    engine_stop(e);
    liar_stop(l);
    assert_string_equal(stats.proposers[0].name, "liar");
    no_proposers(&f);
}

/* ---- deadlines of drafts ---- */

/* Until the request has ended. */
static void run_request(struct engine *e, const char *rule)
{
    struct request *r = request_of(e, rule);
    assert_int_equal(engine_submit(e, r), 0);
    for (bool last = false; !last;) {
        struct event_batch *b = events_next(engine_events(e), -1);
        for (uint32_t i = 0; b && i < b->n; i++)
            last = b->v[i].last;
        if (b)
            events_return(engine_events(e), b);
    }
    request_drop(r); // the engine's hold
    request_drop(r);
}

static void check_deadline(enum lie lie, const char *rule)
{
    struct proposer_folder f;
    propose_from(&f);
    AUTO(liar_stop) struct liar *l = liar_start(f.path, lie, N_VOCAB);
    AUTO(engine_free) struct engine *e = engine_client_start(&options, &stats);
    await_proposer(e);
    longest_us = slept_us = 0;
    atomic_store(&watched_inbox, e->inbox);
    for (unsigned i = 0; i < 3; i++)
        run_request(e, rule);
    atomic_store(&watched_inbox, NULL);
    engine_stop(e);
    print_message("%s, %s: longest wait %.1f ms\n", lie_name(lie), rule, (double)longest_us / 1e3);
    assert_true(liar_n_rounds(l) > 0);
    assert_in_range(longest_us, 1, BUDGET_MS * 1000);
    no_proposers(&f);
}

static void no_round_begins_later_than_its_deadline(void **state)
{
    (void)state;
    check_deadline(LIE_NOTHING, "own-draw");
    check_deadline(LIE_LATE, "own-draw");
    check_deadline(LIE_SILENT, "own-draw");
    check_deadline(LIE_DRAWN_LATE, "rejection");
    check_deadline(LIE_SILENT, "rejection");
}

/* ---- giving way and coming back ---- */

static unsigned figure(const char *name)
{
    AUTO(buf_done) struct buf text = {0};
    char line[80];
    buf_init(&text, 1 << 20);
    metrics_render(&text);
    AUTO(mem_free) char *all = buf_take(&text);
    snprintf(line, sizeof(line), "\n%s ", name);
    const char *at = strstr(all, line);
    assert_non_null(at);
    return (unsigned)strtod(strchr(at, ' '), NULL);
}

/* Of all passes until now. */
static unsigned n_rows_run(void)
{
    return figure("tandem_engine_pass_rows_sum");
}

/* Those of a request without drafts that was never disturbed. */
static unsigned n_rows_of(unsigned n_prompt, unsigned n)
{
    return n_prompt + n - 1;
}

static void a_preempted_sequence_reruns_at_most_a_block(void **state)
{
    (void)state;
    struct engine_client a, other;
    options.max_sequences = 1;
    AUTO(engine_free) struct engine *e = engine_client_start(&options, &stats);
    unsigned before = n_rows_run();
    engine_client_submit(e, 1, 200, 100, &a);
    engine_client_take(e, &a, NULL, 10);
    engine_client_pause(e, &a, true);
    engine_client_submit(e, 2, 40, 20, &other);
    engine_client_finish(e, &other, &a);
    engine_client_pause(e, &a, false);
    engine_client_finish(e, &a, NULL);
    assert_int_equal(a.n, 100);
    unsigned base = n_rows_of(200, 100) + n_rows_of(40, 20);
    assert_in_range(n_rows_run() - before, base, base + KV_BLOCK);
    engine_stop(e);
    options.max_sequences = 4;
}

struct disk {
    char folder[40];
    struct verifier_options options;
};

/* One seat, few blocks and a disk. It is static: if a test fails, its engine continues to use
 * it. */
static struct disk *disk_new(void)
{
    struct disk *d = calloc(1, sizeof(*d));
    assert_non_null(d);
    strcpy(d->folder, "/tmp/tandem-test-engine-XXXXXX");
    assert_non_null(mkdtemp(d->folder));
    d->options = options;
    d->options.kv_disk = d->folder;
    d->options.kv_disk_size = 256;
    d->options.kv_disk_ttl = 1000;
    d->options.kv_mib = 1;
    d->options.max_sequences = 1;
    return d;
}

/* The engine has stopped. */
static void disk_free(struct disk *d)
{
    static const char *const files[] = {"", "-wal"};
    char name[128];
    for (unsigned i = 0; i < ARRAY_LEN(files); i++) {
        snprintf(name, sizeof(name), "%s/tandem-kv.sqlite%s", d->folder, files[i]);
        unlink(name);
    }
    assert_int_equal(rmdir(d->folder), 0);
    free(d);
}

/* Its client does not read, so that others take its seat and its blocks. Then the client reads, and
 * stops again while the blocks are being restored. */
static void the_engine_sleeps_while_a_paused_sequence_is_restored(void **state)
{
    (void)state;
    enum { PROMPT = 200, ANSWER = 300 };
    struct engine_client a, other, again;
    struct disk *d = disk_new();
    AUTO(engine_free) struct engine *e = engine_client_start(&d->options, &stats);
    atomic_store(&watched_inbox, e->inbox);
    unsigned before_rows = n_rows_run(), base = n_rows_of(PROMPT, ANSWER);
    engine_client_submit(e, 1, PROMPT, ANSWER, &a);
    engine_client_take(e, &a, NULL, 10);
    engine_client_pause(e, &a, true);
    for (unsigned i = 0; i < 6; i++) {
        engine_client_submit(e, 2 + i, 900, 20, &other);
        engine_client_finish(e, &other, &a);
        base += n_rows_of(900, 20);
    }
    while (kv_tier_counts(e->tier).n_written < 2 * PROMPT / KV_BLOCK ||
           kv_tier_counts(e->tier).n_waiting)
        poll(NULL, 0, 5);
    atomic_store(&hold_reads, true); // and with them what would wait to be written
    engine_client_pause(e, &a, false);
    while (!atomic_load(&in_read))
        poll(NULL, 0, 5);
    engine_client_pause(e, &a, true);
    must_sleep(e);
    unsigned n = atomic_load(&n_taken);
    atomic_store(&hold_reads, false);
    wait_until_more(&n_taken, n);
    must_sleep(e);
    engine_client_pause(e, &a, false);
    engine_client_take(e, &a, NULL, UINT32_MAX);
    assert_int_equal(a.n, ANSWER);
    assert_in_range(a.req->seqs[0]->n_restored, PROMPT / KV_BLOCK * KV_BLOCK, PROMPT + ANSWER);
    assert_in_range(n_rows_run() - before_rows, base, base + KV_BLOCK);
    engine_client_finish(e, &a, NULL);
    engine_client_submit(e, 1, PROMPT, ANSWER, &again);
    engine_client_finish(e, &again, NULL);
    assert_int_equal(again.n, a.n);
    assert_memory_equal(again.ids, a.ids, a.n * sizeof(*a.ids));
    engine_stop(e);
    disk_free(d);
}

static void an_idle_engine_counts_blocks_written_to_disk(void **state)
{
    (void)state;
    struct engine_client p;
    struct disk *d = disk_new();
    AUTO(engine_free) struct engine *e = engine_client_start(&d->options, &stats);
    atomic_store(&watched_inbox, e->inbox);
    atomic_store(&hold_writes, true);
    for (unsigned i = 0; i < 3; i++) { // one drives out the other
        engine_client_submit(e, 2 + i, 900, 20, &p);
        engine_client_finish(e, &p, NULL);
    }
    while (!atomic_load(&in_write))
        poll(NULL, 0, 5);
    wake(e);
    assert_in_range(atomic_load(&sleep_us), 1, 1000000);
    assert_true(figure("tandem_kv_disk_waiting_blocks") > 0);
    atomic_store(&hold_writes, false);
    for (int ms = 0; figure("tandem_kv_disk_waiting_blocks"); ms += 5) { // no thread wakes it
        assert_true(ms < 4 * HELD_MS);
        poll(NULL, 0, 5);
    }
    must_sleep(e);
    engine_stop(e);
    disk_free(d);
}

/* ---- speculation ---- */

/* n unreachable proposers. */
static struct speculation nowhere(const char *name, unsigned n)
{
    struct speculation s = {.on = true, .policy = CONTROL_FIXED, .k = 5, .disable_batch_size = 8};
    for (unsigned i = 0; i < n; i++) {
        char target[64];
        int len = snprintf(target, sizeof(target), "unix:/nowhere/%s%u", name, i);
        assert_int_equal(speculation_add_target(&s, target, (size_t)len), 0);
    }
    return s;
}

/* The engine reports these n proposers, and uses them. */
static void must_speculate(struct engine *e, const struct speculation *want)
{
    struct speculation s;
    struct drafts_stats p;
    unsigned n = 0;
    engine_speculation(e, &s);
    assert_int_equal(s.n_targets, want->n_targets);
    assert_string_equal(s.targets[0].target, want->targets[0].target);
    for (unsigned i = 0; i < DRAFT_MAX_PROPOSERS; i++) {
        if (!drafts_stats(engine_drafts(e), i, &p))
            continue;
        n++;
        assert_int_equal(strncmp(p.target, want->targets[0].target, strlen("unix:/nowhere/x")), 0);
    }
    assert_int_equal(n, want->n_targets);
}

static void a_change_is_applied_completely_or_not_at_all(void **state)
{
    (void)state;
    const struct speculation_change to = {SPECULATION_TARGETS | SPECULATION_ALLOWED,
                                          nowhere("b", 2)};
    struct speculation now;
    options.speculation = nowhere("a", 1);
    AUTO(engine_free) struct engine *e = engine_client_start(&options, &stats);
    must_speculate(e, &options.speculation);
    queue_close(e->inbox); // as good as full
    int err = engine_speculate(e, &to, &now);
    must_speculate(e, err < 0 ? &options.speculation : &to.to);
    engine_stop(e);
    options.speculation = (struct speculation){0};
}

/* The line that tells of the change has 511 bytes of them. */
static void a_long_list_of_targets_is_cut_in_the_log(void **state)
{
    (void)state;
    const struct speculation_change to = {
        SPECULATION_TARGETS | SPECULATION_ALLOWED,
        nowhere("a-target-with-a-long-path-of-40-letters-", DRAFT_MAX_PROPOSERS)};
    struct speculation now;
    AUTO(engine_free) struct engine *e = NULL;
    assert_int_equal(engine_new(&options, &stats, &e), 0);
    logged_begin();
    assert_int_equal(engine_speculate(e, &to, &now), 0);
    const char *text = strstr(logged_end(), " targets=");
    assert_non_null(text);
    assert_int_equal(strcspn(text + 1, " "), strlen("targets=") + 511);
    assert_int_equal(now.n_targets, DRAFT_MAX_PROPOSERS);
}

static void *exchange_all(void *arg)
{
    const struct speculation_change to = {SPECULATION_TARGETS | SPECULATION_ALLOWED,
                                          nowhere("b", DRAFT_MAX_PROPOSERS)};
    struct speculation now;
    assert_int_equal(engine_speculate(arg, &to, &now), 0);
    return NULL;
}

static void readers_of_the_settings_do_not_wait_for_a_change(void **state)
{
    (void)state;
    const struct speculation a = nowhere("a", DRAFT_MAX_PROPOSERS),
                             b = nowhere("b", DRAFT_MAX_PROPOSERS);
    struct speculation s;
    pthread_t thread;
    options.speculation = a;
    AUTO(engine_free) struct engine *e = engine_client_start(&options, &stats);
    atomic_store(&hold_joins, true); // places are given to others when those before have gone
    assert_int_equal(pthread_create(&thread, NULL, exchange_all, e), 0);
    while (!atomic_load(&in_join))
        poll(NULL, 0, 1);
    engine_speculation(e, &s);
    assert_string_equal(s.targets[0].target, a.targets[0].target);
    atomic_store(&hold_joins, false);
    pthread_join(thread, NULL);
    must_speculate(e, &b);
    engine_stop(e);
    options.speculation = (struct speculation){0};
}

static int init(void **state)
{
    (void)state;
    stats_init(&stats);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_time_of_a_pass_includes_the_choice_of_tokens),
        cmocka_unit_test(the_threads_of_a_pass_choose_its_tokens),
        cmocka_unit_test(a_decoding_round_allocates_nothing),
        cmocka_unit_test(rounds_that_request_drafts_allocate_nothing),
        cmocka_unit_test(no_round_begins_later_than_its_deadline),
        cmocka_unit_test(a_preempted_sequence_reruns_at_most_a_block),
        cmocka_unit_test(the_engine_sleeps_while_a_paused_sequence_is_restored),
        cmocka_unit_test(an_idle_engine_counts_blocks_written_to_disk),
        cmocka_unit_test(a_change_is_applied_completely_or_not_at_all),
        cmocka_unit_test(a_long_list_of_targets_is_cut_in_the_log),
        cmocka_unit_test(readers_of_the_settings_do_not_wait_for_a_change),
    };
    return cmocka_run_group_tests(tests, init, NULL);
}
