#include "checkpoint/journal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC "RUNUNDO1"
#define HEAD sizeof(JournalHead)
_Static_assert(HEAD == 144 && offsetof(JournalHead, hash) == 112, "a journal's head is written as it is in memory");

typedef struct {
    uint64_t offset;
    uint32_t length, period;
} RecordHead;
_Static_assert(sizeof(RecordHead) == 16, "a record's head is written as it is in memory");

/* ---- names ------------------------------------------------------------------------------------------------------- */

/* Call `visit` for the entries of the folder that `path` lies in, with fresh paths, until it returns false. */
typedef bool EntryVisit(void *context, const char *path);
static void visit_folder(const char *path, EntryVisit *visit, void *context)
{
    char *folder = path_folder(path);
    DIR *dir = folder ? opendir(folder) : NULL;
    bool more = true;
    for (struct dirent *e; dir && more && (e = readdir(dir));) {
        char *entry = path_join(folder, e->d_name);
        more = entry && visit(context, entry);
        free(entry);
    }
    if (dir)
        closedir(dir);
    free(folder);
}

/* Another name of the same file that has a journal. */
typedef struct {
    struct stat file;
    char *journal; /* its journal, once found; fresh */
} OtherName;

static bool look_for_journal(void *context, const char *path)
{
    OtherName *other = context;
    struct stat info;
    if (lstat(path, &info) != 0 || info.st_ino != other->file.st_ino || info.st_dev != other->file.st_dev)
        return true;
    char *journal = path_with_suffix(path, ".undo"), *old = path_with_suffix(path, ".undo.old");
    if (journal && old && (file_exists(journal) || file_exists(old))) {
        other->journal = journal;
        journal = NULL;
    }
    free(old);
    free(journal);
    return !other->journal;
}

int journal_init(Journal *j, const char *file, char err[512])
{
    OtherName other = {0};
    *j = (Journal){.records = {.fd = -1, .offset = HEAD}};
    sha256_init(&j->records_hash);
    if (stat(file, &other.file) == 0 && other.file.st_nlink > 1)
        visit_folder(file, look_for_journal, &other);
    j->path = other.journal ? other.journal : path_with_suffix(file, ".undo");
    j->old = j->path ? path_with_suffix(j->path, ".old") : NULL;
    return j->path && j->old ? 0 : fail(err, "%s: out of memory", file);
}

void journal_end(Journal *j)
{
    if (j->path && j->records.fd >= 0)
        close(j->records.fd);
    if (j->part && !j->published)
        unlink(j->part);
    free(j->records.bytes);
    free(j->path);
    free(j->part);
    free(j->old);
    *j = (Journal){.records = {.fd = -1}};
}

/* Whether a file begins like a journal and no process that writes it holds its lock. */
static bool is_left_journal(const char *path)
{
    char magic[8];
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    bool found = fd >= 0 && file_read_at(fd, magic, 8, 0) == 0 && memcmp(magic, MAGIC, 8) == 0 &&
                 flock(fd, LOCK_SH | LOCK_NB) == 0;
    if (fd >= 0)
        close(fd);
    return found;
}

static bool count_leftover(void *context, const char *path)
{
    size_t *n = context;
    *n += text_ends_with(path, ".part") && is_left_journal(path) ? 1 : 0;
    return true;
}

size_t journal_count_leftovers(const char *file)
{
    size_t n = 0;
    visit_folder(file, count_leftover, &n);
    return n;
}

/* context: the journal's path */
static bool remove_leftover(void *context, const char *path)
{
    if (file_is_part_of(path, context) && is_left_journal(path))
        unlink(path);
    return true;
}

int journal_clean_up(const Journal *j, char err[512])
{
    if (file_exists(j->old) && !file_exists(j->path) && is_left_journal(j->old) && rename(j->old, j->path) != 0)
        return fail(err, "%s: %s", j->old, strerror(errno));
    visit_folder(j->path, remove_leftover, j->path);
    return 0;
}

/* ---- the head ---------------------------------------------------------------------------------------------------- */

static void hash_head(const JournalHead *h, unsigned char hash[32])
{
    sha256_of(&h->step, offsetof(JournalHead, hash) - offsetof(JournalHead, step), hash);
}

static int open_journal(const Journal *j, int flags)
{
    return open(j->path, flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
}

int journal_read_head(Journal *j, char err[512])
{
    JournalHead *h = &j->head;
    unsigned char hash[32];
    int fd = open_journal(j, O_RDONLY);
    if (fd < 0)
        return errno == ENOENT ? 1 : fail(err, "%s: %s", j->path, strerror(errno));
    int status = file_read_at(fd, h, HEAD, 0), error = errno;
    close(fd);
    if (status != 0 && error != ENODATA)
        return fail(err, "%s: %s", j->path, strerror(error));
    hash_head(h, hash);
    if (status != 0 || memcmp(h->magic, MAGIC, 8) != 0 || memcmp(h->hash, hash, 32) != 0 ||
        h->state < JOURNAL_CHANGING || h->state > JOURNAL_READY)
        return fail(err, "%s is not the journal of an edit, or it is damaged; nothing was changed", j->path);
    return 0;
}

int journal_set_state(Journal *j, uint64_t state, char err[512])
{
    int fd = open_journal(j, O_RDWR), status = 0;
    j->head.state = state;
    if (fd < 0 || file_write_at(fd, &state, 8, offsetof(JournalHead, state)) != 0 || file_sync(fd) != 0)
        status = fail(err, "%s: %s", j->path, strerror(errno));
    if (fd >= 0)
        close(fd);
    return status;
}

typedef struct {
    uint64_t step;
    JournalStepVisit *visit;
    void *context;
} StepSearch;

static bool look_at_file(void *context, const char *path)
{
    const StepSearch *s = context;
    char unused[512];
    Journal j = {.path = path_with_suffix(path, ".undo")};
    bool of_step = j.path && journal_read_head(&j, unused) == 0 && j.head.step == s->step;
    free(j.path);
    return !of_step || s->visit(s->context, path, &j.head);
}

void journal_visit_step(const char *file, uint64_t step, JournalStepVisit *visit, void *context)
{
    visit_folder(file, look_at_file, &(StepSearch){step, visit, context});
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static int fail_part(const Journal *j, char err[512])
{
    return fail(err, "%s: %s (the journal of an edit needs as many bytes as it changes)", j->path, strerror(errno));
}

static int put(Journal *j, const void *bytes, size_t n, char err[512])
{
    if (file_buffer_put(&j->records, bytes, n) != 0)
        return fail_part(j, err);
    j->head.records_bytes += n;
    sha256_update(&j->records_hash, bytes, n);
    return 0;
}

/* The shortest of 1, 2, 4, 8 whose bytes are repeated to make the n bytes; else n. */
static size_t period_of(const unsigned char *bytes, size_t n)
{
    for (size_t period = 1; period <= 8 && period < n; period *= 2)
        if (memcmp(bytes, bytes + period, n - period) == 0)
            return period;
    return n;
}

/* The first bytes tell what the file is, even if it is never finished. */
static int begin(Journal *j, mode_t mode, char err[512])
{
    j->records.fd = file_open_part(j->path, mode & 0666, &j->part);
    if (j->records.fd < 0)
        return fail(err, "%s: %s", j->path, strerror(errno));
    flock(j->records.fd, LOCK_EX | LOCK_NB); /* where files cannot be locked, leftovers stay */
    return file_write_at(j->records.fd, MAGIC, 8, 0) == 0 ? 0 : fail_part(j, err);
}

int journal_put(Journal *j, uint64_t offset, const unsigned char *before, const unsigned char *after, size_t n,
                mode_t mode, char err[512])
{
    RecordHead head = {offset, (uint32_t)n, (uint32_t)period_of(after, n)};
    if (j->records.fd < 0 && begin(j, mode, err) != 0)
        return -1;
    if (put(j, &head, sizeof head, err) != 0 || put(j, before, n, err) != 0)
        return -1;
    return put(j, after, head.period, err);
}

int journal_finish(Journal *j, char err[512])
{
    memcpy(j->head.magic, MAGIC, 8);
    j->head.state = JOURNAL_READY;
    sha256_final(&j->records_hash, j->head.records_hash);
    hash_head(&j->head, j->head.hash);
    if (file_buffer_flush(&j->records) != 0)
        return fail_part(j, err);
    if (file_write_at(j->records.fd, &j->head, HEAD, 0) != 0 || file_sync(j->records.fd) != 0)
        return fail(err, "%s: %s", j->path, strerror(errno));
    return 0;
}

/* ---- publishing -------------------------------------------------------------------------------------------------- */

/* Make way for this step's journal. */
static int keep_old(Journal *j, char err[512])
{
    if (!file_exists(j->path))
        return 0;
    if (file_exists(j->old) && !is_left_journal(j->old))
        return fail(err, "%s is in the way: it is not the journal of an edit", j->old);
    if (rename(j->path, j->old) != 0)
        return fail(err, "%s: %s", j->old, strerror(errno));
    j->kept_old = true;
    return 0;
}

int journal_publish(Journal *j, char err[512])
{
    if (keep_old(j, err) != 0)
        return -1;
    if (file_rename_to_free(j->part, j->path) != 0)
        return fail(err, "%s: %s", j->path, strerror(errno));
    j->published = true;
    return file_sync_folder(j->path) == 0 ? 0 : fail(err, "%s: its folder: %s", j->path, strerror(errno));
}

int journal_withdraw(Journal *j, char err[512])
{
    int status = 0;
    if (file_exists(j->old) && is_left_journal(j->old))
        status = rename(j->old, j->path);
    else if (j->published)
        status = unlink(j->path);
    if (status != 0 || file_sync_folder(j->path) != 0)
        return fail(err, "%s: %s", j->path, strerror(errno));
    return 0;
}

void journal_forget_old(Journal *j)
{
    if (j->kept_old)
        unlink(j->old);
    j->kept_old = false;
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

/* Read a record, of which and of all that follow there are `left` bytes. */
static int read_record(FILE *in, uint64_t left, uint64_t file_size, RecordHead *head, JournalRecord *r)
{
    if (left < sizeof *head || fread(head, sizeof *head, 1, in) != 1)
        return -1;
    if (head->length == 0 || head->length > JOURNAL_MOST || head->period == 0 || head->period > head->length ||
        left - sizeof *head < (uint64_t)head->length + head->period || head->offset > file_size ||
        file_size - head->offset < head->length)
        return -1;
    if (fread(r->before, head->length, 1, in) != 1 || fread(r->after, head->period, 1, in) != 1)
        return -1;
    for (size_t i = head->period; i < head->length; i++)
        r->after[i] = r->after[i - head->period];
    r->offset = head->offset;
    r->length = head->length;
    return 0;
}

/* Visit the records or, with visit NULL, check their SHA-256. */
static int read_records(const Journal *j, FILE *in, unsigned char *memory, JournalVisit *visit, void *context,
                        char err[512])
{
    JournalRecord r = {.before = memory, .after = memory + JOURNAL_MOST, .now = memory + 2 * JOURNAL_MOST};
    RecordHead head;
    Sha256 s;
    unsigned char hash[32];
    sha256_init(&s);
    for (uint64_t left = j->head.records_bytes; left > 0; left -= sizeof head + head.length + head.period) {
        if (read_record(in, left, j->head.size, &head, &r) != 0)
            return fail(err, "%s is damaged: a record is cut short or not valid", j->path);
        if (visit && visit(context, &r, err) != 0)
            return -1;
        if (!visit) {
            sha256_update(&s, &head, sizeof head);
            sha256_update(&s, r.before, head.length);
            sha256_update(&s, r.after, head.period);
        }
    }
    sha256_final(&s, hash);
    if (!visit && memcmp(hash, j->head.records_hash, 32) != 0)
        return fail(err, "%s is damaged: its records do not have the SHA-256 that it names", j->path);
    return 0;
}

int journal_visit(const Journal *j, JournalVisit *visit, void *context, char err[512])
{
    FILE *in = fopen(j->path, "rbe");
    unsigned char *memory = malloc(3 * JOURNAL_MOST);
    int status = in && memory && fseek(in, HEAD, SEEK_SET) == 0 ? read_records(j, in, memory, visit, context, err)
                                                                : fail(err, "%s: %s", j->path, strerror(errno));
    if (in)
        fclose(in);
    free(memory);
    return status;
}
