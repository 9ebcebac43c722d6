/* A folder for the files of a test, files written byte by byte, and .safetensors files made of a header and data. */
#ifndef MODEL_FILES_H
#define MODEL_FILES_H

#include "base/base.h"

#include <fcntl.h>
#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"
#include "checkpoint/checkpoint.h"

static char folder[256]; /* of this test; open_folder() makes it */

static inline void die(const char *what)
{
    perror(what);
    exit(1);
}

/* Make a fresh folder in $TMPDIR or /tmp. */
static inline void open_folder(const char *name)
{
    const char *tmp = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/run-%s-XXXXXX", tmp && *tmp && strlen(tmp) < 200 ? tmp : "/tmp", name);
    if (!mkdtemp(folder))
        die(folder);
}

static inline int remove_entry(const char *path, const struct stat *info, int type, struct FTW *where)
{
    (void)info, (void)type, (void)where;
    return remove(path);
}

static inline void remove_folder(void)
{
    nftw(folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

/* A path in the folder. The last 64 answers stay valid. */
static inline const char *in_folder(const char *name)
{
    static char paths[64][600];
    static int next;
    char *path = paths[next++ % 64];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static inline void write_bytes(const char *path, const void *bytes, size_t n)
{
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(bytes, 1, n, f) != n || fclose(f) != 0)
        die(path);
}

/* All bytes of a file of at most 4 MiB, to be freed. Of a file that cannot be read: none. */
static inline unsigned char *read_bytes(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    unsigned char *bytes = calloc(1, (size_t)1 << 22);
    *n = f && bytes ? fread(bytes, 1, (size_t)1 << 22, f) : 0;
    if (f)
        fclose(f);
    return bytes;
}

static inline bool same_bytes(const char *a, const char *b)
{
    size_t n, m;
    unsigned char *x = read_bytes(a, &n), *y = read_bytes(b, &m);
    bool same = n == m && x && y && memcmp(x, y, n) == 0;
    free(x);
    free(y);
    return same;
}

/* How many file descriptors below 256 are open. */
static inline int open_files(void)
{
    int n = 0;
    for (int fd = 0; fd < 256; fd++)
        n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

/* Write a file whose first 8 bytes announce a header of `announced` bytes, then the header of `length` bytes, then n
 * bytes of data: 0, 1, 2 ... when data is NULL. */
static inline void write_parts(const char *path, const char *header, size_t length, uint64_t announced,
                               const void *data, size_t n)
{
    unlink(path); /* some file systems write a file out at once when it is truncated and written again */
    FILE *f = fopen(path, "wb");
    if (!f)
        die(path);
    for (int i = 0; i < 8; i++)
        putc((int)(announced >> 8 * i & 255), f);
    if (fwrite(header, 1, length, f) != length)
        die(path);
    for (size_t i = 0; i < n; i++)
        putc(data ? ((const unsigned char *)data)[i] : (int)(i & 255), f);
    if (fclose(f) != 0)
        die(path);
}

/* A .safetensors file of this header and n bytes of data. */
static inline void write_model(const char *path, const char *header, const void *data, size_t n)
{
    write_parts(path, header, strlen(header), strlen(header), data, n);
}

static inline void open_file(SafetensorsFile *st, const char *path)
{
    *st = (SafetensorsFile){0};
    check(safetensors_open(path, st) == 0, "%s", st->error);
}

static inline void open_model(Checkpoint *c, const char *path)
{
    char err[512];
    check(checkpoint_open(c, path, false, err) == 0, "%s", err);
}

static uint64_t bytes_told, progress_calls;

/* A FileProgress that adds up what it is told; its context must be &progress_calls. */
static inline int note_progress(void *context, uint64_t bytes)
{
    check(context == &progress_calls, "the context that was given");
    bytes_told += bytes;
    progress_calls++;
    return 0;
}

static inline uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* The header's entry of one tensor. */
#define ENTRY(name, dtype, shape, offsets)                                                                             \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

#endif
