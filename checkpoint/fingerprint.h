/* What a model is by its bytes, however it is cut into files.
 *
 * A model's fingerprint is the SHA-256 of the lines "HASH DTYPE [d0,d1] LENGTH NAME\n", one for each tensor, sorted by
 * the bytes of the names. HASH is the SHA-256 of the tensor's bytes, LENGTH that of its name.
 */
#ifndef CHECKPOINT_FINGERPRINT_H
#define CHECKPOINT_FINGERPRINT_H

#include "base/base.h"
#include "base/file.h"
#include "checkpoint/checkpoint.h"

typedef unsigned char Digest[32];

/* Fill digests [checkpoint_tensor_count(c)] with the SHA-256 of each tensor's bytes, computed in parallel, and hex with
 * the model's fingerprint. progress, or NULL, is told of bytes that were read. */
int fingerprint_compute(const Checkpoint *c, Digest *digests, char hex[65], FileProgress *progress, void *context,
                        char err[512]);
/* The fingerprint that c has if its tensors have these digests. */
int fingerprint_of(const Checkpoint *c, const Digest *digests, char hex[65], char err[512]);

#endif
