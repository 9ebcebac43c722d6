/* Messages, escaping, progress, prompts and output files: what every command needs of the terminal and the system. */
#include "commands/common.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/unicode.h"

const char *command_name;
volatile int interrupted;
void (*terminal_restore)(void);
char mapped_name[256];

/* ---- text -------------------------------------------------------------------------------------------------------- */

void *must(void *memory)
{
    if (!memory)
        die(EXIT_FAILED, "out of memory");
    return memory;
}

void close_memory(FILE *f, char *const *text)
{
    bool failed = ferror(f);
    if (fclose(f) || failed || !*text)
        die(EXIT_FAILED, "out of memory");
}

double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void print_visible(FILE *out, const char *text, size_t length, const char *keep)
{
    for (size_t i = 0; i < length;) {
        char unit[TEXT_VISIBLE];
        i += text_visible(text + i, length - i, keep, unit);
        fputs(unit, out);
    }
}

void print_escaped(FILE *out, const char *text, size_t length)
{
    print_visible(out, text, length, "");
}

char *escaped(const char *text, size_t length)
{
    Text t = {0};
    if (text_append(&t, "", 0))
        die(EXIT_FAILED, "out of memory");
    for (size_t i = 0; i < length;) {
        char unit[TEXT_VISIBLE];
        i += text_visible(text + i, length - i, "", unit);
        if (text_append(&t, unit, strlen(unit)))
            die(EXIT_FAILED, "out of memory");
    }
    return t.bytes ? t.bytes : must(calloc(1, 1));
}

void print_text(FILE *out, const char *text, size_t length)
{
    if (isatty(fileno(out)))
        print_visible(out, text, length, "\n\t");
    else
        fwrite(text, 1, length, out);
}

static int columns_of(const char *text)
{
    int columns = 0;
    for (size_t i = 0, length = strlen(text); i < length;) {
        uint32_t c;
        i += unicode_decode(text + i, length - i, &c);
        columns += unicode_width(c);
    }
    return columns;
}

void print_token(FILE *out, const Tokenizer *t, int id, int columns)
{
    char number[16];
    size_t length = 0;
    const char *piece = t ? tokenizer_piece(t, id, &length) : NULL;
    snprintf(number, sizeof number, "<%d>", id);
    char *text = piece && length ? escaped(piece, length) : NULL;
    const char *shown = text ? text : number;
    int width = columns_of(shown), room = columns ? columns - (text ? 2 : 0) : width, used = 0;
    bool cut = width > room;
    if (text)
        fputc('"', out);
    for (size_t i = 0, n = strlen(shown); i < n;) {
        uint32_t c;
        size_t step = unicode_decode(shown + i, n - i, &c);
        if (cut && used + unicode_width(c) > room - 3)
            break;
        fwrite(shown + i, 1, step, out);
        used += unicode_width(c);
        i += step;
    }
    fprintf(out, "%s%s", cut ? "..." : "", text ? "\"" : "");
    used += cut ? 3 : 0;
    fprintf(out, "%*s", room > used ? room - used : 0, "");
    free(text);
}

void write_token_json(FILE *out, const Tokenizer *t, int id)
{
    size_t length = 0;
    const char *piece = t ? tokenizer_piece(t, id, &length) : NULL;
    if (t)
        json_write_string(out, piece ? piece : "", piece ? length : 0);
    else
        fputs("null", out);
}

void write_ids_json(FILE *out, const int *ids, size_t n)
{
    fputc('[', out);
    for (size_t i = 0; i < n; i++)
        fprintf(out, "%s%d", i ? "," : "", ids[i]);
    fputc(']', out);
}

const char *human_bytes(uint64_t bytes, char out[32])
{
    static const char *const units[] = {"kB", "MB", "GB", "TB", "PB", "EB"};
    if (bytes < 1000) {
        snprintf(out, 32, "%d bytes", (int)bytes);
        return out;
    }
    double value = (double)bytes / 1000;
    size_t unit = 0;
    while (value >= 999.95 && unit + 1 < sizeof units / sizeof *units) {
        value /= 1000;
        unit++;
    }
    snprintf(out, 32, "%.1f %s", value, units[unit]);
    return out;
}

int terminal_width(FILE *f)
{
    struct winsize w;
    if (!isatty(fileno(f)) || ioctl(fileno(f), TIOCGWINSZ, &w) || w.ws_col < 1)
        return 80;
    return w.ws_col < 20 ? 20 : w.ws_col;
}

bool use_color(FILE *f)
{
    const char *no = getenv("NO_COLOR"), *term = getenv("TERM");
    return isatty(fileno(f)) && !(no && *no) && !(term && !strcmp(term, "dumb"));
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

static bool progress_is_shown;
static char *pending_file; /* a half-written file, to be removed if the program ends now */

void emergency_cleanup(void)
{
    if (terminal_restore)
        terminal_restore();
    if (pending_file)
        unlink(pending_file);
}

__attribute__((format(printf, 2, 0))) static void say(const char *prefix, const char *fmt, va_list args)
{
    char text[2048];
    vsnprintf(text, sizeof text, fmt, args);
    progress_end();
    fprintf(stderr, "run%s%s: %s", command_name ? " " : "", command_name ? command_name : "", prefix);
    print_escaped(stderr, text, strlen(text));
    fputc('\n', stderr);
}

void warn(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    say("warning: ", fmt, args);
    va_end(args);
}

void notice(const char *fmt, ...)
{
    va_list args;
    if (common.quiet)
        return;
    va_start(args, fmt);
    say("", fmt, args);
    va_end(args);
}

static bool dying;

/* LeakSanitizer's question at exit: what die() cuts off in the middle is no leak. */
int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void)
{
    return dying;
}

int exit_code(int code)
{
    bool is_diff = command_name && !strcmp(command_name, "diff"); /* whose 1 means that there are differences */
    return code == EXIT_FAILED && is_diff ? EXIT_USAGE : code;
}

_Noreturn void die(int code, const char *fmt, ...)
{
    va_list args;
    dying = true;
    va_start(args, fmt);
    say("", fmt, args);
    va_end(args);
    emergency_cleanup();
    exit(exit_code(code));
}

_Noreturn void usage_error(const char *fmt, ...)
{
    char text[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    die(EXIT_USAGE, "%s (run %s%s--help tells more)", text, command_name ? command_name : "", command_name ? " " : "");
}

int finish(int code)
{
    errno = 0;
    if (!fflush(stdout) && !ferror(stdout))
        return code;
    die(EXIT_FAILED, "standard output could not be written%s%s", errno ? ": " : "", errno ? strerror(errno) : "");
}

static volatile sig_atomic_t interrupts_are_caught, patience;

/* SIGALRM: nobody has looked at `interrupted` in time. */
static void on_interrupt(int signal_number)
{
    if (signal_number == SIGINT && interrupts_are_caught && !interrupted) {
        interrupted = 1;
        if (patience)
            alarm((unsigned)patience);
        return;
    }
    if ((progress_is_shown || interrupts_are_caught) && write(STDERR_FILENO, "\n", 1) < 0)
        _exit(EXIT_INTERRUPTED);
    emergency_cleanup();
    _exit(EXIT_INTERRUPTED);
}

void exit_on_interrupt(void)
{
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
}

void catch_interrupts(void)
{
    interrupted = 0;
    interrupts_are_caught = 1;
    exit_on_interrupt();
}

void end_within(int seconds)
{
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = SA_RESTART};
    patience = seconds;
    alarm(0);
    sigemptyset(&action.sa_mask);
    sigaction(SIGALRM, &action, NULL);
}

void progress(const char *what, uint64_t done, uint64_t total)
{
    static double started, shown;
    static const char *current;
    double now = seconds_now();
    if (current != what) {
        progress_end();
        current = what;
        started = shown = now;
    }
    if (common.quiet || now - started < 0.5 || now - shown < 0.1 || !isatty(STDERR_FILENO))
        return;
    shown = now;
    progress_is_shown = true;
    fprintf(stderr, "\r\033[K%s %d%%", what, total ? (int)(100.0 * (double)done / (double)total) : 0);
    fflush(stderr);
}

void progress_end(void)
{
    if (progress_is_shown)
        fputs("\r\033[K", stderr);
    progress_is_shown = false;
}

/* ---- prompts and ids --------------------------------------------------------------------------------------------- */

static char *read_all(FILE *f, const char *name, size_t *length)
{
    Text t = {0};
    char chunk[1 << 14];
    size_t n;
    while ((n = fread(chunk, 1, sizeof chunk, f)) > 0)
        if (text_append(&t, chunk, n))
            die(EXIT_FAILED, "%s: out of memory after %zu bytes", name, t.length);
    if (ferror(f))
        die(EXIT_FAILED, "%s: %s", name, strerror(errno));
    *length = t.length;
    return t.bytes ? t.bytes : must(calloc(1, 1));
}

char *read_prompt(const char *argument, const char *file, size_t *length)
{
    if (argument && file)
        usage_error("a text and --file: give one of them");
    const char *path = file ? file : argument && !strcmp(argument, "-") ? argument : NULL;
    if (argument && !path) {
        *length = strlen(argument);
        return must(strdup(argument));
    }
    if (!path && isatty(STDIN_FILENO))
        return NULL;
    if (!path || !strcmp(path, "-"))
        return read_all(stdin, "standard input", length);
    FILE *f = fopen(path, "rb");
    if (!f)
        die(EXIT_FAILED, "%s: %s", path, strerror(errno));
    char *text = read_all(f, path, length);
    fclose(f);
    return text;
}

/* Hexadecimal digits at s (at most max), their value in *c. Returns how many. */
static size_t hex_digits(const char *s, size_t max, uint32_t *c)
{
    size_t n = 0;
    *c = 0;
    for (; n < max && strchr("0123456789abcdefABCDEF", s[n]) && s[n]; n++)
        *c = *c * 16 + (uint32_t)(s[n] <= '9' ? s[n] - '0' : (s[n] | 32) - 'a' + 10);
    return n;
}

size_t expand_escapes(char *text, size_t length)
{
    static const char from[] = "ntre\\", to[] = "\n\t\r\033\\";
    size_t w = 0;
    for (size_t r = 0; r < length;) {
        const char *known;
        uint32_t c;
        size_t digits;
        if (text[r] != '\\' || r + 1 == length) {
            text[w++] = text[r++];
        } else if (text[r + 1] && (known = strchr(from, text[r + 1]))) {
            text[w++] = to[known - from];
            r += 2;
        } else if (text[r + 1] == 'x' && hex_digits(text + r + 2, 2, &c) == 2) {
            text[w++] = (char)c;
            r += 4;
        } else if (text[r + 1] == 'u' && text[r + 2] == '{' && (digits = hex_digits(text + r + 3, 6, &c)) &&
                   text[r + 3 + digits] == '}' && c <= 0x10ffff && (c < 0xd800 || c > 0xdfff)) {
            w += unicode_encode(c, text + w);
            r += digits + 4;
        } else {
            text[w++] = text[r++];
        }
    }
    text[w] = 0;
    return w;
}

int *parse_ids(const char *text, size_t *n)
{
    IdList list = {0};
    for (const char *s = text;;) {
        char *end;
        errno = 0;
        s += strspn(s, " ");
        unsigned long id = strtoul(s, &end, 10);
        if (*s < '0' || *s > '9' || errno || id > INT_MAX)
            usage_error("--ids: '%.100s' is not a list of token ids such as 1,2,3", text);
        if (id_list_append(&list, (int)id))
            die(EXIT_FAILED, "out of memory");
        s = end + strspn(end, " ");
        if (!*s)
            break;
        if (*s++ != ',')
            usage_error("--ids: '%.100s' is not a list of token ids such as 1,2,3", text);
    }
    *n = list.count;
    return list.items;
}

char *prompt_text(const PromptArguments *p, const char *argument, size_t *length)
{
    *length = 0;
    if (p->ids && (argument || p->file))
        usage_error("--ids and a text: give one of them");
    if (p->ids) { /* wrong ids are told before anything is loaded */
        size_t n;
        free(parse_ids(p->ids, &n));
        return NULL;
    }
    char *text = read_prompt(argument, p->file, length);
    if (!text)
        usage_error("no PROMPT: give one as an argument, with -f FILE, or on standard input");
    if (p->escapes)
        *length = expand_escapes(text, *length);
    return text;
}

/* ---- output files ------------------------------------------------------------------------------------------------ */

void out_open(OutFile *o, const char *path)
{
    struct stat st;
    *o = (OutFile){0};
    if (!strcmp(path, "-")) {
        o->f = stdout;
        o->path = must(strdup("standard output"));
        return;
    }
    char *real = realpath(path, NULL); /* through a symbolic link to the file itself */
    o->path = real ? real : must(strdup(path));
    if (!stat(o->path, &st) && !S_ISREG(st.st_mode)) {
        o->f = fopen(path, "wb");
    } else {
        size_t size = strlen(o->path) + 32;
        o->temporary = must(malloc(size));
        snprintf(o->temporary, size, "%s.%ld.part", o->path, (long)getpid());
        int fd = open(o->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd >= 0)
            pending_file = o->temporary;
        o->f = fd < 0 ? NULL : fdopen(fd, "wb");
    }
    if (!o->f)
        die(EXIT_FAILED, "%s: %s", path, strerror(errno));
}

void out_commit(OutFile *o)
{
    bool bad = fflush(o->f) || ferror(o->f);
    if (o->temporary)
        bad = bad || file_sync(fileno(o->f)) != 0;
    if (o->f != stdout)
        bad = fclose(o->f) || bad;
    if (!bad && o->temporary)
        bad = rename(o->temporary, o->path);
    if (bad)
        die(EXIT_FAILED, "%s: could not be written: %s", o->path, strerror(errno));
    pending_file = NULL;
    free(o->temporary);
    free(o->path);
    *o = (OutFile){0};
}
