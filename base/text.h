/* Strings and lists of token ids that grow, UTF-8 that may be broken, text that is safe to show on a terminal, and
 * shapes of tensors as text. */
#ifndef TEXT_H
#define TEXT_H

#include "base/base.h"

#include <stdio.h>

/* A growing string; {0} is the empty one. Once something was appended, bytes ends with a NUL that length does not
 * count. */
typedef struct {
    char *bytes;
    size_t length, capacity;
} Text;
int text_append(Text *text, const char *bytes, size_t length); /* -1: out of memory */
void text_free(Text *text);

/* A growing list of token ids; {0} is the empty one. */
typedef struct {
    int *items;
    size_t count, capacity;
} IdList;
int id_list_reserve(IdList *list, size_t extra); /* make sure that `extra` more ids fit; -1: out of memory */
int id_list_append(IdList *list, int id);        /* -1: out of memory */
void id_list_free(IdList *list);

bool text_ends_with(const char *text, const char *end);
/* Order two texts by their bytes, as strcmp() does, NULs included: a text comes before those that it begins. */
int text_compare(const char *a, size_t a_length, const char *b, size_t b_length);

/* Close what open_memstream() opened for *text. -1 if memory ran out: *text is then freed and NULL. */
int text_close_stream(FILE *stream, char **text);

static inline bool text_same(const char *a, size_t a_length, const char *b, size_t b_length)
{
    return a_length == b_length && (a_length == 0 || __builtin_memcmp(a, b, a_length) == 0);
}

/* ---- UTF-8 that may be broken ---- */

bool text_is_utf8(const char *bytes, size_t length);
/* Append the bytes with U+FFFD in place of what is not UTF-8, as Python's errors="replace" does: one U+FFFD for each
 * longest prefix that could have become a character. -1: out of memory. */
int text_append_replacing(Text *out, const char *bytes, size_t length);
/* How many of the bytes can be shown now: all but a character at the end that has begun and may still be completed,
 * which is at most 3 bytes. */
size_t text_complete_prefix(const char *bytes, size_t length);

/* ---- text on a terminal ---- */

/* Whether a terminal would obey this character rather than show it: control characters (C0, DEL, C1), line separators,
 * and marks that turn the direction of writing. */
bool text_drives_terminal(uint32_t c);
/* Write the character at bytes[0..length) in a form that is safe to show, NUL-terminated: as it is, or as an escape
 * (\n, \x1b, \u{202e}) if it drives a terminal and is not one of the ASCII characters in `keep`; a byte that is not
 * UTF-8 becomes \xHH. Returns how many bytes were read, at least 1. */
#define TEXT_VISIBLE 16
size_t text_visible(const char *bytes, size_t length, const char *keep, char out[TEXT_VISIBLE]);
/* A name or path for a message, made safe to show; of a long one, "..." and its end. Returns out. */
#define TEXT_PRINTABLE 136
char *text_printable(const char *bytes, size_t length, char out[TEXT_PRINTABLE]);

/* A path as a word that can be pasted into a shell; quoted where need be. What is too long is text_printable(). Returns
 * out. */
#define TEXT_QUOTED 288
char *text_quoted(const char *path, char out[TEXT_QUOTED]);

/* ---- shapes ---- */

/* Print a shape as "[151936,896]". shape_text() writes the same to out, which it returns; a shape that is too long for
 * a message ends with ",...]" there. */
void shape_print(FILE *out, const uint64_t *shape, size_t rank);
#define SHAPE_TEXT 112
const char *shape_text(const uint64_t *shape, size_t rank, char out[SHAPE_TEXT]);

#endif
