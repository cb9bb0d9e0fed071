/* usage_json.c - the statistics in an answer: usage, speculation, times. */
#include <inttypes.h>
#include "gateway/openai/json_write.h"
#include "gateway/openai/usage_json.h"

static void write_details(const struct openai_reply *r, struct buf *to)
{
    const struct openai_speculation *s = &r->speculation;
    if (!r->has_prediction && !r->rules.thinking)
        return;
    buf_puts(to, ",\"completion_tokens_details\":{");
    if (r->rules.thinking)
        buf_printf(to, "\"reasoning_tokens\":%u%s", r->reasoning_tokens,
                   r->has_prediction ? "," : "");
    if (r->has_prediction)
        buf_printf(to, "\"accepted_prediction_tokens\":%u,\"rejected_prediction_tokens\":%u",
                   s->accepted, s->drafted - s->accepted);
    buf_puts(to, "}");
}

static void write_usage(const struct openai_reply *r, struct buf *to)
{
    buf_printf(to,
               "\"usage\":{\"prompt_tokens\":%u,\"completion_tokens\":%u,\"total_tokens\":%u,"
               "\"prompt_tokens_details\":{\"cached_tokens\":%u}",
               r->prompt_tokens, r->completion_tokens, r->prompt_tokens + r->completion_tokens,
               r->cached_tokens);
    write_details(r, to);
    buf_puts(to, "}");
}

/* The seed that reproduces this answer, and the results of speculation. The names are vLLM's. */
static void write_speculation(const struct openai_reply *r, struct buf *to)
{
    const struct openai_speculation *s = &r->speculation;
    buf_puts(to, "\"metrics\":{");
    if (r->n_seeds == 1)
        buf_printf(to, "\"seed\":%" PRId64 ",", r->seed);
    if (r->n_resumed)
        buf_printf(to, "\"resumed\":{\"count\":%u,\"same_bits\":%s},", r->n_resumed,
                   r->may_differ ? "false" : "true");
    buf_puts(to, "\"speculative_decoding\":{\"rule\":");
    json_write_cstr(to, r->rule);
    buf_puts(to, ",\"proposer\":");
    json_write_cstr(to, r->proposer);
    buf_puts(to, ",\"mean_acceptance_length\":");
    json_write_double(to, s->rounds_drafted ? 1 + (double)s->accepted / s->rounds_drafted : 1);
    buf_puts(to, ",\"draft_acceptance_rate\":");
    json_write_double(to, s->drafted ? (double)s->accepted / s->drafted : 0);
    buf_printf(to,
               ",\"num_spec_tokens\":%u,\"num_steps\":%u,\"num_spec_steps\":%u,"
               "\"num_draft_tokens\":%u,\"num_accepted_draft_tokens\":%u,\"num_bonus_tokens\":%u,"
               "\"acceptance_histogram\":[",
               s->k, s->rounds, s->rounds_drafted, s->drafted, s->accepted, s->bonus);
    unsigned n = OPENAI_ACCEPTED_MAX;
    while (n && !s->accepted_histogram[n - 1])
        n--;
    for (unsigned i = 0; i < n; i++)
        buf_printf(to, "%s%u", i ? "," : "", s->accepted_histogram[i]);
    buf_puts(to, "]}}");
}

static void write_speed(const char *name, uint32_t n, double ms, struct buf *to)
{
    buf_printf(to, "\"%s_n\":%u,\"%s_ms\":", name, n, name);
    json_write_double(to, ms);
    buf_printf(to, ",\"%s_per_second\":", name);
    json_write_double(to, ms > 0 ? n / ms * 1e3 : 0);
    buf_puts(to, ",");
}

/* The names are llama.cpp's. */
static void write_timings(const struct openai_reply *r, struct buf *to)
{
    const struct openai_speculation *s = &r->speculation;
    buf_printf(to, "\"timings\":{\"cache_n\":%u,", r->cached_tokens);
    write_speed("prompt", r->prompt_tokens - r->cached_tokens, r->timings.prompt_ms, to);
    write_speed("predicted", r->completion_tokens, r->timings.decode_ms, to);
    buf_printf(to, "\"draft_n\":%u,\"draft_n_accepted\":%u}", s->drafted, s->accepted);
}

void usage_json_metrics(const struct openai_reply *r, struct buf *to)
{
    write_speculation(r, to);
    buf_puts(to, ",");
    write_timings(r, to);
}

void usage_json_write(const struct openai_reply *r, struct buf *to)
{
    write_usage(r, to);
    buf_puts(to, ",");
    usage_json_metrics(r, to);
}
