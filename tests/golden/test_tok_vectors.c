/* test_tok_vectors.c - ids of real vocabularies equal those of the reference tokenizers. */
#include "lib/lib.h"
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/err.h"
#include "base/mem.h"
#include "text/tok.h"

static const struct {
    const char *file, *ids, *inp;
    bool byte_level;
} vocabs[] = {
    {"ggml-vocab-gpt-2.gguf", "ggml-vocab-gpt-2.ids.json", "ggml-vocab-gpt-2.gguf", true},
    {"ggml-vocab-starcoder.gguf", "ggml-vocab-starcoder.ids.json", "ggml-vocab-starcoder.gguf",
     true},
    {"ggml-vocab-falcon.gguf", "ggml-vocab-falcon.ids.json", "ggml-vocab-falcon.gguf", true},
    {"ggml-vocab-deepseek-coder.gguf", "ggml-vocab-deepseek-coder.ids.json",
     "ggml-vocab-deepseek-coder.gguf", true},
    {"ggml-vocab-deepseek-llm.gguf", "ggml-vocab-deepseek-llm.ids.json",
     "ggml-vocab-deepseek-llm.gguf", true},
    {"vocab-llama-bpe.gguf", "vocab-llama-bpe.ids.json", "ggml-vocab-llama-bpe.gguf", true},
    {"vocab-qwen2.gguf", "vocab-qwen2.ids.json", "ggml-vocab-qwen2.gguf", true},
    {"ggml-vocab-llama-spm.gguf", "ggml-vocab-llama-spm.ids.json", "ggml-vocab-llama-spm.gguf",
     false},
    {"ggml-vocab-phi-3.gguf", "ggml-vocab-phi-3.ids.json", "ggml-vocab-phi-3.gguf", false},
};

static unsigned n_checked, n_wrong, n_missing;

static struct tok *open_tok(const char *path)
{
    AUTO(checkpoint_close) struct checkpoint *g = NULL;
    struct tok *t = NULL;
    if (checkpoint_open(path, &g) < 0 || tok_new(g, &t) < 0)
        fail_msg("%s: %s", path, fail_text());
    return t;
}

static struct tok *open_vocab(size_t i)
{
    char path[256];
    snprintf(path, sizeof(path), "data/vocab/%s", vocabs[i].file);
    const char *full = lib_shared(path);
    n_missing += !full;
    return full ? open_tok(full) : NULL;
}

static void print_ids(const char *what, const uint32_t *ids, size_t n)
{
    printf("  %s:", what);
    for (size_t i = 0; i < n && i < 60; i++)
        printf(" %u", ids[i]);
    printf("\n");
}

static void check(const char *name, const struct tok *t, const char *text, size_t len, bool special,
                  const uint32_t *want, size_t n_want)
{
    AUTO(mem_free) uint32_t *ids = NULL;
    size_t n = 0;
    int r = tok_encode(t, text, len, special, false, &ids, &n);
    n_checked++;
    if (r == 0 && n == n_want && (n == 0 || memcmp(ids, want, n * sizeof(*ids)) == 0))
        return;
    n_wrong++;
    printf("%s: text of %zu bytes: %.200s\n", name, len, r < 0 ? fail_text() : text);
    print_ids("wanted", want, n_want);
    print_ids("got", ids, n);
}

static int start_counts(void **state)
{
    (void)state;
    n_checked = n_wrong = n_missing = 0;
    return 0;
}

/* A test without one of its vocabularies has passed only if the others are wrong nowhere; it is
 * skipped then. */
static void all_correct(void)
{
    printf("%u texts, %u wrong\n", n_checked, n_wrong);
    assert_int_equal(n_wrong, 0);
    if (n_missing > 0)
        skip(); // lib_shared() has printed the reasons
    assert_true(n_checked > 0);
}

/* ---- .inp and .out ---- */

static size_t numbers_of(char *line, uint32_t *ids, size_t max)
{
    size_t n = 0;
    for (char *end; n < max; line = end) {
        unsigned long id = strtoul(line, &end, 10);
        if (end == line)
            break;
        ids[n++] = (uint32_t)id;
    }
    return n;
}

static void check_pair(const char *name, const struct tok *t, char *inp, char *out)
{
    static const char mark[] = "\n__ggml_vocab_test__\n";
    uint32_t ids[1024];
    char *rest = out;
    for (char *text = inp, *end; text; text = end ? end + strlen(mark) : NULL) {
        end = strstr(text, mark);
        char *line = strsep(&rest, "\n");
        if (!line || (!end && !*text))
            break;
        size_t len = end ? (size_t)(end - text) : strlen(text);
        check(name, t, text, len, false, ids, numbers_of(line, ids, 1024));
    }
}

static void reference_files_of_test_texts_are_matched(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(vocabs); i++) {
        char path[256];
        size_t len;
        AUTO(tok_free) struct tok *t = open_vocab(i);
        if (!t)
            continue;
        snprintf(path, sizeof(path), "data/vocab/%s.inp", vocabs[i].inp);
        AUTO(mem_free) char *inp = lib_read(lib_shared(path), &len);
        snprintf(path, sizeof(path), "data/vocab/%s.out", vocabs[i].inp);
        AUTO(mem_free) char *out = lib_read(lib_shared(path), &len);
        check_pair(vocabs[i].file, t, inp, out);
    }
    all_correct();
}

/* ---- ids.json ---- */

static size_t ids_of(const json_t *array, uint32_t *ids, size_t max)
{
    size_t n = json_array_size(array);
    assert_true(n <= max);
    for (size_t i = 0; i < n; i++)
        ids[i] = (uint32_t)json_integer_value(json_array_get(array, i));
    return n;
}

static json_t *load(const char *path)
{
    json_error_t error;
    json_t *list = json_load_file(path, JSON_ALLOW_NUL, &error);
    if (!list)
        fail_msg("%s: %s", path, error.text);
    return list;
}

static void varied_texts_get_the_reference_ids(void **state)
{
    (void)state;
    for (size_t i = 0; i < ARRAY_LEN(vocabs); i++) {
        char path[256];
        uint32_t want[1024];
        size_t at;
        json_t *item;
        AUTO(tok_free) struct tok *t = open_vocab(i);
        if (!t)
            continue;
        snprintf(path, sizeof(path), "data/vocab/%s", vocabs[i].ids);
        json_t *list = load(lib_shared(path));
        json_array_foreach(list, at, item)
        {
            const json_t *text = json_object_get(item, "text");
            size_t n = ids_of(json_object_get(item, "ids"), want, 1024);
            check(vocabs[i].file, t, json_string_value(text), json_string_length(text), false, want,
                  n);
        }
        json_decref(list);
    }
    all_correct();
}

/* ---- and back ---- */

static void detokenizing_returns_the_text(void **state)
{
    (void)state;
    const char *path = lib_need_shared("data/vocab/strings.json");
    json_t *list = load(path), *item;
    size_t at;
    for (size_t i = 0; i < ARRAY_LEN(vocabs); i++) {
        AUTO(tok_free) struct tok *t = open_vocab(i);
        if (!t)
            continue;
        json_array_foreach(list, at, item)
        {
            AUTO(mem_free) uint32_t *ids = NULL;
            AUTO(mem_free) char *back = NULL;
            size_t n, len;
            const char *text = json_string_value(item);
            // U+2581 is a space to SentencePiece, and Falcon has no token for a vertical tab
            if (!vocabs[i].byte_level ? !!strstr(text, "\xe2\x96\x81") : !!strchr(text, '\v'))
                continue;
            assert_int_equal(tok_encode(t, text, json_string_length(item), false, false, &ids, &n),
                             0);
            assert_int_equal(tok_decode(t, ids, n, false, &back, &len), 0);
            assert_int_equal(len, json_string_length(item));
            assert_memory_equal(back, text, len);
            n_checked++;
        }
    }
    json_decref(list);
    all_correct();
}

/* ---- the embedded pair ---- */

static void prompts_of_the_embedded_models_get_their_golden_ids(void **state)
{
    (void)state;
    const char *path = lib_need_shared("models/golden.json"), *file;
    json_t *golden = load(path), *prompts, *item;
    json_object_foreach(json_object_get(golden, "models"), file, prompts)
    {
        char model[256];
        uint32_t want[1024];
        size_t at;
        snprintf(model, sizeof(model), "models/%s", file);
        AUTO(tok_free) struct tok *t = open_tok(lib_shared(model));
        json_array_foreach(prompts, at, item)
        {
            const char *text = json_string_value(json_object_get(item, "prompt"));
            size_t n = ids_of(json_object_get(item, "ids"), want, 1024);
            check(file, t, text, strlen(text), true, want, n);
        }
    }
    json_decref(golden);
    all_correct();
}

/* ---- size ---- */

/* With a quadratic step this test would take hours. */
static void a_megabyte_of_any_text_is_tokenized_in_time(void **state)
{
    static const char *const units[] = {
        "a",
        " ",
        "A",
        "aA",
        "ab",
        "\n",
        "\t",
        " \t",
        "\r\n",
        "1",
        "!",
        "'",
        "<",
        "<|",
        "\xc3\xa9",
        "\xe4\xb8\xad",
        "\xf0\x9f\x98\x80",
        "\xcc\x81",
        "\x01",
        " a",
        "the quick brown fox jumps. ",
        "\xe2\x80\x80",
        ("\xe4\xb8\xad"
         "A"),
        "\xe2\x96\x81",
    };
    AUTO(mem_free) char *text = malloc((1 << 20) + 32);
    for (size_t i = 0; i < ARRAY_LEN(vocabs); i++) {
        AUTO(tok_free) struct tok *t = open_vocab(i);
        for (size_t u = 0; t && u < ARRAY_LEN(units); u++) {
            AUTO(mem_free) uint32_t *ids = NULL;
            size_t n, len = 0, unit = strlen(units[u]), size = u < 2 ? 1 << 20 : 1 << 17;
            for (; len < size; len += unit)
                memcpy(text + len, units[u], unit);
            text[len++] = 'x';
            if (tok_encode(t, text, len, false, false, &ids, &n) < 0)
                fail_msg("%s, unit %zu: %s", vocabs[i].file, u, fail_text());
            assert_true(n > 0 && n <= len + 1);
            n_checked++;
        }
    }
    (void)state;
    all_correct();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(reference_files_of_test_texts_are_matched, start_counts),
        cmocka_unit_test_setup(varied_texts_get_the_reference_ids, start_counts),
        cmocka_unit_test_setup(detokenizing_returns_the_text, start_counts),
        cmocka_unit_test_setup(prompts_of_the_embedded_models_get_their_golden_ids, start_counts),
        cmocka_unit_test_setup(a_megabyte_of_any_text_is_tokenized_in_time, start_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
