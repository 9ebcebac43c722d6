/* A step may have changed several files, of which the model that is named may be one. Their journals are found in its
 * folder, by the number of the step:
 *
 *     one of them is READY       nothing has changed in any file yet
 *     as many as the step had    they are restored together
 *     all are UNDOING            an undo was cut off: those that are missing are restored already
 *     else                       one is missing that would have to be restored, too: refused
 */
#include "checkpoint/undo.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "checkpoint/edit_file.h"

typedef struct {
    EditFile *files; /* [n], locked, with their journals; those of the step come first */
    size_t n, chosen;
    char *err; /* [512], and whether something failed */
    bool failed;
} Search;

/* Lock a file and check its journal. Returns 1 if it has none. */
static int open_journaled(EditFile *f, char err[512])
{
    const JournalHead *h = &f->journal.head;
    unsigned char hash[32];
    if (!file_exists(f->journal.path) && !file_exists(f->journal.old))
        return 1;
    if (edit_file_lock(f, err) != 0)
        return -1;
    int found = journal_read_head(&f->journal, err);
    if (found != 0)
        return found;
    edit_file_hash_header(f, hash);
    if (h->size != f->st->mapped_size || memcmp(h->header_hash, hash, 32) != 0)
        return fail(err, "%s belongs to another file: its size or header is not that of %s", f->journal.path, f->path);
    f->journal.published = true;
    return journal_visit(&f->journal, NULL, NULL, err);
}

/* Add a file if it has a journal; own: st, if it is to be closed with it. */
static int add_file(Search *s, const SafetensorsFile *st, SafetensorsFile *own)
{
    EditFile *files = realloc(s->files, (s->n + 1) * sizeof *files), *f;
    if (!files) {
        fail(s->err, "%s: out of memory", st->path);
        if (own)
            safetensors_close(own);
        free(own);
        return -1;
    }
    s->files = files;
    f = &files[s->n];
    int found = edit_file_find(f, st, s->err) == 0 ? open_journaled(f, s->err) : -1;
    f->own = own;
    if (found == 0)
        s->n++;
    else
        edit_file_close(f);
    return found < 0 ? -1 : 0;
}

/* The step to undo: one that was interrupted, else the last. */
static JournalHead choose_step(const Search *s)
{
    JournalHead step = s->files[0].journal.head;
    for (size_t i = 1; i < s->n; i++) {
        const JournalHead *h = &s->files[i].journal.head;
        bool better =
            (h->state == JOURNAL_DONE) == (step.state == JOURNAL_DONE) ? h->step > step.step : h->state != JOURNAL_DONE;
        if (better)
            step = *h;
    }
    return step;
}

/* A file of the step, unless it is one of the model's. */
static bool add_partner(void *context, const char *path, const JournalHead *head)
{
    Search *s = context;
    (void)head;
    for (size_t i = 0; i < s->n; i++)
        if (file_same(path, s->files[i].path))
            return true;
    SafetensorsFile *st = calloc(1, sizeof *st);
    if (!st || safetensors_open(path, st) != 0) {
        fail(s->err, "%s", st ? st->error : "out of memory");
        free(st);
        s->failed = true;
    } else {
        s->failed = add_file(s, st, st) != 0;
    }
    return !s->failed;
}

/* Whether the journals that were found are enough to take the step back. */
static int check_step(const Search *s, const JournalHead *step, char err[512])
{
    bool ready = false, undoing = true;
    for (size_t i = 0; i < s->chosen; i++) {
        uint64_t state = s->files[i].journal.head.state;
        ready = ready || state == JOURNAL_READY;
        undoing = undoing && state == JOURNAL_UNDOING;
    }
    if (ready || undoing || s->chosen >= step->files)
        return 0;
    char *folder = path_folder(s->files[0].path), shown[TEXT_PRINTABLE];
    fail(err,
         "the edit changed %" PRIu64 " files together, but only %zu of their journals (.undo) are in %s: nothing is "
         "undone, since the model would be half of the old one",
         step->files, s->chosen, folder ? path_printable(folder, shown) : "its folder");
    free(folder);
    return -1;
}

static int undo(Search *s, const Checkpoint *c, Undone *undone)
{
    for (size_t i = 0; i < checkpoint_file_count(c); i++)
        if (add_file(s, checkpoint_file(c, i), NULL) != 0)
            return -1;
    if (s->n == 0)
        return fail(s->err, "%s: there is no edit to undo (no file ending in .undo beside it)", c->argument);
    JournalHead step = choose_step(s);
    if (step.files > 1)
        journal_visit_step(s->files[0].path, step.step, add_partner, s);
    if (s->failed)
        return -1;
    for (size_t i = 0; i < s->n; i++)
        if (s->files[i].journal.head.step == step.step)
            edit_files_choose(s->files, i, &s->chosen);
    if (check_step(s, &step, s->err) != 0)
        return -1;
    for (size_t i = 0; i < s->chosen; i++) {
        EditFile *f = &s->files[i];
        bool complete = f->journal.head.state == JOURNAL_DONE;
        undone->changed_since = undone->changed_since || (complete && file_is_newer(f->fd, f->journal.path));
        if (journal_visit(&f->journal, edit_file_check_either, f, s->err) != 0)
            return -1;
    }
    undone->files = s->chosen;
    return edit_files_restore(s->files, s->chosen, s->err);
}

int undo_last(const Checkpoint *c, Undone *undone, char err[512])
{
    Search s = {.err = err};
    *undone = (Undone){0};
    int status = undo(&s, c, undone);
    for (size_t i = 0; i < s.n; i++)
        edit_file_close(&s.files[i]);
    free(s.files);
    return status;
}
