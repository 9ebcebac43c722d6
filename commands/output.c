#include "commands/output.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/unicode.h"
#include "commands/terminal.h"

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static void *checked(void *memory)
{
    if (!memory)
        die(EXIT_FAILED, "out of memory");
    return memory;
}

void *xmalloc(size_t size)
{
    return checked(malloc(MAX(size, 1)));
}

void *xcalloc(size_t n, size_t size)
{
    return checked(calloc(MAX(n, 1), size));
}

void *xrealloc(void *memory, size_t size)
{
    return checked(realloc(memory, size));
}

char *xstrdup(const char *text)
{
    return checked(strdup(text));
}

char *xpath_join(const char *folder, const char *name)
{
    return checked(path_join(folder, name));
}

void xappend(Text *text, const char *bytes, size_t length)
{
    if (text_append(text, bytes, length) != 0)
        die(EXIT_FAILED, "out of memory");
}

void xappend_id(IdList *list, int id)
{
    if (id_list_append(list, id) != 0)
        die(EXIT_FAILED, "out of memory");
}

FILE *xopen_memory(char **text, size_t *length)
{
    *text = NULL;
    return checked(open_memstream(text, length));
}

void xclose_memory(FILE *f, char *const *text)
{
    bool failed = ferror(f);
    if (fclose(f) || failed || !*text)
        die(EXIT_FAILED, "out of memory");
}

/* ---- text -------------------------------------------------------------------------------------------------------- */

void print_name(const char *name)
{
    print_escaped(stdout, name, strlen(name));
}

char *escaped(const char *text, size_t length)
{
    char *out;
    FILE *f = xopen_memory(&out, &(size_t){0});
    print_escaped(f, text, length);
    xclose_memory(f, &out);
    return out;
}

const char *plural(uint64_t n)
{
    return n == 1 ? "" : "s";
}

const char *human_bytes(uint64_t bytes, char out[32])
{
    static const char *const units[] = {"kB", "MB", "GB", "TB", "PB", "EB"};
    if (bytes < 1000) {
        snprintf(out, 32, "%d byte%s", (int)bytes, plural(bytes));
        return out;
    }
    double value = (double)bytes / 1000;
    size_t unit = 0;
    while (value >= 999.95 && unit + 1 < COUNT_OF(units)) {
        value /= 1000;
        unit++;
    }
    snprintf(out, 32, "%.1f %s", value, units[unit]);
    return out;
}

/* How many bytes of text fit into that many columns; *width is the columns that they take. */
static size_t fit_columns(const char *text, int columns, int *width)
{
    size_t length = strlen(text), i = 0;
    for (*width = 0; i < length;) {
        uint32_t c;
        size_t size = unicode_decode(text + i, length - i, &c);
        if (*width + unicode_width(c) > columns)
            break;
        *width += unicode_width(c);
        i += size;
    }
    return i;
}

void print_token(const Tokenizer *t, int id, int columns)
{
    size_t length = 0;
    const char *piece = t ? tokenizer_piece(t, id, &length) : NULL;
    if (!piece || !length) {
        char number[16];
        snprintf(number, sizeof number, "<%d>", id);
        printf("%-*s", columns, number);
        return;
    }
    char *text = escaped(piece, length);
    int room = columns ? columns - 2 : INT_MAX, width;
    size_t shown = fit_columns(text, room, &width);
    const char *dots = text[shown] ? "..." : "";
    if (*dots)
        shown = fit_columns(text, room - 3, &width);
    int padding = columns ? room - width - (int)strlen(dots) : 0;
    printf("\"%.*s%s\"%*s", (int)shown, text, dots, MAX(padding, 0), "");
    free(text);
}

int text_columns(const char *text)
{
    int width;
    fit_columns(text, INT_MAX, &width);
    return width;
}

int print_end(const char *name, int columns)
{
    int width = text_columns(name), left = width;
    const char *dots = width > columns ? "..." : "";
    while (left > columns - (int)strlen(dots)) {
        uint32_t c;
        name += unicode_decode(name, strlen(name), &c);
        left -= unicode_width(c);
    }
    printf("%s%s", dots, name);
    return MAX(columns - (int)strlen(dots) - left, 0);
}

void print_wrapped(const char *text, size_t length, int column, int indent, int width)
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

void print_field(const char *label, const char *fmt, ...)
{
    enum { INDENT = 16 };
    char text[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    printf("%-*s", INDENT, label);
    print_wrapped(text, strlen(text), INDENT, INDENT, isatty(STDOUT_FILENO) ? terminal_width(stdout) : INT_MAX);
}

void print_tensor(const SafetensorsTensor *t)
{
    bool color = use_color(stdout);
    fputs(color ? "\033[1m" : "", stdout);
    print_escaped(stdout, t->name, t->name_length);
    bool narrow = terminal_is_narrow();
    printf("%s%s   dtype=%s  shape=", color ? "\033[0m" : "", narrow ? "\n" : "", dtype_name(t->dtype));
    shape_print(stdout, t->shape, t->rank);
    printf("\n%*sdata[%" PRIu64 ", %" PRIu64 "]%s(%" PRIu64 " bytes)\n", narrow ? 3 : 28, "", t->offset,
           t->offset + t->length, narrow ? "\n   " : "   ", t->length);
}

void print_index(FILE *out, const SafetensorsTensor *t, uint64_t element)
{
    uint64_t *index = xcalloc(t->rank, sizeof *index);
    for (size_t i = t->rank; i-- > 0; element /= t->shape[i])
        index[i] = element % t->shape[i];
    fputc('[', out);
    for (size_t i = 0; i < t->rank; i++)
        fprintf(out, "%s%" PRIu64, i ? ", " : "", index[i]);
    fputc(']', out);
    free(index);
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

void write_string(const char *before, const char *text, size_t length)
{
    fputs(before, stdout);
    json_write_string(stdout, length ? text : "", length);
}

void write_name(const char *before, const char *name)
{
    if (name)
        write_string(before, name, strlen(name));
    else
        printf("%snull", before);
}

void write_number(const char *before, double value)
{
    fputs(before, stdout);
    json_write_double(stdout, value);
}

void write_ids(const char *before, const int *ids, size_t n)
{
    printf("%s[", before);
    for (size_t i = 0; i < n; i++)
        printf("%s%d", i ? "," : "", ids[i]);
    putchar(']');
}

void write_token(const char *before, const Tokenizer *t, int id)
{
    size_t length = 0;
    const char *piece = t ? tokenizer_piece(t, id, &length) : NULL;
    if (t)
        write_string(before, piece, piece ? length : 0);
    else
        printf("%snull", before);
}

void write_tensor(const char *before, const SafetensorsTensor *t)
{
    printf("%s\"name\":", before);
    json_write_string(stdout, t->name, t->name_length);
    printf(",\"dtype\":\"%s\",\"shape\":", dtype_name(t->dtype));
    shape_print(stdout, t->shape, t->rank);
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

static void out_end(OutFile *o)
{
    unfinished_file = NULL;
    new_file_end(&o->file);
    free(o->path);
    *o = (OutFile){0};
}

static FILE *open_new_file(OutFile *o, bool replace, char err[512])
{
    char *real = replace ? realpath(o->path, NULL) : NULL; /* the file itself, not a symbolic link to it */
    int status = new_file_open(&o->file, real ? real : o->path, replace, err);
    free(real);
    if (status != 0)
        return NULL;
    unfinished_file = o->file.part;
    int fd = fcntl(o->file.fd, F_DUPFD_CLOEXEC, 0);
    FILE *stream = fd < 0 ? NULL : fdopen(fd, "wb");
    if (!stream)
        fail(err, "%s: %s", o->path, strerror(errno));
    return stream;
}

/* A pipe or a device. Nothing waits for a pipe's other end. */
static FILE *open_special(const char *path)
{
    int fd = open(path, O_WRONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return NULL;
    fcntl(fd, F_SETFL, 0);
    return fdopen(fd, "wb");
}

int out_open(OutFile *o, const char *path, bool replace, char err[512])
{
    struct stat info;
    bool is_stdout = !strcmp(path, "-");
    *o = (OutFile){.path = xstrdup(is_stdout ? "standard output" : path)};
    if (is_stdout) {
        o->stream = stdout;
    } else if (stat(path, &info) == 0 && !S_ISREG(info.st_mode)) {
        o->stream = open_special(path);
        if (!o->stream)
            fail(err, "%s: %s", path, errno == ENXIO ? "nothing reads from this pipe" : strerror(errno));
    } else {
        o->stream = open_new_file(o, replace, err);
    }
    if (o->stream)
        return 0;
    out_end(o);
    return -1;
}

int out_commit(OutFile *o, char err[512])
{
    int status = 0;
    if (fflush(o->stream) != 0 || ferror(o->stream))
        status = fail(err, "%s: could not be written: %s", o->path, strerror(errno));
    if (o->stream != stdout && fclose(o->stream) != 0 && status == 0)
        status = fail(err, "%s: could not be written: %s", o->path, strerror(errno));
    if (status == 0 && o->file.path && (new_file_finish(&o->file, err) || new_files_publish(&o->file, 1, err)))
        status = -1;
    out_end(o);
    return status;
}
