/* pretok.c - the patterns of pre-tokenizers, and cutting text by them.
 *
 * The time of every pattern is linear in the text: an alternative that fails has read at most the
 * bytes that the next one takes. A new pattern must keep this, or a hostile text makes it slow. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"
#include "text/pretok.h"

#define MATCH_LIMIT 200000000 // steps of the interpreter in one match; a piece has at most 8 Mi
#define HEAP_LIMIT 262144     // KiB

/* ---- patterns ---- */

#define CONTRACTIONS "'(?:[sStTmMdD]|[rR][eE]|[vV][eE]|[lL][lL])"
#define PUNCT "!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED(more)                                                                                \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" more "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER    \
    "*" more
#define SPACES "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"

#define GPT2 "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)"
#define LLAMA3(digits, symbols)                                                                    \
    CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits "|" symbols "|" SPACES
#define SYMBOLS " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
#define DEEPSEEK3                                                                                  \
    "[" PUNCT                                                                                      \
    "][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|" SPACES
#define CJK "[\\x{4e00}-\\x{9fa5}\\x{0800}-\\x{4e00}\\x{ac00}-\\x{d7ff}]+"
#define BLOOM " ?[^(\\s|.,!?\\x{2026}\\x{3002}\\x{ff0c}\\x{3001}\\x{0964}\\x{06d4}\\x{060c})]+"

/* Cased letters of Unicode 11, as deepseek-llm's tokenizer.json lists them. */
#define DEEPSEEK_LETTERS                                                                           \
    "A-Za-z\\x{b5}\\x{c0}-\\x{d6}\\x{d8}-\\x{f6}\\x{f8}-\\x{1ba}\\x{1bc}-\\x{1bf}"                 \
    "\\x{1c4}-\\x{293}\\x{295}-\\x{2af}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37b}-\\x{37d}\\x{37f}" \
    "\\x{386}\\x{388}-\\x{38a}\\x{38c}\\x{38e}-\\x{3a1}\\x{3a3}-\\x{3f5}\\x{3f7}-\\x{481}"         \
    "\\x{48a}-\\x{52f}\\x{531}-\\x{556}\\x{10a0}-\\x{10c5}\\x{13a0}-\\x{13f5}\\x{13f8}-\\x{13fd}"  \
    "\\x{1c90}-\\x{1cba}\\x{1cbd}-\\x{1cbf}\\x{1d00}-\\x{1d2b}\\x{1d6b}-\\x{1d77}"                 \
    "\\x{1d79}-\\x{1d9a}\\x{1e00}-\\x{1f15}\\x{1f18}-\\x{1f1d}\\x{1f20}-\\x{1f45}"                 \
    "\\x{1f48}-\\x{1f4d}\\x{1f50}-\\x{1f57}\\x{1f59}\\x{1f5b}\\x{1f5d}\\x{1f5f}-\\x{1f7d}"         \
    "\\x{1f80}-\\x{1fb4}\\x{1fb6}-\\x{1fbc}\\x{1fbe}\\x{1fc2}-\\x{1fc4}\\x{1fc6}-\\x{1fcc}"        \
    "\\x{1fd0}-\\x{1fd3}\\x{1fd6}-\\x{1fdb}\\x{1fe0}-\\x{1fec}\\x{1ff2}-\\x{1ff4}"                 \
    "\\x{1ff6}-\\x{1ffc}\\x{2102}\\x{2107}\\x{210a}-\\x{2113}\\x{2115}\\x{2119}-\\x{211d}"         \
    "\\x{2124}\\x{2126}\\x{2128}\\x{212a}-\\x{212d}\\x{212f}-\\x{2134}\\x{2139}\\x{213c}-\\x{"     \
    "213f}"                                                                                        \
    "\\x{2145}-\\x{2149}\\x{214e}\\x{2183}\\x{2184}\\x{2c00}-\\x{2c7b}\\x{2c7e}-\\x{2ce4}"         \
    "\\x{2ceb}-\\x{2cee}\\x{2cf2}\\x{2cf3}\\x{a640}-\\x{a66d}\\x{a680}-\\x{a69b}"                  \
    "\\x{a722}-\\x{a76f}\\x{a771}-\\x{a787}\\x{a78b}-\\x{a78e}\\x{ab70}-\\x{abbf}"                 \
    "\\x{fb00}-\\x{fb06}\\x{fb13}-\\x{fb17}\\x{ff21}-\\x{ff3a}\\x{ff41}-\\x{ff5a}"                 \
    "\\x{10400}-\\x{1044f}\\x{104b0}-\\x{104d3}\\x{104d8}-\\x{104fb}\\x{10c80}-\\x{10cb2}"         \
    "\\x{10cc0}-\\x{10cf2}\\x{118a0}-\\x{118df}\\x{1e900}-\\x{1e943}"

enum flags { WHOLE_WORDS = 1, ADD_BOS = 2 };

static const struct family {
    const char *names; // between spaces
    unsigned flags;
    const char *patterns[PRETOK_MAX_PATTERNS];
} families[] = {
    {" default ", 0, {"[\\p{P}$+<=>^~|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"}},
    {" gpt-2 phi-2 mpt olmo jais trillion granite-docling gigachat a.x-4.0 mellum exaone4 ",
     0,
     {GPT2}},
    {" llama-bpe llama3 llama-v3 falcon3 falcon-h1 pixtral midm-2.0 lfm2 ",
     WHOLE_WORDS | ADD_BOS,
     {LLAMA3("\\p{N}{1,3}", SYMBOLS)}},
    {" dbrx smaug-bpe glm4 chatglm-bpe ", 0, {LLAMA3("\\p{N}{1,3}", SYMBOLS)}},
    {" qwen2 stablelm2 deepseek-r1-qwen megrez hunyuan grok-2 solar-open kormo ",
     0,
     {LLAMA3("\\p{N}", SYMBOLS)}},
    {" seed-coder ", 0, {LLAMA3("\\p{N}", " ?[^\\s\\p{L}\\p{N}\\r\\n]+")}},
    {" qwen35 ",
     0,
     {CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| "
                   "?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" SPACES}},
    {" deepseek-llm ",
     0,
     {"[\\r\\n]", "\\s?[" DEEPSEEK_LETTERS "]+",
      "\\s?[!-/:-~\\x{ff01}-\\x{ff0f}\\x{ff1a}-\\x{ff5e}\\x{2018}-\\x{201f}\\x{3000}-\\x{3002}]+",
      // \s+$ from the first space of a run only: from each of them it would be quadratic
      "(?<!\\s)\\s++$", CJK, "\\p{N}+"}},
    {" deepseek-coder ", 0, {"[\\r\\n]", "\\s?\\p{L}+", "\\s?\\p{P}+", CJK, "\\p{N}"}},
    {" deepseek-v3 hunyuan-dense joyai-llm ",
     0,
     {"\\p{N}{1,3}", "[\\x{4e00}-\\x{9fa5}\\x{3040}-\\x{309f}\\x{30a0}-\\x{30ff}]+", DEEPSEEK3}},
    {" falcon ", 0, {"[\\p{P}$+<=>^~|`]+", GPT2, "[0-9][0-9][0-9]"}},
    {" starcoder refact command-r smollm codeshell exaone minerva-7b ", 0, {"\\p{N}", GPT2}},
    {" tekken ",
     WHOLE_WORDS | ADD_BOS,
     {CASED("") "|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES}},
    {" gpt-4o llama4 kanana2 minimax-m2 ",
     0,
     {CASED("(?:" CONTRACTIONS ")?") "|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES}},
    {" bailingmoe bailingmoe2 llada-moe ",
     0,
     {"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|" SYMBOLS
      "|\\s*[\\r\\n]|\\s+(?!\\S)|\\s+"}},
    {" poro-chat bloom gpt3-finnish ", 0, {BLOOM}},
    {" viking ", 0, {BLOOM, "\\p{N}"}},
};

static const struct family *family_of(struct span name)
{
    char wanted[64];
    if (name.len == 0 || name.len + 3 > sizeof(wanted) || memchr(name.data, ' ', name.len))
        return NULL;
    snprintf(wanted, sizeof(wanted), " %.*s ", (int)name.len, name.data);
    for (size_t i = 0; i < ARRAY_LEN(families); i++)
        if (strstr(families[i].names, wanted))
            return &families[i];
    return NULL;
}

/* ---- compiling ---- */

static int compile_pattern(struct pretok *p, const char *pattern)
{
    int error;
    PCRE2_SIZE at;
    PCRE2_UCHAR text[120];
    pcre2_code *code =
        pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                      PCRE2_UTF | PCRE2_UCP | PCRE2_DOLLAR_ENDONLY, &error, &at, NULL);
    if (!code) {
        pcre2_get_error_message(error, text, sizeof(text));
        return fail(-EINVAL, "tokenizer: pre-tokenizer pattern, byte %zu: %s", (size_t)at, text);
    }
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE); // without it PCRE2 interprets
    p->codes[p->n++] = code;
    return 0;
}

int pretok_init(struct pretok *p, struct span name)
{
    char quoted[96];
    const struct family *family = family_of(name);
    *p = (struct pretok){0};
    if (!family)
        return fail(-ENOTSUP, "tokenizer: pre-tokenizer %s is not supported",
                    log_quote(name.data, name.len, quoted, sizeof(quoted)));
    p->whole_words = family->flags & WHOLE_WORDS;
    p->add_bos = family->flags & ADD_BOS;
    p->limits = pcre2_match_context_create(NULL);
    if (!p->limits)
        return fail(-ENOMEM, "tokenizer: no memory for patterns");
    pcre2_set_match_limit(p->limits, MATCH_LIMIT);
    pcre2_set_heap_limit(p->limits, HEAP_LIMIT);
    for (unsigned i = 0; i < PRETOK_MAX_PATTERNS && family->patterns[i]; i++) {
        int r = compile_pattern(p, family->patterns[i]);
        if (r < 0)
            return r;
    }
    return 0;
}

void pretok_done(struct pretok *p)
{
    for (unsigned i = 0; i < p->n; i++)
        pcre2_code_free(p->codes[i]);
    pcre2_match_context_free(p->limits);
}

/* ---- cutting ---- */

struct cut {
    const struct pretok *p;
    pcre2_match_data *match;
    int (*word)(void *arg, const char *text, size_t len);
    void *arg;
};

/* The next match of pattern nth from `at` on. Without one, start and end are len. */
static int next_match(const struct cut *c, unsigned nth, const char *text, size_t len, size_t at,
                      size_t *ret_start, size_t *ret_end)
{
    int r = pcre2_match(c->p->codes[nth], (PCRE2_SPTR)text, len, at, PCRE2_NO_UTF_CHECK, c->match,
                        c->p->limits);
    *ret_start = *ret_end = len;
    if (r == PCRE2_ERROR_NOMATCH)
        return 0;
    if (r < 0) {
        PCRE2_UCHAR why[120];
        pcre2_get_error_message(r, why, sizeof(why));
        return fail(-EINVAL, "tokenizer: the pre-tokenizer cannot split this text: %s", why);
    }
    const PCRE2_SIZE *ends = pcre2_get_ovector_pointer(c->match);
    *ret_start = ends[0];
    *ret_end = ends[1];
    return 0;
}

static int cut_text(const struct cut *c, unsigned nth, const char *text, size_t len)
{
    if (len == 0)
        return 0;
    if (nth == c->p->n)
        return c->word(c->arg, text, len);
    for (size_t at = 0, start, end; at < len; at = end) {
        int r = next_match(c, nth, text, len, at, &start, &end);
        if (r < 0 || (r = cut_text(c, nth + 1, text + at, start - at)) < 0 ||
            (r = cut_text(c, nth + 1, text + start, end - start)) < 0)
            return r;
    }
    return 0;
}

static void free_match(pcre2_match_data **match)
{
    pcre2_match_data_free(*match);
}

int pretok_split(const struct pretok *p, const char *text, size_t len,
                 int (*word)(void *arg, const char *text, size_t len), void *arg)
{
    __attribute__((cleanup(free_match))) pcre2_match_data *match = pcre2_match_data_create(1, NULL);
    if (!match)
        return fail(-ENOMEM, "tokenizer: no memory to match patterns");
    struct cut c = {p, match, word, arg};
    return cut_text(&c, 0, text, len);
}
