/* What a command says on standard error, how it ends, and what Ctrl-C does; text that cannot control the terminal. */
#ifndef TERMINAL_H
#define TERMINAL_H

#include "base/base.h"
#include "base/text.h"

#include <stdio.h>

enum { EXIT_OK = 0, EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_INTERRUPTED = 130 };
extern int exit_failed; /* what die(EXIT_FAILED) exits with; run diff has 2, since its 1 means that something differs */
extern bool quiet;      /* -q: no notices, progress or statistics */

/* ---- messages ---- */

/* Write "run COMMAND: ..." to stderr, with control characters made visible. */
void warn(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void notice(const char *fmt, ...) __attribute__((format(printf, 1, 2))); /* nothing with -q */
_Noreturn void die(int code, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void die_if(bool failed, const char *err); /* with that sentence and EXIT_FAILED, or EXIT_INTERRUPTED after Ctrl-C */
_Noreturn void usage_error(const char *fmt, ...) __attribute__((format(printf, 1, 2))); /* EXIT_USAGE, names --help */
/* Flush stdout, and die if it could not be written: the last thing that a command does. Returns code. */
int finish(int code);

/* ---- sudden ends ---- */

extern char mapped_name[TEXT_PRINTABLE]; /* the model that is mapped, made safe to show: SIGBUS names it */
extern const char *unfinished_file;    /* NULL, or a file to be removed if the program ends now */
extern void (*terminal_restore)(void); /* NULL, or puts the terminal's mode back; async-signal-safe */
void emergency_cleanup(void);          /* does what these two ask for; async-signal-safe */

/* ---- Ctrl-C ---- */

/* Set by SIGINT after catch_interrupts(). Before that, and the second time, SIGINT ends the program with 130. */
extern volatile int interrupted;
/* What main() starts with; takes catch_interrupts() back. SIGTERM and SIGHUP, unless they are ignored, also end the
 * program, after emergency_cleanup(). */
void exit_on_interrupt(void);
void catch_interrupts(void);
/* After catch_interrupts(): end the program this many seconds after SIGINT if it has not ended by itself; 0: never. */
void end_within(int seconds);
/* To be called before files are written: SIGINT, SIGTERM and SIGHUP only set `interrupted`, and a limit of file size is
 * an error like a full disk. */
void prepare_writing(void);

/* ---- progress ---- */

/* Show "WHAT N%" on stderr, if that is a terminal, without -q, once the work takes longer than half a second. */
void progress(const char *what, uint64_t done, uint64_t total);
void progress_end(void);

/* The context of tell_progress(), which is a FileProgress: adds the bytes up, shows them, and stops after Ctrl-C. */
typedef struct {
    const char *what;
    uint64_t done, total;
} Progress;
int tell_progress(void *context, uint64_t bytes);

/* ---- the terminal ---- */

/* Print text with control characters, marks that turn its direction, and invalid UTF-8 made visible: \n, \x1b. */
void print_escaped(FILE *out, const char *text, size_t length);
/* Print text as it is to a file or pipe; on a terminal as print_escaped(), but with line ends and tabs. */
void print_text(FILE *out, const char *text, size_t length);
int terminal_width(FILE *f); /* columns, at least 20: what COLUMNS says, or the terminal; 80 if there is neither */
bool terminal_is_narrow(void); /* stdout is a terminal on which lines that are usually long have to be broken */
bool use_color(FILE *f);     /* it is a terminal, and NO_COLOR is not set */

#endif
