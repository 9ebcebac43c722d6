#include "base/text.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/unicode.h"

int text_append(Text *text, const char *bytes, size_t length)
{
    if (text->capacity - text->length <= length) {
        char *grown = memory_grow(text->bytes, &text->capacity, text->length + length + 1, 1);
        if (!grown)
            return -1;
        text->bytes = grown;
    }
    if (length)
        memcpy(text->bytes + text->length, bytes, length);
    text->length += length;
    text->bytes[text->length] = '\0';
    return 0;
}

void text_free(Text *text)
{
    free(text->bytes);
    *text = (Text){0};
}

int id_list_reserve(IdList *list, size_t extra)
{
    if (list->capacity - list->count >= extra)
        return 0;
    int *items = memory_grow(list->items, &list->capacity, list->count + extra, sizeof *items);
    if (!items)
        return -1;
    list->items = items;
    return 0;
}

int id_list_append(IdList *list, int id)
{
    if (id_list_reserve(list, 1))
        return -1;
    list->items[list->count++] = id;
    return 0;
}

void id_list_free(IdList *list)
{
    free(list->items);
    *list = (IdList){0};
}

bool text_ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

int text_compare(const char *a, size_t a_length, const char *b, size_t b_length)
{
    size_t common = MIN(a_length, b_length);
    int order = common ? memcmp(a, b, common) : 0;
    if (order == 0 && a_length != b_length)
        return a_length < b_length ? -1 : 1;
    return order;
}

int text_close_stream(FILE *stream, char **text)
{
    bool failed = ferror(stream);
    if (fclose(stream) == 0 && !failed && *text)
        return 0;
    free(*text);
    *text = NULL;
    return -1;
}

/* ---- UTF-8 that may be broken ------------------------------------------------------------------------------------ */

/* Whether a character from U+1000 to U+CFFF begins here, as most of Chinese, Japanese and Korean are: after its first
 * byte any two continuations may follow. */
static bool is_cjk(const char *s, size_t n)
{
    return n >= 3 && s[0] >= '\xe1' && s[0] <= '\xec' && unicode_is_continuation(s[1]) && unicode_is_continuation(s[2]);
}

bool text_is_utf8(const char *bytes, size_t length)
{
    for (size_t i = 0; i < length;) {
        uint32_t c;
        if (length - i >= 8 && unicode_eight_are_ascii(bytes + i)) {
            i += 8;
            continue;
        }
        if (is_cjk(bytes + i, length - i)) {
            i += 3;
            continue;
        }
        size_t size = unicode_decode(bytes + i, length - i, &c);
        if (unicode_is_broken(c, bytes + i, size))
            return false;
        i += size;
    }
    return true;
}

int text_append_replacing(Text *out, const char *bytes, size_t length)
{
    size_t from = 0, i = 0; /* bytes[from..i) are valid and not copied yet */
    while (i < length) {
        uint32_t c;
        size_t size = unicode_decode(bytes + i, length - i, &c);
        if (c == 0xfffd) {
            if (text_append(out, bytes + from, i - from) || text_append(out, "\xef\xbf\xbd", 3))
                return -1;
            from = i + size;
        }
        i += size;
    }
    return text_append(out, bytes + from, i - from);
}

size_t text_complete_prefix(const char *bytes, size_t length)
{
    for (size_t k = 1; k <= 3 && k <= length; k++) {
        const char *tail = bytes + length - k;
        uint32_t c;
        if (unicode_is_continuation(*tail))
            continue;
        /* the last character begins k bytes before the end */
        bool cut = k < unicode_length(*tail) && unicode_decode(tail, k, &c) == k;
        return cut ? length - k : length;
    }
    return length;
}

/* ---- text on a terminal ------------------------------------------------------------------------------------------ */

bool text_drives_terminal(uint32_t c)
{
    return c < 0x20 || (c >= 0x7f && c <= 0x9f) || c == 0x61c || c == 0x200e || c == 0x200f ||
           (c >= 0x2028 && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069);
}

size_t text_visible(const char *bytes, size_t length, const char *keep, char out[TEXT_VISIBLE])
{
    uint32_t c;
    size_t size = unicode_decode(bytes, length, &c);
    if (unicode_is_broken(c, bytes, size)) {
        snprintf(out, TEXT_VISIBLE, "\\x%02x", (unsigned char)bytes[0]);
        return 1;
    }
    bool kept = c > 0 && c < 0x80 && strchr(keep, (int)c);
    if (kept || !text_drives_terminal(c)) {
        memcpy(out, bytes, size);
        out[size] = '\0';
    } else if (c == '\n' || c == '\t' || c == '\r') {
        static const char letters[] = {['\n'] = 'n', ['\t'] = 't', ['\r'] = 'r'};
        snprintf(out, TEXT_VISIBLE, "\\%c", letters[c]);
    } else {
        snprintf(out, TEXT_VISIBLE, c < 0x80 ? "\\x%02x" : "\\u{%x}", (unsigned)c);
    }
    return size;
}

#define MOST_SHOWN 100 /* bytes; of a longer text only the end is shown */

char *text_printable(const char *bytes, size_t length, char out[TEXT_PRINTABLE])
{
    const char *s = bytes, *end = bytes + length;
    size_t used = 0;
    if (length > MOST_SHOWN) {
        s = end - MOST_SHOWN + 3;
        while (s < end && unicode_is_continuation(*s)) /* begin with a whole character */
            s++;
        used = (size_t)snprintf(out, TEXT_PRINTABLE, "...");
    }
    out[used] = '\0';
    while (s < end && used < TEXT_PRINTABLE - TEXT_VISIBLE) {
        s += text_visible(s, (size_t)(end - s), "", out + used);
        used += strlen(out + used);
    }
    return out;
}

/* Whether a shell takes the character as it is. */
static bool is_plain(unsigned char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c && strchr("_./:@%+=,-", c));
}

/* Whether text_visible() leaves all of it as it is. */
static bool is_visible(const char *text, size_t length)
{
    for (size_t i = 0, n; i < length; i += n) {
        char shown[TEXT_VISIBLE];
        n = text_visible(text + i, length - i, "", shown);
        if (!text_same(shown, strlen(shown), text + i, n))
            return false;
    }
    return true;
}

/* 'it'\''s', or, for what cannot be shown, $'\x1b'. */
char *text_quoted(const char *path, char out[TEXT_QUOTED])
{
    size_t length = strlen(path), plain = 0;
    while (is_plain((unsigned char)path[plain]))
        plain++;
    FILE *f = 4 * length + 8 <= TEXT_QUOTED ? fmemopen(out, TEXT_QUOTED, "w") : NULL;
    if (!f)
        return text_printable(path, length, out);
    bool shown = is_visible(path, length), quoted = plain < length || length == 0;
    fprintf(f, "%s%s%s", path[0] == '-' ? "./" : "", quoted && !shown ? "$" : "", quoted ? "'" : "");
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)path[i];
        if (c == '\'' && shown)
            fputs("'\\''", f);
        else if (!shown && !is_plain(c))
            fprintf(f, "\\x%02x", c);
        else
            fputc(c, f);
    }
    fprintf(f, "%s", quoted ? "'" : "");
    fclose(f);
    return out;
}

/* ---- shapes ------------------------------------------------------------------------------------------------------ */

void shape_print(FILE *out, const uint64_t *shape, size_t rank)
{
    fputc('[', out);
    for (size_t i = 0; i < rank; i++)
        fprintf(out, "%s%" PRIu64, i ? "," : "", shape[i]);
    fputc(']', out);
}

const char *shape_text(const uint64_t *shape, size_t rank, char out[SHAPE_TEXT])
{
    size_t used = 1, i;
    out[0] = '[';
    for (i = 0; i < rank && used < 80; i++) /* one more size of at most 20 digits fits, and ",...]" */
        used += (size_t)snprintf(out + used, SHAPE_TEXT - used, "%s%" PRIu64, i ? "," : "", shape[i]);
    snprintf(out + used, SHAPE_TEXT - used, i < rank ? ",...]" : "]");
    return out;
}
