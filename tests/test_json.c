/* json.c: what it accepts, what it refuses and how it says so, numbers to the last digit, and the writers. Expected
 * values are those of Python's json module; where that is laxer (lone surrogates, numbers too large for a double), they
 * follow the rules in json.h. */
#include "base/base.h"

#include <inttypes.h>
#include <math.h>

#include "base/clock.h"
#include "check.h"
#include "failing_calls.h"
#include "json.h"

/* A copy in memory of exactly that length, so that a sanitizer notices when a byte behind it is read. */
static char *exact_copy(const char *text, size_t length)
{
    char *copy = malloc(length ? length : 1);
    memcpy(copy, text, length);
    return length ? copy : copy + 1;
}

static void free_copy(char *copy, size_t length)
{
    free(length ? copy : copy - 1);
}

static char *print(const JsonValue *v, JsonStyle style)
{
    char *text = NULL;
    size_t length;
    FILE *f = open_memstream(&text, &length);
    json_print(f, v, style);
    fclose(f);
    return text;
}

/* The text in that style, fresh; NULL and a sentence if it is refused. */
static char *convert(const char *text, size_t length, JsonStyle style, char err[512])
{
    char *copy = exact_copy(text, length), *result = NULL;
    JsonValue *v = json_parse(copy, length, err);
    if (v)
        result = print(v, style);
    json_free(v);
    free_copy(copy, length);
    return result;
}

/* ---- what is accepted, and its canonical form ---- */

#define T(text) text, sizeof text - 1

static const struct {
    const char *text;
    size_t length;
    const char *canonical;
} accepted[] = {
    {T("null"), "null"},
    {T(" \t\r\n true \n"), "true"},
    {T("false"), "false"},
    {T("0"), "0"},
    {T("-0"), "0"},
    {T("-0.0"), "-0.0"},
    {T("-12"), "-12"},
    {T("1E2"), "100.0"},
    {T("1e-2"), "0.01"},
    {T("1.5e+3"), "1500.0"},
    {T("0e999999999999"), "0.0"},
    {T("1e-400"), "0.0"},
    {T("5e-324"), "5e-324"},
    {T("2.4703282292062327e-324"), "0.0"},
    {T("2.4703282292062328e-324"), "5e-324"},
    {T("2.2250738585072011e-308"), "2.225073858507201e-308"},
    {T("1.7976931348623158e308"), "1.7976931348623157e+308"},
    {T("5.6843418860808015e-14"), "5.684341886080802e-14"}, /* 2^-44 */
    {T("9007199254740993"), "9007199254740993"},
    {T("9007199254740993.0"), "9007199254740992.0"},
    {T("1e15"), "1000000000000000.0"},
    {T("1e16"), "1e+16"},
    {T("0.0001"), "0.0001"},
    {T("0.00001"), "1e-05"},
    {T("1.00000000000000011102230246251565"), "1.0"},
    {T("123456789012345678901234567890"), "123456789012345678901234567890"},
    {T("\"\""), "\"\""},
    {T("\"a\\u0000b\""), "\"a\\u0000b\""},
    {T("\"\\\"\\\\\\/\\b\\f\\n\\r\\t\""), "\"\\\"\\\\/\\b\\f\\n\\r\\t\""},
    {T("\"\\u00e9\\u4E2d\\uD83D\\uDE00\""), "\"\\u00e9\\u4e2d\\ud83d\\ude00\""},
    {T("\"\\uDBFF\\uDFFF\""), "\"\\udbff\\udfff\""},
    {T("\"\\ud800\\udc00\""), "\"\\ud800\\udc00\""},
    {T("\"\\u007e\\u0080\\u07FF\\u0800\\ud7ff\\ue000\\uffff\""), "\"~\\u0080\\u07ff\\u0800\\ud7ff\\ue000\\uffff\""},
    {T("\"\xc3\xa9\xe4\xb8\xad\xf0\x9f\x98\x80\x7f\""), "\"\\u00e9\\u4e2d\\ud83d\\ude00\\u007f\""},
    {T("\"\xed\x9f\xbf\xee\x80\x80\xef\xbf\xbf\xf4\x8f\xbf\xbf\""), "\"\\ud7ff\\ue000\\uffff\\udbff\\udfff\""},
    {T("\"\xe2\x80\xa8\xef\xbb\xbf\""), "\"\\u2028\\ufeff\""},
    {T("\"\xc2\x80\xdf\xbf\xe0\xa0\x80\xf0\x90\x80\x80\""), "\"\\u0080\\u07ff\\u0800\\ud800\\udc00\""},
    {T("[]"), "[]"},
    {T(" [ ] "), "[]"},
    {T("[1\n,\r2\t]"), "[1,2]"},
    {T("[[],[[]],{}]"), "[[],[[]],{}]"},
    {T("[1,2,3,4,5,6,7,8,9,10]"), "[1,2,3,4,5,6,7,8,9,10]"},
    {T("{}"), "{}"},
    {T("{ \"a\" : { \"b\" : [ null ] } }"), "{\"a\":{\"b\":[null]}}"},
    {T("{\"\":0}"), "{\"\":0}"},
    {T("{\"a\":1,\"b\":2,\"a\":3}"), "{\"a\":3,\"b\":2}"},
    {T("{\"a\":1,\"\\u0061\":2}"), "{\"a\":2}"},
    {T("{\"a\":1,\"A\":2,\"a\\u0000\":3,\"aa\":4}"), "{\"a\":1,\"A\":2,\"a\\u0000\":3,\"aa\":4}"},
    {T("{\"\\u0000\":1,\"\\u0000\":[],\"\":2}"), "{\"\\u0000\":[],\"\":2}"},
};

static void test_accepted(void)
{
    char err[512] = "";
    for (size_t i = 0; i < COUNT_OF(accepted); i++) {
        char *got = convert(accepted[i].text, accepted[i].length, JSON_CANONICAL, err);
        check(got && strcmp(got, accepted[i].canonical) == 0, "%s: %s", accepted[i].text, got ? got : err);
        free(got);
    }
}

/* ---- what is refused, and how that is said ---- */

static const struct {
    const char *text;
    size_t length;
    const char *error; /* its beginning */
} refused[] = {
    {T(""), "byte 0: found the end of the text, expected a value"},
    {T("  \n"), "byte 3: found the end of the text, expected a value"},
    {T("\0"), "byte 0: found byte 0x00, expected a value"},
    {T("\xef\xbb\xbf{}"), "byte 0: found a byte order mark, expected UTF-8 without one"},
    {T("{\"a\":NaN}"), "byte 5: found 'N', expected a value; Python's NaN and Infinity are none"},
    {T("nul"), "byte 3: found the end of the text, expected null"},
    {T("[nulx]"), "byte 4: found 'x', expected null"},
    {T("nulll"), "byte 4: found 'l', expected the end of the text"},
    {T("[\x7f]"), "byte 1: found byte 0x7f, expected a value"},
    {T("True"), "byte 0: found 'T', expected a value"},
    {T("NaN"), "byte 0: found 'N', expected a value"},
    {T("-Infinity"), "byte 1: found 'I', expected a digit"},
    {T("{} {}"), "byte 3: found '{', expected the end of the text"},
    {T("{}\0"), "byte 2: found byte 0x00, expected the end of the text"},
    {T("[1]\x0b"), "byte 3: found byte 0x0b, expected the end of the text"},
    {T("[1]//c"), "byte 3: found '/', expected the end of the text"},
    {T("-"), "byte 1: found the end of the text, expected a digit"},
    {T("+1"), "byte 0: found '+', expected a value"},
    {T(".5"), "byte 0: found '.', expected a value"},
    {T("01"), "byte 1: found '1', expected no digit after a leading 0"},
    {T("[-00.5]"), "byte 3: found '0', expected no digit after a leading 0"},
    {T("7."), "byte 2: found the end of the text, expected a digit"},
    {T("[7.e1]"), "byte 3: found 'e', expected a digit"},
    {T("[7e]"), "byte 3: found ']', expected a digit"},
    {T("7e+"), "byte 3: found the end of the text, expected a digit"},
    {T("0x1F"), "byte 1: found 'x', expected the end of the text"},
    {T("1_000"), "byte 1: found '_', expected the end of the text"},
    {T("1e999"), "byte 0: found 1e999, expected a number that fits a double"},
    {T("[0, -1.7976931348623159e308]"), "byte 4: found -1.7976931348623159e308, expected a number that fits a double"},
    {T("\""), "byte 1: found the end of the text, expected '\"' to close the string that begins at byte 0"},
    {T("[\"abc"), "byte 5: found the end of the text, expected '\"' to close the string that begins at byte 1"},
    {T("'a'"), "byte 0: found ''', expected a value"},
    {T("\"a\nb\""), "byte 2: found byte 0x0a in a string, expected the escape \\u000a"},
    {T("\"\0\""), "byte 1: found byte 0x00 in a string, expected the escape \\u0000"},
    {T("\"abcdefgh\x1fijklmnop\""), "byte 9: found byte 0x1f in a string"},
    {T("\"\\x41\""), "byte 2: found 'x', expected one of"},
    {T("\"\\\0\""), "byte 2: found byte 0x00, expected one of"},
    {T("\"\\ \""), "byte 2: found byte 0x20, expected one of"},
    {T("\"\\"), "byte 2: found the end of the text, expected one of"},
    {T("\"\\u004\""), "byte 1: found \\u, expected four hexadecimal digits"},
    {T("\"\\u12"), "byte 1: found \\u, expected four hexadecimal digits"},
    {T("\"\\u+041\""), "byte 1: found \\u, expected four hexadecimal digits"},
    {T("\"\\u00g0\""), "byte 1: found \\u, expected four hexadecimal digits"},
    {T("\"\\u00\0000\""), "byte 1: found \\u, expected four hexadecimal digits"},
    {T("\"\\ud83d\""), "byte 1: found \\ud83d, expected both halves of a surrogate pair"},
    {T("\"a\\ude00\\ud83d\""), "byte 2: found \\ude00, expected both halves of a surrogate pair"},
    {T("\"\\ud800\""), "byte 1: found \\ud800, expected both halves of a surrogate pair"},
    {T("\"\\udfff\""), "byte 1: found \\udfff, expected both halves of a surrogate pair"},
    {T("\"\\udc00\\udc00\""), "byte 1: found \\udc00, expected both halves of a surrogate pair"},
    {T("\"\\uD800\\u0041\""), "byte 1: found \\uD800, expected both halves of a surrogate pair"},
    {T("\"\\ud83dxxxxxxxx\""), "byte 1: found \\ud83d, expected both halves of a surrogate pair"},
    {T("\"\\ud83d\\ud83d\""), "byte 1: found \\ud83d, expected both halves of a surrogate pair"},
    {T("\"\\ud83d\\ude0"), "byte 1: found \\ud83d, expected both halves of a surrogate pair"},
    {T("{\"\\udc00\":1}"), "byte 2: found \\udc00, expected both halves of a surrogate pair"},
    {T("\"\x80\""), "byte 1: found byte 0x80, expected UTF-8"},
    {T("\"\xc0\x80\""), "byte 1: found byte 0xc0, expected UTF-8"},
    {T("\"\xc3(\""), "byte 2: found '(', expected UTF-8"},
    {T("\"\xc3\xc0\""), "byte 2: found byte 0xc0, expected UTF-8"},
    {T("\"\xe4\xb8\xc0\""), "byte 3: found byte 0xc0, expected UTF-8"},
    {T("\"\xe0\x9f\xbf\""), "byte 2: found byte 0x9f, expected UTF-8"},
    {T("\"\xed\xa0\x80\""), "byte 2: found byte 0xa0, expected UTF-8"},
    {T("\"\xf0\x8f\xbf\xbf\""), "byte 2: found byte 0x8f, expected UTF-8"},
    {T("\"\xf4\x90\x80\x80\""), "byte 2: found byte 0x90, expected UTF-8"},
    {T("\"\xf5\x80\x80\x80\""), "byte 1: found byte 0xf5, expected UTF-8"},
    {T("\"\xff\""), "byte 1: found byte 0xff, expected UTF-8"},
    {T("\"abcdefghijk\xf0\x9f\x98\""), "byte 15: found '\"', expected UTF-8"},
    {T("\"\xe4\xb8"), "byte 3: found the end of the text, expected UTF-8"},
    {T("["), "byte 1: found the end of the text, expected a value"},
    {T("[1,]"), "byte 3: found ']', expected a value"},
    {T("[,1]"), "byte 1: found ',', expected a value"},
    {T("[1 2]"), "byte 3: found '2', expected ',' or ']'"},
    {T("[1}"), "byte 2: found '}', expected ',' or ']'"},
    {T("[]]"), "byte 2: found ']', expected the end of the text"},
    {T("{\"a\":1,}"), "byte 7: found '}', expected a name in double quotes"},
    {T("{,}"), "byte 1: found ',', expected a name in double quotes"},
    {T("{a:1}"), "byte 1: found 'a', expected a name in double quotes"},
    {T("{1:2}"), "byte 1: found '1', expected a name in double quotes"},
    {T("{\"a\" 1}"), "byte 5: found '1', expected ':'"},
    {T("{\"a\":}"), "byte 5: found '}', expected a value"},
    {T("{\"a\":1;\"b\":2}"), "byte 6: found ';', expected ',' or '}'"},
    {T("{\"a\":1"), "byte 6: found the end of the text, expected ',' or '}'"},
    {T("\xc2\xa0[1]"), "byte 0: found byte 0xc2, expected a value"},
    {T("\xff\xfe{\0}\0"), "byte 0: found byte 0xff, expected a value"},
};

static void test_refused(void)
{
    for (size_t i = 0; i < COUNT_OF(refused); i++) {
        char err[512] = "";
        char *got = convert(refused[i].text, refused[i].length, JSON_CANONICAL, err);
        check(!got && strncmp(err, refused[i].error, strlen(refused[i].error)) == 0, "%s: %s", refused[i].text,
              got ? got : err);
        free(got);
    }
}

/* The document ends with its last bracket, so each beginning of it is refused: the rest is missing. */
static void test_truncated(void)
{
    static const char text[] = " {\"a\\u00e9\\n\" : [1, -2.5e+3, true, false, null, "
                               "\"\xc3\xa9\xf0\x9f\x98\x80 and plain text\"], "
                               "\"\\ud83d\\ude00\": {\"x\": {}, \"y\": [[], \"\"]}}";
    char err[512];
    for (size_t n = 0; n < sizeof text - 1; n++) {
        char *got = convert(text, n, JSON_COMPACT, err);
        char want[64];
        snprintf(want, sizeof want, "byte %zu: found the end of the text", n);
        check(!got && (strncmp(err, want, strlen(want)) == 0 || strstr(err, "\\u")), "%zu bytes: %s", n, err);
        free(got);
    }
    char *got = convert(text, sizeof text - 1, JSON_COMPACT, err);
    check(got != NULL, "%s", err);
    free(got);
}

/* What is behind the text in memory is not part of it, even if it would fit. */
static void test_end(void)
{
    static const struct {
        const char *text;
        size_t length;
        const char *error;
    } cases[] = {
        {"[1]", 2, "byte 2: found the end of the text, expected ',' or ']'"},
        {"null", 3, "byte 3: found the end of the text, expected null"},
        {"\"a\"", 2, "byte 2: found the end of the text, expected '\"'"},
        {"\"\\n\"", 2, "byte 2: found the end of the text, expected one of"},
        {"\"\\u0041\"", 6, "byte 1: found \\u, expected four hexadecimal digits"},
        {"\"\\ud83d\\ude00\"", 12, "byte 1: found \\ud83d, expected both halves"},
        {"\"\\ud83d\\ude00\"", 13, "byte 13: found the end of the text, expected '\"'"},
        {"\"\xc3\xa9\"", 2, "byte 2: found the end of the text, expected UTF-8"},
        {"1.5", 2, "byte 2: found the end of the text, expected a digit"},
        {"[        ]", 9, "byte 9: found the end of the text, expected a value"},
    };
    char err[512];
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        check(!json_parse(cases[i].text, cases[i].length, err) &&
                  strncmp(err, cases[i].error, strlen(cases[i].error)) == 0,
              "%s without its end: %s", cases[i].text, err);
    JsonValue *v = json_parse("12345", 3, err);
    double d = 0;
    check(v && json_double(v, &d) == 0 && d == 123, "123, not %g", d);
    json_free(v);
}

/* Every byte is replaced by each of some others: nothing crashes, and what is still accepted prints as a text that is
 * read as the same. */
static void test_damaged(void)
{
    static const char text[] =
        "{\"k\": [0, -1.5E+2, \"a\\u00e9\\ud83d\\ude00\xe4\xb8\xad\"], \"k\": {\"\": null, \"t\": true}}";
    static const char bytes[] = "\0\1 \"\\/0189-+.eE,:[]{}untfx\x7f\x80\xbf\xc3\xed\xf4\xff";
    char err[512];
    size_t kept = 0;
    for (size_t at = 0; at < sizeof text - 1; at++)
        for (size_t b = 0; b < sizeof bytes - 1; b++) {
            char damaged[sizeof text];
            memcpy(damaged, text, sizeof text);
            damaged[at] = bytes[b];
            char *once = convert(damaged, sizeof text - 1, JSON_CANONICAL, err);
            char *again = once ? convert(once, strlen(once), JSON_CANONICAL, err) : NULL;
            kept += once != NULL;
            check(!once || (again && strcmp(once, again) == 0), "byte %zu = 0x%02x: %s", at, (unsigned char)bytes[b],
                  once);
            free(once);
            free(again);
        }
    check(kept > 100, "only %zu damaged texts were accepted", kept);
}

/* ---- depth, long lists, equal names ---- */

static void test_depth(void)
{
    static char text[1000001];
    char err[512];
    for (int object = 0; object < 2; object++)
        for (size_t depth = JSON_MAX_DEPTH - 1; depth <= JSON_MAX_DEPTH + 1; depth++) {
            const char *open = object ? "{\"a\":" : "[", *close = object ? "}" : "]";
            size_t n = 0;
            for (size_t i = 0; i < depth; i++)
                n += (size_t)sprintf(text + n, "%s", open);
            n += (size_t)sprintf(text + n, "0");
            for (size_t i = 0; i < depth; i++)
                n += (size_t)sprintf(text + n, "%s", close);
            char *got = convert(text, n, JSON_CANONICAL, err);
            if (depth <= JSON_MAX_DEPTH) {
                check(got && strcmp(got, text) == 0, "depth %zu: %s", depth, got ? got : err);
            } else {
                char want[128];
                snprintf(want, sizeof want, "byte %zu: found '%c' inside 127 nested arrays and objects",
                         JSON_MAX_DEPTH * strlen(open), *open);
                check(!got && strncmp(err, want, strlen(want)) == 0, "depth %zu: %s", depth, err);
            }
            free(got);
        }
    memset(text, '[', 1000000);
    check(!json_parse(text, 1000000, err) && strncmp(err, "byte 127: ", 10) == 0, "%s", err);

    /* a tree that was made by hand and is deeper than the limit is cut when it is printed */
    static JsonValue lists[400];
    for (size_t i = 0; i < 400; i++)
        lists[i] = (JsonValue){.type = JSON_ARRAY, .length = i < 399, .child = i < 399 ? &lists[i + 1] : NULL};
    char *got = print(lists, JSON_COMPACT);
    check(strlen(got) == 2 * JSON_MAX_DEPTH + 4 && strncmp(got + JSON_MAX_DEPTH, "null]", 5) == 0, "%s", got);
    free(got);
}

/* Both ways of finding equal names, in short and long objects, against what the names were made of. */
static void test_equal_names(void)
{
    for (size_t n = 1; n <= 200000; n = n < 20 ? n + 1 : n * 10) {
        char *text = NULL, *want = NULL, err[512];
        size_t length, names = (n + 1) / 2;
        FILE *f = open_memstream(&text, &length);
        for (size_t i = 0; i < n; i++)
            fprintf(f, "%s\"name \\u00e9 %zu\":%zu", i ? ", " : "{", i % names, i);
        fputs("}", f);
        fclose(f);
        size_t want_length;
        f = open_memstream(&want, &want_length);
        for (size_t i = 0; i < names; i++)
            fprintf(f, "%s\"name \\u00e9 %zu\":%zu", i ? "," : "{", i, i + names < n ? i + names : i);
        fputs("}", f);
        fclose(f);
        char *got = convert(text, length, JSON_CANONICAL, err);
        check(got && strcmp(got, want) == 0, "%zu members", n);
        free(got);
        JsonValue *v = json_parse(text, length, err);
        uint64_t last = 0;
        check(v && v->length == n && json_u64(json_get(v, "name \xc3\xa9 0"), &last) == 0 &&
                  last == (n > 1 ? names * ((n - 1) / names) : 0),
              "%zu members: the last one of a name is %zu", n, (size_t)last);
        json_free(v);
        free(text);
        free(want);
    }
}

/* ---- reading a tree ---- */

static void test_lookup(void)
{
    static const char text[] = "{\"s\":\"a\\u0000b\",\"n\":-7,\"t\":true,\"f\":false,\"z\":null,\"x\\u0000\":1,\"o\":{"
                               "\"i\":1.0},\"a\":[1,2],\"w\":\"word\"}";
    char err[512];
    JsonValue *root = json_parse(text, sizeof text - 1, err);
    uint64_t u;
    double d;
    bool b;
    check(root && root->type == JSON_OBJECT && root->length == 9 && !root->key && !root->next, "%s", err);
    const JsonValue *s = json_get(root, "s");
    check(s && s->length == 3 && memcmp(s->text, "a\0b", 3) == 0, "a NUL stays in its string");
    check(!json_string_is(s, "a"), "a string does not end at its NUL");
    check(json_key_is(s, "s") && !json_key_is(s, "ss") && !json_key_is(root, "s"), "names");
    check(!json_get(root, "x") && !json_get(root, "missing") && !json_get(NULL, "s") && !json_get(s, "s"),
          "members that don't exist");
    check(json_get(json_get(root, "o"), "i") && !json_get(json_get(root, "q"), "i"), "look-ups in a chain");
    check(json_u64(json_get(root, "n"), &u) == -1, "-7 is not a u64");
    check(json_double(json_get(root, "n"), &d) == 0 && d == -7, "-7");
    check(json_u64(json_get(json_get(root, "o"), "i"), &u) == -1, "1.0 is not an integer");
    check(json_bool(json_get(root, "t"), &b) == 0 && b, "true");
    check(json_bool(json_get(root, "f"), &b) == 0 && !b, "false");
    check(json_bool(json_get(root, "z"), &b) == -1 && json_bool(json_get(root, "n"), &b) == -1 &&
              json_bool(NULL, &b) == -1,
          "not a boolean");
    check(json_u64(NULL, &u) == -1 && json_double(NULL, &d) == -1 && json_double(s, &d) == -1, "not a number");
    check(!json_string_is(NULL, "") && !json_key_is(NULL, ""), "NULL is nothing");
    check(json_string_is(json_get(root, "w"), "word") && !json_string_is(json_get(root, "w"), "wort") &&
              !json_string_is(json_get(root, "n"), "-7"),
          "a string is its bytes, a number is not a string");
    const JsonValue *a = json_get(root, "a");
    check(a && a->length == 2 && a->child && a->child->next && !a->child->next->next && !a->child->key,
          "a list of two");
    json_free(root);
    json_free(NULL);
}

/* Typed look-ups leave `out` alone where the key is missing or null, and refuse what is of another kind or too large. */
static void test_typed_lookups(void)
{
    static const char text[] = "{\"size\":7,\"half\":0.5,\"yes\":true,\"no\":false,\"nothing\":null,\"word\":\"7\","
                               "\"id\":5,\"ids\":[1,2,3],\"empty\":[],\"mixed\":[1,\"2\"],\"large\":[2147483648]}";
    static const struct {
        const char *key;
        bool size, number, bool_, ids; /* what it is accepted as */
    } cases[] = {
        {"size", true, true, false, true},   {"half", false, true, false, false},   {"yes", false, false, true, false},
        {"no", false, false, true, false},   {"nothing", true, true, true, true},   {"missing", true, true, true, true},
        {"word", false, false, false, false}, {"ids", false, false, false, true},   {"empty", false, false, false, true},
        {"mixed", false, false, false, false}, {"large", false, false, false, false},
    };
    char err[512];
    JsonValue *root = json_parse(text, sizeof text - 1, err);
    JsonLookup l = {.object = root, .file = "x.json", .err = err};
    size_t size = 99, n;
    double number = 99;
    bool yes = true;
    int ids[3];
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const char *key = cases[i].key;
        strcpy(err, "x.json key");
        check((json_lookup_size(&l, key, 1, 8, &size) == 0) == cases[i].size, "%s as a size: %s", key, err);
        check((json_lookup_number(&l, key, 0, 8, &number) == 0) == cases[i].number, "%s as a number: %s", key, err);
        check((json_lookup_bool(&l, key, &yes) == 0) == cases[i].bool_, "%s as a bool: %s", key, err);
        check((json_lookup_ids(&l, key, ids, 3, &n) == 0) == cases[i].ids, "%s as ids: %s", key, err);
        check(strstr(err, "x.json"), "the sentence names the file: %s", err);
    }
    check(size == 7 && number == 0.5 && !yes, "what was there was read: %zu %g", size, number);
    check(json_lookup_size(&l, "size", 8, 9, &size) != 0 && json_lookup_size(&l, "size", 0, 6, &size) != 0 &&
              json_lookup_size(&l, "size", 8, SIZE_MAX, &size) != 0 && size == 7,
          "sizes outside of the limits");
    check(json_lookup_number(&l, "half", 0.6, 1, &number) != 0 && json_lookup_number(&l, "half", 0, 0.4, &number) != 0,
          "numbers outside of the limits");
    check(json_lookup_ids(&l, "ids", ids, 3, &n) == 0 && n == 3 && ids[0] == 1 && ids[2] == 3, "a list of ids");
    check(json_lookup_ids(&l, "id", ids, 3, &n) == 0 && n == 1 && ids[0] == 5, "one id");
    check(json_lookup_ids(&l, "missing", ids, 3, &n) == 0 && n == 0, "no ids");
    check(json_lookup_ids(&l, "ids", ids, 2, &n) != 0, "more ids than there may be");
    check(!json_lookup(&l, "nothing") && !json_lookup(&l, "missing") && json_lookup(&l, "word"), "null is missing");
    json_free(root);
}

static void test_integers(void)
{
    static const struct {
        const char *text;
        bool is_u64;
        uint64_t value;
    } cases[] = {
        {"0", true, 0},
        {"-0", false, 0},
        {"9223372036854775807", true, INT64_MAX},
        {"9223372036854775808", true, (uint64_t)INT64_MAX + 1},
        {"18446744073709551615", true, UINT64_MAX},
        {"18446744073709551616", false, 0},
        {"18446744073709551620", false, 0},
        {"184467440737095516150", false, 0},
        {"-1", false, 0},
        {"-9223372036854775808", false, 0},
        {"1.0", false, 0},
        {"1e0", false, 0},
        {"\"1\"", false, 0},
        {"[1]", false, 0},
    };
    for (size_t k = 0; k < COUNT_OF(cases); k++) {
        char err[512];
        JsonValue *v = json_parse(cases[k].text, strlen(cases[k].text), err);
        uint64_t n = 0;
        int status = json_u64(v, &n);
        check((status == 0) == cases[k].is_u64 && n == cases[k].value, "%s as u64: %" PRIu64, cases[k].text, n);
        json_free(v);
    }
}

/* Numbers of hundreds of digits: a double holds 308 of them before the point and part of the 309th. */
static void test_long_numbers(void)
{
    char text[1200], err[512];
    double d = 0;
    for (size_t n = 305; n <= 312; n++) {
        memset(text, '1', n);
        JsonValue *v = json_parse(text, n, err);
        check((v != NULL) == (n <= 309), "%zu digits: %s", n, v ? "accepted" : err);
        check(!v || v->length == n, "its digits are kept");
        json_free(v);
    }
    memset(text, '1', 400);
    check(!json_parse(text, 400, err) &&
              strcmp(err,
                     "byte 0: found 1111111111111111111111111111111111111111, expected a number that fits a double") ==
                  0,
          "its first 40 digits are shown: %s", err);
    memset(text, '0', sizeof text);
    memcpy(text, "[0.", 3);
    text[1100] = '1';
    text[1101] = ']';
    JsonValue *v = json_parse(text, 1102, err);
    check(v && json_double(v->child, &d) == 0 && d == 0, "%s", err);
    json_free(v);
    text[1101] = 'e'; /* 1e-1098 times 1e1098 */
    memcpy(text + 1102, "1098]", 5);
    v = json_parse(text, 1107, err);
    check(v && json_double(v->child, &d) == 0 && d == 1, "%s: %g", err, d);
    json_free(v);
}

/* ---- writers ---- */

static void test_styles(void)
{
    static const char text[] = "{\"a\" : [1.50, {}, [ ], \"\\u00e9\\/\\u007f\"], \"b\":-0, \"a\":{\"c\":1E3}}";
    static const char *const want[] = {
        "{\"a\":[1.50,{},[],\"\xc3\xa9/\\u007f\"],\"b\":-0,\"a\":{\"c\":1E3}}",
        ("{\n  \"a\": [\n    1.50,\n    {},\n    [],\n    "
         "\"\xc3\xa9/\\u007f\"\n  ],\n  \"b\": -0,\n  \"a\": {\n    \"c\": 1E3\n  }\n}"),
        "{\"a\":{\"c\":1000.0},\"b\":0}",
    };
    char err[512];
    for (int style = JSON_COMPACT; style <= JSON_CANONICAL; style++) {
        char *got = convert(text, sizeof text - 1, (JsonStyle)style, err);
        check(got && strcmp(got, want[style]) == 0, "style %d: %s", style, got ? got : err);
        free(got);
    }
}

static void test_write_string(void)
{
    static const struct {
        const char *text;
        size_t length;
        const char *want;
    } cases[] = {
        {T(""), "\"\""},
        {T("a\0b"), "\"a\\u0000b\""},
        {T("\"\\/\b\f\n\r\t\x1b\x7f"), "\"\\\"\\\\/\\b\\f\\n\\r\\t\\u001b\\u007f\""},
        {T("\xc2\xa0\xf0\x9f\x98\x80"), "\"\xc2\xa0\xf0\x9f\x98\x80\""},
        {T("\xc2\x80\xc2\x9b\xd8\x9c\xe2\x80\xa8\xe2\x80\xae"), "\"\\u0080\\u009b\\u061c\\u2028\\u202e\""},
        {T("\xff"), "\"\xef\xbf\xbd\""},
        {T("a\xf0\x9f\x98z"), "\"a\xef\xbf\xbdz\""},                     /* one for the beginning of a character, */
        {T("\xed\xa0\x80"), "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\""}, /* one for each byte that can't be in one */
        {T("\xe4\xb8\xe4\xb8\xad\xc0\xaf"), "\"\xef\xbf\xbd\xe4\xb8\xad\xef\xbf\xbd\xef\xbf\xbd\""},
        {T("\xf4\x90\x80\x80\xe4"), "\"\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\""},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char *text = exact_copy(cases[i].text, cases[i].length), *got = NULL;
        size_t length;
        FILE *f = open_memstream(&got, &length);
        json_write_string(f, text, cases[i].length);
        fclose(f);
        check(strcmp(got, cases[i].want) == 0, "case %zu: %s", i, got);
        free(got);
        free_copy(text, cases[i].length);
    }
}

/* A tree need not come from json_parse(): what is not UTF-8 is replaced in ASCII as well. */
static void test_print_invalid(void)
{
    char *got = print(&(JsonValue){.type = JSON_STRING, .text = "a\xff\xc3\xa9\xf0\x9f", .length = 6}, JSON_CANONICAL);
    check(strcmp(got, "\"a\\ufffd\\u00e9\\ufffd\"") == 0, "%s", got);
    free(got);
}

static uint64_t random_state = 1;

static uint64_t random_u64(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (random_state >> 32) * 0x9e3779b97f4a7c15u ^ random_state;
}

static char *double_text(double value)
{
    char *text = NULL;
    size_t length;
    FILE *f = open_memstream(&text, &length);
    json_write_double(f, value);
    fclose(f);
    return text;
}

static void test_doubles(void)
{
    static const struct {
        double value;
        const char *want;
    } cases[] = {
        {0.0, "0.0"},
        {-0.0, "-0.0"},
        {1, "1.0"},
        {0.1, "0.1"},
        {1.0 / 3, "0.3333333333333333"},
        {0.1 + 0.2, "0.30000000000000004"},
        {100, "100.0"},
        {123456, "123456.0"},
        {1e15, "1000000000000000.0"},
        {9999999999999998.0, "9999999999999998.0"},
        {1e16, "1e+16"},
        {1e22, "1e+22"},
        {1e23, "1e+23"},
        {1.5e300, "1.5e+300"},
        {0.0001, "0.0001"},
        {0.00012345, "0.00012345"},
        {0.00001, "1e-05"},
        {0x1p-44, "5.684341886080802e-14"},
        {0x1p-1022, "2.2250738585072014e-308"},
        {0x1p-1074, "5e-324"},
        {0x1p-24, "5.960464477539063e-08"},
        {0x1p89, "6.189700196426902e+26"},
        {INFINITY, "null"},
        {-INFINITY, "null"},
        {NAN, "null"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char *got = double_text(cases[i].value);
        check(strcmp(got, cases[i].want) == 0, "%a: %s, not %s", cases[i].value, got, cases[i].want);
        free(got);
    }
    for (int i = 0; i < 2000; i++) {
        uint64_t bits = random_u64();
        double value, back;
        char shorter[40], err[512];
        memcpy(&value, &bits, 8);
        if (!isfinite(value))
            continue;
        char *got = double_text(value);
        JsonValue *v = json_parse(got, strlen(got), err);
        check(v && v->type == JSON_REAL && json_double(v, &back) == 0 && memcmp(&back, &value, 8) == 0, "%a: %s", value,
              got);
        json_free(v);
        int digits = 0;
        for (const char *c = got; *c && *c != 'e'; c++)
            digits += *c >= '0' && *c <= '9';
        snprintf(shorter, sizeof shorter, "%.*e", digits > 2 ? digits - 2 : 0, value);
        check(!strchr(got, 'e') || digits < 2 || strtod(shorter, NULL) != value, "%s is shorter than %s", shorter, got);
        free(got);
    }
}

/* A random tree as text, with random space and each kind of value, name and escape. */
static void random_space(FILE *f)
{
    for (uint64_t n = random_u64() % 12; n > 8; n--)
        putc(" \n\t\r"[random_u64() % 4], f);
}

static void random_string(FILE *f)
{
    static const char *const parts[] = {"a",
                                        "plain text of some length",
                                        "\xc3\xa9",
                                        "\xe4\xb8\xad",
                                        "\xf0\x9f\x98\x80",
                                        "\\n",
                                        "\\\"",
                                        "\\\\",
                                        "\\u0000",
                                        "\\u4e2D",
                                        "\\uD83d\\udE00",
                                        "\x7f",
                                        "/",
                                        "\\/"};
    putc('"', f);
    for (uint64_t n = random_u64() % 7; n; n--)
        fputs(parts[random_u64() % COUNT_OF(parts)], f);
    putc('"', f);
}

static void random_value(FILE *f, int depth)
{
    static const char *const scalars[] = {"null", "true", "false", "0",         "-0",
                                          "-17",  "1.5",  "2e-3",  "-1.25E+10", "18446744073709551616"};
    uint64_t kind = random_u64() % (depth > 3 ? 2 : 4);
    random_space(f);
    if (kind == 0) {
        fputs(scalars[random_u64() % COUNT_OF(scalars)], f);
    } else if (kind == 1) {
        random_string(f);
    } else {
        putc(kind == 2 ? '[' : '{', f);
        random_space(f);
        for (uint64_t n = random_u64() % 14, i = 0; i < n; i++) {
            if (i)
                putc(',', f);
            random_space(f);
            if (kind == 3) {
                random_string(f);
                random_space(f);
                putc(':', f);
            }
            random_value(f, depth + 1);
        }
        putc(kind == 2 ? ']' : '}', f);
    }
    random_space(f);
}

/* What is printed reads back as the same tree. */
static void test_round_trips(void)
{
    for (int i = 0; i < 500; i++) {
        char *text = NULL, err[512] = "";
        size_t length;
        FILE *f = open_memstream(&text, &length);
        random_value(f, 0);
        fclose(f);
        char *compact = convert(text, length, JSON_COMPACT, err);
        check(compact != NULL, "%s: %s", text, err);
        for (int style = JSON_COMPACT; compact && style <= JSON_CANONICAL; style++) {
            char *once = convert(text, length, (JsonStyle)style, err);
            char *twice = once ? convert(once, strlen(once), (JsonStyle)style, err) : NULL;
            char *back = once ? convert(once, strlen(once), JSON_COMPACT, err) : NULL;
            check(twice && strcmp(once, twice) == 0, "style %d of %s", style, text);
            check(style == JSON_CANONICAL || (back && strcmp(back, compact) == 0), "style %d of %s", style, text);
            free(once);
            free(twice);
            free(back);
        }
        free(compact);
        free(text);
    }
}

/* ---- out of memory ---- */

static void test_no_memory(void)
{
    static const char *const texts[] = {"1", "\"\\n\"", "[null]", "{\"a\":null}", "{\"\\n\":1}"};
    char err[512];
    for (size_t i = 0; i < COUNT_OF(texts); i++)
        for (long at = 1; at <= 3; at++) {
            fail_call(ALLOCATION, at, ENOMEM);
            JsonValue *v = json_parse(texts[i], strlen(texts[i]), err);
            bool failed = call_failed();
            check(failed == (at <= 2), "%s: a document and a chunk of memory for it", texts[i]);
            check(failed ? !v && strstr(err, ": out of memory") : v != NULL, "%s: %s", texts[i], err);
            json_free(v);
        }
}

/* Equal names are resolved even without memory, slowly. */
static void test_print_without_memory(void)
{
    static const char text[] = "{\"a\":1,\"b\":2,\"c\":3,\"d\":4,\"a\":5,\"f\":6,\"c\":7,\"h\":8,\"a\":9,\"j\":10}";
    static const char want[] = "{\"a\":9,\"b\":2,\"c\":7,\"d\":4,\"f\":6,\"h\":8,\"j\":10}";
    char err[512], buffer[512], got[512];
    JsonValue *v = json_parse(text, sizeof text - 1, err);
    for (long at = 1; at <= 3; at++) {
        FILE *f = fmemopen(got, sizeof got, "w");
        setvbuf(f, buffer, _IOFBF, sizeof buffer);
        fail_call(ALLOCATION, at, ENOMEM);
        json_print(f, v, JSON_CANONICAL);
        check(call_failed() == (at <= 2), "two lists of the names");
        fclose(f);
        check(strcmp(got, want) == 0, "list %ld of 2 is missing: %s", at, got);
    }
    json_free(v);
}

/* ---- larger data ---- */

/* A name may have UINT32_MAX bytes, but no more. The text repeats a file that is mapped many times. */
static void test_longest_name(void)
{
    const size_t block = (size_t)16 << 20, blocks = 258, limit = UINT32_MAX;
    char err[512] = "", *text = mmap(NULL, blocks * block, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    FILE *f = tmpfile();
    for (size_t i = 0; f && i < block; i++)
        putc('a', f);
    bool mapped = text != MAP_FAILED && f && fflush(f) == 0;
    for (size_t i = 0; mapped && i < blocks; i++) {
        int protection = i == 0 || i >= blocks - 2 ? PROT_READ | PROT_WRITE : PROT_READ;
        mapped = mmap(text + i * block, block, protection, MAP_PRIVATE | MAP_FIXED, fileno(f), 0) != MAP_FAILED;
    }
    if (!mapped) {
        skip("a name of 4 GiB: no address space for it");
        return;
    }
    memcpy(text, "{\"", 2);
    for (size_t more = 0; more < 2; more++) {
        memcpy(text + 2 + limit, more ? "a\":1}" : "\":1}", 4 + more);
        JsonValue *v = json_parse(text, 2 + limit + more + 4, err);
        if (more)
            check(!v && strstr(err, "found a name of 4294967296 bytes, expected less than 4 GiB"), "%s", err);
        else
            check(v && v->child->key_length == limit && v->child->type == JSON_INTEGER, "%s", err);
        json_free(v);
    }
    munmap(text, blocks * block);
    fclose(f);
}

static char *read_file(const char *folder, const char *name, size_t *length)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "rb");
    if (!f)
        return NULL;
    fseek(f, 0, SEEK_END);
    long size = ftell(f);
    rewind(f);
    char *text = malloc((size_t)size + 1);
    *length = fread(text, 1, (size_t)size, f);
    fclose(f);
    return text;
}

static void test_golden_line(const char *line, size_t length)
{
    char err[512] = "", text[4096];
    JsonValue *c = json_parse(line, length, err);
    const JsonValue *hex = json_get(c, "hex"), *value = json_get(c, "value");
    bool accept = false;
    check(c && hex && json_bool(json_get(c, "accept"), &accept) == 0, "a line of cases.jsonl: %s", err);
    if (!hex)
        return;
    size_t n = hex->length / 2;
    char *bytes = n <= sizeof text ? text : malloc(n);
    for (size_t i = 0; i < n; i++)
        bytes[i] = (char)strtoul((char[]){hex->text[2 * i], hex->text[2 * i + 1], 0}, NULL, 16);
    if (json_get(c, "surrogate") || json_get(c, "overflow"))
        accept = false;
    char *got = convert(bytes, n, JSON_CANONICAL, err);
    check((got != NULL) == accept, "%.60s: %s", bytes, got ? "accepted" : err);
    check(!got || !accept || (value && strlen(got) == value->length && memcmp(got, value->text, value->length) == 0),
          "%.60s: %s", bytes, got);
    free(got);
    if (bytes != text)
        free(bytes);
    json_free(c);
}

static void test_golden(const char *golden)
{
    size_t length = 0;
    char *text = read_file(golden, "given/json/cases.jsonl", &length);
    check(text != NULL, "given/json/cases.jsonl is missing");
    for (char *line = text, *end; line && line < text + length; line = end + 1) {
        end = memchr(line, '\n', (size_t)(text + length - line));
        if (!end)
            break;
        test_golden_line(line, (size_t)(end - line));
    }
    free(text);
}

static void print_speed(const char *what, const char *text, size_t length)
{
    char err[512];
    double best = INFINITY;
    for (int i = 0; i < 3; i++) {
        double start = clock_seconds();
        JsonValue *v = json_parse(text, length, err);
        double seconds = clock_seconds() - start;
        best = MIN(best, seconds);
        check(v != NULL, "%s: %s", what, err);
        json_free(v);
    }
    printf("%s: %.1f MB in %.1f ms, %.0f MB/s\n", what, (double)length / 1e6, best * 1e3, (double)length / best / 1e6);
}

static void test_speed(const char *golden)
{
    static const char *const names[] = {"qwen2.5/tokenizer.json", "qwen2.5/tokenizer.pairs.json"};
    char *text = NULL;
    size_t length;
    FILE *f = open_memstream(&text, &length);
    for (size_t i = 0, at = 0; i < 100000; i++, at += 1792)
        fprintf(f,
                "%c\"model.layers.%zu.self_attn.q_proj.weight\":"
                "{\"dtype\":\"BF16\",\"shape\":[896,1],\"data_offsets\":[%zu,%zu]}",
                i ? ',' : '{', i, at, at + 1792);
    fputs("}", f);
    fclose(f);
    print_speed("header of 100,000 tensors", text, length);
    free(text);
    for (size_t i = 0; golden && i < 2; i++)
        if ((text = read_file(golden, names[i], &length))) {
            print_speed(names[i], text, length);
            free(text);
        }
}

int main(void)
{
    const char *golden = getenv("GOLDEN");
    test_accepted();
    test_refused();
    test_truncated();
    test_damaged();
    test_end();
    test_depth();
    test_equal_names();
    test_lookup();
    test_typed_lookups();
    test_integers();
    test_long_numbers();
    test_styles();
    test_write_string();
    test_print_invalid();
    test_doubles();
    test_round_trips();
    if (ALLOCATIONS_FAIL) {
        test_no_memory();
        test_print_without_memory();
    } else {
        skip("failing allocations: not with this C library or sanitizer");
    }
    if (golden)
        test_golden(golden);
    else
        skip("given/json of the golden data");
    test_speed(golden);
    if (SANITIZED)
        skip("a name of 4 GiB: takes long under a sanitizer");
    else
        test_longest_name();
    return report("json");
}
