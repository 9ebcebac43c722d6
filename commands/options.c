#include "commands/options.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "commands/output.h"
#include "commands/terminal.h"

Common common = {.block = 512};

/* ---- the nearest word -------------------------------------------------------------------------------------------- */

/* How many single changes (insert, drop, replace, swap of neighbors) lead from one word to the other; when there are
 * more than `most`, some number above it. */
static size_t edit_distance(const char *a, size_t a_length, const char *b, size_t b_length, size_t most)
{
    for (; a_length && b_length && *a == *b; a_length--, b_length--) {
        a++;
        b++;
    }
    if (!a_length || !b_length || !most)
        return MAX(a_length, b_length);
    size_t dropped = edit_distance(a + 1, a_length - 1, b, b_length, most - 1);
    size_t inserted = edit_distance(a, a_length, b + 1, b_length - 1, most - 1);
    size_t best = edit_distance(a + 1, a_length - 1, b + 1, b_length - 1, most - 1);
    best = MIN(best, MIN(dropped, inserted));
    if (a_length > 1 && b_length > 1 && a[0] == b[1] && a[1] == b[0]) {
        size_t swapped = edit_distance(a + 2, a_length - 2, b + 2, b_length - 2, most - 1);
        best = MIN(best, swapped);
    }
    return best + 1;
}

Nearest nearest_to(const char *typed, size_t length)
{
    return (Nearest){typed, length, SIZE_MAX};
}

bool nearest_offer(Nearest *n, const char *word, size_t length)
{
    size_t most = n->length < 7 ? 2 : 3;
    if (n->length < 5)
        most = n->length > 1 ? 1 : 0;
    size_t distance = edit_distance(n->typed, n->length, word, length, most);
    if (n->length >= 3 && n->length < length && !memcmp(n->typed, word, n->length))
        distance = 1; /* the beginning of the word */
    if (distance > most || distance >= n->distance)
        return false;
    n->distance = distance;
    return true;
}

/* ---- what other programs call it --------------------------------------------------------------------------------- */

/* Words that people know from elsewhere. They are errors that name ours, never second names that work. */
typedef struct {
    const char *words; /* what is typed, with spaces between */
    const char *ours;  /* applies to commands with this option, or with these arguments; NULL: to all */
    const char *say;   /* to be typed as the argument; or, when ours is NULL, a sentence */
} OtherName;

/* The first row that applies counts. */
static const OtherName other_options[] = {
    {"max-new-tokens n-predict num-predict max-length", "max-tokens", NULL},
    {"temp", "temperature", NULL},
    {"repetition-penalty", "repeat-penalty", NULL},
    {"c ctx-size n-ctx num-ctx context max-seq-len", "ctx", NULL},
    {"b batch-size", "block", NULL},
    {"dtype torch-dtype precision quantize", "weights", NULL},
    {"n-threads num-threads", "threads", NULL},
    {"verify", "check", NULL},
    {"filter", "find", NULL},
    {"system-prompt", "system", NULL},
    {"k", "top-k", NULL},
    {"k n", "top", NULL},
    {"f overwrite", "force", NULL},
    {"p prompt text", "[PROMPT]", "'TEXT'"},
    {"p prompt text", "[TEXT]", "'TEXT'"},
    {"model-path", "model", NULL},
    {"m model model-path", "[MODEL]", "MODEL"},
    {"m model model-path o out output", "MODEL DIR", "MODEL DIR"},
    {"m model model-path o out output", "MODEL FILE", "MODEL FILE"},
    {"m model model-path o out output", "FILE", "FILE"},
    {"o output", "out", NULL},
    {"o out output", NULL, "the answer goes to standard output: add > FILE"},
    {"device n-gpu-layers ngl", NULL, "everything runs on the CPU"},
    {"i interactive", NULL, "run chat is interactive"},
    {"color no-color", NULL, "colors are for terminals only, and not with NO_COLOR=1 in the environment"},
    {"json", NULL, "run chat has --jsonl; its /save FILE writes JSON, too"},
    {"v verbose V version", NULL, "run --version prints the version"},
};
static const OtherName other_commands[] = {
    {"run complete completion", NULL, "did you mean generate?"},
    {"ls list show inspect validate check", NULL, "did you mean info?"},
    {"verify sha256sum", NULL, "did you mean hash --check?"},
    {"encode decode", NULL, "did you mean tokenize?"},
    {"ppl eval", NULL, "did you mean perplexity?"},
    {"compare", NULL, "did you mean diff?"},
    {"serve server", NULL, "there is no server; generate and chat run a model"},
    {"convert quantize", NULL, "models run as they are; -w q8 or -w q4 quantizes them when they are loaded"},
    {"pull download", NULL, "download.sh fetches models"},
    {"version", NULL, "run --version prints the version"},
};

/* Does one of the row's words become the nearest one? */
static bool offer_words(const OtherName *row, Nearest *n)
{
    bool nearer = false;
    for (const char *word = row->words; *word;) {
        size_t length = strcspn(word, " ");
        if (nearest_offer(n, word, length))
            nearer = true;
        word += length + strspn(word + length, " ");
    }
    return nearer;
}

const char *nearest_other_command(Nearest *n)
{
    const char *say = NULL;
    for (size_t i = 0; i < COUNT_OF(other_commands); i++)
        if (offer_words(&other_commands[i], n))
            say = other_commands[i].say;
    return say;
}

/* ---- tables ------------------------------------------------------------------------------------------------------ */

static const Option common_table[] = {
    {'m', "model", "MODEL", OPTION_TEXT, &common.model, "a folder, file or cached hub id, as run --help tells"},
    {'w', "weights", "MODE", OPTION_TEXT, &common.weights,
     "f32; bf16: the same text about twice as fast; q8, q4: quantized (default: RUN_WEIGHTS, else f32)"},
    THREADS_OPTION,
    {0, "ctx", "N", OPTION_COUNT, &common.ctx, "tokens of prompt and answer (default: model's limit)"},
    {0, "block", "N", OPTION_COUNT, &common.block, "read the prompt in blocks of N tokens (default 512)"},
    {0, "kv", "TYPE", OPTION_TEXT, &common.kv, "keys and values: f32, or f16 (default of q8 and q4)"},
    {0, "fast", NULL, OPTION_FLAG, &common.fast, "allow rounding to BF16 while the prompt is read"},
    {0, "no-mmap", NULL, OPTION_FLAG, &common.no_mmap, "read the file into memory instead of mapping it"},
    {0},
};
static const Option quiet_table[] = {
    {'q', "quiet", NULL, OPTION_FLAG, &quiet, "print no notices, progress or statistics"},
    {'h', "help", NULL, OPTION_FLAG, NULL, "print this text"},
    {0},
};

typedef struct {
    const Option *tables[3]; /* the command's, the common ones, quiet; searched in this order */
    const char *usage, *examples;
    const Option *given[64]; /* with a value; each once */
    size_t n_given;
    const Option *repeated; /* NULL, or one that was given twice */
} Parser;

/* By its long name, or with short_name by that. */
static const Option *find_option(const Parser *p, const char *name, size_t length, char short_name)
{
    for (size_t t = 0; t < COUNT_OF(p->tables); t++)
        for (const Option *o = p->tables[t]; o->name; o++)
            if (short_name ? o->short_name == short_name : strlen(o->name) == length && !memcmp(o->name, name, length))
                return o;
    return NULL;
}

static bool applies(const Parser *p, const OtherName *row)
{
    return !row->ours || !strcmp(row->ours, this_command->arguments) || find_option(p, row->ours, strlen(row->ours), 0);
}

/* What an unknown option could mean. */
typedef struct {
    const char *option;     /* ours; NULL: none is near */
    const OtherName *other; /* NULL, or nearer than that */
    size_t distance;
} Guess;

static Guess guess_option(const Parser *p, const char *name, size_t length)
{
    Nearest nearest = nearest_to(name, length);
    Guess g = {0};
    for (size_t t = 0; t < COUNT_OF(p->tables); t++)
        for (const Option *o = p->tables[t]; o->name; o++)
            if (nearest_offer(&nearest, o->name, strlen(o->name)))
                g.option = o->name;
    for (size_t i = 0; i < COUNT_OF(other_options); i++)
        if (applies(p, &other_options[i]) && offer_words(&other_options[i], &nearest))
            g.other = &other_options[i];
    g.distance = nearest.distance;
    return g;
}

/* typed: the option with its dashes; name: without, `length` bytes. */
_Noreturn static void refuse_option(const Parser *p, const char *typed, const char *name, size_t length)
{
    Guess g = guess_option(p, name, length);
    int shown = (int)MIN(length + strspn(typed, "-"), 64);
    if (g.other && !g.other->ours)
        usage_error("unknown option '%.*s': %s", shown, typed, g.other->say);
    if (g.other && g.other->say)
        usage_error("unknown option '%.*s': give it as an argument: run %s %s", shown, typed, this_command->name,
                    g.other->say);
    if (g.other || g.option)
        usage_error("unknown option '%.*s': did you mean --%s?", shown, typed, g.other ? g.other->ours : g.option);
    bool is_argument = typed[1] != '-' && this_command->most > 0;
    usage_error("unknown option '%.*s'%s", shown, typed,
                is_argument ? "; put -- before an argument that begins with -" : "");
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

/* A whole number without sign or spaces; *end is where its digits end. */
static int parse_u64(const char *text, uint64_t *out, char **end)
{
    errno = 0;
    if (*text < '0' || *text > '9')
        return -1;
    unsigned long long n = strtoull(text, end, 10);
    *out = n;
    return errno ? -1 : 0;
}

/* "2GB", "2 GB", "2gb": powers of 1000; "2GiB": of 1024. A bare number is refused: of what? */
static int parse_bytes(const char *text, uint64_t *out)
{
    static const char units[] = "bkmgt";
    char *end;
    if (parse_u64(text, out, &end))
        return -1;
    end += *end == ' ' ? 1 : 0;
    const char *unit = *end ? strchr(units, tolower((unsigned char)*end)) : NULL;
    if (!unit)
        return -1;
    end++;
    bool binary = unit > units && tolower((unsigned char)*end) == 'i', has_b = unit == units;
    end += binary ? 1 : 0;
    if (!has_b && tolower((unsigned char)*end) == 'b')
        end++;
    for (; unit > units; unit--)
        if (__builtin_mul_overflow(*out, binary ? 1024 : 1000, out))
            return -1;
    return *end ? -1 : 0;
}

static int parse_number(const char *text, double *out)
{
    char *end;
    if ((*text < '0' || *text > '9') && *text != '.')
        return -1;
    if (text[strspn(text, "0123456789.eE+-")])
        return -1; /* hexadecimal, which strtod() would take */
    *out = strtod(text, &end);
    return *end || end == text || !isfinite(*out) ? -1 : 0;
}

/* as: the option as the user wrote it, for messages. */
static void set_option(const Option *o, const char *as, const char *value)
{
    char *end;
    TextList *list;
    uint64_t n = 0, least = o->type == OPTION_COUNT ? 1 : 0;
    if ((o->type == OPTION_TEXT || o->type == OPTION_LIST) && !*value)
        usage_error("%s: the value is empty", as);
    switch (o->type) {
    case OPTION_FLAG:
        *(bool *)o->value = true;
        break;
    case OPTION_TEXT:
    case OPTION_ANY:
        *(const char **)o->value = value;
        break;
    case OPTION_LIST:
        list = o->value;
        list->items = xrealloc(list->items, (list->count + 1) * sizeof *list->items);
        list->items[list->count++] = value;
        break;
    case OPTION_SIZE:
    case OPTION_COUNT:
    case OPTION_U64:
        if (parse_u64(value, &n, &end) || *end || n < least)
            usage_error("%s: '%.100s' is not a whole number of %d or more%s", as, value, (int)least,
                        errno == ERANGE ? " below 2^64" : "");
        if (o->type != OPTION_U64 && n > SIZE_MAX / 2)
            usage_error("%s: %.100s is too large", as, value);
        if (o->type == OPTION_U64)
            *(uint64_t *)o->value = n;
        else
            *(size_t *)o->value = (size_t)n;
        break;
    case OPTION_BYTES:
        if (parse_bytes(value, o->value))
            usage_error("%s: '%.100s' is not a size with a unit, such as 500MB, 2GB or 2GiB", as, value);
        break;
    case OPTION_NUMBER:
        if (parse_number(value, o->value))
            usage_error("%s: '%.100s' is not a number of 0 or more", as, value);
        break;
    }
}

/* ---- --help ------------------------------------------------------------------------------------------------------ */

static void print_option(const Option *o, int width)
{
    enum { HELP_COLUMN = 26 };
    char dash[8] = "    ";
    if (o->short_name)
        snprintf(dash, sizeof dash, "-%c, ", o->short_name);
    int n = printf("  %s--%s%s%s", dash, o->name, o->value_name ? " " : "", o->value_name ? o->value_name : "");
    if (n > HELP_COLUMN - 2)
        printf("\n%*s", HELP_COLUMN, "");
    else
        printf("%*s", HELP_COLUMN - n, "");
    print_wrapped(o->help, strlen(o->help), HELP_COLUMN, HELP_COLUMN, width);
}

static void print_examples(const char *text, int width)
{
    size_t length;
    printf("\nexamples:\n");
    for (; (length = strcspn(text, "\n")); text += length + (text[length] ? 1 : 0))
        printf("  %.*s\n", (int)length, text);
    if (*text++ == '\n') {
        putchar('\n');
        print_wrapped(text, strlen(text), 0, 0, width);
    }
}

static void print_usage(const char *usage, int width)
{
    const char *arguments = this_command->arguments;
    if (!usage)
        printf("usage: run %s [options]%s%s\n", this_command->name, *arguments ? " " : "", arguments);
    for (const char *line = usage; line && *line;) {
        size_t length = strcspn(line, "\n");
        printf("%s", line == usage ? "usage: " : "       ");
        print_wrapped(line, length, 7, 11, width);
        line += length + (line[length] ? 1 : 0);
    }
    printf("\n%s\n", this_command->summary);
}

_Noreturn static void print_help(const Parser *p)
{
    static const char *const headings[] = {"\noptions:\n", "\ncommon options:\n", ""};
    int width = MAX(MIN(terminal_width(stdout), 100), 50);
    print_usage(p->usage, width);
    for (size_t t = 0; t < COUNT_OF(p->tables); t++) {
        fputs(p->tables[t]->name ? headings[t] : "", stdout);
        for (const Option *o = p->tables[t]; o->name; o++)
            if (find_option(p, o->name, strlen(o->name), 0) == o)
                print_option(o, width);
    }
    if (p->examples)
        print_examples(p->examples, width);
    exit(finish(EXIT_OK));
}

/* ---- argv -------------------------------------------------------------------------------------------------------- */

/* Remember that the option was given. */
static void note_given(Parser *p, const Option *o)
{
    for (size_t i = 0; i < p->n_given; i++)
        if (p->given[i] == o) {
            p->repeated = o;
            return;
        }
    if (p->n_given < COUNT_OF(p->given))
        p->given[p->n_given++] = o;
}

/* Set an option. Unless it is a flag, it has a value: attached to it, or (attached is NULL) the next argument. Returns
 * how many of argv were taken. */
static int take_option(Parser *p, const Option *o, const char *as, const char *attached, char **argv)
{
    bool flag = o->type == OPTION_FLAG, alone = flag || attached;
    if (flag && attached)
        usage_error("%s takes no value", as);
    if (!o->value)
        print_help(p);
    if (!alone && !argv[1])
        usage_error("%s needs a value %s", as, o->value_name);
    set_option(o, as, alone ? attached : argv[1]);
    if (!flag && o->type != OPTION_LIST)
        note_given(p, o);
    return alone ? 1 : 2;
}

/* --name, --name=value or --name value. */
static int parse_long(Parser *p, char **argv)
{
    const char *name = argv[0] + 2, *equals = strchr(name, '=');
    size_t length = equals ? (size_t)(equals - name) : strlen(name);
    const Option *o = find_option(p, name, length, 0);
    char as[80];
    if (!o)
        refuse_option(p, argv[0], name, length);
    snprintf(as, sizeof as, "--%s", o->name);
    return take_option(p, o, as, equals ? equals + 1 : NULL, argv);
}

/* -a, -abc (flags), -n5, -n=5 or -n 5. */
static int parse_short(Parser *p, char **argv)
{
    size_t length = strcspn(argv[0] + 1, "=");
    if (length > 1 && guess_option(p, argv[0] + 1, length).distance == 0) /* -model, say */
        refuse_option(p, argv[0], argv[0] + 1, length);
    for (const char *c = argv[0] + 1; *c; c++) {
        const Option *o = find_option(p, NULL, 0, *c);
        char as[4] = {'-', *c, 0};
        if (!o)
            refuse_option(p, as, c, 1);
        const char *attached = c[1] == '=' ? c + 2 : c + 1;
        bool last = o->type != OPTION_FLAG;
        int taken = take_option(p, o, as, last && c[1] ? attached : NULL, argv);
        if (last)
            return taken;
    }
    return 1;
}

int options_parse(int argc, char **argv, const Option *options, const char *usage, const char *examples)
{
    static const Option none[] = {{0}};
    Parser p = {.tables = {options, this_command->runs_model ? common_table : none, quiet_table},
                .usage = usage,
                .examples = examples};
    int count = 0;
    for (int i = 1; i < argc;) {
        const char *a = argv[i];
        if (!strcmp(a, "--")) {
            while (++i < argc)
                argv[++count] = argv[i];
        } else if (a[0] == '-' && a[1] == '-') {
            i += parse_long(&p, argv + i);
        } else if (a[0] == '-' && a[1]) {
            i += parse_short(&p, argv + i);
        } else {
            argv[++count] = argv[i++];
        }
    }
    if (p.repeated)
        notice("--%s is given more than once: the last one counts", p.repeated->name);
    if (count < this_command->least)
        usage_error("too few arguments: run %s %s", this_command->name, this_command->arguments);
    if (count > this_command->most && !this_command->most)
        usage_error("'%.100s': this command takes no arguments", argv[1]);
    if (count > this_command->most)
        usage_error("too many arguments: '%.100s'; quotes keep several words together", argv[this_command->most + 1]);
    return count;
}
