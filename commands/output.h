/* What a command prints on standard output, for people (print_...) and as JSON (write_...); the files that it writes;
 * and allocation, which ends the program when it fails.
 */
#ifndef OUTPUT_H
#define OUTPUT_H

#include "base/base.h"
#include "base/file.h"
#include "safetensors.h"
#include "tokenizer.h"

#include <stdio.h>

/* ---- memory: these die when it runs out ---- */

void *xmalloc(size_t size);
void *xcalloc(size_t n, size_t size);
void *xrealloc(void *memory, size_t size);
char *xstrdup(const char *text);
char *xpath_join(const char *folder, const char *name);
void xappend(Text *text, const char *bytes, size_t length);
void xappend_id(IdList *list, int id);
/* A stream into memory: *text and *length are set when it is closed. */
FILE *xopen_memory(char **text, size_t *length);
void xclose_memory(FILE *f, char *const *text);

/* ---- text ---- */

void print_name(const char *name);                     /* a path or argument, escaped */
char *escaped(const char *text, size_t length);        /* fresh, as print_escaped() prints it */
const char *plural(uint64_t n);                        /* "s" unless n is 1 */
const char *human_bytes(uint64_t bytes, char out[32]); /* "988.1 MB" */
/* A token as a quoted word, padded with spaces or cut with "..." to `columns` terminal columns (0: as long as it is).
 * Without a tokenizer its id in <>. */
void print_token(const Tokenizer *t, int id, int columns);
int text_columns(const char *text); /* that it takes on a terminal */
/* Print a name that can be shown; of one that is too long, "..." and its end. Returns the columns that are left. */
int print_end(const char *name, int columns);
/* "label           text", words that do not fit into a narrow terminal on indented lines of their own. */
void print_field(const char *label, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* A line of text that begins in `column`, its words broken at `width`; each line after the first is indented. */
void print_wrapped(const char *text, size_t length, int column, int indent, int width);
/* The two lines of a tensor: name, three spaces, type and shape; where its bytes are in the data. On a narrow terminal,
 * three. */
void print_tensor(const SafetensorsTensor *t);
void print_index(FILE *out, const SafetensorsTensor *t, uint64_t element); /* [3, 17] */

/* ---- JSON: each prints `before` first, such as ",\"name\":" ---- */

void write_string(const char *before, const char *text, size_t length);
void write_name(const char *before, const char *name); /* NUL-terminated; NULL becomes null */
void write_number(const char *before, double value);
void write_ids(const char *before, const int *ids, size_t n);
void write_token(const char *before, const Tokenizer *t, int id);  /* its text; null without a tokenizer */
void write_tensor(const char *before, const SafetensorsTensor *t); /* "name":..,"dtype":..,"shape":[..] */

/* ---- files ---- */

/* A file that appears under its name only when it is complete (see NewFile). "-" is stdout, and what exists but is not
 * a regular file, such as a pipe or a device, is written directly. One at a time; die() and Ctrl-C remove what is not
 * complete. */
typedef struct {
    FILE *stream;
    char *path;
    NewFile file; /* zeroed when written directly */
} OutFile;
int out_open(OutFile *o, const char *path, bool replace, char err[512]); /* replace: a file that exists */
int out_commit(OutFile *o, char err[512]); /* closes it; on failure what was there before is still there */

#endif
