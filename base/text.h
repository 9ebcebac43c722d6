/* Strings and lists of ids that grow, UTF-8 that may be broken, and what of a text a terminal would obey. */
#ifndef TEXT_H
#define TEXT_H

#include "base/base.h"

#include <stdio.h>

/* A growing string; zeroed is empty. bytes is NUL-terminated once something was appended. */
typedef struct {
    char *bytes;
    size_t length, capacity;
} Text;
int text_append(Text *text, const char *bytes, size_t length); /* -1: out of memory */
void text_free(Text *text);

/* A growing list of token ids; zeroed is empty. */
typedef struct {
    int *items;
    size_t count, capacity;
} IdList;
int id_list_reserve(IdList *list, size_t extra); /* room for as many more; -1: out of memory */
int id_list_append(IdList *list, int id);
void id_list_free(IdList *list);

bool text_ends_with(const char *text, const char *end);
/* Order two texts by their bytes, as strcmp() does, NULs included: a text comes before those that it begins. */
int text_compare(const char *a, size_t a_length, const char *b, size_t b_length);

/* Close what open_memstream() opened for *text. -1 if memory ran out: *text is then freed and NULL. */
int text_close_stream(FILE *stream, char **text);

/* ---- UTF-8 that may be broken ---- */

bool text_is_utf8(const char *bytes, size_t length);
/* Append bytes with invalid UTF-8 replaced by U+FFFD, one for each maximal well-formed prefix, as Python's
 * errors="replace" does. -1: out of memory. */
int text_append_replacing(Text *out, const char *bytes, size_t length);
/* How many of the bytes end in whole characters: the rest (at most 3) may still become one. */
size_t text_complete_prefix(const char *bytes, size_t length);

/* ---- text on a terminal ---- */

/* Characters that move the cursor, switch a terminal's mode or turn the direction of writing: control characters
 * (C0, DEL, C1), line separators, bidi marks. */
bool text_drives_terminal(uint32_t c);
/* The character at bytes[0..length) in a form that is safe to show, NUL-terminated in out: itself, an escape (\n, \x1b,
 * \u{202e}) if it drives a terminal and is not one of the ASCII characters in `keep`, or \xHH for a byte that is no
 * UTF-8. Returns the bytes read, at least 1. */
#define TEXT_VISIBLE 16
size_t text_visible(const char *bytes, size_t length, const char *keep, char out[TEXT_VISIBLE]);
/* A name or path for a message: every character made visible; of a long text "..." and its end. Returns out. */
#define TEXT_PRINTABLE 136
char *text_printable(const char *bytes, size_t length, char out[TEXT_PRINTABLE]);

/* ---- shapes ---- */

/* "[151936,896]". shape_text() shortens what gets too long for a message and returns out. */
void shape_print(FILE *out, const uint64_t *shape, size_t rank);
#define SHAPE_TEXT 112
const char *shape_text(const uint64_t *shape, size_t rank, char out[SHAPE_TEXT]);

#endif
