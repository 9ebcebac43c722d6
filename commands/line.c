/* A message is valid UTF-8, its lines separated by \n. On the screen it takes rows: a row ends at a \n, or before the
 * character that does not fit any more. Rows are ended by us and never by the terminal's own wrapping, so that it is
 * certain where each character stands. All rows are painted again after each key; of a message taller than the screen
 * those around the cursor.
 */
#include "commands/line.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/unicode.h"
#include "commands/keys.h"
#include "commands/output.h"
#include "commands/terminal.h"

/* ---- the screen -------------------------------------------------------------------------------------------------- */

typedef struct {
    size_t row; /* 0 is the message's first */
    int column;
    bool is_stop; /* the cursor may stand here: not inside a character, nor between it and the marks on it */
} Place;

typedef struct {
    Text text;
    size_t cursor; /* index of a byte */
    const char *prompt;
    int indent;         /* columns of the prompt, which other lines leave free */
    int columns, lines; /* of the terminal */
    Place *places;      /* [length + 1] of each byte, and of the cursor at the end */
    size_t top;         /* the first row that is shown */
    size_t painted;     /* where the cursor was painted last: rows below top */
    size_t recalled;    /* the entry of the history that is shown; history.count: none */
    Text draft;         /* the message that was being written before one was recalled */
} Editor;

static bool is_flag_half(uint32_t c)
{
    return c >= 0x1f1e6 && c <= 0x1f1ff;
}

/* Does a character belong to the emoji before it? What follows a joiner does, a skin tone, and a flag's second half. */
static bool joins_emoji(uint32_t before, uint32_t c)
{
    bool tone = c >= 0x1f3fb && c <= 0x1f3ff;
    return (before == 0x200d && c > 0xff) || (tone && unicode_width(before) == 2) ||
           (is_flag_half(before) && is_flag_half(c));
}

/* Find the places. At the end of the text there is a space, for the cursor to stand on. */
static void lay_out(Editor *e)
{
    Place p = {0, e->indent, true};
    e->places = xrealloc(e->places, (e->text.length + 1) * sizeof *e->places);
    uint32_t before = 0; /* 1: a whole flag */
    for (size_t i = 0, n; i <= e->text.length; i += n) {
        uint32_t c = ' ';
        n = i < e->text.length ? unicode_decode(e->text.bytes + i, e->text.length - i, &c) : 1;
        int width = c == '\t' ? 4 : unicode_width(c);
        if (p.column + width > e->columns && i > 0)
            p = (Place){.row = p.row + 1};
        bool joined = joins_emoji(before, c);
        for (size_t k = 0; k < n; k++)
            e->places[i + k] = (Place){p.row, p.column, k == 0 && !joined && (width > 0 || c == '\n')};
        before = joined && is_flag_half(c) ? 1 : c;
        p.column += width;
        if (c == '\n')
            p = (Place){p.row + 1, e->indent, true};
    }
}

static void measure(Editor *e)
{
    struct winsize w = {0};
    bool known = !ioctl(STDOUT_FILENO, TIOCGWINSZ, &w);
    e->columns = known && w.ws_col ? w.ws_col : 80;
    e->lines = known && w.ws_row ? w.ws_row : 24;
}

/* Terminals break rows that have become too long, which moves the cursor down: count the rows that it is below top. */
static void resized(Editor *e)
{
    lay_out(e);
    measure(e);
    e->painted = (size_t)(e->places[e->cursor].column / e->columns);
    for (size_t i = 0; i < e->cursor; i++) {
        Place p = e->places[i];
        int last = p.column - (e->text.bytes[i] == '\n' ? 1 : 0);
        if (p.row >= e->top && e->places[i + 1].row > p.row)
            e->painted += (size_t)(MAX(last, 0) / e->columns) + 1;
    }
}

static void move(size_t n, char direction)
{
    if (n > 0)
        printf("\033[%zu%c", n, direction);
}

/* Paint what the screen has room for, the cursor at this index. */
static void paint(Editor *e, size_t index)
{
    lay_out(e);
    Place cursor = e->places[index];
    size_t end = e->places[e->text.length].row, lines = (size_t)e->lines;
    e->top = MIN(e->top, MAX(end + 1, lines) - lines); /* no row stays empty while there are more rows above */
    e->top = MIN(e->top, cursor.row);
    e->top = MAX(e->top, MAX(cursor.row + 1, lines) - lines);
    size_t bottom = MIN(end, e->top + lines - 1);
    bool color = use_color(stdout);
    move(e->painted, 'A');
    fputs("\r\033[J", stdout);
    for (size_t i = 0; i <= e->text.length && e->places[i].row <= bottom; i++) {
        Place p = e->places[i];
        if (p.row < e->top)
            continue;
        if (i == 0) {
            printf("%s%s%s", color ? "\033[1m" : "", e->prompt, color ? "\033[0m" : "");
        } else if (p.row > e->places[i - 1].row) {
            fputs(p.row > e->top ? "\r\n" : "", stdout);
            move((size_t)p.column, 'C');
        }
        if (e->text.bytes[i] == '\t')
            fputs("    ", stdout);
        else if (e->text.bytes[i] != '\n' && i < e->text.length)
            putchar(e->text.bytes[i]);
    }
    move(bottom - cursor.row, 'A');
    putchar('\r');
    move((size_t)cursor.column, 'C');
    e->painted = cursor.row - e->top;
    fflush(stdout);
}

static void end_painting(Editor *e, const char *mark)
{
    paint(e, e->text.length);
    printf("%s\r\n", mark);
    e->painted = e->top = 0;
}

/* ---- changes ----------------------------------------------------------------------------------------------------- */

static Text killed; /* what Ctrl-Y puts back */
static struct {
    Text *items;
    size_t count;
} history;

static void set_text(Text *text, const char *bytes, size_t length)
{
    text->length = 0;
    xappend(text, bytes, length);
}

/* Drop the last byte of the text if it is this one. */
static bool chop(Text *text, char last)
{
    if (!text->length || text->bytes[text->length - 1] != last)
        return false;
    text->bytes[--text->length] = 0;
    return true;
}

/* Put bytes in place of [begin, end), and the cursor behind them. */
static void replace(Editor *e, size_t begin, size_t end, const char *bytes, size_t length)
{
    size_t tail = e->text.length - end;
    xappend(&e->text, bytes, length); /* makes room */
    memmove(e->text.bytes + begin + length, e->text.bytes + end, tail);
    memcpy(e->text.bytes + begin, bytes, length);
    e->text.length = begin + length + tail;
    e->text.bytes[e->text.length] = 0;
    e->cursor = begin + length;
}

static void kill_text(Editor *e, size_t begin, size_t end)
{
    if (begin < end)
        set_text(&killed, e->text.bytes + begin, end - begin);
    replace(e, begin, end, "", 0);
}

/* Where the cursor goes by one step. */
static size_t next_stop(Editor *e, bool forward)
{
    size_t i = e->cursor, last = forward ? e->text.length : 0;
    lay_out(e); /* there may have been other keys since it was painted */
    while (i != last) {
        i = forward ? i + 1 : i - 1;
        if (e->places[i].is_stop)
            break;
    }
    return i;
}

/* Go back from i over bytes that are in the set, or over those that are not. */
static size_t back_over(const Editor *e, size_t i, const char *set, bool in)
{
    while (i > 0 && (strchr(set, e->text.bytes[i - 1]) != NULL) == in)
        i--;
    return i;
}

/* Let the arrow keys bring this message back. */
static void remember(const Text *message)
{
    const Text *last = history.count ? &history.items[history.count - 1] : NULL;
    if (!message->length || (last && !strcmp(last->bytes, message->bytes)))
        return;
    history.items = xrealloc(history.items, (history.count + 1) * sizeof *history.items);
    history.items[history.count] = (Text){0};
    set_text(&history.items[history.count++], message->bytes, message->length);
}

/* Show the message of the history before or after. */
static void recall(Editor *e, bool up)
{
    if (up ? e->recalled == 0 : e->recalled == history.count)
        return;
    if (e->recalled == history.count)
        set_text(&e->draft, e->text.bytes, e->text.length);
    e->recalled = up ? e->recalled - 1 : e->recalled + 1;
    const Text *shown = e->recalled == history.count ? &e->draft : &history.items[e->recalled];
    replace(e, 0, e->text.length, shown->bytes, shown->length);
}

/* Move to the row above or below, or from the outermost row to another message. */
static void move_row(Editor *e, bool up)
{
    lay_out(e);
    const Place *places = e->places, from = places[e->cursor];
    if (from.row == (up ? 0 : places[e->text.length].row)) {
        recall(e, up);
        return;
    }
    size_t row = up ? from.row - 1 : from.row + 1, i = 0;
    while (places[i].row < row)
        i++;
    for (e->cursor = i; i <= e->text.length && places[i].row == row; i++)
        if (places[i].column <= from.column && places[i].is_stop)
            e->cursor = i;
}

/* ---- editing ----------------------------------------------------------------------------------------------------- */

/* Do what a signal asks for. The screen may show other text by then. */
static void after_signal(Editor *e)
{
    if (keys_signal == SIGWINCH) {
        keys_signal = 0;
        resized(e);
        return;
    }
    if (keys_signal != SIGCONT) /* which has come after SIGSTOP */
        end_painting(e, "");
    keys_end();
    keys_begin();
    measure(e);
    e->painted = e->top = 0;
}

/* Insert the character that begins with byte b, but no keys and control characters. Invalid UTF-8 becomes U+FFFD. */
static void insert_character(Editor *e, int b)
{
    char bytes[4] = {(char)b};
    size_t n = 1, size = unicode_length((char)b);
    uint32_t c;
    if (b < 0 || b > 0xff)
        return;
    while (n < size && (b = keys_next_byte(SOON)) >= 0 && unicode_is_continuation((char)b))
        bytes[n++] = (char)b;
    if (n < size && b >= 0)
        keys_put_back(); /* begins something else */
    unicode_decode(bytes, n, &c);
    if (c == '\t' || c == '\n' || (c >= 0x20 && (c < 0x7f || c > 0x9f)))
        replace(e, e->cursor, e->cursor, bytes, unicode_encode(c, bytes));
}

/* Insert what is pasted. Returns the key after it. */
static int paste(Editor *e)
{
    for (int key, last = 0;; last = key) {
        key = keys_next();
        if (key == KEY_PASTE_END || key == AT_END || key == CONTROL('C'))
            return key;
        if (key == DISTURBED)
            after_signal(e);
        else if (key != '\n' || last != '\r')
            insert_character(e, key == '\r' ? '\n' : key);
    }
}

/* LINE_OK: the Return key that ends the message. */
static LineResult edit(Editor *e)
{
    for (;;) {
        if (!keys_are_waiting())
            paint(e, e->cursor);
        int key = keys_next();
        if (key == KEY_PASTE)
            key = paste(e);
        size_t i = e->cursor, begin = back_over(e, i, "\n", false), end = i + strcspn(e->text.bytes + i, "\n");
        switch (key) {
        case DISTURBED: after_signal(e); break;
        case AT_END: return LINE_END;
        case CONTROL('C'):
            end_painting(e, "^C");
            if (!e->text.length)
                return LINE_INTERRUPTED;
            replace(e, 0, e->text.length, "", 0);
            e->recalled = history.count;
            break;
        case '\r':
        case '\n':
            if (!chop(&e->text, '\\'))
                return LINE_OK;
            e->cursor = e->text.length;
            insert_character(e, '\n');
            break;
        case CONTROL('A'): e->cursor = begin; break;
        case CONTROL('E'): e->cursor = end; break;
        case CONTROL('B'): e->cursor = next_stop(e, false); break;
        case CONTROL('F'): e->cursor = next_stop(e, true); break;
        case CONTROL('P'): move_row(e, true); break;
        case CONTROL('N'): move_row(e, false); break;
        case CONTROL('H'):
        case KEY_RUBOUT: replace(e, next_stop(e, false), i, "", 0); break;
        case CONTROL('D'):
            if (!e->text.length)
                return LINE_END;
            /* fall through */
        case KEY_DELETE: replace(e, i, next_stop(e, true), "", 0); break;
        case CONTROL('K'): kill_text(e, i, end > i ? end : next_stop(e, true)); break;
        case CONTROL('U'): kill_text(e, begin, i); break;
        case CONTROL('W'): kill_text(e, back_over(e, back_over(e, i, " \t\n", true), " \t\n", false), i); break;
        case CONTROL('Y'): replace(e, i, i, killed.length ? killed.bytes : "", killed.length); break;
        case CONTROL('L'):
            fputs("\033[H\033[2J", stdout);
            e->painted = 0;
            break;
        default: insert_character(e, key);
        }
    }
}

/* ---- plain reading ----------------------------------------------------------------------------------------------- */

/* At a terminal the message goes on after a backslash at the end of a line. */
static LineResult read_plain(const char *prompt, Text *out)
{
    bool terminal = isatty(STDIN_FILENO);
    char *line = NULL;
    size_t capacity = 0;
    ssize_t n;
    for (;;) {
        if (terminal && isatty(STDERR_FILENO))
            fputs(out->length ? "... " : prompt, stderr);
        n = getline(&line, &capacity, stdin);
        if (n < 0 && !feof(stdin))
            die(EXIT_FAILED, "standard input: %s", strerror(errno));
        if (n < 0)
            break;
        xappend(out, line, (size_t)n);
        chop(out, '\n');
        if (!terminal || !chop(out, '\\'))
            break;
        xappend(out, "\n", 1);
    }
    free(line);
    chop(out, '\r');
    return n < 0 && !out->length ? LINE_END : LINE_OK;
}

LineResult line_read(const char *prompt, Text *out)
{
    Editor e = {.prompt = prompt, .indent = (int)strlen(prompt), .recalled = history.count};
    const char *term = getenv("TERM");
    fflush(stdout);
    set_text(out, "", 0);
    if (!isatty(STDIN_FILENO) || !isatty(STDOUT_FILENO) || !term || !*term || !strcmp(term, "dumb"))
        return read_plain(prompt, out);
    set_text(&e.text, "", 0);
    keys_begin();
    measure(&e);
    LineResult result = edit(&e);
    if (result != LINE_INTERRUPTED)
        end_painting(&e, "");
    keys_end();
    if (result == LINE_OK)
        remember(&e.text);
    text_free(out);
    *out = e.text;
    text_free(&e.draft);
    free(e.places);
    return result;
}
