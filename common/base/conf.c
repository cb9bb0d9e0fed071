/* conf.c - settings from one table. */
#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <locale.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/conf.h"
#include "base/err.h"
#include "base/log.h"
#include "base/mem.h"

#define OPTIONS_MAX 128

/* The source that is being read, by index of the option. The first value of a list in a source
 * replaces the list, later ones are appended. */
struct source {
    const struct conf *c;
    bool is_set[OPTIONS_MAX];
    bool has_warned[OPTIONS_MAX]; // of an old spelling
};

/* ---- values ---- */

/* Where a value comes from, for messages: "/etc/x.conf, line 3: k", "--k" or "TANDEM_K". */
struct place {
    const char *what;
    const char *file; // NULL: a flag or a variable
    unsigned line;
};

#define PLACE_TEXT_MAX 160

static const char *place_text(const struct place *p, char out[PLACE_TEXT_MAX])
{
    if (p->file)
        snprintf(out, PLACE_TEXT_MAX, "%s, line %u: %.60s", p->file, p->line, p->what);
    else
        snprintf(out, PLACE_TEXT_MAX, "%.60s", p->what);
    return out;
}

static int refuse_value(const struct place *p, const char *value, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static int refuse_value(const struct place *p, const char *value, const char *format, ...)
{
    char where[PLACE_TEXT_MAX], quoted[64], want[160];
    va_list args;
    va_start(args, format);
    vsnprintf(want, sizeof(want), format, args);
    va_end(args);
    return fail(-EINVAL, "%s must be %s, not %s", place_text(p, where), want,
                log_quote(value, strlen(value), quoted, sizeof(quoted)));
}

static bool read_int(const char *s, int64_t *ret)
{
    bool negative = *s == '-';
    int64_t n = 0;
    s += negative || *s == '+';
    if (!*s)
        return false;
    for (; *s; s++) {
        if (*s < '0' || *s > '9' || __builtin_mul_overflow(n, 10, &n) ||
            __builtin_sub_overflow(n, *s - '0', &n)) // downwards: -INT64_MIN does not fit
            return false;
    }
    if (!negative && __builtin_sub_overflow((int64_t)0, n, &n))
        return false;
    *ret = n;
    return true;
}

static bool read_float(const char *s, double *ret)
{
    if (!*s || s[strspn(s, "0123456789.+-eE")]) // no hexadecimal, no "inf", no "nan", no blanks
        return false;
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    char *end;
    *ret = strtod_l(s, &end, c);
    freelocale(c);
    return !*end;
}

static int set_int(const struct conf_option *o, const struct place *p, const char *value)
{
    int64_t n;
    if (!read_int(value, &n) || (double)n < o->min || (double)n > o->max)
        return refuse_value(p, value, "a whole number from %.0f to %.0f", o->min, o->max);
    *(int64_t *)o->value = n;
    return 0;
}

static int set_float(const struct conf_option *o, const struct place *p, const char *value)
{
    double x;
    if (!read_float(value, &x) || !(x >= o->min && x <= o->max))
        return refuse_value(p, value, "a number from %g to %g", o->min, o->max);
    *(double *)o->value = x;
    return 0;
}

static int set_bool(const struct conf_option *o, const struct place *p, const char *value)
{
    static const struct {
        const char *text;
        bool value;
    } words[] = {{"true", true}, {"false", false}, {"on", true}, {"off", false},
                 {"yes", true},  {"no", false},    {"1", true},  {"0", false}};
    for (size_t i = 0; i < ARRAY_LEN(words); i++) {
        if (strcasecmp(words[i].text, value) == 0) {
            *(bool *)o->value = words[i].value;
            return 0;
        }
    }
    return refuse_value(p, value, "true or false");
}

static int set_text(const struct conf_option *o, const char *value)
{
    char *copy = strdup(value);
    if (!copy)
        return fail(-ENOMEM, "conf: no memory for %s", o->name);
    free(*(char **)o->value);
    *(char **)o->value = copy;
    return 0;
}

/* Whether `value` equals one of the choices "a|b|c". NULL: no choices. */
static bool is_one_of(const char *choices, const char *value)
{
    size_t len = strlen(value);
    while (choices && *choices) {
        size_t n = strcspn(choices, "|");
        if (n == len && memcmp(choices, value, n) == 0)
            return true;
        choices += n + (choices[n] == '|');
    }
    return false;
}

/* Formats "a|b|c" as "a, b or c". */
static const char *choices_text(const char *choices, char *out, size_t size)
{
    size_t n = 0;
    for (const char *s = choices; *s && n + 5 < size; s++) {
        if (*s == '|')
            n += (size_t)snprintf(out + n, size - n, strchr(s + 1, '|') ? ", " : " or ");
        else
            out[n++] = *s;
    }
    out[n] = 0;
    return out;
}

static int set_choice(const struct conf_option *o, const struct place *p, const char *value)
{
    char text[128];
    if (!is_one_of(o->choices, value))
        return refuse_value(p, value, "%s", choices_text(o->choices, text, sizeof(text)));
    return set_text(o, value);
}

static void list_clear(struct conf_list *l)
{
    for (unsigned i = 0; i < l->n; i++)
        free(l->v[i]);
    *l = (struct conf_list){0};
}

static int add_to_list(const struct conf_option *o, const struct place *p, const char *value)
{
    struct conf_list *l = o->value;
    char where[PLACE_TEXT_MAX];
    assert(o->max >= 1 && o->max <= CONF_LIST_MAX);
    for (const char *s = value; *s;) {
        size_t n = strcspn(s, ",");
        if (n && l->n >= o->max)
            return fail(-EINVAL, "%s takes at most %.0f entries", place_text(p, where), o->max);
        if (n && !(l->v[l->n] = strndup(s, n)))
            return fail(-ENOMEM, "conf: no memory for %s", o->name);
        l->n += n > 0;
        s += n + (s[n] == ',');
    }
    return 0;
}

/* Returns true the first time in this source. */
static bool must_warn(struct source *src, const struct conf_option *o)
{
    bool *has_warned = &src->has_warned[o - src->c->options];
    bool first = !*has_warned;
    *has_warned = true;
    return first;
}

static bool is_rename_of(const struct conf_rename *r, const struct conf_option *o)
{
    return strcmp(r->option, o->name) == 0;
}

/* The value's present spelling. An old one is logged. */
static const char *present_value(struct source *src, const struct conf_option *o,
                                 const struct place *p, const char *value)
{
    char where[PLACE_TEXT_MAX];
    const struct conf_rename *r = NULL;
    for (size_t i = 0; i < src->c->n_renames && !r; i++) {
        const struct conf_rename *at = &src->c->renames[i];
        if (at->old_value && is_rename_of(at, o) && strcmp(at->old_value, value) == 0)
            r = at;
    }
    if (r && must_warn(src, o))
        log_warn("%s: %s is now called %s; please use the new name", place_text(p, where), value,
                 r->new_value);
    return r ? r->new_value : value;
}

static int set_value(struct source *src, const struct conf_option *o, const struct place *p,
                     const char *value)
{
    char where[PLACE_TEXT_MAX];
    bool *is_set = &src->is_set[o - src->c->options];
    if (strlen(value) > CONF_TEXT_MAX)
        return fail(-EINVAL, "%s is longer than %d bytes", place_text(p, where), CONF_TEXT_MAX);
    if (o->kind == CONF_LIST && !*is_set)
        list_clear(o->value);
    *is_set = true;
    value = present_value(src, o, p, value);
    switch (o->kind) {
    case CONF_BOOL:
        return set_bool(o, p, value);
    case CONF_INT:
        return set_int(o, p, value);
    case CONF_FLOAT:
        return set_float(o, p, value);
    case CONF_TEXT:
        return set_text(o, value);
    case CONF_CHOICE:
        return set_choice(o, p, value);
    case CONF_LIST:
        return add_to_list(o, p, value);
    }
    return fail(-EINVAL, "conf: %s has no kind", o->name);
}

/* ---- names ---- */

/* Names are equal if they differ only in '-', '_' and '.': --ngram-max, ngram_max, ngram.max. */
static bool same_name(const char *a, const char *b, size_t b_len)
{
    for (size_t i = 0; i < b_len; i++) {
        bool a_joint = a[i] == '-' || a[i] == '_' || a[i] == '.';
        bool b_joint = b[i] == '-' || b[i] == '_' || b[i] == '.';
        if (!a[i] || (a[i] != b[i] && !(a_joint && b_joint)))
            return false;
    }
    return !a[b_len];
}

/* The option's old name; NULL: its name never changed. */
static const char *old_name(const struct conf *c, const struct conf_option *o)
{
    for (size_t i = 0; i < c->n_renames; i++) {
        if (c->renames[i].old_name && is_rename_of(&c->renames[i], o))
            return c->renames[i].old_name;
    }
    return NULL;
}

static bool is_old_name(const struct conf *c, const struct conf_option *o, const char *name,
                        size_t len)
{
    const char *old = old_name(c, o);
    return old && same_name(old, name, len);
}

/* The option with this name, old name or alias; NULL: none. */
static const struct conf_option *find_option(const struct conf *c, const char *name, size_t len)
{
    char copy[64];
    for (size_t i = 0; i < c->n_options; i++) {
        if (same_name(c->options[i].name, name, len) || is_old_name(c, &c->options[i], name, len))
            return &c->options[i];
    }
    if (len >= sizeof(copy))
        return NULL;
    memcpy(copy, name, len);
    copy[len] = 0;
    for (size_t i = 0; i < c->n_options; i++) {
        if (is_one_of(c->options[i].alias, copy))
            return &c->options[i];
    }
    return NULL;
}

static const char *flag_name(const struct conf_option *o, char out[64])
{
    snprintf(out, 64, "--%s", o->name);
    for (char *s = out; *s; s++) {
        if (*s == '_' || *s == '.')
            *s = '-';
    }
    return out;
}

/* Logs that the option at `p` was set by the name `old`, once in a source. */
static void warn_of_old_name(struct source *src, const struct conf_option *o, const struct place *p,
                             const char *old)
{
    char where[PLACE_TEXT_MAX];
    struct place was = {.what = old, .file = p->file, .line = p->line};
    if (must_warn(src, o))
        log_warn("%s is now called %s; please use the new name", place_text(&was, where), p->what);
}

static const char *env_name(const char *name, char out[64])
{
    snprintf(out, 64, "TANDEM_%s", name);
    for (char *s = out; *s; s++)
        *s = *s == '.' ? '_' : (char)toupper((unsigned char)*s);
    return out;
}

/* ---- sources ---- */

static int read_defaults(const struct conf *c)
{
    struct source src = {.c = c};
    for (size_t i = 0; i < c->n_options; i++) {
        const struct conf_option *o = &c->options[i];
        struct place p = {.what = o->name};
        int r = o->fallback ? set_value(&src, o, &p, o->fallback) : 0;
        if (r < 0)
            return r;
    }
    return 0;
}

/* The variable's value; NULL: not set, or empty. */
static const char *env_value(const char *variable)
{
    const char *value = getenv(variable);
    return value && *value ? value : NULL;
}

static int read_variable(struct source *src, const struct conf_option *o)
{
    char name[64], old_variable[64];
    const char *old = old_name(src->c, o);
    struct place p = {.what = env_name(o->name, name)};
    const char *value = env_value(name);
    if (!value && old) {
        value = env_value(env_name(old, old_variable));
        if (value)
            warn_of_old_name(src, o, &p, old_variable);
    }
    return value ? set_value(src, o, &p, value) : 0;
}

static int read_environment(const struct conf *c)
{
    struct source src = {.c = c};
    int r = 0;
    for (size_t i = 0; i < c->n_options && r == 0; i++)
        r = read_variable(&src, &c->options[i]);
    return r;
}

static bool is_blank(char ch)
{
    return ch == ' ' || ch == '\t' || ch == '\r';
}

/* Removes blanks at both ends, in place. */
static char *trim(char *s)
{
    while (is_blank(*s))
        s++;
    size_t n = strlen(s);
    while (n && is_blank(s[n - 1]))
        n--;
    s[n] = 0;
    return s;
}

/* The value without comment and quotes. NULL: a quote inside the value, or no closing quote. */
static char *bare_value(char *s)
{
    s = trim(s);
    if (*s != '"') {
        for (char *h = strchr(s, '#'); h; h = strchr(h + 1, '#')) {
            if (h == s || is_blank(h[-1])) {
                *h = 0;
                break;
            }
        }
        return trim(s);
    }
    char *end = strchr(++s, '"');
    if (!end)
        return NULL;
    *end++ = 0;
    end = trim(end);
    return *end && *end != '#' ? NULL : s;
}

static int read_line(struct source *src, const char *path, unsigned line, char *s)
{
    char quoted[80];
    s = trim(s);
    if (!*s || *s == '#')
        return 0;
    char *eq = strchr(s, '=');
    if (!eq)
        return fail(-EINVAL, "%s, line %u: expected `name = value`, found %s", path, line,
                    log_quote(s, strlen(s), quoted, sizeof(quoted)));
    *eq = 0;
    const char *name = trim(s);
    const struct conf_option *o = find_option(src->c, name, strlen(name));
    if (!o)
        return fail(-EINVAL, "%s, line %u: there is no setting %s (%s --help lists all)", path,
                    line, log_quote(name, strlen(name), quoted, sizeof(quoted)), src->c->program);
    const char *value = bare_value(eq + 1);
    if (!value)
        return fail(-EINVAL, "%s, line %u: %s has a quote that does not end its value", path, line,
                    o->name);
    struct place p = {.what = o->name, .file = path, .line = line};
    if (is_old_name(src->c, o, name, strlen(name)))
        warn_of_old_name(src, o, &p, name);
    return set_value(src, o, &p, value);
}

int conf_read_text(const struct conf *c, const char *path, const char *text, size_t len)
{
    struct source src = {.c = c};
    if (len > CONF_FILE_MAX)
        return fail(-EFBIG, "%s is larger than %d KiB", path, CONF_FILE_MAX >> 10);
    if (memchr(text, 0, len))
        return fail(-EINVAL, "%s is not a text file: it holds a zero byte", path);
    AUTO(mem_free) char *copy = strndup(text, len);
    if (!copy)
        return fail(-ENOMEM, "conf: no memory for %s", path);
    unsigned line = 1;
    for (char *s = copy; s; line++) {
        char *end = strchr(s, '\n');
        if (end)
            *end++ = 0;
        int r = read_line(&src, path, line, s);
        if (r < 0)
            return r;
        s = end;
    }
    return 0;
}

static int read_file(const struct conf *c, const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); // do not wait for a pipe's writer
    if (fd < 0)
        return fail(-errno, "cannot open the configuration file %s: %s", path, strerror(errno));
    AUTO(mem_free) char *text = malloc(CONF_FILE_MAX + 1);
    size_t len = 0;
    ssize_t n = text ? 1 : -1;
    while (n > 0 && len <= CONF_FILE_MAX) {
        n = read(fd, text + len, CONF_FILE_MAX + 1 - len);
        len += n > 0 ? (size_t)n : 0;
    }
    int err = errno;
    close(fd);
    if (n < 0)
        return fail(-err, "cannot read the configuration file %s: %s", path, strerror(err));
    return conf_read_text(c, path, text, len);
}

/* ---- flags ---- */

struct flags {
    struct source src;
    int argc, at; // argv[at] is being read
    char **argv;
};

/* The text after `=`, else the next argument. NULL: there is none, see fail_text(). */
static const char *flag_value(struct flags *f, const char *name, const char *inline_value)
{
    if (inline_value)
        return inline_value;
    if (f->at + 1 < f->argc)
        return f->argv[++f->at];
    fail(-EINVAL, "%s needs a value", name);
    return NULL;
}

static int unknown_flag(const struct flags *f)
{
    char quoted[80];
    const char *arg = f->argv[f->at];
    return fail(-EINVAL, "there is no flag %s (%s --help lists all)",
                log_quote(arg, strlen(arg), quoted, sizeof(quoted)), f->src.c->program);
}

static void warn_of_old_flag(struct flags *f, const struct conf_option *o, const struct place *p)
{
    char flag_text[64];
    const char *arg = f->argv[f->at];
    snprintf(flag_text, sizeof(flag_text), "%.*s", (int)strcspn(arg, "="), arg);
    warn_of_old_name(&f->src, o, p, flag_text);
}

static int read_long_flag(struct flags *f)
{
    const char *name = f->argv[f->at] + 2;
    size_t len = strcspn(name, "=");
    const char *value = name[len] ? name + len + 1 : NULL;
    char flag[64];
    const struct conf_option *o = find_option(f->src.c, name, len);
    if (!o && !value && strncmp(name, "no-", 3) == 0) {
        o = find_option(f->src.c, name + 3, len - 3);
        if (o && o->kind != CONF_BOOL)
            o = NULL;
        value = "false";
        name += 3;
        len -= 3;
    }
    if (!o)
        return unknown_flag(f);
    struct place p = {.what = flag_name(o, flag)};
    if (is_old_name(f->src.c, o, name, len))
        warn_of_old_flag(f, o, &p);
    if (o->kind == CONF_BOOL)
        return set_value(&f->src, o, &p, value ? value : "true");
    value = flag_value(f, flag, value);
    return value ? set_value(&f->src, o, &p, value) : -EINVAL;
}

static int read_short_flag(struct flags *f)
{
    const char *arg = f->argv[f->at];
    for (size_t i = 0; i < f->src.c->n_options; i++) {
        const struct conf_option *o = &f->src.c->options[i];
        if (!o->short_flag || arg[1] != o->short_flag || arg[2])
            continue;
        struct place p = {.what = arg};
        const char *value = o->kind == CONF_BOOL ? "true" : flag_value(f, arg, NULL);
        return value ? set_value(&f->src, o, &p, value) : -EINVAL;
    }
    return unknown_flag(f);
}

/* Returns 1 and the path if argv[at] is --config, which is read before everything else. */
static int is_config_flag(struct flags *f, const char **ret_path)
{
    const char *arg = f->argv[f->at];
    if (strcmp(arg, "--config") != 0 && strncmp(arg, "--config=", 9) != 0)
        return 0;
    *ret_path = flag_value(f, "--config", arg[8] ? arg + 9 : NULL);
    return *ret_path ? 1 : -EINVAL;
}

static int read_flags(const struct conf *c, int argc, char **argv)
{
    struct flags f = {.src.c = c, .argc = argc, .argv = argv};
    for (f.at = 1; f.at < argc; f.at++) {
        const char *arg = argv[f.at], *path;
        char quoted[80];
        int r = is_config_flag(&f, &path);
        if (r > 0)
            continue;
        if (r == 0 && strncmp(arg, "--", 2) == 0 && arg[2])
            r = read_long_flag(&f);
        else if (r == 0 && arg[0] == '-' && arg[1] && arg[1] != '-')
            r = read_short_flag(&f);
        else if (r == 0)
            r = fail(-EINVAL, "unexpected argument %s: settings are given as --name value",
                     log_quote(arg, strlen(arg), quoted, sizeof(quoted)));
        if (r < 0)
            return r;
    }
    return 0;
}

/* Answers a flag that asks for a text, wherever it stands. Returns 1 if there is one. */
static int answer_info_flag(const struct conf *c, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            conf_help(c, stdout);
        } else if (strcmp(argv[i], "--version") == 0) {
            printf("%s %s\n", c->program, TANDEM_VERSION);
        } else if (strcmp(argv[i], "--print-config") == 0) {
            conf_markdown(c, stdout);
        } else if (c->info && strcmp(argv[i], c->info->flag) == 0) {
            c->info->print(stdout);
        } else {
            continue;
        }
        fflush(stdout);
        return 1;
    }
    return 0;
}

static int file_path(const struct conf *c, int argc, char **argv, const char **ret_path)
{
    const char *env = getenv("TANDEM_CONFIG");
    *ret_path = env && *env ? env : NULL;
    struct flags f = {.src.c = c, .argc = argc, .argv = argv};
    for (f.at = 1; f.at < argc; f.at++) {
        int r = is_config_flag(&f, ret_path);
        if (r < 0)
            return r;
    }
    return 0;
}

int conf_read(const struct conf *c, int argc, char **argv)
{
    const char *path;
    if (c->n_options > OPTIONS_MAX)
        return fail(-E2BIG, "conf: more than %d settings", OPTIONS_MAX);
    if (answer_info_flag(c, argc, argv))
        return 1;
    int r = file_path(c, argc, argv, &path);
    if (r == 0)
        r = read_defaults(c);
    if (r == 0 && path)
        r = read_file(c, path);
    if (r == 0)
        r = read_environment(c);
    if (r == 0)
        r = read_flags(c, argc, argv);
    return r;
}

static bool same_list(const struct conf_list *a, const struct conf_list *b)
{
    unsigned i = 0;
    while (i < a->n && i < b->n && strcmp(a->v[i], b->v[i]) == 0)
        i++;
    return i == a->n && i == b->n;
}

bool conf_same(const struct conf_option *o, const void *a, const void *b)
{
    switch (o->kind) {
    case CONF_BOOL:
        return *(const bool *)a == *(const bool *)b;
    case CONF_INT:
        return *(const int64_t *)a == *(const int64_t *)b;
    case CONF_FLOAT:
        return *(const double *)a == *(const double *)b;
    case CONF_LIST:
        return same_list(a, b);
    case CONF_TEXT:
    case CONF_CHOICE:
        break;
    }
    const char *x = *(char *const *)a, *y = *(char *const *)b;
    return x && y ? strcmp(x, y) == 0 : x == y;
}

void conf_done(const struct conf *c)
{
    for (size_t i = 0; i < c->n_options; i++) {
        const struct conf_option *o = &c->options[i];
        if (o->kind == CONF_LIST) {
            list_clear(o->value);
        } else if (o->kind == CONF_TEXT || o->kind == CONF_CHOICE) {
            free(*(char **)o->value);
            *(char **)o->value = NULL;
        }
    }
}

/* ---- output ---- */

/* The values that an option accepts: "1 to 20", "none or ngram", "text". */
static const char *range_text(const struct conf_option *o, char out[160])
{
    switch (o->kind) {
    case CONF_BOOL:
        return "true or false";
    case CONF_INT:
        snprintf(out, 160, "%.0f to %.0f", o->min, o->max);
        return out;
    case CONF_FLOAT:
        snprintf(out, 160, "%g to %g", o->min, o->max);
        return out;
    case CONF_CHOICE:
        return choices_text(o->choices, out, 160);
    case CONF_LIST:
        snprintf(out, 160, "a list of up to %.0f", o->max);
        return out;
    case CONF_TEXT:
        break;
    }
    return "text";
}

static const char *value_word(const struct conf_option *o)
{
    static const char *const words[] = {
        [CONF_BOOL] = "",      [CONF_INT] = " N",         [CONF_FLOAT] = " X",
        [CONF_TEXT] = " TEXT", [CONF_CHOICE] = " CHOICE", [CONF_LIST] = " A,B,...",
    };
    return words[o->kind];
}

#define HELP_COLUMN 30
#define HELP_WIDTH 100

/* Writes words from column HELP_COLUMN on, and breaks lines before HELP_WIDTH. */
static void write_wrapped(FILE *to, const char *text, int column)
{
    while (*text) {
        int n = (int)strcspn(text, " ");
        if (column + 1 + n > HELP_WIDTH) {
            fprintf(to, "\n%*s", HELP_COLUMN - 1, "");
            column = HELP_COLUMN - 1;
        }
        fprintf(to, " %.*s", n, text);
        column += n + 1;
        text += n + (text[n] == ' ');
    }
}

static void help_line(FILE *to, const char *flag, const char *text)
{
    int n = fprintf(to, "  %s", flag);
    if (n > HELP_COLUMN - 1) {
        fputc('\n', to);
        n = 0;
    }
    fprintf(to, "%*s", HELP_COLUMN - 1 - n, "");
    write_wrapped(to, text, HELP_COLUMN - 1);
    fputc('\n', to);
}

static void help_option(const struct conf_option *o, FILE *to)
{
    char name[64], flag[160], range[160], text[1024];
    flag_name(o, name);
    size_t n = o->short_flag ? (size_t)snprintf(flag, sizeof(flag), "-%c, ", o->short_flag) : 0;
    if (o->kind == CONF_BOOL)
        snprintf(flag + n, sizeof(flag) - n, "--[no-]%s", name + 2);
    else
        snprintf(flag + n, sizeof(flag) - n, "%s%s", name, value_word(o));
    n = (size_t)snprintf(text, sizeof(text), "%s", o->help);
    if (n < sizeof(text) && o->kind != CONF_BOOL && o->kind != CONF_TEXT)
        n += (size_t)snprintf(text + n, sizeof(text) - n, "; %s", range_text(o, range));
    if (n < sizeof(text) && o->fallback && *o->fallback)
        snprintf(text + n, sizeof(text) - n, " [%s]", o->fallback);
    help_line(to, flag, text);
}

void conf_help(const struct conf *c, FILE *to)
{
    fprintf(to, "%s %s - %s\n\nUsage: %s [--name value]...\n\n", c->program, TANDEM_VERSION,
            c->summary, c->program);
    for (size_t i = 0; i < c->n_options; i++)
        help_option(&c->options[i], to);
    fputc('\n', to);
    help_line(to, "--config FILE", "settings from a file, one `name = value` per line");
    help_line(to, "--print-config", "all settings as a Markdown table");
    if (c->info)
        help_line(to, c->info->flag, c->info->help);
    help_line(to, "--version", "the version");
    help_line(to, "-h, --help", "this text");
    if (c->n_options == 0)
        return;
    char flag[64], env[64];
    const struct conf_option *o = &c->options[0];
    fprintf(
        to,
        "\nDefaults stand in brackets. %s is `%s = ...` in the file and\n%s in the environment. ",
        flag_name(o, flag), o->name, env_name(o->name, env));
    fputs("A flag wins over the environment, the environment over the file.\n", to);
}

/* Writes a table cell. '|' is escaped, because it would end the cell. */
static void write_cell(FILE *to, const char *text)
{
    fputs(" ", to);
    for (; *text; text++) {
        if (*text == '|')
            fputc('\\', to);
        fputc(*text, to);
    }
    fputs(" |", to);
}

static void write_code_cell(FILE *to, const char *text)
{
    char quoted[CONF_TEXT_MAX + 8] = "";
    if (text && *text)
        snprintf(quoted, sizeof(quoted), "`%s`", text);
    write_cell(to, quoted);
}

void conf_markdown(const struct conf *c, FILE *to)
{
    char text[160], name[64];
    fputs("| Setting | Flag | Environment | Default | Range | Meaning |\n", to);
    fputs("|---|---|---|---|---|---|\n", to);
    for (size_t i = 0; i < c->n_options; i++) {
        const struct conf_option *o = &c->options[i];
        fputc('|', to);
        write_code_cell(to, o->name);
        snprintf(text, sizeof(text), o->short_flag ? "%s, -%c" : "%s", flag_name(o, name),
                 o->short_flag);
        write_code_cell(to, text);
        write_code_cell(to, env_name(o->name, name));
        write_code_cell(to, o->fallback ? o->fallback : "");
        write_cell(to, range_text(o, text));
        write_cell(to, o->help);
        fputc('\n', to);
    }
}
