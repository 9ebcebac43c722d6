/* The command line: one table of options per command, which parses, checks and prints --help. */
#ifndef OPTIONS_H
#define OPTIONS_H

#include "base/base.h"
#include "commands/commands.h"

typedef enum {
    OPTION_FLAG,   /* bool */
    OPTION_TEXT,   /* const char *, not empty */
    OPTION_ANY,    /* const char *, may be empty */
    OPTION_LIST,   /* TextList: may be given several times; none is empty */
    OPTION_SIZE,   /* size_t, 0 or more */
    OPTION_U64,    /* uint64_t */
    OPTION_NUMBER, /* double, 0 or more */
    OPTION_COUNT,  /* size_t, 1 or more */
    OPTION_BYTES,  /* uint64_t: 500KB, 2GB (powers of 1000), 2GiB (powers of 1024) */
} OptionType;

typedef struct {
    char short_name;        /* 'm', or 0 */
    const char *name;       /* "model", without dashes */
    const char *value_name; /* "PATH"; NULL for a flag */
    OptionType type;
    void *value; /* what type says; left alone unless the option is given */
    const char *help;
} Option;

typedef struct {
    const char **items;
    size_t count;
} TextList;

/* Parse argv[1..argc): options anywhere, as --x V, --x=V or -xV; -- ends them. Positional arguments are moved to
 * argv[1..] and their number, which this_command limits, is returned. --help prints and exits with 0; a mistake exits
 * with 2. Of an option that is given twice the last one counts, and a notice says so.
 * options: ends with a NULL name; -q, -h, and the common options of a command that runs a model are added.
 * usage: the lines after "usage:", such as "run hash MODEL"; NULL: from this_command. examples: lines; after an empty
 * line a paragraph of what else there is to say. */
int options_parse(int argc, char **argv, const Option *options, const char *usage, const char *examples);

/* The options of every command that runs a model. */
typedef struct {
    const char *model;   /* -m; NULL: the default */
    const char *weights; /* -w; NULL: RUN_WEIGHTS in the environment, else "f32" */
    const char *kv;      /* --kv; NULL: by the weights */
    size_t threads;      /* -t; 0: as many as usable */
    size_t ctx;          /* --ctx; 0: the model's */
    size_t block;        /* --block; 512 */
    bool json, fast, no_mmap;
    bool force; /* replace files that exist */
} Common;
extern Common common;

/* Rows for the tables of commands that do not take all common options. */
#define THREADS_OPTION \
    {'t', "threads", "N", OPTION_COUNT, &common.threads, "number of threads (default: the usable cores)"}
#define FORCE_OPTION {0, "force", NULL, OPTION_FLAG, &common.force, "replace a file that exists already"}
#define JSON_OPTION {0, "json", NULL, OPTION_FLAG, &common.json, "print one JSON document on standard output"}

/* "Did you mean ...": offer the known words one by one; each that is nearer than those before it, and near enough to
 * have been meant, returns true. A distance of 0 means that it is the same word. */
typedef struct {
    const char *typed;
    size_t length, distance;
} Nearest;
Nearest nearest_to(const char *typed, size_t length);
bool nearest_offer(Nearest *n, const char *word, size_t length);
/* Offer the names that other programs have for our commands. What to type instead if one is nearest, else NULL. */
const char *nearest_other_command(Nearest *n);

#endif
