/* The numbers of a slice: as a table for people, as nested lists in JSON. */
#ifndef VALUES_H
#define VALUES_H

#include "base/base.h"
#include "checkpoint/slice.h"

/* Print the slice's numbers. edges: only those at either end of a long axis. */
void print_values(const Slice *s, bool edges);
/* Write nested lists, as NumPy's tolist() makes them; more than a million empty ones become a single []. */
void write_values(const Slice *s);
/* An element as JSON: a number, "NaN", "Infinity" or "-Infinity"; of C64 the list of its two parts. */
void write_element(Dtype dtype, const unsigned char *element);

#endif
