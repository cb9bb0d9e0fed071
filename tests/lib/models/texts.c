/* texts.c - real texts as tokens. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "lib/lib.h"
#include "lib/models/texts.h"

void texts_add(struct texts *t, uint32_t *tokens, uint32_t n, uint32_t n_prompt)
{
    if (t->n == t->capacity) {
        t->capacity = t->capacity ? 2 * t->capacity : 64;
        t->samples = realloc(t->samples, t->capacity * sizeof(*t->samples));
        assert_non_null(t->samples);
    }
    t->samples[t->n++] = (struct text_sample){tokens, n, n_prompt};
}

void texts_done(struct texts *t)
{
    for (unsigned i = 0; i < t->n; i++)
        free(t->samples[i].tokens);
    free(t->samples);
}

struct tok *texts_vocabulary(const char *path)
{
    struct checkpoint *file;
    struct tok *tok;
    if (checkpoint_open(path, &file) < 0)
        fail_msg("%s", fail_text());
    int r = tok_new(file, &tok);
    checkpoint_close(file);
    if (r < 0)
        fail_msg("%s", fail_text());
    return tok;
}

/* Adds a sample: the tokens of both texts, the second after the first. */
static void add_pair(struct texts *t, const struct tok *tok, const char *prompt, const char *answer)
{
    uint32_t *a, *b = NULL;
    size_t n_a, n_b = 0;
    if (tok_encode(tok, prompt, strlen(prompt), true, true, &a, &n_a) < 0 ||
        tok_encode(tok, answer, strlen(answer), true, false, &b, &n_b) < 0)
        fail_msg("%s", fail_text());
    a = realloc(a, (n_a + n_b + 1) * sizeof(*a));
    assert_non_null(a);
    memcpy(a + n_a, b, n_b * sizeof(*b));
    free(b);
    texts_add(t, a, (uint32_t)(n_a + n_b), (uint32_t)n_a);
}

static void add_document(struct texts *t, const struct tok *tok, const char *text)
{
    uint32_t *tokens;
    size_t n;
    if (tok_encode(tok, text, strlen(text), false, true, &tokens, &n) < 0)
        fail_msg("%s", fail_text());
    texts_add(t, tokens, (uint32_t)n, (uint32_t)n / 4);
}

static const char *field(const json_t *o, const char *key)
{
    const char *text = json_string_value(json_object_get(o, key));
    return text ? text : "";
}

static void add_chat(struct texts *t, const struct tok *tok, const json_t *chat)
{
    char prompt[4096];
    const json_t *ask = json_array_get(chat, 0), *tell = json_array_get(chat, 1);
    if (strcmp(json_string_value(json_array_get(ask, 0)), "user") != 0)
        return;
    snprintf(prompt, sizeof(prompt), "<|begin|><|user|>%s<|end|><|assistant|>",
             json_string_value(json_array_get(ask, 1)));
    add_pair(t, tok, prompt, json_string_value(json_array_get(tell, 1)));
}

static void add(struct texts *t, enum texts_kind kind, const struct tok *tok, const json_t *o)
{
    const char *category = field(o, "category");
    if (kind == TEXTS_GSM8K)
        add_pair(t, tok, field(o, "question"), field(o, "answer"));
    else if (kind == TEXTS_HUMANEVAL)
        add_pair(t, tok, field(o, "prompt"), field(o, "canonical_solution"));
    else if (kind == TEXTS_TALES)
        add_chat(t, tok, o);
    else if (strcmp(category, "summarization") == 0 || strcmp(category, "rag") == 0)
        add_document(t, tok, json_string_value(json_array_get(json_object_get(o, "turns"), 0)));
}

struct texts texts_load(enum texts_kind kind, const struct tok *tok, unsigned n_max)
{
    static const struct {
        const char *name, *path;
    } sources[TEXTS_KINDS] = {
        [TEXTS_GSM8K] = {"GSM8K answers", "data/prompts/gsm8k_test.jsonl"},
        [TEXTS_HUMANEVAL] = {"HumanEval bodies", "data/prompts/HumanEval.jsonl.gz"},
        [TEXTS_DOCUMENTS] = {"Spec-Bench passages", "data/prompts/spec_bench.jsonl"},
        [TEXTS_TALES] = {"held-out tales", "models/heldout.jsonl"},
    };
    struct texts t = {.name = sources[kind].name};
    const char *path = lib_shared(sources[kind].path);
    char command[4200];
    if (!path)
        return t;
    snprintf(command, sizeof(command), "gzip -dcf '%s'", path); // -f: plain files pass through
    FILE *f = popen(command, "r");
    assert_non_null(f);
    AUTO(mem_free) char *line = NULL;
    size_t size = 0;
    while (t.n < n_max && getline(&line, &size, f) > 0) {
        json_t *o = json_loads(line, 0, NULL);
        if (o)
            add(&t, kind, tok, o);
        json_decref(o);
    }
    pclose(f);
    return t;
}
