/* Unicode: classes of characters, NFC, UTF-8, and columns on a terminal.
 *
 * The classes are those of Unicode 16.0 and NFC is that of Unicode 9.0, as measured on the reference tokenizer; what is
 * behind them is in unicode_tables.h, which tests/make_unicode.py writes. */
#ifndef UNICODE_H
#define UNICODE_H

#include "base/base.h"

bool unicode_is_letter(uint32_t c); /* \p{L} */
bool unicode_is_number(uint32_t c); /* \p{N} */
bool unicode_is_space(uint32_t c);  /* \s, which is White_Space */

/* How many columns of a terminal the character takes: 0 (marks, controls), 1 or 2 (East Asian wide, emoji). */
int unicode_width(uint32_t c);

/* ---- UTF-8 ---- */

/* Decode the character at text[0..length), length >= 1, and return how many bytes it has: 1 to 4. Where the bytes are
 * not UTF-8, *c is U+FFFD and the result is the length of the longest prefix that could have become a character, at
 * least 1: the bytes for which Python's errors="replace" writes one U+FFFD. */
size_t unicode_decode(const char *text, size_t length, uint32_t *c);
size_t unicode_encode(uint32_t c, char out[4]); /* returns the number of bytes written, 1 to 4 */

/* Whether unicode_decode() found bytes that are not UTF-8. U+FFFD itself, EF BF BD, is UTF-8. */
static inline bool unicode_is_broken(uint32_t c, const char *bytes, size_t size)
{
    return c == 0xfffd && (size != 3 || bytes[0] != '\xef');
}

/* Whether the byte is the second, third or fourth of a character. */
static inline bool unicode_is_continuation(char byte)
{
    return (byte & 0xc0) == 0x80;
}

/* How many bytes a character has that begins with this one; 1 for a byte that begins none. */
static inline size_t unicode_length(char lead)
{
    unsigned char b = (unsigned char)lead;
    if (b < 0xc2 || b > 0xf4)
        return 1;
    if (b < 0xe0)
        return 2;
    return b < 0xf0 ? 3 : 4;
}

/* Whether the eight bytes are all ASCII. */
static inline bool unicode_eight_are_ascii(const char *bytes)
{
    return !(load_u64(bytes) & 0x8080808080808080u);
}

/* ---- NFC ---- */

/* True if NFC leaves the text, valid UTF-8, as it is. A quick check: false means only that unicode_nfc() must tell. */
bool unicode_is_nfc(const char *text, size_t length);
/* The text in NFC: a fresh string of *out_length bytes, or NULL when out of memory. */
char *unicode_nfc(const char *text, size_t length, size_t *out_length);

#endif
