/* Memory for large tables and arrays of numbers, and lists that grow. */
#ifndef MEMORY_H
#define MEMORY_H

#include "base/base.h"

/* n * size bytes at a multiple of 64, not zeroed; to be freed with free(). NULL when the product overflows or memory
 * runs out. */
void *memory_aligned(size_t n, size_t size);
/* The same for what will be used whole: from 1 MiB on in huge pages where the system has them, which makes for fewer
 * page faults while it is filled and fewer page walks while it is read. */
void *memory_large(size_t n, size_t size);

/* Ask for huge pages under memory that is there already. What the system refuses changes nothing. */
void memory_want_huge_pages(void *memory, size_t bytes);

/* Move items[*capacity], each of `size` bytes, to a place with room for at least `needed`, and half as many again as
 * before, so that appending one by one takes linear time. NULL when memory runs out: items and *capacity are then as
 * they were. */
void *memory_grow(void *items, size_t *capacity, size_t needed, size_t size);

#endif
