/* The table of options of a command: what parses it also prints it as --help. */
#include "commands/common.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

Common common = {.block = 512};

/* ---- the nearest name -------------------------------------------------------------------------------------------- */

size_t edit_distance(const char *a, size_t a_length, const char *b, size_t b_length)
{
    size_t rows[3][65]; /* the last two rows and the current one of the usual table */
    if (a_length > 64 || b_length > 64)
        return SIZE_MAX;
    for (size_t i = 0; i <= a_length; i++) {
        size_t *row = rows[i % 3], *above = rows[(i + 2) % 3], *above2 = rows[(i + 1) % 3];
        for (size_t j = 0; j <= b_length; j++) {
            if (!i || !j) {
                row[j] = i + j;
                continue;
            }
            bool same = a[i - 1] == b[j - 1];
            size_t best = above[j - 1] + !same;
            best = above[j] + 1 < best ? above[j] + 1 : best;
            best = row[j - 1] + 1 < best ? row[j - 1] + 1 : best;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && above2[j - 2] + 1 < best)
                best = above2[j - 2] + 1;
            row[j] = best;
        }
    }
    return rows[a_length % 3][b_length];
}

bool nearly(size_t length, size_t distance)
{
    return distance <= (length < 3 ? 1 : length < 7 ? 2 : 3);
}

/* ---- tables ------------------------------------------------------------------------------------------------------ */

static const Option common_table[] = {
    {'m', "model", "PATH", OPTION_TEXT, &common.model,
     "folder, .safetensors file, index.json, or hub id in the local Hugging Face cache (default: the current folder, "
     "else the demo model)"},
    {'w', "weights", "MODE", OPTION_TEXT, &common.weights,
     "f32 (default), bf16: as they lie in the file, same text; q8, q4: quantised"},
    {'t', "threads", "N", OPTION_COUNT, &common.threads, "default: the cores that this process may use"},
    {0, "ctx", "N", OPTION_COUNT, &common.ctx,
     "most positions, prompt and answer (default: max_position_embeddings, times the factor of rope scaling)"},
    {0, "block", "N", OPTION_COUNT, &common.block, "tokens of the prompt at a time (512); the result is the same"},
    {0, "fast", NULL, OPTION_FLAG, &common.fast, "the prompt's products may round their inputs to BF16"},
    {0, "no-mmap", NULL, OPTION_FLAG, &common.no_mmap, "read the weights into memory instead of mapping the file"},
    {0, "json", NULL, OPTION_FLAG, &common.json, "one JSON document on standard output"},
    {0},
};
static const Option quiet_table[] = {
    {'q', "quiet", NULL, OPTION_FLAG, &common.quiet, "no notices, progress or statistics"},
    {'h', "help", NULL, OPTION_FLAG, NULL, "this text"},
    {0},
};

typedef struct {
    const Option *tables[3]; /* the command's, the common ones, quiet; searched in this order */
    size_t n_tables;
    const char *usage, *examples;
    int max_list; /* most items that a list can get */
} Parser;

static const Option *find_option(const Parser *p, const char *name, size_t length, char short_name)
{
    for (size_t t = 0; t < p->n_tables; t++)
        for (const Option *o = p->tables[t]; o->name; o++)
            if (short_name ? o->short_name == short_name : strlen(o->name) == length && !memcmp(o->name, name, length))
                return o;
    return NULL;
}

_Noreturn static void unknown_option(const Parser *p, const char *name, size_t length)
{
    const char *best = NULL;
    size_t least = SIZE_MAX;
    for (size_t t = 0; t < p->n_tables; t++)
        for (const Option *o = p->tables[t]; o->name; o++) {
            size_t d = edit_distance(name, length, o->name, strlen(o->name));
            if (length >= 3 && !strncmp(o->name, name, length))
                d = 1; /* the beginning of a name */
            if (d < least && nearly(length, d)) {
                least = d;
                best = o->name;
            }
        }
    if (best)
        usage_error("unknown option --%.*s: did you mean --%s?", (int)(length < 64 ? length : 64), name, best);
    usage_error("unknown option --%.*s", (int)(length < 64 ? length : 64), name);
}

/* ---- values ------------------------------------------------------------------------------------------------------ */

/* A whole number without sign, spaces or anything after it; *end is where its digits end. */
static int parse_u64(const char *text, uint64_t *out, char **end)
{
    errno = 0;
    if (*text < '0' || *text > '9')
        return -1;
    unsigned long long n = strtoull(text, end, 10);
    *out = n;
    return errno ? -1 : 0;
}

static int parse_bytes(const char *text, uint64_t *out)
{
    static const struct {
        const char *name;
        uint64_t factor;
    } units[] = {
        {"", 1},
        {"B", 1},
        {"K", 1000},
        {"KB", 1000},
        {"kB", 1000},
        {"M", 1000000},
        {"MB", 1000000},
        {"G", 1000000000},
        {"GB", 1000000000},
        {"T", 1000000000000},
        {"TB", 1000000000000},
        {"KiB", 1u << 10},
        {"MiB", 1u << 20},
        {"GiB", 1u << 30},
        {"TiB", (uint64_t)1 << 40},
    };
    char *end;
    if (parse_u64(text, out, &end))
        return -1;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (!strcmp(end, units[i].name))
            return __builtin_mul_overflow(*out, units[i].factor, out) ? -1 : 0;
    return -1;
}

static int parse_number(const char *text, double *out)
{
    char *end;
    if ((*text < '0' || *text > '9') && *text != '.')
        return -1;
    if (text[strspn(text, "0123456789.eE+-")])
        return -1; /* no hexadecimal */
    errno = 0;
    *out = strtod(text, &end);
    return *end || end == text || !isfinite(*out) ? -1 : 0;
}

static void add_to_list(TextList *list, const char *value, int max_list)
{
    static struct Kept {
        struct Kept *next;
        const char **items;
    } *kept;
    if (!list->items) {
        struct Kept *k = must(malloc(sizeof *k));
        *k = (struct Kept){kept, must(calloc((size_t)max_list, sizeof *k->items))};
        kept = k;
        list->items = k->items;
    }
    list->items[list->count++] = value;
}

/* as: the option as the user wrote it, for messages. */
static void set_option(const Parser *p, const Option *o, const char *as, const char *value)
{
    char *end;
    uint64_t n = 0;
    switch (o->type) {
    case OPTION_FLAG:
        *(bool *)o->value = true;
        break;
    case OPTION_TEXT:
        *(const char **)o->value = value;
        break;
    case OPTION_LIST:
        add_to_list(o->value, value, p->max_list);
        break;
    case OPTION_SIZE:
    case OPTION_COUNT:
    case OPTION_U64:
        if (parse_u64(value, &n, &end) || *end || (o->type == OPTION_COUNT && !n))
            usage_error("%s: '%.100s' is not a whole number of %d or more%s", as, value, o->type == OPTION_COUNT,
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
            usage_error("%s: '%.100s' is not a size such as 500MB, 2GB or 2GiB", as, value);
        break;
    case OPTION_NUMBER:
        if (parse_number(value, o->value))
            usage_error("%s: '%.100s' is not a number of 0 or more", as, value);
        break;
    }
}

/* ---- --help ------------------------------------------------------------------------------------------------------ */

static const Command *this_command(void)
{
    const Command *c = commands;
    while (c->name && !(command_name && !strcmp(c->name, command_name)))
        c++;
    return c->name ? c : NULL;
}

/* A line of text, its words broken at `width`, each line after the first indented. */
static void print_wrapped(const char *text, size_t length, int column, int indent, int width)
{
    for (size_t i = 0; i < length;) {
        size_t spaces = strspn(text + i, " \n"), word = strcspn(text + i + spaces, " \n");
        if (!word)
            break;
        if (i && column + (int)(spaces + word) > width) {
            printf("\n%*s", indent, "");
            column = indent;
            i += spaces;
            spaces = 0;
        }
        column += printf("%*s%.*s", (int)spaces, "", (int)word, text + i + spaces);
        i += spaces + word;
    }
    putchar('\n');
}

static void print_option(const Option *o, int width)
{
    enum { HELP_COLUMN = 28 };
    char left[64];
    int n =
        snprintf(left, sizeof left, "  %c%c%s --%s%s%s", o->short_name ? '-' : ' ', o->short_name ? o->short_name : ' ',
                 o->short_name ? "," : " ", o->name, o->value_name ? " " : "", o->value_name ? o->value_name : "");
    printf("%-*s", HELP_COLUMN, left);
    if (n > HELP_COLUMN - 2)
        printf("\n%*s", HELP_COLUMN, "");
    print_wrapped(o->help, strlen(o->help), HELP_COLUMN, HELP_COLUMN, width);
}

/* Examples, a line each; after an empty line what else there is to say, wrapped. */
static void print_examples(const char *text, int width)
{
    size_t length;
    printf("\nexamples:\n");
    for (; (length = strcspn(text, "\n")); text += length + (text[length] == '\n'))
        printf("  %.*s\n", (int)length, text);
    if (*text++ == '\n') {
        putchar('\n');
        print_wrapped(text, strlen(text), 0, 0, width);
    }
}

static void print_usage(const char *usage, int width)
{
    const Command *c = this_command();
    if (!usage)
        printf("usage: run %s [options]%s%s\n", command_name, c && *c->arguments ? " " : "", c ? c->arguments : "");
    for (const char *line = usage; line && *line;) {
        size_t length = strcspn(line, "\n");
        printf("%s", line == usage ? "usage: " : "       ");
        print_wrapped(line, length, 7, 11, width);
        line += length + (line[length] == '\n');
    }
    if (c)
        printf("\n%s\n", c->summary);
}

_Noreturn static void print_help(const Parser *p)
{
    int width = terminal_width(stdout);
    width = width > 100 ? 100 : width < 50 ? 50 : width;
    print_usage(p->usage, width);
    for (size_t t = 0; t < p->n_tables; t++) {
        if (p->tables[t]->name && t < 2)
            printf("\n%s\n", !t ? "options:" : "common options:");
        for (const Option *o = p->tables[t]; o->name; o++)
            if (find_option(p, o->name, strlen(o->name), 0) == o)
                print_option(o, width);
    }
    if (p->examples)
        print_examples(p->examples, width);
    exit(finish(EXIT_OK));
}

/* ---- argv -------------------------------------------------------------------------------------------------------- */

/* --name, --name=value or --name value. Returns how many of argv it took. */
static int parse_long(const Parser *p, char **argv)
{
    const char *name = argv[0] + 2, *equals = strchr(name, '=');
    size_t length = equals ? (size_t)(equals - name) : strlen(name);
    const Option *o = find_option(p, name, length, 0);
    char as[80];
    if (!o)
        unknown_option(p, name, length);
    snprintf(as, sizeof as, "--%s", o->name);
    if (o->type == OPTION_FLAG) {
        if (equals)
            usage_error("%s takes no value", as);
        if (!o->value)
            print_help(p);
        set_option(p, o, as, NULL);
        return 1;
    }
    if (!equals && !argv[1])
        usage_error("%s needs a value %s", as, o->value_name);
    set_option(p, o, as, equals ? equals + 1 : argv[1]);
    return equals ? 1 : 2;
}

/* -a, -abc (flags), -n5, -n 5. Returns how many of argv it took. */
static int parse_short(const Parser *p, char **argv)
{
    for (const char *c = argv[0] + 1; *c; c++) {
        const Option *o = find_option(p, NULL, 0, *c);
        char as[4] = {'-', *c, 0};
        if (!o)
            usage_error("unknown option -%c", *c);
        if (o->type == OPTION_FLAG) {
            if (!o->value)
                print_help(p);
            set_option(p, o, as, NULL);
            continue;
        }
        if (c[1]) {
            set_option(p, o, as, c[1] == '=' ? c + 2 : c + 1);
            return 1;
        }
        if (!argv[1])
            usage_error("%s needs a value %s", as, o->value_name);
        set_option(p, o, as, argv[1]);
        return 2;
    }
    return 1;
}

int options_parse(int argc, char **argv, const Option *options, bool with_model, const char *usage,
                  const char *examples)
{
    static const Option none[] = {{0}};
    Parser p = {{options ? options : none, with_model ? common_table : none, quiet_table}, 3, usage, examples, argc};
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
    return count;
}

void arguments_at_most(int count, int max, char **argv)
{
    if (count > max)
        usage_error("too many arguments: '%.100s'", argv[max + 1]);
}
