#include "checkpoint/edit_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"

/* ---- one file, locked -------------------------------------------------------------------------------------------- */

void edit_file_close(EditFile *f)
{
    journal_end(&f->journal);
    if (f->path && f->fd >= 0)
        close(f->fd); /* gives the lock back */
    free(f->path);
    if (f->own)
        safetensors_close(f->own);
    free(f->own);
}

int edit_file_find(EditFile *f, const SafetensorsFile *st, char err[512])
{
    *f = (EditFile){.st = st, .fd = -1, .path = realpath(st->path, NULL)};
    if (!f->path)
        return fail(err, "%s: %s", st->path, strerror(errno));
    return journal_init(&f->journal, f->path, err);
}

/* Check that the file of that name is still the one that was opened, and as long. */
int edit_file_check_same(const EditFile *f, char err[512])
{
    struct stat named, locked, mapped;
    if (stat(f->path, &named) != 0 || fstat(f->fd, &locked) != 0 || fstat(f->st->fd, &mapped) != 0)
        return fail(err, "%s: %s", f->path, strerror(errno));
    if (named.st_ino != locked.st_ino || named.st_dev != locked.st_dev || mapped.st_ino != locked.st_ino ||
        mapped.st_dev != locked.st_dev)
        return fail(err, "%s was replaced by another file since it was opened", f->path);
    if ((uint64_t)locked.st_size != f->st->mapped_size)
        return fail(err, "%s had %zu bytes and has %lld now: something else has changed it", f->path,
                    f->st->mapped_size, (long long)locked.st_size);
    return 0;
}

int edit_file_lock(EditFile *f, char err[512])
{
    struct stat info;
    f->fd = open(f->path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (f->fd < 0 || fstat(f->fd, &info) != 0)
        return fail(err, "%s cannot be written: %s", f->path, strerror(errno));
    f->mode = info.st_mode;
    f->links = (size_t)info.st_nlink;
    if ((f->mode & 0222) == 0)
        return fail(err, "%s is read-only (mode %04o)", f->path, (unsigned)f->mode & 07777);
    if (flock(f->fd, LOCK_EX | LOCK_NB) != 0)
        return errno == EWOULDBLOCK ? fail(err, "%s is in use: another process is editing or copying it", f->path)
                                    : fail(err, "%s cannot be locked: %s", f->path, strerror(errno));
    return edit_file_check_same(f, err) != 0 ? -1 : journal_clean_up(&f->journal, err);
}

/* ---- comparing ---------------------------------------------------------------------------------------------------- */

/* First i in [begin, end) where a and b differ, else end. */
size_t edit_file_first_difference(const unsigned char *a, const unsigned char *b, size_t begin, size_t end)
{
    size_t i = begin;
    while (end - i >= 64 && memcmp(a + i, b + i, 64) == 0)
        i += 64;
    while (i < end && a[i] == b[i])
        i++;
    return i;
}

void edit_file_hash_header(const EditFile *f, unsigned char hash[32])
{
    sha256_of(f->st->mapped, 8 + f->st->header_len, hash);
}

/* ---- visits to a journal's records ------------------------------------------------------------------------------- */

static int read_now(const EditFile *f, const JournalRecord *r, char err[512])
{
    if (file_read_at(f->fd, r->now, r->length, r->offset) != 0)
        return fail(err, "%s: byte %" PRIu64 " cannot be read: %s", f->path, r->offset, strerror(errno));
    return 0;
}

static int write_bytes(const EditFile *f, const unsigned char *bytes, size_t n, uint64_t offset, char err[512])
{
    if (file_write_at(f->fd, bytes, n, offset) != 0)
        return fail(err, "%s: byte %" PRIu64 " cannot be written: %s", f->path, offset, strerror(errno));
    return 0;
}

static int check_bytes(const EditFile *f, const JournalRecord *r, const unsigned char *wanted, char err[512])
{
    if (read_now(f, r, err) != 0)
        return -1;
    size_t i = edit_file_first_difference(r->now, wanted, 0, r->length);
    if (i < r->length)
        return fail(err, "%s: byte %" PRIu64 " was written as %02x, but reads %02x", f->path, r->offset + i, wanted[i],
                    r->now[i]);
    return 0;
}

int edit_file_write_after(void *file, const JournalRecord *r, char err[512])
{
    return write_bytes(file, r->after, r->length, r->offset, err);
}

int edit_file_check_after(void *file, const JournalRecord *r, char err[512])
{
    return check_bytes(file, r, r->after, err);
}

/* Write only from the first to the last byte that is not what it was: a full disk may refuse the others. */
static int write_before(void *file, const JournalRecord *r, char err[512])
{
    if (read_now(file, r, err) != 0)
        return -1;
    size_t begin = edit_file_first_difference(r->now, r->before, 0, r->length), end = r->length;
    while (end > begin && r->now[end - 1] == r->before[end - 1])
        end--;
    return write_bytes(file, r->before + begin, end - begin, r->offset + begin, err);
}

static int check_before(void *file, const JournalRecord *r, char err[512])
{
    return check_bytes(file, r, r->before, err);
}

int edit_file_check_either(void *file, const JournalRecord *r, char err[512])
{
    const EditFile *f = file;
    if (read_now(f, r, err) != 0)
        return -1;
    for (size_t i = 0; i < r->length; i++)
        if (r->now[i] != r->before[i] && r->now[i] != r->after[i])
            return fail(err,
                        "%s: byte %" PRIu64
                        " is %02x, but was %02x before the edit and %02x after it: something else has changed the "
                        "file since, and nothing is undone",
                        f->path, r->offset + i, r->now[i], r->before[i], r->after[i]);
    return 0;
}

void edit_files_choose(EditFile *files, size_t i, size_t *chosen)
{
    EditFile f = files[i];
    files[i] = files[*chosen];
    files[(*chosen)++] = f;
}

int edit_files_restore(EditFile *files, size_t n, char err[512])
{
    for (size_t i = 0; i < n; i++)
        if (files[i].journal.head.state != JOURNAL_UNDOING &&
            journal_set_state(&files[i].journal, JOURNAL_UNDOING, err) != 0)
            return -1;
    for (size_t i = 0; i < n; i++) {
        EditFile *f = &files[i];
        if (journal_visit(&f->journal, write_before, f, err) != 0)
            return -1;
        if (file_sync(f->fd) != 0)
            return fail(err, "%s: %s", f->path, strerror(errno));
        if (journal_visit(&f->journal, check_before, f, err) != 0)
            return -1;
    }
    for (size_t i = 0; i < n; i++)
        if (journal_withdraw(&files[i].journal, err) != 0)
            return -1;
    return 0;
}
