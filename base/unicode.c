/* unicode_tables.h tells the facts as runs of code points. They are unpacked before main() starts, into arrays that are
 * indexed by code point: a look-up is one load, and needs no lock and no check that the arrays are filled.
 *
 * NFC has three steps:
 *     decompose   each character into its base character and marks, as far as it goes
 *     reorder     runs of marks by combining class; marks of the same class keep their order, and a "starter", which
 *                 is a character of class 0, ends the run
 *     compose     each character with the nearest starter before it, if the two have a composite and nothing between
 *                 them is a starter or has the same or a higher class
 * Korean syllables are computed: U+AC00 + (L * 21 + V) * 28 + T.
 *
 * Most text needs none of this. Characters that NFC replaces, or that may compose with one before them, are UNSTABLE.
 * A character that is neither unstable nor a mark composes with nothing before it, so NFC's work is done in segments:
 * each begins with the last such character and ends before the next.
 */
#include "base/unicode.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/memory.h"
#include "base/unicode_tables.h"

/* ---- the tables, unpacked ---------------------------------------------------------------------------------------- */

/* Korean: leading consonants, vowels, trailing consonants (from T_BASE + 1 on), and syllables */
enum { L_BASE = 0x1100, L_COUNT = 19, V_BASE = 0x1161, V_COUNT = 21, T_BASE = 0x11a7, T_COUNT = 28 };
enum { S_BASE = 0xac00, S_COUNT = L_COUNT * V_COUNT * T_COUNT };

typedef enum { LETTER = 1, NUMBER = 2, ZERO = 4, WIDE = 8, EXCLUDED = 16, UNSTABLE = 32 } Property;

static uint8_t properties[UNICODE_LIMIT];
static uint8_t combining_classes[UNICODE_LIMIT];
static uint32_t parts[UNICODE_LIMIT][2]; /* one step of decomposition: {first, second}, {first, 0} or {0, 0} */
static uint32_t composites[1 << 12];     /* hash table: two parts -> what NFC makes of them; 0: an empty slot */

static bool has(uint32_t c, Property property)
{
    return c < UNICODE_LIMIT && (properties[c] & property);
}

/* The slot of the composite of the two, or the empty one where it belongs. */
static uint32_t *composite_slot(uint32_t first, uint32_t second)
{
    for (size_t i = (size_t)hash_mix((uint64_t)first << 32 | second);; i++) {
        uint32_t *slot = &composites[i % COUNT_OF(composites)];
        if (!*slot || (parts[*slot][0] == first && parts[*slot][1] == second))
            return slot;
    }
}

/* runs: by turns how many code points are not in the set and how many are. */
static void unpack_set(const uint16_t *runs, size_t n, Property property)
{
    uint8_t *at = properties;
    for (size_t i = 0; i < n; i += 2) {
        at += runs[i];
        for (const uint8_t *end = at + runs[i + 1]; at < end; at++)
            *at |= (uint8_t)property;
    }
}

/* Must come after the set of EXCLUDED, whose parts NFC does not put together again. */
static void unpack_decomposition(uint32_t c, uint32_t first, uint32_t second)
{
    bool composes = second && !has(c, EXCLUDED);
    parts[c][0] = first;
    parts[c][1] = second;
    if (composes)
        *composite_slot(first, second) = c;
    properties[composes ? second : c] |= UNSTABLE;
}

static void unpack_ideographs(uint32_t c, const uint32_t *text)
{
    for (; *text; text++, c++)
        if (*text != '.')
            unpack_decomposition(c, *text, 0);
}

__attribute__((constructor)) static void unpack(void)
{
    static const uint16_t korean[] = {V_BASE, V_COUNT, T_BASE + 1 - V_BASE - V_COUNT, T_COUNT - 1};
    unpack_set(letters, COUNT_OF(letters), LETTER);
    unpack_set(numbers, COUNT_OF(numbers), NUMBER);
    unpack_set(zero, COUNT_OF(zero), ZERO);
    unpack_set(wide, COUNT_OF(wide), WIDE);
    unpack_set(excluded, COUNT_OF(excluded), EXCLUDED);
    unpack_set(korean, COUNT_OF(korean), UNSTABLE);
    uint8_t *at = combining_classes;
    for (size_t i = 0; i < COUNT_OF(marks); i += 3) {
        at += marks[i];
        memset(at, marks[i + 2], marks[i + 1]);
        at += marks[i + 1];
    }
    uint32_t c = 0;
    for (size_t i = 0; i < COUNT_OF(decompositions); i++) {
        uint32_t first = decompositions[i][0], second = decompositions[i][1];
        if (second == AT)
            c = first - 1;
        else if (first)
            unpack_decomposition(c, first, second);
        c++;
    }
    unpack_ideographs(0xf900, ideographs_f900);
    unpack_ideographs(0x2f800, ideographs_2f800);
}

/* ---- classes ----------------------------------------------------------------------------------------------------- */

bool unicode_is_letter(uint32_t c)
{
    return has(c, LETTER);
}

bool unicode_is_number(uint32_t c)
{
    return has(c, NUMBER);
}

bool unicode_is_space(uint32_t c)
{
    return c == ' ' || (c >= 9 && c <= 13) || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) ||
           c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

int unicode_width(uint32_t c)
{
    if (c >= 0x20 && c < 0x7f)
        return 1;
    if (has(c, ZERO) || (c >= 0xe0000 && c <= 0xe0fff))
        return 0;
    return has(c, WIDE) || (c >= 0x20000 && c <= 0x3fffd) ? 2 : 1;
}

/* ---- UTF-8 ------------------------------------------------------------------------------------------------------- */

size_t unicode_decode(const char *text, size_t length, uint32_t *c)
{
    const unsigned char *s = (const unsigned char *)text;
    unsigned char lead = s[0], low = 0x80, high = 0xbf; /* the second byte is one of [low, high] */
    if (lead < 0x80) {
        *c = lead;
        return 1;
    }
    *c = 0xfffd;
    size_t size = unicode_length(*text);
    if (size == 1)
        return 1;
    if (lead == 0xe0)
        low = 0xa0; /* U+0800, the first that needs three bytes */
    else if (lead == 0xed)
        high = 0x9f; /* U+D7FF, the last before the surrogates */
    else if (lead == 0xf0)
        low = 0x90; /* U+10000, the first that needs four bytes */
    else if (lead == 0xf4)
        high = 0x8f; /* U+10FFFF, the last of all */
    if (length < 2 || s[1] < low || s[1] > high)
        return 1;
    uint32_t value = (uint32_t)(lead & (0xff >> (size + 1))) << 6 | (s[1] & 0x3f);
    for (size_t i = 2; i < size; i++) {
        if (i >= length || !unicode_is_continuation(text[i]))
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
    size_t size = 2;
    if (c >= 0x800)
        size = c < 0x10000 ? 3 : 4;
    for (size_t i = size - 1; i > 0; i--, c >>= 6)
        out[i] = (char)(0x80 | (c & 0x3f));
    out[0] = (char)((0xf00 >> size & 0xff) | c); /* `size` ones, a zero, and the highest bits of c */
    return size;
}

/* ---- NFC --------------------------------------------------------------------------------------------------------- */

static uint8_t combining_class(uint32_t c)
{
    return c < UNICODE_LIMIT ? combining_classes[c] : 0;
}

/* One step of decomposition: c into *first and *second; *second is 0 where *first alone replaces c. False if c has no
 * decomposition. */
static bool decompose(uint32_t c, uint32_t *first, uint32_t *second)
{
    if (c >= S_BASE && c < S_BASE + S_COUNT) {
        uint32_t s = c - S_BASE, t = s % T_COUNT;
        *first = t ? c - t : L_BASE + s / (V_COUNT * T_COUNT);
        *second = t ? T_BASE + t : V_BASE + s / T_COUNT % V_COUNT;
        return true;
    }
    *first = c < UNICODE_LIMIT ? parts[c][0] : 0;
    *second = c < UNICODE_LIMIT ? parts[c][1] : 0;
    return *first;
}

/* The composite of the two, 0 if there is none. */
static uint32_t compose(uint32_t first, uint32_t second)
{
    if (first - L_BASE < L_COUNT && second - V_BASE < V_COUNT)
        return S_BASE + ((first - L_BASE) * V_COUNT + (second - V_BASE)) * T_COUNT;
    if (first - S_BASE < S_COUNT && (first - S_BASE) % T_COUNT == 0 && second - T_BASE - 1 < T_COUNT - 1)
        return first + (second - T_BASE);
    return *composite_slot(first, second);
}

bool unicode_is_nfc(const char *text, size_t length)
{
    uint8_t last = 0; /* the combining class of the character before */
    for (size_t i = 0; i < length;) {
        unsigned char lead = (unsigned char)text[i];
        if (length - i >= 8 && unicode_eight_are_ascii(text + i)) {
            i += 8;
            last = 0;
            continue;
        }
        if (lead < 0xcc || (lead >= 0xe4 && lead <= 0xe9)) { /* below U+0300; U+4000..U+9FFF */
            i += unicode_length(text[i]);
            last = 0;
            continue;
        }
        uint32_t c;
        i += unicode_decode(text + i, length - i, &c);
        uint8_t class = combining_class(c);
        if ((class && class < last) || has(c, UNSTABLE))
            return false;
        last = class;
    }
    return true;
}

/* Characters that are being worked on, each as combining class << 56 | position << 21 | code point: sorting these
 * numbers brings marks into canonical order. */
typedef struct {
    uint64_t *items;
    size_t count, capacity;
} Segment;

static uint32_t code_point(uint64_t item)
{
    return (uint32_t)(item & 0x1fffff);
}

static int segment_append(Segment *s, uint32_t c)
{
    if (s->count == s->capacity) {
        uint64_t *items = memory_grow(s->items, &s->capacity, s->count + 1, sizeof *items);
        if (!items)
            return -1;
        s->items = items;
    }
    s->items[s->count] = (uint64_t)combining_class(c) << 56 | (uint64_t)s->count << 21 | c;
    s->count++;
    return 0;
}

/* Append the full decomposition of c. Only first parts can be taken apart again. */
static int append_decomposed(Segment *s, uint32_t c)
{
    uint32_t first, second;
    if (!decompose(c, &first, &second))
        return segment_append(s, c);
    if (append_decomposed(s, first))
        return -1;
    return second ? segment_append(s, second) : 0;
}

static int compare_items(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    if (x != y)
        return x < y ? -1 : 1;
    return 0;
}

/* Sort each run of marks by combining class. */
static void reorder(Segment *s)
{
    for (size_t begin = 0, end; begin < s->count; begin = end + 1) { /* items[end] is a starter */
        bool sorted = true;
        for (end = begin; end < s->count && s->items[end] >> 56; end++)
            sorted = sorted && (end == begin || s->items[end - 1] < s->items[end]);
        if (!sorted)
            qsort(s->items + begin, end - begin, sizeof *s->items, compare_items);
    }
}

/* Join characters that have a composite, in place: items[0..out) are done. */
static void compose_all(Segment *s)
{
    size_t out = 0, starter = SIZE_MAX; /* the last character of class 0; SIZE_MAX: none yet */
    for (size_t i = 0; i < s->count; i++) {
        uint64_t item = s->items[i], class = item >> 56, last = out ? s->items[out - 1] >> 56 : 0;
        bool adjacent = starter == out - 1, unblocked = last > 0 && last < class;
        uint32_t joined = 0;
        if (starter != SIZE_MAX && (adjacent || unblocked))
            joined = compose(code_point(s->items[starter]), code_point(item));
        if (joined) {
            s->items[starter] = joined;
            continue;
        }
        if (class == 0)
            starter = out;
        s->items[out++] = item;
    }
    s->count = out;
}

/* Write the segment, normalized, to out and empty it; returns the number of bytes written. */
static size_t finish_segment(Segment *s, char *out)
{
    size_t length = 0;
    reorder(s);
    compose_all(s);
    for (size_t i = 0; i < s->count; i++)
        length += unicode_encode(code_point(s->items[i]), out + length);
    s->count = 0;
    return length;
}

char *unicode_nfc(const char *text, size_t length, size_t *out_length)
{
    /* NFC makes no UTF-8 text longer than three times itself (U+1D160: 4 bytes -> 12) */
    char *out = length > SIZE_MAX / 3 - 1 ? NULL : malloc(3 * length + 1);
    Segment s = {0};
    size_t written = 0, previous = 0; /* previous: bytes of the last character if it is not in the segment */
    for (size_t i = 0, size; out && i < length; i += size) {
        uint32_t c, before = 0;
        size = unicode_decode(text + i, length - i, &c);
        if (!has(c, UNSTABLE) && !combining_class(c)) {
            if (s.count)
                written += finish_segment(&s, out + written);
            memcpy(out + written, text + i, size);
            written += size;
            previous = size;
            continue;
        }
        if (previous) /* it may compose with c: take it back */
            unicode_decode(text + i - previous, previous, &before);
        written -= previous;
        if ((previous && append_decomposed(&s, before)) || append_decomposed(&s, c)) {
            free(out);
            out = NULL;
        }
        previous = 0;
    }
    if (out) {
        written += finish_segment(&s, out + written);
        out[written] = '\0';
        *out_length = written;
    }
    free(s.items);
    return out;
}
