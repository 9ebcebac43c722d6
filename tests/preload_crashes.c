/* A library for LD_PRELOAD (cc -shared) that makes calls which change files go wrong, for test_crash.c.
 *
 * These calls are counted, from 1: open() that creates, write, pwrite, ftruncate, copy_file_range, fsync, fdatasync,
 * rename, unlink, mkdir; writes to descriptors 0 to 2 are not. At call number FAULT_AT happens what FAULT_KIND says:
 *     count   nothing; at the end the number of calls is written into the file FAULT_COUNT
 *     kill    the process is killed before the call; after: right after it; half: in the middle of a write
 *     power   the process is killed, and what was not yet fsynced is lost. FAULT_POWER: 0 all of it; 1 only bytes of
 *             files; 2 only names in folders; 3 some of the bytes, chosen by chance
 *     enospc, eio, eintr   the call fails
 *     full    the call fails for want of space, and so do all later ones that need space
 *     short   a write writes half of its bytes
 * fsync() only notes what would be safe, so that tests need not wait for a disk.
 */
#define _FILE_OFFSET_BITS 32 /* or open() is compiled as open64(), and both are defined here */
#include "base/base.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* The C library's own function, which the one defined here replaces. */
#define REAL(name) ((__typeof__(&name))(uintptr_t)dlsym(RTLD_NEXT, #name))

typedef enum { CREATE, WRITE, TRUNCATE, COPY, SYNC, RENAME, UNLINK, MKDIR } Call;

static long calls;

static const char *kind(void)
{
    const char *k = getenv("FAULT_KIND");
    return k ? k : "";
}

static long number(const char *name)
{
    const char *text = getenv(name);
    return text ? atol(text) : 0;
}

/* ---- what is not yet on disk ------------------------------------------------------------------------------------- */

typedef enum { BYTES, SIZE, CREATED, RENAMED, REMOVED, MADE } What; /* from CREATED on: a name in a folder */
typedef struct Change Change;
struct Change {
    What what;
    int fd;          /* of the file */
    ino_t inode;     /* of the file, or of the folder that holds the name */
    off_t offset;    /* BYTES: where they were written; SIZE: the old size */
    char *bytes;     /* [n], the old bytes */
    size_t n;
    char *from, *to; /* the old name and the new one */
    char *saved;     /* a hard link to what was replaced or removed, or NULL */
    Change *before;
};
static Change *changes; /* latest first */

static char *copy_of(const char *text)
{
    return text ? strdup(text) : NULL;
}

static ino_t folder_of(const char *path)
{
    struct stat info;
    char *folder = strdup(path), *slash = strrchr(folder, '/');
    if (slash)
        *slash = '\0';
    ino_t inode = stat(slash ? folder : ".", &info) == 0 ? info.st_ino : 0;
    free(folder);
    return inode;
}

static Change *note(What what)
{
    Change *c = calloc(1, sizeof *c);
    c->what = what;
    c->fd = -1;
    c->before = changes;
    changes = c;
    return c;
}

static bool is_power(void)
{
    return strcmp(kind(), "power") == 0;
}

static void note_bytes(int fd, off_t offset, size_t n)
{
    struct stat info;
    if (!is_power() || fstat(fd, &info) != 0)
        return;
    Change *c = note(BYTES);
    c->fd = dup(fd);
    c->inode = info.st_ino;
    c->offset = offset;
    c->bytes = malloc(n + 1);
    ssize_t got = pread(fd, c->bytes, n, offset);
    c->n = got > 0 ? (size_t)got : 0;
    Change *s = note(SIZE);
    s->fd = dup(fd);
    s->inode = info.st_ino;
    s->offset = info.st_size;
}

static void note_name(What what, const char *from, const char *to)
{
    if (!is_power())
        return;
    const char *lost = what == RENAMED ? to : what == REMOVED ? from : NULL;
    static int serial;
    char saved[4096];
    Change *c = note(what);
    c->from = copy_of(from);
    c->to = copy_of(to);
    c->inode = folder_of(from);
    snprintf(saved, sizeof saved, "%s.saved%d", lost ? lost : "", serial++);
    if (lost && link(lost, saved) == 0)
        c->saved = strdup(saved);
}

/* After fsync() of a file or folder: forget the changes that are now safe. */
static void make_safe(int fd)
{
    struct stat info;
    if (fstat(fd, &info) != 0)
        return;
    for (Change **c = &changes; *c;) {
        bool name = (*c)->what >= CREATED;
        if ((*c)->inode != info.st_ino || name != (S_ISDIR(info.st_mode) != 0)) {
            c = &(*c)->before;
            continue;
        }
        if ((*c)->saved)
            REAL(unlink)((*c)->saved);
        if ((*c)->fd >= 0)
            close((*c)->fd);
        *c = (*c)->before;
    }
}

static void lose_bytes(const Change *c)
{
    if (c->what == SIZE)
        REAL(ftruncate)(c->fd, c->offset);
    else if (REAL(pwrite)(c->fd, c->bytes, c->n, c->offset) < 0)
        perror("fault: pwrite");
}

static void lose_name(const Change *c)
{
    if (c->what == CREATED)
        REAL(unlink)(c->from);
    else if (c->what == MADE)
        rmdir(c->from);
    else if (c->what == RENAMED)
        REAL(rename)(c->to, c->from);
    if (c->saved)
        REAL(rename)(c->saved, c->what == RENAMED ? c->to : c->from);
}

static void power_cut(void)
{
    long mode = number("FAULT_POWER");
    unsigned chance = (unsigned)number("FAULT_AT") * 2654435761u + 12345;
    for (Change *c = changes; c; c = c->before) {
        bool name = c->what >= CREATED;
        chance = chance * 1664525 + 1013904223;
        bool lost = mode == 0 || (mode == 1 && !name) || (mode == 2 && name)
                    || (mode == 3 && !name && c->what != SIZE && chance >> 31);
        if (lost && name)
            lose_name(c);
        else if (lost)
            lose_bytes(c);
        else if (c->saved)
            REAL(unlink)(c->saved);
    }
}

/* ---- the fault --------------------------------------------------------------------------------------------------- */

static void die(void)
{
    if (is_power())
        power_cut();
    kill(getpid(), SIGKILL);
}

static bool is_now(const char *k)
{
    return calls == number("FAULT_AT") && strcmp(kind(), k) == 0;
}

static bool needs_space(Call call)
{
    return call != SYNC && call != UNLINK;
}

/* Count the call. Return true if it must fail, with errno set. */
static bool begin(Call call)
{
    calls++;
    if (is_now("kill") || is_now("power"))
        die();
    bool full = strcmp(kind(), "full") == 0 && number("FAULT_AT") > 0 && calls >= number("FAULT_AT");
    if ((is_now("enospc") || full) && needs_space(call)) {
        errno = ENOSPC;
        return true;
    }
    if (is_now("eio")) {
        errno = EIO;
        return true;
    }
    if (is_now("eintr") && call != RENAME && call != UNLINK && call != MKDIR && call != CREATE) {
        errno = EINTR;
        return true;
    }
    return false;
}

static void end(void)
{
    if (is_now("after"))
        die();
}

__attribute__((destructor)) static void write_count(void)
{
    const char *path = getenv("FAULT_COUNT");
    FILE *f = path ? fopen(path, "w") : NULL;
    if (f) {
        fprintf(f, "%ld\n", calls);
        fclose(f);
    }
}

/* ---- the calls --------------------------------------------------------------------------------------------------- */

/* How many of n bytes this call writes. */
static size_t part_of(size_t n)
{
    return (is_now("short") || is_now("half")) && n > 1 ? n / 2 : n;
}

ssize_t pwrite(int fd, const void *bytes, size_t n, off_t offset)
{
    if (fd <= 2)
        return REAL(pwrite)(fd, bytes, n, offset);
    if (begin(WRITE))
        return -1;
    note_bytes(fd, offset, part_of(n));
    ssize_t written = REAL(pwrite)(fd, bytes, part_of(n), offset);
    if (is_now("half"))
        die();
    end();
    return written;
}

ssize_t pwrite64(int fd, const void *bytes, size_t n, off_t offset)
{
    return pwrite(fd, bytes, n, offset);
}

ssize_t write(int fd, const void *bytes, size_t n)
{
    if (fd <= 2)
        return REAL(write)(fd, bytes, n);
    if (begin(WRITE))
        return -1;
    note_bytes(fd, lseek(fd, 0, SEEK_CUR), part_of(n));
    ssize_t written = REAL(write)(fd, bytes, part_of(n));
    if (is_now("half"))
        die();
    end();
    return written;
}

int ftruncate(int fd, off_t size)
{
    struct stat info;
    if (begin(TRUNCATE))
        return -1;
    if (is_power() && fstat(fd, &info) == 0) {
        Change *c = note(SIZE);
        c->fd = dup(fd);
        c->inode = info.st_ino;
        c->offset = info.st_size;
    }
    int status = REAL(ftruncate)(fd, size);
    end();
    return status;
}

int ftruncate64(int fd, off_t size)
{
    return ftruncate(fd, size);
}

ssize_t copy_file_range(int in, off_t *from, int out, off_t *to, size_t n, unsigned flags)
{
    if (begin(COPY))
        return -1;
    if (to)
        note_bytes(out, *to, part_of(n));
    ssize_t copied = REAL(copy_file_range)(in, from, out, to, part_of(n), flags);
    if (is_now("half"))
        die();
    end();
    return copied;
}

int fsync(int fd)
{
    if (begin(SYNC))
        return -1;
    make_safe(fd);
    end();
    return 0;
}

int fdatasync(int fd)
{
    return fsync(fd);
}

int rename(const char *from, const char *to)
{
    if (begin(RENAME))
        return -1;
    note_name(RENAMED, from, to);
    int status = REAL(rename)(from, to);
    end();
    return status;
}

#ifdef __GLIBC__
int renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags)
{
    if (begin(RENAME))
        return -1;
    struct stat info;
    if (lstat(to, &info) != 0) /* else it fails */
        note_name(RENAMED, from, to);
    int status = REAL(renameat2)(from_folder, from, to_folder, to, flags);
    end();
    return status;
}
#endif

int unlink(const char *path)
{
    if (begin(UNLINK))
        return -1;
    note_name(REMOVED, path, NULL);
    int status = REAL(unlink)(path);
    end();
    return status;
}

int mkdir(const char *path, mode_t mode)
{
    if (begin(MKDIR))
        return -1;
    int status = REAL(mkdir)(path, mode);
    if (status == 0)
        note_name(MADE, path, NULL);
    end();
    return status;
}

int open(const char *path, int flags, ...)
{
    mode_t mode = 0;
    if (flags & O_CREAT) {
        va_list args;
        va_start(args, flags);
        mode = va_arg(args, mode_t);
        va_end(args);
    }
    if (!(flags & O_CREAT))
        return REAL(open)(path, flags, mode);
    if (begin(CREATE))
        return -1;
    struct stat info;
    bool new = lstat(path, &info) != 0;
    int fd = REAL(open)(path, flags, mode);
    if (new && fd >= 0)
        note_name(CREATED, path, NULL);
    end();
    return fd;
}

int open64(const char *path, int flags, ...)
{
    mode_t mode = 0;
    if (flags & O_CREAT) {
        va_list args;
        va_start(args, flags);
        mode = va_arg(args, mode_t);
        va_end(args);
    }
    return open(path, flags, mode);
}
