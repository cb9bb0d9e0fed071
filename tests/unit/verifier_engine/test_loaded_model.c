/* test_loaded_model.c - what a loaded model reports, and the identity of its K and V. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "lib/lib.h"
#include "lib/clients/engine_client.h"

#define MODEL SOURCE_DIR "/models/tales-1m-q8_0.gguf"

static struct verifier_options options_of(enum kernel_kv kv)
{
    return (struct verifier_options){.model = MODEL,
                                     .kv = kv,
                                     .max_sequences = 3,
                                     .queue_length = 4,
                                     .max_batch_rows = 50,
                                     .prefill_chunk = 20,
                                     .max_pass_ms = 70,
                                     .threads = 1,
                                     .prefix_cache = true,
                                     .kv_disk = ""};
}

static bool no_progress(void *arg, float done)
{
    (void)arg;
    return done >= 0;
}

static struct loaded_model *load(const struct verifier_options *o)
{
    struct loaded_model *m = NULL;
    assert_int_equal(loaded_model_open(o, &m), 0);
    assert_int_equal(loaded_model_load(m, o, no_progress, NULL), 0);
    return m;
}

static void a_model_reports_its_file(void **state)
{
    (void)state;
    struct verifier_options o = options_of(KERNEL_KV_INT8);
    struct stat st;
    AUTO(loaded_model_free) struct loaded_model *m = load(&o);
    assert_int_equal(stat(MODEL, &st), 0);
    assert_string_equal(m->name, "tales-1m-q8_0");
    assert_string_equal(m->weight_type, "Q8_0");
    assert_int_equal(m->created, st.st_mtime);
    assert_true(m->template_len > 10 && memcmp(m->chat_template, "{", 1) == 0);
    assert_int_equal(strlen(m->fingerprint), 3 + 16);
    assert_memory_equal(m->fingerprint, "fp_", 3);
    assert_true(m->run.context == 1024 && tok_n_vocab(m->tok) == 4096);
    o.name = "another";
    o.context = 500;
    AUTO(loaded_model_free) struct loaded_model *named = load(&o);
    assert_string_equal(named->name, "another");
    assert_int_equal(named->run.context, 500);
    struct loaded_model *none = NULL;
    o.model = SOURCE_DIR "/models/none.gguf";
    assert_true(loaded_model_open(&o, &none) < 0);
    assert_null(none);
}

/* The same for each load, and another one for each type of K and V. */
static void the_identity_depends_on_the_type_of_kv(void **state)
{
    (void)state;
    const enum kernel_kv types[] = {KERNEL_KV_INT8, KERNEL_KV_F16, KERNEL_KV_F32, KERNEL_KV_INT8};
    uint64_t identities[4];
    char fingerprints[4][32];
    for (unsigned i = 0; i < 4; i++) {
        struct verifier_options o = options_of(types[i]);
        o.context = 100 + (int64_t)i; // changes no bit
        AUTO(loaded_model_free) struct loaded_model *m = load(&o);
        identities[i] = m->kv_identity;
        snprintf(fingerprints[i], sizeof(fingerprints[i]), "%s", m->fingerprint);
    }
    for (unsigned i = 0; i < 4; i++) {
        for (unsigned k = 0; k < i; k++) {
            bool same = i == 3 && k == 0;
            assert_int_equal(identities[i] == identities[k], same);
            assert_int_equal(strcmp(fingerprints[i], fingerprints[k]) == 0, same);
        }
    }
}

/* Writes a copy of the model in which byte `at` after the key differs. */
static void write_edited(char path[], const char *key, size_t at)
{
    size_t len;
    char *file = lib_read(MODEL, &len);
    char *found = memmem(file, len, key, strlen(key));
    assert_non_null(found);
    found[strlen(key) + at] ^= 1;
    int fd = mkstemps(path, strlen(".gguf"));
    assert_int_equal(write(fd, file, len), len);
    close(fd);
    free(file);
}

/* The chat template changes no weight and no token. */
static void the_fingerprint_covers_the_head_of_the_file(void **state)
{
    (void)state;
    char path[] = "/tmp/tandem-test-head-XXXXXX.gguf";
    write_edited(path, "tokenizer.chat_template", 4 + 8); // after its type and its length
    struct verifier_options o = options_of(KERNEL_KV_INT8);
    AUTO(loaded_model_free) struct loaded_model *m = load(&o);
    o.model = path;
    AUTO(loaded_model_free) struct loaded_model *edited = load(&o);
    unlink(path);
    assert_true(m->chat_template[0] != edited->chat_template[0]);
    assert_true(m->kv_identity == edited->kv_identity);
    assert_string_not_equal(m->fingerprint, edited->fingerprint);
}

static void without_prefix_cache_nothing_is_found_again(void **state)
{
    (void)state;
    static const uint32_t tokens[2 * KV_BLOCK];
    const struct kv_root root = {NULL, 0};
    for (int on = 0; on < 2; on++) {
        struct verifier_options o = options_of(KERNEL_KV_INT8);
        o.prefix_cache = on;
        AUTO(loaded_model_free) struct loaded_model *m = load(&o);
        struct kv_seq first, again;
        assert_int_equal(kv_seq_init(&first, 100), 0);
        assert_int_equal(kv_seq_init(&again, 100), 0);
        assert_int_equal(kv_grow(m->run.kv, &first, 2 * KV_BLOCK), 0);
        kv_enter(m->run.kv, &first, &root, tokens, 2 * KV_BLOCK);
        assert_int_equal(kv_match(m->run.kv, &again, &root, tokens, 2 * KV_BLOCK),
                         on ? 2 * KV_BLOCK : 0);
        kv_seq_done(m->run.kv, &first);
        kv_seq_done(m->run.kv, &again);
    }
}

static void an_engine_has_the_limits_of_its_settings(void **state)
{
    (void)state;
    static struct stats stats;
    stats_init(&stats);
    struct verifier_options o = options_of(KERNEL_KV_INT8);
    AUTO(engine_free) struct engine *e = engine_client_start(&o, &stats);
    const struct sched_limits *l = &e->sched.limits;
    assert_true(l->max_rows == 50 && l->prefill_chunk == 20 && l->max_pass_us == 70000);
    assert_int_equal(l->max_logits, engine_loaded_model(e)->run.max_logits);
    assert_true(l->max_logits >= 3 && e->max_started == 3 + 4);
    assert_int_equal(e->running.max, 3);
    assert_int_equal(e->waiting.max, 2 * (3 + 4) + 2 * 4 + engine_max_resumed(&o));
    assert_int_equal(drafts_stats(engine_drafts(e), 0, &(struct drafts_stats){0}), false);
    assert_true(pass_time_us(&e->control.pass_time, &(struct pass_time_work){.rows = 1}) > 0);
    float progress = 0;
    assert_int_equal(engine_state(e, &progress), ENGINE_READY);
    assert_true(progress == 1);
    engine_drain(e);
    assert_int_equal(engine_state(e, NULL), ENGINE_DRAINING);
    engine_stop(e);
    assert_int_equal(engine_state(e, NULL), ENGINE_ENDED);
}

static void a_model_that_cannot_be_loaded_has_a_reason(void **state)
{
    (void)state;
    static struct stats stats;
    stats_init(&stats);
    struct verifier_options o = options_of(KERNEL_KV_INT8);
    o.model = SOURCE_DIR "/models/none.gguf";
    struct engine *e = NULL;
    assert_int_equal(engine_new(&o, &stats, &e), 0);
    assert_int_equal(engine_start(e), 0);
    engine_stop(e);
    assert_int_equal(engine_state(e, NULL), ENGINE_FAILED);
    assert_non_null(strstr(engine_error(e), "none.gguf"));
    assert_null(engine_loaded_model(e));
    engine_free(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_model_reports_its_file),
        cmocka_unit_test(the_identity_depends_on_the_type_of_kv),
        cmocka_unit_test(the_fingerprint_covers_the_head_of_the_file),
        cmocka_unit_test(without_prefix_cache_nothing_is_found_again),
        cmocka_unit_test(an_engine_has_the_limits_of_its_settings),
        cmocka_unit_test(a_model_that_cannot_be_loaded_has_a_reason),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
