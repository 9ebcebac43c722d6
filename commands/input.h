/* What a command reads: descriptors to their end; a text from an argument, a file or standard input; token ids. */
#ifndef INPUT_H
#define INPUT_H

#include "base/base.h"
#include "base/text.h"

/* Called with bytes in the order in which they are read. */
typedef void InputTake(void *context, const void *bytes, size_t n);
int input_read(int fd, InputTake *take, void *context); /* read fd to its end; -1 with errno */

/* Append the text of an argument, of a file, or of stdin when there is neither and it is not a terminal; "-" is stdin
 * in both. False if none was given. Dies if it cannot be read. */
bool input_text(Text *text, const char *argument, const char *file);
const char *input_name(const char *path); /* for messages: "standard input" for "-" */
IdList input_ids(const char *text);       /* "1,2,3"; anything else is a usage error */
/* Replace \n, \t, \r, \e, \\, \xHH and \u{HEX} in place. Returns the new length. */
size_t input_unescape(char *text, size_t length);

/* A prompt as commands take it: PROMPT, -f FILE or standard input, or --ids. */
typedef struct {
    const char *file, *ids;
    bool escapes;
    Text text; /* empty with --ids */
} Prompt;

/* Rows for a command's table of options. */
#define PROMPT_OPTIONS(p)                                                                                             \
    {'f', "file", "FILE", OPTION_TEXT, &(p).file, "the prompt is all of FILE; - is standard input"},                  \
    {0, "ids", "1,2,3", OPTION_TEXT, &(p).ids, "token ids instead of text; needs no tokenizer"},                      \
    {'e', "escapes", NULL, OPTION_FLAG, &(p).escapes, "interpret \\n, \\t, \\xHH and \\u{HEX} in the prompt"}

/* Read the prompt's text, to be freed, from what the options and the argument (or NULL) say. It is a usage error if
 * there is no prompt, or more than one. */
void input_prompt(Prompt *p, const char *argument);

#endif
