/* New files, whole reads and writes, page advice; file.h tells what they promise. */
#include "base/file.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/text.h"

#define PIECE ((size_t)16 << 20) /* bytes between two words of progress */
_Static_assert(sizeof(off_t) == 8, "files beyond 2 GB");

/* ---- names ------------------------------------------------------------------------------------------------------- */

char *path_join(const char *folder, const char *name)
{
    char *path;
    return asprintf(&path, "%s%s%s", folder, text_ends_with(folder, "/") ? "" : "/", name) < 0 ? NULL : path;
}

char *path_folder(const char *path)
{
    const char *slash = strrchr(path, '/');
    if (!slash)
        return strdup(".");
    return slash == path ? strdup("/") : strndup(path, (size_t)(slash - path));
}

#define NAME_MOST 255       /* bytes of a name in a folder */
#define FILE_PART_SUFFIX 14 /* bytes of .XXXXXXXX.part */

char *path_with_suffix(const char *path, const char *suffix)
{
    enum { HASH = 9 }; /* ~ and 8 digits */
    const char *name = path_name(path);
    size_t length = strlen(name), folder = (size_t)(name - path), all = length + strlen(suffix);
    char *out;
    if (all <= NAME_MOST || strlen(suffix) + HASH > NAME_MOST)
        return asprintf(&out, "%s%s", path, suffix) < 0 ? NULL : out;
    size_t kept = text_complete_prefix(name, NAME_MOST - HASH - strlen(suffix));
    unsigned hash = 2166136261; /* FNV-1a */
    for (size_t i = 0; i < length; i++)
        hash = (hash ^ (unsigned char)name[i]) * 16777619;
    return asprintf(&out, "%.*s~%08x%s", (int)(folder + kept), path, hash, suffix) < 0 ? NULL : out;
}

const char *path_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

bool path_is_name(const char *text, size_t length)
{
    bool dots = length <= 2 && memcmp(text, "..", length) == 0; /* "", ".", ".." */
    return !dots && !memchr(text, '/', length) && !memchr(text, '\\', length) && !memchr(text, '\0', length);
}

char *path_printable(const char *path, char out[TEXT_PRINTABLE])
{
    return text_printable(path, strlen(path), out);
}

bool file_exists(const char *path)
{
    struct stat info;
    return lstat(path, &info) == 0;
}

bool file_exists_in(const char *folder, const char *name)
{
    char *path = path_join(folder, name);
    bool exists = path && file_exists(path);
    free(path);
    return exists;
}

bool file_is_folder(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

#ifdef __APPLE__
#define st_mtim st_mtimespec
#endif

static int64_t nanoseconds(const struct stat *info)
{
    return (int64_t)((uint64_t)info->st_mtim.tv_sec * 1000000000 + (uint64_t)info->st_mtim.tv_nsec);
}

int64_t file_modified(int fd)
{
    struct stat info;
    return fstat(fd, &info) == 0 ? nanoseconds(&info) : -1;
}

bool file_is_newer(int fd, const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && file_modified(fd) > nanoseconds(&info);
}

bool file_same(const char *a, const char *b)
{
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* ---- whole files ------------------------------------------------------------------------------------------------- */

/* Read until `size` bytes are there or the file ends; its size may be wrong, as in /proc. */
static ssize_t read_all(int fd, char *buffer, size_t size)
{
    size_t done = 0;
    while (done < size) {
        ssize_t n = read(fd, buffer + done, size - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        if (n == 0)
            break;
        done += (size_t)n;
    }
    return (ssize_t)done;
}

int file_open(const char *path, size_t *size, char err[512])
{
    struct stat info;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return fail(err, "%s", strerror(errno));
    if (fstat(fd, &info) != 0)
        fail(err, "%s", strerror(errno));
    else if (!S_ISREG(info.st_mode))
        fail(err, "is %s", S_ISDIR(info.st_mode) ? "a folder, not a file" : "not a regular file");
    else if ((uint64_t)info.st_size > SIZE_MAX)
        fail(err, "has %lld bytes, more than a program of %d bits can address", (long long)info.st_size,
             (int)(8 * sizeof *size));
    else {
        *size = (size_t)info.st_size;
        return fd;
    }
    close(fd);
    return -1;
}

char *file_read(const char *path, size_t limit, size_t *length, char err[512])
{
    char shown[TEXT_PRINTABLE], why[512];
    size_t size;
    path_printable(path, shown);
    int fd = file_open(path, &size, why);
    if (fd < 0) {
        fail(err, "%s: %.300s", shown, why);
        return NULL;
    }
    char *text = size <= limit ? memory_large(size + 1, 1) : NULL;
    ssize_t n = text ? read_all(fd, text, size) : 0;
    if (size > limit)
        fail(err, "%s: has %zu bytes; at most %zu are read", shown, size, limit);
    else if (!text)
        fail(err, "%s: out of memory for %zu bytes", shown, size);
    else if (n < 0)
        fail(err, "%s: %s", shown, strerror(errno));
    close(fd);
    if (!text || n < 0) {
        free(text);
        return NULL;
    }
    text[n] = '\0';
    *length = (size_t)n;
    return text;
}

/* ---- whole calls ------------------------------------------------------------------------------------------------- */

int file_write_at(int fd, const void *bytes, size_t n, uint64_t offset)
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

int file_read_at(int fd, void *bytes, size_t n, uint64_t offset)
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

int file_sync(int fd)
{
    while (sync_once(fd) != 0)
        if (errno != EINTR)
            return -1;
    return 0;
}

int file_set_size(int fd, uint64_t size)
{
    while (ftruncate(fd, (off_t)size) != 0)
        if (errno != EINTR)
            return -1;
    return 0;
}

int file_sync_folder(const char *path)
{
    char *folder = path_folder(path);
    int fd = folder ? open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    free(folder);
    if (fd < 0)
        return -1;
    int status = file_sync(fd);
    if (status != 0 && errno == EINVAL) /* a file system that knows no such thing */
        status = 0;
    close(fd);
    return status;
}

/* ---- copying ----------------------------------------------------------------------------------------------------- */

/* As much of n bytes as one call copies through memory. */
static ssize_t copy_through_memory(int out, uint64_t out_offset, int in, uint64_t in_offset, size_t n)
{
    size_t most = MIN(n, (size_t)1 << 20);
    unsigned char *buffer = malloc(most);
    ssize_t copied =
        buffer && file_read_at(in, buffer, most, in_offset) == 0 && file_write_at(out, buffer, most, out_offset) == 0
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
    uint64_t stop = known ? MIN((uint64_t)hole, end) : end;
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

int file_copy(int out, uint64_t out_offset, int in, uint64_t in_offset, uint64_t length, FileProgress *progress,
              void *context)
{
    uint64_t end = in_offset + length, n;
    for (uint64_t at = in_offset, data; at < end; at = data + n) {
        n = next_data(in, at, end, &data);
        if (n == 0)
            break;
        for (uint64_t done = 0; done < n;) {
            uint64_t from = data + done;
            ssize_t copied = copy_some(out, out_offset + (from - in_offset), in, from, (size_t)MIN(n - done, PIECE));
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

/* ---- gathering bytes --------------------------------------------------------------------------------------------- */

int file_buffer_flush(FileBuffer *b)
{
    if (file_write_at(b->fd, b->bytes, b->used, b->offset) != 0)
        return -1;
    b->offset += b->used;
    b->used = 0;
    return 0;
}

int file_buffer_put(FileBuffer *b, const void *bytes, size_t n)
{
    if (!b->bytes && !(b->bytes = malloc(FILE_BUFFER)))
        return -1;
    if (n > FILE_BUFFER - b->used && file_buffer_flush(b) != 0)
        return -1;
    if (n > FILE_BUFFER) {
        b->offset += n;
        return file_write_at(b->fd, bytes, n, b->offset - n);
    }
    memcpy(b->bytes + b->used, bytes, n);
    b->used += n;
    return 0;
}

/* ---- new files --------------------------------------------------------------------------------------------------- */

/* A number that most likely differs from call to call and from process to process; O_EXCL does the rest. */
static unsigned fresh_number(void)
{
    static atomic_uint calls;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return ((unsigned)now.tv_nsec ^ (unsigned)getpid() << 16) + atomic_fetch_add(&calls, 0x9e3779b1);
}

int file_open_part(const char *path, mode_t mode, char **part)
{
    const char *name = path_name(path);
    size_t length = strlen(name), most = NAME_MOST - FILE_PART_SUFFIX;
    if (length > most)
        length = text_complete_prefix(name, most);
    size_t size = (size_t)(name - path) + length + FILE_PART_SUFFIX + 1;
    *part = malloc(size);
    for (int tries = 0; *part && tries < 100; tries++) {
        snprintf(*part, size, "%.*s.%08x.part", (int)(size - FILE_PART_SUFFIX - 1), path, fresh_number());
        int fd = open(*part, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode);
        if (fd >= 0)
            return fd;
        if (errno != EEXIST)
            break;
    }
    int error = *part ? errno : ENOMEM;
    free(*part);
    *part = NULL;
    errno = error;
    return -1;
}

bool file_is_part_of(const char *part, const char *path)
{
    const char *name = path_name(path), *other = path_name(part);
    size_t length = strlen(name), stem = strlen(other);
    if (stem <= FILE_PART_SUFFIX || !text_ends_with(other, ".part"))
        return false;
    stem -= FILE_PART_SUFFIX;
    bool cut = stem < length && stem >= NAME_MOST - FILE_PART_SUFFIX - 3; /* between characters */
    return strncmp(name, other, stem) == 0 && (stem == length || cut) && other[stem] == '.';
}

/* Whether the file may get its name: nothing has it, or a regular file that may be replaced. */
static int check_name(NewFile *f, char err[512])
{
    struct stat info;
    char shown[TEXT_PRINTABLE];
    f->replaced = lstat(f->path, &info) == 0;
    if (!f->replaced)
        return 0;
    path_printable(f->path, shown);
    bool may_be = S_ISREG(info.st_mode) || (S_ISLNK(info.st_mode) && !f->replace); /* a caller may follow the link */
    if (!may_be)
        return fail(err, "%s is not a regular file, and is not replaced: choose another name", shown);
    bool is_empty = S_ISREG(info.st_mode) && info.st_size == 0;
    if (!f->replace && !is_empty)
        return fail(err, "%s exists already: choose another name, or give --force to replace it", shown);
    return 0;
}

static int fail_name(const char *path, int error, char err[512])
{
    char shown[TEXT_PRINTABLE];
    return fail(err, "%s: %s", path_printable(path, shown), strerror(error));
}

int new_file_open(NewFile *f, const char *path, bool replace, char err[512])
{
    *f = (NewFile){.path = strdup(path), .fd = -1, .replace = replace};
    if (!f->path)
        return fail(err, "%s: out of memory", path);
    if (check_name(f, err) != 0)
        return -1;
    f->fd = file_open_part(path, 0666, &f->part);
    return f->fd >= 0 ? 0 : fail_name(path, errno, err);
}

int new_file_finish(NewFile *f, char err[512])
{
    int status = file_sync(f->fd) == 0 ? 0 : fail_name(f->path, errno, err);
    close(f->fd);
    f->fd = -1;
    return status;
}

int file_rename_to_free(const char *from, const char *to)
{
#ifdef __GLIBC__
    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0)
        return 0;
    if (errno != EINVAL && errno != ENOSYS) /* a file system, or a kernel, that cannot */
        return -1;
#endif
    if (link(from, to) == 0)
        return unlink(from);
    if (errno == EEXIST || !file_exists(from))
        return -1;
    if (file_exists(to)) { /* a file system without hard links: between this and the next call another may take it */
        errno = EEXIST;
        return -1;
    }
    return rename(from, to);
}

static int rename_files(NewFile *files, size_t n, char err[512])
{
    for (size_t i = 0; i < n; i++) {
        NewFile *f = &files[i];
        if (check_name(f, err) != 0)
            return -1;
        if ((f->replaced ? rename(f->part, f->path) : file_rename_to_free(f->part, f->path)) != 0)
            return fail_name(f->path, errno, err);
        f->published = true;
    }
    if (n > 0 && file_sync_folder(files[0].path) != 0)
        return fail(err, "%s: its folder: %s", files[0].path, strerror(errno));
    return 0;
}

int new_files_publish(NewFile *files, size_t n, char err[512])
{
    if (rename_files(files, n, err) == 0)
        return 0;
    for (size_t i = 0; i < n; i++)
        if (files[i].published && !files[i].replaced)
            unlink(files[i].path);
    return -1;
}

void new_file_end(NewFile *f)
{
    if (f->path && f->fd >= 0) /* a zeroed struct has fd 0 but opened nothing */
        close(f->fd);
    if (f->part && !f->published)
        unlink(f->part);
    free(f->path);
    free(f->part);
    *f = (NewFile){.fd = -1};
}

/* ---- pages of a mapped file -------------------------------------------------------------------------------------- */

void *file_map_copy(int fd, size_t size, FileProgress *progress, void *context)
{
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
    memory_want_huge_pages(memory, size);
    for (size_t at = 0, n; at < size; at += n) {
        n = MIN(size - at, PIECE);
        if (file_read_at(fd, (char *)memory + at, n, at) != 0) {
            int error = errno;
            munmap(memory, size);
            errno = error;
            return NULL;
        }
        if (progress)
            progress(context, n);
    }
    return memory;
}

void file_expect_all(void *mapped, size_t size)
{
#ifdef MADV_HUGEPAGE
    madvise(mapped, size, MADV_HUGEPAGE);
#else
    (void)mapped, (void)size;
#endif
}

void file_release_pages(const void *begin, size_t length)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)begin;
    uintptr_t first = (at + page - 1) / page * page, end = (at + length) / page * page;
    if (first < end)
        madvise((void *)first, end - first, MADV_DONTNEED);
}
