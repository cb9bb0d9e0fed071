/* kv_tier_rig.c - a small KV pool with a KV tier on disk, and a prompt. */
#include "lib/rigs/kv_tier_rig.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "base/mem.h"
#include "lib/oracles/figures.h"
#include "lib/lib.h"

#define SPARE_BLOCKS 2
#define MAX_BLOCK_BYTES 4096

static const struct kv_layer layer = {.n_heads = 1, .k_dim = 4, .v_dim = 4};
static const struct kv_shape shape = {.n_layers = 1, .layers = &layer};
static const struct kv_root root = {NULL, 0};

struct kv_tier_rig *kv_tier_rig_new(uint32_t n_blocks)
{
    struct kv_tier_rig *t = calloc(1, sizeof(*t));
    assert_non_null(t);
    assert_true(kv_bytes_block(&shape) <= MAX_BLOCK_BYTES);
    t->n_blocks = n_blocks;
    t->tokens = calloc(n_blocks * KV_BLOCK + 1, sizeof(*t->tokens));
    assert_non_null(t->tokens);
    strcpy(t->folder, "/tmp/tandem-tier-XXXXXX");
    assert_non_null(mkdtemp(t->folder));
    assert_int_equal(queue_new(KV_DISK_FETCHES, &t->fetched), 0);
    t->options =
        (struct verifier_options){.kv_disk = t->folder, .kv_disk_size = 256, .kv_disk_ttl = 1000};
    t->req = (struct request){.prompt = t->tokens, .n_prompt = n_blocks * KV_BLOCK + 1};
    kv_tier_rig_fresh(t);
    return t;
}

static void free_pool(struct kv_tier_rig *t)
{
    if (t->loaded.run.kv)
        kv_seq_done(t->loaded.run.kv, &t->any);
    kv_free(t->loaded.run.kv);
}

void kv_tier_rig_free(struct kv_tier_rig *t)
{
    static const char *const suffixes[] = {"", "-wal", "-journal"};
    char name[128];
    kv_tier_rig_close(t);
    free_pool(t);
    for (unsigned i = 0; i < ARRAY_LEN(suffixes); i++) {
        snprintf(name, sizeof(name), "%s/tandem-kv.sqlite%s", t->folder, suffixes[i]);
        unlink(name);
    }
    assert_int_equal(rmdir(t->folder), 0);
    queue_free(t->fetched);
    free(t->tokens);
    free(t);
}

void kv_tier_rig_fresh(struct kv_tier_rig *t)
{
    uint32_t n = t->n_blocks + SPARE_BLOCKS;
    free_pool(t);
    t->loaded = (struct loaded_model){.kv_identity = 5, .run.context = n * KV_BLOCK};
    assert_int_equal(kv_new(&shape, n, &t->loaded.run.kv), 0);
    assert_int_equal(kv_open_index(t->loaded.run.kv, 5, kv_hash), 0);
    assert_int_equal(kv_seq_init(&t->any, n * KV_BLOCK), 0);
    t->n_prompts++;
    for (uint32_t i = 0; i < t->req.n_prompt; i++)
        t->tokens[i] = i * 1000 + t->n_prompts;
    t->seq =
        (struct seq){.req = &t->req, .id = 42, .n_prompt = t->req.n_prompt, .n = t->req.n_prompt};
}

static void fetched(void *owner, struct kv_disk_fetch *f)
{
    assert_int_equal(queue_push(owner, f), 0);
}

bool kv_tier_rig_open(struct kv_tier_rig *t)
{
    int err = kv_tier_new(&t->options, &t->loaded, fetched, t->fetched, &t->tier);
    assert_true(err == 0 || err == -ENOMEM);
    return err == 0;
}

void kv_tier_rig_close(struct kv_tier_rig *t)
{
    kv_tier_free(t->tier);
    t->tier = NULL;
}

/* Writes the data of block i of the prompt; returns its size. */
static size_t block_data(const struct kv_tier_rig *t, uint32_t i, uint8_t *data)
{
    memset(data, (int)(i * 37 + t->n_prompts), MAX_BLOCK_BYTES);
    return kv_bytes_block(&shape);
}

void kv_tier_rig_evict(struct kv_tier_rig *t)
{
    struct kv *kv = t->loaded.run.kv;
    uint8_t data[MAX_BLOCK_BYTES];
    assert_int_equal(kv_grow(kv, &t->any, t->n_blocks * KV_BLOCK), 0);
    for (uint32_t i = 0; i < t->n_blocks; i++) {
        block_data(t, i, data);
        kv_load(kv, t->any.blocks[i], data);
    }
    kv_enter(kv, &t->any, &root, t->tokens, t->n_blocks * KV_BLOCK);
    kv_release(kv, &t->any);
    assert_int_equal(kv_grow(kv, &t->any, (t->n_blocks + SPARE_BLOCKS) * KV_BLOCK), 0);
    kv_release(kv, &t->any);
    while (kv_tier_counts(t->tier).n_waiting)
        nap();
}

void kv_tier_rig_take(struct kv_tier_rig *t)
{
    kv_tier_take(t->tier, queue_pop(t->fetched, -1), &t->seq);
}

uint32_t kv_tier_rig_found(struct kv_tier_rig *t)
{
    struct kv *kv = t->loaded.run.kv;
    uint8_t data[MAX_BLOCK_BYTES], expected[MAX_BLOCK_BYTES];
    uint32_t n = kv_match(kv, &t->any, &root, t->tokens, t->n_blocks * KV_BLOCK) / KV_BLOCK;
    for (uint32_t i = 0; i < n; i++) {
        size_t bytes = block_data(t, i, expected);
        kv_save(kv, t->any.blocks[i], data);
        assert_memory_equal(data, expected, bytes);
    }
    kv_release(kv, &t->any);
    assert_true(kv_check(kv, NULL, 0));
    return n;
}
