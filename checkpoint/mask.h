/* A mask: a checkpoint file that tells for each weight of some tensors whether it is kept. It names tensors of the
 * model and holds for each of them BOOL or U8 with as many elements as there are weights, or U8 with a bit for each
 * weight: in row-major order, the lowest bit first. */
#ifndef CHECKPOINT_MASK_H
#define CHECKPOINT_MASK_H

#include "base/base.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/edit.h"

/* Begin the edit e and note in it that every weight whose mask is 0 becomes zero. *zeroed: weights that were not 0. */
int mask_apply(Edit *e, Checkpoint *c, const Checkpoint *mask, uint64_t *zeroed, char err[512]);

#endif
