/* test_kv_restart.c - KV blocks on disk after a restart of the verifier. Restored blocks give the
 * same bits, and any problem with the folder is only a warning. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/mem.h"
#include "file/checkpoint.h"
#include "lib/oracles/figures.h"
#include "lib/lib.h"
#include "lib/rigs/services.h"
#include "lib/clients/topic.h"
#include "kv/kv.h"

#define MODEL SOURCE_DIR "/models/tales-1m-q8_0.gguf"
#define N_PROMPT 200
#define N_CACHED ((N_PROMPT - 1) / KV_BLOCK * KV_BLOCK)

static struct service cold; // without any cache
static struct rpc_client *cold_client;
static char folder[256], path[300];
static const char *model = MODEL;

static int start(void **state)
{
    (void)state;
    service_start(&cold, "verifier-svc",
                  (const char *[]){"--model", MODEL, "--no-prefix-cache", NULL});
    assert_int_equal(rpc_client_new(cold.target, NULL, &cold_client), 0);
    return 0;
}

static int stop(void **state)
{
    (void)state;
    rpc_client_free(cold_client);
    service_stop(&cold);
    return 0;
}

static int fresh_folder(void **state)
{
    (void)state;
    static unsigned n;
    snprintf(folder, sizeof(folder), "%s/kv-%u", service_dir(), n++);
    snprintf(path, sizeof(path), "%s/tandem-kv.sqlite", folder);
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    static const char *const tails[] = {"", "-wal", "-journal"};
    char name[320];
    for (unsigned i = 0; i < ARRAY_LEN(tails); i++) {
        snprintf(name, sizeof(name), "%s%s", path, tails[i]);
        unlink(name);
    }
    return rmdir(folder);
}

/* ---- a verifier with a KV folder ---- */

struct warm {
    struct service s;
    struct rpc_client *client;
};

static void warm_start_with(struct warm *w, const char *proposers, const char *kv_mib)
{
    memset(w, 0, sizeof(*w));
    service_start(&w->s, "verifier-svc",
                  (const char *[]){"--model", model, "--kv-disk", folder, "--kv-mib", kv_mib,
                                   "--policy", "fixed", "--k", "6",
                                   proposers ? "--proposers" : NULL, proposers, NULL});
    assert_int_equal(rpc_client_new(w->s.target, NULL, &w->client), 0);
    if (proposers)
        wait_proposers(w->client);
}

static void warm_start(struct warm *w)
{
    warm_start_with(w, NULL, "16");
}

static void warm_stop(struct warm *w)
{
    rpc_client_free(w->client);
    service_stop(&w->s);
}

/* Sends a request. The answer must equal that of a verifier without caches. Returns the number of
 * prompt tokens that came from a cache. */
static unsigned ask(struct warm *w, unsigned topic)
{
    struct topic t;
    AUTO(mem_free) struct answer *a = calloc(1, sizeof(*a)), *plain = calloc(1, sizeof(*plain));
    assert_true(a && plain);
    topic_init(&t, topic, N_PROMPT);
    generation_run(cold_client, &t.msg, plain);
    generation_run(w->client, &t.msg, a);
    topic_same(a, plain);
    return a->cached_tokens;
}

static void a_restart_forgets_no_prompt(void **state)
{
    (void)state;
    struct warm w;
    warm_start(&w);
    assert_int_equal(ask(&w, 1), 0);
    assert_int_equal(ask(&w, 2), 0);
    warm_stop(&w);
    warm_start(&w);
    assert_int_equal(ask(&w, 2), N_CACHED);
    assert_int_equal(ask(&w, 1), N_CACHED);
    assert_int_equal(ask(&w, 3), 0);
    warm_stop(&w);
}

/* A pool of 1 MiB does not hold all topics. */
static void evicted_blocks_are_restored(void **state)
{
    (void)state;
    enum { N = 30 };
    struct warm w;
    unsigned n_cached = 0;
    warm_start_with(&w, NULL, "1");
    for (unsigned topic = 0; topic < N; topic++)
        assert_int_equal(ask(&w, topic), 0);
    for (unsigned topic = 0; topic < N; topic++)
        n_cached += ask(&w, topic);
    assert_int_equal(n_cached, N * N_CACHED);
    wait_metric(w.client, "tandem_kv_disk_restored_blocks_total", N);
    assert_true(metric_of(w.client, "tandem_prefix_cache_hits_total{tier=\"disk\"}") * 2 >
                n_cached);
    assert_true(metric_of(w.client, "tandem_kv_disk_up") == 1);
    warm_stop(&w);
}

static void drafts_change_nothing(void **state)
{
    (void)state;
    static const char *const proposers[] = {"ngram", "draft"};
    for (unsigned i = 0; i < ARRAY_LEN(proposers); i++) {
        struct service p = {0};
        struct warm w;
        service_start(&p, "proposer-svc",
                      (const char *[]){"--proposer", proposers[i], "--draft-model", MODEL, NULL});
        warm_start_with(&w, p.target, "16");
        assert_int_equal(ask(&w, 10 + i), 0);
        warm_stop(&w);
        warm_start_with(&w, p.target, "16");
        assert_int_equal(ask(&w, 10 + i), N_CACHED);
        warm_stop(&w);
        service_stop(&p);
    }
}

static void a_killed_verifier_leaves_a_usable_folder(void **state)
{
    (void)state;
    struct warm w;
    warm_start_with(&w, NULL, "1");
    for (unsigned topic = 0; topic < 30; topic++)
        assert_int_equal(ask(&w, topic), 0);
    service_kill(&w.s);
    rpc_client_free(w.client);
    warm_start(&w);
    assert_int_equal(ask(&w, 0), N_CACHED); // written before the kill
    ask(&w, 29);
    warm_stop(&w);
}

/* Writes a copy of the model, with the time of the original. In the embedding of one token, which
 * no prompt here contains, `edit` is added to one weight. */
static void write_copy(const char *to, int edit)
{
    struct stat st;
    size_t len;
    AUTO(mem_free) char *file = lib_read(MODEL, &len);
    AUTO(checkpoint_close) struct checkpoint *c = NULL;
    assert_int_equal(checkpoint_open_memory(file, len, &c), 0);
    const struct checkpoint_tensor *t = checkpoint_find_name(c, "token_embd.weight");
    file[t->offset + 3001 * (t->bytes / t->shape[1]) + 21] += edit;
    FILE *f = fopen(to, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(file, 1, len, f), len);
    fclose(f);
    assert_int_equal(stat(MODEL, &st), 0);
    assert_int_equal(utimensat(AT_FDCWD, to, (struct timespec[]){st.st_atim, st.st_mtim}, 0), 0);
}

/* Prompt tokens that come from a cache; the answer is not compared. */
static unsigned cached(struct warm *w, unsigned topic)
{
    struct topic t;
    AUTO(mem_free) struct answer *a = calloc(1, sizeof(*a));
    topic_init(&t, topic, N_PROMPT);
    generation_run(w->client, &t.msg, a);
    return a->cached_tokens;
}

static void one_edited_row_is_another_model(void **state)
{
    (void)state;
    struct warm w;
    char other[300];
    snprintf(other, sizeof(other), "%s/other.gguf", service_dir());
    warm_start(&w);
    assert_int_equal(ask(&w, 1), 0);
    warm_stop(&w);
    write_copy(other, 1);
    model = other;
    warm_start(&w);
    assert_int_equal(cached(&w, 1), 0);
    warm_stop(&w);
    write_copy(other, 0); // a copy is the same model
    warm_start(&w);
    assert_int_equal(ask(&w, 1), N_CACHED);
    warm_stop(&w);
    model = MODEL;
    unlink(other);
}

static void a_second_verifier_runs_without_the_folder(void **state)
{
    (void)state;
    struct warm first, second;
    warm_start(&first);
    ask(&first, 1);
    warm_start(&second);
    assert_true(service_said(&second.s, "another process uses it; continuing without it"));
    assert_int_equal(ask(&second, 1), 0);
    assert_int_equal(ask(&second, 1), N_CACHED); // from memory
    warm_stop(&second);
    warm_stop(&first);
}

static void an_unreadable_file_is_replaced(void **state)
{
    (void)state;
    struct warm w;
    assert_int_equal(mkdir(folder, 0700), 0);
    FILE *f = fopen(path, "w");
    for (unsigned i = 0; i < 10000; i++)
        fputs("rubbish ", f);
    fclose(f);
    warm_start(&w);
    assert_true(service_said(&w.s, "is replaced by a new file"));
    assert_int_equal(ask(&w, 1), 0);
    warm_stop(&w);
    warm_start(&w);
    assert_int_equal(ask(&w, 1), N_CACHED);
    warm_stop(&w);
}

static void a_folder_that_others_can_reach_is_not_used(void **state)
{
    (void)state;
    static const mode_t modes[] = {0755, 0710, 0702};
    struct warm w;
    assert_int_equal(mkdir(folder, 0700), 0);
    for (unsigned i = 0; i < ARRAY_LEN(modes); i++) {
        assert_int_equal(chmod(folder, modes[i]), 0);
        warm_start(&w);
        assert_true(service_said(&w.s, "set mode 0700; continuing without it"));
        assert_int_equal(ask(&w, 1), 0);
        warm_stop(&w);
        assert_int_equal(access(path, F_OK), -1);
    }
    assert_int_equal(chmod(folder, 0700), 0);
    warm_start(&w);
    assert_false(service_said(&w.s, "continuing without it"));
    warm_stop(&w);
}

static void a_folder_of_another_user_is_not_used(void **state)
{
    (void)state;
    struct warm w;
    if (geteuid() != 0)
        lib_skip("only root can give a folder away");
    assert_int_equal(mkdir(folder, 0700), 0);
    assert_int_equal(chown(folder, 65534, 65534), 0);
    warm_start(&w);
    assert_true(service_said(&w.s, "belongs to user 65534, not to user 0 of this service"));
    assert_int_equal(ask(&w, 1), 0);
    warm_stop(&w);
    assert_int_equal(access(path, F_OK), -1);
}

static void a_folder_that_cannot_be_created_is_a_warning(void **state)
{
    (void)state;
    struct warm w;
    strcpy(folder, "/proc/tandem-kv");
    warm_start(&w);
    assert_true(service_said(&w.s, "continuing without it"));
    assert_int_equal(ask(&w, 1), 0);
    assert_int_equal(ask(&w, 1), N_CACHED);
    warm_stop(&w);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, fresh_folder, remove_folder)
    const struct CMUnitTest tests[] = {
        TEST(a_restart_forgets_no_prompt),
        TEST(evicted_blocks_are_restored),
        TEST(drafts_change_nothing),
        TEST(a_killed_verifier_leaves_a_usable_folder),
        TEST(one_edited_row_is_another_model),
        TEST(a_second_verifier_runs_without_the_folder),
        TEST(an_unreadable_file_is_replaced),
        TEST(a_folder_that_others_can_reach_is_not_used),
        TEST(a_folder_of_another_user_is_not_used),
        cmocka_unit_test_setup(a_folder_that_cannot_be_created_is_a_warning, fresh_folder),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
