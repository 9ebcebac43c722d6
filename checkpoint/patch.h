/* A patch: what differs between two models, in a .safetensors file of its own. Its metadata:
 *     "format": "run-patch", "version": "1", "base" and "result": the fingerprints of the model before and after
 * and for each tensor NAME that differs two tensors:
 *     NAME.ranges  U64 [n,2]  offset and length of each range that differs, in bytes from the tensor's first, ascending
 *     NAME.bytes   U8 [m]     the new bytes of these ranges, one after the other
 */
#ifndef CHECKPOINT_PATCH_H
#define CHECKPOINT_PATCH_H

#include "base/base.h"
#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/edit.h"

typedef struct {
    uint64_t tensors, ranges, bytes; /* that differ */
} PatchSize;

/* Write the patch that turns a into b. Their tensors must have the same names, dtypes and shapes. Edits are kept off
 * the files of both until they are closed. */
int patch_write(Checkpoint *a, Checkpoint *b, const char *path, bool replace, FileProgress *progress, void *context,
                PatchSize *size, char err[512]);

/* Begin the edit e and note in it what the patch changes. Refused unless c is the patch's base and what it becomes will
 * be the patch's result. */
int patch_apply(Edit *e, Checkpoint *c, Checkpoint *patch, FileProgress *progress, void *context, char err[512]);

#endif
