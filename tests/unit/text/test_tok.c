/* test_tok.c - tokenizers over small vocabularies whose ids are known by hand. */
#include "lib/lib.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "base/err.h"
#include "base/rng.h"
#include "lib/models/small_vocab.h"
#include "text/tok.h"

enum how { PLAIN = 0, SPECIAL = 1, BOS = 2 };

static void encodes(const struct tok *t, const char *text, enum how how, size_t n,
                    const uint32_t *want)
{
    AUTO(mem_free) uint32_t *ids = NULL;
    size_t n_ids;
    assert_int_equal(tok_encode(t, text, strlen(text), how & SPECIAL, how & BOS, &ids, &n_ids), 0);
    for (size_t i = 0; i < n && i < n_ids; i++)
        if (ids[i] != want[i])
            fail_msg("%s: token %zu is %u, not %u", text, i, ids[i], want[i]);
    assert_int_equal(n_ids, n);
}
#define ENCODES(t, text, how, ...)                                                                 \
    encodes(t, text, how, sizeof((uint32_t[]){__VA_ARGS__}) / 4, (uint32_t[]){__VA_ARGS__})

static void decodes(const struct tok *t, bool special, const char *want, size_t n,
                    const uint32_t *ids)
{
    AUTO(mem_free) char *text = NULL;
    size_t len;
    assert_int_equal(tok_decode(t, ids, n, special, &text, &len), 0);
    assert_string_equal(text, want);
    assert_int_equal(len, strlen(want));
}
#define DECODES(t, special, want, ...)                                                             \
    decodes(t, special, want, sizeof((uint32_t[]){__VA_ARGS__}) / 4, (uint32_t[]){__VA_ARGS__})

/* ---- byte-level BPE ---- */

static void merges_are_made_in_the_order_of_their_ranks(void **state)
{
    AUTO(tok_free) struct tok *t = small_vocab_tok(SMALL_BPE, NULL);
    ENCODES(t, "abc", PLAIN, SMALL_ABC); // a b first, though b c would also fit
    ENCODES(t, "bc", PLAIN, SMALL_BC);
    ENCODES(t, "bcab", PLAIN, SMALL_BC, SMALL_AB);
    ENCODES(t, "hello", PLAIN, SMALL_HELLO);
    ENCODES(t, "lll", PLAIN, SMALL_LL, 'l'); // the leftmost of equals
    ENCODES(t, "\xc3\xa9", PLAIN, SMALL_E_ACUTE);
    (void)state;
}

static void words_do_not_merge_across_their_borders(void **state)
{
    AUTO(tok_free) struct tok *t = small_vocab_tok(SMALL_BPE, NULL);
    ENCODES(t, "a bc", PLAIN, 'a', ' ', SMALL_BC);
    ENCODES(t, "b ab", PLAIN, 'b', ' ', SMALL_AB); // "a b" ranks before " a"
    ENCODES(t, "b ac", PLAIN, 'b', SMALL_SPACE_A, 'c');
    ENCODES(t, "b  a", PLAIN, 'b', ' ', SMALL_SPACE_A);
    (void)state;
}

static void control_tokens_are_found_on_request_only(void **state)
{
    AUTO(tok_free) struct tok *t = small_vocab_tok(SMALL_BPE, NULL);
    ENCODES(t, "<|end|>", PLAIN, '<', '|', 'e', 'n', 'd', '|', '>');
    ENCODES(t, "<|end|>", SPECIAL, SMALL_END);
    ENCODES(t, "ab<|end|>ab", SPECIAL, SMALL_AB, SMALL_END, SMALL_AB);
    ENCODES(t, "<|en<|end|>", SPECIAL, '<', '|', 'e', 'n', SMALL_END);
    (void)state;
}

static void special_tokens_have_names(void **state)
{
    AUTO(tok_free) struct tok *t = small_vocab_tok(SMALL_BPE, NULL);
    assert_int_equal(tok_named(t, "<|end|>", 7), SMALL_END);
    assert_int_equal(tok_named(t, "<tool>", 6), SMALL_TOOL);
    assert_true(tok_named(t, "<|end|>x", 8) == UINT32_MAX);
    assert_true(tok_named(t, "<|end|", 6) == UINT32_MAX);
    assert_true(tok_named(t, "ab", 2) == UINT32_MAX); // a plain one
    assert_true(tok_named(t, "", 0) == UINT32_MAX);
    (void)state;
}

static void user_defined_tokens_are_always_found_the_longest_first(void **state)
{
    AUTO(tok_free) struct tok *t = small_vocab_tok(SMALL_BPE, NULL);
    ENCODES(t, "a<tool>b", PLAIN, 'a', SMALL_TOOL, 'b');
    ENCODES(t, "<tool>x<tool>", PLAIN, SMALL_TOOL_X, SMALL_TOOL);
    ENCODES(t, "<tool", PLAIN, '<', 't', 'o', 'o', 'l');
    (void)state;
}

static void bos_comes_once(void **state)
{
    AUTO(gguf_write_free) struct gguf_write *w = NULL;
    AUTO(checkpoint_close) struct checkpoint *g = NULL;
    AUTO(tok_free) struct tok *t = NULL, *plain = small_vocab_tok(SMALL_BPE, NULL);
    size_t len;
    assert_int_equal(gguf_write_new(&w), 0);
    small_vocab_keys(w, SMALL_BPE);
    gguf_write_int(w, "tokenizer.ggml.add_bos_token", GGUF_BOOL, 1);
    AUTO(mem_free) void *data = small_vocab_finish(w, &len);
    assert_int_equal(checkpoint_open_memory(data, len, &g), 0);
    assert_int_equal(tok_new(g, &t), 0);

    assert_true(tok_add_bos(t));
    ENCODES(t, "ab", BOS, SMALL_BEGIN, SMALL_AB);
    ENCODES(t, "ab", PLAIN, SMALL_AB);
    ENCODES(t, "<|begin|>ab", SPECIAL | BOS, SMALL_BEGIN, SMALL_AB);
    assert_false(tok_add_bos(plain)); // GPT-2's family has none unless the file says so
    ENCODES(plain, "ab", BOS, SMALL_AB);
    (void)state;
}

static void llama3_takes_whole_words_and_bos(void **state)
{
    AUTO(tok_free) struct tok *t = small_vocab_tok(SMALL_BPE, "llama-bpe");
    assert_true(tok_add_bos(t));
    ENCODES(t, "hello12345", PLAIN, SMALL_HELLO, '1', '2', '3', '4', '5');
    (void)state;
}

static void tokens_become_their_bytes(void **state)
{
    AUTO(tok_free) struct tok *t = small_vocab_tok(SMALL_BPE, NULL);
    DECODES(t, false, "hello \xc3\xa9", SMALL_HELLO, ' ', SMALL_E_ACUTE);
    DECODES(t, false, "ab", SMALL_BEGIN, SMALL_AB, SMALL_END, SMALL_PAD);
    DECODES(t, true, "<|begin|>ab<|end|>", SMALL_BEGIN, SMALL_AB, SMALL_END, SMALL_PAD);
    DECODES(t, false, "<tool>", SMALL_TOOL);
    DECODES(t, false, "\xc3", 0xc3); // half a character
    uint32_t id = SMALL_N;
    char *text;
    size_t len;
    assert_int_equal(tok_decode(t, &id, 1, false, &text, &len), -EINVAL);
    assert_int_equal(tok_bytes(t, SMALL_N, true).len, 0);
    (void)state;
}

static void random_text_comes_back(void **state)
{
    static const char *const pres[] = {
        "default", "gpt-2",        "llama-bpe",      "dbrx",        "qwen2",  "seed-coder",
        "qwen35",  "deepseek-llm", "deepseek-coder", "deepseek-v3", "falcon", "starcoder",
        "tekken",  "gpt-4o",       "bailingmoe",     "bloom",       "viking"};
    static const char *const parts[] = {"a",
                                        "b",
                                        " ",
                                        "  ",
                                        "\n",
                                        "\r\n",
                                        "\t",
                                        "1",
                                        "12",
                                        "hello",
                                        "'s",
                                        "'LL",
                                        "!",
                                        ".",
                                        "\xc3\xa9",
                                        "\xe4\xb8\xad",
                                        "\xf0\x9f\x98\x80",
                                        "\xcc\x81",
                                        "A",
                                        "aB",
                                        "\xe2\x80\xa8",
                                        "\xc2\xa0",
                                        "/",
                                        "\x01"};
    for (size_t p = 0; p < ARRAY_LEN(pres); p++) {
        AUTO(tok_free) struct tok *t = small_vocab_tok(SMALL_BPE, pres[p]);
        for (uint64_t seed = 0; seed < 50; seed++) {
            AUTO(mem_free) uint32_t *ids = NULL;
            AUTO(mem_free) char *back = NULL;
            char text[512] = "";
            size_t n, len;
            for (uint64_t i = 0; i < 40; i++)
                strcat(text, parts[rng_splitmix64(seed << 32 | i) % ARRAY_LEN(parts)]);
            assert_int_equal(tok_encode(t, text, strlen(text), true, false, &ids, &n), 0);
            assert_int_equal(tok_decode(t, ids, n, true, &back, &len), 0);
            assert_string_equal(back, text);
        }
    }
    (void)state;
}

static void an_empty_text_has_no_tokens(void **state)
{
    AUTO(tok_free) struct tok *t = small_vocab_tok(SMALL_BPE, NULL);
    AUTO(mem_free) uint32_t *ids = NULL;
    size_t n = 9;
    assert_int_equal(tok_encode(t, "", 0, true, true, &ids, &n), 0);
    assert_int_equal(n, 0);
    assert_non_null(ids);
    (void)state;
}

static void text_that_is_not_utf8_is_refused_with_its_place(void **state)
{
    AUTO(tok_free) struct tok *t = small_vocab_tok(SMALL_BPE, NULL);
    uint32_t *ids;
    size_t n;
    assert_int_equal(tok_encode(t, "abcd\xc3(", 6, false, false, &ids, &n), -EILSEQ);
    assert_non_null(strstr(fail_text(), "byte 4"));
    assert_int_equal(tok_encode(t, "a", (size_t)TOK_MAX_TEXT + 1, false, false, &ids, &n),
                     -EMSGSIZE);
    (void)state;
}

/* ---- SentencePiece ---- */

static void scores_decide_which_pair_joins_first(void **state)
{
    AUTO(tok_free) struct tok *t = small_vocab_tok(SMALL_SPM, NULL);
    ENCODES(t, "abc", PLAIN, SMALL_SPM_SPACE_A, SMALL_SPM_BC); // " a" and "bc" score above "ab"
    ENCODES(t, "b ab", PLAIN, SMALL_SPM_SPACE, SMALL_SPM_B, SMALL_SPM_SPACE_AB);
    (void)state;
}

static void unknown_characters_fall_back_to_bytes(void **state)
{
    AUTO(tok_free) struct tok *t = small_vocab_tok(SMALL_SPM, NULL);
    ENCODES(t, "a\xc3\xa9", PLAIN, SMALL_SPM_SPACE_A, SMALL_SPM_BYTES + 0xc3,
            SMALL_SPM_BYTES + 0xa9);
    DECODES(t, false, "a\xc3\xa9", SMALL_SPM_SPACE_A, SMALL_SPM_BYTES + 0xc3,
            SMALL_SPM_BYTES + 0xa9);
    (void)state;
}

static void a_leading_space_is_added_and_removed(void **state)
{
    AUTO(tok_free) struct tok *t = small_vocab_tok(SMALL_SPM, NULL);
    assert_true(tok_add_bos(t));
    ENCODES(t, "a", BOS, 1, SMALL_SPM_SPACE_A);
    ENCODES(t, " a", PLAIN, SMALL_SPM_SPACE, SMALL_SPM_SPACE_A);
    ENCODES(t, "a</s>a", SPECIAL, SMALL_SPM_SPACE_A, 2, SMALL_SPM_SPACE_A);
    ENCODES(t, "a<user>", PLAIN, SMALL_SPM_SPACE_A, SMALL_SPM_USER);
    DECODES(t, false, "a", 1, SMALL_SPM_SPACE_A);
    DECODES(t, false, " a", SMALL_SPM_SPACE, SMALL_SPM_SPACE_A);
    DECODES(t, false, "b a", SMALL_SPM_B, SMALL_SPM_SPACE_A);
    (void)state;
}

static void control_tokens_are_never_joined_from_text(void **state)
{
    AUTO(tok_free) struct tok *t = small_vocab_tok(SMALL_SPM, NULL);
    AUTO(mem_free) uint32_t *ids = NULL;
    size_t n;
    assert_int_equal(tok_encode(t, "</s><s><unk><0x0A>", 18, false, false, &ids, &n), 0);
    for (size_t i = 0; i < n; i++)
        assert_true(ids[i] >= SMALL_SPM_BYTES);
    (void)state;
}

/* Keys of a small vocabulary and one more. */
static int new_with(enum small_vocab which, const char *key, enum gguf_kind kind, int64_t value,
                    struct tok **ret)
{
    AUTO(gguf_write_free) struct gguf_write *w = NULL;
    AUTO(checkpoint_close) struct checkpoint *g = NULL;
    size_t len;
    assert_int_equal(gguf_write_new(&w), 0);
    small_vocab_keys(w, which);
    if (kind == GGUF_STRING)
        gguf_write_text(w, key, "strange", 7);
    else
        gguf_write_int(w, key, kind, value);
    AUTO(mem_free) void *data = small_vocab_finish(w, &len);
    assert_int_equal(checkpoint_open_memory(data, len, &g), 0);
    return tok_new(g, ret);
}

static void the_file_can_turn_off_the_leading_space(void **state)
{
    AUTO(tok_free) struct tok *t = NULL;
    assert_int_equal(new_with(SMALL_SPM, "tokenizer.ggml.add_space_prefix", GGUF_BOOL, 0, &t), 0);
    ENCODES(t, "ab", PLAIN, SMALL_SPM_AB);
    ENCODES(t, " ab", PLAIN, SMALL_SPM_SPACE_AB);
    (void)state;
}

static void the_file_can_turn_on_single_spaces(void **state)
{
    AUTO(tok_free) struct tok *t = NULL;
    assert_int_equal(
        new_with(SMALL_SPM, "tokenizer.ggml.remove_extra_whitespaces", GGUF_BOOL, 1, &t), 0);
    ENCODES(t, "  a   a ", PLAIN, SMALL_SPM_SPACE_A, SMALL_SPM_SPACE_A);
    (void)state;
}

/* ---- what the file says ---- */

static void ends_are_those_of_the_keys_and_of_the_names(void **state)
{
    AUTO(tok_free) struct tok *t = NULL;
    const uint32_t *ids;
    assert_int_equal(new_with(SMALL_BPE, "tokenizer.ggml.eot_token_id", GGUF_U32, 'z', &t), 0);
    assert_int_equal(tok_eos_ids(t, &ids), 2);
    assert_int_equal(ids[0], 'z');
    assert_int_equal(ids[1], SMALL_END);
    assert_true(tok_is_eos(t, 'z'));
    assert_false(tok_is_eos(t, SMALL_BEGIN));
    assert_int_equal(tok_bos(t), SMALL_BEGIN);
    assert_int_equal(tok_eos(t), SMALL_END);
    assert_int_equal(tok_kind_of(t, SMALL_TOOL), TOK_USER);
    assert_int_equal(tok_n_vocab(t), SMALL_N);
    (void)state;
}

/* Nothing looks through the vocabulary, or through all of a name, for each of them. */
static void many_tokens_may_have_one_name(void **state)
{
    enum { n = 1 << 18 };
    AUTO(gguf_write_free) struct gguf_write *w = NULL;
    AUTO(checkpoint_close) struct checkpoint *g = NULL;
    AUTO(tok_free) struct tok *t = NULL;
    struct span *texts = calloc(n, sizeof(*texts));
    int32_t *kinds = calloc(n, sizeof(*kinds));
    size_t len;
    for (uint32_t i = 0; i < n; i++) {
        texts[i] = (struct span){"<|end|>", 7};
        kinds[i] = TOK_CONTROL;
    }
    texts[n - 2] = (struct span){"<|return|>", 10};
    texts[n - 1] = (struct span){"<|call|>", 8};
    assert_int_equal(gguf_write_new(&w), 0);
    gguf_write_text(w, "tokenizer.ggml.model", "gpt2", 4);
    gguf_write_texts(w, "tokenizer.ggml.tokens", texts, n);
    gguf_write_array(w, "tokenizer.ggml.token_type", GGUF_I32, kinds, n);
    gguf_write_texts(w, "tokenizer.ggml.merges", NULL, 0);
    AUTO(mem_free) void *data = small_vocab_finish(w, &len);
    free(texts);
    free(kinds);
    assert_int_equal(checkpoint_open_memory(data, len, &g), 0);
    assert_int_equal(tok_new(g, &t), 0);
    const uint32_t *ids;
    assert_int_equal(tok_eos_ids(t, &ids), 2);
    assert_int_equal(ids[0], n - 2);
    assert_int_equal(ids[1], n - 1);
    static char text[7 * 20000 + 1]; // nor is each of them looked at where the text has the name
    AUTO(mem_free) uint32_t *found = NULL;
    size_t n_found;
    for (size_t i = 0; i < 20000; i++)
        memcpy(text + 7 * i, "<|end|>", 7);
    assert_int_equal(tok_encode(t, text, sizeof(text) - 1, true, false, &found, &n_found), 0);
    assert_int_equal(n_found, 20000);
    assert_int_equal(found[0], n - 3); // the last of that name
    (void)state;
}

static void ids_outside_the_vocabulary_are_refused(void **state)
{
    struct tok *t;
    assert_int_equal(new_with(SMALL_SPM, "tokenizer.ggml.bos_token_id", GGUF_U32, 9999, &t),
                     -EINVAL);
    assert_non_null(strstr(fail_text(), "9999"));
    (void)state;
}

static void an_unknown_pre_tokenizer_is_named(void **state)
{
    struct tok *t;
    assert_int_equal(new_with(SMALL_BPE, "tokenizer.ggml.pre", GGUF_STRING, 0, &t), -ENOTSUP);
    assert_non_null(strstr(fail_text(), "strange"));
    (void)state;
}

static void an_unknown_model_is_named(void **state)
{
    AUTO(gguf_write_free) struct gguf_write *w = NULL;
    AUTO(checkpoint_close) struct checkpoint *g = NULL;
    struct tok *t;
    size_t len;
    assert_int_equal(gguf_write_new(&w), 0);
    gguf_write_text(w, "tokenizer.ggml.model", "bert", 4);
    AUTO(mem_free) void *data = small_vocab_finish(w, &len);
    assert_int_equal(checkpoint_open_memory(data, len, &g), 0);
    assert_int_equal(tok_new(g, &t), -ENOTSUP);
    assert_non_null(strstr(fail_text(), "bert"));
    (void)state;
}

/* ---- size ---- */

#define MIB (1 << 20)
/* A quadratic step takes minutes for a mebibyte; at most 0.3 s were measured. */
#define SECONDS_PER_MIB 10

static void encodes_in_time(const struct tok *t, const char *unit)
{
    size_t n, unit_len = strlen(unit), len = lib_amount(MIB / 4, MIB / 4, MIB);
    len -= len % unit_len;
    AUTO(mem_free) char *text = malloc(len);
    AUTO(mem_free) uint32_t *ids = NULL;
    assert_non_null(text);
    for (size_t i = 0; i < len; i++)
        text[i] = unit[i % unit_len];
    clock_t from = clock(); // of this process alone: the machine may be busy
    assert_int_equal(tok_encode(t, text, len, true, false, &ids, &n), 0);
    assert_true(n > 0 && n <= len + 1);
    double seconds = (double)(clock() - from) / CLOCKS_PER_SEC;
    if (seconds > SECONDS_PER_MIB * (double)len / MIB)
        fail_msg("%zu bytes of \"%s\" took %.1f s", len, unit, seconds);
}

static void the_time_of_a_text_does_not_grow_with_its_square(void **state)
{
    static const char *const units[] = {"a", " ", "abc", "bca", " ab", "<|", "\xc3\xa9"};
    static const char *const pres[] = {"gpt-2", "llama-bpe", "qwen2", NULL};
    (void)state;
    for (size_t p = 0; p < ARRAY_LEN(pres); p++) {
        AUTO(tok_free) struct tok *t = small_vocab_tok(pres[p] ? SMALL_BPE : SMALL_SPM, pres[p]);
        for (size_t u = 0; u < ARRAY_LEN(units); u++)
            encodes_in_time(t, units[u]);
    }
}

/* ---- as a hardened service ---- */

#ifndef PR_SET_MDWE // of Linux 6.3
#define PR_SET_MDWE 65
#define PR_MDWE_REFUSE_EXEC_GAIN 1
#endif
#define NOT_HERE 77

/* The units have MemoryDenyWriteExecute=. */
static void no_code_from_now_on(void)
{
    if (prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0) < 0)
        _exit(NOT_HERE);
    if (mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) !=
        MAP_FAILED)
        _exit(EXIT_FAILURE);
}

/* A number that tells the ids of one text apart, by three pre-tokenizers. */
static uint64_t ids_in_short(void)
{
    static const char *const pres[] = {"gpt-2", "llama-bpe", "qwen2"};
    static const char text[] = "Hello, hello  ab 1234 abc's\n\n b a\t(bc) \xc3\xa9!";
    uint64_t sum = 0;
    for (size_t i = 0; i < ARRAY_LEN(pres); i++) {
        AUTO(tok_free) struct tok *t = small_vocab_tok(SMALL_BPE, pres[i]);
        AUTO(mem_free) uint32_t *ids = NULL;
        size_t n;
        assert_int_equal(tok_encode(t, text, strlen(text), false, false, &ids, &n), 0);
        for (size_t k = 0; k < n; k++)
            sum = rng_splitmix64(sum ^ ids[k]);
    }
    return sum;
}

static void ids_are_the_same_where_patterns_cannot_become_code(void **state)
{
    uint64_t want = ids_in_short();
    int status;
    pid_t child = fork();
    if (child == 0) {
        no_code_from_now_on();
        _exit(ids_in_short() == want ? EXIT_SUCCESS : EXIT_FAILURE);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == NOT_HERE)
        lib_skip("this kernel has no PR_SET_MDWE");
    assert_int_equal(status, 0);
    (void)state;
}

/* ---- digest ---- */

/* A byte-level vocabulary of two tokens and unused ones. */
struct two {
    const char *first, *second;
    enum tok_kind kind; // of the second
    unsigned n_pad;
    bool named;       // they are named as padding, not marked as unused
    bool between;     // they are between the two, not after them
    const char *role; // key that names the second as BOS or EOS; NULL: none
};

static uint64_t digest_of(struct two v)
{
    AUTO(gguf_write_free) struct gguf_write *w = NULL;
    AUTO(checkpoint_close) struct checkpoint *g = NULL;
    AUTO(tok_free) struct tok *t = NULL;
    struct span texts[8] = {{v.first, strlen(v.first)}};
    int32_t kinds[8] = {TOK_NORMAL};
    unsigned second = v.between ? 1 + v.n_pad : 1;
    size_t len;
    assert_int_equal(gguf_write_new(&w), 0);
    for (unsigned i = 1; i < 2 + v.n_pad; i++) {
        texts[i] = v.named ? (struct span){"[PAD77]", 7} : (struct span){"unused", 6};
        kinds[i] = v.named ? TOK_NORMAL : TOK_UNUSED;
    }
    texts[second] = (struct span){v.second, strlen(v.second)};
    kinds[second] = v.kind;
    gguf_write_text(w, "tokenizer.ggml.model", "gpt2", 4);
    gguf_write_texts(w, "tokenizer.ggml.tokens", texts, 2 + v.n_pad);
    gguf_write_array(w, "tokenizer.ggml.token_type", GGUF_I32, kinds, 2 + v.n_pad);
    gguf_write_texts(w, "tokenizer.ggml.merges", NULL, 0);
    if (v.role)
        gguf_write_int(w, v.role, GGUF_U32, 1);
    AUTO(mem_free) void *data = small_vocab_finish(w, &len);
    assert_int_equal(checkpoint_open_memory(data, len, &g), 0);
    assert_int_equal(tok_new(g, &t), 0);
    assert_int_equal(tok_n_used(t), second + 1);
    return tok_digest(t);
}

/* Proposers and verifiers compare digests, also those of different versions. */
static void the_digest_of_the_embedded_vocabulary_never_changes(void **state)
{
    AUTO(checkpoint_close) struct checkpoint *c = NULL;
    AUTO(tok_free) struct tok *t = NULL;
    assert_int_equal(checkpoint_open(SOURCE_DIR "/models/tales-1m-q8_0.gguf", &c), 0);
    assert_int_equal(tok_new(c, &t), 0);
    assert_true(tok_digest(t) == 0xef8e453d139a1427);
    (void)state;
}

static void digests_ignore_padding_and_nothing_else(void **state)
{
    static const struct two same[] = {{"a", "b", TOK_NORMAL, .n_pad = 3},
                                      {"a", "b", TOK_NORMAL, .n_pad = 5, .named = true}};
    static const struct two others[] = {
        {"a", "c", TOK_NORMAL, .n_pad = 0},
        {"a", "bb", TOK_NORMAL, .n_pad = 0},
        {"b", "a", TOK_NORMAL, .n_pad = 0},
        {"a", "b", TOK_NORMAL, .n_pad = 1, .between = true}, // the same tokens by other ids
        {"a", "b", TOK_CONTROL, .n_pad = 0},
        {"a", "b", TOK_NORMAL, .role = "tokenizer.ggml.bos_token_id"},
        {"a", "b", TOK_NORMAL, .role = "tokenizer.ggml.eos_token_id"},
    };
    uint64_t digest = digest_of((struct two){"a", "b", TOK_NORMAL, .n_pad = 0}),
             seen[ARRAY_LEN(others)];
    for (unsigned i = 0; i < ARRAY_LEN(same); i++)
        assert_true(digest == digest_of(same[i]));
    for (unsigned i = 0; i < ARRAY_LEN(others); i++) {
        seen[i] = digest_of(others[i]);
        assert_true(seen[i] != digest);
        for (unsigned k = 0; k < i; k++)
            assert_true(seen[i] != seen[k]);
    }
    (void)state;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merges_are_made_in_the_order_of_their_ranks),
        cmocka_unit_test(words_do_not_merge_across_their_borders),
        cmocka_unit_test(control_tokens_are_found_on_request_only),
        cmocka_unit_test(special_tokens_have_names),
        cmocka_unit_test(user_defined_tokens_are_always_found_the_longest_first),
        cmocka_unit_test(bos_comes_once),
        cmocka_unit_test(llama3_takes_whole_words_and_bos),
        cmocka_unit_test(tokens_become_their_bytes),
        cmocka_unit_test(random_text_comes_back),
        cmocka_unit_test(an_empty_text_has_no_tokens),
        cmocka_unit_test(text_that_is_not_utf8_is_refused_with_its_place),
        cmocka_unit_test(scores_decide_which_pair_joins_first),
        cmocka_unit_test(unknown_characters_fall_back_to_bytes),
        cmocka_unit_test(a_leading_space_is_added_and_removed),
        cmocka_unit_test(control_tokens_are_never_joined_from_text),
        cmocka_unit_test(the_file_can_turn_off_the_leading_space),
        cmocka_unit_test(the_file_can_turn_on_single_spaces),
        cmocka_unit_test(ends_are_those_of_the_keys_and_of_the_names),
        cmocka_unit_test(many_tokens_may_have_one_name),
        cmocka_unit_test(ids_outside_the_vocabulary_are_refused),
        cmocka_unit_test(an_unknown_pre_tokenizer_is_named),
        cmocka_unit_test(an_unknown_model_is_named),
        cmocka_unit_test(the_time_of_a_text_does_not_grow_with_its_square),
        cmocka_unit_test(ids_are_the_same_where_patterns_cannot_become_code),
        cmocka_unit_test(the_digest_of_the_embedded_vocabulary_never_changes),
        cmocka_unit_test(digests_ignore_padding_and_nothing_else),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
