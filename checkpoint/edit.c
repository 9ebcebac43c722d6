/* The order of things on disk:
 *     1. the whole journal, fsynced under a temporary name     nothing has happened yet
 *     2. an earlier FILE.undo becomes FILE.undo.old
 *     3. the journal becomes FILE.undo, folder fsynced         from here on --undo can bring the old bytes back
 *     4. the journal's state becomes CHANGING, fsynced
 *     5. FILE's bytes are changed, fsynced, read back
 *     6. the journal's state becomes DONE, fsynced; FILE.undo.old is removed
 * A step that changes several files does each of these for all of them before it goes on to the next. Undo sets the
 * state to UNDOING, puts the old bytes back, and removes the journals last. So both may be cut off anywhere, and undo
 * may be repeated.
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
#include "checkpoint/edit_file.h"

#define GAP 16 /* up to this many equal bytes between two changes cost less than another record */

/* ---- the files of a step ----------------------------------------------------------------------------------------- */

static int fail_interrupted(const char *model, char err[512])
{
    char shown[TEXT_PRINTABLE], word[TEXT_QUOTED];
    return fail(err, "an edit of %s was interrupted: `run edit %s --undo` puts the old bytes back",
                path_printable(model, shown), text_quoted(model, word));
}

/* context: bool */
static bool note_unfinished(void *context, const char *file, const JournalHead *head)
{
    bool *unfinished = context;
    (void)file;
    *unfinished = head->state != JOURNAL_DONE;
    return !*unfinished;
}

/* Whether the step that a file's journal is of was interrupted; so it may have been in another file. */
static bool is_unfinished(const char *file, const JournalHead *head)
{
    bool unfinished = head->state != JOURNAL_DONE;
    if (!unfinished && head->files > 1)
        journal_visit_step(file, head->step, note_unfinished, &unfinished);
    return unfinished;
}

/* A file that has several names would change under all of them. */
static int check_links(const EditFile *f, bool force, char err[512])
{
    char shown[TEXT_PRINTABLE];
    if (f->links <= 1 || force)
        return 0;
    return fail(err, "%s has %zu names (hard links), and would change under each of them: edit a copy, or give --force",
                path_printable(f->st->path, shown), f->links);
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
    if (edit_file_find(f, st, err) != 0)
        return -1;
    if (e->dry)
        return 0;
    if (edit_file_lock(f, err) != 0 || check_links(f, e->force, err) != 0)
        return -1;
    e->links = MAX(e->links, f->links);
    int found = journal_read_head(&f->journal, err);
    if (found != 0)
        return found < 0 ? -1 : 0;
    uint64_t step = f->journal.head.step;
    if (step != e->earlier && is_unfinished(f->path, &f->journal.head))
        return fail_interrupted(f->path, err);
    e->earlier = step;
    e->step = MAX(e->step, step + 1);
    f->journal.head = (JournalHead){0};
    return 0;
}

int edit_begin(Edit *e, const SafetensorsTensor *const *tensors, size_t n, char err[512])
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    *e = (Edit){.dry = e->dry, .force = e->force, .step = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec};
    for (size_t i = 0; i < n; i++)
        if (add_file(e, tensors[i]->file, err) != 0)
            return -1;
    return 0;
}

void edit_end(Edit *e)
{
    for (size_t i = 0; i < e->n_files; i++)
        edit_file_close(&e->files[i]);
    free(e->files);
    *e = (Edit){0};
}

/* ---- what is to change ------------------------------------------------------------------------------------------- */

bool edit_next_change(const unsigned char *a, const unsigned char *b, size_t n, size_t *begin, size_t *end)
{
    *begin = edit_file_first_difference(a, b, *end, n);
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

/* ---- commit ------------------------------------------------------------------------------------------------------ */

/* Steps 1 to 3. */
static int publish_journals(EditFile *files, size_t n, uint64_t step, char err[512])
{
    for (size_t i = 0; i < n; i++) {
        JournalHead *h = &files[i].journal.head;
        h->step = step;
        h->files = n;
        h->size = files[i].st->mapped_size;
        edit_file_hash_header(&files[i], h->header_hash);
        if (journal_finish(&files[i].journal, err) != 0)
            return -1;
    }
    for (size_t i = 0; i < n; i++)
        if (edit_file_check_same(&files[i], err) != 0)
            return -1;
    for (size_t i = 0; i < n; i++)
        if (journal_publish(&files[i].journal, err) != 0)
            return -1;
    return 0;
}

static int set_states(EditFile *files, size_t n, uint64_t state, char err[512])
{
    for (size_t i = 0; i < n; i++)
        if (journal_set_state(&files[i].journal, state, err) != 0)
            return -1;
    return 0;
}

/* Steps 4 to 6. */
static int change_files(EditFile *files, size_t n, char err[512])
{
    if (set_states(files, n, JOURNAL_CHANGING, err) != 0)
        return -1;
    for (size_t i = 0; i < n; i++) {
        if (journal_visit(&files[i].journal, edit_file_write_after, &files[i], err) != 0)
            return -1;
        if (file_sync(files[i].fd) != 0)
            return fail(err, "%s: %s", files[i].path, strerror(errno));
    }
    for (size_t i = 0; i < n; i++)
        if (edit_file_check_same(&files[i], err) != 0 ||
            journal_visit(&files[i].journal, edit_file_check_after, &files[i], err) != 0)
            return -1;
    return set_states(files, n, JOURNAL_DONE, err);
}

/* Restore the files after a step that failed, and append to the sentence in err how that went. */
static void roll_back(EditFile *files, size_t n, char err[512])
{
    char unused[512], word[TEXT_QUOTED];
    size_t used = strlen(err);
    if (edit_files_restore(files, n, unused) == 0)
        snprintf(err + used, 512 - used, "; the old bytes are back in place");
    else
        snprintf(err + used, 512 - used, "; the old bytes are not back yet: `run edit %s --undo` restores them",
                 text_quoted(files[0].path, word));
}

int edit_commit(Edit *e, char err[512])
{
    EditFile *files = e->files;
    char unused[512];
    size_t n = 0; /* files that change */
    for (size_t i = 0; i < e->n_files; i++)
        if (files[i].journal.head.records_bytes > 0)
            edit_files_choose(files, i, &n);
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

/* ---- what others must know ---------------------------------------------------------------------------------------- */

/* Whether the step of a file's last edit was interrupted or goes on. *earlier: the step that was looked at before, for
 * another file. */
static bool is_pending(const char *path, uint64_t *earlier)
{
    char *whole = realpath(path, NULL), unused[512];
    Journal j = {0};
    bool pending = whole && journal_init(&j, whole, unused) == 0 && journal_read_head(&j, unused) == 0 &&
                   j.head.step != *earlier && is_unfinished(whole, &j.head);
    *earlier = j.head.step;
    journal_end(&j);
    free(whole);
    return pending;
}

bool edit_pending(const Checkpoint *c, char sentence[512])
{
    uint64_t earlier = 0;
    for (size_t i = 0; i < checkpoint_file_count(c); i++) {
        const SafetensorsFile *st = checkpoint_file(c, i);
        if (!is_pending(st->path, &earlier))
            continue;
        int fd = open(st->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (fd >= 0 && flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK)
            fail(sentence, "%s is being edited by another process", st->path);
        else
            fail_interrupted(c->argument, sentence);
        if (fd >= 0)
            close(fd);
        return true;
    }
    return false;
}

int edit_keep_off(const Checkpoint *c, char err[512])
{
    for (size_t i = 0; i < checkpoint_file_count(c); i++) {
        const SafetensorsFile *st = checkpoint_file(c, i);
        if (flock(st->fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK)
            return fail(err, "%s is being edited by another process", st->path);
    }
    return edit_pending(c, err) ? -1 : 0;
}
