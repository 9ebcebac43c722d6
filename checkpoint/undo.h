/* Taking back the last edit. */
#ifndef CHECKPOINT_UNDO_H
#define CHECKPOINT_UNDO_H

#include "base/base.h"
#include "checkpoint/checkpoint.h"

typedef struct {
    size_t files;       /* that were restored */
    bool changed_since; /* one of them was changed by something else after the edit, outside of what is restored */
} Undone;

/* Undo the last step that changed a file of c, complete or interrupted, in all files that it changed: those of c, and
 * others whose journals lie in the same folder. */
int undo_last(const Checkpoint *c, Undone *undone, char err[512]);

#endif
