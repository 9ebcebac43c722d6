/* NumPy's files of one array. */
#ifndef CHECKPOINT_NPY_H
#define CHECKPOINT_NPY_H

#include "base/base.h"
#include "checkpoint/slice.h"

/* Write the slice as a .npy file, version 1.0. NumPy has neither BF16 nor 8-bit floats: they are widened to float32.
 * The caller looks at ferror(f), too. */
int npy_write(const Slice *s, FILE *f, char err[512]);

#endif
