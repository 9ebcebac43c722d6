/* The order of things on disk:
 *     1. FILE.undo.part: the whole journal, fsynced            nothing has happened yet
 *     2. an earlier FILE.undo becomes FILE.undo.old
 *     3. FILE.undo.part becomes FILE.undo, folder fsynced      from here on --undo can bring the old bytes back
 *     4. FILE's bytes are changed, fsynced, read back
 *     5. the journal's state becomes 2, fsynced; FILE.undo.old is removed
 * A step that changes several files does each of these for all of them before it goes on to the next. Undo sets the
 * state to 1, puts the old bytes back, and removes the journal last. So both may be cut off anywhere, and undo may be
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

#define GAP 16 /* up to this many equal bytes between two changes cost less than another record */

struct EditFile {
    const SafetensorsFile *st;
    char *path; /* links resolved */
    int fd;
    mode_t mode;
    Journal journal;
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

/* Check that the file of that name is still the one that was opened, and as long. */
static int check_same(const EditFile *f, char err[512])
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
        return errno == EWOULDBLOCK ? fail(err, "%s is in use: another process is editing or copying it", f->path)
                                    : fail(err, "%s cannot be locked: %s", f->path, strerror(errno));
    return check_same(f, err) != 0 ? -1 : journal_tidy(&f->journal, err);
}

static int interrupted_edit(const char *path, char err[512])
{
    return fail(err, "an edit of %s was interrupted: `run edit %s --undo` puts the old bytes back", path, path);
}

/* Lock st and add it to the step, unless it is there already. The step's number becomes larger than that of an earlier
 * journal. */
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
    if (name_file(f, st, err) != 0)
        return -1;
    if (e->dry)
        return 0;
    if (lock_file(f, err) != 0)
        return -1;
    int found = journal_read_head(&f->journal, err);
    if (found != 0)
        return found < 0 ? -1 : 0;
    if (f->journal.head.state == JOURNAL_CHANGING)
        return interrupted_edit(f->path, err);
    e->step = MAX(e->step, f->journal.head.step + 1);
    f->journal.head = (JournalHead){0};
    return 0;
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

/* ---- what is to change ------------------------------------------------------------------------------------------- */

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

/* Count the change, and note it in the journal. */
static int note_change(Edit *e, EditFile *f, uint64_t offset, const unsigned char *before, const unsigned char *after,
                       size_t n, char err[512])
{
    if (offset != e->end || f->st != e->end_of) /* it does not go on where the last one ended */
        e->ranges++;
    e->end = offset + n;
    e->end_of = f->st;
    e->bytes += n;
    return e->dry ? 0 : journal_put(&f->journal, offset, before, after, n, f->mode, err);
}

int edit_bytes(Edit *e, const SafetensorsTensor *t, uint64_t offset, const unsigned char *bytes, size_t n,
               char err[512])
{
    EditFile *f = e->files;
    while (f < e->files + e->n_files && f->st != t->file)
        f++;
    if (f == e->files + e->n_files || offset > t->length || n > t->length - offset)
        return fail(err, "%s: bytes outside what the edit was begun for", t->file->path);
    const unsigned char *old = safetensors_data(t) + offset;
    uint64_t at = 8 + t->file->header_len + t->offset + offset;
    for (size_t done = 0, m; done < n; done += m) {
        m = MIN(n - done, JOURNAL_MOST);
        for (size_t i, end = done; edit_next_change(old, bytes, done + m, &i, &end);)
            if (note_change(e, f, at + i, old + i, bytes + i, end - i, err) != 0)
                return -1;
    }
    return 0;
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

/* Write only from the first to the last byte that is not what it was: a full disk may refuse the others. */
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

/* Bring n files, which have journals, back to what they were before the step. */
static int restore(EditFile *files, size_t n, char err[512])
{
    for (size_t i = 0; i < n; i++)
        if (files[i].journal.head.state == JOURNAL_DONE &&
            journal_set_state(&files[i].journal, JOURNAL_CHANGING, err) != 0)
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

/* Files of one step come first: file i becomes number *chosen of them. */
static void choose_file(EditFile *files, size_t i, size_t *chosen)
{
    EditFile f = files[i];
    files[i] = files[*chosen];
    files[(*chosen)++] = f;
}

static void hash_header(const EditFile *f, unsigned char hash[32])
{
    sha256_of(f->st->mapped, 8 + f->st->header_len, hash);
}

/* ---- commit ------------------------------------------------------------------------------------------------------ */

/* Steps 1 to 3. */
static int publish_journals(EditFile *files, size_t n, uint64_t step, char err[512])
{
    for (size_t i = 0; i < n; i++) {
        JournalHead *h = &files[i].journal.head;
        h->step = step;
        h->files = n;
        h->size = files[i].st->mapped_size;
        hash_header(&files[i], h->header_hash);
        if (journal_finish(&files[i].journal, err) != 0)
            return -1;
    }
    for (size_t i = 0; i < n; i++)
        if (check_same(&files[i], err) != 0)
            return -1;
    for (size_t i = 0; i < n; i++)
        if (journal_publish(&files[i].journal, err) != 0)
            return -1;
    return 0;
}

/* Steps 4 and 5. */
static int change_files(EditFile *files, size_t n, char err[512])
{
    for (size_t i = 0; i < n; i++) {
        if (journal_visit(&files[i].journal, write_after, &files[i], err) != 0)
            return -1;
        if (file_sync(files[i].fd) != 0)
            return fail(err, "%s: %s", files[i].path, strerror(errno));
    }
    for (size_t i = 0; i < n; i++)
        if (check_same(&files[i], err) != 0 || journal_visit(&files[i].journal, check_after, &files[i], err) != 0)
            return -1;
    for (size_t i = 0; i < n; i++)
        if (journal_set_state(&files[i].journal, JOURNAL_DONE, err) != 0)
            return -1;
    return 0;
}

/* Restore the files after a step that failed, and append to the sentence in err how that went. */
static void roll_back(EditFile *files, size_t n, char err[512])
{
    char unused[512];
    size_t used = strlen(err);
    if (restore(files, n, unused) == 0)
        snprintf(err + used, 512 - used, "; the old bytes are back in place");
    else
        snprintf(err + used, 512 - used, "; %.150s keeps the old bytes: run edit %.150s --undo restores them",
                 files[0].journal.path, files[0].path);
}

int edit_commit(Edit *e, char err[512])
{
    EditFile *files = e->files;
    char unused[512];
    size_t n = 0; /* files that change */
    for (size_t i = 0; i < e->n_files; i++)
        if (files[i].journal.head.records_bytes > 0)
            choose_file(files, i, &n);
    if (publish_journals(files, n, e->step, err) != 0) {
        for (size_t i = 0; i < n; i++)
            if (files[i].journal.published || files[i].journal.kept_old)
                journal_withdraw(&files[i].journal, unused);
        return -1;
    }
    if (change_files(files, n, err) != 0) {
        roll_back(files, n, err);
        return -1;
    }
    for (size_t i = 0; i < n; i++)
        journal_forget_old(&files[i].journal);
    return 0;
}

/* ---- undo -------------------------------------------------------------------------------------------------------- */

/* Lock a file and check its journal. Returns 1 if it has none. */
static int open_journaled(EditFile *f, char err[512])
{
    const JournalHead *h = &f->journal.head;
    unsigned char hash[32];
    if (!file_exists(f->journal.path) && !file_exists(f->journal.old))
        return 1;
    if (lock_file(f, err) != 0)
        return -1;
    int found = journal_read_head(&f->journal, err);
    if (found != 0)
        return found;
    hash_header(f, hash);
    if (h->size != f->st->mapped_size || memcmp(h->header_hash, hash, 32) != 0)
        return fail(err, "%s belongs to another file: its size or header is not that of %s", f->journal.path, f->path);
    f->journal.published = true;
    return journal_visit(&f->journal, NULL, NULL, err);
}

/* Find the files of c that have journals: *n of them, to be closed in any case. */
static int find_journals(const Checkpoint *c, EditFile *files, size_t *n, char err[512])
{
    int found = 0;
    for (size_t i = 0; i < checkpoint_file_count(c) && found >= 0; i++) {
        EditFile *f = &files[*n];
        found = name_file(f, checkpoint_file(c, i), err) == 0 ? open_journaled(f, err) : -1;
        if (found == 0)
            ++*n;
        else
            close_file(f);
    }
    if (found >= 0 && *n == 0)
        return fail(err, "%s: there is no edit to undo (no file ending in .undo beside it)", c->argument);
    return found < 0 ? -1 : 0;
}

/* Bring the files of the step that is to be undone to the front: the one that was interrupted, else the last. */
static int choose_step(EditFile *files, size_t n, size_t *chosen, char err[512])
{
    JournalHead step = files[0].journal.head;
    for (size_t i = 1; i < n; i++) {
        const JournalHead *h = &files[i].journal.head;
        bool better = h->state == step.state ? h->step > step.step : h->state == JOURNAL_CHANGING;
        if (better)
            step = *h;
    }
    for (size_t i = 0; i < n; i++)
        if (files[i].journal.head.step == step.step)
            choose_file(files, i, chosen);
    if (step.state == JOURNAL_DONE && *chosen < step.files)
        return fail(err,
                    "the last edit of %s changed %" PRIu64 " files together, but only %zu of their journals are here%s",
                    files[0].path, step.files, *chosen, n == 1 ? ": name the model's folder" : "");
    return 0;
}

static int undo_step(EditFile *files, size_t n, size_t *undone, char err[512])
{
    if (choose_step(files, n, undone, err) != 0)
        return -1;
    for (size_t i = 0; i < *undone; i++)
        if (journal_visit(&files[i].journal, check_either, &files[i], err) != 0)
            return -1;
    return restore(files, *undone, err);
}

int edit_undo(const Checkpoint *c, size_t *undone, char err[512])
{
    size_t n = 0;
    EditFile *files = calloc(checkpoint_file_count(c), sizeof *files);
    if (!files)
        return fail(err, "%s: out of memory for %zu files", c->argument, checkpoint_file_count(c));
    *undone = 0;
    int status = find_journals(c, files, &n, err);
    if (status == 0)
        status = undo_step(files, n, undone, err);
    for (size_t i = 0; i < n; i++)
        close_file(&files[i]);
    free(files);
    return status;
}

bool edit_pending(const char *path, char sentence[512])
{
    char *whole = realpath(path, NULL), unused[512];
    Journal j = {0};
    bool pending = whole && journal_init(&j, whole, unused) == 0 && journal_read_head(&j, unused) == 0 &&
                   j.head.state == JOURNAL_CHANGING;
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

int edit_keep_off(const Checkpoint *c, char err[512])
{
    for (size_t i = 0; i < checkpoint_file_count(c); i++) {
        const SafetensorsFile *st = checkpoint_file(c, i);
        if (flock(st->fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK)
            return fail(err, "%s is being edited by another process", st->path);
        if (edit_pending(st->path, err))
            return -1;
    }
    return 0;
}
