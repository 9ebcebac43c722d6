/* unicode.c: classes against the facts that its tables are made of, NFC, UTF-8, columns on a terminal. */
#include "base/base.h"

#include "base/unicode.h"
#include "check.h"
#include "json.h"

static char *read_text(const char *path, size_t *length)
{
    FILE *f = fopen(path, "rb");
    char *text = f ? malloc(1 << 20) : NULL;
    *length = text ? fread(text, 1, 1 << 20, f) : 0;
    if (f)
        fclose(f);
    return text;
}

static uint32_t number(const JsonValue *v)
{
    uint64_t n = 0;
    json_u64(v, &n);
    return (uint32_t)n;
}

/* ---- classes ---- */

/* Every code point, and some numbers beyond, against a sorted list of [first, last]. */
static void check_class(const JsonValue *ranges, bool (*is_in)(uint32_t), const char *name)
{
    const JsonValue *range = ranges->child;
    size_t wrong = 0, members = 0;
    for (uint32_t c = 0; c < 0x110100; c++) {
        while (range && c > number(range->child->next))
            range = range->next;
        bool expected = range && c >= number(range->child);
        members += expected;
        wrong += is_in(c) != expected;
    }
    check(members > 0 && wrong == 0, "%s: %zu members, %zu wrong", name, members, wrong);
    check(!is_in(UINT32_MAX), "%s: not a code point", name);
}

static void check_widths(const JsonValue *wide, const JsonValue *zero)
{
    size_t wrong = 0;
    for (const JsonValue *r = wide->child; r; r = r->next)
        for (uint32_t c = number(r->child); c <= number(r->child->next); c++)
            wrong += unicode_width(c) != 2;
    for (const JsonValue *r = zero->child; r; r = r->next)
        for (uint32_t c = number(r->child); c <= number(r->child->next); c++)
            wrong += unicode_width(c) != 0;
    check(wrong == 0, "%zu widths are wrong", wrong);
    static const struct {
        uint32_t c;
        int width;
    } cases[] = {{'a', 1},    {' ', 1},     {0x7f, 0},    {0, 0},      {0x9f, 0},     {0xad, 1},    {0xe9, 1},
                 {0x301, 0},  {0x200b, 0},  {0xfe0f, 0},  {0x4e2d, 2}, {0xac00, 2},   {0x1161, 0},  {0xff21, 2},
                 {0xff71, 1}, {0x1f600, 2}, {0x1fae8, 2}, {0x2500, 1}, {0x20000, 2},  {0x3fffd, 2}, {0xe0100, 0},
                 {0x3000, 2}, {0x202e, 0},  {0x2764, 1},  {0x26a1, 2}, {0x10ffff, 1}, {0x378, 1}};
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        check(unicode_width(cases[i].c) == cases[i].width, "U+%04X: %d", cases[i].c, unicode_width(cases[i].c));
}

/* ---- NFC ---- */

static const struct {
    const char *text, *nfc;
} forms[] = {
    {"", ""},
    {"abc", "abc"},
    {"cafe\u0301", "caf\u00e9"},
    {"caf\u00e9", "caf\u00e9"},
    {"\u212b", "\u00c5"},
    {"\u212a\u2126", "K\u03a9"},
    {"\u0958", "\u0915\u093c"},                   /* excluded from composition */
    {"\u0915\u093c", "\u0915\u093c"},
    {"\u1112\u1161\u11ab", "\ud55c"},             /* Korean */
    {"\ud558\u11ab", "\ud55c"},
    {"\ud55c\u11ab", "\ud55c\u11ab"},
    {"\u1161\u11ab", "\u1161\u11ab"},
    {"\u1112\u1112\u1161", "\u1112\ud558"},
    {"\u0301", "\u0301"},                         /* nothing is before it */
    {"\u0301e\u0301", "\u0301\u00e9"},
    {"a\u0301\u0327", "\u00e1\u0327"},            /* marks change places */
    {"a\u0327\u0301", "\u00e1\u0327"},
    {"c\u0301\u0327", "\u1e09"},
    {"q\u0307\u0323", "q\u0323\u0307"},
    {"\u1e0b\u0323", "\u1e0d\u0307"},
    {"s\u0323\u0307", "\u1e69"},
    {"s\u0307\u0323", "\u1e69"},
    {"a\u0301\u0301", "\u00e1\u0301"},            /* the second is blocked by the first */
    {"a\u0334\u0301", "\u00e1\u0334"},
    {"e\u200d\u0301", "e\u200d\u0301"},
    {"\u0344", "\u0308\u0301"},
    {"\u0340\u0341\u0343", "\u0300\u0301\u0313"},
    {"\u03b1\u0345\u0301", "\u1fb4"},
    {"\u1fb4", "\u1fb4"},
    {"\u03b9\u0308\u0301", "\u0390"},
    {"\uf900\ufa0e\U0002f800", "\u8c48\ufa0e\u4e3d"}, /* compatibility ideographs */
    {"\ufb1d\u05b4", "\u05d9\u05b4\u05b4"},
    {"\U0001d15e", "\U0001d157\U0001d165"},
    {"\U0001d160", "\U0001d158\U0001d165\U0001d16e"},
    {"\U00011099\U000110ba", "\U0001109a"},
    {"\u09c7\u09be", "\u09cb"},
    {"<\u0338", "\u226e"},
    {"x\u0301y\u0308z\u030c", "x\u0301\u00ff\u017e"},
    {"\u037e\u0374\u0387", ";\u02b9\u00b7"},
    {"\U00011935\U00011930", "\U00011935\U00011930"}, /* a pair of Unicode 13, later than 9 */
    {"a\u0301\u1acc\u0327", "\u00e1\u1acc\u0327"},    /* U+1ACC: a mark since Unicode 14, so of class 0 here */
    {"\u0e01\u0e34\u0e48", "\u0e01\u0e34\u0e48"},
    {"\u0928\u094d\u0924\u0947", "\u0928\u094d\u0924\u0947"},
};

static void check_nfc(const char *text, size_t length, const char *expected, size_t expected_length, const char *name)
{
    size_t n = 0;
    char *out = unicode_nfc(text, length, &n);
    bool same = out && n == expected_length && memcmp(out, expected, n) == 0;
    check(same, "%s gives %.*s", name, (int)n, out ? out : "");
    bool changed = length != expected_length || memcmp(text, expected, length) != 0;
    check(!(changed && unicode_is_nfc(text, length)), "%s is said to be NFC", name);
    check(unicode_is_nfc("a \u4e2d\uac00\u00e9", 11), "plain text is NFC");
    free(out);
}

/* Each character alone: those in {"0340": [768], ..} are replaced, all others stay as they are. */
static void check_singles(const JsonValue *singles)
{
    size_t wrong = 0, known = 0;
    for (uint32_t c = 1; c < 0x110000; c++) {
        if (c >= 0xd800 && c < 0xe000)
            continue;
        char key[16], text[4], expected[16];
        size_t length = unicode_encode(c, text), expected_length = 0, n;
        snprintf(key, sizeof key, "%04X", c);
        const JsonValue *to = unicode_is_nfc(text, length) ? NULL : json_get(singles, key);
        known += to != NULL;
        for (const JsonValue *v = to ? to->child : NULL; v; v = v->next)
            expected_length += unicode_encode(number(v), expected + expected_length);
        char *out = unicode_nfc(text, length, &n);
        wrong += !to ? n != length || memcmp(out, text, n) != 0 : n != expected_length || memcmp(out, expected, n) != 0;
        free(out);
    }
    check(known == singles->length && wrong == 0, "%zu of %zu characters, %zu wrong", known, singles->length, wrong);
}

/* A long run of marks that must be sorted. */
static void check_long_run(void)
{
    enum { PAIRS = 50000 };
    char *text = malloc(4 * PAIRS + 1), *expected = malloc(4 * PAIRS + 1), *out;
    size_t n;
    text[0] = expected[0] = 'x';
    for (size_t i = 0; i < PAIRS; i++) {
        memcpy(text + 1 + 4 * i, "\u0301\u0323", 4);
        memcpy(expected + 1 + 2 * i, "\u0323", 2);
        memcpy(expected + 1 + 2 * (PAIRS + i), "\u0301", 2);
    }
    out = unicode_nfc(text, 4 * PAIRS + 1, &n);
    check(out && n == 4 * PAIRS + 1 && memcmp(out, expected, n) == 0, "%d pairs of marks", PAIRS);
    free(out);
    free(expected);
    free(text);
}

/* ---- UTF-8 ---- */

/* What bytes decode to, as with Python's bytes.decode(errors="replace"), with "?" for U+FFFD. */
static const struct {
    const char *bytes, *decoded;
} malformed[] = {
    {"a", "a"},
    {"\xc3\xa9", "\u00e9"},
    {"\xe4\xb8\xad", "\u4e2d"},
    {"\xf0\x9f\x98\x80", "\U0001f600"},
    {"\xf4\x8f\xbf\xbf", "\U0010ffff"},
    {"\xef\xbf\xbd", "?"},
    {"\x80", "?"},
    {"\xbf\xbf", "??"},
    {"\xc3", "?"},
    {"\xc3(", "?("},
    {"\xc0\xaf", "??"},
    {"\xc1\xbf", "??"},
    {"\xe4\xb8", "?"},
    {"\xe4\xb8x", "?x"},
    {"\xe4\xb8\xe4\xb8\xad", "?\u4e2d"},
    {"\xe0\x80\x80", "???"},
    {"\xe0\x9f\xbf", "???"},
    {"\xe0\xa0", "?"},
    {"\xed\xa0\x80", "???"},
    {"\xed\x9f\xbf", "\ud7ff"},
    {"\xf0\x9f\x98", "?"},
    {"\xf0\x9f\x98z", "?z"},
    {"\xf0\x9f", "?"},
    {"\xf0\x80\x80\x80", "????"},
    {"\xf0\x8f\xbf\xbf", "????"},
    {"\xf4\x90\x80\x80", "????"},
    {"\xf5\x80\x80\x80", "????"},
    {"\xf8\x88\x80\x80\x80", "?????"},
    {"\xfe\xff", "??"},
    {"a\xf1\x80\x80\xe1\x80\xc2z", "a???z"},
};

static void check_decoding(void)
{
    for (size_t i = 0; i < COUNT_OF(malformed); i++) {
        const char *s = malformed[i].bytes;
        char out[64];
        size_t n = 0;
        for (size_t at = 0, length = strlen(s); at < length;) {
            uint32_t c;
            size_t size = unicode_decode(s + at, length - at, &c);
            at += size;
            if (c == 0xfffd)
                out[n++] = '?';
            else
                n += unicode_encode(c, out + n);
            check(size >= 1 && at <= length, "row %zu: %zu bytes", i, size);
        }
        out[n] = 0;
        check(strcmp(out, malformed[i].decoded) == 0, "row %zu: %s", i, out);
    }
    size_t wrong = 0;
    for (uint32_t c = 0; c < 0x110000; c++) {
        char bytes[4];
        uint32_t back = 0;
        size_t size = unicode_encode(c, bytes), read = unicode_decode(bytes, size, &back);
        wrong += c >= 0xd800 && c < 0xe000 ? back != 0xfffd || read != 1 : back != c || read != size;
    }
    check(wrong == 0, "%zu code points are not decoded as they were encoded", wrong);
}

int main(void)
{
    char err[512];
    size_t length;
    char *text = read_text("tests/data/unicode_facts.json", &length);
    JsonValue *facts = text ? json_parse(text, length, err) : NULL;
    check(facts != NULL, "tests/data/unicode_facts.json");
    if (!facts)
        return report("unicode");
    check_class(json_get(facts, "letter"), unicode_is_letter, "letters");
    check_class(json_get(facts, "number"), unicode_is_number, "numbers");
    check_class(json_get(facts, "space"), unicode_is_space, "spaces");
    check_widths(json_get(facts, "wide"), json_get(facts, "zero"));
    for (size_t i = 0; i < COUNT_OF(forms); i++)
        check_nfc(forms[i].text, strlen(forms[i].text), forms[i].nfc, strlen(forms[i].nfc), forms[i].text);
    check_nfc("a\0e\u0301", 5, "a\0\u00e9", 4, "a text with a NUL");
    check_long_run();
    check_decoding();
    json_free(facts);
    free(text);

    const char *golden = getenv("GOLDEN");
    char path[4096];
    snprintf(path, sizeof path, "%s/qwen2.5/unicode_facts.json", golden ? golden : "");
    text = golden ? read_text(path, &length) : NULL;
    facts = text ? json_parse(text, length, err) : NULL;
    if (facts)
        check_singles(json_get(facts, "nfc_single"));
    else
        skip("NFC of every character (GOLDEN)");
    json_free(facts);
    free(text);
    return report("unicode");
}
