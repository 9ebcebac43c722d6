#include "commands/keys.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/select.h>
#include <termios.h>
#include <unistd.h>

#include "commands/terminal.h"

/* ---- the terminal and the signals -------------------------------------------------------------------------------- */

#define PASTE_ON "\033[?2004h" /* pasted text comes between marks */
#define PASTE_OFF "\033[?2004l"

static struct termios mode_before;
static sigset_t mask_before;
volatile sig_atomic_t keys_signal;

static void on_signal(int n)
{
    if (!keys_signal || keys_signal == SIGWINCH || (n != SIGCONT && n != SIGWINCH))
        keys_signal = n;
}

static void leave_raw(void) /* async-signal-safe */
{
    terminal_restore = NULL;
    tcsetattr(STDIN_FILENO, TCSANOW, &mode_before);
    if (write(STDOUT_FILENO, PASTE_OFF, sizeof PASTE_OFF - 1) < 0)
        return; /* the terminal is gone */
}

/* Handle signals, but for those that are ignored. */
static void handle(const int *signals, size_t n, void (*handler)(int))
{
    for (size_t i = 0; i < n; i++)
        if (signal(signals[i], handler) == SIG_IGN)
            signal(signals[i], SIG_IGN);
}

static void handle_signals(void (*handler)(int))
{
    static const int signals[] = {SIGTSTP, SIGCONT, SIGWINCH, SIGTERM, SIGHUP, SIGQUIT};
    handle(signals, COUNT_OF(signals), handler);
}

void keys_begin(void)
{
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &mask_before);
    handle_signals(on_signal);
    keys_signal = 0;
    tcgetattr(STDIN_FILENO, &mode_before);
    struct termios raw = mode_before;
    cfmakeraw(&raw);
    raw.c_lflag |= ISIG;
    raw.c_cc[VINTR] = _POSIX_VDISABLE;
    terminal_restore = leave_raw;
    tcsetattr(STDIN_FILENO, TCSANOW, &raw);
    fputs(PASTE_ON, stdout);
}

void keys_end(void)
{
    fflush(stdout);
    leave_raw();
    handle_signals(SIG_DFL);
    pthread_sigmask(SIG_SETMASK, &mask_before, NULL);
    if (keys_signal)
        raise((int)keys_signal); /* SIGTSTP: the process stops here until it is continued */
}

/* ---- what is typed meanwhile ------------------------------------------------------------------------------------- */

static void show_typing(void) /* async-signal-safe */
{
    terminal_restore = NULL;
    tcsetattr(STDIN_FILENO, TCSANOW, &mode_before);
}

static void hide_typing(void) /* async-signal-safe */
{
    struct termios hidden = mode_before;
    hidden.c_lflag &= ~(tcflag_t)(ECHO | ECHONL);
    terminal_restore = show_typing;
    tcsetattr(STDIN_FILENO, TCSANOW, &hidden);
}

/* SIGTSTP, SIGQUIT: stop or end with the terminal as it was, and take it again when the process is continued. */
static void stop_shown(int n)
{
    sigset_t stop;
    int error = errno;
    show_typing();
    signal(n, SIG_DFL);
    raise(n);
    sigemptyset(&stop);
    sigaddset(&stop, n);
    pthread_sigmask(SIG_UNBLOCK, &stop, NULL); /* happens here */
    signal(n, stop_shown);
    hide_typing();
    errno = error;
}

static void handle_stops(void (*handler)(int))
{
    static const int signals[] = {SIGTSTP, SIGQUIT};
    handle(signals, COUNT_OF(signals), handler);
}

void keys_hide(void)
{
    if (tcgetattr(STDIN_FILENO, &mode_before) != 0)
        return;
    hide_typing();
    handle_stops(stop_shown);
}

void keys_show(void)
{
    if (terminal_restore != show_typing)
        return;
    show_typing();
    handle_stops(SIG_DFL);
}

/* ---- input ------------------------------------------------------------------------------------------------------- */

static struct {
    char bytes[4096];
    size_t at, count;
} input; /* typed and not yet used */

int keys_next_byte(int milliseconds)
{
    struct timespec time = {0, milliseconds * 1000000L};
    while (input.at == input.count) {
        fd_set set;
        FD_ZERO(&set);
        FD_SET(STDIN_FILENO, &set);
        if (keys_signal)
            return DISTURBED;
        int n = pselect(STDIN_FILENO + 1, &set, NULL, NULL, milliseconds < 0 ? NULL : &time, &mask_before);
        if (n == 0)
            return NOTHING;
        if (n < 0)
            continue; /* a signal came */
        ssize_t got = read(STDIN_FILENO, input.bytes, sizeof input.bytes);
        if (got == 0 || (got < 0 && errno != EAGAIN))
            return AT_END; /* an error: the terminal hung up */
        input.at = 0;
        input.count = (size_t)MAX(got, 0);
    }
    return (unsigned char)input.bytes[input.at++];
}

void keys_put_back(void)
{
    input.at--;
}

bool keys_are_waiting(void)
{
    return input.at < input.count;
}

int keys_next(void)
{
    static const struct {
        const char *sequence;
        int key;
    } keys[] = {{"A", CONTROL('P')},  {"B", CONTROL('N')},  {"C", CONTROL('F')},  {"D", CONTROL('B')},
                {"H", CONTROL('A')},  {"1~", CONTROL('A')}, {"7~", CONTROL('A')}, {"F", CONTROL('E')},
                {"4~", CONTROL('E')}, {"8~", CONTROL('E')}, {"3~", KEY_DELETE},   {"200~", KEY_PASTE},
                {"201~", KEY_PASTE_END}};
    char sequence[32] = ""; /* begins with [ or O */
    int b = keys_next_byte(-1);
    if (b != KEY_ESCAPE)
        return b;
    for (size_t n = 0; n + 1 < sizeof sequence && (b = keys_next_byte(SOON)) >= 0;) {
        sequence[n++] = (char)b;
        if (n == 1 ? b != '[' && b != 'O' : b >= 0x40 && b <= 0x7e)
            break;
    }
    for (size_t i = 0; i < COUNT_OF(keys); i++)
        if (!strcmp(sequence + 1, keys[i].sequence))
            return keys[i].key;
    return KEY_UNKNOWN;
}
