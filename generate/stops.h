/* Finds stop texts in an answer that comes piece by piece. */
#ifndef GENERATE_STOPS_H
#define GENERATE_STOPS_H

#include "base/base.h"

typedef struct {
    const char *text;
    size_t length, begun; /* begun: of the answer's last bytes, the most that this text begins with */
    size_t *borders; /* [length] of its first i + 1 bytes, the most at their end that it begins with, but not all */
} Stop;

/* Zeroed, it has no stop texts. */
typedef struct {
    Stop *items;
    size_t n;
} Stops;

/* The texts must outlive *s; empty ones are never found. -1 when out of memory; stops_free() is to be called in any case. */
int stops_begin(Stops *s, const char *const *texts, size_t n);
void stops_free(Stops *s);

/* Read the answer's next bytes, which begin at offset `at` of it. Return where the first stop text begins of those that
 * end in these bytes; SIZE_MAX if there is none. In all that takes time for each byte and stop text once, however long
 * the texts are. */
size_t stops_read(Stops *s, const char *bytes, size_t length, size_t at);
/* How many of the last bytes may be the beginning of a stop text. */
size_t stops_begun(const Stops *s);

#endif
