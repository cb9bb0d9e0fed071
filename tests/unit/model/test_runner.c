/* test_runner.c - the memory that a model and its passes are expected to need. */
#include <stdlib.h>
#include "base/err.h"
#include "lib/lib.h"
#include "lib/models/tiny.h"
#include "model/runner.h"

#define MAX_ROWS 32

static struct runner_memory planned_memory(uint32_t context, uint32_t max_pass_seqs,
                                           uint32_t *ret_context)
{
    const struct tiny t = {.arch = "llama", .type = KERNEL_Q8_0, .head_type = KERNEL_Q8_0};
    const struct runner_options opt = {.threads = 1,
                                       .quantise = -1,
                                       .context = context,
                                       .kv_mib = 1,
                                       .max_sequences = 4,
                                       .max_rows = MAX_ROWS,
                                       .max_pass_seqs = max_pass_seqs,
                                       .min_logits = 1,
                                       .n_vocab = TINY_VOCAB};
    struct runner r;
    AUTO(checkpoint_close) struct checkpoint *c = NULL;
    size_t len;
    AUTO(mem_free) char *file = tiny_write(&t, &len);
    assert_int_equal(checkpoint_open_memory(file, len, &c), 0);
    if (runner_plan(&r, c, &opt) < 0)
        fail_msg("%s", fail_text());
    struct runner_memory m = r.memory;
    *ret_context = r.context;
    runner_done(&r);
    return m;
}

static void must_count_the_plan(uint32_t context, uint32_t expected_context)
{
    uint32_t actual, rows = expected_context + DRAFT_MAX_NODES;
    size_t few = planned_memory(context, 1, &actual).activations;
    assert_int_equal(actual, expected_context);
    size_t many = planned_memory(context, 1000, &actual).activations;
    assert_int_equal(many - few,
                     pass_plan_bytes(MAX_ROWS, 1000, rows) - pass_plan_bytes(MAX_ROWS, 1, rows));
}

static void the_plan_of_a_pass_counts_among_the_activations(void **state)
{
    (void)state;
    must_count_the_plan(100, 100);
}

static void the_plan_is_counted_for_the_context_that_fits(void **state)
{
    (void)state;
    uint32_t fits;
    planned_memory(1u << 20, 1, &fits);
    assert_in_range(fits, KV_BLOCK, 1u << 19);
    must_count_the_plan(1u << 20, fits);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_plan_of_a_pass_counts_among_the_activations),
        cmocka_unit_test(the_plan_is_counted_for_the_context_that_fits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
