/* conf.h - settings from one table: --help, parsing, checks and docs/configuration.md come from it.
 *
 * Order: default < configuration file < environment < flag. Each source replaces whole lists.
 *   file         `max_sequences = 8`. A `#` after a blank, or at the start of a line, begins a
 *                comment. Values with " #", or with blanks at an end, need double quotes.
 *   environment  TANDEM_MAX_SEQUENCES=8. An empty variable counts as not set.
 *   flag         --max-sequences 8, --max-sequences=8. For a boolean: --x, --no-x, --x=false.
 * The entries of a list are separated by commas, or the line or the flag is repeated. Every table
 * also has --config FILE (or TANDEM_CONFIG), --print-config, --version and --help. Numbers are read
 * and written in the same way in every locale.
 *
 * Old spellings (struct conf_rename) work in all three sources and are not shown in --help. Each
 * logs one warning per setting and source, which names the new spelling. If the environment has the
 * new name and the old one, the new one counts.
 *
 * Threads: main, before it starts other threads; afterwards the values are read-only. */
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
    const char *fallback; // default, written as in the file; NULL: none (0, NULL, empty)
    double min, max;      // CONF_INT, CONF_FLOAT, inclusive; CONF_LIST: at most max entries
    const char *choices;  // "none|ngram" for CONF_CHOICE
    const char *alias;    // names of this setting in other engines: "a|b", or NULL; no warning
    char short_flag;      // 'm' for -m; 0: none
    const char *help;     // one line; unit included
};

/* An earlier spelling of a setting, or of one of its values (CONF_TEXT, CONF_CHOICE). */
struct conf_rename {
    const char *option;                // the present name
    const char *old_name;              // NULL: it is the value that was renamed
    const char *old_value, *new_value; // NULL: it is the setting that was renamed
};

/* A flag that prints something and ends the program, as --version does. */
struct conf_info {
    const char *flag, *help; // "--print-models"
    void (*print)(FILE *to);
};

struct conf {
    const char *program, *summary; // for --help
    const struct conf_option *options;
    size_t n_options;
    const struct conf_rename *renames; // NULL: none
    size_t n_renames;
    const struct conf_info *info; // NULL: none
};

/* Fills the values from defaults, the file that --config or TANDEM_CONFIG names, environment,
 * flags. Before the call the values are zero or hold the result of an earlier call. 0: the values
 * are set. 1: --help, --version, --print-config or the flag of conf_info was answered on stdout,
 * and the program shall exit with 0. -EINVAL, -ENOENT ...: the error text names the setting, its
 * source and its range. The values stay allocated until conf_done(), also after an error. */
int conf_read(const struct conf *c, int argc, char **argv);
/* Sets values from the text of a configuration file. `path` appears in errors and warnings. */
int conf_read_text(const struct conf *c, const char *path, const char *text, size_t len);
/* Whether *a and *b, two values of the option's kind, are equal. */
bool conf_same(const struct conf_option *o, const void *a, const void *b);
void conf_done(const struct conf *c);
void conf_help(const struct conf *c, FILE *to);
/* The table in Markdown, for docs/configuration.md (--print-config). */
void conf_markdown(const struct conf *c, FILE *to);
