/* JSON text -> a tree of JsonValue, and the tree -> text.
 *
 * Strict RFC 8259: one value, UTF-8 only, no lone surrogates, no trailing commas, no comments, no NaN, no number beyond
 * the doubles; at most JSON_MAX_DEPTH arrays and objects inside one another. Lengths are explicit: neither the text nor
 * a string has to end in NUL, and both may hold one ("\u0000").
 */
#ifndef JSON_H
#define JSON_H

#include "base/base.h"

#include <stdio.h>

#define JSON_MAX_DEPTH 127 /* what the reference's parser takes: it stops at the 128th level */

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
    const char *text; /* string: its bytes, escapes resolved; number: its digits as written; else NULL */
    size_t length;    /* string, number: bytes of text; array, object: number of members */
    JsonValue *child; /* array, object: first member or NULL */
    JsonValue *next;  /* the member after this one or NULL */
};

/* Parses the whole text. Returns the root, which owns every value below it; or NULL with "byte N: what is wrong" in
 * err, counted from 0. Numbers and strings without escapes point into text, which must outlive the tree. Members of
 * equal name are all kept, in order. */
JsonValue *json_parse(const char *text, size_t length, char err[512]);
void json_free(JsonValue *root); /* NULL is fine */

/* Member of that name, the last if there are several; NULL if there is none, or if object is NULL or no object.
 * Linear. */
const JsonValue *json_get(const JsonValue *object, const char *key);

/* NULL is no string, no number, nothing; so that look-ups can be chained. */
bool json_string_is(const JsonValue *value, const char *text);
bool json_key_is(const JsonValue *member, const char *name);
int json_u64(const JsonValue *value, uint64_t *out);  /* -1 unless it is 0..2^64-1, written without minus, . and e */
int json_i64(const JsonValue *value, int64_t *out);   /* -1 unless it is -2^63..2^63-1, written without . and e */
int json_double(const JsonValue *value, double *out); /* any number of a parsed tree, correctly rounded; else -1 */
int json_bool(const JsonValue *value, bool *out);

/* Typed look-ups in an object of a file that people edit. A key that is missing or null leaves *out as it was; a value of
 * another kind, or out of range, is -1 and a sentence that names the file, the key and what is asked for. */
typedef struct {
    const JsonValue *object; /* NULL: has no keys */
    const char *file;
    char *err; /* [512] */
} JsonLookup;
int json_lookup_size(const JsonLookup *l, const char *key, size_t least, size_t most, size_t *out);
int json_lookup_number(const JsonLookup *l, const char *key, double least, double most, double *out);
int json_lookup_bool(const JsonLookup *l, const char *key, bool *out);
/* A token id or a list of at most `most` ids; *n is 0 without the key. */
int json_lookup_ids(const JsonLookup *l, const char *key, int *ids, size_t most, size_t *n);
const JsonValue *json_lookup(const JsonLookup *l, const char *key); /* NULL: missing or null */

/* Writers. They print to out and leave errors to its ferror(). */
typedef enum {
    JSON_COMPACT,   /* one line, UTF-8 as it is */
    JSON_INDENTED,  /* two spaces a level */
    JSON_CANONICAL, /* no spaces, ASCII, shortest numbers; of equal keys the first's place and the last's value */
} JsonStyle;
void json_print(FILE *out, const JsonValue *value, JsonStyle style);
/* Quoted. Invalid UTF-8 becomes U+FFFD; control characters and DEL are escaped. */
void json_write_string(FILE *out, const char *text, size_t length);
void json_write_double(FILE *out, double value); /* fewest digits that read back the same; NaN and infinities: null */

#endif
