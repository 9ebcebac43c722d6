/* What the commands share: the table of options, opening a model, messages, escaping, progress. Only run.c and
 * commands/ print or exit. */
#ifndef COMMON_H
#define COMMON_H

#include "base/base.h"
#include "checkpoint/checkpoint.h"
#include "generate/generate.h"
#include "net.h"
#include "tokenizer.h"

#define RUN_VERSION "1.0.0"
enum { EXIT_OK = 0, EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_INTERRUPTED = 130 };

/* ---- options ---- */

/* One table of options per command: it parses, checks and prints --help. */
typedef enum {
    OPTION_FLAG,   /* bool */
    OPTION_TEXT,   /* const char * */
    OPTION_LIST,   /* TextList: may be given again and again */
    OPTION_SIZE,   /* size_t, 0 or more */
    OPTION_U64,    /* uint64_t */
    OPTION_NUMBER, /* double, 0 or more */
    OPTION_COUNT,  /* size_t, 1 or more */
    OPTION_BYTES,  /* uint64_t: 4096, 500KB, 2GB (powers of 1000), 2GiB (powers of 1024) */
} OptionType;

typedef struct {
    char short_name;        /* 'm', or 0 */
    const char *name;       /* "model", without dashes */
    const char *value_name; /* "PATH"; NULL for a flag */
    OptionType type;
    void *value;            /* what type says; left alone unless given */
    const char *help;
} Option;

typedef struct {
    const char **items; /* kept until the program ends */
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

/* Parses argv[1..): options anywhere, --x V and --x=V, -xV, -- ends them. Positional arguments are moved to argv[1..]
 * and their number is returned. --help prints usage from the table (usage, then options, then examples) and exits 0; a
 * mistake is told on stderr, naming the nearest option, and exits 2. options ends with a NULL name; common_options
 * (below) are added when with_model, -q always. usage: NULL, or the lines below "usage:", each as "run info [MODEL]".
 * examples: lines, or NULL. */
int options_parse(int argc, char **argv, const Option *options, bool with_model, const char *usage,
                  const char *examples);

/* Ends with exit 2 if there are more than max of the count positional arguments in argv[1..]. */
void arguments_at_most(int count, int max, char **argv);

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

/* Single changes (insert, drop, replace, swap of neighbours) between two words. */
size_t edit_distance(const char *a, size_t a_length, const char *b, size_t b_length);
/* Whether a word of that length, at that distance from a known one, may be meant for it: "did you mean". */
bool nearly(size_t length, size_t distance);

/* ---- messages ---- */

extern const char *command_name; /* NULL before main() has found one */

/* Messages on stderr, "run COMMAND: ...", control characters in them made visible. */
void warn(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void notice(const char *fmt, ...) __attribute__((format(printf, 1, 2))); /* not with -q */
_Noreturn void die(int code, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int exit_code(int code); /* what this command ends with: run diff has another code for trouble */
_Noreturn void usage_error(const char *fmt, ...) __attribute__((format(printf, 1, 2))); /* exit 2, pointing at --help */
/* Flushes stdout, and dies if it could not be written: the last thing a command does. Returns code. */
int finish(int code);

extern void (*terminal_restore)(void); /* NULL, or puts the terminal back: async-signal-safe */
/* What a sudden end must do: the terminal put back, a half-written file removed. Async-signal-safe. */
void emergency_cleanup(void);
extern char mapped_name[256]; /* of the model that is mapped, for the SIGBUS message */

/* Set by SIGINT after catch_interrupts(); before, and the second time, SIGINT exits 130. */
extern volatile int interrupted;
void catch_interrupts(void);
/* After catch_interrupts(): the program ends this many seconds after SIGINT, if it has not by itself; 0: no more. */
void end_within(int seconds);
void exit_on_interrupt(void); /* what main() starts with */

/* Progress on stderr, only if that is a terminal, not with -q, and the work takes longer than half a second. */
void progress(const char *what, uint64_t done, uint64_t total);
void progress_end(void);

/* ---- text ---- */

/* Control characters (C0, DEL, C1, bidi controls, line separators) and invalid UTF-8 made visible: \n, \x1b. */
void print_escaped(FILE *out, const char *text, size_t length);
char *escaped(const char *text, size_t length); /* fresh */
/* Text as it is for a file or pipe; for a terminal the same as print_escaped(), but line ends and tabs stay. */
void print_text(FILE *out, const char *text, size_t length);
/* A token as a quoted word of exactly `columns` terminal columns (padded, or cut with "..."; 0: as it comes); its id in
 * <> without a tokenizer. */
void print_token(FILE *out, const Tokenizer *t, int id, int columns);
void write_token_json(FILE *out, const Tokenizer *t, int id); /* its text as a JSON string, null without a tokenizer */
void write_ids_json(FILE *out, const int *ids, size_t n); /* [1,2,3] */
const char *human_bytes(uint64_t bytes, char out[32]); /* "988.1 MB" */
int terminal_width(FILE *f); /* columns; 80 if it is no terminal */
bool use_color(FILE *f); /* a terminal, and NO_COLOR is not set */
double seconds_now(void); /* monotonic */
void *must(void *memory); /* dies if it is NULL: out of memory */
void close_memory(FILE *f, char *const *text); /* what open_memstream() opened; dies if some of it is missing */

/* ---- input and output ---- */

/* PROMPT argument, -f FILE, or stdin when it is no terminal ("-" is stdin in both); fresh, *length bytes. NULL if none
 * was given. */
char *read_prompt(const char *argument, const char *file, size_t *length);
/* Replaces \n, \t, \r, \e, \\, \xHH and \u{HEX} in place; returns the new length. */
size_t expand_escapes(char *text, size_t length);
int *parse_ids(const char *text, size_t *n); /* "1,2,3"; dies with usage on anything else */

/* A prompt as commands take it: PROMPT, -f FILE or standard input, or --ids. */
typedef struct {
    const char *file, *ids;
    bool escapes;
} PromptArguments;

/* Rows for a command's table of options. */
#define PROMPT_OPTIONS(p)                                                                                         \
    {'f', "file", "FILE", OPTION_TEXT, &(p).file, "the prompt from FILE, every byte of it; - is standard input"}, \
    {0, "ids", "1,2,3", OPTION_TEXT, &(p).ids, "token ids instead of a text; works without a tokenizer"},         \
    {'e', "escapes", NULL, OPTION_FLAG, &(p).escapes, "turn \\n, \\t, \\xHH, \\u{HEX} in the prompt into characters"}

/* The prompt's text, fresh; NULL with --ids. Ends with exit 2 if there is none, or more than one. argument: or NULL. */
char *prompt_text(const PromptArguments *p, const char *argument, size_t *length);

/* A file that appears under its name only when it is whole: written beside it, fsynced, renamed. What exists and is no
 * regular file (a pipe, /dev/stdout) is written directly; "-" is stdout. One at a time; removed by die() and on
 * interrupts. */
typedef struct {
    FILE *f;
    char *path, *temporary; /* temporary: NULL when written directly */
} OutFile;
void out_open(OutFile *o, const char *path); /* dies */
void out_commit(OutFile *o); /* dies, and leaves what was there before */

/* ---- a model opened for running: weights, tokenizer, state ---- */

typedef struct {
    Checkpoint checkpoint;
    Model model;
    Tokenizer *tokenizer; /* NULL when there is none and it was not demanded */
    RunState state;
    double load_seconds;
    uint64_t weight_bytes; /* read for one token */
    bool holds_16_bits;    /* the file's matrices are BF16 or F16 */
} Session;

/* Opens what -m names (or the default) by the common options: starts the pool, loads weights, reads the tokenizer. Dies
 * on failure. all_logits: logits of every position, in blocks small enough that they take little memory. */
void session_open(Session *s, bool need_tokenizer, bool all_logits);
void session_close(Session *s);
/* The kernels that RUN_ISA names, and the threads of --threads or of the machine; dies. session_open() does it. */
void start_pool(void);
Tokenizer *open_tokenizer(void); /* of -m, without weights; dies on failure */
/* Opens the weights that model names (NULL: the default) without loading them; dies. */
void open_checkpoint(Checkpoint *c, const char *model);
/* Is path a file that the model consists of? Such are not replaced by what a command writes. */
bool is_model_file(const Checkpoint *c, const char *path);
void check_sizes(const Checkpoint *c); /* dies if a file was cut since: what was read of it is wrong then */
void session_check(const Session *s);  /* the same, if the weights are read where they lie in the file */

void check_ids(const Session *s, const int *ids, size_t n); /* every id below vocab_size, n within the context; dies */
/* Prompt text, or --ids, as ids that were checked; an empty text is the begin token. */
IdList session_prompt(Session *s, const char *text, size_t length, const char *ids);
/* Runs ids through the network in blocks, on from where the state is; with the logits after the last one (of the last
 * block if all_logits). Shows progress; ends the program when interrupted. */
const float *session_forward(Session *s, const int *ids, size_t n);

/* The default of --ctx: max_position_embeddings, times the factor of rope scaling. */
size_t usual_context(const Config *c);
const char *weight_mode_name(WeightMode mode); /* "f32" */
uint64_t cache_bytes(const Config *c, size_t positions); /* keys and values that one token at this position reads */
/* GB/s at which this pool's threads read the weights where they lie, at most limit bytes of them. */
double read_bandwidth(const Session *s, uint64_t limit);

/* Softmax over logits[n] in double: the largest logit and the logarithm of the sum of exp(logit - largest). -1 if they
 * are not finite. */
int log_sum_exp(const float *logits, size_t n, float *largest, double *log_sum);
typedef struct {
    int id;
    float logit;
    double probability;
} Ranked;
/* The `count` (<= n) most likely ids, best first, lower ids first among equals, into out [n]. -1: not finite. */
int rank_logits(const float *logits, size_t n, size_t count, Ranked *out);

/* ---- what generate and chat share: commands/generate.c ---- */

typedef struct {
    double temperature, top_p, min_p, repeat_penalty; /* -1: not given */
    size_t top_k; /* SIZE_MAX: not given */
    uint64_t seed;
    bool greedy;
} SamplingArguments;

/* Rows for a command's table of options. */
#define SAMPLING_OPTIONS(a)                                                                                    \
    {0, "temperature", "T", OPTION_NUMBER, &(a).temperature, "below 1 sharper, above 1 wilder; 0: greedy"},    \
    {0, "top-k", "K", OPTION_SIZE, &(a).top_k, "choose among the K likeliest; 0: all"},                        \
    {0, "top-p", "P", OPTION_NUMBER, &(a).top_p, "choose among the likeliest that together reach P"},          \
    {0, "min-p", "P", OPTION_NUMBER, &(a).min_p, "drop what is less than P times as likely as the likeliest"}, \
    {0, "repeat-penalty", "R", OPTION_NUMBER, &(a).repeat_penalty, "above 1: repetition becomes less likely"}, \
    {0, "seed", "N", OPTION_U64, &(a).seed, "same seed, same text, everywhere (default: random, printed)"},    \
    {0, "greedy", NULL, OPTION_FLAG, &(a).greedy, "always the likeliest token"}

SamplingArguments sampling_arguments(void); /* none given, a random seed */
void check_sampling(const SamplingArguments *a); /* values out of range end with exit 2 */

/* How to sample and what ends an answer: what was asked for, over what generation_config.json recommends. */
typedef struct {
    SampleOptions sampling;
    int eos[17]; /* generation_config.json's 16, and the end of a chat turn */
    size_t n_eos;
} Choosing;
Choosing choose_sampling(const Session *s, const SamplingArguments *a, bool chat);
Sampler open_sampler(const Session *s, const SampleOptions *o); /* never chooses ids that the tokenizer doesn't know */
/* After logits that are not finite: runs their token again, to find the first step that makes NaN or infinity of the
 * last position's numbers. */
bool find_not_finite(Session *s, int token, char where[64]);

/* The statistics line on stderr, not with -q. */
void print_statistics(const Session *s, const Generated *g, size_t n_prompt, const SampleOptions *o);
void write_generated_json(const Session *s, const Generated *g, const IdList *prompt, uint64_t seed);

/* ---- the parts of `run info`: commands/info.c ---- */

/* In a pattern * is any text and ? any character; NULL matches all. */
bool name_matches(const char *pattern, const char *name, size_t length);
/* The two lines of a tensor: name, three spaces, type and shape; where its bytes are in the data part. */
void print_tensor(const SafetensorsTensor *t);
/* What the reference library lets pass, though its own rules forbid it: a line on stderr for each kind. */
void info_warnings(const SafetensorsFile *f);
void info_summary(const Checkpoint *c); /* sizes, counts, dtypes, metadata, files */
void info_map(const Checkpoint *c); /* the three parts, and who shares the data; as wide as the terminal */
void info_model(Checkpoint *c); /* config, tokenizer, and whether it fits the memory */
void info_json(Checkpoint *c, const char *find);

#endif
