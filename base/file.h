/* Files as a whole: paths, reading all of one, calls repeated until all is done, new files that appear only when they
 * are complete, and advice about the pages of a mapped file.
 */
#ifndef FILE_H
#define FILE_H

#include "base/base.h"

#include <errno.h>
#include <sys/types.h>

#include "base/text.h"

#ifndef ENODATA /* FreeBSD */
#define ENODATA ENOATTR
#endif

/* ---- names; fresh ones are to be freed, NULL: out of memory ---- */

char *path_join(const char *folder, const char *name);   /* fresh: "folder/name" */
char *path_folder(const char *path);                     /* fresh: the folder that it lies in, "." for a bare name */
/* Fresh: "path" "suffix". If its name would exceed 255 bytes, it is cut, and a hash stands for what is left out. */
char *path_with_suffix(const char *path, const char *suffix);
const char *path_name(const char *path);                 /* the part behind the last slash */
bool path_is_name(const char *text, size_t length);      /* a name in a folder: no separator in it, not "." or ".." */
char *path_printable(const char *path, char out[TEXT_PRINTABLE]); /* for a message, as text_printable(); returns out */

bool file_exists(const char *path);              /* true of a link to nothing, too */
bool file_exists_in(const char *folder, const char *name); /* the same of folder/name */
bool file_is_folder(const char *path);           /* or a link to one */
int64_t file_modified(int fd);                   /* when the open file was last written to, in nanoseconds */
bool file_is_newer(int fd, const char *path);    /* the open file was written to after that one */
bool file_same(const char *a, const char *b);    /* both names mean one file: links and hard links, too */

/* ---- reading and writing ---- */

/* Open a regular file for reading: its descriptor, and its size. Never waits at a pipe. -1 and what is wrong with it,
 * to follow its name: "is a folder, not a file". */
int file_open(const char *path, size_t *size, char err[512]);

/* All bytes of a regular file, at most limit of them (fresh, NUL-terminated; *length is without the NUL). NULL and a
 * sentence if it is something else or cannot be read. */
char *file_read(const char *path, size_t limit, size_t *length, char err[512]);

/* All n bytes at that offset, or -1 with errno: ENOSPC when the system writes nothing, ENODATA at the end of the
 * file. */
int file_write_at(int fd, const void *bytes, size_t n, uint64_t offset);
int file_read_at(int fd, void *bytes, size_t n, uint64_t offset);
int file_sync(int fd);
int file_set_size(int fd, uint64_t size);
int file_sync_folder(const char *path); /* bring the names in the folder of that file to disk */

/* Told of bytes as they are read, copied or hashed. Anything but 0 stops work that can be stopped. */
typedef int FileProgress(void *context, uint64_t bytes);

/* Copy length bytes inside the kernel where it can, holes as holes. out must be long enough already. -1 with errno:
 * ECANCELED when progress stopped it, ENODATA when `in` became shorter. */
int file_copy(int out, uint64_t out_offset, int in, uint64_t in_offset, uint64_t length, FileProgress *progress,
              void *context);

/* Bytes gathered in memory on their way to a file, so that many small writes become few large ones. */
#define FILE_BUFFER ((size_t)1 << 20)
typedef struct {
    int fd;
    uint64_t offset;      /* in the file, where the gathered bytes go */
    unsigned char *bytes; /* [FILE_BUFFER], from the first put on; to be freed in the end */
    size_t used;
} FileBuffer;
/* -1 with errno. What a failed call has gathered or written is undefined. */
int file_buffer_put(FileBuffer *b, const void *bytes, size_t n);
int file_buffer_flush(FileBuffer *b); /* write what is gathered; the next bytes follow it */

/* ---- new files ---- */

/* A file that is written under a fresh name in the folder of the final one, NAME.XXXXXXXX.part (a long NAME is cut), and
 * gets its own name when it is complete. Nothing that exists is touched, but what may be replaced. Zeroed, or after a
 * failure, it may be ended like any other. */
typedef struct {
    char *path, *part;
    int fd;
    bool replace;   /* a regular file that has the name; one that is empty, as mktemp makes it, in any case */
    bool replaced;  /* there was one */
    bool published; /* it has its name */
} NewFile;
/* Refused if something has the name that may not be replaced. */
int new_file_open(NewFile *f, const char *path, bool replace, char err[512]);
int new_file_finish(NewFile *f, char err[512]); /* bring all of it to disk, still under the name .part, and close it */
/* Give n finished files their names, in order, and bring the names to disk. After a failure the names that were free
 * before are free again. */
int new_files_publish(NewFile *files, size_t n, char err[512]);
void new_file_end(NewFile *f); /* remove the file unless it was published, and free f's memory */

/* Rename, unless something has the new name. -1 with errno. */
int file_rename_to_free(const char *from, const char *to);
/* Open a fresh file beside `path`: *part is its name, NAME.XXXXXXXX.part, to be freed. -1 with errno. */
int file_open_part(const char *path, mode_t mode, char **part);
/* Is this a name that file_open_part() gives to files beside `path`? */
bool file_is_part_of(const char *part, const char *path);

/* ---- pages of a mapped file ---- */

/* Instead of a mapping: the first `size` bytes of the file in memory of their own, to be given back with munmap(). NULL
 * with errno. */
void *file_map_copy(int fd, size_t size, FileProgress *progress, void *context);

/* Tell the kernel that the whole mapping will be read. It then reads the file into huge pages of the page cache, if it
 * is not there yet: about 500 entries of the page table for a GB, where it would be 250,000, now and at each later
 * start. */
void file_expect_all(void *mapped, size_t size);
/* Give back the memory of the whole pages in [begin, begin + length) of a mapping. They stay in the page cache
 * and return from there when touched. The page at either end is left: another thread may be reading it. */
void file_release_pages(const void *begin, size_t length);

#endif
