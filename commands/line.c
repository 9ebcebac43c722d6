/* A message is valid UTF-8, its lines separated by \n. On the screen it takes rows: a row ends at a \n, or before the
 * character that does not fit any more. Rows are ended by us and never by the terminal's own wrapping, so that it is
 * certain where each character stands. Of a message taller than the screen the rows around the cursor are shown.
 *
 * The terminal is in raw mode only inside line_read(). Signals that end the process put it back first; the others are
 * only noted, and let through nowhere but in pselect().
 */
#include "commands/line.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <termios.h>
#include <unistd.h>

#include "base/unicode.h"
#include "commands/output.h"
#include "commands/terminal.h"

/* ---- the terminal and the signals -------------------------------------------------------------------------------- */

#define PASTE_ON "\033[?2004h" /* pasted text comes between marks */
#define PASTE_OFF "\033[?2004l"

static struct termios mode_before;
static volatile sig_atomic_t is_raw, got_interrupt, got_stop, got_continue, got_resize;

static void put(const char *bytes, size_t length)
{
    while (length > 0) {
        ssize_t n = write(STDOUT_FILENO, bytes, length);
        if (n < 0 && errno != EINTR)
            return; /* the terminal is gone, which the next read will notice */
        bytes += MAX(n, 0);
        length -= (size_t)MAX(n, 0);
    }
}

static void leave_raw(void) /* async-signal-safe */
{
    if (!is_raw)
        return;
    is_raw = 0;
    put(PASTE_OFF, sizeof PASTE_OFF - 1);
    tcsetattr(STDIN_FILENO, TCSANOW, &mode_before);
}

/* From now on bytes arrive as they are typed and without echo. Ctrl-Z and Ctrl-\ stay signals. */
static void enter_raw(void)
{
    struct termios raw = mode_before;
    raw.c_iflag &= ~(tcflag_t)(ICRNL | INLCR | IGNCR | INPCK | ISTRIP | IXON);
    raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO | IEXTEN);
    raw.c_cc[VINTR] = _POSIX_VDISABLE;
    raw.c_cc[VMIN] = 1;
    raw.c_cc[VTIME] = 0;
    terminal_restore = leave_raw;
    is_raw = 1;
    tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    put(PASTE_ON, sizeof PASTE_ON - 1);
}

static void on_event(int n)
{
    switch (n) {
    case SIGINT: got_interrupt = 1; break;
    case SIGTSTP: got_stop = 1; break;
    case SIGCONT: got_continue = 1; break;
    default: got_resize = 1;
    }
}

static void on_end(int n)
{
    leave_raw();
    raise(n); /* with its default action, since SA_RESETHAND has removed this handler */
}

/* Plain reading watches the first, editing all; the first four are events, the others end the process. */
static const int watched[] = {SIGINT, SIGTSTP, SIGCONT, SIGWINCH, SIGTERM, SIGHUP, SIGQUIT};
enum { N_PLAIN = 1, N_EVENTS = 4, N_WATCHED = 7 };
static struct sigaction actions_before[N_WATCHED];
static sigset_t mask_before; /* does not block events */

static void watch(int n)
{
    sigset_t events;
    sigemptyset(&events);
    for (int i = 0; i < n && i < N_EVENTS; i++)
        sigaddset(&events, watched[i]);
    pthread_sigmask(SIG_BLOCK, &events, &mask_before);
    got_interrupt = got_stop = got_continue = got_resize = 0;
    for (int i = 0; i < n; i++) {
        struct sigaction action = {.sa_handler = on_event};
        if (i >= N_EVENTS) {
            action.sa_handler = on_end;
            action.sa_flags = (int)SA_RESETHAND;
        }
        sigemptyset(&action.sa_mask);
        sigaction(watched[i], NULL, &actions_before[i]);
        if (actions_before[i].sa_handler != SIG_IGN)
            sigaction(watched[i], &action, NULL);
    }
}

static void unwatch(int n)
{
    for (int i = 0; i < n; i++)
        sigaction(watched[i], &actions_before[i], NULL);
    pthread_sigmask(SIG_SETMASK, &mask_before, NULL);
}

/* ---- input ------------------------------------------------------------------------------------------------------- */

#define CONTROL(letter) ((letter) & 0x1f)
enum { AT_END = -1, INTERRUPTED = -2, DISTURBED = -3, NOTHING = -4 }; /* instead of a byte */
enum { KEY_ESCAPE = 0x1b, KEY_RUBOUT = 0x7f, KEY_DELETE = 0x100, KEY_PASTE, KEY_PASTE_END, KEY_UNKNOWN };
enum { SOON = 50 }; /* milliseconds: the bytes of one key or character follow one another faster */

static struct {
    char bytes[4096];
    size_t at, count;
} input; /* typed or piped, and not yet used */

/* Wait at most so many milliseconds (-1: for ever) for input. Returns 0, or AT_END, INTERRUPTED, DISTURBED, NOTHING. */
static int fill_input(int milliseconds)
{
    struct timespec time = {0, milliseconds * 1000000L};
    while (input.at == input.count) {
        fd_set set;
        FD_ZERO(&set);
        FD_SET(STDIN_FILENO, &set);
        if (got_interrupt || got_stop || got_continue || got_resize)
            return got_interrupt ? INTERRUPTED : DISTURBED;
        int n = pselect(STDIN_FILENO + 1, &set, NULL, NULL, milliseconds < 0 ? NULL : &time, &mask_before);
        if (n == 0)
            return NOTHING;
        ssize_t got = n < 0 ? -1 : read(STDIN_FILENO, input.bytes, sizeof input.bytes);
        if (got == 0 || (got < 0 && errno == EIO)) /* EIO: the terminal hung up */
            return AT_END;
        if (got < 0 && errno != EINTR && errno != EAGAIN)
            die(EXIT_FAILED, "standard input: %s", strerror(errno));
        input.at = 0;
        input.count = got > 0 ? (size_t)got : 0;
    }
    return 0;
}

static int next_byte(int milliseconds)
{
    int result = fill_input(milliseconds);
    return result ? result : (unsigned char)input.bytes[input.at++];
}

/* Read the rest of a key that begins with an escape. */
static int read_escape(void)
{
    static const struct {
        const char *sequence;
        int key;
    } keys[] = {{"A", CONTROL('P')},  {"B", CONTROL('N')},  {"C", CONTROL('F')},  {"D", CONTROL('B')},
                {"H", CONTROL('A')},  {"1~", CONTROL('A')}, {"7~", CONTROL('A')}, {"F", CONTROL('E')},
                {"4~", CONTROL('E')}, {"8~", CONTROL('E')}, {"3~", KEY_DELETE},   {"200~", KEY_PASTE},
                {"201~", KEY_PASTE_END}};
    char sequence[16] = "";
    int b = next_byte(SOON);
    if (b != '[' && b != 'O')
        return KEY_UNKNOWN;
    for (size_t n = 0; (b = next_byte(SOON)) >= 0;) {
        if (n + 1 < sizeof sequence)
            sequence[n++] = (char)b;
        if (b >= 0x40 && b <= 0x7e)
            break;
    }
    for (size_t i = 0; i < COUNT_OF(keys); i++)
        if (!strcmp(sequence, keys[i].sequence))
            return keys[i].key;
    return KEY_UNKNOWN;
}

/* ---- the screen -------------------------------------------------------------------------------------------------- */

typedef struct {
    size_t row; /* 0 is the message's first */
    int column;
} Place;

typedef struct {
    Text text;
    size_t cursor; /* index of a byte */
    const char *prompt;
    int indent;         /* columns of the prompt, which other lines leave free */
    int columns, lines; /* of the terminal */
    size_t top;         /* the first row that is shown */
    size_t painted;     /* where the cursor was painted last: rows below top */
    bool pasting;
    int last;        /* the key before this one */
    size_t recalled; /* the entry of the history that is shown; history.count: none */
    Text draft;      /* the message that was being written before one was recalled */
} Editor;

/* The character at i and its width; at the end of the text a space, for the cursor to stand on. Returns its bytes. */
static size_t character(const Editor *e, size_t i, uint32_t *c, int *width)
{
    *c = ' ';
    size_t n = i < e->text.length ? unicode_decode(e->text.bytes + i, e->text.length - i, c) : 0;
    *width = *c == '\t' ? 4 : unicode_width(*c);
    return n;
}

/* Move p from the character at i, which stands there, to the next one. Returns the index of that. */
static size_t advance(const Editor *e, size_t i, Place *p)
{
    uint32_t c;
    int width;
    i += character(e, i, &c, &width);
    if (c == '\n')
        *p = (Place){p->row + 1, e->indent};
    else
        p->column += width;
    character(e, i, &c, &width);
    if (p->column + width > e->columns)
        *p = (Place){p->row + 1, 0};
    return i;
}

static Place place_of(const Editor *e, size_t index)
{
    Place p = {0, e->indent};
    for (size_t i = 0; i < index;)
        i = advance(e, i, &p);
    return p;
}

/* The index of the last character in that row which is not beyond the column. */
static size_t index_at(const Editor *e, size_t row, int column)
{
    Place p = {0, e->indent};
    size_t found = 0;
    for (size_t i = 0; p.row <= row; i = advance(e, i, &p)) {
        if (p.row == row && (p.column <= column || place_of(e, found).row < row))
            found = i;
        if (i == e->text.length)
            break;
    }
    return found;
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
    Editor old = *e;
    Place p = {0, e->indent}, cursor = place_of(e, e->cursor);
    measure(e);
    e->painted = (size_t)(cursor.column / e->columns);
    for (size_t i = 0; p.row < cursor.row;) {
        Place before = p;
        bool newline = e->text.bytes[i] == '\n' && p.column > 0;
        i = advance(&old, i, &p);
        if (p.row > before.row && before.row >= e->top)
            e->painted += (size_t)((before.column - (newline ? 1 : 0)) / e->columns) + 1;
    }
}

static void add(Text *out, const char *text)
{
    xappend(out, text, strlen(text));
}

static void add_move(Text *out, size_t n, char direction)
{
    char sequence[32];
    snprintf(sequence, sizeof sequence, "\033[%zu%c", n, direction);
    add(out, n ? sequence : "");
}

static void add_prompt(const Editor *e, Text *out)
{
    bool color = use_color(stdout);
    add(out, color ? "\033[1m" : "");
    add(out, e->prompt);
    add(out, color ? "\033[0m" : "");
}

static void paint(Editor *e)
{
    Text out = {0};
    Place end = place_of(e, e->text.length), cursor = place_of(e, e->cursor), p = {0, e->indent};
    size_t lines = (size_t)e->lines;
    e->top = MIN(e->top, MAX(end.row + 1, lines) - lines); /* no row stays empty while there are more rows above */
    e->top = MIN(e->top, cursor.row);
    e->top = MAX(e->top, MAX(cursor.row + 1, lines) - lines);
    size_t bottom = MIN(end.row, e->top + lines - 1);
    add_move(&out, e->painted, 'A');
    add(&out, "\r\033[J");
    if (e->top == 0)
        add_prompt(e, &out);
    for (size_t i = 0, next; i < e->text.length && p.row <= bottom; i = next) {
        Place from = p;
        next = advance(e, i, &p);
        if (from.row >= e->top && e->text.bytes[i] == '\t')
            add(&out, "    ");
        else if (from.row >= e->top && e->text.bytes[i] != '\n')
            xappend(&out, e->text.bytes + i, next - i);
        if (p.row > from.row && p.row >= e->top && p.row <= bottom) {
            add(&out, p.row > e->top ? "\r\n" : "");
            add_move(&out, (size_t)p.column, 'C');
        }
    }
    add_move(&out, bottom - cursor.row, 'A');
    add(&out, "\r");
    add_move(&out, (size_t)cursor.column, 'C');
    e->painted = cursor.row - e->top;
    put(out.bytes, out.length);
    text_free(&out);
}

static void end_painting(Editor *e, const char *mark)
{
    size_t cursor = e->cursor;
    e->cursor = e->text.length;
    paint(e);
    put(mark, strlen(mark));
    put("\r\n", 2);
    e->cursor = cursor;
    e->painted = e->top = 0;
}

/* ---- changes ----------------------------------------------------------------------------------------------------- */

static Text killed; /* what Ctrl-Y puts back */
static struct {
    Text *items;
    size_t count;
} history;

static void insert(Editor *e, const char *bytes, size_t length)
{
    size_t tail = e->text.length - e->cursor;
    xappend(&e->text, bytes, length);
    memmove(e->text.bytes + e->cursor + length, e->text.bytes + e->cursor, tail);
    memcpy(e->text.bytes + e->cursor, bytes, length);
    e->cursor += length;
}

static void cut(Editor *e, size_t begin, size_t end)
{
    memmove(e->text.bytes + begin, e->text.bytes + end, e->text.length - end + 1);
    e->text.length -= end - begin;
    e->cursor = begin;
}

static void kill_text(Editor *e, size_t begin, size_t end)
{
    if (begin < end) {
        killed.length = 0;
        xappend(&killed, e->text.bytes + begin, end - begin);
    }
    cut(e, begin, end);
}

static void replace(Editor *e, const char *bytes, size_t length)
{
    cut(e, 0, e->text.length);
    insert(e, bytes, length);
}

/* Insert the character that begins with byte b, unless it is a control character. Invalid UTF-8 becomes U+FFFD. */
static void insert_character(Editor *e, int b)
{
    char bytes[4] = {(char)b};
    size_t n = 1, size = unicode_length((char)b);
    uint32_t c;
    while (n < size && !fill_input(SOON) && unicode_is_continuation(input.bytes[input.at]))
        bytes[n++] = input.bytes[input.at++];
    unicode_decode(bytes, n, &c);
    if (c == '\t' || (c >= 0x20 && (c < 0x7f || c > 0x9f)))
        insert(e, bytes, unicode_encode(c, bytes));
}

/* Where the cursor goes from i: over a character and the marks on it. */
static size_t right_of(const Editor *e, size_t i)
{
    uint32_t c;
    int width;
    i += character(e, i, &c, &width);
    for (size_t n; (n = character(e, i, &c, &width)) && c != '\n' && width == 0;)
        i += n;
    return i;
}

static size_t left_of(const Editor *e, size_t i)
{
    uint32_t c = 0;
    for (int width = 0; i > 0 && c != '\n' && width == 0; character(e, i, &c, &width))
        do
            i--;
        while (i > 0 && unicode_is_continuation(e->text.bytes[i]));
    return i;
}

static size_t word_left(const Editor *e)
{
    size_t i = e->cursor;
    while (i > 0 && strchr(" \t\n", e->text.bytes[i - 1]))
        i--;
    while (i > 0 && !strchr(" \t\n", e->text.bytes[i - 1]))
        i--;
    return i;
}

/* The begin and the end of the line that the cursor is in. */
static size_t line_begin(const Editor *e)
{
    size_t i = e->cursor;
    while (i > 0 && e->text.bytes[i - 1] != '\n')
        i--;
    return i;
}

static size_t line_end(const Editor *e)
{
    size_t i = e->cursor;
    while (i < e->text.length && e->text.bytes[i] != '\n')
        i++;
    return i;
}

void line_remember(const Text *message)
{
    const Text *last = history.count ? &history.items[history.count - 1] : NULL;
    if (!message->length || (last && !strcmp(last->bytes, message->bytes)))
        return;
    history.items = xrealloc(history.items, (history.count + 1) * sizeof *history.items);
    history.items[history.count] = (Text){0};
    xappend(&history.items[history.count++], message->bytes, message->length);
}

/* Move to the row above or below, or from the outermost row to the message before or after. */
static void move_row(Editor *e, bool up)
{
    Place cursor = place_of(e, e->cursor);
    if (up ? cursor.row > 0 : cursor.row < place_of(e, e->text.length).row) {
        e->cursor = index_at(e, up ? cursor.row - 1 : cursor.row + 1, cursor.column);
    } else if (up ? e->recalled > 0 : e->recalled < history.count) {
        if (e->recalled == history.count) {
            e->draft.length = 0;
            xappend(&e->draft, e->text.bytes, e->text.length);
        }
        e->recalled = up ? e->recalled - 1 : e->recalled + 1;
        const Text *shown = e->recalled == history.count ? &e->draft : &history.items[e->recalled];
        replace(e, shown->bytes, shown->length);
    }
}

/* ---- editing ----------------------------------------------------------------------------------------------------- */

/* Do what a signal asks for. The screen may show other text by then. */
static void after_signal(Editor *e)
{
    if (got_stop) {
        struct sigaction standard = {.sa_handler = SIG_DFL}, ours;
        sigset_t mask;
        end_painting(e, "");
        leave_raw();
        sigaction(SIGTSTP, &standard, &ours);
        pthread_sigmask(SIG_SETMASK, &mask_before, &mask);
        raise(SIGTSTP); /* the process stops here until it is continued */
        pthread_sigmask(SIG_SETMASK, &mask, NULL);
        sigaction(SIGTSTP, &ours, NULL);
        tcgetattr(STDIN_FILENO, &mode_before);
    }
    if (got_stop || got_continue) {
        enter_raw();
        measure(e);
        e->painted = e->top = 0;
    } else {
        resized(e);
    }
    got_stop = got_continue = got_resize = 0;
}

/* The Return key. True if it ends the message. */
static bool end_line(Editor *e, int key)
{
    bool continued = e->text.length && e->text.bytes[e->text.length - 1] == '\\';
    if (e->pasting) {
        if (key != '\n' || e->last != '\r')
            insert(e, "\n", 1);
    } else if (continued) {
        e->text.bytes[e->text.length - 1] = '\n';
        e->cursor = e->text.length;
    } else {
        end_painting(e, "");
        return true;
    }
    return false;
}

static void apply_key(Editor *e, int key)
{
    size_t i = e->cursor;
    switch (key) {
    case CONTROL('A'): e->cursor = line_begin(e); break;
    case CONTROL('E'): e->cursor = line_end(e); break;
    case CONTROL('B'): e->cursor = left_of(e, i); break;
    case CONTROL('F'): e->cursor = right_of(e, i); break;
    case CONTROL('P'): move_row(e, true); break;
    case CONTROL('N'): move_row(e, false); break;
    case CONTROL('H'):
    case KEY_RUBOUT: cut(e, left_of(e, i), i); break;
    case CONTROL('D'):
    case KEY_DELETE: cut(e, i, right_of(e, i)); break;
    case CONTROL('K'): kill_text(e, i, line_end(e) > i ? line_end(e) : right_of(e, i)); break;
    case CONTROL('U'): kill_text(e, line_begin(e), i); break;
    case CONTROL('W'): kill_text(e, word_left(e), i); break;
    case KEY_PASTE:
    case KEY_PASTE_END: e->pasting = key == KEY_PASTE; break;
    case CONTROL('Y'): insert(e, killed.length ? killed.bytes : "", killed.length); break;
    case CONTROL('L'):
        put("\033[H\033[2J", 7);
        e->painted = 0;
        break;
    default:
        if (key == '\t' || (key >= 0x20 && key <= 0xff))
            insert_character(e, key);
    }
}

static LineResult edit(Editor *e)
{
    for (int key;; e->last = key) {
        if (input.at == input.count && !e->pasting)
            paint(e);
        key = next_byte(-1);
        if (key == KEY_ESCAPE)
            key = read_escape();
        if (key == DISTURBED) {
            after_signal(e);
        } else if (key == INTERRUPTED || key == CONTROL('C')) {
            end_painting(e, "^C");
            if (e->text.length == 0)
                return LINE_INTERRUPTED;
            replace(e, "", 0);
            got_interrupt = e->pasting = false;
            e->recalled = history.count;
        } else if (key == AT_END || (key == CONTROL('D') && e->text.length == 0 && !e->pasting)) {
            end_painting(e, "");
            return LINE_END;
        } else if (key == '\r' || key == '\n') {
            if (end_line(e, key))
                return LINE_OK;
        } else if (!e->pasting || key == '\t' || key >= 0x20) {
            apply_key(e, key);
        }
    }
}

/* ---- plain reading ----------------------------------------------------------------------------------------------- */

/* Append the rest of a line, without its \n. */
static LineResult read_line(Text *out)
{
    for (;;) {
        int result = fill_input(-1);
        if (result == INTERRUPTED)
            return LINE_INTERRUPTED;
        if (result != 0)
            return LINE_END;
        const char *from = input.bytes + input.at, *newline = memchr(from, '\n', input.count - input.at);
        size_t n = newline ? (size_t)(newline - from) : input.count - input.at;
        xappend(out, from, n);
        input.at += n + (newline ? 1 : 0);
        if (newline)
            return LINE_OK;
    }
}

/* At a terminal the message goes on after a backslash at the end of a line. */
static LineResult read_plain(const char *prompt, Text *out)
{
    bool terminal = isatty(STDIN_FILENO);
    for (;;) {
        if (terminal && isatty(STDERR_FILENO))
            fputs(out->length ? "... " : prompt, stderr);
        LineResult result = read_line(out);
        if (result != LINE_OK)
            return result == LINE_END && out->length ? LINE_OK : result;
        if (!terminal || !out->length || out->bytes[out->length - 1] != '\\')
            break;
        out->bytes[out->length - 1] = '\n';
    }
    if (out->length && out->bytes[out->length - 1] == '\r')
        out->bytes[--out->length] = 0;
    return LINE_OK;
}

/* Are standard input and output a terminal that can move its cursor? */
static bool can_edit(void)
{
    const char *term = getenv("TERM");
    return isatty(STDIN_FILENO) && isatty(STDOUT_FILENO) && term && *term && strcmp(term, "dumb");
}

LineResult line_read(const char *prompt, Text *out)
{
    Editor e = {.prompt = prompt, .indent = (int)strlen(prompt), .recalled = history.count};
    bool edited = can_edit() && !tcgetattr(STDIN_FILENO, &mode_before);
    LineResult result;
    fflush(stdout);
    out->length = 0;
    xappend(out, "", 0);
    xappend(&e.text, "", 0);
    watch(edited ? N_WATCHED : N_PLAIN);
    if (edited) {
        enter_raw();
        measure(&e);
        result = edit(&e);
        xappend(out, e.text.bytes, e.text.length);
    } else {
        result = read_plain(prompt, out);
    }
    leave_raw();
    terminal_restore = NULL;
    unwatch(edited ? N_WATCHED : N_PLAIN);
    text_free(&e.text);
    text_free(&e.draft);
    return result;
}
