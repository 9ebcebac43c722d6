/* Changes of a model that come from another file: a mask, or a patch that holds what differs between two models.
 *
 * A patch is a .safetensors file itself. Its metadata:
 *     "format": "run-patch", "version": "1", "base" and "result": the fingerprints of the model before and after
 * and for each tensor NAME that differs two of its own:
 *     NAME.ranges  U64 [n,2]  offset and length, in bytes from the tensor's first, ascending
 *     NAME.bytes   U8 [m]     the new bytes of these ranges, one after the other
 *
 * A model's fingerprint is the SHA-256 of the lines "HASH DTYPE [d0,d1] LENGTH NAME\n", one a tensor, sorted by the
 * bytes of the names; HASH is the SHA-256 of the tensor's bytes, LENGTH that of its name. It does not depend on how
 * the model is cut into files.
 */
#ifndef CHECKPOINT_PATCH_H
#define CHECKPOINT_PATCH_H

#include "base/base.h"
#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/edit.h"

typedef unsigned char Digest[32];

/* SHA-256 of each of n tensors, in parallel. digests: [n]. */
int tensors_digest(const SafetensorsTensor *const *tensors, size_t n, Digest *digests, FileProgress *progress,
                   void *context, char err[512]);
/* The fingerprint of the model that has these n tensors. */
int tensors_fingerprint(const SafetensorsTensor *const *tensors, size_t n, const Digest *digests, char hex[65],
                        char err[512]);

typedef struct {
    uint64_t tensors, ranges, bytes; /* that differ */
} PatchSize;
/* Writes what turns a into b. Their tensors must have the same names, dtypes and shapes. */
int patch_write(Checkpoint *a, Checkpoint *b, const char *path, FileProgress *progress, void *context, PatchSize *size,
                char err[512]);

/* Begins the edit and notes what the patch changes. Refused unless c is the patch's base and the outcome will be its
 * result. */
int patch_apply(Edit *e, Checkpoint *c, Checkpoint *patch, bool dry, FileProgress *progress, void *context,
                char err[512]);

/* Begins the edit and notes a zero for every weight whose mask is zero, in all tensors that the mask names. Masks
 * are BOOL or U8 with as many elements as the weights, or U8 with a bit for each: in row-major order, the lowest bit
 * first. *zeroed: weights that were not 0. */
int mask_apply(Edit *e, Checkpoint *c, const Checkpoint *mask, bool dry, uint64_t *zeroed, char err[512]);

#endif
