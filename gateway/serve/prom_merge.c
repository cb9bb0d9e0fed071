/* prom_merge.c - merges the Prometheus metrics of several processes. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#include "base/mem.h"
#include "base/metrics.h"
#include "base/rng.h"
#include "gateway/serve/prom_line.h"
#include "gateway/serve/prom_merge.h"

/* What may follow a family's name in those of its samples. */
static const char *const tails[] = {"", "_bucket", "_sum", "_count"};
enum { N_TAILS = ARRAY_LEN(tails) };
enum { PLAIN = 1, BUCKET = 2, SUM = 4, COUNT = 8, ALL = 15 }; // a bit for each

struct prom_merge_family {
    char *name;
    size_t name_len;
    char *help, *type;               // the whole comment lines, or NULL
    bool help_differs, type_differs; // processes state different ones
    unsigned n_samples[N_TAILS];     // by the tail of their names
    struct buf samples;              // each line has its name before a brace
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

/* The number of the family's slot, or of the free one for it. */
static size_t slot_of(const struct prom_merge *p, struct prom_line_text name)
{
    for (uint64_t at = XXH3_64bits_withSeed(name.at, name.len, p->secret);; at++) {
        uint16_t n = p->slots[at % PROM_MERGE_SLOTS];
        const struct prom_merge_family *f = n ? &p->families[n - 1] : NULL;
        if (!f || (f->name_len == name.len && memcmp(f->name, name.at, name.len) == 0))
            return at % PROM_MERGE_SLOTS;
    }
}

static bool ends_with(struct prom_line_text s, const char *end)
{
    size_t n = strlen(end);
    return s.len > n && memcmp(s.at + s.len - n, end, n) == 0;
}

/* Whether it could be a sample's name of another family. Ours have no such names. */
static bool is_name_of_part(struct prom_line_text name)
{
    return ends_with(name, "_bucket") || ends_with(name, "_sum") || ends_with(name, "_count") ||
           ends_with(name, "_created");
}

static struct prom_merge_family *find_or_add_family(struct prom_merge *p,
                                                    struct prom_line_text name)
{
    uint16_t *slot = &p->slots[slot_of(p, name)];
    if (*slot)
        return &p->families[*slot - 1];
    if (is_name_of_part(name) || p->n - p->n_before == PROM_MERGE_MAX_OF_ONE)
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
    p->n_own = p->n;
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

static void keep_comment(char **kept, bool *differs, struct prom_line_text line)
{
    if (!*kept)
        *kept = strndup(line.at, line.len);
    else
        *differs |= strlen(*kept) != line.len || memcmp(*kept, line.at, line.len) != 0;
}

/* The number plus 1 of the family of the samples that follow. 0: the comment names none. */
static size_t read_comment(struct prom_merge *p, struct prom_line_text line)
{
    struct prom_line_text name;
    bool ok = prom_line_read_comment(line, &name) && is_permitted(p, name);
    struct prom_merge_family *f = ok ? find_or_add_family(p, name) : NULL;
    if (!f)
        return 0;
    size_t number = (size_t)(f - p->families);
    if (number >= p->n_own && line.at[2] == 'H')
        keep_comment(&f->help, &f->help_differs, line);
    else if (number >= p->n_own)
        keep_comment(&f->type, &f->type_differs, line);
    return number + 1;
}

/* The number of the tail by which name belongs to the family. N_TAILS: it does not. */
static size_t tail_of(const struct prom_merge_family *f, struct prom_line_text name)
{
    size_t n = f->name_len, i = 0;
    if (name.len < n || memcmp(name.at, f->name, n) != 0)
        return N_TAILS;
    while (i < N_TAILS &&
           (strlen(tails[i]) != name.len - n || memcmp(tails[i], name.at + n, name.len - n) != 0))
        i++;
    return i;
}

/* The family of a sample; current: see read_comment(). Families may move, so it is no pointer. */
static struct prom_merge_family *family_of(struct prom_merge *p, size_t current,
                                           struct prom_line_text name)
{
    struct prom_merge_family *f = current ? &p->families[current - 1] : NULL;
    return f && tail_of(f, name) < N_TAILS ? f : find_or_add_family(p, name);
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
    f->n_samples[tail_of(f, sample.name)]++;
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

/* ---- what is written ---- */

/* " gauge", for example. */
static const char *type_of(const struct prom_merge_family *f)
{
    return f->type && !f->type_differs ? f->type + strlen("# TYPE ") + f->name_len : " untyped";
}

/* The bits of the tails that its samples may have. */
static unsigned tails_of(const struct prom_merge_family *f)
{
    if (f->type_differs)
        return ALL;
    if (strcmp(type_of(f), " histogram") == 0)
        return BUCKET | SUM | COUNT;
    return strcmp(type_of(f), " summary") == 0 ? PLAIN | SUM | COUNT : PLAIN;
}

static bool is_written(const struct prom_merge_family *f)
{
    bool any = false;
    for (size_t i = 0; i < N_TAILS; i++)
        any |= f->n_samples[i] && tails_of(f) >> i & 1;
    return any && !f->samples.error;
}

/* The samples with these tails. */
static void write_samples(const struct prom_merge_family *f, unsigned of, struct buf *to)
{
    const char *at = f->samples.data, *end = at + f->samples.len;
    while (at < end) {
        size_t len = (size_t)((char *)memchr(at, '\n', (size_t)(end - at)) + 1 - at);
        size_t name_len = (size_t)((char *)memchr(at, '{', len) - at);
        if (of >> tail_of(f, (struct prom_line_text){at, name_len}) & 1)
            buf_add(to, at, len);
        at += len;
    }
}

/* As families without a known type, one for each tail. */
static void write_untyped(const struct prom_merge_family *f, const char *type, struct buf *to)
{
    for (size_t i = 0; i < N_TAILS; i++) {
        if (f->n_samples[i])
            buf_printf(to, "# TYPE %s%s%s\n", f->name, tails[i], type);
        write_samples(f, 1u << i, to);
    }
}

static bool has_help(const struct prom_merge_family *f)
{
    return f->help && !f->help_differs;
}

static void write_text(const struct prom_merge_family *f, struct buf *to)
{
    if (f->type_differs) {
        write_untyped(f, " untyped", to);
        return;
    }
    if (has_help(f))
        buf_printf(to, "%s\n", f->help);
    if (f->type)
        buf_printf(to, "%s\n", f->type);
    write_samples(f, tails_of(f), to);
}

void prom_merge_write(const struct prom_merge *p, struct buf *to)
{
    for (size_t i = 0; i < p->n; i++)
        if (is_written(&p->families[i]))
            write_text(&p->families[i], to);
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

/* Whether no family has this name. */
static bool is_free(const struct prom_merge *p, struct prom_line_text name)
{
    uint16_t n = p->slots[slot_of(p, name)];
    return !is_name_of_part(name) && (!n || !is_written(&p->families[n - 1]));
}

/* The length of the family's name without _total. 0: it is no counter, or its samples do not end in
 * _total, or another family has that name. */
static size_t counter_len(const struct prom_merge *p, const struct prom_merge_family *f)
{
    struct prom_line_text name = {f->name, f->name_len};
    if (strcmp(type_of(f), " counter") != 0 || !ends_with(name, "_total"))
        return 0;
    name.len -= strlen("_total");
    return is_free(p, name) ? name.len : 0;
}

static void write_openmetrics(const struct prom_merge *p, const struct prom_merge_family *f,
                              struct buf *to)
{
    const char *type = type_of(f);
    size_t counter = counter_len(p, f), name_len = counter ? counter : f->name_len;
    if (f->type_differs) {
        write_untyped(f, " unknown", to);
        return;
    }
    if (has_help(f))
        write_help(to, f, name_len);
    if (!counter && (strcmp(type, " counter") == 0 || strcmp(type, " untyped") == 0))
        type = " unknown";
    buf_printf(to, "# TYPE %.*s%s\n", (int)name_len, f->name, type);
    write_samples(f, tails_of(f), to);
}

void prom_merge_write_openmetrics(const struct prom_merge *p, struct buf *to)
{
    for (size_t i = 0; i < p->n; i++)
        if (is_written(&p->families[i]))
            write_openmetrics(p, &p->families[i], to);
    buf_puts(to, "# EOF\n");
}
