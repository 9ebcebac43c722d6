/* New files and whole writes. disk.h tells what they promise. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "checkpoint_disk.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define PIECE ((size_t)16 << 20) /* bytes between two words of progress */

__attribute__((format(printf, 2, 3))) static int fail(char err[512], const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vsnprintf(err, 512, fmt, args);
    va_end(args);
    return -1;
}

/* ---- whole calls ------------------------------------------------------------------------------------------------- */

int disk_write(int fd, const void *bytes, size_t n, uint64_t offset)
{
    for (const unsigned char *p = bytes; n > 0;) {
        ssize_t written = pwrite(fd, p, n, (off_t)offset);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0) {
            errno = written < 0 ? errno : ENOSPC;
            return -1;
        }
        p += written, n -= (size_t)written, offset += (uint64_t)written;
    }
    return 0;
}

int disk_read(int fd, void *bytes, size_t n, uint64_t offset)
{
    for (unsigned char *p = bytes; n > 0;) {
        ssize_t got = pread(fd, p, n, (off_t)offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) {
            errno = got < 0 ? errno : ENODATA;
            return -1;
        }
        p += got, n -= (size_t)got, offset += (uint64_t)got;
    }
    return 0;
}

/* On macOS fsync() leaves the bytes in the disk's own cache, and F_FULLFSYNC is the call that empties that; not every
 * file system there knows it. */
static int sync_once(int fd)
{
#ifdef F_FULLFSYNC
    int status = fcntl(fd, F_FULLFSYNC);
    if (status == 0 || errno == EINTR || errno == EIO)
        return status;
#endif
    return fsync(fd);
}

int disk_sync(int fd)
{
    while (sync_once(fd) != 0)
        if (errno != EINTR)
            return -1;
    return 0;
}

int disk_set_size(int fd, uint64_t size)
{
    while (ftruncate(fd, (off_t)size) != 0)
        if (errno != EINTR)
            return -1;
    return 0;
}

int disk_sync_folder(const char *path)
{
    char *folder = strdup(path), *slash = folder ? strrchr(folder, '/') : NULL;
    if (slash)
        slash[slash == folder] = '\0';
    int fd = folder ? open(slash ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    int status = fd < 0 ? -1 : disk_sync(fd);
    if (fd >= 0 && status != 0 && errno == EINVAL) /* a file system that knows no such thing */
        status = 0;
    if (fd >= 0)
        close(fd);
    free(folder);
    return status;
}

bool disk_exists(const char *path)
{
    struct stat info;
    return lstat(path, &info) == 0;
}

bool disk_same(const char *a, const char *b)
{
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

char *disk_name(const char *path, const char *suffix)
{
    size_t length = strlen(path) + strlen(suffix) + 1;
    char *out = malloc(length);
    if (out)
        snprintf(out, length, "%s%s", path, suffix);
    return out;
}

/* ---- copying ----------------------------------------------------------------------------------------------------- */

/* As much of n bytes as one call copies through memory. */
static ssize_t copy_through_memory(int out, uint64_t out_offset, int in, uint64_t in_offset, size_t n)
{
    size_t most = n < ((size_t)1 << 20) ? n : (size_t)1 << 20;
    unsigned char *buffer = malloc(most);
    ssize_t copied =
        buffer && disk_read(in, buffer, most, in_offset) == 0 && disk_write(out, buffer, most, out_offset) == 0
            ? (ssize_t)most
            : -1;
    int error = errno;
    free(buffer);
    errno = error;
    return copied;
}

#if defined(__linux__) || defined(__FreeBSD__)
static ssize_t copy_some(int out, uint64_t out_offset, int in, uint64_t in_offset, size_t n)
{
    off_t from = (off_t)in_offset, to = (off_t)out_offset;
    ssize_t copied = copy_file_range(in, &from, out, &to, n, 0);
    bool cannot = copied < 0 && (errno == EXDEV || errno == ENOSYS || errno == EINVAL || errno == EOPNOTSUPP ||
                                 errno == ETXTBSY || errno == EPERM || errno == EBADF);
    if (copied == 0 || cannot) /* 0: some file systems copy nothing and say nothing */
        return copy_through_memory(out, out_offset, in, in_offset, n);
    return copied;
}
#else
#define copy_some copy_through_memory
#endif

/* The next stretch of [begin, end) that is no hole: *first, and its length. 0: none. */
static uint64_t next_data(int in, uint64_t begin, uint64_t end, uint64_t *first)
{
    off_t data = lseek(in, (off_t)begin, SEEK_DATA);
    if (data < 0 && errno == ENXIO)
        return 0;
    off_t hole = data < 0 ? -1 : lseek(in, data, SEEK_HOLE);
    bool known = data >= 0 && hole > data;
    *first = known ? (uint64_t)data : begin;
    uint64_t stop = known && (uint64_t)hole < end ? (uint64_t)hole : end;
    return *first < end ? stop - *first : 0;
}

/* A file that was cut meanwhile has a hole where its data were. */
static bool is_as_long(int fd, uint64_t size)
{
    struct stat info;
    bool known = fstat(fd, &info) == 0;
    errno = known ? ENODATA : errno;
    return known && (uint64_t)info.st_size >= size;
}

int disk_copy(int out, uint64_t out_offset, int in, uint64_t in_offset, uint64_t length, DiskProgress *progress,
              void *context)
{
    uint64_t end = in_offset + length, n;
    for (uint64_t at = in_offset, data; at < end; at = data + n) {
        n = next_data(in, at, end, &data);
        if (n == 0)
            break;
        for (uint64_t done = 0; done < n;) {
            uint64_t from = data + done;
            ssize_t copied = copy_some(out, out_offset + (from - in_offset), in, from,
                                       n - done < PIECE ? (size_t)(n - done) : PIECE);
            if (copied < 0 && errno == EINTR)
                continue;
            if (copied < 0)
                return -1;
            done += (uint64_t)copied;
            if (progress && progress(context, (uint64_t)copied) != 0) {
                errno = ECANCELED;
                return -1;
            }
        }
    }
    return is_as_long(in, end) ? 0 : -1;
}

/* ---- new files --------------------------------------------------------------------------------------------------- */

int new_file_open(NewFile *f, const char *path, char err[512])
{
    *f = (NewFile){.path = strdup(path), .part = disk_name(path, ".part"), .fd = -1};
    if (!f->path || !f->part)
        return fail(err, "%s: not enough memory", path);
    f->fd = open(f->part, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    bool locked = f->fd >= 0 && (flock(f->fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK);
    if (!locked) {
        fail(err, "%s: %s", f->part, f->fd < 0 ? strerror(errno) : "it is being written by another process");
        free(f->part); /* not ours to remove */
        f->part = NULL;
        return -1;
    }
    return disk_set_size(f->fd, 0) == 0 ? 0 : fail(err, "%s: %s", f->part, strerror(errno));
}

int new_file_finish(NewFile *f, char err[512])
{
    return disk_sync(f->fd) == 0 ? 0 : fail(err, "%s: %s", f->part, strerror(errno));
}

void new_file_close(NewFile *f)
{
    if (f->path && f->fd >= 0)
        close(f->fd);
    f->fd = -1;
}

int new_files_publish(NewFile *files, size_t n, char err[512])
{
    bool *replaced = calloc(n + 1, sizeof *replaced);
    int status = replaced ? 0 : fail(err, "not enough memory for %zu files", n);
    for (size_t i = 0; i < n && status == 0; i++) {
        replaced[i] = disk_exists(files[i].path);
        if (rename(files[i].part, files[i].path) != 0)
            status = fail(err, "%s: %s", files[i].path, strerror(errno));
        else
            files[i].published = true;
    }
    if (status == 0 && n > 0 && disk_sync_folder(files[0].path) != 0)
        status = fail(err, "%s: its folder: %s", files[0].path, strerror(errno));
    for (size_t i = 0; i < n && status != 0; i++)
        if (files[i].published && !replaced[i])
            unlink(files[i].path);
    free(replaced);
    return status;
}

void new_file_end(NewFile *f)
{
    if (f->part && !f->published)
        unlink(f->part);
    new_file_close(f);
    free(f->path);
    free(f->part);
    *f = (NewFile){.fd = -1};
}
