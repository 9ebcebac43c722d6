/* Makes calls of the C library fail: in a program that includes this, the functions defined here take the place of the
 * library's. Allocations fail only with glibc and without sanitizers, which bring their own: see ALLOCATIONS_FAIL. */
#ifndef FAILING_CALLS_H
#define FAILING_CALLS_H

#include <dlfcn.h>
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>

#include "check.h"

typedef enum { ALLOCATION, MMAP, FSTAT, PREAD } FailingCall;

static struct {
    FailingCall call;
    long left; /* calls until one fails; 0 if none will */
    int error; /* 0: a pread() that fails is at the end of the file */
} failing;
static size_t pread_most = SIZE_MAX; /* bytes that one pread() reads */

/* From now on, let call number `at` fail, counted from 1. Replaces an earlier request. */
static inline void fail_call(FailingCall call, long at, int error)
{
    failing.call = call;
    failing.left = at;
    failing.error = error;
}

/* Has the call failed by now? From here on none will. */
static inline bool call_failed(void)
{
    bool failed = failing.left == 0;
    failing.left = 0;
    return failed;
}

static inline bool fails(FailingCall call)
{
    if (failing.left == 0 || failing.call != call || --failing.left > 0)
        return false;
    errno = failing.error ? failing.error : errno;
    return true;
}

#define REAL(name) ((__typeof__(&name))(uintptr_t)dlsym(RTLD_NEXT, #name))

void *mmap(void *at, size_t n, int protection, int flags, int fd, off_t offset)
{
    return fails(MMAP) ? MAP_FAILED : REAL(mmap)(at, n, protection, flags, fd, offset);
}

int fstat(int fd, struct stat *info)
{
    return fails(FSTAT) ? -1 : REAL(fstat)(fd, info);
}

ssize_t pread(int fd, void *bytes, size_t n, off_t offset)
{
    if (fails(PREAD))
        return failing.error ? -1 : 0;
    return REAL(pread)(fd, bytes, n < pread_most ? n : pread_most, offset);
}

#if defined __GLIBC__ && !SANITIZED
#define ALLOCATIONS_FAIL 1

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_memalign(size_t alignment, size_t size);

void *malloc(size_t n)
{
    return fails(ALLOCATION) ? NULL : __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
    return fails(ALLOCATION) ? NULL : __libc_calloc(n, size);
}

void *aligned_alloc(size_t alignment, size_t size)
{
    return fails(ALLOCATION) ? NULL : __libc_memalign(alignment, size);
}
#else
#define ALLOCATIONS_FAIL 0
#endif

#endif
