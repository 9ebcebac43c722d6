/* Changes bytes of checkpoint files in place, so that nothing is lost whatever happens.
 *
 * A file is changed by one process at a time, which holds its lock (flock). Beside FILE its journal FILE.undo is
 * left (journal.h), with which the last edit can be undone, and an edit that was cut off must be.
 */
#ifndef CHECKPOINT_EDIT_H
#define CHECKPOINT_EDIT_H

#include "base/base.h"
#include "checkpoint/checkpoint.h"

typedef struct EditFile EditFile;

/* One step: changes of any number of files that come about together or not at all. */
typedef struct {
    bool dry; /* only count */
    uint64_t step;
    EditFile *files;
    size_t n_files;
    uint64_t ranges, bytes; /* that differ, so far; neighbouring ranges are taken together */
    uint64_t end;           /* of the last range */
    const SafetensorsFile *end_of;
} Edit;

/* Locks the files that hold the n tensors; with dry nothing is locked or written. Refused if a file is read-only,
 * being edited, was replaced since it was opened, or has the journal of an interrupted edit. The files must be
 * mapped, not read into memory, and outlive e. */
int edit_begin(Edit *e, const SafetensorsTensor *const *tensors, size_t n, bool dry, char err[512]);
/* Notes that bytes offset .. offset + n - 1 of the tensor shall become `bytes`. Only what differs goes into the
 * journal. */
int edit_bytes(Edit *e, const SafetensorsTensor *t, uint64_t offset, const unsigned char *bytes, size_t n,
               char err[512]);
/* The next range [*begin, *end) from *end on where a[n] and b[n] differ, short equal stretches inside it included.
 * False: none. */
bool edit_next_change(const unsigned char *a, const unsigned char *b, size_t n, size_t *begin, size_t *end);
/* Makes the changes, reads them back. On failure the old bytes are there again, or err says that the journal has to
 * put them back. */
int edit_commit(Edit *e, char err[512]);
/* Unlocks; without a commit nothing has happened. Safe on a zeroed struct. */
void edit_end(Edit *e);

/* Puts back what was before the last step, complete or interrupted, in all files of c that it changed: *undone of
 * them. */
int edit_undo(const Checkpoint *c, size_t *undone, char err[512]);

/* True, with a sentence about it, if an edit of the file was interrupted or is going on. */
bool edit_pending(const char *path, char sentence[512]);

#endif
