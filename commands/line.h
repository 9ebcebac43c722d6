/* Messages from standard input: edited on a terminal, else a line each. */
#ifndef LINE_H
#define LINE_H

#include "base/base.h"
#include "base/text.h"

typedef enum { LINE_OK, LINE_END, LINE_INTERRUPTED } LineResult;

/* Read the next message into *out (what was there is dropped), without its line end. On a terminal it may have several
 * lines, and the arrow keys bring earlier messages back. LINE_END: there are no more messages; LINE_INTERRUPTED: Ctrl-C
 * before anything was typed. On return, and when the process is stopped or ended meanwhile, the terminal is as it was
 * before. Dies if memory runs out. */
LineResult line_read(const char *prompt, Text *out);

#endif
