/* JSON (RFC 8259) has six rules, and this parser one function for each:
 *
 *     value    object | array | string | number | true | false | null
 *     object   {}   or   { string : value , string : value , ... }
 *     array    []   or   [ value , value , ... ]
 *     string   " characters "    UTF-8; \" \\ \/ \b \f \n \r \t \uXXXX stand for one character; no byte below 0x20
 *     number   -? (0 | [1-9][0-9]*) (. [0-9]+)? ([eE] [+-]? [0-9]+)?
 *     space    blank, tab, line feed, carriage return: anywhere between two of the above
 *
 * A text is one value. Each function begins at the next unread byte and either reads its rule to the end or says at
 * which byte the text breaks it. Values become nodes of a tree: the members of an array or object are a list, the first
 * one its child. Nodes lie one behind another in big chunks of memory that are freed together with the root. Nothing of
 * the text is copied but strings with escapes: the others, and all numbers, are pointers into it.
 *
 * parse_value() calls itself through arrays and objects, JSON_MAX_DEPTH times at most: a deeper text is refused.
 */
#include "json.h"

#include <ctype.h>
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory ------------------------------------------------------------------------------------------------------ */

typedef struct Chunk {
    struct Chunk *next;
    size_t size; /* of the bytes that follow this struct */
} Chunk;

#define CHUNK_SMALLEST 4000u
#define CHUNK_LARGEST 1000000u

/* What json_parse() returns a pointer into: root comes first, so that a pointer to one is a pointer to the other. */
typedef struct {
    JsonValue root;
    Chunk *chunks; /* the newest first */
    char *free;    /* the rest of the newest: `left` bytes */
    size_t left;
} Document;

/* size bytes, aligned for a JsonValue, that live as long as the document. NULL: no memory. */
static void *allocate(Document *d, size_t size)
{
    size = (size + 7) / 8 * 8;
    if (size > d->left) { /* each chunk is twice the one before: few for a big document, little waste for a small one */
        size_t wanted = d->chunks ? d->chunks->size * 2 : CHUNK_SMALLEST;
        wanted = wanted > CHUNK_LARGEST ? CHUNK_LARGEST : wanted;
        wanted = wanted < size ? size : wanted;
        Chunk *chunk = malloc(sizeof *chunk + wanted);
        if (!chunk)
            return NULL;
        *chunk = (Chunk){d->chunks, wanted};
        d->chunks = chunk;
        d->free = (char *)(chunk + 1);
        d->left = wanted;
    }
    void *p = d->free;
    d->free += size;
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
    const char *start, *at, *end; /* the text is [start, end); at is the next byte to read */
    Document *document;
    char *err;
} Parser;

/* The next byte, unread; 0 at the end (and for a NUL byte: neither may stand where this is asked). */
static int peek(const Parser *p)
{
    return p->at < p->end ? (unsigned char)*p->at : 0;
}

/* "byte N: " and a sentence. N counts from 0. */
__attribute__((format(printf, 3, 4))) static int reject(const Parser *p, const char *at, const char *fmt, ...)
{
    int n = snprintf(p->err, 512, "byte %zu: ", (size_t)(at - p->start));
    va_list args;
    va_start(args, fmt);
    vsnprintf(p->err + n, 512 - (size_t)n, fmt, args);
    va_end(args);
    return -1;
}

/* The usual sentence: what is there, and what belongs there. */
static int fail_expected(const Parser *p, const char *at, const char *expected)
{
    if (at >= p->end)
        return reject(p, at, "found the end of the text, expected %s", expected);
    if (*at > ' ' && *at < 0x7f)
        return reject(p, at, "found '%c', expected %s", *at, expected);
    return reject(p, at, "found byte 0x%02x, expected %s", (unsigned char)*at, expected);
}

/* Many bytes are looked at eight at a time, as one number; the first byte is its lowest. */
#define EACH_BYTE(c) (0x0101010101010101u * (uint64_t)(c))

static uint64_t load8(const char *s)
{
    const unsigned char *b = (const unsigned char *)s;
    return (uint64_t)b[0] | (uint64_t)b[1] << 8 | (uint64_t)b[2] << 16 | (uint64_t)b[3] << 24 | (uint64_t)b[4] << 32 |
           (uint64_t)b[5] << 40 | (uint64_t)b[6] << 48 | (uint64_t)b[7] << 56;
}

/* space: skips it and returns the byte behind it, unread. */
static int skip_space(Parser *p)
{
    for (;; p->at++) {
        while (p->end - p->at >= 8 && load8(p->at) == EACH_BYTE(' '))
            p->at += 8;
        int c = peek(p);
        if (c != ' ' && c != '\n' && c != '\r' && c != '\t')
            return c;
    }
}

/* ---- string ------------------------------------------------------------------------------------------------------ */

/* How many bytes from s on are one character of UTF-8, as far as they are well-formed; *whole if it ends there. */
static size_t utf8_prefix(const char *s, const char *end, bool *whole)
{
    unsigned char c = (unsigned char)*s;
    unsigned char low = c == 0xe0 ? 0xa0 : c == 0xf0 ? 0x90 : 0x80;  /* below: the character has a shorter form */
    unsigned char high = c == 0xed ? 0x9f : c == 0xf4 ? 0x8f : 0xbf; /* above: half a surrogate pair; beyond U+10FFFF */
    size_t length = c < 0x80 ? 1 : c < 0xc2 ? 0 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : c < 0xf5 ? 4 : 0;
    size_t n = length > 0;
    for (; n < length && s + n < end && (unsigned char)s[n] >= low && (unsigned char)s[n] <= high; n++) {
        low = 0x80;
        high = 0xbf;
    }
    *whole = length > 0 && n == length;
    return n;
}

/* The first byte from s on that needs a look: a quote, a backslash, a control character, or one beyond ASCII. Each term
 * of `found` sets the highest bit of such a byte; in the bytes above it there may be false ones, but the lowest is
 * true. */
static const char *skip_plain(const char *s, const char *end)
{
    for (; end - s >= 8; s += 8) {
        uint64_t w = load8(s), quote = w ^ EACH_BYTE('"'), backslash = w ^ EACH_BYTE('\\');
        uint64_t found = w | (w - EACH_BYTE(0x20)) | (quote - EACH_BYTE(1)) | (backslash - EACH_BYTE(1));
        if (found &= EACH_BYTE(0x80))
            return s + __builtin_ctzll(found) / 8;
    }
    while (s < end && (unsigned char)*s >= 0x20 && (unsigned char)*s < 0x80 && *s != '"' && *s != '\\')
        s++;
    return s;
}

/* The number that four hexadecimal digits write, or -1. */
static int hex4(const char *s, const char *end)
{
    static const char digits[] = "0123456789abcdef";
    int unit = 0;
    for (int i = 0; i < 4; i++) {
        const char *digit = s + i < end && isxdigit((unsigned char)s[i]) ? strchr(digits, tolower(s[i])) : NULL;
        if (!digit)
            return -1;
        unit = unit * 16 + (int)(digit - digits);
    }
    return unit;
}

/* Checks the escape at s, a backslash, and returns its end. \u is UTF-16: beyond U+FFFF, a character is two of them. */
static const char *skip_escape(const Parser *p, const char *s)
{
    if (s + 1 == p->end || !s[1] || !strchr("\"\\/bfnrtu", s[1]))
        return fail_expected(p, s + 1, "one of \" \\ / b f n r t u after a backslash"), NULL;
    if (s[1] != 'u')
        return s + 2;
    int unit = hex4(s + 2, p->end);
    if (unit < 0)
        return reject(p, s, "found \\u, expected four hexadecimal digits after it"), NULL;
    if (unit < 0xd800 || unit > 0xdfff)
        return s + 6;
    if (unit < 0xdc00 && p->end - s >= 12 && s[6] == '\\' && s[7] == 'u' && hex4(s + 8, p->end) >> 10 == 0xdc00 >> 10)
        return s + 12;
    reject(p, s, "found \\u%.4s, expected both halves of a surrogate pair, \\ud800..dbff then \\udc00..dfff", s + 2);
    return NULL;
}

static char *write_utf8(char *out, unsigned c)
{
    static const unsigned first[] = {0, 0xc0, 0xe0, 0xf0};
    int more = c < 0x80 ? 0 : c < 0x800 ? 1 : c < 0x10000 ? 2 : 3; /* bytes after the first, with six bits each */
    *out++ = (char)(first[more] | c >> 6 * more);
    while (more-- > 0)
        *out++ = (char)(0x80 | (c >> 6 * more & 0x3f));
    return out;
}

/* Resolves the escapes of the checked text [s, end) into out, which gets no longer than that. Returns its end. */
static char *unescape(char *out, const char *s, const char *end)
{
    static const char letters[] = "bfnrt", meant[] = "\b\f\n\r\t";
    while (s < end) {
        if (*s != '\\') {
            *out++ = *s++;
        } else if (s[1] != 'u') {
            const char *letter = strchr(letters, s[1]);
            *out++ = letter ? meant[letter - letters] : s[1];
            s += 2;
        } else {
            unsigned c = (unsigned)hex4(s + 2, end);
            s += 6;
            if (c >> 10 == 0xd800 >> 10) {
                c = 0x10000 + ((c & 0x3ff) << 10) + ((unsigned)hex4(s + 2, end) & 0x3ff);
                s += 6;
            }
            out = write_utf8(out, c);
        }
    }
    return out;
}

/* string: p is at its opening quote. First all of it is checked; then, if there are escapes, they are resolved. */
static int parse_string(Parser *p, const char **text, size_t *length)
{
    const char *begin = p->at + 1, *s = begin;
    bool escapes = false, whole;
    while ((s = skip_plain(s, p->end)) < p->end && *s != '"') {
        if (*s == '\\') {
            escapes = true;
            if (!(s = skip_escape(p, s)))
                return -1;
        } else if (*s & 0x80) {
            s += utf8_prefix(s, p->end, &whole);
            if (!whole)
                return fail_expected(p, s, "UTF-8");
        } else {
            return reject(p, s, "found byte 0x%02x in a string, expected it to be written \\u%04x", *s, *s);
        }
    }
    if (s == p->end)
        return reject(p, s, "found the end of the text, expected '\"' to close the string of byte %zu",
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

static int skip_digits(Parser *p)
{
    if (!isdigit(peek(p)))
        return fail_expected(p, p->at, "a digit");
    while (isdigit(peek(p)))
        p->at++;
    return 0;
}

/* Skips the number; *exponent if it has one. */
static int skip_number(Parser *p, JsonType *type, bool *exponent)
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
    *exponent = peek(p) == 'e' || peek(p) == 'E';
    if (!*exponent)
        return 0;
    *type = JSON_REAL;
    p->at++;
    if (peek(p) == '+' || peek(p) == '-')
        p->at++;
    return skip_digits(p);
}

/* number: kept as it is written. Whoever wants its value calls json_u64(), json_i64() or json_double(). */
static int parse_number(Parser *p, JsonValue *v)
{
    const char *begin = p->at;
    bool exponent;
    if (skip_number(p, &v->type, &exponent))
        return -1;
    v->text = begin;
    v->length = (size_t)(p->at - begin);
    if (p->at == p->end) { /* the whole text is a number: strtod() needs something behind it */
        char *copy = allocate(p->document, v->length + 1);
        if (!copy)
            return reject(p, p->at, "out of memory");
        memcpy(copy, begin, v->length);
        copy[v->length] = 0;
        v->text = copy;
    }
    if ((exponent || v->length > DBL_MAX_10_EXP) && isinf(strtod(v->text, NULL)))
        return reject(p, begin, "found %.*s, expected a number within the doubles", v->length < 40 ? (int)v->length : 40,
                    begin);
    return 0;
}

/* ---- value, array, object ---------------------------------------------------------------------------------------- */

static int parse_value(Parser *p, JsonValue *v, int depth);

/* 1 if another member of the list follows, 0 behind its closing bracket, -1 if there is neither. */
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

/* A new member; link is where the pointer to it belongs. */
static JsonValue *add_member(Parser *p, JsonValue *list, JsonValue **link)
{
    JsonValue *v = allocate(p->document, sizeof *v);
    if (!v)
        return reject(p, p->at, "out of memory"), NULL;
    *v = (JsonValue){0};
    *link = v;
    list->length++;
    return v;
}

static int parse_array(Parser *p, JsonValue *array, int depth)
{
    JsonValue **link = &array->child;
    int more;
    array->type = JSON_ARRAY;
    p->at++;
    while ((more = more_members(p, array, ']')) > 0) {
        JsonValue *v = add_member(p, array, link);
        if (!v || parse_value(p, v, depth + 1))
            return -1;
        link = &v->next;
    }
    return more;
}

/* A member's name and the colon. */
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

static int parse_object(Parser *p, JsonValue *object, int depth)
{
    JsonValue **link = &object->child;
    int more;
    object->type = JSON_OBJECT;
    p->at++;
    while ((more = more_members(p, object, '}')) > 0) {
        JsonValue *v = add_member(p, object, link);
        if (!v || parse_key(p, v) || parse_value(p, v, depth + 1))
            return -1;
        link = &v->next;
    }
    return more;
}

static int parse_literal(Parser *p, JsonValue *v, JsonType type, const char *word)
{
    v->type = type;
    for (const char *s = word; *s; s++, p->at++)
        if (peek(p) != *s)
            return fail_expected(p, p->at, word);
    return 0;
}

/* value: fills in v, whose name and place in a list are the caller's affair. depth: arrays and objects around it. */
static int parse_value(Parser *p, JsonValue *v, int depth)
{
    int c = skip_space(p);
    if ((c == '{' || c == '[') && depth == JSON_MAX_DEPTH)
        return reject(p, p->at, "found '%c' inside of %d arrays and objects, expected no deeper nesting", c, depth);
    if (c == '"') {
        v->type = JSON_STRING;
        return parse_string(p, &v->text, &v->length);
    }
    if (isdigit(c) || c == '-')
        return parse_number(p, v);
    switch (c) {
    case '{':
        return parse_object(p, v, depth);
    case '[':
        return parse_array(p, v, depth);
    case 'n':
        return parse_literal(p, v, JSON_NULL, "null");
    case 't':
        return parse_literal(p, v, JSON_TRUE, "true");
    case 'f':
        return parse_literal(p, v, JSON_FALSE, "false");
    }
    return fail_expected(p, p->at, "a value");
}

JsonValue *json_parse(const char *text, size_t length, char err[512])
{
    Document *d = calloc(1, sizeof *d);
    Parser p = {text, text, text + length, d, err};
    if (!d)
        return reject(&p, text, "out of memory"), NULL;
    if (parse_value(&p, &d->root, 0) == 0) {
        skip_space(&p);
        if (p.at == p.end)
            return &d->root;
        fail_expected(&p, p.at, "the end of the text");
    }
    json_free(&d->root);
    return NULL;
}

/* ---- looking things up ------------------------------------------------------------------------------------------- */

static bool same_bytes(const char *a, size_t a_length, const char *b, size_t b_length)
{
    return a_length == b_length && memcmp(a, b, a_length) == 0;
}

bool json_key_is(const JsonValue *member, const char *name)
{
    return member && member->key && same_bytes(member->key, member->key_length, name, strlen(name));
}

bool json_string_is(const JsonValue *value, const char *text)
{
    return value && value->type == JSON_STRING && same_bytes(value->text, value->length, text, strlen(text));
}

const JsonValue *json_get(const JsonValue *object, const char *key)
{
    const JsonValue *found = NULL;
    for (const JsonValue *v = object && object->type == JSON_OBJECT ? object->child : NULL; v; v = v->next)
        if (json_key_is(v, key))
            found = v;
    return found;
}

/* Digits and nothing else: a minus sign is refused too, even that of -0. */
static int parse_digits(const char *digits, size_t length, uint64_t *out)
{
    uint64_t n = 0;
    for (size_t i = 0; i < length; i++) {
        unsigned digit = (unsigned)(digits[i] - '0');
        if (digit > 9 || n > (UINT64_MAX - digit) / 10)
            return -1;
        n = n * 10 + digit;
    }
    *out = n;
    return 0;
}

int json_u64(const JsonValue *value, uint64_t *out)
{
    return value && value->type == JSON_INTEGER ? parse_digits(value->text, value->length, out) : -1;
}

int json_i64(const JsonValue *value, int64_t *out)
{
    uint64_t n;
    if (!value || value->type != JSON_INTEGER)
        return -1;
    unsigned minus = value->text[0] == '-';
    if (parse_digits(value->text + minus, value->length - minus, &n) || n > (uint64_t)INT64_MAX + minus)
        return -1;
    *out = minus && n ? -(int64_t)(n - 1) - 1 : (int64_t)n;
    return 0;
}

int json_double(const JsonValue *value, double *out)
{
    if (!value || (value->type != JSON_INTEGER && value->type != JSON_REAL))
        return -1;
    *out = strtod(value->text, NULL); /* stops at the byte behind the number: parse_number() took care of that */
    return 0;
}

int json_bool(const JsonValue *value, bool *out)
{
    if (!value || (value->type != JSON_TRUE && value->type != JSON_FALSE))
        return -1;
    *out = value->type == JSON_TRUE;
    return 0;
}

/* ---- typed look-ups ---------------------------------------------------------------------------------------------- */

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

/* The character that a whole UTF-8 sequence of n bytes is. */
static unsigned utf8_character(const char *s, size_t n)
{
    unsigned c = (unsigned char)*s & 0xffu >> n; /* without the n bits that say so */
    for (size_t i = 1; i < n; i++)
        c = c << 6 | ((unsigned char)s[i] & 0x3fu);
    return c;
}

static void write_escape(FILE *out, unsigned c)
{
    static const char letters[] = "\"\\bfnrt", meant[] = "\"\\\b\f\n\r\t";
    const char *m = c > 0 && c < 0x80 ? strchr(meant, (int)c) : NULL;
    if (m)
        fprintf(out, "\\%c", letters[m - meant]);
    else if (c < 0x10000)
        fprintf(out, "\\u%04x", c);
    else
        fprintf(out, "\\u%04x\\u%04x", 0xd7c0 + (c >> 10), 0xdc00 + (c & 0x3ff));
}

static void write_string(FILE *out, const char *s, size_t length, bool ascii)
{
    const char *end = s + length, *plain = s; /* [plain, s) goes out as it is */
    putc('"', out);
    while (s < end) {
        bool whole;
        size_t n = utf8_prefix(s, end, &whole);
        bool escape = *s == '"' || *s == '\\' || *s == 0x7f || (unsigned char)*s < 0x20 || (ascii && n > 1);
        if (whole && !escape) {
            s += n;
            continue;
        }
        fwrite(plain, 1, (size_t)(s - plain), out);
        if (whole)
            write_escape(out, utf8_character(s, n));
        else
            fputs(ascii ? "\\ufffd" : "\xef\xbf\xbd", out);
        plain = s += n ? n : 1;
    }
    fwrite(plain, 1, (size_t)(s - plain), out);
    putc('"', out);
}

void json_write_string(FILE *out, const char *text, size_t length)
{
    write_string(out, text, length, false);
}

/* Writes value with that many digits to text; true if they read back the same. Doubles lie closer below a power of two
 * than above it: there, the next decimal upwards may be the double although the nearest one isn't. */
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
    char text[32] = "null";
    int digits = 1, exponent = 99;
    if (isfinite(value)) {
        while (!try_digits(text, digits, value))
            digits++;
        exponent = (int)strtol(strchr(text, 'e') + 1, NULL, 10);
    }
    if (exponent < -4 || exponent > 15)
        fputs(text, out);
    else /* the same digits without exponent, and at least one behind the point */
        fprintf(out, "%.*f", digits - 1 > exponent ? digits - 1 - exponent : 1, value);
}

typedef struct {
    const JsonValue *member;
    size_t place;
} Name;

static int compare_names(const void *a, const void *b)
{
    const Name *x = a, *y = b;
    uint32_t m = x->member->key_length, n = y->member->key_length;
    int order = memcmp(x->member->key, y->member->key, m < n ? m : n);
    if (order == 0)
        order = (m > n) - (m < n);
    return order ? order : (x->place > y->place) - (x->place < y->place);
}

static bool same_name(const JsonValue *a, const JsonValue *b)
{
    return same_bytes(a->key, a->key_length, b->key, b->key_length);
}

/* For an object whose names may be there once only: what belongs at each member's place, fresh [length]. That is the
 * last value of its name where it stands first, and NULL elsewhere. Sorting finds equal names, however many there are.
 * NULL: no memory. */
static const JsonValue **resolve_names(const JsonValue *object)
{
    size_t n = object->length, i = 0;
    const JsonValue **values = calloc(n, sizeof *values);
    Name *names = calloc(n, sizeof *names);
    if (!values || !names) {
        free(values);
        free(names);
        return NULL;
    }
    for (const JsonValue *v = object->child; v; v = v->next, i++)
        names[i] = (Name){v, i};
    qsort(names, n, sizeof *names, compare_names);
    for (size_t first = 0, last; first < n; first = last + 1) {
        for (last = first; last + 1 < n && same_name(names[first].member, names[last + 1].member);)
            last++;
        values[names[first].place] = names[last].member;
    }
    free(names);
    return values;
}

/* The same for one member, slowly, without memory. */
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

static void print_list(FILE *out, const JsonValue *list, JsonStyle style, int depth)
{
    bool object = list->type == JSON_OBJECT, unique = object && style == JSON_CANONICAL, empty = true;
    const JsonValue **values = unique && list->length > 8 ? resolve_names(list) : NULL;
    size_t i = 0;
    putc(object ? '{' : '[', out);
    for (const JsonValue *v = list->child; v; v = v->next, i++) {
        const JsonValue *value = values ? values[i] : unique ? resolve_name(list, v) : v;
        if (!value)
            continue;
        if (!empty)
            putc(',', out);
        if (style == JSON_INDENTED)
            fprintf(out, "\n%*s", 2 * depth + 2, "");
        empty = false;
        if (object) {
            write_string(out, v->key, v->key_length, style == JSON_CANONICAL);
            fputs(style == JSON_INDENTED ? ": " : ":", out);
        }
        print_value(out, value, style, depth + 1);
    }
    if (!empty && style == JSON_INDENTED)
        fprintf(out, "\n%*s", 2 * depth, "");
    putc(object ? '}' : ']', out);
    free(values);
}

/* depth: lists around v. json_parse() makes none deeper than the limit; anything deeper prints as null. */
static void print_value(FILE *out, const JsonValue *v, JsonStyle style, int depth)
{
    static const char *const words[] = {"null", "false", "true"};
    bool list = v->type == JSON_ARRAY || v->type == JSON_OBJECT, canonical = style == JSON_CANONICAL;
    if (v->type <= JSON_TRUE)
        fputs(words[v->type], out);
    else if (v->type == JSON_STRING)
        write_string(out, v->text, v->length, canonical);
    else if (list && depth < JSON_MAX_DEPTH)
        print_list(out, v, style, depth);
    else if (list)
        fputs("null", out);
    else if (canonical && v->type == JSON_REAL)
        json_write_double(out, strtod(v->text, NULL));
    else if (canonical && same_bytes(v->text, v->length, "-0", 2))
        putc('0', out);
    else
        fwrite(v->text, 1, v->length, out);
}

void json_print(FILE *out, const JsonValue *value, JsonStyle style)
{
    print_value(out, value, style, 0);
}
