#include "base/memory.h"

#include <stdlib.h>
#include <sys/mman.h>

#define ALIGNMENT 64
#define HUGE_PAGE ((size_t)2 << 20)

void memory_want_huge_pages(void *memory, size_t bytes)
{
#ifdef MADV_HUGEPAGE
    const uintptr_t page = 4096, begin = ((uintptr_t)memory + page - 1) / page * page, end = (uintptr_t)memory + bytes;
    if (end > begin)
        madvise((void *)begin, end - begin, MADV_HUGEPAGE);
#else
    (void)memory, (void)bytes;
#endif
}

void *memory_aligned(size_t n, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(n, size, &bytes) || bytes > SIZE_MAX / 2)
        return NULL;
    return aligned_alloc(ALIGNMENT, (MAX(bytes, 1) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
}

void *memory_large(size_t n, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(n, size, &bytes) || bytes < HUGE_PAGE / 2 || bytes > SIZE_MAX / 2)
        return memory_aligned(n, size);
    bytes = (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    void *memory = aligned_alloc(HUGE_PAGE, bytes);
    if (memory)
        memory_want_huge_pages(memory, bytes);
    return memory;
}

void *memory_grow(void *items, size_t *capacity, size_t needed, size_t size)
{
    size_t more = MAX(*capacity + *capacity / 2 + 64, needed);
    void *grown = more > SIZE_MAX / 2 / size ? NULL : realloc(items, more * size);
    if (grown)
        *capacity = more;
    return grown;
}
