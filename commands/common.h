/* What the commands share: the table of options, opening a model, messages, escaping, progress. Only run.c and commands/ print or exit. */
#ifndef COMMON_H
#define COMMON_H

#include "../checkpoint.h"
#include "../net.h"
#include "../sample.h"
#include "../tokenizer.h"

#define RUN_VERSION "1.0.0"
enum { EXIT_OK = 0, EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_INTERRUPTED = 130 };

/* One table of options per command: it parses, checks and prints --help. */
typedef enum { OPTION_FLAG, OPTION_TEXT, OPTION_LIST /* repeatable text */, OPTION_SIZE, OPTION_U64, OPTION_NUMBER } OptionType;

typedef struct {
    char short_name;        /* 'm', or 0 */
    const char *name;       /* "model", without dashes */
    const char *value_name; /* "PATH"; NULL for a flag */
    OptionType type;
    void *value;            /* bool, const char *, TextList, size_t, uint64_t, double; left alone unless given */
    const char *help;
} Option;

typedef struct {
    const char **items;
    size_t count;
} TextList;

/* A command as main() finds it: run.c holds the table. */
typedef struct {
    const char *name;
    const char *arguments; /* "[PROMPT]" */
    const char *summary;   /* one line for `run --help` */
    int (*main)(int argc, char **argv); /* argv[0] is the command's name; returns the exit code */
} Command;
extern const Command commands[]; /* ends with a NULL name */
int cmd_info(int argc, char **argv);
int cmd_generate(int argc, char **argv);
int cmd_chat(int argc, char **argv);
int cmd_tokenize(int argc, char **argv);
int cmd_logits(int argc, char **argv);
int cmd_explain(int argc, char **argv);
int cmd_perplexity(int argc, char **argv);
int cmd_diff(int argc, char **argv);
int cmd_edit(int argc, char **argv);
int cmd_split(int argc, char **argv);
int cmd_merge(int argc, char **argv);
int cmd_hash(int argc, char **argv);
int cmd_json(int argc, char **argv);
int cmd_bench(int argc, char **argv);

/* Parses argv[1..): options anywhere, --x V and --x=V, -xV, -- ends them. Positional arguments are moved to argv[1..] and their
 * number is returned. --help prints usage from the table (usage, then options, then examples) and exits 0; a mistake is told on stderr,
 * naming the nearest option, and exits 2. options ends with a NULL name; common_options (below) are added when with_model. */
int options_parse(int argc, char **argv, const Option *options, bool with_model, const char *usage, const char *examples);

/* The common options, filled by options_parse(). */
typedef struct {
    const char *model;   /* -m; NULL: the default */
    const char *weights; /* -w */
    size_t threads;      /* -t; 0: as many as usable */
    size_t ctx;          /* --ctx; 0: the model's */
    size_t block;        /* --block; 512 */
    bool quiet, json, fast, no_mmap;
} Common;
extern Common common;

/* Messages on stderr, "run COMMAND: ..."; text from files must be escaped first. */
void warn(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void notice(const char *fmt, ...) __attribute__((format(printf, 1, 2))); /* not with -q */
_Noreturn void die(int code, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Flushes stdout and says so if it could not be written: the last thing a command does. Returns code, or EXIT_FAILED. */
int finish(int code);

/* Control characters (C0, DEL, C1, bidi overrides) and invalid UTF-8 made visible: \n, \x1b, \u{202e}. */
void print_escaped(FILE *out, const char *text, size_t length);
char *escaped(const char *text, size_t length);        /* fresh */
const char *human_bytes(uint64_t bytes, char out[32]); /* "988.1 MB" */
int terminal_width(FILE *f);                           /* columns; 80 if it is no terminal */
bool use_color(FILE *f);                               /* a terminal, and NO_COLOR is not set */
double seconds_now(void);                              /* monotonic */

/* Progress on stderr, only if that is a terminal, not with -q, and the work takes longer than half a second. */
void progress(const char *what, uint64_t done, uint64_t total);
void progress_end(void);

/* A model opened for running: weights, tokenizer, state. */
typedef struct {
    Checkpoint checkpoint;
    Model model;
    Tokenizer *tokenizer; /* NULL when there is none and it was not demanded */
    RunState state;
    double load_seconds;
    uint64_t weight_bytes; /* read for one token */
} Session;

/* Opens what -m names (or the default) by the common options: starts the pool, loads weights, reads the tokenizer. Dies on failure. */
void session_open(Session *s, bool need_tokenizer, bool all_logits);
void session_close(Session *s);
Tokenizer *open_tokenizer(void); /* of -m, without weights; dies on failure */

/* PROMPT argument, -f FILE, or stdin when it is no terminal; fresh, *length bytes. NULL if none of them was given. */
char *read_prompt(const char *argument, const char *file, size_t *length);
int *parse_ids(const char *text, size_t *n); /* "1,2,3"; dies with usage on anything else */
void check_ids(const Session *s, const int *ids, size_t n); /* every id below vocab_size, n within the context; dies */

extern volatile int interrupted; /* set by SIGINT after catch_interrupts() */
void catch_interrupts(void);

#endif
