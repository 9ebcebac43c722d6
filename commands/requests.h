/* Requests: JSON objects on standard input, one a line, each answered with one line on standard output. */
#ifndef REQUESTS_H
#define REQUESTS_H

#include "base/base.h"
#include "json.h"
#include "tokenizer.h"

/* Standard input, line by line; {0} is its beginning. */
typedef struct {
    Text text;     /* what was read; that before `at` was taken */
    size_t at;
    size_t number; /* of the line that was taken last, from 1 */
    bool ended;
} Lines;

typedef enum { LINES_TAKEN, LINES_NOT_YET, LINES_END } LinesStatus;
/* Take the next line, without its end: *line stays valid until the next call. Without `wait`, LINES_NOT_YET if there is
 * none so far. LINES_END also after Ctrl-C. Flushes stdout before it reads, so that whoever waits for an answer before
 * the next request gets it. Dies if the input can't be read. */
LinesStatus lines_take(Lines *l, bool wait, const char **line, size_t *length);

/* -1 and a sentence if the request has a field whose name is not among the n known ones: one that is misspelled would
 * change nothing without a word. */
int request_check_fields(const JsonValue *request, const char *const *known, size_t n, char err[512]);
/* Append a list of ids. Those beyond an int, which no tokenizer knows, become -1. -1 and a sentence if it is no such
 * list. */
int request_ids(const JsonValue *list, IdList *ids, char err[512]);
/* The messages of a request: a fresh array of list->length, whose texts point into the request. NULL and a sentence if
 * the list is none of messages, or if they need what is not supported. */
Message *request_messages(const JsonValue *list, char err[512]);

#endif
