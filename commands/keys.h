/* Keys of a terminal, one by one.
 *
 * It is in raw mode only from keys_begin() to keys_end(). There signals are let through nowhere but where a key is
 * waited for, and only noted: those that stop or end the process are raised again once the terminal has been put back.
 */
#ifndef KEYS_H
#define KEYS_H

#include "base/base.h"

#include <signal.h>

/* From now on bytes arrive as they are typed and without echo. Ctrl-Z and Ctrl-\ stay signals. */
void keys_begin(void);
void keys_end(void);
/* The gravest signal that came since: one that stops or ends us, SIGCONT, SIGWINCH. 0: none. */
extern volatile sig_atomic_t keys_signal;

#define CONTROL(letter) ((letter) & 0x1f)
enum { AT_END = -1, DISTURBED = -2, NOTHING = -3 }; /* instead of a byte */
enum { KEY_ESCAPE = 0x1b, KEY_RUBOUT = 0x7f, KEY_DELETE = 0x100, KEY_PASTE, KEY_PASTE_END, KEY_UNKNOWN };
enum { SOON = 50 }; /* milliseconds: the bytes of one key or character follow one another faster */

/* The next key: a byte, CONTROL() of the letter that does the same, or one of KEY_...; or AT_END, or DISTURBED by a
 * signal. */
int keys_next(void);
/* The next byte; NOTHING when none comes within this many milliseconds (-1: wait for ever), or AT_END or DISTURBED. */
int keys_next_byte(int milliseconds);
void keys_put_back(void); /* the byte that was taken last */
bool keys_are_waiting(void);

/* While something else has the terminal: what is typed is not shown, and kept. It ends with keys_show(), and for as long
 * as the process is stopped. Nothing if standard input is no terminal. */
void keys_hide(void);
void keys_show(void);

#endif
