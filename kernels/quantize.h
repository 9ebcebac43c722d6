/* Matrices of 8 and 4 bits: how they lie in memory, and how float weights become such. */
#ifndef QUANTIZE_H
#define QUANTIZE_H

#include "kernels/matmul.h"

/* Quantize src to Q8 or Q4 (dst->type), in parallel. dst->rows and cols are set; dst->data must point to
 * quantized_size() bytes aligned to 64, which are written. cols must be a multiple of 32. -1 if a weight is NaN
 * or infinite: *bad_row is its row. */
size_t quantized_size(WeightType type, size_t rows, size_t cols);
int quantize_matrix(const Matrix *dst, void *storage, const Matrix *src, size_t *bad_row);

#endif
