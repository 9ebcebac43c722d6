/* Messages from standard input: edited on a terminal, else a line each. */
#ifndef LINE_H
#define LINE_H

#include "base/base.h"
#include "tokenizer.h"

typedef enum { LINE_OK, LINE_END, LINE_INTERRUPTED } LineResult;

/* The next message in *out (what was there goes), without its line end. On a terminal it may have several lines.
 * LINE_END: there is no more; LINE_INTERRUPTED: SIGINT, or Ctrl-C before anything was typed. The terminal is as before
 * on return, and whatever ends or stops the process meanwhile. Dies if memory runs out. */
LineResult line_read(const char *prompt, Text *out);

/* Arrow up brings it back. */
void line_remember(const Text *message);

#endif
