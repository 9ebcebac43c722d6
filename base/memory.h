/* Memory for large tables and for arrays of numbers, and lists that grow. */
#ifndef MEMORY_H
#define MEMORY_H

#include "base/base.h"

/* Allocate n * size bytes at a multiple of 64, not zeroed; the caller frees them with free(). NULL if the product
 * overflows or memory runs out. */
void *memory_aligned(size_t n, size_t size);
/* The same, for memory that will be used as a whole: from 1 MiB on it is in huge pages where the system has them, which
 * means fewer page faults while it is filled and fewer page walks while it is read. */
void *memory_large(size_t n, size_t size);

/* Ask for huge pages under memory that is already allocated. If the system refuses, nothing changes. */
void memory_want_huge_pages(void *memory, size_t bytes);

/* Move items[*capacity], each of `size` bytes, to memory where at least `needed` of them fit, and half as many again as
 * before, so that appending one by one takes linear time. NULL if memory runs out; items and *capacity are then
 * unchanged. */
void *memory_grow(void *items, size_t *capacity, size_t needed, size_t size);

#endif
