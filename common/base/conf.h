/* conf.h - settings from one table: --help, parsing, checks and docs/configuration.md come from it.
 *
 * Order: default < configuration file < environment < flag.
 *   file         `max_sequences = 8`; `#` after a blank or at the start of a line begins a comment;
 * a value with blanks at its ends or with " #" in it stands in double quotes environment
 * TANDEM_MAX_SEQUENCES=8; set but empty counts as not set flag         --max-sequences 8,
 * --max-sequences=8; a truth value --x, --no-x, --x=false Lists take the flag (or the line) again,
 * or commas; a later source replaces the whole list. Every table also has --config FILE (or
 * TANDEM_CONFIG), --print-config, --version and --help. Numbers are read and written the same in
 * every locale.
 *
 * Threads: main, before there are others; afterwards the values are only read. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum conf_kind { CONF_BOOL, CONF_INT, CONF_FLOAT, CONF_TEXT, CONF_CHOICE, CONF_LIST };

#define CONF_LIST_MAX 32        // entries of any list
#define CONF_FILE_MAX (1 << 20) // bytes of a configuration file
#define CONF_TEXT_MAX 4096      // bytes of one value

struct conf_list {
    unsigned n;
    char *v[CONF_LIST_MAX];
};

struct conf_option {
    const char *name; // with underscores, as in the file; "group.name" is --group-name
    enum conf_kind kind;
    void *value; // bool *, int64_t *, double *, char **, char ** (choice), struct conf_list *
    const char *fallback; // the default, as it would be written; NULL: none (0, NULL, empty)
    double min, max;      // CONF_INT, CONF_FLOAT, inclusive; CONF_LIST: at most max entries
    const char *choices;  // "none|ngram" for CONF_CHOICE
    const char *alias;    // other spellings, as files of other engines have them: "a|b", or NULL
    char short_flag;      // 'm' for -m; 0: none
    const char *help;     // one line; unit included
};

struct conf {
    const char *program, *summary; // for --help
    const struct conf_option *options;
    size_t n_options;
};

/* Fills the values from defaults, the file named by --config or TANDEM_CONFIG, environment and
 * flags. The values hold zeros or an earlier reading. 0: go on. 1: --help, --version or
 * --print-config was answered on stdout, exit with 0. -EINVAL, -ENOENT ...: one sentence that names
 * the setting, where it was set, and its range. Texts live until conf_done(), also after errors. */
int conf_read(const struct conf *c, int argc, char **argv);
/* The part of it that reads a file's text; `path` is for the sentences. */
int conf_read_text(const struct conf *c, const char *path, const char *text, size_t len);
/* Whether two values of the option are the same. */
bool conf_same(const struct conf_option *o, const void *a, const void *b);
void conf_done(const struct conf *c);
void conf_help(const struct conf *c, FILE *to);
/* The table in Markdown, for docs/configuration.md (--print-config). */
void conf_markdown(const struct conf *c, FILE *to);
