/* snapshots.c - when a snapshot is due. */
#include "base/minmax.h"
#include "verifier-svc/engine/snapshots.h"

static bool has_snapshots(const struct engine *e)
{
    return e->loaded->run.n_states && e->options->prefix_cache;
}

/* The last block of the prompt that another prompt can share; 0: it is too short. */
static uint32_t prompt_end(const struct seq *s)
{
    const uint32_t end = (s->n_prompt - 1) / KV_BLOCK * KV_BLOCK;
    return end >= SNAPSHOT_MIN_ROWS ? end : 0;
}

uint32_t snapshots_rows_left(const struct engine *e, const struct seq *s)
{
    const uint32_t len = s->kv.len, next = (len / SNAPSHOT_ROWS + 1) * SNAPSHOT_ROWS;
    if (!has_snapshots(e))
        return UINT32_MAX;
    return prompt_end(s) > len ? min_u32(prompt_end(s), next) - len : next - len;
}

void snapshots_keep(struct engine *e, struct seq *s)
{
    const uint32_t len = s->kv.state_len;
    const bool is_end = len == prompt_end(s);
    const bool due = is_end || len / SNAPSHOT_ROWS > s->n_snapshot / SNAPSHOT_ROWS;
    if (!s->kv.has_state || !has_snapshots(e) || !due || !len || len % KV_BLOCK)
        return;
    if (!kv_snapshot(e->loaded->run.kv, &s->kv, is_end ? KV_REPLACE_OLDEST : KV_REPLACE_OWN,
                     s->n_own_snapshot))
        return;
    s->n_snapshot = len;
    s->n_own_snapshot = is_end ? 0 : len;
}

uint32_t snapshots_common(const struct engine *e, const struct seq *r, uint32_t n)
{
    if (!e->loaded->run.n_states)
        return n / KV_BLOCK * KV_BLOCK;
    const uint32_t end = prompt_end(r);
    return max_u32(n / SNAPSHOT_ROWS * SNAPSHOT_ROWS, end <= n ? end : 0);
}
