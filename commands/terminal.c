#include "commands/terminal.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/text.h"
#include "commands/commands.h"

int exit_failed = EXIT_FAILED;
bool quiet;
char mapped_name[TEXT_PRINTABLE];
const char *unfinished_file;
void (*terminal_restore)(void);
volatile int interrupted;

/* ---- the terminal ------------------------------------------------------------------------------------------------ */

static void print_visible(FILE *out, const char *text, size_t length, const char *keep)
{
    for (size_t i = 0; i < length;) {
        char visible[TEXT_VISIBLE];
        i += text_visible(text + i, length - i, keep, visible);
        fputs(visible, out);
    }
}

void print_escaped(FILE *out, const char *text, size_t length)
{
    print_visible(out, text, length, "");
}

void print_text(FILE *out, const char *text, size_t length)
{
    if (isatty(fileno(out)))
        print_visible(out, text, length, "\n\t");
    else
        fwrite(text, 1, length, out);
}

int terminal_width(FILE *f)
{
    struct winsize w;
    const char *columns = getenv("COLUMNS");
    int typed = columns && strlen(columns) < 6 ? (int)strtol(columns, NULL, 10) : 0;
    if (typed > 0)
        return MAX(typed, 20);
    if (!isatty(fileno(f)) || ioctl(fileno(f), TIOCGWINSZ, &w) || w.ws_col < 1)
        return 80;
    return MAX(w.ws_col, 20);
}

bool terminal_is_narrow(void)
{
    return isatty(STDOUT_FILENO) && terminal_width(stdout) < 70;
}

bool use_color(FILE *f)
{
    const char *no = getenv("NO_COLOR"), *term = getenv("TERM");
    return isatty(fileno(f)) && !(no && *no) && !(term && !strcmp(term, "dumb"));
}

/* ---- progress ---------------------------------------------------------------------------------------------------- */

static bool progress_is_shown;

void progress(const char *what, uint64_t done, uint64_t total)
{
    static double started, shown;
    static const char *current;
    double now = clock_seconds();
    if (current != what) {
        progress_end();
        current = what;
        started = shown = now;
    }
    if (quiet || now - started < 0.5 || now - shown < 0.1 || !isatty(STDERR_FILENO))
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

int tell_progress(void *context, uint64_t bytes)
{
    Progress *p = context;
    p->done += bytes;
    progress(p->what, p->done, p->total);
    return interrupted;
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

__attribute__((format(printf, 2, 0))) static void say(const char *prefix, const char *fmt, va_list args)
{
    char text[2048];
    vsnprintf(text, sizeof text, fmt, args);
    progress_end();
    fprintf(stderr, "run%s%s: %s", this_command ? " " : "", this_command ? this_command->name : "", prefix);
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
    if (quiet)
        return;
    va_start(args, fmt);
    say("", fmt, args);
    va_end(args);
}

static bool dying;

/* LeakSanitizer asks this at exit: what die() cuts off in the middle is not a leak. */
int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void)
{
    return dying;
}

_Noreturn void die(int code, const char *fmt, ...)
{
    va_list args;
    dying = true;
    va_start(args, fmt);
    say("", fmt, args);
    va_end(args);
    emergency_cleanup();
    exit(code == EXIT_FAILED ? exit_failed : code);
}

void die_if(bool failed, const char *err)
{
    if (failed)
        die(interrupted ? EXIT_INTERRUPTED : EXIT_FAILED, "%s", err);
}

_Noreturn void usage_error(const char *fmt, ...)
{
    char text[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    die(EXIT_USAGE, "%s (see run %s%s--help)", text, this_command ? this_command->name : "", this_command ? " " : "");
}

int finish(int code)
{
    errno = 0;
    if (!fflush(stdout) && !ferror(stdout))
        return code;
    die(EXIT_FAILED, "standard output could not be written%s%s", errno ? ": " : "", errno ? strerror(errno) : "");
}

/* ---- Ctrl-C and other sudden ends -------------------------------------------------------------------------------- */

void emergency_cleanup(void)
{
    if (terminal_restore)
        terminal_restore();
    if (unfinished_file)
        unlink(unfinished_file);
}

static volatile sig_atomic_t interrupts_are_caught, writing, patience;

/* SIGINT, or SIGALRM when nobody has looked at `interrupted` in time. */
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

/* SIGTERM or SIGHUP: the program ends by it, but leaves no half of a file, nor of an edit. */
static void on_end(int signal_number)
{
    if (writing && !interrupted) {
        interrupted = 1;
        return;
    }
    emergency_cleanup();
    signal(signal_number, SIG_DFL);
    raise(signal_number); /* comes when this function has returned */
}

static void handle(int signal_number, void (*handler)(int))
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART}, before;
    sigemptyset(&action.sa_mask);
    sigaction(signal_number, NULL, &before);
    if (handler == on_interrupt || before.sa_handler != SIG_IGN) /* nohup stays in force */
        sigaction(signal_number, &action, NULL);
}

void exit_on_interrupt(void)
{
    interrupts_are_caught = 0;
    handle(SIGINT, on_interrupt);
    handle(SIGTERM, on_end);
    handle(SIGHUP, on_end);
}

void catch_interrupts(void)
{
    interrupted = 0;
    interrupts_are_caught = 1;
    handle(SIGINT, on_interrupt);
}

void end_within(int seconds)
{
    patience = seconds;
    alarm(0);
    handle(SIGALRM, on_interrupt);
}

void prepare_writing(void)
{
    catch_interrupts();
    writing = 1;
    signal(SIGXFSZ, SIG_IGN);
}
