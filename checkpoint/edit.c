/* Edits in place, and undo.
 *
 * The order of things on disk:
 *     1. FILE.undo.part: the whole journal, fsynced            nothing has happened yet
 *     2. an earlier FILE.undo becomes FILE.undo.old
 *     3. FILE.undo.part becomes FILE.undo, folder fsynced      from here on --undo can bring the old bytes back
 *     4. FILE's bytes are changed, fsynced, read back
 *     5. the journal's state becomes 2, fsynced; FILE.undo.old is removed
 * A step that changes several files does each of these for all of them before the next one. Undo sets the state to
 * 1, puts the old bytes back, and removes the journal last; so both may be cut off anywhere, and undo may be
 * repeated.
 */
#include "checkpoint/edit.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "checkpoint/journal.h"
#include "checkpoint/shards.h"

#define GAP 16 /* as many equal bytes between two changes cost less than a record of their own */

struct EditFile {
    const SafetensorsFile *st;
    char *path; /* links resolved */
    int fd;
    mode_t mode;
    Journal journal;
    JournalHead head; /* what the journal says of itself; only the state, while it is being made */
};

/* ---- one file, locked -------------------------------------------------------------------------------------------- */

static void close_file(EditFile *f)
{
    journal_end(&f->journal);
    if (f->path && f->fd >= 0)
        close(f->fd); /* gives the lock back */
    free(f->path);
}

static int name_file(EditFile *f, const SafetensorsFile *st, char err[512])
{
    *f = (EditFile){.st = st, .fd = -1, .path = realpath(st->path, NULL)};
    if (!f->path)
        return fail(err, "%s: %s", st->path, strerror(errno));
    return journal_init(&f->journal, f->path, err);
}

/* The file under the name is still the one that was opened, and as long. */
static int check_same(const EditFile *f, char err[512])
{
    struct stat named, locked, mapped;
    if (stat(f->path, &named) != 0 || fstat(f->fd, &locked) != 0 || fstat(f->st->fd, &mapped) != 0)
        return fail(err, "%s: %s", f->path, strerror(errno));
    if (named.st_ino != locked.st_ino || named.st_dev != locked.st_dev || mapped.st_ino != locked.st_ino ||
        mapped.st_dev != locked.st_dev)
        return fail(err, "%s was replaced by another file meanwhile", f->path);
    if ((uint64_t)locked.st_size != f->st->mapped_size)
        return fail(err, "%s had %zu bytes, and has %lld now", f->path, f->st->mapped_size, (long long)locked.st_size);
    return 0;
}

static int lock_file(EditFile *f, char err[512])
{
    struct stat info;
    f->fd = open(f->path, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (f->fd < 0 || fstat(f->fd, &info) != 0)
        return fail(err, "%s cannot be written: %s", f->path, strerror(errno));
    f->mode = info.st_mode;
    if ((f->mode & 0222) == 0)
        return fail(err, "%s is read-only (mode %04o)", f->path, (unsigned)f->mode & 07777);
    if (flock(f->fd, LOCK_EX | LOCK_NB) != 0)
        return errno == EWOULDBLOCK ? fail(err, "%s is being edited by another process", f->path)
                                    : fail(err, "%s cannot be locked: %s", f->path, strerror(errno));
    return check_same(f, err) != 0 ? -1 : journal_tidy(&f->journal, err);
}

static int interrupted_edit(const char *path, char err[512])
{
    return fail(err, "an edit of %s was interrupted: `run edit %s --undo` puts the old bytes back", path, path);
}

/* Adds st to the step, locked; once. The step's number becomes larger than that of a journal that is there. */
static int add_file(Edit *e, const SafetensorsFile *st, char err[512])
{
    for (size_t i = 0; i < e->n_files; i++)
        if (e->files[i].st == st)
            return 0;
    EditFile *files = realloc(e->files, (e->n_files + 1) * sizeof *files);
    if (!files)
        return fail(err, "%s: out of memory", st->path);
    e->files = files;
    EditFile *f = &files[e->n_files++];
    JournalHead h;
    if (name_file(f, st, err) != 0 || e->dry)
        return e->dry && f->path ? 0 : -1;
    if (lock_file(f, err) != 0)
        return -1;
    int found = journal_read_head(&f->journal, &h, err);
    if (found != 0)
        return found < 0 ? -1 : 0;
    e->step = h.step >= e->step ? h.step + 1 : e->step;
    return h.state == JOURNAL_CHANGING ? interrupted_edit(f->path, err) : 0;
}

int edit_begin(Edit *e, const SafetensorsTensor *const *tensors, size_t n, bool dry, char err[512])
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    *e = (Edit){.dry = dry, .step = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec};
    for (size_t i = 0; i < n; i++)
        if (add_file(e, tensors[i]->file, err) != 0)
            return -1;
    return 0;
}

void edit_end(Edit *e)
{
    for (size_t i = 0; i < e->n_files; i++)
        close_file(&e->files[i]);
    free(e->files);
    *e = (Edit){0};
}

/* ---- what shall change ------------------------------------------------------------------------------------------- */

/* First i in [begin, end) where a and b differ, else end. */
static size_t first_difference(const unsigned char *a, const unsigned char *b, size_t begin, size_t end)
{
    size_t i = begin;
    while (end - i >= 64 && memcmp(a + i, b + i, 64) == 0)
        i += 64;
    while (i < end && a[i] == b[i])
        i++;
    return i;
}

bool edit_next_change(const unsigned char *a, const unsigned char *b, size_t n, size_t *begin, size_t *end)
{
    *begin = first_difference(a, b, *end, n);
    if (*begin == n)
        return false;
    *end = *begin + 1;
    for (size_t i = *end; i < n && i - *end < GAP; i++)
        if (a[i] != b[i])
            *end = i + 1;
    return true;
}

static int note_changes(Edit *e, EditFile *f, uint64_t offset, const unsigned char *before, const unsigned char *after,
                        size_t n, char err[512])
{
    for (size_t begin, end = 0; edit_next_change(before, after, n, &begin, &end);) {
        e->ranges += offset + begin != e->end || f->st != e->end_of; /* not one that goes on where the last one ended */
        e->end = offset + end;
        e->end_of = f->st;
        e->bytes += end - begin;
        if (!e->dry &&
            journal_put(&f->journal, offset + begin, before + begin, after + begin, end - begin, f->mode, err) != 0)
            return -1;
    }
    return 0;
}

int edit_bytes(Edit *e, const SafetensorsTensor *t, uint64_t offset, const unsigned char *bytes, size_t n,
               char err[512])
{
    size_t i = 0;
    while (i < e->n_files && e->files[i].st != t->file)
        i++;
    if (i == e->n_files || offset > t->length || n > t->length - offset)
        return fail(err, "%s: bytes outside what the edit was begun for", t->file->path);
    const unsigned char *before = safetensors_data(t) + offset;
    uint64_t at = 8 + t->file->header_len + t->offset + offset;
    for (size_t done = 0, m; done < n; done += m) {
        m = n - done < JOURNAL_MOST ? n - done : JOURNAL_MOST;
        if (note_changes(e, &e->files[i], at + done, before + done, bytes + done, m, err) != 0)
            return -1;
    }
    return 0;
}

/* ---- what is done with a journal's records ----------------------------------------------------------------------- */

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
    size_t i = first_difference(r->now, wanted, 0, r->length);
    if (i < r->length)
        return fail(err, "%s: byte %" PRIu64 " was written as %02x, but reads %02x", f->path, r->offset + i, wanted[i],
                    r->now[i]);
    return 0;
}

static int write_after(void *file, const JournalRecord *r, char err[512])
{
    return write_bytes(file, r->after, r->length, r->offset, err);
}

static int check_after(void *file, const JournalRecord *r, char err[512])
{
    return check_bytes(file, r, r->after, err);
}

/* Writes only from the first byte to the last that is not what it was: a disk that is full may refuse the others. */
static int write_before(void *file, const JournalRecord *r, char err[512])
{
    if (read_now(file, r, err) != 0)
        return -1;
    size_t begin = first_difference(r->now, r->before, 0, r->length), end = r->length;
    while (end > begin && r->now[end - 1] == r->before[end - 1])
        end--;
    return write_bytes(file, r->before + begin, end - begin, r->offset + begin, err);
}

static int check_before(void *file, const JournalRecord *r, char err[512])
{
    return check_bytes(file, r, r->before, err);
}

static int check_either(void *file, const JournalRecord *r, char err[512])
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

static int put_back(EditFile *f, char err[512])
{
    if (journal_visit(&f->journal, write_before, f, err) != 0)
        return -1;
    if (file_sync(f->fd) != 0)
        return fail(err, "%s: %s", f->path, strerror(errno));
    return journal_visit(&f->journal, check_before, f, err);
}

/* ---- commit ------------------------------------------------------------------------------------------------------ */

static void describe_file(const EditFile *f, uint64_t *size, unsigned char header_hash[32])
{
    *size = f->st->mapped_size;
    sha256_of(f->st->mapped, 8 + f->st->header_len, header_hash);
}

/* Steps 1 to 3. On failure earlier journals are where they were. */
static int publish_journals(const Edit *e, EditFile *const *files, size_t n, char err[512])
{
    char unused[512];
    int status = 0;
    for (size_t i = 0; i < n && status == 0; i++) {
        JournalHead h = {.step = e->step, .files = n};
        describe_file(files[i], &h.size, h.header_hash);
        status = journal_finish(&files[i]->journal, &h, err);
    }
    for (size_t i = 0; i < n && status == 0; i++)
        status = check_same(files[i], err);
    for (size_t i = 0; i < n && status == 0; i++)
        status = journal_publish(&files[i]->journal, err);
    for (size_t i = 0; i < n && status != 0; i++)
        if (files[i]->journal.published || files[i]->journal.kept_old)
            journal_withdraw(&files[i]->journal, unused);
    return status;
}

/* Steps 4 and 5. */
static int change_files(EditFile *const *files, size_t n, char err[512])
{
    for (size_t i = 0; i < n; i++) {
        if (journal_visit(&files[i]->journal, write_after, files[i], err) != 0)
            return -1;
        if (file_sync(files[i]->fd) != 0)
            return fail(err, "%s: %s", files[i]->path, strerror(errno));
    }
    for (size_t i = 0; i < n; i++)
        if (check_same(files[i], err) != 0 || journal_visit(&files[i]->journal, check_after, files[i], err) != 0)
            return -1;
    for (size_t i = 0; i < n; i++) {
        files[i]->head.state = JOURNAL_DONE;
        if (journal_set_state(&files[i]->journal, JOURNAL_DONE, err) != 0)
            return -1;
    }
    return 0;
}

/* After a failure: the old bytes again, or the word that the journal has them. err is the failure's sentence, to be
 * continued. */
static void roll_back(EditFile *const *files, size_t n, char err[512])
{
    char why[512];
    size_t used = strlen(err);
    int status = 0;
    for (size_t i = 0; i < n && status == 0; i++)
        if (files[i]->head.state == JOURNAL_DONE)
            status = journal_set_state(&files[i]->journal, JOURNAL_CHANGING, why);
    for (size_t i = 0; i < n && status == 0; i++)
        status = put_back(files[i], why);
    for (size_t i = 0; i < n && status == 0; i++)
        status = journal_withdraw(&files[i]->journal, why);
    if (status == 0)
        snprintf(err + used, 512 - used, "; the old bytes are back in place");
    else
        snprintf(err + used, 512 - used, "; %.150s keeps the old bytes: `run edit --undo` puts them back",
                 files[0]->journal.path);
}

int edit_commit(Edit *e, char err[512])
{
    EditFile **files = calloc(e->n_files + 1, sizeof *files);
    size_t n = 0;
    if (!files)
        return fail(err, "out of memory for an edit of %zu files", e->n_files);
    for (size_t i = 0; i < e->n_files; i++)
        if (e->files[i].journal.records_bytes > 0)
            files[n++] = &e->files[i];
    int status = publish_journals(e, files, n, err);
    if (status == 0 && (status = change_files(files, n, err)) != 0)
        roll_back(files, n, err);
    for (size_t i = 0; i < n && status == 0; i++)
        journal_forget_old(&files[i]->journal);
    free(files);
    return status;
}

/* ---- undo -------------------------------------------------------------------------------------------------------- */

/* Locks a file that has a journal, and reads it. 1: it has none. */
static int find_journal(EditFile *f, const SafetensorsFile *st, char err[512])
{
    unsigned char hash[32];
    uint64_t size;
    if (name_file(f, st, err) != 0)
        return -1;
    if (!file_exists(f->journal.path) && !file_exists(f->journal.old))
        return 1;
    int found = lock_file(f, err) != 0 ? -1 : journal_read_head(&f->journal, &f->head, err);
    if (found != 0)
        return found;
    describe_file(f, &size, hash);
    if (f->head.size != size || memcmp(f->head.header_hash, hash, 32) != 0)
        return fail(err, "%s belongs to another file: size or header are not those of %s", f->journal.path, f->path);
    f->journal.published = true;
    return journal_check_records(&f->journal, &f->head, err);
}

/* The step to undo: the one that was interrupted, else the last. Its files go to the front; returns their number, 0
 * with a sentence. */
static size_t choose_step(EditFile *files, size_t n, char err[512])
{
    JournalHead best = files[0].head;
    size_t chosen = 0;
    for (size_t i = 1; i < n; i++) {
        bool better = files[i].head.step > best.step;
        if (files[i].head.state != best.state)
            better = files[i].head.state == JOURNAL_CHANGING;
        best = better ? files[i].head : best;
    }
    for (size_t i = 0; i < n; i++) {
        if (files[i].head.step == best.step) {
            EditFile f = files[i];
            files[i] = files[chosen];
            files[chosen++] = f;
        }
    }
    if (best.state == JOURNAL_DONE && chosen < best.files) {
        fail(err, "the last edit of %s changed %" PRIu64 " files together, and only %zu of their journals are here%s",
             files[0].path, best.files, chosen, n == 1 ? ": name the model's folder" : "");
        return 0;
    }
    return chosen;
}

static int undo_files(EditFile *files, size_t n, char err[512])
{
    for (size_t i = 0; i < n; i++)
        if (journal_visit(&files[i].journal, check_either, &files[i], err) != 0)
            return -1;
    for (size_t i = 0; i < n; i++)
        if (files[i].head.state == JOURNAL_DONE && journal_set_state(&files[i].journal, JOURNAL_CHANGING, err) != 0)
            return -1;
    for (size_t i = 0; i < n; i++)
        if (put_back(&files[i], err) != 0)
            return -1;
    for (size_t i = 0; i < n; i++)
        if (journal_withdraw(&files[i].journal, err) != 0)
            return -1;
    return 0;
}

int edit_undo(const Checkpoint *c, size_t *undone, char err[512])
{
    size_t n = 0, all = checkpoint_file_count(c);
    EditFile *files = calloc(all, sizeof *files);
    int status = files ? 0 : fail(err, "%s: out of memory for %zu files", c->argument, all);
    *undone = 0;
    for (size_t i = 0; status == 0 && i < all; i++) {
        int found = find_journal(&files[n], checkpoint_file(c, i), err);
        if (found == 1)
            close_file(&files[n]);
        else
            n++;
        status = found < 0 ? -1 : 0;
    }
    if (status == 0 && n == 0)
        status = fail(err, "%s: there is no edit to undo (no file ending in .undo beside it)", c->argument);
    if (status == 0)
        status = (*undone = choose_step(files, n, err)) > 0 ? undo_files(files, *undone, err) : -1;
    for (size_t i = 0; i < n; i++)
        close_file(&files[i]);
    free(files);
    return status;
}

bool edit_pending(const char *path, char sentence[512])
{
    char *whole = realpath(path, NULL), unused[512];
    Journal j = {.part_fd = -1};
    JournalHead h;
    bool pending = whole && journal_init(&j, whole, unused) == 0 && journal_read_head(&j, &h, unused) == 0 &&
                   h.state == JOURNAL_CHANGING;
    int fd = pending ? open(whole, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
    if (fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        fail(sentence, "%s is being edited by another process", path);
    else if (pending)
        interrupted_edit(path, sentence);
    if (fd >= 0)
        close(fd);
    journal_end(&j);
    free(whole);
    return pending;
}
