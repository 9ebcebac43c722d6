#!/usr/bin/env python3
"""Writes unicode.c: its code, which stands at the end of this file, and its tables.

usage: make_unicode.py > unicode.c                                      from tests/data/unicode_facts.json
       make_unicode.py --facts MEASURED.json > unicode_facts.json       gathers those facts anew

MEASURED.json holds what the reference tokenizer was seen to do with every code point: its classes (Unicode
16.0's) and where its NFC (Unicode 9.0's) differs from that of Python 3.11's unicodedata (14.0). The rest comes
from unicodedata itself.
"""
import json
import os
import sys
import unicodedata

HERE = os.path.dirname(os.path.abspath(__file__))
LIMIT = 0x32400  # no letter, number or wide character that isn't in a whole plane lies above


def ranges(pairs):
    """[(code point, value)] in order -> [first, last, value] for runs of equal values."""
    out = []
    for c, value in pairs:
        if out and out[-1][1] == c - 1 and out[-1][2] == value:
            out[-1][1] = c
        else:
            out.append([c, c, value])
    return out


def gather(measured):
    points = range(0x110000)
    newer = {c for first, last in measured["nfc_order_differs"] for c in range(first, last + 1)}
    newer_composites = {0x11938}  # of Unicode 13: nfc_pairs_differ
    category = [unicodedata.category(chr(c)) for c in points]
    zero = {c for c in points if category[c] in ("Mn", "Me", "Cf", "Cc") and c != 0xAD or 0x1160 <= c <= 0x11FF}
    wide = {c for c in points if unicodedata.east_asian_width(chr(c)) in "WF" and category[c] != "Cn"
            or c == 0x1F6DC or 0x1FA70 <= c <= 0x1FAFF} - zero  # the last two: emoji since Unicode 15
    decompositions = {}
    for c in points:
        d = unicodedata.decomposition(chr(c))
        if d and not d.startswith("<") and c not in newer_composites:
            parts = [int(x, 16) for x in d.split()]
            stays = f"{c:04X}" not in measured["nfc_single"]
            assert stays == (unicodedata.normalize("NFC", chr(c)) == chr(c)) and not (stays and len(parts) == 1)
            decompositions[c] = parts + [int(stays)]
    return {
        "letter": measured["L"], "number": measured["N"], "space": measured["space"],
        "wide": [r[:2] for r in ranges((c, 0) for c in sorted(wide))],
        "zero": [r[:2] for r in ranges((c, 0) for c in sorted(zero))],
        "combining": ranges((c, unicodedata.combining(chr(c))) for c in points
                            if unicodedata.combining(chr(c)) and c not in newer),
        # [code point, its parts..., 1 if NFC puts them together again]
        "decompositions": [[c] + parts for c, parts in decompositions.items()],
    }


def write_facts(facts):
    print("{")
    for i, (key, rows) in enumerate(facts.items()):
        text = json.dumps(rows, separators=(",", ":"))
        print(f' "{key}":{text}' + ("," if i + 1 < len(facts) else ""))
    print("}")


def wrapped(items, width=118):
    """Items joined by commas, in lines of at most width columns."""
    lines, line = [], "   "
    for item in items:
        if len(line) + len(item) + 2 > width:
            lines.append(line)
            line = "   "
        line += f" {item},"
    return "\n".join(lines + [line])


def members(rows):
    return {c for first, last in rows for c in range(first, last + 1)}


def bitmaps(sets):
    """Rows of 256 bits that the sets share, and for each set the row of every 256 code points."""
    rows, numbers, out = [], {}, {}
    for name, points in sets.items():
        index = []
        for base in range(0, LIMIT, 256):
            row = tuple(sum(1 << bit for bit in range(64) if base + word * 64 + bit in points) for word in range(4))
            if row not in numbers:
                numbers[row] = len(rows)
                rows.append(row)
            index.append(numbers[row])
        out[name] = index
    return rows, out


def tables(facts):
    combining = facts["combining"]
    pairs = [d for d in facts["decompositions"] if len(d) == 4]
    singles = {d[0]: d[1] for d in facts["decompositions"] if len(d) == 3}
    assert not {d[2] for d in pairs} & ({d[0] for d in pairs} | set(singles))  # only first parts are taken apart again
    ideographs = {base: [singles.pop(base + i, 0) for i in range(size)]
                  for base, size in ((0xF900, 0x1DA), (0x2F800, 0x21E))}
    rest = sorted([d[:3] for d in pairs] + [[c, to, 0] for c, to in singles.items()])
    composed = sorted(((d[1], d[2], d[0]) for d in pairs if d[3]))
    place = {d[0]: i for i, d in enumerate(rest)}
    unstable = {d[0] for d in facts["decompositions"] if not d[-1]} | {d[2] for d in pairs if d[3]}
    unstable |= set(range(0x1161, 0x1176)) | set(range(0x11A8, 0x11C3))
    changing = unstable | {c for first, last, _ in combining for c in range(first, last + 1)}
    assert max(changing) < LIMIT
    sets = {key: members(facts[key]) for key in ("letter", "number", "wide", "zero")}
    sets["wide"] = {c for c in sets["wide"] if c < 0x20000}  # planes 2 and 3 are wide as a whole
    sets["changing"], sets["unstable"] = changing, unstable
    assert max(sets["letter"] | sets["number"]) < LIMIT
    rows, indexes = bitmaps(sets)
    out = ["static const uint64_t rows[][4] = {"]
    out += [wrapped("{" + ", ".join(f"{w:#x}" for w in row) + "}" for row in rows), "};"]
    for name, index in indexes.items():
        out += [f"static const uint16_t {name}_rows[LIMIT / 256] = {{", wrapped(str(i) for i in index), "};"]
    out += ["", "/* {first, last, combining class} */", "static const struct {",
            "    uint32_t first, last;", "    uint8_t class;", "} combining[] = {",
            wrapped(f"{{{a:#x}, {b:#x}, {k}}}" for a, b, k in combining), "};"]
    out += ["", "/* {code point, its two parts} or {code point, what it stands for, 0}, by code point */",
            "static const struct {", "    uint32_t whole, first, second;", "} decompositions[] = {",
            wrapped(f"{{{a:#x}, {b:#x}, {c:#x}}}" for a, b, c in rest), "};"]
    out += ["", "/* The entries of decompositions[] that NFC composes, ordered by (first, second) */",
            "static const uint16_t compositions[] = {", wrapped(str(place[c]) for _, _, c in composed), "};"]
    for base, to in ideographs.items():
        out += ["", f"/* What compatibility ideographs from U+{base:04X} on stand for; 0: themselves */",
                f"static const uint32_t ideographs_{base:x}[] = {{", wrapped(f"{c:#x}" if c else "0" for c in to), "};"]
    return "\n".join(out)


CODE = r"""/* Unicode for the tokenizer: classes, NFC, UTF-8, terminal columns. Written by tests/make_unicode.py.
 *
 * A class is a set of code points, kept as bits: code point c is bit c % 64 of word c / 64 % 4 of row index[c / 256];
 * equal rows are kept once, whichever class they are of. Classes are Unicode 16.0's.
 *
 * NFC (Unicode 9.0's) takes characters apart as far as it goes, puts marks in order of their combining class (a mark
 * never passes one of its own class, nor a character of class 0), then joins: each character with the nearest one of
 * class 0 before it, if there is a composite of the two and nothing of class 0 or of the same or a higher class stands
 * between. Korean syllables are computed: U+AC00 + (L * 21 + V) * 28 + T.
 * Most text needs none of it. Characters that NFC replaces, or may join to one before them, are the set `unstable`;
 * with all marks they are the set `changing`. Nothing before a character outside of that can touch it: a stretch of
 * NFC's work begins and ends there.
 */
#include "unicode.h"

#include <stdlib.h>
#include <string.h>

#define LIMIT @LIMIT@

/* ---- tables ------------------------------------------------------------------------------------------------------ */

@TABLES@

/* ---- classes ----------------------------------------------------------------------------------------------------- */

static bool in_set(const uint16_t *index, uint32_t c)
{
    return c < LIMIT && (rows[index[c >> 8]][c >> 6 & 3] >> (c & 63) & 1);
}

bool unicode_is_letter(uint32_t c)
{
    return in_set(letter_rows, c);
}

bool unicode_is_number(uint32_t c)
{
    return in_set(number_rows, c);
}

bool unicode_is_space(uint32_t c)
{
    switch (c) {
@SPACES@
        return true;
    default:
        return c == ' ' || (c >= 9 && c <= 13) || (c >= 0x2000 && c <= 0x200a);
    }
}

int unicode_width(uint32_t c)
{
    if (c >= 0x20 && c < 0x7f)
        return 1;
    if (in_set(zero_rows, c) || (c >= 0xe0000 && c <= 0xe0fff))
        return 0;
    return in_set(wide_rows, c) || (c >= 0x20000 && c <= 0x3fffd) ? 2 : 1;
}

/* ---- UTF-8 ------------------------------------------------------------------------------------------------------- */

size_t unicode_decode(const char *text, size_t length, uint32_t *c)
{
    const unsigned char *s = (const unsigned char *)text;
    unsigned char lead = s[0], low = 0x80, high = 0xbf; /* of the second byte: no overlong forms, no surrogates */
    if (lead < 0x80) {
        *c = lead;
        return 1;
    }
    *c = 0xfffd;
    if (lead < 0xc2 || lead > 0xf4)
        return 1;
    size_t size = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    if (lead == 0xe0)
        low = 0xa0;
    else if (lead == 0xed)
        high = 0x9f;
    else if (lead == 0xf0)
        low = 0x90;
    else if (lead == 0xf4)
        high = 0x8f;
    if (length < 2 || s[1] < low || s[1] > high)
        return 1;
    uint32_t value = (uint32_t)(lead & (0xff >> (size + 1))) << 6 | (s[1] & 0x3f);
    for (size_t i = 2; i < size; i++) {
        if (i >= length || (s[i] & 0xc0) != 0x80)
            return i;
        value = value << 6 | (s[i] & 0x3f);
    }
    *c = value;
    return size;
}

size_t unicode_encode(uint32_t c, char out[4])
{
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    size_t size = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = size - 1; i > 0; i--, c >>= 6)
        out[i] = (char)(0x80 | (c & 0x3f));
    out[0] = (char)((0xf00 >> size & 0xff) | c);
    return size;
}

/* ---- NFC --------------------------------------------------------------------------------------------------------- */

#define COUNT(table) (sizeof table / sizeof *table)
enum { S_BASE = 0xac00, S_COUNT = 11172 };
enum { L_BASE = 0x1100, L_COUNT = 19, V_BASE = 0x1161, V_COUNT = 21, T_BASE = 0x11a7, T_COUNT = 28 };

static uint8_t combining_class(uint32_t c)
{
    size_t low = 0, high = COUNT(combining);
    if (c < 0x300)
        return 0;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (c > combining[middle].last)
            low = middle + 1;
        else
            high = middle;
    }
    return low < COUNT(combining) && c >= combining[low].first ? combining[low].class : 0;
}

/* One step: c into *first and *second (0: it stands for *first alone). False if c is not to be taken apart. */
static bool decompose(uint32_t c, uint32_t *first, uint32_t *second)
{
    size_t low = 0, high = COUNT(decompositions);
    *second = 0;
    if (c >= S_BASE && c < S_BASE + S_COUNT) {
        uint32_t s = c - S_BASE, t = s % T_COUNT;
        *first = t ? c - t : L_BASE + s / (V_COUNT * T_COUNT);
        *second = t ? T_BASE + t : V_BASE + s / T_COUNT % V_COUNT;
        return true;
    }
    if (c - 0xf900 < COUNT(ideographs_f900) && ideographs_f900[c - 0xf900]) {
        *first = ideographs_f900[c - 0xf900];
        return true;
    }
    if (c - 0x2f800 < COUNT(ideographs_2f800) && ideographs_2f800[c - 0x2f800]) {
        *first = ideographs_2f800[c - 0x2f800];
        return true;
    }
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (c > decompositions[middle].whole)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == COUNT(decompositions) || decompositions[low].whole != c)
        return false;
    *first = decompositions[low].first;
    *second = decompositions[low].second;
    return true;
}

/* The composite of the two, or 0. */
static uint32_t compose(uint32_t first, uint32_t second)
{
    if (first - L_BASE < L_COUNT && second - V_BASE < V_COUNT)
        return S_BASE + ((first - L_BASE) * V_COUNT + (second - V_BASE)) * T_COUNT;
    if (first - S_BASE < S_COUNT && (first - S_BASE) % T_COUNT == 0 && second - T_BASE - 1 < T_COUNT - 1)
        return first + (second - T_BASE);
    uint64_t key = (uint64_t)first << 32 | second;
    size_t low = 0, high = COUNT(compositions);
    while (low < high) {
        size_t middle = (low + high) / 2, at = compositions[middle];
        uint64_t here = (uint64_t)decompositions[at].first << 32 | decompositions[at].second;
        if (here == key)
            return decompositions[at].whole;
        if (here < key)
            low = middle + 1;
        else
            high = middle;
    }
    return 0;
}

bool unicode_is_nfc(const char *text, size_t length)
{
    uint8_t last = 0; /* combining class of the character before */
    for (size_t i = 0; i < length;) {
        unsigned char lead = (unsigned char)text[i];
        uint64_t eight = UINT64_MAX;
        if (length - i >= 8)
            memcpy(&eight, text + i, 8);
        if (!(eight & 0x8080808080808080u)) {
            i += 8;
            last = 0;
            continue;
        }
        if (lead < 0xcc || (lead >= 0xe4 && lead <= 0xe9)) { /* below U+0300; U+4000..U+9FFF */
            i += lead < 0x80 ? 1 : lead < 0xe0 ? 2 : 3;
            last = 0;
            continue;
        }
        uint32_t c;
        i += unicode_decode(text + i, length - i, &c);
        if (!in_set(changing_rows, c)) {
            last = 0;
            continue;
        }
        uint8_t class = combining_class(c);
        if (class < last || in_set(unstable_rows, c))
            return false;
        last = class;
    }
    return true;
}

/* Characters being worked on: combining class << 56 | place << 21 | code point. Sorted as numbers: in order. */
typedef struct {
    uint64_t *items;
    size_t count, capacity;
} Stretch;

static uint32_t code_point(uint64_t item)
{
    return (uint32_t)(item & 0x1fffff);
}

static int stretch_append(Stretch *s, uint32_t c)
{
    if (s->count == s->capacity) {
        size_t capacity = s->capacity ? s->capacity * 2 : 64;
        uint64_t *items = realloc(s->items, capacity * sizeof *items);
        if (!items)
            return -1;
        s->items = items;
        s->capacity = capacity;
    }
    s->items[s->count] = (uint64_t)combining_class(c) << 56 | (uint64_t)s->count << 21 | c;
    s->count++;
    return 0;
}

static int append_decomposed(Stretch *s, uint32_t c)
{
    uint32_t tail[8], first, second; /* no chain has more than three second parts */
    size_t n = 0;
    while (n < COUNT(tail) && decompose(c, &first, &second)) {
        if (second)
            tail[n++] = second;
        c = first;
    }
    if (stretch_append(s, c))
        return -1;
    while (n > 0)
        if (stretch_append(s, tail[--n]))
            return -1;
    return 0;
}

static int compare_items(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* Each run of marks into the order of their classes. */
static void reorder(Stretch *s)
{
    for (size_t i = 0; i < s->count;) {
        size_t end = i;
        bool sorted = true;
        for (; end < s->count && s->items[end] >> 56; end++)
            sorted = sorted && (end == i || s->items[end - 1] < s->items[end]);
        if (!sorted)
            qsort(s->items + i, end - i, sizeof *s->items, compare_items);
        i = end > i ? end : i + 1;
    }
}

/* Joins what can be joined, in place. */
static void recompose(Stretch *s)
{
    size_t out = 0, starter = 0;
    bool have_starter = false;
    for (size_t i = 0; i < s->count; i++) {
        uint64_t item = s->items[i];
        uint8_t class = (uint8_t)(item >> 56), last = out ? (uint8_t)(s->items[out - 1] >> 56) : 0;
        bool adjacent = have_starter && starter == out - 1;
        if (have_starter && (adjacent || (last < class && last > 0))) {
            uint32_t joined = compose(code_point(s->items[starter]), code_point(item));
            if (joined) {
                s->items[starter] = joined;
                continue;
            }
        }
        if (class == 0) {
            starter = out;
            have_starter = true;
        }
        s->items[out++] = item;
    }
    s->count = out;
}

/* Normalises s->items and writes them to out; returns the bytes written. */
static size_t finish_stretch(Stretch *s, char *out)
{
    size_t length = 0;
    reorder(s);
    recompose(s);
    for (size_t i = 0; i < s->count; i++)
        length += unicode_encode(code_point(s->items[i]), out + length);
    s->count = 0;
    return length;
}

char *unicode_nfc(const char *text, size_t length, size_t *out_length)
{
    /* NFC makes no UTF-8 text longer than three times itself (U+1D160: 4 bytes -> 12) */
    char *out = length > SIZE_MAX / 3 - 1 ? NULL : malloc(3 * length + 1);
    Stretch s = {0};
    size_t written = 0, previous = 0; /* previous: where the last character began that nothing before it touches */
    for (size_t i = 0; out && i < length;) {
        uint32_t c;
        size_t size = unicode_decode(text + i, length - i, &c);
        if (!in_set(changing_rows, c)) {
            if (s.count)
                written += finish_stretch(&s, out + written);
            memcpy(out + written, text + i, size);
            written += size;
            previous = size;
            i += size;
            continue;
        }
        int failed = 0;
        if (!s.count && previous) { /* the character before takes part: back to it */
            uint32_t before;
            written -= previous;
            unicode_decode(text + i - previous, previous, &before);
            failed = append_decomposed(&s, before);
        }
        if (failed || append_decomposed(&s, c)) {
            free(out);
            out = NULL;
        }
        previous = 0;
        i += size;
    }
    if (out) {
        written += s.count ? finish_stretch(&s, out + written) : 0;
        out[written] = 0;
        *out_length = written;
    }
    free(s.items);
    return out;
}
"""


def main():
    if sys.argv[1:2] == ["--facts"] and len(sys.argv) == 3:
        with open(sys.argv[2], encoding="ascii") as f:
            write_facts(gather(json.load(f)))
    elif len(sys.argv) == 1:
        with open(os.path.join(HERE, "data", "unicode_facts.json"), encoding="ascii") as f:
            facts = json.load(f)
        lone = [c for first, last in facts["space"] for c in range(first, last + 1)]
        lone = [c for c in lone if not (c <= 32 or 0x2000 <= c <= 0x200A)]
        code = CODE.replace("@LIMIT@", f"{LIMIT:#x}u").replace("@SPACES@", "\n".join(f"    case {c:#x}:" for c in lone))
        sys.stdout.write(code.replace("@TABLES@", tables(facts)))
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
