/* JSON (RFC 8259) has six rules, and this parser has a function for each, but one for objects and arrays:
 *
 *     value    object | array | string | number | true | false | null
 *     object   {}   or   { string : value , string : value , ... }
 *     array    []   or   [ value , value , ... ]
 *     string   " characters "    UTF-8; \" \\ \/ \b \f \n \r \t \uXXXX stand for one character; no byte below 0x20
 *     number   -? (0 | [1-9][0-9]*) (. [0-9]+)? ([eE] [+-]? [0-9]+)?
 *     space    blank, tab, line feed, carriage return: anywhere between two of the above
 *
 * A text is one value. Each function starts at the next unread byte, and either reads as far as its rule goes or says
 * at which byte the text breaks the rule. One byte always tells which rule comes next, so the parser never goes back.
 *
 * Values become the nodes of a tree. The members of an array or object are a linked list that begins at its child:
 *
 *     {"shape": [2, 3], "dtype": "F32"}       object
 *                                               | child
 *                                               v                 next
 *                                             array, key "shape" -----> string "F32", key "dtype"
 *                                               | child
 *                                               v          next
 *                                             integer "2" -----> integer "3"
 *
 * The nodes of a text lie one behind another in large chunks of memory, which are freed together. Numbers and most
 * strings are not copied: their nodes point into the text. Only a string with escapes needs memory of its own.
 *
 * parse_value() calls itself for the members of arrays and objects. A text that nests deeper than JSON_MAX_DEPTH is
 * refused, so that no text can exhaust the stack.
 */
#include "json.h"

#include <ctype.h>
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "base/unicode.h"

/* ---- memory ------------------------------------------------------------------------------------------------------ */

typedef struct Chunk {
    struct Chunk *next;
    size_t size; /* of the bytes that follow this struct */
} Chunk;

#define SMALLEST_CHUNK 4000u
#define LARGEST_CHUNK 1000000u

/* What json_parse() returns a pointer into: root comes first, so a pointer to it is a pointer to the document, too. */
typedef struct {
    JsonValue root;
    Chunk *chunks; /* the newest first */
    char *unused;  /* the end of the newest: `left` bytes */
    size_t left;
} Document;

/* Allocate `size` bytes, aligned for a JsonValue, that live as long as the document. Each chunk is twice as large as
 * the one before: a large document has few of them, and a small one wastes little. NULL when out of memory. */
static void *allocate(Document *d, size_t size)
{
    size = (size + 7) / 8 * 8;
    if (size > d->left) {
        size_t chunk_size = d->chunks ? MIN(d->chunks->size * 2, LARGEST_CHUNK) : SMALLEST_CHUNK;
        chunk_size = MAX(chunk_size, size);
        Chunk *chunk = malloc(sizeof *chunk + chunk_size);
        if (!chunk)
            return NULL;
        *chunk = (Chunk){d->chunks, chunk_size};
        d->chunks = chunk;
        d->unused = (char *)(chunk + 1);
        d->left = chunk_size;
    }
    void *p = d->unused;
    d->unused += size;
    d->left -= size;
    return p;
}

void json_free(JsonValue *root)
{
    Document *d = (Document *)root;
    for (Chunk *c = d ? d->chunks : NULL, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    free(d);
}

/* ---- the text, and what is wrong with it ------------------------------------------------------------------------- */

typedef struct {
    const char *start, *at, *end; /* the text is [start, end); `at` is the next byte to read */
    Document *document;
    char *err;
} Parser;

/* The next byte, unread. 0 at the end of the text, as for a NUL byte: no rule allows a NUL where this is asked. */
static int peek(const Parser *p)
{
    return p->at < p->end ? (unsigned char)*p->at : 0;
}

/* Write "byte N: " and a sentence to err, and return -1. */
__attribute__((format(printf, 3, 4))) static int reject(const Parser *p, const char *at, const char *fmt, ...)
{
    int n = snprintf(p->err, 512, "byte %zu: ", (size_t)(at - p->start));
    va_list args;
    va_start(args, fmt);
    vsnprintf(p->err + n, 512 - (size_t)n, fmt, args);
    va_end(args);
    return -1;
}

/* The usual sentence: what is there, and what should be there. */
static int fail_expected(const Parser *p, const char *at, const char *expected)
{
    if (at >= p->end)
        return reject(p, at, "found the end of the text, expected %s", expected);
    if (*at > ' ' && *at < 0x7f)
        return reject(p, at, "found '%c', expected %s", *at, expected);
    return reject(p, at, "found byte 0x%02x, expected %s", (unsigned char)*at, expected);
}

/* Many bytes are looked at eight at a time, as one number (load_u64). This is the number that has c in each byte. */
#define EACH_BYTE(c) (0x0101010101010101u * (uint64_t)(c))

/* space: skip it and return the byte behind it, unread. */
static int skip_space(Parser *p)
{
    for (;; p->at++) {
        while (p->end - p->at >= 8 && load_u64(p->at) == EACH_BYTE(' ')) /* as in indented text */
            p->at += 8;
        int c = peek(p);
        if (c != ' ' && c != '\n' && c != '\r' && c != '\t')
            return c;
    }
}

/* ---- string ------------------------------------------------------------------------------------------------------ */

/* Skip what needs no attention, and return the first byte that does: a quote, a backslash, a control character or a
 * byte beyond ASCII. Of eight bytes at once, subtracting n from each sets the highest bit of those below n: that finds
 * control characters (n = 0x20) and, after an XOR that turns them into 0, quotes and backslashes (n = 1). A borrow can
 * also set the highest bit of bytes above one that was found, but the lowest byte that is marked is always right. */
static const char *skip_plain(const char *s, const char *end)
{
    for (; end - s >= 8; s += 8) {
        uint64_t w = load_u64(s), quote = w ^ EACH_BYTE('"'), backslash = w ^ EACH_BYTE('\\');
        uint64_t found = w | (w - EACH_BYTE(0x20)) | (quote - EACH_BYTE(1)) | (backslash - EACH_BYTE(1));
        if (found &= EACH_BYTE(0x80))
            return s + __builtin_ctzll(found) / 8;
    }
    while (s < end && (unsigned char)*s >= 0x20 && (unsigned char)*s < 0x80 && *s != '"' && *s != '\\')
        s++;
    return s;
}

/* The letters that may follow a backslash, and the characters that they stand for; u is not among them. */
static const char escape_letters[] = "\"\\/bfnrt", escaped[] = "\"\\/\b\f\n\r\t";

/* The number that four hexadecimal digits write; -1 if there are fewer. */
static int hex4(const char *s, const char *end)
{
    int number = 0;
    for (int i = 0; i < 4; i++) {
        int c = s + i < end ? tolower((unsigned char)s[i]) : 0;
        if (!isxdigit(c))
            return -1;
        number = number * 16 + (c <= '9' ? c - '0' : c - 'a' + 10);
    }
    return number;
}

/* \u writes UTF-16, in which a character beyond U+FFFF is a pair of surrogates with ten of its bits each:
 *     high   d800 to dbff   then   low   dc00 to dfff   is   0x10000 + (high & 0x3ff) * 0x400 + (low & 0x3ff) */
static bool is_high_surrogate(int unit)
{
    return unit >= 0xd800 && unit <= 0xdbff;
}

static bool is_low_surrogate(int unit)
{
    return unit >= 0xdc00 && unit <= 0xdfff;
}

/* How many bytes the escape has that begins with the backslash at s: 2, 6, or 12 for a pair of surrogates. -1 and a
 * sentence if it is not valid. */
static int check_escape(const Parser *p, const char *s)
{
    if (s + 1 < p->end && s[1] && strchr(escape_letters, s[1]))
        return 2;
    if (s + 1 == p->end || s[1] != 'u')
        return fail_expected(p, s + 1, "one of \" \\ / b f n r t u after a backslash");
    int unit = hex4(s + 2, p->end);
    if (unit < 0)
        return reject(p, s, "found \\u, expected four hexadecimal digits after it");
    if (!is_high_surrogate(unit) && !is_low_surrogate(unit))
        return 6;
    bool pair = is_high_surrogate(unit) && p->end - s >= 12 && s[6] == '\\' && s[7] == 'u';
    if (pair && is_low_surrogate(hex4(s + 8, p->end)))
        return 12;
    return reject(p, s, "found \\u%.4s, expected both halves of a surrogate pair, \\ud800..dbff then \\udc00..dfff",
                  s + 2);
}

/* Resolve the escapes of the checked text [s, end) into out, and return the end of what was written. That is never
 * longer than the text: an escape has more bytes than its character. */
static char *unescape(char *out, const char *s, const char *end)
{
    while (s < end) {
        if (*s != '\\') {
            *out++ = *s++;
        } else if (s[1] != 'u') {
            *out++ = escaped[strchr(escape_letters, s[1]) - escape_letters];
            s += 2;
        } else {
            int unit = hex4(s + 2, end);
            uint32_t c = (uint32_t)unit;
            s += 6;
            if (is_high_surrogate(unit)) {
                c = 0x10000 + ((c & 0x3ff) << 10) + ((uint32_t)hex4(s + 2, end) & 0x3ff);
                s += 6;
            }
            out += unicode_encode(c, out);
        }
    }
    return out;
}

/* string: p is at the opening quote. First the string is checked up to its closing quote; then, if there are escapes, a
 * copy of it is made in which they are resolved. */
static int parse_string(Parser *p, const char **text, size_t *length)
{
    const char *begin = p->at + 1, *s = begin;
    bool escapes = false;
    while ((s = skip_plain(s, p->end)) < p->end && *s != '"') {
        if (*s == '\\') {
            int size = check_escape(p, s);
            if (size < 0)
                return -1;
            escapes = true;
            s += size;
        } else if (*s & 0x80) {
            uint32_t c;
            size_t size = unicode_decode(s, (size_t)(p->end - s), &c);
            if (unicode_is_broken(c, s, size))
                return fail_expected(p, unicode_length(*s) > 1 ? s + size : s, "UTF-8");
            s += size;
        } else {
            return reject(p, s, "found byte 0x%02x in a string, expected the escape \\u%04x", *s, *s);
        }
    }
    if (s == p->end)
        return reject(p, s, "found the end of the text, expected '\"' to close the string that begins at byte %zu",
                      (size_t)(p->at - p->start));
    *text = begin;
    *length = (size_t)(s - begin);
    if (escapes) {
        char *copy = allocate(p->document, *length);
        if (!copy)
            return reject(p, p->at, "out of memory");
        *text = copy;
        *length = (size_t)(unescape(copy, begin, s) - copy);
    }
    p->at = s + 1;
    return 0;
}

/* ---- number ------------------------------------------------------------------------------------------------------ */

/* [0-9]+ */
static int skip_digits(Parser *p)
{
    if (!isdigit(peek(p)))
        return fail_expected(p, p->at, "a digit");
    while (isdigit(peek(p)))
        p->at++;
    return 0;
}

/* Skip the number and tell its type. */
static int skip_number(Parser *p, JsonType *type)
{
    if (peek(p) == '-')
        p->at++;
    bool zero = peek(p) == '0';
    const char *second = p->at + 1;
    if (skip_digits(p))
        return -1;
    if (zero && p->at > second)
        return fail_expected(p, second, "no digit after a leading 0");
    *type = JSON_INTEGER;
    if (peek(p) == '.') {
        *type = JSON_REAL;
        p->at++;
        if (skip_digits(p))
            return -1;
    }
    if (peek(p) != 'e' && peek(p) != 'E')
        return 0;
    *type = JSON_REAL;
    p->at++;
    if (peek(p) == '+' || peek(p) == '-')
        p->at++;
    return skip_digits(p);
}

/* number: kept as it is written; json_u64() and json_double() compute its value when somebody asks. Computing it here
 * would cost time, and an integer beyond 2^53 would lose digits. */
static int parse_number(Parser *p, JsonValue *v)
{
    const char *begin = p->at;
    if (skip_number(p, &v->type))
        return -1;
    v->text = begin;
    v->length = (size_t)(p->at - begin);
    if (p->at == p->end) { /* the number ends with the text, but strtod() needs a byte behind it to stop at */
        char *copy = allocate(p->document, v->length + 1);
        if (!copy)
            return reject(p, p->at, "out of memory");
        memcpy(copy, begin, v->length);
        copy[v->length] = '\0';
        v->text = copy;
    }
    /* up to DBL_MAX_10_EXP = 308 digits can't write an integer that is too large */
    if ((v->type == JSON_REAL || v->length > DBL_MAX_10_EXP) && isinf(strtod(v->text, NULL)))
        return reject(p, begin, "found %.*s, expected a number that fits a double", (int)MIN(v->length, 40), begin);
    return 0;
}

/* ---- value, array, object ---------------------------------------------------------------------------------------- */

static int parse_value(Parser *p, JsonValue *v, int depth);

/* Read what stands before a member of an array or object: nothing before the first one, a comma before the others.
 * Returns 1 if a member should follow, 0 if the closing bracket was read instead, -1 and a sentence if there is
 * neither. */
static int more_members(Parser *p, const JsonValue *list, char close)
{
    int c = skip_space(p);
    if (c == close) {
        p->at++;
        return 0;
    }
    if (list->length == 0)
        return 1;
    if (c != ',')
        return fail_expected(p, p->at, close == ']' ? "',' or ']'" : "',' or '}'");
    p->at++;
    return 1;
}

/* The name of a member, and the colon behind it. */
static int parse_key(Parser *p, JsonValue *v)
{
    size_t length;
    if (skip_space(p) != '"')
        return fail_expected(p, p->at, "a name in double quotes");
    if (parse_string(p, &v->key, &length))
        return -1;
    if (length > UINT32_MAX)
        return reject(p, p->at, "found a name of %zu bytes, expected less than 4 GiB", length);
    v->key_length = (uint32_t)length;
    if (skip_space(p) != ':')
        return fail_expected(p, p->at, "':'");
    p->at++;
    return 0;
}

/* array, object: p is at the opening bracket. */
static int parse_members(Parser *p, JsonValue *list, JsonType type, int depth)
{
    JsonValue **link = &list->child;
    int more;
    if (depth == JSON_MAX_DEPTH)
        return reject(p, p->at, "found '%c' inside %d nested arrays and objects, expected no deeper nesting", *p->at,
                      depth);
    list->type = type;
    p->at++;
    while ((more = more_members(p, list, type == JSON_ARRAY ? ']' : '}')) > 0) {
        JsonValue *v = allocate(p->document, sizeof *v);
        if (!v)
            return reject(p, p->at, "out of memory");
        *v = (JsonValue){0};
        *link = v;
        link = &v->next;
        list->length++;
        if ((type == JSON_OBJECT && parse_key(p, v)) || parse_value(p, v, depth + 1))
            return -1;
    }
    return more;
}

/* true, false or null. */
static int parse_literal(Parser *p, JsonValue *v, JsonType type, const char *word)
{
    v->type = type;
    for (const char *s = word; *s; s++, p->at++)
        if (peek(p) != *s)
            return fail_expected(p, p->at, word);
    return 0;
}

/* value: its first byte tells what it is. Fills in v, except for its key and next; depth is the number of arrays and
 * objects around it. */
static int parse_value(Parser *p, JsonValue *v, int depth)
{
    int c = skip_space(p);
    if (c == '"') {
        v->type = JSON_STRING;
        return parse_string(p, &v->text, &v->length);
    }
    if (isdigit(c) || c == '-')
        return parse_number(p, v);
    switch (c) {
    case '{':
        return parse_members(p, v, JSON_OBJECT, depth);
    case '[':
        return parse_members(p, v, JSON_ARRAY, depth);
    case 'n':
        return parse_literal(p, v, JSON_NULL, "null");
    case 't':
        return parse_literal(p, v, JSON_TRUE, "true");
    case 'f':
        return parse_literal(p, v, JSON_FALSE, "false");
    case 'N':
    case 'I':
        return fail_expected(p, p->at, "a value; Python's NaN and Infinity are none: write null or a number");
    }
    return fail_expected(p, p->at, "a value");
}

JsonValue *json_parse(const char *text, size_t length, char err[512])
{
    Document *d = calloc(1, sizeof *d);
    Parser p = {.start = text, .at = text, .end = text + length, .document = d, .err = err};
    if (!d) {
        reject(&p, text, "out of memory");
        return NULL;
    }
    if (length >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0)
        reject(&p, text, "found a byte order mark, expected UTF-8 without one: save the file that way");
    else if (parse_value(&p, &d->root, 0) == 0) {
        skip_space(&p);
        if (p.at == p.end)
            return &d->root;
        fail_expected(&p, p.at, "the end of the text");
    }
    json_free(&d->root);
    return NULL;
}

/* ---- reading a tree ---------------------------------------------------------------------------------------------- */

bool json_key_is(const JsonValue *member, const char *name)
{
    return member && member->key && text_same(member->key, member->key_length, name, strlen(name));
}

bool json_string_is(const JsonValue *value, const char *text)
{
    return value && value->type == JSON_STRING && text_same(value->text, value->length, text, strlen(text));
}

/* A loop over the members is fine for the few keys of a config; the header of a checkpoint gets an index of its own. */
const JsonValue *json_get(const JsonValue *object, const char *key)
{
    const JsonValue *found = NULL;
    for (const JsonValue *v = object && object->type == JSON_OBJECT ? object->child : NULL; v; v = v->next)
        if (json_key_is(v, key))
            found = v;
    return found;
}

/* Exact up to 2^64 - 1, where a double would keep only the upper 53 bits. */
int json_u64(const JsonValue *value, uint64_t *out)
{
    uint64_t n = 0;
    if (!value || value->type != JSON_INTEGER)
        return -1;
    for (size_t i = 0; i < value->length; i++) {
        unsigned digit = (unsigned)(value->text[i] - '0'); /* a minus sign becomes a large number */
        if (digit > 9 || n > (UINT64_MAX - digit) / 10)
            return -1;
        n = n * 10 + digit;
    }
    *out = n;
    return 0;
}

int json_double(const JsonValue *value, double *out)
{
    if (!value || (value->type != JSON_INTEGER && value->type != JSON_REAL))
        return -1;
    *out = strtod(value->text, NULL); /* stops at the byte behind the number: parse_number() has made sure of one */
    return 0;
}

int json_bool(const JsonValue *value, bool *out)
{
    if (!value || (value->type != JSON_TRUE && value->type != JSON_FALSE))
        return -1;
    *out = value->type == JSON_TRUE;
    return 0;
}

/* ---- look-ups in an object --------------------------------------------------------------------------------------- */

const JsonValue *json_lookup(const JsonLookup *l, const char *key)
{
    const JsonValue *v = json_get(l->object, key);
    return v && v->type != JSON_NULL ? v : NULL;
}

int json_lookup_size(const JsonLookup *l, const char *key, size_t least, size_t most, size_t *out)
{
    const JsonValue *v = json_lookup(l, key);
    uint64_t n;
    if (!v)
        return 0;
    if (json_u64(v, &n) || n < least || n > most) {
        if (most == SIZE_MAX)
            return fail(l->err, "%s: \"%s\" must be a whole number of %zu or more", l->file, key, least);
        return fail(l->err, "%s: \"%s\" must be a whole number from %zu to %zu", l->file, key, least, most);
    }
    *out = (size_t)n;
    return 0;
}

int json_lookup_number(const JsonLookup *l, const char *key, double least, double most, double *out)
{
    const JsonValue *v = json_lookup(l, key);
    double n;
    if (!v)
        return 0;
    if (json_double(v, &n))
        return fail(l->err, "%s: \"%s\" must be a number", l->file, key);
    if (!(n >= least && n <= most) && isinf(most))
        return fail(l->err, "%s: \"%s\" must be a number of %g or more", l->file, key, least);
    if (!(n >= least && n <= most))
        return fail(l->err, "%s: \"%s\" must be a number from %g to %g", l->file, key, least, most);
    *out = n;
    return 0;
}

int json_lookup_bool(const JsonLookup *l, const char *key, bool *out)
{
    const JsonValue *v = json_lookup(l, key);
    if (v && json_bool(v, out))
        return fail(l->err, "%s: \"%s\" must be true or false", l->file, key);
    return 0;
}

int json_lookup_ids(const JsonLookup *l, const char *key, int *ids, size_t most, size_t *n)
{
    const JsonValue *v = json_lookup(l, key);
    bool is_list = v && v->type == JSON_ARRAY;
    *n = 0;
    for (const JsonValue *e = is_list ? v->child : v; e; e = is_list ? e->next : NULL) {
        uint64_t id;
        if (*n == most || json_u64(e, &id) || id > INT_MAX)
            return fail(l->err, "%s: \"%s\" must be a token id or a list of at most %zu", l->file, key, most);
        ids[(*n)++] = (int)id;
    }
    return 0;
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

/* Write the shortest escape of the character; beyond U+FFFF, its two surrogates. */
static void write_escape(FILE *out, uint32_t c)
{
    const char *found = c > 0 && c < 0x80 ? strchr(escaped, (int)c) : NULL;
    if (found)
        fprintf(out, "\\%c", escape_letters[found - escaped]);
    else if (c < 0x10000)
        fprintf(out, "\\u%04x", (unsigned)c);
    else
        fprintf(out, "\\u%04x\\u%04x", (unsigned)(0xd800 + ((c - 0x10000) >> 10)), (unsigned)(0xdc00 + (c & 0x3ff)));
}

static void write_string(FILE *out, const char *s, size_t length, bool ascii)
{
    const char *end = s + length, *plain = s; /* [plain, s) is to be written as it is */
    putc('"', out);
    while (s < end) {
        uint32_t c;
        size_t size = unicode_decode(s, (size_t)(end - s), &c);
        bool escape = c == '"' || c == '\\' || text_drives_terminal(c) || (ascii && c > 0x7f);
        if (escape || unicode_is_broken(c, s, size)) {
            fwrite(plain, 1, (size_t)(s - plain), out);
            if (escape)
                write_escape(out, c);
            else
                fputs("\xef\xbf\xbd", out); /* U+FFFD */
            plain = s + size;
        }
        s += size;
    }
    fwrite(plain, 1, (size_t)(s - plain), out);
    putc('"', out);
}

void json_write_string(FILE *out, const char *text, size_t length)
{
    write_string(out, text, length, false);
}

/* Write the value with that many digits; true if it reads back the same. Where the exponent changes, at a power of two,
 * doubles are twice as far apart above as below. The decimal nearest to such a double may then be read back as the one
 * below, although the next decimal upwards would do: so that one is tried as well. */
static bool try_digits(char text[32], int digits, double value)
{
    snprintf(text, 32, "%.*e", digits - 1, value);
    if (strtod(text, NULL) == value)
        return true;
    char *last = strchr(text, 'e') - 1;
    if (*last == '9')
        return false;
    ++*last;
    return strtod(text, NULL) == value;
}

void json_write_double(FILE *out, double value)
{
    char text[32];
    int digits = 1;
    if (!isfinite(value)) {
        fputs("null", out);
        return;
    }
    while (!try_digits(text, digits, value)) /* 17 digits always do */
        digits++;
    int exponent = (int)strtol(strchr(text, 'e') + 1, NULL, 10);
    if (exponent < -4 || exponent > 15)
        fputs(text, out);
    else /* the same digits without an exponent, and at least one behind the point */
        fprintf(out, "%.*f", MAX(digits - 1 - exponent, 1), value);
}

/* A canonical object has each name once: where the name stands first, with the value that it has last. */
typedef struct {
    const JsonValue *member;
    size_t index; /* in its object */
} NamedMember;

static int compare_members(const void *a, const void *b)
{
    const NamedMember *x = a, *y = b;
    int order = text_compare(x->member->key, x->member->key_length, y->member->key, y->member->key_length);
    if (order == 0)
        return x->index < y->index ? -1 : 1;
    return order;
}

static bool same_name(const JsonValue *a, const JsonValue *b)
{
    return text_same(a->key, a->key_length, b->key, b->key_length);
}

/* What to print for each member of the object, fresh [length]: the last value of its name at the first member of that
 * name, NULL at the others. Sorting finds equal names in n log n. NULL when out of memory. */
static const JsonValue **resolve_names(const JsonValue *object)
{
    size_t n = object->length, i = 0;
    const JsonValue **values = calloc(n, sizeof *values);
    NamedMember *sorted = calloc(n, sizeof *sorted);
    if (!values || !sorted) {
        free(values);
        free(sorted);
        return NULL;
    }
    for (const JsonValue *v = object->child; v; v = v->next, i++)
        sorted[i] = (NamedMember){v, i};
    qsort(sorted, n, sizeof *sorted, compare_members);
    for (size_t first = 0, last; first < n; first = last + 1) {
        last = first;
        while (last + 1 < n && same_name(sorted[first].member, sorted[last + 1].member))
            last++;
        values[sorted[first].index] = sorted[last].member;
    }
    free(sorted);
    return values;
}

/* The same for one member, by looking at all others: for short objects, and when there is no memory to sort in. */
static const JsonValue *resolve_name(const JsonValue *object, const JsonValue *member)
{
    const JsonValue *last = member;
    for (const JsonValue *v = object->child; v != member; v = v->next)
        if (same_name(v, member))
            return NULL;
    for (const JsonValue *v = member->next; v; v = v->next)
        if (same_name(v, member))
            last = v;
    return last;
}

static void print_value(FILE *out, const JsonValue *v, JsonStyle style, int depth);

/* Print an array or object; depth is the number of those around it. */
static void print_list(FILE *out, const JsonValue *list, JsonStyle style, int depth)
{
    bool is_object = list->type == JSON_OBJECT, unique = is_object && style == JSON_CANONICAL, empty = true;
    const JsonValue **values = unique && list->length > 8 ? resolve_names(list) : NULL;
    size_t i = 0;
    putc(is_object ? '{' : '[', out);
    for (const JsonValue *v = list->child; v; v = v->next, i++) {
        const JsonValue *value = v;
        if (unique)
            value = values ? values[i] : resolve_name(list, v);
        if (!value)
            continue;
        if (!empty)
            putc(',', out);
        if (style == JSON_INDENTED)
            fprintf(out, "\n%*s", 2 * depth + 2, "");
        empty = false;
        if (is_object) {
            write_string(out, v->key, v->key_length, style == JSON_CANONICAL);
            fputs(style == JSON_INDENTED ? ": " : ":", out);
        }
        print_value(out, value, style, depth + 1);
    }
    if (!empty && style == JSON_INDENTED)
        fprintf(out, "\n%*s", 2 * depth, "");
    putc(is_object ? '}' : ']', out);
    free(values);
}

/* depth: how many arrays and objects are around v. A tree from json_parse() is never deeper than the limit; in one that
 * was made by hand, what is deeper prints as null. */
static void print_value(FILE *out, const JsonValue *v, JsonStyle style, int depth)
{
    static const char *const words[] = {"null", "false", "true"};
    bool is_list = v->type == JSON_ARRAY || v->type == JSON_OBJECT, canonical = style == JSON_CANONICAL;
    if (v->type <= JSON_TRUE)
        fputs(words[v->type], out);
    else if (v->type == JSON_STRING)
        write_string(out, v->text, v->length, canonical);
    else if (is_list && depth < JSON_MAX_DEPTH)
        print_list(out, v, style, depth);
    else if (is_list)
        fputs("null", out);
    else if (canonical && v->type == JSON_REAL)
        json_write_double(out, strtod(v->text, NULL));
    else if (canonical && text_same(v->text, v->length, "-0", 2))
        putc('0', out);
    else
        fwrite(v->text, 1, v->length, out);
}

void json_print(FILE *out, const JsonValue *value, JsonStyle style)
{
    print_value(out, value, style, 0);
}
