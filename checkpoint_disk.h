/* Reading and writing files whole: the system's calls repeated until all is done, and new files that appear only
 * when complete. */
#ifndef CHECKPOINT_DISK_H
#define CHECKPOINT_DISK_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifndef ENODATA /* FreeBSD */
#define ENODATA ENOATTR
#endif

/* All n bytes at that offset, or -1 with errno: ENOSPC when the system writes nothing, ENODATA at the end of the
 * file. */
int disk_write(int fd, const void *bytes, size_t n, uint64_t offset);
int disk_read(int fd, void *bytes, size_t n, uint64_t offset);
int disk_sync(int fd);
int disk_set_size(int fd, uint64_t size);
int disk_sync_folder(const char *path);                /* the folder of that file: names are on disk */
bool disk_exists(const char *path);                    /* a dangling link, too */
char *disk_name(const char *path, const char *suffix); /* fresh: path and suffix; NULL: out of memory */

/* Told of progress while copying; anything but 0 stops the work. */
typedef int DiskProgress(void *context, uint64_t bytes);

/* Copies length bytes inside the kernel where it can, holes as holes. out must be long enough already. */
int disk_copy(int out, uint64_t out_offset, int in, uint64_t in_offset, uint64_t length, DiskProgress *progress,
              void *context);

/* A file being written under path.part, which is locked as long as it is open; zeroed is none. */
typedef struct {
    char *path, *part;
    int fd;
    bool published;
} NewFile;
int new_file_open(NewFile *f, const char *path, char err[512]);
int new_file_finish(NewFile *f, char err[512]); /* all on disk, still under the name .part */
void new_file_close(NewFile *f);                /* early, where many are written under the lock of one */
/* Gives n finished files their names, in order, and brings the names to disk. On failure none of the names is left,
 * unless they were there before. */
int new_files_publish(NewFile *files, size_t n, char err[512]);
void new_file_end(NewFile *f); /* removes what was not published */

/* True if both names mean the same file: links and hard links, too. */
bool disk_same(const char *a, const char *b);

#endif
