/* Changing bytes of checkpoint files in place, so that nothing is lost whatever happens.
 *
 * A file is changed by one process at a time, which holds its lock (flock). The journal FILE.undo (journal.h) stays
 * beside FILE: with it the last edit can be undone, and one that was cut off must be.
 */
#ifndef CHECKPOINT_EDIT_H
#define CHECKPOINT_EDIT_H

#include "base/base.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/edit_file.h"


/* One step: changes of any number of files, which all come about or none does. */
typedef struct {
    bool dry;     /* only count */
    bool force;   /* edit files that have several names, too */
    size_t links; /* the most names that a file has */
    uint64_t step, earlier; /* numbers of this step, and of the last one of its files */
    EditFile *files;
    size_t n_files;
    uint64_t ranges, bytes; /* that differ, so far; adjacent ranges count as one */
    uint64_t end;           /* of the last range */
    const SafetensorsFile *end_of;
} Edit;

/* Lock the files that hold the n tensors, after e->dry and e->force were set; with dry nothing is locked or written.
 * Refused if a file is read-only, is in use, was replaced since it was opened, has several names, or was edited by a step
 * that was interrupted. The files must be mapped, not read into memory, and outlive e. */
int edit_begin(Edit *e, const SafetensorsTensor *const *tensors, size_t n, char err[512]);
/* Note that bytes offset .. offset + n - 1 of the tensor are to become `bytes`. Only what differs goes into the
 * journal. */
int edit_bytes(Edit *e, const SafetensorsTensor *t, uint64_t offset, const unsigned char *bytes, size_t n,
               char err[512]);
/* Make the changes and read them back. After a failure the old bytes are there again, or err says that the journal has
 * to put them back. */
int edit_commit(Edit *e, char err[512]);
/* Unlock the files; without a commit nothing has happened. Safe on a zeroed struct. */
void edit_end(Edit *e);

/* Find the next range [*begin, *end), from *end on, where a[n] and b[n] differ. It may include a few bytes that are
 * equal. False if there is none. */
bool edit_next_change(const unsigned char *a, const unsigned char *b, size_t n, size_t *begin, size_t *end);

/* Keep edits off the files of c until it is closed, so that what is read of them is one state. Refused while one of them
 * is being edited, or if an edit was interrupted. Where files cannot be locked nothing is kept off. */
int edit_keep_off(const Checkpoint *c, char err[512]);

/* True, with a sentence about it, if an edit of a file of c was interrupted or is going on. */
bool edit_pending(const Checkpoint *c, char sentence[512]);

#endif
