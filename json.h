/* JSON text -> a tree of JsonValue, and the tree -> text.
 *
 * Strict RFC 8259: one value, UTF-8 only, no lone surrogates, no trailing commas, no comments, no NaN, no number that
 * is too large for a double; arrays and objects nest at most JSON_MAX_DEPTH deep. Lengths are explicit: neither the
 * text nor a string has to end with a NUL, and both may contain one ("\u0000").
 */
#ifndef JSON_H
#define JSON_H

#include "base/base.h"

#include <stdio.h>

#define JSON_MAX_DEPTH 127 /* as in the reference's parser, which stops at the 128th level */

typedef enum {
    JSON_NULL,
    JSON_FALSE,
    JSON_TRUE,
    JSON_INTEGER,
    JSON_REAL,
    JSON_STRING,
    JSON_ARRAY,
    JSON_OBJECT
} JsonType;

typedef struct JsonValue JsonValue;
struct JsonValue {
    JsonType type;
    uint32_t key_length;
    const char *key;  /* member of an object: its name, key_length bytes of UTF-8; else NULL */
    const char *text; /* string: its bytes, escapes resolved; number: as it is written; else NULL */
    size_t length;    /* string, number: bytes of text; array, object: how many members */
    JsonValue *child; /* array, object: the first member or NULL */
    JsonValue *next;  /* the member after this one or NULL */
};

/* Parse the whole text. Returns the root, which owns every value below it; or NULL, and "byte N: found ..., expected
 * ..." in err, with N counted from 0. Numbers, and strings without escapes, point into the text: it must outlive the
 * tree. Of members with equal names all are kept, in order. */
JsonValue *json_parse(const char *text, size_t length, char err[512]);
void json_free(JsonValue *root); /* does nothing for NULL */

/* ---- reading a tree ----
 * Each of these accepts NULL for a value that is not there, so that calls can be chained. */

/* The member of that name, the last one if there are several; NULL if there is none or if `object` is not an object.
 * Looks at every member. */
const JsonValue *json_get(const JsonValue *object, const char *key);

bool json_string_is(const JsonValue *value, const char *text);
bool json_key_is(const JsonValue *member, const char *name);
int json_u64(const JsonValue *value, uint64_t *out);  /* -1 unless it is 0 to 2^64-1, written with digits alone */
int json_double(const JsonValue *value, double *out); /* correctly rounded; -1 unless it is a number */
int json_bool(const JsonValue *value, bool *out);     /* -1 unless it is true or false */

/* Look-ups in an object of a file that people edit. If the key is missing or null, *out stays as it was. If the value
 * is of another kind or out of range, they return -1 and a sentence that names the file, the key and what is
 * expected. */
typedef struct {
    const JsonValue *object; /* NULL has no keys */
    const char *file;        /* its name, for messages */
    char *err;               /* [512] */
} JsonLookup;
const JsonValue *json_lookup(const JsonLookup *l, const char *key); /* NULL if the key is missing or null */
int json_lookup_size(const JsonLookup *l, const char *key, size_t least, size_t most, size_t *out);
int json_lookup_number(const JsonLookup *l, const char *key, double least, double most, double *out);
int json_lookup_bool(const JsonLookup *l, const char *key, bool *out);
/* A token id, or a list of at most `most` ids, into ids[0..*n); *n is 0 if the key is missing or null. */
int json_lookup_ids(const JsonLookup *l, const char *key, int *ids, size_t most, size_t *n);

/* ---- writing ----
 * Errors are left to ferror(out). */

typedef enum {
    JSON_COMPACT,   /* one line, UTF-8 */
    JSON_INDENTED,  /* two blanks for each level */
    JSON_CANONICAL, /* no blanks, ASCII, shortest numbers; equal keys once: first position, last value */
} JsonStyle;
void json_print(FILE *out, const JsonValue *value, JsonStyle style);
/* Write the text as a JSON string, in quotes. What text_drives_terminal() is escaped; what is not UTF-8 becomes
 * U+FFFD. */
void json_write_string(FILE *out, const char *text, size_t length);
/* Write the fewest digits that read back as the same double; null for NaN and infinities. */
void json_write_double(FILE *out, double value);

#endif
