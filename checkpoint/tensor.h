/* What is said of one tensor: messages that name it, the layer that its name tells, its shape beside another's. */
#ifndef CHECKPOINT_TENSOR_H
#define CHECKPOINT_TENSOR_H

#include "base/base.h"
#include "safetensors.h"

/* Write `FILE: tensor "NAME": sentence` into err, without the file if it is NULL, and return -1. */
__attribute__((format(printf, 4, 5))) int tensor_fail(char err[512], const char *file, const SafetensorsTensor *t,
                                                      const char *fmt, ...);

/* The layer that the tensor belongs to: the first number that stands between dots in its name. False, and *layer as it
 * was, if there is none. */
bool tensor_layer(const SafetensorsTensor *t, uint64_t *layer);

bool tensor_same_shape(const SafetensorsTensor *a, const SafetensorsTensor *b);

#endif
