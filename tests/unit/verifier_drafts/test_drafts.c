/* test_drafts.c - names of proposers in requests, the choice of a proposer, and its metrics. Faulty
 * streams are tested in tests/system/proposer. */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/err.h"
#include "base/metrics.h"
#include "base/rng.h"
#include "lib/lib.h"
#include "lib/clients/drafts_client.h"
#include "lib/clients/proposers.h"
#include "lib/rigs/logged.h"
#include "verifier-svc/drafts/drafts.h"

static void requests_with_the_old_name_of_the_cascade_log_one_warning(void **state)
{
    (void)state;
    struct drafts_config c = {.n_targets = 1,
                              .targets = {{.name = "cascade", .target = "unix:/nonexistent/p"}},
                              .n_vocab = 16,
                              .max_sequences = 1};
    AUTO(drafts_free) struct drafts *d = NULL;
    assert_int_equal(drafts_new(&c, &d), 0);
    logged_begin();
    int present = drafts_check_name(d, "cascade");
    int first = drafts_check_name(d, "chain"), second = drafts_check_name(d, "chain");
    int other = drafts_check_name(d, "ngram");
    const char *log = logged_end();
    assert_int_equal(present | first | second, 0);
    assert_int_equal(other, -EINVAL);
    assert_int_equal(logged_count(log, "is now called"), 1);
    assert_int_equal(
        logged_count(log, "speculative.proposer: chain is now called cascade; please use"), 1);
}

/* Whichever of the two comes first. */
static void a_proposer_with_the_old_name_is_the_one_that_is_meant(void **state)
{
    (void)state;
    for (unsigned old = 0; old < 2; old++) {
        struct drafts_config c = {.n_targets = 2, .n_vocab = 16, .max_sequences = 1};
        c.targets[old] = (struct drafts_target){.name = "chain", .target = "unix:/nonexistent/old"};
        c.targets[!old] =
            (struct drafts_target){.name = "cascade", .target = "unix:/nonexistent/new"};
        AUTO(drafts_free) struct drafts *d = NULL;
        assert_int_equal(drafts_new(&c, &d), 0);
        logged_begin();
        int found = drafts_check_name(d, "chain");
        const char *log = logged_end();
        assert_int_equal(found, 0);
        assert_int_equal(logged_count(log, "is now called"), 0);
    }
}

/* ---- with a connection ---- */

#define N_PEERS 2
#define WAIT_US 20000000

struct peers {
    char folder[40], targets[N_PEERS][128];
    struct liar *liars[N_PEERS];
    struct drafts_client *client;
};

/* The socket of "unix:PATH". */
static const char *path_of(const struct peers *w, unsigned i)
{
    return w->targets[i] + strlen("unix:");
}

/* Proposers that draft random tokens. */
static int connect_peers(void **state)
{
    struct peers *w = *state = calloc(1, sizeof(*w));
    assert_non_null(w);
    strcpy(w->folder, "/tmp/tandem-test-drafts-XXXXXX");
    assert_non_null(mkdtemp(w->folder));
    const char *targets[N_PEERS];
    for (unsigned i = 0; i < N_PEERS; i++) {
        snprintf(w->targets[i], sizeof(w->targets[i]), "unix:%s/p%u.sock", w->folder, i);
        w->liars[i] = liar_start(path_of(w, i), LIE_NOTHING, DRAFTS_CLIENT_VOCAB);
        targets[i] = w->targets[i];
    }
    w->client = drafts_client_new(targets, N_PEERS, 64);
    for (unsigned i = 0; i < N_PEERS; i++)
        assert_true(drafts_client_wait_usable(w->client, i, true));
    return 0;
}

static int disconnect_peers(void **state)
{
    struct peers *w = *state;
    drafts_client_free(w->client);
    for (unsigned i = 0; i < N_PEERS; i++) {
        liar_stop(w->liars[i]);
        unlink(path_of(w, i));
    }
    rmdir(w->folder);
    free(w);
    return 0;
}

/* A counter of a proposer; the same name and labels are the same series. */
static double counter_of(const char *name, const char *target, const char *reason)
{
    char label[160], labels[220];
    metrics_label(label, sizeof(label), "target", target, strlen(target));
    snprintf(labels, sizeof(labels), reason ? "%s,reason=\"%s\"" : "%s", label, reason);
    return metrics_value(metrics_counter(name, "", labels));
}

/* Whether it is counted as connected. */
static double up_of(const char *target)
{
    char label[160];
    metrics_label(label, sizeof(label), "target", target, strlen(target));
    return metrics_value(metrics_gauge("tandem_proposer_up", "", label));
}

/* Another thread counts the stream a moment after it is usable. */
static void must_be_up(const char *target)
{
    int64_t until_us = clock_us() + WAIT_US;
    while (up_of(target) != 1 && clock_us() < until_us)
        poll(NULL, 0, 1);
    assert_true(up_of(target) == 1);
}

static void metrics_are_those_of(struct drafts *d, unsigned i, const char *target)
{
    struct drafts_stats s;
    assert_true(drafts_stats(d, i, &s));
    assert_string_equal(s.target, target);
    assert_string_equal(s.name, "liar");
    assert_true(counter_of("tandem_proposer_rounds_total", target, NULL) == (double)s.rounds);
    assert_true(counter_of("tandem_proposer_drafts_total", target, NULL) == (double)s.drafts);
    assert_true(counter_of("tandem_proposer_draft_tokens_total", target, NULL) ==
                (double)s.draft_tokens);
    assert_true(counter_of("tandem_proposer_late_total", target, NULL) == (double)s.late);
    assert_true(counter_of("tandem_proposer_dropped_total", target, "stale") == (double)s.stale);
    assert_true(counter_of("tandem_proposer_dropped_total", target, "malformed") ==
                (double)s.malformed);
    must_be_up(target);
}

static void every_answer_is_counted_in_the_metrics(void **state)
{
    struct peers *w = *state;
    struct drafts *d = drafts_client_drafts(w->client);
    struct drafts_stats s;
    unsigned right;
    for (uint32_t i = 0; i < 5; i++)
        assert_int_equal(drafts_client_round(w->client, 0, 1, 3, 10 + i, 4, WAIT_US, &right), 3);
    drafts_accepted(d, 0, 7);
    drafts_accepted(d, 0, 2);
    metrics_are_those_of(d, 0, w->targets[0]);
    metrics_are_those_of(d, 1, w->targets[1]);
    assert_true(drafts_stats(d, 0, &s));
    assert_true(s.connected && !s.benched && s.rounds == 5 && s.drafts == 15 && s.late == 0);
    assert_true(s.draft_tokens >= 15 && s.draft_tokens <= 15 * 4 && s.accepted_tokens == 9);
    assert_true(s.stale == 0 && s.malformed == 0 && s.restarts == 0 && s.p90_us > 0);
    assert_true(drafts_stats(d, 1, &s));
    assert_true(s.rounds == 0 && s.drafts == 0 && s.accepted_tokens == 0);
    assert_false(drafts_stats(d, N_PEERS, &s));
}

static void a_benched_proposer_is_counted_once(void **state)
{
    struct peers *w = *state;
    struct drafts *d = drafts_client_drafts(w->client);
    struct drafts_stats s;
    unsigned right;
    liar_change(w->liars[0], LIE_OVERLONG);
    for (uint32_t base_len = 10; drafts_client_usable(w->client, 0); base_len++)
        drafts_client_round(w->client, 0, 1, 3, base_len, 4, 10000, &right);
    liar_change(w->liars[0], LIE_EMPTY);
    assert_true(drafts_client_wait_usable(w->client, 0, true));
    metrics_are_those_of(d, 0, w->targets[0]);
    assert_true(drafts_stats(d, 0, &s));
    assert_true(s.malformed > 0 && s.restarts == 1);
    assert_true(counter_of("tandem_proposer_benched_total", w->targets[0], NULL) == 1);
    assert_true(counter_of("tandem_proposer_benched_total", w->targets[1], NULL) == 0);
}

/* Of two with the same name, the one that knows the sequence. A new one is chosen by its number. */
static void a_sequence_stays_at_its_proposer(void **state)
{
    struct peers *w = *state;
    struct drafts *d = drafts_client_drafts(w->client);
    uint32_t k_max = 0;
    unsigned right, n[N_PEERS] = {0};
    for (uint64_t seq = 1; seq <= 20; seq++) {
        unsigned first = (unsigned)(rng_splitmix64(seq) % N_PEERS), other = 1 - first;
        n[first]++;
        assert_int_equal(drafts_pick(d, "", seq, 10, 0, &k_max), first);
        assert_int_equal(k_max, 64);
        assert_int_equal(drafts_pick(d, "liar", seq, 10, 0, &k_max), first);
        assert_int_equal(drafts_pick(d, NULL, seq, 10, 0, &k_max), first);
        assert_int_equal(drafts_pick(d, "nobody", seq, 10, 0, &k_max), -1);
        assert_int_equal(drafts_client_round(w->client, other, seq, 1, 10, 4, WAIT_US, &right), 1);
        assert_int_equal(drafts_pick(d, "liar", seq, 11, 0, &k_max), other);
        drafts_close(d, seq, true);
        assert_int_equal(drafts_pick(d, "liar", seq, 11, 0, &k_max), first);
    }
    assert_true(n[0] && n[1]);
    liar_stop(w->liars[1]);
    w->liars[1] = NULL;
    assert_true(drafts_client_wait_usable(w->client, 1, false));
    for (uint64_t seq = 100; seq < 110; seq++)
        assert_int_equal(drafts_pick(d, "", seq, 10, 0, &k_max), 0);
}

static void names_are_those_that_proposers_report(void **state)
{
    struct peers *w = *state;
    struct drafts *d = drafts_client_drafts(w->client);
    char name[DRAFTS_NAME_MAX];
    for (unsigned i = 0; i < DRAFT_MAX_PROPOSERS; i++) {
        drafts_name(d, i, name);
        assert_string_equal(name, i < N_PEERS ? "liar" : "");
    }
    struct drafts_target known = {0}, unknown = {.name = "x", .target = "unix:/x"};
    strcpy(known.target, w->targets[1]);
    drafts_name_of(d, &known, name);
    assert_string_equal(name, "liar");
    drafts_name_of(d, &unknown, name);
    assert_string_equal(name, "x");
    drafts_name_of(NULL, &known, name);
    assert_string_equal(name, "");
    assert_int_equal(drafts_check_name(d, "liar"), 0);
    assert_int_equal(drafts_check_name(d, ""), 0);
    assert_int_equal(drafts_check_name(d, "nobody"), -EINVAL);
    assert_string_equal(fail_text(), "speculative.proposer names none of this server's proposers: "
                                     "liar, liar");
    assert_int_equal(drafts_check_name(NULL, "nobody"), -EINVAL);
    assert_string_equal(fail_text(), "speculative.proposer names none of this server's proposers: "
                                     "it has none");
    struct drafts_target many[DRAFT_MAX_PROPOSERS + 1] = {{.name = ""}};
    assert_int_equal(drafts_set(d, many, DRAFT_MAX_PROPOSERS + 1), -EINVAL);
    assert_string_equal(fail_text(), "17 proposers are more than 16");
}

#define CONNECTED(f) cmocka_unit_test_setup_teardown(f, connect_peers, disconnect_peers)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_proposer_with_the_old_name_is_the_one_that_is_meant),
        cmocka_unit_test(requests_with_the_old_name_of_the_cascade_log_one_warning),
        CONNECTED(every_answer_is_counted_in_the_metrics),
        CONNECTED(a_benched_proposer_is_counted_once),
        CONNECTED(a_sequence_stays_at_its_proposer),
        CONNECTED(names_are_those_that_proposers_report),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
