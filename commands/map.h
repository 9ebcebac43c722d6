/* The figures of `run info`: a file's three parts, and which tensors take the most of a checkpoint. */
#ifndef MAP_H
#define MAP_H

#include "base/base.h"
#include "checkpoint/checkpoint.h"

void draw_map(const Checkpoint *c);

#endif
