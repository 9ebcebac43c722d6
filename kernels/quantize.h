/* Float weights to matrices of 8 and 4 bits. */
#ifndef QUANTIZE_H
#define QUANTIZE_H

#include "kernels/matmul.h"

/* Bytes that a matrix of type Q8 or Q4 takes; SIZE_MAX if that overflows. cols must be a multiple of 32. */
size_t quantized_size(WeightType type, size_t rows, size_t cols);

/* Quantize src (F32, BF16 or F16) to dst->type (Q8 or Q4), in parallel. dst and src have the same rows and cols, and
 * storage is what dst->data points at: quantized_size() bytes at a multiple of 64, all of which are written. Return -1
 * if a weight is a NaN or infinite, with the first such row in *bad_row. */
int quantize_matrix(const Matrix *dst, void *storage, const Matrix *src, size_t *bad_row);

#endif
