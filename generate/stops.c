/* Knuth, Morris and Pratt's search: after a byte that does not continue a text, the next shorter beginning of the text
 * that the bytes before end with may be continued by it. */
#include "generate/stops.h"

#include <stdlib.h>
#include <string.h>

/* How many bytes of the text are begun after one more, if `begun` were, which is less than all. */
static size_t next_begun(const Stop *s, size_t begun, char byte)
{
    while (begun > 0 && s->text[begun] != byte)
        begun = s->borders[begun - 1];
    return s->text[begun] == byte ? begun + 1 : 0;
}

int stops_begin(Stops *s, const char *const *texts, size_t n)
{
    s->items = calloc(n + 1, sizeof *s->items);
    for (size_t k = 0; s->items && k < n; k++) {
        Stop *stop = &s->items[s->n];
        *stop = (Stop){.text = texts[k], .length = strlen(texts[k])};
        if (stop->length == 0)
            continue;
        stop->borders = calloc(stop->length, sizeof *stop->borders);
        if (!stop->borders)
            return -1;
        s->n++;
        for (size_t i = 1; i < stop->length; i++)
            stop->borders[i] = next_begun(stop, stop->borders[i - 1], stop->text[i]);
    }
    return s->items ? 0 : -1;
}

void stops_free(Stops *s)
{
    for (size_t i = 0; i < s->n; i++)
        free(s->items[i].borders);
    free(s->items);
    *s = (Stops){0};
}

size_t stops_read(Stops *s, const char *bytes, size_t length, size_t at)
{
    size_t first = SIZE_MAX;
    for (size_t i = 0; i < s->n; i++) {
        Stop *stop = &s->items[i];
        for (size_t k = 0; k < length; k++) {
            stop->begun = next_begun(stop, stop->begun, bytes[k]);
            if (stop->begun < stop->length)
                continue;
            first = MIN(first, at + k + 1 - stop->length);
            stop->begun = stop->borders[stop->length - 1];
        }
    }
    return first;
}

size_t stops_begun(const Stops *s)
{
    size_t most = 0;
    for (size_t i = 0; i < s->n; i++)
        most = MAX(most, s->items[i].begun);
    return most;
}
