/* prom_merge.c - merges the Prometheus metrics of several processes. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#include "base/metrics.h"
#include "base/rng.h"
#include "gateway/serve/prom_line.h"
#include "gateway/serve/prom_merge.h"

struct prom_merge_family {
    char *name;
    size_t name_len;
    char *help, *type; // the whole comment lines, or NULL
    struct buf samples;
};

void prom_merge_init(struct prom_merge *p, bool exemplars)
{
    *p = (struct prom_merge){.exemplars = exemplars, .secret = rng_secret()};
}

void prom_merge_done(struct prom_merge *p)
{
    for (size_t i = 0; i < p->n; i++) {
        free(p->families[i].name);
        free(p->families[i].help);
        free(p->families[i].type);
        buf_done(&p->families[i].samples);
    }
    free(p->families);
    *p = (struct prom_merge){0};
}

static struct prom_merge_family *grow_families(struct prom_merge *p)
{
    if (p->n < p->cap)
        return &p->families[p->n];
    size_t cap = p->cap ? p->cap * 2 : 64;
    struct prom_merge_family *more =
        cap > PROM_MERGE_MAX_FAMILIES ? NULL : realloc(p->families, cap * sizeof(*more));
    if (!more)
        return NULL;
    p->families = more;
    p->cap = cap;
    return &p->families[p->n];
}

/* The slot of the family, or the free one for it. */
static uint16_t *slot_of(struct prom_merge *p, struct prom_line_text name)
{
    for (uint64_t at = XXH3_64bits_withSeed(name.at, name.len, p->secret);; at++) {
        uint16_t *slot = &p->slots[at % PROM_MERGE_SLOTS];
        const struct prom_merge_family *f = *slot ? &p->families[*slot - 1] : NULL;
        if (!f || (f->name_len == name.len && memcmp(f->name, name.at, name.len) == 0))
            return slot;
    }
}

static struct prom_merge_family *find_or_add_family(struct prom_merge *p,
                                                    struct prom_line_text name)
{
    uint16_t *slot = slot_of(p, name);
    if (*slot)
        return &p->families[*slot - 1];
    if (p->n - p->n_before == PROM_MERGE_MAX_OF_ONE)
        return NULL;
    struct prom_merge_family *f = grow_families(p);
    char *copy = f ? strndup(name.at, name.len) : NULL;
    if (!copy)
        return NULL;
    *f = (struct prom_merge_family){.name = copy, .name_len = name.len};
    buf_init(&f->samples, PROM_MERGE_MAX_TEXT);
    *slot = (uint16_t)++p->n;
    return f;
}

void prom_merge_own_done(struct prom_merge *p)
{
    p->others_only = true;
}

/* Whether the name begins with this text, which is then removed. */
static bool skip(struct prom_line_text *name, const char *start)
{
    size_t n = strlen(start);
    if (name->len < n || memcmp(name->at, start, n) != 0)
        return false;
    *name = (struct prom_line_text){name->at + n, name->len - n};
    return true;
}

static bool is_permitted(const struct prom_merge *p, struct prom_line_text name)
{
    return !p->others_only || skip(&name, "process_") ||
           (skip(&name, "tandem_") && !skip(&name, "gateway_"));
}

/* The number plus 1 of the family of the samples that follow. 0: the comment names none. */
static size_t read_comment(struct prom_merge *p, struct prom_line_text line)
{
    struct prom_line_text name;
    bool ok = prom_line_read_comment(line, &name) && is_permitted(p, name);
    struct prom_merge_family *f = ok ? find_or_add_family(p, name) : NULL;
    if (!f)
        return 0;
    char **slot = line.at[2] == 'H' ? &f->help : &f->type;
    if (!*slot)
        *slot = strndup(line.at, line.len);
    return (size_t)(f - p->families) + 1;
}

/* Whether name is f->name, or f->name with _bucket, _sum or _count. */
static bool belongs_to_family(const struct prom_merge_family *f, struct prom_line_text name)
{
    static const char *const tails[] = {"", "_bucket", "_sum", "_count"};
    size_t n = f->name_len;
    if (name.len < n || memcmp(name.at, f->name, n) != 0)
        return false;
    for (size_t i = 0; i < 4; i++)
        if (strlen(tails[i]) == name.len - n && memcmp(tails[i], name.at + n, name.len - n) == 0)
            return true;
    return false;
}

/* The family of a sample; current: see read_comment(). Families may move, so it is no pointer. */
static struct prom_merge_family *family_of(struct prom_merge *p, size_t current,
                                           struct prom_line_text name)
{
    struct prom_merge_family *f = current ? &p->families[current - 1] : NULL;
    return f && belongs_to_family(f, name) ? f : find_or_add_family(p, name);
}

static void add_sample(struct prom_merge *p, size_t current, struct prom_line_text line,
                       const char *label)
{
    struct prom_line_sample sample;
    if (!prom_line_read_sample(line, &sample) || (sample.has_exemplar && !p->exemplars) ||
        !is_permitted(p, sample.name))
        return;
    struct prom_merge_family *f = family_of(p, current, sample.name);
    if (!f)
        return;
    buf_printf(&f->samples, "%.*s{%s%s", (int)sample.name.len, sample.name.at, label,
               sample.labels.len ? "," : "");
    buf_add(&f->samples, sample.labels.at, sample.labels.len);
    buf_puts(&f->samples, "}");
    buf_add(&f->samples, sample.rest.at, sample.rest.len);
    buf_puts(&f->samples, "\n");
}

void prom_merge_add(struct prom_merge *p, const char *text, size_t len, const char *instance,
                    size_t instance_len)
{
    char label[320];
    size_t current = 0;
    const char *end = text + len;
    p->n_before = p->n;
    metrics_label(label, sizeof(label), "instance", instance, instance_len);
    size_t label_len = strlen(label), left = PROM_MERGE_MAX_ADDED;
    while (text < end) {
        const char *stop = memchr(text, '\n', (size_t)(end - text));
        struct prom_line_text line = {text, (size_t)((stop ? stop : end) - text)};
        if (line.len + label_len > left)
            return;
        left -= line.len + label_len;
        if (line.len && *line.at == '#')
            current = read_comment(p, line);
        else if (line.len)
            add_sample(p, current, line, label);
        text += line.len + 1;
    }
}

void prom_merge_write(const struct prom_merge *p, struct buf *to)
{
    for (size_t i = 0; i < p->n; i++) {
        const struct prom_merge_family *f = &p->families[i];
        if (f->samples.error || !f->samples.len)
            continue;
        if (f->help)
            buf_printf(to, "%s\n", f->help);
        if (f->type)
            buf_printf(to, "%s\n", f->type);
        buf_add(to, f->samples.data, f->samples.len);
    }
}

/* ---- OpenMetrics ---- */

/* `# HELP name text` with the first name_len bytes of the name and quotes escaped. Other escapes
 * are the same in both formats. */
static void write_help(struct buf *to, const struct prom_merge_family *f, size_t name_len)
{
    const char *text = f->help + strlen("# HELP ") + strlen(f->name);
    buf_printf(to, "# HELP %.*s", (int)name_len, f->name);
    for (; *text; text++)
        buf_printf(to, *text == '"' ? "\\%c" : "%c", *text);
    buf_puts(to, "\n");
}

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n > m && strcmp(s + n - m, end) == 0;
}

static void write_openmetrics(struct buf *to, const struct prom_merge_family *f)
{
    const char *type = f->type ? f->type + strlen("# TYPE ") + strlen(f->name) : " unknown";
    bool counter = strcmp(type, " counter") == 0, total = ends_with(f->name, "_total");
    size_t name_len = strlen(f->name) - (counter && total ? strlen("_total") : 0);
    if (f->help)
        write_help(to, f, name_len);
    if ((counter && !total) || strcmp(type, " untyped") == 0)
        type = " unknown"; // the name of a counter's sample must end in _total
    buf_printf(to, "# TYPE %.*s%s\n", (int)name_len, f->name, type);
    buf_add(to, f->samples.data, f->samples.len);
}

void prom_merge_write_openmetrics(const struct prom_merge *p, struct buf *to)
{
    for (size_t i = 0; i < p->n; i++)
        if (!p->families[i].samples.error && p->families[i].samples.len)
            write_openmetrics(to, &p->families[i]);
    buf_puts(to, "# EOF\n");
}
