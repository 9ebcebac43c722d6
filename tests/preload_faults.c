/* A library for LD_PRELOAD (cc -shared) that makes one call of the C library fail: memory, reading, writing, threads.
 * preload_crashes.c is about calls that change files and what a crash leaves of them.
 *
 * FAULT_GROUP names the calls that are counted, from 1; call number FAULT_AT fails:
 *     memory   malloc, calloc, realloc, aligned_alloc, posix_memalign, mmap: ENOMEM
 *     files    open and fopen for reading, read, pread, fread, stat, fstat, copy_file_range: EIO
 *     stale    the same calls, and from that one on all of them: ESTALE
 *     short    read, pread, copy_file_range: half of what was asked for
 *     end      the same calls: nothing, as at the end of a file
 *     cut      no call fails, but the file FAULT_FILE is cut to FAULT_BYTES
 *     swap     no call fails, but the file FAULT_OTHER takes the name FAULT_FILE
 *     writes   open for writing, write, pwrite, fsync, ftruncate: EIO
 *     threads  pthread_create: EAGAIN
 * For cut and swap, clock_gettime and mmap count as well: they are moments between the calls that read. The number of
 * calls is written into the file FAULT_COUNT at the end.
 */
#define _FILE_OFFSET_BITS 32 /* or open() is compiled as open64(), and both are defined here */
#include "base/base.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))(uintptr_t)dlsym(RTLD_NEXT, #name))

typedef enum { NONE, MEMORY, FILES, STALE, SHORT, END, CUT, SWAP, WRITES, THREADS } Group;

static Group group;
static atomic_long calls, fail_at, blocks; /* blocks: how many are allocated and not freed */

static bool fails(Group g, int error)
{
    if (g != group || atomic_fetch_add(&calls, 1) + 1 != fail_at)
        return false;
    errno = error;
    return true;
}

/* Called at each call that reads: n points to the bytes asked for, and is NULL where a call has no such number. Return
 * true if it must fail, with errno set. */
static bool read_fails(size_t *n)
{
    if (group < FILES || group > SWAP || (!n && (group == SHORT || group == END)))
        return false;
    long call = atomic_fetch_add(&calls, 1) + 1;
    if (!fail_at || (group == STALE ? call < fail_at : call != fail_at))
        return false;
    if (group == SHORT)
        *n = (*n + 1) / 2;
    if (group == END)
        *n = 0;
    if (group == CUT && truncate(getenv("FAULT_FILE"), atol(getenv("FAULT_BYTES"))) != 0)
        abort();
    if (group == SWAP && rename(getenv("FAULT_OTHER"), getenv("FAULT_FILE")) != 0)
        abort();
    errno = group == FILES ? EIO : group == STALE ? ESTALE : errno;
    return group == FILES || group == STALE;
}

/* A moment at which a file can change. */
static void moment(void)
{
    if (group == CUT || group == SWAP)
        read_fails(NULL);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);
void *__libc_memalign(size_t alignment, size_t n);
void __libc_free(void *p);

static void *counted(void *p)
{
    if (p)
        atomic_fetch_add(&blocks, 1);
    return p;
}

void *malloc(size_t n)
{
    return fails(MEMORY, ENOMEM) ? NULL : counted(__libc_malloc(n));
}

void *calloc(size_t n, size_t size)
{
    return fails(MEMORY, ENOMEM) ? NULL : counted(__libc_calloc(n, size));
}

void *realloc(void *p, size_t n)
{
    if (fails(MEMORY, ENOMEM))
        return NULL;
    void *q = __libc_realloc(p, n);
    return p ? q : counted(q);
}

void *aligned_alloc(size_t alignment, size_t n)
{
    return fails(MEMORY, ENOMEM) ? NULL : counted(__libc_memalign(alignment, n));
}

int posix_memalign(void **p, size_t alignment, size_t n)
{
    void *q = aligned_alloc(alignment, n);
    if (q)
        *p = q;
    return q ? 0 : ENOMEM;
}

void free(void *p)
{
    if (p)
        atomic_fetch_sub(&blocks, 1);
    __libc_free(p);
}

void *mmap(void *at, size_t n, int protection, int flags, int fd, off_t offset)
{
    moment();
    return fails(MEMORY, ENOMEM) ? MAP_FAILED : REAL(mmap)(at, n, protection, flags, fd, offset);
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

static mode_t mode_of(int flags, va_list args)
{
    return flags & O_CREAT ? va_arg(args, mode_t) : 0;
}

int open(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    mode_t mode = mode_of(flags, args);
    va_end(args);
    return (flags & O_CREAT ? fails(WRITES, EIO) : read_fails(NULL)) ? -1 : REAL(open)(path, flags, mode);
}

int open64(const char *path, int flags, ...)
{
    va_list args;
    va_start(args, flags);
    mode_t mode = mode_of(flags, args);
    va_end(args);
    return open(path, flags, mode);
}

FILE *fopen(const char *path, const char *mode)
{
    return (mode[0] == 'r' ? read_fails(NULL) : fails(WRITES, EIO)) ? NULL : REAL(fopen)(path, mode);
}

ssize_t read(int fd, void *bytes, size_t n)
{
    return read_fails(&n) ? -1 : REAL(read)(fd, bytes, n);
}

/* Reading /proc/self/mem at offset 0 ends in EIO, so that the stream itself meets the error. */
size_t fread(void *restrict bytes, size_t size, size_t n, FILE *restrict f)
{
    if (read_fails(NULL)) {
        int bad = REAL(open)("/proc/self/mem", O_RDONLY);
        dup2(bad, fileno(f));
        close(bad);
    }
    return REAL(fread)(bytes, size, n, f);
}

ssize_t copy_file_range(int in, off_t *from, int out, off_t *to, size_t n, unsigned flags)
{
    return read_fails(&n) ? -1 : REAL(copy_file_range)(in, from, out, to, n, flags);
}

int clock_gettime(clockid_t clock, struct timespec *t)
{
    moment();
    return REAL(clock_gettime)(clock, t);
}

ssize_t pread(int fd, void *bytes, size_t n, off_t offset)
{
    return read_fails(&n) ? -1 : REAL(pread)(fd, bytes, n, offset);
}

int fstat(int fd, struct stat *info)
{
    return read_fails(NULL) ? -1 : REAL(fstat)(fd, info);
}

int stat(const char *restrict path, struct stat *restrict info)
{
    return read_fails(NULL) ? -1 : REAL(stat)(path, info);
}

ssize_t write(int fd, const void *bytes, size_t n)
{
    return fd != 2 && fails(WRITES, EIO) ? -1 : REAL(write)(fd, bytes, n);
}

ssize_t pwrite(int fd, const void *bytes, size_t n, off_t offset)
{
    return fails(WRITES, EIO) ? -1 : REAL(pwrite)(fd, bytes, n, offset);
}

int fsync(int fd)
{
    return fails(WRITES, EIO) ? -1 : REAL(fsync)(fd);
}

int ftruncate(int fd, off_t size)
{
    return fails(WRITES, EIO) ? -1 : REAL(ftruncate)(fd, size);
}

int pthread_create(pthread_t *restrict thread, const pthread_attr_t *restrict attributes, void *(*start)(void *),
                   void *restrict argument)
{
    return fails(THREADS, EAGAIN) ? EAGAIN : REAL(pthread_create)(thread, attributes, start, argument);
}

/* ---- settings from the environment ------------------------------------------------------------------------------- */

__attribute__((constructor)) static void begin(void)
{
    static const char *const names[] = {"",    "memory", "files", "stale",  "short",
                                        "end", "cut",    "swap",  "writes", "threads"};
    const char *name = getenv("FAULT_GROUP"), *at = getenv("FAULT_AT");
    fail_at = at ? atol(at) : 0;
    for (Group g = MEMORY; name && g <= THREADS; g++)
        if (strcmp(name, names[g]) == 0)
            group = g;
}

__attribute__((destructor)) static void end(void)
{
    const char *path = getenv("FAULT_COUNT");
    long n = calls;
    group = NONE;
    FILE *f = path ? fopen(path, "w") : NULL;
    if (f) {
        fprintf(f, "%ld\n", n);
        fclose(f);
    }
}
